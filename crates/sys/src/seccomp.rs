//! A filter of system calls with a *watcher*: a process that names each refused call on standard error
//! (`seccomp_unotify(2)`).
//!
//! ```text
//! confined process                     watcher
//! refused call ──► kernel ──────────► receives its number
//!   waits                              writes "… refused the system call NAME", once for each call
//!   gets EPERM  ◄── kernel ◄────────── answers
//! ```
//!
//! The watcher decides nothing: it answers every call with EPERM, and reads no memory of the confined process. It shares the
//! descriptors of the confined process until it has the kernel's listener, because a confined process could not send that
//! one. If the watcher is killed, refused calls return ENOSYS.

use crate::ioctl::answer;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
use rustix::process::{PidfdFlags, pidfd_open};
use rustix::time::Timespec;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// An instruction of a filter (`bpf(2)`, classic).
pub use libc::sock_filter as Instruction;

/// The value with which a filter hands a refused call to the watcher.
pub const REFUSE: u32 = libc::SECCOMP_RET_USER_NOTIF;

/// System calls of the watcher, for its own filter.
pub const WATCHER_CALLS: &[i64] = &[
    libc::SYS_ioctl,
    libc::SYS_ppoll,
    libc::SYS_writev,
    libc::SYS_exit_group,
    libc::SYS_rt_sigreturn,
    libc::SYS_restart_syscall,
];

/// The beginning of the line that names a refused call.
pub const REFUSED: &str = "outboard: the sandbox refused the system call ";

/// Descriptors of the watcher: the kernel's listener, and standard error of the confined process.
const LISTENER: RawFd = 0;
const ERRORS: RawFd = 2;
/// Numbers of calls that the watcher tells apart: it writes one line for each.
const CALLS: usize = 1024;
/// Most time for the start of the watcher.
const START_TIMEOUT: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

/// Applies `filter` to the calling thread, and to the threads and programs that it starts. The watcher, itself confined to
/// [`WATCHER_CALLS`] by `own_filter`, names the calls for which the filter returns [`REFUSE`]; `name` gives the name of a
/// number. Returns an error if this kernel has no listeners (before Linux 5.9), or if the filter of a parent process has one.
pub fn apply_watched(
    filter: &[Instruction],
    own_filter: &[Instruction],
    name: fn(usize) -> Option<&'static str>,
) -> io::Result<()> {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let own = pidfd_open(rustix::process::getpid(), PidfdFlags::empty())?;
    let intermediate = fork_with_descriptors(|| {
        // The watcher is no child of the confined program, which may count its children.
        let _ = fork_with_descriptors(|| watch(theirs.as_raw_fd(), own.as_raw_fd(), own_filter, name));
    })?;
    // SAFETY: the process is a child of this one; no status is asked for.
    answer(unsafe { libc::waitpid(intermediate, std::ptr::null_mut(), 0) })?;
    let applied = apply(filter, libc::SECCOMP_FILTER_FLAG_NEW_LISTENER);
    let listener = applied.as_ref().copied().unwrap_or(-1);
    // From here on, only calls of every filter: data on open descriptors.
    send(&ours, &listener.to_ne_bytes(), SendFlags::NOSIGNAL)?;
    let listener = applied?;
    poll(&mut [PollFd::new(&ours, PollFlags::IN)], Some(&START_TIMEOUT))?;
    // SAFETY: the kernel made this descriptor for this process; the watcher, if it runs, has copied it by now.
    drop(unsafe { OwnedFd::from_raw_fd(listener) });
    Ok(())
}

/// Applies a filter to the calling thread. Returns the kernel's answer.
fn apply(filter: &[Instruction], flags: libc::c_ulong) -> io::Result<i32> {
    let length = u16::try_from(filter.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let program = libc::sock_fprog { len: length, filter: filter.as_ptr().cast_mut() };
    rustix::thread::set_no_new_privs(true)?;
    // SAFETY: the kernel copies the program, which lives through the call, and only reads it.
    let result =
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program) };
    answer(result as libc::c_int)
}

/// Runs `work` in a new process with a copy of the memory, and with the same table of descriptors (`clone(2)`,
/// CLONE_FILES). Returns its process id. `work` must not allocate: another thread may have held the allocator's lock.
fn fork_with_descriptors(work: impl FnOnce()) -> io::Result<libc::pid_t> {
    let flags = libc::c_ulong::try_from(libc::CLONE_FILES | libc::SIGCHLD).map_err(io::Error::other)?;
    // SAFETY: without CLONE_VM the new process has its own copy of the stack and of all memory, as after `fork(2)`.
    match answer(unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) } as libc::c_int)? {
        0 => {
            work();
            // SAFETY: the process ends without destructors, which would close the descriptors of the other one.
            unsafe { libc::_exit(0) }
        }
        process => Ok(process),
    }
}

/// The watcher of `process`, a pidfd. Allocates nothing, and returns only on an error.
fn watch(line: RawFd, process: RawFd, own_filter: &[Instruction], name: fn(usize) -> Option<&'static str>) {
    // SAFETY: the descriptors stay open: the confined process closes them after the answer, and this process never.
    let [line, process] = [line, process].map(|number| unsafe { BorrowedFd::borrow_raw(number) });
    // With the shared descriptors, this process would hide the end of a confined process that is killed now.
    let mut waits = [PollFd::new(&line, PollFlags::IN), PollFd::new(&process, PollFlags::IN)];
    if poll(&mut waits, None).is_err() || waits[0].revents().is_empty() {
        return;
    }
    let mut number = [0; size_of::<RawFd>()];
    let Ok((4, _)) = recv(line, &mut number[..], RecvFlags::empty()) else { return };
    let listener = RawFd::from_ne_bytes(number);
    // SAFETY: numbers alone. From here on, closing a descriptor closes it in this process only.
    let is_ready = listener >= 0 && unsafe { libc::unshare(libc::CLONE_FILES) } == 0;
    if !is_ready || send(line, b"k", SendFlags::NOSIGNAL).is_err() {
        return;
    }
    // SAFETY: numbers alone; this process uses no other descriptors after it.
    unsafe {
        libc::dup2(listener, LISTENER);
        libc::dup2(ERRORS, 1);
        libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0);
    }
    if apply(own_filter, 0).is_err() {
        return;
    }
    let mut named = [false; CALLS];
    while let Some(call) = next_refused() {
        let number = usize::try_from(call.data.nr).unwrap_or(CALLS);
        if named.get_mut(number).is_some_and(|is_named| !std::mem::replace(is_named, true)) {
            let words = [REFUSED, name(number).unwrap_or("without a name"), "\n"];
            let parts = words
                .map(|word| libc::iovec { iov_base: word.as_ptr().cast_mut().cast(), iov_len: word.len() });
            // SAFETY: the kernel only reads the three texts. A full pipe loses the line.
            unsafe { libc::writev(ERRORS, parts.as_ptr(), 3) };
        }
        let mut reply = libc::seccomp_notif_resp { id: call.id, val: 0, error: -libc::EPERM, flags: 0 };
        // SAFETY: the kernel reads the structure. An error means that the calling thread has ended.
        unsafe { libc::ioctl(LISTENER, libc::SECCOMP_IOCTL_NOTIF_SEND, &raw mut reply) };
    }
}

/// Waits for the next refused call; `None` when the confined process and all that it started have ended.
fn next_refused() -> Option<libc::seccomp_notif> {
    loop {
        let mut waits = libc::pollfd { fd: LISTENER, events: libc::POLLIN, revents: 0 };
        // SAFETY: the structure lives through the call.
        let result = unsafe { libc::ppoll(&raw mut waits, 1, std::ptr::null(), std::ptr::null()) };
        if result > 0 && waits.revents & libc::POLLIN == 0 {
            return None;
        }
        // SAFETY: all fields are numbers, for which 0 is valid; the kernel demands zeros.
        let mut call: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel fills the structure, which lives through the call. An error means that the calling thread was
        // interrupted, or has ended.
        if unsafe { libc::ioctl(LISTENER, libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut call) } == 0 {
            return Some(call);
        }
    }
}
