//! Starts a program with given descriptors, and queries the kernel about processes.

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

/// The first descriptor number after the standard ones.
const FIRST: RawFd = 3;

/// Starts `command` with the descriptors `given`, numbered from 3, and no others, in a session of its own, without a terminal
/// (`setsid(2)`).
/// The kernel kills the program when the thread that started it exits (`PR_SET_PDEATHSIG(2const)`).
pub fn start_with(command: &mut Command, given: Vec<OwnedFd>) -> io::Result<Child> {
    // The pipe that reports a failed start must not use one of the target numbers.
    let end = FIRST + given.len() as RawFd;
    let mut places = Vec::new();
    while let Some(descriptor) = given.first() {
        let place = rustix::io::fcntl_dupfd_cloexec(descriptor, FIRST)?;
        if place.as_raw_fd() >= end {
            break;
        }
        places.push(place);
    }
    let parent = std::process::id();
    let mut numbers: Vec<RawFd> = given.iter().map(AsRawFd::as_raw_fd).collect();
    let prepare = move || {
        // SAFETY: all of these calls are allowed between fork and exec (`signal-safety(7)`). The descriptors
        // are open in the parent, which waits, and so in the child. Move them out of each other's way first,
        // then to their final numbers.
        for number in &mut numbers {
            // SAFETY: as above.
            *number = check(unsafe { libc::fcntl(*number, libc::F_DUPFD_CLOEXEC, end) })?;
        }
        for (place, number) in (FIRST..).zip(&numbers) {
            // SAFETY: as above.
            check(unsafe { libc::dup2(*number, place) })?;
        }
        // Descriptors that this process inherited itself. Those that the start of the program still needs close with it, too.
        // A kernel before Linux 5.11 has no such flag.
        // SAFETY: as above.
        unsafe { libc::syscall(libc::SYS_close_range, end, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
        // SAFETY: as above.
        check(unsafe { libc::setsid() })?;
        // SAFETY: as above.
        check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) })?;
        // SAFETY: as above.
        match unsafe { libc::getppid() } as u32 == parent {
            true => Ok(()),
            false => Err(io::Error::from_raw_os_error(libc::ESRCH)),
        }
    };
    // SAFETY: the closure allocates nothing and takes no lock.
    let child = unsafe { command.pre_exec(prepare) }.spawn();
    drop((given, places));
    child
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    match result {
        0.. => Ok(result),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The number of bytes written to a socket and not yet read by the other end (`SIOCOUTQ`, `unix(7)`). It
/// includes the kernel's overhead, but is 0 if all is read.
pub fn unread_bytes(socket: impl AsFd) -> io::Result<usize> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the descriptor is open, and the kernel writes one int, which lives through the call.
    let result = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    match result {
        0 => Ok(usize::try_from(bytes).unwrap_or(0)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The version of landlock that this kernel supports and has enabled; `None` without it.
pub fn landlock_version() -> Option<u32> {
    const VERSION: libc::c_ulong = 1;
    // SAFETY: with this flag, no attributes and no size, the kernel only returns a number.
    let version =
        unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0usize, VERSION) };
    u32::try_from(version).ok().filter(|version| *version > 0)
}

/// Returns true if this process and the programs that it starts may have no memory that is writable and executable
/// (`PR_SET_MDWE(2const)`, or a filter of the service manager).
pub fn denies_code() -> bool {
    let protection = ProtFlags::READ | ProtFlags::WRITE | ProtFlags::EXEC;
    let bytes = rustix::param::page_size();
    // SAFETY: the kernel chooses the place of the new mapping.
    match unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, protection, MapFlags::PRIVATE) } {
        Ok(start) => {
            // SAFETY: nothing else knows the mapping.
            let _ = unsafe { munmap(start, bytes) };
            false
        }
        Err(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    /// Not a test of its own: the next one starts it, because a process cannot get the right back.
    #[test]
    fn process_without_code() {
        const PR_SET_MDWE: libc::c_int = 65;
        if std::env::var_os("OUTBOARD_TEST_CODE").is_none() {
            return;
        }
        // SAFETY: the call takes numbers alone.
        let set = unsafe { libc::prctl(PR_SET_MDWE, 1, 0, 0, 0) };
        assert!(set != 0 || denies_code());
        // Before Linux 6.3 the kernel does not know it.
        eprintln!("{}", if set == 0 { "denied" } else { "SKIPPED: this kernel has no PR_SET_MDWE" });
    }

    #[test]
    fn a_process_knows_whether_its_programs_may_make_code() {
        assert!(!denies_code());
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "process::tests::process_without_code", "--nocapture"]);
        let ended = command.env("OUTBOARD_TEST_CODE", "1").output().unwrap();
        let printed = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(printed.contains("denied") || printed.contains("SKIPPED"), "{printed}");
    }

    #[test]
    fn a_program_gets_its_descriptors_from_number_3_on() {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        let mut command = Command::new("/bin/sh");
        let given = vec![theirs, std::fs::File::open("/dev/zero").unwrap().into()];
        let mut child =
            start_with(command.args(["-c", "head -c 5 <&3 >&3; head -c 1 <&4 >&3"]), given).unwrap();
        let mut ours = UnixStream::from(ours);
        ours.write_all(b"hello").unwrap();
        let mut answer = Vec::new();
        ours.read_to_end(&mut answer).unwrap();
        assert_eq!(answer, b"hello\0");
        assert!(child.wait().unwrap().success());
    }

    #[test]
    fn a_program_gets_no_descriptor_that_this_process_inherited() {
        let leaked = std::fs::File::open("/dev/zero").unwrap();
        rustix::io::fcntl_setfd(&leaked, rustix::io::FdFlags::empty()).unwrap();
        let mut command = Command::new("/bin/ls");
        command.arg("/proc/self/fd").stdout(std::process::Stdio::piped());
        let listed = start_with(&mut command, Vec::new()).unwrap().wait_with_output().unwrap().stdout;
        // The fourth is the directory itself.
        assert_eq!(String::from_utf8(listed).unwrap(), "0\n1\n2\n3\n");
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
