//! `outboard share`: offers devices to other hosts.
//!
//! The broker of the device host listens, authenticates peers, opens devices, and passes descriptors to workers. A connection
//! is a [`Greeting`] until its peer has sent a `Hello` or an introduction; then it belongs to a [`Session`].

mod admission;
mod announcing;
mod asked;
mod attention;
mod carrier;
mod datagrams;
mod devices;
mod handover;
mod openings;
mod orders;
mod start;
mod status;

use crate::control_link::ControlLink;
use crate::events::Event;
use crate::handover::Left;
use crate::join_socket::{Answer, JoinSocket, Request, Visit};
use crate::offers::{Offers, add_offer, free_name};
use crate::rest::{Look, REST_INTERVAL};
use crate::share_request::ShareRequest;
use crate::share_session::{PeerIdentity, Session};
use crate::tracing::Tracing;
use admission::{Admissions, quota_key};
use announcing::Announcing;
use attention::Attention;
use carrier::Carrier;
use console::Console;
use contract::ServiceError;
use contract::{Role, Time};
use flow::drain::{self, Drain};
use hosts::quic_listener::QuicListener;
use modules::now;
pub use openings::{Opening, Openings};
pub use orders::Orders;
use session::features;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;
use sys::listening::{Listening, canonical};
use sys::poller::Poller;
use sys::stop::Stop;
use sys::timer::Sleeper;
use sys::uevent::Uevents;
use transports::quic::Tag;
use trust::channel::{ControlStream, SecureStream};
use trust::{Known, Permit, not_paired};
use wire::preamble::{Introduction, SessionToken};
use wire::{Control, Preamble};
use worker::{ExitWaiter, Handover};

/// Most connections accepted in one turn.
const ACCEPTS_MAX: usize = 64;
/// Interval of checks at rest while the unplugging of a device shows only in its missing node, and perhaps in no notification.
const NODE_INTERVAL: Duration = Duration::from_secs(5);
/// The host stays awake for this time after a connection.
const AWAKE: Duration = Duration::from_secs(3);

/// Shortest interval between two checks of the devices: with a thousand devices, a check takes as long as serving some peers.
const DEVICES_INTERVAL: Duration = Duration::from_millis(10);

/// A connection that has not introduced itself yet.
struct Greeting {
    carrier: Carrier,
    peer: SocketAddr,
    bytes: [u8; Introduction::BYTES],
    filled: usize,
    /// Number of bytes to read: a preamble, or an introduction once the preamble announces one.
    needed: usize,
    until: Time,
    /// The control channel that waits for a `Hello`, after a control preamble.
    control: Option<ControlLink>,
    /// Time of the next timeout.
    due_at: Time,
}

impl Greeting {
    /// Returns the connection's tag, if it is QUIC.
    fn tag(&mut self) -> Option<Tag> {
        match (&self.carrier, &mut self.control) {
            (Carrier::Quic(Some(stream)), _) => stream.tag(),
            (_, Some(control)) => control.quic()?.tag(),
            _ => None,
        }
    }
}

/// A running `share`.
pub struct DeviceHost {
    request: ShareRequest,
    /// The peers of this host; `None` with `--insecure`.
    known: Option<Known>,
    listener: TcpListener,
    udp: UdpSocket,
    quic: QuicListener,
    address: SocketAddr,
    poller: Poller,
    orders: Orders,
    /// The socket through which other processes of this user join; `None` if it could not be created.
    join_socket: Option<JoinSocket>,
    openings: Openings,
    /// The console; `None` if it could not be created.
    console: Option<Console>,
    tracing: Tracing,
    greetings: VecDeque<Greeting>,
    sessions: BTreeMap<u64, Session>,
    /// Workers of ended sessions that have not exited yet.
    exits: Vec<ExitWaiter>,
    /// Declared after `sessions`, to be dropped after them: their workers may still write to these devices.
    shared: Offers,
    next_session: u64,
    admissions: Admissions,
    announcing: Announcing,
    attention: Attention,
    /// Earliest time of the next check of the devices.
    devices_at: Time,
    look: Look,
    /// Notifications of unplugged devices; `None` if no device can be unplugged.
    uevents: Option<Uevents>,
    /// Time of the next check for missing nodes, if one is needed.
    nodes_at: Time,
    sleeper: Sleeper,
    /// Connections arrived until shortly before this time.
    awake_until: Time,
    /// The sessions of the previous program, until they resume.
    left: Option<Left>,
}

impl DeviceHost {
    /// A device host that offers nothing yet.
    fn listen(listening: Listening, request: ShareRequest) -> Result<DeviceHost, ServiceError> {
        let known = request.trust.clone().map(Known::new).transpose()?;
        let Listening { tcp: listener, udp, address } = listening;
        let quic = QuicListener::new(request.trust.as_ref(), address);
        let quic = quic.map_err(|error| ServiceError::os("setting up QUIC", error))?;
        // From here on other processes may connect to join; they get their answers once `run` starts.
        let join_socket =
            JoinSocket::open(address.port(), request.devices.len() as u64, request.limits.greeting).ok();
        let poller = Poller::new().map_err(|error| ServiceError::os("epoll", error))?;
        let admissions = Admissions::new(&request.limits.admission);
        let attention = Attention::new(&request.limits.rates);
        let look = Look::new(known.as_ref(), now());
        Ok(DeviceHost {
            request,
            known,
            listener,
            udp,
            quic,
            address,
            poller,
            shared: Offers::new(),
            orders: Orders::new().map_err(|error| ServiceError::os("eventfd", error))?,
            join_socket,
            openings: Openings::new().map_err(|error| ServiceError::os("eventfd", error))?,
            console: Console::open().ok(),
            tracing: Tracing::default(),
            greetings: VecDeque::new(),
            sessions: BTreeMap::new(),
            exits: Vec::new(),
            next_session: 1,
            admissions,
            announcing: Announcing::default(),
            attention,
            devices_at: Time::ZERO,
            look,
            uevents: None,
            nodes_at: Time(u64::MAX),
            sleeper: Sleeper::default(),
            awake_until: Time::ZERO,
            left: None,
        })
    }

    /// Returns the address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop` is raised.
    pub fn run(self, stop: &Stop, emit: &mut dyn FnMut(Event)) -> Result<(), ServiceError> {
        self.run_or_hand_over(stop, emit).map(drop)
    }

    /// Does the same as [`DeviceHost::run`]. Returns the state for the next program, if `stop` asks for it.
    pub fn run_or_hand_over(
        mut self,
        stop: &Stop,
        emit: &mut dyn FnMut(Event),
    ) -> Result<Option<Handover>, ServiceError> {
        emit(Event::Listening { address: self.address.to_string() });
        match &mut self.known {
            None => emit(Event::Insecure { address: self.address.to_string() }),
            Some(known) => {
                // `outboard run` reads the hosts of the fleet after this one has begun to listen. An error is shown
                // at the next refresh.
                let _ = known.refresh();
                emit(Event::KnownPeers { peers: known.names() });
            }
        }
        for device in self.shared.values() {
            emit(Event::Offered { name: device.name.clone(), summary: device.description.summary.clone() });
        }
        self.resume_sessions(emit);
        self.announce(|_| false, emit);
        let mut drain = None;
        while !stop.is_requested() || (!stop.hands_over() && self.drains(&mut drain)) {
            if drain.is_none() {
                self.accept(emit);
            }
            self.receive_datagrams(emit);
            self.greet(emit);
            self.serve_joins(emit);
            self.execute_orders(emit);
            self.serve_console();
            self.serve(emit);
            // Seldom turns need no limit, and the next one may be far away.
            let is_early = now() < self.devices_at && !self.is_resting();
            if !is_early {
                self.update_devices(emit);
                self.devices_at = now().after(DEVICES_INTERVAL);
            }
            self.look(emit);
            let at = if is_early { self.devices_at } else { Time(u64::MAX) };
            self.sleep((drain.is_none()).then_some(stop), at)?;
        }
        let handover = match stop.hands_over() {
            true => Some(self.hand_over().map_err(|error| ServiceError::os("handing over", error))?),
            false => None,
        };
        for (_, mut session) in std::mem::take(&mut self.sessions) {
            session.common.link.leave("the device host stops", &mut self.poller);
        }
        // A worker thread that panicked has already reported it.
        self.exits.into_iter().for_each(|exit| drop(exit.join()));
        Ok(handover)
    }

    /// Returns whether all sessions rest, and nothing else happens.
    fn is_resting(&self) -> bool {
        let mut sessions = self.sessions.values();
        self.greetings.is_empty()
            && now() >= self.awake_until
            && sessions.all(|session| session.common.link.is_resting())
    }

    /// Does the periodic work when it is due.
    fn look(&mut self, emit: &mut dyn FnMut(Event)) {
        let is_resting = self.is_resting();
        // A worker that was taken over keeps to no limit, however quiet its session is.
        let may_rest = is_resting && self.request.limits.rates.cpu_percent_per_peer == 0;
        let rest_interval = may_rest.then_some(REST_INTERVAL);
        let is_due = self.look.is_due(rest_interval, &self.poller, now());
        if !is_due && !self.has_unplugged() {
            return;
        }
        self.refresh_known(emit);
        self.find_unplugged(emit);
        self.admissions.report_suppressed(now(), emit);
        self.divide_processor(emit);
        self.attention.forget(now());
        self.console.iter_mut().for_each(|console| console.reopen(&mut self.poller));
        self.join_socket.iter_mut().for_each(|socket| socket.reopen(&mut self.poller));
        for device in self.shared.values().filter(|_| !is_resting) {
            if let Some(hub) = device.hub_stats() {
                emit(Event::Hub { name: device.name.clone(), hub: Box::new(hub) });
            }
        }
    }

    /// Returns whether this host, which is stopping, still waits for ended flows to be delivered.
    fn drains(&mut self, drain: &mut Option<Drain>) -> bool {
        let drain = drain.get_or_insert_with(|| Drain::begin(now(), self.request.limits.drain));
        if drain.asks(now()) {
            self.sessions.values_mut().for_each(Session::ask_stats);
        }
        drain.continues(self.sessions.values().flat_map(Session::latest_stats), now())
    }

    /// Waits for an event or for the earliest timeout. `stop` is `None` once it has been raised; new connections then wait.
    fn sleep(&mut self, stop: Option<&Stop>, at: Time) -> Result<(), ServiceError> {
        let mut at = at.min(self.look.register(&mut self.poller)).min(self.register_devices());
        match stop {
            Some(stop) => {
                self.poller.register(stop.wakes(), true, false);
                self.poller.register(self.listener.as_fd(), true, false);
            }
            None => at = at.min(now().after(drain::LOOK)),
        }
        self.poller.register(self.orders.wakes(), true, false);
        self.poller.register(self.udp.as_fd(), true, false);
        for greeting in &mut self.greetings {
            let timeout = match &mut greeting.control {
                Some(control) => {
                    control.register(&mut self.poller);
                    // There are no pings before the peer is authenticated.
                    control.stream_timeout()
                }
                None => greeting.carrier.register(&mut self.poller).map(|timeout| now().after(timeout)),
            };
            greeting.due_at = timeout.map_or(greeting.until, |timeout| greeting.until.min(timeout));
            at = at.min(greeting.due_at);
        }
        for session in self.sessions.values_mut() {
            let rests_until = self.attention.rests_until(|| quota_key(session), now());
            at = at.min(rests_until.unwrap_or_else(|| session.register(&mut self.poller)));
        }
        for device in self.shared.values().filter(|device| !device.present) {
            at = at.min(device.reopen_at.max(self.devices_at));
        }
        if let Some(join_socket) = &self.join_socket {
            at = at.min(join_socket.register(&mut self.poller));
        }
        self.openings.register(&mut self.poller);
        if let Some(console) = &self.console {
            console.register(&mut self.poller);
        }
        let slept = self.sleeper.sleep(at.since(now()), at.0, &mut self.poller);
        slept.map_err(|error| ServiceError::os("waiting", error))
    }

    fn accept(&mut self, emit: &mut dyn FnMut(Event)) {
        // An error of `accept` affects one connection only; if descriptors have run out, the next turn tries again.
        if !self.poller.is_ready(self.listener.as_fd()) {
            return;
        }
        // Limit each turn, so that a flood of connections does not starve the sessions.
        for _ in 0..ACCEPTS_MAX {
            let Ok((stream, peer)) = self.listener.accept() else { break };
            if stream.set_nonblocking(true).is_err() {
                continue;
            }
            self.awake_until = now().after(AWAKE);
            match self.admissions.connect(peer, now()) {
                Ok(()) => self.expect_greeting(Carrier::Tcp(stream), peer, emit),
                Err(reason) => self.dismiss(self.greeting(Carrier::Tcp(stream), peer), &reason, emit),
            }
        }
    }

    fn greeting(&self, carrier: Carrier, peer: SocketAddr) -> Greeting {
        Greeting {
            carrier,
            peer: canonical(peer),
            bytes: [0; Introduction::BYTES],
            filled: 0,
            needed: Preamble::BYTES,
            until: now().after(self.request.limits.greeting),
            control: None,
            due_at: Time::ZERO,
        }
    }

    /// Waits for the preamble on an admitted connection.
    fn expect_greeting(&mut self, carrier: Carrier, peer: SocketAddr, emit: &mut dyn FnMut(Event)) {
        self.make_room(peer, emit);
        self.awake_until = now().after(AWAKE);
        let greeting = self.greeting(carrier, peer);
        self.greetings.push_back(greeting);
    }

    fn greet(&mut self, emit: &mut dyn FnMut(Event)) {
        for mut greeting in std::mem::take(&mut self.greetings) {
            if !greeting.is_due(&self.poller) {
                self.greetings.push_back(greeting);
                continue;
            }
            if now() >= greeting.until {
                self.dismiss(greeting, "it did not introduce itself in time", emit);
                continue;
            }
            match self.receive(&mut greeting) {
                Ok(None) => self.greetings.push_back(greeting),
                Ok(Some(Greeted::Hello(hello))) => self.welcome(greeting, hello, emit),
                Ok(Some(Greeted::Data { session, driver, is_way })) => {
                    self.link(greeting, session, (driver, is_way), emit);
                }
                Ok(Some(Greeted::Introduction(said))) => self.link_sealed(greeting, &said, emit),
                Err(reason) => self.dismiss(greeting, &reason, emit),
            }
        }
    }

    /// Opens and offers the devices of processes that join, and withdraws them when the processes disconnect.
    fn serve_joins(&mut self, emit: &mut dyn FnMut(Event)) {
        let Some(mut join_socket) = self.join_socket.take() else { return };
        for (visitor, visit) in join_socket.poll(&mut self.poller) {
            match visit {
                Visit::Asks(request) => {
                    if let Err(error) = self.open(visitor, &request) {
                        join_socket.answer(visitor, &Answer::refused(&error), &mut self.poller);
                    }
                }
                Visit::Over => {
                    self.openings.withdraw(visitor);
                    self.withdraw(visitor, emit);
                }
            }
        }
        while let Some(opening) = self.openings.next(&self.poller) {
            let visitor = opening.visitor;
            if join_socket.is_joined(visitor) {
                let answer = self.offer(opening, emit).unwrap_or_else(|error| Answer::refused(&error));
                join_socket.answer(visitor, &answer, &mut self.poller);
            } else if let Ok(open) = opening.result {
                open.discard();
            }
        }
        self.announce(|visitor| join_socket.is_joined(visitor), emit);
        self.join_socket = Some(join_socket);
    }

    /// Returns the path of the console socket ([`console::ask`]), if there is one.
    pub fn console(&self) -> Option<&Path> {
        self.console.as_ref().map(Console::path)
    }

    /// Begins to open the device of a process that joins.
    fn open(&mut self, visitor: u64, asked: &Request) -> Result<(), ServiceError> {
        if !asked.words.ports.is_empty() {
            let problem = "side ports do not work through the `share` that already runs: use --listen with another port";
            return Err(ServiceError::Usage(problem.into()));
        }
        let request = asked.words_here()?.request()?;
        let serves = (true, self.known.is_none(), &self.request.limits);
        if serves != (self.listens_at(request.listen), request.trust.is_none(), &request.limits) {
            return Err(ServiceError::Usage(format!(
                "the `share` that already runs listens on {} and differs in its address, --insecure or limits: \
                 use the same options, or --listen with another port",
                self.address
            )));
        }
        if request.announce {
            self.announcing.ask(visitor);
        }
        for device in request.devices {
            free_name(&self.shared, &device)?;
            let begun = self.openings.begin(visitor, device);
            begun.map_err(|error| ServiceError::os("starting a thread", error))?;
        }
        Ok(())
    }

    fn offer(&mut self, opening: Opening, emit: &mut dyn FnMut(Event)) -> Result<Answer, ServiceError> {
        let Opening { visitor, device, result } = opening;
        let offered = add_offer(&mut self.shared, visitor, &device, result?)?;
        let (name, summary) = (offered.name.clone(), offered.description.summary.clone());
        emit(Event::Offered { name: name.clone(), summary: summary.clone() });
        Ok(Answer::offering(name, summary))
    }

    fn withdraw(&mut self, number: u64, emit: &mut dyn FnMut(Event)) {
        let users = self.shared.get(&number).map(|device| device.users.clone()).unwrap_or_default();
        for user in users {
            if let Some(session) = self.sessions.get_mut(&user.session) {
                session.take_device(user.driver, "it is no longer shared", &mut self.shared, emit);
            }
        }
        if let Some(device) = self.shared.remove(&number) {
            emit(Event::Withdrawn { name: device.name });
        }
    }

    fn receive(&mut self, greeting: &mut Greeting) -> Result<Option<Greeted>, String> {
        loop {
            if let Some(control) = greeting.control.as_mut() {
                return match control.receive(now()) {
                    Ok(None) => Ok(None),
                    // Later bytes would be lost when the session takes the stream over.
                    Ok(Some(Control::Hello { .. })) if !control.is_drained() => {
                        Err("it sent more messages before the welcome".into())
                    }
                    Ok(Some(Control::Hello { host, resume, received, attempt, features })) => {
                        let missing = features::check(&features, Role::Device);
                        missing.map_err(|missing| missing.to_string())?;
                        let has_losses = features::has(&features, features::LOSSES);
                        Ok(Some(Greeted::Hello(Hello { resume, received, attempt, host, has_losses })))
                    }
                    Ok(Some(_)) => Err("it sent another message before `Hello`".into()),
                    Err(error) => Err(error.to_string()),
                };
            }
            match greeting.carrier.read(&mut greeting.bytes[greeting.filled..greeting.needed]) {
                Ok(0) => return Err("it closed before it introduced itself".into()),
                Ok(count) => greeting.filled += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.to_string()),
            }
            if greeting.filled < greeting.needed {
                continue;
            }
            let said = &greeting.bytes[..greeting.filled];
            let said_kind = Preamble::parse(said).map_err(|error| error.to_string())?;
            greeting.carrier.forget(&mut self.poller);
            let stream = match (said_kind, &self.known, &mut greeting.carrier) {
                (Preamble::Control, None, Carrier::Quic(stream))
                | (Preamble::SecureControl, Some(_), Carrier::Quic(stream)) => {
                    let stream = stream.take().ok_or("it closed before it introduced itself")?;
                    Ok(ControlStream::Quic(stream))
                }
                (
                    Preamble::Data { session, driver } | Preamble::Way { session, driver },
                    None,
                    Carrier::Tcp(_),
                ) => {
                    let is_way = matches!(said_kind, Preamble::Way { .. });
                    return Ok(Some(Greeted::Data { session, driver, is_way }));
                }
                (Preamble::SecureData { .. } | Preamble::SecureWay { .. }, Some(_), Carrier::Tcp(_))
                    if greeting.filled == Introduction::BYTES =>
                {
                    let said = Introduction::parse(said).map_err(|error| error.to_string())?;
                    return Ok(Some(Greeted::Introduction(said)));
                }
                (Preamble::SecureData { .. } | Preamble::SecureWay { .. }, Some(_), Carrier::Tcp(_)) => {
                    greeting.needed = Introduction::BYTES;
                    continue;
                }
                (Preamble::Control, None, Carrier::Tcp(stream)) => {
                    self.admissions.shake_hands(now())?;
                    stream.try_clone().map(ControlStream::Bare)
                }
                (Preamble::SecureControl, Some(known), Carrier::Tcp(stream)) => {
                    self.admissions.shake_hands(now())?;
                    let stream = stream.try_clone();
                    let stream = stream.and_then(|stream| SecureStream::accept(stream, &known.trust));
                    stream.map(|stream| ControlStream::Secure(Box::new(stream)))
                }
                (Preamble::Pairing, ..) => return Err(DOES_NOT_PAIR.into()),
                (Preamble::Control | Preamble::Data { .. } | Preamble::Way { .. }, Some(_), _) => {
                    return Err(REQUIRES_PAIRING.into());
                }
                (
                    Preamble::SecureControl | Preamble::SecureData { .. } | Preamble::SecureWay { .. },
                    None,
                    _,
                ) => {
                    return Err(IS_INSECURE.into());
                }
                (_, _, Carrier::Quic(_)) => {
                    return Err("records need a data connection of their own".into());
                }
            };
            let mut control = ControlLink::for_hello(&self.request.limits, now());
            let stream = stream.map_err(|error| error.to_string())?;
            control.connect(stream, 0, None, now()).map_err(|error| error.to_string())?;
            greeting.control = Some(control);
        }
    }

    fn dismiss(&mut self, mut greeting: Greeting, reason: &str, emit: &mut dyn FnMut(Event)) {
        greeting.carrier.forget(&mut self.poller);
        let goodbye = Control::Goodbye { reason: reason.into() };
        // Every version of Outboard understands a `Goodbye`; do not wait for its delivery.
        match (greeting.control.take(), &mut greeting.carrier) {
            (Some(mut control), _) => {
                let _ = control.send(&goodbye);
                control.part(reason, &mut self.poller);
            }
            (None, Carrier::Tcp(stream)) => drop(io::Write::write(stream, &goodbye.emit())),
            (None, Carrier::Quic(stream)) => {
                if let Some(mut stream) = stream.take() {
                    let _ = io::Write::write(&mut stream, &goodbye.emit());
                    stream.close(reason);
                }
            }
        }
        if self.admissions.refuse(reason) {
            emit(Event::Refused { peer: greeting.peer.to_string(), reason: reason.into() });
        }
    }

    fn welcome(&mut self, mut greeting: Greeting, hello: Hello, emit: &mut dyn FnMut(Event)) {
        let Hello { resume, received, attempt, host, has_losses } = hello;
        let key = greeting.control.as_mut().and_then(ControlLink::peer);
        self.refresh_known(emit);
        let (name, permit) = match (&self.known, &key) {
            (None, _) => (host, Permit::All),
            (Some(known), Some(key)) => match (known.name_of(key), known.permit(key)) {
                (Some(name), Some(permit)) => (name.to_string(), permit),
                _ => return self.dismiss(greeting, &not_paired(key), emit),
            },
            (Some(_), None) => return self.dismiss(greeting, REQUIRES_PAIRING, emit),
        };
        let token = |session: &Session| resume == Some(session.token) && session.key == key;
        let found = self.sessions.iter().find(|(_, session)| token(session)).map(|(id, _)| *id);
        let (address, peer) = (greeting.peer, format!("{name} ({})", greeting.peer));
        if let Some(session) = found.and_then(|id| self.sessions.get_mut(&id)) {
            if !session.is_newer(attempt) {
                return self.dismiss(greeting, "this session already has a newer connection", emit);
            }
            let Some(stream) = greeting.take_stream(&mut self.poller) else { return };
            session.losses.set_wanted(has_losses);
            let (connection, host) = ((stream, address), &self.request.host);
            if let Err(error) = session.resume(connection, received, host, &mut self.poller, emit) {
                emit(Event::Refused { peer, reason: error.to_string() });
            }
            return;
        }
        if let Some(reason) = self.session_limit(key.as_ref(), address) {
            return self.dismiss(greeting, &reason, emit);
        }
        let Some(stream) = greeting.take_stream(&mut self.poller) else { return };
        let id = self.next_session;
        self.next_session += 1;
        let identity = PeerIdentity { name, address, key, permit, has_losses: Some(has_losses) };
        match Session::begin(id, identity, (stream, attempt), &self.request, &mut self.poller) {
            Ok(session) => {
                self.sessions.insert(id, session);
                emit(Event::PeerJoined { peer });
                self.divide_processor(emit);
            }
            Err(error) => emit(Event::Refused { peer, reason: error.to_string() }),
        }
    }

    /// Reloads the list of peers, which another process may have changed: ends the sessions of removed peers, and
    /// takes devices from peers that lost the permission.
    fn refresh_known(&mut self, emit: &mut dyn FnMut(Event)) {
        let Some(known) = &mut self.known else { return };
        match known.refresh() {
            Ok(false) => return,
            Ok(true) => emit(Event::KnownPeers { peers: known.names() }),
            Err(error) => {
                emit(Event::Warning { problem: format!("the list of peers cannot be read: {error}") })
            }
        }
        let mut forgotten = Vec::new();
        for (id, session) in &mut self.sessions {
            match session.key.and_then(|key| known.permit(&key)) {
                Some(permit) => session.permit(permit, &mut self.shared, emit),
                None => forgotten.push(*id),
            }
        }
        for id in forgotten {
            if let Some(session) = self.sessions.get_mut(&id) {
                session.revoke();
            }
            self.end_session(id, "this host is no longer paired with the other", emit);
        }
    }

    fn end_session(&mut self, id: u64, reason: &str, emit: &mut dyn FnMut(Event)) {
        if let Some(mut session) = self.sessions.remove(&id) {
            session.say_goodbye(reason, &mut self.poller);
            self.finish_session(session, reason, emit);
        }
    }

    fn finish_session(&mut self, mut session: Session, reason: &str, emit: &mut dyn FnMut(Event)) {
        let answers = session.common.last_answers();
        if let Some(console) = &mut self.console {
            for (visitor, answer) in answers {
                console.answer_part(visitor, &session.common.peer, answer, &mut self.poller);
            }
        }
        let (peer, exit) = session.end(&mut self.shared, &mut self.poller);
        self.exits.retain(|exit| !exit.is_finished());
        self.exits.extend(exit);
        emit(Event::PeerLeft { peer, reason: reason.into() });
    }

    fn link(
        &mut self,
        greeting: Greeting,
        token: SessionToken,
        place: (u32, bool),
        emit: &mut dyn FnMut(Event),
    ) {
        match (self.sessions.values_mut().find(|session| session.token == token), greeting.carrier) {
            (Some(session), Carrier::Tcp(stream)) => session.link(place, OwnedFd::from(stream), None),
            (_, carrier) => self.dismiss(Greeting { carrier, ..greeting }, "no such session", emit),
        }
    }

    fn link_sealed(&mut self, greeting: Greeting, said: &Introduction, emit: &mut dyn FnMut(Event)) {
        let found = self.sessions.values_mut().find_map(|session| {
            let keys = session.accept(said)?;
            Some((session, keys))
        });
        match (found, greeting.carrier) {
            (Some((session, keys)), Carrier::Tcp(stream)) => {
                session.link((said.driver, said.is_way), OwnedFd::from(stream), Some(keys));
            }
            (_, carrier) => self.dismiss(Greeting { carrier, ..greeting }, "no such session", emit),
        }
    }
}

impl Greeting {
    /// Returns whether the last wait found work for this connection.
    fn is_due(&self, poller: &Poller) -> bool {
        let is_ready = match &self.control {
            Some(control) => control.is_ready(poller),
            None => self.carrier.is_ready(poller),
        };
        is_ready || now() >= self.due_at
    }

    /// Takes the control stream, with all that has arrived on it.
    fn take_stream(&mut self, poller: &mut Poller) -> Option<ControlStream> {
        self.control.take()?.take_stream(poller)
    }
}

/// Refusals of peers that use the wrong security mode or port.
const REQUIRES_PAIRING: &str = "this host accepts paired hosts only: pair the two with `outboard pair`, or use --insecure \
                             on both";
const IS_INSECURE: &str = "this host shares with --insecure: use --insecure on both hosts, or on neither";
const DOES_NOT_PAIR: &str =
    "`outboard share` listens on this port: run `outboard pair` on that host, and use the port that it shows";

enum Greeted {
    Introduction(Introduction),
    Hello(Hello),
    Data { session: SessionToken, driver: u32, is_way: bool },
}

/// The content of [`Control::Hello`].
struct Hello {
    resume: Option<SessionToken>,
    received: u64,
    attempt: u32,
    host: String,
    /// The peer has the feature [`features::LOSSES`].
    has_losses: bool,
}
