//! One QUIC connection (RFC 9000) over sockets of its own, run by whoever waits for them: it never blocks, has no
//! thread and makes no socket.
//!
//! A connection has a socket for each pair of addresses that it goes by, each connected, so that whoever runs it can
//! reach its peer and nobody else. Once it has moved from one to another there are two, the older kept for what is late
//! ([`LATE_MAX`]).

use super::config::Beginning;
use super::gate::{self, Owed};
use crate::socket;
use bytes::BytesMut;
use contract::{Interest, PartnerError, Readiness, Time};
use quinn_proto::{
    Connection, ConnectionError, ConnectionHandle, DatagramEvent, Endpoint, Event, Side, StreamEvent,
    Transmit, TransportErrorCode, VarInt,
};
use rustix::io::Errno;
use smallvec::SmallVec;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use sys::net::SEGMENTS_MAX;

/// Pairs of addresses that one connection goes by at once.
const WAYS_MAX: usize = 2;
/// Silence by a way that is in use no more after which nothing is waited for there.
pub(super) const LATE_MAX: Duration = Duration::from_secs(3);
/// Whatever comes in one call fits in this.
const RECEIVE_BYTES: usize = 64 << 10;
/// Memory that datagrams are received into, one behind the other.
const SLAB_BYTES: usize = 4 * RECEIVE_BYTES;
/// Most calls that one turn makes, so that a fast peer leaves room for the loop's other work.
const RECEIVE_CALLS_MAX: usize = 16;
/// Largest payload of one UDP packet over IPv4, and so of one batch.
const BATCH_BYTES_MAX: usize = 65_507;
/// Times that a datagram is tried again after the peer's port was found closed.
const REFUSALS_MAX: usize = 2;

/// Longest time in which the two ends have to have proven who they are. Each may wait for the other in vain: who has
/// taken a stranger's first datagram for its peer's passes over those of its peer.
pub(super) const HANDSHAKE_MAX: Duration = Duration::from_secs(8);

/// TLS's alert of this name (RFC 7301, section 3.2).
const NO_APPLICATION_PROTOCOL: u8 = 120;

/// What came and went.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counts {
    pub(super) sent_datagrams: u64,
    pub(super) send_calls: u64,
    /// Datagrams that the system refused: the network may be away for a while.
    pub(super) unsent_datagrams: u64,
    pub(super) received_datagrams: u64,
    pub(super) receive_calls: u64,
    /// Datagrams that were sent for the acknowledgement in them, past congestion control.
    pub(super) owed_datagrams: u64,
    /// Times that it went on by other addresses.
    pub(super) moves: u64,
}

/// Why a connection is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Over {
    /// The peer ended it, as it may; for a reason, if it gave one.
    Closed(String),
    /// The two want something else of each other (ALPN, RFC 7301).
    OtherPurpose,
    /// It broke.
    Broken(String),
}

/// A pair of addresses, and the socket that is connected so.
#[derive(Debug)]
struct Way {
    socket: OwnedFd,
    /// As the library knows it ([`known`]).
    peer: SocketAddr,
    added: Instant,
    /// When something last came by it.
    heard: Option<Instant>,
}

/// An address as the library is told it: without the interface of one that holds on one link only (RFC 4007). It compares whole
/// addresses, and writes them without that in the token of a Retry.
pub(super) fn known(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip(), address.port())
}

/// A QUIC connection and what it needs of the system.
pub struct QuicConnection {
    endpoint: Endpoint,
    /// None before the first datagram of a peer that is waited for.
    state: Option<(ConnectionHandle, Connection)>,
    /// Newest last.
    ways: SmallVec<[Way; WAYS_MAX]>,
    name: String,
    /// Datagrams on their way out, and what is to be done with them if the socket took them not.
    batch: Vec<u8>,
    pending: Option<Transmit>,
    /// What the endpoint answers by itself.
    response: Vec<u8>,
    slab: BytesMut,
    can_batch: bool,
    owed: Owed,
    /// Something may be there to read, or may be written, since [`QuicConnection::take_news`].
    news: bool,
    timeout: Option<Instant>,
    begun: Instant,
    /// Where the library sent when it was last looked at.
    went_to: Option<SocketAddr>,
    /// Nothing listens where what was sent last went.
    refused: bool,
    over: Option<Over>,
    /// The close that says so has been handed on.
    parted: bool,
    pub(super) counts: Counts,
}

impl QuicConnection {
    /// A connection that begins over `socket`, which is connected to the peer.
    pub fn begin(socket: OwnedFd, beginning: Beginning) -> Result<QuicConnection, PartnerError> {
        let failed = |error| PartnerError::os("setting up QUIC", error);
        let name = peer_of(&socket)?.to_string();
        let begun = Instant::now();
        let way = Way::new(socket, begun)?;
        let config = Arc::new(beginning.endpoint().map_err(failed)?);
        let (server, client) = match beginning {
            Beginning::Client(config) => (None, Some(config)),
            Beginning::Server(config, ..) => (Some(config), None),
        };
        let mut endpoint = Endpoint::new(config, server, true, None);
        let state = match client {
            None => None,
            Some(config) => {
                let state = endpoint.connect(begun, config, way.peer, crate::tls::SERVER_NAME);
                Some(state.map_err(|error| failed(io::Error::other(error)))?)
            }
        };
        Ok(QuicConnection {
            endpoint,
            state,
            ways: [way].into_iter().collect(),
            name,
            batch: Vec::new(),
            pending: None,
            response: Vec::new(),
            slab: BytesMut::with_capacity(SLAB_BYTES),
            can_batch: true,
            owed: Owed::default(),
            news: true,
            timeout: None,
            begun,
            went_to: None,
            refused: false,
            over: None,
            parted: false,
            counts: Counts::default(),
        })
    }

    /// The peer's address as it was at the beginning.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The connection, once there is one.
    pub fn state(&mut self) -> Option<&mut Connection> {
        self.state.as_mut().map(|(_, connection)| connection)
    }

    /// Whether the two ends have proven who they are, and data may flow.
    pub fn is_established(&self) -> bool {
        self.state.as_ref().is_some_and(|(_, connection)| !connection.is_handshaking())
    }

    /// Whether nothing listens at the peer's port, as far as its host says.
    pub fn is_refused(&self) -> bool {
        self.refused
    }

    /// Why it is over, if it is. What came before can still be read.
    pub fn over(&self) -> Option<&Over> {
        self.over.as_ref()
    }

    /// Whether something may be there to read, or room to write, since the last call.
    pub fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.news)
    }

    /// Whether [`QuicConnection::take_news`] would say so.
    pub fn has_news(&self) -> bool {
        self.news
    }

    /// The connection goes by another pair of addresses as soon as it can: this socket's.
    pub fn add_way(&mut self, socket: OwnedFd) -> Result<(), PartnerError> {
        self.add_way_at(socket, Instant::now())
    }

    pub(super) fn add_way_at(&mut self, socket: OwnedFd, now: Instant) -> Result<(), PartnerError> {
        let way = Way::new(socket, now)?;
        if self.ways.len() == WAYS_MAX {
            // The way that is in use stays until another is.
            let used = self.state.as_ref().map(|(_, connection)| connection.remote_address());
            let is_used = |way: &Way| Some(way.peer) == used;
            let unused = if is_used(&self.ways[0]) && !is_used(&self.ways[1]) { 1 } else { 0 };
            self.remove_way(unused);
        }
        self.ways.push(way);
        self.counts.moves += 1;
        if let Some((_, connection)) = &mut self.state
            && connection.side() == Side::Client
        {
            connection.local_address_changed();
            connection.path_changed(now);
            // What the old socket had no room for goes out by the new one.
            self.turn_out_at(now);
        }
        Ok(())
    }

    fn remove_way(&mut self, index: usize) {
        self.ways.remove(index);
        // Whoever waited for it is told, as its number may come back as another file.
        sys::poller::note_closed();
    }

    /// When nothing more is waited for by the older way: something came by the newer, which is in use.
    fn late_until(&self) -> Option<Instant> {
        let [older, newer] = &self.ways[..] else { return None };
        let is_used =
            self.state.as_ref().is_some_and(|(_, connection)| connection.remote_address() == newer.peer);
        let since = older.heard.map_or(newer.added, |heard| heard.max(newer.added));
        (is_used && newer.heard.is_some()).then(|| since + LATE_MAX)
    }

    /// The address of this end, by which it goes now.
    pub fn local(&self) -> Option<SocketAddr> {
        let way = self.ways.last()?;
        rustix::net::getsockname(&way.socket).ok().and_then(|address| address.try_into().ok())
    }

    /// Whether the connection goes to, or is asked to go to, this address.
    pub fn goes_to(&self, peer: SocketAddr) -> bool {
        self.ways.iter().any(|way| way.peer == known(peer))
    }

    /// Takes what came, does what is due and sends what there is, as far as the sockets let it.
    pub fn turn(&mut self) {
        self.turn_at(Instant::now());
    }

    pub(super) fn turn_at(&mut self, now: Instant) {
        for index in 0..self.ways.len() {
            for _ in 0..RECEIVE_CALLS_MAX {
                if !self.receive(index, now) {
                    break;
                }
            }
        }
        self.turn_out_at(now);
    }

    /// The same without looking at what came.
    pub fn turn_out(&mut self) {
        self.turn_out_at(Instant::now());
    }

    pub(super) fn turn_out_at(&mut self, now: Instant) {
        self.settle(now);
        self.begin_path(now);
        if let Some((_, connection)) = &mut self.state
            && self.timeout.is_some_and(|at| at <= now)
        {
            connection.handle_timeout(now);
            self.settle(now);
        }
        let shaken_by = (!self.is_established() && self.over.is_none()).then(|| self.begun + HANDSHAKE_MAX);
        if shaken_by.is_some_and(|at| at <= now) {
            self.over = Some(Over::Broken(format!("no handshake within {} s", HANDSHAKE_MAX.as_secs())));
            self.news = true;
            if let Some((_, connection)) = &mut self.state {
                connection.close(now, VarInt::from_u32(0), bytes::Bytes::new());
            }
        }
        self.transmit(now);
        self.acknowledge(now);
        if self.late_until().is_some_and(|at| at <= now) {
            self.remove_way(0);
        }
        let timeout = self.state.as_mut().and_then(|(_, connection)| connection.poll_timeout());
        let shaken_by = shaken_by.filter(|_| self.over.is_none());
        self.timeout = [timeout, self.owed.at(), shaken_by, self.late_until()].into_iter().flatten().min();
    }

    /// Has something under way by a path that is another, before anything is done that is due. quinn-proto counts that by
    /// path, and has one timer for what is lost of all: it takes that timer for the handshake's where nothing is under way
    /// by the new path. With debug assertions that is a panic; without them the timer stops until something is sent.
    fn begin_path(&mut self, now: Instant) {
        let Some((_, connection)) = &mut self.state else { return };
        let goes_to = Some(connection.remote_address());
        let went_to = std::mem::replace(&mut self.went_to, goes_to);
        if went_to.is_some() && went_to != goes_to && !connection.is_closed() {
            connection.ping();
            // What waits for the old path is as lost as what is under way there.
            self.pending = None;
            self.pass_one(now);
        }
    }

    /// Sends one datagram past what holds data back, if an acknowledgement waits behind these.
    fn acknowledge(&mut self, now: Instant) {
        let Some((_, connection)) = &mut self.state else { return };
        let received = self.counts.received_datagrams;
        if self.owed.look(connection, received, now) && self.pass_one(now) {
            self.counts.owed_datagrams += 1;
        }
    }

    /// Sends something that the peer acknowledges, at once: the peer was silent and is there again. What was sent to a silent
    /// peer is sent again after twice as long each time (RFC 9002, section 6.2.1), and what is acknowledged ends that.
    pub fn probe(&mut self) {
        self.probe_at(Instant::now());
    }

    pub(super) fn probe_at(&mut self, now: Instant) {
        let Some((_, connection)) = &mut self.state else { return };
        if !connection.is_closed() {
            connection.ping();
            self.pass_one(now);
            self.turn_out_at(now);
        }
    }

    /// Sends one datagram past what holds data back; whether there was one and room for it.
    fn pass_one(&mut self, now: Instant) -> bool {
        let Some((_, connection)) = self.state.as_mut().filter(|_| self.pending.is_none()) else {
            return false;
        };
        self.batch.clear();
        let poll = |connection: &mut Connection| connection.poll_transmit(now, 1, &mut self.batch);
        self.pending = gate::pass(connection, poll).flatten();
        let is_one = self.pending.is_some();
        self.transmit(now);
        is_one
    }

    /// Takes a datagram that came for this connection to another socket.
    pub fn take(&mut self, datagram: &[u8], peer: SocketAddr) {
        self.datagram(BytesMut::from(datagram), known(peer), Instant::now());
    }

    /// Receives a datagram or several; `false` if there is none.
    fn receive(&mut self, index: usize, now: Instant) -> bool {
        // Where nothing holds what came before, its memory is used again: a quiet connection touches one page of it.
        if !self.slab.try_reclaim(SLAB_BYTES) && self.slab.capacity() < RECEIVE_BYTES {
            self.slab = BytesMut::with_capacity(SLAB_BYTES);
        }
        self.counts.receive_calls += 1;
        let Way { socket, peer, .. } = &self.ways[index];
        let peer = *peer;
        let received = match sys::net::receive_datagrams(socket, &mut self.slab) {
            Ok(received) => received,
            // The peer's port was closed when something we sent arrived: it may open again.
            Err(error) => {
                self.refused |= is(&error, &[Errno::CONNREFUSED]);
                return !socket::is_not_now(&error) && is_passing(&error);
            }
        };
        self.refused = false;
        self.ways[index].heard = Some(now);
        let mut datagrams = self.slab.split();
        if received.truncated {
            return true;
        }
        while !datagrams.is_empty() {
            let datagram = datagrams.split_to(received.segment.min(datagrams.len()));
            self.datagram(datagram, peer, now);
        }
        true
    }

    fn datagram(&mut self, datagram: BytesMut, peer: SocketAddr, now: Instant) {
        self.counts.received_datagrams += 1;
        let event = self.endpoint.handle(now, peer, None, None, datagram, &mut self.response);
        let response = match event {
            None => None,
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                if let Some((own, connection)) = &mut self.state
                    && *own == handle
                {
                    connection.handle_event(event);
                }
                None
            }
            // One is all there is.
            Some(DatagramEvent::NewConnection(incoming)) if self.state.is_some() => {
                self.endpoint.ignore(incoming);
                None
            }
            Some(DatagramEvent::NewConnection(incoming)) => {
                match self.endpoint.accept(incoming, now, &mut self.response, None) {
                    Ok(begun) => {
                        self.state = Some(begun);
                        None
                    }
                    Err(error) => {
                        self.over = Some(Over::Broken(error.cause.to_string()));
                        error.response
                    }
                }
            }
            Some(DatagramEvent::Response(response)) => Some(response),
        };
        if let Some(response) = response {
            let bytes = std::mem::take(&mut self.response);
            let _ = self.send(&response, &bytes);
            self.response = bytes;
        }
        self.response.clear();
    }

    /// Has connection and endpoint tell each other what they have to, and notes what happened.
    fn settle(&mut self, now: Instant) {
        let Some((handle, connection)) = &mut self.state else { return };
        while let Some(event) = connection.poll_endpoint_events() {
            if let Some(answer) = self.endpoint.handle_event(*handle, event) {
                connection.handle_event(answer);
            }
        }
        while let Some(event) = connection.poll() {
            match event {
                Event::ConnectionLost { reason } => self.over = Some(over(&reason)),
                Event::Stream(StreamEvent::Stopped { .. }) => {
                    self.over = Some(Over::Broken("the peer refuses what it agreed to take".into()));
                    connection.close(now, VarInt::from_u32(0), bytes::Bytes::new());
                }
                Event::HandshakeDataReady
                | Event::Connected
                | Event::Stream(_)
                | Event::DatagramReceived
                | Event::DatagramsUnblocked => {}
            }
            self.news = true;
        }
    }

    fn transmit(&mut self, now: Instant) {
        loop {
            if self.pending.is_none() {
                let Some((_, connection)) = &mut self.state else { return };
                let segments = match self.can_batch {
                    true => (BATCH_BYTES_MAX / usize::from(connection.current_mtu())).clamp(1, SEGMENTS_MAX),
                    false => 1,
                };
                self.batch.clear();
                self.pending = connection.poll_transmit(now, segments, &mut self.batch);
            }
            let Some(transmit) = self.pending.take() else { return };
            let batch = std::mem::take(&mut self.batch);
            let sent = self.send(&transmit, &batch);
            self.batch = batch;
            if let Err(error) = sent
                && socket::is_not_now(&error)
            {
                self.pending = Some(transmit);
                return;
            }
        }
    }

    /// Sends datagrams. What does not go, but for want of room, is as lost as what is lost on the way.
    fn send(&mut self, transmit: &Transmit, bytes: &[u8]) -> io::Result<()> {
        let bytes = &bytes[..transmit.size];
        let segment = transmit.segment_size.filter(|size| *size < bytes.len());
        let count = segment.map_or(1, |size| bytes.len().div_ceil(size)) as u64;
        let to = self.ways.iter().rev().find(|way| way.peer == transmit.destination);
        let Some(way) = to.or(self.ways.last()) else { return Ok(()) };
        let mut refusals = 0;
        loop {
            self.counts.send_calls += 1;
            let slices = [IoSlice::new(bytes)];
            let result = match segment.map(u16::try_from) {
                Some(Ok(segment)) => sys::net::send_datagrams(&way.socket, &slices, segment),
                _ => sys::net::send(&way.socket, &slices),
            };
            match result {
                Ok(_) => {
                    self.counts.sent_datagrams += count;
                    return Ok(());
                }
                Err(error) if socket::is_not_now(&error) => return Err(error),
                // It tells of a datagram sent before; this one did not go yet.
                Err(error) if is(&error, &[Errno::CONNREFUSED]) && refusals < REFUSALS_MAX => {
                    refusals += 1;
                    self.refused = true;
                }
                Err(error) => {
                    // A kernel or a device that cannot cut a batch is not asked again.
                    self.can_batch &= segment.is_none() || is_passing(&error);
                    self.counts.unsent_datagrams += count;
                    return Ok(());
                }
            }
        }
    }

    /// Ends the connection and says so.
    pub fn close(&mut self, reason: &str) {
        if let Some((_, connection)) = &mut self.state
            && !std::mem::replace(&mut self.parted, true)
            && !connection.is_closed()
        {
            let reason = bytes::Bytes::copy_from_slice(reason.as_bytes());
            connection.close(Instant::now(), VarInt::from_u32(0), reason);
            self.pending = None;
            self.turn_out();
        }
    }

    /// What is to be waited for so that [`QuicConnection::turn`] has something to do.
    pub fn readiness(&self) -> Readiness<'_> {
        let newest = self.ways.last().map(|way| (way.socket.as_fd(), Interest::Read));
        let other = match self.pending {
            Some(_) => self.ways.last().map(|way| (way.socket.as_fd(), Interest::Write)),
            None => {
                self.ways.first().filter(|_| self.ways.len() > 1).map(|w| (w.socket.as_fd(), Interest::Read))
            }
        };
        let at = self.timeout.map(|at| {
            let wait = at.saturating_duration_since(Instant::now());
            Time(sys::clock::boot_ns()).after(wait)
        });
        Readiness { now: false, descriptors: [newest, other], at }
    }

    /// When to look at it at the latest.
    pub fn timeout(&self) -> Option<Duration> {
        self.timeout.map(|at| at.saturating_duration_since(Instant::now()))
    }

    /// Whether something waits for the socket to take it.
    pub fn is_blocked(&self) -> bool {
        self.pending.is_some()
    }

    /// What is waited for, for who has a poller.
    pub fn want(&self, poller: &mut sys::poller::Poller) {
        for (descriptor, interest) in self.readiness().descriptors.into_iter().flatten() {
            poller.want(descriptor, interest == Interest::Read, interest == Interest::Write);
        }
    }

    /// Whether the last wait found something to do here.
    pub fn is_ready(&self, poller: &sys::poller::Poller) -> bool {
        self.ways.iter().any(|way| poller.is_ready(way.socket.as_fd()))
    }

    /// Has a poller forget its sockets.
    pub fn forget(&self, poller: &mut sys::poller::Poller) {
        self.ways.iter().for_each(|way| poller.forget(way.socket.as_fd()));
    }
}

impl Drop for QuicConnection {
    fn drop(&mut self) {
        self.close("");
    }
}

impl std::fmt::Debug for QuicConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "QuicConnection({})", self.name)
    }
}

impl Way {
    fn new(socket: OwnedFd, now: Instant) -> Result<Way, PartnerError> {
        let peer = known(peer_of(&socket)?);
        // Without either, datagrams stay small and are received one by one.
        let _ = sys::net::join_datagrams(&socket);
        let _ = sys::net::never_fragment(&socket);
        Ok(Way { socket, peer, added: now, heard: None })
    }
}

fn peer_of(socket: &OwnedFd) -> Result<SocketAddr, PartnerError> {
    let failed = |error| PartnerError::os("the socket of a QUIC connection", error);
    let peer = rustix::net::getpeername(socket).map_err(failed)?;
    let peer = peer.and_then(|address| SocketAddr::try_from(address).ok());
    peer.ok_or_else(|| failed(Errno::NOTCONN))
}

fn over(reason: &ConnectionError) -> Over {
    let other_purpose = TransportErrorCode::crypto(NO_APPLICATION_PROTOCOL);
    match reason {
        ConnectionError::ApplicationClosed(close) => {
            Over::Closed(String::from_utf8_lossy(&close.reason).into_owned())
        }
        ConnectionError::LocallyClosed => Over::Closed(String::new()),
        ConnectionError::ConnectionClosed(close) if close.error_code == other_purpose => Over::OtherPurpose,
        ConnectionError::TransportError(error) if error.code == other_purpose => Over::OtherPurpose,
        ConnectionError::Reset => Over::Broken("the other host has begun anew".into()),
        other => Over::Broken(other.to_string()),
    }
}

fn is(error: &io::Error, numbers: &[Errno]) -> bool {
    Errno::from_io_error(error).is_some_and(|number| numbers.contains(&number))
}

/// The network, or the peer, may come back; until then datagrams are lost, as they may be on the way.
fn is_passing(error: &io::Error) -> bool {
    let passing = [
        Errno::CONNREFUSED,
        Errno::NETUNREACH,
        Errno::HOSTUNREACH,
        Errno::HOSTDOWN,
        Errno::NETDOWN,
        Errno::NOBUFS,
        Errno::PERM,
        Errno::MSGSIZE,
    ];
    is(error, &passing)
}
