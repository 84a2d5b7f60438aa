//! The pace of pictures from a file.

use contract::Time;
use std::time::Duration;

/// Frames a second where nobody says how many.
pub(crate) const RATE_DEFAULT: (u32, u32) = (25, 1);

/// A frame that is there at most so long after its time is of its time all the same: it was this host that was late.
const LATE_MAX: Duration = Duration::from_millis(100);
/// What share of that the frames behind it are due later: a stream that is slower than it says is followed.
const FOLLOWED: u32 = 16;

/// When frames are due: one period after the other, so that errors do not add up, and a stream that pauses is not
/// hurried afterwards.
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

    /// When the frame that is there `now` is due, or was.
    pub(crate) fn next(&mut self, now: Time) -> Time {
        let after = |period_ns| Duration::from_nanos((self.since_start as f64 * period_ns) as u64);
        let due = self.start.after(self.period_ns.map_or(Duration::ZERO, after));
        self.since_start += 1;
        match now.since(due) {
            late if self.period_ns.is_none() || late > LATE_MAX => {
                (self.start, self.since_start) = (now, 1);
                now
            }
            late => {
                self.start = self.start.after(late / FOLLOWED);
                due
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn pace(rate_hz: f64) -> Pace {
        let mut pace = Pace::default();
        pace.set_rate(rate_hz);
        pace
    }

    #[test]
    fn a_frame_a_little_late_is_of_its_time_and_one_after_a_pause_of_its_coming() {
        let mut pace = pace(50.0);
        let mut due = |at_ms: u64| pace.next(Time(at_ms * MS)).0;
        assert_eq!([due(1000), due(1000), due(1080)], [1000 * MS, 1020 * MS, 1040 * MS]);
        let next = due(1081);
        assert_eq!(next, 1060 * MS + 40 * MS / 16, "a share of what was late");
        assert_eq!([due(5000), due(5001)], [5000 * MS, 5020 * MS]);
    }

    #[test]
    fn a_stream_that_is_slower_than_it_says_is_followed() {
        let mut pace = pace(50.0);
        let dues: Vec<u64> = (0..1000).map(|frame| pace.next(Time(1_000 * MS + frame * 21 * MS)).0).collect();
        let gaps = dues[500..].windows(2).map(|two| two[1] - two[0]);
        assert!(gaps.clone().all(|gap| gap.abs_diff(21 * MS) < MS / 100), "{:?}", gaps.collect::<Vec<_>>());
    }

    #[test]
    fn without_a_rate_it_is_whenever_a_frame_is_there() {
        let mut pace = pace(0.0);
        assert_eq!([5, 6, 900].map(|at| pace.next(Time(at)).0), [5, 6, 900]);
    }
}
