//! One session between two brokers, as far as both roles agree: the control channel, the workers, the drivers and the
//! pipeline changes.
//!
//! [`PeerSession`] handles the reports and messages that mean the same on both hosts, and returns the others to the
//! role: [`share_session`](crate::share_session) on the device host, [`attach`](crate::attach) on the application host.
//!
//! # States
//!
//! A connection belongs to a session once its peer is admitted: the device host has read its `Hello` and sent the
//! `Welcome`. The session then has one of three states, [`Contact`]; [`PeerSession::handle_link_failure`],
//! [`PeerSession::handle_silence`] and [`PeerSession::handle_link_back`] change them.
//!
//! | state | meaning | event | next state |
//! |---|---|---|---|
//! | (greeting) | handshake, `Hello` | the device host admits the peer | `Alive` |
//! | `Alive` | messages arrive, flows run | the control connection fails | `Broken` |
//! | | | the silence limit passes | `Silent` |
//! | `Broken` | no control connection; the device host has closed the data connections too | the session resumes on a new connection | `Alive` |
//! | | | the silence limit passes | `Silent` |
//! | `Silent` | the workers have made devices and nodes neutral | the session resumes, or messages arrive again | `Alive` |
//! | | | `--limit keep` passes (device host) | over |
//! | any | | goodbye, or this host stops or fails | over |
//!
//! # Differences between the roles
//!
//! | | device host | application host |
//! |---|---|---|
//! | new control connection | accepts it: `Session::resume` | makes it: `ApplicationHost::redial` |
//! | the peer stays away | the session is over after `--limit keep` | continues to search |
//! | the peer says goodbye | the session is over | the next connection starts a new session and opens the devices again |
//! | data connection lost | asks for another with `Unlinked` | dials |
//! | the device disappears | reports it with `Presence`, and reopens it | keeps the node; requests the device again |
//! | a driver fails | closes it, the session continues | ends |
//! | a pipeline change succeeds | keeps the offered pipelines | proposes the new pipeline from then on |

use crate::change::{self, PipelineChangeBroker, Step};
use crate::control_link::{ControlLink, LinkError};
use crate::events::Event;
use console::{Answer, DriverStatus, PeerStatus};
use contract::{FlowDirection, Format, Role, Time};
use flow::stats::DriverStats;
use flow::stats_timer::StatsTimer;
use flow::trace::FlowTrace;
use flow::types::{FlowPlan, LinkFacts, Notice, driver_of};
use modules::{Pipelines, now};
use pipeline::Edit;
use session::Limits;
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use sys::poller::Poller;
use wire::Control;
use worker::{Command, Report, Workers, restarted};

/// One driver of a session; `D` is the part that only one role needs.
pub struct Driver<D> {
    /// The device's name in the catalogue of the device host.
    pub name: String,
    /// This host's pipelines for the device's flows.
    pub pipelines: Pipelines,
    /// The flows; empty until the device is open.
    pub plans: Vec<FlowPlan>,
    /// The latest statistics, and the time when they arrived.
    pub stats: Option<(Time, DriverStats)>,
    /// The part of this host's role.
    pub own: D,
}

impl<D> Driver<D> {
    /// Creates a driver without statistics.
    pub fn new(name: String, pipelines: Pipelines, plans: Vec<FlowPlan>, own: D) -> Driver<D> {
        Driver { name, pipelines, plans, stats: None, own }
    }

    /// Returns whether a request means this driver: it names the device, or all devices.
    pub fn is_named(&self, name: Option<&str>) -> bool {
        name.is_none_or(|name| self.name == name)
    }

    /// Returns the latest statistics for the console.
    pub fn status(&self, peer: &str, node: &str) -> DriverStatus {
        let (at, stats) = self.stats.clone().unwrap_or_default();
        DriverStatus { name: self.name.clone(), peer: peer.into(), node: node.into(), at_ns: at.0, stats }
    }
}

/// The state of the contact with the peer; the table is in the [module's documentation](self).
enum Contact {
    Alive,
    /// The control connection has failed, for this reason.
    Broken(String),
    Silent {
        since: Time,
    },
}

/// Most console clients that wait for a worker's answer; the oldest one is forgotten.
const ASKED_MAX: usize = 64;

/// One session with a peer; `D` is the role's part of a driver.
pub struct PeerSession<D> {
    role: Role,
    /// The peer, as events and traces name it.
    pub peer: String,
    /// The control channel.
    pub link: ControlLink,
    /// The workers, which run the flows.
    pub workers: Workers,
    /// The drivers, by number.
    pub drivers: BTreeMap<u32, Driver<D>>,
    /// Answers for visitors of the console.
    pub answers: Vec<(u64, Answer)>,
    /// Console clients whose words a worker has not answered ([`PeerSession::say`]).
    asked: BTreeSet<u64>,
    /// Stamps that the workers have traced since the last request.
    pub traced: Vec<FlowTrace>,
    changes: PipelineChangeBroker,
    facts: Option<LinkFacts>,
    contact: Contact,
    stats_timer: StatsTimer,
}

impl<D> PeerSession<D> {
    /// Creates a session without drivers.
    pub fn new(role: Role, peer: String, mut link: ControlLink, workers: Workers) -> PeerSession<D> {
        if role == Role::Device {
            link.follow();
        }
        PeerSession {
            role,
            peer,
            link,
            workers,
            drivers: BTreeMap::new(),
            answers: Vec::new(),
            asked: BTreeSet::new(),
            traced: Vec::new(),
            changes: PipelineChangeBroker::default(),
            facts: None,
            contact: Contact::Alive,
            stats_timer: StatsTimer::new(now()),
        }
    }

    /// Forgets the numbered messages and the pipeline changes: the next connection starts a new session.
    pub fn start_over(&mut self, limits: &Limits) {
        self.link = ControlLink::new(limits, now());
        self.forget_all_changes();
    }

    /// Refuses the pending pipeline changes of a session that ends; returns the answers that visitors have not got yet.
    pub fn last_answers(&mut self) -> Vec<(u64, Answer)> {
        self.forget_all_changes();
        std::mem::take(&mut self.answers)
    }

    fn forget_all_changes(&mut self) {
        let drivers: Vec<u32> = self.drivers.keys().copied().collect();
        drivers.into_iter().for_each(|driver| self.forget_changes(driver));
    }

    /// Closes the control connection, which has failed. The peer may reconnect before the silence limit.
    pub fn handle_link_failure(&mut self, reason: String, poller: &mut Poller) {
        self.link.disconnect(poller);
        if self.silent_since().is_none() {
            self.contact = Contact::Broken(reason);
        }
    }

    /// Records that the peer is silent, and tells the workers so.
    pub fn handle_silence(&mut self, now: Time, emit: &mut dyn FnMut(Event)) {
        let reason = match &self.contact {
            Contact::Silent { .. } => return,
            Contact::Broken(reason) => reason,
            Contact::Alive => "no sign of life within the silence limit",
        };
        emit(Event::LinkLost { reason: format!("{}: {reason}", self.peer) });
        self.contact = Contact::Silent { since: now };
        self.workers.send(Command::Silence);
    }

    /// Records that the peer answers on a connection, and ends its silence.
    pub fn handle_link_back(&mut self, emit: &mut dyn FnMut(Event)) {
        if let Contact::Silent { since } = std::mem::replace(&mut self.contact, Contact::Alive) {
            self.workers.send(Command::SilenceEnded);
            emit(Event::LinkBack { seconds: now().since(since).as_secs_f64() });
        }
    }

    /// Records whether the session holds something that the loss of the link would harm: flows, unacknowledged messages, a
    /// pipeline that changes, a connection in progress, or something of the role (`docs/design/idle.md`).
    pub fn update_hold(&mut self, role_holds: bool, now: Time) {
        let is_settled = matches!(self.contact, Contact::Alive) && self.facts.is_some();
        let is_held = role_holds || self.workers.is_holding() || self.changes.is_busy() || !is_settled;
        self.link.hold(is_held, now);
    }

    /// Requests statistics of the workers when they are due.
    pub fn request_stats(&mut self, now: Time) {
        if self.stats_timer.is_due(self.link.is_resting(), now) {
            self.workers.send(Command::Stats);
        }
    }

    /// Requests statistics at the next turn: a client of the console has read the latest ones, and may ask again.
    pub fn ask_stats(&mut self) {
        self.stats_timer.request(now());
    }

    /// Returns the time of the next request for statistics.
    pub fn stats_at(&self) -> Time {
        self.stats_timer.at()
    }

    /// Returns whether a pipeline changes.
    pub(crate) fn is_changing(&self) -> bool {
        self.changes.is_busy()
    }

    /// Returns the time since which the peer is silent, if it is.
    pub fn silent_since(&self) -> Option<Time> {
        match self.contact {
            Contact::Silent { since } => Some(since),
            Contact::Alive | Contact::Broken(_) => None,
        }
    }

    /// Passes new measurements of the link on to the workers. Returns the first ones of the session.
    pub fn update_facts(&mut self) -> Option<LinkFacts> {
        let facts = self.link.facts().filter(|facts| self.facts != Some(*facts))?;
        self.workers.send(Command::Facts(facts));
        self.facts.replace(facts).is_none().then_some(facts)
    }

    /// Returns the latest measurements of the link.
    pub fn facts(&self) -> Option<LinkFacts> {
        self.facts
    }

    /// Passes words of a console client on to the local partner of a driver. Only an application host does: the device's own host
    /// has the device's own tools.
    pub fn say(&mut self, driver: u32, visitor: u64, words: String) {
        if self.asked.len() >= ASKED_MAX {
            self.asked.pop_first();
        }
        self.asked.insert(visitor);
        self.workers.send(Command::Say { driver, visitor, words });
    }

    /// Handles a report of a worker. Returns a notice that the role handles, with its driver.
    pub fn handle_report(
        &mut self,
        report: Report,
        emit: &mut dyn FnMut(Event),
    ) -> Result<Option<(u32, Notice)>, LinkError> {
        match report {
            Report::Received(at) => self.link.handle_data(at),
            // `Workers` keeps it for `update_hold`.
            Report::Holds(_) => {}
            Report::Warning(problem) => emit(Event::Warning { problem }),
            Report::Refused(call) => emit(Event::Warning {
                problem: format!("the sandbox refused the system call {call} to a worker"),
            }),
            // A worker answers each request once, and no other client.
            Report::Said { visitor, .. } if !self.asked.remove(&visitor) => {}
            Report::Said { visitor, result } => self.answers.push((visitor, Answer::said(result))),
            Report::Stats { driver, stats } => {
                if let Some(driver) = self.drivers.get_mut(&driver) {
                    driver.stats = Some((now(), (*stats).clone()));
                    emit(Event::Stats { name: driver.name.clone(), stats });
                }
            }
            Report::Trace { driver, flows } => {
                if let Some(driver) = self.drivers.get(&driver) {
                    self.traced.extend(flows.into_iter().map(|flow| flow.named(&driver.name, &self.peer)));
                }
            }
            Report::Notice { driver, notice } => {
                self.stats_timer.handle_change(now());
                return self.handle_notice(driver, notice, emit);
            }
        }
        Ok(None)
    }

    fn handle_notice(
        &mut self,
        number: u32,
        notice: Notice,
        emit: &mut dyn FnMut(Event),
    ) -> Result<Option<(u32, Notice)>, LinkError> {
        // A report of a driver that was closed meanwhile says nothing any more.
        let Some(driver) = self.drivers.get_mut(&number) else { return Ok(None) };
        let name = || driver.name.clone();
        match notice {
            Notice::Flow { flow, message } => self.link.put(&Control::Flow { flow, message })?,
            Notice::Incident(incident) => emit(Event::Module { name: name(), incident }),
            Notice::Missed { direction, messages } => {
                let plan = driver.plans.iter().find(|plan| plan.direction == direction);
                let is_input = plan
                    .is_some_and(|plan| matches!(plan.format, Format::Evdev | Format::Viewer | Format::Hid));
                let unit = if is_input { "input events" } else { "messages" };
                emit(Event::Missed { name: name(), messages, unit });
            }
            Notice::StoreFull(policy) => emit(Event::StoreFull { name: name(), policy: policy.word() }),
            Notice::Changed { direction, result } => {
                let mut plans = driver.plans.iter_mut();
                let Some(plan) = plans.find(|plan| plan.direction == direction) else { return Ok(None) };
                // The worker has named one of the pipelines that this broker offered.
                let result = result.and_then(|_| {
                    let current = self.workers.pipeline(number, direction).cloned();
                    current.ok_or_else(|| "the flow has ended".to_string())
                });
                let steps = self.changes.settle(plan, &result);
                if let Ok(pipeline) = result {
                    let back = direction == FlowDirection::ApplicationToDevice;
                    let (name, text) = (driver.name.clone(), pipeline.canonical().into());
                    if self.role == Role::Application {
                        let own = &mut driver.pipelines;
                        *(if back { &mut own.via_back } else { &mut own.via }) = Some(pipeline);
                    }
                    emit(Event::Changed { name, back, pipeline: text });
                }
                self.execute(steps)?;
            }
            Notice::FlowEnded(_) => {
                emit(Event::FlowEnded { name: name() });
                return Ok(Some((number, notice)));
            }
            Notice::Restarted { ref end, .. } => {
                emit(Event::Worker { name: name(), incident: restarted(end) });
                // The killed worker has lost the changes that it was asked for.
                let steps = self.changes.handle_restart(self.role, &driver.plans);
                self.execute(steps)?;
                return Ok(Some((number, notice)));
            }
            Notice::PartnerGone(_)
            | Notice::PartnerReturned
            | Notice::PartnerAbsent(_)
            | Notice::PartnerPresent
            | Notice::LinkFailed(_)
            | Notice::LinkHeldBack
            | Notice::WaysWanted(_)
            | Notice::ConnectionsWanted(_)
            | Notice::Lost { .. }
            | Notice::Failed(_) => return Ok(Some((number, notice))),
        }
        Ok(None)
    }

    /// Handles a message of the peer. Returns a message that the role handles.
    pub fn handle_message(&mut self, message: Control) -> Result<Option<Control>, LinkError> {
        match (change::flow_of(&message), message) {
            (Some(flow), message) => {
                self.change_flow(flow, |changes, plan, own| changes.handle(&message, plan, own))?;
            }
            (None, Control::Flow { flow, message }) => self.workers.send(Command::Flow { flow, message }),
            (None, message) => return Ok(Some(message)),
        }
        Ok(None)
    }

    fn change_flow(
        &mut self,
        flow: u32,
        act: impl FnOnce(&mut PipelineChangeBroker, &FlowPlan, &Pipelines) -> Vec<Step>,
    ) -> Result<(), LinkError> {
        let Some(driver) = self.drivers.get(&driver_of(flow)) else { return Ok(()) };
        let Some(plan) = driver.plans.iter().find(|plan| plan.flow == flow) else { return Ok(()) };
        let steps = act(&mut self.changes, plan, &driver.pipelines);
        self.execute(steps)
    }

    /// Executes all steps; returns the first error.
    fn execute(&mut self, steps: Vec<Step>) -> Result<(), LinkError> {
        let mut result = Ok(());
        for step in steps {
            match step {
                Step::Command(command) => self.workers.send(command),
                Step::Send(message) => result = result.and(self.link.send(&message)),
                Step::Answer(visitor, answer) => self.answers.push((visitor, answer)),
                Step::Wait => {}
                Step::Start(flow, request) => {
                    let role = self.role;
                    let started = self.change_flow(flow, |changes, plan, own| {
                        vec![changes.start(&request, role, plan, own)]
                    });
                    result = result.and(started);
                }
            }
        }
        result
    }

    /// Handles a console request for another pipeline; returns false if there is no such flow.
    pub fn ask_change(&mut self, visitor: u64, name: &str, direction: FlowDirection, edit: &Edit) -> bool {
        let named = self.drivers.values().filter(|driver| driver.name == name);
        let mut plans = named.flat_map(|driver| &driver.plans);
        let Some(plan) = plans.find(|plan| plan.direction == direction) else { return false };
        let step = self.changes.ask(visitor, self.role, plan, edit);
        // If the control channel fails, the next turn notices.
        let _ = self.execute(vec![step]);
        true
    }

    /// Refuses the pending pipeline changes of a driver that is closed.
    pub fn forget_changes(&mut self, driver: u32) {
        let steps = self.changes.forget(driver);
        // If the control channel fails, the next turn notices.
        let _ = self.execute(steps);
    }

    /// Starts, continues or ends a trace of the drivers on the device of this name, or of all drivers.
    pub fn trace(&mut self, name: Option<&str>, one_in: Option<NonZeroU32>) {
        for (&driver, _) in self.drivers.iter().filter(|(_, driver)| driver.is_named(name)) {
            self.workers.send(Command::Trace { driver, one_in });
        }
    }

    /// Returns the state of the session for the console.
    pub fn peer_status(&self, name: &str, address: String, drivers: usize) -> PeerStatus {
        let stats = self.drivers.values().filter_map(|driver| Some(&driver.stats.as_ref()?.1));
        PeerStatus {
            name: name.into(),
            address,
            silent_seconds: self.silent_since().map(|since| now().since(since).as_secs_f64()),
            round_trip_seconds: self.facts.map(|facts| facts.round_trip.as_secs_f64()),
            drivers,
            ..PeerStatus::of(stats)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_answers_only_a_client_that_asked() {
        let limits = Limits::default();
        let link = ControlLink::new(&limits, now());
        let workers = Workers::new("test".into(), limits);
        let mut session: PeerSession<()> = PeerSession::new(Role::Application, "peer".into(), link, workers);
        let answer = |session: &mut PeerSession<()>, visitor| {
            let report = Report::Said { visitor, result: Ok("text".into()) };
            session.handle_report(report, &mut |_| ()).unwrap();
            session.answers.drain(..).map(|(visitor, _)| visitor).collect::<Vec<_>>()
        };
        assert_eq!(answer(&mut session, 1), [0; 0], "nobody asked");
        session.say(3, 1, "words".into());
        assert_eq!(answer(&mut session, 2), [0; 0], "another client");
        assert_eq!(answer(&mut session, 1), [1], "the answer");
        assert_eq!(answer(&mut session, 1), [0; 0], "a second answer");
        (0..1000).for_each(|visitor| session.say(3, visitor, "words".into()));
        assert_eq!(session.asked.len(), ASKED_MAX);
        assert_eq!(answer(&mut session, 999), [999]);
    }
}
