//! Workers: threads that run paths on descriptors they were handed.
//!
//! The wall between broker and workers: what crosses it is [`Command`] and [`Report`], which are plain data
//! and open descriptors. A worker opens neither devices nor sockets.

use crate::driver::{Driver, DriverError, FlowPlan, LinkFacts, Notice};
use crate::registry;
use crate::stats::DriverStats;
use crate::trace::FlowTrace;
use buffers::{Ring, RingFull};
use contract::{FlowDirection, Opened, Options, Partner, PartnerError, Role, SealKeys, Time, TransportClass};
use pipeline::Pipeline;
use session::Limits;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::num::NonZeroU32;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread::JoinHandle;
use std::time::Duration;
use sys::event::Event;
use sys::poller::Poller;
use wire::Control;

const COMMANDS_MAX: usize = 1024;
const REPORTS_MAX: usize = 4096;

/// What a driver's partner is made of.
pub enum PartnerOrigin {
    /// Descriptors of a device class.
    Opened(Box<Opened>),
    /// A partner of this program's own (a measuring instrument, a synthetic device).
    Ready(Box<dyn Partner>),
}

/// The transport of a driver, with its checked options.
#[derive(Clone)]
pub struct TransportPlan {
    /// Which.
    pub class: &'static dyn TransportClass,
    /// How.
    pub options: Options,
}

/// What a broker asks of a worker.
pub enum Command {
    /// Build a driver.
    Add {
        /// Its number.
        driver: u32,
        /// Its device or node.
        origin: PartnerOrigin,
        /// Which side this host is.
        role: Role,
        /// Its flows.
        flows: Vec<FlowPlan>,
        /// Its transport.
        transport: TransportPlan,
    },
    /// Build a driver's paths anew on the partner it has.
    Rebuild {
        /// Its number.
        driver: u32,
        /// Its flows.
        flows: Vec<FlowPlan>,
    },
    /// A data connection, introduced and connected.
    Link {
        /// Its driver.
        driver: u32,
        /// The socket.
        socket: OwnedFd,
        /// What seals it, unless it is bare.
        keys: Option<SealKeys>,
    },
    /// The data connections are of no more use.
    LinksLost,
    /// The other host fell silent.
    Silence,
    /// The other host is heard again.
    Heard,
    /// What is known of the link.
    Facts(LinkFacts),
    /// From the other host, for one driver.
    Control {
        /// The driver.
        driver: u32,
        /// The message.
        message: Control,
    },
    /// Give a flow that starts here another pipeline.
    Change {
        /// The driver.
        driver: u32,
        /// Which flow.
        direction: FlowDirection,
        /// The pipeline.
        pipeline: Pipeline,
    },
    /// Build the stages of a flow that ends here for an epoch to come.
    Prepare {
        /// The driver.
        driver: u32,
        /// The flow.
        flow: u32,
        /// The epoch.
        epoch: u32,
        /// The pipeline.
        pipeline: Pipeline,
    },
    /// The other host's device went away.
    Absence {
        /// The driver.
        driver: u32,
    },
    /// What the other host says to this driver's partner is to be said anew, whole.
    Resync {
        /// The driver.
        driver: u32,
    },
    /// This host's device is back.
    Partner {
        /// The driver.
        driver: u32,
        /// What its partner is made of.
        origin: PartnerOrigin,
    },
    /// Say something to a driver's partner, for a visitor of the console.
    Say {
        /// The driver.
        driver: u32,
        /// Who asks.
        visitor: u64,
        /// In words of the partner's class.
        words: String,
    },
    /// Take a driver down.
    Remove {
        /// The driver.
        driver: u32,
    },
    /// Report figures.
    Stats,
    /// Trace a driver's flows, or go on with it, and report what was traced since the last time.
    Trace {
        /// The driver.
        driver: u32,
        /// One message in so many; none is the end of it.
        one_in: Option<NonZeroU32>,
    },
    /// Take everything down and end.
    Stop,
}

/// What a worker tells its broker.
#[derive(Debug)]
pub enum Report {
    /// From one driver.
    Notice {
        /// The driver.
        driver: u32,
        /// What.
        notice: Notice,
    },
    /// What a driver's partner answered to a visitor of the console, or why not.
    Said {
        /// Who asked.
        visitor: u64,
        /// The answer.
        result: Result<String, String>,
    },
    /// Figures of all drivers.
    Stats(BTreeMap<u32, DriverStats>),
    /// What was traced of one driver.
    Trace {
        /// The driver.
        driver: u32,
        /// Its flows.
        flows: Vec<FlowTrace>,
    },
    /// Something came of the other host over a data connection, at this time. Told no more often than pings are sent.
    Heard(Time),
}

/// A broker's handle on a worker; dropping it ends the worker.
pub struct Worker {
    commands: Ring<Command>,
    wake_worker: Event,
    reports: Ring<Report>,
    wake_broker: Event,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Starts a worker. `name` is the thread's.
    pub fn start(name: &str, limits: Limits) -> io::Result<Worker> {
        let (commands, reports) = (Ring::new(COMMANDS_MAX), Ring::new(REPORTS_MAX));
        let (wake_worker, wake_broker) = (Event::new()?, Event::new()?);
        let mut work = Loop {
            commands: commands.clone(),
            wake: wake_worker.clone(),
            reports: reports.clone(),
            wake_broker: wake_broker.clone(),
            poller: Poller::new()?,
            drivers: BTreeMap::new(),
            facts: None,
            limits,
            heard: None,
            heard_told: Time::ZERO,
            backlog: VecDeque::new(),
        };
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || work.run())?;
        Ok(Worker { commands, wake_worker, reports, wake_broker, thread: Some(thread) })
    }

    /// Asks something; `false` if the worker has not taken its last [`COMMANDS_MAX`] commands, which only a
    /// hanging worker does.
    #[must_use]
    pub fn send(&self, command: Command) -> bool {
        match self.commands.push(command) {
            Ok(_) => {
                self.wake_worker.signal();
                true
            }
            Err(RingFull(_)) => false,
        }
    }

    /// The next thing the worker told.
    pub fn poll(&self) -> Option<Report> {
        let (report, was_full) = self.reports.pop()?;
        if was_full {
            self.wake_worker.signal();
        }
        Some(report)
    }

    /// Takes the wake-up back, before [`Worker::poll`].
    pub fn clear(&self) {
        self.wake_broker.clear();
    }

    /// Readable when [`Worker::poll`] has something.
    pub fn wakes(&self) -> BorrowedFd<'_> {
        self.wake_broker.as_fd()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // A full ring empties as long as the worker lives, and one that ended needs no telling.
        while !self.send(Command::Stop) && self.thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
            std::thread::sleep(Duration::from_millis(1));
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Entry {
    driver: Driver,
    role: Role,
    transport: TransportPlan,
}

struct Loop {
    commands: Ring<Command>,
    wake: Event,
    reports: Ring<Report>,
    wake_broker: Event,
    poller: Poller,
    drivers: BTreeMap<u32, Entry>,
    facts: Option<LinkFacts>,
    limits: Limits,
    /// When something last came over a data connection, until that is told, and what was told last.
    heard: Option<Time>,
    heard_told: Time,
    /// Reports that found no room; while there are any, no driver runs.
    backlog: VecDeque<Report>,
}

impl Loop {
    fn run(&mut self) {
        sys::thread::be_punctual();
        let mut notices = Vec::new();
        loop {
            let mut now = Time(sys::clock::boot_ns());
            while let Some((command, _)) = self.commands.pop() {
                if matches!(command, Command::Stop) {
                    return self.stop();
                }
                self.handle(command, now);
            }
            self.report_backlog();
            let mut again = false;
            if self.backlog.is_empty() {
                for (number, entry) in &mut self.drivers {
                    again |= entry.driver.run(now, &mut self.poller, &mut notices);
                    if entry.driver.has_heard() {
                        self.heard = Some(now);
                    }
                    for notice in notices.drain(..) {
                        self.backlog.push_back(Report::Notice { driver: *number, notice });
                    }
                    now = now.max(Time(sys::clock::boot_ns()));
                }
                self.tell_heard();
                self.report_backlog();
            }
            if !again {
                self.sleep();
            }
        }
    }

    /// What comes over a data connection is a sign of life, as what comes over the control channel is.
    fn tell_heard(&mut self) {
        let due = self.heard_told.after(self.limits.ping_interval);
        if let Some(at) = self.heard.take_if(|at| *at >= due) {
            self.heard_told = at;
            self.backlog.push_back(Report::Heard(at));
        }
    }

    fn sleep(&mut self) {
        self.poller.want(self.wake.as_fd(), true, false);
        let mut timeout = None;
        if self.backlog.is_empty() {
            for entry in self.drivers.values() {
                let wake = entry.driver.want(&mut self.poller);
                let now = Time(sys::clock::boot_ns());
                let wait = if wake.now { Some(Duration::ZERO) } else { wake.at.map(|at| at.since(now)) };
                timeout = match (timeout, wait) {
                    (Some(a), Some(b)) => Some(std::cmp::min(a, b)),
                    (a, b) => a.or(b),
                };
            }
        }
        // Waiting fails only for lack of memory; a pause is then all there is to do.
        if self.poller.wait(timeout).is_err() {
            std::thread::sleep(Duration::from_millis(1));
        }
        if self.poller.is_ready(self.wake.as_fd()) {
            self.wake.clear();
        }
    }

    fn report_backlog(&mut self) {
        let mut told = false;
        while let Some(report) = self.backlog.pop_front() {
            match self.reports.push(report) {
                Ok(_) => told = true,
                Err(RingFull(report)) => {
                    self.backlog.push_front(report);
                    break;
                }
            }
        }
        if told {
            self.wake_broker.signal();
        }
    }

    fn handle(&mut self, command: Command, now: Time) {
        match command {
            Command::Add { driver, origin, role, flows, transport } => {
                match build(origin, role, &flows, &transport, &self.limits) {
                    Ok(mut built) => {
                        if let Some(facts) = self.facts {
                            built.handle_facts(facts);
                        }
                        self.drivers.insert(driver, Entry { driver: built, role, transport });
                    }
                    Err(error) => self.fail(driver, error),
                }
            }
            Command::Rebuild { driver, flows } => {
                let limits = self.limits.clone();
                let result = self.drivers.get_mut(&driver).map(|entry| {
                    let lossy = entry.transport.class.facts().may_lose;
                    entry.driver.rebuild(entry.role, &flows, lossy, &limits)
                });
                if let Some(Err(error)) = result {
                    self.fail(driver, error);
                }
            }
            Command::Link { driver, socket, keys } => self.link(driver, socket, keys, now),
            Command::LinksLost => {
                self.drivers.values_mut().for_each(|entry| entry.driver.handle_link_lost(&mut self.poller));
            }
            Command::Silence => self.each(|driver, notices| driver.handle_silence(now, notices)),
            Command::Heard => self.each(|driver, notices| driver.handle_heard(now, notices)),
            Command::Facts(facts) => {
                self.facts = Some(facts);
                self.drivers.values_mut().for_each(|entry| entry.driver.handle_facts(facts));
            }
            Command::Control { driver, message } => {
                self.one(driver, |driver, notices| driver.handle_control(message, now, notices));
            }
            Command::Change { driver, direction, pipeline } => {
                self.one(driver, |driver, notices| driver.change(direction, pipeline, notices));
            }
            Command::Prepare { driver, flow, epoch, pipeline } => {
                self.one(driver, |driver, notices| driver.prepare(flow, epoch, pipeline, notices));
            }
            Command::Absence { driver } => {
                self.one(driver, |driver, notices| driver.handle_absence(now, notices));
            }
            Command::Resync { driver } => {
                self.one(driver, |driver, notices| driver.handle_resync(notices));
            }
            Command::Partner { driver, origin } => {
                let mut result = Ok(());
                self.one(driver, |driver, notices| {
                    result = make_partner(origin)
                        .map_err(DriverError::Partner)
                        .and_then(|partner| driver.handle_partner(partner, now, notices));
                });
                if let Err(error) = result {
                    self.fail(driver, error);
                }
            }
            Command::Say { driver, visitor, words } => {
                let none = || Err("the device is gone".into());
                let result =
                    self.drivers.get_mut(&driver).map_or_else(none, |entry| entry.driver.say(&words));
                self.backlog.push_back(Report::Said { visitor, result });
            }
            Command::Remove { driver } => {
                if let Some(entry) = self.drivers.remove(&driver) {
                    entry.driver.close(&mut self.poller);
                }
            }
            Command::Stats => {
                let stats = self.drivers.iter_mut().map(|(number, entry)| (*number, entry.driver.stats()));
                self.backlog.push_back(Report::Stats(stats.collect()));
            }
            Command::Trace { driver, one_in } => {
                if let Some(entry) = self.drivers.get_mut(&driver) {
                    let flows = entry.driver.trace(one_in, now);
                    self.backlog.push_back(Report::Trace { driver, flows });
                }
            }
            Command::Stop => {}
        }
    }

    fn link(&mut self, driver: u32, socket: OwnedFd, keys: Option<SealKeys>, now: Time) {
        let Some(entry) = self.drivers.get_mut(&driver) else { return };
        match entry.transport.class.partner(socket, &entry.transport.options, keys.as_ref()) {
            Ok(transport) => {
                entry.driver.handle_link_lost(&mut self.poller);
                self.one(driver, |driver, notices| driver.handle_link(transport, now, notices));
            }
            Err(error) => {
                let notice = Notice::LinkFailed(error.to_string());
                self.backlog.push_back(Report::Notice { driver, notice });
            }
        }
    }

    fn one(&mut self, number: u32, act: impl FnOnce(&mut Driver, &mut Vec<Notice>)) {
        let mut notices = Vec::new();
        if let Some(entry) = self.drivers.get_mut(&number) {
            act(&mut entry.driver, &mut notices);
        }
        self.backlog.extend(notices.into_iter().map(|notice| Report::Notice { driver: number, notice }));
    }

    fn each(&mut self, mut act: impl FnMut(&mut Driver, &mut Vec<Notice>)) {
        let numbers: Vec<_> = self.drivers.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.one(number, &mut act));
    }

    fn fail(&mut self, driver: u32, error: DriverError) {
        if let Some(entry) = self.drivers.remove(&driver) {
            entry.driver.close(&mut self.poller);
        }
        self.backlog.push_back(Report::Notice { driver, notice: Notice::Failed(error.to_string()) });
    }

    fn stop(&mut self) {
        for entry in std::mem::take(&mut self.drivers).into_values() {
            entry.driver.close(&mut self.poller);
        }
    }
}

fn build(
    origin: PartnerOrigin,
    role: Role,
    flows: &[FlowPlan],
    transport: &TransportPlan,
    limits: &Limits,
) -> Result<Driver, DriverError> {
    let partner = make_partner(origin)?;
    Driver::new(partner, role, flows, transport.class.facts().may_lose, limits)
}

pub(crate) fn make_partner(origin: PartnerOrigin) -> Result<Box<dyn Partner>, PartnerError> {
    match origin {
        PartnerOrigin::Opened(opened) => registry::partner(*opened),
        PartnerOrigin::Ready(partner) => Ok(partner),
    }
}
