//! Time that moves only when it is told to.

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

    /// What it shows.
    pub fn now(&self) -> Time {
        self.now
    }

    /// Moves it on by `time`.
    pub fn advance(&mut self, time: Duration) {
        self.now = self.now.after(time);
    }

    /// Moves it on to `moment`; it never goes back.
    pub fn advance_to(&mut self, moment: Time) {
        self.now = self.now.max(moment);
    }
}
