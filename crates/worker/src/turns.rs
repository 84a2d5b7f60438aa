//! Adapts the time slice of a worker process to its processor use.
//!
//! A worker starts with short slices ([`sys::thread::be_prompt`]), so that a keystroke does not wait for busier tasks.
//! A worker that used the processor all the time with short slices would always run before tasks with longer slices,
//! such as the kernel threads that deliver device input. The broker therefore lengthens the slice with the use. The
//! worker's share stays the same, but it yields to tasks that wake up and use less, and its own wake-up does not
//! interrupt them ([`sys::thread::set_turn_of`]). The broker measures the use from outside, so a worker cannot falsify
//! it.

use std::time::{Duration, Instant};
use sys::thread::{LONGEST_TURN, PROMPT_TURN};

/// Interval of the measurements.
const LOOK: Duration = Duration::from_millis(100);
/// Processor time per interval without effect. Use beyond it lengthens the slice.
const FREE: Duration = Duration::from_millis(10);

/// State of one worker.
pub(super) struct Turns {
    /// Time of the last measurement, and processor time used until then, nanoseconds.
    looked: (Instant, u64),
    turn: Duration,
}

impl Turns {
    /// Starts for a new worker.
    pub(super) fn new(now: Instant) -> Turns {
        Turns { looked: (now, 0), turn: PROMPT_TURN }
    }

    /// Returns the new time slice, if it changes. `used_ns`: processor time since the start.
    pub(super) fn judge(&mut self, used_ns: impl FnOnce() -> Option<u64>, now: Instant) -> Option<Duration> {
        let since = now.duration_since(self.looked.0);
        if since < LOOK {
            return None;
        }
        let used_ns = used_ns()?;
        let share = used_ns.saturating_sub(self.looked.1) as f64 / since.as_nanos() as f64;
        self.looked = (now, used_ns);
        let turn = (PROMPT_TURN + LOOK.mul_f64(share).saturating_sub(FREE)).min(LONGEST_TURN);
        // Small changes are ignored.
        let is_other = turn >= self.turn * 2 || turn * 2 <= self.turn;
        is_other.then(|| {
            self.turn = turn;
            turn
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Measures a worker that uses `percent` of a processor every 100 ms; returns the slices.
    fn adjusted(turns: &mut Turns, now: &mut Instant, used_ns: &mut u64, percent: u64) -> Option<Duration> {
        *now += LOOK;
        *used_ns += LOOK.as_nanos() as u64 * percent / 100;
        turns.judge(|| Some(*used_ns), *now)
    }

    #[test]
    fn a_busy_worker_gets_long_slices_until_its_use_falls() {
        let (mut now, mut used_ns) = (Instant::now(), 0);
        let mut turns = Turns::new(now);
        let mut adjusted = |percent| adjusted(&mut turns, &mut now, &mut used_ns, percent);
        assert_eq!(adjusted(3), None, "as short as it begins");
        assert_eq!(adjusted(10), None);
        assert_eq!(adjusted(20), Some(PROMPT_TURN + Duration::from_millis(10)));
        assert_eq!(adjusted(25), None, "hardly longer");
        assert_eq!(adjusted(400), Some(LONGEST_TURN), "several threads");
        assert_eq!(adjusted(100), None);
        assert_eq!(adjusted(0), Some(PROMPT_TURN));
    }

    #[test]
    fn it_is_looked_seldom_and_one_that_is_gone_is_left_alone() {
        let now = Instant::now();
        let mut turns = Turns::new(now);
        assert_eq!(turns.judge(|| panic!("too soon"), now + LOOK / 2), None);
        assert_eq!(turns.judge(|| None, now + LOOK), None);
        let all = turns.judge(|| Some(LOOK.as_nanos() as u64), now + LOOK);
        assert_eq!(all, Some(PROMPT_TURN + LOOK - FREE));
    }
}
