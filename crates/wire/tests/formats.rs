//! The typed formats: the byte vectors of their documents, and that bytes mean one thing or nothing.

use proptest::prelude::*;
use wire::WireError;
use wire::formats::evdev::code::*;
use wire::formats::evdev::{
    self, EFFECT_PARAMETERS_MAX, EFFECTS_MAX, EVENTS_MAX, Effect, Event, effect_parameters, is_motion,
    join_motion,
};
use wire::formats::motion::{self, AXES, BUTTONS_MAX, Motion};

const EVDEV: &str = include_str!("../../../docs/formats-evdev.md");
const MOTION: &str = include_str!("../../../docs/formats-motion.md");

/// The bytes of the line of a document that begins with `title`.
fn vector(document: &str, title: &str) -> Vec<u8> {
    let line = document.lines().find(|line| line.starts_with(&format!("| {title}")));
    let hex = line.and_then(|line| line.split('`').rev().nth(1)).expect("a line with bytes");
    let digits: Vec<u32> = hex.chars().filter_map(|digit| digit.to_digit(16)).collect();
    digits.chunks(2).map(|pair| (pair[0] * 16 + pair[1]) as u8).collect()
}

#[test]
fn evdev_is_as_documented() {
    use evdev::Update;
    let mut rumble = [0; EFFECT_PARAMETERS_MAX];
    rumble[..2].copy_from_slice(&[0x8000, 0x4000]);
    let effect = Effect {
        kind: FF_RUMBLE,
        id: 2,
        direction: 0,
        trigger_button: 0,
        trigger_interval_ms: 0,
        length_ms: 500,
        delay_ms: 0,
        parameters: rumble,
    };
    let typed = vec![Event::new(EV_MSC, 4, 0x7_0004), Event::new(EV_KEY, 30, 1)];
    let stands = vec![Event::new(EV_KEY, 42, 1), Event::new(EV_ABS, 0, -1)];
    for (title, update) in [
        ("A frame: A pressed", Update::Frame(typed)),
        ("A frame: a mouse", Update::Frame(vec![Event::new(EV_REL, 0, 3), Event::new(EV_REL, 1, -2)])),
        ("A snapshot", Update::Snapshot(stands)),
        ("An upload", Update::Upload(effect)),
        ("An erase", Update::Erase(2)),
        ("A frame: play", Update::Frame(vec![Event::new(0x15, 2, 1)])),
    ] {
        assert_eq!(update.to_bytes(), vector(EVDEV, title), "{title}");
        assert_eq!(Update::parse(&vector(EVDEV, title)), Ok(update), "{title}");
    }
}

#[test]
fn motion_is_as_documented() {
    use motion::Update;
    let pushed = Motion { axes: [350, 0, 0, 0, 0, -2], period_us: 16_000 };
    let released = Motion { period_us: 16_000, ..Motion::default() };
    for (title, update) in [
        ("A motion: 350", Update::Motion(pushed)),
        ("A motion: the cap is let go", Update::Motion(released)),
        ("A button: number 1 goes down", Update::Button { number: 1, pressed: true }),
        ("A button: number 1 comes up", Update::Button { number: 1, pressed: false }),
        ("A snapshot", Update::Snapshot { axes: [0, 7, 0, 0, 0, 0], pressed: vec![0, 12] }),
    ] {
        assert_eq!(update.to_bytes(), vector(MOTION, title), "{title}");
        assert_eq!(Update::parse(&vector(MOTION, title)), Ok(update), "{title}");
    }
}

#[test]
fn what_no_message_says_is_refused_by_name() {
    let events = vec![0; 1 + 8 * (EVENTS_MAX + 1)];
    assert!(matches!(evdev::Update::parse(&events), Err(WireError::TooLong { what: "events", .. })));
    for (bytes, what) in [
        (&[4][..], "kind"),
        (&[3, 96, 0], "effect number"),
        (&[2, 1, 0], "effect kind"),
        (&[0, 1, 0, 30, 0, 1, 0, 0], "evdev message"),
    ] {
        let error = evdev::Update::parse(bytes).unwrap_err().to_string();
        assert!(error.starts_with(what), "{bytes:?}: {error}");
    }
    for (bytes, what) in [
        (&[][..], "kind"),
        (&[3], "kind"),
        (&[0, 1], "axis"),
        (&[1, 0, 1, 0], "button"),
        (&[1, 0, 0, 2], "pressed"),
        (&[1, 0, 0, 1, 0], "motion message"),
        (&[&[2][..], &[0; 24], &[2, 0, 2, 0]].concat(), "button out of order"),
    ] {
        let error = motion::Update::parse(bytes).unwrap_err().to_string();
        assert!(error.starts_with(what), "{bytes:?}: {error}");
    }
}

#[test]
fn joined_motion_adds_distances_and_keeps_the_last_position() {
    let mut before = vec![Event::new(EV_REL, 0, 3), Event::new(EV_MSC, MSC_TIMESTAMP, 10)];
    let after = [
        Event::new(EV_REL, 0, -5),
        Event::new(EV_ABS, 0, 8),
        Event::new(EV_ABS, 0, 9),
        Event::new(EV_MSC, MSC_TIMESTAMP, 20),
    ];
    assert!(is_motion(&before) && is_motion(&after));
    join_motion(&mut before, &after);
    let timed = Event::new(EV_MSC, MSC_TIMESTAMP, 20);
    assert_eq!(before, [Event::new(EV_REL, 0, -2), timed, Event::new(EV_ABS, 0, 9)]);
    for other in [(EV_KEY, 30), (EV_ABS, ABS_MT_SLOT), (EV_ABS, 0x35), (EV_MSC, 4), (EV_SYN, 2), (EV_SW, 0)] {
        assert!(!is_motion(&[Event::new(other.0, other.1, 1)]), "{other:?}");
    }
}

fn any_events() -> impl Strategy<Value = Vec<Event>> {
    let event = (any::<u16>(), any::<u16>(), any::<i32>());
    prop::collection::vec(event.prop_map(|(kind, code, value)| Event { kind, code, value }), 0..40)
}

fn any_effect() -> impl Strategy<Value = Effect> {
    let head = (FF_RUMBLE..=FF_RAMP, 0..EFFECTS_MAX, any::<[u16; 5]>());
    (head, any::<[u16; EFFECT_PARAMETERS_MAX]>()).prop_map(|((kind, id, rest), mut parameters)| {
        parameters[effect_parameters(kind).unwrap()..].fill(0);
        let [direction, trigger_button, trigger_interval_ms, length_ms, delay_ms] = rest;
        Effect { kind, id, direction, trigger_button, trigger_interval_ms, length_ms, delay_ms, parameters }
    })
}

fn any_evdev() -> impl Strategy<Value = evdev::Update> {
    use evdev::Update;
    prop_oneof![
        any_events().prop_map(Update::Frame),
        any_events().prop_map(Update::Snapshot),
        any_effect().prop_map(Update::Upload),
        (0..EFFECTS_MAX).prop_map(Update::Erase),
    ]
}

fn any_motion() -> impl Strategy<Value = motion::Update> {
    use motion::Update;
    let button = 0..BUTTONS_MAX;
    prop_oneof![
        any::<([i32; AXES], u32)>().prop_map(|(axes, period_us)| Update::Motion(Motion { axes, period_us })),
        (button.clone(), any::<bool>()).prop_map(|(number, pressed)| Update::Button { number, pressed }),
        (any::<[i32; AXES]>(), prop::collection::btree_set(button, 0..20)).prop_map(|(axes, pressed)| {
            Update::Snapshot { axes, pressed: pressed.into_iter().collect() }
        }),
    ]
}

proptest! {
    #[test]
    fn messages_survive_their_bytes(event in any_evdev(), motion in any_motion()) {
        prop_assert_eq!(evdev::Update::parse(&event.to_bytes()), Ok(event));
        prop_assert_eq!(motion::Update::parse(&motion.to_bytes()), Ok(motion));
    }

    #[test]
    fn any_bytes_are_answered_and_mean_one_thing(kind in 0..5u8, rest in prop::collection::vec(any::<u8>(), 0..200)) {
        let bytes = [vec![kind], rest].concat();
        if let Ok(update) = evdev::Update::parse(&bytes) {
            prop_assert_eq!(update.to_bytes(), bytes.clone());
        }
        if let Ok(update) = motion::Update::parse(&bytes) {
            prop_assert_eq!(update.to_bytes(), bytes);
        }
    }
}
