//! An eventfd: how one thread wakes another that waits for descriptors.

use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// A wake-up that many threads may give and one waits for; clones are handles on the same one.
#[derive(Debug, Clone)]
pub struct Event {
    descriptor: Arc<OwnedFd>,
}

impl Event {
    /// A new event, not signalled.
    pub fn new() -> io::Result<Event> {
        let descriptor = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Event { descriptor: Arc::new(descriptor) })
    }

    /// Makes the descriptor readable.
    pub fn signal(&self) {
        // Fails only when the counter is full, which is signalled enough.
        let _ = rustix::io::write(&self.descriptor, &1u64.to_ne_bytes());
    }

    /// Takes the signal back; says whether there was one.
    pub fn clear(&self) -> bool {
        rustix::io::read(&self.descriptor, &mut [0; 8]).is_ok()
    }
}

/// One that another process made; it must not block.
impl From<OwnedFd> for Event {
    fn from(descriptor: OwnedFd) -> Event {
        Event { descriptor: Arc::new(descriptor) }
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
