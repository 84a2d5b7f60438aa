use super::Delay;
use contract::{Format, Message};
use std::time::Duration;
use testkit::stage::{TwoHalves, conforms, steady};

#[test]
fn it_conforms() {
    conforms(&Delay, &[], &Format::Evdev);
    conforms(&Delay, &[("delay", "0s")], &Format::Evdev);
    conforms(&Delay, &[("delay", "1ms"), ("jitter", "30ms")], &Format::Bytes);
    conforms(&Delay, &[("jitter", "30ms"), ("reorder", "true")], &Format::Bytes);
}

fn lateness_ms(given: &[(&str, &str)]) -> Vec<f64> {
    let mut run = TwoHalves::new(&Delay, given, &Format::Bytes, steady(Duration::ZERO), 1);
    for _ in 0..2000 {
        run.push(Message::new(run.now, vec![1]));
        run.run_until(run.now.after(Duration::from_millis(3)));
    }
    run.run_until(run.now.after(Duration::from_secs(1)));
    run.received.iter().map(|(at, m)| at.signed_since(m.created) as f64 / 1e6).collect()
}

#[test]
fn a_fixed_delay_is_exact() {
    assert!(lateness_ms(&[("delay", "7ms")]).iter().all(|ms| *ms == 7.0));
}

#[test]
fn jitter_is_uniform_and_repeats_with_its_seed() {
    let given = [("delay", "5ms"), ("jitter", "40ms"), ("reorder", "true"), ("seed", "9")];
    let late = lateness_ms(&given);
    let mean = late.iter().sum::<f64>() / late.len() as f64;
    assert!((24.0..26.0).contains(&mean), "{mean}");
    assert!(late.iter().all(|ms| (5.0..=45.0).contains(ms)));
    assert_eq!(late, lateness_ms(&given));
    assert_ne!(late, lateness_ms(&[given[0], given[1], given[2], ("seed", "10")]));
}
