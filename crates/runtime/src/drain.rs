//! What a host that was told to stop still does: reliable flows that have ended at their source arrive whole, for as long as
//! `--limit drain` says. Nothing else is waited for: what goes on goes on when the service is there again.

use crate::stats::DriverStats;
use contract::Time;
use std::time::Duration;

/// Time between two looks at how far flows are.
pub(crate) const LOOK: Duration = Duration::from_millis(50);

/// The last part of a service.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Drain {
    since: Time,
    until: Time,
    /// When workers are asked for figures next.
    ask_at: Time,
}

impl Drain {
    /// Begins now, and takes so long at most.
    pub(crate) fn begin(now: Time, longest: Duration) -> Drain {
        Drain { since: now, until: now.after(longest), ask_at: now }
    }

    /// Whether workers are to be asked for figures now.
    pub(crate) fn asks(&mut self, now: Time) -> bool {
        let asks = now >= self.ask_at;
        if asks {
            self.ask_at = now.after(LOOK);
        }
        asks
    }

    /// Whether it is still to be waited, for drivers that told these figures last, and when, if they did.
    pub(crate) fn goes_on<'a>(
        &self,
        mut drivers: impl Iterator<Item = Option<&'a (Time, DriverStats)>>,
        now: Time,
    ) -> bool {
        let waits = |told: &(Time, DriverStats)| told.0 < self.since || told.1.is_ending();
        now < self.until && drivers.any(|told| told.is_none_or(waits))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::FlowStats;

    #[test]
    fn it_waits_for_what_has_ended_and_is_not_there_and_not_for_ever() {
        let flow = |ending| Some(FlowStats { ending, ..FlowStats::default() });
        let of = |ending| DriverStats { incoming: flow(ending), ..DriverStats::default() };
        let (begun, seconds) = (Time(7_000), Duration::from_secs);
        let mut drain = Drain::begin(begun, seconds(2));
        assert!(drain.asks(begun) && !drain.asks(begun) && drain.asks(begun.after(LOOK)));
        let goes_on = |at: Time, ending, now| drain.goes_on([Some(&(at, of(ending)))].into_iter(), now);
        assert!(goes_on(Time(6_999), false, begun), "figures of before");
        assert!(!goes_on(begun, false, begun), "what has not ended is not waited for");
        assert!(goes_on(begun, true, begun.after(seconds(1))));
        assert!(!goes_on(begun, true, begun.after(seconds(2))));
        assert!(!drain.goes_on([].into_iter(), begun));
    }
}
