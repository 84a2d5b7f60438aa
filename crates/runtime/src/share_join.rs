//! A second `share` of the same user joins the one that listens already: both ends of the local socket.
//!
//! The second process says its words in one line of JSON and gets one line back. Its device is offered for as long
//! as it keeps the connection. Words that are wrong get an answer and concern nobody else.

use crate::config::ShareWords;
use crate::error::RuntimeError;
use crate::events::{Event, Stop};
use crate::local_socket::{directory, listen, write_line};
use crate::share::now;
use contract::{DeviceError, Time};
use rustix::net::sockopt::socket_peercred;
use rustix::process::{getpid, getuid};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::Duration;
use sys::poller::Poller;

/// Most processes that join one sharer.
const VISITORS_MAX: usize = 32;
/// Most bytes of a request, or of its answer.
const LINE_BYTES_MAX: usize = 64 << 10;
/// How long a process waits for the answer: a device may take its time to open.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// What a process asks for.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    pub(crate) words: ShareWords,
    /// Where the process runs, for what depends on it.
    pub(crate) directory: PathBuf,
}

/// What it is told.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Answer {
    /// Its device is on offer, by this process.
    Offering { name: String, summary: String, process: i32 },
    /// Its device is not; whether the user erred.
    Refused { problem: String, usage: bool },
}

impl Answer {
    /// The device is on offer.
    pub(crate) fn offering(name: String, summary: String) -> Answer {
        Answer::Offering { name, summary, process: getpid().as_raw_nonzero().get() }
    }

    /// It is not.
    pub(crate) fn refused(error: &RuntimeError) -> Answer {
        let usage = matches!(
            error,
            RuntimeError::Usage(_)
                | RuntimeError::Device(DeviceError::Spec { .. } | DeviceError::Role { .. })
        );
        Answer::Refused { problem: error.to_string(), usage }
    }
}

/// What a visitor did.
pub(crate) enum Visit {
    /// It asks for its device to be offered.
    Asks(Box<Request>),
    /// It is gone, and its device with it.
    Over,
}

/// A process at the door.
struct Visitor {
    stream: UnixStream,
    line: Vec<u8>,
    /// Until when its line must be whole; `None` once it was.
    until: Option<Time>,
}

/// The local socket of a sharer, and the processes that joined through it.
pub(crate) struct Door {
    listener: UnixListener,
    path: PathBuf,
    visitors: BTreeMap<u64, Visitor>,
    next: u64,
    patience: Duration,
}

impl Door {
    /// The door of the sharer on this port, which it must hold. Visitors are numbered from `first` and have
    /// `patience` to say what they want. Fails if another sharer has the door, on another address.
    pub(crate) fn open(port: u16, first: u64, patience: Duration) -> io::Result<Door> {
        let path = socket_path(port)?;
        let listener = listen(&path)?;
        Ok(Door { listener, path, visitors: BTreeMap::new(), next: first, patience })
    }

    /// Lets visitors in, and says what each did.
    pub(crate) fn poll(&mut self, poller: &mut Poller) -> Vec<(u64, Visit)> {
        if !self.is_due(poller) {
            return Vec::new();
        }
        while let Ok((stream, _)) = self.listener.accept() {
            self.let_in(stream);
        }
        let mut visits = Vec::new();
        let numbers: Vec<_> = self.visitors.keys().copied().collect();
        for number in numbers {
            let Some(visitor) = self.visitors.get_mut(&number) else { continue };
            match visitor.hear() {
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

    /// Whether somebody came, or said something, or has said nothing for too long.
    fn is_due(&self, poller: &Poller) -> bool {
        let is_late = |visitor: &Visitor| visitor.until.is_some_and(|until| now() >= until);
        poller.is_ready(self.listener.as_fd())
            || self
                .visitors
                .values()
                .any(|visitor| poller.is_ready(visitor.stream.as_fd()) || is_late(visitor))
    }

    fn let_in(&mut self, mut stream: UnixStream) {
        let refusal = match socket_peercred(&stream) {
            Ok(peer) if peer.uid == getuid() || peer.uid.is_root() => {
                (self.visitors.len() >= VISITORS_MAX).then_some("as many processes joined as may")
            }
            _ => Some("only the same user may join"),
        };
        // Whoever breaks off concerns only itself.
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

    /// Answers a visitor that asked; a refused one goes.
    pub(crate) fn answer(&mut self, number: u64, answer: &Answer, poller: &mut Poller) {
        let Some(visitor) = self.visitors.get_mut(&number) else { return };
        // One that cannot be told is found gone at the next look.
        let _ = write_line(&mut visitor.stream, answer);
        if matches!(answer, Answer::Refused { .. }) {
            self.see_off(number, poller);
        }
    }

    fn dismiss(&mut self, number: u64, problem: &str, poller: &mut Poller) {
        let answer = Answer::Refused { problem: problem.into(), usage: false };
        self.answer(number, &answer, poller);
    }

    fn see_off(&mut self, number: u64, poller: &mut Poller) {
        if let Some(visitor) = self.visitors.remove(&number) {
            poller.forget(visitor.stream.as_fd());
        }
    }

    /// When to look again, if nothing comes.
    pub(crate) fn want(&self, poller: &mut Poller) -> Time {
        poller.want(self.listener.as_fd(), true, false);
        for visitor in self.visitors.values() {
            poller.want(visitor.stream.as_fd(), true, false);
        }
        self.visitors.values().filter_map(|visitor| visitor.until).min().unwrap_or(Time(u64::MAX))
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

impl Visitor {
    /// Its request, once it is whole. An error ends the visit.
    fn hear(&mut self) -> Result<Option<Request>, String> {
        let mut bytes = [0; 4096];
        loop {
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err("it is gone".into()),
                Ok(_) if self.until.is_none() => return Err("there is nothing more to be said".into()),
                Ok(count) => self.line.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.to_string()),
            }
            if self.line.ends_with(b"\n") {
                let line = std::mem::take(&mut self.line);
                self.until = None;
                let request = serde_json::from_slice(&line);
                return request.map(Some).map_err(|error| format!("this is no request: {error}"));
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

/// A `share` that goes through the one that listens already.
pub struct Joined {
    stream: UnixStream,
    process: i32,
    name: String,
    summary: String,
}

impl Joined {
    /// Asks the sharer of this user that listens on `listen` to offer one more device. `None` if no such sharer
    /// is there; errors are its answer.
    pub fn join(words: &ShareWords, listen: SocketAddr) -> Result<Option<Joined>, RuntimeError> {
        let failed = |error| RuntimeError::os("joining the share that runs already", error);
        let Ok(mut stream) = socket_path(listen.port()).and_then(UnixStream::connect) else {
            return Ok(None);
        };
        if !socket_peercred(&stream).is_ok_and(|peer| peer.uid == getuid()) {
            return Ok(None);
        }
        stream.set_read_timeout(Some(ANSWER_TIMEOUT)).map_err(failed)?;
        stream.set_write_timeout(Some(ANSWER_TIMEOUT)).map_err(failed)?;
        let directory = std::env::current_dir().map_err(failed)?;
        write_line(&mut stream, &Request { words: words.clone(), directory }).map_err(failed)?;
        let mut line = Vec::new();
        let mut bytes = [0; 4096];
        while !line.ends_with(b"\n") && line.len() <= LINE_BYTES_MAX {
            match stream.read(&mut bytes).map_err(failed)? {
                0 => return Err(RuntimeError::Peer("the share that runs already has just ended".into())),
                count => line.extend_from_slice(&bytes[..count]),
            }
        }
        match serde_json::from_slice(&line).map_err(|error| failed(error.into()))? {
            Answer::Offering { name, summary, process } => {
                Ok(Some(Joined { stream, process, name, summary }))
            }
            Answer::Refused { problem, usage: true } => Err(RuntimeError::Usage(problem)),
            Answer::Refused { problem, usage: false } => Err(RuntimeError::Peer(problem)),
        }
    }

    /// Keeps the device on offer until `stop` is said.
    pub fn run(mut self, stop: &Stop, tell: &mut dyn FnMut(Event)) -> Result<(), RuntimeError> {
        let failed = |error| RuntimeError::os("waiting", error);
        tell(Event::Joined { process: self.process });
        tell(Event::Offered { name: self.name.clone(), summary: self.summary.clone() });
        let mut poller = Poller::new().map_err(failed)?;
        loop {
            poller.want(stop.wakes(), true, false);
            poller.want(self.stream.as_fd(), true, false);
            poller.wait(None).map_err(failed)?;
            if stop.is_said() {
                return Ok(());
            }
            if poller.is_ready(self.stream.as_fd()) {
                let process = self.process;
                // All there is to come is its end.
                let _ = self.stream.read(&mut [0; 1]);
                return Err(RuntimeError::Peer(format!(
                    "the share that offered `{}` (process {process}) has ended",
                    self.name
                )));
            }
        }
    }
}

fn socket_path(port: u16) -> io::Result<PathBuf> {
    Ok(directory()?.join(format!("{port}.sock")))
}
