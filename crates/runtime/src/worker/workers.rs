//! The workers of one session: a process and a thread, each started when there is something for it.
//!
//! A process that is killed, or dies, is started again, and its drivers go on: their devices' descriptors and the memory in
//! which they keep where they stand are the broker's too. One that dies again and again at once is given up.

use super::process::Process;
use super::{Command, PartnerOrigin, Report, TransportPlan, Worker};
use crate::driver::{FlowPlan, LinkFacts, Notice};
use crate::{kept, registry};
use contract::{Half, Opened, Role};
use pipeline::{LinkKind, Pipeline};
use session::Limits;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use sys::poller::Poller;
use wire::Control;

/// What a flow in a locked worker cannot be given while it runs.
const LOCKED: &str = "the worker of this flow is locked up and can start no process: say this pipeline when the \
                      device is attached";

/// A process that lived for less than this died at once.
const AT_ONCE: Duration = Duration::from_millis(100);
/// So many that die at once, one after the other, are enough.
const RESTARTS_MAX: u32 = 5;

/// Where a driver runs.
enum Place {
    Thread,
    Process(Box<Charge>),
}

/// What the broker keeps of a driver in a process, for the next one.
struct Charge {
    /// Its device; none while that is gone.
    device: Option<Opened>,
    memory: OwnedFd,
    role: Role,
    flows: Vec<FlowPlan>,
    transport: TransportPlan,
}

impl Drop for Charge {
    /// What the device's class leaves behind is cleared away.
    fn drop(&mut self) {
        if let Some(device) = &self.device
            && let Some(class) = registry::device_class(&device.spec.class)
        {
            class.release(device);
        }
    }
}

impl Charge {
    /// What to ask of a process that takes it on.
    fn commands(&self, driver: u32) -> io::Result<[Command; 2]> {
        let gone = || io::Error::new(io::ErrorKind::NotFound, "its device is not there");
        let device = self.device.as_ref().ok_or_else(gone).and_then(keep)?;
        let (role, flows, transport) = (self.role, self.flows.clone(), self.transport.clone());
        let origin = PartnerOrigin::Opened(Box::new(device));
        Ok([
            Command::Memory { driver, memory: self.memory.try_clone()? },
            Command::Add { driver, origin, role, flows, transport },
        ])
    }
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
    /// What is kept of drivers of other sessions, with whose devices those that are added next go on.
    left: BTreeMap<u32, OwnedFd>,
    /// What is known of the link, for a worker that is started later.
    facts: Option<LinkFacts>,
    is_silent: bool,
    /// When the process was started, how often one was started again, and how often of late at once.
    started: Instant,
    restarts: u64,
    at_once: u32,
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
            left: BTreeMap::new(),
            facts: None,
            is_silent: false,
            started: Instant::now(),
            restarts: 0,
            at_once: 0,
            reports: VecDeque::new(),
        }
    }

    /// Asks something of the worker that it concerns, or of all. What cannot be asked ends its driver
    /// ([`Notice::Failed`]).
    pub(crate) fn send(&mut self, command: Command) {
        match command {
            Command::LinksLost => self.all(|| Command::LinksLost),
            Command::Silence => {
                self.is_silent = true;
                self.all(|| Command::Silence);
            }
            Command::Heard => {
                self.is_silent = false;
                self.all(|| Command::Heard);
            }
            Command::Stats => self.all(|| Command::Stats),
            Command::Stop => self.all(|| Command::Stop),
            Command::Facts(facts) => {
                self.facts = Some(facts);
                self.all(|| Command::Facts(facts));
            }
            Command::Add { driver, origin, role, flows, transport } => {
                let left = self.left.remove(&driver);
                let added = match origin {
                    PartnerOrigin::Opened(opened) if is_lockable(&opened, role, &flows) => {
                        let charge = self.memory_after(left).map(|memory| {
                            Box::new(Charge { device: Some(*opened), memory, role, flows, transport })
                        });
                        charge.and_then(|charge| self.add(driver, charge))
                    }
                    origin => self.start_thread().map(|()| {
                        self.drivers.insert(driver, Place::Thread);
                        self.one(driver, Command::Add { driver, origin, role, flows, transport });
                    }),
                };
                if let Err(error) = added {
                    self.fail(driver, &format!("starting a worker: {error}"));
                }
            }
            Command::Rebuild { driver, flows } => {
                if let Some(Place::Process(charge)) = self.drivers.get_mut(&driver) {
                    charge.flows = flows.clone();
                }
                self.one(driver, Command::Rebuild { driver, flows });
            }
            Command::Partner { driver, origin } => {
                if let (Some(Place::Process(charge)), PartnerOrigin::Opened(opened)) =
                    (self.drivers.get_mut(&driver), &origin)
                {
                    charge.device = keep(opened).ok();
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
            Command::Link { driver, transport, socket, keys } => {
                if let (Some(Place::Process(charge)), Some(transport)) =
                    (self.drivers.get_mut(&driver), &transport)
                {
                    charge.transport = transport.clone();
                }
                self.one(driver, Command::Link { driver, transport, socket, keys });
            }
            Command::Remove { driver } => {
                self.one(driver, Command::Remove { driver });
                self.drivers.remove(&driver);
            }
            Command::Memory { driver, .. }
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

    /// What is kept of a driver, for one of another session that goes on with its device.
    pub(crate) fn leave(&self, driver: u32) -> Option<OwnedFd> {
        match self.drivers.get(&driver)? {
            Place::Process(charge) => charge.memory.try_clone().ok(),
            Place::Thread => None,
        }
    }

    /// The driver that is added next under this number goes on with the device of one of which this is kept, if any.
    pub(crate) fn inherit(&mut self, driver: u32, left: Option<OwnedFd>) {
        self.left.extend(left.map(|left| (driver, left)));
    }

    fn memory_after(&self, left: Option<OwnedFd>) -> io::Result<OwnedFd> {
        let memory = kept::memory(&self.limits)?;
        if let Some(left) = left {
            kept::hand_on(left, memory.try_clone()?, &self.limits)?;
        }
        Ok(memory)
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
            Ok(Some(mut report)) => {
                self.heed(&mut report);
                Some(report)
            }
            Ok(None) => {
                let end = process.end()?;
                self.bury(&end);
                self.reports.pop_front()
            }
            Err(problem) => {
                process.kill();
                self.bury(&format!("was killed, as it said what no worker says: {problem}"));
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

    /// Whether the last wait found something to do here.
    pub(crate) fn is_ready(&self, poller: &Poller) -> bool {
        self.thread.as_ref().is_some_and(|thread| poller.is_ready(thread.wakes()))
            || self.process.as_ref().is_some_and(|process| process.is_ready(poller))
            || self.gone.is_some()
            || !self.reports.is_empty()
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

    fn start_thread(&mut self) -> io::Result<()> {
        if self.thread.is_none() {
            let thread = self.thread.insert(Worker::start(&self.name, self.limits.clone())?);
            let _ = self.facts.is_none_or(|facts| thread.send(Command::Facts(facts)));
        }
        Ok(())
    }

    fn start_process(&mut self) -> io::Result<()> {
        if self.process.is_none() {
            let process = self.process.insert(Process::start(&self.name, &self.limits)?);
            self.started = Instant::now();
            let _ = self.facts.is_none_or(|facts| process.send(Command::Facts(facts)));
        }
        Ok(())
    }

    /// Has the process take a driver on.
    fn add(&mut self, driver: u32, charge: Box<Charge>) -> io::Result<()> {
        let commands = charge.commands(driver)?;
        self.start_process()?;
        self.drivers.insert(driver, Place::Process(charge));
        commands.into_iter().for_each(|command| self.one(driver, command));
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

    /// What a report of the process means for what is kept of its drivers.
    fn heed(&mut self, report: &mut Report) {
        match report {
            Report::Notice { driver, notice: Notice::Failed(_) } => drop(self.drivers.remove(driver)),
            Report::Notice { driver, notice } => {
                let Some(Place::Process(charge)) = self.drivers.get_mut(driver) else { return };
                match notice {
                    // Held open, what went away could not come back under its name.
                    Notice::PartnerGone(_) => charge.device = None,
                    // Nor would who reads what was written see its end.
                    Notice::FlowEnded(_) if charge.flows.len() == 1 => charge.device = None,
                    Notice::Changed { direction, result: Ok(pipeline) } => {
                        let is_its = |plan: &&mut FlowPlan| plan.direction == *direction;
                        if let Some(plan) = charge.flows.iter_mut().find(is_its) {
                            plan.pipeline = pipeline.clone();
                        }
                    }
                    _ => {}
                }
            }
            Report::Stats(all) => all.values_mut().for_each(|stats| stats.restarts = self.restarts),
            _ => {}
        }
    }

    /// The process is gone: another takes on what ran in it.
    fn bury(&mut self, end: &str) {
        self.gone = self.process.take();
        let is_its = |_: &u32, place: &mut Place| matches!(place, Place::Process(_));
        let charges: Vec<_> = self.drivers.extract_if(.., is_its).collect();
        self.at_once = if self.started.elapsed() < AT_ONCE { self.at_once + 1 } else { 0 };
        self.restarts += 1;
        for (driver, place) in charges {
            let Place::Process(charge) = place else { continue };
            let is_seen = !charge.transport.class.is_datagram();
            let added = match self.at_once < RESTARTS_MAX {
                true => self.add(driver, charge),
                false => Err(io::Error::other("it is not the first, and none lives")),
            };
            match added {
                Ok(()) => {
                    let notice = Notice::Restarted { end: end.into(), is_seen };
                    self.reports.push_back(Report::Notice { driver, notice });
                }
                Err(error) => self.fail(driver, &format!("its worker {end}, and none goes on: {error}")),
            }
        }
        if self.is_silent
            && let Some(process) = self.process.as_mut()
        {
            let _ = process.send(Command::Silence);
        }
    }

    fn fail(&mut self, driver: u32, problem: &str) {
        self.drivers.remove(&driver);
        self.reports.push_back(Report::Notice { driver, notice: Notice::Failed(problem.into()) });
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        // Before what is kept of the devices.
        self.process = None;
    }
}

/// What the broker keeps of a device that a process drives: its node outlives that process.
pub(crate) fn keep(opened: &Opened) -> io::Result<Opened> {
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
