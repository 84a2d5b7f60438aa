//! Whether messages take longer than usual just now, as the sink half sees it: who waits for the air, or in a
//! queue that is about to overflow, is often lost next.
//!
//! What is usual is a median, followed by a small step for each message, so that a disturbance of some seconds
//! changes little; and so is how far messages are off from it.

use std::time::Duration;

/// A step is one part in so many of what is usual to be off.
const STEP: i64 = 64;
/// So many times as far off as usual is slow.
const FAR: i64 = 4;
/// Nothing is told by less than this.
const OFF_MIN_NS: i64 = Duration::from_micros(100).as_nanos() as i64;
/// So many in a row as fast as usual, and the disturbance is over.
const CALM: u8 = 4;

/// The pace of messages.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Median of transits, and of how far they are off from it; nanoseconds.
    usual: Option<(i64, i64)>,
    /// As many more messages as usual end a disturbance.
    slow_for: u8,
}

impl Pace {
    /// A message came that took so long, in nanoseconds.
    pub(super) fn see(&mut self, transit: i64) {
        let (median, off) = self.usual.get_or_insert((transit, OFF_MIN_NS));
        let above = transit.saturating_sub(*median);
        let is_slow = above > off.saturating_mul(FAR);
        self.slow_for = if is_slow { CALM } else { self.slow_for.saturating_sub(1) };
        let step = *off / STEP;
        *median = median.saturating_add(step * above.signum());
        *off =
            off.saturating_add(step * above.saturating_abs().saturating_sub(*off).signum()).max(OFF_MIN_NS);
    }

    /// Whether messages take longer than usual.
    pub(super) fn is_slow(&self) -> bool {
        self.slow_for > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Where messages of these transits, in microseconds, take longer than usual.
    fn slow(transits_us: impl IntoIterator<Item = i64>) -> Vec<bool> {
        let mut pace = Pace::default();
        let one = |us: i64| {
            pace.see(us * 1000);
            pace.is_slow()
        };
        transits_us.into_iter().map(one).collect()
    }

    /// Jitter of this many microseconds that has no pattern.
    fn jitter(number: i64, most_us: i64) -> i64 {
        number * 7919 % 1009 * most_us / 1009
    }

    #[test]
    fn a_disturbance_shows_in_its_first_message_and_is_over_after_four() {
        let at = |number| 2000 + jitter(number, 4000) + if (500..540).contains(&number) { 20_000 } else { 0 };
        let slow = slow((0..1000).map(at));
        let seen: Vec<usize> = (300..1000).filter(|index| slow[*index]).collect();
        assert_eq!(seen, (500..543).collect::<Vec<_>>());
    }

    #[test]
    fn a_longer_way_becomes_usual() {
        let slow =
            slow((0..3000).map(|number| jitter(number, 200) + if number < 500 { 100 } else { 300_000 }));
        assert!(slow[500] && !slow[..500].contains(&true) && !slow[1500..].contains(&true));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        /// Whatever steady jitter there is, it is usual; and no transit is too odd.
        #[test]
        fn jitter_is_usual(delay_us in 0i64..500_000, most_us in 0i64..200_000, odd in any::<Vec<i64>>()) {
            let slow = slow((0..3000).map(|number| delay_us + jitter(number, most_us)));
            prop_assert!(!slow[2000..].contains(&true));
            let mut pace = Pace::default();
            odd.into_iter().for_each(|transit| pace.see(transit));
        }
    }
}
