//! A request to stop a service: a flag and a wakeup, shared by all its threads.

use crate::event::Event;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Requests that a service stops. Clones share the request.
#[derive(Debug, Clone)]
pub struct Stop {
    requested: Arc<AtomicBool>,
    hands_over: Arc<AtomicBool>,
    wake: Event,
}

impl Stop {
    /// Makes a request that is not set.
    pub fn new() -> io::Result<Stop> {
        Ok(Stop { requested: Arc::default(), hands_over: Arc::default(), wake: Event::new()? })
    }

    /// Requests the stop.
    pub fn stop(&self) {
        self.requested.store(true, Ordering::Release);
        self.wake.signal();
    }

    /// Requests the stop, and that the service leaves its state to the next program.
    pub fn hand_over(&self) {
        self.hands_over.store(true, Ordering::Release);
        self.stop();
    }

    /// Returns true if the service leaves its state to the next program.
    pub fn hands_over(&self) -> bool {
        self.hands_over.load(Ordering::Acquire)
    }

    /// Returns true after the request.
    pub fn is_requested(&self) -> bool {
        self.requested.load(Ordering::Acquire)
    }

    /// Readable after the request.
    pub fn wakes(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}
