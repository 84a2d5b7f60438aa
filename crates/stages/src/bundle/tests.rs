use super::Bundle;
use contract::{
    Attributes, Body, Feedback, Format, Half, Message, Outbox, Pair, Port, Site, Stage, StageError, Time,
    Value,
};
use netsim::{Link, Params};
use proptest::prelude::*;
use std::collections::VecDeque;
use std::time::Duration;
use testkit::stage::{TwoHalves, conforms, options, steady};

#[test]
fn it_conforms() {
    for given in [
        &[][..],
        &[("count", "1")],
        &[("count", "auto")],
        &[("count", "1000"), ("wait", "5s")],
        &[("hold", "1ms")],
    ] {
        conforms(&Bundle, given, &Format::Evdev);
    }
}

fn jittery(jitter_ms: u64) -> Params {
    Params { jitter_ns: jitter_ms * 1_000_000, ..steady(Duration::from_millis(2)) }
}

fn feed(run: &mut TwoHalves, count: u64) {
    for number in 0..count {
        run.push(Message::new(run.now, number.to_le_bytes().to_vec()));
        run.run_until(run.now.after(Duration::from_millis(16)));
    }
}

/// "Networked Device Driver Architecture" (2012), 6.7.2: ten updates per bundle, one every 16 ms,
/// with jitter J.
#[test]
fn spacing_is_exact_while_jitter_is_below_the_span() {
    for jitter_ms in [0, 5, 10, 25, 50, 100, 144] {
        for seed in 0..20 {
            let mut run = TwoHalves::new(&Bundle, &[], &Format::Motion, jittery(jitter_ms), seed);
            feed(&mut run, 200);
            run.run_until(run.now.after(Duration::from_secs(2)));
            assert_eq!((run.received.len(), run.bodies.len()), (200, 20));
            assert_eq!(run.spacing_error(0), (0.0, 0.0), "J={jitter_ms} seed {seed}");
        }
    }
}

#[test]
fn a_later_bundle_raises_the_shift_once() {
    let mut late = 0.0;
    for seed in 0..20 {
        let mut run = TwoHalves::new(&Bundle, &[("hold", "20ms")], &Format::Motion, jittery(200), seed);
        feed(&mut run, 2000);
        late += run.figure(Half::Sink, "late");
        let (mean, largest) = run.spacing_error(1000);
        assert!(mean < 0.05e6 && largest < 30e6, "seed {seed}: {mean} {largest}");
    }
    assert!((10.0..120.0).contains(&late), "{late}");
}

#[test]
fn the_shift_falls_after_an_interruption() {
    let mut run = TwoHalves::new(&Bundle, &[], &Format::Motion, jittery(10), 1);
    feed(&mut run, 200);
    let usual = run.figure(Half::Sink, "delay_ms");
    run.configure(steady(Duration::from_secs(8)));
    feed(&mut run, 50);
    run.configure(jittery(10));
    feed(&mut run, 2500);
    assert!(run.figure(Half::Sink, "late") >= 1.0);
    let after = run.figure(Half::Sink, "delay_ms");
    assert!((after - usual).abs() < 200.0, "{usual} {after}");
    assert!(run.spacing_error(2000).1 < 1.0);
}

#[test]
fn an_interruption_does_not_delay_what_follows_it() {
    for interruption_s in [1, 3, 30] {
        let mut run = TwoHalves::new(&Bundle, &[], &Format::Motion, jittery(10), 1);
        feed(&mut run, 200);
        let usual = run.figure(Half::Sink, "delay_ms");
        run.configure(steady(Duration::from_secs(interruption_s)));
        feed(&mut run, 10);
        run.configure(jittery(10));
        feed(&mut run, 62 * interruption_s + 200);
        let after = run.figure(Half::Sink, "delay_ms");
        assert!((after - usual).abs() < 20.0, "{interruption_s} s: {usual} {after}");
    }
}

#[test]
fn a_slower_route_raises_the_shift() {
    let mut run = TwoHalves::new(&Bundle, &[], &Format::Motion, jittery(10), 1);
    feed(&mut run, 200);
    run.configure(steady(Duration::from_secs(2)));
    feed(&mut run, 1000);
    let late = run.figure(Half::Sink, "late");
    feed(&mut run, 500);
    assert_eq!(run.figure(Half::Sink, "late"), late);
}

#[test]
fn a_slow_device_does_not_wait_for_a_full_bundle() {
    let mut run =
        TwoHalves::new(&Bundle, &[("wait", "30ms")], &Format::Evdev, steady(Duration::from_millis(1)), 1);
    run.push(Message::new(run.now, vec![1]));
    run.run_until(run.now.after(Duration::from_millis(500)));
    assert_eq!(run.received.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [Time::from_millis(1031)]);
}

fn halves(given: &[(&str, &str)]) -> (Box<dyn Stage>, Box<dyn Stage>) {
    let options = options(&Bundle, given);
    (
        Bundle.source(&options, &Format::Bytes, &Site::default()).unwrap(),
        Bundle.sink(&options, &Format::Bytes, &Site::default()).unwrap(),
    )
}

/// Headers of each bundle in the network.
const PACKET_BYTES: usize = 56;

/// The count that `auto` chose after a time on each of these networks in turn, with 24 bytes every
/// millisecond.
fn settled_counts(networks: &[(&str, u64)]) -> Vec<i64> {
    let (mut source, mut sink) = halves(&[("count", "auto")]);
    let mut link = Link::<u64>::new(Params::default(), 1);
    let (mut crossing, mut reports, mut out) = (Vec::new(), VecDeque::new(), Outbox::default());
    let (mut now, mut delay, mut settled_counts) = (Time::from_millis(1000), Duration::ZERO, Vec::new());
    for (network, seconds) in networks {
        link.configure(now.0, network.parse().unwrap());
        for ms in 0..seconds * 1000 {
            now = now.after(Duration::from_millis(1));
            while let Some((_, number)) = link.pop(now.0) {
                let message: &Message = &crossing[number as usize];
                sink.handle(Port::MAIN, message.clone(), now, &mut out).unwrap();
            }
            if sink.poll_timeout().is_some_and(|at| at <= now) {
                sink.handle_timeout(now, &mut out).unwrap();
            }
            if let Some((_, message)) = out.messages.drain(..).next_back() {
                delay = now.since(message.created);
            }
            let arrives = now.after(Duration::from_nanos(link.params().delay_ns));
            reports.extend(out.controls.drain(..).map(|report| (arrives, report)));
            while reports.front().is_some_and(|(at, _)| *at <= now) {
                let (_, report) = reports.pop_front().unwrap();
                source.handle_control(&report, now, &mut out).unwrap();
            }
            if ms % 250 == 0 {
                let feedback = Feedback { received: 100, delay, ..Feedback::default() };
                source.handle_feedback(&feedback, now, &mut out).unwrap();
            }
            source.handle(Port::MAIN, Message::new(now, vec![7; 24]), now, &mut out).unwrap();
            for (_, message) in out.messages.drain(..) {
                let bytes = message.body.len() + PACKET_BYTES;
                let _ = link.push(now.0, crossing.len() as u64, bytes as u32);
                crossing.push(message);
            }
        }
        match source.choices()[0].value {
            Value::Integer(count) => settled_counts.push(count),
            ref other => panic!("{other:?}"),
        }
    }
    settled_counts
}

const FAST: &str = "delay=100us,jitter=100us,rate=1gbit";
const SLOW: &str = "delay=25ms,jitter=15ms,rate=500kbit";

#[test]
fn auto_is_stable_on_a_steady_network() {
    assert_eq!(settled_counts(&[(FAST, 2), (FAST, 20), (FAST, 20)]), [1, 1, 1]);
    assert_eq!(settled_counts(&[(SLOW, 8), (SLOW, 10), (SLOW, 10)]), [3, 3, 3]);
}

#[test]
fn auto_adapts_to_a_slower_network_at_once_and_to_a_faster_one_later() {
    let counts = settled_counts(&[(FAST, 5), (SLOW, 1), (SLOW, 9), (FAST, 130)]);
    assert_eq!(counts[0], 1);
    assert!((3..=12).contains(&counts[1]), "{counts:?}");
    assert_eq!(counts[2..], [3, 1]);
}

#[test]
fn header_layout() {
    let (mut source, _) = halves(&[("count", "2")]);
    let mut out = Outbox::default();
    source.handle(Port::MAIN, Message::new(Time(1000), b"abc".to_vec()), Time(5), &mut out).unwrap();
    source.handle(Port::MAIN, Message::new(Time(999), b"de".to_vec()), Time(5), &mut out).unwrap();
    let (_, bundle) = out.messages.pop_front().unwrap();
    assert_eq!(bundle.created, Time(1000));
    let header = b"\x02\0\0\0\0\0\0\0\0\0\x03\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff\x02\0\0\0";
    assert_eq!(bundle.body.into_bytes(), [&header[..], b"abcde"].concat());
}

#[test]
fn a_bundle_is_as_urgent_as_its_most_urgent_message() {
    let (mut source, _) = halves(&[("count", "2")]);
    let mut out = Outbox::default();
    let attributes = Attributes { priority: 1, droppable: true, key: Some(4), ..Attributes::default() };
    let urgent = Attributes { priority: 9, droppable: false, deadline: Some(Time(7)), ..attributes };
    for attributes in [attributes, urgent] {
        let message = Message { created: Time(0), attributes, body: Body::new() };
        source.handle(Port::MAIN, message, Time(5), &mut out).unwrap();
    }
    assert_eq!(out.messages[0].1.attributes, urgent);
}

#[test]
fn malformed_bundles_are_refused() {
    let (_, mut sink) = halves(&[]);
    let mut out = Outbox::default();
    let entry = |length: u32| [&[0u8; 8][..], &length.to_le_bytes()].concat();
    for bytes in [
        vec![],
        vec![1],
        vec![0xff, 0xff, 0, 0],
        [&[1, 0][..], &entry(u32::MAX)].concat(),
        [&[1, 0][..], &entry(3), b"ab"].concat(),
        [&[1, 0][..], &entry(1), b"ab"].concat(),
        vec![0, 0, 1],
        [vec![11, 0], vec![0; 11 * 12]].concat(),
    ] {
        let result = sink.handle(Port::MAIN, Message::new(Time(1), bytes.clone()), Time(5), &mut out);
        assert!(matches!(result, Err(StageError::Input(_))), "{bytes:?}: {result:?}");
    }
    assert!(out.messages.is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Any creation spacing is restored if `hold` covers span and jitter.
    #[test]
    fn any_spacing_is_restored(
        gaps_ms in prop::collection::vec(1u64..200, 150..250),
        count in 1usize..20,
        jitter_ms in 0u64..40,
        seed in any::<u64>(),
    ) {
        let count = count.to_string();
        let given = [("count", count.as_str()), ("hold", "300ms"), ("wait", "250ms")];
        let mut run = TwoHalves::new(&Bundle, &given, &Format::Motion, jittery(jitter_ms), seed);
        for gap in &gaps_ms {
            run.push(Message::new(run.now, vec![1]));
            run.run_until(run.now.after(Duration::from_millis(*gap)));
        }
        run.run_until(run.now.after(Duration::from_secs(2)));
        prop_assert_eq!(run.received.len(), gaps_ms.len());
        prop_assert_eq!(run.spacing_error(0), (0.0, 0.0));
    }
}
