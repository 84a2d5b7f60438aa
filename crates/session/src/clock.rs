//! The offset between the boot clocks of two hosts.
//!
//! **Measurement.** The four timestamps of a ping and its reply give an offset (RFC 5905, section 8). Its error
//! is at most half the round trip, and it grows with age by the drift of the two clocks, assumed to be at most
//! [`DRIFT_PPM`]. The estimator keeps the last [`WINDOW`] replies and selects the one with the smallest error
//! bound: queues only ever make a round trip longer (the clock filter of RFC 5905, section 10).
//!
//! **Slewing.** The offset in use moves gradually towards the selected one, so that translated times never
//! jump. Its rate would close the difference in [`SLEW`], but is at least [`SLEW_PPM_MIN`] and at most
//! [`SLEW_PPM_MAX`] (80 us between pings that are 16 ms apart).
//!
//! **Stepping.** The offset jumps in two cases. The first [`YOUNG`] replies may replace it at once: they follow
//! each other quickly, and the very first is bad because both hosts were still busy with the handshake; slewing
//! away from it would take a minute. A difference of more than [`STEP_NS`] is also taken over at once.
//!
//! The remaining error is half the asymmetry of the path. Its reported bound is that of the selected reply,
//! plus the distance of the offset in use from it.

use contract::{Offset, Time};
use std::collections::VecDeque;
use std::time::Duration;

const WINDOW: usize = 64;
const YOUNG: usize = 16;
const SLEW: Duration = Duration::from_secs(20);
const SLEW_PPM_MIN: u64 = 500;
const SLEW_PPM_MAX: u64 = 5000;
/// No network delays a ping by this much. A larger difference means that a host was suspended or replaced.
const STEP_NS: u64 = 1_000_000_000;
/// Two free-running crystals, each within 100 ppm. The boot clock of a host under NTP is far better.
const DRIFT_PPM: u64 = 200;

/// Estimates the offset that converts the peer's times to local times.
#[derive(Debug, Clone, Default)]
pub struct ClockEstimator {
    samples: VecDeque<Sample>,
    used: Option<Used>,
}

/// The offset in use, as of the last reply.
#[derive(Debug, Clone, Copy)]
struct Used {
    offset_ns: i64,
    since: Time,
    best: Sample,
}

#[derive(Debug, Clone, Copy)]
struct Sample {
    offset_ns: i64,
    round_trip_ns: u64,
    taken: Time,
}

impl Sample {
    /// The error bound of its offset at `now`.
    fn error_ns(&self, now: Time) -> u64 {
        let age_ns = now.0.saturating_sub(self.taken.0);
        (self.round_trip_ns / 2).saturating_add(parts(age_ns, DRIFT_PPM))
    }
}

/// `ppm` parts per million of `ns`.
fn parts(ns: u64, ppm: u64) -> u64 {
    ns / (1_000_000 / ppm)
}

impl ClockEstimator {
    /// An estimator without any reply.
    pub fn new() -> Self {
        ClockEstimator::default()
    }

    /// Takes a reply. `sent` and `now` are local times, `received` and `replied` are times of the peer, in
    /// nanoseconds. Impossible times (a reply before its ping) are ignored.
    pub fn handle_pong(&mut self, sent: u64, received: u64, replied: u64, now: Time) {
        let (Some(away), Some(there)) = (now.0.checked_sub(sent), replied.checked_sub(received)) else {
            return;
        };
        let Some(round_trip_ns) = away.checked_sub(there) else { return };
        let ours = i128::from(sent) + i128::from(now.0);
        let theirs = i128::from(received) + i128::from(replied);
        let Ok(offset_ns) = i64::try_from((ours - theirs) / 2) else { return };
        if self.samples.len() == WINDOW {
            self.samples.pop_front();
        }
        self.samples.push_back(Sample { offset_ns, round_trip_ns, taken: now });
        self.slew(now);
    }

    fn slew(&mut self, now: Time) {
        let Some(best) = self.samples.iter().min_by_key(|sample| sample.error_ns(now)).copied() else {
            return;
        };
        let offset_ns = match self.used {
            Some(used)
                if self.samples.len() > YOUNG && best.offset_ns.abs_diff(used.offset_ns) <= STEP_NS =>
            {
                let off_ns = best.offset_ns.abs_diff(used.offset_ns);
                let ppm = (off_ns / (SLEW.as_nanos() as u64 / 1_000_000)).clamp(SLEW_PPM_MIN, SLEW_PPM_MAX);
                // At most STEP_NS, so neither the conversion nor the sum overflows.
                let step_ns = parts(now.0.saturating_sub(used.since.0), ppm).min(STEP_NS) as i64;
                used.offset_ns + (best.offset_ns - used.offset_ns).clamp(-step_ns, step_ns)
            }
            _ => best.offset_ns,
        };
        self.used = Some(Used { offset_ns, since: now, best });
    }

    /// The offset to add to the peer's times; `None` before the first reply.
    pub fn offset(&self) -> Option<Offset> {
        self.used.map(|used| Offset(used.offset_ns))
    }

    /// The error bound of [`ClockEstimator::offset`] at the time of the last reply, in nanoseconds.
    pub fn error_ns(&self) -> Option<u64> {
        let used = self.used?;
        Some(used.best.error_ns(used.since).saturating_add(used.best.offset_ns.abs_diff(used.offset_ns)))
    }

    /// The round trip of the selected reply, in nanoseconds.
    pub fn round_trip_ns(&self) -> Option<u64> {
        self.used.map(|used| used.best.round_trip_ns)
    }
}
