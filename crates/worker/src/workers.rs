//! The workers of one session: a process and a thread, each started on first use.
//!
//! If the process crashes, it is restarted and its drivers resume. The broker holds the descriptors of the devices and
//! the recovery memory too. It gives up after several immediate crashes in a row.

use super::handover::{Handover, TakenDriver};
use super::offers::{Offers, half_of};
use super::process::{Process, STOP};
use super::{Command, DriverPlan, Report, Worker};
use contract::FlowDirection;
use flow::recovery;
use flow::types::{LinkFacts, Notice, driver_of};
use hub::outlet;
use hub::{OpenPort, PartnerOrigin};
use modules::connector::Connector;
use modules::process::{AllowedProgram, Spawner};
use modules::{isolation, registry};
use pipeline::Pipeline;
use sandbox::is_sandbox_required;
use session::Limits;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};
use sys::poller::Poller;

/// A process that crashes within this time has crashed immediately.
const IMMEDIATE: Duration = Duration::from_millis(100);
/// Time that the broker waits for a worker to stop before a thread takes over. A worker without pending output exits
/// in this time.
const STOP_WAIT: Duration = Duration::from_millis(50);
/// Time that the broker waits for a worker to leave its devices to the next program.
const LEAVE_WAIT: Duration = Duration::from_secs(2);
/// Consecutive immediate crashes before the broker gives up.
const RESTARTS_MAX: u32 = 5;
/// The most connections of a device that the next worker gets: descriptors of one message (`SCM_MAX_FD`).
const CONNECTIONS_MAX: usize = 200;

/// Error for a driver that needs a thread while only sandboxed workers are allowed.
const UNLOCKED: &str = "its flow can run in a thread of this process alone, and a sandbox is required \
                        (--require-sandbox)";

/// Location of a driver.
enum Place {
    Thread,
    Process(Box<SupervisedDriver>),
}

/// The broker's copy of a driver in a process, from which a new process resumes it.
struct SupervisedDriver {
    /// Device, or way to one; `None` while it is gone.
    device: Option<PartnerOrigin>,
    /// Targets of the side ports.
    ports: Vec<OpenPort>,
    memory: OwnedFd,
    plan: DriverPlan,
    /// Requests for stamps that the worker has not answered.
    traces_due: u32,
    /// The device is gone and may return.
    is_device_gone: bool,
    /// The worker crashed while the device was gone. A new one starts when the device returns.
    waiting: Option<Waiting>,
}

/// A driver without a worker.
struct Waiting {
    /// How its worker exited.
    end: String,
    /// The latest connection, for the new worker.
    link: Option<Command>,
}

impl Drop for SupervisedDriver {
    /// Lets the device's class clean up.
    fn drop(&mut self) {
        if let Some(PartnerOrigin::Opened(device)) = &self.device {
            registry::release(device);
        }
    }
}

impl SupervisedDriver {
    fn can_hand_over(&self) -> bool {
        let can = |origin: &PartnerOrigin| match origin {
            PartnerOrigin::Opened(opened) => {
                registry::device_class(&opened.spec.class).is_some_and(|class| class.can_hand_over(opened))
            }
            PartnerOrigin::Hub(_) | PartnerOrigin::Ready(_) => false,
        };
        self.waiting.is_none()
            && self.device.as_ref().is_some_and(can)
            && self.ports.iter().all(|port| can(&port.origin))
    }

    /// Replaces the descriptors with which the next worker could not continue. If that fails, it finds out by itself, and
    /// the device counts as gone.
    fn renew(&mut self) {
        let origins = self.device.iter_mut().chain(self.ports.iter_mut().map(|port| &mut port.origin));
        for origin in origins {
            if let PartnerOrigin::Opened(opened) = origin
                && let Some(class) = registry::device_class(&opened.spec.class)
            {
                let _ = class.renew(opened);
            }
        }
    }

    /// Returns the commands that add the driver to a process.
    fn commands(&self, driver: u32) -> io::Result<Vec<Command>> {
        let missing = |part: &str| io::Error::new(io::ErrorKind::NotFound, format!("its {part} is missing"));
        let origin =
            self.device.as_ref().and_then(PartnerOrigin::try_clone).ok_or_else(|| missing("device"))?;
        let ports: Option<_> = self.ports.iter().map(OpenPort::try_clone).collect();
        let ports = ports.ok_or_else(|| missing("side port"))?;
        Ok(vec![
            Command::Memory { driver, memory: self.memory.try_clone()? },
            Command::Ports { driver, ports },
            Command::Add { driver, origin, plan: self.plan.clone() },
        ])
    }
}

/// Waits for workers that exit slowly.
pub type ExitWaiter = JoinHandle<()>;

/// The workers of one session. Dropping it ends them.
pub struct Workers {
    name: String,
    limits: Limits,
    thread: Option<Worker>,
    process: Option<Process>,
    /// Serves the process: starts the processes of stages, and passes descriptors.
    spawner: Option<Spawner>,
    /// The pipelines that the drivers have or may soon have. A refused one stays until the next change completes.
    offers: Offers,
    /// An exited process whose descriptors are still registered with the poller.
    exited: Option<Process>,
    drivers: BTreeMap<u32, Place>,
    /// Makes the further connections that devices want; `None` before the first one.
    connector: Option<Connector>,
    /// Recovery memory of drivers that do not run: drivers that failed, and drivers of earlier sessions whose devices
    /// the next drivers continue to use.
    memories: BTreeMap<u32, OwnedFd>,
    /// Measurements of the link, for workers that start later.
    facts: Option<LinkFacts>,
    /// Limit on processor time, nanoseconds per second; 0 disables it.
    processor: u64,
    is_silent: bool,
    /// The thread and the process hold something ([`Report::Holds`]); each does so from its start.
    thread_holds: bool,
    process_holds: bool,
    /// Start time of the process, number of restarts, and consecutive immediate crashes.
    started: Instant,
    restarts: u64,
    immediate_crashes: u32,
    /// The kernel could not apply the whole sandbox.
    is_sandbox_partial: bool,
    reports: VecDeque<Report>,
}

impl Workers {
    /// Creates the set without workers. `name` is the name of their threads and processes.
    pub fn new(name: String, limits: Limits) -> Workers {
        Workers {
            name,
            limits,
            thread: None,
            process: None,
            spawner: None,
            offers: Offers::default(),
            exited: None,
            drivers: BTreeMap::new(),
            connector: None,
            memories: BTreeMap::new(),
            facts: None,
            processor: 0,
            is_silent: false,
            thread_holds: false,
            process_holds: false,
            started: Instant::now(),
            restarts: 0,
            immediate_crashes: 0,
            is_sandbox_partial: false,
            reports: VecDeque::new(),
        }
    }

    /// Places a driver in a process where one can run it, otherwise in a thread.
    fn place(&mut self, driver: u32, origin: PartnerOrigin, plan: DriverPlan) {
        self.offers.begin(driver, &plan.flows);
        let left = self.memories.remove(&driver);
        let is_foreign = Process::is_possible() && !matches!(origin, PartnerOrigin::Ready(_));
        let outlets = plan.flows.first().map_or(&[][..], |plan| plan.pipeline.outlets());
        let ports = is_foreign.then(|| outlet::export(outlets)).flatten();
        let added = match ports {
            Some(ports) => {
                let supervised = self.memory_after(left).map(|memory| {
                    let (device, traces_due, is_device_gone, waiting) = (Some(origin), 0, false, None);
                    Box::new(SupervisedDriver {
                        device,
                        ports,
                        memory,
                        plan,
                        traces_due,
                        is_device_gone,
                        waiting,
                    })
                });
                supervised.and_then(|supervised| self.add(driver, supervised))
            }
            None if is_sandbox_required() => Err(io::Error::other(UNLOCKED)),
            None => self.start_thread().map(|()| {
                self.drivers.insert(driver, Place::Thread);
                self.send_one(driver, Command::Add { driver, origin, plan });
            }),
        };
        if let Err(error) = added {
            self.fail(driver, &format!("starting a worker: {error}"));
        }
    }

    /// Sends a command to the worker of its driver, or to all workers. A failure ends the driver ([`Notice::Failed`]).
    pub fn send(&mut self, command: Command) {
        match command {
            Command::LinksLost => self.send_all(|| Command::LinksLost),
            Command::Silence => {
                self.is_silent = true;
                self.send_all(|| Command::Silence);
            }
            Command::SilenceEnded => {
                self.is_silent = false;
                self.send_all(|| Command::SilenceEnded);
            }
            Command::Stats => self.send_all(|| Command::Stats),
            Command::Stop => self.send_all(|| Command::Stop),
            // [`Workers::hand_over`] sends it.
            Command::Leave => {}
            Command::Facts(facts) => {
                self.facts = Some(facts);
                self.send_all(|| Command::Facts(facts));
            }
            Command::Processor { ns_per_second } => {
                self.processor = ns_per_second;
                self.send_all(|| Command::Processor { ns_per_second });
            }
            Command::Add { driver, origin, plan } => self.place(driver, origin, plan),
            Command::Rebuild { driver, flows } => {
                self.offers.begin(driver, &flows);
                if let Some(Place::Process(supervised)) = self.drivers.get_mut(&driver) {
                    supervised.plan.flows = flows.clone();
                    if let Err(error) = recovery::expect_rebuild(&supervised.memory, &self.limits) {
                        let notice = Notice::Incident(format!("the recovery memory: {error}"));
                        self.reports.push_back(Report::Notice { driver, notice });
                    }
                    self.allow(driver);
                }
                self.send_one(driver, Command::Rebuild { driver, flows });
            }
            Command::Partner { driver, origin } => {
                if let Some(Place::Process(supervised)) = self.drivers.get_mut(&driver) {
                    (supervised.device, supervised.is_device_gone) = (origin.try_clone(), false);
                    if let Some(waiting) = supervised.waiting.take() {
                        return self.resume(driver, waiting);
                    }
                }
                self.send_one(driver, Command::Partner { driver, origin });
            }
            Command::Change { driver, direction, .. } if self.waiting(driver).is_some() => {
                let result = Err("its device is gone, and its worker has exited".into());
                self.reports
                    .push_back(Report::Notice { driver, notice: Notice::Changed { direction, result } });
            }
            Command::Change { driver, direction, pipeline } => {
                self.request_change(driver, direction, &pipeline);
                self.send_one(driver, Command::Change { driver, direction, pipeline });
            }
            Command::Prepare { driver, flow, epoch, pipeline } => {
                if let Some(direction) = self.offers.direction(driver, flow) {
                    self.request_change(driver, direction, &pipeline);
                }
                self.send_one(driver, Command::Prepare { driver, flow, epoch, pipeline });
            }
            // These commands are derived from the driver and never sent alone.
            Command::Memory { .. } | Command::Ports { .. } => {}
            Command::Link { driver, transport, socket, keys } => {
                if let (Some(Place::Process(supervised)), Some(transport)) =
                    (self.drivers.get_mut(&driver), &transport)
                {
                    supervised.plan.transport = transport.clone();
                }
                let link = Command::Link { driver, transport, socket, keys };
                match self.waiting(driver) {
                    Some(waiting) => waiting.link = Some(link),
                    None => self.send_one(driver, link),
                }
            }
            Command::Remove { driver } => {
                self.send_one(driver, Command::Remove { driver });
                self.forget_driver(driver);
            }
            Command::Flow { flow, .. } => self.send_one(driver_of(flow), command),
            Command::Move { driver, .. }
            | Command::Unlink { driver }
            | Command::AddWay { driver, .. }
            | Command::Connected { driver, .. }
            | Command::Absence { driver }
            | Command::AbsenceEnded { driver }
            | Command::Resync { driver }
            | Command::Say { driver, .. } => self.send_one(driver, command),
            Command::Trace { driver, .. } => {
                if let Some(Place::Process(supervised)) = self.drivers.get_mut(&driver) {
                    supervised.traces_due += 1;
                }
                self.send_one(driver, command);
            }
        }
    }

    /// Returns whether a worker holds something that the loss of the link would harm.
    pub fn is_holding(&self) -> bool {
        self.thread_holds || self.process_holds
    }

    /// Returns the processor time of the process, nanoseconds, measured from outside.
    pub fn cpu_ns(&self) -> u64 {
        self.process.as_ref().and_then(Process::cpu_ns).unwrap_or(0)
    }

    /// Ends the workers. A thread waits for those that exit slowly, so that the broker can serve others.
    pub fn end(mut self) -> Option<ExitWaiter> {
        let has_ended = self.process.as_mut().is_none_or(|process| process.stop(STOP_WAIT));
        // If no thread can be started, this waits here.
        (!has_ended).then(|| Builder::new().name("worker-exit".into()).spawn(move || drop(self)).ok())?
    }

    /// Kills the process, because it ignores commands.
    pub fn kill(&mut self) {
        if let Some(process) = self.process.as_mut() {
            process.kill();
        }
    }

    /// Revokes the devices of these drivers, also for processes that got their descriptors from the worker.
    pub fn revoke(&self, drivers: impl IntoIterator<Item = u32>) {
        for driver in drivers {
            if let Some(Place::Process(supervised)) = self.drivers.get(&driver)
                && let Some(PartnerOrigin::Opened(device)) = &supervised.device
                && let Some(class) = registry::device_class(&device.spec.class)
            {
                class.revoke(device);
            }
        }
    }

    /// Starts the process early: that takes as long as a connection attempt.
    pub fn prepare(&mut self) {
        if Process::is_possible() {
            // On an error, the first driver reports it.
            let _ = self.start_process();
        }
    }

    /// Takes a driver's recovery memory, for a driver of another session that continues to use its device.
    pub fn take_memory(&mut self, driver: u32) -> Option<OwnedFd> {
        match self.drivers.get(&driver) {
            Some(Place::Process(supervised)) => supervised.memory.try_clone().ok(),
            Some(Place::Thread) => None,
            None => self.memories.remove(&driver),
        }
    }

    /// Returns whether another program can take all drivers over: each runs in a process and consists of descriptors.
    pub fn can_hand_over(&self) -> bool {
        self.drivers.values().all(|place| match place {
            Place::Process(supervised) => supervised.can_hand_over(),
            Place::Thread => false,
        })
    }

    /// Ends the process and leaves the devices as they are. Returns its last reports, which the session handles before
    /// [`Workers::hand_over`].
    pub fn leave(&mut self) -> Vec<Report> {
        self.exit(Command::Leave, LEAVE_WAIT)
    }

    /// Ends the process, and removes all descriptors from the poller. Returns the last reports.
    pub fn stop(&mut self, poller: &mut Poller) -> Vec<Report> {
        let reports = self.exit(Command::Stop, STOP);
        self.forget(poller);
        reports
    }

    fn exit(&mut self, command: Command, patience: Duration) -> Vec<Report> {
        let Some(mut process) = self.process.take() else { return Vec::new() };
        let mut reports = process.exit(command, patience);
        self.exited = Some(process);
        reports.retain_mut(|report| self.track_report(report));
        reports
    }

    /// Returns the drivers for another program, by number, after [`Workers::leave`].
    pub fn hand_over(mut self) -> io::Result<Vec<(u32, Handover)>> {
        let mut all = Vec::new();
        for (driver, place) in std::mem::take(&mut self.drivers) {
            let Place::Process(mut supervised) = place else { continue };
            self.offers.complete(driver, &mut supervised.plan.flows);
            all.push((driver, Handover::of(supervised.commands(driver)?)?));
            // It stays open, in the hands of the next program.
            supervised.device = None;
        }
        Ok(all)
    }

    /// Continues a driver that another program handed over.
    pub fn take_over(&mut self, taken: TakenDriver) -> io::Result<()> {
        let TakenDriver { driver, memory, ports, opened, plan } = taken;
        self.offers.begin(driver, &plan.flows);
        for plan in &plan.flows {
            plan.requested.iter().for_each(|pipeline| self.offers.request(driver, plan.direction, pipeline));
        }
        let device = Some(PartnerOrigin::Opened(Box::new(opened)));
        let (traces_due, is_device_gone, waiting) = (0, false, None);
        let mut supervised =
            SupervisedDriver { device, ports, memory, plan, traces_due, is_device_gone, waiting };
        supervised.renew();
        self.add(driver, Box::new(supervised))
    }

    fn forget_driver(&mut self, driver: u32) -> Option<Place> {
        self.offers.forget(driver);
        self.connector.iter_mut().for_each(|connector| connector.forget(driver));
        self.drivers.remove(&driver)
    }

    /// Removes a driver that failed. Its device state is kept.
    fn abandon(&mut self, driver: u32) {
        if let Some(Place::Process(supervised)) = self.forget_driver(driver)
            && recovery::has_device_state(&supervised.memory, &self.limits)
        {
            self.inherit(driver, supervised.memory.try_clone().ok());
        }
    }

    /// Passes recovery memory to the driver that is added next under this number.
    pub fn inherit(&mut self, driver: u32, memory: Option<OwnedFd>) {
        self.memories.extend(memory.map(|memory| (driver, memory)));
    }

    fn memory_after(&self, left: Option<OwnedFd>) -> io::Result<OwnedFd> {
        let memory = recovery::memory(&self.limits)?;
        if let Some(left) = left {
            recovery::carry_over(left, memory.try_clone()?, &self.limits)?;
        }
        Ok(memory)
    }

    /// Receives reports, before [`Workers::poll`].
    pub fn clear(&mut self, poller: &mut Poller) {
        if let Some(process) = self.exited.take() {
            process.forget(poller);
        }
        if let Some(thread) = &self.thread {
            thread.clear();
        }
        self.pass_connections();
        if let Some(process) = self.process.as_mut() {
            process.exchange();
        }
    }

    /// Lets a device have further connections.
    fn connect_device(&mut self, driver: u32, count: u32) {
        let Some(Place::Process(supervised)) = self.drivers.get_mut(&driver) else { return };
        let Some(PartnerOrigin::Opened(opened)) = &supervised.device else { return };
        if self.connector.is_none() {
            self.connector = Connector::new().ok();
        }
        match self.connector.as_mut() {
            Some(connector) => connector.request(driver, count, (&opened.spec, &opened.description)),
            None => {
                let result = || Err("the broker has no descriptor left".into());
                (0..count)
                    .for_each(|_| self.send_one(driver, Command::Connected { driver, result: result() }));
            }
        }
    }

    /// Passes connections to their devices. The broker keeps a copy of each, so that the next worker knows of those whose use it
    /// has to end.
    fn pass_connections(&mut self) {
        while let Some((driver, result)) = self.connector.as_mut().and_then(Connector::take) {
            let Some(Place::Process(supervised)) = self.drivers.get_mut(&driver) else { continue };
            let Some(PartnerOrigin::Opened(opened)) = supervised.device.as_mut() else { continue };
            opened.descriptors.retain(|descriptor| !sys::descriptor::is_hung_up(descriptor));
            let result = result.and_then(|descriptor| {
                let copy = descriptor.try_clone().map_err(|error| error.to_string())?;
                if opened.descriptors.len() < CONNECTIONS_MAX {
                    opened.descriptors.push(copy);
                }
                Ok(descriptor)
            });
            self.send_one(driver, Command::Connected { driver, result });
        }
    }

    /// Returns the next report.
    pub fn poll(&mut self) -> Option<Report> {
        if let Some(report) = self.reports.pop_front() {
            return Some(report);
        }
        if let Some(mut report) = self.thread.as_ref().and_then(Worker::poll) {
            match &mut report {
                Report::Notice { driver, notice } => self.check_change(*driver, notice),
                Report::Holds(holds) => self.thread_holds = *holds,
                _ => {}
            }
            return Some(report);
        }
        let next = loop {
            match self.process.as_mut()?.poll() {
                Ok(Some(mut report)) => {
                    if self.track_report(&mut report) {
                        return Some(report);
                    }
                }
                other => break other,
            }
        };
        let process = self.process.as_mut()?;
        match next {
            Ok(_) => {
                let end = process.end()?;
                self.on_worker_exit(&end);
                self.reports.pop_front()
            }
            Err(problem) => {
                process.kill();
                self.on_worker_exit(&format!("was killed after an invalid report: {problem}"));
                self.reports.pop_front()
            }
        }
    }

    /// Registers with the poller for reports.
    pub fn register(&self, poller: &mut Poller) {
        if let Some(thread) = &self.thread {
            poller.register(thread.wakes(), true, false);
        }
        if let Some(process) = &self.process {
            process.register(poller);
        }
        if let Some(connector) = &self.connector {
            poller.register(connector.wakes(), true, false);
        }
    }

    /// Returns whether the last wait found something to do here.
    pub fn is_ready(&self, poller: &Poller) -> bool {
        self.thread.as_ref().is_some_and(|thread| poller.is_ready(thread.wakes()))
            || self.process.as_ref().is_some_and(|process| process.is_ready(poller))
            || self.connector.as_ref().is_some_and(|connector| poller.is_ready(connector.wakes()))
            || self.exited.is_some()
            || !self.reports.is_empty()
    }

    /// Removes the descriptors from the poller, before a drop.
    pub fn forget(&self, poller: &mut Poller) {
        if let Some(thread) = &self.thread {
            poller.forget(thread.wakes());
        }
        if let Some(connector) = &self.connector {
            poller.forget(connector.wakes());
        }
        for process in self.process.iter().chain(&self.exited) {
            process.forget(poller);
        }
    }

    fn start_thread(&mut self) -> io::Result<()> {
        if self.thread.is_none() {
            self.thread_holds = true;
            let thread = self.thread.insert(Worker::start(&self.name, self.limits.clone())?);
            let _ = self.facts.is_none_or(|facts| thread.send(Command::Facts(facts)));
            let _ = thread.send(Command::Processor { ns_per_second: self.processor });
        }
        Ok(())
    }

    fn start_process(&mut self) -> io::Result<()> {
        if self.process.is_none() {
            let spawner = match &self.spawner {
                Some(spawner) => spawner,
                None => self.spawner.insert(Spawner::begin()?),
            };
            let process = self.process.insert(Process::start(&self.name, &self.limits, spawner.socket()?)?);
            self.started = Instant::now();
            self.process_holds = true;
            let _ = self.facts.is_none_or(|facts| process.send(Command::Facts(facts)));
            let _ = process.send(Command::Processor { ns_per_second: self.processor });
        }
        Ok(())
    }

    /// Returns the processes that a driver's stages may request from the spawner.
    fn programs(&self, driver: u32) -> Vec<AllowedProgram> {
        let Some(Place::Process(supervised)) = self.drivers.get(&driver) else { return Vec::new() };
        let of_flow =
            |(direction, pipeline)| isolation::programs(pipeline, half_of(direction, supervised.plan.role));
        self.offers.of(driver).flat_map(of_flow).collect()
    }

    /// Allows the processes that a driver's stages may request.
    fn allow(&mut self, driver: u32) {
        let programs = self.programs(driver);
        if let Some(spawner) = &self.spawner {
            spawner.allow(programs);
        }
    }

    /// Records a requested pipeline change of a driver.
    fn request_change(&mut self, driver: u32, direction: FlowDirection, pipeline: &Pipeline) {
        self.offers.request(driver, direction, pipeline);
        self.allow(driver);
    }

    /// Returns the current pipeline of a driver's flow.
    pub fn pipeline(&self, driver: u32, direction: FlowDirection) -> Option<&Pipeline> {
        self.offers.current(driver, direction)
    }

    /// Adds a driver to the process.
    fn add(&mut self, driver: u32, mut supervised: Box<SupervisedDriver>) -> io::Result<()> {
        self.offers.complete(driver, &mut supervised.plan.flows);
        supervised.traces_due = 0;
        let commands = supervised.commands(driver);
        // Keep the driver even if it does not start: it may have device state.
        self.drivers.insert(driver, Place::Process(supervised));
        let commands = commands?;
        self.start_process()?;
        self.allow(driver);
        commands.into_iter().for_each(|command| self.send_one(driver, command));
        Ok(())
    }

    fn send_all(&mut self, command: impl Fn() -> Command) {
        // A worker that reads no commands is detected by its silence to the peer, or by its exit.
        if let Some(thread) = &self.thread {
            let _ = thread.send(command());
        }
        if let Some(process) = self.process.as_mut() {
            let _ = process.send(command());
        }
    }

    fn send_one(&mut self, driver: u32, command: Command) {
        let _ = match (self.drivers.get(&driver), &self.thread, self.process.as_mut()) {
            (Some(Place::Thread), Some(thread), _) => thread.send(command),
            (Some(Place::Process(_)), _, Some(process)) => process.send(command),
            _ => false,
        };
    }

    /// Updates the supervised drivers after a report of the process. Returns whether the report concerns the session.
    fn track_report(&mut self, report: &mut Report) -> bool {
        match report {
            Report::Notice { driver, notice: Notice::Failed(_) } => self.abandon(*driver),
            Report::Notice { driver, notice: Notice::ConnectionsWanted(count) } => {
                self.connect_device(*driver, *count);
                return false;
            }
            Report::Notice { driver, notice } => {
                let Some(Place::Process(supervised)) = self.drivers.get_mut(driver) else { return true };
                match notice {
                    // While its descriptor is open, a device cannot return under its name.
                    Notice::PartnerGone(_) => (supervised.device, supervised.is_device_gone) = (None, true),
                    // While its descriptor is open, a reader of the output would not see the end.
                    Notice::FlowEnded(_) if supervised.plan.flows.len() == 1 => supervised.device = None,
                    Notice::Changed { .. } => self.check_change(*driver, notice),
                    _ => {}
                }
            }
            // A report about a driver that was removed meanwhile is valid and ignored.
            Report::Stats { driver, stats } => {
                stats.restarts = self.restarts;
                stats.locked = !self.is_sandbox_partial;
                return matches!(self.drivers.get(driver), Some(Place::Process(_)));
            }
            // The broker collects stamps until a console client takes them, so each request gets one report.
            Report::Trace { driver, flows } => match self.drivers.get_mut(driver) {
                Some(Place::Process(supervised)) if supervised.traces_due > 0 => supervised.traces_due -= 1,
                _ => flows.clear(),
            },
            Report::Warning(_) => self.is_sandbox_partial = true,
            Report::Holds(holds) => self.process_holds = *holds,
            _ => {}
        }
        true
    }

    /// Checks a reported pipeline change: the worker may name a pipeline that was offered to it, and no other one.
    fn check_change(&mut self, driver: u32, notice: &mut Notice) {
        let Notice::Changed { direction, result: Ok(text) } = notice else { return };
        match self.offers.take(driver, *direction, text) {
            Some(_) => {}
            None => {
                let incident = "its worker reports a change to a pipeline that was not requested: ignored";
                *notice = Notice::Incident(incident.into());
            }
        }
    }

    /// Handles the exit of the process: moves its drivers to a new one.
    fn on_worker_exit(&mut self, end: &str) {
        self.exited = self.process.take();
        self.process_holds = false;
        let is_match = |_: &u32, place: &mut Place| matches!(place, Place::Process(_));
        let supervised: Vec<_> = self.drivers.extract_if(.., is_match).collect();
        self.immediate_crashes =
            if self.started.elapsed() < IMMEDIATE { self.immediate_crashes + 1 } else { 0 };
        self.restarts += 1;
        for (driver, place) in supervised {
            let Place::Process(mut supervised) = place else { continue };
            match supervised.is_device_gone {
                // The recovery memory waits for the device too.
                true => {
                    supervised.waiting.get_or_insert_with(|| Waiting { end: end.into(), link: None });
                    self.drivers.insert(driver, Place::Process(supervised));
                }
                false => self.restart(driver, supervised, end),
            }
        }
        if self.is_silent
            && let Some(process) = self.process.as_mut()
        {
            let _ = process.send(Command::Silence);
        }
    }

    /// Adds a driver to a new process after its worker exited with `end`.
    fn restart(&mut self, driver: u32, mut supervised: Box<SupervisedDriver>, end: &str) {
        supervised.renew();
        let added = match self.immediate_crashes < RESTARTS_MAX {
            true => self.add(driver, supervised),
            false => {
                self.drivers.insert(driver, Place::Process(supervised));
                Err(io::Error::other("too many immediate crashes"))
            }
        };
        match added {
            Ok(()) => {
                let notice = Notice::Restarted { end: end.into() };
                self.reports.push_back(Report::Notice { driver, notice });
            }
            Err(error) => self.fail(driver, &format!("its worker {end}, and no new one resumes: {error}")),
        }
    }

    /// Resumes a driver after its device returned.
    fn resume(&mut self, driver: u32, waiting: Waiting) {
        let Some(Place::Process(supervised)) = self.drivers.remove(&driver) else { return };
        self.restart(driver, supervised, &waiting.end);
        if let Some(link) = waiting.link {
            self.send_one(driver, link);
        }
        // The new worker begins with the device.
        self.reports.push_back(Report::Notice { driver, notice: Notice::PartnerReturned });
    }

    /// Returns the driver, if it waits for its device without a worker.
    fn waiting(&mut self, driver: u32) -> Option<&mut Waiting> {
        match self.drivers.get_mut(&driver) {
            Some(Place::Process(supervised)) => supervised.waiting.as_mut(),
            _ => None,
        }
    }

    fn fail(&mut self, driver: u32, problem: &str) {
        self.abandon(driver);
        self.reports.push_back(Report::Notice { driver, notice: Notice::Failed(problem.into()) });
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        // End the process before the devices are released.
        self.process = None;
    }
}

#[cfg(test)]
mod tests;
