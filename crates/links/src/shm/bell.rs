//! What a stage sleeps on: an eventfd of its own, which whoever is to wake it rings.
//!
//! A futex would need no descriptor, but to find the page of a word that processes share costs the kernel more than an
//! eventfd does, twice a hop (`docs/figures.md`, bare futexes and bare eventfds).

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::time::Timespec;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// One stage's bell. Who waits for it blocks in one call.
#[derive(Debug)]
pub(super) struct Bell(OwnedFd);

impl Bell {
    pub(super) fn new() -> io::Result<Bell> {
        Ok(Bell(eventfd(0, EventfdFlags::CLOEXEC)?))
    }

    /// Wakes who waits, or will.
    #[inline]
    pub(super) fn ring(&self) {
        // It blocks only behind 2^64 - 2 that nobody heard.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Until it is rung, or was since it was last heard, for so long at most; whether it was heard. A signal ends it, too:
    /// whoever waited looks what there is.
    #[inline]
    pub(super) fn wait(&self, timeout: Option<Duration>) -> bool {
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let is_rung =
            |timeout| poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&timeout)).is_ok_and(|n| n > 0);
        timeout.is_none_or(is_rung) && rustix::io::read(&self.0, &mut [0; 8]).is_ok()
    }
}

impl From<OwnedFd> for Bell {
    fn from(descriptor: OwnedFd) -> Bell {
        Bell(descriptor)
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_is_heard_by_who_waits_and_by_who_waits_next() {
        let bell = Bell::new().unwrap();
        bell.ring();
        bell.ring();
        assert!(bell.wait(None));
        assert!(!bell.wait(Some(Duration::from_millis(1))), "both were heard");
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(bell.wait(None)));
            bell.ring();
        });
    }
}
