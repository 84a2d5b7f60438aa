//! One QUIC connection (RFC 9000): quinn-proto with its sockets. It never blocks, has no thread and creates no socket;
//! its owner polls [`QuicConnection::readiness`] and calls [`QuicConnection::drive`].
//!
//! | state | `state` | `over` | next |
//! |---|---|---|---|
//! | waiting, only on the accepting side | none | none | handshake, with the first datagram |
//! | handshake | handshaking | none | established; over after [`HANDSHAKE_MAX`] |
//! | established | established | none | over |
//! | over | any | the reason | received data can still be read |
//!
//! A connection has one connected socket per path (a pair of addresses), so its process can reach only its peer. After a
//! migration (RFC 9000, section 9) it has two: the older path receives late datagrams until it was silent for
//! [`LATE_MAX`].

use super::ack_bypass::{self, AckMonitor};
use super::config::ConnectionConfig;
use super::rate_controller::Permission;
use crate::socket;
use bytes::BytesMut;
use contract::{Interest, PartnerError, PartnerResult, Readiness, Time};
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
use sys::net::DatagramSplit;
use sys::net::SEGMENTS_MAX;

/// Paths of one connection, at most.
const PATHS_MAX: usize = 2;
/// Silence after which an unused path is closed.
pub(super) const LATE_MAX: Duration = Duration::from_secs(3);
/// Largest amount that one receive call returns.
const RECEIVE_BYTES: usize = 64 << 10;
/// Size of a slab, into which datagrams are received one behind the other.
const SLAB_BYTES: usize = 4 * RECEIVE_BYTES;
/// Receive calls per path of one call to [`QuicConnection::drive`], at most, so that a fast peer does not starve the rest of the event loop.
const RECEIVE_CALLS_MAX: usize = 16;
/// Largest payload of one UDP packet over IPv4, and so of one batch.
const BATCH_BYTES_MAX: usize = 65_507;
/// Retries of a datagram after `ECONNREFUSED`.
const REFUSALS_MAX: usize = 2;

/// Longest handshake. It can hang: a server that has accepted a stranger's Initial ignores those of its peer.
pub(super) const HANDSHAKE_MAX: Duration = Duration::from_secs(8);

/// TLS alert `no_application_protocol` (RFC 7301, section 3.2).
const NO_APPLICATION_PROTOCOL: u8 = 120;

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counts {
    pub(super) sent_datagrams: u64,
    pub(super) send_calls: u64,
    /// Datagrams dropped because the system refused them, for example without a route.
    pub(super) unsent_datagrams: u64,
    pub(super) received_datagrams: u64,
    pub(super) receive_calls: u64,
    /// Datagrams sent past congestion control for an overdue acknowledgement.
    pub(super) ack_datagrams: u64,
    /// Paths added after the first.
    pub(super) moves: u64,
}

/// Reason why a connection is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CloseReason {
    /// Closed normally, with the peer's reason, which may be empty.
    Closed(String),
    /// The peer does not offer the protocol (ALPN, RFC 7301).
    WrongProtocol,
    /// Failed.
    Failed(String),
}

/// A pair of addresses with its connected socket.
#[derive(Debug)]
struct Path {
    socket: OwnedFd,
    split: DatagramSplit,
    /// The kernel does not split batches (UDP_SEGMENT) for this socket. Another may take them: they also fail
    /// while a network changes and the socket's address is gone.
    is_unbatched: bool,
    /// In the form of [`without_scope`].
    peer: SocketAddr,
    added: Instant,
    last_received: Option<Instant>,
}

/// Removes the scope of a link-local address (RFC 4007). quinn-proto compares whole addresses, but the token of a Retry
/// holds the address without its scope.
pub(super) fn without_scope(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip(), address.port())
}

/// The connection's output to the sockets.
#[derive(Debug, Default)]
struct Output {
    /// Datagrams of `pending`, or the buffer for the next.
    batch: Vec<u8>,
    /// Datagrams that the socket has not accepted yet.
    pending: Option<Transmit>,
}

/// A QUIC connection with its sockets.
pub struct QuicConnection {
    endpoint: Endpoint,
    /// None on the accepting side before the first datagram.
    state: Option<(ConnectionHandle, Connection)>,
    /// Newest last.
    paths: SmallVec<[Path; PATHS_MAX]>,
    name: String,
    output: Output,
    /// Buffer for datagrams that the endpoint sends without a connection.
    response: Vec<u8>,
    slab: BytesMut,
    ack_monitor: AckMonitor,
    /// Data may have become readable or writable since [`QuicConnection::take_news`].
    has_news: bool,
    timeout: Option<Instant>,
    /// The rate permits nothing before this time.
    paced_until: Option<Instant>,
    begun: Instant,
    /// Address that quinn-proto sent to when it was last driven.
    remote: Option<SocketAddr>,
    /// The peer's port was closed for the last datagram.
    is_refused: bool,
    over: Option<CloseReason>,
    /// [`QuicConnection::close`] was called.
    is_closed: bool,
    pub(super) counts: Counts,
}

impl QuicConnection {
    /// Starts a connection over `socket`, which is connected to the peer.
    pub fn new(socket: OwnedFd, config: ConnectionConfig) -> PartnerResult<QuicConnection> {
        let failed = |error| PartnerError::os("setting up QUIC", error);
        let name = peer_of(&socket)?.to_string();
        let begun = Instant::now();
        let path = Path::new(socket, begun)?;
        let endpoint_config = Arc::new(config.endpoint().map_err(failed)?);
        let (server, client) = match config {
            ConnectionConfig::Client(config) => (None, Some(config)),
            ConnectionConfig::Server(config, ..) => (Some(config), None),
        };
        let mut endpoint = Endpoint::new(endpoint_config, server, true, None);
        let state = match client {
            None => None,
            Some(config) => {
                let state = endpoint.connect(begun, config, path.peer, crate::tls::SERVER_NAME);
                Some(state.map_err(|error| failed(io::Error::other(error)))?)
            }
        };
        Ok(QuicConnection {
            endpoint,
            state,
            paths: [path].into_iter().collect(),
            name,
            output: Output::default(),
            response: Vec::new(),
            slab: BytesMut::with_capacity(SLAB_BYTES),
            ack_monitor: AckMonitor::default(),
            has_news: true,
            timeout: None,
            paced_until: None,
            begun,
            remote: None,
            is_refused: false,
            over: None,
            is_closed: false,
            counts: Counts::default(),
        })
    }

    /// Returns the peer's first address, for messages to people.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns quinn-proto's connection; `None` in the state waiting.
    pub fn state(&mut self) -> Option<&mut Connection> {
        self.state.as_mut().map(|(_, connection)| connection)
    }

    /// Returns true if the handshake is complete.
    pub fn is_established(&self) -> bool {
        self.state.as_ref().is_some_and(|(_, connection)| !connection.is_handshaking())
    }

    /// Returns true if the peer's host reports that its port is closed.
    pub fn is_refused(&self) -> bool {
        self.is_refused
    }

    /// Returns the reason if the connection is over. Data received before can still be read.
    pub fn close_reason(&self) -> Option<&CloseReason> {
        self.over.as_ref()
    }

    /// Returns true if data may have become readable or writable since the last call.
    pub fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.has_news)
    }

    /// Returns true if [`QuicConnection::take_news`] would.
    pub fn has_news(&self) -> bool {
        self.has_news
    }

    /// Adds the path of this connected socket and migrates to it.
    pub fn add_path(&mut self, socket: OwnedFd) -> PartnerResult {
        self.add_path_at(socket, Instant::now())
    }

    pub(super) fn add_path_at(&mut self, socket: OwnedFd, now: Instant) -> PartnerResult {
        let path = Path::new(socket, now)?;
        if self.paths.len() == PATHS_MAX {
            // The path in use stays until another is in use.
            let used = self.remote();
            let is_used = |path: &Path| Some(path.peer) == used;
            let unused = if is_used(&self.paths[0]) && !is_used(&self.paths[1]) { 1 } else { 0 };
            self.remove_path(unused);
        }
        self.paths.push(path);
        self.counts.moves += 1;
        if let Some((_, connection)) = &mut self.state
            && connection.side() == Side::Client
        {
            connection.local_address_changed();
            connection.path_changed(now);
            // Pending datagrams of the old socket are sent over the new one.
            self.drive_output_at(now);
        }
        Ok(())
    }

    fn remove_path(&mut self, index: usize) {
        self.paths.remove(index);
        // Pollers must forget the descriptor: its number may be reused for another file.
        sys::poller::note_closed();
    }

    /// Returns the time to close the older path. It stays until the newer one is in use and has received data.
    fn late_until(&self) -> Option<Instant> {
        let [older, newer] = &self.paths[..] else { return None };
        let is_used =
            self.state.as_ref().is_some_and(|(_, connection)| connection.remote_address() == newer.peer);
        let since = older.last_received.map_or(newer.added, |last| last.max(newer.added));
        (is_used && newer.last_received.is_some()).then(|| since + LATE_MAX)
    }

    /// Returns the local address of the newest path.
    pub fn local(&self) -> Option<SocketAddr> {
        let path = self.paths.last()?;
        rustix::net::getsockname(&path.socket).ok().and_then(|address| address.try_into().ok())
    }

    /// Returns the peer's address on the path in use, without its scope.
    pub fn remote(&self) -> Option<SocketAddr> {
        self.state.as_ref().map(|(_, connection)| connection.remote_address())
    }

    /// Returns true if one of the paths leads to this address.
    pub fn has_path_to(&self, peer: SocketAddr) -> bool {
        self.paths.iter().any(|path| path.peer == without_scope(peer))
    }

    /// Receives datagrams, handles timers and sends, until the sockets block.
    pub fn drive(&mut self) {
        self.drive_at(Instant::now());
    }

    pub(super) fn drive_at(&mut self, now: Instant) {
        for index in 0..self.paths.len() {
            for _ in 0..RECEIVE_CALLS_MAX {
                if !self.receive(index, now) {
                    break;
                }
            }
        }
        self.drive_output_at(now);
    }

    /// Like [`QuicConnection::drive`] without receiving.
    pub fn drive_output(&mut self) {
        self.drive_output_at(Instant::now());
    }

    pub(super) fn drive_output_at(&mut self, now: Instant) {
        self.process_events(now);
        self.begin_path(now);
        if let Some((_, connection)) = &mut self.state
            && self.timeout.is_some_and(|at| at <= now)
        {
            connection.handle_timeout(now);
            self.process_events(now);
        }
        let handshake_until =
            (!self.is_established() && self.over.is_none()).then(|| self.begun + HANDSHAKE_MAX);
        if handshake_until.is_some_and(|at| at <= now) {
            self.over =
                Some(CloseReason::Failed(format!("no handshake within {} s", HANDSHAKE_MAX.as_secs())));
            self.has_news = true;
            if let Some((_, connection)) = &mut self.state {
                connection.close(now, VarInt::from_u32(0), bytes::Bytes::new());
            }
        }
        self.transmit(now);
        self.send_overdue_ack(now);
        if self.late_until().is_some_and(|at| at <= now) {
            self.remove_path(0);
        }
        let timeout = self.state.as_mut().and_then(|(_, connection)| connection.poll_timeout());
        let handshake_until = handshake_until.filter(|_| self.over.is_none());
        let timers = [timeout, self.ack_monitor.due(), handshake_until, self.late_until(), self.paced_until];
        self.timeout = timers.into_iter().flatten().min();
    }

    /// Sends a PING on a new path before any timer is handled. quinn-proto counts packets in flight per path but has one
    /// loss timer for all paths. With nothing in flight on the new path it takes that timer for the handshake's: with
    /// debug assertions it panics, otherwise the timer stops until the next transmission.
    fn begin_path(&mut self, now: Instant) {
        let Some((_, connection)) = &mut self.state else { return };
        let remote = Some(connection.remote_address());
        let previous = std::mem::replace(&mut self.remote, remote);
        if previous.is_some() && previous != remote && !connection.is_closed() {
            connection.ping();
            // Pending datagrams belong to the old path and count as lost there.
            self.output.pending = None;
            self.send_one_now(now);
        }
    }

    /// Sends one datagram past congestion control if an acknowledgement is overdue.
    fn send_overdue_ack(&mut self, now: Instant) {
        let Some((_, connection)) = &mut self.state else { return };
        let received = self.counts.received_datagrams;
        if self.ack_monitor.is_overdue(connection, received, now) && self.send_one_now(now) {
            self.counts.ack_datagrams += 1;
        }
    }

    /// Sends a PING at once, because a silent peer is back. The probe timeout has doubled during the silence (RFC 9002,
    /// section 6.2.1); the acknowledgement of the PING resets it.
    pub fn probe(&mut self) {
        self.probe_at(Instant::now());
    }

    pub(super) fn probe_at(&mut self, now: Instant) {
        let Some((_, connection)) = &mut self.state else { return };
        if !connection.is_closed() {
            connection.ping();
            self.send_one_now(now);
            self.drive_output_at(now);
        }
    }

    /// Sends one datagram past congestion control. Returns false if there is none, or the socket blocks already.
    fn send_one_now(&mut self, now: Instant) -> bool {
        let Some((_, connection)) = self.state.as_mut().filter(|_| self.output.pending.is_none()) else {
            return false;
        };
        self.output.batch.clear();
        let poll = |connection: &mut Connection| connection.poll_transmit(now, 1, &mut self.output.batch);
        self.output.pending = ack_bypass::bypass(connection, poll).flatten();
        let is_one = self.output.pending.is_some();
        self.transmit(now);
        is_one
    }

    /// Processes a datagram of this connection that another socket received.
    pub fn inject_datagram(&mut self, datagram: &[u8], peer: SocketAddr) {
        self.handle_datagram(BytesMut::from(datagram), without_scope(peer), Instant::now());
    }

    /// Receives one or more datagrams from a path. Returns false if its socket is empty.
    fn receive(&mut self, index: usize, now: Instant) -> bool {
        // Reclaiming first makes an idle connection reuse the same page of its slab.
        if !self.slab.try_reclaim(SLAB_BYTES) && self.slab.capacity() < RECEIVE_BYTES {
            self.slab = BytesMut::with_capacity(SLAB_BYTES);
        }
        self.counts.receive_calls += 1;
        let Path { socket, peer, .. } = &self.paths[index];
        let peer = *peer;
        let received = match sys::net::receive_datagrams(socket, &mut self.slab) {
            Ok(received) => received,
            // For example, an earlier datagram found the peer's port closed. The port may open again.
            Err(error) => {
                self.is_refused |= socket::is(&error, &[Errno::CONNREFUSED]);
                return !socket::would_block(&error) && socket::is_transient(&error);
            }
        };
        self.is_refused = false;
        // The caller may have waited for the processor since `now`: an earlier time would shorten the round trip.
        let now = now.max(Instant::now());
        self.paths[index].last_received = Some(now);
        let mut datagrams = self.slab.split();
        if received.truncated {
            return true;
        }
        while !datagrams.is_empty() {
            let datagram = datagrams.split_to(received.segment.min(datagrams.len()));
            self.handle_datagram(datagram, peer, now);
        }
        true
    }

    fn handle_datagram(&mut self, datagram: BytesMut, peer: SocketAddr, now: Instant) {
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
            // This endpoint has only one connection.
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
                        self.over = Some(CloseReason::Failed(error.cause.to_string()));
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

    /// Passes events between quinn-proto's connection and endpoint, and handles those for this layer.
    fn process_events(&mut self, now: Instant) {
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
                    self.over = Some(CloseReason::Failed("the peer refuses to receive the flow".into()));
                    connection.close(now, VarInt::from_u32(0), bytes::Bytes::new());
                }
                Event::HandshakeDataReady
                | Event::Connected
                | Event::Stream(_)
                | Event::DatagramReceived
                | Event::DatagramsUnblocked => {}
            }
            self.has_news = true;
        }
    }

    /// Sends until the connection has nothing to send, the pace permits no more, or the socket blocks. The pace permits what it did at
    /// the start: it would go on to permit a few datagrams, and meanwhile nothing would be received.
    fn transmit(&mut self, now: Instant) {
        let began = now.max(Instant::now());
        self.paced_until = None;
        let rate = self.state.as_ref().and_then(|(_, connection)| ack_bypass::rate(connection));
        loop {
            // Sending takes time. Receiving took some, too.
            let now = now.max(Instant::now());
            if self.output.pending.is_none() {
                let Some((_, connection)) = &mut self.state else { return };
                let permitted = match rate.as_ref().map(|rate| rate.permission(began)) {
                    None => BATCH_BYTES_MAX,
                    Some(_) if connection.is_closed() => BATCH_BYTES_MAX,
                    Some(Permission::Bytes(bytes)) => bytes.min(BATCH_BYTES_MAX),
                    Some(Permission::At(at)) => {
                        self.paced_until = Some(at);
                        return;
                    }
                };
                let path = path_to(&mut self.paths, connection.remote_address());
                let segments = match path.is_some_and(|path| path.is_unbatched) {
                    true => 1,
                    false => (permitted / usize::from(connection.current_mtu())).clamp(1, SEGMENTS_MAX),
                };
                self.output.batch.clear();
                self.output.pending = connection.poll_transmit(now, segments, &mut self.output.batch);
            }
            let Some(transmit) = self.output.pending.take() else { return };
            let batch = std::mem::take(&mut self.output.batch);
            let sent = self.send(&transmit, &batch);
            self.output.batch = batch;
            if let Err(error) = sent
                && socket::would_block(&error)
            {
                self.output.pending = Some(transmit);
                return;
            }
        }
    }

    /// Sends datagrams. Returns an error only if the socket blocks; all other failures count as loss in the network.
    fn send(&mut self, transmit: &Transmit, bytes: &[u8]) -> io::Result<()> {
        let bytes = &bytes[..transmit.size];
        let segment = transmit.segment_size.filter(|size| *size < bytes.len());
        let count = segment.map_or(1, |size| bytes.len().div_ceil(size)) as u64;
        let Some(path) = path_to(&mut self.paths, transmit.destination) else { return Ok(()) };
        let mut refusals = 0;
        loop {
            self.counts.send_calls += 1;
            let slices = [IoSlice::new(bytes)];
            // A batch has at most 64 KiB.
            match path.split.send(&path.socket, &slices, segment.map(|segment| segment as u16)) {
                Ok(_) => {
                    self.counts.sent_datagrams += count;
                    return Ok(());
                }
                Err(error) if socket::would_block(&error) => return Err(error),
                // The error belongs to an earlier datagram; this one was not sent.
                Err(error) if socket::is(&error, &[Errno::CONNREFUSED]) && refusals < REFUSALS_MAX => {
                    refusals += 1;
                    self.is_refused = true;
                }
                Err(error) => {
                    // The kernel or the network device cannot split a batch.
                    path.is_unbatched |= segment.is_some() && !socket::is_transient(&error);
                    self.counts.unsent_datagrams += count;
                    return Ok(());
                }
            }
        }
    }

    /// Closes the connection and sends the reason to the peer.
    pub fn close(&mut self, reason: &str) {
        if let Some((_, connection)) = &mut self.state
            && !std::mem::replace(&mut self.is_closed, true)
            && !connection.is_closed()
        {
            let reason = bytes::Bytes::copy_from_slice(reason.as_bytes());
            connection.close(Instant::now(), VarInt::from_u32(0), reason);
            self.output.pending = None;
            self.drive_output();
        }
    }

    /// Returns the descriptors and the time to poll for the next [`QuicConnection::drive`].
    pub fn readiness(&self) -> Readiness<'_> {
        let newest = self.paths.last().map(|path| (path.socket.as_fd(), Interest::Read));
        let older = self.paths.first().filter(|_| self.paths.len() > 1);
        // `Readiness` holds two descriptors: while output is pending, the older path is not polled.
        let other = match self.output.pending {
            Some(_) => self.paths.last().map(|path| (path.socket.as_fd(), Interest::Write)),
            None => older.map(|path| (path.socket.as_fd(), Interest::Read)),
        };
        let at = self.timeout.map(|at| {
            let wait = at.saturating_duration_since(Instant::now());
            Time(sys::clock::boot_ns()).after(wait)
        });
        Readiness { now: false, descriptors: [newest, other], at }
    }

    /// Returns the time until the next timer.
    pub fn timeout(&self) -> Option<Duration> {
        self.timeout.map(|at| at.saturating_duration_since(Instant::now()))
    }

    /// Returns true if datagrams wait for the socket.
    pub fn is_blocked(&self) -> bool {
        self.output.pending.is_some()
    }

    /// Registers the sockets with a poller.
    pub fn register(&self, poller: &mut sys::poller::Poller) {
        for (descriptor, interest) in self.readiness().descriptors.into_iter().flatten() {
            poller.register(descriptor, interest == Interest::Read, interest == Interest::Write);
        }
    }

    /// Returns true if the last poll found one of the sockets ready.
    pub fn is_ready(&self, poller: &sys::poller::Poller) -> bool {
        self.paths.iter().any(|path| poller.is_ready(path.socket.as_fd()))
    }

    /// Removes the sockets from a poller.
    pub fn deregister(&self, poller: &mut sys::poller::Poller) {
        self.paths.iter().for_each(|path| poller.forget(path.socket.as_fd()));
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

impl Path {
    fn new(socket: OwnedFd, now: Instant) -> PartnerResult<Path> {
        let peer = without_scope(peer_of(&socket)?);
        // Best effort: without these, datagrams are received one by one and stay small.
        let _ = sys::net::join_datagrams(&socket);
        let _ = sys::net::never_fragment(&socket);
        let split = DatagramSplit::default();
        Ok(Path { socket, split, is_unbatched: false, peer, added: now, last_received: None })
    }
}

/// Returns the newest path to this address, or else the newest of all.
fn path_to(paths: &mut [Path], peer: SocketAddr) -> Option<&mut Path> {
    let to = paths.iter().rposition(|path| path.peer == peer);
    let last = paths.len().saturating_sub(1);
    paths.get_mut(to.unwrap_or(last))
}

fn peer_of(socket: &OwnedFd) -> PartnerResult<SocketAddr> {
    let failed = |error| PartnerError::os("the socket of a QUIC connection", error);
    let peer = rustix::net::getpeername(socket).map_err(failed)?;
    let peer = peer.and_then(|address| SocketAddr::try_from(address).ok());
    peer.ok_or_else(|| failed(Errno::NOTCONN))
}

fn over(reason: &ConnectionError) -> CloseReason {
    let other_purpose = TransportErrorCode::crypto(NO_APPLICATION_PROTOCOL);
    match reason {
        ConnectionError::ApplicationClosed(close) => {
            CloseReason::Closed(String::from_utf8_lossy(&close.reason).into_owned())
        }
        ConnectionError::LocallyClosed => CloseReason::Closed(String::new()),
        ConnectionError::ConnectionClosed(close) if close.error_code == other_purpose => {
            CloseReason::WrongProtocol
        }
        ConnectionError::TransportError(error) if error.code == other_purpose => CloseReason::WrongProtocol,
        ConnectionError::Reset => CloseReason::Failed("the other host has restarted".into()),
        other => CloseReason::Failed(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quic::tests::established;
    use crate::test_records::{pattern, udp_pair};
    use quinn_proto::Dir;
    use std::net::UdpSocket;

    #[test]
    fn batches_that_one_path_refuses_go_over_the_next() {
        let sockets = udp_pair();
        let there = UdpSocket::from(sockets[1].try_clone().expect("a socket"));
        let (mut ends, mut now) = established(sockets);
        let stream = ends[0].state().expect("a connection").streams().open(Dir::Uni).expect("a stream");
        let send = |ends: &mut [QuicConnection; 2], now: &mut Instant| {
            let before = ends[0].counts;
            let connection = ends[0].state().expect("a connection");
            assert_eq!(connection.send_stream(stream).write(&pattern(64 << 10, 7)), Ok(64 << 10));
            for _ in 0..100 {
                *now += Duration::from_millis(10);
                ends.iter_mut().for_each(|end| end.drive_at(*now));
            }
            let counts = ends[0].counts;
            let sent = counts.sent_datagrams - before.sent_datagrams;
            assert!(sent >= 50, "{sent} datagrams");
            (sent, counts.send_calls - before.send_calls)
        };
        ends[0].paths[0].is_unbatched = true;
        let (sent, calls) = send(&mut ends, &mut now);
        assert_eq!(sent, calls);
        let moved = UdpSocket::bind("127.0.0.1:0").expect("bind");
        moved.set_nonblocking(true).expect("a socket that does not block");
        moved.connect(there.local_addr().expect("address")).expect("connect");
        there.connect(moved.local_addr().expect("address")).expect("connect");
        ends[0].add_path_at(moved.into(), now).expect("another socket");
        let (sent, calls) = send(&mut ends, &mut now);
        assert!(calls < sent, "{calls} calls for {sent} datagrams");
    }
}
