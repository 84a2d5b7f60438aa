use super::Replay;
use contract::{Attributes, Body, Format, Half, Message, Outbox, Pair, Port, Site, Time};
use std::time::Duration;
use testkit::stage::{TwoHalves, conforms, options, steady};

#[test]
fn it_conforms() {
    for given in [
        &[][..],
        &[("speed", "2.5"), ("held_max", "1")],
        &[("speed", "0.5"), ("held_bytes", "1")],
        &[("from", "100ms"), ("pause", "1ms")],
    ] {
        conforms(&Replay, given, &Format::Motion);
    }
}

fn run(given: &[(&str, &str)]) -> TwoHalves {
    TwoHalves::new(&Replay, given, &Format::Motion, steady(Duration::ZERO), 1)
}

/// Release times, in milliseconds from the start, of messages recorded at these times.
fn released_ms(given: &[(&str, &str)], recorded: &[u64]) -> Vec<u128> {
    let mut run = run(given);
    let start = run.now;
    recorded.iter().for_each(|ms| run.push(Message::new(Time::from_millis(7_000_000 + ms), vec![1])));
    run.run_until(start.after(Duration::from_secs(100_000)));
    assert!(run.received.iter().all(|(at, message)| *at == message.created));
    run.received.iter().map(|(at, _)| at.since(start).as_millis()).collect()
}

#[test]
fn the_spacing_is_the_recorded_one() {
    let recorded = [5, 5, 105, 90, 110, 5000];
    assert_eq!(released_ms(&[], &recorded), [0, 0, 100, 100, 105, 4995]);
    assert_eq!(released_ms(&[("speed", "2")], &recorded), [0, 0, 50, 50, 52, 2497]);
    assert_eq!(released_ms(&[("speed", "0.5")], &recorded), [0, 0, 200, 200, 210, 9990]);
    assert_eq!(released_ms(&[("from", "50ms")], &recorded), [0, 0, 5, 4895]);
    assert_eq!(released_ms(&[("pause", "1s")], &recorded), [0, 0, 100, 100, 105, 1105]);
    assert_eq!(released_ms(&[], &[0, 3_600_000_000]), [0, 60_000]);
}

#[test]
fn a_second_recording_in_a_file_keeps_its_spacing_after_a_restart_of_the_host() {
    assert_eq!(released_ms(&[], &[90_000, 90_100, 50, 150, 400]), [0, 100, 100, 200, 450]);
}

#[test]
fn messages_before_the_start_are_counted() {
    let mut run = run(&[("from", "50ms")]);
    for ms in [0, 49, 50, 51] {
        run.push(Message::new(Time::from_millis(ms), vec![1]));
    }
    run.run_until(run.now.after(Duration::from_millis(10)));
    assert_eq!((run.dropped(), run.received.len()), (2, 2));
}

#[test]
fn it_applies_backpressure_at_its_bounds() {
    for (given, held) in [(("held_max", "3"), 3), (("held_bytes", "25"), 3)] {
        let mut run = run(&[given]);
        for number in 0..50u64 {
            run.push(Message::new(Time::from_millis(10 * number), vec![1; 10]));
        }
        assert_eq!((run.received.len(), run.held(Half::Source)), (1, held));
        run.run_until(run.now.after(Duration::from_millis(489)));
        assert_eq!(run.received.len(), 49);
        run.run_until(run.now.after(Duration::from_millis(1)));
        assert_eq!((run.received.len(), run.held(Half::Source)), (50, 0));
    }
}

#[test]
fn a_deadline_moves_with_its_message() {
    let attributes = Attributes { deadline: Some(Time(1500)), ..Attributes::default() };
    let message = Message { created: Time(1000), attributes, body: Body::new() };
    let options = options(&Replay, &[]);
    let mut source = Replay.source(&options, &Format::Motion, &Site::default()).unwrap();
    let mut out = Outbox::default();
    source.handle(Port::MAIN, message, Time(9000), &mut out).unwrap();
    let (_, sent) = out.messages.pop_front().unwrap();
    assert_eq!((sent.created, sent.attributes.deadline), (Time(9000), Some(Time(9500))));
}
