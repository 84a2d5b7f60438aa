//! The drain phase of a host that stops: it waits until reliable flows that have ended at their source are
//! delivered, for at most `--limit drain`. It waits for nothing else; other flows resume when the service is
//! restarted.

use crate::stats::DriverStats;
use contract::Time;
use std::time::Duration;

/// Interval between two checks.
pub const LOOK: Duration = Duration::from_millis(50);

/// A drain phase in progress.
#[derive(Debug, Clone, Copy)]
pub struct Drain {
    since: Time,
    until: Time,
    /// Time of the next request for statistics.
    ask_at: Time,
}

impl Drain {
    /// Starts a drain phase of at most `longest`.
    pub fn begin(now: Time, longest: Duration) -> Drain {
        Drain { since: now, until: now.after(longest), ask_at: now }
    }

    /// Returns whether the workers should be asked for statistics now.
    pub fn asks(&mut self, now: Time) -> bool {
        let asks = now >= self.ask_at;
        if asks {
            self.ask_at = now.after(LOOK);
        }
        asks
    }

    /// Returns whether the drain phase continues. `drivers` yields the latest statistics of each driver with their
    /// arrival time, if there are any.
    pub fn continues<'a>(
        &self,
        mut drivers: impl Iterator<Item = Option<&'a (Time, DriverStats)>>,
        now: Time,
    ) -> bool {
        let waits = |latest: &(Time, DriverStats)| latest.0 < self.since || latest.1.is_ending();
        now < self.until && drivers.any(|latest| latest.is_none_or(waits))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::FlowStats;

    #[test]
    fn draining_waits_for_undelivered_ends_until_its_deadline() {
        let flow = |ending| Some(FlowStats { ending, ..FlowStats::default() });
        let of = |ending| DriverStats { incoming: flow(ending), ..DriverStats::default() };
        let (begun, seconds) = (Time(7_000), Duration::from_secs);
        let mut drain = Drain::begin(begun, seconds(2));
        assert!(drain.asks(begun) && !drain.asks(begun) && drain.asks(begun.after(LOOK)));
        let continues = |at: Time, ending, now| drain.continues([Some(&(at, of(ending)))].into_iter(), now);
        assert!(continues(Time(6_999), false, begun), "figures of before");
        assert!(!continues(begun, false, begun), "a flow that has not ended is not waited for");
        assert!(continues(begun, true, begun.after(seconds(1))));
        assert!(!continues(begun, true, begun.after(seconds(2))));
        assert!(!drain.continues([].into_iter(), begun));
    }
}
