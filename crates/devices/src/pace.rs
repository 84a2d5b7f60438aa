//! The pace of pictures from a file.

use contract::Time;
use std::time::Duration;

/// Frames a second where nobody says how many.
pub(crate) const RATE_DEFAULT: (u32, u32) = (25, 1);

/// When frames are due: one period after the other, counted from the last that came late, so that errors do
/// not add up and a stream that pauses is not hurried afterwards.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// None: whenever a frame is there.
    period_ns: Option<f64>,
    start: Time,
    since_start: u64,
}

impl Pace {
    /// So many frames a second; 0: whenever a frame is there.
    pub(crate) fn set_rate(&mut self, rate_hz: f64) {
        self.period_ns = (rate_hz > 0.0).then(|| 1e9 / rate_hz);
    }

    /// When the frame that is there `now` is due.
    pub(crate) fn next(&mut self, now: Time) -> Time {
        let after = |period_ns| Duration::from_nanos((self.since_start as f64 * period_ns) as u64);
        let due = self.start.after(self.period_ns.map_or(Duration::ZERO, after));
        if due < now {
            (self.start, self.since_start) = (now, 0);
        }
        self.since_start += 1;
        due.max(now)
    }
}
