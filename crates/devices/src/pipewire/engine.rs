//! The picture thread: it has the node of a camera at the PipeWire server, and lives in the broker
//! ([`helper_thread`](crate::helper_thread)).
//!
//! ```text
//! CameraPartner (worker) ◄─ control socket ─► picture thread (broker) ─► PipeWire ─► programs
//!        └─────────────── Pictures ─────────────────┘
//! ```

use super::memory::{Pictures, Word};
use crate::helper_thread::{ControlEnd, Other};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

/// The thread's end: the shared memory and the control socket.
#[derive(Debug, Clone)]
pub(super) struct ThreadEnd {
    pub(super) memory: Arc<Pictures>,
    control: ControlEnd,
}

impl ThreadEnd {
    pub(super) fn control(&self) -> BorrowedFd<'_> {
        self.control.descriptor()
    }

    /// Removes the bytes of the worker.
    pub(super) fn clear(&self) -> Other {
        self.control.clear()
    }

    /// Tells the worker whether a program takes the pictures.
    pub(super) fn set_wanted(&self, is_wanted: bool) {
        if self.memory.is(Word::IsWanted) != is_wanted {
            self.memory.store(Word::IsWanted, is_wanted.into());
            self.control.wake().signal();
        }
    }

    /// Waits before the next attempt. Returns false if the worker's end is gone.
    pub(super) fn wait_to_retry(&self) -> bool {
        self.control.wait_to_retry()
    }
}

/// Makes both ends of the shared memory and of the control socket; the worker's are the socket and the memory.
pub(super) fn ends() -> io::Result<(ThreadEnd, Vec<OwnedFd>)> {
    let (control, worker) = ControlEnd::pair()?;
    let descriptor = Pictures::create()?;
    let memory = Arc::new(Pictures::map(&descriptor)?);
    Ok((ThreadEnd { memory, control }, vec![worker, descriptor]))
}
