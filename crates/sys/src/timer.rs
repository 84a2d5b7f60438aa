//! A timer of the boot clock (`timerfd_create(2)`, `CLOCK_BOOTTIME`), which also counts the time of a suspend.

use crate::poller::Poller;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use rustix::time::{timerfd_create, timerfd_settime};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

const NS: u64 = 1_000_000_000;

/// A timer whose descriptor is readable from its time on, until it is set again.
#[derive(Debug)]
pub struct BootTimer {
    timer: OwnedFd,
    set_ns: u64,
}

impl BootTimer {
    /// A timer that is not set.
    pub fn new() -> io::Result<BootTimer> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(BootTimer { timer: timerfd_create(TimerfdClockId::Boottime, flags)?, set_ns: 0 })
    }

    /// Sets the timer to this time of the boot clock, nanoseconds; 0 ends it.
    pub fn set(&mut self, at_ns: u64) -> io::Result<()> {
        if at_ns == self.set_ns {
            return Ok(());
        }
        let it_value = Timespec {
            tv_sec: i64::try_from(at_ns / NS).unwrap_or(i64::MAX),
            tv_nsec: (at_ns % NS).cast_signed(),
        };
        let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
        timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &Itimerspec { it_interval, it_value })?;
        self.set_ns = at_ns;
        Ok(())
    }

    /// Registers the timer for the next wait.
    pub fn register(&self, poller: &mut Poller) {
        poller.register(self.timer.as_fd(), true, false);
    }
}

impl AsFd for BootTimer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}

/// A wait that is at least this long ends at its time even if the host is suspended meanwhile.
const LONG: Duration = Duration::from_secs(1);

/// Waits of a thread that must notice a suspend at once. The boot clock runs while the host is suspended, but the timeouts of
/// waits do not.
#[derive(Debug)]
pub struct Sleeper {
    timer: Option<BootTimer>,
}

impl Default for Sleeper {
    fn default() -> Sleeper {
        // Without the timer, the suspend is noticed at the end of the wait.
        Sleeper { timer: BootTimer::new().ok() }
    }
}

impl Sleeper {
    /// Waits until a registered descriptor is ready, or for this time, which ends at `at_ns` of the boot clock.
    pub fn sleep(&mut self, wait: Duration, at_ns: u64, poller: &mut Poller) -> io::Result<()> {
        let mut timeout = Some(wait);
        if let Some(timer) = self.timer.as_mut().filter(|_| wait >= LONG)
            && timer.set(at_ns).is_ok()
        {
            timer.register(poller);
            timeout = None;
        }
        poller.wait(timeout).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::boot_ns;

    #[test]
    fn a_wait_ends_at_the_time_of_the_timer() {
        let (mut timer, mut poller) = (BootTimer::new().unwrap(), Poller::new().unwrap());
        for _ in 0..2 {
            let at = boot_ns() + 5_000_000;
            timer.set(at).unwrap();
            timer.register(&mut poller);
            assert!(poller.wait(None).unwrap());
            assert!(boot_ns() >= at);
        }
    }
}
