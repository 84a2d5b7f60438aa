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
//! | end of the stream (`shutdown`, or all copies closed) | the supervisor kills the program |
//!
//! | message of the supervisor, five bytes | |
//! |---|---|
//! | [`INPUT`], 0 | with a descriptor |
//! | kind and number of an [`Outcome`] | never removed from the socket, so that later workers can read it too |

use bytes::BytesMut;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, recv, send, shutdown, socketpair,
};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process_group, pidfd_open, waitid,
};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use sys::descriptor::{receive_with, send_with};
use sys::poller::Poller;

/// Requests the program's input.
const GET_INPUT: u8 = 0;
/// Closes the program's input.
const CLOSE_INPUT: u8 = 1;
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

/// Starts `command` in a shell, in its own process group, so that all its processes can be killed.
pub(crate) fn start(command: &str) -> io::Result<Started> {
    let (control, supervisor_end) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let mut child = Command::new("/bin/sh")
        .args(["-c", command])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()?;
    let ends = child.stdin.take().map(OwnedFd::from).zip(child.stdout.take().map(OwnedFd::from));
    let (input, output) = ends.expect("both are pipes");
    let pid = Pid::from_child(&child);
    let watched = watch(pid).and_then(|(process, poller)| {
        let supervisor = Supervisor { pid, process, control: supervisor_end, poller, input: Some(input) };
        std::thread::Builder::new().name("supervisor".into()).spawn(move || supervisor.wait()).map(drop)
    });
    match watched {
        Ok(()) => Ok(Started { output, control }),
        Err(error) => {
            kill_unsupervised(child);
            Err(error)
        }
    }
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
}

impl Supervisor {
    fn wait(mut self) {
        let outcome = loop {
            if let Some(outcome) = self.outcome() {
                break outcome;
            }
            if !self.handle_messages() || self.poll(None).is_err() {
                break self.kill();
            }
        };
        // It fails if all other ends are closed.
        let _ = send(&self.control, &outcome.emit(), SendFlags::NOSIGNAL);
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
        match waitid(WaitId::PidFd(self.process.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG) {
            Ok(None) | Err(Errno::INTR) => None,
            Ok(Some(status)) => Some(match (status.exit_status(), status.terminating_signal()) {
                (Some(status), _) => Outcome::Status(status),
                (None, signal) => Outcome::Signal(signal.unwrap_or(0)),
            }),
            Err(_) => Some(Outcome::Unknown),
        }
    }

    /// Handles all received messages. Returns false at the end of the stream.
    fn handle_messages(&mut self) -> bool {
        let mut message = [0];
        loop {
            match recv(&self.control, &mut message[..], RecvFlags::DONTWAIT) {
                Ok((1, _)) if message == [GET_INPUT] => {
                    let mut reply = [0; REPLY_BYTES];
                    reply[0] = INPUT;
                    let _ = send_with(&self.control, &reply, self.input.as_slice());
                }
                Ok((1, _)) if message == [CLOSE_INPUT] => self.input = None,
                Err(Errno::AGAIN) => return true,
                Err(Errno::INTR) => {}
                _ => return false,
            }
        }
    }

    fn kill(&mut self) -> Outcome {
        // The shell is not reaped yet, so its process group ID cannot be reused.
        let _ = kill_process_group(self.pid, Signal::KILL);
        let _ = self.poll(Some(REAP_TIMEOUT));
        self.outcome().unwrap_or(Outcome::Unknown)
    }
}

/// Kills the program of this control socket and waits for its exit.
pub(crate) fn release(control: BorrowedFd<'_>) {
    let _ = shutdown(control, Shutdown::Write);
    // Best effort: without the wait the program exits a little later than this call.
    let _ = Poller::new().and_then(|mut poller| {
        poller.register(control, true, false);
        poller.wait(Some(REAP_TIMEOUT))
    });
}

/// The worker's side of a program. Dropping it kills the program.
#[derive(Debug)]
pub(crate) struct Program {
    control: OwnedFd,
    outcome: Option<Outcome>,
}

impl Program {
    /// Requests the program's input. If that has ended, returns a pipe without a reader instead.
    pub(crate) fn new(control: OwnedFd) -> io::Result<(Program, OwnedFd)> {
        let mut program = Program { control, outcome: None };
        send(&program.control, &[GET_INPUT], SendFlags::NOSIGNAL | SendFlags::DONTWAIT).or_else(|error| {
            match error {
                // The supervisor has exited after it reported the outcome.
                Errno::PIPE | Errno::CONNRESET => Ok(0),
                error => Err(error),
            }
        })?;
        let mut poller = Poller::new()?;
        poller.register(program.control.as_fd(), true, false);
        poller.wait(Some(REPLY_TIMEOUT))?;
        let input = match program.peek()? {
            Some([INPUT, ..]) => program.take()?,
            Some(_) => None,
            None => return Err(io::ErrorKind::TimedOut.into()),
        };
        let ended = || rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map(|(_, input)| input);
        Ok((program, input.map_or_else(ended, Ok)?))
    }

    /// Closes the supervisor's copy of the program's input.
    pub(crate) fn close_input(&self) {
        let _ = send(&self.control, &[CLOSE_INPUT], SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
    }

    /// Returns the outcome if the program has exited.
    pub(crate) fn outcome(&mut self) -> Option<Outcome> {
        while self.outcome.is_none() {
            match self.peek() {
                // A reply to a previous worker, which was killed before it read the reply.
                Ok(Some([INPUT, ..])) => drop(self.take()),
                Ok(Some(bytes)) => self.outcome = Some(Outcome::parse(bytes)),
                Ok(None) => break,
                Err(_) => self.outcome = Some(Outcome::Unknown),
            }
        }
        self.outcome
    }

    /// Returns the supervisor's next message without removing it (see the module comment).
    fn peek(&self) -> io::Result<Option<[u8; REPLY_BYTES]>> {
        let mut reply = [0; REPLY_BYTES];
        loop {
            return match recv(&self.control, &mut reply[..], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
                Ok((REPLY_BYTES, _)) => Ok(Some(reply)),
                Err(Errno::AGAIN) => Ok(None),
                // ECONNRESET: the supervisor exited with unread messages. It is returned once; the outcome follows.
                Err(Errno::INTR | Errno::CONNRESET) => continue,
                Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
                Err(error) => Err(error.into()),
            };
        }
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
        if self.outcome().is_none() {
            release(self.control.as_fd());
        }
    }
}
