use super::Fec;
use crate::HELD_BYTES_MAX;
use contract::{
    Body, Feedback, Format, Half, Message, Outbox, Pair, Port, Stage, StageError, StageResult, Time, Value,
};
use netsim::Params;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::time::Duration;
use testkit::stage::{TwoHalves, conforms, options, site, steady};

#[test]
fn it_conforms() {
    for given in [
        &[][..],
        &[("parity", "3")],
        &[("data", "1"), ("parity", "1")],
        &[("data", "128"), ("parity", "64"), ("wait", "1s")],
        &[("parity", "0")],
        &[("parity", "2"), ("limit", "64")],
    ] {
        conforms(&Fec, given, &Format::Evdev);
    }
}

fn source(given: &[(&str, &str)]) -> Box<dyn Stage> {
    Fec.source(&options(&Fec, given), &Format::Bytes, &site(0x0403_0201)).unwrap()
}

fn sink(given: &[(&str, &str)]) -> Box<dyn Stage> {
    Fec.sink(&options(&Fec, given), &Format::Bytes, &site(2)).unwrap()
}

fn sent(out: &mut Outbox) -> Vec<Message> {
    out.messages.drain(..).map(|(_, message)| message).collect()
}

fn feed(stage: &mut dyn Stage, message: Message, out: &mut Outbox) -> StageResult {
    let now = message.created;
    stage.handle(Port::MAIN, message, now, out)
}

/// The messages of one group, as the source half sends them.
fn group(given: &[(&str, &str)], bodies: &[Vec<u8>]) -> Vec<Message> {
    let (mut source, mut out) = (source(given), Outbox::default());
    for (at, body) in bodies.iter().enumerate() {
        feed(&mut *source, Message::new(Time(1000 + 7 * at as u64), body.clone()), &mut out).unwrap();
    }
    source.handle_end(Port::MAIN, Time(2000), &mut out).unwrap();
    sent(&mut out)
}

fn figure(stage: &dyn Stage, name: &str) -> f64 {
    stage.report().iter().find(|(known, _)| *known == name).unwrap().1
}

#[test]
fn layout() {
    let encoded = group(&[("parity", "1")], &[b"abc".to_vec(), b"".to_vec()]);
    let bytes: Vec<_> = encoded.iter().map(|message| message.body.clone().into_bytes()).collect();
    assert_eq!(bytes[0], &b"\x01\x02\x03\x04\0\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\0abc"[..]);
    assert_eq!(bytes[1], &b"\x01\x02\x03\x04\0\0\0\0\0\0\0\0\x01\x01\x07\0\0\0\0\0\0\0"[..]);
    assert_eq!(bytes[2][..15], *b"\x01\x02\x03\x04\0\0\0\0\0\0\0\0\x80\x01\x02");
    assert_eq!((bytes[2].len(), encoded[2].created), (15 + 16, Time(1000)));
    assert!(encoded[2].attributes.droppable);
    // The parity that the published algorithm makes of both shards.
    let shards = [&b"\0\0\0\0\0\0\0\0\x03\0\0\0abc\0"[..], &b"\x07\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"[..]];
    assert_eq!(bytes[2][15..], reed_solomon_simd::encode(2, 1, shards).unwrap()[0]);
}

#[test]
fn a_restarted_sink_half_recovers_nothing_earlier() {
    let given = &[("data", "3"), ("parity", "1")];
    let encoded = group(given, &[b"a".to_vec(), b"b".to_vec(), b"c".to_vec()]);
    for (has_restarted, expected) in [(false, 3), (true, 2)] {
        let (mut sink, mut out) = (sink(given), Outbox::default());
        if has_restarted {
            sink.handle_gap(Port::MAIN, Time::ZERO, &mut out).unwrap();
        }
        for message in &encoded[1..] {
            feed(&mut *sink, message.clone(), &mut out).unwrap();
        }
        assert_eq!(sent(&mut out).len(), expected, "made anew: {has_restarted}");
    }
}

#[test]
fn messages_are_sent_at_once_and_parity_when_the_group_closes() {
    let mut run = TwoHalves::new(
        &Fec,
        &[("data", "3"), ("parity", "2"), ("wait", "30ms")],
        &Format::Bytes,
        steady(Duration::from_millis(5)),
        1,
    );
    let start = run.now;
    for number in 0..4u8 {
        run.push(Message::new(run.now, vec![number]));
        run.run_until(run.now.after(Duration::from_millis(10)));
    }
    let ms: Vec<_> = run.received.iter().map(|(at, _)| at.since(start).as_millis()).collect();
    assert_eq!((ms, run.bodies.len()), (vec![5, 15, 25, 35], 6));
    run.run_until(start.after(Duration::from_millis(59)));
    assert_eq!(run.bodies.len(), 6);
    run.run_until(start.after(Duration::from_millis(60)));
    assert_eq!((run.bodies.len(), run.received.len()), (8, 4));
    run.run_until(start.after(Duration::from_millis(65)));
    assert_eq!(run.figure(Half::Sink, "held_bytes"), 0.0);
}

#[test]
fn duplicates_are_dropped() {
    let given = [("data", "3"), ("parity", "1")];
    let encoded = group(&given, &[vec![1], vec![2, 2], vec![3]]);
    let (mut sink, mut out) = (sink(&given), Outbox::default());
    for at in [0, 0, 2, 3, 1, 3, 2] {
        feed(&mut *sink, encoded[at].clone(), &mut out).unwrap();
    }
    let bodies: Vec<_> =
        sent(&mut out).into_iter().map(|message| message.body.into_bytes().to_vec()).collect();
    assert_eq!(bodies, [vec![1], vec![3], vec![2, 2]]);
    assert_eq!(out.drops.iter().map(|drop| drop.count).sum::<u64>(), 3);
    assert_eq!((figure(&*sink, "repaired"), figure(&*sink, "unrepaired")), (1.0, 0.0));
}

#[test]
fn groups_of_a_restarted_source_half_are_separate() {
    let given = [("data", "2"), ("parity", "1")];
    let make = |number| {
        let mut source = Fec.source(&options(&Fec, &given), &Format::Bytes, &site(number)).unwrap();
        let mut out = Outbox::default();
        for at in 0..2 {
            feed(&mut *source, Message::new(Time(at), vec![number as u8, at as u8]), &mut out).unwrap();
        }
        sent(&mut out)
    };
    let (old, new) = (make(5), make(6));
    let (mut sink, mut out) = (sink(&given), Outbox::default());
    // The second message of the old source half is lost; its parity arrives behind the first
    // message of the new one.
    for message in [&old[0], &new[0], &old[2], &new[2]] {
        feed(&mut *sink, message.clone(), &mut out).unwrap();
    }
    let bodies: Vec<_> =
        sent(&mut out).into_iter().map(|message| message.body.into_bytes().to_vec()).collect();
    assert_eq!(bodies, [[5, 0], [6, 0], [5, 1], [6, 1]]);
}

#[test]
fn a_restarted_sink_half_repeats_nothing() {
    let given = [("data", "4"), ("parity", "3")];
    let (mut source, mut out) = (source(&given), Outbox::default());
    let encoded: Vec<Message> = (0..12)
        .flat_map(|at| {
            feed(&mut *source, Message::new(Time(at), vec![at as u8]), &mut out).unwrap();
            sent(&mut out)
        })
        .collect();
    // Each group has four messages and three parity messages. The sink starts with the third
    // message of the second group; the fourth of that group and the first of the third group are
    // lost.
    let mut sink = sink(&given);
    for at in [9, 11, 12, 13, 2, 4, 5, 6, 15, 16, 17, 18, 19] {
        feed(&mut *sink, encoded[at].clone(), &mut out).unwrap();
    }
    let bodies: Vec<_> = sent(&mut out).into_iter().map(|message| message.body.into_bytes()[0]).collect();
    assert_eq!(bodies, [6, 7, 2, 9, 10, 11, 8]);
}

#[test]
fn large_messages_are_not_protected() {
    let encoded = group(&[("parity", "1"), ("limit", "1KiB")], &[vec![1], vec![2; 2000], vec![3]]);
    // A message and its parity, the large one, a message and its parity.
    let lengths: Vec<_> = encoded.iter().map(|message| message.body.len()).collect();
    assert_eq!(lengths, [23, 15 + 14, 2022, 23, 15 + 14]);
}

#[test]
fn stored_bytes_are_bounded() {
    let given = [("data", "8"), ("parity", "1")];
    let (mut source, mut sink, mut out) = (source(&given), sink(&given), Outbox::default());
    for at in 0..1000u64 {
        feed(&mut *source, Message::new(Time(at), vec![1; 120_000]), &mut out).unwrap();
        for (number, message) in sent(&mut out).into_iter().enumerate() {
            // The second message of every group is lost, and all parity.
            if number == 0 && at % 8 != 1 {
                feed(&mut *sink, message, &mut Outbox::default()).unwrap();
            }
        }
        assert!(figure(&*sink, "held_bytes") <= HELD_BYTES_MAX as f64);
    }
    assert_eq!(figure(&*sink, "unrepaired"), 125.0);
}

#[test]
fn malformed_messages_are_refused() {
    let given = [("data", "4"), ("parity", "2")];
    let encoded = group(&given, &[vec![1], vec![2; 30], vec![3], vec![4]]);
    let with = |at: usize, change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = encoded[at].body.clone().into_bytes().to_vec();
        change(&mut bytes);
        Message::new(encoded[at].created, bytes)
    };
    let refused = |messages: &[Message]| {
        let (mut sink, mut out) = (sink(&given), Outbox::default());
        let results: Vec<_> =
            messages.iter().map(|message| feed(&mut *sink, message.clone(), &mut out)).collect();
        let is_refused = matches!(results.last(), Some(Err(StageError::Input(_))));
        assert!(is_refused, "{results:?}");
    };
    refused(&[with(0, &|bytes| bytes.truncate(21))]);
    refused(&[with(0, &|bytes| bytes[12] = 4)]);
    refused(&[with(0, &|bytes| bytes[11] = 0xff)]);
    refused(&[with(4, &|bytes| bytes[13] = 0)]);
    refused(&[with(4, &|bytes| bytes[13] = 65)]);
    refused(&[with(4, &|bytes| bytes[14] = 0)]);
    refused(&[with(4, &|bytes| bytes[14] = 5)]);
    refused(&[with(4, &|bytes| bytes.truncate(15))]);
    refused(&[with(4, &|bytes| bytes.push(0))]);
    refused(&[encoded[0].clone(), with(1, &|bytes| bytes[13] = 3)]);
    refused(&[encoded[4].clone(), with(5, &|bytes| bytes.truncate(15 + 20))]);
    refused(&[encoded[4].clone(), with(5, &|bytes| bytes[14] = 3)]);
    refused(&[with(4, &|bytes| bytes[14] = 2), encoded[2].clone()]);
    // An invalid length.
    refused(&[
        encoded[0].clone(),
        encoded[2].clone(),
        encoded[4].clone(),
        with(5, &|bytes| bytes[15..].fill(0x5a)),
    ]);
}

fn network(loss_ppm: u32) -> Params {
    Params { loss_ppm, ..steady(Duration::from_millis(20)) }
}

/// A thousand messages a second.
fn send(run: &mut TwoHalves, messages: u64) {
    for number in 0..messages {
        run.push(Message::new(run.now, number.to_le_bytes().to_vec()));
        run.run_until(run.now.after(Duration::from_millis(1)));
    }
}

#[test]
fn five_percent_loss_is_recovered() {
    let mut run = TwoHalves::new(&Fec, &[("parity", "3")], &Format::Bytes, network(50_000), 7);
    send(&mut run, 20_000);
    run.end();
    let unrepaired = 20_000 - run.received.len();
    assert!(unrepaired < 40, "{unrepaired}");
    assert_eq!((run.figure(Half::Sink, "unrepaired"), run.dropped()), (unrepaired as f64, 0));
    assert!(run.figure(Half::Sink, "repaired") > 900.0);
    let different: BTreeSet<_> = run.received.iter().map(|(_, message)| message.created).collect();
    assert_eq!(different.len(), run.received.len());
}

#[test]
fn auto_adapts_to_the_loss() {
    let mut run = TwoHalves::new(&Fec, &[], &Format::Bytes, network(0), 3);
    let parity = |run: &TwoHalves| run.figure(Half::Source, "parity");
    assert_eq!(parity(&run), 1.0);
    send(&mut run, 2000);
    assert_eq!(parity(&run), 0.0);
    run.configure(network(50_000));
    send(&mut run, 8000);
    assert!((2.0..=4.0).contains(&parity(&run)), "{}", parity(&run));
    run.configure(network(200_000));
    send(&mut run, 8000);
    assert!((5.0..=9.0).contains(&parity(&run)), "{}", parity(&run));
    let made_and_lost = run.figure(Half::Source, "parity_messages");
    run.configure(network(0));
    send(&mut run, 20_000);
    assert_eq!(parity(&run), 0.0);
    assert!(run.figure(Half::Source, "parity_messages") < made_and_lost + 20_000.0);
}

#[test]
fn delays_raise_the_parity() {
    let calm = Params { jitter_ns: 2_000_000, ..network(0) };
    let disturbed = Params { jitter_ns: 40_000_000, ..network(250_000) };
    let mut run = TwoHalves::new(&Fec, &[], &Format::Bytes, calm.clone(), 11);
    let parity = |run: &TwoHalves| run.figure(Half::Source, "parity");
    for turn in 0..8 {
        send(&mut run, 3000);
        let usual = parity(&run);
        run.configure(disturbed.clone());
        send(&mut run, 200);
        assert!(turn < 4 || parity(&run) >= usual + 4.0, "{turn}: {usual} {}", parity(&run));
        run.configure(calm.clone());
    }
}

#[test]
fn a_change_of_pace_is_reported_at_once_but_not_too_often() {
    let (mut source, mut sink, mut out) = (source(&[]), sink(&[]), Outbox::default());
    let mut reports = Vec::new();
    for number in 0..4000u64 {
        feed(&mut *source, Message::new(Time::from_millis(number), vec![7]), &mut out).unwrap();
        // From 2000 on, the pace changes as often as possible.
        let transit_ms = if number > 2000 && number % 5 == 0 { 900 } else { 2 };
        for message in sent(&mut out) {
            let now = Time::from_millis(number + transit_ms);
            sink.handle(Port::MAIN, message, now, &mut out).unwrap();
            reports.extend(out.controls.drain(..).map(|report| (number, report[0])));
        }
        sent(&mut out);
    }
    let slow: Vec<u64> = reports.iter().filter(|(_, slow)| *slow == 1).map(|(number, _)| *number).collect();
    assert_eq!(slow[0], 2005, "{slow:?}");
    assert!(reports.len() < 120, "{}", reports.len());
}

#[test]
fn auto_reports_its_choice_and_reason() {
    let mut source = source(&[]);
    assert_eq!(source.choices()[0].value, Value::Integer(1));
    let feedback = Feedback { received: 95, lost: 5, ..Feedback::default() };
    let mut out = Outbox::default();
    source.handle_feedback(&feedback, Time(1), &mut out).unwrap();
    let outcomes = [[8, 0, 1, 0, 0, 70, 0], [8, 1, 1, 0, 1, 25, 0], [8, 2, 1, 0, 255, 5, 0]].concat();
    let report = [&[0], &outcomes[..]].concat();
    source.handle_control(&report, Time(1), &mut out).unwrap();
    let choice = source.choices().remove(0);
    assert_eq!((choice.option, &choice.value), ("parity", &Value::Integer(3)));
    assert!(choice.why.starts_with("4.38 % of messages lost in the network"), "{}", choice.why);
    for malformed in [&[0, 9, 0, 1, 0, 0, 1, 0][..], &report[..9], &[2], &[]] {
        assert!(matches!(source.handle_control(malformed, Time(2), &mut out), Err(StageError::Control(_))));
    }
    assert!(
        Fec.source(&options(&Fec, &[("parity", "2")]), &Format::Bytes, &site(1))
            .unwrap()
            .choices()
            .is_empty()
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    /// Any `parity` messages of a group may be lost, in any order of arrival.
    #[test]
    fn any_parity_messages_may_be_lost(
        bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..100), 1..20),
        parity in 1usize..8,
        shuffle in prop::collection::vec(any::<prop::sample::Index>(), 0..60),
    ) {
        let parity_text = parity.to_string();
        let given = [("data", "20"), ("parity", parity_text.as_str())];
        let mut encoded = group(&given, &bodies);
        prop_assert_eq!(encoded.len(), bodies.len() + parity);
        for pair in shuffle.chunks_exact(2) {
            let length = encoded.len();
            encoded.swap(pair[0].index(length), pair[1].index(length));
        }
        let (mut sink, mut out) = (sink(&given), Outbox::default());
        for message in &encoded[parity..] {
            feed(&mut *sink, message.clone(), &mut out).unwrap();
        }
        let mut received = sent(&mut out);
        received.sort_by_key(|message| message.created);
        let sent: Vec<_> = (0..).zip(bodies).map(|(at, body)| (Time(1000 + 7 * at), Body::from(body))).collect();
        let received: Vec<_> = received.into_iter().map(|message| (message.created, message.body)).collect();
        prop_assert_eq!(received, sent);
        prop_assert_eq!(figure(&*sink, "unrepaired"), 0.0);
    }
}
