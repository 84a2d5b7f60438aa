//! How far apart flows are: the spread of the times that their latest messages took since they were made.

use crate::histogram::Histogram;
use contract::Report;
use std::time::Duration;

/// The skew at one place.
#[derive(Debug, Default)]
pub(super) struct Skew {
    /// Of each flow's latest message, nanoseconds since it was made.
    ages: Vec<Option<i64>>,
    spreads: Histogram,
}

impl Skew {
    /// A message of flow number `flow` passes, `age` nanoseconds after it was made.
    pub(super) fn add(&mut self, flow: usize, age: i64) {
        if self.ages.len() <= flow {
            self.ages.resize(flow + 1, None);
        }
        self.ages[flow] = Some(age);
        let ages = || self.ages.iter().flatten();
        if ages().nth(1).is_some()
            && let (Some(low), Some(high)) = (ages().min(), ages().max())
        {
            self.spreads.add(Duration::from_nanos(high.abs_diff(*low)));
        }
    }

    /// Median and 99th percentile, milliseconds, by these names.
    pub(super) fn figures(&self, names: [&'static str; 2]) -> [Report; 2] {
        let read = |share| self.spreads.percentile(share).as_secs_f64() * 1e3;
        [(names[0], read(0.5)), (names[1], read(0.99))]
    }
}
