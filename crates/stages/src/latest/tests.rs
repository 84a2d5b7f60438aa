use super::Latest;
use super::source::REPLACED;
use contract::{
    Attributes, Body, Bytes, Feedback, Format, Half, Message, Outbox, Pair, Port, Site, Stage, StageError,
    Time, Value,
};
use netsim::Params;
use proptest::prelude::*;
use std::time::Duration;
use testkit::stage::{TwoHalves, conforms, options, steady};
use wire::formats::evdev::code::*;
use wire::formats::evdev::{self, Event};
use wire::formats::motion::{self, Motion};

#[test]
fn it_conforms() {
    for format in [Format::Bytes, Format::Evdev, Format::Motion] {
        conforms(&Latest, &[], &format);
    }
    for given in [
        &[("merge", "false")][..],
        &[("merge", "false"), ("in_flight", "1")],
        &[("merge", "false"), ("in_flight", "4096"), ("held_max", "1")],
        &[("merge", "false"), ("held_max", "0")],
    ] {
        conforms(&Latest, given, &Format::Bytes);
    }
}

#[test]
fn formats_that_need_every_message_are_refused() {
    let merging = options(&Latest, &[]);
    let dropping = options(&Latest, &[("merge", "false")]);
    assert!(Latest.accept(&Format::Midi, &merging).is_err());
    assert!(Latest.accept(&Format::Serial, &merging).is_err());
    assert!(Latest.accept(&Format::Block, &merging).is_err());
    assert!(Latest.accept(&Format::Viewer, &merging).is_err());
    for format in [Format::Evdev, Format::Motion] {
        assert_eq!(Latest.accept(&format, &merging), Ok(Format::Bytes));
        assert!(Latest.accept(&format, &dropping).is_err());
    }
    assert_eq!(Latest.accept(&Format::Video, &dropping), Ok(Format::Bytes));
}

fn source(given: &[(&str, &str)], format: &Format) -> Box<dyn Stage> {
    Latest.source(&options(&Latest, given), format, &Site::default()).unwrap()
}

/// Takes the bodies that were sent, without their numbers.
fn bodies_out(out: &mut Outbox) -> Vec<Bytes> {
    out.messages
        .drain(..)
        .map(|(_, mut m)| m.body.split_front(1).map(|_| m.body.into_bytes()).unwrap())
        .collect()
}

#[test]
fn layout() {
    let mut out = Outbox::default();
    let mut source = source(&[("in_flight", "200")], &Format::Bytes);
    let mut sink = Latest.sink(&options(&Latest, &[]), &Format::Bytes, &Site::default()).unwrap();
    for number in 0..130u64 {
        source.handle(Port::MAIN, Message::new(Time(0), b"ab".to_vec()), Time(0), &mut out).unwrap();
        let (_, message) = out.messages.pop_front().unwrap();
        if number == 129 {
            assert_eq!(message.body.clone().into_bytes(), b"\x81\x01ab"[..]);
        }
        sink.handle(Port::MAIN, message, Time(0), &mut out).unwrap();
        assert_eq!(out.messages.pop_front().unwrap().1.body, Body::from(b"ab".to_vec()));
        assert_eq!(out.controls, [(number + 1).to_le_bytes()]);
        out.controls.clear();
    }
    for control in [&[][..], &[0; 7], &131u64.to_le_bytes()] {
        let result = source.handle_control(control, Time(1), &mut out);
        assert!(matches!(result, Err(StageError::Control(_))), "{control:?}: {result:?}");
    }
    for bytes in [&[][..], &[0x80], &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]] {
        let result = sink.handle(Port::MAIN, Message::new(Time(0), bytes.to_vec()), Time(0), &mut out);
        assert!(matches!(result, Err(StageError::Input(_))), "{bytes:?}: {result:?}");
    }
}

#[test]
fn a_network_that_keeps_up_changes_nothing() {
    for format in [Format::Bytes, Format::Evdev, Format::Motion] {
        let mut run = TwoHalves::new(&Latest, &[], &format, steady(Duration::from_millis(20)), 1);
        for number in 0..500u64 {
            run.push(Message::new(run.now, number.to_le_bytes().to_vec()));
            run.run_until(run.now.after(Duration::from_millis(16)));
        }
        run.run_until(run.now.after(Duration::from_millis(20)));
        let late = run.received.iter().map(|(at, m)| at.since(m.created)).max();
        assert_eq!((run.received.len(), late), (500, Some(Duration::from_millis(20))));
    }
}

/// Sends 100 messages of 1000 bytes a second over 10 ms and 20 kB/s, which carries 20. Returns the
/// mean age at the application, the age at the end of ten seconds, and the number received.
fn ages_ms(given: &[(&str, &str)], pair: &dyn Pair) -> (f64, f64, usize) {
    let network = Params { rate_bps: 160_000, queue_packets: u32::MAX, ..steady(Duration::from_millis(10)) };
    let mut run = TwoHalves::new(pair, given, &Format::Bytes, network, 1);
    for _ in 0..1000 {
        run.push(Message::new(run.now, vec![7; 1000]));
        run.run_until(run.now.after(Duration::from_millis(10)));
    }
    let ages: Vec<f64> = run.received.iter().map(|(at, m)| at.signed_since(m.created) as f64 / 1e6).collect();
    (ages.iter().sum::<f64>() / ages.len() as f64, ages[ages.len() - 1], ages.len())
}

#[test]
fn a_slow_network_carries_the_newest_at_its_full_rate() {
    let (_, queued_ms, _) = ages_ms(&[("in_flight", "4096"), ("merge", "false")], &Latest);
    assert!(queued_ms > 7000.0, "a large window fills the queue: {queued_ms}");
    let (mean_ms, last_ms, seen) = ages_ms(&[], &Latest);
    assert!(mean_ms < 170.0 && last_ms < 170.0 && seen > 185, "{mean_ms} {last_ms} {seen}");
    let (mean_ms, _, seen) = ages_ms(&[("in_flight", "1")], &Latest);
    assert!(mean_ms < 80.0 && seen > 130, "one at a time leaves the network idle: {mean_ms} {seen}");
}

#[test]
fn a_long_round_trip_does_not_limit_a_fast_device() {
    let network = steady(Duration::from_millis(100));
    let mut run = TwoHalves::new(&Latest, &[], &Format::Bytes, network, 1);
    for number in 0..5000u32 {
        run.push(Message::new(run.now, number.to_le_bytes().to_vec()));
        run.run_until(run.now.after(Duration::from_millis(1)));
    }
    // The window of 4 doubles every 200 ms until 200 messages are in flight.
    let replaced = run.figure(Half::Source, "replaced");
    assert!(replaced < 1300.0, "{replaced}");
    assert!(run.figure(Half::Source, "window") >= 200.0);
    assert_eq!(run.drops[&(Half::Source, REPLACED)] as f64, replaced);
    let before = run.figure(Half::Source, "replaced");
    for number in 0..1000u32 {
        run.push(Message::new(run.now, number.to_le_bytes().to_vec()));
        run.run_until(run.now.after(Duration::from_millis(1)));
    }
    assert_eq!(run.figure(Half::Source, "replaced"), before);
}

#[test]
fn auto_reports_its_choice_and_reason() {
    let mut source = source(&[], &Format::Bytes);
    let mut out = Outbox::default();
    source.handle(Port::MAIN, Message::new(Time(0), vec![1]), Time(0), &mut out).unwrap();
    source.handle_control(&1u64.to_le_bytes(), Time::from_millis(41), &mut out).unwrap();
    let choices = source.choices();
    assert_eq!((choices[0].option, &choices[0].value), ("in_flight", &Value::Integer(4)));
    assert!(choices[0].why.contains("41.0 ms"), "{}", choices[0].why);
    assert!(self::source(&[("in_flight", "3")], &Format::Bytes).choices().is_empty());
}

#[test]
fn the_newest_of_each_key_waits_in_turn() {
    let mut source = source(&[("in_flight", "1"), ("held_max", "3")], &Format::Bytes);
    let mut out = Outbox::default();
    let message = |key: u64, value: u8| {
        let attributes = Attributes { key: Some(key), ..Attributes::default() };
        Message { created: Time(0), attributes, body: vec![value].into() }
    };
    for (key, value) in [(0, 1), (1, 2), (2, 3), (1, 4), (2, 5), (1, 6)] {
        source.handle(Port::MAIN, message(key, value), Time(0), &mut out).unwrap();
    }
    assert_eq!(out.drops.iter().map(|drop| drop.count).sum::<u64>(), 3);
    source.handle_control(&1u64.to_le_bytes(), Time(9), &mut out).unwrap();
    // Key 1 always has a newer message; key 2 has its turn nevertheless.
    source.handle(Port::MAIN, message(1, 7), Time(9), &mut out).unwrap();
    source.handle_control(&2u64.to_le_bytes(), Time(9), &mut out).unwrap();
    source.handle_control(&3u64.to_le_bytes(), Time(9), &mut out).unwrap();
    assert_eq!(bodies_out(&mut out), [[1], [6], [5], [7]].map(|value| Bytes::from(value.to_vec())));
    for key in 0..3 {
        assert!(source.has_room());
        source.handle(Port::MAIN, message(key, 0), Time(9), &mut out).unwrap();
    }
    assert!(!source.has_room());
}

#[test]
fn with_held_max_0_it_applies_backpressure() {
    let given = [("in_flight", "2"), ("held_max", "0")];
    let (mut source, mut out) = (source(&given, &Format::Bytes), Outbox::default());
    for value in 0..2 {
        assert!(source.has_room());
        source.handle(Port::MAIN, Message::new(Time(0), vec![value]), Time(5), &mut out).unwrap();
    }
    assert!(!source.has_room());
    source.handle_control(&1u64.to_le_bytes(), Time(9), &mut out).unwrap();
    assert!(source.has_room());
    source.handle(Port::MAIN, Message::new(Time(9), vec![2]), Time(9), &mut out).unwrap();
    assert_eq!((bodies_out(&mut out).len(), source.held()), (3, 0));
    // The other two are never acknowledged.
    let until = source.poll_timeout().unwrap();
    assert_eq!(until, Time(9).after(Duration::from_secs(1)));
    source.handle_timeout(until, &mut out).unwrap();
    assert!(source.has_room());
}

#[test]
fn bytes_in_flight_are_limited_to_one_round_trip() {
    let (mut source, mut out) = (source(&[("held_max", "0")], &Format::Bytes), Outbox::default());
    let ms = Time::from_millis;
    let push = |source: &mut dyn Stage, bytes: usize, at| {
        source.handle(Port::MAIN, Message::new(at, vec![0; bytes]), at, &mut Outbox::default()).unwrap();
    };
    // A small message measures the distance, a large one the time for a byte: 1 us.
    push(source.as_mut(), 10, ms(0));
    source.handle_control(&1u64.to_le_bytes(), ms(100), &mut out).unwrap();
    push(source.as_mut(), 100_000, ms(200));
    source.handle_control(&2u64.to_le_bytes(), ms(400), &mut out).unwrap();
    for _ in 0..9 {
        assert!(source.has_room());
        push(source.as_mut(), 10_000, ms(500));
    }
    push(source.as_mut(), 20_000, ms(500));
    assert!(!source.has_room(), "110 kB take longer than one round trip");
}

/// A film with parts of varying size fills 10 Mbit/s over 50 ms; now and then a small message (a
/// letter) follows. The letter waits only for the messages in flight and the part before it.
#[test]
fn small_messages_do_not_queue_behind_large_ones() {
    let network =
        Params { rate_bps: 10_000_000, queue_packets: u32::MAX, ..steady(Duration::from_millis(50)) };
    let mut run = TwoHalves::new(&Latest, &[], &Format::Bytes, network, 1);
    let message = |key: u64, bytes: usize, now| {
        let attributes = Attributes { key: Some(key), ..Attributes::default() };
        Message { attributes, ..Message::new(now, vec![0; bytes]) }
    };
    for ms in 0..30_000 {
        run.push(message(0, 3000 + ms * 7919 % 8000, run.now));
        if ms % 371 == 0 {
            run.push(message(1, 300, run.now));
        }
        run.run_until(run.now.after(Duration::from_millis(1)));
    }
    let settled = run.received.iter().filter(|(at, _)| *at > Time::from_millis(3000));
    let (letters, parts): (Vec<_>, Vec<_>) = settled.partition(|(_, m)| m.body.len() == 300);
    let latest = letters.iter().map(|(at, m)| at.since(m.created)).max().unwrap();
    assert!(letters.len() > 70 && latest < Duration::from_millis(50 + 25), "{latest:?}");
    let bytes: usize = parts.iter().map(|(_, m)| m.body.len()).sum();
    assert!(bytes > 27 * 1_250_000 * 9 / 10, "{bytes} bytes in 27 s leave the network idle");
}

#[test]
fn a_busy_network_allows_one_message_in_flight() {
    let mut source = source(&[("in_flight", "9")], &Format::Bytes);
    let mut out = Outbox::default();
    let push = |source: &mut dyn Stage, value: u8, out: &mut Outbox| {
        source.handle(Port::MAIN, Message::new(Time(0), vec![value]), Time(0), out).unwrap();
    };
    let waiting = |waiting_bytes| Feedback { waiting_bytes, ..Feedback::default() };
    push(source.as_mut(), 1, &mut out);
    source.handle_feedback(&waiting(100_000), Time(0), &mut out).unwrap();
    (2..5).for_each(|value| push(source.as_mut(), value, &mut out));
    assert_eq!((out.messages.len(), source.held()), (1, 1));
    source.handle_control(&1u64.to_le_bytes(), Time(9), &mut out).unwrap();
    push(source.as_mut(), 5, &mut out);
    source.handle_feedback(&waiting(0), Time(10), &mut out).unwrap();
    assert_eq!(bodies_out(&mut out), [[1], [4], [5]].map(|value| Bytes::from(value.to_vec())));
    source.handle_feedback(&waiting(100_000), Time(10), &mut out).unwrap();
    push(source.as_mut(), 6, &mut out);
    let until = source.poll_timeout().unwrap();
    assert_eq!(until, Time(10).after(Duration::from_secs(1)), "until feedback expires");
    source.handle_timeout(until, &mut out).unwrap();
    assert_eq!(out.messages.len(), 1);
}

#[test]
fn total_loss_does_not_stop_the_flow_for_ever() {
    let given = [("merge", "false"), ("in_flight", "2")];
    let mut run = TwoHalves::new(&Latest, &given, &Format::Bytes, steady(Duration::from_millis(5)), 1);
    let feed = |run: &mut TwoHalves, count: u32| {
        for number in 0..count {
            run.push(Message::new(run.now, number.to_le_bytes().to_vec()));
            run.run_until(run.now.after(Duration::from_millis(20)));
        }
    };
    feed(&mut run, 50);
    run.configure(Params { loss_ppm: 1_000_000, ..steady(Duration::from_millis(5)) });
    feed(&mut run, 500);
    let tried = run.lost();
    assert!((3..8).contains(&tried), "two, then less and less often: {tried}");
    run.configure(steady(Duration::from_millis(5)));
    feed(&mut run, 1000);
    run.end();
    let after_pause = run.received.windows(2).map(|two| two[1].0.since(two[0].0)).max().unwrap();
    assert!(after_pause < Duration::from_secs(26), "{after_pause:?}");
    assert!(run.received.len() > 400);
    assert_eq!(run.received.len() as u64 + run.lost() + run.dropped(), 1550);
}

#[test]
fn an_altered_number_misleads_only_once() {
    let (mut source, mut out) = (source(&[("in_flight", "1")], &Format::Bytes), Outbox::default());
    let mut sink = Latest.sink(&options(&Latest, &[]), &Format::Bytes, &Site::default()).unwrap();
    let mut now = Time::from_millis(1000);
    for round in 0..10 {
        source.handle(Port::MAIN, Message::new(now, vec![round]), now, &mut out).unwrap();
        if round == 4 {
            now = source.poll_timeout().expect("it waits for an acknowledgement");
            source.handle_timeout(now, &mut out).unwrap();
        }
        let (_, mut message) = out.messages.pop_front().expect("the previous one was acknowledged or lost");
        if round == 3 {
            // The largest number that the header can hold.
            message.body = Body::from([vec![0xff; 8], vec![0x7f, 0]].concat());
        }
        now = now.after(Duration::from_millis(10));
        sink.handle(Port::MAIN, message, now, &mut out).unwrap();
        out.messages.clear();
        for control in std::mem::take(&mut out.controls) {
            let result = source.handle_control(&control, now, &mut out);
            assert_eq!(result.is_err(), round == 3, "{result:?}");
        }
    }
}

fn events(run: &TwoHalves) -> Vec<Event> {
    let frames =
        run.received.iter().map(|(_, m)| evdev::Update::parse(&m.body.clone().into_bytes()).unwrap());
    frames
        .flat_map(|update| match update {
            evdev::Update::Frame(events) | evdev::Update::Snapshot(events) => events,
            other => panic!("{other:?}"),
        })
        .collect()
}

/// A mouse of 1000 Hz with two clicks a second, over 10 ms and 1 kB/s, which carries about 50
/// frames: no event is older than 0.2 s, no click is lost, and the pointer ends at the right place.
#[test]
fn a_mouse_on_a_slow_network_loses_no_click_and_no_distance() {
    let network = Params { rate_bps: 8_000, queue_packets: u32::MAX, ..steady(Duration::from_millis(10)) };
    let mut run = TwoHalves::new(&Latest, &[], &Format::Evdev, network, 1);
    let mut clicks = Vec::new();
    for number in 0..10_000 {
        let event = match number % 250 {
            249 => {
                clicks.push(Event::new(EV_KEY, 0x110, number / 250 % 2));
                clicks[clicks.len() - 1]
            }
            _ => Event::new(EV_REL, (number % 2) as u16, 1 + number % 3),
        };
        run.push(Message::new(run.now, evdev::Update::Frame(vec![event]).to_bytes()));
        run.run_until(run.now.after(Duration::from_millis(1)));
    }
    run.end();
    let (keys, distances): (Vec<_>, Vec<_>) =
        events(&run).into_iter().partition(|event| event.kind == EV_KEY);
    assert_eq!(keys, clicks);
    let far =
        |code| distances.iter().filter(|event| event.code == code).map(|event| event.value).sum::<i32>();
    let sent = |code| (0..10_000).filter(|n| n % 250 != 249 && n % 2 == code).map(|n| 1 + n % 3).sum::<i32>();
    assert_eq!([far(0), far(1)], [sent(0), sent(1)]);
    let oldest = run.received[50..].iter().map(|(at, m)| at.since(m.created)).max().unwrap();
    assert!(oldest < Duration::from_millis(200), "{oldest:?}");
    assert!(run.received.len() < 1000 && run.dropped() == 0);
}

#[test]
fn a_cap_leads_as_far_and_comes_to_rest() {
    let network = Params { rate_bps: 4_000, queue_packets: u32::MAX, ..steady(Duration::from_millis(10)) };
    let mut run = TwoHalves::new(&Latest, &[("in_flight", "2")], &Format::Motion, network, 1);
    let mut presses = 0;
    for number in 0..640 {
        let update = match number % 100 {
            20 | 30 => {
                presses += 1;
                motion::Update::Button { number: 0, pressed: number % 100 == 20 }
            }
            _ if number == 639 => motion::Update::Motion(Motion { axes: [0; 6], period_us: 16_000 }),
            at => motion::Update::Motion(Motion { axes: [at, 0, 0, 0, 0, -at], period_us: 16_000 }),
        };
        run.push(Message::new(run.now, update.to_bytes()));
        run.run_until(run.now.after(Duration::from_millis(16)));
    }
    run.end();
    let (mut far, mut period_us, mut rest, mut buttons) = (0, 0, [1; 6], Vec::new());
    for (_, message) in &run.received {
        match motion::Update::parse(&message.body.clone().into_bytes()).unwrap() {
            motion::Update::Motion(motion) => {
                far += i64::from(motion.axes[0]) * i64::from(motion.period_us);
                period_us += u64::from(motion.period_us);
                rest = motion.axes;
            }
            motion::Update::Button { pressed, .. } => buttons.push(pressed),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((buttons.len(), rest), (presses, [0; 6]));
    assert!(buttons.chunks(2).all(|two| two == [true, false]));
    assert_eq!(period_us, (640 - presses as u64) * 16_000);
    let sent: i64 = (0..639).filter(|n| !matches!(n % 100, 20 | 30)).map(|n| n % 100 * 16_000).sum();
    assert!((far - sent).unsigned_abs() < period_us / 2, "{far} {sent}");
    assert!(run.received.len() < 400, "{}", run.received.len());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    /// On any network without loss: messages arrive in order, the last one always arrives, and each
    /// message is received or counted as dropped.
    #[test]
    fn the_last_message_always_arrives(
        gaps_ms in prop::collection::vec(0..60u64, 1..200),
        rate_bps in 2_000..500_000u64,
        delay_ms in 0..200u64,
        in_flight in prop_oneof![Just("auto"), Just("1"), Just("5")],
    ) {
        let network = Params { rate_bps, queue_packets: u32::MAX, ..steady(Duration::from_millis(delay_ms)) };
        let given = [("in_flight", in_flight), ("merge", "false")];
        let mut run = TwoHalves::new(&Latest, &given, &Format::Bytes, network, 1);
        for (number, gap_ms) in (0u32..).zip(&gaps_ms) {
            run.push(Message::new(run.now, number.to_le_bytes().to_vec()));
            run.run_until(run.now.after(Duration::from_millis(*gap_ms)));
        }
        run.run_until(run.now.after(Duration::from_secs(20)));
        let numbers: Vec<u32> = run
            .received
            .iter()
            .map(|(_, m)| u32::from_le_bytes(m.body.clone().take_front().unwrap()))
            .collect();
        prop_assert!(numbers.windows(2).all(|two| two[0] < two[1]));
        prop_assert_eq!(numbers.last(), Some(&(gaps_ms.len() as u32 - 1)));
        prop_assert_eq!(run.received.len() as u64 + run.dropped(), gaps_ms.len() as u64);
    }
}
