use super::Tap;
use contract::{Format, Half, Message, Port};
use std::time::Duration;
use testkit::stage::{TwoHalves, conforms, steady};

#[test]
fn it_conforms() {
    for side in ["both", "source", "sink"] {
        conforms(&Tap, &[("side", side)], &Format::Evdev);
    }
}

#[test]
fn it_copies_and_measures_messages() {
    let mut run = TwoHalves::new(&Tap, &[("side", "sink")], &Format::Evdev, steady(Duration::ZERO), 1);
    for number in 0..101u8 {
        run.push(Message::new(run.now, vec![number; 24]));
        run.run_until(run.now.after(Duration::from_millis(if number == 50 { 100 } else { 10 })));
    }
    let copies: Vec<_> = run.sides.iter().map(|(half, port, message)| (*half, *port, message)).collect();
    let passed: Vec<_> = run.received.iter().map(|(_, message)| (Half::Sink, Port(1), message)).collect();
    assert_eq!(copies, passed);
    assert_eq!((run.figure(Half::Sink, "messages"), run.figure(Half::Sink, "bytes")), (101.0, 2424.0));
    assert!((run.figure(Half::Sink, "rate_hz") - 100.0 / 1.09).abs() < 1e-6);
    assert!((run.figure(Half::Sink, "interval_mean_us") - 10_900.0).abs() < 1e-6);
    assert!((10_000.0..12_500.0).contains(&run.figure(Half::Sink, "interval_p99_us")));
}
