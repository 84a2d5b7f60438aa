//! How many messages of a run may be on their way at once.
//!
//! More of them keep more processes busy and make wake-ups rarer, and each waits for those before it: N (section 6.9.2)
//! found the time of a frame to grow tenfold with the slots it could use. By Little's law what is on its way is the
//! flow's rate times the time it takes, so the window that keeps that time is the rate times the latency wanted. Where
//! nobody wants one it is some wake-ups long: slow messages go one by one, and small ones in batches that pay.

use contract::Time;
use std::time::Duration;

/// The latency that `auto` keeps to: a few times what two wake-ups take.
const LATENCY: Duration = Duration::from_micros(50);
/// Most messages on their way by `auto`.
const AUTO_MAX: usize = 32;
/// The rate is that of so long at least: messages that wait come in bursts.
const SPAN: Duration = Duration::from_millis(5);

/// Messages on their way: so many, or, of so many at most, those that the flow's rate has within a latency.
#[derive(Debug)]
pub(super) struct Window {
    most: usize,
    /// So that every process may have one.
    least: usize,
    /// `None`: always the most.
    latency: Option<Duration>,
    /// Since when messages are counted, and how many came.
    span: Option<(Time, u32)>,
    /// Mean time from message to message, over the last span.
    gap_ns: f64,
    /// What follows of all that.
    messages: usize,
}

impl Window {
    /// What the user set of slots and latency. Slots alone are all used.
    pub(super) fn new(slots: Option<usize>, latency: Option<Duration>, stages: usize) -> Window {
        let most = slots.unwrap_or(AUTO_MAX);
        let latency = latency.or(slots.is_none().then_some(LATENCY));
        let (least, gap_ns) = (stages.min(most), LATENCY.as_nanos() as f64);
        let mut window = Window { most, least, latency, span: None, gap_ns, messages: most };
        window.set();
        window
    }

    /// A message came; gives the window.
    pub(super) fn note(&mut self, now: Time) -> usize {
        if self.latency.is_none() {
            return self.messages;
        }
        let (begun, count) = self.span.get_or_insert((now, 0));
        let gone = now.since(*begun);
        if gone >= SPAN {
            self.gap_ns = gone.as_nanos() as f64 / f64::from(*count);
            (*begun, *count) = (now, 1);
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

    /// The window.
    pub(super) fn messages(&self) -> usize {
        self.messages
    }

    /// The largest it may become.
    pub(super) fn most(&self) -> usize {
        self.most
    }

    /// Why it stands where it does; `None` if the user set it.
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
    fn it_follows_the_rate_between_its_borders() {
        assert_eq!(at_rate(60, 1, None, None), 1, "a slow flow has one on its way");
        assert_eq!(at_rate(60, 8, None, None), 8, "and no process idle for want of a slot");
        assert_eq!(at_rate(100_000, 1, None, None), 5);
        assert_eq!(at_rate(10_000_000, 1, None, None), AUTO_MAX);
    }

    #[test]
    fn it_keeps_to_what_the_user_wants() {
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
