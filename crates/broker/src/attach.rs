//! `outboard attach`: uses devices of another host.
//!
//! The broker of the application host connects to the device host, opens devices there, creates the local nodes for
//! applications, and passes descriptors to a worker.

mod another;
mod asked;
mod handover;
mod kind;
mod making;
mod redial;
mod start;
mod transport_choice;

use crate::agree::{self, OtherHost};
use crate::control_link::{ControlLink, LinkError};
use crate::events::Event;
use crate::peer_session::{Driver, PeerSession};
use crate::rest::{Look, REST_INTERVAL};
use crate::tracing::Tracing;
use console::Console;
use contract::{Description, FlowDirection, FlowOffer, Kind, Role, ServiceError, Time};
use flow::drain::{self, Drain};
use flow::fair::Processor;
use flow::nodes::Claim;
use flow::types::{FlowPlan, Notice};
use hosts::dial::{Dialling, Expected, Over, Patience, SHARE, greet, is_here};
use hosts::look_up::LookUp;
use hosts::ways::Ways;
use hub::application::{ApplicationChoice, make_node};
use making::Making;
use modules::{Pipelines, TransportPlan, now, registry};
use pipeline::Pipeline;
use redial::{ANOTHER_HOST, Redial};
use session::{Handshake, Limits, LossCounts, Welcomed};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;
use sys::poller::Poller;
use sys::route::AddressWatch;
use sys::stop::Stop;
use sys::timer::Sleeper;
use transport_choice::TransportChoice;
use trust::channel::ControlStream;
use trust::keys::KeyShare;
use trust::{KeyRefusal, Known, PeerKey, Target, Trust};
use wire::Control;
use wire::control::{AgreedFlow, PublicKey};
use wire::preamble::SessionToken;
use worker::{Command, Handover, Workers};

/// Timeout of the first connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval before the first request for a device that has become unavailable.
const REOPEN_INTERVAL: Duration = Duration::from_millis(500);
/// Longest interval. It doubles after each refusal, and after each use shorter than [`SETTLED`]. Somebody may wait for a device that
/// another peer gives back.
const REOPEN_INTERVAL_MAX: Duration = Duration::from_secs(2);
const SETTLED: Duration = Duration::from_secs(10);

/// One device to attach.
pub struct AttachTarget {
    /// The device's name in the catalogue of the device host.
    pub name: String,
    /// The local partner: the node or program that stands in for the device.
    pub application: ApplicationChoice,
    /// The pipelines to propose for the device's flows.
    pub pipelines: Pipelines,
    /// The kind that the device must have; `None`: the kind that it had before.
    pub expect: Option<Kind>,
}

/// Devices to attach, and the host that offers them.
pub struct AttachRequest {
    /// The peer that must answer, by its name; by default the record of the address decides ([`Peers::expected`]).
    ///
    /// [`Peers::expected`]: trust::Peers::expected
    pub peer: Option<String>,
    /// `HOST:PORT`.
    pub address: String,
    /// Transport of the records.
    pub transport: TransportPlan,
    /// Transport to use if the host does not answer the first connection over `transport`.
    pub fallback: Option<TransportPlan>,
    /// The devices.
    pub targets: Vec<AttachTarget>,
    /// This host's identity and its peers; the device host must be one of them. `None` (`--insecure`) accepts any host.
    pub trust: Option<Trust>,
    /// Limits of the session.
    pub limits: Limits,
    /// This host's name, as shown to users of the device host.
    pub host: String,
}

/// The application host's part of a driver.
struct AttachedDevice {
    /// The partner to create; `None` once the device has been opened.
    application: Option<ApplicationChoice>,
    /// The partner is being created.
    making: Option<Making>,
    /// The agreed pipelines of its flows, as text.
    agreed: Vec<String>,
    /// Its class; empty if the device or this program chooses it.
    class: String,
    opening: Opening,
    /// Time of the latest `Opened`, and the interval before the next `Open` if the device fails or is refused.
    opened_at: Time,
    reopen_interval: Duration,
    /// The latest reason why the device is unavailable; `None` while it is open.
    gone: Option<String>,
    dialling: Option<Dialling>,
    /// Further connections of the link.
    ways: Ways,
    /// The flow that the application waits for has ended.
    has_ended: bool,
    /// Messages of reliable flows that failures on either host lost, by reason.
    lost: LossCounts,
    /// The node that the application opens.
    node: String,
    /// The claim to its name. The workers, which have the node, end before it is dropped.
    claim: Option<Claim>,
    /// The kind that the user expects.
    expect: Option<Kind>,
    /// The kind of the opened device, and its latest description.
    kind: Option<Kind>,
    described: Option<Description>,
}

/// Progress of opening a device at the device host.
enum Opening {
    /// No `Open` has been sent.
    NotRequested,
    /// An `Open` waits for its answer, with this key share of this host.
    Requested(KeyShare),
    Open,
    /// The device host has refused or closed the device; the next `Open` follows at this time.
    Unavailable {
        retry_at: Time,
    },
}

impl AttachedDevice {
    /// Returns whether the node and its paths exist, because the device has been opened before.
    fn has_node(&self) -> bool {
        self.application.is_none() && self.making.is_none()
    }

    /// Handles a device that was refused or closed: schedules the next `Open`. Returns whether the user does not know this
    /// reason yet.
    fn handle_gone(&mut self, reason: &str, now: Time) -> bool {
        if self.gone.is_none() && now.since(self.opened_at) >= SETTLED {
            self.reopen_interval = REOPEN_INTERVAL;
        }
        let interval = self.reopen_interval;
        self.reopen_interval = (interval * 2).min(REOPEN_INTERVAL_MAX);
        self.opening = Opening::Unavailable { retry_at: now.after(interval) };
        self.gone.replace(reason.into()).as_deref() != Some(reason)
    }

    /// Returns the time of the next `Open`, if the device is unavailable.
    fn retry_at(&self) -> Option<Time> {
        match self.opening {
            Opening::Unavailable { retry_at } => Some(retry_at),
            _ => None,
        }
    }
}

impl Driver<AttachedDevice> {
    /// Returns the request to open the device.
    fn open(&mut self, number: u32, transport: &TransportPlan) -> io::Result<Control> {
        let share = KeyShare::new()?;
        let key = share.public;
        self.own.opening = Opening::Requested(share);
        let text = |pipeline: &Option<Pipeline>| pipeline.as_ref().map(|known| known.canonical().to_string());
        Ok(Control::Open {
            driver: number,
            name: self.name.clone(),
            application: self.own.class.clone(),
            transport: transport.class.name().into(),
            via: text(&self.pipelines.via),
            via_back: text(&self.pipelines.via_back),
            key,
        })
    }
}

/// A running `attach`.
pub struct ApplicationHost {
    /// The device host as the user wrote it.
    target: Target,
    /// The command that should listen there, for the error of the first connection.
    listener: &'static str,
    /// The address at which the device host answered last.
    address: SocketAddr,
    look_up: LookUp,
    /// The part that both roles have.
    common: PeerSession<AttachedDevice>,
    /// The peers of this host; `None` with `--insecure`.
    known: Option<Known>,
    /// The key of the device host, after the first handshake. Later connections must show the same key.
    key: Option<PeerKey>,
    /// The transport in use.
    transport: TransportPlan,
    choice: TransportChoice,
    address_watch: AddressWatch,
    look: Look,
    sleeper: Sleeper,
    limits: Limits,
    host: String,
    /// The token with which this host resumes the session.
    token: Option<SessionToken>,
    /// Number of connections attempted so far.
    attempt: u32,
    /// The local control socket; `None` if it could not be created, and until the first connection, which blocks, is made.
    console: Option<Console>,
    tracing: Tracing,
    poller: Poller,
    /// A search for a new connection, in a thread. While it runs, the old connection is not served even if it still exists.
    redial: Option<Redial>,
    /// Earliest time of the next search.
    redial_at: Time,
    /// The first and the last of the refusals in a row by the device host.
    refused: Option<(Time, Time)>,
}

impl ApplicationHost {
    /// Creates a host without a connection.
    fn new(request: AttachRequest) -> Result<ApplicationHost, ServiceError> {
        let known = request.trust.map(Known::new).transpose()?;
        let target = Target { peer: request.peer, address: request.address };
        let mut workers = Workers::new("attach".into(), request.limits.clone());
        let ns_per_second = Processor::share(request.limits.rates.cpu_percent_per_peer, 1);
        workers.send(Command::Processor { ns_per_second });
        let is_own = |target: &AttachTarget| {
            matches!(target.application, ApplicationChoice::Suitable | ApplicationChoice::Spec(..))
        };
        if request.targets.iter().any(is_own) {
            workers.prepare();
        }
        let poller = Poller::new().map_err(|error| ServiceError::os("epoll", error))?;
        let look = Look::new(known.as_ref(), now());
        let link = ControlLink::new(&request.limits, now());
        let mut common = PeerSession::new(Role::Application, target.address.clone(), link, workers);
        for (number, target) in (0..).zip(request.targets) {
            let own = AttachedDevice {
                class: target.application.class(),
                application: Some(target.application),
                making: None,
                agreed: Vec::new(),
                opening: Opening::NotRequested,
                opened_at: Time::ZERO,
                reopen_interval: REOPEN_INTERVAL,
                gone: None,
                dialling: None,
                ways: Ways::default(),
                has_ended: false,
                lost: LossCounts::default(),
                node: String::new(),
                claim: None,
                expect: target.expect,
                kind: None,
                described: None,
            };
            common.drivers.insert(number, Driver::new(target.name, target.pipelines, Vec::new(), own));
        }
        Ok(ApplicationHost {
            look_up: LookUp::new(target.clone()),
            target,
            listener: SHARE,
            // The first connection sets it.
            address: SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
            common,
            known,
            key: None,
            choice: TransportChoice::new(&request.transport, request.fallback),
            transport: request.transport,
            address_watch: AddressWatch::default(),
            look,
            sleeper: Sleeper::default(),
            limits: request.limits,
            host: request.host,
            token: None,
            attempt: 0,
            console: None,
            tracing: Tracing::default(),
            poller,
            redial: None,
            redial_at: Time::ZERO,
            refused: None,
        })
    }

    /// Serves until all flows have ended or `stop` is raised.
    pub fn run(self, stop: &Stop, emit: &mut dyn FnMut(Event)) -> Result<(), ServiceError> {
        self.run_or_hand_over(stop, emit).map(drop)
    }

    /// Does the same as [`ApplicationHost::run`]. Returns the state for the next program, if `stop` asks for it and the next
    /// program can continue the session.
    pub fn run_or_hand_over(
        mut self,
        stop: &Stop,
        emit: &mut dyn FnMut(Event),
    ) -> Result<Option<Handover>, ServiceError> {
        self.report_resumed(emit);
        if self.known.is_none() {
            emit(Event::Insecure { address: self.address.to_string() });
        }
        let result = self.serve(stop, emit);
        if result.is_ok()
            && stop.hands_over()
            && let Some(handover) = self.hand_over()
        {
            return Ok(Some(handover));
        }
        let reason =
            if result.is_ok() { "the application host stops" } else { "the application host failed" };
        self.common.link.leave(reason, &mut self.poller);
        let reports = self.common.workers.stop(&mut self.poller);
        reports.into_iter().for_each(|report| _ = self.common.handle_report(report, emit));
        result.and_then(|()| self.check_losses()).map(|()| None)
    }

    /// Returns an error if a failure on either host has lost messages of a reliable flow.
    fn check_losses(&self) -> Result<(), ServiceError> {
        let drivers = self.common.drivers.values();
        let of_driver = |driver: &Driver<AttachedDevice>| {
            let named = |(reason, count): (&String, u64)| (format!("{}: {reason}", driver.name), count);
            driver.own.lost.iter().map(named).collect::<Vec<_>>()
        };
        ServiceError::check_losses(&drivers.flat_map(of_driver).collect())
    }

    fn serve(&mut self, stop: &Stop, emit: &mut dyn FnMut(Event)) -> Result<(), ServiceError> {
        let mut drain = None;
        while !stop.is_requested() || (!stop.hands_over() && self.drains(&mut drain)) {
            self.claims().try_for_each(Claim::check)?;
            match self.converse(emit) {
                Ok(()) => {}
                Err(Failure::Final(error)) => return Err(error),
                Err(Failure::Link(error)) => {
                    self.common.handle_link_failure(error.to_string(), &mut self.poller);
                    // A goodbye ends the session at once. After a broken connection a new one may come before the silence limit.
                    if matches!(error, LinkError::Goodbye(_)) {
                        self.common.handle_silence(now(), emit);
                    }
                }
            }
            if self.common.drivers.values().all(|driver| driver.own.has_ended) {
                break;
            }
            let is_silent = self.common.link.is_silent(now());
            if is_silent {
                self.common.handle_silence(now(), emit);
            }
            if self.is_served() && !is_silent {
                self.common.handle_link_back(emit)
            } else {
                self.redial()?
            }
            self.probe_preferred()?;
            self.choice.events.drain(..).for_each(&mut *emit);
            self.common.request_stats(now());
            let rest_interval = self.common.link.is_resting().then_some(REST_INTERVAL);
            if self.look.is_due(rest_interval, &self.poller, now()) {
                self.console.iter_mut().for_each(|console| console.reopen(&mut self.poller));
                self.refresh_known()?;
            }
            self.follow_address();
            self.finish_nodes(emit)?;
            self.dial();
            self.serve_console();
            if let Err(error) = self.ask_again() {
                self.common.handle_link_failure(error.to_string(), &mut self.poller);
            }
            let is_busy = self.is_busy();
            self.common.update_hold(is_busy, now());
            self.sleep((drain.is_none()).then_some(stop))?;
        }
        Ok(())
    }

    /// Returns whether this host waits for an answer of the device host, apart from the flows.
    fn is_busy(&self) -> bool {
        let is_open = |driver: &Driver<AttachedDevice>| matches!(driver.own.opening, Opening::Open);
        let mut drivers = self.common.drivers.values();
        self.redial.is_some()
            || drivers.any(|driver| {
                !is_open(driver) || driver.own.making.is_some() || driver.own.dialling.is_some()
            })
    }

    /// Returns the claims to the nodes.
    fn claims(&self) -> impl Iterator<Item = &Claim> {
        self.common.drivers.values().filter_map(|driver| driver.own.claim.as_ref())
    }

    /// Returns whether this host, which is stopping, still waits for ended flows to be delivered.
    fn drains(&mut self, drain: &mut Option<Drain>) -> bool {
        let drain = drain.get_or_insert_with(|| Drain::begin(now(), self.limits.drain));
        if drain.asks(now()) {
            self.common.workers.send(Command::Stats);
        }
        let drivers = self.common.drivers.values();
        let open = drivers.filter(|driver| driver.own.has_node() && !driver.own.has_ended);
        self.common.silent_since().is_none()
            && drain.continues(open.map(|driver| driver.stats.as_ref()), now())
    }

    /// Waits for an event or for the earliest timeout. `stop` is `None` once it has been raised.
    fn sleep(&mut self, stop: Option<&Stop>) -> Result<(), ServiceError> {
        let mut at = self.common.stats_at().min(self.look.register(&mut self.poller));
        match stop {
            Some(stop) => self.poller.register(stop.wakes(), true, false),
            None => at = at.min(now().after(drain::LOOK)),
        }
        self.common.workers.register(&mut self.poller);
        if let Some(console) = &self.console {
            console.register(&mut self.poller);
        }
        let is_silent = self.common.silent_since().is_some();
        at = at.min(match &self.redial {
            Some(redial) => {
                redial.register(&mut self.poller);
                if is_silent { at } else { self.common.link.silent_at() }
            }
            None => {
                self.common.link.register(&mut self.poller);
                let link_at = self.common.link.poll_timeout(is_silent);
                if self.is_served() && !is_silent { link_at } else { link_at.min(self.redial_at) }
            }
        });
        let is_resting = self.common.link.is_resting();
        at = at.min(Time(self.address_watch.register(is_resting, &mut self.poller)));
        if !is_silent && self.redial.is_none() {
            at = at.min(self.choice.register(&mut self.poller));
        }
        for driver in self.common.drivers.values() {
            if let Some(claim) = &driver.own.claim {
                self.poller.register(claim.wakes(), true, false);
            }
            if let Some(making) = &driver.own.making {
                making.register(&mut self.poller);
            }
            at = driver.own.retry_at().map_or(at, |retry_at| at.min(retry_at));
            if let Some(dialling) = driver.own.dialling.as_ref().filter(|_| self.is_served()) {
                at = at.min(dialling.register(&mut self.poller));
            }
            if self.is_served() {
                at = at.min(driver.own.ways.register(&mut self.poller));
            }
        }
        let slept = self.sleeper.sleep(at.since(now()), at.0, &mut self.poller);
        slept.map_err(|error| ServiceError::os("waiting", error))
    }

    /// Returns the path of the console socket ([`console::ask`](console::ask)), if there is one.
    pub fn console(&self) -> Option<&Path> {
        self.console.as_ref().map(Console::path)
    }

    /// Returns the local name of the device host, if it is a known peer.
    fn peer_name(&self) -> Option<&str> {
        self.known.as_ref()?.name_of(self.key.as_ref()?)
    }

    /// Reloads the list of peers, which another process may have changed.
    fn refresh_known(&mut self) -> Result<(), ServiceError> {
        let Some(known) = &mut self.known else { return Ok(()) };
        known.refresh()?;
        let gone = || ServiceError::Peer(format!("{} is no longer a peer of this host", self.target.host()));
        self.peer_name().map(|_| ()).ok_or_else(gone)
    }

    /// Connects and performs the handshake; opens or resumes the session.
    fn connect(&mut self, timeout: Duration, patience: Duration) -> Result<(), ServiceError> {
        self.attempt += 1;
        let handshake =
            Handshake::new(self.host.clone(), self.token, self.common.link.received(), self.attempt);
        let patience = Patience { connect: timeout, step: patience };
        let check = |key: &PeerKey| match (&self.known, self.key) {
            (_, Some(before)) if before != *key => Err(KeyRefusal::Mismatch(ANOTHER_HOST.into())),
            (Some(known), None) => known.expect(&self.target, key, is_here(self.address)),
            _ => Ok(()),
        };
        let expected = match &self.known {
            None => Expected::Anyone,
            Some(known) => Expected::Known(&known.trust, &check),
        };
        let over = match (self.choice.found.take(), self.transport.is_quic()) {
            (Some(found), true) => Over::Connected(found),
            (None, true) => Over::Quic,
            (_, false) => Over::Tcp,
        };
        let (stream, welcomed) = greet(self.address, over, &expected, &handshake, patience, self.listener)?;
        self.continue_on(stream, &welcomed)
    }

    /// Continues on a new connection, with the resumed session or with a new one. If the connection breaks meanwhile, the host counts as
    /// unreachable, and the session continues on the next one.
    fn continue_on(&mut self, mut stream: ControlStream, welcomed: &Welcomed) -> Result<(), ServiceError> {
        self.key = stream.peer();
        let peer = self.known.as_mut().zip(self.key.as_ref());
        // Only a later search for the peer uses its host name, so the directory may be read-only.
        let _ = peer.map(|(known, key)| known.record_host_name(key, &welcomed.host));
        self.common.link.disconnect(&mut self.poller);
        self.common.workers.send(Command::LinksLost);
        self.common.peer = self.address.to_string();
        if !welcomed.resumed {
            self.common.start_over(&self.limits);
        }
        let theirs = if welcomed.resumed { welcomed.received } else { 0 };
        let broken = |error: LinkError| match error {
            LinkError::Channel(_) => ServiceError::from(error),
            _ => ServiceError::Unreachable(error.to_string()),
        };
        self.common.link.connect(stream, theirs, None, now()).map_err(broken)?;
        let mut sent = Ok(());
        self.token = Some(welcomed.session);
        for (&number, driver) in &mut self.common.drivers {
            driver.own.dialling = None;
            driver.own.ways = Ways::default();
            if !welcomed.resumed {
                let open = driver.open(number, &self.transport);
                let open = open.map_err(|error| ServiceError::os("drawing a key", error))?;
                // The channel keeps what the connection does not take.
                sent = sent.and(self.common.link.send(&open));
            } else if driver.own.has_node()
                && let Opening::Open = driver.own.opening
            {
                driver.own.dialling = Some(Dialling::new(&self.transport, self.address, now()));
            }
        }
        sent.map_err(broken)
    }

    fn converse(&mut self, emit: &mut dyn FnMut(Event)) -> Result<(), Failure> {
        self.common.workers.clear(&mut self.poller);
        while let Some(report) = self.common.workers.poll() {
            if let Some((driver, notice)) = self.common.handle_report(report, emit)? {
                self.handle_notice(driver, notice)?;
            }
        }
        self.tracing.add(self.common.traced.drain(..));
        if self.redial.is_none() {
            while let Some(message) = self.common.link.poll(now())? {
                if let Some(message) = self.common.handle_message(message)? {
                    self.handle(message, emit)?;
                }
            }
            self.common.link.run_timeouts(now())?;
        }
        if let Some(facts) = self.common.update_facts() {
            emit(Event::Link {
                peer: self.peer_name().map(String::from),
                offset_ms: facts.offset.0 as f64 / 1e6,
                error_ms: self.common.link.clock_error_ns().unwrap_or_default() as f64 / 1e6,
                round_trip_ms: facts.round_trip.as_secs_f64() * 1e3,
            });
        }
        Ok(())
    }

    /// Handles a notice of a worker that [`PeerSession::handle_report`] leaves to the application host.
    fn handle_notice(&mut self, number: u32, notice: Notice) -> Result<(), Failure> {
        let Some(driver) = self.common.drivers.get_mut(&number) else { return Ok(()) };
        match notice {
            // The device host refuses data connections of a device that is not open. `Opened` starts one.
            Notice::Restarted { .. } | Notice::LinkFailed(_) | Notice::LinkHeldBack
                if !matches!(driver.own.opening, Opening::Open) => {}
            // The control channel is alive, so reconnecting the data connection is enough.
            Notice::Restarted { .. } | Notice::LinkFailed(_) => {
                driver.own.dialling = Some(Dialling::new(&self.transport, self.address, now()));
            }
            Notice::LinkHeldBack => {
                let dial = || Dialling::new(&self.transport, self.address, now());
                driver.own.dialling.get_or_insert_with(dial);
            }
            // The application waits for the flow from the device, or for the only flow that there is.
            Notice::FlowEnded(direction) => {
                let from_device = FlowDirection::DeviceToApplication;
                let is_last = driver.plans.iter().all(|plan| plan.direction != from_device);
                driver.own.has_ended |= direction == from_device || is_last;
            }
            Notice::WaysWanted(ways) if self.transport.class.has_ways() => driver.own.ways.request(ways),
            Notice::Lost { reason, messages } => _ = driver.own.lost.add(reason, messages),
            Notice::PartnerGone(reason) | Notice::Failed(reason) => {
                return Err(Failure::Final(ServiceError::Peer(format!("{}: {reason}", driver.name))));
            }
            // `PeerSession` has handled the others.
            _ => {}
        }
        Ok(())
    }

    fn handle(&mut self, message: Control, emit: &mut dyn FnMut(Event)) -> Result<(), Failure> {
        match message {
            Control::Opened { driver, class, description, flows, key } => {
                self.open(driver, class, description, (&flows, &key), emit).map_err(Failure::Final)?;
            }
            Control::Refused { driver, reason } | Control::Close { driver, reason } => {
                self.common.forget_changes(driver);
                let Some(known) = self.common.drivers.get_mut(&driver) else { return Ok(()) };
                let name = known.name.clone();
                if known.own.application.is_some() {
                    return Err(Failure::Final(ServiceError::Peer(format!("{name}: {reason}"))));
                }
                // The application keeps its node; this host requests the device again until it is available.
                let is_new = known.own.handle_gone(&reason, now());
                self.common.workers.send(Command::Absence { driver });
                if is_new {
                    emit(Event::DeviceGone { name, reason });
                }
            }
            Control::Goodbye { reason } => {
                self.token = None;
                return Err(Failure::Link(LinkError::Goodbye(reason)));
            }
            Control::Linked { driver } => {
                let driver = self.common.drivers.get_mut(&driver);
                let dialling = driver.and_then(|driver| driver.own.dialling.as_mut());
                if let Some(dialling) = dialling {
                    dialling.handle_linked();
                }
            }
            Control::Unlinked { driver } => {
                if let Some(driver) = self.common.drivers.get_mut(&driver)
                    && let Opening::Open = driver.own.opening
                    // A connection still in progress is not the one that the device host lost.
                    && driver.own.dialling.as_ref().is_none_or(Dialling::is_linked)
                {
                    driver.own.dialling = Some(Dialling::new(&self.transport, self.address, now()));
                }
            }
            Control::Lost { driver, messages, reason } => {
                let Some(driver) = self.common.drivers.get_mut(&driver) else { return Ok(()) };
                let reason = format!("on the device host: {reason}");
                if driver.own.lost.add(reason.clone(), messages) {
                    let incident = format!(
                        "lost messages {reason} (the output of `outboard share` there has the module's own words)"
                    );
                    emit(Event::Module { name: driver.name.clone(), incident });
                }
            }
            Control::Presence { driver, present, reason } => {
                if let Some(known) = self.common.drivers.get(&driver) {
                    let name = known.name.clone();
                    match present {
                        true => {
                            self.common.workers.send(Command::AbsenceEnded { driver });
                            emit(Event::DeviceBack { name });
                        }
                        false => {
                            self.common.workers.send(Command::Absence { driver });
                            emit(Event::DeviceGone { name, reason });
                        }
                    }
                }
            }
            // Messages that only an application host sends are ignored.
            _ => {}
        }
        Ok(())
    }

    /// Handles `Opened`: creates the local node and starts the paths.
    fn open(
        &mut self,
        number: u32,
        class: String,
        properties: Vec<u8>,
        (flows, their_key): (&[AgreedFlow], &PublicKey),
        emit: &mut dyn FnMut(Event),
    ) -> Result<(), ServiceError> {
        // Pending pipeline changes of the old flows end with those flows.
        self.common.forget_changes(number);
        let Some(driver) = self.common.drivers.get_mut(&number) else { return Ok(()) };
        let share = match std::mem::replace(&mut driver.own.opening, Opening::Open) {
            Opening::Requested(share) => share,
            before => {
                driver.own.opening = before;
                return Ok(());
            }
        };
        let keys = share.agree(their_key, driver.pipelines.key.as_ref()).map_err(ServiceError::Peer)?;
        let other = self.known.as_ref().map_or(OtherHost::Any, |_| OtherHost::Known);
        let plans =
            agree::read_answer(flows, &driver.pipelines, (other, &keys)).map_err(ServiceError::Peer)?;
        let suitable = registry::device_class(&class).map_or("stdout", |class| class.application_here());
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
        let memory = self.known.as_ref().zip(self.key.as_ref()).map(|(known, key)| (&known.trust, key));
        let device = kind::Named { name: &driver.name, address: &self.target.address, memory };
        let found = device.check(&description, driver.own.expect, driver.own.kind)?;
        if driver.own.kind.replace(found.kind).is_none() {
            emit(Event::Kind {
                name: driver.name.clone(),
                class: found.class,
                kind: found.kind.name(),
                known: found.known,
            });
        }
        if self.give_back_another(number, &description, emit) {
            return Ok(());
        }
        let Some(driver) = self.common.drivers.get_mut(&number) else { return Ok(()) };
        (driver.own.opened_at, driver.own.gone) = (now(), None);
        driver.own.described = Some(description.clone());
        driver.own.agreed = flows.iter().map(|flow| flow.pipeline.clone()).collect();
        driver.plans = plans;
        match driver.own.application.take() {
            // The device host has restarted: the node that is being made gets the new flows.
            None if driver.own.making.is_some() => return Ok(()),
            // It has restarted: keep the node and rebuild its paths.
            None => {
                self.common.workers.send(Command::Rebuild { driver: number, flows: driver.plans.clone() });
                driver.own.dialling = Some(Dialling::new(&self.transport, self.address, now()));
            }
            Some(choice) => {
                let service = service(self.known.as_ref(), self.key.as_ref(), &self.target, &driver.name);
                if Making::takes_time(&choice) {
                    driver.own.making = Some(Making::begin(choice, suitable, description, service)?);
                } else {
                    let node = make_node(choice, suitable, &description, service)?;
                    self.add_node(number, node, emit);
                }
            }
        }
        Ok(())
    }

    /// Requests unavailable devices again, when their time has come.
    fn ask_again(&mut self) -> Result<(), LinkError> {
        for (&number, driver) in &mut self.common.drivers {
            if driver.own.retry_at().is_some_and(|at| at <= now()) {
                let open = driver.open(number, &self.transport)?;
                self.common.link.send(&open)?;
            }
        }
        Ok(())
    }
}

/// Returns the name of the service that uses a device, for processes that want the same node.
fn service(known: Option<&Known>, key: Option<&PeerKey>, target: &Target, device: &str) -> String {
    let peer = known.zip(key).and_then(|(known, key)| known.name_of(key));
    format!("attach {}/{device}", peer.unwrap_or(target.host()))
}

/// A reason to stop serving the current connection.
enum Failure {
    /// The connection has failed; another one may succeed.
    Link(LinkError),
    /// The session cannot continue.
    Final(ServiceError),
}

impl From<LinkError> for Failure {
    fn from(error: LinkError) -> Self {
        Failure::Link(error)
    }
}
