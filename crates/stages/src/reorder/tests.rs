use super::Reorder;
use contract::{Body, Format, Half, Message, Outbox, Pair, Port, Site, Stage, StageError, Time};
use netsim::Params;
use proptest::prelude::*;
use std::time::Duration;
use testkit::stage::{TwoHalves, conforms, options, steady};

#[test]
fn it_conforms() {
    conforms(&Reorder, &[], &Format::Evdev);
    conforms(&Reorder, &[("window", "1")], &Format::Bytes);
    conforms(&Reorder, &[("window", "1000"), ("wait", "5s")], &Format::Bytes);
    conforms(&Reorder, &[("wait", "0s")], &Format::Bytes);
}

#[test]
fn header_layout() {
    let mut source = Reorder.source(&options(&Reorder, &[]), &Format::Bytes, &Site::default()).unwrap();
    let mut out = Outbox::default();
    for _ in 0..2 {
        let message = Message::new(Time(1), b"body".to_vec());
        source.handle(Port::MAIN, message, Time::from_millis(0x1_2345_6789), &mut out).unwrap();
    }
    let bodies: Vec<_> = out.messages.drain(..).map(|(_, m)| m.body.into_bytes()).collect();
    assert_eq!(bodies[0], &b"\x89\x67\x45\x23\0\0\0\0\0\0\0\0body"[..]);
    assert_eq!(bodies[1], &b"\x89\x67\x45\x23\x01\0\0\0\0\0\0\0body"[..]);
}

fn sink(given: &[(&str, &str)]) -> Box<dyn Stage> {
    Reorder.sink(&options(&Reorder, given), &Format::Bytes, &Site::default()).unwrap()
}

/// Hands numbered messages of one start to a sink; returns the numbers that left.
fn hand(sink: &mut dyn Stage, start: u32, numbers: &[u64], at_ms: u64, out: &mut Outbox) -> Vec<u64> {
    for number in numbers {
        let mut body = Body::from(number.to_le_bytes().to_vec());
        body.push_front(&number.to_le_bytes());
        body.push_front(&start.to_le_bytes());
        let message = Message::new(Time(*number), body);
        sink.handle(Port::MAIN, message, Time::from_millis(at_ms), out).unwrap();
    }
    numbers_out(out)
}

fn numbers_out(out: &mut Outbox) -> Vec<u64> {
    out.messages.drain(..).map(|(_, message)| message.created.0).collect()
}

fn figure(sink: &dyn Stage, name: &str) -> f64 {
    sink.report().iter().find(|(known, _)| *known == name).unwrap().1
}

#[test]
fn a_missing_message_is_waited_for_then_abandoned() {
    let (mut sink, mut out) = (sink(&[("wait", "50ms")]), Outbox::default());
    assert_eq!(hand(&mut *sink, 1, &[0, 2, 4], 0, &mut out), [0]);
    assert_eq!(hand(&mut *sink, 1, &[6], 20, &mut out), []);
    assert_eq!(hand(&mut *sink, 1, &[1], 30, &mut out), [1, 2]);
    assert_eq!(sink.poll_timeout(), Some(Time::from_millis(50)));
    sink.handle_timeout(Time::from_millis(50), &mut out).unwrap();
    assert_eq!(numbers_out(&mut out), [4]);
    assert_eq!(sink.poll_timeout(), Some(Time::from_millis(70)), "5 is missing since 6 arrived");
    assert_eq!(hand(&mut *sink, 1, &[3, 4, 6, 5], 60, &mut out), [5, 6]);
    assert_eq!(out.drops.iter().map(|drop| drop.count).sum::<u64>(), 3);
    assert_eq!((figure(&*sink, "missing"), figure(&*sink, "reordered")), (1.0, 3.0));
    assert_eq!(sink.poll_timeout(), None);
}

#[test]
fn messages_that_wait_are_held() {
    let (mut sink, mut out) = (sink(&[("wait", "50ms")]), Outbox::default());
    hand(&mut *sink, 1, &[0, 2, 4], 0, &mut out);
    assert_eq!((sink.held(), sink.kept()), (2, 2));
    hand(&mut *sink, 1, &[1], 0, &mut out);
    // Message 5000 is unconfirmed.
    hand(&mut *sink, 1, &[5000], 0, &mut out);
    assert_eq!(sink.held(), 2);
    sink.handle_timeout(Time::from_millis(50), &mut out).unwrap();
    assert_eq!(sink.held(), 0);
}

#[test]
fn the_window_bounds_the_messages_held() {
    let (mut sink, mut out) = (sink(&[("window", "4")]), Outbox::default());
    assert_eq!(hand(&mut *sink, 1, &[1, 3], 0, &mut out), []);
    assert_eq!(hand(&mut *sink, 1, &[4], 0, &mut out), [1], "0 is abandoned");
    assert_eq!(hand(&mut *sink, 1, &[9], 0, &mut out), [3, 4, 9]);
    assert_eq!(hand(&mut *sink, 1, &[100], 0, &mut out), [], "one message alone moves nothing");
    assert_eq!(hand(&mut *sink, 1, &[101], 0, &mut out), [100, 101]);
    assert_eq!((figure(&*sink, "held"), figure(&*sink, "missing")), (0.0, 96.0));
}

#[test]
fn a_jump_waits_for_confirmation() {
    let (mut sink, mut out) = (sink(&[("wait", "50ms")]), Outbox::default());
    assert_eq!(hand(&mut *sink, 5, &[0, 1, 1000], 0, &mut out), [0, 1]);
    // 2 contradicts 1000: a flipped bit, or a lie.
    assert_eq!(hand(&mut *sink, 5, &[2], 10, &mut out), [2]);
    sink.handle_timeout(Time::from_millis(50), &mut out).unwrap();
    assert_eq!((numbers_out(&mut out), out.drops.drain(..).count()), (vec![], 1));
    // Nothing contradicts 2000: it leaves after `wait`, and 2001 confirms it.
    assert_eq!(hand(&mut *sink, 5, &[2000], 60, &mut out), []);
    assert_eq!((sink.poll_timeout(), figure(&*sink, "held")), (Some(Time::from_millis(110)), 1.0));
    sink.handle_timeout(Time::from_millis(110), &mut out).unwrap();
    assert_eq!((numbers_out(&mut out), sink.poll_timeout()), (vec![2000], None));
    assert_eq!(hand(&mut *sink, 5, &[2001], 900, &mut out), [2001]);
    // 2100 overtakes 98 others.
    assert_eq!(hand(&mut *sink, 5, &[2100], 910, &mut out), []);
    let numbers: Vec<u64> = (2002..2100).collect();
    assert_eq!(hand(&mut *sink, 5, &numbers, 911, &mut out), (2002..2101).collect::<Vec<u64>>());
    assert!(out.drops.is_empty());
}

#[test]
fn the_flow_recovers_from_a_wrong_first_message() {
    // The very first message has another start, or a number far ahead.
    for (start, number) in [(1 << 30, 0), (5, 1 << 60)] {
        let (mut sink, mut out) = (sink(&[("wait", "50ms")]), Outbox::default());
        assert_eq!(hand(&mut *sink, start, &[number], 0, &mut out).len(), 1);
        for number in 1..100 {
            hand(&mut *sink, 5, &[number], 10 * number, &mut out);
        }
        assert_eq!(hand(&mut *sink, 5, &[100], 1000, &mut out), [100]);
        let dropped: u64 = out.drops.iter().map(|drop| drop.count).sum();
        assert!((1..=16).contains(&dropped), "{dropped}");
    }
}

#[test]
fn an_impossible_number_is_refused() {
    let (mut sink, mut out) = (sink(&[]), Outbox::default());
    hand(&mut *sink, 1, &[0], 0, &mut out);
    for number in [u64::MAX, 1 << 32 | 1] {
        let body = [&1u32.to_le_bytes()[..], &number.to_le_bytes()].concat();
        let result = sink.handle(Port::MAIN, Message::new(Time(1), body), Time::ZERO, &mut out);
        assert!(matches!(result, Err(StageError::Input(_))), "{result:?}");
    }
    assert_eq!(hand(&mut *sink, 1, &[1], 0, &mut out), [1]);
}

#[test]
fn a_restarted_source_is_followed() {
    let (mut sink, mut out) = (sink(&[]), Outbox::default());
    assert_eq!(hand(&mut *sink, u32::MAX, &[0, 2], 0, &mut out), [0]);
    assert_eq!(hand(&mut *sink, 5, &[1], 0, &mut out), [], "one message alone moves nothing");
    assert_eq!(hand(&mut *sink, 5, &[0], 0, &mut out), [2, 0, 1]);
    assert_eq!(hand(&mut *sink, u32::MAX, &[3], 0, &mut out), []);
    assert_eq!(out.drops.len(), 1);
    assert_eq!(figure(&*sink, "restarts"), 1.0);
}

#[test]
fn a_sink_that_starts_mid_flow_does_not_wait() {
    let (mut sink, mut out) = (sink(&[]), Outbox::default());
    assert_eq!(hand(&mut *sink, 1, &[5000, 5001], 0, &mut out), [5000, 5001]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// On a link that only reorders, everything arrives in order if the wait covers the jitter.
    #[test]
    fn order_is_restored(jitter_ms in 0u64..50, period_us in 200u64..20_000, seed in any::<u64>()) {
        let steady = steady(Duration::from_millis(3));
        let link = Params { jitter_ns: jitter_ms * 1_000_000, reorder: true, ..steady };
        let mut run = TwoHalves::new(&Reorder, &[("window", "1000")], &Format::Evdev, link, seed);
        for number in 0..300u64 {
            run.push(Message::new(run.now, number.to_le_bytes().to_vec()));
            run.run_until(run.now.after(Duration::from_micros(period_us)));
        }
        run.end();
        prop_assert_eq!(run.received.len(), 300);
        prop_assert!(run.received.windows(2).all(|pair| pair[0].1.created < pair[1].1.created));
        prop_assert_eq!((run.dropped(), run.figure(Half::Sink, "missing")), (0, 0.0));
    }

    /// The flow continues despite flipped bits. A wrong number within the window is accepted, so up
    /// to 64 messages may still be late after the last flipped bit.
    #[test]
    fn flipped_bits_do_not_stop_it(corrupt_ppm in 10_000u32..300_000, seed in any::<u64>()) {
        let steady = steady(Duration::from_millis(3));
        let link = Params { corrupt_ppm, ..steady.clone() };
        let mut run = TwoHalves::new(&Reorder, &[], &Format::Evdev, link, seed);
        for number in 0..600u64 {
            if number == 300 {
                run.configure(steady.clone());
                run.run_until(run.now.after(Duration::from_secs(1)));
            }
            run.push(Message::new(run.now, number.to_le_bytes().to_vec()));
            run.run_until(run.now.after(Duration::from_millis(4)));
        }
        run.end();
        let last = run.received.iter().rev().take(230).rev();
        let numbers: Vec<u64> = last.map(|(_, m)| u64::from_le_bytes(m.body.peek_front().unwrap())).collect();
        prop_assert_eq!(numbers, (370..600).collect::<Vec<u64>>());
        let accounted = run.received.len() as u64 + run.dropped() + run.errors.len() as u64;
        prop_assert!((600..1500).contains(&accounted), "{:?}", run.drops);
    }
}
