//! A control channel over QUIC: the single stream of its own connection, run by the broker (RFC 9000).
//! TLS 1.3 uses the same keys as over TCP.

use crate::link_keys::LinkKeys;
use crate::{PeerKey, tls};
use contract::PartnerError;
use rustls::pki_types::CertificateDer;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use sys::poller::Poller;
use transports::quic::{
    CloseReason, Congestion, ConnectionConfig, Dir, QuicConnection, ReadError, ServerKeys, StreamId, Tag,
    Tuning, WriteError,
};

/// Transport settings: buffer limits for each side, timeouts. Control messages are few.
const TUNING: Tuning = Tuning {
    window: 256 << 10,
    streams: 0,
    datagram: 1452,
    is_size_known: false,
    congestion: Congestion::Cubic,
};
/// Server name in the TLS of a host without authentication, so that it cannot be mistaken for one with
/// it.
const INSECURE: &[u8] = b"outboard-insecure";

/// Configuration of both ends of a control channel over QUIC.
pub struct QuicTrust<'a> {
    /// The known hosts; `None` accepts every peer (`--insecure`).
    pub trust: Option<&'a crate::Trust>,
}

impl QuicTrust<'_> {
    /// Connects over a socket that is connected to the device host.
    pub fn connect(&self, socket: OwnedFd) -> io::Result<QuicStream> {
        let tls = match self.trust {
            Some(trust) => trust.client.as_ref().clone(),
            None => tls::throwaway(|own| transports::tls::client(own, INSECURE, None))?,
        };
        QuicStream::begin(socket, ConnectionConfig::client(tls, &TUNING)?, self.trust.is_some(), None)
    }

    /// The TLS configuration of a device host.
    pub fn listen(&self, tag: Tag, keys: &ServerKeys) -> io::Result<ConnectionConfig> {
        let tls = match self.trust {
            Some(trust) => trust.server.as_ref().clone(),
            None => tls::throwaway(|own| transports::tls::server(own, INSECURE, None))?,
        };
        ConnectionConfig::server(tls, tag, keys, &TUNING)
    }
}

/// A control channel's bytes over QUIC.
pub struct QuicStream {
    connection: QuicConnection,
    stream: Option<StreamId>,
    /// The peer must be a known host.
    authenticates: bool,
    /// Of an accepted connection: the tag by which the listener routes datagrams to it.
    tag: Option<Tag>,
}

impl QuicStream {
    fn begin(
        socket: OwnedFd,
        beginning: ConnectionConfig,
        authenticates: bool,
        tag: Option<Tag>,
    ) -> io::Result<QuicStream> {
        let connection = QuicConnection::new(socket, beginning).map_err(io_error)?;
        let mut stream = QuicStream { connection, stream: None, authenticates, tag };
        stream.connection.drive_output();
        Ok(stream)
    }

    /// Accepts a connection: the socket is connected to the peer; the listener received the first
    /// datagram.
    pub fn accept(
        socket: OwnedFd,
        beginning: ConnectionConfig,
        authenticates: bool,
        (datagram, peer): (&[u8], SocketAddr),
    ) -> io::Result<QuicStream> {
        let tag = match &beginning {
            ConnectionConfig::Server(_, tag, _) => Some(*tag),
            ConnectionConfig::Client(_) => None,
        };
        let mut stream = QuicStream::begin(socket, beginning, authenticates, tag)?;
        stream.connection.inject_datagram(datagram, peer);
        stream.connection.drive_output();
        Ok(stream)
    }

    /// Migrates the connection to another local or remote address.
    pub fn add_way(&mut self, socket: OwnedFd) -> io::Result<()> {
        self.connection.add_path(socket).map_err(io_error)
    }

    /// Receives a datagram that arrived at another socket because the sender's address changed.
    pub fn take(&mut self, datagram: &[u8], peer: SocketAddr) {
        self.connection.inject_datagram(datagram, peer);
        self.connection.drive_output();
    }

    /// Closes the sending direction and waits up to `patience` until the peer has acknowledged
    /// everything.
    pub fn finish(&mut self, patience: Duration) -> io::Result<()> {
        let (Some(stream), Some(connection)) = (self.stream, self.connection.state()) else { return Ok(()) };
        let _ = connection.send_stream(stream).finish();
        self.wait(patience, |stream| {
            let connection = stream.connection.state()?;
            let is_over = connection.is_closed() || connection.streams().send_streams() == 0;
            is_over.then_some(Ok(()))
        })
    }

    /// Closes the connection with a reason. The close frame is sent once and can be lost.
    pub fn close(&mut self, reason: &str) {
        self.connection.close(reason);
    }

    /// The tag of an accepted connection.
    pub fn tag(&self) -> Option<Tag> {
        self.tag
    }

    /// Returns true if the connection sends to `peer`.
    pub fn goes_to(&self, peer: SocketAddr) -> bool {
        self.connection.has_path_to(peer)
    }

    /// The current address of the peer, without its scope.
    pub fn remote(&self) -> Option<SocketAddr> {
        self.connection.remote()
    }

    /// Returns true if the peer's host reports that nothing listens on its port. The report is not
    /// authenticated.
    pub fn is_refused(&self) -> bool {
        self.connection.is_refused()
    }

    /// The current local address of the connection.
    pub fn local(&self) -> Option<IpAddr> {
        self.connection.local().map(|address| address.ip())
    }

    /// The peer's key, if authentication is enabled and the handshake is complete.
    pub fn peer(&mut self) -> Option<PeerKey> {
        if !self.authenticates || !self.connection.is_established() {
            return None;
        }
        let shown = self.connection.state()?.crypto_session().peer_identity()?;
        let shown = shown.downcast::<Vec<CertificateDer<'static>>>().ok()?;
        PeerKey::from_spki(shown.first()?)
    }

    /// The keys of this channel's data connections; `None` before the end of the handshake.
    pub fn link_keys(&mut self) -> io::Result<Option<LinkKeys>> {
        if !self.connection.is_established() {
            return Ok(None);
        }
        let mut exported = [0; 32];
        let Some(connection) = self.connection.state() else { return Ok(None) };
        let session = connection.crypto_session();
        let result = session.export_keying_material(&mut exported, LinkKeys::LABEL, &[]);
        result.map_err(|_| io::Error::other("TLS gives no keys"))?;
        Ok(Some(LinkKeys::new(exported)))
    }

    /// Returns true if bytes wait for room in the socket.
    pub fn is_waiting(&self) -> bool {
        self.connection.is_blocked()
    }

    /// Registers the socket and the stream's interest with the poller.
    pub fn register(&self, poller: &mut Poller) {
        self.connection.register(poller);
    }

    /// Returns true if the last poll reported an event for this connection.
    pub fn is_ready(&self, poller: &Poller) -> bool {
        self.connection.is_ready(poller)
    }

    /// The time of the connection's next timer.
    pub fn timeout(&self) -> Option<Duration> {
        self.connection.timeout()
    }

    /// Removes the socket from the poller.
    pub fn forget(&self, poller: &mut Poller) {
        self.connection.deregister(poller);
    }

    /// Waits up to `patience` until the handshake is complete.
    pub fn shake_hands(&mut self, patience: Duration) -> io::Result<()> {
        self.wait(patience, |stream| match stream.shaken() {
            Ok(false) => None,
            shaken => Some(shaken.map(drop)),
        })
    }

    fn shaken(&self) -> io::Result<bool> {
        match (self.connection.is_established(), self.over()) {
            (true, _) => Ok(true),
            (false, Some(over)) => Err(over),
            (false, None) if self.connection.is_refused() => Err(io::ErrorKind::ConnectionRefused.into()),
            (false, None) => Ok(false),
        }
    }

    /// Runs the due work without waiting. Returns true once the handshake is complete, or the reason for
    /// its failure.
    pub fn is_shaken(&mut self) -> io::Result<bool> {
        self.connection.drive();
        self.shaken()
    }

    /// Waits until `look` returns a value.
    fn wait<T>(
        &mut self,
        patience: Duration,
        mut look: impl FnMut(&mut QuicStream) -> Option<io::Result<T>>,
    ) -> io::Result<T> {
        let until = Instant::now() + patience;
        let mut poller = Poller::new()?;
        loop {
            self.connection.drive();
            if let Some(answer) = look(self) {
                return answer;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.connection.register(&mut poller);
            poller.wait(Some(self.connection.timeout().map_or(left, |timeout| timeout.min(left))))?;
        }
    }

    /// The reason why nothing more arrives, if the connection has failed.
    fn over(&self) -> Option<io::Error> {
        match self.connection.close_reason()? {
            CloseReason::Closed(reason) if reason.is_empty() => Some(io::ErrorKind::UnexpectedEof.into()),
            CloseReason::Closed(reason) => {
                Some(io::Error::new(io::ErrorKind::ConnectionAborted, reason.clone()))
            }
            CloseReason::WrongProtocol => {
                Some(io::Error::new(io::ErrorKind::PermissionDenied, OTHER_PURPOSE))
            }
            CloseReason::Failed(reason) => Some(io::Error::new(io::ErrorKind::InvalidData, reason.clone())),
        }
    }

    /// Reads the received bytes without polling the socket.
    fn read_here(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let Some(connection) = self.connection.state() else { return Err(io::ErrorKind::WouldBlock.into()) };
        // The application host opens the stream; the device host sees it with the first bytes.
        self.stream = self.stream.or_else(|| connection.streams().accept(Dir::Bi));
        let Some(stream) = self.stream else { return Err(io::ErrorKind::WouldBlock.into()) };
        let mut stream = connection.recv_stream(stream);
        let Ok(mut chunks) = stream.read(true) else { return Ok(0) };
        let read = match chunks.next(bytes.len()) {
            Ok(Some(chunk)) => {
                bytes[..chunk.bytes.len()].copy_from_slice(&chunk.bytes);
                Ok(chunk.bytes.len())
            }
            Ok(None) | Err(ReadError::Reset(_)) => Ok(0),
            Err(ReadError::Blocked) => Err(io::ErrorKind::WouldBlock.into()),
        };
        // The next turn sends the flow-control update to the peer.
        let _ = chunks.finalize();
        read
    }

    /// Returns a reader that waits up to `patience` for each step.
    pub fn patient(&mut self, patience: Duration) -> Patient<'_> {
        Patient { stream: self, patience }
    }
}

/// Rejection messages for a client that uses the wrong security mode.
pub const OTHER_PURPOSE: &str = "only one of the two hosts uses --insecure, or their versions differ";

fn io_error(error: PartnerError) -> io::Error {
    match error {
        PartnerError::Os { error, .. } => error,
        other => io::Error::other(other.to_string()),
    }
}

impl Read for QuicStream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self.read_here(bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            read => return read,
        }
        self.connection.drive();
        match self.read_here(bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => match self.over() {
                Some(over) if over.kind() == io::ErrorKind::UnexpectedEof => Ok(0),
                Some(over) => Err(over),
                None => Err(error),
            },
            read => read,
        }
    }
}

impl Write for QuicStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(over) = self.over() {
            return Err(over);
        }
        let not_now = io::Error::from(io::ErrorKind::WouldBlock);
        let is_client = self.tag.is_none();
        let Some(connection) = self.connection.state() else { return Err(not_now) };
        if self.stream.is_none() && is_client {
            self.stream = connection.streams().open(Dir::Bi);
        }
        let Some(stream) = self.stream else { return Err(not_now) };
        match connection.send_stream(stream).write(bytes) {
            Ok(count) => Ok(count),
            Err(WriteError::Blocked) => Err(not_now),
            Err(_) => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.connection.drive_output();
        Ok(())
    }
}

/// A reader that blocks until bytes arrive.
pub struct Patient<'a> {
    stream: &'a mut QuicStream,
    patience: Duration,
}

impl Read for Patient<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.stream.wait(self.patience, |stream| match stream.read_here(bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => stream.over().map(Err),
            read => Some(read),
        })
    }
}
