//! The application side: the daemon's socket, for programs with libspnav. Motions, buttons and snapshots are pushed into it.
//!
//! A program that connects or asks must get its answer whatever the path does, so a thread accepts programs and answers them.
//! Events are written by the path itself.

use super::protocol::{Change, Facts, PACKET_BYTES, Program};
use crate::flows::{Endpoint, FlowPartner, invalid};
use bytes::BytesMut;
use contract::{
    Ctl, CtlReply, Direction, FlowKey, Format, Message, PartnerError, PartnerResult, PullSlot, Readiness,
    Report,
};
use rustix::net::{SocketFlags, accept_with};
use std::collections::BTreeSet;
use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use sys::event::Event;
use sys::net::Room;
use sys::poller::Poller;
use wire::formats::motion::{AXES, Motion, Update};

/// Programs at a time; others are disconnected.
const PROGRAMS_MAX: usize = 32;
/// Bytes that wait for a program, at most. One that reads no more is disconnected; its motions have been joined before.
const OUTPUT_BYTES_MAX: usize = 1024 * PACKET_BYTES;
/// The most bytes read from a program at a time.
const READ_BYTES: usize = 4096;

/// The socket as a partner.
pub(super) struct SocketPartner {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// The state that partner and thread share.
struct Shared {
    state: Mutex<State>,
    /// Ends the thread.
    stop: Event,
    /// A program has output that its socket did not take.
    has_output: Event,
}

impl Shared {
    /// Ignores poisoning: each change leaves the state usable.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The device as programs see it, and the programs.
struct State {
    facts: Facts,
    axes: [i32; AXES],
    pressed: BTreeSet<u16>,
    programs: Vec<Connection>,
    counts: Counts,
}

/// Figures of [`Ctl::Report`].
#[derive(Debug, Default)]
struct Counts {
    motions: u64,
    joined: u64,
    buttons: u64,
    snapshots: u64,
    refused: u64,
}

/// A program and its connection.
struct Connection {
    socket: OwnedFd,
    program: Program,
    output: Vec<u8>,
    /// `output` ends with a motion that nothing was written of: its place, its change.
    last_motion: Option<(usize, Change)>,
    is_closed: bool,
}

impl Connection {
    fn new(socket: OwnedFd) -> Connection {
        Connection {
            socket,
            program: Program::new(),
            output: Vec::new(),
            last_motion: None,
            is_closed: false,
        }
    }

    /// Queues an event. Returns true if it was joined with a motion that still waits.
    fn queue(&mut self, change: Change) -> bool {
        let (mut change, mut joined) = (change, false);
        if let Change::Motion { axes, period_ms } = change
            && let Some((from, Change::Motion { period_ms: waited_ms, .. })) = self.last_motion.take()
        {
            self.output.truncate(from);
            (change, joined) =
                (Change::Motion { axes, period_ms: waited_ms.saturating_add(period_ms) }, true);
        }
        let Some(packet) = self.program.event(&change) else { return joined };
        self.last_motion = matches!(change, Change::Motion { .. }).then_some((self.output.len(), change));
        self.output.extend(packet.to_bytes());
        self.is_closed |= self.output.len() > OUTPUT_BYTES_MAX;
        joined
    }

    /// Writes as much as there is room for.
    fn flush(&mut self) {
        while !self.is_closed && !self.output.is_empty() {
            match sys::net::send(&self.socket, &[IoSlice::new(&self.output)]) {
                Ok(count) => {
                    self.output.drain(..count);
                    let left =
                        self.last_motion.and_then(|(from, change)| Some((from.checked_sub(count)?, change)));
                    self.last_motion = left;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => self.is_closed = true,
            }
        }
    }

    /// Reads requests and queues the answers.
    fn read(&mut self, facts: &Facts, buffer: &mut BytesMut) {
        buffer.clear();
        match sys::net::receive(&self.socket, [Room { buffer, limit: READ_BYTES }]) {
            Ok(0) => self.is_closed = true,
            Ok(_) => {
                self.program.receive(buffer, facts, &mut self.output);
                // Nothing may be put before the answer any more.
                self.last_motion = None;
                self.is_closed |= self.output.len() > OUTPUT_BYTES_MAX;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => self.is_closed = true,
        }
    }
}

impl State {
    fn apply(&mut self, update: Update) {
        match update {
            Update::Motion(Motion { axes, period_us }) => {
                self.counts.motions += 1;
                self.axes = axes;
                self.tell(Change::Motion { axes, period_ms: period_us.saturating_add(500) / 1000 });
            }
            Update::Button { number, pressed } => {
                self.counts.buttons += 1;
                self.set_button(number, pressed);
            }
            Update::Snapshot { axes, pressed } => {
                self.counts.snapshots += 1;
                self.move_to(axes, &pressed.into_iter().collect());
            }
        }
    }

    /// Tells programs the way from the present state to another: releases, presses, and the cap.
    fn move_to(&mut self, axes: [i32; AXES], pressed: &BTreeSet<u16>) {
        let released: Vec<u16> = self.pressed.difference(pressed).copied().collect();
        let fresh: Vec<u16> = pressed.difference(&self.pressed).copied().collect();
        released.into_iter().for_each(|number| self.set_button(number, false));
        fresh.into_iter().for_each(|number| self.set_button(number, true));
        if axes != self.axes {
            self.axes = axes;
            self.tell(Change::Motion { axes, period_ms: 0 });
        }
    }

    fn set_button(&mut self, number: u16, pressed: bool) {
        let is_change = if pressed { self.pressed.insert(number) } else { self.pressed.remove(&number) };
        if is_change {
            self.tell(Change::Button { number, pressed });
        }
    }

    fn tell(&mut self, change: Change) {
        for connection in &mut self.programs {
            self.counts.joined += u64::from(connection.queue(change));
            connection.flush();
        }
    }

    fn is_neutral(&self) -> bool {
        self.axes == [0; AXES] && self.pressed.is_empty()
    }

    fn has_output(&self) -> bool {
        self.programs.iter().any(|connection| connection.is_closed || !connection.output.is_empty())
    }

    fn accept(&mut self, listener: &OwnedFd) {
        let Ok(socket) = accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) else { return };
        match self.programs.len() < PROGRAMS_MAX {
            true => self.programs.push(Connection::new(socket)),
            // Dropping the socket closes the connection.
            false => self.counts.refused += 1,
        }
    }

    fn report(&self) -> Vec<Report> {
        let counts = &self.counts;
        vec![
            ("programs", self.programs.len() as f64),
            ("motions", counts.motions as f64),
            ("motions joined", counts.joined as f64),
            ("buttons", counts.buttons as f64),
            ("snapshots", counts.snapshots as f64),
            ("programs refused", counts.refused as f64),
        ]
    }
}

impl SocketPartner {
    /// Creates a partner that serves programs at a non-blocking listening socket.
    pub(super) fn new(listener: OwnedFd, facts: Facts) -> io::Result<FlowPartner<Self>> {
        let state = State {
            facts,
            axes: [0; AXES],
            pressed: BTreeSet::new(),
            programs: Vec::new(),
            counts: Counts::default(),
        };
        let shared = Shared { state: Mutex::new(state), stop: Event::new()?, has_output: Event::new()? };
        let (shared, poller) = (Arc::new(shared), Poller::new()?);
        let thread_shared = shared.clone();
        let thread = std::thread::Builder::new()
            .name("spnav".into())
            .spawn(move || serve(poller, &listener, &thread_shared))?;
        Ok(FlowPartner::new(SocketPartner { shared, thread: Some(thread) }, None, Some(Format::Motion)))
    }

    /// Changes the state, and wakes the thread if programs are slow.
    fn change(&self, act: impl FnOnce(&mut State)) {
        let mut state = self.shared.lock();
        act(&mut state);
        if state.has_output() {
            self.shared.has_output.signal();
        }
    }
}

impl Drop for SocketPartner {
    fn drop(&mut self) {
        self.shared.stop.signal();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported already.
            let _ = thread.join();
        }
    }
}

/// Body of the thread: accepts programs, answers them, and writes what their sockets did not take at once.
fn serve(mut poller: Poller, listener: &OwnedFd, shared: &Shared) {
    let mut buffer = BytesMut::with_capacity(READ_BYTES);
    loop {
        poller.register(shared.stop.as_fd(), true, false);
        poller.register(shared.has_output.as_fd(), true, false);
        poller.register(listener.as_fd(), true, false);
        for connection in &shared.lock().programs {
            poller.register(connection.socket.as_fd(), true, !connection.output.is_empty());
        }
        if poller.wait(None).is_err() || shared.stop.clear() {
            return;
        }
        shared.has_output.clear();
        let mut state = shared.lock();
        let State { facts, programs, .. } = &mut *state;
        for connection in programs.iter_mut() {
            if poller.is_ready(connection.socket.as_fd()) {
                connection.read(facts, &mut buffer);
            }
            connection.flush();
        }
        programs.retain(|connection| {
            if connection.is_closed {
                poller.forget(connection.socket.as_fd());
            }
            !connection.is_closed
        });
        if poller.is_ready(listener.as_fd()) {
            state.accept(listener);
        }
    }
}

impl Endpoint for SocketPartner {
    fn accept(&mut self, message: &mut Message) -> PartnerResult<bool> {
        let update = Update::parse(message.body.as_slice()).map_err(invalid)?;
        self.change(|state| state.apply(update));
        Ok(true)
    }

    fn ctl(&mut self, _flow: FlowKey, operation: Ctl<'_>, _slot: &mut PullSlot) -> PartnerResult<CtlReply> {
        match operation {
            Ctl::Flush | Ctl::Finish => Ok(CtlReply::Done),
            Ctl::Neutral => {
                self.change(|state| state.move_to([0; AXES], &BTreeSet::new()));
                Ok(CtlReply::Done)
            }
            Ctl::IsNeutral => Ok(CtlReply::Count(self.shared.lock().is_neutral().into())),
            Ctl::Report => Ok(CtlReply::Report(self.shared.lock().report())),
            _ => Err(PartnerError::Unsupported("this control operation")),
        }
    }

    fn readiness(&self, direction: Direction) -> Readiness<'_> {
        match direction {
            Direction::In => Readiness::now(),
            Direction::Out => Readiness::never(),
        }
    }
}
