//! Descriptors from the service manager: listening sockets, and a descriptor that the previous run of this service stored
//! (`sd_listen_fds(3)`, `sd_pid_notify_with_fds(3)`).

use rustix::io::{FdFlags, fcntl_setfd};
use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// The first descriptor (`SD_LISTEN_FDS_START`).
const FIRST: RawFd = 3;
/// The most descriptors accepted.
const SOCKETS_MAX: RawFd = 64;

static TAKEN: AtomicBool = AtomicBool::new(false);

/// The name of the stored descriptor. The names of sockets are those of their units.
pub const STORED: &str = "outboard-state";

/// The descriptors that the service manager passed to this process.
#[derive(Debug, Default)]
pub struct Passed {
    /// Listening sockets.
    pub sockets: Vec<OwnedFd>,
    /// The descriptor that the previous run stored as [`STORED`], if any.
    pub stored: Option<OwnedFd>,
}

/// Returns the descriptors that the service manager passed to this process (`LISTEN_PID`, `LISTEN_FDS`,
/// `LISTEN_FDNAMES`), once, and marks them close-on-exec. Returns none without such a manager. Call this before opening anything else.
/// It fails if an announced descriptor is not open.
pub fn take_passed() -> io::Result<Passed> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<i32>().ok();
    let is_meant = number("LISTEN_PID") == Some(rustix::process::getpid().as_raw_nonzero().get());
    let count = number("LISTEN_FDS").filter(|_| is_meant).unwrap_or(0).clamp(0, SOCKETS_MAX);
    if count == 0 || TAKEN.swap(true, Ordering::AcqRel) {
        return Ok(Passed::default());
    }
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let mut names = names.split(':');
    let mut passed = Passed::default();
    for number in FIRST..FIRST + count {
        let descriptor = take(number)?;
        match names.next() {
            Some(STORED) => passed.stored = Some(descriptor),
            _ => passed.sockets.push(descriptor),
        }
    }
    Ok(passed)
}

fn take(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: `F_GETFD` takes only a number and touches no memory; it fails if the number is not open.
    if unsafe { libc::fcntl(number, libc::F_GETFD) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it is open, the manager passed it to this process to own (`sd_listen_fds(3)`), and `TAKEN`
    // prevents a second call from taking it again.
    let socket = unsafe { OwnedFd::from_raw_fd(number) };
    fcntl_setfd(&socket, FdFlags::CLOEXEC)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    #[test]
    fn no_manager_means_no_descriptors() {
        let passed = super::take_passed().unwrap();
        assert!(passed.sockets.is_empty() && passed.stored.is_none());
    }
}
