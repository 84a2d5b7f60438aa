//! Sockets from the service manager (`sd_listen_fds(3)`).

use rustix::io::{FdFlags, fcntl_setfd};
use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// The first descriptor (`SD_LISTEN_FDS_START`).
const FIRST: RawFd = 3;
/// The most descriptors accepted.
const SOCKETS_MAX: RawFd = 64;

static TAKEN: AtomicBool = AtomicBool::new(false);

/// Returns the descriptors that the service manager passed to this process (`LISTEN_PID`, `LISTEN_FDS`), once,
/// and marks them close-on-exec. Returns none without such a manager. Call this before opening anything else.
/// It fails if an announced descriptor is not open.
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
    fn no_manager_means_no_sockets() {
        assert!(super::take_sockets().unwrap().is_empty());
    }
}
