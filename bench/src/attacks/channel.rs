//! A control channel of an attacker, which sends arbitrary bytes.

use rustls::pki_types::ServerName;
use rustls::sign::CertifiedKey;
use rustls::{ClientConnection, StreamOwned};
use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use sys::poller::Poller;
use transports::quic::{CloseReason, Congestion, ConnectionConfig, Dir, QuicConnection, StreamId, Tuning};
use wire::control::FRAME_BYTES_MAX;
use wire::{Control, Preamble};

/// The longest wait for the device host.
const PATIENCE: Duration = Duration::from_secs(3);
/// The protocol name of control channels (ALPN, RFC 7301).
const CONTROL: &[u8] = b"outboard-control";
const TUNING: Tuning = Tuning {
    window: 256 << 10,
    streams: 0,
    datagram: 1452,
    is_size_known: false,
    congestion: Congestion::Cubic,
};

/// The attacker's key.
pub(super) type Own = Arc<CertifiedKey>;

/// Reads the key of a directory.
pub(super) fn identity(directory: &Path) -> io::Result<Own> {
    let document = fs::read(directory.join("identity.key"))?;
    let (_, own) = transports::tls::key_pair(document).ok_or_else(|| io::Error::other("no key"))?;
    Ok(own)
}

/// A control channel to a device host.
pub(super) enum Channel {
    Tcp(Box<StreamOwned<ClientConnection, TcpStream>>),
    Quic(Box<QuicConnection>, StreamId, Poller),
}

impl Channel {
    /// Completes the handshake and sends the preamble.
    pub(super) fn open(over_quic: bool, address: SocketAddr, own: &Own) -> io::Result<Channel> {
        let tls = transports::tls::client(own.clone(), CONTROL, None).map_err(io::Error::other)?;
        let preamble = Preamble::SecureControl.emit();
        if over_quic {
            let socket = UdpSocket::bind(if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" })?;
            socket.connect(address)?;
            socket.set_nonblocking(true)?;
            let beginning = ConnectionConfig::client(tls, &TUNING)?;
            let mut connection = QuicConnection::new(socket.into(), beginning)
                .map_err(|error| io::Error::other(error.to_string()))?;
            let mut poller = Poller::new()?;
            wait(&mut connection, &mut poller, |connection| connection.is_established().then_some(Ok(())))?;
            let stream = connection.state().and_then(|state| state.streams().open(Dir::Bi));
            let stream = stream.ok_or_else(|| io::Error::other("no stream"))?;
            let mut channel = Channel::Quic(Box::new(connection), stream, poller);
            channel.send(&preamble)?;
            return Ok(channel);
        }
        let mut socket = TcpStream::connect_timeout(&address, PATIENCE)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.set_write_timeout(Some(PATIENCE))?;
        socket.set_nodelay(true)?;
        socket.write_all(&preamble)?;
        let name = ServerName::try_from(transports::tls::SERVER_NAME).map_err(io::Error::other)?;
        let mut tls = ClientConnection::new(Arc::new(tls), name).map_err(io::Error::other)?;
        while tls.wants_write() {
            tls.write_tls(&mut socket)?;
        }
        // A refusal before the handshake is a plain frame: the third byte of its length is 0, that of a TLS record is not.
        let mut head = [0; 3];
        let count = socket.peek(&mut head)?;
        if count == head.len() && head[2] == 0 {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, reason(read_frame(&mut socket)?)));
        }
        Ok(Channel::Tcp(Box::new(StreamOwned::new(tls, socket))))
    }

    /// Sends bytes.
    pub(super) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Channel::Tcp(stream) => {
                stream.write_all(bytes)?;
                stream.flush()
            }
            Channel::Quic(connection, stream, poller) => {
                let mut sent = 0;
                let stream = *stream;
                wait(connection, poller, |connection| {
                    let state = connection.state()?;
                    while sent < bytes.len() {
                        match state.send_stream(stream).write(&bytes[sent..]) {
                            Ok(count) => sent += count,
                            Err(transports::quic::WriteError::Blocked) => return None,
                            Err(_) => return Some(Err(io::ErrorKind::BrokenPipe.into())),
                        }
                    }
                    Some(Ok(()))
                })?;
                connection.drive_output();
                Ok(())
            }
        }
    }

    /// Receives the next message and answers pings, so that the session stays.
    pub(super) fn receive_alive(&mut self) -> std::io::Result<Control> {
        loop {
            match self.receive()? {
                Control::Ping { id, sent, .. } => {
                    self.send(&Control::Pong { id, sent, received: sent, replied: sent }.emit())?;
                }
                message => return Ok(message),
            }
        }
    }

    /// Receives the next message. An error or `Goodbye` is the end.
    pub(super) fn receive(&mut self) -> io::Result<Control> {
        read_frame(self)
    }

    /// Sends `Hello` and returns the answer.
    pub(super) fn greet(&mut self) -> io::Result<Control> {
        let hello = Control::Hello {
            host: "attacker".into(),
            resume: None,
            received: 0,
            attempt: 1,
            features: vec![],
        };
        self.send(&hello.emit())?;
        self.receive()
    }
}

impl Read for Channel {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Channel::Tcp(stream) => stream.read(bytes),
            Channel::Quic(connection, stream, poller) => wait(connection, poller, |connection| {
                let state = connection.state()?;
                let mut stream = state.recv_stream(*stream);
                let Ok(mut chunks) = stream.read(true) else { return Some(Ok(0)) };
                let count = match chunks.next(bytes.len()) {
                    Ok(Some(chunk)) => {
                        bytes[..chunk.bytes.len()].copy_from_slice(&chunk.bytes);
                        Some(Ok(chunk.bytes.len()))
                    }
                    Err(transports::quic::ReadError::Blocked) => None,
                    Ok(None) | Err(_) => Some(Ok(0)),
                };
                let _ = chunks.finalize();
                count
            }),
        }
    }
}

/// Waits until `look` returns a result.
fn wait<T>(
    connection: &mut QuicConnection,
    poller: &mut Poller,
    mut look: impl FnMut(&mut QuicConnection) -> Option<io::Result<T>>,
) -> io::Result<T> {
    let until = Instant::now() + PATIENCE;
    loop {
        connection.drive();
        if let Some(answer) = look(connection) {
            return answer;
        }
        match connection.close_reason() {
            Some(CloseReason::Closed(reason) | CloseReason::Failed(reason)) => {
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, reason.clone()));
            }
            Some(CloseReason::WrongProtocol) => return Err(io::ErrorKind::PermissionDenied.into()),
            None => {}
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        connection.register(poller);
        poller.wait(Some(connection.timeout().map_or(left, |timeout| timeout.min(left))))?;
    }
}

fn read_frame(from: &mut impl Read) -> io::Result<Control> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > FRAME_BYTES_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut frame = vec![0; length];
    from.read_exact(&mut frame)?;
    Control::parse(&frame).map_err(io::Error::other)
}

/// Returns the reason of a `Goodbye`.
pub(super) fn reason(message: Control) -> String {
    match message {
        Control::Goodbye { reason } => reason,
        other => format!("{other:?}").chars().take(40).collect(),
    }
}
