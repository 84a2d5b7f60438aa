//! The portal on the session bus: a session is created, the user is asked, and input is sent
//! (`org.freedesktop.portal.RemoteDesktop`, `org.freedesktop.portal.ScreenCast`).
//!
//! A call that may ask the user returns the path of a request; its result is the signal `Response` of that path. A thread
//! receives the signals of the portal for as long as the connection lives.

use super::compositor::Compositor;
use super::memory::End;
use super::order::Wheel;
use super::pointer::PointerStep;
use crate::plain::os;
use crate::signals;
use contract::DeviceError;
use serde::Serialize;
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};
use zbus::message::{Flags, Type};
use zbus::{
    Connection, DynamicType, MatchRule, Message, MessageStream, OwnedObjectPath, OwnedVariant, Variant,
    block_on,
};

const DESTINATION: &str = "org.freedesktop.portal.Desktop";
const OBJECT: &str = "/org/freedesktop/portal/desktop";
const CAST: &str = "org.freedesktop.portal.ScreenCast";
const REMOTE: &str = "org.freedesktop.portal.RemoteDesktop";
const REQUEST: &str = "org.freedesktop.portal.Request";
const SESSION: &str = "org.freedesktop.portal.Session";
const INHIBIT: &str = "org.freedesktop.portal.Inhibit";
const PROPERTIES: &str = "org.freedesktop.DBus.Properties";
/// The bus itself: its name and its interface.
const BUS: &str = "org.freedesktop.DBus";
const BUS_OBJECT: &str = "/org/freedesktop/DBus";

/// The time for a call that asks nobody. The first one may start the portal.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// The interval between looks for the withdrawal of a question.
const WITHDRAWAL_INTERVAL: Duration = Duration::from_millis(100);
/// The time in which a portal that refuses a session may become ready, and the pause between two attempts.
const READY_TIMEOUT: Duration = Duration::from_secs(5);
const READY_INTERVAL: Duration = Duration::from_millis(500);
/// The longest token that is kept, and the longest text of an error.
const TEXT_BYTES_MAX: usize = 1024;

/// Values of the interfaces.
const MONITOR: u32 = 1;
const KEYBOARD_AND_POINTER: u32 = 1 | 2;
const CURSOR_HIDDEN: u32 = 1;
const CURSOR_EMBEDDED: u32 = 2;
const PERSISTENT: u32 = 2;
const IDLE: u32 = 8;
/// The versions from which the user is asked only once.
const CAST_PERSISTS: u32 = 4;
const REMOTE_PERSISTS: u32 = 2;

type Options<'a> = HashMap<&'static str, Variant<'a>>;
type Results = HashMap<String, OwnedVariant>;

/// The wish that the user is asked to grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Wish {
    pub(super) is_view_only: bool,
    pub(super) with_cursor: bool,
}

/// The limits of a question.
#[derive(Debug)]
pub(super) struct Patience {
    pub(super) deadline: Instant,
    pub(super) is_withdrawn: Arc<AtomicBool>,
}

/// The offers of a portal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Offers {
    cast_version: u32,
    sources: u32,
    cursors: u32,
    /// `None` if the backend takes no input.
    remote_version: Option<u32>,
    devices: u32,
}

impl Offers {
    /// Returns the reason why a wish cannot be granted, and the way out.
    pub(super) fn problem(&self, is_view_only: bool) -> Option<&'static str> {
        if self.sources & MONITOR == 0 {
            return Some(
                "the desktop's portal shares no monitors: install the portal of your desktop, such as xdg-desktop-portal-gnome or \
                         xdg-desktop-portal-kde",
            );
        }
        let takes_input = self.devices & KEYBOARD_AND_POINTER == KEYBOARD_AND_POINTER;
        (!is_view_only && !takes_input).then_some(
            "the desktop's portal takes no keyboard and pointer; those of GNOME and KDE do. Share pictures alone with `view=only`",
        )
    }

    /// Returns true if the portal remembers the user's answer.
    pub(super) fn persists(&self, is_view_only: bool) -> bool {
        match is_view_only {
            true => self.cast_version >= CAST_PERSISTS,
            false => self.remote_version.is_some_and(|version| version >= REMOTE_PERSISTS),
        }
    }
}

/// A granted share.
#[derive(Debug)]
pub(super) struct Granted {
    /// The number of the node at PipeWire.
    pub(super) node: u32,
    /// The size of the monitor in the desktop's coordinates, if the portal tells.
    pub(super) size: Option<(u32, u32)>,
    /// A connection with PipeWire.
    pub(super) pipewire: OwnedFd,
    /// The token with which the next share asks nobody.
    pub(super) token: Option<String>,
}

/// A signal of the portal.
#[derive(Debug)]
enum Signal {
    Response(String, u32, Results),
    Closed,
}

/// Called when the session ends without this side.
type OnClosed = Arc<dyn Fn(End) + Send + Sync>;

/// A connection with the portal, and at most one session.
#[derive(Debug)]
pub(super) struct Bus {
    connection: Connection,
    signals: Receiver<Signal>,
    session: Option<OwnedObjectPath>,
    tokens: u32,
}

/// Keeps the desktop from becoming idle.
#[derive(Debug)]
pub(super) struct Inhibition {
    connection: Connection,
    request: OwnedObjectPath,
}

impl Drop for Inhibition {
    fn drop(&mut self) {
        // No reply is awaited: this may be the thread that receives the portal's signals.
        let close = Message::method_call(self.request.as_str(), "Close")
            .destination(DESTINATION)
            .interface(REQUEST)
            .with_flags(Flags::NO_REPLY_EXPECTED)
            .build(&());
        // Without a connection, the portal has ended it.
        let _ = close.and_then(|close| block_on(self.connection.send(&close)));
    }
}

/// Sends input of a granted session. It may be used by another thread than [`Bus`].
#[derive(Debug, Clone)]
pub(super) struct Input {
    connection: Connection,
    session: OwnedObjectPath,
    node: u32,
    compositor: Compositor,
}

fn failed(operation: &str) -> impl Fn(zbus::Error) -> DeviceError + '_ {
    move |error| {
        let text: String =
            error.to_string().chars().filter(|one| !one.is_control()).take(TEXT_BYTES_MAX).collect();
        let advice = "does the desktop have a portal? `outboard doctor`";
        os(format!("{operation} the desktop's portal"), io::Error::other(text), Some(advice))
    }
}

fn refused(problem: &str) -> DeviceError {
    DeviceError::Spec { what: "the desktop".into(), problem: problem.into() }
}

/// Passes signals on until the connection ends.
fn receive(mut stream: MessageStream, signals: Sender<Signal>, on_closed: OnClosed) {
    while let Some(message) = signals::next(&mut stream) {
        let header = message.header();
        let (interface, member) = (header.interface(), header.member());
        let path = header.path().map(|path| path.to_string()).unwrap_or_default();
        match (interface.map(|name| name.as_str()), member.map(|name| name.as_str())) {
            (Some(REQUEST), Some("Response")) => {
                if let Ok((code, results)) = message.body().deserialize::<(u32, Results)>() {
                    // Nobody waits after the session has begun.
                    let _ = signals.send(Signal::Response(path, code, results));
                }
            }
            // A connection has one session.
            (Some(SESSION), Some("Closed")) => {
                let _ = signals.send(Signal::Closed);
                on_closed(End::Desktop);
            }
            _ => {}
        }
    }
    on_closed(End::Failure);
}

/// Connects to the session bus in a thread of its own: zbus waits without limit for a bus that accepts and never answers.
fn connect_within(limit: Duration) -> Result<Connection, DeviceError> {
    let (sender, connected) = channel();
    let connect = move || {
        let build = zbus::connection::Builder::session().method_timeout(CALL_TIMEOUT).build();
        // After the limit nobody listens.
        let _ = sender.send(block_on(build));
    };
    let spawned = std::thread::Builder::new().name("portal-connect".into()).spawn(connect);
    spawned.map_err(|error| os("starting the thread for the portal's bus".into(), error, None))?;
    let result = connected.recv_timeout(limit).map_err(|_| refused("the session bus does not answer"))?;
    result.map_err(failed("connecting to the session bus of"))
}

impl Bus {
    /// Connects to the session bus.
    pub(super) fn connect(on_closed: OnClosed) -> Result<Bus, DeviceError> {
        let connection = connect_within(CALL_TIMEOUT)?;
        let rule = MatchRule::builder().msg_type(Type::Signal).sender(DESTINATION);
        let rule = rule.build().map_err(failed("watching"))?;
        let stream =
            block_on(MessageStream::for_match_rule(rule, &connection, None)).map_err(failed("watching"))?;
        let (sender, signals) = channel();
        let spawned = std::thread::Builder::new()
            .name("portal-signals".into())
            .spawn(move || receive(stream, sender, on_closed));
        spawned.map_err(|error| os("starting the thread for the portal's signals".into(), error, None))?;
        Ok(Bus { connection, signals, session: None, tokens: 0 })
    }

    fn call<B: Serialize + DynamicType>(
        &self,
        interface: &'static str,
        method: &'static str,
        body: &B,
    ) -> zbus::Result<Message> {
        block_on(self.connection.call_method(Some(DESTINATION), OBJECT, Some(interface), method, body))
    }

    fn property(&self, interface: &'static str, name: &'static str) -> Option<u32> {
        let reply = self.call(PROPERTIES, "Get", &(interface, name)).ok()?;
        u32::try_from(reply.body().deserialize::<OwnedVariant>().ok()?).ok()
    }

    /// Asks for the offers of the portal.
    pub(super) fn offers(&self) -> Result<Offers, DeviceError> {
        let no_portal = "no desktop portal with screens answers on the session bus (org.freedesktop.portal.ScreenCast): run this in the session \
                         of the desktop, and install the portal of your desktop, such as xdg-desktop-portal-gnome or xdg-desktop-portal-kde";
        let cast_version = self.property(CAST, "version").ok_or_else(|| refused(no_portal))?;
        let property = |interface, name| self.property(interface, name).unwrap_or(0);
        Ok(Offers {
            cast_version,
            sources: property(CAST, "AvailableSourceTypes"),
            cursors: property(CAST, "AvailableCursorModes"),
            remote_version: self.property(REMOTE, "version"),
            devices: property(REMOTE, "AvailableDeviceTypes"),
        })
    }

    /// Makes a request, and waits for its response.
    fn request<'a>(
        &mut self,
        interface: &'static str,
        method: &'static str,
        mut options: Options<'a>,
        patience: &Patience,
    ) -> Result<Results, DeviceError> {
        self.tokens += 1;
        let token = format!("outboard{}", self.tokens);
        options.insert("handle_token", token.clone().into());
        let session = self.session.clone();
        let reply = match (&session, method) {
            (None, _) => self.call(interface, method, &(options,)),
            (Some(session), "Start") => self.call(interface, method, &(session, "", options)),
            (Some(session), _) => self.call(interface, method, &(session, options)),
        };
        let reply = reply.map_err(failed(&format!("calling {method} of")))?;
        let path: OwnedObjectPath = reply.body().deserialize().map_err(failed("reading the answer of"))?;
        loop {
            let left = patience.deadline.saturating_duration_since(Instant::now());
            match self.signals.recv_timeout(left.min(WITHDRAWAL_INTERVAL)) {
                Ok(Signal::Response(of, code, results)) if of == path.as_str() => {
                    return match code {
                        0 => Ok(results),
                        1 => Err(refused("its user has refused to share it")),
                        _ => Err(refused(
                            "its portal has ended the request; the journal of the desktop may tell why",
                        )),
                    };
                }
                Ok(Signal::Response(..)) => {}
                Ok(Signal::Closed) => return Err(refused("its portal has closed the session")),
                Err(RecvTimeoutError::Timeout) if patience.is_withdrawn.load(Ordering::Relaxed) => {
                    return Err(refused("its question was withdrawn"));
                }
                Err(RecvTimeoutError::Timeout) if left.is_zero() => {
                    return Err(refused("its user has not answered its dialog in time"));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(refused("the session bus has ended")),
            }
        }
    }

    /// Creates a session, which asks nobody. The portal of GNOME 43 may end if its dialog is closed by a program; the bus starts it
    /// again, and it refuses sessions until it is ready.
    fn create_session(
        &mut self,
        interface: &'static str,
        patience: &Patience,
    ) -> Result<OwnedObjectPath, DeviceError> {
        let ready_at = Instant::now() + READY_TIMEOUT;
        loop {
            let options = HashMap::from([("session_handle_token", "outboard".into())]);
            match self.request(interface, "CreateSession", options, patience) {
                Err(_) if Instant::now() < ready_at => std::thread::sleep(READY_INTERVAL),
                results => return session_path(&results?),
            }
        }
    }

    /// Asks for a share within `patience`. With a `token` of an earlier one, the portal asks nobody.
    pub(super) fn ask(
        &mut self,
        wish: Wish,
        offers: &Offers,
        token: Option<&str>,
        patience: &Patience,
    ) -> Result<Granted, DeviceError> {
        let interface = if wish.is_view_only { CAST } else { REMOTE };
        self.session = Some(self.create_session(interface, patience)?);
        let mut persistence = Options::new();
        if offers.persists(wish.is_view_only) {
            persistence.insert("persist_mode", PERSISTENT.into());
            if let Some(token) = token {
                persistence.insert("restore_token", token.into());
            }
        }
        let cursor = if wish.with_cursor { CURSOR_EMBEDDED } else { CURSOR_HIDDEN };
        let mut sources = Options::from([("types", MONITOR.into())]);
        if offers.cursors & cursor != 0 {
            sources.insert("cursor_mode", cursor.into());
        }
        match wish.is_view_only {
            true => sources.extend(persistence),
            false => {
                persistence.insert("types", KEYBOARD_AND_POINTER.into());
                self.request(REMOTE, "SelectDevices", persistence, patience)?;
            }
        }
        self.request(CAST, "SelectSources", sources, patience)?;
        let results = self.request(interface, "Start", Options::new(), patience)?;
        let devices = results.get("devices").and_then(|devices| u32::try_from(devices).ok()).unwrap_or(0);
        if !wish.is_view_only && devices & KEYBOARD_AND_POINTER != KEYBOARD_AND_POINTER {
            return Err(refused(
                "its user has shared pictures, and allowed no remote interaction: allow that in the dialog, or share pictures alone \
                 with `view=only`",
            ));
        }
        let (node, size) = stream(&results)?;
        Ok(Granted { node, size, pipewire: self.open_pipewire()?, token: new_token(&results) })
    }

    fn open_pipewire(&self) -> Result<OwnedFd, DeviceError> {
        let opening = "opening PipeWire by";
        let session = self.session.as_ref().ok_or_else(|| refused("there is no session"))?;
        let reply =
            self.call(CAST, "OpenPipeWireRemote", &(session, Options::new())).map_err(failed(opening))?;
        let descriptor: zbus::OwnedFd = reply.body().deserialize().map_err(failed(opening))?;
        Ok(descriptor.into())
    }

    /// Asks the bus for the compositor behind the portal.
    pub(super) fn compositor(&self) -> Compositor {
        Compositor::find(|name| {
            let body = (name,);
            let call = self.connection.call_method(Some(BUS), BUS_OBJECT, Some(BUS), "NameHasOwner", &body);
            block_on(call).is_ok_and(|reply| reply.body().deserialize::<bool>().unwrap_or(false))
        })
    }

    /// Returns the sender of input for the granted session.
    pub(super) fn input(&self, node: u32, compositor: Compositor) -> Option<Input> {
        let session = self.session.clone()?;
        Some(Input { connection: self.connection.clone(), session, node, compositor })
    }

    /// Keeps the desktop from becoming idle while the result lives. Asks nobody.
    pub(super) fn inhibit_idle(&mut self) -> Option<Inhibition> {
        self.tokens += 1;
        let token = format!("outboard{}", self.tokens);
        let options =
            Options::from([("handle_token", token.into()), ("reason", "the desktop is shared".into())]);
        // A desktop without this portal becomes idle.
        let reply = self.call(INHIBIT, "Inhibit", &("", IDLE, options)).ok()?;
        let request = reply.body().deserialize().ok()?;
        Some(Inhibition { connection: self.connection.clone(), request })
    }

    /// Ends the session: the desktop shows that nothing is shared any more.
    pub(super) fn close(&self) {
        let Some(session) = &self.session else { return };
        let close =
            self.connection.call_method(Some(DESTINATION), session.as_str(), Some(SESSION), "Close", &());
        // A session that is gone needs no end.
        let _ = block_on(close);
    }
}

fn session_path(results: &Results) -> Result<OwnedObjectPath, DeviceError> {
    // The documentation says a path, and the portal sends a text.
    let path = match results.get("session_handle").map(|handle| &**handle) {
        Some(Variant::Str(text)) => OwnedObjectPath::try_from(text.as_str()).ok(),
        Some(Variant::ObjectPath(path)) => Some(path.to_owned().into()),
        _ => None,
    };
    path.ok_or_else(|| refused("its portal has told no session"))
}

/// Returns the node and the size of the only stream.
fn stream(results: &Results) -> Result<(u32, Option<(u32, u32)>), DeviceError> {
    let streams = results.get("streams").and_then(|streams| streams.try_clone().ok());
    let streams =
        streams.and_then(|streams| Vec::<(u32, Results)>::try_from(streams).ok()).unwrap_or_default();
    let (node, properties) = streams.first().ok_or_else(|| refused("its portal shares no monitor"))?;
    let size = properties.get("size").and_then(|size| size.try_clone().ok());
    let size = size.and_then(|size| <(i32, i32)>::try_from(size).ok());
    let is_size = |(width, height): &(u32, u32)| *width > 0 && *height > 0;
    let size = size.and_then(|(width, height)| Some((width.try_into().ok()?, height.try_into().ok()?)));
    Ok((*node, size.filter(is_size)))
}

fn new_token(results: &Results) -> Option<String> {
    let Variant::Str(token) = &**results.get("restore_token")? else { return None };
    Some(token.to_string()).filter(|token| (1..=TEXT_BYTES_MAX).contains(&token.len()))
}

impl Input {
    fn notify<B: Serialize + DynamicType>(&self, method: &'static str, body: &B) -> zbus::Result<()> {
        block_on(self.connection.call_method(Some(DESTINATION), OBJECT, Some(REMOTE), method, body)).map(drop)
    }

    /// Presses or releases a keysym.
    pub(super) fn key(&self, keysym: u32, pressed: bool) -> zbus::Result<()> {
        let body = (&self.session, Options::new(), keysym.cast_signed(), u32::from(pressed));
        self.notify("NotifyKeyboardKeysym", &body)
    }

    /// Moves the pointer.
    pub(super) fn motion(&self, step: PointerStep) -> zbus::Result<()> {
        match step {
            PointerStep::To(x, y) => {
                self.notify("NotifyPointerMotionAbsolute", &(&self.session, Options::new(), self.node, x, y))
            }
            PointerStep::By(x, y) => {
                self.notify("NotifyPointerMotion", &(&self.session, Options::new(), x, y))
            }
        }
    }

    /// Presses or releases a button.
    pub(super) fn button(&self, code: u32, pressed: bool) -> zbus::Result<()> {
        let body = (&self.session, Options::new(), code.cast_signed(), u32::from(pressed));
        self.notify("NotifyPointerButton", &body)
    }

    /// Turns the wheel by a step.
    pub(super) fn wheel(&self, wheel: Wheel) -> zbus::Result<()> {
        let (axis, turn) = self.compositor.turn(wheel);
        self.notify("NotifyPointerAxisDiscrete", &(&self.session, Options::new(), axis, turn))
    }
}
