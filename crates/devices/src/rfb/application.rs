//! The application's side: a server on a thread of its own, so that compressing a picture holds up nobody else's flow,
//! and the partner that feeds it.

use super::picture::{Applied, Screen, check};
use super::server::{Settings, Viewer};
use crate::flows::{Flows, OUT};
use crate::stream::now;
use buffers::{Ring, RingFull};
use bytes::BytesMut;
use contract::{
    Attributes, Ctl, CtlReply, Direction, FlowKey, FlowTemplate, Format, Interest, Message, Next, Partner,
    PartnerError, Pull, PullSlot, Pulled, Pushed, Readiness, Time,
};
use rustix::net::{SocketFlags, accept_with, sockopt};
use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use sys::event::Event as Wake;
use sys::net::Room;
use sys::poller::Poller;
use wire::formats::viewer::Event;

/// Messages that wait for the server's thread; it takes them all before it makes the next update.
const PICTURES_WAITING: usize = 4;

/// What viewers did that waits for the partner to be pulled.
const EVENTS_WAITING: usize = 64;

/// What viewers did that waits for room there, before no viewer is read any more.
const EVENTS_HELD_MAX: usize = 1024;

/// Bytes read from a viewer at once.
const READ_BYTES: usize = 1 << 16;

/// How long a viewer may take to introduce itself; a person may have to type a password first.
const INTRODUCTION: Duration = Duration::from_secs(60);

/// How long bytes on their way to a viewer may stay unacknowledged before it counts as gone.
const UNHEARD_MS: u32 = 30_000;

/// Wrong passwords, one after the other, behind which nobody new is heard, and for how long.
const GUESSES_MAX: u32 = 5;
const LOCKED_OUT: Duration = Duration::from_secs(10);

/// How long the last picture may take to reach the viewers when its flow ends.
const FAREWELL: Duration = Duration::from_secs(1);

/// How often that is looked at.
const LOOK: Duration = Duration::from_millis(5);

/// What the partner and the thread share.
#[derive(Debug)]
struct Shared {
    pictures: Ring<Message>,
    events: Ring<Message>,
    wake_thread: Wake,
    wake_partner: Wake,
    stop: AtomicBool,
    /// The picture's source is away.
    away: AtomicBool,
    /// Somebody takes what viewers do.
    is_heard: AtomicBool,
    /// What viewers hold down is to be said anew.
    snapshot: AtomicBool,
    /// Every viewer that waited for the newest picture has it.
    is_settled: AtomicBool,
    viewers: AtomicU64,
    updates: AtomicU64,
    sent_bytes: AtomicU64,
    refused: AtomicU64,
}

/// The partner of a server.
#[derive(Debug)]
pub(super) struct Server {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    flows: Flows,
    slot: PullSlot,
    /// Until when the end of the flow is put off.
    farewell: Option<Time>,
}

impl Server {
    /// Serves who connects to `listener`, at most `viewers_max` at a time.
    pub(super) fn new(listener: OwnedFd, settings: Settings, viewers_max: usize) -> io::Result<Server> {
        let shared = Arc::new(Shared {
            pictures: Ring::new(PICTURES_WAITING),
            events: Ring::new(EVENTS_WAITING),
            wake_thread: Wake::new()?,
            wake_partner: Wake::new()?,
            stop: AtomicBool::new(false),
            away: AtomicBool::new(false),
            is_heard: AtomicBool::new(false),
            snapshot: AtomicBool::new(false),
            is_settled: AtomicBool::new(true),
            viewers: AtomicU64::new(0),
            updates: AtomicU64::new(0),
            sent_bytes: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        });
        let mut service = Service {
            shared: shared.clone(),
            name: settings.name.clone(),
            settings,
            listener,
            viewers_max,
            poller: Poller::new()?,
            screen: Screen::default(),
            viewers: Vec::new(),
            events: VecDeque::new(),
            buffer: BytesMut::with_capacity(READ_BYTES),
            is_away: false,
            guesses: 0,
            locked_until: Time::ZERO,
        };
        let thread = std::thread::Builder::new().name("rfb".into()).spawn(move || service.run())?;
        Ok(Server {
            shared,
            thread: Some(thread),
            flows: Flows::new(true, true),
            slot: PullSlot::default(),
            farewell: None,
        })
    }

    /// What a flow that is opened means.
    fn format(direction: Direction) -> Format {
        match direction {
            Direction::In => Format::Video,
            Direction::Out => Format::Viewer,
        }
    }

    fn next(shared: &Shared) -> Next {
        let popped = shared.events.pop().or_else(|| {
            // Taken back before the second look, so that what comes after it wakes again.
            shared.wake_partner.clear();
            shared.events.pop()
        });
        match popped {
            Some((message, was_full)) => {
                if was_full {
                    shared.wake_thread.signal();
                }
                Next::Message(message)
            }
            None => Next::Nothing,
        }
    }

    /// Whether all that was pushed is at the viewers that wait for it, or has had its time to get there.
    fn is_finished(&mut self) -> bool {
        let until = *self.farewell.get_or_insert_with(|| now().after(FAREWELL));
        let is_settled = self.shared.pictures.is_empty() && self.shared.is_settled.load(Ordering::Acquire);
        is_settled || now() >= until
    }
}

impl Partner for Server {
    fn open(&mut self, template: &FlowTemplate, _attributes: &Attributes) -> Result<FlowKey, PartnerError> {
        let key = self.flows.open(template, &Server::format(template.direction))?;
        self.shared.is_heard.store(self.flows.is_open(Direction::Out), Ordering::Release);
        Ok(key)
    }

    fn close(&mut self, flow: FlowKey) -> Result<(), PartnerError> {
        self.flows.close(flow)?;
        self.shared.is_heard.store(self.flows.is_open(Direction::Out), Ordering::Release);
        Ok(())
    }

    fn push(&mut self, flow: FlowKey, message: Message) -> Result<Pushed, (PartnerError, Message)> {
        if let Err(error) = self.flows.check(flow, Direction::In) {
            return Err((error, message));
        }
        if self.thread.as_ref().is_none_or(JoinHandle::is_finished) {
            return Err((PartnerError::os("serving viewers", io::Error::other("its thread ended")), message));
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
                shared.away.store(false, Ordering::Release);
                shared.is_settled.store(false, Ordering::Release);
                if was_empty {
                    shared.wake_thread.signal();
                }
                Ok(Pushed::Taken)
            }
            Err(RingFull(message)) => Ok(Pushed::Full(message)),
        }
    }

    fn pull(&mut self, flow: FlowKey, want: Pull<'_>) -> Result<Pulled, PartnerError> {
        self.flows.check(flow, Direction::Out)?;
        let shared = &self.shared;
        self.slot.answer(OUT, want, || Ok(Server::next(shared)))
    }

    fn ctl(&mut self, flow: FlowKey, operation: Ctl<'_>) -> Result<CtlReply, PartnerError> {
        self.flows.check_any(flow)?;
        match operation {
            // The thread hands on what it has by itself.
            Ctl::Flush => Ok(CtlReply::Done),
            Ctl::Neutral => {
                self.shared.away.store(true, Ordering::Release);
                self.shared.wake_thread.signal();
                Ok(CtlReply::Done)
            }
            Ctl::Snapshot => {
                self.shared.snapshot.store(true, Ordering::Release);
                self.shared.wake_thread.signal();
                Ok(CtlReply::Done)
            }
            Ctl::Finish => Ok(if self.is_finished() { CtlReply::Done } else { CtlReply::Pending }),
            Ctl::Report => {
                let figure = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as f64;
                Ok(CtlReply::Report(vec![
                    ("viewers", figure(&self.shared.viewers)),
                    ("updates", figure(&self.shared.updates)),
                    ("written bytes", figure(&self.shared.sent_bytes)),
                    ("refused viewers", figure(&self.shared.refused)),
                ]))
            }
            _ => Err(PartnerError::Unsupported("this operation")),
        }
    }

    fn readiness(&self, flow: FlowKey, direction: Direction) -> Readiness<'_> {
        if !self.flows.names(flow, direction) {
            return Readiness::never();
        }
        let wake = Readiness::descriptor(self.shared.wake_partner.as_fd(), Interest::Read);
        let now_ready = match direction {
            Direction::Out => self.slot.is_held() || !self.shared.events.is_empty(),
            Direction::In if self.farewell.is_some() => return wake.or_at(Some(now().after(LOOK))),
            Direction::In => !self.shared.pictures.is_full(),
        };
        Readiness { now: now_ready, ..wake }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.wake_thread.signal();
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has said so already.
            let _ = thread.join();
        }
    }
}

/// A viewer and its connection.
#[derive(Debug)]
struct Guest {
    socket: OwnedFd,
    viewer: Viewer,
    since: Time,
    is_gone: bool,
}

/// What the server's thread has.
struct Service {
    shared: Arc<Shared>,
    settings: Settings,
    /// As viewers see it now.
    name: String,
    listener: OwnedFd,
    viewers_max: usize,
    poller: Poller,
    screen: Screen,
    viewers: Vec<Guest>,
    events: VecDeque<Event>,
    buffer: BytesMut,
    is_away: bool,
    /// Wrong passwords since the last right one, and until when nobody new is heard for it.
    guesses: u32,
    locked_until: Time,
}

impl Service {
    fn run(&mut self) {
        while !self.shared.stop.load(Ordering::Acquire) {
            self.take_pictures();
            self.take_state();
            self.accept();
            self.read();
            let again = self.write();
            self.part();
            self.tell();
            if self.wait(again).is_err() {
                return;
            }
        }
    }

    /// Takes what was pushed, all of it, before anything of it is sent.
    fn take_pictures(&mut self) {
        while let Some((message, was_full)) = self.shared.pictures.pop() {
            if was_full {
                self.shared.wake_partner.signal();
            }
            // What is wrong with it was looked at before it was taken; its pixels were not counted.
            match self.screen.apply(&message.body) {
                Ok(Applied::Cursor) => self.viewers.iter_mut().for_each(|guest| guest.viewer.handle_cursor()),
                Ok(_) => {}
                Err(_) => {
                    self.shared.refused.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        self.viewers.iter_mut().for_each(|guest| guest.viewer.handle_damage(&self.screen));
        self.screen.damage.clear();
    }

    /// Shows whether the source is there, and says anew what is held down if that was asked for.
    fn take_state(&mut self) {
        let is_away = self.shared.away.load(Ordering::Acquire);
        if std::mem::replace(&mut self.is_away, is_away) != is_away {
            let mark = if is_away { " (away)" } else { "" };
            self.name = format!("{}{mark}", self.settings.name);
            self.viewers.iter_mut().for_each(|guest| guest.viewer.handle_name());
        }
        if self.shared.snapshot.swap(false, Ordering::AcqRel) {
            self.events.extend(self.viewers.iter().flat_map(|guest| guest.viewer.held()));
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
        let is_locked = now() < self.locked_until;
        if is_locked || self.viewers.len() >= self.viewers_max || is_random != Ok(challenge.len()) {
            // Dropped: its viewer says that the connection was closed.
            self.shared.refused.fetch_add(1, Ordering::Relaxed);
            return;
        }
        // A connection that cannot be tuned still works.
        let _ = sockopt::set_tcp_nodelay(&socket, true);
        let _ = sockopt::set_socket_keepalive(&socket, true);
        let _ = sockopt::set_tcp_user_timeout(&socket, UNHEARD_MS);
        let viewer = Viewer::new(&self.settings, challenge);
        self.viewers.push(Guest { socket, viewer, since: now(), is_gone: false });
    }

    /// Whether what viewers do finds room.
    fn has_room(&self) -> bool {
        self.events.len() < EVENTS_HELD_MAX
    }

    fn read(&mut self) {
        let mut events = Vec::new();
        for number in 0..self.viewers.len() {
            let guest = &mut self.viewers[number];
            let is_read = guest.viewer.has_room() && self.events.len() < EVENTS_HELD_MAX;
            if !is_read || !self.poller.is_ready(guest.socket.as_fd()) {
                continue;
            }
            let was_running = guest.viewer.is_running();
            self.buffer.clear();
            let room = Room { buffer: &mut self.buffer, limit: READ_BYTES };
            match sys::net::receive(&guest.socket, [room]) {
                Ok(0) => guest.is_gone = true,
                Ok(_) => {
                    if guest.viewer.receive(&self.buffer, now(), &mut events).is_err() {
                        // It may still be told why; what it is to be told fits into its socket.
                        let _ = sys::net::send(&guest.socket, &[IoSlice::new(guest.viewer.output())]);
                        guest.is_gone = true;
                        self.shared.refused.fetch_add(1, Ordering::Relaxed);
                        self.guesses += u32::from(guest.viewer.is_refused());
                    } else if guest.viewer.is_running() && !was_running {
                        self.guesses = 0;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => guest.is_gone = true,
            }
            events.drain(..).for_each(|event| self.hold(event));
        }
        if self.guesses >= GUESSES_MAX {
            (self.guesses, self.locked_until) = (0, now().after(LOCKED_OUT));
        }
    }

    /// Keeps what a viewer did, until it finds room: of a pointer's way only where it is.
    fn hold(&mut self, event: Event) {
        if let (Event::Pointer { buttons, .. }, Some(Event::Pointer { buttons: before, .. })) =
            (&event, self.events.back())
            && buttons == before
        {
            self.events.pop_back();
        }
        self.events.push_back(event);
    }

    /// Makes updates and writes what there is; says whether there is more to do at once.
    fn write(&mut self) -> bool {
        let (mut again, mut is_settled) = (false, true);
        for guest in &mut self.viewers {
            let had_output = !guest.viewer.output().is_empty();
            let was_updated = guest.viewer.update(&self.screen, &self.name, now());
            self.shared.updates.fetch_add(u64::from(was_updated), Ordering::Relaxed);
            while !guest.is_gone && !guest.viewer.output().is_empty() {
                match sys::net::send(&guest.socket, &[IoSlice::new(guest.viewer.output())]) {
                    Ok(count) => {
                        self.shared.sent_bytes.fetch_add(count as u64, Ordering::Relaxed);
                        guest.viewer.handle_written(count);
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(_) => guest.is_gone = true,
                }
            }
            let is_written = guest.viewer.output().is_empty();
            // Where answers stood in the way of an update, there may be one now.
            again |= (was_updated || had_output) && is_written;
            is_settled &= is_written && !(guest.viewer.is_running() && guest.viewer.is_owed());
        }
        if is_settled && self.shared.pictures.is_empty() {
            self.shared.is_settled.store(true, Ordering::Release);
        }
        again
    }

    /// Takes leave of viewers that are gone or never came to the point.
    fn part(&mut self) {
        let (mut number, now) = (0, now());
        while let Some(guest) = self.viewers.get_mut(number) {
            let is_late = !guest.viewer.is_running() && now.since(guest.since) > INTRODUCTION;
            if !guest.is_gone && !is_late {
                number += 1;
                continue;
            }
            let mut guest = self.viewers.swap_remove(number);
            // What it held down is let go: no key stays stuck.
            guest.viewer.release().into_iter().for_each(|event| self.hold(event));
            self.poller.forget(guest.socket.as_fd());
        }
        self.shared.viewers.store(self.viewers.len() as u64, Ordering::Relaxed);
    }

    /// Hands on what viewers did.
    fn tell(&mut self) {
        if !self.shared.is_heard.load(Ordering::Acquire) {
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

    fn wait(&mut self, again: bool) -> io::Result<()> {
        self.poller.want(self.shared.wake_thread.as_fd(), true, false);
        self.poller.want(self.listener.as_fd(), true, false);
        let has_room = self.has_room();
        let mut timeout = None;
        for guest in &self.viewers {
            let reads = has_room && guest.viewer.has_room();
            let writes = !guest.viewer.output().is_empty();
            if reads || writes {
                self.poller.want(guest.socket.as_fd(), reads, writes);
            }
            if !guest.viewer.is_running() {
                timeout = Some(INTRODUCTION);
            }
        }
        let has_more = again || !self.shared.pictures.is_empty();
        self.poller.wait(if has_more { Some(Duration::ZERO) } else { timeout })?;
        self.shared.wake_thread.clear();
        Ok(())
    }
}
