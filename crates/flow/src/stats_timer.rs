//! The time of the requests for statistics.

use contract::Time;
use std::time::Duration;

const INTERVAL: Duration = Duration::from_secs(1);

/// The time of the next request for statistics: every second while the session is awake, and once after it fell quiet.
#[derive(Debug, Clone, Copy)]
pub struct StatsTimer {
    /// `None` after the last request of a resting session.
    at: Option<Time>,
}

impl StatsTimer {
    /// The first request is due after an interval.
    pub fn new(now: Time) -> StatsTimer {
        StatsTimer { at: Some(now.after(INTERVAL)) }
    }

    /// Returns whether a request is due, and schedules the next one.
    pub fn is_due(&mut self, is_resting: bool, now: Time) -> bool {
        let next = (!is_resting).then(|| now.after(INTERVAL));
        match self.at {
            Some(at) if now < at => return false,
            None if is_resting => return false,
            None => {
                self.at = next;
                return false;
            }
            Some(_) => self.at = next,
        }
        true
    }

    /// Schedules a request: something has changed in a session that may rest.
    pub fn handle_change(&mut self, now: Time) {
        self.at.get_or_insert(now.after(INTERVAL));
    }

    /// Makes a request due now: a client of the console reads the statistics, and will ask again.
    pub fn request(&mut self, now: Time) {
        self.at = Some(now);
    }

    /// Returns the time of the next request, if one is scheduled.
    pub fn at(&self) -> Time {
        self.at.unwrap_or(Time(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_come_once_more_after_a_session_fell_quiet() {
        let mut timer = StatsTimer::new(Time::ZERO);
        let mut is_due = |ms, is_resting| timer.is_due(is_resting, Time::from_millis(ms));
        assert_eq!([is_due(500, false), is_due(1000, false), is_due(1500, true)], [false, true, false]);
        assert_eq!([is_due(2000, true), is_due(9000, true)], [true, false]);
        assert_eq!([is_due(9500, false), is_due(10_400, false), is_due(10_500, false)], [false, false, true]);
        let now = Time::from_millis(60_000);
        timer.request(now);
        assert!(timer.is_due(true, now) && timer.at() == Time(u64::MAX));
    }
}
