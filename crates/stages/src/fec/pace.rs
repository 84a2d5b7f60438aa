//! Detects, at the sink, that messages take longer than usual. A message that waits for the air, or
//! in a queue about to overflow, is often followed by a loss.
//!
//! The usual transit is a running median, and so is the usual deviation from it. Each message moves
//! them by a small step, so a disturbance of a few seconds changes them little.

use std::time::Duration;

/// A step of the medians is one part in this many of the usual deviation.
const STEP: i64 = 64;
/// A message is slow if it is this many usual deviations above the median.
const SLOW_DEVIATIONS: i64 = 4;
/// Least usual deviation.
const DEVIATION_MIN_NS: i64 = Duration::from_micros(100).as_nanos() as i64;
/// Consecutive messages at normal pace that end a disturbance.
const NORMAL_RUN: u8 = 4;

/// The pace of messages.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Median of the transits and of their deviations from it, nanoseconds.
    usual: Option<(i64, i64)>,
    /// Messages at normal pace that are left until the disturbance ends.
    slow_countdown: u8,
}

impl Pace {
    /// Adds the transit of a message, in nanoseconds.
    pub(super) fn add(&mut self, transit: i64) {
        let (median, deviation) = self.usual.get_or_insert((transit, DEVIATION_MIN_NS));
        let above = transit.saturating_sub(*median);
        let is_slow = above > deviation.saturating_mul(SLOW_DEVIATIONS);
        self.slow_countdown = if is_slow { NORMAL_RUN } else { self.slow_countdown.saturating_sub(1) };
        let step = *deviation / STEP;
        *median = median.saturating_add(step * above.signum());
        *deviation = deviation
            .saturating_add(step * above.saturating_abs().saturating_sub(*deviation).signum())
            .max(DEVIATION_MIN_NS);
    }

    /// True while messages take longer than usual.
    pub(super) fn is_slow(&self) -> bool {
        self.slow_countdown > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// For each of these transits, in microseconds: do messages take longer than usual?
    fn slow(transits_us: impl IntoIterator<Item = i64>) -> Vec<bool> {
        let mut pace = Pace::default();
        let one = |us: i64| {
            pace.add(us * 1000);
            pace.is_slow()
        };
        transits_us.into_iter().map(one).collect()
    }

    /// Irregular jitter of up to this many microseconds.
    fn jitter(number: i64, most_us: i64) -> i64 {
        number * 7919 % 1009 * most_us / 1009
    }

    #[test]
    fn a_disturbance_shows_at_once_and_ends_after_four_messages() {
        let at = |number| 2000 + jitter(number, 4000) + if (500..540).contains(&number) { 20_000 } else { 0 };
        let slow = slow((0..1000).map(at));
        let slow_indices: Vec<usize> = (300..1000).filter(|index| slow[*index]).collect();
        assert_eq!(slow_indices, (500..543).collect::<Vec<_>>());
    }

    #[test]
    fn a_longer_route_becomes_usual() {
        let slow =
            slow((0..3000).map(|number| jitter(number, 200) + if number < 500 { 100 } else { 300_000 }));
        assert!(slow[500] && !slow[..500].contains(&true) && !slow[1500..].contains(&true));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        /// Steady jitter is usual, and absurd transits are survived.
        #[test]
        fn jitter_is_usual(delay_us in 0i64..500_000, most_us in 0i64..200_000, absurd in any::<Vec<i64>>()) {
            let slow = slow((0..3000).map(|number| delay_us + jitter(number, most_us)));
            prop_assert!(!slow[2000..].contains(&true));
            let mut pace = Pace::default();
            absurd.into_iter().for_each(|transit| pace.add(transit));
        }
    }
}
