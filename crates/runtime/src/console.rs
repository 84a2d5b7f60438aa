//! The console: a local socket of every running `share` and `attach`, through which another process of the same
//! user asks what it does. One JSON object a line, each way; one question at a time.
//!
//! The broker's thread answers between its other work, from what it knows: no question makes it wait.

use crate::junction::hub::HubStats;
use crate::local_socket::{directory, is_stale, listen, write_line};
use crate::service::Reloaded;
use crate::stats::DriverStats;
use crate::trace::FlowTrace;
use pipeline::Edit;
use rustix::net::sockopt::socket_peercred;
use rustix::process::{getpid, getuid};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write};
use std::num::NonZeroU32;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use sys::poller::Poller;

/// Most processes that ask at once.
const VISITORS_MAX: usize = 16;
/// Bytes of the longest question.
const QUESTION_BYTES_MAX: usize = 64 << 10;
/// Bytes of the longest answer.
const ANSWER_BYTES_MAX: usize = 16 << 20;
/// How long an answer is waited for.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// What the names of these sockets begin with.
const PREFIX: &str = "console-";

/// What may be asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Operation {
    /// What the process runs: a [`Status`].
    Stats {},
    /// Another pipeline for a flow of this device.
    Change {
        /// The device.
        name: String,
        /// The flow from the application to the device, rather than the other.
        back: bool,
        /// What becomes of the pipeline.
        edit: Edit,
    },
    /// Words for what stands in for this device here, or for the device.
    Say {
        /// The device.
        name: String,
        /// In words of its class; none ask what can be said.
        words: String,
    },
    /// When messages of a sample passed which points of their paths: a [`Traced`]. The first question begins it;
    /// when none has come for 3 s, it ends. One process asks at a time.
    Trace {
        /// A number of the asking process's own.
        asker: u64,
        /// Only this device's flows.
        name: Option<String>,
        /// One message in so many; none is the end of it.
        one_in: Option<NonZeroU32>,
    },
    /// To `outboard run`: read the file again.
    Reload {},
}

/// The answer to an [`Operation`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Answer {
    /// To [`Operation::Stats`].
    Status(Status),
    /// To [`Operation::Change`]: both hosts have it.
    Changed {
        /// The pipeline, canonical.
        pipeline: String,
    },
    /// To [`Operation::Say`].
    Said {
        /// What the partner answered.
        text: String,
    },
    /// To [`Operation::Trace`].
    Traced(Traced),
    /// To [`Operation::Reload`].
    Reloaded(Reloaded),
    /// It cannot be done, and why.
    Refused {
        /// Why.
        problem: String,
    },
}

/// What was traced since the last answer.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Traced {
    /// `share` or `attach`.
    pub role: String,
    /// Its process id.
    pub process: i32,
    /// Its flows.
    pub flows: Vec<FlowTrace>,
}

impl Answer {
    /// To [`Operation::Say`].
    pub(crate) fn said(result: Result<String, String>) -> Answer {
        match result {
            Ok(text) => Answer::Said { text },
            Err(problem) => Answer::Refused { problem },
        }
    }

    /// To who wants a process to read a file that it has not.
    pub(crate) fn no_file() -> Answer {
        Answer::Refused { problem: "this process runs no file: `outboard run` does".into() }
    }

    /// To who traces what another traces already.
    pub(crate) fn traced_already() -> Answer {
        Answer::Refused { problem: "another process traces it already: end that one first".into() }
    }
}

/// What a process runs.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Status {
    /// `share`, `attach`, or `run` for what an `outboard run` has of its own.
    pub role: String,
    /// Its process id.
    pub process: i32,
    /// Its drivers in use.
    pub drivers: Vec<DriverStatus>,
    /// Sessions with other hosts.
    #[serde(default)]
    pub peers: Vec<PeerStatus>,
    /// At a `share`: what is on offer.
    #[serde(default)]
    pub offers: Vec<OfferStatus>,
    /// At a `share`: who was turned away, how often for which reason.
    #[serde(default)]
    pub refused: BTreeMap<String, u64>,
    /// Of a `run`: what does not run although its file says so, and why.
    #[serde(default)]
    pub problems: Vec<String>,
}

/// A session with another host.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct PeerStatus {
    /// What it is called here, or calls itself.
    pub name: String,
    /// Where it is.
    pub address: String,
    /// How long nothing was heard of it, seconds; none while it is heard.
    pub silent_seconds: Option<f64>,
    /// Shortest round trip seen lately, seconds.
    pub round_trip_seconds: Option<f64>,
    /// Devices in use.
    pub drivers: usize,
    /// Messages of their flows, both ways.
    #[serde(default)]
    pub messages: u64,
    /// Bytes of their bodies.
    #[serde(default)]
    pub bytes: u64,
    /// Bytes that are kept to be sent again.
    #[serde(default)]
    pub store_bytes: u64,
    /// How long its turns took the worker.
    #[serde(default)]
    pub busy_seconds: f64,
}

impl PeerStatus {
    /// What these drivers amount to.
    pub(crate) fn of<'a>(drivers: impl Iterator<Item = &'a DriverStats>) -> PeerStatus {
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

/// A device on offer.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct OfferStatus {
    /// Its name.
    pub name: String,
    /// Whether it is plugged in.
    pub present: bool,
    /// Peers that use it.
    pub users: usize,
    /// While several may use it at once, and somebody does: what was divided among them.
    #[serde(default)]
    pub hub: Option<HubStats>,
}

impl Status {
    /// Of this process.
    pub(crate) fn of(role: &str, drivers: Vec<DriverStatus>) -> Status {
        Status { role: role.into(), process: getpid().as_raw_nonzero().get(), drivers, ..Status::default() }
    }
}

/// A driver in use.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DriverStatus {
    /// The device's name.
    pub name: String,
    /// The other host.
    pub peer: String,
    /// What the application sees; empty at a `share`.
    pub node: String,
    /// When the figures were taken, nanoseconds of this host's boot clock; 0 if there are none yet.
    pub at_ns: u64,
    /// Its figures.
    pub stats: DriverStats,
}

/// Somebody who asks.
struct Visitor {
    stream: UnixStream,
    question: Vec<u8>,
    /// What is still to be written of the last answer.
    answer: Vec<u8>,
    written: usize,
}

/// The socket of one broker, and who asks through it.
pub(crate) struct Console {
    listener: UnixListener,
    path: PathBuf,
    visitors: BTreeMap<u64, Visitor>,
    next: u64,
}

impl Console {
    /// Opens a console of this process's own; a process may have several.
    pub(crate) fn open() -> io::Result<Console> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = directory()?.join(format!("{PREFIX}{}-{number}.sock", getpid().as_raw_nonzero()));
        let listener = listen(&path)?;
        Ok(Console { listener, path, visitors: BTreeMap::new(), next: 0 })
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// What was asked, and by which visitor. Each is to be answered once.
    pub(crate) fn poll(&mut self, poller: &mut Poller) -> Vec<(u64, Operation)> {
        let mut asked = Vec::new();
        let numbers: Vec<_> = self.visitors.keys().copied().collect();
        for number in numbers {
            let Some(visitor) = self.visitors.get_mut(&number) else { continue };
            match visitor.hear() {
                Ok(None) => {}
                Ok(Some(Ok(operation))) => asked.push((number, operation)),
                Ok(Some(Err(problem))) => self.answer(number, &Answer::Refused { problem }, poller),
                Err(_) => self.see_off(number, poller),
            }
        }
        if !poller.is_ready(self.listener.as_fd()) {
            return asked;
        }
        while let Ok((stream, _)) = self.listener.accept() {
            let is_ours =
                socket_peercred(&stream).is_ok_and(|peer| peer.uid == getuid() || peer.uid.is_root());
            if is_ours && self.visitors.len() < VISITORS_MAX && stream.set_nonblocking(true).is_ok() {
                let visitor = Visitor { stream, question: Vec::new(), answer: Vec::new(), written: 0 };
                self.visitors.insert(self.next, visitor);
                self.next += 1;
            }
        }
        asked
    }

    /// Answers a visitor.
    pub(crate) fn answer(&mut self, number: u64, answer: &Answer, poller: &mut Poller) {
        let Some(visitor) = self.visitors.get_mut(&number) else { return };
        if visitor.say(answer).is_err() {
            self.see_off(number, poller);
        }
    }

    fn see_off(&mut self, number: u64, poller: &mut Poller) {
        if let Some(visitor) = self.visitors.remove(&number) {
            poller.forget(visitor.stream.as_fd());
        }
    }

    /// Puts what to wait for into the poller.
    pub(crate) fn want(&self, poller: &mut Poller) {
        poller.want(self.listener.as_fd(), true, false);
        for visitor in self.visitors.values() {
            let writes = visitor.is_writing();
            poller.want(visitor.stream.as_fd(), !writes, writes);
        }
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

impl Visitor {
    fn is_writing(&self) -> bool {
        self.written < self.answer.len()
    }

    /// Goes on with the last answer, then reads the next question, if it is whole. An error ends the visit.
    fn hear(&mut self) -> io::Result<Option<Result<Operation, String>>> {
        self.write()?;
        let mut bytes = [0; 4096];
        while !self.is_writing() {
            if let Some(end) = self.question.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.question.drain(..=end).collect();
                let read = serde_json::from_slice(&line);
                return Ok(Some(read.map_err(|error| format!("this is no question: {error}"))));
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

    fn say(&mut self, answer: &Answer) -> io::Result<()> {
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

/// The consoles of this user's processes. Sockets that a killed process left behind are removed.
pub fn consoles() -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory()?)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if !name.starts_with(PREFIX) {
            continue;
        }
        match is_stale(&path) {
            // Whoever else looks may have removed it already.
            true => drop(fs::remove_file(&path)),
            false => found.push(path),
        }
    }
    found.sort();
    Ok(found)
}

/// The consoles of this process.
pub(crate) fn own_consoles() -> io::Result<Vec<PathBuf>> {
    let own = format!("{PREFIX}{}-", getpid().as_raw_nonzero());
    let is_own =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&own));
    let mut found: Vec<_> =
        fs::read_dir(directory()?)?.flatten().map(|entry| entry.path()).filter(is_own).collect();
    found.sort();
    Ok(found)
}

/// What this user's processes say of themselves.
#[derive(Debug, Default)]
pub struct Survey {
    /// Each console with its answer, in the order of [`consoles`]. Who ended meanwhile is left out.
    pub told: Vec<(PathBuf, Status)>,
    /// The processes that said nothing for as long as was waited.
    pub silent: Vec<i32>,
}

/// Asks all of this user's processes how they fare. One that hangs keeps nobody from the others' answers for longer than
/// `patience`.
pub fn survey(patience: Duration) -> io::Result<Survey> {
    let mut survey = Survey::default();
    for (console, answer) in ask_all(Operation::Stats {}, patience)? {
        match answer {
            Ok(Answer::Status(status)) => survey.told.push((console, status)),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => survey.silent.extend(process(&console)),
            _ => {}
        }
    }
    survey.told.sort_by(|(one, _), (other, _)| one.cmp(other));
    survey.silent.sort();
    survey.silent.dedup();
    Ok(survey)
}

/// Asks all consoles of this user's processes at once; gives each one's answer as it comes. Who has heard enough may stop
/// listening.
pub fn ask_all(
    operation: Operation,
    patience: Duration,
) -> io::Result<impl Iterator<Item = (PathBuf, io::Result<Answer>)>> {
    let (operation, (sender, answers)) = (Arc::new(operation), mpsc::channel());
    for console in consoles()? {
        let (operation, sender) = (operation.clone(), sender.clone());
        std::thread::Builder::new().spawn(move || {
            let answer = ask_within(&console, &operation, patience);
            // Nobody may listen any more.
            let _ = sender.send((console, answer));
        })?;
    }
    Ok(answers.into_iter())
}

/// Whose console it is, by its name.
fn process(console: &Path) -> Option<i32> {
    let name = console.file_name()?.to_str()?;
    name.strip_prefix(PREFIX)?.split('-').next()?.parse().ok()
}

/// Asks one console; an error after [`PATIENCE`] without an answer.
pub fn ask(console: &Path, operation: &Operation) -> io::Result<Answer> {
    ask_within(console, operation, PATIENCE)
}

fn ask_within(console: &Path, operation: &Operation, patience: Duration) -> io::Result<Answer> {
    let mut stream = UnixStream::connect(console)?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    write_line(&mut stream, operation)?;
    let mut line = Vec::new();
    let mut bytes = [0; 16 << 10];
    let late = |error: io::Error| match error.kind() {
        io::ErrorKind::WouldBlock => {
            let problem =
                format!("nothing for {} s; what it was asked for it may still do", patience.as_secs());
            io::Error::new(io::ErrorKind::TimedOut, problem)
        }
        _ => error,
    };
    while !line.ends_with(b"\n") {
        match stream.read(&mut bytes).map_err(late)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count if line.len() + count <= ANSWER_BYTES_MAX => line.extend_from_slice(&bytes[..count]),
            _ => return Err(io::Error::new(io::ErrorKind::InvalidData, "the answer has no end")),
        }
    }
    Ok(serde_json::from_slice(&line)?)
}
