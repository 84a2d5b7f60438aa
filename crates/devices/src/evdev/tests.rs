//! Tests without a kernel: description, states, frames and queues. Those with a kernel are in `tests/kernel_input`.

use super::discovery::{is_same, with_interface};
use super::effects::Effects;
use super::frames::{Assembled, Assembler, Echoes, Queue};
use super::kernel::to_format;
use super::node::Node;
use super::properties::{SLOTS_MAX, usable};
use super::state::{State, neutral};
use super::{PHYS_PREFIX, Properties};
use contract::{
    Attributes, Ctl, Direction, FlowClass, FlowTemplate, Format, Kind, Message, Options, Partner, Pushed,
    Time,
};
use proptest::prelude::*;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use sys::input::code::*;
use sys::input::{Axis, Bits, Event, Ids, read_events};
use wire::formats::evdev::{EVENTS_MAX, Effect, Update};

/// `SND_TONE`.
const TONE: u16 = 2;

const DOCUMENT: &str = include_str!("../../../../docs/reference/formats-evdev.md");

fn key(code: u16, value: i32) -> Event {
    Event::new(EV_KEY, code, value)
}

fn abs(code: u16, value: i32) -> Event {
    Event::new(EV_ABS, code, value)
}

fn frame(event: Event) -> Update {
    Update::Frame(to_format(vec![event]))
}

fn axis(minimum: i32, maximum: i32) -> Axis {
    Axis { minimum, maximum, ..Axis::default() }
}

fn touchpad(slots: i32) -> Properties {
    let mut properties = Properties::default();
    properties.set_codes(EV_KEY, Bits::from_iter([BTN_LEFT, BTN_TOUCH]));
    properties.kinds.set(EV_ABS, true);
    for code in [ABS_X, ABS_Y, ABS_MT_POSITION_X, ABS_MT_POSITION_X + 1] {
        properties.axes.insert(code, axis(0, 1000));
    }
    properties.axes.insert(ABS_MT_SLOT, axis(0, slots - 1));
    properties.axes.insert(ABS_MT_TRACKING_ID, axis(0, 65535));
    properties
}

fn gamepad() -> Properties {
    let mut properties = Properties::default();
    properties.set_codes(EV_KEY, Bits::from_iter([BTN_GAMEPAD]));
    properties.kinds.set(EV_ABS, true);
    properties.axes.insert(ABS_X, Axis { value: 200, ..axis(0, 255) });
    properties.axes.insert(ABS_Z, Axis { value: 3, ..axis(0, 255) });
    properties.axes.insert(ABS_RZ, Axis { value: 120, ..axis(0, 255) });
    properties.axes.insert(ABS_HAT0X, axis(-1, 1));
    properties.axes.insert(ABS_RZ + 1, axis(0, 255));
    properties
}

/// Returns the events that were written to the other end of a socket.
fn written(far: &UnixStream) -> Vec<Event> {
    let mut batch = Vec::new();
    while read_events(far.as_fd(), &mut batch).is_ok_and(|count| count > 0) {}
    batch.into_iter().map(|(_, event)| event).collect()
}

/// Returns the bytes in the line of the document that starts with `title`.
fn vector(title: &str) -> Vec<u8> {
    let line = DOCUMENT.lines().find(|line| line.starts_with(&format!("| {title}")));
    let hex = line.and_then(|line| line.split('`').rev().nth(1)).expect("a line with bytes");
    let digits: Vec<u32> = hex.chars().filter_map(|digit| digit.to_digit(16)).collect();
    digits.chunks(2).map(|pair| (pair[0] * 16 + pair[1]) as u8).collect()
}

#[test]
fn a_description_matches_the_documented_bytes() {
    let mut properties = Properties {
        name: "b".into(),
        phys: "p".into(),
        ids: Ids { bus: 3, vendor: 1, product: 2, version: 3 },
        ..Properties::default()
    };
    properties.set_codes(EV_KEY, Bits::from_iter([0x100]));
    assert_eq!(properties.to_bytes(), vector("A description"));
    assert_eq!(Properties::parse(&vector("A description")), Ok(properties));
}

#[test]
fn invalid_descriptions_are_refused() {
    let refused = |change: &dyn Fn(&mut Properties)| {
        let mut properties = touchpad(5);
        change(&mut properties);
        assert!(Properties::parse(&properties.to_bytes()).is_err(), "{properties:?}");
    };
    refused(&|it| it.name = "x".repeat(256));
    refused(&|it| it.name = "a\0b".into());
    refused(&|it| it.effects_max = 97);
    refused(&|it| it.repeat_ms = Some([60_001, 0]));
    refused(&|it| _ = it.axes.insert(ABS_X, axis(1, 0)));
    refused(&|it| _ = it.axes.insert(ABS_X, Axis { fuzz: -1, ..axis(0, 1) }));
    refused(&|it| _ = it.axes.insert(ABS_MT_SLOT, axis(0, SLOTS_MAX)));
    refused(&|it| _ = it.axes.insert(ABS_CNT as u16, axis(0, 1)));
    assert!(Properties::parse(&touchpad(SLOTS_MAX).to_bytes()).is_ok());
}

/// Drivers set such values, and the kernel does not check them.
#[test]
fn an_odd_axis_is_corrected_or_left_out() {
    let odd = Axis { fuzz: -1, flat: -1, ..axis(0, 255) };
    assert_eq!(usable(ABS_X, odd), Some(axis(0, 255)));
    assert_eq!(usable(ABS_X, axis(0, 0)), Some(axis(0, 0)));
    assert_eq!(usable(ABS_X, axis(0, -1)), None);
    assert_eq!(usable(ABS_MT_SLOT, axis(0, SLOTS_MAX)), None);
}

#[test]
fn a_device_is_recognized_by_serial_number_or_location_but_not_its_copy() {
    let known = Properties { name: "pad".into(), phys: "usb-1".into(), ..gamepad() };
    let at = |phys: &str, uniq: &str| Properties { phys: phys.into(), uniq: uniq.into(), ..known.clone() };
    assert!(is_same(&known, &known));
    assert!(!is_same(&known, &at("usb-2", "")), "the same model at another location");
    assert!(is_same(&at("usb-1", "7"), &at("usb-2", "7")));
    assert!(!is_same(&at("usb-1", "7"), &at("usb-1", "8")));
    assert!(!is_same(&at("usb-1", "7"), &at(&format!("{PHYS_PREFIX}usb-1"), "7")));
    assert!(!is_same(&known, &Properties { name: "other".into(), ..known.clone() }));
    let mut fewer = known.clone();
    fewer.axes.remove(&ABS_Z);
    assert!(!is_same(&known, &fewer));
    // The gamepads of a wireless receiver, each at an interface of its own.
    let [one, other] = ["00\n", "0a\n"].map(|number| with_interface("usb-1/input0", Some(number)));
    assert_eq!((one.as_str(), other.as_str()), ("usb-1/input0", "usb-1/input10"));
    assert!(!is_same(&at(&one, ""), &at(&other, "")), "another gamepad of the receiver");
    assert_eq!(with_interface("usb-1/input0", None), "usb-1/input0");
    assert_eq!(with_interface("usb-1/input2:1", Some("02")), "usb-1/input2:1");
}

#[test]
fn repeats_echoes_and_feedback_events_are_dropped() {
    let mut assembler = Assembler::default();
    let mut handle = |event| assembler.handle(event);
    assert_eq!(handle(key(KEY_A, 1)), Assembled::Nothing);
    assert_eq!(handle(Event::REPORT), Assembled::Frame(vec![key(KEY_A, 1)]));
    handle(key(KEY_A, 2));
    assert_eq!(handle(Event::new(EV_SYN, SYN_REPORT, 1)), Assembled::Nothing, "only a repeat");
    handle(Event::new(EV_SND, 1, 1));
    handle(Event::new(EV_FF, 0, 1));
    assert_eq!(handle(Event::REPORT), Assembled::Nothing);
    let light = Event::new(EV_LED, 1, 1);
    assembler.echoes.expect(light);
    assembler.handle(light);
    assert_eq!(assembler.handle(Event::REPORT), Assembled::Nothing, "an echo");
    assembler.handle(light);
    assert_eq!(assembler.handle(Event::REPORT), Assembled::Frame(vec![light]), "another program's light");
    assert_eq!(assembler.repeats, 1);
}

#[test]
fn events_after_an_overflow_are_dropped_until_the_next_report() {
    let mut assembler = Assembler::default();
    let dropped = Event::new(EV_SYN, SYN_DROPPED, 0);
    for event in [key(KEY_A, 1), dropped, key(KEY_A, 0)] {
        assert_eq!(assembler.handle(event), Assembled::Nothing);
    }
    assert_eq!(assembler.handle(Event::REPORT), Assembled::Lost);
    assembler.handle(key(KEY_A, 1));
    assert_eq!(assembler.handle(Event::REPORT), Assembled::Frame(vec![key(KEY_A, 1)]));
}

#[test]
fn an_endless_frame_is_dropped() {
    let mut assembler = Assembler::default();
    for _ in 0..=EVENTS_MAX {
        assembler.handle(abs(ABS_X, 1));
    }
    assert_eq!(assembler.handle(Event::REPORT), Assembled::Lost);
}

#[test]
fn motion_is_merged_above_the_limit_and_keys_never() {
    let moved = |distance| frame(Event::new(EV_REL, 0, distance));
    let pressed = frame(key(BTN_LEFT, 1));
    let mut queue = Queue::new(1, 4);
    assert!(queue.push(Time(1), moved(1)));
    assert!(queue.push(Time(2), moved(2)));
    assert!(queue.push(Time(3), moved(3)));
    assert!(queue.push(Time(4), pressed.clone()));
    assert!(queue.push(Time(5), moved(4)));
    assert!(queue.push(Time(6), moved(5)));
    assert!(!queue.push(Time(7), pressed.clone()), "full");
    let got: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
    assert_eq!(got, [(Time(1), moved(1)), (Time(3), moved(5)), (Time(4), pressed), (Time(6), moved(9))]);
    assert_eq!(queue.merged, 2);
}

#[test]
fn motion_of_a_finger_is_merged_but_not_across_a_lift() {
    let moved = |x| vec![abs(ABS_MT_SLOT, 1), abs(ABS_MT_POSITION_X, x)];
    let lifted = vec![abs(ABS_MT_SLOT, 1), abs(ABS_MT_TRACKING_ID, -1)];
    let mut queue = Queue::new(0, 10);
    for (time, frame) in [moved(3), moved(4), lifted.clone(), moved(5)].into_iter().enumerate() {
        assert!(queue.push(Time(time as u64), Update::Frame(to_format(frame))));
    }
    let got: Vec<_> = std::iter::from_fn(|| queue.pop()).map(|(_, update)| update).collect();
    assert_eq!(got, [moved(4), lifted, moved(5)].map(|frame| Update::Frame(to_format(frame))));
}

#[test]
fn the_oldest_echoes_are_forgotten() {
    let mut echoes = Echoes::default();
    (0..65).for_each(|code| echoes.expect(Event::new(EV_LED, code, 1)));
    assert!(!echoes.take(Event::new(EV_LED, 0, 1)));
    assert!(echoes.take(Event::new(EV_LED, 64, 1)));
    assert!(!echoes.take(Event::new(EV_LED, 64, 1)));
}

/// A driving game plays a constant force once, and then changes its level many times a second.
#[test]
fn an_updated_effect_keeps_playing() {
    let force = |length_ms, level| Effect {
        kind: 0x52,
        id: 3,
        direction: 0,
        trigger_button: 0,
        trigger_interval_ms: 0,
        length_ms,
        delay_ms: 0,
        parameters: [level; _],
    };
    let mut effects = Effects::default();
    effects.upload(force(0, 1), Time(1));
    assert!(!effects.is_any_playing(Time(1)), "nobody has played it");
    effects.play(3, 1, Time(2));
    effects.upload(force(0, 2), Time(3));
    assert!(effects.is_any_playing(Time(1_000_000_000_000)));
    assert_eq!(effects.endless_plays(), [Event::new(EV_FF, 3, 1)]);
    assert_eq!(effects.uploaded().collect::<Vec<_>>(), [force(0, 2)]);

    effects.upload(force(10, 2), Time(0));
    assert!(effects.is_any_playing(Time(9_000_000)) && !effects.is_any_playing(Time(10_000_000)));
    effects.upload(force(0, 2), Time(10_000_000));
    assert!(!effects.is_any_playing(Time(10_000_000)), "it had ended");
    assert!(effects.endless_plays().is_empty());

    effects.play(3, 1, Time(11_000_000));
    effects.play(3, 0, Time(12_000_000));
    effects.upload(force(0, 3), Time(13_000_000));
    assert!(!effects.is_any_playing(Time(13_000_000)), "it was stopped");
    assert!(effects.erase(3) && !effects.erase(3));
}

#[test]
fn a_neutral_gamepad_has_its_axes_at_rest() {
    let properties = gamepad();
    let snapshot = neutral(&properties);
    let value = |code| snapshot.iter().find(|event| event.code == code).map(|event| event.value);
    assert_eq!(value(ABS_X), Some(127));
    assert_eq!(value(ABS_Z), Some(0), "a trigger");
    assert_eq!(value(ABS_RZ), Some(127), "half a stick");
    assert_eq!(value(ABS_HAT0X), Some(0));
    assert_eq!(value(ABS_RZ + 1), None, "a throttle stays");
    let mut pad = State::new(&properties);
    pad.apply(key(BTN_GAMEPAD, 1));
    assert_eq!(pad.changes_to(&pad.with_snapshot(&snapshot), &properties)[0], [key(BTN_GAMEPAD, 0)]);
}

/// The pedals of most wheels rest at their maximum.
#[test]
fn pedals_of_a_neutral_wheel_rest_where_they_were() {
    let mut wheel = with_keys([BTN_JOYSTICK], &[]);
    wheel.kinds.set(EV_ABS, true);
    let at = |value| Axis { value, ..axis(0, 255) };
    wheel.axes = [(ABS_X, 130), (ABS_Y, 127), (ABS_Z, 255), (ABS_RZ, 254)]
        .map(|(code, value)| (code, at(value)))
        .into();
    let rests = |properties: &Properties| -> Vec<i32> {
        neutral(properties).iter().map(|event| event.value).collect()
    };
    assert_eq!(rests(&wheel), [127, 127, 255, 255]);
    wheel.axes.insert(ABS_Y, at(255));
    assert_eq!(rests(&wheel), [127, 255, 255, 255], "with a clutch");
    let mut state = State::new(&wheel);
    assert!(state.is_neutral(&wheel, &Bits::new()));
    state.apply(abs(ABS_Z, 0));
    assert!(!state.is_neutral(&wheel, &Bits::new()), "full throttle");

    let mut stick = wheel.clone();
    stick.axes = [(ABS_X, 255), (ABS_Y, 255), (ABS_RZ, 127)].map(|(code, value)| (code, at(value))).into();
    assert_eq!(rests(&stick), [127; 3], "a stick that somebody held when it was shared");
    let mut pad = wheel.clone();
    pad.set_codes(EV_KEY, Bits::from_iter([BTN_GAMEPAD]));
    assert_eq!(rests(&pad)[1], 127, "sticks and triggers of a gamepad do not rest at their maximum");
}

/// Until a report has passed, the kernel has 0 for every axis: for a stick the corner, for many pedals the floor.
#[test]
fn an_axis_rests_where_the_first_report_has_it() {
    let nothing = Bits::new();
    let neutral_at = |properties: &Properties, codes: &[u16]| -> Vec<Option<i32>> {
        let snapshot = neutral(properties);
        let value = |code: &u16| snapshot.iter().find(|event| event.code == *code).map(|event| event.value);
        codes.iter().map(value).collect()
    };
    let codes = [ABS_X, ABS_Y, ABS_Z, ABS_RZ, ABS_GAS];
    let mut unplayed = with_keys([BTN_JOYSTICK], &[]);
    unplayed.kinds.set(EV_ABS, true);
    unplayed.axes = codes.map(|code| (code, axis(0, 255))).into();
    assert_eq!(neutral_at(&unplayed, &codes), [Some(127), Some(127), None, None, None]);
    assert!(State::new(&unplayed).is_neutral(&unplayed, &nothing), "nobody holds it");

    let report = |values: [i32; 5]| -> Vec<Event> {
        codes.iter().zip(values).map(|(code, value)| abs(*code, value)).collect()
    };
    for (first, rests) in [
        ([127, 130, 120, 131, 0], [127, 127, 127, 127, 0]), // two sticks
        ([120, 127, 0, 4, 0], [127, 127, 0, 0, 0]),         // triggers
        ([120, 255, 255, 250, 0], [127, 255, 255, 255, 0]), // a wheel
    ] {
        let (mut properties, mut state) = (unplayed.clone(), State::all_pressed(&unplayed));
        state.apply(key(BTN_JOYSTICK, 1));
        state.learn_rest(&mut properties, &[key(BTN_JOYSTICK, 1), abs(ABS_HAT0X, 1)]);
        assert_eq!(properties, unplayed, "no axis has reported");
        for (values, later) in [(first, rests), ([9, 9, 9, 9, 9], rests)] {
            let events = report(values);
            events.iter().for_each(|event| state.apply(*event));
            state.learn_rest(&mut properties, &events);
            assert_eq!(neutral_at(&properties, &codes), later.map(Some), "after {values:?}");
        }
    }

    // A trigger is pulled before a stick without play has moved: 0 was the middle of the stick.
    let mut centred = unplayed.clone();
    centred.axes.extend([ABS_X, ABS_Y].map(|code| (code, axis(-128, 127))));
    let mut state = State::new(&centred);
    state.apply(abs(ABS_Z, 200));
    state.learn_rest(&mut centred, &[abs(ABS_Z, 200)]);
    assert_eq!(neutral_at(&centred, &codes), [0, 0, 0, 0, 0].map(Some));
}

/// A socket stands for the node of a wheel that was shared before it had reported.
#[test]
fn a_node_learns_where_the_pedals_rest() {
    let mut wheel = with_keys([BTN_JOYSTICK], &[]);
    wheel.kinds.set(EV_ABS, true);
    wheel.axes = [ABS_X, ABS_Z, ABS_RZ].map(|code| (code, axis(0, 255))).into();
    let (far, node) = UnixStream::pair().unwrap();
    far.set_nonblocking(true).unwrap();
    node.set_nonblocking(true).unwrap();
    let mut node = Node::new(Arc::new(node.into()), wheel.clone()).unwrap();
    let at = |x, gas, brake| to_format(vec![abs(ABS_X, x), abs(ABS_Z, gas), abs(ABS_RZ, brake)]);
    node.apply(Update::Snapshot(at(0, 0, 0))).unwrap();
    node.go_neutral().unwrap();
    for update in [Update::Snapshot(at(0, 0, 0)), Update::Frame(at(128, 255, 255))] {
        node.apply(update).unwrap();
    }
    node.apply(Update::Frame(at(200, 0, 255))).unwrap();
    assert!(!node.is_neutral());
    written(&far);
    node.go_neutral().unwrap();
    assert_eq!(written(&far), [abs(ABS_X, 127), abs(ABS_Z, 255), Event::REPORT]);
    assert!(node.is_neutral());
}

#[test]
fn a_gamepad_that_nobody_touches_is_neutral() {
    let (properties, nothing) = (gamepad(), Bits::new());
    let mut state = State::new(&properties);
    neutral(&properties).into_iter().for_each(|event| state.apply(event));
    let is_neutral_after = |event| {
        let mut state = state.clone();
        state.apply(event);
        state.is_neutral(&properties, &nothing)
    };
    assert!(state.is_neutral(&properties, &nothing));
    for (event, is_neutral) in [
        (abs(ABS_X, 127 + 20), true),
        (abs(ABS_X, 127 + 60), false),
        (abs(ABS_X, 0), false),
        (abs(ABS_Z, 9), true),
        (abs(ABS_Z, 200), false),
        (abs(ABS_HAT0X, -1), false),
        (key(BTN_GAMEPAD, 1), false),
        // A throttle has no rest.
        (abs(ABS_RZ + 1, 250), true),
    ] {
        assert_eq!(is_neutral_after(event), is_neutral, "{event:?}");
    }
    let held = Bits::from_iter([BTN_GAMEPAD]);
    state.apply(key(BTN_GAMEPAD, 1));
    assert!(state.is_neutral(&properties, &held), "the button was pressed for another program");
}

/// The kernel goes on with a tone when the program that started it closes the device. A socket stands for the device.
#[test]
fn a_tone_ends_with_the_link_and_with_the_worker() {
    let mut properties = Properties::default();
    properties.set_codes(EV_SND, Bits::from_iter([TONE]));
    let (far, node) = UnixStream::pair().unwrap();
    far.set_nonblocking(true).unwrap();
    node.set_nonblocking(true).unwrap();
    let options = Options::defaults(&super::EVDEV_OPTIONS).unwrap();
    let mut partner = super::DevicePartner::new(node.into(), properties, &options);
    let template = FlowTemplate { direction: Direction::In, format: Format::Evdev, class: FlowClass::State };
    let flow = partner.open(&template, &Attributes::default()).unwrap();
    let tone = |pitch| Event::new(EV_SND, TONE, pitch);
    let play = |partner: &mut dyn Partner, pitch| {
        let body = frame(tone(pitch)).to_bytes();
        assert!(matches!(partner.push(flow, Message::new(Time(0), body)), Ok(Pushed::Taken)));
    };
    let heard = || -> Vec<Event> { written(&far).into_iter().filter(|event| event.kind == EV_SND).collect() };
    play(&mut partner, 440);
    partner.ctl(flow, Ctl::Neutral).unwrap();
    assert_eq!(heard(), [tone(440), tone(0)]);
    partner.ctl(flow, Ctl::Neutral).unwrap();
    assert!(heard().is_empty(), "it is silent");
    play(&mut partner, 880);
    play(&mut partner, 0);
    play(&mut partner, 440);
    drop(partner);
    assert_eq!(heard(), [880, 0, 440, 0].map(tone));
}

/// The six axes of a SpaceNavigator, as the kernel's driver reports them.
#[test]
fn a_neutral_3d_mouse_is_centred() {
    let cap = |value| Axis { value, minimum: -350, maximum: 350, fuzz: 0, flat: 0, resolution: 0 };
    let mut properties = with_keys([BTN_MISC, BTN_MISC + 1], &[]);
    properties.kinds.set(EV_ABS, true);
    properties.axes = (ABS_X..=ABS_RZ).map(|code| (code, cap(0))).collect();
    assert_eq!(properties.kind(), Kind::Mouse3d);
    let (mut state, nothing) = (State::new(&properties), Bits::new());
    assert!(state.is_neutral(&properties, &nothing));
    state.apply(abs(ABS_RX, 1));
    assert!(!state.is_neutral(&properties, &nothing), "a cap that is hardly pushed is held");
    let [_, events] = state.changes_to(&state.with_snapshot(&neutral(&properties)), &properties);
    assert_eq!(events, [abs(ABS_RX, 0)]);
}

#[test]
fn a_finger_on_a_touchpad_is_not_neutral() {
    let (properties, nothing) = (touchpad(2), Bits::new());
    let mut state = State::new(&properties);
    assert!(state.is_neutral(&properties, &nothing));
    state.apply(abs(ABS_MT_TRACKING_ID, 5));
    assert!(!state.is_neutral(&properties, &nothing));
    state.apply(abs(ABS_MT_TRACKING_ID, -1));
    state.apply(abs(ABS_X, 999));
    assert!(state.is_neutral(&properties, &nothing), "the position of a lifted finger is no state");
}

#[test]
fn one_finger_never_turns_into_another() {
    let properties = touchpad(2);
    let mut before = State::new(&properties);
    let touch = [abs(ABS_MT_SLOT, 1), abs(ABS_MT_TRACKING_ID, 7), abs(ABS_MT_POSITION_X, 5)];
    touch.into_iter().for_each(|event| before.apply(event));
    let mut after = before.clone();
    after.apply(abs(ABS_MT_TRACKING_ID, 8));
    let [released, pressed] = before.changes_to(&after, &properties);
    assert_eq!(released, [abs(ABS_MT_SLOT, 1), abs(ABS_MT_TRACKING_ID, -1)]);
    assert_eq!(pressed, [abs(ABS_MT_SLOT, 1), abs(ABS_MT_TRACKING_ID, 8), abs(ABS_MT_SLOT, 1)]);
}

/// Returns a device with these keys and relative axes.
fn with_keys(keys: impl IntoIterator<Item = u16>, motion: &[u16]) -> Properties {
    let mut properties = Properties::default();
    properties.set_codes(EV_KEY, keys.into_iter().collect());
    properties.set_codes(EV_REL, motion.iter().copied().collect());
    properties
}

#[test]
fn the_kind_follows_from_keys_and_axes() {
    let full = KEY_ESC..=KEY_LEFTSHIFT;
    let six = [0, 1, 2, 3, 4, 5];
    let pointer = [REL_X, REL_Y];
    for (keys, motion, kind) in [
        (full.clone().collect(), &[][..], Kind::Keyboard),
        // A keyboard stays one with buttons of any other device.
        (full.clone().chain([BTN_GAMEPAD, BTN_TOUCH, BTN_LEFT]).collect(), &pointer, Kind::Keyboard),
        (vec![KEY_A], &[], Kind::Keyboard),
        (vec![KEY_A, BTN_GAMEPAD], &[], Kind::Gamepad),
        (vec![KEY_A, BTN_LEFT], &pointer, Kind::Mouse),
        (vec![BTN_LEFT, BTN_JOYSTICK], &pointer, Kind::Mouse),
        (vec![BTN_MISC], &six, Kind::Mouse3d),
        // A SpacePilot Pro with 31 buttons, one with more, and a program's mouse with every axis.
        ((BTN_MISC..BTN_MISC + 31).collect(), &six, Kind::Mouse3d),
        ((BTN_MISC..BTN_MISC + 80).collect(), &six, Kind::Mouse3d),
        (vec![BTN_LEFT], &[0, 1, 2, 3, 4, 5, REL_WHEEL], Kind::Mouse),
        (vec![BTN_TOUCH, BTN_LEFT], &[], Kind::Touchpad),
        (vec![BTN_TOOL_PEN, BTN_TOUCH], &[], Kind::Tablet),
        (vec![KEY_VOLUMEUP, KEY_POWER], &[], Kind::Buttons),
        (vec![], &pointer, Kind::Input),
    ] {
        let keys: Vec<u16> = keys;
        assert_eq!(with_keys(keys.clone(), motion).kind(), kind, "{keys:?} {motion:?}");
    }
    assert_eq!(touchpad(2).kind(), Kind::Touchpad);
}

#[test]
fn only_a_keyboard_keeps_the_keys_that_type() {
    let typing = [KEY_ESC, KEY_A, KEY_LEFTSHIFT, 28, 2, 96, 0x160, 0x200];
    let harmless = [KEY_VOLUMEUP, KEY_PLAYPAUSE, KEY_BACK, BTN_MISC];
    let six = [0, 1, 2, 3, 4, 5];
    for (own, motion, kind) in [
        ([BTN_GAMEPAD, BTN_TRIGGER_HAPPY], &[][..], Kind::Gamepad),
        ([BTN_LEFT, BTN_LEFT + 7], &[REL_X, REL_Y], Kind::Mouse),
        ([BTN_MISC + 1, BTN_MISC + 15], &six, Kind::Mouse3d),
        ([BTN_TOUCH, BTN_LEFT], &[], Kind::Touchpad),
    ] {
        let mut properties = with_keys(typing.into_iter().chain(harmless).chain(own), motion);
        assert_eq!(super::kind::remove_foreign_keys(&mut properties), typing.len(), "{kind}");
        assert_eq!(properties.codes(EV_KEY), Bits::from_iter(harmless.into_iter().chain(own)), "{kind}");
        assert!(typing.iter().all(|code| !properties.has(key(*code, 1))) && properties.has(key(own[0], 1)));
        assert_eq!(properties.kind(), kind);
    }
    let mut pilot = with_keys(BTN_MISC..BTN_MISC + 31, &six);
    assert_eq!(super::kind::remove_foreign_keys(&mut pilot), 15, "a cap moves no pointer");
    let mut pad = with_keys([BTN_GAMEPAD, BTN_LEFT, BTN_TOUCH - 1], &[]);
    assert_eq!(super::kind::remove_foreign_keys(&mut pad), 2, "a gamepad is no pointer");
    let buttons = (BTN_TRIGGER_HAPPY..KEY_CNT as u16).chain(BTN_DPAD_UP..=BTN_GRIPR2);
    let mut stick = with_keys(buttons.chain([BTN_JOYSTICK]), &[]);
    assert_eq!(super::kind::remove_foreign_keys(&mut stick), 0, "80 buttons, and those of a grip");
    let mut keyboard = with_keys(1..=127, &[]);
    assert_eq!(super::kind::remove_foreign_keys(&mut keyboard), 0);
}

#[test]
fn switches_of_a_joystick_are_not_waited_for() {
    let switches = [BTN_JOYSTICK, BTN_GAMEPAD + 5, BTN_DPAD_UP, BTN_TRIGGER_HAPPY + 40];
    assert!(super::momentary(&Bits::from_iter(switches)).is_empty());
    let keys = Bits::from_iter([KEY_A, BTN_LEFT, BTN_TOUCH, BTN_MISC, KEY_VOLUMEUP, 0x160]);
    assert_eq!(super::momentary(&keys), keys);
}

fn any_properties() -> impl Strategy<Value = Properties> {
    let texts = ("\\PC{0,60}", "\\PC{0,60}", "\\PC{0,60}");
    let axes = prop::collection::btree_map(
        0..ABS_CNT as u16,
        (any::<i32>(), any::<i32>(), any::<i32>(), 0..=i32::MAX, 0..=i32::MAX, any::<i32>()),
        0..20,
    );
    let codes = prop::collection::vec(prop::collection::vec(0..KEY_CNT as u16, 0..20), 8);
    let repeat = prop::option::of([0..=60_000u32, 0..=60_000u32]);
    (texts, any::<[u16; 4]>(), axes, codes, repeat, 0..=96u32).prop_map(
        |((name, phys, uniq), [bus, vendor, product, version], axes, codes, repeat_ms, effects_max)| {
            let ids = Ids { bus, vendor, product, version };
            let mut properties =
                Properties { name, phys, uniq, ids, repeat_ms, effects_max, ..Properties::default() };
            properties.props = codes[7].iter().map(|code| code % INPUT_PROP_CNT as u16).collect();
            let kinds = [EV_KEY, EV_REL, EV_MSC, EV_SW, EV_LED, EV_SND, EV_FF];
            for (kind, codes) in kinds.into_iter().zip(codes) {
                properties.set_codes(kind, codes.into_iter().collect());
            }
            for (code, (value, a, b, fuzz, flat, resolution)) in axes {
                let (minimum, maximum) = match code {
                    ABS_MT_SLOT => (0, a.rem_euclid(SLOTS_MAX)),
                    _ => (a.min(b), a.max(b)),
                };
                properties.axes.insert(code, Axis { value, minimum, maximum, fuzz, flat, resolution });
            }
            properties
        },
    )
}

/// Events that a touchpad could send, in any order.
fn touches() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        (prop_oneof![Just(BTN_LEFT), Just(BTN_TOUCH)], 0..2).prop_map(|(code, value)| key(code, value)),
        (0..3i32).prop_map(|slot| abs(ABS_MT_SLOT, slot)),
        (-1..9i32).prop_map(|id| abs(ABS_MT_TRACKING_ID, id)),
        (0..1000i32).prop_map(|x| abs(ABS_MT_POSITION_X, x)),
        (0..1000i32).prop_map(|x| abs(ABS_X, x)),
    ];
    prop::collection::vec(event, 0..60)
}

/// A worker that was killed may have left a stick anywhere: the next one writes its rest, and what a snapshot says of the others,
/// although it has seen none of them elsewhere.
#[test]
fn the_next_worker_writes_every_axis() {
    let properties = gamepad();
    let mut node = State::all_pressed(&properties);
    let written = |from: &State, to: &State| -> Vec<u16> {
        let changes = from.changes_to(to, &properties).concat();
        changes.iter().filter(|event| event.kind == EV_ABS).map(|event| event.code).collect()
    };
    let rested = node.with_snapshot(&neutral(&properties));
    assert_eq!(written(&node, &rested), [ABS_X, ABS_Z, ABS_RZ, ABS_HAT0X]);
    node = rested;
    let device = State::new(&properties).with_snapshot(&neutral(&properties));
    let target = node.with_snapshot(&device.snapshot(&properties, &Bits::new()));
    assert_eq!(written(&node, &target), [ABS_RZ + 1], "a throttle keeps its value until then");
}

proptest! {
    #[test]
    fn encoded_descriptions_decode_to_the_same(properties in any_properties()) {
        prop_assert_eq!(Properties::parse(&properties.to_bytes()), Ok(properties));
    }

    #[test]
    fn a_filtered_device_keeps_its_kind_and_its_other_properties(properties in any_properties()) {
        let mut filtered = properties.clone();
        super::kind::remove_foreign_keys(&mut filtered);
        prop_assert_eq!(filtered.kind(), properties.kind());
        filtered.set_codes(EV_KEY, properties.codes(EV_KEY));
        prop_assert_eq!(filtered, properties);
    }

    #[test]
    fn any_bytes_that_decode_encode_to_the_same(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(properties) = Properties::parse(&bytes) {
            prop_assert_eq!(properties.to_bytes(), bytes);
        }
    }

    #[test]
    fn damaged_descriptions_that_decode_encode_to_the_same(
        properties in any_properties(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        length in any::<prop::sample::Index>(),
    ) {
        let mut bytes = properties.to_bytes();
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.truncate(length.index(bytes.len() * 2));
        if let Ok(properties) = Properties::parse(&bytes) {
            prop_assert_eq!(properties.to_bytes(), bytes);
        }
    }

    #[test]
    fn a_snapshot_leads_from_any_state_to_any_other(before in touches(), after in touches()) {
        let properties = touchpad(3);
        let reach = |events: &[Event]| {
            let mut state = State::new(&properties);
            events.iter().for_each(|event| state.apply(*event));
            state
        };
        let (mut node, device) = (reach(&before), reach(&after));
        let target = node.with_snapshot(&device.snapshot(&properties, &Bits::new()));
        prop_assert_eq!(&target, &device);
        for frame in node.changes_to(&target, &properties) {
            frame.into_iter().for_each(|event| node.apply(event));
        }
        prop_assert_eq!(node, device);
    }

    #[test]
    fn a_neutral_state_has_nothing_pressed(before in touches()) {
        let properties = touchpad(3);
        let mut node = State::all_pressed(&properties);
        before.iter().for_each(|event| node.apply(*event));
        let target = node.with_snapshot(&neutral(&properties));
        for frame in node.changes_to(&target, &properties) {
            frame.into_iter().for_each(|event| node.apply(event));
        }
        prop_assert!(node.keys.is_empty());
        let lifted = node.snapshot(&properties, &Bits::new());
        let fingers = lifted.iter().filter(|event| event.code == ABS_MT_TRACKING_ID);
        prop_assert!(fingers.clone().count() == 3 && fingers.clone().all(|finger| finger.value == -1));
    }

    #[test]
    fn merged_motion_keeps_the_distance(distances in prop::collection::vec(-50..50i32, 1..100), limit in 1..20usize) {
        let mut queue = Queue::new(limit / 2, limit);
        for distance in &distances {
            prop_assert!(queue.push(Time(0), frame(Event::new(EV_REL, 0, *distance))));
        }
        let mut sum = 0;
        while let Some((_, Update::Frame(events))) = queue.pop() {
            sum += events[0].value;
        }
        prop_assert_eq!(sum, distances.iter().sum::<i32>());
    }
}
