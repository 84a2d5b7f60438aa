//! Starts the process of a module, in this process or through a spawner.
//!
//! A locked worker can neither start nor wait for nor kill a process. A thread of its broker, the
//! [`SpawnerThread`](super::spawner::SpawnerThread), does so for it, and starts only programs that the broker
//! allowed. They communicate over a socket pair (SOCK_SEQPACKET), and over another one per process, its *handle*.
//!
//! | message from the worker | effect |
//! |---|---|
//! | on the socket pair: [`SpawnRequest::Start`] | starts a process; the message carries its handle, standard error, standard input and output if it has them, and its descriptors from 3 on |
//! | on the socket pair: [`SpawnRequest::Pass`] | sends bytes with descriptors over a Unix socket, without an address; the message carries a handle, the socket and the descriptors |
//! | on a handle: end of file (`shutdown`, or all copies closed), or any bytes | kills the process and its group |
//!
//! | message from the spawner on a handle, five bytes each | sent |
//! |---|---|
//! | [`STARTED`] and the process id or the number of bytes sent, or [`REFUSED`] and an errno | once, first |
//! | [`ENDED`] and the status as in `wait(2)` | last |

use super::member::Start;
use bytes::BytesMut;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, Shutdown, SocketFlags, SocketType, recv, shutdown, socketpair};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use rustix::time::Timespec;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{OnceLock, PoisonError, RwLock};
use sys::descriptor::send_with;

/// Kinds of the first message on a handle.
pub(super) const STARTED: u8 = 0;
pub(super) const REFUSED: u8 = 1;
/// Kind of the last message.
pub(super) const ENDED: u8 = 2;
/// Size of a message on a handle.
pub(super) const REPLY_BYTES: usize = 5;
/// Longest spawn request.
pub(super) const REQUEST_BYTES_MAX: usize = 64 << 10;
/// Timeout for starting a process.
const START_TIMEOUT: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

/// Socket of the spawner that starts the processes of this one; `None`: it starts them itself.
static SPAWNER: RwLock<Option<OwnedFd>> = RwLock::new(None);

/// From now on the spawner at the other end of this socket ([`Spawner::socket`](super::Spawner::socket)) starts all
/// processes of modules, and passes descriptors ([`sys::descriptor::pass`]). The last call counts.
pub fn use_spawner(spawner: OwnedFd) {
    denies_code();
    *SPAWNER.write().unwrap_or_else(PoisonError::into_inner) = Some(spawner);
    sys::descriptor::use_sender(pass);
}

/// Returns true if modules may have no memory that is writable and executable. A locked worker cannot ask, so it asks before.
pub(super) fn denies_code() -> bool {
    static DENIES: OnceLock<bool> = OnceLock::new();
    *DENIES.get_or_init(sys::process::denies_code)
}

/// A request to the spawner. Encoding: a byte, for [`SpawnRequest::Start`] the flags for standard input and output,
/// otherwise [`PASS`]; then the words of the command, or the bytes to pass as the only one, each after its `u32` length
/// (little-endian).
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SpawnRequest {
    /// Starts a process.
    Start { has_input: bool, has_output: bool, words: Vec<OsString> },
    /// Sends bytes with descriptors.
    Pass(Vec<u8>),
}

/// First byte of [`SpawnRequest::Pass`].
const PASS: u8 = 4;

impl SpawnRequest {
    pub(super) fn emit(&self) -> Vec<u8> {
        let (kind, words): (u8, Vec<&[u8]>) = match self {
            SpawnRequest::Start { has_input, has_output, words } => (
                u8::from(*has_input) | u8::from(*has_output) << 1,
                words.iter().map(|word| word.as_bytes()).collect(),
            ),
            SpawnRequest::Pass(bytes) => (PASS, vec![bytes]),
        };
        let mut emitted = vec![kind];
        for word in words {
            emitted.extend((word.len() as u32).to_le_bytes());
            emitted.extend(word);
        }
        emitted
    }

    pub(super) fn parse(bytes: &[u8]) -> Option<SpawnRequest> {
        let (kind, mut rest) = bytes.split_first()?;
        let mut words = Vec::new();
        while !rest.is_empty() {
            let (length, after_length) = rest.split_first_chunk()?;
            let (word, after_word) = after_length.split_at_checked(u32::from_le_bytes(*length) as usize)?;
            words.push(word.to_vec());
            rest = after_word;
        }
        match (*kind, &mut words[..]) {
            (flags @ 0..PASS, _) => Some(SpawnRequest::Start {
                has_input: flags & 1 != 0,
                has_output: flags & 2 != 0,
                words: words.into_iter().map(OsString::from_vec).collect(),
            }),
            (PASS, [bytes]) => Some(SpawnRequest::Pass(std::mem::take(bytes))),
            _ => None,
        }
    }
}

/// Makes the spawner at the other end of `spawner` send `request` with `descriptors`. Returns the number in its answer,
/// and the handle.
fn ask(
    spawner: BorrowedFd<'_>,
    request: &SpawnRequest,
    descriptors: impl Iterator<Item = OwnedFd>,
) -> io::Result<(i32, OwnedFd)> {
    let request = request.emit();
    if request.len() > REQUEST_BYTES_MAX {
        let problem = "the request to the spawner is too long";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
    }
    let (handle, spawner_end) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let descriptors: Vec<_> = [spawner_end].into_iter().chain(descriptors).collect();
    send_with(spawner, &request, &descriptors)?;
    poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&START_TIMEOUT))?;
    match receive_reply(&handle, RecvFlags::empty())? {
        Some((STARTED, number)) => Ok((number, handle)),
        Some((REFUSED, error)) => Err(io::Error::from_raw_os_error(error)),
        Some(_) => Err(io::ErrorKind::InvalidData.into()),
        None => Err(io::ErrorKind::TimedOut.into()),
    }
}

/// A [`sys::descriptor::Sender`]: the spawner sends the bytes, as many as fit into one request.
fn pass(socket: BorrowedFd<'_>, bytes: &[u8], descriptors: &[OwnedFd]) -> io::Result<usize> {
    let spawner = SPAWNER.read().unwrap_or_else(PoisonError::into_inner);
    let spawner = spawner.as_ref().ok_or(io::ErrorKind::Unsupported)?;
    let bytes = &bytes[..bytes.len().min(REQUEST_BYTES_MAX / 2)];
    let copies = [socket.try_clone_to_owned()].into_iter().chain(descriptors.iter().map(OwnedFd::try_clone));
    let copies = copies.collect::<io::Result<Vec<_>>>()?;
    let (sent, _) = ask(spawner.as_fd(), &SpawnRequest::Pass(bytes.to_vec()), copies.into_iter())?;
    usize::try_from(sent).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// A started process.
pub(super) enum Started {
    /// Started by this process; with its pidfd.
    Local(Child, OwnedFd),
    /// Started by a spawner: process id and handle.
    Remote(u32, OwnedFd),
    /// Moved by a test.
    #[cfg(test)]
    Model(super::model::ModelHandle),
}

impl Started {
    /// Starts a process in its own process group, so that its children can be killed with it. Also returns the
    /// reading end of its standard error.
    pub(super) fn start(start: Start<'_>, descriptors: Vec<OwnedFd>) -> io::Result<(Started, OwnedFd)> {
        #[cfg(test)]
        if super::model::are_used() {
            return super::model::start(start, descriptors);
        }
        match &*SPAWNER.read().unwrap_or_else(PoisonError::into_inner) {
            Some(spawner) => Started::request(spawner.as_fd(), start, descriptors),
            None => {
                let (errors, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
                let Start { words, environment, input, output, .. } = start;
                let (child, pidfd) = spawn(words, environment, [input, output, Some(theirs)], descriptors)?;
                Ok((Started::Local(child, pidfd), errors))
            }
        }
    }

    pub(super) fn request(
        spawner: BorrowedFd<'_>,
        start: Start<'_>,
        descriptors: Vec<OwnedFd>,
    ) -> io::Result<(Started, OwnedFd)> {
        let (errors, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
        let Start { words, input, output, .. } = start;
        let (has_input, has_output) = (input.is_some(), output.is_some());
        let request = SpawnRequest::Start { has_input, has_output, words: words.to_vec() };
        let ends = [theirs].into_iter().chain(input).chain(output).chain(descriptors);
        let (number, handle) = ask(spawner, &request, ends)?;
        Ok((Started::Remote(number.cast_unsigned(), handle), errors))
    }

    /// Process id.
    pub(super) fn id(&self) -> u32 {
        match self {
            Started::Local(child, _) => child.id(),
            Started::Remote(number, _) => *number,
            #[cfg(test)]
            Started::Model(_) => 0,
        }
    }

    /// Readable when the process has ended.
    pub(super) fn end(&self) -> BorrowedFd<'_> {
        match self {
            Started::Local(_, pidfd) => pidfd.as_fd(),
            Started::Remote(_, handle) => handle.as_fd(),
            #[cfg(test)]
            Started::Model(handle) => handle.end(),
        }
    }

    /// Kills the process and its children, unless it was reaped.
    pub(super) fn kill(&self) {
        let _ = match self {
            Started::Local(child, _) => kill_process_group(Pid::from_child(child), Signal::KILL),
            Started::Remote(_, handle) => shutdown(handle, Shutdown::Write),
            #[cfg(test)]
            Started::Model(handle) => return handle.kill(),
        };
    }

    /// Returns the exit status if the process has ended. Kills its children first: once the process is reaped, its
    /// id may be reused.
    pub(super) fn reap(&mut self) -> Option<ExitStatus> {
        // Another part of the program reaped it.
        let unknown = || Some(ExitStatus::from_raw(0));
        match self {
            Started::Local(child, _) => {
                let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
                child.try_wait().unwrap_or_else(|_| unknown())
            }
            Started::Remote(_, handle) => match receive_reply(handle, RecvFlags::DONTWAIT) {
                Ok(Some((ENDED, status))) => Some(ExitStatus::from_raw(status)),
                Ok(None) => None,
                _ => unknown(),
            },
            #[cfg(test)]
            Started::Model(handle) => handle.reap(),
        }
    }
}

/// Receives the next message of a spawner; `None` if there is none yet.
fn receive_reply(handle: &OwnedFd, flags: RecvFlags) -> io::Result<Option<(u8, i32)>> {
    let mut bytes = [0; REPLY_BYTES];
    match recv(handle, &mut bytes[..], flags | RecvFlags::DONTWAIT) {
        Ok((REPLY_BYTES, _)) => {
            let [kind, number @ ..] = bytes;
            Ok(Some((kind, i32::from_le_bytes(number))))
        }
        Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
        Err(Errno::AGAIN | Errno::INTR) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Starts a process as a child of this one, with its standard descriptors (`None` is /dev/null) and those from 3
/// on.
pub(super) fn spawn(
    words: &[OsString],
    environment: Option<&[(OsString, OsString)]>,
    [input, output, errors]: [Option<OwnedFd>; 3],
    descriptors: Vec<OwnedFd>,
) -> io::Result<(Child, OwnedFd)> {
    let (program, arguments) =
        words.split_first().ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no program"))?;
    let standard = |end: Option<OwnedFd>| end.map_or_else(Stdio::null, Stdio::from);
    let mut command = Command::new(program);
    command.args(arguments).stdin(standard(input)).stdout(standard(output)).stderr(standard(errors));
    if let Some(environment) = environment {
        command.env_clear().envs(environment.iter().map(|(name, value)| (name, value)));
    }
    let mut child = sys::process::start_with(&mut command, descriptors)?;
    match pidfd_open(Pid::from_child(&child), PidfdFlags::empty()) {
        Ok(pidfd) => Ok((child, pidfd)),
        Err(error) => {
            let _ = child.kill();
            let _ = child.wait();
            Err(error.into())
        }
    }
}

/// Receives a request with its descriptors; `None` if there is none yet.
pub(super) fn receive(socket: &OwnedFd) -> io::Result<Option<(Option<SpawnRequest>, Vec<OwnedFd>)>> {
    let (mut bytes, mut descriptors) = (BytesMut::new(), std::collections::VecDeque::new());
    match sys::descriptor::receive_with(socket, &mut bytes, REQUEST_BYTES_MAX, Some(&mut descriptors)) {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(_) => Ok(Some((SpawnRequest::parse(&bytes), descriptors.into()))),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}
