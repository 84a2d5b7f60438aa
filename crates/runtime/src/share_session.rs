//! One peer's session at the sharer: its control channel, its worker, and the devices it uses.

mod devices;
mod processor;
mod status;

use crate::agree::Pipelines;
use crate::change::{self, Changes, Step, driver_of};
use crate::config::{DEFAULT_TRANSPORT, FALLBACK_TRANSPORT};
use crate::console::Answer;
use crate::control_link::{ControlLink, LinkError};
use crate::driver::{FlowPlan, LinkFacts, Notice};
use crate::error::RuntimeError;
use crate::events::Event;
use crate::fair::Processor;
use crate::offers::{Offers, Signs};
use crate::random;
use crate::share::{ShareRequest, now};
use crate::stats::DriverStats;
use crate::trace::FlowTrace;
use crate::trust::channel::ControlStream;
use crate::trust::{PeerKey, Permit};
use crate::worker::{Command, Parting, PartnerOrigin, Report, TransportPlan, Workers, restarted};
use contract::{FlowDirection, Role, SealKeys, Time};
use pipeline::Edit;
use session::Limits;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;
use std::time::Duration;
use sys::poller::Poller;
use transports::quic::Tag;
use wire::Control;
use wire::control::{CatalogueEntry, FLOWS_MAX};
use wire::preamble::{Introduction, SessionToken};

/// How long a device that is taken from a silent user has to be let go of.
const TAKE_INTERVAL: Duration = Duration::from_millis(50);

/// Time between two `Stats` events.
const STATS_INTERVAL: Duration = Duration::from_secs(1);

/// Time between two addresses that one connection is followed to: somebody on the way may name many.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(20);

/// A connection of QUIC that is found by its tag.
struct Reached {
    /// Whose records it carries; none: it is the control channel.
    driver: Option<u32>,
    /// Where the peer was last.
    peer: Option<SocketAddr>,
    /// When it was followed there.
    at: Time,
}

impl Reached {
    fn new(driver: Option<u32>, peer: Option<SocketAddr>) -> Reached {
        Reached { driver, peer, at: Time::ZERO }
    }
}

/// Whether a session goes on.
pub(crate) enum Turn {
    /// It does.
    Goes,
    /// It does not, and why.
    Over(String),
}

/// Whose session it is.
pub(crate) struct Who {
    pub(crate) name: String,
    pub(crate) address: SocketAddr,
    /// The key that it showed; `None` where nobody is asked for one.
    pub(crate) key: Option<PeerKey>,
    pub(crate) permit: Permit,
}

/// One peer's session.
pub(crate) struct Session {
    id: u64,
    pub(crate) token: SessionToken,
    /// Number of the peer's last connection.
    attempt: u32,
    /// Name and address.
    peer: String,
    name: String,
    pub(crate) address: SocketAddr,
    /// What it is known by: only that key resumes the session.
    pub(crate) key: Option<PeerKey>,
    permit: Permit,
    link: ControlLink,
    workers: Workers,
    /// What they may use of the processor, and what they are seen to use.
    processor: Processor,
    /// What the peer was told that there is, if it asked.
    catalogue: Option<Vec<CatalogueEntry>>,
    /// Driver numbers to the numbers of shared devices.
    drivers: BTreeMap<u32, u64>,
    /// Their flows.
    plans: BTreeMap<u32, Vec<FlowPlan>>,
    /// How their records were to travel when they were opened.
    transports: BTreeMap<u32, TransportPlan>,
    changes: Changes,
    /// For who asked at the console.
    pub(crate) answers: Vec<(u64, Answer)>,
    /// What its worker told since somebody asked for it.
    pub(crate) traced: Vec<FlowTrace>,
    /// Their last figures, and when these came.
    stats: BTreeMap<u32, (Time, DriverStats)>,
    /// What leads a peer that has moved to its connections.
    tags: BTreeMap<Tag, Reached>,
    /// Peers of datagram links, so that a repeated introduction is only confirmed again.
    datagram_peers: BTreeMap<u32, SocketAddr>,
    limits: Limits,
    facts: Option<LinkFacts>,
    silent_since: Option<Time>,
    /// Why the last connection ended.
    broken: Option<String>,
    /// Requests for devices that are, or may be, taken from a silent user: when to look again, and since when.
    waiting: Vec<(Time, Time, Control)>,
    /// When there is something to do though nothing comes.
    due_at: Time,
    /// There is something to do of which no descriptor tells.
    is_pending: bool,
    /// When its workers are asked for figures: each session's at a time of its own, so that not all answer at once.
    stats_at: Time,
}

impl Session {
    pub(crate) fn begin(
        id: u64,
        who: Who,
        (stream, attempt): (ControlStream, u32),
        request: &ShareRequest,
        poller: &mut Poller,
    ) -> Result<Session, RuntimeError> {
        let workers = Workers::new(format!("session {id}"), request.limits.clone());
        let token = new_token()?;
        let mut link = ControlLink::new(&request.limits, now());
        let host = request.host.clone();
        let welcome = Control::Welcome { host, session: token, resumed: false, received: 0 };
        if let Err(error) = link.connect(stream, 0, Some(&welcome), now()) {
            link.disconnect(poller);
            return Err(error.into());
        }
        let tag = link.quic().and_then(|stream| stream.tag());
        Ok(Session {
            id,
            token,
            attempt,
            peer: format!("{} ({})", who.name, who.address),
            name: who.name,
            address: who.address,
            key: who.key,
            permit: who.permit,
            link,
            workers,
            processor: Processor::new(0),
            catalogue: None,
            drivers: BTreeMap::new(),
            plans: BTreeMap::new(),
            transports: BTreeMap::new(),
            changes: Changes::default(),
            answers: Vec::new(),
            traced: Vec::new(),
            stats: BTreeMap::new(),
            tags: tag.into_iter().map(|tag| (tag, Reached::new(None, None))).collect(),
            datagram_peers: BTreeMap::new(),
            limits: request.limits.clone(),
            facts: None,
            silent_since: None,
            broken: None,
            waiting: Vec::new(),
            due_at: Time::ZERO,
            is_pending: true,
            stats_at: now().after(STATS_INTERVAL),
        })
    }

    /// The peer's name and address.
    pub(crate) fn peer(&self) -> &str {
        &self.peer
    }

    /// Whether this connection of the peer comes after all before; if so, later ones must come after it.
    pub(crate) fn is_newer(&mut self, attempt: u32) -> bool {
        let latest = self.attempt.max(attempt);
        attempt > std::mem::replace(&mut self.attempt, latest)
    }

    /// The peer came back on a new connection.
    pub(crate) fn resume(
        &mut self,
        stream: ControlStream,
        received: u64,
        host: &str,
        poller: &mut Poller,
        tell: &mut dyn FnMut(Event),
    ) -> Result<(), LinkError> {
        self.is_pending = true;
        self.link.disconnect(poller);
        self.lose_links();
        let (session, ours) = (self.token, self.link.received());
        let welcome = Control::Welcome { host: host.into(), session, resumed: true, received: ours };
        self.link.connect(stream, received, Some(&welcome), now())?;
        let tag = self.link.quic().and_then(|stream| stream.tag());
        self.tags.extend(tag.map(|tag| (tag, Reached::new(None, None))));
        self.hear_again(tell);
        Ok(())
    }

    fn lose_links(&mut self) {
        self.datagram_peers.clear();
        self.tags.clear();
        self.command(Command::LinksLost);
    }

    fn hear_again(&mut self, tell: &mut dyn FnMut(Event)) {
        if let Some(since) = self.silent_since.take() {
            self.command(Command::Heard);
            tell(Event::LinkBack { seconds: now().since(since).as_secs_f64() });
        }
    }

    /// A data connection for one driver came over TCP.
    pub(crate) fn link(&mut self, driver: u32, socket: OwnedFd, keys: Option<SealKeys>) {
        self.link_over(driver, socket, keys, false);
    }

    /// What is not as it was asked for when the driver was opened goes by the other of the two that stand in for each
    /// other: networks that let no UDP through are why.
    fn link_over(&mut self, driver: u32, socket: OwnedFd, keys: Option<SealKeys>, is_datagram: bool) {
        let Some(opened) = self.transports.get(&driver) else { return };
        let transport = match (opened.class.is_datagram() == is_datagram, is_datagram) {
            (true, _) => Some(opened.clone()),
            (false, true) => TransportPlan::defaults(DEFAULT_TRANSPORT),
            (false, false) => TransportPlan::defaults(FALLBACK_TRANSPORT),
        };
        self.command(Command::Link { driver, transport, socket, keys });
        // A failing control channel shows when the session is next served.
        let _ = self.link.send(&Control::Linked { driver });
    }

    /// Whether a datagram link of this driver comes from this peer already; confirms it again if so.
    pub(crate) fn confirm_datagram_link(&mut self, driver: u32, peer: SocketAddr) -> bool {
        let known = self.datagram_peers.get(&driver) == Some(&peer);
        if known {
            let _ = self.link.send(&Control::Linked { driver });
        }
        known
    }

    /// Whether a datagram link of this session's comes from `peer`.
    pub(crate) fn has_datagram_link(&self, peer: SocketAddr) -> bool {
        self.datagram_peers.values().any(|known| *known == peer)
    }

    /// A datagram link for one driver came from `peer`.
    pub(crate) fn link_datagrams(
        &mut self,
        driver: u32,
        peer: SocketAddr,
        socket: OwnedFd,
        keys: Option<SealKeys>,
    ) {
        self.datagram_peers.insert(driver, peer);
        if let Some(keys) = &keys {
            let tag = transports::quic::data_tag(keys);
            self.tags.retain(|_, reached| reached.driver != Some(driver));
            self.tags.insert(tag, Reached::new(Some(driver), Some(peer)));
        }
        self.link_over(driver, socket, keys, true);
    }

    /// Something came from `peer` for the connection of this tag, if it is one of this session: its peer may have
    /// moved there, and the connection is given a socket to find out.
    pub(crate) fn follow(
        &mut self,
        tag: Tag,
        peer: SocketAddr,
        datagram: &[u8],
        connect: impl FnOnce() -> io::Result<OwnedFd>,
    ) -> bool {
        let Some(reached) = self.tags.get_mut(&tag) else { return false };
        let is_early = now() < reached.at.after(FOLLOW_INTERVAL);
        if reached.peer == Some(peer) || is_early {
            return true;
        }
        // What the system refuses now it may give when the peer says it again.
        let Ok(socket) = connect() else { return true };
        (reached.peer, reached.at) = (Some(peer), now());
        match reached.driver {
            Some(driver) => self.command(Command::Move { driver, socket }),
            None => {
                if let Some(stream) = self.link.quic().filter(|stream| !stream.goes_to(peer))
                    && stream.add_way(socket).is_ok()
                {
                    stream.take(datagram, peer);
                    self.is_pending = true;
                }
            }
        }
        true
    }

    /// Whether the peer said this over the control channel that this session has now.
    pub(crate) fn is_proven(&self, said: &Introduction) -> bool {
        self.link.is_proven(said)
    }

    /// What seals a data connection that is introduced so; `None` unless the peer did, now and for the first time.
    pub(crate) fn accept(&mut self, said: &Introduction) -> Option<SealKeys> {
        self.link.keys()?.accept(said)
    }

    /// The peer may open these devices from now on; what it has of others is taken from it.
    pub(crate) fn permit(&mut self, permit: Permit, shared: &mut Offers, tell: &mut dyn FnMut(Event)) {
        self.permit = permit;
        let is_kept = |number: &u64| {
            shared.get(number).is_none_or(|device| self.permit.covers(&device.name, &device.allow))
        };
        let lost: Vec<_> =
            self.drivers.iter().filter(|(_, number)| !is_kept(number)).map(|(driver, _)| *driver).collect();
        for driver in lost {
            self.dispossess(driver, "it is not shared with this host any more", shared, tell);
        }
    }

    /// A device that this session uses is back.
    pub(crate) fn return_device(&mut self, driver: u32, origin: PartnerOrigin) {
        self.command(Command::Partner { driver, origin });
        let _ = self.link.send(&Control::Presence { driver, present: true, reason: String::new() });
    }

    /// Whether the peer lives, as far as is known.
    pub(crate) fn signs(&self) -> Signs {
        let is_silent = self.silent_since.is_some() || !self.link.is_connected();
        Signs { heard: (!is_silent).then(|| self.link.heard()), is_refused: self.link.is_refused() }
    }

    /// The peer loses the device of this driver.
    pub(crate) fn dispossess(
        &mut self,
        driver: u32,
        reason: &str,
        shared: &mut Offers,
        tell: &mut dyn FnMut(Event),
    ) {
        self.close(driver, reason, shared, tell);
        // Kept until the peer is heard again; a failing channel shows when the session is next served.
        let _ = self.link.send(&Control::Close { driver, reason: reason.into() });
    }

    /// What this driver's peer says to the device counts from now on: it is asked where things stand.
    pub(crate) fn resync(&mut self, driver: u32) {
        self.command(Command::Resync { driver });
    }

    /// Its drivers on the device of this name, or all.
    pub(crate) fn named(&self, name: Option<&str>, shared: &Offers) -> impl Iterator<Item = u32> {
        let is_named =
            move |number| name.is_none_or(|name| shared.get(number).is_some_and(|d| d.name == name));
        self.drivers.iter().filter(move |(_, number)| is_named(number)).map(|(driver, _)| *driver)
    }

    /// Has these drivers' flows traced.
    pub(crate) fn trace(&mut self, drivers: Vec<u32>, one_in: Option<NonZeroU32>) {
        drivers.into_iter().for_each(|driver| self.command(Command::Trace { driver, one_in }));
    }

    fn command(&mut self, command: Command) {
        self.workers.send(command);
    }

    /// Does what there is to do now.
    pub(crate) fn serve(
        &mut self,
        shared: &mut Offers,
        poller: &mut Poller,
        now: Time,
        tell: &mut dyn FnMut(Event),
    ) -> Turn {
        self.is_pending = false;
        match self.converse(shared, poller, now, tell) {
            Ok(Turn::Goes) => {}
            Ok(over) => return over,
            Err(error) => {
                self.link.disconnect(poller);
                self.lose_links();
                // The peer may make another connection before it is missed.
                self.broken = Some(error.to_string());
                // What its workers said meanwhile waits.
                self.is_pending = true;
            }
        }
        if self.link.is_silent(now) {
            let reason = self.broken.take().unwrap_or_else(|| "nothing was heard".into());
            self.fall_silent(now, &reason, tell);
        } else if self.link.is_connected() {
            self.hear_again(tell);
        }
        match self.silent_since {
            Some(since) if now.since(since) >= self.limits.keep => Turn::Over("it did not come back".into()),
            _ => Turn::Goes,
        }
    }

    fn fall_silent(&mut self, now: Time, reason: &str, tell: &mut dyn FnMut(Event)) {
        if self.silent_since.is_none() {
            self.silent_since = Some(now);
            self.command(Command::Silence);
            tell(Event::LinkLost { reason: format!("{}: {reason}", self.peer) });
        }
    }

    fn converse(
        &mut self,
        shared: &mut Offers,
        poller: &mut Poller,
        now: Time,
        tell: &mut dyn FnMut(Event),
    ) -> Result<Turn, LinkError> {
        self.workers.clear(poller);
        while let Some(report) = self.workers.poll() {
            self.handle_report(report, shared, tell)?;
        }
        while let Some(message) = self.link.poll(now)? {
            if let Control::Goodbye { reason } = message {
                return Ok(Turn::Over(reason));
            }
            self.handle(message, now, shared, tell)?;
        }
        for (at, asked, message) in std::mem::take(&mut self.waiting) {
            match now >= at {
                true => self.handle(message, asked, shared, tell)?,
                false => self.waiting.push((at, asked, message)),
            }
        }
        self.link.run_timeouts(now)?;
        if now >= self.stats_at {
            self.stats_at = now.after(STATS_INTERVAL);
            self.command(Command::Stats);
        }
        if let Some(facts) = self.link.facts().filter(|facts| self.facts != Some(*facts)) {
            self.facts = Some(facts);
            self.command(Command::Facts(facts));
        }
        Ok(Turn::Goes)
    }

    fn handle_report(
        &mut self,
        report: Report,
        shared: &mut Offers,
        tell: &mut dyn FnMut(Event),
    ) -> Result<(), LinkError> {
        let name_of = |drivers: &BTreeMap<u32, u64>, driver: u32| {
            drivers.get(&driver).and_then(|number| shared.get(number)).map(|device| device.name.clone())
        };
        match report {
            Report::Heard(at) => self.link.handle_data(at),
            Report::Warning(problem) => tell(Event::Warning { problem }),
            // Only an attacher passes words on: a device has its own host's tools.
            Report::Said { .. } => {}
            Report::Stats(all) => {
                for (driver, stats) in all {
                    self.stats.insert(driver, (now(), stats.clone()));
                    if let Some(name) = name_of(&self.drivers, driver) {
                        tell(Event::Stats { name, stats: Box::new(stats) });
                    }
                }
            }
            Report::Trace { driver, flows } => {
                if let Some(name) = name_of(&self.drivers, driver) {
                    self.traced.extend(flows.into_iter().map(|flow| flow.named(&name, &self.peer)));
                }
            }
            Report::Notice { driver, notice } => match notice {
                Notice::Control(message) => self.link.put(&message)?,
                Notice::PartnerGone(reason) => {
                    let device = self.drivers.get(&driver).and_then(|number| shared.get_mut(number));
                    if let Some(device) = device.filter(|device| device.present) {
                        device.mark_gone();
                        tell(Event::DeviceGone { name: device.name.clone(), reason: reason.clone() });
                    }
                    self.link.send(&Control::Presence { driver, present: false, reason })?;
                }
                Notice::Changed { direction, result } => {
                    let mut plans = self.plans.get_mut(&driver).into_iter().flatten();
                    let Some(plan) = plans.find(|plan| plan.direction == direction) else { return Ok(()) };
                    let steps = self.changes.settle(plan, &result);
                    if let (Some(name), Ok(pipeline)) = (name_of(&self.drivers, driver), result) {
                        let back = direction == FlowDirection::ApplicationToDevice;
                        tell(Event::Changed { name, back, pipeline: pipeline.canonical().into() });
                    }
                    steps.into_iter().try_for_each(|step| self.step(step, shared))?;
                }
                Notice::LinkFailed(reason) => {
                    if let Some(name) = name_of(&self.drivers, driver) {
                        tell(Event::LinkLost { reason: format!("{name}: {reason}") });
                    }
                    // It may not hear of it by itself, or much later.
                    self.link.send(&Control::Unlinked { driver })?;
                }
                // Who has the application dials; what there is carries until then.
                Notice::LinkHeldBack if self.silent_since.is_some() => {}
                Notice::LinkHeldBack => self.link.send(&Control::Unlinked { driver })?,
                Notice::Incident(incident) => {
                    if let Some(name) = name_of(&self.drivers, driver) {
                        tell(Event::Module { name, incident });
                    }
                }
                Notice::Restarted { end, is_seen } => {
                    if let Some(name) = name_of(&self.drivers, driver) {
                        tell(Event::Worker { name, incident: restarted(&end) });
                    }
                    self.datagram_peers.remove(&driver);
                    self.tags.retain(|_, reached| reached.driver != Some(driver));
                    if !is_seen {
                        self.link.send(&Control::Unlinked { driver })?;
                    }
                    let plans = self.plans.get(&driver).map(Vec::as_slice).unwrap_or_default();
                    let steps = self.changes.handle_restart(Role::Device, plans);
                    steps.into_iter().try_for_each(|step| self.step(step, shared))?;
                }
                Notice::StoreFull(policy) => {
                    if let Some(name) = name_of(&self.drivers, driver) {
                        tell(Event::StoreFull { name, policy: policy.word() });
                    }
                }
                Notice::FlowEnded(_) => {
                    let number = self.drivers.get(&driver);
                    if let Some(device) = number.and_then(|number| shared.get_mut(number)) {
                        device.end_pipe();
                        tell(Event::FlowEnded { name: device.name.clone() });
                    }
                }
                Notice::Failed(reason) => {
                    self.close(driver, &reason, shared, tell);
                    self.link.send(&Control::Close { driver, reason })?;
                }
            },
        }
        Ok(())
    }

    fn handle(
        &mut self,
        message: Control,
        asked: Time,
        shared: &mut Offers,
        tell: &mut dyn FnMut(Event),
    ) -> Result<(), LinkError> {
        match message {
            Control::List => {
                let entries = self.catalogue(shared);
                self.catalogue = Some(entries.clone());
                self.link.send(&Control::Catalogue { entries })
            }
            Control::Open { ref name, .. }
                if shared.values_mut().any(|device| {
                    let may = self.permit.covers(&device.name, &device.allow);
                    device.name == *name && may && device.want(asked, self.key)
                }) =>
            {
                if self.waiting.len() < self.limits.drivers {
                    self.workers.prepare();
                    self.waiting.push((now().after(TAKE_INTERVAL), asked, message));
                }
                Ok(())
            }
            Control::Open { driver, name, transport, via, via_back, key, .. } => {
                let proposed = (via.as_deref(), via_back.as_deref());
                let answer = self.open(driver, (&name, &transport), proposed, &key, shared, tell);
                self.link.send(&answer.unwrap_or_else(|reason| Control::Refused { driver, reason }))
            }
            Control::Close { driver, reason } => {
                self.close(driver, &reason, shared, tell);
                Ok(())
            }
            message if change::flow_of(&message).is_some() => self.handle_change(&message, shared),
            Control::Acknowledge { flow, .. }
            | Control::Missing { flow, .. }
            | Control::Resync { flow, .. }
            | Control::Epoch { flow, .. }
            | Control::Changed { flow, .. }
            | Control::Begun { flow, .. }
            | Control::Gone { flow, .. }
            | Control::End { flow, .. }
            | Control::Pair { flow, .. }
            | Control::Feedback { flow, .. } => {
                self.command(Command::Control { driver: flow / FLOWS_MAX as u32, message });
                Ok(())
            }
            // What only a sharer says means nothing from an attacher, and harms nobody.
            _ => Ok(()),
        }
    }

    /// What the other host wants changed.
    fn handle_change(&mut self, message: &Control, shared: &Offers) -> Result<(), LinkError> {
        let Some(flow) = change::flow_of(message) else { return Ok(()) };
        self.change_flow(flow, shared, |changes, plan, own| changes.handle(message, plan, own))
    }

    fn change_flow(
        &mut self,
        flow: u32,
        shared: &Offers,
        act: impl FnOnce(&mut Changes, &FlowPlan, &Pipelines) -> Vec<Step>,
    ) -> Result<(), LinkError> {
        let plan = self.plans.get(&driver_of(flow)).into_iter().flatten().find(|plan| plan.flow == flow);
        let device = self.drivers.get(&driver_of(flow)).and_then(|number| shared.get(number));
        let (Some(plan), Some(device)) = (plan, device) else { return Ok(()) };
        let steps = act(&mut self.changes, plan, &device.pipelines);
        steps.into_iter().try_for_each(|step| self.step(step, shared))
    }

    /// Somebody at this host wants another pipeline for a flow of this device; says no if it has none here.
    pub(crate) fn ask_change(
        &mut self,
        visitor: u64,
        device: u64,
        direction: FlowDirection,
        edit: &Edit,
        shared: &Offers,
    ) -> bool {
        let Some((driver, _)) = self.drivers.iter().find(|(_, number)| **number == device) else {
            return false;
        };
        let mut plans = self.plans.get(driver).into_iter().flatten();
        let Some(plan) = plans.find(|plan| plan.direction == direction) else { return false };
        let step = self.changes.ask(visitor, Role::Device, plan, edit);
        // A failing control channel shows when the session is next served.
        let _ = self.step(step, shared);
        true
    }

    fn step(&mut self, step: Step, shared: &Offers) -> Result<(), LinkError> {
        match step {
            Step::Command(command) => self.command(command),
            Step::Say(message) => self.link.send(&message)?,
            Step::Answer(visitor, answer) => self.answers.push((visitor, answer)),
            Step::Wait => {}
            Step::TakeUp(flow, wish) => {
                return self.change_flow(flow, shared, |changes, plan, own| {
                    vec![changes.take_up(&wish, Role::Device, plan, own)]
                });
            }
        }
        Ok(())
    }

    pub(crate) fn want(&mut self, poller: &mut Poller) -> Time {
        self.link.want(poller);
        self.workers.want(poller);
        let kept_until = self.silent_since.map_or(Time(u64::MAX), |since| since.after(self.limits.keep));
        let at = self.link.poll_timeout(self.silent_since.is_some()).min(kept_until).min(self.stats_at);
        let at = if self.is_pending { Time::ZERO } else { at };
        self.due_at = self.waiting.iter().fold(at, |at, (waits, ..)| at.min(*waits));
        self.due_at
    }

    /// Whether there is something to do since the last wait.
    pub(crate) fn is_due(&self, poller: &Poller, now: Time) -> bool {
        self.is_pending || now >= self.due_at || self.link.is_ready(poller) || self.workers.is_ready(poller)
    }

    /// Tells the peer that this host stops, and waits a little until it knows.
    pub(crate) fn leave(&mut self, reason: &str, poller: &mut Poller) {
        self.link.leave(reason, poller);
    }

    /// Tells the peer that the session is over.
    pub(crate) fn say_goodbye(&mut self, reason: &str, poller: &mut Poller) {
        let _ = self.link.send(&Control::Goodbye { reason: reason.into() });
        self.link.part(reason, poller);
    }

    /// Takes everything down; the peer's name, and what is left to wait for.
    pub(crate) fn end(mut self, shared: &mut Offers, poller: &mut Poller) -> (String, Option<Parting>) {
        self.link.disconnect(poller);
        for (driver, number) in &self.drivers {
            if let Some(device) = shared.get_mut(number) {
                device.end_use(self.id, *driver, self.workers.leave(*driver));
            }
        }
        self.workers.forget(poller);
        (self.peer, self.workers.end())
    }
}

fn new_token() -> Result<SessionToken, RuntimeError> {
    let bytes = random::bytes().map_err(|error| RuntimeError::os("drawing a session token", error))?;
    Ok(SessionToken(bytes))
}
