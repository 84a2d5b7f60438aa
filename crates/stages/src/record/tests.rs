use super::Record;
use crate::replay::Replay;
use contract::{Format, Half, Message, Port, Time};
use proptest::prelude::*;
use std::time::Duration;
use testkit::stage::{TwoHalves, conforms, steady};

#[test]
fn it_conforms() {
    for side in ["both", "source", "sink"] {
        conforms(&Record, &[("side", side)], &Format::Motion);
    }
}

#[test]
fn each_half_records_if_chosen() {
    for (side, halves) in
        [("both", &[Half::Source, Half::Sink][..]), ("source", &[Half::Source]), ("sink", &[Half::Sink])]
    {
        let mut run = TwoHalves::new(&Record, &[("side", side)], &Format::Evdev, steady(Duration::ZERO), 1);
        let message = Message::new(Time(1), vec![7; 24]);
        run.push(message.clone());
        run.end();
        let copies: Vec<_> = halves.iter().map(|half| (*half, Port(1), message.clone())).collect();
        assert_eq!(run.sides, copies);
        assert_eq!(run.received.len(), 1);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// A recording leaves `replay` complete and with the same spacing to the nanosecond.
    #[test]
    fn a_replayed_recording_has_the_same_spacing(
        messages in prop::collection::vec((0u64..100_000_000, prop::collection::vec(any::<u8>(), 0..50)), 1..40),
        held_max in 1usize..50,
    ) {
        let mut recorded =
            TwoHalves::new(&Record, &[], &Format::Motion, steady(Duration::from_millis(3)), 1);
        for (gap, body) in &messages {
            recorded.run_until(recorded.now.after(Duration::from_nanos(*gap)));
            recorded.push(Message::new(recorded.now, body.clone()));
        }
        recorded.end();
        let tape: Vec<Message> = recorded
            .sides
            .into_iter()
            .filter(|(half, ..)| *half == Half::Sink)
            .map(|(_, _, message)| message)
            .collect();

        let held_max = held_max.to_string();
        let given = [("held_max", held_max.as_str())];
        let mut replayed = TwoHalves::new(&Replay, &given, &Format::Motion, steady(Duration::from_millis(3)), 1);
        let start = replayed.now;
        tape.iter().for_each(|message| replayed.push(message.clone()));
        replayed.run_until(start.after(Duration::from_secs(10)));
        prop_assert_eq!(replayed.held(Half::Source), 0);
        prop_assert_eq!(replayed.received.len(), tape.len());
        let spacing = |times: Vec<Time>| -> Vec<u64> { times.iter().map(|at| at.0 - times[0].0).collect() };
        let expected = spacing(tape.iter().map(|message| message.created).collect());
        prop_assert_eq!(&spacing(replayed.received.iter().map(|(at, _)| *at).collect()), &expected);
        prop_assert_eq!(spacing(replayed.received.iter().map(|(_, m)| m.created).collect()), expected);
        prop_assert_eq!(replayed.received[0].1.created, start);
        for ((_, received), sent) in replayed.received.iter().zip(&tape) {
            prop_assert_eq!(&received.body, &sent.body);
        }
    }
}
