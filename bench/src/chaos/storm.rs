//! Executes the faults of a run and restores everything at the end.

use super::draw::{Act, CALM, Case, Flow};
use crate::lab::ip;
use crate::reliability::hosts::{Host, Hosts, Use};
use crate::reliability::subject::{Class, Disk, Made, Subject};
use crate::setting::Failure;
use rustix::process::{Signal, kill_process};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The longest wait for a device's units before it is unplugged.
const READ: Duration = Duration::from_secs(1);
/// The longest wait for the answer to a request for another pipeline.
const ANSWER: Duration = Duration::from_secs(30);
/// The longest wait for a terminated program.
const END: Duration = Duration::from_secs(12);

/// The limit `keep` of runs with restarted brokers: longer than any fault.
pub(super) const KEEP: Duration = Duration::from_secs(20);

/// A host's processes and the descriptors of its first process, counted by kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OpenCounts(BTreeMap<String, usize>);

impl OpenCounts {
    fn count(all: impl Iterator<Item = String>) -> OpenCounts {
        let mut counts = BTreeMap::new();
        all.for_each(|kind| *counts.entry(kind).or_default() += 1);
        OpenCounts(counts)
    }

    /// Describes the kinds with a higher count than before.
    pub(super) fn more_than(&self, before: &OpenCounts) -> Vec<String> {
        let counts =
            self.0.iter().map(|(kind, now)| (kind, before.0.get(kind).copied().unwrap_or_default(), now));
        let more = counts.filter(|(_, before, now)| now > &before);
        more.map(|(kind, before, now)| format!("{kind}: {before} before, {now} now")).collect()
    }
}

/// Returns the kind of a descriptor: a file's path without a terminal's number, a socket's protocol, or the type.
fn kind(descriptor: &Path) -> Option<String> {
    let target = fs::read_link(descriptor).ok()?.display().to_string();
    let Some((kind, number)) = target.split_once(":[") else {
        return Some(target.trim_end_matches(|end: char| end.is_ascii_digit()).into());
    };
    let number = number.trim_end_matches(']');
    let process = descriptor.parent()?.parent()?;
    let has = |table: &&&str| {
        let table = fs::read_to_string(process.join("net").join(table)).unwrap_or_default();
        table.split_whitespace().any(|word| word == number)
    };
    let table = ["udp", "udp6", "tcp", "tcp6", "unix"].iter().find(has).copied().unwrap_or_default();
    Some(format!("{kind} {table}").trim_end().into())
}

/// Both hosts with the devices of a case.
pub(super) struct Storm {
    pub(super) subjects: Vec<Subject>,
    pub(super) hosts: Hosts,
    disks: Vec<Disk>,
    flows: Vec<Flow>,
    pub(super) begun: Instant,
    /// True for each host at its first address.
    home: [bool; 2],
    passes_udp: bool,
    plugged: Vec<bool>,
    requests: Vec<JoinHandle<Result<(), String>>>,
    /// Answers to requests for another pipeline, with their counts.
    pub(super) answers: BTreeMap<String, u64>,
    /// Actions and their times.
    pub(super) log: Vec<String>,
}

pub(super) fn name(device: usize) -> String {
    format!("device{device}")
}

impl Storm {
    /// Shares and attaches all devices and starts their units.
    pub(super) fn new(case: &Case, netlab: &Path, directory: &Path, seed: u64) -> Result<Storm, Failure> {
        let (mut disks, mut made, mut uses) = (Vec::new(), Vec::new(), Vec::new());
        for (device, flow) in case.flows.iter().enumerate() {
            let name = name(device);
            let directory = directory.join(&name);
            disks.push(Disk::mount(&directory)?);
            let one = Made::new(flow.class, &directory)?;
            uses.push(Use {
                name,
                device: one.shared.clone(),
                application: one.used.clone(),
                via: flow.via.clone(),
            });
            made.push(one);
        }
        let mut hosts = Hosts::new(case.transport, netlab, directory, seed)?;
        let keep = case.loses_the_store().then(|| format!("keep={}s", KEEP.as_secs()));
        let limits = keep.iter().map(String::as_str).chain([case.limits]).filter(|limit| !limit.is_empty());
        let nodes = hosts.begin_all(&uses, &limits.collect::<Vec<_>>().join(","))?;
        let subjects: Result<Vec<_>, _> =
            made.into_iter().zip(&nodes).map(|(one, node)| one.begin(node)).collect();
        let subjects = subjects?;
        Ok(Storm {
            plugged: vec![true; subjects.len()],
            subjects,
            hosts,
            disks,
            flows: case.flows.clone(),
            begun: Instant::now(),
            home: [true; 2],
            passes_udp: true,
            requests: Vec::new(),
            answers: BTreeMap::new(),
            log: Vec::new(),
        })
    }

    /// Executes the steps at their times. Returns the number of faults by kind.
    pub(super) fn run(&mut self, case: &Case) -> Result<BTreeMap<&'static str, u64>, Failure> {
        self.begun = Instant::now();
        let mut done = BTreeMap::new();
        for step in &case.steps {
            thread::sleep(step.at.saturating_sub(self.begun.elapsed()));
            let at_s = self.begun.elapsed().as_secs_f64();
            let is_done = self.act(&step.act).map_err(|error| format!("{}: {error}", step.act))?;
            let (end_s, not) = (self.begun.elapsed().as_secs_f64(), if is_done { "" } else { " (skipped)" });
            self.log.push(format!("{at_s:7.3} to {end_s:.3} s: {}{not}", step.act));
            if let Some(kind) = step.act.kind().filter(|_| is_done) {
                *done.entry(kind).or_default() += 1;
            }
        }
        Ok(done)
    }

    /// Executes an action. Returns false if it was skipped.
    fn act(&mut self, act: &Act) -> Result<bool, Failure> {
        match act {
            Act::Cut(cut) => {
                self.hosts.lab.ask(&[if *cut { "cut" } else { "restore" }])?;
            }
            Act::Link(link) => {
                self.hosts.lab.ask(&["set", link])?;
            }
            Act::Udp(passes) if *passes == self.passes_udp => return Ok(false),
            Act::Udp(passes) => {
                self.hosts.pass_udp(*passes)?;
                self.passes_udp = *passes;
            }
            Act::Address { host, home } => return self.move_to(*host, *home),
            Act::Kill(host, which) => return Ok(self.signal(*host, *which, 1, Signal::KILL)),
            Act::Halt(host, which) => return Ok(self.signal(*host, *which, 0, Signal::STOP)),
            Act::Resume(host) => {
                self.signal(*host, None, 0, Signal::CONT);
            }
            Act::Restart { host, kill } => {
                self.signal(*host, None, 0, Signal::CONT);
                if !kill {
                    self.hosts.stop(*host, END)?;
                }
                let subjects = &mut self.subjects;
                self.hosts.restart(*host, || match host {
                    Host::Device => subjects.iter_mut().try_for_each(Subject::restart_source),
                    Host::Application => Ok(()),
                })?;
            }
            Act::Plug(device, plug) => return self.plug(*device, *plug),
            Act::Disk(device, full) => self.disks[*device].fill(*full)?,
            Act::Change { device, back, host, via } => self.request(*device, *back, *host, via)?,
        }
        Ok(true)
    }

    fn move_to(&mut self, host: Host, home: bool) -> Result<bool, Failure> {
        let (which, number) = match host {
            Host::Device => (0, 1),
            Host::Application => (1, 2),
        };
        if self.home[which] == home {
            return Ok(false);
        }
        self.home[which] = home;
        let namespace = self.hosts.lab.namespace(host.letter());
        let (old, new) = if home { (10 + number, number) } else { (number, 10 + number) };
        for (verb, number) in [("del", old), ("add", new)] {
            ip(&["-n", &namespace, "addr", verb, &format!("10.77.0.{number}/24"), "dev", "wan0"])?;
        }
        Ok(true)
    }

    /// Signals one process of a host or all, without the first `but`.
    fn signal(&mut self, host: Host, which: Option<u64>, but: usize, signal: Signal) -> bool {
        let processes = self.hosts.processes(host);
        let Some(these) = processes.get(but..).filter(|these| !these.is_empty()) else { return false };
        let one = which.map(|which| (which % these.len() as u64) as usize);
        let (from, to) = one.map_or((0, these.len()), |one| (one, one + 1));
        these[from..to].iter().filter(|process| kill_process(**process, signal).is_ok()).count() > 0
    }

    fn plug(&mut self, device: usize, plug: bool) -> Result<bool, Failure> {
        if self.plugged[device] == plug {
            return Ok(false);
        }
        let subject = &mut self.subjects[device];
        if plug {
            subject.plug()?;
        } else if subject.pause(READ) {
            subject.unplug()?;
        } else {
            subject.resume();
            return Ok(false);
        }
        self.plugged[device] = plug;
        Ok(true)
    }

    /// Requests another pipeline at a host without waiting for the answer.
    fn request(&mut self, device: usize, back: bool, host: Host, via: &str) -> Result<(), Failure> {
        let mut command = self.hosts.command(host)?;
        command.args(["change", &name(device), "--via", via]);
        if back {
            command.arg("--back");
        }
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        self.requests.push(thread::spawn(move || {
            let begun = Instant::now();
            while child.try_wait().map_err(|error| error.to_string())?.is_none() {
                if begun.elapsed() > ANSWER {
                    let _ = child.kill();
                    return Err("no answer".into());
                }
                thread::sleep(Duration::from_millis(10));
            }
            let output = child.wait_with_output().map_err(|error| error.to_string())?;
            match output.status.success() {
                true => Ok(()),
                false => Err(String::from_utf8_lossy(&output.stderr).trim().to_string()),
            }
        }));
        Ok(())
    }

    /// Waits for all answers.
    fn collect_answers(&mut self) {
        for request in std::mem::take(&mut self.requests) {
            let answer = request.join().unwrap_or_else(|_| Err("the request panicked".into()));
            *self.answers.entry(answer.err().unwrap_or_else(|| "changed".into())).or_default() += 1;
        }
    }

    /// Ends all faults. The application host keeps its address, and flows keep their pipelines.
    pub(super) fn restore(&mut self) -> Result<Instant, Failure> {
        for host in Host::BOTH {
            self.act(&Act::Resume(host))?;
        }
        for device in 0..self.subjects.len() {
            if matches!(self.flows[device].class, Class::File | Class::Video) {
                self.act(&Act::Disk(device, false))?;
            }
            self.act(&Act::Plug(device, true))?;
        }
        self.act(&Act::Address { host: Host::Device, home: true })?;
        for act in [Act::Udp(true), Act::Link(CALM.into()), Act::Cut(false)] {
            self.act(&act)?;
        }
        Ok(Instant::now())
    }

    /// Restores the first pipelines of all flows. Returns the refusals. A change waits for the messages before it, which a small
    /// store or window delays: like a user, this asks again.
    pub(super) fn restore_pipelines(&mut self) -> Result<Vec<String>, Failure> {
        self.collect_answers();
        let mut refused = Vec::new();
        for (device, flow) in self.flows.clone().iter().enumerate() {
            for (back, via) in [false, true].into_iter().zip(&flow.via) {
                let Some(via) = via else { continue };
                let begun = Instant::now();
                loop {
                    self.request(device, back, Host::Application, via)?;
                    let answer = self.requests.pop().map(JoinHandle::join);
                    let Some(Ok(Err(problem))) = answer else { break };
                    let is_slow = ["no answer for", "is under way"].iter().any(|text| problem.contains(text));
                    if !is_slow || begun.elapsed() > ANSWER {
                        refused.push(format!("{}: `{via}` is not restored: {problem}", name(device)));
                        break;
                    }
                    thread::sleep(Duration::from_millis(500));
                }
            }
        }
        Ok(refused)
    }

    /// Returns whether a session uses a transport that is not its first one.
    pub(super) fn has_fallen_back(&mut self) -> bool {
        let events = self.hosts.log(Host::Application, self.begun);
        let count = |name: &str| events.iter().filter(|event| event.contains(name)).count();
        count("fallback-started") > count("fallback-ended")
    }

    /// Counts the open processes and descriptors of a host.
    pub(super) fn open_counts(&mut self, host: Host) -> OpenCounts {
        let processes = self.hosts.processes(host);
        let broker = processes.first().map_or(0, |broker| broker.as_raw_nonzero().get());
        let names = processes.iter().filter_map(|process| {
            let name = fs::read_to_string(format!("/proc/{process}/comm")).ok()?;
            Some(format!("process {}", name.trim_end()))
        });
        let descriptors = fs::read_dir(format!("/proc/{broker}/fd")).into_iter().flatten().flatten();
        OpenCounts::count(names.chain(descriptors.filter_map(|descriptor| kind(&descriptor.path()))))
    }
}
