//! Descriptors that a process was started with.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

/// A second handle, not inherited further, on the open descriptor of this number. EBADF if there is none.
pub fn inherited(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: the number only goes to the kernel, which answers EBADF if it is no open descriptor.
    let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) };
    match copy {
        // SAFETY: the kernel has just made this descriptor, and nobody else knows of it.
        0.. => Ok(unsafe { OwnedFd::from_raw_fd(copy) }),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_open_is_handed_out_and_what_is_not_is_refused() {
        assert!(inherited(1).is_ok());
        for number in [-1, 1 << 20] {
            assert_eq!(inherited(number).unwrap_err().raw_os_error(), Some(libc::EBADF));
        }
    }
}
