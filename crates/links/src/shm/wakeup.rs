//! The wake-up descriptor of a stage: an eventfd.
//!
//! A futex would need no descriptor, but the kernel needs longer to find the page of a shared futex than to signal
//! an eventfd, twice per hop (`docs/measurements/figures.md`, bare futexes and bare eventfds).

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::time::Timespec;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// Wake-up descriptor of one stage. Waiting blocks in one system call.
#[derive(Debug)]
pub(super) struct ShmWakeup(OwnedFd);

impl ShmWakeup {
    pub(super) fn new() -> io::Result<ShmWakeup> {
        Ok(ShmWakeup(eventfd(0, EventfdFlags::CLOEXEC)?))
    }

    /// Wakes the process that waits, or its next wait.
    #[inline]
    pub(super) fn wake(&self) {
        // A write blocks only if 2^64 - 2 signals are pending.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Waits for a signal, for at most `timeout`. Returns true if it consumed one. A signal handler also ends the
    /// wait: the caller checks for input afterwards.
    #[inline]
    pub(super) fn wait(&self, timeout: Option<Duration>) -> bool {
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let is_signalled =
            |timeout| poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&timeout)).is_ok_and(|n| n > 0);
        timeout.is_none_or(is_signalled) && rustix::io::read(&self.0, &mut [0; 8]).is_ok()
    }
}

impl From<OwnedFd> for ShmWakeup {
    fn from(descriptor: OwnedFd) -> ShmWakeup {
        ShmWakeup(descriptor)
    }
}

impl AsFd for ShmWakeup {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wakeup_ends_the_current_wait_or_the_next_one() {
        let wakeup = ShmWakeup::new().unwrap();
        wakeup.wake();
        wakeup.wake();
        assert!(wakeup.wait(None));
        assert!(!wakeup.wait(Some(Duration::from_millis(1))), "both signals were consumed");
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(wakeup.wait(None)));
            wakeup.wake();
        });
    }
}
