//! Two hosts of Outboard in one process: a worker each, with the product's own paths between a device and a connected
//! socket. This thread is the broker of both and passes the control messages.

use crate::setting::Failure;
use contract::{Format, Options, Partner, Role, SealKeys, Secret, Site, TransportClass};
use flow::DriverStats;
use flow::{FlowPlan, LinkFacts, Notice};
use hub::PartnerOrigin;
use modules::TransportPlan;
use pipeline::Pipeline;
use session::Limits;
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use sys::poller::Poller;
use wire::control::{FlowClass, FlowDirection};
use worker::{Command, DriverPlan, Report, Worker};

/// The only driver of each host.
const DRIVER: u32 = 0;
/// A bound on every turn.
const WATCHDOG: Duration = Duration::from_secs(120);

/// One host: its device and its end of the data connection.
pub(crate) struct Host {
    pub(crate) device: Box<dyn Partner>,
    pub(crate) socket: OwnedFd,
}

/// The connection between the hosts.
pub(crate) struct Link {
    /// Transports of the near host and of the far host.
    pub(crate) transports: [&'static dyn TransportClass; 2],
    pub(crate) options: Options,
    pub(crate) format: Format,
    pub(crate) class: FlowClass,
    /// True if the far host's device answers.
    pub(crate) both_ways: bool,
    /// True for sealed records, as between paired hosts.
    pub(crate) sealed: bool,
}

impl Link {
    fn flows(&self) -> Vec<FlowPlan> {
        let directions = [FlowDirection::DeviceToApplication, FlowDirection::ApplicationToDevice];
        let count = if self.both_ways { 2 } else { 1 };
        let plan = |(flow, direction)| FlowPlan {
            flow,
            direction,
            class: self.class,
            format: self.format.clone(),
            pipeline: Pipeline::default(),
            requested: Vec::new(),
            site: Site::default(),
        };
        // The numbers of driver 0 (`flow::driver_of`).
        (0..).zip(directions).take(count).map(plan).collect()
    }
}

/// Returns the next turn: the traced share of messages (one in so many, or none) and the duration. `None` ends the turns.
pub(crate) type NextTurn<'a> = dyn FnMut() -> Option<(Option<NonZeroU32>, Duration)> + 'a;

/// Moves messages until the near host's device has no more and the far host has received them. Calls `begun` after the
/// setup. Returns the statistics of both hosts' drivers.
pub(crate) fn run(link: &Link, hosts: [Host; 2], begun: impl FnOnce()) -> Result<[DriverStats; 2], Failure> {
    run_in_turns(link, hosts, begun, &mut || None)
}

/// [`run`] with tracing in turns.
pub(crate) fn run_in_turns(
    link: &Link,
    hosts: [Host; 2],
    begun: impl FnOnce(),
    next_turn: &mut NextTurn<'_>,
) -> Result<[DriverStats; 2], Failure> {
    let workers = [Worker::start("near", Limits::default())?, Worker::start("far", Limits::default())?];
    let roles = [Role::Device, Role::Application];
    let mut sockets = Vec::new();
    for (((worker, role), host), class) in workers.iter().zip(roles).zip(hosts).zip(link.transports) {
        let transport = TransportPlan { class, options: link.options.clone() };
        let origin = PartnerOrigin::Ready(host.device);
        // Both hosts are this process: their clocks have no offset.
        ask(worker, Command::Facts(LinkFacts::default()))?;
        let plan = DriverPlan { role, flows: link.flows(), transport };
        ask(worker, Command::Add { driver: DRIVER, origin, plan })?;
        sockets.push((worker, host.socket));
    }
    begun();
    let [one, other] = [Secret([1; 32]), Secret([2; 32])];
    let near = SealKeys { sending: one.clone(), receiving: other.clone() };
    let far = SealKeys { sending: other, receiving: one };
    for ((worker, socket), keys) in sockets.into_iter().zip([near, far]) {
        let keys = link.sealed.then_some(keys);
        ask(worker, Command::Link { driver: DRIVER, transport: None, socket, keys })?;
    }
    let mut broker =
        Broker { workers: &workers, poller: Poller::new()?, stats: [None, None], traced: None, next_turn };
    broker.carry(|broker| broker.stats.iter().all(Option::is_some))?;
    let [near, far] = broker.stats;
    Ok([near.unwrap_or_default(), far.unwrap_or_default()])
}

fn ask(worker: &Worker, command: Command) -> Result<(), Failure> {
    if worker.send(command) { Ok(()) } else { Err("a worker hangs".into()) }
}

/// The broker of both workers.
struct Broker<'a> {
    workers: &'a [Worker; 2],
    poller: Poller,
    stats: [Option<DriverStats>; 2],
    traced: Option<NonZeroU32>,
    next_turn: &'a mut NextTurn<'a>,
}

impl Broker<'_> {
    /// Fetches the traces, as `outboard trace` does, and starts the next turn. Returns its end.
    fn turn(&mut self) -> Result<Option<Instant>, Failure> {
        if self.traced.is_some() {
            self.trace(self.traced)?;
        }
        let Some((traced, lasts)) = (self.next_turn)() else {
            self.trace(None)?;
            return Ok(None);
        };
        if traced != self.traced {
            self.trace(traced)?;
            self.traced = traced;
        }
        Ok(Some(Instant::now() + lasts))
    }

    fn trace(&self, one_in: Option<NonZeroU32>) -> Result<(), Failure> {
        self.workers.iter().try_for_each(|worker| ask(worker, Command::Trace { driver: DRIVER, one_in }))
    }

    /// Passes messages between the hosts until `done`.
    fn carry(&mut self, done: impl Fn(&Self) -> bool) -> Result<(), Failure> {
        let mut until = self.turn()?;
        while !done(self) {
            for worker in self.workers {
                self.poller.register(worker.wakes(), true, false);
            }
            let patience = until.map_or(WATCHDOG, |until| until.saturating_duration_since(Instant::now()));
            if !self.poller.wait(Some(patience))? && until.is_none() {
                return Err("no progress".into());
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                until = self.turn()?;
            }
            for here in 0..2 {
                self.workers[here].clear();
                while let Some(report) = self.workers[here].poll() {
                    self.handle(here, report)?;
                }
            }
        }
        Ok(())
    }

    fn handle(&mut self, here: usize, report: Report) -> Result<(), Failure> {
        let there = 1 - here;
        match report {
            Report::Notice { notice: Notice::Flow { flow, message }, .. } => {
                ask(&self.workers[there], Command::Flow { flow, message })
            }
            Report::Notice { notice: Notice::FlowEnded(FlowDirection::DeviceToApplication), .. }
                if here == 1 =>
            {
                self.workers.iter().try_for_each(|worker| ask(worker, Command::Stats))
            }
            // A full store slows down the source. That is part of the measurement.
            Report::Notice { notice: Notice::FlowEnded(_) | Notice::StoreFull(_), .. } => Ok(()),
            Report::Notice { notice, .. } => Err(format!("host {here}: {notice:?}").into()),
            Report::Refused(call) => Err(format!("host {here}: the sandbox refused {call}").into()),
            Report::Trace { .. }
            | Report::Said { .. }
            | Report::Received(_)
            | Report::Holds(_)
            | Report::Warning(_) => Ok(()),
            Report::Stats { stats, .. } => {
                self.stats[here] = Some(*stats);
                Ok(())
            }
        }
    }
}
