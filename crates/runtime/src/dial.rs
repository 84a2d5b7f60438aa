//! Making connections: the control connection with its greeting, and data connections in the background.

use crate::error::RuntimeError;
use crate::trust::channel::{ControlStream, SecureStream};
use crate::trust::quic_stream::{QuicStream, QuicTrust};
use crate::trust::{PeerKey, Trust};
use crate::worker::TransportPlan;
use contract::{SealKeys, Time};
use rustix::io::Errno;
use session::{Handshake, Welcomed};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};
use sys::poller::Poller;
use wire::control::FRAME_BYTES_MAX;
use wire::{Control, Preamble};

/// Time between two introductions on a transport that may lose them.
const INTRODUCTION_INTERVAL: Duration = Duration::from_millis(50);
/// Time before a data connection that failed is made anew.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// How long a data connection may take before another is begun in its place: a kernel waits for a second where the
/// network lost the first word. Half as long again each time, as the way may be long.
const CONNECT_WAIT: Duration = Duration::from_millis(200);
const CONNECT_WAIT_MAX: Duration = Duration::from_secs(4);
/// Steps that a handshake of TLS may take as long as, however many reads it takes.
const HANDSHAKE_STEPS: u32 = 4;

/// How long a greeting may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    /// For the connection.
    pub(crate) connect: Duration,
    /// For each step of the greeting.
    pub(crate) step: Duration,
}

/// Whom a greeting is for.
pub(crate) enum Expected<'a> {
    /// Whoever is there (`--insecure`).
    Anyone,
    /// A host whose key `check` takes; it says why not.
    Known(&'a Trust, &'a dyn Fn(&PeerKey) -> Result<(), String>),
}

impl Expected<'_> {
    fn trust(&self) -> Option<&Trust> {
        match self {
            Expected::Anyone => None,
            Expected::Known(trust, _) => Some(trust),
        }
    }
}

/// What a control channel goes over.
pub(crate) enum Over {
    Tcp,
    Quic,
    /// A connection whose ends know each other.
    Connected(Box<QuicStream>),
}

/// Connects to a sharer and opens a session: blocks for as long as `patience` says.
pub(crate) fn greet(
    peer: SocketAddr,
    over: Over,
    expected: &Expected<'_>,
    handshake: &Handshake,
    patience: Patience,
) -> Result<(ControlStream, Welcomed), RuntimeError> {
    let unreachable = |error: io::Error| {
        let advice = match error.kind() {
            io::ErrorKind::ConnectionRefused => "nothing listens there: is `outboard share` running?",
            _ => "is the host up, and does the network lead there?",
        };
        RuntimeError::Unreachable(format!("{peer} cannot be reached: {error} ({advice})"))
    };
    let refused = |error: String| RuntimeError::Peer(format!("{peer}: {error}"));
    // Nobody knows who says this: the host that is looked for may still come.
    let unknown = |error: String| RuntimeError::Unreachable(format!("{peer}: {error}"));
    let connected = match over {
        Over::Tcp => connect_tcp(peer, expected, patience),
        Over::Quic => connect_quic(peer, expected, patience),
        Over::Connected(stream) => Ok(knows(expected, stream)),
    };
    let (mut stream, key) = connected.map_err(unreachable)?.map_err(unknown)?;
    if let (Expected::Known(_, check), Some(key)) = (expected, key) {
        check(&key).map_err(unknown)?;
    }
    let hello = handshake.hello().emit();
    let answer = match &mut stream {
        ControlStream::Quic(stream) => {
            let preamble = match expected {
                Expected::Anyone => Preamble::Control,
                Expected::Known(..) => Preamble::SecureControl,
            };
            let said = [&preamble.emit()[..], &hello].concat();
            // There is room for it in a stream that begins.
            stream.write_all(&said).and_then(|()| read_frame(&mut stream.patient(patience.step)))
        }
        stream => stream.write_all(&hello).and_then(|()| read_frame(stream)),
    };
    let answer = match answer {
        // The reason of a connection's end, whose last words were lost.
        Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {
            return Err(refused(error.to_string()));
        }
        answer => answer.map_err(unreachable)?,
    };
    let answer = answer.map_err(|error| match expected {
        // Whoever has the address now: no reason to give up the host that had it.
        Expected::Anyone => unknown(error.to_string()),
        Expected::Known(..) => refused(error.to_string()),
    })?;
    let welcomed = handshake.handle(answer).map_err(|error| refused(error.to_string()))?;
    Ok((stream, welcomed))
}

/// A connection whose ends know each other, and the other's key if it has shown one, or what it says instead.
type Connected = io::Result<Result<(ControlStream, Option<PeerKey>), String>>;

fn connect_tcp(peer: SocketAddr, expected: &Expected<'_>, patience: Patience) -> Connected {
    let mut socket = TcpStream::connect_timeout(&peer, patience.connect)?;
    socket.set_read_timeout(Some(patience.step))?;
    socket.set_write_timeout(Some(patience.step))?;
    socket.set_nodelay(true)?;
    let Expected::Known(trust, _) = expected else {
        socket.write_all(&Preamble::Control.emit())?;
        return Ok(Ok((ControlStream::Bare(socket), None)));
    };
    socket.write_all(&Preamble::SecureControl.emit())?;
    let plain = socket.try_clone()?;
    let mut secure = SecureStream::connect(socket, trust)?;
    let shaken = shake_hands(&mut secure, plain, Instant::now() + patience.step * HANDSHAKE_STEPS)?;
    Ok(shaken.map(|key| (ControlStream::Secure(Box::new(secure)), Some(key))))
}

fn connect_quic(peer: SocketAddr, expected: &Expected<'_>, patience: Patience) -> Connected {
    let mut stream = begin_quic(peer, expected.trust())?;
    match stream.shake_hands(patience.connect) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(Err(error.to_string())),
        shaken => shaken.map(|()| knows(expected, Box::new(stream))),
    }
}

/// A control connection over QUIC that begins.
pub(crate) fn begin_quic(peer: SocketAddr, trust: Option<&Trust>) -> io::Result<QuicStream> {
    QuicTrust { trust }.connect(udp_towards(peer)?)
}

/// Over a connection whose handshake is done.
fn knows(
    expected: &Expected<'_>,
    mut stream: Box<QuicStream>,
) -> Result<(ControlStream, Option<PeerKey>), String> {
    match (expected.trust(), stream.peer()) {
        (Some(_), None) => Err("the other host showed no key".into()),
        (_, key) => Ok((ControlStream::Quic(stream), key)),
    }
}

/// A socket that is connected to `peer` from the address that leads there now.
pub(crate) fn udp_towards(peer: SocketAddr) -> io::Result<OwnedFd> {
    let any: SocketAddr = match peer {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any)?;
    socket.connect(peer)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// This host's address towards `peer`, as its routes are now; nothing is sent.
pub(crate) fn address_towards(peer: SocketAddr) -> io::Result<IpAddr> {
    Ok(UdpSocket::from(udp_towards(peer)?).local_addr()?.ip())
}

/// The handshake of TLS, or what a host says that wants none: a `Goodbye` in the clear.
fn shake_hands(
    secure: &mut SecureStream,
    mut plain: TcpStream,
    until: Instant,
) -> io::Result<Result<PeerKey, String>> {
    secure.begin()?;
    // A record of TLS has its version in the third byte, 1 to 3; a `Goodbye` the third byte of a length below 2^16.
    let mut head = [0; 5];
    plain.read_exact(&mut head)?;
    if head[2] != 0 {
        return secure.shake_hands(&head, until).map(Ok);
    }
    Ok(Err(match read_frame(&mut head.chain(plain))? {
        Ok(Control::Goodbye { reason }) => format!("the other host refused: {reason}"),
        Ok(_) => "it does not speak TLS".into(),
        Err(error) => error.to_string(),
    }))
}

/// Reads one frame and not a byte more.
fn read_frame(stream: &mut impl Read) -> io::Result<Result<Control, wire::WireError>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > FRAME_BYTES_MAX {
        let (length, limit) = (length as u64, FRAME_BYTES_MAX as u64);
        return Ok(Err(wire::WireError::TooLong { what: "frame length", length, limit }));
    }
    let mut frame = vec![0; length];
    stream.read_exact(&mut frame)?;
    Ok(Control::parse(&frame))
}

/// Where a data connection under way stands.
pub(crate) enum Dialled {
    /// Nothing to do before [`Dialling::want`] says so.
    Waiting,
    /// Connected and introduced, and what seals it.
    Ready(OwnedFd, Option<SealKeys>),
}

/// What a data connection begins with, and what seals it from there.
pub(crate) type Introduced = (Vec<u8>, Option<SealKeys>);

/// A data connection under way.
pub(crate) struct Dialling {
    transport: TransportPlan,
    peer: SocketAddr,
    socket: Option<OwnedFd>,
    /// Of this socket.
    introduction: Introduced,
    /// The sharer has said that the connection is there.
    linked: bool,
    introduced: bool,
    at: Time,
    /// How long this socket may take, and until when.
    wait: Duration,
    until: Time,
}

impl Dialling {
    /// Begins at the next [`Dialling::run`].
    pub(crate) fn new(transport: &TransportPlan, peer: SocketAddr, now: Time) -> Self {
        Dialling {
            transport: transport.clone(),
            peer,
            socket: None,
            introduction: (Vec::new(), None),
            linked: false,
            introduced: false,
            at: now,
            wait: CONNECT_WAIT,
            until: now,
        }
    }

    /// The sharer says that the connection is there.
    pub(crate) fn handle_linked(&mut self) {
        self.linked = self.introduced;
    }

    /// Whether the sharer has said so.
    pub(crate) fn is_linked(&self) -> bool {
        self.linked
    }

    /// Does what can be done now; `introduce` gives each socket an introduction of its own.
    pub(crate) fn run(
        &mut self,
        introduce: &mut dyn FnMut() -> Introduced,
        poller: &mut Poller,
        now: Time,
    ) -> Dialled {
        let confirmed = !self.transport.class.is_datagram();
        if (self.linked || confirmed && self.introduced)
            && let Some(socket) = self.socket.take()
        {
            poller.forget(socket.as_fd());
            return Dialled::Ready(socket, self.introduction.1.take());
        }
        if confirmed && !self.introduced && now >= self.until {
            self.drop_socket(poller);
        }
        if self.socket.is_none() {
            if now < self.at {
                return Dialled::Waiting;
            }
            self.socket = self.transport.class.dial(self.peer, &self.transport.options).ok();
            self.introduction = introduce();
            self.at = now.after(RETRY_INTERVAL);
            self.until = now.after(self.wait);
            self.wait = (self.wait * 3 / 2).min(CONNECT_WAIT_MAX);
        }
        let Some(socket) = &self.socket else { return Dialled::Waiting };
        if self.introduced && now < self.at {
            return Dialled::Waiting;
        }
        let introduction = &self.introduction.0;
        match rustix::io::write(socket, introduction) {
            Ok(count) if count == introduction.len() => {
                self.introduced = true;
                self.at = now.after(INTRODUCTION_INTERVAL);
                match confirmed {
                    true => self.run(introduce, poller, now),
                    false => Dialled::Waiting,
                }
            }
            // Still connecting.
            Err(Errno::AGAIN | Errno::NOTCONN | Errno::INPROGRESS) => Dialled::Waiting,
            Ok(_) | Err(_) => {
                self.drop_socket(poller);
                self.introduced = false;
                self.at = now.after(RETRY_INTERVAL);
                Dialled::Waiting
            }
        }
    }

    fn drop_socket(&mut self, poller: &mut Poller) {
        if let Some(socket) = self.socket.take() {
            poller.forget(socket.as_fd());
        }
    }

    /// Puts what to wait for into the poller; when to run again otherwise.
    pub(crate) fn want(&self, poller: &mut Poller) -> Time {
        match &self.socket {
            Some(socket) if !self.introduced => {
                poller.want(socket.as_fd(), false, true);
                match self.transport.class.is_datagram() {
                    true => self.at.after(RETRY_INTERVAL),
                    false => self.until,
                }
            }
            _ => self.at,
        }
    }
}

/// Whether this host has the address now; nothing is sent.
pub(crate) fn is_here(address: SocketAddr) -> bool {
    let any_port = SocketAddr::new(address.ip(), 0);
    !matches!(UdpSocket::bind(any_port), Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_its_own_addresses_and_not_those_of_others() {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        assert!(is_here(listener.local_addr().unwrap()), "though the port is in use");
        // RFC 5737: nobody's.
        assert!(!is_here(([192, 0, 2, 1], 7845).into()));
    }
}
