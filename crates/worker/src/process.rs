//! A worker that is a process: the same program, started again as `outboard worker`. It talks to its broker on
//! descriptor 3, and to the spawner on descriptor 4 ([`confine::SENDMSG_DESCRIPTOR`]). It enters its sandbox before it reads
//! the first command.

use super::codec::Begin;
use super::command::{emit_command, parse_command};
use super::line::Line;
use super::paths::{ControlChannel, Loop};
use super::report::{emit_report, next_report};
use super::turns::Turns;
use super::{Command, Report};
use contract::ServiceError;
use modules::{isolation, registry};
use rustix::io::{read, retry_on_intr};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::pipe::{PipeFlags, pipe_with};
use sandbox::{Refusals, confine, is_sandbox_required};
use session::Limits;
use std::collections::VecDeque;
use std::env;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command as Program, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use sys::poller::Poller;
use sys::seccomp::REFUSED;

/// Time that a stopping worker gets before it is killed. Targets of side ports may take 5 s.
pub(super) const STOP: Duration = Duration::from_secs(6);
/// Time that a worker gets to exit after it closed its line.
const END: Duration = Duration::from_millis(50);
/// Most text of an exited worker that its broker reports.
const LAST_WORDS_BYTES_MAX: usize = 400;
/// Most bytes that a turn reads from a worker's standard error.
const READ_BYTES: usize = 4096;
/// Most refused calls of a worker that its broker reports.
const REFUSALS_MAX: usize = 32;
/// Longest name of a system call.
const CALL_BYTES_MAX: usize = 64;
/// A busy loop checks for commands once in so many turns.
const TURNS: u32 = 16;
/// Environment variables that a partner reads, in addition to those of a sandboxed module.
const ENVIRONMENT: &[&str] = &["DISPLAY", "RUST_BACKTRACE"];

/// Program that runs workers.
static PROGRAM: OnceLock<PathBuf> = OnceLock::new();

/// Makes all later workers of this program processes. `program` must call [`serve_worker`] for the argument `worker`.
/// Without this call, as in tests and measurements, workers are threads. Only the first call has an effect.
pub fn run_in_processes(program: PathBuf) {
    PROGRAM.get_or_init(|| program);
}

/// A broker's handle on a worker process. Dropping it ends the worker.
pub(super) struct Process {
    line: Line,
    child: Child,
    /// Standard error of the worker, until its end. A worker has no terminal: it could type commands into one.
    errors: Option<OwnedFd>,
    /// Bytes that the worker wrote to standard error, without reported lines.
    words: Vec<u8>,
    /// System calls that the sandbox refused and that are not reported yet.
    refusals: VecDeque<String>,
    /// How many more refusals may be reported: a worker can write such lines itself.
    refusals_left: usize,
    turns: Turns,
}

impl Process {
    /// Returns whether workers can be processes.
    pub(super) fn is_possible() -> bool {
        PROGRAM.get().is_some()
    }

    /// Starts a worker process. `name` appears in the list of processes; `spawner` is the socket of its spawner.
    pub(super) fn start(name: &str, limits: &Limits, spawner: OwnedFd) -> io::Result<Process> {
        let program = PROGRAM.get().ok_or(io::ErrorKind::Unsupported)?;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        // Neither end waits: a worker that writes much loses some of it.
        let (errors, written) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let mut command = Program::new(program);
        command
            .arg0("outboard")
            .args(["worker", name])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(written);
        let kept = ENVIRONMENT.iter().filter_map(|name| Some(((*name).into(), env::var_os(name)?)));
        command.env_clear().envs(confine::environment().into_iter().chain(kept));
        let child = sys::process::start_with(&mut command, vec![theirs, spawner])?;
        let mut line = Line::new(ours, false)?;
        let (limits, requires_lock) = (limits.clone(), is_sandbox_required());
        let begin = Begin { limits, requires_lock, program: isolation::program() };
        let _ = line.put(&begin.emit(), Vec::new());
        // A worker that was killed meanwhile is found by [`Process::end`], as any other.
        let _ = line.flush();
        Ok(Process {
            line,
            child,
            errors: Some(errors),
            words: Vec::new(),
            refusals: VecDeque::new(),
            refusals_left: REFUSALS_MAX,
            turns: Turns::new(Instant::now()),
        })
    }

    /// Returns the processor time that the process has used, nanoseconds.
    pub(super) fn cpu_ns(&self) -> Option<u64> {
        sys::clock::cpu_ns_of(self.child.id())
    }

    /// Sends a command. Returns `false` if the worker reads no more, or if the command cannot be encoded.
    #[must_use]
    pub(super) fn send(&mut self, command: Command) -> bool {
        let Ok((bytes, given)) = emit_command(command) else { return false };
        !self.line.is_full() && self.line.put(&bytes, given) && self.line.flush().is_ok()
    }

    /// Reads and writes as much as possible, and adjusts the worker's time slice.
    pub(super) fn exchange(&mut self) {
        let process = self.child.id();
        if let Some(turn) = self.turns.judge(|| sys::clock::cpu_ns_of(process), Instant::now()) {
            // A kernel without adjustable time slices returns an error, which is harmless.
            sys::thread::set_turn_of(process, turn);
        }
        // [`Process::end`] detects a worker that has exited.
        let _ = self.line.flush();
        self.line.receive();
        self.read_errors();
    }

    /// Returns the next report. An error explains why the worker can no longer be trusted.
    pub(super) fn poll(&mut self) -> Result<Option<Report>, String> {
        if let Some(call) = self.refusals.pop_front() {
            return Ok(Some(Report::Refused(call)));
        }
        next_report(self.line.received())
    }

    /// Returns how the worker exited, if it has.
    pub(super) fn end(&mut self) -> Option<String> {
        if !self.line.has_ended() {
            return None;
        }
        let end = match self.reap(END) {
            Some(status) => described(status),
            None => "closed its line to the broker".into(),
        };
        Some(match self.last_words() {
            words if words.is_empty() => end,
            words => format!("{end} and wrote: {words}"),
        })
    }

    /// Returns the beginning of the text that the worker wrote to standard error, in one line.
    fn last_words(&mut self) -> String {
        self.read_errors();
        let words = String::from_utf8_lossy(&self.words);
        words.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// Reads what the worker wrote to standard error. Lines that name refused calls become reports; the beginning of all else
    /// stays for [`Process::last_words`].
    fn read_errors(&mut self) {
        let Some(errors) = &self.errors else { return };
        let mut bytes = [0; READ_BYTES];
        match retry_on_intr(|| read(errors, &mut bytes[..])) {
            Ok(0) => self.errors = None,
            Ok(count) => self.words.extend_from_slice(&bytes[..count]),
            Err(_) => {}
        }
        let words = std::mem::take(&mut self.words);
        for line in words.split_inclusive(|byte| *byte == b'\n') {
            match refused_call(line) {
                Some(call) if self.refusals_left > 0 => {
                    self.refusals_left -= 1;
                    self.refusals.push_back(call);
                }
                _ => self.words.extend_from_slice(line),
            }
        }
        self.words.truncate(LAST_WORDS_BYTES_MAX);
    }

    pub(super) fn register(&self, poller: &mut Poller) {
        self.line.register(poller);
        self.errors.iter().for_each(|errors| poller.register(errors.as_fd(), true, false));
    }

    pub(super) fn is_ready(&self, poller: &Poller) -> bool {
        self.line.is_ready(poller) || self.errors.iter().any(|errors| poller.is_ready(errors.as_fd()))
    }

    pub(super) fn forget(&self, poller: &mut Poller) {
        self.line.forget(poller);
        self.errors.iter().for_each(|errors| poller.forget(errors.as_fd()));
    }

    /// Kills the worker.
    pub(super) fn kill(&mut self) {
        let _ = self.child.kill();
        self.reap(STOP);
    }

    /// Sends [`Command::Stop`] and waits up to `patience`. Returns whether the worker has exited.
    pub(super) fn stop(&mut self, patience: Duration) -> bool {
        let told = emit_command(Command::Stop).is_ok_and(|(bytes, given)| self.line.put(&bytes, given));
        told && self.line.flush().is_ok() && self.reap(patience).is_some()
    }

    /// Sends [`Command::Leave`] or [`Command::Stop`] and waits up to `patience`. Returns the reports up to the worker's exit; a
    /// worker that does not exit is killed.
    pub(super) fn exit(&mut self, command: Command, patience: Duration) -> Vec<Report> {
        let until = Instant::now() + patience;
        let _ = self.send(command);
        let mut reports = Vec::new();
        loop {
            self.exchange();
            while let Ok(Some(report)) = self.poll() {
                reports.push(report);
            }
            if self.line.has_ended() || Instant::now() >= until {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        self.kill();
        reports
    }

    fn reap(&mut self, patience: Duration) -> Option<ExitStatus> {
        let until = Instant::now() + patience;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) if Instant::now() < until => std::thread::sleep(Duration::from_millis(1)),
                _ => return None,
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.stop(STOP) {
            self.kill();
        }
    }
}

/// The system call that a line of a sandbox's watcher names ([`sys::seccomp`]).
fn refused_call(line: &[u8]) -> Option<String> {
    let name = line.strip_prefix(REFUSED.as_bytes())?.strip_suffix(b"\n")?;
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"_ ".contains(byte);
    (name.len() <= CALL_BYTES_MAX && name.iter().all(is_name)).then(|| String::from_utf8_lossy(name).into())
}

fn described(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("ended by signal {signal}"),
        (None, Some(code)) => format!("ended with status {code}"),
        (None, None) => "ended".into(),
    }
}

/// Runs a worker for the broker at the other end of `socket`, until the broker stops it, with the spawner at the other end
/// of `spawner`. Enters the sandbox before it reads anything.
pub fn serve_worker(socket: OwnedFd, spawner: OwnedFd) -> Result<(), ServiceError> {
    let failed = |error| ServiceError::os("the line to the broker", error);
    // Short time slices keep the latency low while others use the processor. They are optional.
    sys::thread::be_prompt();
    let mut poller = Poller::new().map_err(|error| ServiceError::os("epoll", error))?;
    modules::process::use_spawner(spawner);
    let ioctls: Vec<_> =
        registry::device_classes().iter().flat_map(|class| class.ioctls()).copied().collect();
    let weakness =
        confine::lock_up(&ioctls, Refusals::Named).map_err(|error| ServiceError::Usage(error.to_string()))?;
    let mut broker = Broker { line: Line::new(socket, true).map_err(failed)?, turns: 0, is_over: false };
    let Some(begin) = broker.receive_begin(&mut poller)? else { return Ok(()) };
    if let Some(weakness) = weakness {
        if begin.requires_lock {
            return Err(ServiceError::Usage(weakness));
        }
        let _ = broker.put(Report::Warning(weakness));
    }
    isolation::use_program(begin.program.into());
    Loop::new(broker, begin.limits, poller).run();
    Ok(())
}

/// The worker's end of the line.
struct Broker {
    line: Line,
    /// Turns until the next check for commands without a wait.
    turns: u32,
    is_over: bool,
}

impl Broker {
    /// Waits for the first frame; `None` if the broker closes the line instead.
    fn receive_begin(&mut self, poller: &mut Poller) -> Result<Option<Begin>, ServiceError> {
        let wrong = |problem: String| ServiceError::Peer(format!("the broker: {problem}"));
        loop {
            if let Some((bytes, _)) = self.line.next().map_err(|error| wrong(error.to_string()))? {
                return Begin::parse(&bytes).map(Some).map_err(|error| wrong(error.to_string()));
            }
            if self.line.has_ended() {
                return Ok(None);
            }
            self.line.register(poller);
            poller.wait(None).map_err(|error| ServiceError::os("waiting", error))?;
            self.receive();
        }
    }

    fn receive(&mut self) {
        self.turns = TURNS;
        self.line.receive();
        self.is_over |= self.line.has_ended();
    }
}

impl ControlChannel for Broker {
    fn cpu_ns(&self) -> u64 {
        sys::clock::process_cpu_ns()
    }

    fn take(&mut self) -> Option<Command> {
        match self.line.next() {
            Ok(None) if self.is_over => Some(Command::Stop),
            Ok(None) => {
                // A busy loop must read commands too.
                self.turns = self.turns.saturating_sub(1);
                if self.turns == 0 {
                    self.receive();
                }
                None
            }
            // An invalid command means that the broker cannot be used: stop.
            Ok(Some((bytes, given))) => Some(parse_command(&bytes, given).unwrap_or(Command::Stop)),
            Err(_) => Some(Command::Stop),
        }
    }

    fn put(&mut self, report: Report) -> Result<(), Report> {
        if self.line.is_full() {
            return Err(report);
        }
        // No report exceeds a frame.
        let _ = self.line.put(&emit_report(&report), Vec::new());
        Ok(())
    }

    fn notify(&mut self) {
        self.is_over |= self.line.flush().is_err();
    }

    fn register(&self, poller: &mut Poller) {
        self.line.register(poller);
    }

    fn handle_wait(&mut self, poller: &Poller) {
        if self.line.is_ready(poller) {
            self.receive();
            self.notify();
        }
    }
}
