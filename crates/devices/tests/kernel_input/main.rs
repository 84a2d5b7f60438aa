//! `evdev` and `uinput` connected on a real kernel: events of a device reach an application on the node, and feedback of
//! the application reaches the device. All tests need /dev/uinput and are skipped without it. `tests/vm/cargo-tests`
//! runs them in the virtual machine.

mod conformance;
mod effects;
mod rig;

use contract::{Ctl, DeviceClass, DeviceError, Message, Opened, PartnerError, Role, Time};
use devices::evdev::{Evdev, Properties, Uinput};
use rig::*;
use std::os::fd::AsFd;
use std::time::Duration;
use sys::input::code::*;
use sys::input::{Bits, Event, evdev, read_events};
use wire::formats::evdev::Update;

/// A pseudo-random sequence, the same in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }

    fn between(&mut self, least: i32, most: i32) -> i32 {
        least + self.roll((most - least + 1) as u64) as i32
    }
}

fn typing(dice: &mut Dice) -> Vec<Event> {
    // No lock keys: the kernel's console would switch lights on both sides.
    let code = dice.between(2, 57) as u16;
    vec![Event::new(EV_MSC, 4, 0x7_0000 + i32::from(code)), key(code, dice.between(0, 1))]
}

fn pointing(dice: &mut Dice) -> Vec<Event> {
    match dice.roll(5) {
        0 => vec![key(BTN_LEFT + dice.roll(3) as u16, dice.between(0, 1))],
        1 => vec![rel(8, dice.between(-1, 1)), rel(11, dice.between(-120, 120))],
        _ => vec![rel(0, dice.between(-20, 20)), rel(1, dice.between(-20, 20))],
    }
}

fn playing(dice: &mut Dice) -> Vec<Event> {
    match dice.roll(4) {
        0 => vec![key(BTN_GAMEPAD + dice.roll(15) as u16, dice.between(0, 1))],
        1 => vec![abs(ABS_Z, dice.between(0, 255)), abs(ABS_HAT0X, dice.between(-1, 1))],
        // Steps of about the fuzz, which the kernel's filter shortens.
        _ => vec![abs(ABS_X, dice.between(-40, 40)), abs(ABS_Y, dice.between(-20, 20) * 500)],
    }
}

fn touching(dice: &mut Dice) -> Vec<Event> {
    let mut events = Vec::new();
    for _ in 0..=dice.roll(2) {
        events.push(abs(ABS_MT_SLOT, dice.between(0, 4)));
        match dice.roll(3) {
            0 => events.push(abs(ABS_MT_TRACKING_ID, dice.between(-1, 50))),
            _ => events.push(abs(ABS_MT_POSITION_X, dice.between(0, 4000))),
        }
    }
    events.push(key(BTN_TOUCH, dice.between(0, 1)));
    events.push(abs(ABS_X, dice.between(0, 4000)));
    events
}

fn without_repeats(events: Vec<Event>) -> Vec<Event> {
    let mut kept: Vec<Event> = Vec::new();
    for event in events.into_iter().filter(|event| !(event.kind == EV_KEY && event.value == 2)) {
        let is_report = event.kind == EV_SYN && event.code == SYN_REPORT;
        // A report directly after a report ends a frame that had only a repeat.
        if !is_report || kept.last().is_some_and(|last| *last != Event::REPORT) {
            kept.push(event);
        }
    }
    kept
}

type Move = fn(&mut Dice) -> Vec<Event>;

#[test]
fn all_events_of_a_session_arrive() {
    needs_uinput!();
    let sessions: [(Properties, Move); 4] = [
        (keyboard("session keyboard"), typing),
        (mouse("session mouse"), pointing),
        (gamepad("session gamepad"), playing),
        (touchpad("session touchpad"), touching),
    ];
    for (properties, next) in sessions {
        let mut joined = Joined::new(&properties, &[("grab", "off")]);
        let local = Application::open(&joined.device.path);
        let mut dice = Dice(1);
        let (mut here, mut there) = (Vec::new(), Vec::new());
        for _ in 0..600 {
            let burst = 1 + dice.roll(3);
            for _ in 0..burst {
                joined.device.emit(&next(&mut dice));
            }
            joined.carry();
            here.extend(local.read());
            there.extend(joined.application.read());
        }
        let (here, there) = (without_repeats(here), without_repeats(there));
        assert!(here.len() > 1000, "{}: only {} events", properties.name, here.len());
        let differs = here.iter().zip(&there).position(|(here, there)| here != there);
        assert_eq!(differs.map(|at| (at, &here[at], &there[at])), None, "{}", properties.name);
        assert_eq!(here.len(), there.len(), "{}", properties.name);
        assert_eq!(joined.sink.figure("events refused"), 0.0);
    }
}

#[test]
fn the_node_has_the_devices_properties() {
    needs_uinput!();
    for properties in
        [keyboard("like keyboard"), mouse("like mouse"), gamepad("like gamepad"), touchpad("like touchpad")]
    {
        let joined = Joined::new(&properties, &[]);
        let mut there = Properties::read(joined.application.node.as_fd()).unwrap();
        assert_eq!(there.phys, format!("outboard/{}", properties.phys));
        there.phys = properties.phys.clone();
        assert_eq!(there, properties);
        // Compares the kernel's own attributes, without code of this crate.
        let event = |path: &str| path.rsplit_once('/').unwrap().1.to_string();
        for file in
            ["name", "properties", "id/bustype", "id/vendor", "id/product", "id/version", "capabilities/ev"]
                .into_iter()
                .chain(["abs", "ff", "key", "led", "msc", "rel", "snd", "sw"])
        {
            let file = if file.len() <= 3 { format!("capabilities/{file}") } else { file.into() };
            let read = |path: &str| {
                std::fs::read_to_string(format!("/sys/class/input/{}/device/{file}", event(path))).unwrap()
            };
            assert_eq!(read(&joined.node_path), read(&joined.device.path), "{file} of {}", properties.name);
        }
    }
}

#[test]
fn a_message_has_the_kernels_time_on_the_boot_clock() {
    needs_uinput!();
    let mut joined = Joined::new(&keyboard("clock"), &[("grab", "off")]);
    let local = Application::open(&joined.device.path);
    evdev::use_boot_clock(local.node.as_fd()).unwrap();
    let before = sys::clock::boot_ns();
    joined.device.emit(&[key(KEY_A, 1)]);
    let messages = joined.carry();
    let mut events = Vec::new();
    read_events(local.node.as_fd(), &mut events).unwrap();
    assert_eq!(messages.len(), 1);
    assert_eq!(messages[0].created, Time(events[0].0));
    // The kernel's timestamps have a resolution of microseconds.
    assert!((before - 1000..=sys::clock::boot_ns()).contains(&events[0].0));
}

#[test]
fn key_repeats_are_generated_by_the_node_and_not_sent() {
    needs_uinput!();
    let mut joined = Joined::new(&keyboard("repeats"), &[]);
    joined.type_in(&[&[key(KEY_A, 1)]]);
    let mut sent = Vec::new();
    let repeats = until("three repeats", || {
        sent.extend(joined.carry());
        let events = joined.application.read();
        let count = events.iter().filter(|event| **event == key(KEY_A, 2)).count();
        (count > 0).then_some(count)
    });
    assert!(repeats > 0);
    until("the device's own repeats", || {
        sent.extend(joined.carry());
        (joined.source.figure("repeats suppressed") >= 3.0).then_some(())
    });
    assert_eq!(sent, []);
    assert_eq!(evdev::repeat_ms(joined.application.node.as_fd()).unwrap(), Some([180, 40]));
}

#[test]
fn a_light_reaches_the_device_once_without_an_echo() {
    needs_uinput!();
    let mut joined = Joined::new(&keyboard("lights"), &[]);
    let caps_lock = Event::new(EV_LED, 1, 1);
    joined.application.write(&[caps_lock]);
    assert!(joined.carry().is_empty(), "the device side sends an echo");
    assert_eq!(joined.device.received(), [caps_lock]);
    assert_eq!(joined.application.read(), [caps_lock, Event::REPORT]);
    // A program on the device host switches the light off, which reaches the application once.
    joined.device.emit(&[Event::new(EV_LED, 1, 0)]);
    joined.carry();
    assert_eq!(joined.application.read(), [Event::new(EV_LED, 1, 0), Event::REPORT]);
    assert_eq!(joined.device.received(), [Event::new(EV_LED, 1, 0)], "the device's own echo");
    assert!(joined.carry().is_empty());
}

#[test]
fn a_snapshot_restores_the_applications_lights() {
    needs_uinput!();
    let mut joined = Joined::new(&keyboard("lights again"), &[]);
    joined.application.write(&[Event::new(EV_LED, 0, 1), Event::new(EV_LED, 2, 1)]);
    joined.sink.pull().unwrap().expect("a message with lights, which is lost");
    joined.sink.ctl(Ctl::Snapshot);
    joined.carry();
    let local = Application::open(&joined.device.path);
    assert_eq!(local.lights(), Bits::from_iter([0, 2]));
    assert_eq!(joined.application.lights(), Bits::from_iter([0, 2]));
}

#[test]
fn a_lost_link_releases_keys_and_its_return_presses_held_ones() {
    needs_uinput!();
    let mut joined = Joined::new(&keyboard("cut"), &[]);
    let shift = key(KEY_LEFTSHIFT, 1);
    joined.type_in(&[&[shift], &[key(KEY_A, 1)]]);
    assert_eq!(joined.application.held(), Bits::from_iter([KEY_A, KEY_LEFTSHIFT]));
    joined.sink.ctl(Ctl::Neutral);
    let mut released = joined.application.read();
    released.sort_by_key(|event| (event.kind == EV_SYN, event.code));
    assert_eq!(released, [key(KEY_A, 0), key(KEY_LEFTSHIFT, 0), Event::REPORT]);
    // While the link is down: A is released, another key is typed, B is pressed.
    for event in [key(KEY_A, 0), key(20, 1), key(20, 0), key(48, 1)] {
        joined.device.emit(&[event]);
    }
    joined.source.ctl(Ctl::Snapshot);
    let messages = joined.carry();
    assert_eq!(messages.len(), 1);
    let mut pressed = joined.application.read();
    pressed.sort_by_key(|event| (event.kind == EV_SYN, event.code));
    assert_eq!(pressed, [shift, key(48, 1), Event::REPORT]);
    assert_eq!(joined.type_in(&[&[key(48, 0)]]), [key(48, 0), Event::REPORT]);
}

#[test]
fn a_gamepad_goes_neutral_and_is_restored() {
    needs_uinput!();
    let mut joined = Joined::new(&gamepad("rest"), &[]);
    joined.type_in(&[&[abs(ABS_X, 30000), abs(ABS_Z, 200), abs(ABS_HAT0X, -1), key(BTN_GAMEPAD, 1)]]);
    let axes = |joined: &Joined| [ABS_X, ABS_Z, ABS_HAT0X].map(|code| joined.application.axis(code));
    assert_eq!(axes(&joined), [30000, 200, -1]);
    joined.sink.ctl(Ctl::Neutral);
    assert_eq!(axes(&joined), [0, 0, 0]);
    assert!(joined.application.held().is_empty());
    joined.source.ctl(Ctl::Snapshot);
    joined.carry();
    assert_eq!(axes(&joined), [30000, 200, -1]);
    assert_eq!(joined.application.held(), Bits::from_iter([BTN_GAMEPAD]));
}

#[test]
fn fingers_are_lifted_and_restored() {
    needs_uinput!();
    let mut joined = Joined::new(&touchpad("fingers"), &[]);
    let finger =
        |slot, id, x| [abs(ABS_MT_SLOT, slot), abs(ABS_MT_TRACKING_ID, id), abs(ABS_MT_POSITION_X, x)];
    joined.type_in(&[&finger(0, 11, 100), &finger(3, 12, 200), &[key(BTN_TOUCH, 1)]]);
    let slots = |joined: &Joined, code| evdev::slots(joined.application.node.as_fd(), code, 5).unwrap();
    assert_eq!(slots(&joined, ABS_MT_TRACKING_ID), [11, -1, -1, 12, -1]);
    joined.sink.ctl(Ctl::Neutral);
    assert_eq!(slots(&joined, ABS_MT_TRACKING_ID), [-1; 5]);
    assert!(joined.application.held().is_empty());
    joined.device.emit(&finger(0, 13, 150));
    joined.source.ctl(Ctl::Snapshot);
    joined.carry();
    assert_eq!(slots(&joined, ABS_MT_TRACKING_ID), [13, -1, -1, 12, -1]);
    assert_eq!(slots(&joined, ABS_MT_POSITION_X), [150, 0, 0, 200, 0]);
    // Slot 0 is still selected on the device.
    joined.application.read();
    let moved = abs(ABS_MT_POSITION_X, 160);
    assert_eq!(joined.type_in(&[&[moved]]), [moved, Event::REPORT], "slot 0 is selected on the node, too");
    assert_eq!(slots(&joined, ABS_MT_POSITION_X), [160, 0, 0, 200, 0]);
}

#[test]
fn a_snapshot_repairs_a_kernel_overflow() {
    needs_uinput!();
    let mut joined = Joined::new(&keyboard("overflow"), &[]);
    let local = Application::open(&joined.device.path);
    joined.type_in(&[&[key(KEY_A, 1)]]);
    for code in (2..100).cycle().take(1000) {
        joined.device.emit(&[key(code, 1)]);
        joined.device.emit(&[key(code, 0)]);
    }
    joined.device.emit(&[key(KEY_LEFTSHIFT, 1)]);
    joined.carry();
    assert!(joined.source.figure("kernel overflows") >= 1.0);
    assert_eq!(joined.application.held(), Bits::from_iter([KEY_LEFTSHIFT]));
    assert_eq!(local.held(), joined.application.held());
    joined.application.read();
    assert_eq!(joined.type_in(&[&[key(KEY_A, 1)]]), [key(KEY_A, 1), Event::REPORT]);
}

#[test]
fn a_slow_path_gets_the_whole_distance_in_fewer_messages() {
    needs_uinput!();
    let mut joined = Joined::new(&mouse("behind"), &[("merge_after", "2")]);
    let (mut there, mut messages) = ([0, 0], 0);
    for burst in 0..20 {
        (0..15).for_each(|_| joined.device.emit(&[rel(0, 3), rel(1, -2)]));
        joined.device.emit(&[key(BTN_LEFT, (burst + 1) % 2)]);
        messages += joined.carry().len();
        for event in joined.application.read().iter().filter(|event| event.kind == EV_REL) {
            there[usize::from(event.code)] += event.value;
        }
    }
    assert_eq!(there, [900, -600]);
    assert!(messages < 100, "{messages} messages for 320 frames");
    assert!(joined.source.figure("frames merged") > 200.0);
}

#[test]
fn a_snapshot_replaces_a_full_queue() {
    needs_uinput!();
    let mut joined = Joined::new(&keyboard("full"), &[("queue", "4")]);
    for code in 2..12 {
        joined.device.emit(&[key(code, 1)]);
    }
    let messages = joined.carry();
    assert!(messages.iter().any(|message| matches!(update(message), Update::Snapshot(_))));
    assert_eq!(joined.application.held(), (2..12).collect());
    assert!(joined.source.figure("frames dropped") >= 5.0);
}

#[test]
fn an_unplugged_device_releases_keys_and_is_found_again() {
    needs_uinput!();
    let properties = keyboard("unplugged");
    let mut joined = Joined::new(&properties, &[]);
    let at = spec(&Evdev, &joined.device.path, &[]);
    joined.type_in(&[&[key(KEY_LEFTSHIFT, 1)]]);
    joined.device.unplug();
    let last = joined.source.pull().unwrap().expect("a last snapshot");
    joined.sink.push(last);
    assert!(joined.application.held().is_empty());
    for _ in 0..2 {
        assert!(matches!(joined.source.pull(), Err(PartnerError::Gone(name)) if name == "unplugged"));
    }
    let Err(absent) = Evdev.reopen(&at, Role::Device, &joined.known) else {
        panic!("found a missing device, perhaps its own node");
    };
    assert!(matches!(absent, DeviceError::Os { .. }), "{absent}");
    // Another device takes its event number.
    let other = Device::plug_in(&mouse("another"));
    joined.device = Device::plug_in(&properties);
    assert_ne!(other.path, joined.device.path);
    let opened = Evdev.reopen(&at, Role::Device, &joined.known).unwrap();
    joined.source = End::new(&Evdev, opened);
    joined.carry();
    joined.application.read();
    assert_eq!(joined.type_in(&[&[key(KEY_A, 1)]]), [key(KEY_A, 1), Event::REPORT]);
}

#[test]
fn an_unplugged_device_leaves_no_file_open() {
    needs_uinput!();
    let open_files = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let properties = keyboard("leak");
    let cycle = || {
        let mut joined = Joined::new(&properties, &[]);
        joined.device.unplug();
        while joined.source.pull().is_ok() {}
    };
    cycle();
    // Other tests open and close files meanwhile; a leak would add at least one file per cycle.
    let before = open_files();
    (0..40).for_each(|_| cycle());
    let after = open_files();
    assert!(after < before + 30, "{before} files open before, {after} after");
}

#[test]
fn a_device_is_grabbed_once_its_keys_are_up_and_released_on_close() {
    needs_uinput!();
    let device = Device::plug_in(&keyboard("grab"));
    let local = Application::open(&device.path);
    device.emit(&[key(28, 1)]);
    let opened = Evdev.open(&spec(&Evdev, &device.path, &[]), Role::Device, None).unwrap();
    let mut source = End::new(&Evdev, opened);
    let first = source.pull().unwrap().expect("a first snapshot");
    assert_eq!(update(&first), Update::Snapshot(Vec::new()), "Enter was pressed for another program");
    local.read();
    device.emit(&[key(28, 0)]);
    while source.pull().unwrap().is_some() {}
    assert_eq!(
        local.read(),
        [key(28, 0), Event::REPORT],
        "the release reaches the program that received the press"
    );
    assert_eq!(source.figure("grabbed"), 1.0);
    device.emit(&[key(KEY_A, 1)]);
    assert_eq!(local.read(), []);
    assert!(source.pull().unwrap().is_some());
    source.partner.close(source.out.unwrap()).unwrap();
    device.emit(&[key(KEY_A, 0)]);
    assert_eq!(local.read(), [key(KEY_A, 0), Event::REPORT]);
}

#[test]
fn a_device_that_another_program_has_grabbed_is_named_and_grabbed_afterwards() {
    needs_uinput!();
    let device = Device::plug_in(&keyboard("grab taken"));
    let other = Application::open(&device.path);
    device.emit(&[key(28, 1)]);
    let opened = Evdev.open(&spec(&Evdev, &device.path, &[]), Role::Device, None).unwrap();
    let mut source = End::new(&Evdev, opened);
    source.pull().unwrap().expect("a first snapshot");
    evdev::grab(other.node.as_fd(), true).unwrap();
    // Only the other program receives it.
    device.emit(&[key(28, 0)]);
    let note = until("a note", || {
        source.pull().unwrap();
        source.partner.note()
    });
    assert!(note.contains("another program has grabbed grab taken"), "{note}");
    evdev::grab(other.node.as_fd(), false).unwrap();
    until("the grab", || {
        source.pull().unwrap();
        (source.figure("grabbed") == 1.0).then_some(())
    });
    assert_eq!(source.partner.note(), None, "it is said once");
}

/// A puck that stays on its tablet is such a key.
#[test]
fn a_key_that_stays_down_costs_no_event_of_a_device_that_waits_for_its_grab() {
    needs_uinput!();
    let device = Device::plug_in(&keyboard("grab waiting"));
    device.emit(&[key(28, 1)]);
    let opened = Evdev.open(&spec(&Evdev, &device.path, &[]), Role::Device, None).unwrap();
    let mut source = End::new(&Evdev, opened);
    source.pull().unwrap().expect("a first snapshot");
    for value in [1, 0] {
        device.emit(&[key(KEY_A, value)]);
        // Until the next try is due.
        std::thread::sleep(Duration::from_millis(1100));
        let message = source.pull().unwrap().expect("a frame");
        assert!(matches!(update(&message), Update::Frame(_)), "{:?}", update(&message));
    }
    assert_eq!((source.figure("snapshots"), source.figure("grabbed")), (1.0, 0.0));
}

#[test]
fn a_new_worker_takes_over_the_grab_and_the_held_keys_of_a_killed_one() {
    needs_uinput!();
    let device = Device::plug_in(&keyboard("grab killed"));
    let local = Application::open(&device.path);
    let opened = Evdev.open(&spec(&Evdev, &device.path, &[]), Role::Device, None).unwrap();
    let mut killed = End::new(&Evdev, opened.try_clone().unwrap());
    killed.pull().unwrap().expect("a first snapshot");
    assert_eq!(killed.figure("grabbed"), 1.0);
    std::mem::forget(killed);
    device.emit(&[key(KEY_A, 1)]);
    let mut source = End::new(&Evdev, opened);
    let first = source.pull().unwrap().expect("a first snapshot");
    assert!(
        matches!(update(&first), Update::Snapshot(held) if held.len() == 1),
        "the application has the key"
    );
    assert_eq!((local.read(), source.figure("grabbed")), (vec![], 1.0));
    source.partner.close(source.out.unwrap()).unwrap();
    device.emit(&[key(KEY_A, 0)]);
    assert_eq!(local.read(), [key(KEY_A, 0), Event::REPORT]);
}

#[test]
fn grab_on_grabs_at_once_and_fails_if_another_program_has_grabbed() {
    needs_uinput!();
    let device = Device::plug_in(&keyboard("grab on"));
    let local = Application::open(&device.path);
    let on = spec(&Evdev, &device.path, &[("grab", "on")]);
    let opened = Evdev.open(&on, Role::Device, None).unwrap();
    device.emit(&[key(KEY_A, 1)]);
    assert_eq!(local.read(), []);
    let refusal = Evdev.open(&on, Role::Device, None).unwrap_err().to_string();
    assert!(refusal.contains("another program has grabbed it"), "{refusal}");
    drop(opened);
    assert!(Evdev.open(&on, Role::Device, None).is_ok());
}

#[test]
fn a_restarted_worker_releases_everything_on_its_node() {
    needs_uinput!();
    let mut joined = Joined::new(&touchpad("restart"), &[]);
    joined.type_in(&[&[abs(ABS_MT_SLOT, 2), abs(ABS_MT_TRACKING_ID, 5), key(BTN_TOUCH, 1)]]);
    let made =
        Uinput.open(&spec(&Uinput, "other name", &[]), Role::Application, Some(&joined.known)).unwrap();
    let path = made.description.summary.rsplit_once(" at ").unwrap().1.to_string();
    let application = Application::open(&path);
    let kept = made.descriptors[0].try_clone().unwrap();
    let opened = |descriptor| Opened {
        spec: spec(&Uinput, "", &[]),
        role: Role::Application,
        description: joined.known.clone(),
        descriptors: vec![descriptor],
    };
    let mut worker = End::new(&Uinput, opened(made.descriptors.into_iter().next().unwrap()));
    joined.source.ctl(Ctl::Snapshot);
    worker.push(joined.source.pull().unwrap().unwrap());
    let fingers = || evdev::slots(application.node.as_fd(), ABS_MT_TRACKING_ID, 5).unwrap();
    assert_eq!((application.held(), fingers()), (Bits::from_iter([BTN_TOUCH]), vec![-1, -1, 5, -1, -1]));
    drop(worker);
    let _next = End::new(&Uinput, opened(kept));
    assert_eq!((application.held(), fingers()), (Bits::new(), vec![-1; 5]));
    assert_eq!(Properties::read(application.node.as_fd()).unwrap().name, "other name");
}

#[test]
fn events_that_the_node_does_not_have_are_counted_and_ignored() {
    needs_uinput!();
    let mut joined = Joined::new(&touchpad("hostile"), &[]);
    let mut dice = Dice(7);
    let mut any = |count: usize| -> Vec<Event> {
        let mut event =
            || Event::new(dice.roll(0x20) as u16, dice.roll(0x300) as u16, dice.roll(1 << 32) as i32);
        (0..count).map(|_| event()).filter(|event| event.kind != EV_ABS && event.kind != EV_REL).collect()
    };
    for round in 0..200 {
        let events = to_format(&any(50));
        let update = if round % 2 == 0 { Update::Frame(events) } else { Update::Snapshot(events) };
        joined.sink.push(Message::new(Time(0), update.to_bytes()));
    }
    assert!(joined.sink.figure("events refused") > 1000.0);
    let invalid = [key(KEY_A, 1), abs(ABS_MT_SLOT, 5), abs(ABS_RX, 1), key(BTN_TOUCH, 2), rel(0, 1)];
    joined.application.read();
    joined.sink.push(Message::new(Time(0), Update::Frame(to_format(&invalid)).to_bytes()));
    assert_eq!(joined.application.read(), []);
    let (error, returned) =
        joined.sink.partner.push(joined.sink.into.unwrap(), Message::new(Time(0), vec![9])).unwrap_err();
    assert!(matches!(error, PartnerError::Message(_)), "{error}");
    assert_eq!(returned.body.len(), 1);
    joined.sink.ctl(Ctl::Neutral);
    joined.application.read();
    assert_eq!(joined.type_in(&[&[key(BTN_LEFT, 1)]]), [key(BTN_LEFT, 1), Event::REPORT]);
}

#[test]
fn keys_that_type_reach_no_node_of_a_gamepad() {
    needs_uinput!();
    let mut properties = gamepad("typing gamepad");
    let keys = properties.codes(EV_KEY).iter().chain([KEY_A, 28, KEY_LEFTSHIFT]).collect();
    properties.set_codes(EV_KEY, keys);
    let mut joined = Joined::new(&properties, &[]);
    assert_eq!(
        Properties::read(joined.application.node.as_fd()).unwrap().codes(EV_KEY),
        gamepad("").codes(EV_KEY)
    );
    assert_eq!(joined.type_in(&[&[key(KEY_A, 1)], &[key(28, 1)]]), []);
    assert_eq!(joined.sink.figure("events refused"), 2.0);
    assert_eq!(joined.type_in(&[&[key(BTN_GAMEPAD, 1)]]), [key(BTN_GAMEPAD, 1), Event::REPORT]);
}

#[test]
fn a_device_is_listed_and_opened_by_name() {
    needs_uinput!();
    let device = Device::plug_in(&mouse("listed mouse"));
    let listing = Evdev.list().into_iter().find(|listing| listing.spec == format!("evdev:{}", device.path));
    let listing = listing.expect("the device in the list");
    assert_eq!((listing.summary.as_str(), listing.problem), ("listed mouse (mouse)", None));
    let by_name = Evdev.open(&spec(&Evdev, "name=listed mouse", &[]), Role::Device, None).unwrap();
    assert_eq!(by_name.description.summary, "listed mouse (mouse)");
    let refusal =
        |target: &str| Evdev.open(&spec(&Evdev, target, &[]), Role::Device, None).unwrap_err().to_string();
    assert!(refusal("name=nobody").contains("no device has this name"));
    assert!(refusal("event3").contains("absolute path"));
    assert!(refusal("/dev/input/event9999").contains("not plugged in"));
    assert!(refusal("/dev/null").contains("not an event node"), "{}", refusal("/dev/null"));
    let _twin = Device::plug_in(&mouse("listed mouse"));
    assert!(refusal("name=listed mouse").contains("several devices"));
}

/// A descriptor that a process has passed on ends too; other users of the device keep theirs.
#[test]
fn a_revoked_device_is_closed_for_every_holder() {
    needs_uinput!();
    let device = Device::plug_in(&keyboard("revoked keyboard"));
    let spec = spec(&Evdev, &device.path, &[("grab", "on")]);
    let opened = Evdev.open(&spec, Role::Device, None).unwrap();
    let held = opened.try_clone().unwrap();
    let other = Application::open(&device.path);
    assert!(evdev::state(held.descriptors[0].as_fd(), EV_KEY).is_ok());
    Evdev.revoke(&opened);
    let error = evdev::state(held.descriptors[0].as_fd(), EV_KEY).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::NODEV.raw_os_error()));
    // The grab has ended too.
    device.emit(&[key(KEY_A, 1)]);
    assert_eq!(other.read(), [key(KEY_A, 1), Event::REPORT]);
    assert!(Evdev.open(&spec, Role::Device, None).is_ok());
}
