//! A program that was started, and who waits for it.
//!
//! A locked worker can neither wait for a program nor end one: both are its parent's to do. So the broker, which starts the
//! program, has a thread of its own wait for it, the *warden*, and hands over one end of a socket pair, the *leash*.
//! Through it the warden says how the program ended; and when it is let go, the warden ends the program. A worker
//! that is killed lets nothing go: the broker holds the leash, too, and the next worker goes on with the program.
//!
//! The program's input ends when nobody can write to it any more. So nobody holds it but the warden and whoever asked the
//! warden for it, and who has no more to write says that, too.
//!
//! | the worker sends | |
//! |---|---|
//! | [`ASK`] | the warden answers with [`INPUT`], and the program's input unless that has ended |
//! | [`CLOSE`] | the program's input has ended |
//! | the end (`shutdown`, or all let go) | the program is killed |
//!
//! | the warden sends, five bytes each | |
//! |---|---|
//! | [`INPUT`], 0 | with a descriptor |
//! | the kind of an [`Outcome`], its number | stays to be read by every worker to come |

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

/// Asks for the program's input.
const ASK: u8 = 0;
/// Says that there is no more input.
const CLOSE: u8 = 1;
/// What the warden answers to [`ASK`]. The kinds of outcomes are below.
const INPUT: u8 = 3;
/// Bytes of what a warden says.
const SAID_BYTES: usize = 5;
/// How long the warden may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long a program that was killed may take to be gone before it is left to the system.
const REAP: Duration = Duration::from_millis(200);

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// By itself, with this status.
    Status(i32),
    /// By this signal.
    Signal(i32),
    /// Whoever waited for it is gone, and does not say.
    Unknown,
}

impl Outcome {
    fn emit(self) -> [u8; SAID_BYTES] {
        let (kind, number) = match self {
            Outcome::Status(status) => (0, status),
            Outcome::Signal(signal) => (1, signal),
            Outcome::Unknown => (2, 0),
        };
        let mut bytes = [kind; SAID_BYTES];
        bytes[1..].copy_from_slice(&number.to_le_bytes());
        bytes
    }

    fn parse(bytes: [u8; SAID_BYTES]) -> Outcome {
        let [kind, number @ ..] = bytes;
        match kind {
            0 => Outcome::Status(i32::from_le_bytes(number)),
            1 => Outcome::Signal(i32::from_le_bytes(number)),
            _ => Outcome::Unknown,
        }
    }
}

/// What there is of a program that was started.
#[derive(Debug)]
pub(crate) struct Started {
    pub(crate) output: OwnedFd,
    pub(crate) leash: OwnedFd,
}

/// Starts `command` in a shell. Its group is its own, so that all of what the shell begins can be ended.
pub(crate) fn start(command: &str) -> io::Result<Started> {
    let (leash, wardens) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let mut child = Command::new("/bin/sh")
        .args(["-c", command])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()?;
    let ends = child.stdin.take().map(OwnedFd::from).zip(child.stdout.take().map(OwnedFd::from));
    let (input, output) = ends.expect("both were asked for as pipes");
    let pid = Pid::from_child(&child);
    let watched = watch(pid).and_then(|(process, poller)| {
        let warden = Warden { pid, process, leash: wardens, poller, input: Some(input) };
        std::thread::Builder::new().name("warden".into()).spawn(move || warden.wait()).map(drop)
    });
    match watched {
        Ok(()) => Ok(Started { output, leash }),
        Err(error) => {
            end_unwatched(child);
            Err(error)
        }
    }
}

fn watch(pid: Pid) -> io::Result<(OwnedFd, Poller)> {
    Ok((pidfd_open(pid, PidfdFlags::empty())?, Poller::new()?))
}

fn end_unwatched(mut child: Child) {
    let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
    let _ = child.wait();
}

/// Waits for one program.
struct Warden {
    pid: Pid,
    process: OwnedFd,
    leash: OwnedFd,
    poller: Poller,
    input: Option<OwnedFd>,
}

impl Warden {
    fn wait(mut self) {
        let outcome = loop {
            if let Some(outcome) = self.outcome() {
                break outcome;
            }
            if !self.listen() || self.sleep(None).is_err() {
                break self.end();
            }
        };
        // Who let go hears nothing any more.
        let _ = send(&self.leash, &outcome.emit(), SendFlags::NOSIGNAL);
    }

    fn sleep(&mut self, timeout: Option<Duration>) -> io::Result<bool> {
        self.poller.want(self.process.as_fd(), true, false);
        if timeout.is_none() {
            self.poller.want(self.leash.as_fd(), true, false);
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

    /// Does what it is asked; says whether anybody still wants the program.
    fn listen(&mut self) -> bool {
        let mut asked = [0];
        loop {
            match recv(&self.leash, &mut asked[..], RecvFlags::DONTWAIT) {
                Ok((1, _)) if asked == [ASK] => {
                    let mut said = [0; SAID_BYTES];
                    said[0] = INPUT;
                    let _ = send_with(&self.leash, &said, self.input.as_slice());
                }
                Ok((1, _)) if asked == [CLOSE] => self.input = None,
                Err(Errno::AGAIN) => return true,
                Err(Errno::INTR) => {}
                _ => return false,
            }
        }
    }

    fn end(&mut self) -> Outcome {
        // Not reaped yet, so the number still belongs to this group.
        let _ = kill_process_group(self.pid, Signal::KILL);
        let _ = self.sleep(Some(REAP));
        self.outcome().unwrap_or(Outcome::Unknown)
    }
}

/// Has the program at the other end of this leash ended, and waits until it is.
pub(crate) fn let_go(leash: BorrowedFd<'_>) {
    let _ = shutdown(leash, Shutdown::Write);
    let gone = Poller::new().and_then(|mut poller| {
        poller.want(leash, true, false);
        poller.wait(Some(REAP))
    });
    // Without it the program still ends, but later than this.
    let _ = gone;
}

/// A program, from who uses it. Dropped, it is ended.
#[derive(Debug)]
pub(crate) struct Program {
    leash: OwnedFd,
    outcome: Option<Outcome>,
}

impl Program {
    /// The program and its input, which is one that nobody reads if it has ended.
    pub(crate) fn new(leash: OwnedFd) -> io::Result<(Program, OwnedFd)> {
        let mut program = Program { leash, outcome: None };
        send(&program.leash, &[ASK], SendFlags::NOSIGNAL | SendFlags::DONTWAIT).or_else(
            |error| match error {
                // It has ended, which the warden has said.
                Errno::PIPE | Errno::CONNRESET => Ok(0),
                error => Err(error),
            },
        )?;
        let mut poller = Poller::new()?;
        poller.want(program.leash.as_fd(), true, false);
        poller.wait(Some(PATIENCE))?;
        let input = match program.peek()? {
            Some([INPUT, ..]) => program.take()?,
            Some(_) => None,
            None => return Err(io::ErrorKind::TimedOut.into()),
        };
        let ended = || rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map(|(_, input)| input);
        Ok((program, input.map_or_else(ended, Ok)?))
    }

    /// Nothing more is written to the program.
    pub(crate) fn close_input(&self) {
        let _ = send(&self.leash, &[CLOSE], SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
    }

    /// How it ended, if it has.
    pub(crate) fn outcome(&mut self) -> Option<Outcome> {
        while self.outcome.is_none() {
            match self.peek() {
                // Said to a worker before this one, which was killed meanwhile.
                Ok(Some([INPUT, ..])) => drop(self.take()),
                Ok(Some(bytes)) => self.outcome = Some(Outcome::parse(bytes)),
                Ok(None) => break,
                Err(_) => self.outcome = Some(Outcome::Unknown),
            }
        }
        self.outcome
    }

    /// What the warden says next. It is left where it is: what it says of the end is for the next worker, too.
    fn peek(&self) -> io::Result<Option<[u8; SAID_BYTES]>> {
        let mut said = [0; SAID_BYTES];
        loop {
            return match recv(&self.leash, &mut said[..], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
                Ok((SAID_BYTES, _)) => Ok(Some(said)),
                Err(Errno::AGAIN) => Ok(None),
                // The warden has ended without hearing us, which is told once; what it had said comes next.
                Err(Errno::INTR | Errno::CONNRESET) => continue,
                Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
                Err(error) => Err(error.into()),
            };
        }
    }

    fn take(&mut self) -> io::Result<Option<OwnedFd>> {
        let (mut said, mut descriptors) = (BytesMut::new(), VecDeque::new());
        receive_with(&self.leash, &mut said, SAID_BYTES, Some(&mut descriptors))?;
        Ok(descriptors.pop_front())
    }

    /// Whether [`Program::outcome`] has said.
    pub(crate) fn has_said(&self) -> bool {
        self.outcome.is_some()
    }
}

/// Ready to read once the program has ended.
impl AsFd for Program {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.leash.as_fd()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if self.outcome().is_none() {
            let_go(self.leash.as_fd());
        }
    }
}
