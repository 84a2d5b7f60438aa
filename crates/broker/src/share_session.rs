//! One peer's session at the device host: its control channel, its worker, and the devices that it uses.

mod devices;
mod handover;
mod processor;
mod program;
mod status;

use crate::change;
use crate::control_link::{ControlLink, LinkError};
use crate::events::Event;
use crate::offers::{Offers, Shared, UserLiveness};
use crate::peer_session::{Driver, PeerSession};
use crate::share_request::ShareRequest;
use contract::ServiceError;
use contract::{Role, SealKeys, Time};
use flow::fair::Processor;
use flow::types::Notice;
use hosts::following::{Following, Sender};
use hosts::place::{DEFAULT_TRANSPORT, FALLBACK_TRANSPORT};
use hub::origin::PartnerOrigin;
use modules::TransportPlan;
use modules::now;
use program::ProgramState;
use session::{Limits, UnreportedLosses};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;
use sys::listening::canonical;
use sys::poller::Poller;
use sys::random;
use transports::quic::Tag;
use trust::channel::ControlStream;
use trust::{PeerKey, Permit};
use wire::Control;
use wire::control::CatalogueEntry;
use wire::preamble::{Introduction, SessionToken};
use worker::{Command, ExitWaiter, Report, Workers};

/// Delay between two tries to open a device that is being taken from a silent user.
const TAKE_INTERVAL: Duration = Duration::from_millis(50);

/// Delay between two checks of a device that is being opened.
const OPENING_INTERVAL: Duration = Duration::from_millis(10);

/// A user whose device another peer requests stays awake for this time after each request.
const WANTED: Duration = Duration::from_secs(1);

/// The work that a peer makes for the broker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Work {
    /// Control messages, and reads.
    pub messages: u64,
    /// Control messages that open or close devices, change pipelines or list the catalogue.
    pub requests: u64,
}

/// The result of a turn.
pub enum TurnResult {
    /// The session continues.
    Continue,
    /// The session is over, for this reason.
    Over(String),
}

/// The identity of a session's peer.
pub struct PeerIdentity {
    /// The peer's name.
    pub name: String,
    /// The peer's address.
    pub address: SocketAddr,
    /// The key that the peer has shown; `None` with `--insecure`.
    pub key: Option<PeerKey>,
    /// The devices that the peer may open.
    pub permit: Permit,
    /// The peer has the feature [`LOSSES`](session::features::LOSSES); `None` until it returns, after an upgrade of this program.
    pub has_losses: Option<bool>,
}

/// The device host's part of a driver.
pub(crate) struct OpenDevice {
    /// Number of the shared device.
    number: u64,
    /// The transport requested when the driver was opened.
    transport: TransportPlan,
    /// The program that is to make the data connection, if the transport has one.
    program: ProgramState,
    /// Time of its latest start.
    program_begun_at: Time,
}

/// One peer's session.
pub struct Session {
    id: u64,
    /// The token with which the peer resumes the session.
    pub token: SessionToken,
    /// Number of the peer's latest connection.
    attempt: u32,
    name: String,
    /// The peer's address.
    pub address: SocketAddr,
    /// The peer's key; only the same key resumes the session.
    pub key: Option<PeerKey>,
    permit: Permit,
    /// The refused requests that were reported since the permit changed: the device and the command that permits it.
    forbidden: BTreeSet<(String, String)>,
    /// Losses to report to the peer.
    pub(crate) losses: UnreportedLosses,
    /// The part that both roles have.
    pub(crate) common: PeerSession<OpenDevice>,
    /// The workers' processor limit, and their measured use.
    processor: Processor,
    /// The catalogue sent last, if the peer has requested one.
    catalogue: Option<Vec<CatalogueEntry>>,
    /// The QUIC connections, by which a peer that has moved is recognized.
    following: Following,
    /// Peer addresses of datagram connections, to recognize repeated introductions.
    datagram_peers: BTreeMap<u32, SocketAddr>,
    limits: Limits,
    /// `Open` requests that wait for a device in use or for its server: the time of the next try, the time of the request, and the request.
    waiting: Vec<(Time, Time, Control)>,
    /// Time of the next timeout.
    due_at: Time,
    /// Work is pending that no descriptor signals.
    is_pending: bool,
    /// The work since [`Session::take_work`].
    work: Work,
    /// Another peer requests a device of this one until then, and waits for a sign of this one.
    wanted_until: Time,
}

impl Session {
    /// Begins a session on an authenticated connection, and sends the `Welcome`.
    pub fn begin(
        id: u64,
        identity: PeerIdentity,
        (stream, attempt): (ControlStream, u32),
        request: &ShareRequest,
        poller: &mut Poller,
    ) -> Result<Session, ServiceError> {
        let workers = Workers::new(format!("session {id}"), request.limits.clone());
        let token = new_token()?;
        let mut link = ControlLink::new(&request.limits, now());
        let host = request.host.clone();
        let features = session::features::offered();
        let welcome = Control::Welcome { host, session: token, resumed: false, received: 0, features };
        if let Err(error) = link.connect(stream, 0, Some(&welcome), now()) {
            link.disconnect(poller);
            return Err(error.into());
        }
        let tag = link.quic().and_then(|stream| stream.tag());
        let peer = format!("{} ({})", identity.name, identity.address);
        let mut following = Following::default();
        if let Some(tag) = tag {
            following.insert(tag, None, None, Time::ZERO);
        }
        Ok(Session {
            id,
            token,
            attempt,
            name: identity.name,
            address: identity.address,
            key: identity.key,
            permit: identity.permit,
            forbidden: BTreeSet::new(),
            losses: UnreportedLosses::new(identity.has_losses),
            common: PeerSession::new(Role::Device, peer, link, workers),
            processor: Processor::new(0),
            catalogue: None,
            following,
            datagram_peers: BTreeMap::new(),
            limits: request.limits.clone(),
            waiting: Vec::new(),
            due_at: Time::ZERO,
            is_pending: true,
            work: Work::default(),
            wanted_until: Time::ZERO,
        })
    }

    /// Returns whether this connection of the peer is the newest so far, and records it.
    pub fn is_newer(&mut self, attempt: u32) -> bool {
        let latest = self.attempt.max(attempt);
        attempt > std::mem::replace(&mut self.attempt, latest)
    }

    /// Resumes the session on a new connection from this address.
    pub fn resume(
        &mut self,
        (stream, address): (ControlStream, SocketAddr),
        received: u64,
        host: &str,
        poller: &mut Poller,
        emit: &mut dyn FnMut(Event),
    ) -> Result<(), LinkError> {
        self.is_pending = true;
        self.move_to(address);
        self.common.link.disconnect(poller);
        self.lose_links();
        let (session, ours) = (self.token, self.common.link.received());
        let features = session::features::offered();
        let welcome =
            Control::Welcome { host: host.into(), session, resumed: true, received: ours, features };
        self.common.link.connect(stream, received, Some(&welcome), now())?;
        let tag = self.common.link.quic().and_then(|stream| stream.tag());
        if let Some(tag) = tag {
            self.following.insert(tag, None, None, Time::ZERO);
        }
        self.common.handle_link_back(emit);
        Ok(())
    }

    /// Records the address from which the peer uses the session now.
    fn move_to(&mut self, address: SocketAddr) {
        // A QUIC connection does not know the scope of an address.
        if (address.ip(), address.port()) != (self.address.ip(), self.address.port()) {
            self.address = address;
            self.common.peer = format!("{} ({address})", self.name);
        }
    }

    fn lose_links(&mut self) {
        self.datagram_peers.clear();
        self.following = Following::default();
        self.common.drivers.values_mut().for_each(|driver| driver.own.program = ProgramState::Idle);
        self.command(Command::LinksLost);
    }

    /// Attaches a TCP data connection to a driver; `is_way`: beside those that its link has.
    pub fn link(&mut self, (driver, is_way): (u32, bool), socket: OwnedFd, keys: Option<SealKeys>) {
        match is_way {
            true => self.command(Command::AddWay { driver, socket, keys }),
            false => self.link_over(driver, socket, keys, false),
        }
    }

    /// Attaches a data connection to a driver. If it is not of the requested kind, the peer has switched between the
    /// default transport and the fallback, because its network blocks UDP or no longer does.
    fn link_over(&mut self, driver: u32, socket: OwnedFd, keys: Option<SealKeys>, is_datagram: bool) {
        let Some(opened) = self.common.drivers.get(&driver).map(|driver| &driver.own.transport) else {
            return;
        };
        if opened.class.program().is_some() {
            // Its connections come from the program alone.
            return;
        }
        let transport = match (opened.class.is_datagram() == is_datagram, is_datagram) {
            (true, _) => Some(opened.clone()),
            (false, true) => TransportPlan::defaults(DEFAULT_TRANSPORT),
            (false, false) => TransportPlan::defaults(FALLBACK_TRANSPORT),
        };
        self.command(Command::Link { driver, transport, socket, keys });
        // If the control channel fails, the next turn notices.
        let _ = self.common.link.send(&Control::Linked { driver });
    }

    /// Returns whether `peer` already carries this driver's datagrams; if so, confirms the connection again.
    pub fn confirm_datagram_link(&mut self, driver: u32, peer: SocketAddr) -> bool {
        let known = self.datagram_peers.get(&driver) == Some(&peer);
        if known {
            let _ = self.common.link.send(&Control::Linked { driver });
        }
        known
    }

    /// Returns whether a datagram connection of this session comes from `peer`.
    pub fn has_datagram_link(&self, peer: SocketAddr) -> bool {
        self.datagram_peers.values().any(|known| *known == peer)
    }

    /// Attaches a datagram connection from `peer` to a driver.
    pub fn link_datagrams(&mut self, driver: u32, peer: SocketAddr, socket: OwnedFd, keys: Option<SealKeys>) {
        self.datagram_peers.insert(driver, peer);
        if let Some(keys) = &keys {
            let tag = transports::quic::data_tag(keys);
            self.following.remove(driver);
            self.following.insert(tag, Some(driver), Some(peer), now());
        }
        self.link_over(driver, socket, keys, true);
    }

    /// Handles a datagram from `peer` whose tag belongs to a connection of this session, which may have moved there:
    /// gives the connection a socket towards that address. Returns whether the tag is known.
    pub fn follow(
        &mut self,
        tag: Tag,
        peer: SocketAddr,
        datagram: &[u8],
        connect: impl FnOnce() -> io::Result<OwnedFd>,
    ) -> bool {
        let driver = match self.following.sender(&tag, peer, now()) {
            Sender::Unknown => return false,
            Sender::Known => return true,
            Sender::Moved(driver) => driver,
        };
        // On a system error, the peer's next datagram tries again.
        let Ok(socket) = connect() else { return true };
        self.following.handle_move(&tag, peer, now());
        match driver {
            Some(driver) => self.command(Command::Move { driver, socket }),
            None => {
                if let Some(stream) = self.common.link.quic().filter(|stream| !stream.goes_to(peer))
                    && stream.add_way(socket).is_ok()
                {
                    stream.take(datagram, peer);
                    self.following.handle_control_move(now());
                    self.is_pending = true;
                }
            }
        }
        true
    }

    /// Returns whether the peer made this introduction on the present control connection.
    pub fn is_proven(&self, said: &Introduction) -> bool {
        self.common.link.is_proven(said)
    }

    /// Returns the keys of a data connection with this introduction. `None` if the peer did not make it, or if it is a replay.
    pub fn accept(&mut self, said: &Introduction) -> Option<SealKeys> {
        self.common.link.keys()?.accept(said)
    }

    /// Replaces the peer's permit, and takes devices from the peer that the new one does not cover: they are revoked, and the
    /// worker, which may ignore orders, is killed. The other devices continue in a new one.
    pub fn permit(&mut self, permit: Permit, shared: &mut Offers, emit: &mut dyn FnMut(Event)) {
        if permit != self.permit {
            self.forbidden.clear();
        }
        self.permit = permit;
        let is_lost = |driver: &Driver<OpenDevice>| {
            shared
                .get(&driver.own.number)
                .is_some_and(|device| !self.permit.covers(&device.name, &device.allow))
        };
        let lost = self.common.drivers.iter().filter(|(_, driver)| is_lost(driver));
        let lost: Vec<u32> = lost.map(|(driver, _)| *driver).collect();
        self.common.workers.revoke(lost.iter().copied());
        for driver in &lost {
            self.take_device(*driver, "it is no longer shared with this host", shared, emit);
        }
        if !lost.is_empty() {
            self.kill_worker();
        }
    }

    /// Takes everything from a peer that is no longer paired, before the session ends.
    pub fn revoke(&mut self) {
        self.common.workers.revoke(self.common.drivers.keys().copied());
        self.kill_worker();
    }

    /// Hands a reopened device to its driver. The peer is told once the worker has taken it: events before that are in no epoch.
    pub fn return_device(&mut self, driver: u32, origin: PartnerOrigin) {
        self.command(Command::Partner { driver, origin });
    }

    /// Returns the liveness of the peer.
    pub fn liveness(&self) -> UserLiveness {
        let is_silent = self.common.silent_since().is_some() || !self.common.link.is_connected();
        UserLiveness {
            last_heard: (!is_silent).then(|| self.common.link.heard()),
            is_refused: self.common.link.is_refused(),
            round_trip: self.common.facts().unwrap_or_default().round_trip,
        }
    }

    /// Asks the peer for a sign of life, because another peer requests a device of this one.
    pub fn handle_request_of_other(&mut self) {
        let now = now();
        if now >= self.wanted_until {
            self.is_pending = true;
            self.common.link.ping_now(now);
        }
        self.wanted_until = now.after(WANTED);
    }

    /// Takes the device of this driver from the peer.
    pub fn take_device(
        &mut self,
        driver: u32,
        reason: &str,
        shared: &mut Offers,
        emit: &mut dyn FnMut(Event),
    ) {
        self.close(driver, reason, shared, emit);
        // Queued until the peer is connected again; if the control channel fails, the next turn notices.
        let _ = self.common.link.send(&Control::Close { driver, reason: reason.into() });
    }

    /// Asks the peer for the present state of its flow to the device, which this driver owns from now on.
    pub fn resync(&mut self, driver: u32) {
        self.command(Command::Resync { driver });
    }

    fn command(&mut self, command: Command) {
        self.common.workers.send(command);
    }

    /// Serves the session for one turn.
    pub fn serve(
        &mut self,
        shared: &mut Offers,
        poller: &mut Poller,
        now: Time,
        emit: &mut dyn FnMut(Event),
    ) -> TurnResult {
        self.is_pending = false;
        let steps = self.common.link.steps_left();
        let conversed = self.converse(shared, poller, now, emit);
        self.work.messages += u64::from(steps.saturating_sub(self.common.link.steps_left()));
        match conversed {
            Ok(TurnResult::Continue) => {
                let moved = self.common.link.quic().and_then(|stream| stream.remote());
                if let Some(address) = moved {
                    self.move_to(canonical(address));
                }
            }
            Ok(over) => return over,
            Err(error) => {
                self.common.handle_link_failure(error.to_string(), poller);
                self.lose_links();
                // Reports of the workers may be left unread.
                self.is_pending = true;
            }
        }
        if self.common.link.is_silent(now) {
            self.common.handle_silence(now, emit);
        } else if self.common.link.is_connected() {
            self.common.handle_link_back(emit);
        }
        self.common.update_hold(!self.waiting.is_empty() || now < self.wanted_until, now);
        match self.common.silent_since() {
            Some(since) if now.since(since) >= self.limits.keep => {
                TurnResult::Over("it did not reconnect".into())
            }
            _ => TurnResult::Continue,
        }
    }

    /// Returns the work that the peer has made since the last call.
    pub(crate) fn take_work(&mut self) -> Work {
        std::mem::take(&mut self.work)
    }

    fn converse(
        &mut self,
        shared: &mut Offers,
        poller: &mut Poller,
        now: Time,
        emit: &mut dyn FnMut(Event),
    ) -> Result<TurnResult, LinkError> {
        self.common.workers.clear(poller);
        while let Some(report) = self.common.workers.poll() {
            if let Report::Notice { notice: Notice::Flow { message, .. }, .. } = &report
                && UnreportedLosses::precede(message)
            {
                self.report_losses()?;
            }
            if let Some((driver, notice)) = self.common.handle_report(report, emit)? {
                self.handle_notice(driver, notice, shared, emit)?;
            }
        }
        while let Some(message) = self.common.link.poll(now)? {
            self.work.requests += u64::from(is_request(&message));
            if let Control::Goodbye { reason } = message {
                return Ok(TurnResult::Over(reason));
            }
            if let Some(message) = self.common.handle_message(message)? {
                self.handle(message, now, shared, emit)?;
            }
        }
        // If the link fails at one request, the others still get their answers on the next one.
        let mut answered = Ok(());
        for (at, asked, message) in std::mem::take(&mut self.waiting) {
            match now >= at {
                true => answered = answered.and(self.handle(message, asked, shared, emit)),
                false => self.waiting.push((at, asked, message)),
            }
        }
        answered?;
        if now >= self.losses.due_at() {
            self.report_losses()?;
        }
        for driver in self.following.poll_left_behind(now) {
            self.common.link.send(&Control::Unlinked { driver })?;
        }
        self.run_programs(now, emit);
        self.common.link.run_timeouts(now)?;
        self.common.request_stats(now);
        self.common.update_facts();
        Ok(TurnResult::Continue)
    }

    fn report_losses(&mut self) -> Result<(), LinkError> {
        self.losses.take().iter().try_for_each(|lost| self.common.link.send(lost))
    }

    /// Handles a notice of a worker that [`PeerSession::handle_report`] leaves to the device host.
    fn handle_notice(
        &mut self,
        driver: u32,
        notice: Notice,
        shared: &mut Offers,
        emit: &mut dyn FnMut(Event),
    ) -> Result<(), LinkError> {
        let Some(open) = self.common.drivers.get(&driver) else { return Ok(()) };
        let device = shared.get_mut(&open.own.number);
        match notice {
            Notice::PartnerGone(reason) => {
                if let Some(device) = device.filter(|device| device.present) {
                    device.mark_gone();
                    emit(Event::DeviceGone { name: open.name.clone(), reason: reason.clone() });
                }
                self.common.link.send(&Control::Presence { driver, present: false, reason })?;
            }
            // The device's program has it open and waits for it, so this host does not look for it.
            Notice::PartnerAbsent(reason) => {
                emit(Event::DeviceGone { name: open.name.clone(), reason: reason.clone() });
                self.common.link.send(&Control::Presence { driver, present: false, reason })?;
            }
            Notice::PartnerPresent => {
                emit(Event::DeviceBack { name: open.name.clone() });
                self.common.link.send(&Control::Presence { driver, present: true, reason: String::new() })?;
            }
            Notice::PartnerReturned if device.as_ref().is_some_and(|device| device.present) => {
                self.common.link.send(&Control::Presence { driver, present: true, reason: String::new() })?;
            }
            Notice::PartnerReturned => {
                device.into_iter().for_each(|device| device.handle_released(self.id, driver));
            }
            Notice::LinkFailed(reason) => {
                emit(Event::Warning {
                    problem: format!(
                        "{}: the data connection failed ({reason}); requesting another",
                        open.name
                    ),
                });
                // The peer might notice the failure late or never.
                self.common.link.send(&Control::Unlinked { driver })?;
            }
            // The application host dials; the present connection serves until then.
            Notice::LinkHeldBack if self.common.silent_since().is_some() => {}
            Notice::LinkHeldBack => self.common.link.send(&Control::Unlinked { driver })?,
            Notice::Restarted { .. } => {
                // A worker that has ended holds the device no longer.
                device.into_iter().for_each(|device| device.handle_released(self.id, driver));
                self.datagram_peers.remove(&driver);
                self.following.remove(driver);
                // The kernel resets a killed worker's stream once, and the link may lose that.
                self.common.link.send(&Control::Unlinked { driver })?;
            }
            Notice::Lost { reason, messages } => self.losses.add(driver, reason, messages, now()),
            Notice::FlowEnded(_) => device.into_iter().for_each(Shared::end_pipe),
            Notice::Failed(reason) => {
                self.close(driver, &reason, shared, emit);
                self.common.link.send(&Control::Close { driver, reason })?;
            }
            // `PeerSession` has handled the others.
            _ => {}
        }
        Ok(())
    }

    fn handle(
        &mut self,
        message: Control,
        asked: Time,
        shared: &mut Offers,
        emit: &mut dyn FnMut(Event),
    ) -> Result<(), LinkError> {
        match message {
            Control::List => {
                let entries = self.catalogue(shared);
                self.catalogue = Some(entries.clone());
                self.common.link.send(&Control::Catalogue { entries })
            }
            Control::Open { ref name, .. }
                if shared.values_mut().any(|device| {
                    let may = self.permit.covers(&device.name, &device.allow);
                    device.name == *name && may && device.request(asked, self.key)
                }) =>
            {
                self.wait(TAKE_INTERVAL, asked, message)
            }
            Control::Open {
                driver,
                ref name,
                ref application,
                ref transport,
                ref via,
                ref via_back,
                ref key,
            } => {
                let proposed = (via.as_deref(), via_back.as_deref());
                let named = (&name[..], &application[..], &transport[..]);
                match self.open((driver, asked), named, proposed, key, shared, emit) {
                    Ok(Some(opened)) => self.common.link.send(&opened),
                    Ok(None) => self.wait(OPENING_INTERVAL, asked, message),
                    Err(reason) => self.common.link.send(&Control::Refused { driver, reason }),
                }
            }
            Control::Close { driver, reason } => {
                self.close(driver, &reason, shared, emit);
                Ok(())
            }
            // The application host has started its program.
            Control::Unlinked { driver } => {
                self.handle_program_begun(driver, now());
                Ok(())
            }
            // Messages that only a device host sends are ignored.
            _ => Ok(()),
        }
    }

    /// Handles an `Open` again after this time, or refuses it if too many wait.
    fn wait(&mut self, time: Duration, asked: Time, message: Control) -> Result<(), LinkError> {
        match message {
            Control::Open { driver, .. } if self.waiting.len() >= self.limits.drivers => {
                let reason = self.too_many_drivers();
                self.common.link.send(&Control::Refused { driver, reason })
            }
            message => {
                self.common.workers.prepare();
                self.waiting.push((now().after(time), asked, message));
                Ok(())
            }
        }
    }

    /// Registers the session with the poller; returns the time of its next timeout.
    pub fn register(&mut self, poller: &mut Poller) -> Time {
        self.common.link.register(poller);
        self.common.workers.register(poller);
        let kept_until =
            self.common.silent_since().map_or(Time(u64::MAX), |since| since.after(self.limits.keep));
        let at = self
            .common
            .link
            .poll_timeout(self.common.silent_since().is_some())
            .min(kept_until)
            .min(self.losses.due_at())
            .min(self.programs_at())
            .min(self.following.poll_timeout())
            .min(self.common.stats_at());
        let at = if self.is_pending { Time::ZERO } else { at };
        self.due_at = self.waiting.iter().fold(at, |at, (waits, ..)| at.min(*waits));
        self.due_at
    }

    /// Returns whether the last wait found work for this session.
    pub fn is_due(&self, poller: &Poller, now: Time) -> bool {
        self.is_pending
            || now >= self.due_at
            || self.common.link.is_ready(poller)
            || self.common.workers.is_ready(poller)
    }

    /// Tells the peer that the session is over.
    pub fn say_goodbye(&mut self, reason: &str, poller: &mut Poller) {
        let _ = self.common.link.send(&Control::Goodbye { reason: reason.into() });
        self.common.link.part(reason, poller);
    }

    /// Ends the session. Returns the peer's name and address, and a handle for the exit of its worker.
    pub fn end(mut self, shared: &mut Offers, poller: &mut Poller) -> (String, Option<ExitWaiter>) {
        self.common.link.disconnect(poller);
        for (driver, open) in &self.common.drivers {
            if let Some(device) = shared.get_mut(&open.own.number) {
                device.end_use(self.id, *driver, self.common.workers.take_memory(*driver));
            }
        }
        self.common.workers.forget(poller);
        (self.common.peer, self.common.workers.end())
    }
}

fn new_token() -> Result<SessionToken, ServiceError> {
    let bytes = random::bytes().map_err(|error| ServiceError::os("drawing a session token", error))?;
    Ok(SessionToken(bytes))
}

/// True for messages that are work for the broker; workers handle most others.
fn is_request(message: &Control) -> bool {
    matches!(message, Control::List | Control::Open { .. } | Control::Close { .. } | Control::Unlinked { .. })
        || change::flow_of(message).is_some()
}
