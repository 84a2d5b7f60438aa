//! The clock offset, with delays that differ by direction and clocks that drift; and liveness.

use contract::Time;
use proptest::collection::vec;
use proptest::prelude::*;
use session::{ClockEstimator, Liveness};
use std::time::Duration;

/// The peer's clock: its reading at the local time `ours`, in nanoseconds.
#[derive(Debug, Clone, Copy)]
struct PeerClock {
    ahead_ns: i64,
    drift_ppm: i64,
}

impl PeerClock {
    fn at(&self, ours: u64) -> u64 {
        let ours = i128::from(ours);
        let theirs = ours + i128::from(self.ahead_ns) + ours * i128::from(self.drift_ppm) / 1_000_000;
        u64::try_from(theirs).expect("the peer's clock has started")
    }
}

const DAY_NS: u64 = 86_400_000_000_000;

proptest! {
    /// The true offset is within the bound, and the offset in use never jumps after it has settled.
    #[test]
    fn the_error_is_within_its_bound(
        ahead_ns in -(DAY_NS as i64)..DAY_NS as i64,
        drift_ppm in -200..200i64,
        trips_us in vec((0..25_000u64, 0..25_000u64, 0..500u64), 1..200),
        silence_ms in 0..60_000u64,
    ) {
        let peer = PeerClock { ahead_ns, drift_ppm };
        let mut clock = ClockEstimator::new();
        let mut sent = 2 * DAY_NS;
        let mut last: Option<(i64, u64)> = None;
        for (index, (there_us, back_us, pause_us)) in trips_us.iter().enumerate() {
            sent += 100_000_000 + if index == 70 { silence_ms * 1_000_000 } else { 0 };
            let received = sent + there_us * 1000;
            let replied = received + pause_us * 1000;
            let now = replied + back_us * 1000;
            clock.handle_pong(sent, peer.at(received), peer.at(replied), Time(now));
            let offset = clock.offset().expect("a reply arrived").0;
            let truth = now as i64 - peer.at(now) as i64;
            // The clocks also drift during the round trip: 200 ppm of at most 50.5 ms.
            let bound = clock.error_ns().expect("a reply arrived") + 10_200;
            prop_assert!(offset.abs_diff(truth) <= bound, "off by {} > {bound}", offset.abs_diff(truth));
            if let Some((before, since)) = last.filter(|_| index >= 16) {
                // Half the longest round trip plus the drift is less than the step threshold, so it slews: at
                // most 5000 ppm.
                let allowed = (now - since) / 200;
                prop_assert!(offset.abs_diff(before) <= allowed, "jumped by {}", offset.abs_diff(before));
            }
            last = Some((offset, now));
        }
        prop_assert!(clock.round_trip_ns().expect("a reply arrived") <= 50_000_000);
    }

    /// On a quiet path the estimate becomes as good as the path allows.
    #[test]
    fn it_settles_on_the_best_trip(ahead_ns in 0..DAY_NS as i64, first_us in 0..40_000u64, base_us in 1..1000u64) {
        let peer = PeerClock { ahead_ns, drift_ppm: 0 };
        let mut clock = ClockEstimator::new();
        for index in 0..1000u64 {
            let sent = DAY_NS + index * 100_000_000;
            let received = sent + base_us * 1000 + if index == 0 { first_us * 1000 } else { 0 };
            clock.handle_pong(sent, peer.at(received), peer.at(received), Time(received + base_us * 1000));
        }
        // The bound includes drift although there is none, so a fresh sample and one with 100 ms of drift at
        // 200 ppm are equal.
        let error = clock.error_ns().expect("a reply arrived");
        prop_assert!(error <= base_us * 1000 + 20_000, "{error}");
        prop_assert!(clock.offset().expect("a reply arrived").0.abs_diff(-ahead_ns) <= error);
    }

    /// A good reply replaces a bad first one at once.
    #[test]
    fn a_bad_first_reply_is_replaced_at_once(first_us in 0..400_000u64, base_us in 1..1000u64, good in 1..16u64) {
        let mut clock = ClockEstimator::new();
        for index in 0..=good {
            let sent = DAY_NS + index * 20_000_000;
            let late_us = if index < good { first_us } else { 0 };
            let received = sent + (base_us + late_us) * 1000;
            clock.handle_pong(sent, received, received, Time(received + base_us * 1000));
        }
        prop_assert!(clock.offset().expect("a reply arrived").0.unsigned_abs() <= base_us * 1000 + 4000);
    }

    #[test]
    fn impossible_replies_are_ignored(pongs in vec(hostile_pong(), 0..100)) {
        let mut clock = ClockEstimator::new();
        for (sent, received, replied, now) in pongs {
            clock.handle_pong(sent, received, replied, Time(now));
            prop_assert_eq!(clock.offset().is_some(), clock.error_ns().is_some());
            prop_assert_eq!(clock.offset().is_some(), clock.round_trip_ns().is_some());
            if let Some(offset) = clock.offset() {
                Time(u64::MAX).shifted(offset);
                Time(0).shifted(offset);
            }
        }
    }

    #[test]
    fn the_timeout_starts_at_the_last_sign_of_life(
        silence_ms in 1..5000u64,
        heard_ms in vec(0..10_000u64, 0..20),
        now_ms in 0..20_000u64,
    ) {
        let mut liveness = Liveness::new(Duration::from_millis(silence_ms), Time::ZERO);
        heard_ms.iter().for_each(|at| liveness.handle_heard(Time::from_millis(*at)));
        let last = heard_ms.iter().max().copied().unwrap_or(0);
        prop_assert_eq!(liveness.is_silent(Time::from_millis(now_ms)), now_ms >= last + silence_ms);
        prop_assert_eq!(liveness.poll_timeout(), Time::from_millis(last + silence_ms));
    }
}

fn hostile_pong() -> impl Strategy<Value = (u64, u64, u64, u64)> {
    let moment =
        || prop_oneof![any::<u64>(), 0..3u64, u64::MAX - 2..=u64::MAX, (1u64 << 63) - 2..(1 << 63) + 2];
    (moment(), moment(), moment(), moment())
}
