//! SIGINT and SIGTERM: the first is told, the second ends the process at once. SIGHUP is told each time
//! (`sigaction(2)`).

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// What a shell shows for a process that a signal ended: 128 and the signal's number.
const ENDED_BY_SIGNAL: libc::c_int = 128;

/// Readable once the first signal has come; never closed, since a handler may run at any time.
static TOLD: OnceLock<OwnedFd> = OnceLock::new();
static SIGNALLED: AtomicBool = AtomicBool::new(false);
/// Readable when a SIGHUP has come; never closed either.
static HUNG_UP: OnceLock<OwnedFd> = OnceLock::new();

/// The wish of the user, or of the system, that this process end. Children that it starts get the
/// system's own handling again.
#[derive(Debug)]
pub struct Termination {
    told: &'static OwnedFd,
}

impl Termination {
    /// Takes the two signals over for the whole process.
    pub fn take_over() -> io::Result<Termination> {
        let told = descriptor(&TOLD)?;
        for signal in [libc::SIGINT, libc::SIGTERM] {
            take_over(signal, handle)?;
        }
        Ok(Termination { told })
    }

    /// Waits until one of the two signals has come.
    pub fn wait(&self) {
        // An error is an interruption by another signal.
        while !SIGNALLED.load(Ordering::Acquire) {
            let _ = poll(&mut [PollFd::new(self.told, PollFlags::IN)], None);
        }
    }
}

/// The wish of the user, or of the system, that this process read its file again (SIGHUP).
#[derive(Debug)]
pub struct Hangup {
    told: &'static OwnedFd,
}

impl Hangup {
    /// Takes the signal over for the whole process.
    pub fn take_over() -> io::Result<Hangup> {
        let told = descriptor(&HUNG_UP)?;
        take_over(libc::SIGHUP, handle_hangup)?;
        Ok(Hangup { told })
    }

    /// Whether one came since the last call.
    pub fn take(&self) -> bool {
        rustix::io::read(self.told, &mut [0; 8]).is_ok()
    }
}

/// Readable when there is one to [`Hangup::take`].
impl AsFd for Hangup {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.told.as_fd()
    }
}

fn descriptor(of: &'static OnceLock<OwnedFd>) -> io::Result<&'static OwnedFd> {
    match of.get() {
        Some(told) => Ok(told),
        None => {
            let fresh = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            Ok(of.get_or_init(|| fresh))
        }
    }
}

pub(crate) fn take_over(signal: libc::c_int, handler: extern "C" fn(libc::c_int)) -> io::Result<()> {
    // SAFETY: all zeros is a valid sigaction: no flags, an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as libc::sighandler_t;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: the action lives through the call, and the handlers call only what may be called in a handler
    // (`signal-safety(7)`).
    match unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

extern "C" fn handle(signal: libc::c_int) {
    if SIGNALLED.swap(true, Ordering::AcqRel) {
        // SAFETY: `_exit` may be called in a handler, and ends the process without running anything.
        unsafe { libc::_exit(ENDED_BY_SIGNAL + signal) };
    }
    tell(&TOLD);
}

extern "C" fn handle_hangup(_: libc::c_int) {
    tell(&HUNG_UP);
}

fn tell(descriptor: &OnceLock<OwnedFd>) {
    if let Some(told) = descriptor.get() {
        let one = 1u64.to_ne_bytes();
        // SAFETY: `write` may be called in a handler; the descriptor is never closed, the bytes live through
        // the call, and what was interrupted finds its own errno again.
        unsafe {
            let errno = *libc::__errno_location();
            libc::write(told.as_raw_fd(), one.as_ptr().cast(), one.len());
            *libc::__errno_location() = errno;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_signal_is_told() {
        let termination = Termination::take_over().unwrap();
        // SAFETY: raises a signal that this process handles.
        unsafe { libc::raise(libc::SIGTERM) };
        termination.wait();
    }

    #[test]
    fn every_hangup_is_told() {
        let hangup = Hangup::take_over().unwrap();
        for _ in 0..2 {
            assert!(!hangup.take());
            // SAFETY: raises a signal that this process handles.
            unsafe { libc::raise(libc::SIGHUP) };
            assert!(hangup.take());
        }
    }
}
