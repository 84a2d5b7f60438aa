//! The number of messages of a run that may be in flight at once.
//!
//! More messages in flight keep more processes busy and need fewer wake-ups, but each message waits for those
//! before it: the time of a frame grew tenfold with the slots in "Networked Device Driver Architecture (2012)",
//! 6.9.2. By Little's law, messages in flight = rate x latency, so the window for a target latency is the rate of
//! the flow times that latency. The default target is a few wake-ups long: messages of a slow flow go one by one,
//! those of a fast flow in batches that pay off.

use contract::Time;
use std::time::Duration;

/// Default target latency: a few times the cost of two wake-ups.
const LATENCY: Duration = Duration::from_micros(50);
/// Most messages in flight by default.
const AUTO_MAX: usize = 32;
/// Shortest time over which the rate is measured: waiting messages arrive in bursts.
const SPAN: Duration = Duration::from_millis(5);

/// The limit of messages in flight: fixed, or following the rate of the flow.
#[derive(Debug)]
pub(super) struct Window {
    most: usize,
    /// One message for every process.
    least: usize,
    /// Target latency; `None`: the limit is always `most`.
    latency: Option<Duration>,
    /// Start of the present measurement, and messages since.
    span: Option<(Time, u32)>,
    /// Mean time between messages in the last measurement.
    gap_ns: f64,
    /// The present limit.
    messages: usize,
}

impl Window {
    /// Takes the user's settings. If only `slots` is set, all of them are used.
    pub(super) fn new(slots: Option<usize>, latency: Option<Duration>, stages: usize) -> Window {
        let most = slots.unwrap_or(AUTO_MAX);
        let latency = latency.or(slots.is_none().then_some(LATENCY));
        let (least, gap_ns) = (stages.min(most), LATENCY.as_nanos() as f64);
        let mut window = Window { most, least, latency, span: None, gap_ns, messages: most };
        window.set();
        window
    }

    /// Counts a message and returns the present limit.
    pub(super) fn note(&mut self, now: Time) -> usize {
        if self.latency.is_none() {
            return self.messages;
        }
        let (started, count) = self.span.get_or_insert((now, 0));
        let elapsed = now.since(*started);
        if elapsed >= SPAN {
            self.gap_ns = elapsed.as_nanos() as f64 / f64::from(*count);
            (*started, *count) = (now, 1);
            self.set();
        } else {
            *count += 1;
        }
        self.messages
    }

    fn set(&mut self) {
        let within = |latency: Duration| (latency.as_nanos() as f64 / self.gap_ns.max(1.0)).ceil() as usize;
        self.messages =
            self.latency.map_or(self.most, |latency| within(latency).clamp(self.least, self.most));
    }

    /// The present limit.
    pub(super) fn messages(&self) -> usize {
        self.messages
    }

    /// The largest limit.
    pub(super) fn most(&self) -> usize {
        self.most
    }

    /// Explains the present limit; `None` if the user set it.
    pub(super) fn why(&self) -> Option<String> {
        let rate = 1e9 / self.gap_ns.max(1.0);
        self.latency.map(|latency| format!("{rate:.0} messages/s, none to wait longer than {latency:?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at_rate(hz: u64, stages: usize, latency: Option<Duration>, slots: Option<usize>) -> usize {
        let mut window = Window::new(slots, latency, stages);
        (0..100_000).map(|index| window.note(Time(index * 1_000_000_000 / hz))).last().unwrap()
    }

    #[test]
    fn the_window_follows_the_rate_within_its_limits() {
        assert_eq!(at_rate(60, 1, None, None), 1, "a slow flow has one in flight");
        assert_eq!(at_rate(60, 8, None, None), 8, "and no process is idle for lack of a slot");
        assert_eq!(at_rate(100_000, 1, None, None), 5);
        assert_eq!(at_rate(10_000_000, 1, None, None), AUTO_MAX);
    }

    #[test]
    fn the_window_keeps_the_user_s_limits() {
        let (slots, latency) = (Some(10), Some(Duration::from_millis(2)));
        assert_eq!(at_rate(60, 1, None, slots), 10, "so many slots are so many messages");
        assert_eq!(at_rate(1000, 1, latency, slots), 2, "and at most so many with a latency");
        assert_eq!(at_rate(1_000_000, 1, latency, slots), 10);
        assert_eq!(at_rate(5000, 1, latency, None), 10);
        assert_eq!(Window::new(slots, None, 8).why(), None);
    }

    #[test]
    fn a_burst_is_not_the_rate() {
        let mut window = Window::new(None, None, 1);
        let burst = |number: u64| (0..32).map(move |index| Time(number * 3_200_000 + index));
        assert_eq!((0..100).flat_map(burst).map(|at| window.note(at)).max(), Some(1));
    }
}
