use super::Average;
use contract::{Format, Half, Message, Pair, Site, Time};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::time::Duration;
use testkit::stage::{TwoHalves, conforms, options, steady};
use wire::formats::evdev::code::*;
use wire::formats::evdev::{Event, Update, is_motion};
use wire::formats::motion::{self, Motion};

const X: u16 = 0x35;

#[test]
fn it_conforms() {
    for format in [Format::Evdev, Format::Motion] {
        for given in [&[][..], &[("period", "1ms")], &[("period", "2s")]] {
            conforms(&Average, given, &format);
        }
    }
}

#[test]
fn only_formats_whose_axes_are_known_are_taken() {
    let options = options(&Average, &[]);
    for format in [Format::Bytes, Format::Serial, Format::Video, Format::Audio] {
        let refused = Average.accept(&format, &options).unwrap_err();
        assert!(refused.contains("`evdev` and `motion`") && refused.contains(format.name()), "{refused}");
        assert!(Average.source(&options, &format, &Site::default()).is_err());
    }
    assert_eq!(Average.accept(&Format::Evdev, &options), Ok(Format::Evdev));
}

fn frame(events: &[(u16, u16, i32)]) -> Vec<u8> {
    Update::Frame(events.iter().map(|(kind, code, value)| Event::new(*kind, *code, *value)).collect())
        .to_bytes()
}

fn motion(x: i32, period_us: u32) -> Vec<u8> {
    motion::Update::Motion(Motion { axes: [x, 0, 0, 0, 0, 0], period_us }).to_bytes()
}

/// Pushes each body at its time; returns the bodies received, with their times. All times are in
/// milliseconds after the start.
fn carried(format: Format, given: &[(&str, &str)], bodies: &[(u64, Vec<u8>)]) -> Vec<(u64, Vec<u8>)> {
    let mut run = TwoHalves::new(&Average, given, &format, steady(Duration::ZERO), 1);
    let start = run.now;
    for (at_ms, body) in bodies {
        run.run_until(start.after(Duration::from_millis(*at_ms)));
        run.push(Message::new(run.now, body.clone()));
    }
    run.run_until(run.now.after(Duration::from_secs(10)));
    let at_ms = |at: &Time| at.since(start).as_millis() as u64;
    run.received.iter().map(|(at, m)| (at_ms(at), m.body.clone().into_bytes().to_vec())).collect()
}

#[test]
fn each_part_of_an_input_frame_is_averaged_by_its_kind() {
    let sent = [
        (0, frame(&[(EV_REL, 0, 3), (EV_ABS, 0, 10), (EV_MSC, MSC_TIMESTAMP, 100)])),
        (10, frame(&[(EV_REL, 0, 4), (EV_REL, 8, -1), (EV_ABS, 0, 13), (EV_MSC, MSC_TIMESTAMP, 200)])),
        (45, frame(&[(EV_ABS, 0, 20)])),
    ];
    let mean = frame(&[(EV_ABS, 0, 14), (EV_REL, 0, 7), (EV_REL, 8, -1), (EV_MSC, MSC_TIMESTAMP, 200)]);
    let at_rest = frame(&[(EV_ABS, 0, 20)]);
    assert_eq!(carried(Format::Evdev, &[], &sent), [(50, mean), (100, at_rest)]);
}

#[test]
fn keys_pass_at_once_behind_the_latest_position() {
    let click = frame(&[(EV_KEY, 0x110, 1)]);
    let hat = frame(&[(EV_ABS, ABS_HAT0X, -1)]);
    let snapshot = Update::Snapshot(vec![Event::new(EV_ABS, 0, 30)]).to_bytes();
    let unreadable = vec![9, 9];
    let sent = [
        (0, frame(&[(EV_ABS, 0, 10), (EV_REL, 0, 2)])),
        (5, frame(&[(EV_ABS, 0, 20), (EV_REL, 0, 2)])),
        (7, click.clone()),
        (8, hat.clone()),
        (20, frame(&[(EV_REL, 0, 5)])),
        (21, snapshot.clone()),
        (22, unreadable.clone()),
    ];
    let before_click = frame(&[(EV_ABS, 0, 20), (EV_REL, 0, 4)]);
    let before_snapshot = frame(&[(EV_REL, 0, 5)]);
    let expected =
        [(7, before_click), (7, click), (8, hat), (21, before_snapshot), (21, snapshot), (22, unreadable)];
    assert_eq!(carried(Format::Evdev, &[], &sent), expected);
}

#[test]
fn each_finger_is_averaged_separately() {
    let down = frame(&[(EV_ABS, ABS_MT_SLOT, 1), (EV_ABS, ABS_MT_TRACKING_ID, 7), (EV_ABS, X, 500)]);
    let sent = [
        (0, down.clone()),
        (10, frame(&[(EV_ABS, X, 510), (EV_ABS, ABS_MT_SLOT, 0), (EV_ABS, X, 40)])),
        (20, frame(&[(EV_ABS, X, 60), (EV_ABS, ABS_MT_SLOT, 1), (EV_ABS, X, 530)])),
        (200, frame(&[(EV_ABS, ABS_MT_TRACKING_ID, -1)])),
    ];
    let selects = |slot| (EV_ABS, ABS_MT_SLOT, slot);
    let both = |first, second| frame(&[selects(0), (EV_ABS, X, first), selects(1), (EV_ABS, X, second)]);
    let expected = [
        (0, down),
        (60, both(50, 520)),
        (110, both(60, 530)),
        (200, frame(&[(EV_ABS, ABS_MT_TRACKING_ID, -1)])),
    ];
    assert_eq!(carried(Format::Evdev, &[], &sent), expected);
}

#[test]
fn a_3d_mouse_is_averaged_by_time_and_its_buttons_pass_at_once() {
    let press = motion::Update::Button { number: 1, pressed: true }.to_bytes();
    let sent = [
        (0, motion(100, 10_000)),
        (16, motion(400, 20_000)),
        (60, motion(50, 16_000)),
        (70, press.clone()),
        (76, motion(0, 16_000)),
    ];
    let expected = [
        (50, motion(300, 30_000)),
        (70, motion(50, 16_000)),
        (70, press),
        // In step with the period before.
        (100, motion(0, 16_000)),
    ];
    assert_eq!(carried(Format::Motion, &[], &sent), expected);
    let released = [(0, motion(350, 16_000)), (16, motion(0, 16_000))];
    assert_eq!(
        carried(Format::Motion, &[], &released),
        [(50, motion(175, 32_000)), (100, motion(0, 0))],
        "a released cap ends at rest"
    );
}

/// A pointer moved by a trembling hand, 1000 times a second for ten seconds: 50 times fewer
/// messages, a fifth of the tremor, and the same distance.
#[test]
fn a_trembling_hand_is_steadied_over_the_same_distance() {
    let mut run = TwoHalves::new(&Average, &[], &Format::Evdev, steady(Duration::from_millis(5)), 1);
    let (mut far, mut state) = (0i64, 7u32);
    let mut tremble = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as i32 % 21 - 10
    };
    let mut raw = Vec::new();
    for step in 0..10_000 {
        let distance = 2 + tremble();
        far += i64::from(distance);
        raw.push(f64::from(tremble()));
        let position = step / 10 + raw[raw.len() - 1] as i32;
        run.push(Message::new(run.now, frame(&[(EV_REL, 0, distance), (EV_ABS, 0, position)])));
        run.run_until(run.now.after(Duration::from_millis(1)));
    }
    run.end();
    let mut arrived = 0;
    let mut errors = Vec::new();
    for (_, message) in &run.received {
        let Ok(Update::Frame(events)) = Update::parse(&message.body.clone().into_bytes()) else { panic!() };
        for event in events {
            match event.kind {
                EV_REL => arrived += i64::from(event.value),
                // The mean of 50 positions belongs to the middle of the period.
                _ => errors.push(f64::from(event.value) - middle(message.created)),
            }
        }
    }
    let rms = |values: &[f64]| (values.iter().map(|v| v * v).sum::<f64>() / values.len() as f64).sqrt();
    assert_eq!(arrived, far);
    assert!((200..=202).contains(&run.received.len()), "{}", run.received.len());
    // The last position is sent as it is.
    let (before, after) = (rms(&raw), rms(&errors[..errors.len() - 1]));
    assert!((5.5..6.5).contains(&before) && after < before / 5.0, "{before} {after}");
    assert_eq!(run.figure(Half::Source, "averaged"), 10_000.0);
}

/// The intended position in the middle of the period whose last message was created at `created`.
fn middle(created: Time) -> f64 {
    (created.since(Time::from_millis(1000)).as_millis() as f64 - 24.5) / 10.0 - 0.45
}

/// The state of an application: distances so far, and the position of each finger's axes.
#[derive(Debug, Default, PartialEq)]
struct Known {
    distances: BTreeMap<u16, i64>,
    finger: i32,
    positions: BTreeMap<(i32, u16), i32>,
}

impl Known {
    fn follow(&mut self, events: &[Event]) {
        for event in events {
            match (event.kind, event.code) {
                (EV_REL, code) => *self.distances.entry(code).or_default() += i64::from(event.value),
                (EV_ABS, ABS_MT_SLOT) => self.finger = event.value,
                (EV_ABS, code) => {
                    let finger = if code > ABS_MT_SLOT { self.finger } else { -1 };
                    self.positions.insert((finger, code), event.value);
                }
                _ => {}
            }
        }
    }
}

fn any_frame() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        6 => (0..3u16, -50..50i32).prop_map(|(code, value)| Event::new(EV_REL, code, value)),
        6 => (0..3u16, -50..50i32).prop_map(|(code, value)| Event::new(EV_ABS, code, value)),
        6 => (0..2u16, -50..50i32).prop_map(|(code, value)| Event::new(EV_ABS, X + code, value)),
        3 => (0..3i32).prop_map(|finger| Event::new(EV_ABS, ABS_MT_SLOT, finger)),
        1 => (30..33u16, 0..2i32).prop_map(|(code, value)| Event::new(EV_KEY, code, value)),
        1 => (-1..9i32).prop_map(|id| Event::new(EV_ABS, ABS_MT_TRACKING_ID, id)),
    ];
    prop::collection::vec(event, 1..5)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// At every key and at the end, the application's state is the same as without the pair; every
    /// message that is not pure motion arrives unchanged.
    #[test]
    fn at_every_key_the_application_has_the_same_state(
        frames in prop::collection::vec((any_frame(), 0..40u64), 1..80),
    ) {
        let mut run = TwoHalves::new(&Average, &[], &Format::Evdev, steady(Duration::ZERO), 1);
        let first = vec![Event::new(EV_ABS, ABS_MT_SLOT, 0)];
        run.push(Message::new(run.now, Update::Snapshot(first).to_bytes()));
        let (mut device, mut application) = (Known::default(), Known::default());
        let mut seen = 1;
        for (events, pause_ms) in &frames {
            let body = Update::Frame(events.clone()).to_bytes();
            run.push(Message::new(run.now, body.clone()));
            device.follow(events);
            if !is_motion(events) {
                run.run_until(run.now);
                let last = run.received.last().map(|(_, message)| message.body.clone().into_bytes());
                prop_assert_eq!(last.as_deref(), Some(&body[..]));
                catch_up(&run, &mut seen, &mut application);
                prop_assert_eq!(&application, &device);
            }
            run.run_until(run.now.after(Duration::from_millis(*pause_ms)));
        }
        run.run_until(run.now.after(Duration::from_secs(1)));
        catch_up(&run, &mut seen, &mut application);
        prop_assert_eq!(&application, &device);
        prop_assert_eq!(&run.errors, &[]);
    }
}

fn catch_up(run: &TwoHalves, seen: &mut usize, application: &mut Known) {
    for (_, message) in &run.received[*seen..] {
        let Ok(Update::Frame(events)) = Update::parse(&message.body.clone().into_bytes()) else { panic!() };
        application.follow(&events);
    }
    *seen = run.received.len();
}
