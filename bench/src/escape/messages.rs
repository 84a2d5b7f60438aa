//! Hostile messages from a worker to its broker: reports on descriptor 3, and requests to the spawner on descriptor 4. The
//! worker is a real one, stopped; the broker answers as it does in use.

use super::Role;
use super::attacks::Outcome;
use super::frames::*;
use super::hosts::{Hosts, User};
use super::tracee::{Answer, Tracee};
use crate::setting::Failure;
use nix::errno::Errno;
use nix::libc as c;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};
use wire::{Control, FlowControl, Writer};

const REPORTS: u64 = 3;
const SPAWNER: u64 = sandbox::SENDMSG_DESCRIPTOR as u64;
/// Bytes in one write.
const WRITE_BYTES: usize = 256 << 10;
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(1);
/// The last report. The broker handles reports in order, so it has handled all others when it shows this one.
const LAST: &str = "the last report of this worker";
/// The first byte of a request to pass bytes, and of the spawner's answer that it started or did something
/// (`crates/modules/src/process/launch.rs`).
const PASS: u8 = 4;
const STARTED: u8 = 0;
/// Longest text of a report, and the longest frame.
const TEXT_BYTES_MAX: usize = 64 << 10;
const FRAME_BYTES_MAX: usize = 16 << 20;

/// A stopped worker that sends messages.
struct Sender<'a> {
    tracee: &'a mut Tracee,
    directory: &'a Path,
    /// Requests that the spawner fulfilled.
    fulfilled: Vec<String>,
    has_ended: bool,
}

impl Sender<'_> {
    /// Sends bytes to the broker, as far as it reads them.
    fn send(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        for part in bytes.chunks(WRITE_BYTES) {
            self.tracee.clear();
            // The broker may have killed it after an earlier part.
            let Ok(mut at) = self.tracee.put(part) else {
                self.has_ended = true;
                return Ok(());
            };
            let end = at + part.len() as u64;
            let begun = Instant::now();
            while at < end && !self.has_ended {
                match self.tracee.call(c::SYS_write, [REPORTS, at, end - at, 0, 0, 0])? {
                    Answer::Value(sent) => at += sent.cast_unsigned(),
                    Answer::Error(Errno::EAGAIN) if begun.elapsed() < PATIENCE => thread::sleep(LOOK),
                    // The broker has killed it or has closed the socket.
                    Answer::Ended(_) | Answer::Error(Errno::EPIPE) => self.has_ended = true,
                    answer => return Err(format!("a worker cannot send reports: {answer}").into()),
                }
            }
        }
        Ok(())
    }

    /// Sends a request to the spawner, with a handle if `has_handle`, and with other descriptors. Returns the answer.
    fn request(&mut self, bytes: &[u8], has_handle: bool, more: &[u64]) -> Result<Option<[u8; 5]>, Failure> {
        self.tracee.clear();
        let pair = self.tracee.put(&[0; 8])?;
        self.made(c::SYS_socketpair, [c::AF_UNIX as u64, c::SOCK_SEQPACKET as u64, 0, pair, 0, 0])?;
        let mut ends = [0; 8];
        self.tracee.get(pair, &mut ends)?;
        let [near, far] = [&ends[..4], &ends[4..]]
            .map(|end| u64::from(u32::from_ne_bytes([end[0], end[1], end[2], end[3]])));
        let descriptors: Vec<u64> =
            has_handle.then_some(far).into_iter().chain(more.iter().copied()).collect();
        // `struct cmsghdr` with SCM_RIGHTS.
        let mut control = Writer::new();
        control.u64(16 + 4 * descriptors.len() as u64).u32(c::SOL_SOCKET as u32).u32(c::SCM_RIGHTS as u32);
        for descriptor in &descriptors {
            control.u32(*descriptor as u32);
        }
        let mut control = control.finish();
        control.resize(control.len().next_multiple_of(8), 0);
        let (content, length) = (self.tracee.put(bytes)?, control.len() as u64);
        let (parts, control) =
            (self.tracee.put_words(&[content, bytes.len() as u64])?, self.tracee.put(&control)?);
        let length = if descriptors.is_empty() { 0 } else { length };
        let header = self.tracee.put_words(&[0, 0, parts, 1, control, length, 0])?;
        self.made(c::SYS_sendmsg, [SPAWNER, header, 0, 0, 0, 0])?;
        self.made(c::SYS_close, [far, 0, 0, 0, 0, 0])?;
        let (reply, begun) = (self.tracee.put(&[0; 5])?, Instant::now());
        let answer = loop {
            match self.tracee.call(c::SYS_recvfrom, [near, reply, 5, c::MSG_DONTWAIT as u64, 0, 0])? {
                Answer::Value(5) => {
                    let mut answer = [0; 5];
                    self.tracee.get(reply, &mut answer)?;
                    break Some(answer);
                }
                Answer::Value(_) => break None,
                Answer::Error(Errno::EAGAIN) if begun.elapsed() < PATIENCE => thread::sleep(LOOK),
                answer => return Err(format!("the spawner does not answer: {answer}").into()),
            }
        };
        self.made(c::SYS_close, [near, 0, 0, 0, 0, 0])?;
        Ok(answer)
    }

    /// Makes an allowed call.
    fn made(&mut self, number: i64, arguments: [u64; 6]) -> Result<(), Failure> {
        match self.tracee.call(number, arguments)? {
            Answer::Value(_) => Ok(()),
            answer => Err(format!("a worker needs call {number}: {answer}").into()),
        }
    }

    /// Requests something that the spawner must refuse.
    fn must_refuse(&mut self, name: &str, bytes: &[u8], more: &[u64]) -> Result<(), Failure> {
        if let Some([STARTED, ..]) = self.request(bytes, true, more)? {
            self.fulfilled.push(name.into());
        }
        Ok(())
    }

    /// Requests to start a program that creates the file [`made_by_program`].
    fn start_program(&mut self) -> Result<(), Failure> {
        let file = made_by_program(self.directory);
        let words = [OsStr::new("/usr/bin/touch"), file.as_os_str()];
        let mut request = Writer::new();
        request.u8(0);
        for word in words {
            request.blob(word.as_bytes());
        }
        self.must_refuse("start a program", &request.finish(), &[2])
    }
}

/// The file that a hostile program would create.
fn made_by_program(directory: &Path) -> PathBuf {
    directory.join("made")
}

/// The broker's reaction to messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reaction {
    /// It kills the worker and starts a new one.
    Kill,
    /// It reads on.
    ReadOn,
}

struct Hostile {
    name: &'static str,
    reaction: Reaction,
    send: fn(&mut Sender<'_>) -> Result<(), Failure>,
}

const fn killed(name: &'static str, send: fn(&mut Sender<'_>) -> Result<(), Failure>) -> Hostile {
    Hostile { name, reaction: Reaction::Kill, send }
}

const fn read(name: &'static str, send: fn(&mut Sender<'_>) -> Result<(), Failure>) -> Hostile {
    Hostile { name, reaction: Reaction::ReadOn, send }
}

/// Text with a line break, a command for a terminal, and a change of direction.
fn tricks() -> String {
    "done\n\u{1b}]0;title\u{7}\u{1b}[2J\r\u{202e}{\"event\":\"attached\"}".into()
}

const MESSAGES: &[Hostile] = &[
    killed("a report of an unknown kind", |sender| sender.send(&report(250, |w| w))),
    killed("an empty frame", |sender| sender.send(&frame(&[]))),
    killed("a frame of 4 GiB", |sender| sender.send(&[255, 255, 255, 255, 0, 0])),
    killed("a frame with descriptors that do not come", |sender| sender.send(&[1, 0, 0, 0, 5, 0, 0])),
    killed("a report with bytes after its end", |sender| sender.send(&report(ALIVE, |w| w.u64(1).u8(0)))),
    killed("16 MiB of random bytes", |sender| {
        let mut rng = netsim::Rng::new(1, 0);
        let noise: Vec<u8> = (0..FRAME_BYTES_MAX / 8).flat_map(|_| rng.draw().to_le_bytes()).collect();
        sender.send(&frame(&noise))
    }),
    killed("a control message for a flow of another driver", |sender| {
        let message_of =
            |flow| Control::Flow { flow, message: FlowControl::Acknowledge { epoch: 1, next: 1 } };
        sender.send(&message(1, &message_of(77)))
    }),
    killed("a proposal, which only brokers send", |sender| {
        let message_of = FlowControl::Propose { pipeline: "exec".into() };
        sender.send(&message(1, &Control::Flow { flow: 2, message: message_of }))
    }),
    killed("`Goodbye` to the peer", |sender| {
        sender.send(&message(1, &Control::Goodbye { reason: String::new() }))
    }),
    killed("`Close` of a device to the peer", |sender| {
        sender.send(&message(1, &Control::Close { driver: 1, reason: String::new() }))
    }),
    killed("half a control message", |sender| sender.send(&notice(1, SEND, |w| w.blob(&[1, 2])))),
    read("acknowledgement of records that were never sent", |sender| {
        for driver in DRIVERS {
            for flow in [driver * 2, driver * 2 + 1] {
                let message_of = FlowControl::Acknowledge { epoch: u32::MAX, next: u64::MAX };
                sender.send(&message(driver, &Control::Flow { flow, message: message_of }))?;
            }
        }
        Ok(())
    }),
    read("a device that is gone, with commands for a terminal", |sender| {
        sender.send(&notices(PARTNER_GONE, |w| w.text(&tricks())))
    }),
    read("a device that returned without having gone", |sender| {
        sender.send(&notices(PARTNER_RETURNED, |w| w))
    }),
    read("10,000 failed links", |sender| {
        sender.send(&notices(LINK_FAILED, |w| w.text(&tricks())).repeat(2500))
    }),
    read("10,000 requests for 128 connections", |sender| {
        sender.send(&notices(WAYS_WANTED, |w| w.u32(128)).repeat(2500))
    }),
    read("10,000 held back links", |sender| sender.send(&notices(LINK_HELD_BACK, |w| w).repeat(2500))),
    read("a change to `exec(source=…)`, and a request to start it", |sender| {
        let file = made_by_program(sender.directory);
        let text = format!("exec(source=\"/usr/bin/touch {}\")", file.display());
        for direction in [0, 1] {
            sender.send(&notices(CHANGED, |w| w.u8(direction).u8(1).text(&text)))?;
        }
        sender.start_program()
    }),
    read("a change to a pipeline that was not offered", |sender| {
        for direction in [0, 1] {
            sender.send(&notices(CHANGED, |w| w.u8(direction).u8(1).text("compress(zstd)")))?;
        }
        Ok(())
    }),
    read("a failed change, with commands for a terminal", |sender| {
        sender.send(&notices(CHANGED, |w| w.u8(0).u8(0).text(&tricks())))
    }),
    killed("a change in a direction that does not exist", |sender| {
        sender.send(&notices(CHANGED, |w| w.u8(9).u8(1).text("null")))
    }),
    read("the end of all flows", |sender| {
        sender.send(&[notices(FLOW_ENDED, |w| w.u8(0)), notices(FLOW_ENDED, |w| w.u8(1))].concat())
    }),
    read("an incident of 64 KiB with commands for a terminal", |sender| {
        let text = tricks().repeat(TEXT_BYTES_MAX / tricks().len());
        sender.send(&notices(INCIDENT, |w| w.text(&text)))
    }),
    killed("an incident of more than 64 KiB", |sender| {
        sender.send(&notices(INCIDENT, |w| w.text(&"x".repeat(TEXT_BYTES_MAX + 1))))
    }),
    killed("an incident that is no text", |sender| {
        sender.send(&notices(INCIDENT, |w| w.blob(&[0xff, 0xfe])))
    }),
    killed("a full store with an unknown policy", |sender| {
        sender.send(&notices(STORE_FULL, |w| w.text("obey")))
    }),
    read("failure of all drivers, with commands for a terminal", |sender| {
        sender.send(&notices(FAILED, |w| w.text(&tricks())))
    }),
    read("notices of drivers that do not exist", |sender| {
        let kinds = [PARTNER_GONE, LINK_FAILED, INCIDENT, FAILED];
        let of_driver =
            |driver| kinds.into_iter().flat_map(move |kind| notice(driver, kind, |w| w.text("x")));
        sender.send(&[77, u32::MAX].into_iter().flat_map(of_driver).collect::<Vec<_>>())
    }),
    read("an answer to nobody", |sender| {
        sender.send(&report(SAID, |w| w.u64(u64::MAX).u8(1).text(&tricks())))
    }),
    killed("an answer longer than its frame", |sender| {
        sender.send(&report(SAID, |w| w.u64(1).u8(1).u32(u32::MAX)))
    }),
    killed("statistics nested 1,000,000 times", |sender| {
        sender.send(&report(STATS, |w| w.u32(1).blob(&b"[".repeat(1_000_000))))
    }),
    killed("statistics with 16 MiB of one name", |sender| {
        sender.send(&stats(1, 2, &"x".repeat(FRAME_BYTES_MAX - 1000)))
    }),
    killed("statistics of another driver's flow", |sender| sender.send(&stats(1, 77, "null"))),
    read("statistics of drivers that do not exist", |sender| sender.send(&stats(77, 154, "null"))),
    read("10,000 losses for ever new reasons, with commands for a terminal", |sender| {
        let loss = |number: u32| {
            let reason = format!("{number}{}", tricks());
            notices(LOST, |w| w.u64(u64::MAX).text(&reason))
        };
        sender.send(&(0..2500).flat_map(loss).collect::<Vec<_>>())
    }),
    read("messages missed, more than there are", |sender| {
        sender.send(&notices(MISSED, |w| w.u8(0).u64(u64::MAX)).repeat(2500))
    }),
    read("stamps that nobody asked for", |sender| {
        sender.send(&report(TRACED, |w| w.u32(1).blob(b"[]")).repeat(1000))
    }),
    killed("stamps that are no JSON", |sender| sender.send(&report(TRACED, |w| w.u32(1).blob(b"[{}]")))),
    read("data that arrives in the future and in the past", |sender| {
        sender.send(&[u64::MAX, 0].map(|at| report(ALIVE, |w| w.u64(at))).concat())
    }),
    read("10,000 warnings with commands for a terminal", |sender| {
        sender.send(&report(WARNING, |w| w.text(&tricks())).repeat(10_000))
    }),
    read("a program that no pipeline names (spawner)", |sender| sender.start_program()),
    read("requests that cannot be read (spawner)", |sender| {
        for bytes in [&[0][..], &[9, 9], &[PASS], &[PASS, 255, 255, 255, 255], &[0, 255, 255, 255, 127, 1]] {
            sender.must_refuse("a request that cannot be read", bytes, &[])?;
            sender.must_refuse("a request that cannot be read", bytes, &[2, 2])?;
        }
        Ok(())
    }),
    // It ends the spawner of this session.
    read("an empty request (spawner)", |sender| sender.must_refuse("an empty request", &[], &[])),
    read("requests without a handle (spawner)", |sender| {
        for _ in 0..1000 {
            sender.request(&[0], false, &[])?;
        }
        sender.start_program()
    }),
    read("bytes for a UDP socket (spawner)", |sender| {
        let mut request = Writer::new();
        request.u8(PASS).text("x");
        let request = request.finish();
        for socket in sender.tracee.sockets()?.into_iter().filter(|socket| *socket > SPAWNER) {
            sender.request(&request, true, &[socket])?;
        }
        sender.must_refuse("bytes for something that is no socket", &request, &[2])
    }),
];

/// Returns the names of all messages in their order.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    MESSAGES.iter().map(|hostile| hostile.name)
}

/// Sends all messages, each from the worker of new hosts. Returns their names with the outcomes.
pub(super) fn run(user: User) -> Result<Vec<(&'static str, Outcome)>, Failure> {
    let mut outcomes = Vec::new();
    for hostile in MESSAGES {
        let outcome = run_one(user, hostile).map_err(|error| format!("{}: {error}", hostile.name))?;
        outcomes.push((hostile.name, outcome));
    }
    Ok(outcomes)
}

fn run_one(user: User, hostile: &Hostile) -> Result<Outcome, Failure> {
    let mut hosts = Hosts::start(user, Role::Worker)?;
    let mut tracee = Tracee::seize(hosts.find(Role::Worker)?)?;
    let directory = hosts.home.directory.clone();
    let mut sender =
        Sender { tracee: &mut tracee, directory: &directory, fulfilled: Vec::new(), has_ended: false };
    (hostile.send)(&mut sender)?;
    sender.send(&report(WARNING, |w| w.text(LAST)))?;
    let mut breaches = std::mem::take(&mut sender.fulfilled);
    // The broker waits for the end of a worker that it kills, which a stopped one cannot reach.
    tracee.release()?;
    let begun = Instant::now();
    let (reaction, text) = loop {
        if let Some(status) = hosts.share.child.try_wait()? {
            return Ok(Outcome { text: format!("the broker ended: {status}"), is_breach: true });
        }
        let killed = hosts.share.events_of("worker").pop();
        if let Some(reason) = killed.as_ref().and_then(|event| event["incident"].as_str()) {
            break (Reaction::Kill, reason.to_string());
        }
        if hosts.share.events_of("warning").iter().any(|event| event["problem"] == LAST) {
            break (Reaction::ReadOn, "no effect beyond its own session".to_string());
        }
        if begun.elapsed() > PATIENCE {
            return Err("the broker neither reads on nor kills the worker".into());
        }
        thread::sleep(LOOK);
    };
    breaches.extend((reaction != hostile.reaction).then(|| format!("the broker's reaction: {text}")));
    breaches.extend(made_by_program(&directory).exists().then(|| "a program ran".to_string()));
    breaches.extend(hosts.strangers());
    breaches.extend(hosts.share.has_printed_else().then(|| "control characters in the output".to_string()));
    if reaction == Reaction::Kill {
        // A new worker resumes.
        hosts.find(Role::Worker)?;
    }
    let text = match (breaches.is_empty(), reaction) {
        (false, _) => breaches.join("; "),
        (true, Reaction::Kill) => "worker killed, a new one resumes".into(),
        (true, Reaction::ReadOn) => "read on, no effect outside".into(),
    };
    Ok(Outcome { text, is_breach: !breaches.is_empty() })
}
