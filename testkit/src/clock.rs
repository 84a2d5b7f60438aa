//! A clock that advances only on request.

use contract::Time;
use std::time::Duration;

/// A clock for tests and simulations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct VirtualClock {
    now: Time,
}

impl VirtualClock {
    /// A clock that shows `now`.
    pub fn new(now: Time) -> Self {
        VirtualClock { now }
    }

    /// The current time.
    pub fn now(&self) -> Time {
        self.now
    }

    /// Advances the clock by `time`.
    pub fn advance(&mut self, time: Duration) {
        self.now = self.now.after(time);
    }

    /// Advances the clock to `moment`; it never goes back.
    pub fn advance_to(&mut self, moment: Time) {
        self.now = self.now.max(moment);
    }
}
