//! The connection under a control channel: bare, TLS 1.3 over TCP, or QUIC.

use crate::trust::link_keys::LinkKeys;
use crate::trust::quic_stream::QuicStream;
use crate::trust::{PeerKey, Trust};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use sys::poller::Poller;

/// What of TLS waits to be sent, at most; what is behind it waits in the control channel.
const BUFFER_BYTES_MAX: usize = 64 << 10;

/// A connection that carries control messages.
pub(crate) enum ControlStream {
    /// Nobody knows who is at the other end.
    Bare(TcpStream),
    /// The other end showed its key.
    Secure(Box<SecureStream>),
    /// The other end showed a key, which is its own where that is asked for.
    Quic(Box<QuicStream>),
}

impl ControlStream {
    /// From here on it never blocks, and holds nothing back.
    pub(crate) fn make_prompt(&self) -> io::Result<()> {
        let Some(socket) = self.socket() else { return Ok(()) };
        // An older kernel sends again later.
        let _ = sys::net::resend_soon(socket);
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)
    }

    /// Ends what this side says, and waits for the other side to have heard it, not longer than this.
    pub(crate) fn finish(&mut self, longest: Duration) -> io::Result<()> {
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

    /// This host's address, if the connection is one of TCP: which has it for good.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.socket()?.local_addr().ok()
    }

    /// The connection, if it is one of QUIC.
    pub(crate) fn quic(&mut self) -> Option<&mut QuicStream> {
        match self {
            ControlStream::Quic(stream) => Some(stream),
            _ => None,
        }
    }

    /// Whether the other end has nobody who listens any more, as far as its host says; a TCP connection would be over.
    pub(crate) fn is_refused(&self) -> bool {
        matches!(self, ControlStream::Quic(stream) if stream.is_refused())
    }

    /// Whether something waits for the socket to take it.
    pub(crate) fn is_waiting(&self) -> bool {
        match self {
            ControlStream::Bare(_) => false,
            ControlStream::Secure(stream) => stream.tls.wants_write(),
            ControlStream::Quic(stream) => stream.is_waiting(),
        }
    }

    /// Puts what to wait for into the poller; `is_waiting`: there is more to write.
    pub(crate) fn want(&self, poller: &mut Poller, is_waiting: bool) {
        match self {
            ControlStream::Quic(stream) => stream.want(poller),
            stream => {
                if let Some(socket) = stream.socket() {
                    poller.want(socket.as_fd(), true, is_waiting);
                }
            }
        }
    }

    /// Whether the last wait found something to do here.
    pub(crate) fn is_ready(&self, poller: &Poller) -> bool {
        match self {
            ControlStream::Quic(stream) => stream.is_ready(poller),
            stream => stream.socket().is_some_and(|socket| poller.is_ready(socket.as_fd())),
        }
    }

    /// How long it can be left alone.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        match self {
            ControlStream::Quic(stream) => stream.timeout(),
            _ => None,
        }
    }

    /// Has a poller forget its sockets.
    pub(crate) fn forget(&self, poller: &mut Poller) {
        match self {
            ControlStream::Quic(stream) => stream.forget(poller),
            stream => {
                if let Some(socket) = stream.socket() {
                    poller.forget(socket.as_fd());
                }
            }
        }
    }

    /// The key that the other end showed to be its own; `None` where it is not asked for one, or before the end of
    /// the handshake.
    pub(crate) fn peer(&mut self) -> Option<PeerKey> {
        match self {
            ControlStream::Bare(_) => None,
            ControlStream::Secure(stream) => stream.peer(),
            ControlStream::Quic(stream) => stream.peer(),
        }
    }

    /// What seals the data connections of this channel; `None` without TLS, or before the end of its handshake.
    pub(crate) fn link_keys(&mut self) -> io::Result<Option<LinkKeys>> {
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
pub(crate) struct SecureStream {
    socket: TcpStream,
    tls: Connection,
}

impl SecureStream {
    /// The side that connected, to `Trust`'s peers.
    pub(crate) fn connect(socket: TcpStream, trust: &Trust) -> io::Result<SecureStream> {
        SecureStream::client(socket, trust.client.clone())
    }

    /// The side that listens, for `Trust`'s peers.
    pub(crate) fn accept(socket: TcpStream, trust: &Trust) -> io::Result<SecureStream> {
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

    /// Finishes the handshake over a socket that blocks, if it is over by `until`. `head` was read from it already.
    pub(crate) fn shake_hands(&mut self, mut head: &[u8], until: Instant) -> io::Result<PeerKey> {
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

    /// Sends what the handshake begins with.
    pub(crate) fn begin(&mut self) -> io::Result<()> {
        while self.tls.wants_write() {
            self.tls.write_tls(&mut self.socket)?;
        }
        Ok(())
    }

    /// Reads what came; an alert says to the other side what was wrong with it.
    fn process(&mut self) -> io::Result<()> {
        let processed = self.tls.process_new_packets();
        processed.map(drop).map_err(|error| {
            let _ = self.tls.write_tls(&mut self.socket);
            io::Error::new(io::ErrorKind::InvalidData, format!("TLS: {error}"))
        })
    }

    /// The key that the other end showed, once the handshake is over.
    pub(crate) fn peer(&self) -> Option<PeerKey> {
        let shown = self.tls.peer_certificates().filter(|_| !self.tls.is_handshaking())?;
        PeerKey::from_spki(shown.first()?)
    }

    /// Bytes that only the two ends of this very channel know (RFC 8446, section 7.5).
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
                // Who ends a session says `Goodbye`: an end of TLS without its own farewell says no less.
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
        // Until what waits is gone no more is taken, so that little waits in two places.
        self.flush()?;
        if self.tls.wants_write() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let taken = self.tls.writer().write(bytes)?;
        self.flush()?;
        if taken == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(taken) }
    }

    /// Sends what the socket takes now.
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
