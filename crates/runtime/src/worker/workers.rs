//! The workers of one session: a process and a thread, each started when there is something for it.

use super::process::Process;
use super::{Command, PartnerOrigin, Report, Worker};
use crate::driver::{FlowPlan, LinkFacts, Notice};
use crate::registry;
use contract::{Half, Opened, Role};
use pipeline::{LinkKind, Pipeline};
use session::Limits;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use sys::poller::Poller;
use wire::Control;

/// What a flow in a locked worker cannot be given while it runs.
const LOCKED: &str = "the worker of this flow is locked up and can start no process: say this pipeline when the \
                      device is attached";

/// Where a driver runs.
enum Place {
    Thread,
    /// With what the broker keeps of its device.
    Process(Option<Box<Opened>>),
}

/// The workers of one session; dropping it ends them.
pub(crate) struct Workers {
    name: String,
    limits: Limits,
    thread: Option<Worker>,
    process: Option<Process>,
    /// A process that is gone, until the poller was told.
    gone: Option<Process>,
    drivers: BTreeMap<u32, Place>,
    /// What is known of the link, for a worker that is started later.
    facts: Option<LinkFacts>,
    reports: VecDeque<Report>,
}

impl Workers {
    /// No worker yet. `name` is what they are called among threads and processes.
    pub(crate) fn new(name: String, limits: Limits) -> Workers {
        Workers {
            name,
            limits,
            thread: None,
            process: None,
            gone: None,
            drivers: BTreeMap::new(),
            facts: None,
            reports: VecDeque::new(),
        }
    }

    /// Asks something of the worker that it concerns, or of all. What cannot be asked ends its driver
    /// ([`Notice::Failed`]).
    pub(crate) fn send(&mut self, command: Command) {
        match command {
            Command::LinksLost => self.all(|| Command::LinksLost),
            Command::Silence => self.all(|| Command::Silence),
            Command::Heard => self.all(|| Command::Heard),
            Command::Stats => self.all(|| Command::Stats),
            Command::Stop => self.all(|| Command::Stop),
            Command::Facts(facts) => {
                self.facts = Some(facts);
                self.all(|| Command::Facts(facts));
            }
            Command::Add { driver, origin, role, flows, transport } => {
                let place = match origin {
                    PartnerOrigin::Opened(ref opened) if is_lockable(opened, role, &flows) => {
                        keep(opened).map(|kept| Place::Process(Some(Box::new(kept))))
                    }
                    _ => Ok(Place::Thread),
                };
                let started = place.and_then(|place| {
                    self.start(&place)?;
                    Ok(place)
                });
                match started {
                    Ok(place) => {
                        self.drivers.insert(driver, place);
                        self.one(driver, Command::Add { driver, origin, role, flows, transport });
                    }
                    Err(error) => self.fail(driver, &format!("starting a worker: {error}")),
                }
            }
            Command::Partner { driver, origin } => {
                if let (Some(Place::Process(kept)), PartnerOrigin::Opened(opened)) =
                    (self.drivers.get_mut(&driver), &origin)
                {
                    *kept = keep(opened).map(Box::new).ok();
                }
                self.one(driver, Command::Partner { driver, origin });
            }
            Command::Change { driver, direction, pipeline }
                if self.is_locked(driver) && !is_startable(&pipeline, Half::Source) =>
            {
                let notice = Notice::Changed { direction, result: Err(LOCKED.into()) };
                self.reports.push_back(Report::Notice { driver, notice });
            }
            Command::Prepare { driver, flow, epoch, pipeline }
                if self.is_locked(driver) && !is_startable(&pipeline, Half::Sink) =>
            {
                let refusal = Some(LOCKED.into());
                let notice = Notice::Control(Control::Changed { flow, epoch, refusal });
                self.reports.push_back(Report::Notice { driver, notice });
            }
            Command::Remove { driver } => {
                self.one(driver, Command::Remove { driver });
                self.let_go(driver);
            }
            Command::Rebuild { driver, .. }
            | Command::Link { driver, .. }
            | Command::Move { driver, .. }
            | Command::Control { driver, .. }
            | Command::Change { driver, .. }
            | Command::Prepare { driver, .. }
            | Command::Absence { driver }
            | Command::Resync { driver }
            | Command::Say { driver, .. }
            | Command::Trace { driver, .. } => self.one(driver, command),
        }
    }

    /// Takes what the workers told, before [`Workers::poll`].
    pub(crate) fn clear(&mut self, poller: &mut Poller) {
        if let Some(gone) = self.gone.take() {
            gone.forget(poller);
        }
        if let Some(thread) = &self.thread {
            thread.clear();
        }
        if let Some(process) = self.process.as_mut() {
            process.exchange();
        }
    }

    /// The next thing a worker told.
    pub(crate) fn poll(&mut self) -> Option<Report> {
        if let Some(report) = self.reports.pop_front() {
            return Some(report);
        }
        if let Some(report) = self.thread.as_ref().and_then(Worker::poll) {
            return Some(report);
        }
        let process = self.process.as_mut()?;
        match process.poll() {
            Ok(Some(report)) => {
                self.heed(&report);
                Some(report)
            }
            Ok(None) => {
                let end = process.end()?;
                self.bury(&end);
                self.reports.pop_front()
            }
            Err(problem) => {
                process.kill();
                self.bury(&format!("it was killed, as it said what no worker says: {problem}"));
                self.reports.pop_front()
            }
        }
    }

    /// The coming wait is also for what [`Workers::poll`] gives.
    pub(crate) fn want(&self, poller: &mut Poller) {
        if let Some(thread) = &self.thread {
            poller.want(thread.wakes(), true, false);
        }
        if let Some(process) = &self.process {
            process.want(poller);
        }
    }

    /// Lets the poller go; to be called before this is dropped.
    pub(crate) fn forget(&self, poller: &mut Poller) {
        if let Some(thread) = &self.thread {
            poller.forget(thread.wakes());
        }
        for process in self.process.iter().chain(&self.gone) {
            process.forget(poller);
        }
    }

    fn start(&mut self, place: &Place) -> io::Result<()> {
        let facts = self.facts.map(Command::Facts);
        match place {
            Place::Thread if self.thread.is_none() => {
                let thread = self.thread.insert(Worker::start(&self.name, self.limits.clone())?);
                let _ = facts.is_none_or(|facts| thread.send(facts));
            }
            Place::Process(_) if self.process.is_none() => {
                let process = self.process.insert(Process::start(&self.name, &self.limits)?);
                let _ = facts.is_none_or(|facts| process.send(facts));
            }
            _ => {}
        }
        Ok(())
    }

    fn all(&mut self, command: impl Fn() -> Command) {
        // A worker that takes no command is found out by its silence towards the peer, or by its end.
        if let Some(thread) = &self.thread {
            let _ = thread.send(command());
        }
        if let Some(process) = self.process.as_mut() {
            let _ = process.send(command());
        }
    }

    fn one(&mut self, driver: u32, command: Command) {
        let _ = match (self.drivers.get(&driver), &self.thread, self.process.as_mut()) {
            (Some(Place::Thread), Some(thread), _) => thread.send(command),
            (Some(Place::Process(_)), _, Some(process)) => process.send(command),
            _ => false,
        };
    }

    fn is_locked(&self, driver: u32) -> bool {
        matches!(self.drivers.get(&driver), Some(Place::Process(_)))
    }

    /// What a report of the process means for what is kept of its devices.
    fn heed(&mut self, report: &Report) {
        match report {
            // Held open, what went away could not come back under its name.
            Report::Notice { driver, notice: Notice::PartnerGone(_) } => {
                if let Some(Place::Process(kept)) = self.drivers.get_mut(driver) {
                    *kept = None;
                }
            }
            Report::Notice { driver, notice: Notice::Failed(_) } => self.let_go(*driver),
            _ => {}
        }
    }

    /// A driver is no more: what its class leaves behind is cleared away.
    fn let_go(&mut self, driver: u32) {
        if let Some(Place::Process(Some(kept))) = self.drivers.remove(&driver)
            && let Some(class) = registry::device_class(&kept.spec.class)
        {
            class.release(&kept);
        }
    }

    /// The process is gone, and what ran in it.
    fn bury(&mut self, end: &str) {
        self.gone = self.process.take();
        let lost = self.drivers.iter().filter(|(_, place)| matches!(place, Place::Process(_)));
        for driver in lost.map(|(driver, _)| *driver).collect::<Vec<_>>() {
            self.fail(driver, &format!("its worker is gone: {end}"));
        }
    }

    fn fail(&mut self, driver: u32, problem: &str) {
        self.let_go(driver);
        self.reports.push_back(Report::Notice { driver, notice: Notice::Failed(problem.into()) });
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.process = None;
        for driver in self.drivers.keys().copied().collect::<Vec<_>>() {
            self.let_go(driver);
        }
    }
}

/// What the broker keeps of a device that a process drives: its node outlives that process.
fn keep(opened: &Opened) -> io::Result<Opened> {
    let Opened { spec, role, description, descriptors } = opened;
    let descriptors =
        descriptors.iter().map(|descriptor| descriptor.try_clone()).collect::<io::Result<_>>()?;
    Ok(Opened { spec: spec.clone(), role: *role, description: description.clone(), descriptors })
}

/// Whether a driver can be in a locked process.
fn is_lockable(opened: &Opened, role: Role, flows: &[FlowPlan]) -> bool {
    let has_class = |name: &str| registry::device_class(name).is_some_and(|class| class.is_lockable(role));
    Process::is_possible()
        && has_class(&opened.spec.class)
        && flows.iter().all(|plan| is_startable(&plan.pipeline, half_of(plan, role)))
}

fn half_of(plan: &FlowPlan, role: Role) -> Half {
    use contract::FlowDirection::{ApplicationToDevice, DeviceToApplication};
    match (plan.direction, role) {
        (DeviceToApplication, Role::Device) | (ApplicationToDevice, Role::Application) => Half::Source,
        (DeviceToApplication, Role::Application) | (ApplicationToDevice, Role::Device) => Half::Sink,
    }
}

/// Whether a half of a pipeline needs nothing that a locked process has not.
fn is_startable(pipeline: &Pipeline, half: Half) -> bool {
    pipeline.pairs().iter().all(|used| used.link_of(half) == LinkKind::Direct) && !pipeline.has_outlets()
}
