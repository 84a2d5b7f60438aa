//! Sockets that the service manager made before it started this process (`sd_listen_fds(3)`).

use rustix::io::{FdFlags, fcntl_setfd};
use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// The first of them (`SD_LISTEN_FDS_START`).
const FIRST: RawFd = 3;
/// Most that are taken.
const SOCKETS_MAX: RawFd = 64;

static TAKEN: AtomicBool = AtomicBool::new(false);

/// The descriptors that the service manager handed to this very process (`LISTEN_PID`, `LISTEN_FDS`), given once and
/// closed on `exec`. None if there is no such manager. To be called before anything else is opened. An error says
/// that what the manager announced is not there.
pub fn take_sockets() -> io::Result<Vec<OwnedFd>> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<i32>().ok();
    let is_meant = number("LISTEN_PID") == Some(rustix::process::getpid().as_raw_nonzero().get());
    let count = number("LISTEN_FDS").filter(|_| is_meant).unwrap_or(0).clamp(0, SOCKETS_MAX);
    if count == 0 || TAKEN.swap(true, Ordering::AcqRel) {
        return Ok(Vec::new());
    }
    (FIRST..FIRST + count).map(take).collect()
}

fn take(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: `F_GETFD` asks about a number and touches no memory; one that is no descriptor is an error.
    if unsafe { libc::fcntl(number, libc::F_GETFD) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it is open, the manager handed it to this process to own (`sd_listen_fds(3)`), and `TAKEN` lets
    // nobody take it twice.
    let socket = unsafe { OwnedFd::from_raw_fd(number) };
    fcntl_setfd(&socket, FdFlags::CLOEXEC)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    #[test]
    fn without_a_manager_there_are_none() {
        assert!(super::take_sockets().unwrap().is_empty());
    }
}
