//! An eventfd: wakes a thread that polls descriptors.

use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// A wakeup signal. Many threads may send it and one waits for it. Clones share the descriptor.
#[derive(Debug, Clone)]
pub struct Event {
    descriptor: Arc<OwnedFd>,
}

impl Event {
    /// Makes an event that is not signalled.
    pub fn new() -> io::Result<Event> {
        let descriptor = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Event { descriptor: Arc::new(descriptor) })
    }

    /// Makes the descriptor readable.
    pub fn signal(&self) {
        // It fails only when the counter is full, and then the event is signalled.
        let _ = rustix::io::write(&self.descriptor, &1u64.to_ne_bytes());
    }

    /// Clears the signal; returns true if it was set.
    pub fn clear(&self) -> bool {
        rustix::io::read(&self.descriptor, &mut [0; 8]).is_ok()
    }
}

/// An event of another process. It must be non-blocking.
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
