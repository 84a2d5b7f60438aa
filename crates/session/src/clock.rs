//! The offset between two hosts' boot clocks.
//!
//! Method: the four times of a ping and its answer (RFC 5905, section 8) give an offset whose error is at
//! most half the round trip. Of the last [`WINDOW`] answers the one with the shortest round trip counts,
//! because queues only ever lengthen a trip. The offset in use moves towards that by at most
//! [`SLEW_PPM`], so that times translated with it never jump; only a first estimate, or one that is off by
//! more than [`STEP_NS`], is taken over at once.
//!
//! The error that remains is half the asymmetry of the path, bounded by half the shortest round trip, plus
//! the drift of the clocks within the window (100 ppm over 6.4 s: 0.64 ms at the very worst).

use contract::{Offset, Time};
use std::collections::VecDeque;

const WINDOW: usize = 64;
const SLEW_PPM: i64 = 500;
const STEP_NS: i64 = 50_000_000;

/// Estimates what is to be added to the peer's times to get ours.
#[derive(Debug, Clone, Default)]
pub struct ClockEstimator {
    samples: VecDeque<Sample>,
    used: Option<(Offset, Time)>,
}

#[derive(Debug, Clone, Copy)]
struct Sample {
    offset_ns: i64,
    round_trip_ns: u64,
}

impl ClockEstimator {
    /// Knows nothing yet.
    pub fn new() -> Self {
        ClockEstimator::default()
    }

    /// An answer came: `sent` and `now` on our clock, `received` and `replied` on the peer's, nanoseconds.
    /// Times that cannot be (answered before it was sent) are ignored.
    pub fn handle_pong(&mut self, sent: u64, received: u64, replied: u64, now: Time) {
        let (Some(away), Some(there)) = (now.0.checked_sub(sent), replied.checked_sub(received)) else { return };
        let Some(round_trip_ns) = away.checked_sub(there) else { return };
        let ours = i128::from(sent) + i128::from(now.0);
        let theirs = i128::from(received) + i128::from(replied);
        let Ok(offset_ns) = i64::try_from((ours - theirs) / 2) else { return };
        if self.samples.len() == WINDOW {
            self.samples.pop_front();
        }
        self.samples.push_back(Sample { offset_ns, round_trip_ns });
        self.slew(now);
    }

    fn slew(&mut self, now: Time) {
        let Some(best) = self.best() else { return };
        let offset_ns = match self.used {
            Some((used, since)) if (best.offset_ns - used.0).abs() <= STEP_NS => {
                let step_max = now.signed_since(since).max(0) / 1_000_000 * SLEW_PPM;
                used.0 + (best.offset_ns - used.0).clamp(-step_max, step_max)
            }
            _ => best.offset_ns,
        };
        self.used = Some((Offset(offset_ns), now));
    }

    fn best(&self) -> Option<Sample> {
        self.samples.iter().min_by_key(|sample| sample.round_trip_ns).copied()
    }

    /// What to add to the peer's times; `None` before the first answer.
    pub fn offset(&self) -> Option<Offset> {
        self.used.map(|(offset, _)| offset)
    }

    /// Bound of the error of [`ClockEstimator::offset`], drift aside, nanoseconds.
    pub fn error_ns(&self) -> Option<u64> {
        let (used, best) = (self.used?.0, self.best()?);
        Some(best.round_trip_ns / 2 + best.offset_ns.abs_diff(used.0))
    }

    /// Shortest round trip of the window, nanoseconds.
    pub fn round_trip_ns(&self) -> Option<u64> {
        self.best().map(|sample| sample.round_trip_ns)
    }
}
