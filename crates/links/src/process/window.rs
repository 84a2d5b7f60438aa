//! How many messages of a run may be on their way at once.
//!
//! More of them keep more processes busy, and make each wait for those before it: N (section 6.9.2) found the time of
//! a frame to grow tenfold with the slots it could use. By Little's law what is on its way is the flow's rate times
//! the time it takes, so the window that keeps that time is the rate times the latency wanted.

use contract::Time;
use std::time::Duration;

/// The latency that `auto` keeps to, inside the host.
const LATENCY: Duration = Duration::from_millis(2);
/// Most messages on their way by `auto`.
const AUTO_MAX: usize = 32;
/// A gap between messages counts for this share of the rate.
const WEIGHT: f64 = 1.0 / 16.0;

/// Messages on their way: as the user says, or by the flow's rate.
#[derive(Debug)]
pub(super) struct Window {
    fixed: Option<usize>,
    /// So that every process may have one, and one may come.
    least: usize,
    last: Option<Time>,
    /// Mean time from message to message.
    gap_ns: f64,
}

impl Window {
    pub(super) fn new(fixed: Option<usize>, stages: usize) -> Window {
        let least = (stages + 1).min(AUTO_MAX);
        Window { fixed, least, last: None, gap_ns: LATENCY.as_nanos() as f64 }
    }

    /// A message came; gives the window.
    pub(super) fn note(&mut self, now: Time) -> usize {
        if let Some(last) = self.last.replace(now) {
            let gap = now.since(last).min(Duration::from_secs(1)).as_nanos() as f64;
            self.gap_ns += (gap - self.gap_ns) * WEIGHT;
        }
        self.messages()
    }

    /// The window.
    pub(super) fn messages(&self) -> usize {
        let wanted = (LATENCY.as_nanos() as f64 / self.gap_ns.max(1.0)).ceil() as usize;
        self.fixed.unwrap_or(wanted.clamp(self.least, AUTO_MAX))
    }

    /// The largest it may become.
    pub(super) fn most(&self) -> usize {
        self.fixed.unwrap_or(AUTO_MAX)
    }

    /// Why it stands where it does; `None` if the user set it.
    pub(super) fn why(&self) -> Option<String> {
        let rate = 1e9 / self.gap_ns.max(1.0);
        self.fixed.is_none().then(|| format!("{rate:.0} messages/s, none to wait longer than {LATENCY:?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at_rate(hz: u64, stages: usize) -> usize {
        let mut window = Window::new(None, stages);
        (0..1000).map(|index| window.note(Time(index * 1_000_000_000 / hz))).last().unwrap()
    }

    #[test]
    fn it_follows_the_rate_between_its_borders() {
        assert_eq!(at_rate(60, 1), 2, "a slow flow has one on its way and one to come");
        assert_eq!(at_rate(60, 8), 9, "and no process idle for want of a slot");
        assert_eq!(at_rate(5000, 1), 10);
        assert_eq!(at_rate(1_000_000, 1), AUTO_MAX);
        let mut fixed = Window::new(Some(3), 8);
        assert_eq!((fixed.note(Time(0)), fixed.note(Time(1)), fixed.most()), (3, 3, 3));
    }
}
