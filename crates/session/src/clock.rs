//! The offset between two hosts' boot clocks.
//!
//! Method: the four times of a ping and its answer (RFC 5905, section 8) give an offset whose error is at
//! most half the round trip, and grows with age by the drift of the two clocks, taken as at most
//! [`DRIFT_PPM`]. Of the last [`WINDOW`] answers the one with the smallest error bound counts, because
//! queues only ever lengthen a trip (the clock filter of section 10). The offset in use moves towards that
//! so that it would be there in [`SLEW`], but at least by [`SLEW_PPM_MIN`] and at most by [`SLEW_PPM_MAX`] (80 us on
//! a spacing of 16 ms), so that times translated with it never jump; only what is better among the first [`YOUNG`]
//! answers, which follow each other quickly, or is off by more than [`STEP_NS`], is taken over at once: the very first
//! was on its way while both hosts were still busy with each other's greeting, and would be followed for a minute.
//!
//! The error that remains is half the asymmetry of the path. Its bound is that of the answer that counts,
//! and how far the offset in use still is from it.

use contract::{Offset, Time};
use std::collections::VecDeque;
use std::time::Duration;

const WINDOW: usize = 64;
const YOUNG: usize = 16;
const SLEW: Duration = Duration::from_secs(20);
const SLEW_PPM_MIN: u64 = 500;
const SLEW_PPM_MAX: u64 = 5000;
/// No network delays a ping by this much; a host that was suspended or replaced is off by more.
const STEP_NS: u64 = 1_000_000_000;
/// Two free-running crystals, each within 100 ppm; the boot clock of a host under NTP is far better.
const DRIFT_PPM: u64 = 200;

/// Estimates what is to be added to the peer's times to get ours.
#[derive(Debug, Clone, Default)]
pub struct ClockEstimator {
    samples: VecDeque<Sample>,
    used: Option<Used>,
}

/// What is in use since the last answer.
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
    /// Bound of the error of its offset at `now`.
    fn error_ns(&self, now: Time) -> u64 {
        let age_ns = now.0.saturating_sub(self.taken.0);
        (self.round_trip_ns / 2).saturating_add(parts(age_ns, DRIFT_PPM))
    }
}

/// So many parts per million of `ns`.
fn parts(ns: u64, ppm: u64) -> u64 {
    ns / (1_000_000 / ppm)
}

impl ClockEstimator {
    /// Knows nothing yet.
    pub fn new() -> Self {
        ClockEstimator::default()
    }

    /// An answer came: `sent` and `now` on our clock, `received` and `replied` on the peer's, nanoseconds.
    /// Times that cannot be (answered before it was sent) are ignored.
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

    /// What to add to the peer's times; `None` before the first answer.
    pub fn offset(&self) -> Option<Offset> {
        self.used.map(|used| Offset(used.offset_ns))
    }

    /// Bound of the error of [`ClockEstimator::offset`] when the last answer came, nanoseconds.
    pub fn error_ns(&self) -> Option<u64> {
        let used = self.used?;
        Some(used.best.error_ns(used.since).saturating_add(used.best.offset_ns.abs_diff(used.offset_ns)))
    }

    /// Round trip of the answer that counts, nanoseconds.
    pub fn round_trip_ns(&self) -> Option<u64> {
        self.used.map(|used| used.best.round_trip_ns)
    }
}
