//! The loop of a worker: handles commands and runs the paths of many drivers. It is the same in a thread and in a
//! process, which differ in their [`ControlChannel`].

use super::{Command, DriverPlan, Report};
use contract::{End, PartnerError, PartnerResult, Role, SealKeys, Site, Time};
use flow::driver::Driver;
use flow::fair::{Processor, Rate};
use flow::recovery;
use flow::stats::DriverStats;
use flow::types::{DriverError, FlowPlan, LinkFacts, Notice, driver_of};
use hub::outlet;
use hub::{PartnerOrigin, make_partner};
use modules::TransportPlan;
use pipeline::{NamedOutlet, Pipeline};
use session::Limits;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::time::Duration;
use sys::poller::{Party, Poller};
use wire::FlowControl;

/// Connection of a worker to its broker.
pub(super) trait ControlChannel {
    /// Returns the next command. It is [`Command::Stop`] if the broker is gone.
    fn take(&mut self) -> Option<Command>;

    /// Queues a report. Returns it if the queue is full.
    fn put(&mut self, report: Report) -> Result<(), Report>;

    /// Sends the queued reports or wakes the broker.
    fn notify(&mut self);

    /// Registers for commands, and for room in a full report queue.
    fn register(&self, poller: &mut Poller);

    /// Handles the end of a wait.
    fn handle_wait(&mut self, poller: &Poller);

    /// Returns the processor time that the worker has used, nanoseconds.
    fn cpu_ns(&self) -> u64;
}

struct Entry {
    driver: Driver,
    role: Role,
    transport: TransportPlan,
    rate: Rate,
    /// Total duration of its runs.
    busy: Duration,
    /// Descriptors of this driver: most drivers have nothing to do after a wait.
    waits: Party,
    due_at: Option<Time>,
    is_due: bool,
    /// The driver held something after its last run.
    is_holding: bool,
    /// Data moved last at this time.
    moved_at: Time,
}

impl Entry {
    fn stats(&mut self) -> DriverStats {
        DriverStats { busy_seconds: self.busy.as_secs_f64(), ..self.driver.stats() }
    }
}

/// Data that moves keeps its session awake for this time, so that the pauses between messages cost no reports.
const LINGER: Duration = Duration::from_secs(1);

pub(super) struct Loop<C> {
    channel: C,
    poller: Poller,
    /// Recovery memory of drivers that will be added.
    memories: BTreeMap<u32, OwnedFd>,
    /// Targets of side ports, by driver.
    outlets: BTreeMap<u32, Vec<NamedOutlet>>,
    drivers: BTreeMap<u32, Entry>,
    facts: Option<LinkFacts>,
    limits: Limits,
    /// Limits of all drivers together.
    rate: Rate,
    processor: Processor,
    /// Time of the last data from the peer, until reported; `reported_at` is the last report.
    received_at: Option<Time>,
    reported_at: Time,
    /// The broker knows that drivers hold something. It assumes so from the start.
    is_holding: bool,
    /// Reports that did not fit into the queue. No driver runs while there are any.
    backlog: VecDeque<Report>,
}

impl<C: ControlChannel> Loop<C> {
    pub(super) fn new(channel: C, limits: Limits, poller: Poller) -> Loop<C> {
        Loop {
            channel,
            poller,
            memories: BTreeMap::new(),
            outlets: BTreeMap::new(),
            drivers: BTreeMap::new(),
            facts: None,
            rate: Rate::of_session(&limits.rates),
            processor: Processor::new(0),
            limits,
            received_at: None,
            reported_at: Time::ZERO,
            is_holding: true,
            backlog: VecDeque::new(),
        }
    }

    /// Runs until [`Command::Stop`] or [`Command::Leave`].
    pub(super) fn run(&mut self) {
        sys::thread::be_punctual();
        let mut notices = Vec::new();
        loop {
            let mut now = Time(sys::clock::boot_ns());
            while let Some(command) = self.channel.take() {
                match command {
                    Command::Stop => return self.stop(),
                    Command::Leave => return self.leave(),
                    _ => {}
                }
                self.handle(command, now);
                self.drivers.values_mut().for_each(|entry| entry.is_due = true);
            }
            self.report_backlog();
            let (mut again, mut acknowledges) = (false, false);
            self.processor.read(|| self.channel.cpu_ns(), now);
            if self.backlog.is_empty() && self.closed_until(now).is_none() {
                for (number, entry) in &mut self.drivers {
                    if !entry.is_due || entry.rate.closed_until(now).is_some() {
                        continue;
                    }
                    entry.is_due = entry.driver.run(now, &mut self.poller, &mut notices);
                    again |= entry.is_due;
                    self.rate.take(entry.driver.last_run(), now);
                    entry.rate.take(entry.driver.last_run(), now);
                    if entry.driver.has_received() {
                        self.received_at = Some(now);
                        entry.moved_at = now;
                    }
                    if entry.driver.last_run().messages > 0 {
                        entry.moved_at = now;
                    }
                    entry.is_holding = entry.driver.is_holding();
                    for notice in notices.drain(..) {
                        acknowledges |=
                            matches!(notice, Notice::Flow { message: FlowControl::Acknowledge { .. }, .. });
                        self.backlog.push_back(Report::Notice { driver: *number, notice });
                    }
                    let ended = now.max(Time(sys::clock::boot_ns()));
                    entry.busy += ended.since(now);
                    now = ended;
                }
                self.report_received();
                self.report_holding(now);
                // One driver acknowledges: let the others do it now, so that one packet carries all acknowledgements.
                if acknowledges && self.ack_now(now) {
                    continue;
                }
                self.report_backlog();
            }
            match again {
                // A busy loop does not poll, so every driver gets a turn.
                true => self.drivers.values_mut().for_each(|entry| entry.is_due = true),
                false => self.sleep(),
            }
        }
    }

    /// Returns the time until which no driver may move messages; `None` if they may now.
    fn closed_until(&self, now: Time) -> Option<Time> {
        self.rate.closed_until(now).max(self.processor.closed_until(now))
    }

    /// Advances the pending acknowledgements of all drivers to the next run. Returns whether one is pending.
    fn ack_now(&mut self, now: Time) -> bool {
        let mut any = false;
        for entry in self.drivers.values_mut() {
            if entry.driver.ack_now(now) {
                (entry.is_due, any) = (true, true);
            }
        }
        any
    }

    /// Reports received data as a sign of life, like data on the control channel.
    fn report_received(&mut self) {
        let due = self.reported_at.after(self.limits.ping_interval);
        if let Some(at) = self.received_at.take_if(|at| *at >= due) {
            self.reported_at = at;
            self.backlog.push_back(Report::Received(at));
        }
    }

    /// Returns the time until which data that has moved keeps the session awake; `None` while drivers hold something.
    fn lingers_until(&self) -> Option<Time> {
        let is_holding = self.drivers.values().any(|entry| entry.is_holding);
        let moved_at = self.drivers.values().map(|entry| entry.moved_at).max();
        (!is_holding).then(|| moved_at.map_or(Time::ZERO, |moved_at| moved_at.after(LINGER)))
    }

    /// Reports that the drivers begin or cease to hold something.
    fn report_holding(&mut self, now: Time) {
        let is_holding = self.lingers_until().is_none_or(|until| now < until);
        if is_holding != std::mem::replace(&mut self.is_holding, is_holding) {
            self.backlog.push_back(Report::Holds(is_holding));
        }
    }

    fn sleep(&mut self) {
        self.channel.register(&mut self.poller);
        let mut timeout = None;
        if self.backlog.is_empty() {
            let now = Time(sys::clock::boot_ns());
            let of_all = self.closed_until(now);
            if let Some(until) = self.lingers_until().filter(|_| self.is_holding && of_all.is_none()) {
                timeout = Some(until.since(now));
            }
            for entry in self.drivers.values_mut() {
                let now = Time(sys::clock::boot_ns());
                // A driver over its rate does not wait for descriptors until its pause ends.
                let closed = of_all.max(entry.rate.closed_until(now));
                let wait = match closed {
                    Some(until) => {
                        entry.is_due = true;
                        Some(until.since(now))
                    }
                    None => {
                        let wake = self
                            .poller
                            .register_for(&mut entry.waits, |poller| entry.driver.register(poller));
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
        // A wait fails only for lack of memory.
        if self.poller.wait(timeout).is_err() {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.channel.handle_wait(&self.poller);
        let now = Time(sys::clock::boot_ns());
        for entry in self.drivers.values_mut() {
            let is_time = entry.due_at.is_some_and(|at| at <= now);
            entry.is_due |= is_time || self.poller.is_ready_for(&entry.waits);
        }
    }

    fn report_backlog(&mut self) {
        let mut told = false;
        while let Some(report) = self.backlog.pop_front() {
            match self.channel.put(report) {
                Ok(()) => told = true,
                Err(report) => {
                    self.backlog.push_front(report);
                    break;
                }
            }
        }
        if told {
            self.channel.notify();
        }
    }

    /// Builds the paths of a driver, and keeps it if that succeeds.
    fn add(&mut self, driver: u32, origin: PartnerOrigin, mut plan: DriverPlan) {
        plan.flows = self.with_local_settings(driver, plan.flows);
        let memory = self.memories.remove(&driver);
        match build(origin, &plan, &self.limits, memory) {
            Ok(mut built) => {
                if let Some(facts) = self.facts {
                    built.handle_facts(facts);
                }
                let (rate, busy) = (Rate::of_device(&self.limits.rates), Duration::ZERO);
                let (waits, due_at, is_due) = (Party::default(), None, true);
                let (is_holding, moved_at) = (true, Time::ZERO);
                let DriverPlan { role, transport, .. } = plan;
                let entry = Entry {
                    driver: built,
                    role,
                    transport,
                    rate,
                    busy,
                    waits,
                    due_at,
                    is_due,
                    is_holding,
                    moved_at,
                };
                self.drivers.insert(driver, entry);
            }
            Err(error) => self.fail(driver, error),
        }
    }

    fn handle(&mut self, command: Command, now: Time) {
        match command {
            Command::Memory { driver, memory } => {
                self.memories.insert(driver, memory);
            }
            Command::Ports { driver, ports } => {
                self.outlets.insert(driver, outlet::import(ports));
            }
            Command::Add { driver, origin, plan } => self.add(driver, origin, plan),
            Command::Rebuild { driver, flows } => {
                let (flows, limits) = (self.with_local_settings(driver, flows), self.limits.clone());
                let result = self.drivers.get_mut(&driver).map(|entry| {
                    let lossy = entry.transport.class.may_lose();
                    entry.driver.rebuild(entry.role, &flows, lossy, &limits)
                });
                if let Some(Err(error)) = result {
                    self.fail(driver, error);
                }
            }
            Command::Link { driver, transport, socket, keys } => {
                self.link(driver, transport, (socket, keys), now);
            }
            Command::AddWay { driver, socket, keys } => {
                self.change_link(driver, |driver| driver.add_way(socket, keys));
            }
            Command::Connected { driver, result } => self.connected(driver, result),
            Command::Move { driver, socket } => self.change_link(driver, |driver| driver.handle_move(socket)),
            Command::Unlink { driver } => {
                if let Some(entry) = self.drivers.get_mut(&driver) {
                    entry.driver.handle_link_lost(&mut self.poller);
                }
            }
            Command::LinksLost => {
                self.drivers.values_mut().for_each(|entry| entry.driver.handle_link_lost(&mut self.poller));
            }
            Command::Silence => self.each(|driver, notices| driver.handle_silence(now, notices)),
            Command::SilenceEnded => self.each(|driver, notices| driver.handle_silence_end(now, notices)),
            Command::Processor { ns_per_second } => self.processor.set(ns_per_second, now),
            Command::Facts(facts) => {
                self.facts = Some(facts);
                self.drivers.values_mut().for_each(|entry| entry.driver.handle_facts(facts));
            }
            Command::Flow { flow, message } => {
                let driver = driver_of(flow);
                self.one(driver, |driver, notices| driver.handle_control(flow, &message, now, notices));
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
            Command::AbsenceEnded { driver } => {
                self.one(driver, |driver, notices| driver.handle_absence_end(notices));
            }
            Command::Resync { driver } => self.one(driver, |driver, notices| driver.handle_resync(notices)),
            Command::Partner { driver, origin } => self.replace_partner(driver, origin, now),
            Command::Say { driver, visitor, words } => {
                let none = || Err("the device is gone".into());
                let result = self
                    .drivers
                    .get_mut(&driver)
                    .map_or_else(none, |entry| entry.driver.send_command(&words));
                self.backlog.push_back(Report::Said { visitor, result });
            }
            Command::Remove { driver } => {
                if let Some(entry) = self.drivers.remove(&driver) {
                    entry.driver.close(&mut self.poller);
                }
                self.outlets.remove(&driver);
            }
            Command::Stats => {
                let stats = |(driver, entry): (&u32, &mut Entry)| Report::Stats {
                    driver: *driver,
                    stats: Box::new(entry.stats()),
                };
                self.backlog.extend(self.drivers.iter_mut().map(stats));
            }
            Command::Trace { driver, one_in } => {
                if let Some(entry) = self.drivers.get_mut(&driver) {
                    let flows = entry.driver.trace(one_in, now);
                    self.backlog.push_back(Report::Trace { driver, flows });
                }
            }
            Command::Stop | Command::Leave => {}
        }
    }

    /// The device is there again: its driver gets a new partner.
    fn replace_partner(&mut self, driver: u32, origin: PartnerOrigin, now: Time) {
        let mut result = Ok(());
        if let Some(entry) = self.drivers.get_mut(&driver) {
            entry.driver.release_partner(&mut self.poller);
        }
        self.one(driver, |driver, notices| {
            result = make_partner(origin)
                .map_err(DriverError::Partner)
                .and_then(|partner| driver.handle_partner(partner, now, notices));
        });
        if let Err(error) = result {
            self.fail(driver, error);
        }
    }

    /// Applies this worker's settings to a driver's flows: targets of side ports and limits.
    fn with_local_settings(&self, driver: u32, flows: Vec<FlowPlan>) -> Vec<FlowPlan> {
        let with_local_settings = |plan: FlowPlan| {
            let site = Site { message_bytes: self.limits.message_bytes, ..plan.site };
            let led_out = |pipeline| self.led_out(driver, pipeline);
            let requested = plan.requested.into_iter().map(led_out).collect();
            FlowPlan { pipeline: led_out(plan.pipeline), requested, site, ..plan }
        };
        flows.into_iter().map(with_local_settings).collect()
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
        // The paths depend on the loss behaviour of the first transport.
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
                let has_ways = entry.transport.class.has_ways();
                self.one(driver, |driver, notices| driver.handle_link(transport, has_ways, now, notices));
            }
            Err(error) => {
                let notice = Notice::LinkFailed(error.to_string());
                self.backlog.push_back(Report::Notice { driver, notice });
            }
        }
    }

    /// Changes the data connection of a driver; reports its failure.
    fn change_link(&mut self, driver: u32, change: impl FnOnce(&mut Driver) -> PartnerResult) {
        let changed = self.drivers.get_mut(&driver).map(|entry| change(&mut entry.driver));
        if let Some(Err(error)) = changed {
            let notice = Notice::LinkFailed(error.to_string());
            self.backlog.push_back(Report::Notice { driver, notice });
        }
    }

    /// Passes a further connection to a device.
    fn connected(&mut self, driver: u32, result: Result<OwnedFd, String>) {
        let Some(entry) = self.drivers.get_mut(&driver) else { return };
        if let Err(error) = entry.driver.handle_connected(result) {
            let notice = Notice::Incident(format!("a further connection to the device: {error}"));
            self.backlog.push_back(Report::Notice { driver, notice });
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

    /// Reports what the drivers have done, and leaves their partners as they are: a partner that is dropped may change its node.
    fn leave(&mut self) {
        self.report_backlog();
        self.end_outlets();
        std::mem::forget(std::mem::take(&mut self.drivers));
    }

    fn stop(&mut self) {
        for entry in std::mem::take(&mut self.drivers).into_values() {
            entry.driver.close(&mut self.poller);
        }
        self.end_outlets();
    }

    /// Delivers the messages of side ports that still wait.
    fn end_outlets(&mut self) {
        for (driver, outlets) in std::mem::take(&mut self.outlets) {
            let notice = |text| Report::Notice { driver, notice: Notice::Incident(text) };
            self.backlog.extend(outlets.iter().filter_map(NamedOutlet::finish).map(notice));
        }
        self.report_backlog();
    }
}

fn build(
    origin: PartnerOrigin,
    plan: &DriverPlan,
    limits: &Limits,
    memory: Option<OwnedFd>,
) -> Result<Driver, DriverError> {
    let partner = make_partner(origin)?;
    let kept = match memory.map(|memory| recovery::map(memory, limits)).transpose() {
        Ok(kept) => kept.map_or_else(Default::default, |kept| kept.map(|log| Some(log.of_this_session()))),
        Err(error) => return Err(PartnerError::os("recovery memory", error).into()),
    };
    let is_lossy = plan.transport.class.may_lose();
    Driver::resume(partner, plan.role, &plan.flows, is_lossy, limits, kept)
}
