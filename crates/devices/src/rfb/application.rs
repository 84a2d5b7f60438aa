//! The application side: a VNC server and the partner that feeds it.
//!
//! The server has its own thread, so that compressing a picture does not delay other flows. Partner and thread share
//! two rings and some flags ([`Shared`]):
//!
//! ```text
//! push ──▶ pictures ──▶ ┌────────┐ ◀──▶ viewer 1
//!                       │ thread │ ◀──▶ viewer 2
//! pull ◀── events ◀──── └────────┘ ◀──▶ …
//! ```
//!
//! Each end signals the other's wakeup when a ring that was empty gets its first element, and when a ring that was full
//! gets room.

use super::picture::{Applied, Screen, check};
use super::server::{Settings, Viewer};
use crate::flows::{Endpoint, FlowPartner};
use crate::positions;
use crate::stream::now;
use buffers::{Ring, RingFull};
use bytes::BytesMut;
use contract::{
    Ctl, CtlReply, Direction, FlowKey, FlowTemplate, Format, Interest, Message, Next, PartnerError,
    PartnerResult, PullSlot, Pushed, Readiness, Time,
};
use rustix::net::{SocketFlags, accept_with, sockopt};
use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use sys::event::Event as Wakeup;
use sys::net::Room;
use sys::poller::Poller;
use wire::formats::viewer::Event;

/// The capacity of the ring of pictures. The thread takes all of them before it makes the next update.
const PICTURES_WAITING: usize = 4;

/// The capacity of the ring of input events.
const EVENTS_WAITING: usize = 64;

/// The most input events that wait for room in the ring. If there are more, viewers are not read.
const EVENTS_QUEUED_MAX: usize = 1024;

/// The most bytes read from a viewer at a time.
const READ_BYTES: usize = 1 << 16;

/// The time limit for the handshake. It is long enough for a user to type a password.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(60);

/// The time after which a viewer that acknowledges no bytes is disconnected.
const UNACKNOWLEDGED_MS: u32 = 30_000;

/// The number of consecutive wrong passwords that locks new viewers out.
const WRONG_PASSWORDS_MAX: u32 = 5;
/// The duration of a lockout.
const LOCKOUT: Duration = Duration::from_secs(10);

/// The time that the last picture may take to reach the viewers when its flow ends.
const FINISH_TIMEOUT: Duration = Duration::from_secs(1);

/// The interval at which the partner checks that.
const FINISH_INTERVAL: Duration = Duration::from_millis(5);

/// The state that the partner and the thread share.
#[derive(Debug)]
struct Shared {
    pictures: Ring<Message>,
    events: Ring<Message>,
    wake_thread: Wakeup,
    wake_partner: Wakeup,
    signals: Signals,
    counters: Counters,
}

/// Flags between the partner and the thread.
#[derive(Debug)]
struct Signals {
    /// Partner to thread: exit.
    stop: AtomicBool,
    /// Partner to thread: the source of the pictures is unreachable.
    is_away: AtomicBool,
    /// Partner to thread: the flow of input events is open.
    wants_events: AtomicBool,
    /// Partner to thread: send the pressed keys and buttons again.
    snapshot: AtomicBool,
    /// Thread to partner: every viewer that waits for an update has the newest picture. The partner clears it.
    is_delivered: AtomicBool,
}

/// The figures that the partner reports.
#[derive(Debug, Default)]
struct Counters {
    viewers: AtomicU64,
    updates: AtomicU64,
    sent_bytes: AtomicU64,
    refused: AtomicU64,
}

/// A VNC server as a partner.
#[derive(Debug)]
pub(super) struct ServerPartner {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// The time at which the flow ends even if the last picture has not reached the viewers.
    finish_at: Option<Time>,
}

impl ServerPartner {
    /// Serves the viewers that connect to `listener`, at most `viewers_max` at a time.
    pub(super) fn new(
        listener: OwnedFd,
        settings: Settings,
        viewers_max: usize,
    ) -> io::Result<FlowPartner<Self>> {
        let shared = Arc::new(Shared {
            pictures: Ring::new(PICTURES_WAITING),
            events: Ring::new(EVENTS_WAITING),
            wake_thread: Wakeup::new()?,
            wake_partner: Wakeup::new()?,
            signals: Signals {
                stop: AtomicBool::new(false),
                is_away: AtomicBool::new(false),
                wants_events: AtomicBool::new(false),
                snapshot: AtomicBool::new(false),
                is_delivered: AtomicBool::new(true),
            },
            counters: Counters::default(),
        });
        let mut server = ServerThread {
            shared: shared.clone(),
            name: settings.name.clone(),
            settings,
            listener,
            viewers_max,
            poller: Poller::new()?,
            screen: Screen::default(),
            connections: Vec::new(),
            events: VecDeque::new(),
            buffer: BytesMut::with_capacity(READ_BYTES),
            texts: Texts::default(),
            is_away: false,
            lockout: Lockout::default(),
        };
        let thread = std::thread::Builder::new().name("rfb".into()).spawn(move || server.run())?;
        let partner = ServerPartner { shared, thread: Some(thread), finish_at: None };
        Ok(FlowPartner::new(partner, Some(Format::Viewer), Some(Format::Video)))
    }

    /// Returns whether the viewers have the last picture, or the time for that is over.
    fn is_finished(&mut self) -> bool {
        let finish_at = *self.finish_at.get_or_insert_with(|| now().after(FINISH_TIMEOUT));
        let is_delivered =
            self.shared.pictures.is_empty() && self.shared.signals.is_delivered.load(Ordering::Acquire);
        is_delivered || now() >= finish_at
    }

    fn set_wants_events(&self, wanted: bool) {
        self.shared.signals.wants_events.store(wanted, Ordering::Release);
    }
}

impl Endpoint for ServerPartner {
    fn opened(&mut self, template: &FlowTemplate, _slot: &mut PullSlot) -> PartnerResult {
        if template.direction == Direction::Out {
            self.set_wants_events(true);
        }
        Ok(())
    }

    fn closed(&mut self, direction: Direction, _slot: &mut PullSlot) -> PartnerResult {
        if direction == Direction::Out {
            self.set_wants_events(false);
        }
        Ok(())
    }

    fn push(&mut self, message: Message) -> Result<Pushed, (PartnerError, Message)> {
        if self.thread.as_ref().is_none_or(JoinHandle::is_finished) {
            let error = PartnerError::os("serving viewers", io::Error::other("the thread has exited"));
            return Err((error, message));
        }
        if let Err(problem) = check(&message.body) {
            return Err((PartnerError::Message(problem), message));
        }
        let shared = &self.shared;
        let pushed = shared.pictures.push(message).or_else(|RingFull(message)| {
            shared.wake_partner.clear();
            shared.pictures.push(message)
        });
        match pushed {
            Ok(was_empty) => {
                shared.signals.is_away.store(false, Ordering::Release);
                shared.signals.is_delivered.store(false, Ordering::Release);
                if was_empty {
                    shared.wake_thread.signal();
                }
                Ok(Pushed::Taken)
            }
            Err(RingFull(message)) => Ok(Pushed::Full(message)),
        }
    }

    fn next(&mut self, _now: Time) -> PartnerResult<Next> {
        let shared = &self.shared;
        let popped = shared.events.pop().or_else(|| {
            // Clear the wakeup before the second attempt: an event that arrives after the attempt signals it again.
            shared.wake_partner.clear();
            shared.events.pop()
        });
        Ok(match popped {
            Some((message, was_full)) => {
                if was_full {
                    shared.wake_thread.signal();
                }
                Next::Message(message)
            }
            None => Next::Nothing,
        })
    }

    fn ctl(&mut self, _flow: FlowKey, operation: Ctl<'_>, _slot: &mut PullSlot) -> PartnerResult<CtlReply> {
        match operation {
            // The thread sends without a flush.
            Ctl::Flush => Ok(CtlReply::Done),
            Ctl::Neutral => {
                self.shared.signals.is_away.store(true, Ordering::Release);
                self.shared.wake_thread.signal();
                Ok(CtlReply::Done)
            }
            Ctl::Snapshot => {
                self.shared.signals.snapshot.store(true, Ordering::Release);
                self.shared.wake_thread.signal();
                Ok(CtlReply::Done)
            }
            Ctl::Finish => Ok(if self.is_finished() { CtlReply::Done } else { CtlReply::Pending }),
            Ctl::Report => {
                let figure = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as f64;
                let counters = &self.shared.counters;
                Ok(CtlReply::Report(vec![
                    ("viewers", figure(&counters.viewers)),
                    ("updates", figure(&counters.updates)),
                    ("written bytes", figure(&counters.sent_bytes)),
                    ("refused viewers", figure(&counters.refused)),
                ]))
            }
            _ => Err(PartnerError::Unsupported("this operation")),
        }
    }

    fn readiness(&self, direction: Direction) -> Readiness<'_> {
        let wake = Readiness::descriptor(self.shared.wake_partner.as_fd(), Interest::Read);
        let now_ready = match direction {
            Direction::Out => !self.shared.events.is_empty(),
            Direction::In if self.finish_at.is_some() => {
                return wake.or_at(Some(now().after(FINISH_INTERVAL)));
            }
            Direction::In => !self.shared.pictures.is_full(),
        };
        Readiness { now: now_ready, ..wake }
    }
}

impl Drop for ServerPartner {
    fn drop(&mut self) {
        self.shared.signals.stop.store(true, Ordering::Release);
        self.shared.wake_thread.signal();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported already.
            let _ = thread.join();
        }
    }
}

/// A viewer and its connection.
#[derive(Debug)]
struct Connection {
    socket: OwnedFd,
    viewer: Viewer,
    accepted_at: Time,
    is_closed: bool,
}

/// Rejects new viewers for some time after several wrong passwords.
#[derive(Debug, Default)]
struct Lockout {
    /// Wrong passwords since the last successful handshake.
    wrong_passwords: u32,
    until: Time,
}

/// The texts on the clipboards of both sides. A new text of one side makes the other side's old.
#[derive(Debug, Default)]
struct Texts {
    /// The device's text, once a viewer has fetched it.
    fetched: Option<String>,
    /// The viewers' text, which the device has.
    sent: Option<String>,
}

/// The state of the server's thread.
struct ServerThread {
    shared: Arc<Shared>,
    settings: Settings,
    /// The current name of the desktop.
    name: String,
    listener: OwnedFd,
    viewers_max: usize,
    poller: Poller,
    screen: Screen,
    connections: Vec<Connection>,
    /// Input events that wait for room in the ring.
    events: VecDeque<Event>,
    buffer: BytesMut,
    texts: Texts,
    is_away: bool,
    lockout: Lockout,
}

impl ServerThread {
    fn run(&mut self) {
        while !self.shared.signals.stop.load(Ordering::Acquire) {
            self.take_pictures();
            self.take_signals();
            self.accept();
            self.read();
            let has_more = self.write();
            self.remove_closed();
            self.forward_events();
            if self.wait(has_more).is_err() {
                return;
            }
        }
    }

    /// Applies all pushed pictures to the screen, then adds the damage to each viewer.
    fn take_pictures(&mut self) {
        while let Some((message, was_full)) = self.shared.pictures.pop() {
            if was_full {
                self.shared.wake_partner.signal();
            }
            // `push` has checked the header. The content may still be invalid.
            match self.screen.apply(&message.body) {
                Ok(Applied::Cursor) => {
                    self.connections.iter_mut().for_each(|connection| connection.viewer.handle_cursor());
                }
                Ok(Applied::Clipboard(None)) => {
                    self.texts = Texts::default();
                    self.connections.iter_mut().for_each(|connection| connection.viewer.handle_copy());
                }
                Ok(Applied::Clipboard(Some(text))) => {
                    self.connections.iter_mut().for_each(|connection| connection.viewer.handle_text(&text));
                    self.texts.fetched = Some(text);
                }
                Ok(_) => {}
                Err(_) => self.count_refused(),
            }
        }
        self.connections.iter_mut().for_each(|connection| connection.viewer.handle_damage(&self.screen));
        self.screen.damage.clear();
    }

    fn count_refused(&self) {
        self.shared.counters.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Renames the desktop when the source disappears or returns, and sends pressed keys and buttons for a snapshot.
    fn take_signals(&mut self) {
        let is_away = self.shared.signals.is_away.load(Ordering::Acquire);
        if std::mem::replace(&mut self.is_away, is_away) != is_away {
            let mark = if is_away { " (away)" } else { "" };
            self.name = format!("{}{mark}", self.settings.name);
            self.connections.iter_mut().for_each(|connection| connection.viewer.handle_name());
        }
        if self.shared.signals.snapshot.swap(false, Ordering::AcqRel) {
            self.events.extend(self.connections.iter().flat_map(|connection| connection.viewer.pressed()));
            self.events.extend(self.texts.sent.clone().map(Event::Text));
        }
    }

    fn accept(&mut self) {
        if !self.poller.is_ready(self.listener.as_fd()) {
            return;
        }
        let Ok(socket) = accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) else {
            return;
        };
        let mut challenge = [0; 16];
        let is_random = rustix::rand::getrandom(&mut challenge, rustix::rand::GetRandomFlags::empty());
        let is_locked_out = now() < self.lockout.until;
        if is_locked_out || self.connections.len() >= self.viewers_max || is_random != Ok(challenge.len()) {
            // Dropping the socket closes the connection.
            self.count_refused();
            return;
        }
        // The connection also works without these options.
        let _ = sockopt::set_tcp_nodelay(&socket, true);
        let _ = sockopt::set_socket_keepalive(&socket, true);
        let _ = sockopt::set_tcp_user_timeout(&socket, UNACKNOWLEDGED_MS);
        let viewer = Viewer::new(&self.settings, challenge);
        self.connections.push(Connection { socket, viewer, accepted_at: now(), is_closed: false });
    }

    /// Returns whether there is room for more input events.
    fn has_room(&self) -> bool {
        self.events.len() < EVENTS_QUEUED_MAX
    }

    fn read(&mut self) {
        let mut events = Vec::new();
        for number in 0..self.connections.len() {
            let has_room = self.has_room();
            let connection = &mut self.connections[number];
            let is_read = connection.viewer.has_room() && has_room;
            if !is_read || !self.poller.is_ready(connection.socket.as_fd()) {
                continue;
            }
            let was_running = connection.viewer.is_running();
            self.buffer.clear();
            let room = Room { buffer: &mut self.buffer, limit: READ_BYTES };
            match sys::net::receive(&connection.socket, [room]) {
                Ok(0) => connection.is_closed = true,
                Ok(_) => {
                    if connection.viewer.receive(&self.buffer, now(), &mut events).is_err() {
                        // Send the reason, if there is one. It fits into the socket's buffer.
                        let _ =
                            sys::net::send(&connection.socket, &[IoSlice::new(connection.viewer.output())]);
                        connection.is_closed = true;
                        self.lockout.wrong_passwords += u32::from(connection.viewer.has_wrong_password());
                        self.count_refused();
                    } else if connection.viewer.is_running() && !was_running {
                        self.lockout.wrong_passwords = 0;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => connection.is_closed = true,
            }
            events.drain(..).for_each(|event| self.queue_event(event));
        }
        if self.lockout.wrong_passwords >= WRONG_PASSWORDS_MAX {
            self.lockout = Lockout { wrong_passwords: 0, until: now().after(LOCKOUT) };
        }
    }

    /// Queues an input event. A pointer position replaces the one before, unless a button changed there, and a text
    /// replaces the last one.
    fn queue_event(&mut self, event: Event) {
        match &event {
            // A clipboard manager beside the viewer has taken over the device's text.
            Event::Text(text) if self.texts.fetched.as_ref() == Some(text) => return,
            Event::Text(text) => {
                self.texts = Texts { fetched: None, sent: Some(text.clone()) };
                self.events.retain(|event| !matches!(event, Event::Text(_)));
            }
            Event::Fetch => {
                if let Some(text) = &self.texts.fetched {
                    return self
                        .connections
                        .iter_mut()
                        .for_each(|connection| connection.viewer.handle_text(text));
                }
            }
            Event::Pointer { buttons, .. } => positions::skip_intermediate(&mut self.events, *buttons),
            _ => {}
        }
        self.events.push_back(event);
    }

    /// Makes updates and sends the viewers' output. Returns whether there may be more to send at once.
    fn write(&mut self) -> bool {
        let (mut has_more, mut is_delivered) = (false, true);
        let counters = &self.shared.counters;
        for connection in &mut self.connections {
            let had_output = !connection.viewer.output().is_empty();
            let was_updated = connection.viewer.update(&self.screen, &self.name, now());
            counters.updates.fetch_add(u64::from(was_updated), Ordering::Relaxed);
            while !connection.is_closed && !connection.viewer.output().is_empty() {
                match sys::net::send(&connection.socket, &[IoSlice::new(connection.viewer.output())]) {
                    Ok(count) => {
                        counters.sent_bytes.fetch_add(count as u64, Ordering::Relaxed);
                        connection.viewer.handle_written(count);
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(_) => connection.is_closed = true,
                }
            }
            let is_written = connection.viewer.output().is_empty();
            // Unsent output blocks updates: once it is sent, there may be one.
            has_more |= (was_updated || had_output) && is_written;
            is_delivered &=
                is_written && !(connection.viewer.is_running() && connection.viewer.awaits_update());
        }
        if is_delivered && self.shared.pictures.is_empty() {
            self.shared.signals.is_delivered.store(true, Ordering::Release);
        }
        has_more
    }

    /// Removes viewers that are disconnected, or that exceed the time limit of the handshake.
    fn remove_closed(&mut self) {
        let (mut number, now) = (0, now());
        while let Some(connection) = self.connections.get_mut(number) {
            let is_late =
                !connection.viewer.is_running() && now.since(connection.accepted_at) > HANDSHAKE_TIMEOUT;
            if !connection.is_closed && !is_late {
                number += 1;
                continue;
            }
            let mut connection = self.connections.swap_remove(number);
            connection.viewer.release().into_iter().for_each(|event| self.queue_event(event));
            self.poller.forget(connection.socket.as_fd());
        }
        self.shared.counters.viewers.store(self.connections.len() as u64, Ordering::Relaxed);
    }

    /// Moves input events to the ring, as many as fit.
    fn forward_events(&mut self) {
        if !self.shared.signals.wants_events.load(Ordering::Acquire) {
            self.events.clear();
        }
        let time = now();
        while let Some(event) = self.events.pop_front() {
            match self.shared.events.push(Message::new(time, event.to_bytes())) {
                Ok(true) => self.shared.wake_partner.signal(),
                Ok(false) => {}
                Err(RingFull(_)) => return self.events.push_front(event),
            }
        }
    }

    fn wait(&mut self, has_more: bool) -> io::Result<()> {
        self.poller.register(self.shared.wake_thread.as_fd(), true, false);
        self.poller.register(self.listener.as_fd(), true, false);
        let has_room = self.has_room();
        let mut timeout = None;
        for connection in &self.connections {
            let reads = has_room && connection.viewer.has_room();
            let writes = !connection.viewer.output().is_empty();
            if reads || writes {
                self.poller.register(connection.socket.as_fd(), reads, writes);
            }
            if !connection.viewer.is_running() {
                timeout = Some(HANDSHAKE_TIMEOUT);
            }
        }
        let has_more = has_more || !self.shared.pictures.is_empty();
        self.poller.wait(if has_more { Some(Duration::ZERO) } else { timeout })?;
        self.shared.wake_thread.clear();
        Ok(())
    }
}
