//! The sound thread: it has the streams of a sound server or the devices of ALSA, and lives in the broker
//! ([`helper_thread`](crate::helper_thread)).
//!
//! ```text
//! broker ─ sound thread ◄─ control socket ─► AudioPartner (worker)
//!            │  Player, Recorder ◄─ memory ─► RingWriter, SlotReader
//!            └─► PipeWire or ALSA
//! ```
//!
//! While there is no worker, the player plays silence.

use super::memory::{Memory, Word};
use super::{Facts, Plan};
use crate::helper_thread::{self, ControlEnd, Wake};
use contract::DeviceError;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

pub(super) use crate::helper_thread::{Other, clear, release};

/// Reports once that the streams exist, or that they cannot.
pub(super) type Started = helper_thread::Started<Facts>;

/// The thread's end: the shared memory and the control socket.
#[derive(Debug, Clone)]
pub(super) struct ThreadEnd {
    pub(super) memory: Arc<Memory>,
    control: ControlEnd,
}

impl ThreadEnd {
    pub(super) fn wake(&self) -> Wake {
        self.control.wake()
    }

    pub(super) fn control(&self) -> BorrowedFd<'_> {
        self.control.descriptor()
    }

    /// Removes the bytes of the worker.
    pub(super) fn clear(&self) -> Other {
        self.control.clear()
    }

    /// Returns true while the worker wants recorded frames.
    pub(super) fn is_wanted(&self) -> bool {
        self.memory.load(Word::IsWanted) == 1
    }

    /// Tells the worker whether the device is there.
    pub(super) fn set_absent(&self, is_absent: bool) {
        if (self.memory.load(Word::IsAbsent) == 1) != is_absent {
            self.memory.store(Word::IsAbsent, is_absent.into());
            self.wake().signal();
        }
    }

    /// Waits before the next attempt. Returns false if the worker's end is gone.
    pub(super) fn wait_to_retry(&self) -> bool {
        self.control.wait_to_retry()
    }
}

/// A running sound thread, seen from the broker.
#[derive(Debug)]
pub(super) struct Running {
    /// The worker's end of the control socket, and the memory.
    pub(super) descriptors: Vec<OwnedFd>,
}

/// Makes both ends of the shared memory and of the control socket.
pub(super) fn ends() -> io::Result<(ThreadEnd, Vec<OwnedFd>)> {
    let (control, worker) = ControlEnd::pair()?;
    let descriptor = Memory::create()?;
    let memory = Arc::new(Memory::map(&descriptor)?);
    Ok((ThreadEnd { memory, control }, vec![worker, descriptor]))
}

/// Starts a sound thread and waits until its streams exist.
pub(super) fn start(
    plan: Plan,
    run: fn(&Plan, &ThreadEnd, &mut Started),
) -> Result<(Facts, Running), DeviceError> {
    let failed = |error| super::os("starting the sound thread".into(), error, None);
    let (end, descriptors) = ends().map_err(failed)?;
    let advice = "is the sound server running? see `outboard doctor`";
    let facts = helper_thread::start("sound", advice, move |started| run(&plan, &end, started))?;
    Ok((facts, Running { descriptors }))
}
