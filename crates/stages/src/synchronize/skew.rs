//! The skew between flows: the spread of the ages of their latest messages.

use crate::histogram::Histogram;
use contract::Report;
use std::time::Duration;

/// The skew at one point of the path.
#[derive(Debug, Default)]
pub(super) struct Skew {
    /// Age of the latest message of each flow, in nanoseconds.
    ages: Vec<Option<i64>>,
    spreads: Histogram,
}

impl Skew {
    /// Adds a message of flow number `flow` with this age, in nanoseconds.
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

    /// Median and 99th percentile in milliseconds, as figures with these names.
    pub(super) fn figures(&self, names: [&'static str; 2]) -> [Report; 2] {
        let read = |share| self.spreads.percentile(share).as_secs_f64() * 1e3;
        [(names[0], read(0.5)), (names[1], read(0.99))]
    }
}
