use super::Fault;
use contract::{Format, Half, Message};
use std::time::Duration;
use testkit::stage::{TwoHalves, conforms, steady};

#[test]
fn it_conforms() {
    conforms(&Fault, &[], &Format::Evdev);
    conforms(&Fault, &[("loss", "10%")], &Format::Evdev);
    conforms(&Fault, &[("repeat", "50%"), ("corrupt", "100%")], &Format::Bytes);
}

fn run(given: &[(&str, &str)]) -> TwoHalves {
    let mut run = TwoHalves::new(&Fault, given, &Format::Bytes, steady(Duration::ZERO), 1);
    for number in 0..10_000u32 {
        run.push(Message::new(run.now, number.to_le_bytes().to_vec()));
    }
    run.end();
    run
}

fn numbers(run: &TwoHalves) -> Vec<u32> {
    let number = |m: &Message| u32::from_le_bytes(m.body.clone().into_bytes()[..].try_into().unwrap());
    run.received.iter().map(|(_, message)| number(message)).collect()
}

#[test]
fn faults_have_their_share_and_are_counted() {
    let run = run(&[("loss", "2%"), ("repeat", "0.03"), ("corrupt", "5%")]);
    for (name, share) in [("lost", 200.0), ("repeated", 300.0), ("corrupted", 500.0)] {
        let figure = run.figure(Half::Source, name);
        assert!((share * 0.7..share * 1.3).contains(&figure), "{name}: {figure}");
    }
    assert_eq!(run.dropped() as f64, run.figure(Half::Source, "lost"));
    let received = 10_000.0 - run.figure(Half::Source, "lost") + run.figure(Half::Source, "repeated");
    assert_eq!(run.received.len() as f64, received);
}

#[test]
fn kinds_are_independent_and_seeds_repeat() {
    let lossy = numbers(&run(&[("loss", "5%"), ("seed", "3")]));
    assert_eq!(lossy, numbers(&run(&[("loss", "5%"), ("seed", "3")])));
    assert_ne!(lossy, numbers(&run(&[("loss", "5%"), ("seed", "4")])));
    let mut twice = numbers(&run(&[("loss", "5%"), ("repeat", "50%"), ("seed", "3")]));
    twice.dedup();
    assert_eq!(twice, lossy);
}

#[test]
fn one_bit_is_flipped() {
    let flipped = numbers(&run(&[("corrupt", "100%")]));
    let bits = |(number, got): (u32, u32)| (number ^ got).count_ones();
    assert!((0..10_000).zip(flipped).map(bits).all(|bits| bits == 1));
}
