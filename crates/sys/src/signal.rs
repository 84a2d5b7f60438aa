//! SIGINT and SIGTERM: the first is told, the second ends the process at once (`sigaction(2)`).

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// What a shell shows for a process that a signal ended: 128 and the signal's number.
const ENDED_BY_SIGNAL: libc::c_int = 128;

/// Readable once the first signal has come; never closed, since a handler may run at any time.
static TOLD: OnceLock<OwnedFd> = OnceLock::new();
static SIGNALLED: AtomicBool = AtomicBool::new(false);

/// The wish of the user, or of the system, that this process end. Children that it starts get the
/// system's own handling again.
#[derive(Debug)]
pub struct Termination {
    told: &'static OwnedFd,
}

impl Termination {
    /// Takes the two signals over for the whole process.
    pub fn take_over() -> io::Result<Termination> {
        let told = match TOLD.get() {
            Some(told) => told,
            None => {
                let fresh = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
                TOLD.get_or_init(|| fresh)
            }
        };
        for signal in [libc::SIGINT, libc::SIGTERM] {
            let handler = handle as extern "C" fn(libc::c_int);
            // SAFETY: all zeros is a valid sigaction: no flags, an empty mask.
            let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
            action.sa_sigaction = handler as libc::sighandler_t;
            action.sa_flags = libc::SA_RESTART;
            // SAFETY: the action lives through the call, and the handler calls only what may be called
            // in a handler (`signal-safety(7)`).
            if unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) } != 0 {
                return Err(io::Error::last_os_error());
            }
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

extern "C" fn handle(signal: libc::c_int) {
    if SIGNALLED.swap(true, Ordering::AcqRel) {
        // SAFETY: `_exit` may be called in a handler, and ends the process without running anything.
        unsafe { libc::_exit(ENDED_BY_SIGNAL + signal) };
    }
    if let Some(told) = TOLD.get() {
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
}
