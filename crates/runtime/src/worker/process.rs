//! A worker that is a process of its own: the same program, executed anew (`outboard worker`). It meets its broker on
//! descriptor 3, takes everything from itself that it does not need, and only then reads its first command.

use super::codec::{Begin, emit_command, emit_report, parse_command, parse_report};
use super::line::Line;
use super::paths::{Desk, Loop};
use super::turns::Turns;
use super::{Command, Report};
use crate::error::RuntimeError;
use links::confine;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use session::Limits;
use std::env;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command as Program, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use sys::poller::Poller;

/// How long a worker that was told to stop may take before it is killed: what side ports lead to may take 5 s.
const STOP: Duration = Duration::from_secs(6);
/// How long one that closed its line may take to be seen to have ended.
const END: Duration = Duration::from_millis(50);
/// While a loop is busy, it looks for commands in so many turns once.
const TURNS: u32 = 16;
/// Environment variables that a partner reads, besides those of a confined module.
const ENVIRONMENT: &[&str] = &["DISPLAY", "RUST_BACKTRACE"];

/// The program that runs workers.
static PROGRAM: OnceLock<PathBuf> = OnceLock::new();

/// From here on the workers of this program are processes, in which this program runs [`serve_worker`] when it is called
/// with the word `worker`. Without this, as in a test or a measurement, they are threads. The first call counts.
pub fn run_in_processes(program: PathBuf) {
    PROGRAM.get_or_init(|| program);
}

/// Nothing that other hosts say is read outside of locked processes.
static SANDBOX: OnceLock<()> = OnceLock::new();

/// From here on flows of this program run in locked worker processes or not at all, and nothing else in it reads what other
/// hosts say. An error if this kernel cannot lock a process up.
pub fn require_sandbox() -> Result<(), RuntimeError> {
    confine::try_lock().map_err(|problem| {
        RuntimeError::Usage(format!(
            "a sandbox is required (--require-sandbox), and it cannot be had: {problem}; `outboard doctor` says more"
        ))
    })?;
    SANDBOX.get_or_init(|| ());
    Ok(())
}

/// Whether [`require_sandbox`] was called.
pub fn is_sandbox_required() -> bool {
    SANDBOX.get().is_some()
}

/// A broker's handle on a worker; dropping it ends the worker.
pub(super) struct Process {
    line: Line,
    child: Child,
    turns: Turns,
}

impl Process {
    /// Whether workers can be processes here.
    pub(super) fn is_possible() -> bool {
        PROGRAM.get().is_some()
    }

    /// Starts one. `name` is seen in the list of processes.
    pub(super) fn start(name: &str, limits: &Limits) -> io::Result<Process> {
        let program = PROGRAM.get().ok_or(io::ErrorKind::Unsupported)?;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        let mut command = Program::new(program);
        command.arg0("outboard").args(["worker", name]).stdin(Stdio::null()).stdout(Stdio::null());
        let kept = ENVIRONMENT.iter().filter_map(|name| Some(((*name).into(), env::var_os(name)?)));
        command.env_clear().envs(confine::environment().into_iter().chain(kept));
        let child = sys::process::start_with(&mut command, vec![theirs])?;
        let mut line = Line::new(ours, false)?;
        let begin = Begin { limits: limits.clone(), requires_lock: is_sandbox_required() };
        let _ = line.put(&begin.emit(), Vec::new());
        line.flush()?;
        Ok(Process { line, child, turns: Turns::new(Instant::now()) })
    }

    /// Processor time that it has used, nanoseconds.
    pub(super) fn cpu_ns(&self) -> Option<u64> {
        sys::clock::cpu_ns_of(self.child.id())
    }

    /// Asks something; `false` if the worker takes nothing any more, or what was to be said cannot cross.
    #[must_use]
    pub(super) fn send(&mut self, command: Command) -> bool {
        let Ok((bytes, given)) = emit_command(command) else { return false };
        !self.line.is_full() && self.line.put(&bytes, given) && self.line.flush().is_ok()
    }

    /// Reads and writes what there is, and judges what the worker uses.
    pub(super) fn exchange(&mut self) {
        let process = self.child.id();
        if let Some(turn) = self.turns.judge(|| sys::clock::cpu_ns_of(process), Instant::now()) {
            // Where the kernel knows no turns it has no others either.
            sys::thread::set_turn_of(process, turn);
        }
        // A worker that is gone is found out by its end.
        let _ = self.line.flush();
        self.line.receive();
    }

    /// The next thing it told; an error is why nothing of it is to be believed any more.
    pub(super) fn poll(&mut self) -> Result<Option<Report>, String> {
        match self.line.next() {
            Ok(Some((bytes, _))) => parse_report(&bytes).map(Some).map_err(|error| error.to_string()),
            Ok(None) => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Whether it is gone, and how it ended.
    pub(super) fn end(&mut self) -> Option<String> {
        if !self.line.has_ended() {
            return None;
        }
        Some(match self.reap(END) {
            Some(status) => described(status),
            None => "closed its line to the broker".into(),
        })
    }

    pub(super) fn want(&self, poller: &mut Poller) {
        self.line.want(poller);
    }

    pub(super) fn is_ready(&self, poller: &Poller) -> bool {
        self.line.is_ready(poller)
    }

    pub(super) fn forget(&self, poller: &mut Poller) {
        self.line.forget(poller);
    }

    /// Ends it at once.
    pub(super) fn kill(&mut self) {
        let _ = self.child.kill();
        self.reap(STOP);
    }

    /// Tells it to stop, and waits so long for that; whether it has.
    pub(super) fn stop(&mut self, patience: Duration) -> bool {
        let told = emit_command(Command::Stop).is_ok_and(|(bytes, given)| self.line.put(&bytes, given));
        told && self.line.flush().is_ok() && self.reap(patience).is_some()
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

fn described(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("ended by signal {signal}"),
        (None, Some(code)) => format!("ended with status {code}"),
        (None, None) => "ended".into(),
    }
}

/// Runs a worker for the broker at the other end of `socket`, until that has no use for it any more: takes from this
/// process what it does not need, once and for all, before it reads anything.
pub fn serve_worker(socket: OwnedFd) -> Result<(), RuntimeError> {
    let failed = |error| RuntimeError::os("the line to the broker", error);
    // What it carries must not wait for others that use a processor all the time; where that cannot be had, it does.
    sys::thread::be_prompt();
    let mut poller = Poller::new().map_err(|error| RuntimeError::os("epoll", error))?;
    let weakness = confine::lock_up().map_err(|error| RuntimeError::Usage(error.to_string()))?;
    let mut broker = Broker { line: Line::new(socket, true).map_err(failed)?, turns: 0, is_over: false };
    let Some(begin) = broker.hear_begin(&mut poller)? else { return Ok(()) };
    if let Some(weakness) = weakness {
        if begin.requires_lock {
            return Err(RuntimeError::Usage(weakness));
        }
        let _ = broker.put(Report::Warning(weakness));
    }
    Loop::new(broker, begin.limits, poller).run();
    Ok(())
}

/// The worker's end.
struct Broker {
    line: Line,
    /// Turns until it is looked for commands without being woken.
    turns: u32,
    is_over: bool,
}

impl Broker {
    /// Waits for what comes first; `None` if nothing does.
    fn hear_begin(&mut self, poller: &mut Poller) -> Result<Option<Begin>, RuntimeError> {
        let wrong = |problem: String| RuntimeError::Peer(format!("the broker: {problem}"));
        loop {
            if let Some((bytes, _)) = self.line.next().map_err(|error| wrong(error.to_string()))? {
                return Begin::parse(&bytes).map(Some).map_err(|error| wrong(error.to_string()));
            }
            if self.line.has_ended() {
                return Ok(None);
            }
            self.line.want(poller);
            poller.wait(None).map_err(|error| RuntimeError::os("waiting", error))?;
            self.receive();
        }
    }

    fn receive(&mut self) {
        self.turns = TURNS;
        self.line.receive();
        self.is_over |= self.line.has_ended();
    }
}

impl Desk for Broker {
    fn cpu_ns(&self) -> u64 {
        sys::clock::process_cpu_ns()
    }

    fn take(&mut self) -> Option<Command> {
        match self.line.next() {
            Ok(None) if self.is_over => Some(Command::Stop),
            Ok(None) => {
                // A loop that does not sleep is asked something all the same.
                self.turns = self.turns.saturating_sub(1);
                if self.turns == 0 {
                    self.receive();
                }
                None
            }
            // A broker that cannot be understood is none.
            Ok(Some((bytes, given))) => Some(parse_command(&bytes, given).unwrap_or(Command::Stop)),
            Err(_) => Some(Command::Stop),
        }
    }

    fn put(&mut self, report: Report) -> Result<(), Report> {
        if self.line.is_full() {
            return Err(report);
        }
        // Only figures or traces can be longer than a frame: they come again.
        let _ = self.line.put(&emit_report(&report), Vec::new());
        Ok(())
    }

    fn tell(&mut self) {
        self.is_over |= self.line.flush().is_err();
    }

    fn want(&self, poller: &mut Poller) {
        self.line.want(poller);
    }

    fn handle_wait(&mut self, poller: &Poller) {
        if self.line.is_ready(poller) {
            self.receive();
            self.tell();
        }
    }
}
