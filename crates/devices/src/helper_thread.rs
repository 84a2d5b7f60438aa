//! A thread of the broker that uses a library for a worker, and its connection to the worker.
//!
//! The libraries of sound and picture servers open files, load plug-ins and start threads, all of which a locked worker cannot do;
//! and a worker that is killed must not take the node of a program with it. So the worker gets shared memory and one end of a
//! socket pair, the *control socket*, and no right at the server:
//!
//! | on the control socket | meaning |
//! |---|---|
//! | a byte from the thread | look at the memory: there are data for the worker, or the state has changed |
//! | a byte from the worker | look at the memory: there are data for the thread, or the state has changed |
//! | end of the stream (`shutdown`, or all copies closed) | the other end is gone; the thread ends |
//!
//! The broker keeps a copy of the worker's end, so a killed worker does not close the socket; the next worker continues with the
//! same thread.

use crate::plain::os;
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

/// The time for a server to answer, before it counts as hung.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// The time between two attempts to find a server or a device again.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// The presence of the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Other {
    /// The other end is there.
    Here,
    /// It is gone, for good.
    Gone,
}

/// Removes the bytes that wait.
pub(crate) fn clear(control: BorrowedFd<'_>) -> Other {
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

/// Writes a byte, which wakes the other end. A full socket wakes it already.
pub(crate) fn signal(control: BorrowedFd<'_>) {
    let _ = rustix::io::write(control, &[0]);
}

/// Ends the thread of this control socket.
pub(crate) fn release(control: BorrowedFd<'_>) {
    let _ = shutdown(control, Shutdown::Both);
}

/// Wakes the worker.
#[derive(Debug, Clone)]
pub(crate) struct Wake(Arc<OwnedFd>);

impl Wake {
    /// Writes a byte.
    pub(crate) fn signal(&self) {
        signal(self.0.as_fd());
    }
}

/// The thread's end of the control socket.
#[derive(Debug, Clone)]
pub(crate) struct ControlEnd(Arc<OwnedFd>);

impl ControlEnd {
    /// Makes both ends; the worker's is the second.
    pub(crate) fn pair() -> io::Result<(ControlEnd, OwnedFd)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (worker, thread) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        Ok((ControlEnd(Arc::new(thread)), worker))
    }

    /// The socket.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Returns a waker of the worker.
    pub(crate) fn wake(&self) -> Wake {
        Wake(self.0.clone())
    }

    /// Removes the bytes of the worker.
    pub(crate) fn clear(&self) -> Other {
        clear(self.descriptor())
    }

    /// Waits before the next attempt. Returns false if the worker's end is gone.
    pub(crate) fn wait_to_retry(&self) -> bool {
        let until_ns = boot_ns() + RETRY_INTERVAL.as_nanos() as u64;
        let Ok(mut poller) = Poller::new() else { return false };
        loop {
            if self.clear() == Other::Gone {
                return false;
            }
            let left = Duration::from_nanos(until_ns.saturating_sub(boot_ns()));
            poller.register(self.descriptor(), true, false);
            if left.is_zero() || poller.wait(Some(left)).is_err() {
                return left.is_zero();
            }
        }
    }
}

/// Reports once that the thread has begun, or that it cannot.
#[derive(Debug)]
pub(crate) struct Started<T>(Option<SyncSender<Result<T, DeviceError>>>);

impl<T> Started<T> {
    /// Reports the first result; later ones change nothing.
    pub(crate) fn report(&mut self, result: Result<T, DeviceError>) {
        if let Some(sender) = self.0.take() {
            let _ = sender.send(result);
        }
    }

    /// Returns true if nothing was reported yet: an error then ends the thread.
    pub(crate) fn is_pending(&self) -> bool {
        self.0.is_some()
    }
}

/// Starts a thread and waits for its report. `advice` is for a server that does not answer.
pub(crate) fn start<T: Send + 'static>(
    name: &str,
    advice: &str,
    run: impl FnOnce(&mut Started<T>) + Send + 'static,
) -> Result<T, DeviceError> {
    let (sender, result) = sync_channel(1);
    let run = move || run(&mut Started(Some(sender)));
    let spawned = std::thread::Builder::new().name(name.into()).spawn(run);
    spawned.map_err(|error| os(format!("starting the thread for {name}"), error, None))?;
    result.recv_timeout(START_TIMEOUT).map_err(|_| {
        let error = io::Error::from(io::ErrorKind::TimedOut);
        os(format!("starting {name}"), error, Some(advice))
    })?
}
