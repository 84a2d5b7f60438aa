use super::Multiplex;
use contract::{Body, Format, Half, Message, Options, Outbox, Pair, Port, Shape, Stage, Time};
use netsim::Params;
use proptest::prelude::*;
use std::time::Duration;
use testkit::stage::{TwoHalves, conforms, options, site, steady};

const MODES: [&str; 4] = ["all", "round_robin", "split", "key"];

#[test]
fn it_conforms() {
    for mode in MODES {
        conforms(&Multiplex, &[("mode", mode)], &Format::Bytes);
        conforms(&Multiplex, &[("mode", mode), ("ways", "5"), ("join", "false")], &Format::Video);
    }
    conforms(&Multiplex, &[("mode", "split"), ("ways", "8"), ("wait", "0s")], &Format::Evdev);
    conforms(&Multiplex, &[("mode", "key"), ("ways", "4"), ("width", "8")], &Format::Bytes);
    conforms(&Multiplex, &[("mode", "round_robin"), ("window", "1")], &Format::Bytes);
}

fn source(given: &[(&str, &str)]) -> Box<dyn Stage> {
    Multiplex.source(&options(&Multiplex, given), &Format::Bytes, &site(0)).unwrap()
}

fn sink(given: &[(&str, &str)]) -> Box<dyn Stage> {
    Multiplex.sink(&options(&Multiplex, given), &Format::Bytes, &site(1)).unwrap()
}

/// Divides these bodies; returns way and bytes of each message.
fn divided(given: &[(&str, &str)], bodies: &[&[u8]]) -> Vec<(u16, Vec<u8>)> {
    let (mut source, mut out) = (source(given), Outbox::default());
    for body in bodies {
        let message = Message::new(Time(1), body.to_vec());
        source.handle(Port::MAIN, message, Time::from_millis(0x1_2345_6789), &mut out).unwrap();
    }
    let mut sent: Vec<_> =
        out.messages.into_iter().map(|(port, m)| (port.0, m.body.into_bytes().to_vec())).collect();
    sent.sort();
    sent
}

#[test]
fn header_layout() {
    let sent = divided(&[("mode", "split"), ("ways", "3")], &[b"seven b", b"2b"]);
    let expected: [(u16, &[u8]); 6] = [
        (0, b"\x89\x67\x45\x23\0\0\0\0\0\0\0\0\0sev"),
        (0, b"\x89\x67\x45\x23\x01\0\0\0\0\0\0\0\x002"),
        (1, b"\x89\x67\x45\x23\0\0\0\0\0\0\0\0\x01en"),
        (1, b"\x89\x67\x45\x23\x01\0\0\0\0\0\0\0\x01b"),
        (2, b"\x89\x67\x45\x23\0\0\0\0\0\0\0\0\x02 b"),
        (2, b"\x89\x67\x45\x23\x01\0\0\0\0\0\0\0\x02"),
    ];
    assert_eq!(sent, expected.map(|(way, bytes)| (way, bytes.to_vec())));
}

#[test]
fn each_mode_divides_as_documented() {
    let bodies: Vec<Vec<u8>> = (0..60u8).map(|i| vec![9, i % 10, 0, i]).collect();
    let bodies: Vec<&[u8]> = bodies.iter().map(|body| &body[..]).collect();
    let at = |way: u16, sent: &[(u16, Vec<u8>)]| -> Vec<u8> {
        sent.iter().filter(|(theirs, _)| *theirs == way).map(|(_, bytes)| bytes[16]).collect()
    };
    let sent = divided(&[("ways", "3")], &bodies);
    assert!((0..3).all(|way| at(way, &sent) == (0..60).collect::<Vec<u8>>()));
    let sent = divided(&[("mode", "round_robin"), ("ways", "3")], &bodies);
    assert!((0..3).all(|way| at(way, &sent) == (0..60).filter(|i| i % 3 == way as u8).collect::<Vec<_>>()));
    let by_key = [("mode", "key"), ("ways", "3"), ("at", "1"), ("width", "2")];
    let sent = divided(&by_key, &bodies);
    let ways: Vec<Vec<u8>> = (0..3).map(|way| at(way, &sent)).collect();
    assert!(ways.iter().all(|way| !way.is_empty()), "ten keys use every way: {ways:?}");
    for key in 0..10 {
        let with_it = ways.iter().filter(|way| way.iter().any(|i| i % 10 == key)).count();
        assert_eq!(with_it, 1, "key {key} goes one way: {ways:?}");
    }
    let sent = divided(&[("mode", "key"), ("ways", "3"), ("at", "3"), ("width", "2")], &bodies);
    assert_eq!(at(0, &sent).len(), 60, "bodies too short for the key");
}

#[test]
fn the_key_attribute_precedes_the_key_in_the_body() {
    let (mut source, mut out) =
        (source(&[("mode", "key"), ("ways", "64"), ("width", "1")]), Outbox::default());
    for key in [3, 4, 3] {
        let mut message = Message::new(Time(1), vec![7]);
        message.attributes.key = Some(key);
        source.handle(Port::MAIN, message, Time(1), &mut out).unwrap();
    }
    let ports: Vec<Port> = out.messages.iter().map(|(port, _)| *port).collect();
    assert!(ports[0] == ports[2] && ports[0] != ports[1], "{ports:?}");
}

#[test]
fn its_shape_has_a_port_for_each_way() {
    let shape = |given: &[(&str, &str)]| Multiplex.shape(&options(&Multiplex, given));
    assert_eq!((shape(&[]), shape(&[("ways", "64")])), (Shape::Fan(2), Shape::Fan(64)));
    assert!(Options::check(Multiplex.options(), [("ways", "65")]).is_err());
}

/// Sends numbered messages, one every 16 ms, over these lanes; returns the run and the numbers that
/// arrived.
fn run(given: &[(&str, &str)], lanes: &[Params], count: u64, seed: u64) -> (TwoHalves, Vec<u64>) {
    let mut run = TwoHalves::with_lanes(&Multiplex, given, &Format::Motion, lanes, seed);
    for number in 0..count {
        run.push(Message::new(run.now, number.to_le_bytes().to_vec()));
        run.run_until(run.now.after(Duration::from_millis(16)));
    }
    run.run_until(run.now.after(Duration::from_secs(1)));
    run.end();
    let numbers =
        run.received.iter().map(|(_, m)| u64::from_le_bytes(m.body.peek_front().unwrap())).collect();
    (run, numbers)
}

#[test]
fn a_message_lost_on_one_way_arrives_by_another() {
    let lossy = Params { loss_ppm: 100_000, ..steady(Duration::from_millis(20)) };
    let (run, numbers) = run(&[("ways", "3")], &[lossy.clone(), lossy.clone(), lossy], 2000, 5);
    assert!(run.lost() > 500, "{}", run.lost());
    let lost = 2000 - numbers.len() as u64;
    assert!(lost < 10, "a tenth of a tenth of a tenth: {lost}");
    assert_eq!(run.dropped(), lost, "each is counted");
    assert!(numbers.is_sorted());
}

#[test]
fn the_faster_path_sets_the_pace() {
    let (fast, slow) = (steady(Duration::from_millis(10)), steady(Duration::from_millis(90)));
    let (run, numbers) = run(&[], &[slow, fast], 100, 5);
    assert_eq!((numbers.len(), run.figure(Half::Sink, "repeated")), (100, 100.0));
    let slowest = run.received.iter().map(|(at, message)| at.since(message.created)).max();
    assert_eq!(slowest, Some(Duration::from_millis(10)));
}

#[test]
fn a_cut_way_loses_only_its_own_messages() {
    let lanes =
        [steady(Duration::from_millis(10)), Params { down: true, ..steady(Duration::from_millis(10)) }];
    for (mode, arrived) in [("round_robin", 100), ("split", 0)] {
        let (run, numbers) = run(&[("mode", mode), ("wait", "50ms")], &lanes, 200, 5);
        assert_eq!(numbers, (0..arrived).map(|i| 2 * i).collect::<Vec<u64>>(), "{mode}");
        // A loss after the last message that arrived cannot be noticed.
        let known = if mode == "split" { 200 } else { 99 };
        assert_eq!(run.dropped(), known, "{mode}: {:?}", run.drops);
        let slowest = run.received.iter().map(|(at, message)| at.since(message.created)).max();
        assert!(slowest.is_none_or(|slowest| slowest <= Duration::from_millis(60)), "{slowest:?}");
    }
}

#[test]
fn one_device_feeds_four_hosts() {
    for (mode, each) in [("all", 1000), ("round_robin", 250), ("split", 1000)] {
        let given = [("mode", mode), ("ways", "4"), ("join", "false")];
        let (mut source, mut out) = (source(&given), Outbox::default());
        let mut sinks: Vec<_> = (0..4).map(|_| (sink(&given), Outbox::default())).collect();
        for number in 0..1000u64 {
            let message = Message::new(Time(number), number.to_le_bytes().to_vec());
            source.handle(Port::MAIN, message, Time(number), &mut out).unwrap();
            for (port, message) in out.messages.drain(..) {
                let (sink, out) = &mut sinks[usize::from(port.0)];
                // The network duplicates every message.
                sink.handle(Port::MAIN, message.clone(), Time(number), out).unwrap();
                sink.handle(Port::MAIN, message, Time(number), out).unwrap();
            }
        }
        for (sink, out) in &sinks {
            assert_eq!((out.messages.len(), out.drops.len()), (each, 0), "{mode}");
            assert_eq!(sink.report()[..2], [("released", each as f64), ("repeated", each as f64)], "{mode}");
        }
    }
}

/// A message as a source half sends it.
fn numbered(start: u32, sequence: u64, way: u8, bytes: usize) -> Message {
    let mut body = Body::from(vec![7; bytes]);
    super::header::Header { start, sequence, way }.put(&mut body);
    Message::new(Time(sequence), body)
}

fn created(out: &mut Outbox) -> Vec<u64> {
    out.messages.drain(..).map(|(_, message)| message.created.0).collect()
}

#[test]
fn a_sink_of_one_way_detects_duplicates_within_the_window() {
    let (mut sink, mut out) = (sink(&[("join", "false"), ("window", "4")]), Outbox::default());
    for sequence in [10, 8, 9, 10, 6, 12, 8, 9, 1000, 13, 1000] {
        sink.handle(Port::MAIN, numbered(1, sequence, 0, 1), Time::ZERO, &mut out).unwrap();
    }
    assert_eq!(created(&mut out), [10, 8, 9, 12, 1000, 13]);
    let counted: u64 = out.drops.drain(..).map(|drop| drop.count).sum();
    assert_eq!(counted, 2, "6 and 8 are too late to tell from duplicates");
    assert!(sink.handle(Port::MAIN, numbered(1, u64::MAX, 0, 1), Time::ZERO, &mut out).is_err());
    for (start, sequence) in [(2, 0), (2, 0), (2, 1), (1, 13)] {
        sink.handle(Port::MAIN, numbered(start, sequence, 1, 1), Time::ZERO, &mut out).unwrap();
    }
    assert_eq!((created(&mut out), out.drops.len()), (vec![0, 1], 1), "a new start, and an old one");
}

/// The number of one of 100 messages is altered: that message is lost, and the others arrive.
#[test]
fn an_altered_number_loses_no_other_message() {
    for altered in [276, 532, 1000] {
        let (mut sink, mut out) = (sink(&[]), Outbox::default());
        for number in 0..100 {
            let now = Time::from_millis(16 * number);
            while let Some(due) = sink.poll_timeout().filter(|due| *due <= now) {
                sink.handle_timeout(due, &mut out).unwrap();
            }
            let sequence = if number == 20 { altered } else { number };
            let mut message = numbered(1, sequence, 0, 1);
            message.created = Time(number);
            sink.handle(Port::MAIN, message, now, &mut out).unwrap();
        }
        let received = created(&mut out);
        assert!(
            (0..100).filter(|number| *number != 20).all(|number| received.contains(&number)),
            "{altered}: {received:?}"
        );
    }
}

#[test]
fn a_half_restarted_between_copies_repeats_nothing() {
    let (mut sink, mut out) = (sink(&[("ways", "3")]), Outbox::default());
    for (sequence, way) in [(7, 1), (7, 2), (8, 0), (8, 1), (8, 2), (9, 1)] {
        sink.handle(Port::MAIN, numbered(1, sequence, way, 1), Time::ZERO, &mut out).unwrap();
    }
    sink.handle_end(Port::MAIN, Time::ZERO, &mut out).unwrap();
    assert_eq!(out.messages.len(), 2);
    assert_eq!(out.drops[0].count, 1);
}

#[test]
fn a_join_ends_when_all_ways_have_ended() {
    let (mut sink, mut out) = (sink(&[("mode", "round_robin")]), Outbox::default());
    for (port, sequence) in [(0, 0), (0, 2), (0, 4)] {
        sink.handle(Port(port), numbered(1, sequence, port as u8, 1), Time::ZERO, &mut out).unwrap();
    }
    sink.handle_end(Port(0), Time::ZERO, &mut out).unwrap();
    assert_eq!((created(&mut out), sink.held()), (vec![0], 2), "way 1 may bring what is missing");
    sink.handle(Port(1), numbered(1, 1, 1, 1), Time::ZERO, &mut out).unwrap();
    sink.handle_end(Port(1), Time::ZERO, &mut out).unwrap();
    assert_eq!((created(&mut out), sink.held()), (vec![1, 2, 4], 0));
}

#[test]
fn a_hostile_source_cannot_exceed_the_bounds() {
    let given = [("mode", "split"), ("ways", "8"), ("window", "64")];
    let (mut sink, mut out) = (sink(&given), Outbox::default());
    assert!(sink.handle(Port::MAIN, numbered(1, 0, 8, 1), Time::ZERO, &mut out).is_err(), "no such way");
    assert!(sink.handle(Port::MAIN, Message::new(Time(1), vec![0; 12]), Time::ZERO, &mut out).is_err());
    for way in 0..4 {
        assert!(sink.handle(Port::MAIN, numbered(1, 0, way, 16 << 20), Time::ZERO, &mut out).is_ok());
    }
    assert!(sink.handle(Port::MAIN, numbered(1, 0, 4, 1), Time::ZERO, &mut out).is_err(), "too large");
    assert!(sink.handle(Port::MAIN, numbered(1, 1, 0, 40 << 20), Time::ZERO, &mut out).is_ok());
    assert_eq!(out.drops.iter().map(|drop| drop.count).sum::<u64>(), 1, "the first is abandoned");
    for sequence in [1 << 40, u64::MAX, 3] {
        let _ = sink.handle(Port::MAIN, numbered(1, sequence, 0, 1), Time::ZERO, &mut out);
    }
    assert!(sink.held() <= 2 && out.messages.is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Whatever the delay and disorder of the ways, each message leaves once and in order.
    #[test]
    fn lossless_ways_are_joined_exactly(
        mode in prop::sample::select(MODES.to_vec()),
        delays_ms in prop::collection::vec((0u64..60, 0u64..50, any::<bool>()), 2..6),
        seed in any::<u64>(),
    ) {
        let ways = delays_ms.len().to_string();
        let lanes: Vec<Params> = delays_ms
            .iter()
            .map(|(delay_ms, jitter_ms, reorder)| Params {
                jitter_ns: jitter_ms * 1_000_000,
                reorder: *reorder,
                ..steady(Duration::from_millis(*delay_ms))
            })
            .collect();
        let given = [("mode", mode), ("ways", &ways), ("width", "8")];
        let (run, numbers) = run(&given, &lanes, 200, seed);
        prop_assert_eq!(numbers, (0..200).collect::<Vec<u64>>());
        prop_assert_eq!((run.dropped(), run.figure(Half::Sink, "missing")), (0, 0.0));
    }

    /// The flow continues despite flipped bits, and few more messages are counted as lost than were
    /// altered.
    #[test]
    fn flipped_bits_do_not_stop_it(
        mode in prop::sample::select(MODES.to_vec()),
        join in any::<bool>(),
        altered in prop::collection::vec(any::<bool>(), 150),
        seed in any::<u64>(),
    ) {
        let clean = steady(Duration::from_millis(3));
        let corrupting = Params { corrupt_ppm: 1_000_000, ..clean.clone() };
        let given = [("mode", mode), ("join", if join { "true" } else { "false" }), ("wait", "50ms"), ("window", "64")];
        let mut run = TwoHalves::with_lanes(&Multiplex, &given, &Format::Motion, std::slice::from_ref(&clean), seed);
        for number in 0..600u64 {
            if number == 300 {
                run.run_until(run.now.after(Duration::from_secs(1)));
            }
            let is_altered = number % 2 == 1 && altered.get(number as usize / 2).copied().unwrap_or(false);
            run.configure(if is_altered { corrupting.clone() } else { clean.clone() });
            run.push(Message::new(Time(number), number.to_le_bytes().to_vec()));
            run.run_until(run.now.after(Duration::from_millis(4)));
        }
        run.end();
        let received = run.received.iter().filter(|(_, message)| message.created.0 >= 400).count();
        let each = if mode == "split" && !join { 2 } else { 1 };
        prop_assert_eq!(received, 200 * each, "{:?}", run.drops);
        prop_assert!(run.dropped() < 2000, "{:?}", run.drops);
    }
}
