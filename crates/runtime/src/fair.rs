//! Fairness between the drivers of one worker: what each may move in a turn, in a second, and what it has cost.
//!
//! In a turn of its worker a path takes at most [`MESSAGES_MAX`] messages and, before its last, less than [`BYTES_MAX`]
//! bytes; then the next driver has its turn. So a flow that floods keeps another beside it waiting for microseconds, not
//! for as long as it has something to say. A rate that is gone over makes a driver miss turns until it is met again:
//! what is not taken waits in its device, or in its connection.

use crate::driver::Moved;
use contract::Time;
use session::Rates;
use std::time::Duration;

/// Messages that a path takes in one turn.
pub(crate) const MESSAGES_MAX: usize = 64;
/// Bytes after which it takes no further one.
pub(crate) const BYTES_MAX: usize = 256 << 10;
/// What was not used of a rate is kept for as long.
const KEPT: Duration = Duration::from_millis(100);

/// So many in a second, and for a moment some more.
#[derive(Debug, Clone)]
pub(crate) struct Bucket {
    /// 0: no bound.
    ns_each: f64,
    kept: Duration,
    free_at: Time,
}

impl Bucket {
    /// `per_second` of 0 is no bound; what is not used of it is kept for `kept`.
    pub(crate) fn new(per_second: u64, kept: Duration) -> Bucket {
        let ns_each = if per_second == 0 { 0.0 } else { 1e9 / per_second as f64 };
        Bucket { ns_each, kept, free_at: Time::ZERO }
    }

    pub(crate) fn is_open(&self, now: Time) -> bool {
        self.free_at <= now
    }

    /// From when on it is open.
    pub(crate) fn free_at(&self) -> Time {
        self.free_at
    }

    /// `count` of them are used.
    pub(crate) fn take(&mut self, count: u64, now: Time) {
        if self.ns_each > 0.0 {
            let begun = self.free_at.max(Time(now.0.saturating_sub(self.kept.as_nanos() as u64)));
            self.free_at = begun.after(Duration::from_nanos((count as f64 * self.ns_each) as u64));
        }
    }
}

/// Messages and bytes in a second.
#[derive(Debug, Clone)]
pub(crate) struct Rate {
    messages: Bucket,
    bytes: Bucket,
}

impl Rate {
    /// Of one device's flows.
    pub(crate) fn of_device(rates: &Rates) -> Rate {
        Rate::new(rates.device_messages, rates.device_bytes)
    }

    /// Of all flows of a session.
    pub(crate) fn of_session(rates: &Rates) -> Rate {
        Rate::new(rates.session_messages, rates.session_bytes)
    }

    fn new(messages: u64, bytes: u64) -> Rate {
        Rate { messages: Bucket::new(messages, KEPT), bytes: Bucket::new(bytes, KEPT) }
    }

    /// Until when nothing more is to be moved; `None` if it may be.
    pub(crate) fn closed_until(&self, now: Time) -> Option<Time> {
        let until = self.messages.free_at.max(self.bytes.free_at);
        (until > now).then_some(until)
    }

    pub(crate) fn take(&mut self, moved: &Moved, now: Time) {
        self.messages.take(moved.messages, now);
        self.bytes.take(moved.bytes, now);
    }
}

/// Processor time of a worker, or of who is seen to use it: so much in a second, and what is over it is rested for.
#[derive(Debug, Clone)]
pub(crate) struct Processor {
    ns_per_second: u64,
    time: Bucket,
    /// What the clock of processor time said last; `None` until it was read.
    used_ns: Option<u64>,
}

impl Processor {
    /// `ns_per_second` of 0 is no bound.
    pub(crate) fn new(ns_per_second: u64) -> Processor {
        Processor { ns_per_second, time: Bucket::new(ns_per_second, KEPT), used_ns: None }
    }

    /// What one of `sessions` of a peer may use where the peer may use `percent` of a processor.
    pub(crate) fn share(percent: u64, sessions: u64) -> u64 {
        match percent {
            0 => 0,
            percent => (percent.saturating_mul(10_000_000) / sessions.max(1)).max(1),
        }
    }

    pub(crate) fn ns_per_second(&self) -> u64 {
        self.ns_per_second
    }

    /// From now on it may use so much. What was used before stays to be rested for.
    pub(crate) fn set(&mut self, ns_per_second: u64, now: Time) {
        if ns_per_second != self.ns_per_second {
            let owed = self.owed_ns(now);
            *self = Processor { used_ns: self.used_ns, ..Processor::new(ns_per_second) };
            self.time.take(owed, now);
        }
    }

    /// The clock of processor time stands at `used_ns`. It is that of another process, and begins anew, if it goes back.
    pub(crate) fn read(&mut self, used_ns: impl FnOnce() -> u64, now: Time) {
        if self.ns_per_second > 0 {
            let used_ns = used_ns();
            let before = self.used_ns.replace(used_ns).unwrap_or(used_ns);
            self.time.take(used_ns.saturating_sub(before), now);
        }
    }

    /// Until when it is to rest; `None` if it may go on.
    pub(crate) fn closed_until(&self, now: Time) -> Option<Time> {
        (!self.time.is_open(now)).then_some(self.time.free_at)
    }

    /// Processor time that was used and is not yet rested for.
    pub(crate) fn owed_ns(&self, now: Time) -> u64 {
        (self.time.free_at.since(now).as_secs_f64() * self.ns_per_second as f64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_rate_is_kept_over_any_time(
            per_second in 1u64..100_000,
            steps in prop::collection::vec((0u64..50_000_000, 0u64..2000), 1..200),
        ) {
            let mut bucket = Bucket::new(per_second, KEPT);
            let (mut now, mut taken, mut largest) = (Time(1_000_000_000), 0, 0);
            let begun = now;
            for (wait, count) in steps {
                now = now.after(Duration::from_nanos(wait));
                if bucket.is_open(now) {
                    bucket.take(count, now);
                    (taken, largest) = (taken + count, largest.max(count));
                }
            }
            let seconds = now.since(begun).as_secs_f64() + KEPT.as_secs_f64();
            let most = seconds * per_second as f64 + largest as f64 + 1.0;
            prop_assert!(taken as f64 <= most, "{taken} in {seconds} s at {per_second}/s");
        }

        #[test]
        fn who_rests_as_it_is_told_keeps_to_its_share_of_the_processor(
            percent in 1u64..400,
            sessions in 1u64..100,
            turns in prop::collection::vec(1_000u64..20_000_000, 1..200),
        ) {
            let mut processor = Processor::new(Processor::share(percent, sessions));
            let (mut now, mut used, mut longest) = (Time(1_000_000_000), 0, 0);
            let begun = now;
            processor.read(|| used, now);
            for turn in turns {
                now = processor.closed_until(now).unwrap_or(now).after(Duration::from_nanos(turn));
                (used, longest) = (used + turn, longest.max(turn));
                processor.read(|| used, now);
                prop_assert!(processor.owed_ns(now) <= longest);
            }
            let seconds = now.since(begun).as_secs_f64() + KEPT.as_secs_f64();
            let most = seconds * percent as f64 * 1e7 / sessions as f64 + longest as f64 + 1e3;
            prop_assert!(used as f64 <= most, "{used} ns in {seconds} s at {percent} % of {sessions}");
        }

        #[test]
        fn no_bound_is_never_reached(counts in prop::collection::vec(0u64..u64::MAX, 1..20)) {
            let mut bucket = Bucket::new(0, KEPT);
            for count in counts {
                bucket.take(count, Time(7));
                prop_assert!(bucket.is_open(Time(7)));
            }
        }
    }
}
