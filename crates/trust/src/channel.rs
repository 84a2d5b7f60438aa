//! The connection under a control channel: bare, TLS 1.3 over TCP, or QUIC.

use crate::link_keys::LinkKeys;
use crate::quic_stream::QuicStream;
use crate::{PeerKey, Trust};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use sys::poller::Poller;

/// Limit of TLS bytes that wait to be sent; further bytes wait in the control channel.
const BUFFER_BYTES_MAX: usize = 64 << 10;

/// A connection that carries control messages.
pub enum ControlStream {
    /// Plain TCP: the peer is not authenticated.
    Bare(TcpStream),
    /// TLS over TCP: the peer showed its key.
    Secure(Box<SecureStream>),
    /// QUIC: the peer showed a key, and proved that it owns the key if authentication is enabled.
    Quic(Box<QuicStream>),
}

impl ControlStream {
    /// Makes the socket nonblocking and disables Nagle's algorithm.
    pub fn make_prompt(&self) -> io::Result<()> {
        let Some(socket) = self.socket() else { return Ok(()) };
        // An older kernel retransmits later.
        let _ = sys::net::resend_soon(socket);
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)
    }

    /// Closes the sending direction and waits up to `longest` for the peer to close.
    pub fn finish(&mut self, longest: Duration) -> io::Result<()> {
        let mut socket = match self {
            ControlStream::Bare(stream) => &*stream,
            ControlStream::Secure(stream) => &stream.socket,
            ControlStream::Quic(stream) => return stream.finish(longest),
        };
        socket.shutdown(Shutdown::Write)?;
        socket.set_nonblocking(false)?;
        socket.set_read_timeout(Some(longest))?;
        let until = Instant::now() + longest;
        let mut unread = [0; 4096];
        while Instant::now() < until && socket.read(&mut unread)? > 0 {}
        Ok(())
    }

    fn socket(&self) -> Option<&TcpStream> {
        match self {
            ControlStream::Bare(stream) => Some(stream),
            ControlStream::Secure(stream) => Some(&stream.socket),
            ControlStream::Quic(_) => None,
        }
    }

    /// The local address of a TCP connection, which does not change.
    pub fn address(&self) -> Option<SocketAddr> {
        self.socket()?.local_addr().ok()
    }

    /// The QUIC stream, if this channel uses QUIC.
    pub fn quic(&mut self) -> Option<&mut QuicStream> {
        match self {
            ControlStream::Quic(stream) => Some(stream),
            _ => None,
        }
    }

    /// Returns true if the peer's host reports that nobody listens on its port. A TCP connection would
    /// be closed.
    pub fn is_refused(&self) -> bool {
        matches!(self, ControlStream::Quic(stream) if stream.is_refused())
    }

    /// Returns true if bytes wait for room in the socket.
    pub fn is_waiting(&self) -> bool {
        match self {
            ControlStream::Bare(_) => false,
            ControlStream::Secure(stream) => stream.tls.wants_write(),
            ControlStream::Quic(stream) => stream.is_waiting(),
        }
    }

    /// Registers the sockets with the poller; `is_waiting`: there is more to write.
    pub fn register(&self, poller: &mut Poller, is_waiting: bool) {
        match self {
            ControlStream::Quic(stream) => stream.register(poller),
            stream => {
                if let Some(socket) = stream.socket() {
                    poller.register(socket.as_fd(), true, is_waiting);
                }
            }
        }
    }

    /// Returns true if the last poll reported an event for this channel.
    pub fn is_ready(&self, poller: &Poller) -> bool {
        match self {
            ControlStream::Quic(stream) => stream.is_ready(poller),
            stream => stream.socket().is_some_and(|socket| poller.is_ready(socket.as_fd())),
        }
    }

    /// Time until the channel needs attention without an event.
    pub fn timeout(&self) -> Option<Duration> {
        match self {
            ControlStream::Quic(stream) => stream.timeout(),
            _ => None,
        }
    }

    /// Removes the sockets from a poller.
    pub fn forget(&self, poller: &mut Poller) {
        match self {
            ControlStream::Quic(stream) => stream.forget(poller),
            stream => {
                if let Some(socket) = stream.socket() {
                    poller.forget(socket.as_fd());
                }
            }
        }
    }

    /// The key that the peer proved to own; `None` without authentication or before the end of the
    /// handshake.
    pub fn peer(&mut self) -> Option<PeerKey> {
        match self {
            ControlStream::Bare(_) => None,
            ControlStream::Secure(stream) => stream.peer(),
            ControlStream::Quic(stream) => stream.peer(),
        }
    }

    /// The keys of this channel's data connections; `None` without TLS or before the end of the
    /// handshake.
    pub fn link_keys(&mut self) -> io::Result<Option<LinkKeys>> {
        match self {
            ControlStream::Bare(_) => Ok(None),
            ControlStream::Secure(stream) if stream.peer().is_none() => Ok(None),
            ControlStream::Secure(stream) => stream.link_keys().map(Some),
            ControlStream::Quic(stream) => stream.link_keys(),
        }
    }
}

impl Read for ControlStream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            ControlStream::Bare(stream) => stream.read(bytes),
            ControlStream::Secure(stream) => stream.read(bytes),
            ControlStream::Quic(stream) => stream.read(bytes),
        }
    }
}

impl Write for ControlStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            ControlStream::Bare(stream) => stream.write(bytes),
            ControlStream::Secure(stream) => stream.write(bytes),
            ControlStream::Quic(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            ControlStream::Bare(stream) => stream.flush(),
            ControlStream::Secure(stream) => stream.flush(),
            ControlStream::Quic(stream) => stream.flush(),
        }
    }
}

/// TLS over a socket.
pub struct SecureStream {
    socket: TcpStream,
    tls: Connection,
}

impl SecureStream {
    /// Client side, for the peers that `Trust` knows.
    pub fn connect(socket: TcpStream, trust: &Trust) -> io::Result<SecureStream> {
        SecureStream::client(socket, trust.client.clone())
    }

    /// Server side, for the peers that `Trust` knows.
    pub fn accept(socket: TcpStream, trust: &Trust) -> io::Result<SecureStream> {
        SecureStream::server(socket, trust.server.clone())
    }

    pub(super) fn client(socket: TcpStream, config: Arc<ClientConfig>) -> io::Result<SecureStream> {
        let name = ServerName::try_from(transports::tls::SERVER_NAME).map_err(io::Error::other)?;
        let tls = ClientConnection::new(config, name).map_err(io::Error::other)?;
        Ok(SecureStream::new(socket, tls.into()))
    }

    pub(super) fn server(socket: TcpStream, config: Arc<ServerConfig>) -> io::Result<SecureStream> {
        let tls = ServerConnection::new(config).map_err(io::Error::other)?;
        Ok(SecureStream::new(socket, tls.into()))
    }

    fn new(socket: TcpStream, mut tls: Connection) -> SecureStream {
        tls.set_buffer_limit(Some(BUFFER_BYTES_MAX));
        SecureStream { socket, tls }
    }

    /// Completes the handshake over a blocking socket, before `until`. `head` holds bytes already read
    /// from it.
    pub fn shake_hands(&mut self, mut head: &[u8], until: Instant) -> io::Result<PeerKey> {
        while !head.is_empty() {
            self.tls.read_tls(&mut head)?;
            self.process()?;
        }
        while self.tls.is_handshaking() || self.tls.wants_write() {
            if Instant::now() >= until {
                return Err(io::ErrorKind::TimedOut.into());
            }
            if self.tls.wants_write() {
                self.tls.write_tls(&mut self.socket)?;
            } else if self.tls.read_tls(&mut self.socket)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            } else {
                self.process()?;
            }
        }
        self.peer().ok_or_else(|| io::Error::other("the other host showed no key"))
    }

    /// Sends the first handshake messages.
    pub fn begin(&mut self) -> io::Result<()> {
        while self.tls.wants_write() {
            self.tls.write_tls(&mut self.socket)?;
        }
        Ok(())
    }

    /// Reads received bytes. An alert tells the peer which rule it broke.
    fn process(&mut self) -> io::Result<()> {
        let processed = self.tls.process_new_packets();
        processed.map(drop).map_err(|error| {
            let _ = self.tls.write_tls(&mut self.socket);
            io::Error::new(io::ErrorKind::InvalidData, format!("TLS: {error}"))
        })
    }

    /// The key that the peer showed, after the handshake.
    pub fn peer(&self) -> Option<PeerKey> {
        let shown = self.tls.peer_certificates().filter(|_| !self.tls.is_handshaking())?;
        PeerKey::from_spki(shown.first()?)
    }

    /// Secret bytes that only the two ends of this channel can derive (RFC 8446, section 7.5).
    pub(super) fn export(&self, label: &[u8]) -> io::Result<[u8; 32]> {
        self.tls.export_keying_material([0; 32], label, None).map_err(io::Error::other)
    }

    fn link_keys(&self) -> io::Result<LinkKeys> {
        Ok(LinkKeys::new(self.export(LinkKeys::LABEL)?))
    }
}

impl Read for SecureStream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.tls.reader().read(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // A session ends with `Goodbye`, so a TLS end of stream without close_notify is
                // accepted.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                read => return read,
            }
            self.tls.read_tls(&mut self.socket)?;
            self.process()?;
            self.flush()?;
        }
    }
}

impl Write for SecureStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Accept no more bytes until the pending ones are sent, so that only one buffer fills.
        self.flush()?;
        if self.tls.wants_write() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let taken = self.tls.writer().write(bytes)?;
        self.flush()?;
        if taken == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(taken) }
    }

    /// Sends as many bytes as the socket accepts now.
    fn flush(&mut self) -> io::Result<()> {
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut self.socket) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Fills `bytes` before `until`, also from a host that sends one byte at a time. Each read has a timeout of its own.
pub fn read_exact(stream: &mut impl Read, mut bytes: &mut [u8], until: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        if Instant::now() >= until {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match stream.read(bytes) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => bytes = &mut bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
