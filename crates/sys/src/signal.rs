//! Signal handling (`sigaction(2)`). The first SIGINT, SIGTERM or SIGUSR2 requests termination; the second ends the
//! process at once. SIGUSR2 also requests a handover to the next program, where [`Termination::accept_handover`] was called. Every SIGHUP is reported.

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// The exit status of a process that a signal ended, as in a shell: 128 plus the signal's number.
const ENDED_BY_SIGNAL: libc::c_int = 128;

/// Readable after the first signal. It is never closed, because a handler may run at any time.
static TOLD: OnceLock<OwnedFd> = OnceLock::new();
static SIGNALLED: AtomicBool = AtomicBool::new(false);
static HANDS_OVER: AtomicBool = AtomicBool::new(false);
/// Readable after a SIGHUP. It is never closed either.
static HUNG_UP: OnceLock<OwnedFd> = OnceLock::new();

/// A request that this process terminates. Child processes get the default handling again.
#[derive(Debug)]
pub struct Termination {
    told: &'static OwnedFd,
}

impl Termination {
    /// Installs handlers for both signals.
    pub fn take_over() -> io::Result<Termination> {
        let told = descriptor(&TOLD)?;
        for signal in [libc::SIGINT, libc::SIGTERM] {
            take_over(signal, handle)?;
        }
        Ok(Termination { told })
    }

    /// Installs a handler for SIGUSR2 too: the service manager starts the next program at once.
    pub fn accept_handover(&self) -> io::Result<()> {
        take_over(libc::SIGUSR2, handle_handover)
    }

    /// Returns whether the signal was SIGUSR2.
    pub fn hands_over(&self) -> bool {
        HANDS_OVER.load(Ordering::Acquire)
    }

    /// Waits for one of the signals.
    pub fn wait(&self) {
        // An error means interruption by another signal.
        while !SIGNALLED.load(Ordering::Acquire) {
            let _ = poll(&mut [PollFd::new(self.told, PollFlags::IN)], None);
        }
    }
}

/// A request that this process reads its configuration file again (SIGHUP).
#[derive(Debug)]
pub struct Hangup {
    told: &'static OwnedFd,
}

impl Hangup {
    /// Installs a handler for the signal.
    pub fn take_over() -> io::Result<Hangup> {
        let told = descriptor(&HUNG_UP)?;
        take_over(libc::SIGHUP, handle_hangup)?;
        Ok(Hangup { told })
    }

    /// Returns true if a signal arrived since the last call.
    pub fn take(&self) -> bool {
        rustix::io::read(self.told, &mut [0; 8]).is_ok()
    }
}

/// Readable when [`Hangup::take`] would return true.
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
    // SAFETY: a zeroed sigaction is valid: no flags, an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as libc::sighandler_t;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: the action lives through the call, and the handlers call only functions that are allowed in a
    // handler (`signal-safety(7)`).
    match unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

extern "C" fn handle(signal: libc::c_int) {
    if SIGNALLED.swap(true, Ordering::AcqRel) {
        // SAFETY: `_exit` is allowed in a handler, and ends the process without running anything.
        unsafe { libc::_exit(ENDED_BY_SIGNAL + signal) };
    }
    tell(&TOLD);
}

extern "C" fn handle_handover(signal: libc::c_int) {
    HANDS_OVER.store(!SIGNALLED.load(Ordering::Acquire), Ordering::Release);
    handle(signal);
}

extern "C" fn handle_hangup(_: libc::c_int) {
    tell(&HUNG_UP);
}

fn tell(descriptor: &OnceLock<OwnedFd>) {
    if let Some(told) = descriptor.get() {
        let one = 1u64.to_ne_bytes();
        // SAFETY: `write` is allowed in a handler. The descriptor is never closed, the bytes live through the
        // call, and errno is restored for the interrupted code.
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
    fn the_first_signal_is_reported() {
        let termination = Termination::take_over().unwrap();
        // SAFETY: raises a signal that this process handles.
        unsafe { libc::raise(libc::SIGTERM) };
        termination.wait();
    }

    #[test]
    fn every_hangup_is_reported() {
        let hangup = Hangup::take_over().unwrap();
        for _ in 0..2 {
            assert!(!hangup.take());
            // SAFETY: raises a signal that this process handles.
            unsafe { libc::raise(libc::SIGHUP) };
            assert!(hangup.take());
        }
    }
}
