//! The workers of one session: a process and a thread, each started when there is something for it.
//!
//! A process that is killed, or dies, is started again, and its drivers go on: their devices' descriptors and the memory in
//! which they keep where they stand are the broker's too. One that dies again and again at once is given up.

use super::process::{Process, is_sandbox_required};
use super::{Command, OpenPort, PartnerOrigin, Report, TransportPlan, Worker};
use crate::driver::{FlowPlan, LinkFacts, Notice};
use crate::junction::outlet;
use crate::{isolation, kept, registry};
use contract::{Half, Role};
use links::process::{Allowed, Wardship};
use pipeline::Pipeline;
use session::Limits;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};
use sys::poller::Poller;

/// A process that lived for less than this died at once.
const AT_ONCE: Duration = Duration::from_millis(100);
/// How long a broker that has others to serve waits for one that was told to stop: who has nothing more to write is gone by then.
const PARTING: Duration = Duration::from_millis(50);
/// So many that die at once, one after the other, are enough.
const RESTARTS_MAX: u32 = 5;

/// Why a driver is refused where only locked ones may be.
const UNLOCKED: &str = "its flow can run in a thread of this process alone, and a sandbox is required \
                        (--require-sandbox)";

/// Where a driver runs.
enum Place {
    Thread,
    Process(Box<Charge>),
}

/// What the broker keeps of a driver in a process, for the next one.
struct Charge {
    /// Its device, or its way to one; none while that is gone.
    device: Option<PartnerOrigin>,
    /// Where its side ports lead.
    ports: Vec<OpenPort>,
    memory: OwnedFd,
    role: Role,
    flows: Vec<FlowPlan>,
    transport: TransportPlan,
    /// The device is gone, and may come back.
    is_away: bool,
    /// Its worker has ended meanwhile: the next is started once the device is back.
    waits: Option<Waiting>,
}

/// A driver without a worker.
struct Waiting {
    /// How its worker ended.
    end: String,
    /// The connection that came since, for the next one.
    link: Option<Command>,
}

impl Drop for Charge {
    /// What the device's class leaves behind is cleared away.
    fn drop(&mut self) {
        if let Some(PartnerOrigin::Opened(device)) = &self.device
            && let Some(class) = registry::device_class(&device.spec.class)
        {
            class.release(device);
        }
    }
}

impl Charge {
    /// What its stages may ask the warden for.
    fn programs(&self) -> Vec<Allowed> {
        let of_flow = |plan: &FlowPlan| isolation::programs(&plan.pipeline, half_of(plan, self.role));
        self.flows.iter().flat_map(of_flow).collect()
    }

    /// What to ask of a process that takes it on.
    fn commands(&self, driver: u32) -> io::Result<Vec<Command>> {
        let gone = |what: &str| io::Error::new(io::ErrorKind::NotFound, format!("its {what} is not there"));
        let origin = self.device.as_ref().and_then(PartnerOrigin::try_clone).ok_or_else(|| gone("device"))?;
        let ports: Option<_> = self.ports.iter().map(OpenPort::try_clone).collect();
        let ports = ports.ok_or_else(|| gone("side port"))?;
        let (role, flows, transport) = (self.role, self.flows.clone(), self.transport.clone());
        Ok(vec![
            Command::Memory { driver, memory: self.memory.try_clone()? },
            Command::Ports { driver, ports },
            Command::Add { driver, origin, role, flows, transport },
        ])
    }
}

/// Waits for the end of workers that take their time for it.
pub(crate) type Parting = JoinHandle<()>;

/// The workers of one session; dropping it ends them.
pub(crate) struct Workers {
    name: String,
    limits: Limits,
    thread: Option<Worker>,
    process: Option<Process>,
    /// Starts the processes of stages for it, while there are any.
    wardship: Option<Wardship>,
    /// Pipelines that drivers were last asked to change to, by driver and the half's direction. One that is refused stands
    /// here until the next is in place.
    asked: BTreeMap<(u32, Half), Pipeline>,
    /// A process that is gone, until the poller was told.
    gone: Option<Process>,
    drivers: BTreeMap<u32, Place>,
    /// What is kept of drivers that do not run: of those of other sessions, with whose devices the ones that are added next
    /// go on, and of those that failed.
    left: BTreeMap<u32, OwnedFd>,
    /// What is known of the link, for a worker that is started later.
    facts: Option<LinkFacts>,
    /// Processor time that they may use in a second, nanoseconds; 0 is no bound.
    processor: u64,
    is_silent: bool,
    /// When the process was started, how often one was started again, and how often of late at once.
    started: Instant,
    restarts: u64,
    at_once: u32,
    /// This kernel did not take everything from the process that it should.
    is_weak: bool,
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
            wardship: None,
            asked: BTreeMap::new(),
            gone: None,
            drivers: BTreeMap::new(),
            left: BTreeMap::new(),
            facts: None,
            processor: 0,
            is_silent: false,
            started: Instant::now(),
            restarts: 0,
            at_once: 0,
            is_weak: false,
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
            Command::Processor { ns_per_second } => {
                self.processor = ns_per_second;
                self.all(|| Command::Processor { ns_per_second });
            }
            Command::Add { driver, origin, role, flows, transport } => {
                let left = self.left.remove(&driver);
                let is_foreign = Process::is_possible() && !matches!(origin, PartnerOrigin::Ready(_));
                let outlets = flows.first().map_or(&[][..], |plan| plan.pipeline.outlets());
                let ports = is_foreign.then(|| outlet::hand(outlets)).flatten();
                let added = match ports {
                    Some(ports) => {
                        let charge = self.memory_after(left).map(|memory| {
                            let (device, is_away, waits) = (Some(origin), false, None);
                            Box::new(Charge { device, ports, memory, role, flows, transport, is_away, waits })
                        });
                        charge.and_then(|charge| self.add(driver, charge))
                    }
                    None if is_sandbox_required() => Err(io::Error::other(UNLOCKED)),
                    None => self.start_thread().map(|()| {
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
                    let allowed = charge.programs();
                    self.allow(driver, allowed);
                }
                self.one(driver, Command::Rebuild { driver, flows });
            }
            Command::Partner { driver, origin } => {
                if let Some(Place::Process(charge)) = self.drivers.get_mut(&driver) {
                    (charge.device, charge.is_away) = (origin.try_clone(), false);
                    if let Some(waiting) = charge.waits.take() {
                        return self.go_on(driver, waiting);
                    }
                }
                self.one(driver, Command::Partner { driver, origin });
            }
            Command::Change { driver, direction, .. } if self.waiting(driver).is_some() => {
                let result = Err("its device is gone, and its worker has ended".into());
                self.reports
                    .push_back(Report::Notice { driver, notice: Notice::Changed { direction, result } });
            }
            Command::Change { driver, direction, pipeline } => {
                self.ask(driver, Half::Source, &pipeline);
                self.one(driver, Command::Change { driver, direction, pipeline });
            }
            Command::Prepare { driver, flow, epoch, pipeline } => {
                self.ask(driver, Half::Sink, &pipeline);
                self.one(driver, Command::Prepare { driver, flow, epoch, pipeline });
            }
            // Only what follows from what a driver is.
            Command::Memory { .. } | Command::Ports { .. } | Command::Warden { .. } => {}
            Command::Link { driver, transport, socket, keys } => {
                if let (Some(Place::Process(charge)), Some(transport)) =
                    (self.drivers.get_mut(&driver), &transport)
                {
                    charge.transport = transport.clone();
                }
                let link = Command::Link { driver, transport, socket, keys };
                match self.waiting(driver) {
                    Some(waiting) => waiting.link = Some(link),
                    None => self.one(driver, link),
                }
            }
            Command::Remove { driver } => {
                self.one(driver, Command::Remove { driver });
                self.forget_driver(driver);
            }
            Command::Move { driver, .. }
            | Command::Control { driver, .. }
            | Command::Absence { driver }
            | Command::Resync { driver }
            | Command::Say { driver, .. }
            | Command::Trace { driver, .. } => self.one(driver, command),
        }
    }

    /// Processor time that the process has used, nanoseconds, as it is seen from outside.
    pub(crate) fn cpu_ns(&self) -> u64 {
        self.process.as_ref().and_then(Process::cpu_ns).unwrap_or(0)
    }

    /// Ends them. What does not end soon is waited for by a thread, which ends it in the end: its broker has others to serve.
    pub(crate) fn end(mut self) -> Option<Parting> {
        let has_ended = self.process.as_mut().is_none_or(|process| process.stop(PARTING));
        // Without a thread it is waited for here.
        (!has_ended).then(|| Builder::new().name("parting".into()).spawn(move || drop(self)).ok())?
    }

    /// Ends the process at once: it does not do what it is told.
    pub(crate) fn kill(&mut self) {
        if let Some(process) = self.process.as_mut() {
            process.kill();
        }
    }

    /// Has the process be there when its first driver comes: it takes as long to start as a connection does to be made.
    pub(crate) fn prepare(&mut self) {
        if Process::is_possible() {
            // Without it, the first driver says why there is none.
            let _ = self.start_process();
        }
    }

    /// What is kept of a driver, for one of another session that goes on with its device.
    pub(crate) fn leave(&mut self, driver: u32) -> Option<OwnedFd> {
        match self.drivers.get(&driver) {
            Some(Place::Process(charge)) => charge.memory.try_clone().ok(),
            Some(Place::Thread) => None,
            None => self.left.remove(&driver),
        }
    }

    fn forget_driver(&mut self, driver: u32) -> Option<Place> {
        self.asked.retain(|(asked, _), _| *asked != driver);
        self.drivers.remove(&driver)
    }

    /// The driver failed, and is over.
    fn give_up(&mut self, driver: u32) {
        if let Some(Place::Process(charge)) = self.forget_driver(driver)
            && kept::has_legacy(&charge.memory, &self.limits)
        {
            self.inherit(driver, charge.memory.try_clone().ok());
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
            let _ = thread.send(Command::Processor { ns_per_second: self.processor });
        }
        Ok(())
    }

    fn start_process(&mut self) -> io::Result<()> {
        if self.process.is_none() {
            let process = self.process.insert(Process::start(&self.name, &self.limits)?);
            self.started = Instant::now();
            let _ = self.facts.is_none_or(|facts| process.send(Command::Facts(facts)));
            let _ = process.send(Command::Processor { ns_per_second: self.processor });
            self.name_warden()?;
        }
        Ok(())
    }

    /// Has the process know who starts the processes of its stages.
    fn name_warden(&mut self) -> io::Result<()> {
        if let (Some(wardship), Some(process)) = (&self.wardship, self.process.as_mut()) {
            let (socket, program) = (wardship.socket()?, isolation::program());
            let _ = process.send(Command::Warden { socket, program });
        }
        Ok(())
    }

    /// Processes that the stages of a driver may ask for from here on.
    fn allow(&mut self, driver: u32, programs: Vec<Allowed>) {
        if programs.is_empty() || !matches!(self.drivers.get(&driver), Some(Place::Process(_))) {
            return;
        }
        if self.wardship.is_none() {
            // Without it the stage says that it does not start.
            self.wardship = Wardship::begin().ok();
            let _ = self.name_warden();
        }
        if let Some(wardship) = &self.wardship {
            wardship.allow(programs);
        }
    }

    /// A driver is to change to this pipeline.
    fn ask(&mut self, driver: u32, half: Half, pipeline: &Pipeline) {
        if let Some(Place::Process(charge)) = self.drivers.get(&driver) {
            let is_its = |plan: &FlowPlan| half_of(plan, charge.role) == half && plan.pipeline == *pipeline;
            match charge.flows.iter().any(is_its) {
                // The other host asks again until it hears that it is in place.
                true => self.asked.remove(&(driver, half)),
                false => self.asked.insert((driver, half), pipeline.clone()),
            };
            self.allow(driver, isolation::programs(pipeline, half));
        }
    }

    /// Who starts the processes of stages ends where there are none, nor may be soon.
    fn dismiss_warden(&mut self) {
        let has_none = |place: &Place| match place {
            Place::Process(charge) => charge.programs().is_empty(),
            Place::Thread => true,
        };
        if self.asked.is_empty() && self.drivers.values().all(has_none) {
            self.wardship = None;
        }
    }

    /// Has the process take a driver on.
    fn add(&mut self, driver: u32, charge: Box<Charge>) -> io::Result<()> {
        let (commands, programs) = (charge.commands(driver), charge.programs());
        // Whether it comes to run or not: it may have something to leave.
        self.drivers.insert(driver, Place::Process(charge));
        let commands = commands?;
        self.start_process()?;
        self.allow(driver, programs);
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

    /// What a report of the process means for what is kept of its drivers.
    fn heed(&mut self, report: &mut Report) {
        match report {
            Report::Notice { driver, notice: Notice::Failed(_) } => self.give_up(*driver),
            Report::Notice { driver, notice } => {
                let Some(Place::Process(charge)) = self.drivers.get_mut(driver) else { return };
                match notice {
                    // Held open, what went away could not come back under its name.
                    Notice::PartnerGone(_) => (charge.device, charge.is_away) = (None, true),
                    // Nor would who reads what was written see its end.
                    Notice::FlowEnded(_) if charge.flows.len() == 1 => charge.device = None,
                    Notice::Changed { direction, result: Ok(pipeline) } => {
                        let is_its = |plan: &&mut FlowPlan| plan.direction == *direction;
                        if let Some(plan) = charge.flows.iter_mut().find(is_its) {
                            // What led somewhere there leads there still.
                            if let Ok(known) = pipeline.clone().in_place_of(&plan.pipeline) {
                                *pipeline = known;
                            }
                            plan.pipeline = pipeline.clone();
                            let asked = (*driver, half_of(plan, charge.role));
                            if self.asked.get(&asked) == Some(&*pipeline) {
                                self.asked.remove(&asked);
                            }
                            self.dismiss_warden();
                        }
                    }
                    _ => {}
                }
            }
            Report::Stats(all) => all.values_mut().for_each(|stats| {
                stats.restarts = self.restarts;
                stats.locked = !self.is_weak;
            }),
            Report::Warning(_) => self.is_weak = true,
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
            let Place::Process(mut charge) = place else { continue };
            match charge.is_away {
                // What it keeps waits for the device, too.
                true => {
                    charge.waits.get_or_insert_with(|| Waiting { end: end.into(), link: None });
                    self.drivers.insert(driver, Place::Process(charge));
                }
                false => self.start_again(driver, charge, end),
            }
        }
        if self.is_silent
            && let Some(process) = self.process.as_mut()
        {
            let _ = process.send(Command::Silence);
        }
    }

    /// Another process takes a driver on whose worker ended so.
    fn start_again(&mut self, driver: u32, charge: Box<Charge>, end: &str) {
        let is_seen = !charge.transport.class.is_datagram();
        let added = match self.at_once < RESTARTS_MAX {
            true => self.add(driver, charge),
            false => {
                self.drivers.insert(driver, Place::Process(charge));
                Err(io::Error::other("it is not the first, and none lives"))
            }
        };
        match added {
            Ok(()) => {
                let notice = Notice::Restarted { end: end.into(), is_seen };
                self.reports.push_back(Report::Notice { driver, notice });
            }
            Err(error) => self.fail(driver, &format!("its worker {end}, and none goes on: {error}")),
        }
    }

    /// The device is back for which a driver without a worker waited.
    fn go_on(&mut self, driver: u32, waiting: Waiting) {
        let Some(Place::Process(charge)) = self.drivers.remove(&driver) else { return };
        self.start_again(driver, charge, &waiting.end);
        if let Some(link) = waiting.link {
            self.one(driver, link);
        }
    }

    /// The driver, if it waits for its device without a worker.
    fn waiting(&mut self, driver: u32) -> Option<&mut Waiting> {
        match self.drivers.get_mut(&driver) {
            Some(Place::Process(charge)) => charge.waits.as_mut(),
            _ => None,
        }
    }

    fn fail(&mut self, driver: u32, problem: &str) {
        self.give_up(driver);
        self.reports.push_back(Report::Notice { driver, notice: Notice::Failed(problem.into()) });
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        // Before what is kept of the devices.
        self.process = None;
    }
}

fn half_of(plan: &FlowPlan, role: Role) -> Half {
    use contract::FlowDirection::{ApplicationToDevice, DeviceToApplication};
    match (plan.direction, role) {
        (DeviceToApplication, Role::Device) | (ApplicationToDevice, Role::Application) => Half::Source,
        (DeviceToApplication, Role::Application) | (ApplicationToDevice, Role::Device) => Half::Sink,
    }
}
