//! The sound thread: it has the streams of a sound server or the devices of ALSA, and lives in the broker.
//!
//! Both libraries open files, load plug-ins and start threads, all of which a locked worker cannot do; and a worker that is
//! killed must not take the node of a program with it. So the worker gets shared memory and one end of a socket pair, the
//! *control socket*, and no right at the sound server:
//!
//! ```text
//! broker ─ sound thread ◄─ control socket ─► AudioPartner (worker)
//!            │  Player, Recorder ◄─ memory ─► RingWriter, SlotReader
//!            └─► PipeWire or ALSA
//! ```
//!
//! The broker keeps a copy of the worker's end, so a killed worker does not close the socket; the next worker continues with the
//! same thread. Meanwhile the player plays silence.
//!
//! | on the control socket | meaning |
//! |---|---|
//! | a byte from the thread | look at the memory: a quantum was recorded, the device went or returned |
//! | a byte from the worker | look at the memory: the recording is wanted, or not any more |
//! | end of the stream (`shutdown`, or all copies closed) | the other end is gone; the thread ends |

use super::memory::{Memory, Word};
use super::{Facts, Plan};
use contract::DeviceError;
use rustix::io::Errno;
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;
use sys::clock::boot_ns;
use sys::poller::Poller;

/// The time for a sound server to answer, before it counts as hung.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// The time between two attempts to find a sound server or a device again.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Wakes the worker.
#[derive(Debug, Clone)]
pub(super) struct Wake(Arc<OwnedFd>);

impl Wake {
    /// Writes a byte. A full socket wakes the worker already.
    pub(super) fn signal(&self) {
        let _ = rustix::io::write(&*self.0, &[0]);
    }
}

/// One end of the control socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Other {
    /// The other end is there.
    Here,
    /// It is gone, for good.
    Gone,
}

/// Removes the bytes that wait.
pub(super) fn clear(control: BorrowedFd<'_>) -> Other {
    let mut bytes = [0; 256];
    loop {
        match rustix::io::read(control, &mut bytes) {
            Ok(0) => return Other::Gone,
            Ok(_) | Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Other::Here,
            Err(_) => return Other::Gone,
        }
    }
}

/// The thread's end: the shared memory and the control socket.
#[derive(Debug, Clone)]
pub(super) struct ThreadEnd {
    pub(super) memory: Arc<Memory>,
    control: Arc<OwnedFd>,
}

impl ThreadEnd {
    pub(super) fn wake(&self) -> Wake {
        Wake(self.control.clone())
    }

    pub(super) fn control(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }

    /// Removes the bytes of the worker.
    pub(super) fn clear(&self) -> Other {
        clear(self.control())
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
        let until_ns = boot_ns() + RETRY_INTERVAL.as_nanos() as u64;
        let Ok(mut poller) = Poller::new() else { return false };
        loop {
            if self.clear() == Other::Gone {
                return false;
            }
            let left = Duration::from_nanos(until_ns.saturating_sub(boot_ns()));
            poller.register(self.control(), true, false);
            if left.is_zero() || poller.wait(Some(left)).is_err() {
                return left.is_zero();
            }
        }
    }
}

/// Reports once that the streams exist, or that they cannot.
#[derive(Debug)]
pub(super) struct Started(Option<SyncSender<Result<Facts, DeviceError>>>);

impl Started {
    /// Reports the first result; later ones change nothing.
    pub(super) fn report(&mut self, result: Result<Facts, DeviceError>) {
        if let Some(sender) = self.0.take() {
            let _ = sender.send(result);
        }
    }

    /// Returns true if nothing was reported yet: an error then ends the thread.
    pub(super) fn is_pending(&self) -> bool {
        self.0.is_some()
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
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (worker, thread) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let descriptor = Memory::create()?;
    let memory = Arc::new(Memory::map(&descriptor)?);
    Ok((ThreadEnd { memory, control: Arc::new(thread) }, vec![worker, descriptor]))
}

/// Starts a sound thread and waits until its streams exist.
pub(super) fn start(
    plan: Plan,
    run: fn(&Plan, &ThreadEnd, &mut Started),
) -> Result<(Facts, Running), DeviceError> {
    let failed = |error| super::os("starting the sound thread".into(), error, None);
    let (end, descriptors) = ends().map_err(failed)?;
    let (sender, result) = sync_channel(1);
    let run = move || run(&plan, &end, &mut Started(Some(sender)));
    std::thread::Builder::new().name("sound".into()).spawn(run).map_err(failed)?;
    let facts = result.recv_timeout(START_TIMEOUT).map_err(|_| {
        let error = io::Error::from(io::ErrorKind::TimedOut);
        super::os("starting sound".into(), error, Some("is the sound server running? see `outboard doctor`"))
    })??;
    Ok((facts, Running { descriptors }))
}

/// Ends the thread of this control socket.
pub(super) fn release(control: BorrowedFd<'_>) {
    let _ = shutdown(control, Shutdown::Both);
}
