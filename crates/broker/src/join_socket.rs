//! A second `share` of the same user joins the one that already listens. This module contains both ends of the local socket.
//!
//! The second process sends its options as one line of JSON and receives one line. Its device stays on offer while
//! it keeps the connection open. A request with errors is refused and affects no other process.

use crate::events::Event;
use crate::programs::programs;
use crate::share_words::ShareWords;
use contract::ServiceError;
use contract::{DeviceError, Role, Time};
use modules::{Pipelines, now, registry};
use rustix::net::sockopt::socket_peercred;
use rustix::process::{getpid, getuid};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;
use sys::poller::Poller;
use sys::stop::Stop;
use trust::local_socket::{LocalSocket, directories, write_line};

/// Most processes joined to one device host.
const VISITORS_MAX: usize = 32;
/// Most bytes of a request or an answer.
const LINE_BYTES_MAX: usize = 64 << 10;
/// Timeout of the answer: opening a device may take a while, and its user has a minute to answer a dialog.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(90);

/// The request of a second `share`.
#[derive(Debug, Serialize, Deserialize)]
pub struct Request {
    /// The options of the device.
    pub words: ShareWords,
    /// The working directory of the process, for relative paths.
    pub directory: PathBuf,
}

impl Request {
    /// Returns the words for this process, which may have another working directory: paths become absolute, and a command
    /// runs in the directory of its user.
    pub fn words_here(&self) -> Result<ShareWords, ServiceError> {
        let mut words = self.words.clone();
        let spec = registry::device_spec(&words.device, Role::Device)?;
        let class = registry::device_class(&spec.class).map_or("", |class| class.target());
        let is_input = spec.class == "stdin" || class == "[PATH]" && matches!(&spec.target[..], "" | "-");
        if is_input {
            let problem = "standard input does not work through the `share` that already runs: use --listen with another port";
            return Err(ServiceError::Usage(problem.into()));
        }
        if std::env::current_dir().is_ok_and(|here| here == self.directory) {
            return Ok(words);
        }
        let prefix = match class {
            "COMMAND" => format!("cd {} || exit; ", self.quoted_directory()?),
            _ if class.contains("PATH") && !spec.target.is_empty() && !spec.target.starts_with("name=") => {
                self.absolute(&spec.target).strip_suffix(&spec.target).unwrap_or_default().into()
            }
            _ => String::new(),
        };
        let classed = registry::with_class(&words.device, Role::Device);
        words.device = match classed.split_once(':') {
            Some((kind, rest)) => format!("{kind}:{prefix}{rest}"),
            None => classed.into_owned(),
        };
        words.key_file = words.key_file.map(|path| self.directory.join(path));
        self.check_programs_here(&words)?;
        Ok(words)
    }

    fn absolute(&self, path: &str) -> String {
        self.directory.join(path).to_string_lossy().into_owned()
    }

    fn quoted_directory(&self) -> Result<String, ServiceError> {
        let directory = self.directory.to_str().and_then(|text| shlex::try_quote(text).ok());
        directory.map(String::from).ok_or_else(|| {
            ServiceError::Usage(format!(
                "the name of the directory {} cannot be used",
                self.directory.display()
            ))
        })
    }

    /// A program of a pair would start in the directory of this process.
    fn check_programs_here(&self, words: &ShareWords) -> Result<(), ServiceError> {
        let texts = [&words.via, &words.via_back, &words.require].map(Option::as_deref);
        let [via, via_back, require] = texts;
        let pipelines = Pipelines::parse(via, via_back, require).map_err(ServiceError::Usage)?;
        let is_relative = |words: &&str| {
            !words.starts_with('/') && words.split(' ').next().is_some_and(|word| word.contains('/'))
        };
        match programs(&pipelines).into_iter().find(is_relative) {
            None => Ok(()),
            Some(words) => Err(ServiceError::Usage(format!(
                "the `share` that already runs has another working directory: write `{}`",
                self.absolute(words.strip_prefix("./").unwrap_or(words))
            ))),
        }
    }
}

/// The answer to a [`Request`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// The device is offered by this process.
    Offering {
        /// Its name in the catalogue.
        name: String,
        /// Its description.
        summary: String,
        /// The process id of the device host.
        process: i32,
    },
    /// The device is refused; `usage` marks an error of the user.
    Refused {
        /// The reason.
        problem: String,
        /// Set for an error of the user.
        usage: bool,
    },
}

impl Answer {
    /// Makes the answer for a device on offer.
    pub fn offering(name: String, summary: String) -> Answer {
        Answer::Offering { name, summary, process: getpid().as_raw_nonzero().get() }
    }

    /// Makes the answer for a refused device.
    pub fn refused(error: &ServiceError) -> Answer {
        let usage = matches!(
            error,
            ServiceError::Usage(_)
                | ServiceError::Device(DeviceError::Spec { .. } | DeviceError::Role { .. })
        );
        Answer::Refused { problem: error.to_string(), usage }
    }
}

/// An event of a joined process.
pub enum Visit {
    /// The process asks for its device to be offered.
    Asks(Box<Request>),
    /// The process has disconnected; its device must be withdrawn.
    Over,
}

/// A connected process.
struct Visitor {
    stream: UnixStream,
    line: Vec<u8>,
    /// Deadline of the request; `None` once it is complete.
    until: Option<Time>,
}

/// The local socket of a device host, and the processes joined through it.
pub struct JoinSocket {
    socket: LocalSocket,
    visitors: BTreeMap<u64, Visitor>,
    next: u64,
    patience: Duration,
}

impl JoinSocket {
    /// Opens the socket for the device host on `port`, which must already listen there. Numbers visitors from `first`, and
    /// gives each `patience` for its request. Fails if another device host has the socket, at another address of the same port.
    pub fn open(port: u16, first: u64, patience: Duration) -> io::Result<JoinSocket> {
        let socket = LocalSocket::open(&socket_name(port))?;
        Ok(JoinSocket { socket, visitors: BTreeMap::new(), next: first, patience })
    }

    /// Opens the socket again if its path is gone ([`LocalSocket::reopen`]). A failure is temporary.
    pub fn reopen(&mut self, poller: &mut Poller) {
        let _ = self.socket.reopen(poller);
    }

    /// Accepts visitors and returns the events of all.
    pub fn poll(&mut self, poller: &mut Poller) -> Vec<(u64, Visit)> {
        if !self.is_due(poller) {
            return Vec::new();
        }
        while let Ok(stream) = self.socket.accept() {
            self.let_in(stream);
        }
        let mut visits = Vec::new();
        let numbers: Vec<_> = self.visitors.keys().copied().collect();
        for number in numbers {
            let Some(visitor) = self.visitors.get_mut(&number) else { continue };
            match visitor.read_request() {
                Ok(None) => {}
                Ok(Some(request)) => visits.push((number, Visit::Asks(Box::new(request)))),
                Err(problem) => {
                    self.dismiss(number, &problem, poller);
                    visits.push((number, Visit::Over));
                }
            }
        }
        visits
    }

    /// Returns whether a visitor connected, sent something or missed its deadline.
    fn is_due(&self, poller: &Poller) -> bool {
        let is_late = |visitor: &Visitor| visitor.until.is_some_and(|until| now() >= until);
        poller.is_ready(self.socket.as_fd())
            || self
                .visitors
                .values()
                .any(|visitor| poller.is_ready(visitor.stream.as_fd()) || is_late(visitor))
    }

    fn let_in(&mut self, mut stream: UnixStream) {
        let refusal = match socket_peercred(&stream) {
            Ok(peer) if peer.uid == getuid() || peer.uid.is_root() => {
                (self.visitors.len() >= VISITORS_MAX).then_some("too many processes have joined")
            }
            _ => Some("only the same user may join"),
        };
        // An error affects this visitor only.
        let Ok(()) = stream.set_nonblocking(true) else { return };
        if let Some(problem) = refusal {
            let answer = Answer::Refused { problem: problem.into(), usage: false };
            let _ = write_line(&mut stream, &answer);
            return;
        }
        let until = Some(now().after(self.patience));
        self.visitors.insert(self.next, Visitor { stream, line: Vec::new(), until });
        self.next += 1;
    }

    /// Returns true if this visitor is still connected.
    pub fn is_joined(&self, number: u64) -> bool {
        self.visitors.contains_key(&number)
    }

    /// Answers a visitor; disconnects it if refused.
    pub fn answer(&mut self, number: u64, answer: &Answer, poller: &mut Poller) {
        let Some(visitor) = self.visitors.get_mut(&number) else { return };
        // A write error shows as a disconnection at the next poll.
        let _ = write_line(&mut visitor.stream, answer);
        if matches!(answer, Answer::Refused { .. }) {
            self.disconnect(number, poller);
        }
    }

    fn dismiss(&mut self, number: u64, problem: &str, poller: &mut Poller) {
        let answer = Answer::Refused { problem: problem.into(), usage: false };
        self.answer(number, &answer, poller);
    }

    fn disconnect(&mut self, number: u64, poller: &mut Poller) {
        if let Some(visitor) = self.visitors.remove(&number) {
            poller.forget(visitor.stream.as_fd());
        }
    }

    /// Registers the sockets with the poller; returns the earliest deadline.
    pub fn register(&self, poller: &mut Poller) -> Time {
        poller.register(self.socket.as_fd(), true, false);
        for visitor in self.visitors.values() {
            poller.register(visitor.stream.as_fd(), true, false);
        }
        self.visitors.values().filter_map(|visitor| visitor.until).min().unwrap_or(Time(u64::MAX))
    }
}

impl Visitor {
    /// Returns the request once it is complete. An error ends the visit.
    fn read_request(&mut self) -> Result<Option<Request>, String> {
        let mut bytes = [0; 4096];
        loop {
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err("it has disconnected".into()),
                Ok(_) if self.until.is_none() => return Err("unexpected input after the request".into()),
                Ok(count) => self.line.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.to_string()),
            }
            if self.line.ends_with(b"\n") {
                let line = std::mem::take(&mut self.line);
                self.until = None;
                let request = serde_json::from_slice(&line);
                return request.map(Some).map_err(|error| format!("invalid request: {error}"));
            }
            if self.line.len() > LINE_BYTES_MAX {
                return Err(format!("a request has at most {LINE_BYTES_MAX} bytes"));
            }
        }
        match self.until {
            Some(until) if now() >= until => Err("the request did not come in time".into()),
            _ => Ok(None),
        }
    }
}

/// A `share` that has joined the one that already listens.
pub struct Joined {
    stream: UnixStream,
    process: i32,
    name: String,
    summary: String,
}

/// The result of a request to join.
pub enum Join {
    /// This user has no device host there.
    NoHost,
    /// The stop was raised before the answer.
    Stopped,
    /// The device is on offer.
    Joined(Joined),
}

impl Join {
    /// Asks this user's device host at `listen` to offer one more device. Returns an error if it refuses.
    pub fn request(words: &ShareWords, listen: SocketAddr, stop: &Stop) -> Result<Join, ServiceError> {
        let failed = |error| ServiceError::os("joining the `share` that already runs", error);
        let Some(mut stream) = connect(listen.port()) else { return Ok(Join::NoHost) };
        stream.set_write_timeout(Some(ANSWER_TIMEOUT)).map_err(failed)?;
        let directory = std::env::current_dir().map_err(failed)?;
        write_line(&mut stream, &Request { words: words.clone(), directory }).map_err(failed)?;
        let mut line = Vec::new();
        let mut bytes = [0; 4096];
        let mut poller = Poller::new().map_err(failed)?;
        while !line.ends_with(b"\n") && line.len() <= LINE_BYTES_MAX {
            poller.register(stop.wakes(), true, false);
            poller.register(stream.as_fd(), true, false);
            poller.wait(Some(ANSWER_TIMEOUT)).map_err(failed)?;
            if stop.is_requested() {
                return Ok(Join::Stopped);
            }
            if !poller.is_ready(stream.as_fd()) {
                return Err(failed(io::ErrorKind::TimedOut.into()));
            }
            match stream.read(&mut bytes).map_err(failed)? {
                0 => return Err(ServiceError::Peer("the `share` that already ran has just ended".into())),
                count => line.extend_from_slice(&bytes[..count]),
            }
        }
        match serde_json::from_slice(&line).map_err(|error| failed(error.into()))? {
            Answer::Offering { name, summary, process } => {
                Ok(Join::Joined(Joined { stream, process, name, summary }))
            }
            Answer::Refused { problem, usage: true } => Err(ServiceError::Usage(problem)),
            Answer::Refused { problem, usage: false } => Err(ServiceError::Peer(problem)),
        }
    }
}

impl Joined {
    /// Keeps the device on offer until the stop is raised.
    pub fn run(mut self, stop: &Stop, emit: &mut dyn FnMut(Event)) -> Result<(), ServiceError> {
        let failed = |error| ServiceError::os("waiting", error);
        emit(Event::Joined { process: self.process });
        emit(Event::Offered { name: self.name.clone(), summary: self.summary.clone() });
        let mut poller = Poller::new().map_err(failed)?;
        loop {
            poller.register(stop.wakes(), true, false);
            poller.register(self.stream.as_fd(), true, false);
            poller.wait(None).map_err(failed)?;
            if stop.is_requested() {
                return Ok(());
            }
            if poller.is_ready(self.stream.as_fd()) {
                let process = self.process;
                // Only the end of the connection can still arrive.
                let _ = self.stream.read(&mut [0; 1]);
                return Err(ServiceError::Peer(format!(
                    "the `share` that offered `{}` (process {process}) has ended",
                    self.name
                )));
            }
        }
    }
}

/// Connects to this user's device host on `port`.
fn connect(port: u16) -> Option<UnixStream> {
    let is_own = |stream: &UnixStream| socket_peercred(stream).is_ok_and(|peer| peer.uid == getuid());
    let paths = directories().ok()?.into_iter().map(|directory| directory.join(socket_name(port)));
    paths.flat_map(UnixStream::connect).find(is_own)
}

fn socket_name(port: u16) -> String {
    format!("{port}.sock")
}
