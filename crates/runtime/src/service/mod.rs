//! `outboard run FILE`: keeps running what a file says, and tells the service manager of it.
//!
//! The file is read again on SIGHUP and by `outboard reload`. It is checked whole before anything is done: one that is
//! wrong changes nothing. Entries are compared by their words: what stands there as before goes on untouched, what is
//! new starts, what is gone ends. The `[[share]]` of one address are one sharer, which goes on while devices come and
//! go; it is begun anew only if `insecure`, `announce` or `limits` change.
//!
//! What cannot be had now (a device that is not plugged in, a host that does not answer) is told and tried again by
//! itself; the rest goes on meanwhile.

mod hotplug;
mod manager;
mod notify;
mod plan;
mod sharing;
mod unit;

pub use hotplug::is_rule;
pub use plan::Source;

use crate::console::{Answer, Console, Operation, Status, ask, own_consoles};
use crate::error::RuntimeError;
use crate::events::{Event, Stop, Tell};
use crate::metrics::Endpoint;
use crate::share::now;
use contract::Time;
use manager::Inherited;
use notify::Manager;
use plan::Plan;
use sharing::Sharing;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use sys::event::Event as Wake;
use sys::poller::Poller;
use sys::signal::Hangup;
use sys::uevent::Uevents;
use unit::{Ends, Finished, Unit, Words};

/// How long, at the end, everything may take to end.
const STOP_PATIENCE: Duration = Duration::from_secs(10);

/// Time between two looks for devices of rules.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);

/// What a reload did, in entries of the file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Reloaded {
    /// New ones.
    pub started: usize,
    /// Those that are gone.
    pub ended: usize,
    /// Those that went on untouched.
    pub unchanged: usize,
}

/// A running file.
pub struct Supervisor {
    source: Source,
    inherited: Inherited,
    sharings: Vec<Sharing>,
    units: Vec<Unit>,
    next: u64,
    /// Where metrics are served, if they are.
    endpoint: Option<Endpoint>,
    /// As the command line has it, above the file.
    metrics: Option<SocketAddr>,
    ends: Ends,
    finished: Receiver<Finished>,
    console: Option<Console>,
    hangup: Hangup,
    /// What the kernel tells of devices, if it does.
    uevents: Option<Uevents>,
    /// When to look for devices.
    looks: Vec<Time>,
    manager: Arc<Manager>,
    poller: Poller,
}

impl Supervisor {
    /// Checks the words and begins. `sockets` are of a service manager
    /// ([`take_sockets`](sys::activation::take_sockets)); `metrics` is above what the file says.
    pub fn start(
        source: Source,
        metrics: Option<SocketAddr>,
        sockets: Vec<OwnedFd>,
        tell: Tell,
    ) -> Result<Supervisor, RuntimeError> {
        let failed = |error| RuntimeError::os("beginning to run", error);
        let (to, finished) = channel();
        let plan = source.plan()?;
        let mut supervisor = Supervisor {
            source,
            inherited: Inherited::new(sockets)?,
            sharings: Vec::new(),
            units: Vec::new(),
            next: 0,
            endpoint: None,
            metrics,
            ends: Ends { to, wake: Wake::new().map_err(failed)?, tell },
            finished,
            console: Console::open().ok(),
            hangup: Hangup::take_over().map_err(failed)?,
            uevents: Uevents::open().ok(),
            looks: Vec::new(),
            manager: Arc::new(Manager::of_environment()),
            poller: Poller::new().map_err(failed)?,
        };
        supervisor.apply(plan)?;
        // What the file says wrong and only the device shows is an error of the user's, as the rest is.
        let wrong = supervisor.sharings.iter_mut().find_map(Sharing::take_wrong);
        match wrong {
            Some(problem) => {
                supervisor.end();
                Err(RuntimeError::Usage(problem))
            }
            None => Ok(supervisor),
        }
    }

    /// Runs until everything has ended, or `stop` is said.
    pub fn run(mut self, stop: &Stop) -> Result<(), RuntimeError> {
        self.watch_over()?;
        self.manager.tell(&format!("READY=1\nSTATUS={}", self.describe()));
        while !stop.is_said() {
            self.collect();
            if self.sharings.is_empty() && self.units.iter().all(|unit| unit.done) {
                break;
            }
            if self.hangup.take() {
                // What is wrong was told.
                let _ = self.reload();
            }
            self.attend_console();
            self.retry();
            self.look();
            self.sleep(stop)?;
        }
        self.manager.tell("STOPPING=1\nSTATUS=ending");
        self.end();
        Ok(())
    }

    fn describe(&self) -> String {
        let devices: usize = self.sharings.iter().map(Sharing::devices).sum();
        let units = self.units.iter().filter(|unit| !unit.done).count();
        let problems = self.problems().len();
        let waits = if problems > 0 { format!(", {problems} tried again") } else { String::new() };
        format!("{devices} shared, {units} attached or connected{waits}")
    }

    /// What does not run although the file says so, and why.
    fn problems(&self) -> Vec<String> {
        let unit = |unit: &Unit| {
            let problem = unit.retry.problem.as_ref().filter(|_| unit.retry.at.is_some())?;
            Some(format!("{}: {problem}", unit.words.name()))
        };
        self.sharings.iter().flat_map(Sharing::problems).chain(self.units.iter().filter_map(unit)).collect()
    }

    /// Reads the file again and does what it says now.
    fn reload(&mut self) -> Result<Reloaded, RuntimeError> {
        let micros = now().0 / 1000;
        self.manager.tell(&format!("RELOADING=1\nMONOTONIC_USEC={micros}"));
        let result = match &self.source {
            Source::File(_) => self.source.plan().and_then(|plan| self.apply(plan)),
            Source::Text(_) | Source::Share(_) => {
                Err(RuntimeError::Usage("it runs no file that could be read again".into()))
            }
        };
        match &result {
            Ok(done) => (self.ends.tell)(Event::Reloaded { done: *done }),
            Err(error) => {
                let problem = format!("the file is not read again, and nothing changes: {error}");
                (self.ends.tell)(Event::Warning { problem });
            }
        }
        self.manager.tell(&format!("READY=1\nSTATUS={}", self.describe()));
        result
    }

    /// Makes what runs what the plan says. An error changes nothing.
    fn apply(&mut self, plan: Plan) -> Result<Reloaded, RuntimeError> {
        let metrics = self.metrics.or(plan.metrics);
        let endpoint = match metrics {
            Some(at) if self.endpoint.as_ref().is_none_or(|endpoint| endpoint.asked() != at) => {
                Some(Endpoint::start(at)?)
            }
            _ => None,
        };
        let mut fresh = Vec::new();
        for share in &plan.shares {
            let listen = share.request.listen;
            if !self.sharings.iter().any(|sharing| sharing.listen() == listen) {
                fresh.push(Sharing::start(self.next, &share.request, &mut self.inherited)?);
                self.next += 1;
            }
        }
        // Nothing can fail as a whole any more.
        if metrics.is_none() || endpoint.is_some() {
            self.endpoint = endpoint;
            if let Some(endpoint) = &self.endpoint {
                (self.ends.tell)(Event::Metrics { address: endpoint.address().to_string() });
            }
        }
        self.sharings.extend(fresh);
        let mut done = Reloaded::default();
        self.apply_shares(&plan, &mut done);
        let attaches = plan.attaches.into_iter().map(Words::Attach);
        let words: Vec<_> = attaches.chain(plan.connects.into_iter().map(Words::Connect)).collect();
        self.apply_units(words, &mut done)?;
        Ok(done)
    }

    fn apply_shares(&mut self, plan: &Plan, done: &mut Reloaded) {
        let ends = self.ends.clone();
        self.sharings.retain_mut(|sharing| {
            let kept = plan.shares.iter().any(|share| share.request.listen == sharing.listen());
            if !kept {
                done.ended += sharing.end();
            }
            kept
        });
        for share in &plan.shares {
            let listen = share.request.listen;
            let Some(sharing) = self.sharings.iter_mut().find(|sharing| sharing.listen() == listen) else {
                continue;
            };
            if !sharing.goes_on(share) {
                done.ended += sharing.end();
                sharing.begin_anew(&share.request, &mut self.inherited, &ends);
            }
            sharing.apply(&share.devices, &ends, done);
        }
    }

    fn apply_units(&mut self, mut words: Vec<Words>, done: &mut Reloaded) -> Result<(), RuntimeError> {
        for unit in &mut self.units {
            match words.iter().position(|words| *words == unit.words) {
                // What has ended by itself had its turn.
                Some(index) => {
                    words.remove(index);
                    done.unchanged += 1;
                }
                None => {
                    done.ended += 1;
                    unit.gone = true;
                    unit.stop.stop();
                }
            }
        }
        // A node that the gone ones had may be wanted by the new.
        self.settle(|unit| unit.gone && unit.threads > 0);
        self.units.retain(|unit| !unit.gone);
        for words in words {
            let mut unit = Unit::new(self.next, words)?;
            self.next += 1;
            unit.start(&self.ends);
            self.units.push(unit);
            done.started += 1;
        }
        Ok(())
    }

    /// Waits, not for ever, until no unit is such.
    fn settle(&mut self, is_awaited: impl Fn(&Unit) -> bool) {
        let until = now().after(STOP_PATIENCE);
        while self.units.iter().any(&is_awaited)
            && let Ok(finished) = self.finished.recv_timeout(until.since(now()))
        {
            self.handle_end(finished);
        }
    }

    fn collect(&mut self) {
        self.ends.wake.clear();
        while let Ok(finished) = self.finished.try_recv() {
            self.handle_end(finished);
        }
    }

    fn handle_end(&mut self, Finished { unit: id, result }: Finished) {
        if let Some(unit) = self.units.iter_mut().find(|unit| unit.id == id) {
            unit.handle_end(result, &self.ends);
        } else if let Some(sharing) = self.sharings.iter_mut().find(|sharing| sharing.id() == id) {
            sharing.handle_end(result, &self.ends);
        }
    }

    /// Begins again what waits for that.
    fn retry(&mut self) {
        let at = now();
        for unit in self.units.iter_mut().filter(|unit| unit.threads == 0 && unit.retry.is_due(at)) {
            unit.start(&self.ends);
        }
        for sharing in &mut self.sharings {
            sharing.retry(at, &mut self.inherited, &self.ends);
        }
    }

    /// Looks for devices when the kernel told of some, and now and then, since it does not tell everybody.
    fn look(&mut self) {
        let waits = |sharing: &Sharing| sharing.has_rules() || sharing.retry_at().is_some();
        let is_wanted = self.sharings.iter().any(waits);
        let at = now();
        if self.uevents.as_ref().is_some_and(hotplug::heard) && is_wanted {
            self.looks.extend(hotplug::LOOKS.map(|wait| at.after(wait)));
        }
        let due = self.looks.iter().any(|look| *look <= at);
        self.looks.retain(|look| *look > at);
        if due {
            self.sharings.iter_mut().for_each(|sharing| sharing.look(&self.ends));
        }
        if is_wanted && self.looks.is_empty() {
            self.looks.push(at.after(LOOK_INTERVAL));
        }
    }

    fn sleep(&mut self, stop: &Stop) -> Result<(), RuntimeError> {
        self.poller.want(stop.wakes(), true, false);
        self.poller.want(self.ends.wake.as_fd(), true, false);
        self.poller.want(self.hangup.as_fd(), true, false);
        if let Some(uevents) = &self.uevents {
            self.poller.want(uevents.as_fd(), true, false);
        }
        if let Some(console) = &self.console {
            console.want(&mut self.poller);
        }
        let units = self.units.iter().filter(|unit| unit.threads == 0).filter_map(|unit| unit.retry.at);
        let at: Option<Time> = units
            .chain(self.sharings.iter().filter_map(Sharing::retry_at))
            .chain(self.looks.iter().copied())
            .min();
        let waited = self.poller.wait(at.map(|at| at.since(now())));
        waited.map(drop).map_err(|error| RuntimeError::os("waiting", error))
    }

    fn attend_console(&mut self) {
        let Some(mut console) = self.console.take() else { return };
        for (visitor, operation) in console.poll(&mut self.poller) {
            let answer = match operation {
                Operation::Stats {} => {
                    Answer::Status(Status { problems: self.problems(), ..Status::of("run", Vec::new()) })
                }
                Operation::Reload {} => match self.reload() {
                    Ok(done) => Answer::Reloaded(done),
                    Err(error) => Answer::Refused { problem: error.to_string() },
                },
                _ => Answer::Refused {
                    problem: "ask the process's other consoles: this one is of its file".into(),
                },
            };
            console.answer(visitor, &answer, &mut self.poller);
        }
        self.console = Some(console);
    }

    /// Tells the service manager that all lives, as long as every console of this process answers.
    fn watch_over(&self) -> Result<(), RuntimeError> {
        let Some(interval) = self.manager.watchdog else { return Ok(()) };
        let manager = self.manager.clone();
        let watch = move || {
            loop {
                let answers = |console: &std::path::PathBuf| ask(console, &Operation::Stats {}).is_ok();
                if own_consoles().is_ok_and(|consoles| consoles.iter().all(answers)) {
                    manager.tell("WATCHDOG=1");
                }
                std::thread::sleep(interval / 3);
            }
        };
        let started = std::thread::Builder::new().name("watchdog".into()).spawn(watch);
        started.map(drop).map_err(|error| RuntimeError::os("starting a thread", error))
    }

    /// Ends everything, and waits for it, not for ever.
    fn end(&mut self) {
        self.sharings.iter().for_each(Sharing::stop);
        for unit in &mut self.units {
            unit.gone = true;
            unit.stop.stop();
        }
        for sharing in &mut self.sharings {
            sharing.end();
        }
        self.settle(|unit| unit.threads > 0);
    }
}
