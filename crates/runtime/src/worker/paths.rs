//! The loop of a worker: it does what its broker asks, and runs the paths of many drivers. It is the same in a thread
//! and in a process; what differs is the [`Desk`] at which it is asked.

use super::{Command, PartnerOrigin, Report, TransportPlan, make_partner};
use crate::driver::{Driver, DriverError, FlowPlan, LinkFacts, Notice};
use crate::fair::{Processor, Rate};
use crate::junction::outlet;
use crate::stats::DriverStats;
use crate::{isolation, kept};
use contract::{End, PartnerError, Role, SealKeys, Site, Time};
use pipeline::{NamedOutlet, Pipeline};
use session::Limits;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::time::Duration;
use sys::poller::{Party, Poller};
use wire::Control;

/// Where a worker meets its broker.
pub(super) trait Desk {
    /// The next command. A broker that is gone says [`Command::Stop`].
    fn take(&mut self) -> Option<Command>;

    /// Leaves a report; one for which there is no room comes back.
    fn put(&mut self, report: Report) -> Result<(), Report>;

    /// There are reports since the last time.
    fn tell(&mut self);

    /// The coming wait is also for commands, and for room for reports.
    fn want(&self, poller: &mut Poller);

    /// That wait is over.
    fn handle_wait(&mut self, poller: &Poller);

    /// Processor time that the worker has used, nanoseconds.
    fn cpu_ns(&self) -> u64;
}

struct Entry {
    driver: Driver,
    role: Role,
    transport: TransportPlan,
    rate: Rate,
    /// How long its turns took.
    busy: Duration,
    /// What it waits for: of many drivers, most have nothing to do when something comes.
    waits: Party,
    due_at: Option<Time>,
    is_due: bool,
}

impl Entry {
    fn stats(&mut self) -> DriverStats {
        DriverStats { busy_seconds: self.busy.as_secs_f64(), ..self.driver.stats() }
    }
}

pub(super) struct Loop<D> {
    desk: D,
    poller: Poller,
    /// Memory of drivers that are to be added.
    memories: BTreeMap<u32, OwnedFd>,
    /// Where side ports of drivers lead that were handed to this worker.
    outlets: BTreeMap<u32, Vec<NamedOutlet>>,
    drivers: BTreeMap<u32, Entry>,
    facts: Option<LinkFacts>,
    limits: Limits,
    /// Of all drivers.
    rate: Rate,
    processor: Processor,
    /// When something last came over a data connection, until that is told, and what was told last.
    heard: Option<Time>,
    heard_told: Time,
    /// Reports that found no room; while there are any, no driver runs.
    backlog: VecDeque<Report>,
}

impl<D: Desk> Loop<D> {
    pub(super) fn new(desk: D, limits: Limits, poller: Poller) -> Loop<D> {
        Loop {
            desk,
            poller,
            memories: BTreeMap::new(),
            outlets: BTreeMap::new(),
            drivers: BTreeMap::new(),
            facts: None,
            rate: Rate::of_session(&limits.rates),
            processor: Processor::new(0),
            limits,
            heard: None,
            heard_told: Time::ZERO,
            backlog: VecDeque::new(),
        }
    }

    /// Runs until it is told to stop.
    pub(super) fn run(&mut self) {
        sys::thread::be_punctual();
        let mut notices = Vec::new();
        loop {
            let mut now = Time(sys::clock::boot_ns());
            while let Some(command) = self.desk.take() {
                if matches!(command, Command::Stop) {
                    return self.stop();
                }
                self.handle(command, now);
                self.drivers.values_mut().for_each(|entry| entry.is_due = true);
            }
            self.report_backlog();
            let (mut again, mut acknowledges) = (false, false);
            self.processor.read(|| self.desk.cpu_ns(), now);
            if self.backlog.is_empty() && self.closed_until(now).is_none() {
                for (number, entry) in &mut self.drivers {
                    if !entry.is_due || entry.rate.closed_until(now).is_some() {
                        continue;
                    }
                    entry.is_due = entry.driver.run(now, &mut self.poller, &mut notices);
                    again |= entry.is_due;
                    self.rate.take(entry.driver.taken(), now);
                    entry.rate.take(entry.driver.taken(), now);
                    if entry.driver.has_heard() {
                        self.heard = Some(now);
                    }
                    for notice in notices.drain(..) {
                        acknowledges |= matches!(notice, Notice::Control(Control::Acknowledge { .. }));
                        self.backlog.push_back(Report::Notice { driver: *number, notice });
                    }
                    let ended = now.max(Time(sys::clock::boot_ns()));
                    entry.busy += ended.since(now);
                    now = ended;
                }
                self.tell_heard();
                // What one says to the other host, the others say with it rather than one by one.
                if acknowledges && self.hurry(now) {
                    continue;
                }
                self.report_backlog();
            }
            match again {
                // Who is busy does not look what came for others: they have their turns all the same.
                true => self.drivers.values_mut().for_each(|entry| entry.is_due = true),
                false => self.sleep(),
            }
        }
    }

    /// Until when no driver is to move anything; `None` if they may.
    fn closed_until(&self, now: Time) -> Option<Time> {
        self.rate.closed_until(now).max(self.processor.closed_until(now))
    }

    /// Has drivers acknowledge at once what they would acknowledge soon; whether one has anything.
    fn hurry(&mut self, now: Time) -> bool {
        let mut any = false;
        for entry in self.drivers.values_mut() {
            if entry.driver.hurry(now) {
                (entry.is_due, any) = (true, true);
            }
        }
        any
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
        self.desk.want(&mut self.poller);
        let mut timeout = None;
        if self.backlog.is_empty() {
            let of_all = self.closed_until(Time(sys::clock::boot_ns()));
            for entry in self.drivers.values_mut() {
                let now = Time(sys::clock::boot_ns());
                // One that has moved as much as it may is not waited for until it may go on.
                let closed = of_all.max(entry.rate.closed_until(now));
                let wait = match closed {
                    Some(until) => {
                        entry.is_due = true;
                        Some(until.since(now))
                    }
                    None => {
                        let wake = self.poller.want_for(&mut entry.waits, |poller| entry.driver.want(poller));
                        entry.is_due |= wake.now;
                        entry.due_at = wake.at;
                        wake.wait(now)
                    }
                };
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
        self.desk.handle_wait(&self.poller);
        let now = Time(sys::clock::boot_ns());
        for entry in self.drivers.values_mut() {
            let is_time = entry.due_at.is_some_and(|at| at <= now);
            entry.is_due |= is_time || self.poller.is_ready_for(&entry.waits);
        }
    }

    fn report_backlog(&mut self) {
        let mut told = false;
        while let Some(report) = self.backlog.pop_front() {
            match self.desk.put(report) {
                Ok(()) => told = true,
                Err(report) => {
                    self.backlog.push_front(report);
                    break;
                }
            }
        }
        if told {
            self.desk.tell();
        }
    }

    fn handle(&mut self, command: Command, now: Time) {
        match command {
            Command::Memory { driver, memory } => {
                self.memories.insert(driver, memory);
            }
            Command::Warden { socket, program } => {
                isolation::use_program(program.into());
                links::process::start_by(socket);
            }
            Command::Ports { driver, ports } => {
                self.outlets.insert(driver, outlet::take(ports));
            }
            Command::Add { driver, origin, role, flows, transport } => {
                let flows = self.led(driver, flows);
                let memory = self.memories.remove(&driver);
                match build(origin, role, &flows, &transport, &self.limits, memory) {
                    Ok(mut built) => {
                        if let Some(facts) = self.facts {
                            built.handle_facts(facts);
                        }
                        let (rate, busy) = (Rate::of_device(&self.limits.rates), Duration::ZERO);
                        let (waits, due_at, is_due) = (Party::default(), None, true);
                        let entry =
                            Entry { driver: built, role, transport, rate, busy, waits, due_at, is_due };
                        self.drivers.insert(driver, entry);
                    }
                    Err(error) => self.fail(driver, error),
                }
            }
            Command::Rebuild { driver, flows } => {
                let (flows, limits) = (self.led(driver, flows), self.limits.clone());
                let result = self.drivers.get_mut(&driver).map(|entry| {
                    let lossy = entry.transport.class.facts().may_lose;
                    entry.driver.rebuild(entry.role, &flows, lossy, &limits)
                });
                if let Some(Err(error)) = result {
                    self.fail(driver, error);
                }
            }
            Command::Link { driver, transport, socket, keys } => {
                self.link(driver, transport, (socket, keys), now);
            }
            Command::Move { driver, socket } => {
                let moved = self.drivers.get_mut(&driver).map(|entry| entry.driver.handle_move(socket));
                if let Some(Err(error)) = moved {
                    let notice = Notice::LinkFailed(error.to_string());
                    self.backlog.push_back(Report::Notice { driver, notice });
                }
            }
            Command::LinksLost => {
                self.drivers.values_mut().for_each(|entry| entry.driver.handle_link_lost(&mut self.poller));
            }
            Command::Silence => self.each(|driver, notices| driver.handle_silence(now, notices)),
            Command::Heard => self.each(|driver, notices| driver.handle_heard(now, notices)),
            Command::Processor { ns_per_second } => self.processor.set(ns_per_second, now),
            Command::Facts(facts) => {
                self.facts = Some(facts);
                self.drivers.values_mut().for_each(|entry| entry.driver.handle_facts(facts));
            }
            Command::Control { driver, message } => {
                self.one(driver, |driver, notices| driver.handle_control(message, now, notices));
            }
            Command::Change { driver, direction, pipeline } => {
                let pipeline = self.led_out(driver, pipeline);
                self.one(driver, |driver, notices| driver.change(direction, pipeline, notices));
            }
            Command::Prepare { driver, flow, epoch, pipeline } => {
                let pipeline = self.led_out(driver, pipeline);
                self.one(driver, |driver, notices| driver.prepare((flow, epoch), pipeline, now, notices));
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
                self.outlets.remove(&driver);
            }
            Command::Stats => {
                let stats = self.drivers.iter_mut().map(|(number, entry)| (*number, entry.stats()));
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

    /// Flows of a driver as they are at this worker: their side ports lead where it was handed something, and its limits
    /// hold.
    fn led(&self, driver: u32, flows: Vec<FlowPlan>) -> Vec<FlowPlan> {
        let led = |plan: FlowPlan| {
            let site = Site { message_bytes: self.limits.message_bytes, ..plan.site };
            FlowPlan { pipeline: self.led_out(driver, plan.pipeline), site, ..plan }
        };
        flows.into_iter().map(led).collect()
    }

    fn led_out(&self, driver: u32, pipeline: Pipeline) -> Pipeline {
        match self.outlets.get(&driver) {
            Some(outlets) => pipeline.with_outlets(outlets),
            None => pipeline,
        }
    }

    fn link(
        &mut self,
        driver: u32,
        transport: Option<TransportPlan>,
        (socket, keys): (OwnedFd, Option<SealKeys>),
        now: Time,
    ) {
        let Some(entry) = self.drivers.get_mut(&driver) else { return };
        let is_stream = !entry.transport.class.is_datagram();
        // The paths were built for what the first may lose.
        if let Some(transport) = transport.filter(|other| other.may_replace(&entry.transport)) {
            entry.transport = transport;
        }
        let end = match entry.role {
            Role::Application => End::Dialled,
            Role::Device => End::Accepted,
        };
        match entry.transport.class.partner(socket, end, &entry.transport.options, keys.as_ref()) {
            Ok(transport) => {
                match is_stream {
                    true => entry.driver.set_aside(&mut self.poller, now),
                    false => entry.driver.handle_link_lost(&mut self.poller),
                }
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
    memory: Option<OwnedFd>,
) -> Result<Driver, DriverError> {
    let partner = make_partner(origin)?;
    let kept = match memory.map(|memory| kept::map(memory, limits)).transpose() {
        Ok(kept) => kept.map_or_else(Default::default, |kept| kept.map(Some)),
        Err(error) => return Err(PartnerError::os("what is kept for another worker", error).into()),
    };
    Driver::going_on(partner, role, flows, transport.class.facts().may_lose, limits, kept)
}
