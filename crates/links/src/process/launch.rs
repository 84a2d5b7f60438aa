//! Starting a module's process, here or by somebody else.
//!
//! A locked worker can start no process, wait for none and end none. So its broker has a thread do it, the
//! [`Warden`](super::warden::Warden): it starts what its broker allows and nothing else, whatever the worker says. They
//! talk through a socket pair (SOCK_SEQPACKET), and through one for each process, its *leash*.
//!
//! | the worker sends | |
//! |---|---|
//! | on the pair: [`Order`] | starts a process; with its leash, its standard error, its standard input and output if there are such, and its descriptors from 3 on |
//! | on a leash: the number of a processor (`u16`), or [`ANYWHERE`] | where the process may run |
//! | on a leash: the end (`shutdown`, or all let go) | kills it, and all of its group |
//!
//! | the warden sends on a leash, five bytes each | |
//! |---|---|
//! | [`STARTED`] and the number of the process, or [`REFUSED`] and the system's error | once, first |
//! | [`ENDED`] and its status as of `wait(2)` | last |

use super::member::Start;
use bytes::BytesMut;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, recv, send, shutdown, socketpair,
};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::Timespec;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{PoisonError, RwLock};
use sys::descriptor::send_with;

/// What a warden says first of a process, or instead.
pub(super) const STARTED: u8 = 0;
pub(super) const REFUSED: u8 = 1;
/// What it says last.
pub(super) const ENDED: u8 = 2;
/// Bytes of what it says.
pub(super) const SAID_BYTES: usize = 5;
/// A process may run on any processor that its warden may.
pub(super) const ANYWHERE: u16 = u16::MAX;
/// Bytes of the longest order.
pub(super) const ORDER_BYTES_MAX: usize = 64 << 10;
/// How long a warden may take to start a process.
const PATIENCE: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

/// Who starts the processes of this one, if it cannot do so itself.
static WARDEN: RwLock<Option<OwnedFd>> = RwLock::new(None);

/// From here on the processes of modules are started by the warden at the other end of this
/// ([`Wardship::socket`](super::Wardship::socket)), and by nobody else. The last call counts.
pub fn start_by(warden: OwnedFd) {
    *WARDEN.write().unwrap_or_else(PoisonError::into_inner) = Some(warden);
}

/// What a warden is asked to start. Its bytes: which standard descriptors come with it, then the words, each with a `u32`
/// of its length in front (little-endian).
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Order {
    pub(super) has_input: bool,
    pub(super) has_output: bool,
    pub(super) words: Vec<OsString>,
}

impl Order {
    pub(super) fn emit(&self) -> Vec<u8> {
        let mut bytes = vec![u8::from(self.has_input) | u8::from(self.has_output) << 1];
        for word in &self.words {
            bytes.extend((word.len() as u32).to_le_bytes());
            bytes.extend(word.as_bytes());
        }
        bytes
    }

    pub(super) fn parse(bytes: &[u8]) -> Option<Order> {
        let (flags @ 0..4, mut rest) = bytes.split_first().map(|(flags, rest)| (*flags, rest))? else {
            return None;
        };
        let mut words = Vec::new();
        while !rest.is_empty() {
            let (length, behind) = rest.split_first_chunk()?;
            let (word, behind) = behind.split_at_checked(u32::from_le_bytes(*length) as usize)?;
            words.push(OsString::from_vec(word.into()));
            rest = behind;
        }
        Some(Order { has_input: flags & 1 != 0, has_output: flags & 2 != 0, words })
    }
}

/// A process that was started.
pub(super) enum Started {
    /// By this one, with a descriptor that is readable once it has ended.
    Here(Child, OwnedFd),
    /// By a warden: its number, and its leash.
    There(u32, OwnedFd),
}

impl Started {
    /// Starts a process in a group of its own, so that whatever it starts can be ended with it. Gives its standard error.
    pub(super) fn start(start: Start<'_>, given: Vec<OwnedFd>) -> io::Result<(Started, OwnedFd)> {
        match &*WARDEN.read().unwrap_or_else(PoisonError::into_inner) {
            Some(warden) => Started::there(warden.as_fd(), start, given),
            None => {
                let (errors, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
                let Start { words, environment, input, output, .. } = start;
                let (child, pidfd) = here(words, environment, [input, output, Some(theirs)], given)?;
                Ok((Started::Here(child, pidfd), errors))
            }
        }
    }

    pub(super) fn there(
        warden: BorrowedFd<'_>,
        start: Start<'_>,
        given: Vec<OwnedFd>,
    ) -> io::Result<(Started, OwnedFd)> {
        let (leash, wardens) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let (errors, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
        let Start { words, input, output, .. } = start;
        let (has_input, has_output) = (input.is_some(), output.is_some());
        let order = Order { has_input, has_output, words: words.to_vec() }.emit();
        if order.len() > ORDER_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "more words than a warden takes"));
        }
        let ends = [wardens, theirs].into_iter().chain(input).chain(output).chain(given);
        send_with(warden, &order, &ends.collect::<Vec<_>>())?;
        poll(&mut [PollFd::new(&leash, PollFlags::IN)], Some(&PATIENCE))?;
        match said(&leash, RecvFlags::empty())? {
            Some((STARTED, number)) => Ok((Started::There(number.cast_unsigned(), leash), errors)),
            Some((REFUSED, error)) => Err(io::Error::from_raw_os_error(error)),
            Some(_) => Err(io::ErrorKind::InvalidData.into()),
            None => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    /// Its number.
    pub(super) fn id(&self) -> u32 {
        match self {
            Started::Here(child, _) => child.id(),
            Started::There(number, _) => *number,
        }
    }

    /// Readable once it has ended.
    pub(super) fn end(&self) -> BorrowedFd<'_> {
        match self {
            Started::Here(_, pidfd) => pidfd.as_fd(),
            Started::There(_, leash) => leash.as_fd(),
        }
    }

    /// Kills it, unless it was reaped, and all that it started.
    pub(super) fn kill(&self) {
        let _ = match self {
            Started::Here(child, _) => kill_process_group(Pid::from_child(child), Signal::KILL),
            Started::There(_, leash) => shutdown(leash, Shutdown::Write),
        };
    }

    /// How it ended, if it has; what it started is killed before its number can be another's.
    pub(super) fn reap(&mut self) -> Option<ExitStatus> {
        // Somebody else reaped it.
        let unknown = || Some(ExitStatus::from_raw(0));
        match self {
            Started::Here(child, _) => {
                let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
                child.try_wait().unwrap_or_else(|_| unknown())
            }
            Started::There(_, leash) => match said(leash, RecvFlags::DONTWAIT) {
                Ok(Some((ENDED, status))) => Some(ExitStatus::from_raw(status)),
                Ok(None) => None,
                _ => unknown(),
            },
        }
    }

    /// Has it run there: on one processor, or wherever `anywhere` says, which is where this process may.
    pub(super) fn run_on(&self, processor: Option<u16>, anywhere: &CpuSet) {
        // One that has gone needs no place, and who may not move others leaves them where they are.
        let _ = match self {
            Started::Here(child, _) => place(Pid::from_child(child), processor, anywhere),
            Started::There(_, leash) => {
                let word = processor.unwrap_or(ANYWHERE).to_le_bytes();
                send(leash, &word, SendFlags::NOSIGNAL | SendFlags::DONTWAIT).map(drop)
            }
        };
    }
}

/// Has a process run on one processor, or on all of `anywhere`.
pub(super) fn place(process: Pid, processor: Option<u16>, anywhere: &CpuSet) -> rustix::io::Result<()> {
    match processor.map(usize::from) {
        None => sched_setaffinity(Some(process), anywhere),
        Some(number) if number < CpuSet::MAX_CPU => {
            let mut one = CpuSet::new();
            one.set(number);
            sched_setaffinity(Some(process), &one)
        }
        Some(_) => Err(Errno::INVAL),
    }
}

/// What a warden says next; `None`: nothing now.
fn said(leash: &OwnedFd, flags: RecvFlags) -> io::Result<Option<(u8, i32)>> {
    let mut bytes = [0; SAID_BYTES];
    match recv(leash, &mut bytes[..], flags | RecvFlags::DONTWAIT) {
        Ok((SAID_BYTES, _)) => {
            let [kind, number @ ..] = bytes;
            Ok(Some((kind, i32::from_le_bytes(number))))
        }
        Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
        Err(Errno::AGAIN | Errno::INTR) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Starts a process of this one's own, with its standard descriptors (none is /dev/null) and those from 3 on.
pub(super) fn here(
    words: &[OsString],
    environment: Option<&[(OsString, OsString)]>,
    [input, output, errors]: [Option<OwnedFd>; 3],
    given: Vec<OwnedFd>,
) -> io::Result<(Child, OwnedFd)> {
    let (program, arguments) =
        words.split_first().ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no program"))?;
    let standard = |end: Option<OwnedFd>| end.map_or_else(Stdio::null, Stdio::from);
    let mut command = Command::new(program);
    command.args(arguments).stdin(standard(input)).stdout(standard(output)).stderr(standard(errors));
    command.process_group(0);
    if let Some(environment) = environment {
        command.env_clear().envs(environment.iter().map(|(name, value)| (name, value)));
    }
    let mut child = sys::process::start_with(&mut command, given)?;
    match pidfd_open(Pid::from_child(&child), PidfdFlags::empty()) {
        Ok(pidfd) => Ok((child, pidfd)),
        Err(error) => {
            let _ = child.kill();
            let _ = child.wait();
            Err(error.into())
        }
    }
}

/// An order as it comes, with its descriptors; `None`: nothing now.
pub(super) fn receive(socket: &OwnedFd) -> io::Result<Option<(Option<Order>, Vec<OwnedFd>)>> {
    let (mut bytes, mut given) = (BytesMut::new(), std::collections::VecDeque::new());
    match sys::descriptor::receive_with(socket, &mut bytes, ORDER_BYTES_MAX, Some(&mut given)) {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(_) => Ok(Some((Order::parse(&bytes), given.into()))),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}
