//! `outboard attach`: uses devices of another host. The broker's side: it dials, opens devices there, makes the
//! applications' nodes here, and hands descriptors to a worker.

mod asked;
mod redial;
mod ways;

use crate::agree::{self, Pipelines};
use crate::application::{ApplicationChoice, make_node};
use crate::change::{self, Changes};
use crate::console::{Answer, Console};
use crate::control_link::{ControlLink, LinkError};
use crate::dial::{Dialling, Expected, Over, Patience, greet};
use crate::drain::{self, Drain};
use crate::driver::{FlowPlan, LinkFacts, Notice};
use crate::error::RuntimeError;
use crate::events::{Event, Stop};
use crate::fair::Processor;
use crate::keys::KeyShare;
use crate::registry;
use crate::share::now;
use crate::stats::DriverStats;
use crate::trace::Tracing;
use crate::trust::channel::ControlStream;
use crate::trust::{Known, PeerKey, Trust};
use crate::worker::{Command, Report, TransportPlan, Workers, restarted};
use contract::{Description, FlowDirection, FlowOffer, Role, Time};
use pipeline::Pipeline;
use redial::{ANOTHER_HOST, Redial};
use session::{Handshake, Limits, Welcomed};
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;
use sys::poller::Poller;
use ways::Ways;
use wire::Control;
use wire::control::{AgreedFlow, PublicKey};
use wire::preamble::SessionToken;

/// How long the first connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time between two requests for a device that cannot be had now.
const REOPEN_INTERVAL: Duration = Duration::from_millis(500);
/// Time between two `Stats` events.
const STATS_INTERVAL: Duration = Duration::from_secs(1);

/// One device to use.
pub struct AttachTarget {
    /// Its name in the sharer's catalogue.
    pub name: String,
    /// What stands in for it here.
    pub application: ApplicationChoice,
    /// What is proposed for its flows.
    pub pipelines: Pipelines,
}

/// What to attach, from where.
pub struct AttachRequest {
    /// `HOST:PORT`.
    pub address: String,
    /// How its records travel.
    pub transport: TransportPlan,
    /// How else, if nothing is heard of the other host that way when it is looked for first.
    pub fallback: Option<TransportPlan>,
    /// The devices.
    pub targets: Vec<AttachTarget>,
    /// Who is known, of whom the other host has to be one; without it, whoever is there (`--insecure`).
    pub trust: Option<Trust>,
    /// Bounds.
    pub limits: Limits,
    /// This host's name, for people.
    pub host: String,
}

/// A device in use.
struct Driver {
    name: String,
    application: Option<ApplicationChoice>,
    pipelines: Pipelines,
    /// Its flows, once open.
    plans: Option<Vec<FlowPlan>>,
    /// It was asked for and the answer is still to come.
    key_share: Option<KeyShare>,
    dialling: Option<Dialling>,
    /// When to ask for it again.
    reopen_at: Option<Time>,
    ended: bool,
    /// What the application sees.
    node: String,
    /// Its last figures, and when these came.
    stats: (Time, DriverStats),
}

impl Driver {
    fn open(&mut self, number: u32, transport: &TransportPlan) -> io::Result<Control> {
        let share = KeyShare::new()?;
        let key = share.public;
        self.key_share = Some(share);
        let text = |pipeline: &Option<Pipeline>| pipeline.as_ref().map(|known| known.canonical().to_string());
        Ok(Control::Open {
            driver: number,
            name: self.name.clone(),
            application: String::new(),
            transport: transport.class.name().into(),
            via: text(&self.pipelines.via),
            via_back: text(&self.pipelines.via_back),
            key,
        })
    }
}

/// A running `attach`.
pub struct Attacher {
    /// As the user says it, without its port.
    place: String,
    peer: SocketAddr,
    /// Whom this host knows, unless it takes whoever is there.
    known: Option<Known>,
    /// The other host's key, once it showed it: from then on it is no other.
    key: Option<PeerKey>,
    /// What carries now.
    transport: TransportPlan,
    ways: Ways,
    /// When to look at this host's address again.
    address_at: Time,
    limits: Limits,
    host: String,
    link: ControlLink,
    session: Option<SessionToken>,
    /// Connections made so far.
    attempt: u32,
    workers: Workers,
    /// Where it is asked what it does; none if there is no place for it.
    console: Option<Console>,
    tracing: Tracing,
    poller: Poller,
    drivers: Vec<Driver>,
    changes: Changes,
    /// For who asked at the console.
    answers: Vec<(u64, Answer)>,
    silent_since: Option<Time>,
    /// Another connection is looked for: the one that there was, if it is there still, is not served meanwhile.
    redial: Option<Redial>,
    /// When to look for one again.
    redial_at: Time,
    facts: Option<LinkFacts>,
    link_told: bool,
}

impl Attacher {
    /// Connects, and asks for the devices.
    pub fn start(request: AttachRequest) -> Result<Attacher, RuntimeError> {
        let known = request.trust.map(Known::new).transpose()?;
        let place = sys::address::host_of(&request.address).to_string();
        let port = request.address.rsplit_once(':').map_or("", |(_, port)| port);
        // A host that is called so here is looked for where it was met, if nobody else knows the name.
        let met = known.as_ref().and_then(|known| known.peers().named(&place)?.address.clone());
        let peers = match (resolve(&request.address), met) {
            (Err(_), Some(met)) => resolve(&crate::config::with_port_of(&met, port))?,
            (found, _) => found?,
        };
        let mut workers = Workers::new("attach".into(), request.limits.clone());
        let ns_per_second = Processor::share(request.limits.rates.cpu_percent_per_peer, 1);
        workers.send(Command::Processor { ns_per_second });
        let is_own = |target: &AttachTarget| {
            matches!(target.application, ApplicationChoice::Suitable | ApplicationChoice::Spec(_))
        };
        if request.targets.iter().any(is_own) {
            workers.prepare();
        }
        let poller = Poller::new().map_err(|error| RuntimeError::os("epoll", error))?;
        let drivers = request.targets.into_iter().map(|target| Driver {
            name: target.name,
            application: Some(target.application),
            pipelines: target.pipelines,
            plans: None,
            key_share: None,
            dialling: None,
            reopen_at: None,
            ended: false,
            node: String::new(),
            stats: Default::default(),
        });
        let mut attacher = Attacher {
            place,
            peer: peers[0],
            known,
            key: None,
            ways: Ways::new(&request.transport, request.fallback),
            transport: request.transport,
            address_at: Time::ZERO,
            link: ControlLink::new(&request.limits, now()),
            limits: request.limits,
            host: request.host,
            session: None,
            attempt: 0,
            workers,
            console: Console::open().ok(),
            tracing: Tracing::default(),
            poller,
            drivers: drivers.collect(),
            changes: Changes::default(),
            answers: Vec::new(),
            silent_since: None,
            redial: None,
            redial_at: Time::ZERO,
            facts: None,
            link_told: false,
        };
        attacher.connect_first(&peers)?;
        Ok(attacher)
    }

    /// Serves until all flows have ended, or `stop` is said.
    pub fn run(mut self, stop: &Stop, tell: &mut dyn FnMut(Event)) -> Result<(), RuntimeError> {
        if self.known.is_none() {
            tell(Event::Insecure { address: self.peer.to_string() });
        }
        let mut stats_at = now().after(STATS_INTERVAL);
        let mut broken = None;
        let mut drain = None;
        let result = loop {
            if stop.is_said() && !self.drains(&mut drain) {
                break Ok(());
            }
            match self.converse(tell) {
                Ok(()) => {}
                Err(Failure::Final(error)) => break Err(error),
                Err(Failure::Link(error)) => {
                    self.link.disconnect(&mut self.poller);
                    // Who says goodbye is gone; a connection that broke may be made anew before anyone is missed.
                    if matches!(error, LinkError::Goodbye(_)) {
                        self.fall_silent(&error.to_string(), tell);
                    }
                    broken = Some(error.to_string());
                }
            }
            if self.drivers.iter().all(|driver| driver.ended) {
                break Ok(());
            }
            if self.is_served() && !self.link.is_silent(now()) {
                self.hear_again(tell);
                broken = None;
            } else {
                if self.link.is_silent(now()) {
                    self.fall_silent(broken.as_deref().unwrap_or("nothing was heard"), tell);
                }
                if let Err(error) = self.redial() {
                    break Err(error);
                }
            }
            if let Err(error) = self.look_back() {
                break Err(error);
            }
            self.ways.told.drain(..).for_each(&mut *tell);
            if now() >= stats_at {
                self.workers.send(Command::Stats);
                stats_at = now().after(STATS_INTERVAL);
                if let Err(error) = self.refresh_known() {
                    break Err(error);
                }
            }
            self.follow_address();
            self.dial();
            self.attend_console();
            if let Err(error) = self.ask_again() {
                self.link.disconnect(&mut self.poller);
                broken = Some(error.to_string());
            }
            if let Err(error) = self.sleep((drain.is_none()).then_some(stop), stats_at) {
                break Err(error);
            }
        };
        let reason = if result.is_ok() { "the attacher stops" } else { "the attacher failed" };
        self.link.leave(reason, &mut self.poller);
        self.workers.forget(&mut self.poller);
        result
    }

    /// Whether flows that have ended are still brought to their end though this host stops.
    fn drains(&mut self, drain: &mut Option<Drain>) -> bool {
        let drain = drain.get_or_insert_with(|| Drain::begin(now(), self.limits.drain));
        if drain.asks(now()) {
            self.workers.send(Command::Stats);
        }
        let open = self.drivers.iter().filter(|driver| driver.plans.is_some() && !driver.ended);
        self.silent_since.is_none() && drain.goes_on(open.map(|driver| Some(&driver.stats)), now())
    }

    /// Until something comes, or it is time. Without `stop` it was said already.
    fn sleep(&mut self, stop: Option<&Stop>, mut stats_at: Time) -> Result<(), RuntimeError> {
        match stop {
            Some(stop) => self.poller.want(stop.wakes(), true, false),
            None => stats_at = stats_at.min(now().after(drain::LOOK)),
        }
        self.workers.want(&mut self.poller);
        if let Some(console) = &self.console {
            console.want(&mut self.poller);
        }
        let is_silent = self.silent_since.is_some();
        let mut at = stats_at.min(match &self.redial {
            Some(redial) => {
                redial.want(&mut self.poller);
                if is_silent { stats_at } else { self.link.silent_at() }
            }
            None => {
                self.link.want(&mut self.poller);
                let link_at = self.link.poll_timeout(is_silent);
                if self.is_served() && !is_silent { link_at } else { link_at.min(self.redial_at) }
            }
        });
        at = at.min(self.address_at);
        if !is_silent && self.redial.is_none() {
            at = at.min(self.ways.want(&mut self.poller));
        }
        for driver in &self.drivers {
            at = driver.reopen_at.map_or(at, |reopen_at| at.min(reopen_at));
            if let Some(dialling) = driver.dialling.as_ref().filter(|_| self.is_served()) {
                at = at.min(dialling.want(&mut self.poller));
            }
        }
        self.poller.wait(Some(at.since(now()))).map_err(|error| RuntimeError::os("waiting", error))?;
        Ok(())
    }

    /// Where it can be asked what it does ([`console::ask`](crate::console::ask)), if there is a place for it.
    pub fn console(&self) -> Option<&Path> {
        self.console.as_ref().map(Console::path)
    }

    /// What the other host is called here, if it is known.
    fn peer_name(&self) -> Option<&str> {
        self.known.as_ref()?.name_of(self.key.as_ref()?)
    }

    /// What another process changed of whom this host knows comes into force.
    fn refresh_known(&mut self) -> Result<(), RuntimeError> {
        let Some(known) = &mut self.known else { return Ok(()) };
        known.refresh()?;
        match self.peer_name() {
            Some(_) => Ok(()),
            None => Err(RuntimeError::Peer(format!("{} is not known here any more", self.place))),
        }
    }

    /// Connects and introduces this host; opens or resumes the session.
    fn connect(&mut self, timeout: Duration, patience: Duration) -> Result<(), RuntimeError> {
        self.attempt += 1;
        let handshake = Handshake::new(self.host.clone(), self.session, self.link.received(), self.attempt);
        let patience = Patience { connect: timeout, step: patience };
        let check = |key: &PeerKey| match (&self.known, self.key) {
            (_, Some(before)) if before != *key => Err(ANOTHER_HOST.into()),
            (Some(known), None) => known.expect(&self.place, key),
            _ => Ok(()),
        };
        let expected = match &self.known {
            None => Expected::Anyone,
            Some(known) => Expected::Known(&known.trust, &check),
        };
        let over = match (self.ways.found.take(), self.transport.is_quic()) {
            (Some(found), true) => Over::Connected(found),
            (None, true) => Over::Quic,
            (_, false) => Over::Tcp,
        };
        let (stream, welcomed) = greet(self.peer, over, &expected, &handshake, patience)?;
        self.go_on(stream, &welcomed)
    }

    /// Goes on over a connection that was made: with the session, or with one that begins.
    fn go_on(&mut self, mut stream: ControlStream, welcomed: &Welcomed) -> Result<(), RuntimeError> {
        self.key = stream.peer();
        self.link.disconnect(&mut self.poller);
        self.workers.send(Command::LinksLost);
        if !welcomed.resumed {
            self.link = ControlLink::new(&self.limits, now());
            (0..self.drivers.len() as u32).for_each(|driver| self.forget_changes(driver));
        }
        let theirs = if welcomed.resumed { welcomed.received } else { 0 };
        self.link.connect(stream, theirs, None, now())?;
        self.session = Some(welcomed.session);
        for (number, driver) in self.drivers.iter_mut().enumerate() {
            driver.dialling = None;
            if !welcomed.resumed {
                driver.reopen_at = None;
                let open = driver.open(number as u32, &self.transport);
                self.link.send(&open.map_err(|error| RuntimeError::os("drawing a key", error))?)?;
            } else if driver.plans.is_some() && driver.reopen_at.is_none() && driver.key_share.is_none() {
                driver.dialling = Some(Dialling::new(&self.transport, self.peer, now()));
            }
        }
        Ok(())
    }

    fn fall_silent(&mut self, reason: &str, tell: &mut dyn FnMut(Event)) {
        if self.silent_since.is_none() {
            self.silent_since = Some(now());
            self.workers.send(Command::Silence);
            tell(Event::LinkLost { reason: format!("{}: {reason}", self.peer) });
        }
    }

    fn hear_again(&mut self, tell: &mut dyn FnMut(Event)) {
        if let Some(since) = self.silent_since.take() {
            self.workers.send(Command::Heard);
            tell(Event::LinkBack { seconds: now().since(since).as_secs_f64() });
        }
    }

    fn converse(&mut self, tell: &mut dyn FnMut(Event)) -> Result<(), Failure> {
        self.workers.clear(&mut self.poller);
        while let Some(report) = self.workers.poll() {
            self.handle_report(report, tell)?;
        }
        if self.redial.is_none() {
            while let Some(message) = self.link.poll(now())? {
                self.handle(message, tell)?;
            }
            self.link.run_timeouts(now())?;
        }
        if let Some(facts) = self.link.facts().filter(|facts| self.facts != Some(*facts)) {
            self.facts = Some(facts);
            self.workers.send(Command::Facts(facts));
            if !std::mem::replace(&mut self.link_told, true) {
                tell(Event::Link {
                    peer: self.peer_name().map(String::from),
                    offset_ms: facts.offset.0 as f64 / 1e6,
                    error_ms: self.link.clock_error_ns().unwrap_or_default() as f64 / 1e6,
                    round_trip_ms: facts.round_trip.as_secs_f64() * 1e3,
                });
            }
        }
        Ok(())
    }

    fn handle_report(&mut self, report: Report, tell: &mut dyn FnMut(Event)) -> Result<(), Failure> {
        match report {
            Report::Heard(at) => self.link.handle_data(at),
            Report::Warning(problem) => tell(Event::Warning { problem }),
            Report::Said { visitor, result } => self.answers.push((visitor, Answer::said(result))),
            Report::Stats(all) => {
                for (number, stats) in all {
                    if let Some(driver) = self.drivers.get_mut(number as usize) {
                        driver.stats = (now(), stats.clone());
                        tell(Event::Stats { name: driver.name.clone(), stats: Box::new(stats) });
                    }
                }
            }
            Report::Trace { driver, flows } => {
                if let Some(driver) = self.drivers.get(driver as usize) {
                    let peer = self.peer.to_string();
                    self.tracing.add(flows.into_iter().map(|flow| flow.named(&driver.name, &peer)));
                }
            }
            Report::Notice { driver: number, notice } => {
                let Some(driver) = self.drivers.get_mut(number as usize) else { return Ok(()) };
                match notice {
                    Notice::Control(message) => self.link.put(&message)?,
                    Notice::Incident(incident) => {
                        tell(Event::Module { name: driver.name.clone(), incident });
                    }
                    Notice::Restarted { end, .. } => {
                        tell(Event::Worker { name: driver.name.clone(), incident: restarted(&end) });
                        driver.dialling = Some(Dialling::new(&self.transport, self.peer, now()));
                        let plans = driver.plans.as_deref().unwrap_or_default();
                        let steps = self.changes.handle_restart(Role::Application, plans);
                        steps.into_iter().for_each(|step| self.step(step));
                    }
                    Notice::StoreFull(policy) => {
                        tell(Event::StoreFull { name: driver.name.clone(), policy: policy.word() });
                    }
                    Notice::Changed { direction, result } => {
                        let mut plans = driver.plans.iter_mut().flatten();
                        let Some(plan) = plans.find(|plan| plan.direction == direction) else {
                            return Ok(());
                        };
                        let steps = self.changes.settle(plan, &result);
                        if let Ok(pipeline) = result {
                            let (name, text) = (driver.name.clone(), pipeline.canonical().to_string());
                            let back = direction == FlowDirection::ApplicationToDevice;
                            let own = &mut driver.pipelines;
                            *(if back { &mut own.via_back } else { &mut own.via }) = Some(pipeline);
                            tell(Event::Changed { name, back, pipeline: text });
                        }
                        steps.into_iter().for_each(|step| self.step(step));
                    }
                    Notice::LinkFailed(_) => {
                        // While the control channel lives, a data connection is simply made anew.
                        driver.dialling = Some(Dialling::new(&self.transport, self.peer, now()));
                    }
                    Notice::LinkHeldBack => {
                        driver
                            .dialling
                            .get_or_insert_with(|| Dialling::new(&self.transport, self.peer, now()));
                    }
                    Notice::FlowEnded(direction) => {
                        let has = |wanted| {
                            driver.plans.iter().flatten().any(|plan: &FlowPlan| plan.direction == wanted)
                        };
                        if direction == FlowDirection::DeviceToApplication
                            || !has(FlowDirection::DeviceToApplication)
                        {
                            driver.ended = true;
                        }
                        tell(Event::FlowEnded { name: driver.name.clone() });
                    }
                    Notice::PartnerGone(reason) | Notice::Failed(reason) => {
                        let name = driver.name.clone();
                        return Err(Failure::Final(RuntimeError::Peer(format!("{name}: {reason}"))));
                    }
                }
            }
        }
        Ok(())
    }

    fn handle(&mut self, message: Control, tell: &mut dyn FnMut(Event)) -> Result<(), Failure> {
        match message {
            Control::Opened { driver, class, description, flows, key } => {
                self.open(driver, class, description, (&flows, &key), tell).map_err(Failure::Final)
            }
            Control::Refused { driver, reason } | Control::Close { driver, reason } => {
                self.forget_changes(driver);
                let Some(known) = self.drivers.get_mut(driver as usize) else { return Ok(()) };
                let name = known.name.clone();
                known.key_share = None;
                if known.application.is_some() {
                    return Err(Failure::Final(RuntimeError::Peer(format!("{name}: {reason}"))));
                }
                // The application has its node and keeps it: the device is asked for until it can be had.
                known.reopen_at = Some(now().after(REOPEN_INTERVAL));
                self.workers.send(Command::Absence { driver });
                tell(Event::DeviceGone { name, reason });
                Ok(())
            }
            message if change::flow_of(&message).is_some() => {
                self.handle_change(&message);
                Ok(())
            }
            Control::Goodbye { reason } => {
                self.session = None;
                Err(Failure::Link(LinkError::Goodbye(reason)))
            }
            Control::Linked { driver } => {
                let dialling =
                    self.drivers.get_mut(driver as usize).and_then(|driver| driver.dialling.as_mut());
                if let Some(dialling) = dialling {
                    dialling.handle_linked();
                }
                Ok(())
            }
            Control::Unlinked { driver } => {
                if let Some(driver) =
                    self.drivers.get_mut(driver as usize).filter(|driver| driver.plans.is_some())
                    && driver.reopen_at.is_none()
                    // What is under way is not what is gone.
                    && driver.dialling.as_ref().is_none_or(Dialling::is_linked)
                {
                    driver.dialling = Some(Dialling::new(&self.transport, self.peer, now()));
                }
                Ok(())
            }
            Control::Presence { driver, present, reason } => {
                if let Some(known) = self.drivers.get(driver as usize) {
                    let name = known.name.clone();
                    match present {
                        true => tell(Event::DeviceBack { name }),
                        false => {
                            self.workers.send(Command::Absence { driver });
                            tell(Event::DeviceGone { name, reason });
                        }
                    }
                }
                Ok(())
            }
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
                let driver = flow / wire::control::FLOWS_MAX as u32;
                self.workers.send(Command::Control { driver, message });
                Ok(())
            }
            // What only an attacher says means nothing from a sharer, and harms nobody.
            _ => Ok(()),
        }
    }

    /// The device is open there: make the node here, and the paths.
    fn open(
        &mut self,
        number: u32,
        class: String,
        properties: Vec<u8>,
        (flows, their_key): (&[AgreedFlow], &PublicKey),
        tell: &mut dyn FnMut(Event),
    ) -> Result<(), RuntimeError> {
        // What was asked of its flows while it was away ends with them.
        self.forget_changes(number);
        let Some(driver) = self.drivers.get_mut(number as usize) else { return Ok(()) };
        let Some(share) = driver.key_share.take() else { return Ok(()) };
        let keys = share.agree(their_key, driver.pipelines.key.as_ref()).map_err(RuntimeError::Peer)?;
        let plans = agree::read_answer(flows, &driver.pipelines, &keys).map_err(RuntimeError::Peer)?;
        let suitable = registry::device_class(&class).map_or("stdout", |class| class.application());
        let offer = |plan: &FlowPlan| FlowOffer {
            direction: plan.direction,
            format: plan.format.clone(),
            class: plan.class,
        };
        let flows_offered = plans.iter().map(offer).collect();
        let description = Description {
            class,
            summary: driver.name.clone(),
            flows: flows_offered,
            application: suitable,
            properties,
        };
        match driver.application.take() {
            // The sharer started anew: the node stays, its paths are built again.
            None => {
                self.workers.send(Command::Rebuild { driver: number, flows: plans.clone() });
            }
            Some(choice) => {
                let (origin, node) = make_node(choice, suitable, &description)?;
                let (role, transport) = (Role::Application, self.transport.clone());
                let command = Command::Add { driver: number, origin, role, flows: plans.clone(), transport };
                self.workers.send(command);
                let pipelines = flows.iter().map(|flow| flow.pipeline.clone()).collect();
                driver.node = node.clone();
                tell(Event::Attached { name: driver.name.clone(), node, pipelines });
            }
        }
        driver.plans = Some(plans);
        driver.dialling = Some(Dialling::new(&self.transport, self.peer, now()));
        Ok(())
    }

    /// Asks for devices that could not be had.
    fn ask_again(&mut self) -> Result<(), LinkError> {
        for (number, driver) in self.drivers.iter_mut().enumerate() {
            if driver.reopen_at.is_some_and(|at| at <= now()) {
                driver.reopen_at = None;
                self.link.send(&driver.open(number as u32, &self.transport)?)?;
            }
        }
        Ok(())
    }
}

/// Why a conversation stopped.
enum Failure {
    /// The connection is of no more use; another may be.
    Link(LinkError),
    /// There is nothing to go on with.
    Final(RuntimeError),
}

impl From<LinkError> for Failure {
    fn from(error: LinkError) -> Self {
        Failure::Link(error)
    }
}

/// All addresses of a host, at least one.
pub(crate) fn resolve(address: &str) -> Result<Vec<SocketAddr>, RuntimeError> {
    sys::address::resolve(address).map_err(|error| RuntimeError::Unreachable(format!("{address}: {error}")))
}
