//! Paces the pictures of a file or pipe: computes the time at which each frame is due.

use crate::stream::Channel;
use contract::Time;
use std::time::Duration;

/// Frames per second of a file if neither the user nor the file gives a rate.
const FILE_HZ: f64 = 25.0;

/// A frame that arrives at most this late keeps its due time: the delay is this host's, not the stream's.
const LATE_MAX: Duration = Duration::from_millis(100);
/// The divisor of the delay that shifts the due times of the following frames. The shift lets the pace follow a stream
/// that is slower than its nominal rate.
const DRIFT_DIVISOR: u32 = 16;

/// Returns the frames per second if neither the user nor the stream gives a rate. The frames of a pipe are due on arrival: a live
/// source that is faster than any other rate would fill the pipe, and then wait.
pub(crate) fn rate_default(channel: &Channel) -> f64 {
    if channel.is_on_disk() { FILE_HZ } else { 0.0 }
}

/// The due times of frames.
///
/// Due times are multiples of the period from one start time, so rounding errors do not add up. After a pause longer
/// than `LATE_MAX` the start time is reset, so the pace does not hurry to catch up.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// `None`: each frame is due when it arrives.
    period_ns: Option<f64>,
    start: Time,
    frames_since_start: u64,
}

impl Pace {
    /// Sets the frames per second. At 0 each frame is due when it arrives.
    pub(crate) fn set_rate(&mut self, rate_hz: f64) {
        self.period_ns = (rate_hz > 0.0).then(|| 1e9 / rate_hz);
    }

    /// Returns the due time of the frame that arrives `now`. It may be in the past.
    pub(crate) fn next(&mut self, now: Time) -> Time {
        let after = |period_ns| Duration::from_nanos((self.frames_since_start as f64 * period_ns) as u64);
        let due = self.start.after(self.period_ns.map_or(Duration::ZERO, after));
        self.frames_since_start += 1;
        match now.since(due) {
            late if self.period_ns.is_none() || late > LATE_MAX => {
                (self.start, self.frames_since_start) = (now, 1);
                now
            }
            late => {
                self.start = self.start.after(late / DRIFT_DIVISOR);
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
    fn a_late_frame_keeps_its_due_time_and_a_pause_resets_the_start() {
        let mut pace = pace(50.0);
        let mut due = |at_ms: u64| pace.next(Time(at_ms * MS)).0;
        assert_eq!([due(1000), due(1000), due(1080)], [1000 * MS, 1020 * MS, 1040 * MS]);
        let next = due(1081);
        assert_eq!(next, 1060 * MS + 40 * MS / 16, "later by a share of the delay");
        assert_eq!([due(5000), due(5001)], [5000 * MS, 5020 * MS]);
    }

    #[test]
    fn the_pace_follows_a_stream_slower_than_its_nominal_rate() {
        let mut pace = pace(50.0);
        let dues: Vec<u64> = (0..1000).map(|frame| pace.next(Time(1_000 * MS + frame * 21 * MS)).0).collect();
        let gaps = dues[500..].windows(2).map(|two| two[1] - two[0]);
        assert!(gaps.clone().all(|gap| gap.abs_diff(21 * MS) < MS / 100), "{:?}", gaps.collect::<Vec<_>>());
    }

    #[test]
    fn without_a_rate_each_frame_is_due_on_arrival() {
        let mut pace = pace(0.0);
        assert_eq!([5, 6, 900].map(|at| pace.next(Time(at)).0), [5, 6, 900]);
    }
}
