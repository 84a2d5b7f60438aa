//! The console: a local socket of every running `share` and `attach`. Other processes of the same user request
//! statistics and changes through it.
//!
//! Each request and each answer is one line of JSON, and a client waits for the answer before its next request. The
//! broker's thread answers between its other work from data that it already has, so no request blocks it.

use flow::stats::DriverStats;
use flow::trace::FlowTrace;
use hub::hub::HubStats;
use pipeline::Edit;
use rustix::net::sockopt::socket_peercred;
use rustix::process::{getpid, getuid};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write};
use std::num::NonZeroU32;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use sys::poller::Poller;
use trust::local_socket::{LocalSocket, connect, directories, is_stale, write_line};

/// Most clients at a time.
const VISITORS_MAX: usize = 16;
/// Most bytes of a request.
const QUESTION_BYTES_MAX: usize = 64 << 10;
/// Most bytes of an answer.
const ANSWER_BYTES_MAX: usize = 16 << 20;
/// Timeout of an answer.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// Prefix of the socket names.
const PREFIX: &str = "console-";

/// Result of a reload, in entries of the run file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reloaded {
    /// Entries started.
    pub started: usize,
    /// Entries stopped.
    pub ended: usize,
    /// Entries that kept running without a restart.
    pub unchanged: usize,
}

/// A request to a console.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Operation {
    /// Requests a [`Status`].
    Stats {},
    /// Requests another pipeline for a flow of a device.
    Change {
        /// The device's name.
        name: String,
        /// Selects the flow from the application to the device.
        back: bool,
        /// The edit of the pipeline.
        edit: Edit,
    },
    /// Passes a command to the partner: the local stand-in for the device, or the device itself.
    Say {
        /// The device's name.
        name: String,
        /// The command, in the language of the device class; an empty one asks for the list of commands.
        words: String,
    },
    /// Requests the stamps of sampled messages along their paths: a [`Traced`]. The first request starts the trace;
    /// it ends 3 s after the last request. One client traces at a time.
    Trace {
        /// A number that the client chooses for itself.
        asker: u64,
        /// Traces the flows of this device only.
        name: Option<String>,
        /// Samples one message in this many; `None` ends the trace.
        one_in: Option<NonZeroU32>,
    },
    /// Tells `outboard run` to read its file again.
    Reload {},
}

/// The answer to an [`Operation`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Answer {
    /// Answers [`Operation::Stats`].
    Status(Status),
    /// Answers [`Operation::Change`]: both hosts use the new pipeline.
    Changed {
        /// The pipeline, canonical.
        pipeline: String,
    },
    /// Answers [`Operation::Say`].
    Said {
        /// The partner's answer.
        text: String,
    },
    /// Answers [`Operation::Trace`].
    Traced(Traced),
    /// Answers [`Operation::Reload`].
    Reloaded(Reloaded),
    /// The request was refused.
    Refused {
        /// The reason.
        problem: String,
    },
}

/// The stamps collected since the last answer.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Traced {
    /// `share` or `attach`.
    pub role: String,
    /// The process id.
    pub process: i32,
    /// The stamps by flow.
    pub flows: Vec<FlowTrace>,
}

impl Answer {
    /// Makes the answer to [`Operation::Say`].
    pub fn said(result: Result<String, String>) -> Answer {
        match result {
            Ok(text) => Answer::Said { text },
            Err(problem) => Answer::Refused { problem },
        }
    }

    /// Refuses a reload: this process has no run file.
    pub fn no_file() -> Answer {
        Answer::Refused { problem: "this process has no run file: only `outboard run` has one".into() }
    }

    /// Refuses a trace while another client traces.
    pub fn traced_already() -> Answer {
        Answer::Refused { problem: "another process already traces it: stop that one first".into() }
    }

    /// Makes one answer of those of several sessions, each with its peer. One refusal makes it a refusal, which names the peers.
    fn joined(mut parts: Vec<(String, Answer)>) -> Answer {
        let mut refusals = Vec::new();
        let mut done = Vec::new();
        for (peer, answer) in &parts {
            match answer {
                Answer::Refused { problem } => refusals.push((peer, problem)),
                _ => done.push(peer.as_str()),
            }
        }
        let is_alike = refusals.windows(2).all(|pair| pair[0].1 == pair[1].1);
        if refusals.is_empty() || done.is_empty() && is_alike {
            return parts.swap_remove(0).1;
        }
        let named = refusals.iter().map(|(peer, problem)| format!("{peer}: {problem}"));
        let mut problem = named.collect::<Vec<_>>().join("; ");
        if !done.is_empty() {
            problem += &format!("; it is done for {}", done.join(", "));
        }
        Answer::Refused { problem }
    }
}

/// The state of a process.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Status {
    /// `share`, `attach`, or `run` for the process of an `outboard run`.
    pub role: String,
    /// The process id.
    pub process: i32,
    /// The drivers in use.
    pub drivers: Vec<DriverStatus>,
    /// The sessions with other hosts.
    #[serde(default)]
    pub peers: Vec<PeerStatus>,
    /// The devices on offer; only from a `share`.
    #[serde(default)]
    pub offers: Vec<OfferStatus>,
    /// Refused connections, counted by reason; only from a `share`.
    #[serde(default)]
    pub refused: BTreeMap<String, u64>,
    /// Entries of the run file that do not run, with the reason; only from a `run`.
    #[serde(default)]
    pub problems: Vec<String>,
    /// Entries of the run file that wait for a device; only from a `run`.
    #[serde(default)]
    pub waiting: Vec<String>,
}

/// The state of a session with another host.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct PeerStatus {
    /// The local name of the host, or else the name that it gives itself.
    pub name: String,
    /// The address of the host.
    pub address: String,
    /// Seconds of silence; `None` while messages arrive.
    pub silent_seconds: Option<f64>,
    /// Shortest recent round trip, seconds.
    pub round_trip_seconds: Option<f64>,
    /// Number of devices in use.
    pub drivers: usize,
    /// Messages of all flows, both directions.
    #[serde(default)]
    pub messages: u64,
    /// Bytes of the message bodies.
    #[serde(default)]
    pub bytes: u64,
    /// Bytes of unacknowledged records in the replay stores.
    #[serde(default)]
    pub store_bytes: u64,
    /// Seconds that the worker spent on this session.
    #[serde(default)]
    pub busy_seconds: f64,
}

impl PeerStatus {
    /// Sums up the statistics of `drivers`.
    pub fn of<'a>(drivers: impl Iterator<Item = &'a DriverStats>) -> PeerStatus {
        let mut all = PeerStatus::default();
        for driver in drivers {
            all.busy_seconds += driver.busy_seconds;
            for flow in driver.outgoing.iter().chain(&driver.incoming) {
                all.messages += flow.messages;
                all.bytes += flow.bytes;
                all.store_bytes += flow.store.as_ref().map_or(0, |store| store.bytes);
            }
        }
        all
    }
}

/// The state of a device on offer.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct OfferStatus {
    /// The device's name.
    pub name: String,
    /// Set if it is plugged in.
    pub present: bool,
    /// Number of peers that use it.
    pub users: usize,
    /// Statistics of the hub, while several hosts may use the device and at least one does.
    #[serde(default)]
    pub hub: Option<HubStats>,
}

impl Status {
    /// Makes the status of this process.
    pub fn of(role: &str, drivers: Vec<DriverStatus>) -> Status {
        Status { role: role.into(), process: getpid().as_raw_nonzero().get(), drivers, ..Status::default() }
    }
}

/// The state of a driver.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DriverStatus {
    /// The device's name.
    pub name: String,
    /// The other host.
    pub peer: String,
    /// The node of the application; empty at a `share`.
    pub node: String,
    /// Time of the statistics, in nanoseconds of this host's boot clock; 0 if there are none yet.
    pub at_ns: u64,
    /// The statistics.
    pub stats: DriverStats,
}

/// A client of the console.
struct Visitor {
    stream: UnixStream,
    question: Vec<u8>,
    /// The answer in progress; `written` bytes of it are sent.
    answer: Vec<u8>,
    written: usize,
    /// Number of the answers that make up the next one, and those that are there, each with the peer of its session.
    due: usize,
    parts: Vec<(String, Answer)>,
}

/// The console socket of one broker, and its clients.
pub struct Console {
    socket: LocalSocket,
    visitors: BTreeMap<u64, Visitor>,
    next: u64,
}

impl Console {
    /// Opens a console; a process may have several.
    pub fn open() -> io::Result<Console> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let socket = LocalSocket::open(&format!("{PREFIX}{}-{number}.sock", getpid().as_raw_nonzero()))?;
        Ok(Console { socket, visitors: BTreeMap::new(), next: 0 })
    }

    /// Returns the path of the socket.
    pub fn path(&self) -> &Path {
        self.socket.path()
    }

    /// Opens the socket again if its path is gone ([`LocalSocket::reopen`]). A failure is temporary.
    pub fn reopen(&mut self, poller: &mut Poller) {
        let _ = self.socket.reopen(poller);
    }

    /// Reads requests; returns each with the number of its client. The caller must answer each one once, or in the parts that
    /// [`Console::expect`] announces.
    pub fn poll(&mut self, poller: &mut Poller) -> Vec<(u64, Operation)> {
        let mut asked = Vec::new();
        let numbers: Vec<_> = self.visitors.keys().copied().collect();
        for number in numbers {
            let Some(visitor) = self.visitors.get_mut(&number) else { continue };
            match visitor.read_request() {
                Ok(None) => {}
                Ok(Some(Ok(operation))) => asked.push((number, operation)),
                Ok(Some(Err(problem))) => self.answer(number, &Answer::Refused { problem }, poller),
                Err(_) => self.disconnect(number, poller),
            }
        }
        if !poller.is_ready(self.socket.as_fd()) {
            return asked;
        }
        while let Ok(stream) = self.socket.accept() {
            let is_ours =
                socket_peercred(&stream).is_ok_and(|peer| peer.uid == getuid() || peer.uid.is_root());
            if is_ours && self.visitors.len() < VISITORS_MAX && stream.set_nonblocking(true).is_ok() {
                self.visitors.insert(self.next, Visitor::new(stream));
                self.next += 1;
            }
        }
        asked
    }

    /// Sends an answer to a client.
    pub fn answer(&mut self, number: u64, answer: &Answer, poller: &mut Poller) {
        let Some(visitor) = self.visitors.get_mut(&number) else { return };
        if visitor.send(answer).is_err() {
            self.disconnect(number, poller);
        }
    }

    /// The next answer to a client consists of this many parts ([`Console::answer_part`]).
    pub fn expect(&mut self, number: u64, count: usize) {
        if let Some(visitor) = self.visitors.get_mut(&number) {
            (visitor.due, visitor.parts) = (count, Vec::new());
        }
    }

    /// Takes a part of an answer, from a session with this peer; sends the answer to the client if it is the last part.
    pub fn answer_part(&mut self, number: u64, peer: &str, part: Answer, poller: &mut Poller) {
        let Some(visitor) = self.visitors.get_mut(&number) else { return };
        visitor.parts.push((peer.into(), part));
        if visitor.parts.len() >= visitor.due {
            let answer = Answer::joined(std::mem::take(&mut visitor.parts));
            self.answer(number, &answer, poller);
        }
    }

    fn disconnect(&mut self, number: u64, poller: &mut Poller) {
        if let Some(visitor) = self.visitors.remove(&number) {
            poller.forget(visitor.stream.as_fd());
        }
    }

    /// Registers the sockets with the poller.
    pub fn register(&self, poller: &mut Poller) {
        poller.register(self.socket.as_fd(), true, false);
        for visitor in self.visitors.values() {
            let writes = visitor.is_writing();
            poller.register(visitor.stream.as_fd(), !writes, writes);
        }
    }
}

impl Visitor {
    fn new(stream: UnixStream) -> Visitor {
        let (question, answer, parts) = (Vec::new(), Vec::new(), Vec::new());
        Visitor { stream, question, answer, written: 0, due: 1, parts }
    }

    fn is_writing(&self) -> bool {
        self.written < self.answer.len()
    }

    /// Continues to write the last answer, then reads the next request if it is complete. An error ends the connection.
    fn read_request(&mut self) -> io::Result<Option<Result<Operation, String>>> {
        self.write()?;
        let mut bytes = [0; 4096];
        while !self.is_writing() {
            if let Some(end) = self.question.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.question.drain(..=end).collect();
                let read = serde_json::from_slice(&line);
                return Ok(Some(read.map_err(|error| format!("invalid request: {error}"))));
            }
            if self.question.len() > QUESTION_BYTES_MAX {
                return Err(io::ErrorKind::InvalidData.into());
            }
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.question.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    fn send(&mut self, answer: &Answer) -> io::Result<()> {
        self.answer = serde_json::to_vec(answer)?;
        self.answer.push(b'\n');
        self.written = 0;
        self.write()
    }

    fn write(&mut self) -> io::Result<()> {
        while self.is_writing() {
            match self.stream.write(&self.answer[self.written..]) {
                Ok(count) => self.written += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Lists the consoles of this user's processes, and removes sockets left behind by killed processes.
pub fn consoles() -> io::Result<Vec<PathBuf>> {
    named(PREFIX)
}

/// Lists the consoles of this process.
pub fn own_consoles() -> io::Result<Vec<PathBuf>> {
    named(&format!("{PREFIX}{}-", getpid().as_raw_nonzero()))
}

/// Lists the sockets whose names have this prefix, and removes those that have no listener.
fn named(prefix: &str) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for directory in directories()? {
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if !name.starts_with(prefix) {
                continue;
            }
            match is_stale(&path) {
                // Another process may have removed it already.
                true => drop(fs::remove_file(&path)),
                false => found.push(path),
            }
        }
    }
    found.sort();
    Ok(found)
}

/// The states of this user's processes.
#[derive(Debug, Default)]
pub struct Survey {
    /// Each console with its status, in the order of [`consoles`]. Processes that have exited meanwhile are left out.
    pub statuses: Vec<(PathBuf, Status)>,
    /// The ids of processes that did not answer in time.
    pub silent: Vec<i32>,
}

/// Asks all of this user's processes for their status, in parallel. A process that hangs delays the result by `patience` at most.
pub fn survey(patience: Duration) -> io::Result<Survey> {
    let mut survey = Survey::default();
    for (console, answer) in ask_all(Operation::Stats {}, patience)? {
        match answer {
            Ok(Answer::Status(status)) => survey.statuses.push((console, status)),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => survey.silent.extend(process(&console)),
            _ => {}
        }
    }
    survey.statuses.sort_by(|(one, _), (other, _)| one.cmp(other));
    survey.silent.sort();
    survey.silent.dedup();
    Ok(survey)
}

/// Sends `operation` to all consoles of this user in parallel, and returns each answer as it arrives. The caller may
/// drop the iterator early.
pub fn ask_all(
    operation: Operation,
    patience: Duration,
) -> io::Result<impl Iterator<Item = (PathBuf, io::Result<Answer>)>> {
    let (operation, (sender, answers)) = (Arc::new(operation), mpsc::channel());
    for console in consoles()? {
        let (operation, sender) = (operation.clone(), sender.clone());
        std::thread::Builder::new().spawn(move || {
            let answer = ask_patiently(&console, &operation, patience, &mut || {});
            // The receiver may have gone.
            let _ = sender.send((console, answer));
        })?;
    }
    Ok(answers.into_iter())
}

/// Parses the process id out of a console's name.
fn process(console: &Path) -> Option<i32> {
    let name = console.file_name()?.to_str()?;
    name.strip_prefix(PREFIX)?.split('-').next()?.parse().ok()
}

/// Sends a request to one console; fails after [`PATIENCE`] without an answer.
pub fn ask(console: &Path, operation: &Operation) -> io::Result<Answer> {
    ask_patiently(console, operation, PATIENCE, &mut || {})
}

/// Does the same as [`ask`] for a request that takes long; fails after `patience`. Calls `wait` after each [`PATIENCE`] without an
/// answer.
pub fn ask_patiently(
    console: &Path,
    operation: &Operation,
    patience: Duration,
    wait: &mut dyn FnMut(),
) -> io::Result<Answer> {
    let mut stream = connect(console).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => io::Error::new(
            io::ErrorKind::TimedOut,
            "the process accepts no connection: it hangs or is stopped",
        ),
        _ => error,
    })?;
    let step = PATIENCE.min(patience);
    stream.set_read_timeout(Some(step))?;
    stream.set_write_timeout(Some(step))?;
    write_line(&mut stream, operation)?;
    let mut steps_left = patience.as_millis().div_ceil(step.as_millis().max(1));
    let mut line = Vec::new();
    let mut bytes = [0; 16 << 10];
    while !line.ends_with(b"\n") {
        match stream.read(&mut bytes) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) if line.len() + count <= ANSWER_BYTES_MAX => line.extend_from_slice(&bytes[..count]),
            Ok(_) => return Err(io::Error::new(io::ErrorKind::InvalidData, "the answer is too long")),
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
            Err(_) if steps_left > 1 => {
                steps_left -= 1;
                wait();
            }
            Err(_) => {
                let problem =
                    format!("no answer for {} s; the request may still take effect", patience.as_secs());
                return Err(io::Error::new(io::ErrorKind::TimedOut, problem));
            }
        }
    }
    Ok(serde_json::from_slice(&line)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_answer_tells_the_outcome_of_each_session() {
        let changed = |peer: &str| (peer.to_string(), Answer::Changed { pipeline: "tap/1".into() });
        let refused = |peer: &str, why: &str| (peer.to_string(), Answer::Refused { problem: why.into() });
        let outcome = |parts| match Answer::joined(parts) {
            Answer::Changed { pipeline } => pipeline,
            Answer::Refused { problem } => format!("not: {problem}"),
            other => panic!("{other:?}"),
        };
        assert_eq!(outcome(vec![changed("a"), changed("b")]), "tap/1");
        assert_eq!(outcome(vec![refused("a", "no such pair")]), "not: no such pair");
        assert_eq!(outcome(vec![refused("a", "wrong"), refused("b", "wrong")]), "not: wrong");
        assert_eq!(outcome(vec![refused("a", "old"), refused("b", "busy")]), "not: a: old; b: busy");
        assert_eq!(
            outcome(vec![changed("a"), refused("b", "old"), changed("c")]),
            "not: b: old; it is done for a, c"
        );
    }
}
