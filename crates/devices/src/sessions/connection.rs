//! The socket of a session.

use super::schedule::{Assigned, Schedule};
use super::silence::{SILENCE_MAX, Silence};
use super::write_limit::WriteLimit;
use super::{BUSY_PAUSE, Ended, Expected, Reply, Session};
use buffers::Body;
use bytes::{Buf, Bytes, BytesMut};
use contract::Time;
use rustix::net::{Shutdown, shutdown, sockopt};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::time::Duration;
use sys::clock::boot_ns;
use sys::net::Room;
use wire::formats::block::{Command, Failure};

/// Bytes read at a time, apart from data of reads, which have a place of their own.
const INPUT_BYTES: usize = 32 << 10;
/// Calls of one round, at most, so that a fast server does not starve the rest of the event loop.
pub(super) const CALLS_MAX: usize = 32;
/// The most pieces that one call sends.
const PIECES_MAX: usize = 64;

/// The reason why a session is lost.
#[derive(Debug)]
pub(super) enum Loss {
    /// The server has closed it.
    Closed(String),
    /// The network, or this host, has given up. The server may not know.
    Failed(String),
    /// The server is silent, and another session is open.
    Silent,
    /// The server violates the protocol, or ends. `order`: the one whose status says so.
    Refused { reason: String, order: Option<u64> },
}

impl Loss {
    pub(super) fn of(error: &io::Error) -> Loss {
        match error.kind() {
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => Loss::Closed(error.to_string()),
            _ => Loss::Failed(error.to_string()),
        }
    }

    pub(super) fn reason(&self) -> &str {
        match self {
            Loss::Closed(reason) | Loss::Failed(reason) | Loss::Refused { reason, .. } => reason,
            Loss::Silent => "the server acknowledges nothing on it, and has let in another one",
        }
    }

    /// Returns the order that the server has refused with it.
    pub(super) fn order(&self) -> Option<u64> {
        if let Loss::Refused { order, .. } = self { *order } else { None }
    }
}

/// A session and its socket.
pub(super) struct Connection {
    pub(super) name: u64,
    pub(super) slot: u32,
    pub(super) socket: OwnedFd,
    session: Box<dyn Session>,
    output: VecDeque<Bytes>,
    output_bytes: usize,
    input: BytesMut,
    /// The socket may accept bytes, or have some.
    may_send: bool,
    may_receive: bool,
    /// The server has replied to an order.
    pub(super) has_replied: bool,
    /// The end of the pause of its session.
    pub(super) resume_at: Option<Time>,
    /// For a server with a time limit for the data of a write.
    write_limit: Option<WriteLimit>,
    silence: Silence,
    /// Its server acknowledges nothing for longer than [`SILENCE_MAX`].
    pub(super) is_silent: bool,
}

impl Connection {
    /// Creates a connection, with the first bytes of its session to send.
    pub(super) fn new(name: u64, slot: u32, socket: OwnedFd, mut session: Box<dyn Session>) -> Connection {
        let mut first = Body::new();
        session.begin(&mut first);
        let write_limit = session.has_write_deadline().then(WriteLimit::default);
        let mut connection = Connection {
            name,
            slot,
            socket,
            session,
            output: VecDeque::new(),
            output_bytes: 0,
            input: BytesMut::new(),
            may_send: true,
            may_receive: true,
            has_replied: false,
            resume_at: None,
            write_limit,
            silence: Silence::default(),
            is_silent: false,
        };
        connection.put(&first);
        connection
    }

    /// Appends bytes to send.
    fn put(&mut self, bytes: &Body) {
        self.output_bytes += bytes.len();
        self.output.extend(bytes.shares());
    }

    /// The socket has changed: it has room, or bytes.
    pub(super) fn handle_event(&mut self) {
        (self.may_send, self.may_receive) = (true, true);
    }

    /// Returns whether the session accepts orders.
    pub(super) fn is_open(&self) -> bool {
        self.session.is_open()
    }

    /// Returns the most data of an order.
    pub(super) fn order_bytes_max(&self) -> u32 {
        self.session.order_bytes_max()
    }

    /// Returns the data of writes in progress from which on the next write waits; `None` without a limit.
    pub(super) fn write_bytes_max(&self) -> Option<u64> {
        self.write_limit.as_ref().map(WriteLimit::bytes_max)
    }

    /// The idle line to the server has this round trip.
    pub(super) fn use_round_trip(&mut self, round_trip: Duration) {
        if let Some(limit) = &mut self.write_limit {
            limit.use_round_trip(round_trip);
        }
    }

    /// Returns whether its opening ends the session that had the slot before.
    pub(super) fn replaces_earlier(&self) -> bool {
        self.session.replaces_earlier()
    }

    /// Returns whether a call would do something.
    pub(super) fn is_due(&self) -> bool {
        self.may_receive || (self.may_send && !self.output.is_empty())
    }

    /// Ends the pause of a session in time.
    pub(super) fn run_pause(&mut self, now: Time) {
        match self.resume_at {
            _ if !self.session.is_paused() => self.resume_at = None,
            None => self.resume_at = Some(now.after(BUSY_PAUSE)),
            Some(at) if at > now => {}
            Some(_) => {
                let mut output = Body::new();
                self.session.resume(&mut output);
                self.put(&output);
                self.resume_at = None;
            }
        }
    }

    /// Looks whether its server is silent. With `may_end` the kernel may end the connection meanwhile: at its next attempt to reach the
    /// server. Only the kernel drops the data that were not sent, however many processes have the socket.
    pub(super) fn check_silence(&mut self, now: Time, may_end: bool) {
        // A local socket has no such state. Its server does not get lost on the way.
        let Ok(stream) = sys::net::stream_state(&self.socket) else { return };
        let is_silent = self.silence.check(&stream, now);
        if is_silent != self.is_silent && may_end {
            let limit = if is_silent { SILENCE_MAX.as_millis() as u32 } else { 0 };
            // It fails if the connection has ended; an event says so.
            let _ = sockopt::set_tcp_user_timeout(&self.socket, limit);
        }
        self.is_silent = is_silent;
    }

    /// Forgets the silence: the server has replied to everything.
    pub(super) fn forget_silence(&mut self) {
        (self.silence, self.is_silent) = (Silence::default(), false);
    }

    pub(super) fn submit(&mut self, Assigned { order, data, .. }: Assigned) {
        if let Some(limit) = self.write_limit.as_mut().filter(|_| order.command == Command::Write) {
            limit.begin(order.tag, order.length, Time(boot_ns()));
        }
        let mut output = Body::new();
        self.session.submit(&order, data, &mut output);
        self.put(&output);
    }

    /// Ends the session in order, without waiting. `has_orders`: it may have writes without a reply.
    pub(super) fn end(mut self, has_orders: bool) {
        let mut output = Body::new();
        self.session.end(&mut output);
        self.put(&output);
        let _ = self.send();
        // Copies of the descriptor may exist in another process.
        let how = match has_orders {
            // It may wait for the server to close the session, and a process that knows nothing of this session may write, too.
            true => {
                limit_unsent(&self.socket);
                Shutdown::Write
            }
            false => Shutdown::Both,
        };
        let _ = shutdown(&self.socket, how);
    }

    /// Sends as much as the socket accepts.
    pub(super) fn send(&mut self) -> Result<(), Loss> {
        if self.output.is_empty() {
            return Ok(());
        }
        while self.may_send && !self.output.is_empty() {
            let slices: SmallVec<[IoSlice<'_>; PIECES_MAX]> =
                self.output.iter().take(PIECES_MAX).map(|piece| IoSlice::new(piece)).collect();
            let sent = sys::net::send(&self.socket, &slices);
            drop(slices);
            match sent {
                Ok(sent) => self.handle_sent(sent),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.may_send = false,
                Err(error) => return Err(Loss::of(&error)),
            }
        }
        self.session.handle_sent(self.output_bytes);
        Ok(())
    }

    fn handle_sent(&mut self, mut sent: usize) {
        self.output_bytes -= sent;
        while let Some(piece) = self.output.front_mut() {
            if sent < piece.len() {
                piece.advance(sent);
                return;
            }
            sent -= piece.len();
            self.output.pop_front();
        }
    }

    /// Receives what has arrived, and passes it to `schedule`.
    pub(super) fn receive(&mut self, schedule: &mut Schedule) -> Result<(), Loss> {
        for _ in 0..CALLS_MAX {
            if !self.may_receive {
                return Ok(());
            }
            self.take_input(schedule)?;
            self.input.reserve(INPUT_BYTES);
            let expected = self.session.expected();
            let behind = Room { buffer: &mut self.input, limit: INPUT_BYTES };
            let (place, received) = match expected {
                Expected::Header(_) => (0, sys::net::receive(&self.socket, [behind])),
                Expected::Data { tag, length } => {
                    let room = schedule.room(self.name, tag).ok_or_else(|| unknown(tag))?;
                    let before = room.len();
                    let place = Room { buffer: &mut *room, limit: length as usize };
                    let received = sys::net::receive(&self.socket, [place, behind]);
                    (room.len() - before, received)
                }
            };
            match received {
                Ok(0) => return Err(Loss::Closed("the server has closed the connection".into())),
                Ok(_) if place > 0 => {
                    let mut output = Body::new();
                    let reply = self.session.handle_data(place as u32, &mut output);
                    self.handle(reply, &output, schedule)?;
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.may_receive = false,
                Err(error) => return Err(Loss::of(&error)),
            }
        }
        self.take_input(schedule)
    }

    /// Handles the bytes that were read without a place of their own.
    fn take_input(&mut self, schedule: &mut Schedule) -> Result<(), Loss> {
        loop {
            let mut output = Body::new();
            let reply = match self.session.expected() {
                Expected::Header(length) if self.input.len() < length => return Ok(()),
                Expected::Header(length) => {
                    let header = self.input.split_to(length);
                    self.session.handle_header(&header, &mut output)
                }
                Expected::Data { .. } if self.input.is_empty() => return Ok(()),
                Expected::Data { tag, length } => {
                    let room = schedule.room(self.name, tag).ok_or_else(|| unknown(tag))?;
                    let count = self.input.len().min(length as usize);
                    room.extend_from_slice(&self.input[..count]);
                    self.input.advance(count);
                    self.session.handle_data(count as u32, &mut output)
                }
            };
            self.handle(reply, &output, schedule)?;
        }
    }

    fn handle(
        &mut self,
        reply: Result<Option<Reply>, Ended>,
        output: &Body,
        schedule: &mut Schedule,
    ) -> Result<(), Loss> {
        self.put(output);
        match reply.map_err(|Ended { reason, order }| Loss::Refused { reason, order })? {
            None => Ok(()),
            // Another session, or a later one, can do it.
            Some(Reply { result: Err(Failure::Gone), .. }) => {
                Err(Loss::Refused { reason: "the server ends".into(), order: None })
            }
            Some(Reply { tag, result }) => {
                self.has_replied = true;
                if let Some(limit) = &mut self.write_limit {
                    limit.end(tag, Time(boot_ns()));
                }
                schedule.handle_reply(self.name, tag, result).then_some(()).ok_or_else(|| unknown(tag))
            }
        }
    }
}

/// Lets the kernel end a connection whose server acknowledges nothing for [`SILENCE_MAX`], at its next attempt to reach the server. It
/// drops the data that were not sent then, however many processes have the socket.
pub(super) fn limit_unsent(socket: &OwnedFd) {
    // It fails for a local socket, whose server does not get lost on the way, and for a connection that has ended.
    let _ = sockopt::set_tcp_user_timeout(socket, SILENCE_MAX.as_millis() as u32);
}

fn unknown(tag: u64) -> Loss {
    Loss::Refused { reason: format!("the server replies to {tag}, which was not asked"), order: None }
}
