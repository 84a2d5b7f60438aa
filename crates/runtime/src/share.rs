//! `outboard share`: offers devices to other hosts. The broker's side: it listens, lets peers in, opens
//! devices, and hands descriptors to workers.

mod admission;
mod attention;
mod carrier;
mod datagrams;
mod devices;
mod orders;
mod status;

use crate::agree::Pipelines;
use crate::change;
use crate::console::{self, Console, Operation};
use crate::control_link::{ControlLink, LinkError};
use crate::drain::{self, Drain};
use crate::error::RuntimeError;
use crate::events::{Event, Stop};
use crate::junction::hub::HubPolicy;
use crate::listening::{Listening, canonical};
use crate::offers::{Offers, add_offer};
use crate::registry;
use crate::share_join::{Answer, Door, Request, Visit};
use crate::share_quic::QuicDoor;
use crate::share_session::{Session, Who};
use crate::trace::Tracing;
use crate::trust::channel::{ControlStream, SecureStream};
use crate::trust::{Known, Permit, Trust};
use crate::worker::{Parting, TransportPlan};
use admission::{Admissions, whose};
use attention::Attention;
use carrier::Carrier;
use contract::{Description, DeviceError, Partner, Role, Time};
pub(crate) use orders::Orders;
use pipeline::Edit;
use session::Limits;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::num::NonZeroU32;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use sys::poller::Poller;
use transports::quic::Tag;
use wire::preamble::{Introduction, SessionToken};
use wire::{Control, Preamble};

/// Connections that are accepted before others have their turn.
const ACCEPTS_MAX: usize = 64;
/// Time between two looks at what changes seldom, and two `Hub` events.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Devices are attended to no more often: with a thousand of them, that takes as long as serving some peers.
const DEVICES_INTERVAL: Duration = Duration::from_millis(10);

/// Makes the partner of a device of this program's own, each time a peer begins to use it.
pub type MakePartner = dyn Fn() -> Result<Box<dyn Partner>, DeviceError> + Send + Sync;

/// What is shared.
#[derive(Clone)]
pub enum DeviceChoice {
    /// `kind:rest`.
    Spec(String),
    /// A device of this program's own (a synthetic one, an instrument).
    Own(Description, Arc<MakePartner>),
}

/// One device to share.
#[derive(Clone)]
pub struct ShareDevice {
    /// What.
    pub device: DeviceChoice,
    /// Under which name; the spec's own if none.
    pub name: Option<String>,
    /// What happens to its flows.
    pub pipelines: Pipelines,
    /// Who may use it at once.
    pub hub: HubPolicy,
    /// Names of the peers that may see and open it; empty: all that are known.
    pub allow: Vec<String>,
    /// How its records travel to peers that come by this transport; to others by its defaults.
    pub transport: Option<TransportPlan>,
}

/// What to share, and where.
#[derive(Clone)]
pub struct ShareRequest {
    /// The devices.
    pub devices: Vec<ShareDevice>,
    /// Where to listen; TCP and UDP alike.
    pub listen: SocketAddr,
    /// Who is known and let in; without it, whoever comes (`--insecure`).
    pub trust: Option<Trust>,
    /// Bounds.
    pub limits: Limits,
    /// This host's name, for people.
    pub host: String,
    /// Whether the local network is told that it shares: [`crate::discovery`].
    pub announce: bool,
}

/// A connection that has not introduced itself yet.
struct Greeting {
    carrier: Carrier,
    peer: SocketAddr,
    bytes: [u8; Introduction::BYTES],
    filled: usize,
    /// Bytes of its preamble, or of its introduction once it began one.
    needed: usize,
    until: Time,
    /// After a control preamble: the channel on which its `Hello` is awaited.
    control: Option<ControlLink>,
    /// When there is something to do though nothing comes.
    due_at: Time,
}

impl Greeting {
    /// What leads to it, if it comes by QUIC.
    fn tag(&mut self) -> Option<Tag> {
        match (&self.carrier, &mut self.control) {
            (Carrier::Quic(Some(stream)), _) => stream.tag(),
            (_, Some(control)) => control.quic()?.tag(),
            _ => None,
        }
    }
}

/// A running `share`.
pub struct Sharer {
    request: ShareRequest,
    /// Whom this host knows, unless it lets in whoever comes.
    known: Option<Known>,
    listener: TcpListener,
    udp: UdpSocket,
    quic: QuicDoor,
    address: SocketAddr,
    poller: Poller,
    orders: Orders,
    /// Where other processes of this user join; none if there is no place for it.
    door: Option<Door>,
    /// Where it is asked what it does; none if there is no place for it.
    console: Option<Console>,
    tracing: Tracing,
    greetings: VecDeque<Greeting>,
    sessions: BTreeMap<u64, Session>,
    /// Workers of sessions that are over and have not ended yet.
    partings: Vec<Parting>,
    /// After the sessions: their workers may still write to what is opened here.
    shared: Offers,
    next_session: u64,
    admissions: Admissions,
    attention: Attention,
    /// When devices are attended to again at the earliest.
    devices_at: Time,
}

impl Sharer {
    /// Opens the devices and begins to listen.
    pub fn start(request: ShareRequest) -> Result<Sharer, RuntimeError> {
        let failed = |error| RuntimeError::os(format!("listening on {}", request.listen), error);
        let listening = Listening::at(request.listen).map_err(failed)?;
        Sharer::start_on(listening, request)
    }

    /// [`Sharer::start`], on sockets that are there already.
    pub fn start_on(listening: Listening, request: ShareRequest) -> Result<Sharer, RuntimeError> {
        let known = request.trust.clone().map(Known::new).transpose()?;
        let Listening { tcp: listener, udp, address } = listening;
        let quic = QuicDoor::new(request.trust.as_ref(), address);
        let quic = quic.map_err(|error| RuntimeError::os("setting up QUIC", error))?;
        // From here on other processes may join; they are answered once it runs.
        let door = Door::open(address.port(), request.devices.len() as u64, request.limits.greeting).ok();
        let mut shared = Offers::new();
        for (number, device) in (0..).zip(&request.devices) {
            add_offer(&mut shared, number, device)?;
        }
        let poller = Poller::new().map_err(|error| RuntimeError::os("epoll", error))?;
        let admissions = Admissions::new(&request.limits.admission);
        let attention = Attention::new(request.limits.rates.control_percent_per_peer);
        Ok(Sharer {
            request,
            known,
            listener,
            udp,
            quic,
            address,
            poller,
            shared,
            orders: Orders::new().map_err(|error| RuntimeError::os("eventfd", error))?,
            door,
            console: Console::open().ok(),
            tracing: Tracing::default(),
            greetings: VecDeque::new(),
            sessions: BTreeMap::new(),
            partings: Vec::new(),
            next_session: 1,
            admissions,
            attention,
            devices_at: Time::ZERO,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop` is said.
    pub fn run(mut self, stop: &Stop, tell: &mut dyn FnMut(Event)) -> Result<(), RuntimeError> {
        tell(Event::Listening { address: self.address.to_string() });
        match &self.known {
            None => tell(Event::Insecure { address: self.address.to_string() }),
            Some(known) => tell(Event::Knows { peers: known.names() }),
        }
        for device in self.shared.values() {
            tell(Event::Offered { name: device.name.clone(), summary: device.description.summary.clone() });
        }
        let _announcement = self.announce(tell);
        let mut look_at = now().after(LOOK_INTERVAL);
        let mut drain = None;
        while !stop.is_said() || self.drains(&mut drain) {
            if drain.is_none() {
                self.accept(tell);
            }
            self.attend_datagrams(tell);
            self.greet(tell);
            self.attend_door(tell);
            self.attend_orders(tell);
            self.attend_console();
            self.serve(tell);
            let is_early = now() < self.devices_at;
            if !is_early {
                self.attend_devices(tell);
                self.devices_at = now().after(DEVICES_INTERVAL);
            }
            if now() >= look_at {
                self.refresh_known(tell);
                self.admissions.tell_untold(tell);
                self.divide_processor(tell);
                self.attention.forget(now());
                for device in self.shared.values() {
                    if let Some(hub) = device.hub_stats() {
                        tell(Event::Hub { name: device.name.clone(), hub: Box::new(hub) });
                    }
                }
                look_at = now().after(LOOK_INTERVAL);
            }
            let at = if is_early { look_at.min(self.devices_at) } else { look_at };
            self.sleep((drain.is_none()).then_some(stop), at)?;
        }
        for (_, mut session) in std::mem::take(&mut self.sessions) {
            session.leave("the sharer stops", &mut self.poller);
        }
        // One that panicked has said so.
        self.partings.into_iter().for_each(|parting| drop(parting.join()));
        Ok(())
    }

    /// Whether flows that have ended are still brought to their end though this host stops.
    fn drains(&mut self, drain: &mut Option<Drain>) -> bool {
        let drain = drain.get_or_insert_with(|| Drain::begin(now(), self.request.limits.drain));
        if drain.asks(now()) {
            self.sessions.values_mut().for_each(Session::ask_stats);
        }
        drain.goes_on(self.sessions.values().flat_map(Session::told), now())
    }

    /// Until something comes, or it is time. Without `stop` it was said already, and nobody new is waited for.
    fn sleep(&mut self, stop: Option<&Stop>, look_at: Time) -> Result<(), RuntimeError> {
        let mut at = look_at;
        match stop {
            Some(stop) => {
                self.poller.want(stop.wakes(), true, false);
                self.poller.want(self.listener.as_fd(), true, false);
            }
            None => at = at.min(now().after(drain::LOOK)),
        }
        self.poller.want(self.orders.wakes(), true, false);
        self.poller.want(self.udp.as_fd(), true, false);
        for greeting in &mut self.greetings {
            let timeout = match &mut greeting.control {
                Some(control) => {
                    control.want(&mut self.poller);
                    // Nobody is pinged before it is known.
                    control.stream_timeout()
                }
                None => greeting.carrier.want(&mut self.poller).map(|timeout| now().after(timeout)),
            };
            greeting.due_at = timeout.map_or(greeting.until, |timeout| greeting.until.min(timeout));
            at = at.min(greeting.due_at);
        }
        for session in self.sessions.values_mut() {
            let rests_until = self.attention.rests_until(|| whose(session), now());
            at = at.min(rests_until.unwrap_or_else(|| session.want(&mut self.poller)));
        }
        for device in self.shared.values().filter(|device| !device.present) {
            at = at.min(device.reopen_at.max(self.devices_at));
        }
        if let Some(door) = &self.door {
            at = at.min(door.want(&mut self.poller));
        }
        if let Some(console) = &self.console {
            console.want(&mut self.poller);
        }
        let timeout = at.since(now());
        self.poller.wait(Some(timeout)).map_err(|error| RuntimeError::os("waiting", error))?;
        Ok(())
    }

    fn accept(&mut self, tell: &mut dyn FnMut(Event)) {
        // A refused or broken connection concerns only itself; out of descriptors, the next round tries again.
        if !self.poller.is_ready(self.listener.as_fd()) {
            return;
        }
        // Of a flood, some at a time: who is in has its turns between.
        for _ in 0..ACCEPTS_MAX {
            let Ok((stream, peer)) = self.listener.accept() else { break };
            if stream.set_nonblocking(true).is_err() {
                continue;
            }
            match self.admissions.connect(peer, now()) {
                Ok(()) => self.expect_greeting(Carrier::Tcp(stream), peer, tell),
                Err(reason) => self.dismiss(self.greeting(Carrier::Tcp(stream), peer), &reason, tell),
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

    /// Expects of somebody who was let come so far that it says what it comes for.
    fn expect_greeting(&mut self, carrier: Carrier, peer: SocketAddr, tell: &mut dyn FnMut(Event)) {
        self.make_room(peer, tell);
        let greeting = self.greeting(carrier, peer);
        self.greetings.push_back(greeting);
    }

    fn greet(&mut self, tell: &mut dyn FnMut(Event)) {
        for mut greeting in std::mem::take(&mut self.greetings) {
            if !greeting.is_due(&self.poller) {
                self.greetings.push_back(greeting);
                continue;
            }
            if now() >= greeting.until {
                self.dismiss(greeting, "it did not introduce itself in time", tell);
                continue;
            }
            match self.hear(&mut greeting) {
                Ok(None) => self.greetings.push_back(greeting),
                Ok(Some(Heard::Hello { resume, received, attempt, host })) => {
                    self.welcome(greeting, resume, (received, attempt), host, tell);
                }
                Ok(Some(Heard::Data { session, driver })) => self.link(greeting, session, driver, tell),
                Ok(Some(Heard::Introduction(said))) => self.link_sealed(greeting, &said, tell),
                Err(reason) => self.dismiss(greeting, &reason, tell),
            }
        }
    }

    /// Offers what other processes of this user join with, and withdraws it when they go.
    fn attend_door(&mut self, tell: &mut dyn FnMut(Event)) {
        let Some(mut door) = self.door.take() else { return };
        for (visitor, visit) in door.poll(&mut self.poller) {
            match visit {
                Visit::Asks(request) => {
                    let answer = self.offer(visitor, &request, tell);
                    let answer = answer.unwrap_or_else(|error| Answer::refused(&error));
                    door.answer(visitor, &answer, &mut self.poller);
                }
                Visit::Over => self.withdraw(visitor, tell),
            }
        }
        self.door = Some(door);
    }

    /// Where it can be asked what it does ([`console::ask`](crate::console::ask)), if there is a place for it.
    pub fn console(&self) -> Option<&Path> {
        self.console.as_ref().map(Console::path)
    }

    /// Passes a wish for another pipeline on to the session that has the device; answers if there is none.
    fn ask_change(&mut self, visitor: u64, name: &str, back: bool, edit: &Edit) -> Option<console::Answer> {
        let direction = change::direction(back);
        let numbers: Vec<_> =
            self.shared.iter().filter(|(_, device)| device.name == name).map(|(number, _)| *number).collect();
        let mut sessions = self.sessions.values_mut();
        let asked = sessions.any(|session| {
            numbers.iter().any(|number| session.ask_change(visitor, *number, direction, edit, &self.shared))
        });
        match asked {
            true => None,
            false => Some(change::no_such_flow(name, back)),
        }
    }

    /// Answers with what was traced until now, and has it go on.
    fn trace(&mut self, asker: u64, name: Option<&str>, one_in: Option<NonZeroU32>) -> console::Answer {
        let traced = self.sessions.values_mut().flat_map(|session| session.traced.drain(..));
        self.tracing.add(traced);
        let named = |session: &'_ Session| session.named(name, &self.shared).next().is_some();
        if self.sessions.values().any(named) && !self.tracing.ask(asker, one_in, now()) {
            return console::Answer::traced_already();
        }
        for session in self.sessions.values_mut() {
            let named: Vec<_> = session.named(name, &self.shared).collect();
            session.trace(named, one_in);
        }
        self.tracing.answer(asker, "share")
    }

    /// Answers who asks what it does.
    fn attend_console(&mut self) {
        let Some(mut console) = self.console.take() else { return };
        for (visitor, operation) in console.poll(&mut self.poller) {
            let answer = match operation {
                Operation::Stats {} => Some(console::Answer::Status(self.status())),
                Operation::Reload {} => Some(console::Answer::no_file()),
                Operation::Change { name, back, edit } => self.ask_change(visitor, &name, back, &edit),
                Operation::Say { .. } => {
                    let problem =
                        "this host has the device itself: use its own tools, such as v4l2-ctl".into();
                    Some(console::Answer::Refused { problem })
                }
                Operation::Trace { asker, name, one_in } => Some(self.trace(asker, name.as_deref(), one_in)),
            };
            if let Some(answer) = answer {
                console.answer(visitor, &answer, &mut self.poller);
            }
        }
        for (visitor, answer) in self.sessions.values_mut().flat_map(|session| session.answers.drain(..)) {
            console.answer(visitor, &answer, &mut self.poller);
        }
        self.console = Some(console);
    }

    fn offer(
        &mut self,
        number: u64,
        asked: &Request,
        tell: &mut dyn FnMut(Event),
    ) -> Result<Answer, RuntimeError> {
        if !asked.words.ports.is_empty() {
            let problem =
                "side ports cannot go through the share that runs already: --listen on another port";
            return Err(RuntimeError::Usage(problem.into()));
        }
        let request = asked.words.request()?;
        let listens = (self.address, self.known.is_none(), &self.request.limits);
        if listens != (request.listen, request.trust.is_none(), &request.limits) {
            return Err(RuntimeError::Usage(format!(
                "the share that runs already listens on {} and differs in that, in --insecure or in its limits: \
                 say the same, or --listen on another port",
                self.address
            )));
        }
        let mut summary = String::new();
        let mut name = String::new();
        for device in &request.devices {
            check_place(device, &asked.directory)?;
            let offered = add_offer(&mut self.shared, number, device)?;
            (name, summary) = (offered.name.clone(), offered.description.summary.clone());
        }
        tell(Event::Offered { name: name.clone(), summary: summary.clone() });
        Ok(Answer::offering(name, summary))
    }

    fn withdraw(&mut self, number: u64, tell: &mut dyn FnMut(Event)) {
        let users = self.shared.get(&number).map(|device| device.users.clone()).unwrap_or_default();
        for user in users {
            if let Some(session) = self.sessions.get_mut(&user.session) {
                session.dispossess(user.driver, "it is no longer shared", &mut self.shared, tell);
            }
        }
        if let Some(device) = self.shared.remove(&number) {
            tell(Event::Withdrawn { name: device.name });
        }
    }

    fn hear(&mut self, greeting: &mut Greeting) -> Result<Option<Heard>, String> {
        loop {
            if let Some(control) = greeting.control.as_mut() {
                return match control.hear(now()) {
                    Ok(None) => Ok(None),
                    // What came behind it would be lost with this channel.
                    Ok(Some(Control::Hello { .. })) if !control.is_drained() => {
                        Err("it went on before it was welcomed".into())
                    }
                    Ok(Some(Control::Hello { host, resume, received, attempt })) => {
                        Ok(Some(Heard::Hello { resume, received, attempt, host }))
                    }
                    Ok(Some(_)) => Err("it said something else before `Hello`".into()),
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
                (Preamble::Data { session, driver }, None, Carrier::Tcp(_)) => {
                    return Ok(Some(Heard::Data { session, driver }));
                }
                (Preamble::SecureData { .. }, Some(_), Carrier::Tcp(_))
                    if greeting.filled == Introduction::BYTES =>
                {
                    let said = Introduction::parse(said).map_err(|error| error.to_string())?;
                    return Ok(Some(Heard::Introduction(said)));
                }
                (Preamble::SecureData { .. }, Some(_), Carrier::Tcp(_)) => {
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
                (Preamble::Pairing, ..) => return Err(PAIRS_ELSEWHERE.into()),
                (Preamble::Control | Preamble::Data { .. }, Some(_), _) => return Err(WANTS_TO_KNOW.into()),
                (Preamble::SecureControl | Preamble::SecureData { .. }, None, _) => {
                    return Err(IS_INSECURE.into());
                }
                (Preamble::Data { .. } | Preamble::SecureData { .. }, _, Carrier::Quic(_)) => {
                    return Err("records of a driver have a connection of their own".into());
                }
            };
            let mut control = ControlLink::new(&self.request.limits, now());
            let stream = stream.map_err(|error| error.to_string())?;
            control.connect(stream, 0, None, now()).map_err(|error| error.to_string())?;
            greeting.control = Some(control);
        }
    }

    fn dismiss(&mut self, mut greeting: Greeting, reason: &str, tell: &mut dyn FnMut(Event)) {
        greeting.carrier.forget(&mut self.poller);
        let goodbye = Control::Goodbye { reason: reason.into() };
        // Whoever speaks some Outboard understands a `Goodbye`; nobody waits for it to arrive.
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
            tell(Event::Refused { peer: greeting.peer.to_string(), reason: reason.into() });
        }
    }

    fn welcome(
        &mut self,
        mut greeting: Greeting,
        resume: Option<SessionToken>,
        (received, attempt): (u64, u32),
        host: String,
        tell: &mut dyn FnMut(Event),
    ) {
        let key = greeting.control.as_mut().and_then(ControlLink::peer);
        self.refresh_known(tell);
        let (name, permit) = match (&self.known, &key) {
            (None, _) => (host, Permit::All),
            (Some(known), Some(key)) => match (known.name_of(key), known.permit(key)) {
                (Some(name), Some(permit)) => (name.to_string(), permit),
                _ => {
                    let reason = format!(
                        "this host does not know the other (key {}): make them known to each other with `outboard pair`",
                        key.short()
                    );
                    return self.dismiss(greeting, &reason, tell);
                }
            },
            (Some(_), None) => return self.dismiss(greeting, WANTS_TO_KNOW, tell),
        };
        let token = |session: &Session| resume == Some(session.token) && session.key == key;
        let found = self.sessions.iter().find(|(_, session)| token(session)).map(|(id, _)| *id);
        let (address, peer) = (greeting.peer, format!("{name} ({})", greeting.peer));
        if let Some(session) = found.and_then(|id| self.sessions.get_mut(&id)) {
            if !session.is_newer(attempt) {
                return self.dismiss(greeting, "a later connection of this session came before it", tell);
            }
            let Some(stream) = greeting.take_stream(&mut self.poller) else { return };
            if let Err(error) = session.resume(stream, received, &self.request.host, &mut self.poller, tell) {
                tell(Event::Refused { peer, reason: error.to_string() });
            }
            return;
        }
        if let Some(reason) = self.session_limit(key.as_ref(), address) {
            return self.dismiss(greeting, &reason, tell);
        }
        let Some(stream) = greeting.take_stream(&mut self.poller) else { return };
        let id = self.next_session;
        self.next_session += 1;
        let who = Who { name, address, key, permit };
        match Session::begin(id, who, (stream, attempt), &self.request, &mut self.poller) {
            Ok(session) => {
                self.sessions.insert(id, session);
                tell(Event::PeerJoined { peer });
                self.divide_processor(tell);
            }
            Err(error) => tell(Event::Refused { peer, reason: error.to_string() }),
        }
    }

    /// What another process changed of whom this host knows comes into force: who is known no longer has to go, and
    /// who may open less loses the rest.
    fn refresh_known(&mut self, tell: &mut dyn FnMut(Event)) {
        let Some(known) = &mut self.known else { return };
        match known.refresh() {
            Ok(false) => return,
            Ok(true) => tell(Event::Knows { peers: known.names() }),
            Err(error) => tell(Event::Warning { problem: format!("nobody is known: {error}") }),
        }
        let mut forgotten = Vec::new();
        for (id, session) in &mut self.sessions {
            match session.key.and_then(|key| known.permit(&key)) {
                Some(permit) => session.permit(permit, &mut self.shared, tell),
                None => forgotten.push(*id),
            }
        }
        for id in forgotten {
            self.end_session(id, "this host does not know the other any more", tell);
        }
    }

    fn end_session(&mut self, id: u64, reason: &str, tell: &mut dyn FnMut(Event)) {
        if let Some(mut session) = self.sessions.remove(&id) {
            session.say_goodbye(reason, &mut self.poller);
            self.take_leave(session, reason, tell);
        }
    }

    fn take_leave(&mut self, session: Session, reason: &str, tell: &mut dyn FnMut(Event)) {
        let (peer, parting) = session.end(&mut self.shared, &mut self.poller);
        self.partings.retain(|parting| !parting.is_finished());
        self.partings.extend(parting);
        tell(Event::PeerLeft { peer, reason: reason.into() });
    }

    fn link(&mut self, greeting: Greeting, token: SessionToken, driver: u32, tell: &mut dyn FnMut(Event)) {
        match (self.sessions.values_mut().find(|session| session.token == token), greeting.carrier) {
            (Some(session), Carrier::Tcp(stream)) => session.link(driver, OwnedFd::from(stream), None),
            (_, carrier) => self.dismiss(Greeting { carrier, ..greeting }, "no such session", tell),
        }
    }

    fn link_sealed(&mut self, greeting: Greeting, said: &Introduction, tell: &mut dyn FnMut(Event)) {
        let found = self.sessions.values_mut().find_map(|session| {
            let keys = session.accept(said)?;
            Some((session, keys))
        });
        match (found, greeting.carrier) {
            (Some((session, keys)), Carrier::Tcp(stream)) => {
                session.link(said.driver, OwnedFd::from(stream), Some(keys));
            }
            (_, carrier) => self.dismiss(Greeting { carrier, ..greeting }, "no such session", tell),
        }
    }
}

impl Greeting {
    /// Whether there is something to do since the last wait.
    fn is_due(&self, poller: &Poller) -> bool {
        let is_ready = match &self.control {
            Some(control) => control.is_ready(poller),
            None => self.carrier.is_ready(poller),
        };
        is_ready || now() >= self.due_at
    }

    /// Its connection, with all that came over it.
    fn take_stream(&mut self, poller: &mut Poller) -> Option<ControlStream> {
        self.control.take()?.take_stream(poller)
    }
}

/// What is said to who comes otherwise than it has to.
const WANTS_TO_KNOW: &str = "this host wants to know who comes: make the two known to each other with `outboard pair`, \
                             or say --insecure on both sides";
const IS_INSECURE: &str = "this host shares with --insecure: say --insecure on both sides, or on neither";
const PAIRS_ELSEWHERE: &str =
    "`outboard share` listens here: say `outboard pair` on that host, and use the port that it says";

enum Heard {
    Introduction(Introduction),
    Hello { resume: Option<SessionToken>, received: u64, attempt: u32, host: String },
    Data { session: SessionToken, driver: u32 },
}

/// Another process's words must mean the same here: its standard input and what is relative to its directory do
/// not.
fn check_place(device: &ShareDevice, directory: &Path) -> Result<(), RuntimeError> {
    let DeviceChoice::Spec(text) = &device.device else { return Ok(()) };
    let spec = registry::device_spec(text, Role::Device)?;
    let here = std::env::current_dir().is_ok_and(|here| here == directory);
    let relative = match spec.class.as_str() {
        "stdin" => {
            let problem =
                "standard input cannot go through the share that runs already: --listen on another port";
            return Err(RuntimeError::Usage(problem.into()));
        }
        "evdev" if spec.target.starts_with("name=") => false,
        "file" | "unix" | "serial" | "evdev" => !spec.target.starts_with('/'),
        class => class == "exec",
    };
    match relative && !here {
        false => Ok(()),
        true => Err(RuntimeError::Usage(format!(
            "`{text}` would mean something else to the share that runs already, which is in another directory: \
             write whole paths, or start both in one directory"
        ))),
    }
}

pub(crate) fn now() -> Time {
    Time(sys::clock::boot_ns())
}

impl From<LinkError> for RuntimeError {
    fn from(error: LinkError) -> Self {
        RuntimeError::Peer(error.to_string())
    }
}
