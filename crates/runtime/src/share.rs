//! `outboard share`: offers devices to other hosts. The broker's side: it listens, lets peers in, opens
//! devices, and hands descriptors to workers.

use crate::agree::Pipelines;
use crate::change;
use crate::console::{self, Console, Operation, Status};
use crate::control_link::{ControlLink, LinkError};
use crate::error::RuntimeError;
use crate::events::{Event, Stop};
use crate::junction::hub::HubPolicy;
use crate::offers::{Offers, REOPEN_INTERVAL, Shared, add_offer};
use crate::registry;
use crate::share_join::{Answer, Door, Request, Visit};
use crate::share_session::{Session, Turn};
use crate::trace::Tracing;
use contract::{Description, DeviceError, Partner, Role, Time};
use pipeline::Edit;
use session::Limits;
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Read};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::num::NonZeroU32;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use sys::poller::Poller;
use wire::preamble::SessionToken;
use wire::{Control, Preamble};

/// Ports that are tried where any will do.
const PORT_ATTEMPTS: u32 = 16;
/// Time between two `Stats` events.
const STATS_INTERVAL: Duration = Duration::from_secs(1);

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
}

/// What to share, and where.
#[derive(Clone)]
pub struct ShareRequest {
    /// The devices.
    pub devices: Vec<ShareDevice>,
    /// Where to listen; TCP and UDP alike.
    pub listen: SocketAddr,
    /// Whether peers are let in that nobody knows.
    pub insecure: bool,
    /// Bounds.
    pub limits: Limits,
    /// This host's name, for people.
    pub host: String,
}

/// A connection that has not introduced itself yet.
struct Greeting {
    stream: TcpStream,
    peer: SocketAddr,
    bytes: [u8; Preamble::BYTES],
    filled: usize,
    until: Time,
    /// After a control preamble: the channel on which its `Hello` is awaited.
    control: Option<ControlLink>,
}

/// One port for both protocols. Where any will do (port 0), one that UDP has taken is passed over.
fn listen(at: SocketAddr) -> io::Result<(TcpListener, UdpSocket)> {
    let mut attempts = if at.port() == 0 { PORT_ATTEMPTS } else { 1 };
    loop {
        attempts -= 1;
        let listener = TcpListener::bind(at)?;
        match bind_udp(listener.local_addr()?) {
            Ok(udp) => {
                listener.set_nonblocking(true)?;
                return Ok((listener, udp.into()));
            }
            Err(error) if error.kind() != io::ErrorKind::AddrInUse || attempts == 0 => return Err(error),
            Err(_) => {}
        }
    }
}

/// A running `share`.
pub struct Sharer {
    request: ShareRequest,
    listener: TcpListener,
    udp: UdpSocket,
    address: SocketAddr,
    poller: Poller,
    shared: Offers,
    /// Where other processes of this user join; none if there is no place for it.
    door: Option<Door>,
    /// Where it is asked what it does; none if there is no place for it.
    console: Option<Console>,
    tracing: Tracing,
    greetings: VecDeque<Greeting>,
    sessions: BTreeMap<u64, Session>,
    next_session: u64,
}

impl Sharer {
    /// Opens the devices and begins to listen.
    pub fn start(request: ShareRequest) -> Result<Sharer, RuntimeError> {
        if !request.listen.ip().is_loopback() && !request.insecure {
            return Err(RuntimeError::Usage(format!(
                "listening on {} would let anyone in who reaches it: hosts cannot be told apart yet. Say \
                 --insecure to do it all the same, or listen on 127.0.0.1 and bring a tunnel",
                request.listen
            )));
        }
        let failed = |error| RuntimeError::os(format!("listening on {}", request.listen), error);
        let (listener, udp) = listen(request.listen).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        // From here on other processes may join; they are answered once it runs.
        let door = Door::open(address.port(), request.devices.len() as u64, request.limits.greeting).ok();
        let mut shared = Offers::new();
        for (number, device) in (0..).zip(&request.devices) {
            add_offer(&mut shared, number, device)?;
        }
        let poller = Poller::new().map_err(|error| RuntimeError::os("epoll", error))?;
        Ok(Sharer {
            request,
            listener,
            udp,
            address,
            poller,
            shared,
            door,
            console: Console::open().ok(),
            tracing: Tracing::default(),
            greetings: VecDeque::new(),
            sessions: BTreeMap::new(),
            next_session: 1,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop` is said.
    pub fn run(mut self, stop: &Stop, tell: &mut dyn FnMut(Event)) -> Result<(), RuntimeError> {
        tell(Event::Listening { address: self.address.to_string() });
        for device in self.shared.values() {
            tell(Event::Offered { name: device.name.clone(), summary: device.description.summary.clone() });
        }
        let mut stats_at = now().after(STATS_INTERVAL);
        while !stop.is_said() {
            self.accept(tell);
            self.greet(tell);
            self.attend_door(tell);
            self.attend_console();
            self.introduce_datagrams();
            let serving: Vec<_> = self.sessions.keys().copied().collect();
            for id in serving {
                self.serve(id, tell);
            }
            self.take_wanted(tell);
            self.find_devices(tell);
            if now() >= stats_at {
                self.sessions.values().for_each(Session::ask_stats);
                for device in self.shared.values() {
                    if let Some(hub) = device.hub_stats() {
                        tell(Event::Hub { name: device.name.clone(), hub: Box::new(hub) });
                    }
                }
                stats_at = now().after(STATS_INTERVAL);
            }
            self.sleep(stop, stats_at)?;
        }
        for (_, mut session) in std::mem::take(&mut self.sessions) {
            session.say_goodbye("the sharer stops", &mut self.poller);
        }
        Ok(())
    }

    fn sleep(&mut self, stop: &Stop, stats_at: Time) -> Result<(), RuntimeError> {
        let mut at = stats_at;
        self.poller.want(stop.wakes(), true, false);
        self.poller.want(self.listener.as_fd(), true, false);
        self.poller.want(self.udp.as_fd(), true, false);
        for greeting in &self.greetings {
            at = at.min(greeting.until);
            match &greeting.control {
                Some(control) => control.want(&mut self.poller),
                None => self.poller.want(greeting.stream.as_fd(), true, false),
            }
        }
        for session in self.sessions.values() {
            at = at.min(session.want(&mut self.poller));
        }
        for device in self.shared.values().filter(|device| !device.present) {
            at = at.min(device.reopen_at);
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
        while let Ok((stream, peer)) = self.listener.accept() {
            if stream.set_nonblocking(true).is_err() {
                continue;
            }
            if self.greetings.len() >= self.request.limits.greetings
                && let Some(oldest) = self.greetings.pop_front()
            {
                self.dismiss(oldest, "too many connections that say nothing", tell);
            }
            let until = now().after(self.request.limits.greeting);
            let bytes = [0; Preamble::BYTES];
            self.greetings.push_back(Greeting { stream, peer, bytes, filled: 0, until, control: None });
        }
    }

    fn greet(&mut self, tell: &mut dyn FnMut(Event)) {
        for mut greeting in std::mem::take(&mut self.greetings) {
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
        for session in self.sessions.values() {
            session.trace(session.named(name, &self.shared), one_in);
        }
        self.tracing.answer(asker, "share")
    }

    /// Answers who asks what it does.
    fn attend_console(&mut self) {
        let Some(mut console) = self.console.take() else { return };
        for (visitor, operation) in console.poll(&mut self.poller) {
            let answer = match operation {
                Operation::Stats {} => {
                    let drivers = self.sessions.values().flat_map(|session| session.status(&self.shared));
                    Some(console::Answer::Status(Status::of("share", drivers.collect())))
                }
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
        let listens = (self.address, self.request.insecure, &self.request.limits);
        if listens != (request.listen, request.insecure, &request.limits) {
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
                return match control.poll(now()) {
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
            match greeting.stream.read(&mut greeting.bytes[greeting.filled..]) {
                Ok(0) => return Err("it closed before it introduced itself".into()),
                Ok(count) => greeting.filled += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.to_string()),
            }
            if greeting.filled < Preamble::BYTES {
                continue;
            }
            match Preamble::parse(&greeting.bytes).map_err(|error| error.to_string())? {
                Preamble::Data { session, driver } => return Ok(Some(Heard::Data { session, driver })),
                Preamble::Control => {
                    let mut control = ControlLink::new(&self.request.limits, now());
                    let stream = greeting.stream.try_clone().map_err(|error| error.to_string())?;
                    self.poller.forget(greeting.stream.as_fd());
                    control.connect(stream, 0, None, now()).map_err(|error| error.to_string())?;
                    greeting.control = Some(control);
                }
            }
        }
    }

    fn dismiss(&mut self, mut greeting: Greeting, reason: &str, tell: &mut dyn FnMut(Event)) {
        self.poller.forget(greeting.stream.as_fd());
        if let Some(mut control) = greeting.control.take() {
            control.disconnect(&mut self.poller);
        }
        // Whoever speaks some Outboard understands a `Goodbye`; nobody waits for it to arrive.
        let _ = io::Write::write(&mut greeting.stream, &Control::Goodbye { reason: reason.into() }.emit());
        tell(Event::Refused { peer: greeting.peer.to_string(), reason: reason.into() });
    }

    fn welcome(
        &mut self,
        mut greeting: Greeting,
        resume: Option<SessionToken>,
        (received, attempt): (u64, u32),
        host: String,
        tell: &mut dyn FnMut(Event),
    ) {
        if let Some(mut control) = greeting.control.take() {
            control.disconnect(&mut self.poller);
        }
        let known =
            resume.and_then(|token| self.sessions.iter().find(|(_, s)| s.token == token).map(|(id, _)| *id));
        let peer = format!("{host} ({})", greeting.peer);
        if let Some(session) = known.and_then(|id| self.sessions.get_mut(&id)) {
            if !session.is_newer(attempt) {
                return self.dismiss(greeting, "a later connection of this session came before it", tell);
            }
            if let Err(error) =
                session.resume(greeting.stream, received, &self.request.host, &mut self.poller, tell)
            {
                tell(Event::Refused { peer, reason: error.to_string() });
            }
            return;
        }
        if self.sessions.len() >= self.request.limits.sessions {
            return self.dismiss(greeting, "this host serves as many peers as it may already", tell);
        }
        let id = self.next_session;
        self.next_session += 1;
        let begun =
            Session::begin(id, peer.clone(), (greeting.stream, attempt), &self.request, &mut self.poller);
        match begun {
            Ok(session) => {
                self.sessions.insert(id, session);
                tell(Event::PeerJoined { peer });
            }
            Err(error) => tell(Event::Refused { peer, reason: error.to_string() }),
        }
    }

    fn link(&mut self, greeting: Greeting, token: SessionToken, driver: u32, tell: &mut dyn FnMut(Event)) {
        self.poller.forget(greeting.stream.as_fd());
        match self.sessions.values_mut().find(|session| session.token == token) {
            Some(session) => session.link(driver, OwnedFd::from(greeting.stream)),
            None => self.dismiss(greeting, "no such session", tell),
        }
    }

    /// Datagram transports introduce themselves by a first datagram; each gets a socket of its own.
    fn introduce_datagrams(&mut self) {
        let mut bytes = [0; Preamble::BYTES + 1];
        while let Ok((count, peer)) = self.udp.recv_from(&mut bytes) {
            let Ok(Preamble::Data { session, driver }) = Preamble::parse(&bytes[..count]) else { continue };
            if count != Preamble::BYTES {
                continue;
            }
            let Some(session) = self.sessions.values_mut().find(|known| known.token == session) else {
                continue;
            };
            if session.confirm_datagram_link(driver, peer) {
                continue;
            }
            if let Ok(socket) = bind_udp(self.address).and_then(|socket| {
                rustix::net::connect(&socket, &peer)?;
                Ok(socket)
            }) {
                session.link_datagrams(driver, peer, socket);
            }
        }
    }

    fn serve(&mut self, id: u64, tell: &mut dyn FnMut(Event)) {
        for device in self.shared.values_mut() {
            device.handle_silence(|user| self.sessions.get(&user).is_some_and(Session::is_silent));
        }
        let Some(session) = self.sessions.get_mut(&id) else { return };
        match session.serve(&mut self.shared, &mut self.poller, now(), tell) {
            Turn::Goes => {}
            Turn::Over(reason) => {
                if let Some(session) = self.sessions.remove(&id) {
                    tell(Event::PeerLeft { peer: session.end(&mut self.shared, &mut self.poller), reason });
                }
            }
        }
    }

    /// Takes devices from silent users for those who ask for them, and gives each to its next owner.
    fn take_wanted(&mut self, tell: &mut dyn FnMut(Event)) {
        let wanted: Vec<_> = self.shared.values_mut().flat_map(Shared::take_wanted).collect();
        for (user, reason) in wanted {
            if let Some(session) = self.sessions.get_mut(&user.session) {
                session.dispossess(user.driver, reason, &mut self.shared, tell);
            }
        }
        for heir in self.shared.values_mut().filter_map(Shared::take_heir) {
            if let Some(session) = self.sessions.get(&heir.session) {
                session.resync(heir.driver);
            }
        }
    }

    /// Looks for devices that went away, and hands them to whoever uses them when they are back.
    fn find_devices(&mut self, tell: &mut dyn FnMut(Event)) {
        for device in self.shared.values_mut().filter(|device| !device.present) {
            if now() < device.reopen_at {
                continue;
            }
            device.reopen_at = now().after(REOPEN_INTERVAL);
            let Ok(opened) = device.find() else { continue };
            device.present = true;
            tell(Event::DeviceBack { name: device.name.clone() });
            for (user, origin) in device.take_back(opened) {
                if let Some(session) = self.sessions.get_mut(&user.session) {
                    session.return_device(user.driver, origin);
                }
            }
        }
    }
}

enum Heard {
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

fn bind_udp(address: SocketAddr) -> io::Result<OwnedFd> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::DGRAM, flags, None)?;
    // The listening socket and one connected socket for each peer share the port.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &address)?;
    Ok(socket)
}

pub(crate) fn now() -> Time {
    Time(sys::clock::boot_ns())
}

impl From<LinkError> for RuntimeError {
    fn from(error: LinkError) -> Self {
        RuntimeError::Peer(error.to_string())
    }
}
