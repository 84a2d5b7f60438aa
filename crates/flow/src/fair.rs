//! Fairness between the drivers of one worker: limits per turn, rates per second, and processor time.
//!
//! In one turn a path pulls at most [`MESSAGES_MAX`] messages and stops after [`BYTES_MAX`] bytes; then the next
//! driver runs. A flow that floods therefore delays its neighbours by microseconds only. A driver that exceeds its
//! rate skips turns until the rate is met again. Its unread messages wait in its device or in its connection.

use crate::types::RunOutcome;
use contract::Time;
use session::Rates;
use std::time::Duration;

/// Most messages that a path pulls in one turn.
pub const MESSAGES_MAX: usize = 64;
/// A path pulls no further message in a turn after so many bytes.
pub const BYTES_MAX: usize = 256 << 10;
/// Unused capacity of a rate accumulates for this long.
const BURST: Duration = Duration::from_millis(100);

/// Token bucket: a rate per second that allows a short burst.
#[derive(Debug, Clone)]
pub struct Bucket {
    /// Nanoseconds per unit; 0 disables the limit.
    ns_each: f64,
    burst: Duration,
    free_at: Time,
}

impl Bucket {
    /// Creates a bucket. A `per_second` of 0 disables the limit. Unused capacity accumulates for `burst`.
    pub fn new(per_second: u64, burst: Duration) -> Bucket {
        let ns_each = if per_second == 0 { 0.0 } else { 1e9 / per_second as f64 };
        Bucket { ns_each, burst, free_at: Time::ZERO }
    }

    /// Returns whether more units may be used now.
    pub fn is_open(&self, now: Time) -> bool {
        self.free_at <= now
    }

    /// Returns the time from which more units may be used.
    pub fn free_at(&self) -> Time {
        self.free_at
    }

    /// Uses `count` units.
    pub fn take(&mut self, count: u64, now: Time) {
        if self.ns_each > 0.0 {
            let start = self.free_at.max(Time(now.0.saturating_sub(self.burst.as_nanos() as u64)));
            self.free_at = start.after(Duration::from_nanos((count as f64 * self.ns_each) as u64));
        }
    }
}

/// Limit on bytes per second.
#[derive(Debug, Clone)]
pub struct Rate {
    bytes: Bucket,
}

impl Rate {
    /// Returns the limit of one device's flows.
    pub fn of_device(rates: &Rates) -> Rate {
        Rate { bytes: Bucket::new(rates.device_bytes, BURST) }
    }

    /// Returns the limit of all flows of a session.
    pub fn of_session(rates: &Rates) -> Rate {
        Rate { bytes: Bucket::new(rates.session_bytes, BURST) }
    }

    /// Returns the time until which nothing may move; `None` if messages may move now.
    pub fn closed_until(&self, now: Time) -> Option<Time> {
        Some(self.bytes.free_at).filter(|until| *until > now)
    }

    /// Uses the bytes of one run.
    pub fn take(&mut self, run: &RunOutcome, now: Time) {
        self.bytes.take(run.bytes, now);
    }
}

/// Processor time limit of a worker, or of the thread that works for it: nanoseconds per second. A worker that exceeds
/// the limit pauses.
#[derive(Debug, Clone)]
pub struct Processor {
    ns_per_second: u64,
    time: Bucket,
    /// Last reading of the processor clock; `None` before the first reading.
    used_ns: Option<u64>,
}

impl Processor {
    /// Creates a limit; 0 disables it.
    pub fn new(ns_per_second: u64) -> Processor {
        Processor { ns_per_second, time: Bucket::new(ns_per_second, BURST), used_ns: None }
    }

    /// Returns the limit for one of `sessions` of a peer that may use `percent` of a processor.
    pub fn share(percent: u64, sessions: u64) -> u64 {
        match percent {
            0 => 0,
            percent => (percent.saturating_mul(10_000_000) / sessions.max(1)).max(1),
        }
    }

    /// Returns the limit, nanoseconds per second.
    pub fn ns_per_second(&self) -> u64 {
        self.ns_per_second
    }

    /// Changes the limit. Processor time that was used too early still has to be paid back.
    pub fn set(&mut self, ns_per_second: u64, now: Time) {
        if ns_per_second != self.ns_per_second {
            let owed = self.owed_ns(now);
            *self = Processor { used_ns: self.used_ns, ..Processor::new(ns_per_second) };
            self.time.take(owed, now);
        }
    }

    /// Reads the processor clock. A reading below the last one comes from a new process and counts as zero use.
    pub fn read(&mut self, used_ns: impl FnOnce() -> u64, now: Time) {
        if self.ns_per_second > 0 {
            let used_ns = used_ns();
            let prev = self.used_ns.replace(used_ns).unwrap_or(used_ns);
            self.time.take(used_ns.saturating_sub(prev), now);
        }
    }

    /// Returns the time until which the worker must pause; `None` if it may run.
    pub fn closed_until(&self, now: Time) -> Option<Time> {
        (!self.time.is_open(now)).then_some(self.time.free_at)
    }

    /// Returns the processor time that was used too early and is not paid back yet.
    pub fn owed_ns(&self, now: Time) -> u64 {
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
        fn a_rate_holds_over_any_interval(
            per_second in 1u64..100_000,
            steps in prop::collection::vec((0u64..50_000_000, 0u64..2000), 1..200),
        ) {
            let mut bucket = Bucket::new(per_second, BURST);
            let (mut now, mut used, mut largest) = (Time(1_000_000_000), 0, 0);
            let start = now;
            for (wait, count) in steps {
                now = now.after(Duration::from_nanos(wait));
                if bucket.is_open(now) {
                    bucket.take(count, now);
                    (used, largest) = (used + count, largest.max(count));
                }
            }
            let seconds = now.since(start).as_secs_f64() + BURST.as_secs_f64();
            let most = seconds * per_second as f64 + largest as f64 + 1.0;
            prop_assert!(used as f64 <= most, "{used} in {seconds} s at {per_second}/s");
        }

        #[test]
        fn a_worker_that_pauses_keeps_its_processor_share(
            percent in 1u64..400,
            sessions in 1u64..100,
            turns in prop::collection::vec(1_000u64..20_000_000, 1..200),
        ) {
            let mut processor = Processor::new(Processor::share(percent, sessions));
            let (mut now, mut used, mut longest) = (Time(1_000_000_000), 0, 0);
            let start = now;
            processor.read(|| used, now);
            for turn in turns {
                now = processor.closed_until(now).unwrap_or(now).after(Duration::from_nanos(turn));
                (used, longest) = (used + turn, longest.max(turn));
                processor.read(|| used, now);
                prop_assert!(processor.owed_ns(now) <= longest);
            }
            let seconds = now.since(start).as_secs_f64() + BURST.as_secs_f64();
            let most = seconds * percent as f64 * 1e7 / sessions as f64 + longest as f64 + 1e3;
            prop_assert!(used as f64 <= most, "{used} ns in {seconds} s at {percent} % of {sessions}");
        }

        #[test]
        fn an_unlimited_bucket_stays_open(counts in prop::collection::vec(0u64..u64::MAX, 1..20)) {
            let mut bucket = Bucket::new(0, BURST);
            for count in counts {
                bucket.take(count, Time(7));
                prop_assert!(bucket.is_open(Time(7)));
            }
        }
    }
}
