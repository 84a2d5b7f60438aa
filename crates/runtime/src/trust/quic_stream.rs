//! A control channel over QUIC: the one stream of a connection of its own, run by the broker (RFC 9000; TLS 1.3 with
//! the same keys as over TCP).

use crate::trust::link_keys::LinkKeys;
use crate::trust::{PeerKey, tls};
use contract::PartnerError;
use rustls::pki_types::CertificateDer;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use sys::poller::Poller;
use transports::quic::{
    Beginning, Congestion, Dir, Over, QuicConnection, ReadError, ServerKeys, StreamId, Tag, Tuning,
    WriteError,
};

/// What may wait on each side, and the rest of how the connection behaves: control messages are few.
const TUNING: Tuning =
    Tuning { window: 256 << 10, streams: 0, datagram: 1452, is_known: false, congestion: Congestion::Cubic };
/// What the TLS of a host that asks nobody who he is says it is for: it cannot be taken for one that does.
const INSECURE: &[u8] = b"outboard-insecure";

/// What both ends of a control channel over QUIC are set up from.
pub(crate) struct QuicTrust<'a> {
    /// Whom this host knows; without it, whoever is there (`--insecure`).
    pub(crate) trust: Option<&'a crate::trust::Trust>,
}

impl QuicTrust<'_> {
    /// Over a socket that is connected to the sharer.
    pub(crate) fn connect(&self, socket: OwnedFd) -> io::Result<QuicStream> {
        let tls = match self.trust {
            Some(trust) => trust.client.as_ref().clone(),
            None => tls::throwaway(|own| transports::tls::client(own, INSECURE, None))?,
        };
        QuicStream::begin(socket, Beginning::client(tls, &TUNING)?, self.trust.is_some(), None)
    }

    /// What a sharer greets with.
    pub(crate) fn listen(&self, tag: Tag, keys: &ServerKeys) -> io::Result<Beginning> {
        let tls = match self.trust {
            Some(trust) => trust.server.as_ref().clone(),
            None => tls::throwaway(|own| transports::tls::server(own, INSECURE, None))?,
        };
        Beginning::server(tls, tag, keys, &TUNING)
    }
}

/// A control channel's bytes over QUIC.
pub(crate) struct QuicStream {
    connection: QuicConnection,
    stream: Option<StreamId>,
    /// Whether the other end has to be one that is known.
    asks_who: bool,
    /// Of an accepted one: what leads to it.
    tag: Option<Tag>,
}

impl QuicStream {
    fn begin(
        socket: OwnedFd,
        beginning: Beginning,
        asks_who: bool,
        tag: Option<Tag>,
    ) -> io::Result<QuicStream> {
        let connection = QuicConnection::begin(socket, beginning).map_err(io_error)?;
        let mut stream = QuicStream { connection, stream: None, asks_who, tag };
        stream.connection.turn_out();
        Ok(stream)
    }

    /// The side that listens: over a socket connected to the peer, whose first datagram came elsewhere.
    pub(crate) fn accept(
        socket: OwnedFd,
        beginning: Beginning,
        asks_who: bool,
        (datagram, peer): (&[u8], SocketAddr),
    ) -> io::Result<QuicStream> {
        let tag = match &beginning {
            Beginning::Server(_, tag, _) => Some(*tag),
            Beginning::Client(_) => None,
        };
        let mut stream = QuicStream::begin(socket, beginning, asks_who, tag)?;
        stream.connection.take(datagram, peer);
        stream.connection.turn_out();
        Ok(stream)
    }

    /// Goes on from, or to, another address.
    pub(crate) fn add_way(&mut self, socket: OwnedFd) -> io::Result<()> {
        self.connection.add_way(socket).map_err(io_error)
    }

    /// Takes a datagram that came to another socket, as its sender has moved.
    pub(crate) fn take(&mut self, datagram: &[u8], peer: SocketAddr) {
        self.connection.take(datagram, peer);
        self.connection.turn_out();
    }

    /// Says no more, and waits until the other end has all that was said, `patience` at most.
    pub(crate) fn finish(&mut self, patience: Duration) -> io::Result<()> {
        let (Some(stream), Some(connection)) = (self.stream, self.connection.state()) else { return Ok(()) };
        let _ = connection.send_stream(stream).finish();
        self.wait(patience, |stream| {
            let connection = stream.connection.state()?;
            let is_over = connection.is_closed() || connection.streams().send_streams() == 0;
            is_over.then_some(Ok(()))
        })
    }

    /// Ends it, and says why: once, so that the word may be lost.
    pub(crate) fn close(&mut self, reason: &str) {
        self.connection.close(reason);
    }

    pub(crate) fn tag(&self) -> Option<Tag> {
        self.tag
    }

    pub(crate) fn goes_to(&self, peer: SocketAddr) -> bool {
        self.connection.goes_to(peer)
    }

    /// Whether nothing listens at the other end's port, as far as its host says: anybody on the way can say so.
    pub(crate) fn is_refused(&self) -> bool {
        self.connection.is_refused()
    }

    /// This host's address, as the connection has it now.
    pub(crate) fn local(&self) -> Option<IpAddr> {
        self.connection.local().map(|address| address.ip())
    }

    /// The key that the other end showed, if it is asked for one and has.
    pub(crate) fn peer(&mut self) -> Option<PeerKey> {
        if !self.asks_who || !self.connection.is_established() {
            return None;
        }
        let shown = self.connection.state()?.crypto_session().peer_identity()?;
        let shown = shown.downcast::<Vec<CertificateDer<'static>>>().ok()?;
        PeerKey::from_spki(shown.first()?)
    }

    /// What seals the data connections of this channel; `None` before the end of its handshake.
    pub(crate) fn link_keys(&mut self) -> io::Result<Option<LinkKeys>> {
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

    /// Whether something waits for the socket to take it.
    pub(crate) fn is_waiting(&self) -> bool {
        self.connection.is_blocked()
    }

    pub(crate) fn want(&self, poller: &mut Poller) {
        self.connection.want(poller);
    }

    /// Whether the last wait found something to do here.
    pub(crate) fn is_ready(&self, poller: &Poller) -> bool {
        self.connection.is_ready(poller)
    }

    /// When it has something to do of its own.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        self.connection.timeout()
    }

    pub(crate) fn forget(&self, poller: &mut Poller) {
        self.connection.forget(poller);
    }

    /// Waits until both ends know each other; `patience` at most.
    pub(crate) fn shake_hands(&mut self, patience: Duration) -> io::Result<()> {
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

    /// Does what is due, without waiting; whether both ends know each other, or why they do not and will not.
    pub(crate) fn is_shaken(&mut self) -> io::Result<bool> {
        self.connection.turn();
        self.shaken()
    }

    /// Waits until `look` has an answer.
    fn wait<T>(
        &mut self,
        patience: Duration,
        mut look: impl FnMut(&mut QuicStream) -> Option<io::Result<T>>,
    ) -> io::Result<T> {
        let until = Instant::now() + patience;
        let mut poller = Poller::new()?;
        loop {
            self.connection.turn();
            if let Some(answer) = look(self) {
                return answer;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.connection.want(&mut poller);
            poller.wait(Some(self.connection.timeout().map_or(left, |timeout| timeout.min(left))))?;
        }
    }

    /// Why nothing more comes, if so.
    fn over(&self) -> Option<io::Error> {
        match self.connection.over()? {
            Over::Closed(reason) if reason.is_empty() => Some(io::ErrorKind::UnexpectedEof.into()),
            Over::Closed(reason) => Some(io::Error::new(io::ErrorKind::ConnectionAborted, reason.clone())),
            Over::OtherPurpose => Some(io::Error::new(io::ErrorKind::PermissionDenied, OTHER_PURPOSE)),
            Over::Broken(reason) => Some(io::Error::new(io::ErrorKind::InvalidData, reason.clone())),
        }
    }

    /// Reads what there is without looking for more.
    fn read_here(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let Some(connection) = self.connection.state() else { return Err(io::ErrorKind::WouldBlock.into()) };
        // The attacher opens it; the sharer learns of it when something comes.
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
        // The room goes back to the peer with the next turn.
        let _ = chunks.finalize();
        read
    }

    /// Whom this reads from while it waits `patience` for each step.
    pub(crate) fn patient(&mut self, patience: Duration) -> Patient<'_> {
        Patient { stream: self, patience }
    }
}

/// What TLS says, in its own way, to who comes for something else.
pub(crate) const OTHER_PURPOSE: &str =
    "one of the two hosts is told --insecure and the other is not, or they are of versions that differ";

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
        self.connection.turn();
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
        self.connection.turn_out();
        Ok(())
    }
}

/// A channel that waits for what it reads.
pub(crate) struct Patient<'a> {
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
