use super::Fec;
use contract::{Body, Feedback, Format, Half, Message, Outbox, Pair, Port, Stage, StageError, Time, Value};
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
        &[("parity", "2"), ("limit", "64"), ("held_bytes", "400")],
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

fn feed(stage: &mut dyn Stage, message: Message, out: &mut Outbox) -> Result<(), StageError> {
    let now = message.created;
    stage.handle(Port::MAIN, message, now, out)
}

/// What the source half makes of one group.
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
    let made = group(&[("parity", "1")], &[b"abc".to_vec(), b"".to_vec()]);
    let bytes: Vec<_> = made.iter().map(|message| message.body.clone().into_bytes()).collect();
    assert_eq!(bytes[0], &b"\x01\x02\x03\x04\0\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\0abc"[..]);
    assert_eq!(bytes[1], &b"\x01\x02\x03\x04\0\0\0\0\0\0\0\0\x01\x01\x07\0\0\0\0\0\0\0"[..]);
    assert_eq!(bytes[2][..15], *b"\x01\x02\x03\x04\0\0\0\0\0\0\0\0\x80\x01\x02");
    assert_eq!((bytes[2].len(), made[2].created), (15 + 16, Time(1000)));
    assert!(made[2].attributes.droppable);
    // Two messages of two bytes each: what the published algorithm makes of their shards.
    let shards = [&b"\0\0\0\0\0\0\0\0\x03\0\0\0abc\0"[..], &b"\x07\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"[..]];
    assert_eq!(bytes[2][15..], reed_solomon_simd::encode(2, 1, shards).unwrap()[0]);
}

#[test]
fn a_sink_half_made_anew_makes_nothing_again_that_was_before_it() {
    let given = &[("data", "3"), ("parity", "1")];
    let made = group(given, &[b"a".to_vec(), b"b".to_vec(), b"c".to_vec()]);
    for (is_made_anew, expected) in [(false, 3), (true, 2)] {
        let (mut sink, mut out) = (sink(given), Outbox::default());
        if is_made_anew {
            sink.handle_gap(Port::MAIN, Time::ZERO, &mut out).unwrap();
        }
        for message in &made[1..] {
            feed(&mut *sink, message.clone(), &mut out).unwrap();
        }
        assert_eq!(sent(&mut out).len(), expected, "made anew: {is_made_anew}");
    }
}

#[test]
fn messages_go_at_once_and_parity_when_the_group_is_full_or_waited() {
    let mut run = TwoHalves::new(
        &Fec,
        &[("data", "3"), ("parity", "2"), ("wait", "30ms")],
        &Format::Bytes,
        steady(Duration::from_millis(5)),
        1,
    );
    let begun = run.now;
    for number in 0..4u8 {
        run.push(Message::new(run.now, vec![number]));
        run.run_until(run.now.after(Duration::from_millis(10)));
    }
    let ms: Vec<_> = run.received.iter().map(|(at, _)| at.since(begun).as_millis()).collect();
    assert_eq!((ms, run.bodies.len()), (vec![5, 15, 25, 35], 6));
    run.run_until(begun.after(Duration::from_millis(59)));
    assert_eq!(run.bodies.len(), 6);
    run.run_until(begun.after(Duration::from_millis(60)));
    assert_eq!((run.bodies.len(), run.received.len()), (8, 4));
    run.run_until(begun.after(Duration::from_millis(65)));
    assert_eq!(run.figure(Half::Sink, "held_bytes"), 0.0);
}

#[test]
fn what_comes_twice_or_after_its_repair_is_given_out_once() {
    let given = [("data", "3"), ("parity", "1")];
    let made = group(&given, &[vec![1], vec![2, 2], vec![3]]);
    let (mut sink, mut out) = (sink(&given), Outbox::default());
    for at in [0, 0, 2, 3, 1, 3, 2] {
        feed(&mut *sink, made[at].clone(), &mut out).unwrap();
    }
    let bodies: Vec<_> =
        sent(&mut out).into_iter().map(|message| message.body.into_bytes().to_vec()).collect();
    assert_eq!(bodies, [vec![1], vec![3], vec![2, 2]]);
    assert_eq!(out.drops.iter().map(|drop| drop.count).sum::<u64>(), 3);
    assert_eq!((figure(&*sink, "repaired"), figure(&*sink, "unrepaired")), (1.0, 0.0));
}

#[test]
fn a_restarted_source_half_is_another() {
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
    // The old half's second message is lost; its parity comes behind the new half's first.
    for message in [&old[0], &new[0], &old[2], &new[2]] {
        feed(&mut *sink, message.clone(), &mut out).unwrap();
    }
    let bodies: Vec<_> =
        sent(&mut out).into_iter().map(|message| message.body.into_bytes().to_vec()).collect();
    assert_eq!(bodies, [[5, 0], [6, 0], [5, 1], [6, 1]]);
}

#[test]
fn a_sink_half_made_anew_repeats_nothing_that_was_given_out() {
    let given = [("data", "4"), ("parity", "3")];
    let (mut source, mut out) = (source(&given), Outbox::default());
    let made: Vec<Message> = (0..12)
        .flat_map(|at| {
            feed(&mut *source, Message::new(Time(at), vec![at as u8]), &mut out).unwrap();
            sent(&mut out)
        })
        .collect();
    // Each group is four messages and three parity messages. It begins with the third of the second group, of
    // which the fourth is lost; of the third group the first is.
    let mut sink = sink(&given);
    for at in [9, 11, 12, 13, 2, 4, 5, 6, 15, 16, 17, 18, 19] {
        feed(&mut *sink, made[at].clone(), &mut out).unwrap();
    }
    let bodies: Vec<_> = sent(&mut out).into_iter().map(|message| message.body.into_bytes()[0]).collect();
    assert_eq!(bodies, [6, 7, 2, 9, 10, 11, 8]);
}

#[test]
fn large_messages_go_as_they_are() {
    let made = group(&[("parity", "1"), ("limit", "1KiB")], &[vec![1], vec![2; 2000], vec![3]]);
    // Parity of the first, the large one, the third and its parity.
    let lengths: Vec<_> = made.iter().map(|message| message.body.len()).collect();
    assert_eq!(lengths, [23, 15 + 14, 2022, 23, 15 + 14]);
}

#[test]
fn what_is_kept_is_bounded() {
    let given = [("data", "8"), ("parity", "1"), ("limit", "1000"), ("held_bytes", "50000")];
    let (mut source, mut sink, mut out) = (source(&given), sink(&given), Outbox::default());
    for at in 0..4000u64 {
        feed(&mut *source, Message::new(Time(at), vec![1; 900]), &mut out).unwrap();
        for (number, message) in sent(&mut out).into_iter().enumerate() {
            // Of every group the second is lost, and parity too.
            if number == 0 && at % 8 != 1 {
                feed(&mut *sink, message, &mut Outbox::default()).unwrap();
            }
        }
        assert!(figure(&*sink, "held_bytes") <= 50_000.0);
    }
    assert_eq!(figure(&*sink, "unrepaired"), 500.0);
}

#[test]
fn what_no_source_half_makes_is_refused() {
    let given = [("data", "4"), ("parity", "2")];
    let made = group(&given, &[vec![1], vec![2; 30], vec![3], vec![4]]);
    let with = |at: usize, change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = made[at].body.clone().into_bytes().to_vec();
        change(&mut bytes);
        Message::new(made[at].created, bytes)
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
    refused(&[made[0].clone(), with(1, &|bytes| bytes[13] = 3)]);
    refused(&[made[4].clone(), with(5, &|bytes| bytes.truncate(15 + 20))]);
    refused(&[made[4].clone(), with(5, &|bytes| bytes[14] = 3)]);
    refused(&[with(4, &|bytes| bytes[14] = 2), made[2].clone()]);
    // A length that is none.
    refused(&[made[0].clone(), made[2].clone(), made[4].clone(), with(5, &|bytes| bytes[15..].fill(0x5a))]);
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
fn five_percent_lost_come_back() {
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
fn auto_takes_as_much_as_the_network_asks_for() {
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
fn while_interference_holds_messages_up_there_is_more_parity() {
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
fn a_source_half_hears_at_once_but_not_too_often() {
    let (mut source, mut sink, mut out) = (source(&[]), sink(&[]), Outbox::default());
    let mut words = Vec::new();
    for number in 0..4000u64 {
        feed(&mut *source, Message::new(Time::from_millis(number), vec![7]), &mut out).unwrap();
        // From 2000 on the pace changes as often as it can.
        let transit_ms = if number > 2000 && number % 5 == 0 { 900 } else { 2 };
        for message in sent(&mut out) {
            let now = Time::from_millis(number + transit_ms);
            sink.handle(Port::MAIN, message, now, &mut out).unwrap();
            words.extend(out.controls.drain(..).map(|word| (number, word[0])));
        }
        sent(&mut out);
    }
    let slow: Vec<u64> = words.iter().filter(|(_, slow)| *slow == 1).map(|(number, _)| *number).collect();
    assert_eq!(slow[0], 2005, "{slow:?}");
    assert!(words.len() < 120, "{}", words.len());
}

#[test]
fn it_says_what_it_chose_and_why() {
    let mut source = source(&[]);
    assert_eq!(source.choices()[0].value, Value::Integer(1));
    let feedback = Feedback { received: 95, lost: 5, ..Feedback::default() };
    let mut out = Outbox::default();
    source.handle_feedback(&feedback, Time(1), &mut out).unwrap();
    let fates = [[8, 0, 1, 0, 0, 70, 0], [8, 1, 1, 0, 1, 25, 0], [8, 2, 1, 0, 255, 5, 0]].concat();
    let report = [&[0], &fates[..]].concat();
    source.handle_control(&report, Time(1), &mut out).unwrap();
    let choice = source.choices().remove(0);
    assert_eq!((choice.option, &choice.value), ("parity", &Value::Integer(3)));
    assert!(choice.why.starts_with("4.38 % of messages lost on the way"), "{}", choice.why);
    for wrong in [&[0, 9, 0, 1, 0, 0, 1, 0][..], &report[..9], &[2], &[]] {
        assert!(matches!(source.handle_control(wrong, Time(2), &mut out), Err(StageError::Control(_))));
    }
    assert!(
        Fec.source(&options(&Fec, &[("parity", "2")]), &Format::Bytes, &site(1))
            .unwrap()
            .choices()
            .is_empty()
    );
}

#[test]
fn one_message_has_to_fit() {
    let wrong = contract::Options::check(Fec.options(), [("limit", "1MiB"), ("held_bytes", "4MiB")]).unwrap();
    assert!(Fec.check(&wrong).unwrap_err().contains("held_bytes"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    /// Any `parity` of a group's messages may be lost, and any order.
    #[test]
    fn any_so_many_may_be_lost(
        bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..100), 1..20),
        parity in 1usize..8,
        shuffle in prop::collection::vec(any::<prop::sample::Index>(), 0..60),
    ) {
        let parity_text = parity.to_string();
        let given = [("data", "20"), ("parity", parity_text.as_str())];
        let mut made = group(&given, &bodies);
        prop_assert_eq!(made.len(), bodies.len() + parity);
        for pair in shuffle.chunks_exact(2) {
            let length = made.len();
            made.swap(pair[0].index(length), pair[1].index(length));
        }
        let (mut sink, mut out) = (sink(&given), Outbox::default());
        for message in &made[parity..] {
            feed(&mut *sink, message.clone(), &mut out).unwrap();
        }
        let mut came = sent(&mut out);
        came.sort_by_key(|message| message.created);
        let sent: Vec<_> = (0..).zip(bodies).map(|(at, body)| (Time(1000 + 7 * at), Body::from(body))).collect();
        let came: Vec<_> = came.into_iter().map(|message| (message.created, message.body)).collect();
        prop_assert_eq!(came, sent);
        prop_assert_eq!(figure(&*sink, "unrepaired"), 0.0);
    }
}
