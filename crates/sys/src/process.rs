//! Starting a program with a control descriptor, and what only the kernel knows of it.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

/// The descriptor that a module's control frames cross on.
const CONTROL: RawFd = 3;

/// Starts `command` with `control` as its descriptor 3. The program is killed when the thread that started it
/// ends (`PR_SET_PDEATHSIG(2const)`).
pub fn start_with_control(command: &mut Command, control: OwnedFd) -> io::Result<Child> {
    let (descriptor, parent) = (control.as_raw_fd(), std::process::id());
    let prepare = move || {
        // SAFETY: all of these may be called between fork and exec (`signal-safety(7)`); the descriptor is
        // open in the parent, which waits, and so in the child.
        let moved = unsafe {
            match descriptor {
                CONTROL => libc::fcntl(CONTROL, libc::F_SETFD, 0),
                other => libc::dup2(other, CONTROL),
            }
        };
        if moved < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: as above.
        let bound = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        if bound < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: as above.
        match unsafe { libc::getppid() } as u32 == parent {
            true => Ok(()),
            false => Err(io::Error::from_raw_os_error(libc::ESRCH)),
        }
    };
    // SAFETY: the closure allocates nothing and takes no lock.
    let child = unsafe { command.pre_exec(prepare) }.spawn();
    drop(control);
    child
}

/// Bytes that were written to a socket and are not read at its other end (`SIOCOUTQ`, `unix(7)`): 0 or more,
/// with what the kernel adds.
pub fn unread_bytes(socket: impl AsFd) -> io::Result<usize> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the descriptor is open, and the kernel writes one int, which lives through the call.
    let result = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    match result {
        0 => Ok(usize::try_from(bytes).unwrap_or(0)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The version of landlock that this kernel has and lets be used; `None` if it has none.
pub fn landlock_version() -> Option<u32> {
    const VERSION: libc::c_ulong = 1;
    // SAFETY: with this flag, no attributes and no size, the kernel only answers a number.
    let version =
        unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0usize, VERSION) };
    u32::try_from(version).ok().filter(|version| *version > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    #[test]
    fn the_program_finds_its_control_descriptor() {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        let mut command = Command::new("/bin/sh");
        let mut child = start_with_control(command.args(["-c", "head -c 5 <&3 >&3"]), theirs).unwrap();
        let mut ours = UnixStream::from(ours);
        ours.write_all(b"hello").unwrap();
        let mut answer = Vec::new();
        ours.read_to_end(&mut answer).unwrap();
        assert_eq!(answer, b"hello");
        assert!(child.wait().unwrap().success());
    }

    #[test]
    fn unread_bytes_are_counted_until_they_are_read() {
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        assert_eq!(unread_bytes(&ours).unwrap(), 0);
        ours.write_all(b"abc").unwrap();
        assert!(unread_bytes(&ours).unwrap() > 0);
        theirs.read_exact(&mut [0; 3]).unwrap();
        assert_eq!(unread_bytes(&ours).unwrap(), 0);
    }
}
