//! A program and its supervisor.
//!
//! A locked worker can neither wait for a program nor kill one: only its parent can. The broker therefore starts the
//! program and supervises it in a thread. It passes one end of a socket pair, the *control socket*, to the worker:
//!
//! ```text
//! broker ─── supervisor thread ◄── control socket ──► Program (worker)
//!                │ waitid, kill                          │ input, output
//!                └──────────────► program ◄──────────────┘
//! ```
//!
//! The broker keeps a copy of the worker's end. A killed worker therefore does not close the socket, and the next worker
//! continues with the same program.
//!
//! The program's input ends when its last writer closes it. Therefore only the supervisor and the current worker hold
//! it, and a worker that has written everything sends [`CLOSE_INPUT`], so that the supervisor closes it too.
//!
//! | message of the worker | effect |
//! |---|---|
//! | [`GET_INPUT`] | the supervisor replies with [`INPUT`], and with the program's input if that is open |
//! | [`CLOSE_INPUT`] | the supervisor closes the program's input |
//! | [`BEGIN_PART`], [`END_PART`] | the supervisor remembers that a container is partly read |
//! | end of the stream (`shutdown`, or all copies closed) | the supervisor kills all processes of the program's group |
//!
//! A program may exit and leave processes behind, which still write its output. So the supervisor stays until the end of the stream. Only
//! then does it reap the program: until then no other process group can have its ID.
//!
//! | message of the supervisor, five bytes | |
//! |---|---|
//! | [`INPUT`], and 1 if a container is partly read, else 0 | with a descriptor |
//! | kind and number of an [`Outcome`] | never removed from the socket, so that later workers can read it too |

use bytes::BytesMut;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, recv, send, shutdown, socketpair,
};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitIdStatus, kill_process_group, pidfd_open, waitid,
};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use std::{fmt, io};
use sys::descriptor::{receive_with, send_with};
use sys::poller::Poller;

/// Requests the program's input.
const GET_INPUT: u8 = 0;
/// Closes the program's input.
const CLOSE_INPUT: u8 = 1;
/// From here on a container is read in parts, so that a later worker would not find the next one.
const BEGIN_PART: u8 = 2;
/// The container was read completely.
const END_PART: u8 = 4;
/// Reply to [`GET_INPUT`]. The kinds of outcomes are in [`Outcome::emit`].
const INPUT: u8 = 3;
/// Size of a supervisor's message.
const REPLY_BYTES: usize = 5;
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for a killed program to exit before it is left to the system.
const REAP_TIMEOUT: Duration = Duration::from_millis(200);

/// Exit of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It exited with this status.
    Status(i32),
    /// It was killed by this signal.
    Signal(i32),
    /// The supervisor is gone.
    Unknown,
}

impl fmt::Display for Outcome {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Status(status) => write!(to, "it exited with status {status}"),
            Outcome::Signal(signal) => write!(to, "it was killed by signal {signal}"),
            Outcome::Unknown => to.write_str("it exited, and its status is unknown"),
        }
    }
}

impl Outcome {
    fn emit(self) -> [u8; REPLY_BYTES] {
        let (kind, number) = match self {
            Outcome::Status(status) => (0, status),
            Outcome::Signal(signal) => (1, signal),
            Outcome::Unknown => (2, 0),
        };
        let mut bytes = [kind; REPLY_BYTES];
        bytes[1..].copy_from_slice(&number.to_le_bytes());
        bytes
    }

    fn parse(bytes: [u8; REPLY_BYTES]) -> Outcome {
        let [kind, number @ ..] = bytes;
        match kind {
            0 => Outcome::Status(i32::from_le_bytes(number)),
            1 => Outcome::Signal(i32::from_le_bytes(number)),
            _ => Outcome::Unknown,
        }
    }
}

/// Descriptors of a started program.
#[derive(Debug)]
pub(crate) struct Started {
    pub(crate) output: OwnedFd,
    pub(crate) control: OwnedFd,
    /// The socket that is the program's descriptor 3, if it has one.
    pub(crate) frames: Option<OwnedFd>,
}

/// Returns the first word of the command if the shell knows neither a program nor a command of its own by that name. A
/// first word with a special meaning is not checked.
pub(crate) fn unknown(command: &str) -> Option<&str> {
    let word = command.split_whitespace().next()?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/' | '+');
    let looked_up = || {
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", "command -v \"$0\"", word]).stdin(Stdio::null()).stdout(Stdio::null());
        shell.stderr(Stdio::null()).status()
    };
    let is_unknown = word.chars().all(is_plain) && looked_up().is_ok_and(|status| !status.success());
    is_unknown.then_some(word)
}

/// Starts `command` in a shell, in its own process group, so that all its processes can be killed. With `has_frames` its
/// descriptor 3 is a socket, and its output is a socket too.
pub(crate) fn start(command: &str, has_frames: bool) -> io::Result<Started> {
    let (control, supervisor_end) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let (report, started) = std::sync::mpsc::sync_channel(1);
    let command = command.to_string();
    // The supervisor starts the program: the kernel may kill a program together with the thread that started it.
    let run = move || match Supervisor::start(&command, has_frames, supervisor_end) {
        Ok((mut supervisor, output, frames)) => match report.send(Ok((output, frames))) {
            Ok(()) => supervisor.wait(),
            Err(_) => drop(supervisor.kill()),
        },
        Err(error) => drop(report.send(Err(error))),
    };
    std::thread::Builder::new().name("supervisor".into()).spawn(run)?;
    let (output, frames) = started.recv().map_err(io::Error::other)??;
    Ok(Started { output, control, frames })
}

/// The program and this host's ends of its descriptors.
struct Spawned {
    child: Child,
    input: OwnedFd,
    output: OwnedFd,
    frames: Option<OwnedFd>,
}

fn spawn(command: &str, has_frames: bool) -> io::Result<Spawned> {
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", command]).stdin(Stdio::piped());
    let (mut child, sockets) = match has_frames {
        true => {
            let pair = || socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
            let ((output, their_output), (frames, their_frames)) = (pair()?, pair()?);
            let child = sys::process::start_with(shell.stdout(their_output), vec![their_frames])?;
            (child, Some((output, frames)))
        }
        false => (shell.stdout(Stdio::piped()).process_group(0).spawn()?, None),
    };
    let input = child.stdin.take().map(OwnedFd::from).expect("it is a pipe");
    let (output, frames) = match sockets {
        Some((output, frames)) => (output, Some(frames)),
        None => (child.stdout.take().map(OwnedFd::from).expect("it is a pipe"), None),
    };
    Ok(Spawned { child, input, output, frames })
}

fn watch(pid: Pid) -> io::Result<(OwnedFd, Poller)> {
    Ok((pidfd_open(pid, PidfdFlags::empty())?, Poller::new()?))
}

fn kill_unsupervised(mut child: Child) {
    let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
    let _ = child.wait();
}

/// The thread that waits for one program.
struct Supervisor {
    pid: Pid,
    process: OwnedFd,
    control: OwnedFd,
    poller: Poller,
    input: Option<OwnedFd>,
    /// A worker has read a part of a container.
    is_in_part: bool,
}

impl Supervisor {
    /// Starts the program. Returns its supervisor, its output and the socket of its descriptor 3.
    fn start(
        command: &str,
        has_frames: bool,
        control: OwnedFd,
    ) -> io::Result<(Supervisor, OwnedFd, Option<OwnedFd>)> {
        let Spawned { child, input, output, frames } = spawn(command, has_frames)?;
        let pid = Pid::from_child(&child);
        match watch(pid) {
            Ok((process, poller)) => {
                let input = Some(input);
                let supervisor = Supervisor { pid, process, control, poller, input, is_in_part: false };
                Ok((supervisor, output, frames))
            }
            Err(error) => {
                kill_unsupervised(child);
                Err(error)
            }
        }
    }

    fn wait(&mut self) {
        let outcome = loop {
            if let Some(outcome) = self.outcome() {
                break outcome;
            }
            if !self.handle_messages() || self.poll(None).is_err() {
                break self.kill();
            }
        };
        self.input = None;
        // It fails if all other ends are closed.
        let _ = send(&self.control, &outcome.emit(), SendFlags::NOSIGNAL);
        while matches!(
            recv(&self.control, &mut [0; 1][..], RecvFlags::empty()),
            Ok((1, _)) | Err(Errno::INTR)
        ) {}
        self.kill();
        let _ = self.status(WaitIdOptions::empty());
    }

    /// Waits for the program, and without a timeout also for messages.
    fn poll(&mut self, timeout: Option<Duration>) -> io::Result<bool> {
        self.poller.register(self.process.as_fd(), true, false);
        if timeout.is_none() {
            self.poller.register(self.control.as_fd(), true, false);
        }
        self.poller.wait(timeout)
    }

    fn outcome(&self) -> Option<Outcome> {
        match self.status(WaitIdOptions::NOWAIT) {
            Ok(None) | Err(Errno::INTR) => None,
            Ok(Some(status)) => Some(match (status.exit_status(), status.terminating_signal()) {
                (Some(status), _) => Outcome::Status(status),
                (None, signal) => Outcome::Signal(signal.unwrap_or(0)),
            }),
            Err(_) => Some(Outcome::Unknown),
        }
    }

    /// Returns the status of a program that has exited, and reaps it without `NOWAIT`.
    fn status(&self, options: WaitIdOptions) -> rustix::io::Result<Option<WaitIdStatus>> {
        let options = options | WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        waitid(WaitId::PidFd(self.process.as_fd()), options)
    }

    /// Handles all received messages. Returns false at the end of the stream.
    fn handle_messages(&mut self) -> bool {
        let mut message = [0];
        loop {
            match recv(&self.control, &mut message[..], RecvFlags::DONTWAIT) {
                Ok((1, _)) if message == [GET_INPUT] => {
                    let mut reply = [0; REPLY_BYTES];
                    (reply[0], reply[1]) = (INPUT, self.is_in_part.into());
                    let _ = send_with(&self.control, &reply, self.input.as_slice());
                }
                Ok((1, _)) if message == [CLOSE_INPUT] => self.input = None,
                Ok((1, _)) if message == [BEGIN_PART] => self.is_in_part = true,
                Ok((1, _)) if message == [END_PART] => self.is_in_part = false,
                Err(Errno::AGAIN) => return true,
                Err(Errno::INTR) => {}
                _ => return false,
            }
        }
    }

    fn kill(&mut self) -> Outcome {
        let _ = kill_process_group(self.pid, Signal::KILL);
        let _ = self.poll(Some(REAP_TIMEOUT));
        self.outcome().unwrap_or(Outcome::Unknown)
    }
}

/// Kills the program of this control socket and waits for its exit.
pub(crate) fn release(control: BorrowedFd<'_>) {
    let _ = shutdown(control, Shutdown::Write);
    // Best effort: without the wait the program exits a little later than this call. An outcome may be there already; the supervisor
    // closes its end after it has killed the others.
    let _ = Poller::new().and_then(|mut poller| {
        poller.register(control, false, false);
        poller.wait(Some(REAP_TIMEOUT))
    });
}

/// Waits until the program of this control socket has exited. No worker may have used the socket.
pub(super) fn exit_within(control: BorrowedFd<'_>, limit: Duration) -> Option<Outcome> {
    let mut poller = Poller::new().ok()?;
    poller.register(control, true, false);
    poller.wait(Some(limit)).ok()?;
    peek(control).ok().flatten().map(Outcome::parse)
}

/// Returns the supervisor's next message without removing it (see the module comment).
fn peek(control: BorrowedFd<'_>) -> io::Result<Option<[u8; REPLY_BYTES]>> {
    let mut reply = [0; REPLY_BYTES];
    loop {
        return match recv(control, &mut reply[..], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Ok((REPLY_BYTES, _)) => Ok(Some(reply)),
            Err(Errno::AGAIN) => Ok(None),
            // ECONNRESET: the supervisor exited with unread messages. It is returned once; the outcome follows.
            Err(Errno::INTR | Errno::CONNRESET) => continue,
            Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) => Err(error.into()),
        };
    }
}

/// The worker's side of a program. Dropping it kills the program.
#[derive(Debug)]
pub(crate) struct Program {
    control: OwnedFd,
    outcome: Option<Outcome>,
    was_in_part: bool,
}

impl Program {
    /// Requests the program's input. If that has ended, returns a pipe without a reader instead.
    pub(crate) fn new(control: OwnedFd) -> io::Result<(Program, OwnedFd)> {
        let mut program = Program { control, outcome: None, was_in_part: false };
        send(&program.control, &[GET_INPUT], SendFlags::NOSIGNAL | SendFlags::DONTWAIT).or_else(|error| {
            match error {
                // The supervisor is gone.
                Errno::PIPE | Errno::CONNRESET => Ok(0),
                error => Err(error),
            }
        })?;
        let mut poller = Poller::new()?;
        poller.register(program.control.as_fd(), true, false);
        poller.wait(Some(REPLY_TIMEOUT))?;
        let input = match peek(program.as_fd())? {
            Some([INPUT, is_in_part, ..]) => {
                program.was_in_part = is_in_part != 0;
                program.take()?
            }
            Some(_) => None,
            None => return Err(io::ErrorKind::TimedOut.into()),
        };
        let ended = || rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map(|(_, input)| input);
        Ok((program, input.map_or_else(ended, Ok)?))
    }

    /// Returns true if a worker before this one has read a part of a container, and the rest of it comes next.
    pub(crate) fn was_in_part(&self) -> bool {
        self.was_in_part
    }

    /// Closes the supervisor's copy of the program's input.
    pub(crate) fn close_input(&self) {
        self.request(CLOSE_INPUT);
    }

    /// Tells the supervisor that a container is read in parts from here on.
    pub(crate) fn begin_part(&self) {
        self.request(BEGIN_PART);
    }

    /// Tells the supervisor that the container was read completely.
    pub(crate) fn end_part(&self) {
        self.request(END_PART);
    }

    fn request(&self, message: u8) {
        let _ = send(&self.control, &[message], SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
    }

    /// Returns the outcome if the program has exited.
    pub(crate) fn outcome(&mut self) -> Option<Outcome> {
        while self.outcome.is_none() {
            match peek(self.as_fd()) {
                // A reply to a previous worker, which was killed before it read the reply.
                Ok(Some([INPUT, ..])) => drop(self.take()),
                Ok(Some(bytes)) => self.outcome = Some(Outcome::parse(bytes)),
                Ok(None) => break,
                Err(_) => self.outcome = Some(Outcome::Unknown),
            }
        }
        self.outcome
    }

    fn take(&mut self) -> io::Result<Option<OwnedFd>> {
        let (mut reply, mut descriptors) = (BytesMut::new(), VecDeque::new());
        receive_with(&self.control, &mut reply, REPLY_BYTES, Some(&mut descriptors))?;
        Ok(descriptors.pop_front())
    }

    /// Returns true once [`Program::outcome`] has returned an outcome.
    pub(crate) fn has_outcome(&self) -> bool {
        self.outcome.is_some()
    }
}

/// Readable once the program has exited.
impl AsFd for Program {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        release(self.control.as_fd());
    }
}
