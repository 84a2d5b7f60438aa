//! A histogram of durations: four classes per octave, so that a percentile is at most a quarter too
//! long.

use std::time::Duration;

const CLASSES_PER_OCTAVE: u32 = 4;
const CLASSES: usize = 64 * CLASSES_PER_OCTAVE as usize;

/// Counts of durations by class.
#[derive(Debug, Clone)]
pub(crate) struct Histogram {
    counts: Box<[u32; CLASSES]>,
    total: u32,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { counts: Box::new([0; CLASSES]), total: 0 }
    }
}

impl Histogram {
    /// Counts a duration. When the total is about to overflow, all counters are halved, so that old
    /// durations weigh less.
    pub(crate) fn add(&mut self, duration: Duration) {
        if self.total == u32::MAX {
            self.counts.iter_mut().for_each(|count| *count /= 2);
            self.total = self.counts.iter().sum();
        }
        self.counts[class(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))] += 1;
        self.total += 1;
    }

    /// The duration that `share` of the counted durations do not exceed; at most a quarter too
    /// long.
    pub(crate) fn percentile(&self, share: f64) -> Duration {
        let rank = (f64::from(self.total) * share).ceil().max(1.0) as u64;
        let mut counted = 0;
        for (class, count) in self.counts.iter().enumerate() {
            counted += u64::from(*count);
            if counted >= rank {
                return Duration::from_nanos(upper(class));
            }
        }
        Duration::ZERO
    }
}

fn class(nanoseconds: u64) -> usize {
    match nanoseconds.checked_ilog2() {
        Some(octave @ 2..) => {
            let part = (nanoseconds >> (octave - 2)) as u32 - CLASSES_PER_OCTAVE;
            (octave * CLASSES_PER_OCTAVE + part) as usize
        }
        _ => nanoseconds as usize,
    }
}

/// The longest duration of a class, in nanoseconds.
fn upper(class: usize) -> u64 {
    let (octave, part) = (class as u32 / CLASSES_PER_OCTAVE, class as u64 % u64::from(CLASSES_PER_OCTAVE));
    match octave {
        0 | 1 => class as u64,
        octave => ((u128::from(part + 5) << (octave - 2)) - 1).min(u64::MAX.into()) as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn percentiles_are_read_off() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.percentile(0.5), Duration::ZERO);
        (1..=100).for_each(|ms| histogram.add(Duration::from_millis(ms)));
        for (share, ms) in [(0.01, 1.0), (0.5, 50.0), (0.99, 99.0), (1.0, 100.0)] {
            let read = histogram.percentile(share).as_secs_f64() * 1e3;
            assert!((ms..ms * 1.25).contains(&read), "{share}: {read}");
        }
    }

    proptest! {
        #[test]
        fn a_class_holds_its_durations(nanoseconds in prop_oneof![any::<u64>(), 0u64..100]) {
            let longest = upper(class(nanoseconds));
            prop_assert!(longest >= nanoseconds);
            prop_assert!(longest - nanoseconds <= nanoseconds / 4);
        }
    }
}
