//! How long a worker's turns at the processor are.
//!
//! A worker begins with short ones ([`sys::thread::be_prompt`]), so that a keystroke does not wait for who has more to do.
//! One that uses the processor all the time would by that be before everybody whose turns are longer, again and again: the
//! threads of the kernel that hand on what a device says are such. So its broker, which no worker deceives, has it take the
//! longer turns the more it uses: it gets as much as before, and makes way for who wakes and uses less. Nor does it interrupt
//! one of those when it wakes itself ([`sys::thread::set_turn_of`]).

use std::time::{Duration, Instant};
use sys::thread::{LONGEST_TURN, PROMPT_TURN};

/// Time between two looks at what a worker has used.
const LOOK: Duration = Duration::from_millis(100);
/// What it may use in that time in short turns. By what is more they are longer.
const FREE: Duration = Duration::from_millis(10);

/// What is known of one worker.
pub(super) struct Turns {
    /// When it was looked, and what it had used by then, nanoseconds.
    looked: (Instant, u64),
    turn: Duration,
}

impl Turns {
    /// Of a worker that was started just now.
    pub(super) fn new(now: Instant) -> Turns {
        Turns { looked: (now, 0), turn: PROMPT_TURN }
    }

    /// How long its turns are from now on, if that changes. `used_ns`: processor time since it was started.
    pub(super) fn judge(&mut self, used_ns: impl FnOnce() -> Option<u64>, now: Instant) -> Option<Duration> {
        let since = now.duration_since(self.looked.0);
        if since < LOOK {
            return None;
        }
        let used_ns = used_ns()?;
        let share = used_ns.saturating_sub(self.looked.1) as f64 / since.as_nanos() as f64;
        self.looked = (now, used_ns);
        let turn = (PROMPT_TURN + LOOK.mul_f64(share).saturating_sub(FREE)).min(LONGEST_TURN);
        // What hardly differs need not be told.
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

    /// Looks every 100 ms at one that uses so many per cent; what it is told.
    fn told(turns: &mut Turns, now: &mut Instant, used_ns: &mut u64, percent: u64) -> Option<Duration> {
        *now += LOOK;
        *used_ns += LOOK.as_nanos() as u64 * percent / 100;
        turns.judge(|| Some(*used_ns), *now)
    }

    #[test]
    fn who_uses_much_takes_long_turns_until_it_uses_little() {
        let (mut now, mut used_ns) = (Instant::now(), 0);
        let mut turns = Turns::new(now);
        let mut told = |percent| told(&mut turns, &mut now, &mut used_ns, percent);
        assert_eq!(told(3), None, "as short as it begins");
        assert_eq!(told(10), None);
        assert_eq!(told(20), Some(PROMPT_TURN + Duration::from_millis(10)));
        assert_eq!(told(25), None, "hardly longer");
        assert_eq!(told(400), Some(LONGEST_TURN), "several threads");
        assert_eq!(told(100), None);
        assert_eq!(told(0), Some(PROMPT_TURN));
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
