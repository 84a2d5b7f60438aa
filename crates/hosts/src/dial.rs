//! Outgoing connections: control connections with their greeting (blocking), and data connections (in the
//! background).

use contract::ServiceError;
use contract::{Meeting, SealKeys, Time};
use modules::TransportPlan;
use rustix::io::Errno;
use session::{Handshake, Welcomed};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};
use sys::address::interface_advice;
use sys::poller::Poller;
use trust::channel::{ControlStream, SecureStream, read_exact};
use trust::quic_stream::{QuicStream, QuicTrust};
use trust::{KeyRefusal, PeerKey, Trust};
use wire::control::FRAME_BYTES_MAX;
use wire::{Control, Preamble};

/// Interval between two introductions over a transport that may lose them.
const INTRODUCTION_INTERVAL: Duration = Duration::from_millis(50);
/// Delay before a failed data connection is retried.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// Timeout of a data connection before a new one replaces it. The kernel waits a full second to retransmit a lost
/// SYN, and this is faster. Each further timeout is half as long again, in case the path is slow.
const CONNECT_WAIT: Duration = Duration::from_millis(200);
const CONNECT_WAIT_MAX: Duration = Duration::from_secs(4);
/// The same for a connection that programs make: they start, and find each other.
const PROGRAM_WAIT: Duration = Duration::from_secs(5);
const PROGRAM_WAIT_MAX: Duration = Duration::from_secs(60);
/// Longest delay before a program that ends is started again.
const PROGRAM_RETRY_MAX: Duration = Duration::from_secs(5);
/// Time in which a data connection should be made, because the control channel works; programs have to find each other first.
const LATE: Duration = Duration::from_secs(5);
const PROGRAM_LATE: Duration = Duration::from_secs(15);
/// A TLS handshake may take this many times the timeout of one step, in any number of reads; and so may the answer to a
/// `Hello`. Another host, which sends one byte after the other, would hold the search for the peer otherwise.
const ANSWER_STEPS: u32 = 4;

/// The timeouts of a greeting.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// Timeout of the connection.
    pub connect: Duration,
    /// Timeout of each step of the greeting.
    pub step: Duration,
}

impl Patience {
    /// Returns the deadline of an answer that begins now.
    fn answer_until(&self) -> Instant {
        Instant::now() + self.step * ANSWER_STEPS
    }
}

/// The host that a greeting expects.
pub enum Expected<'a> {
    /// Any host (`--insecure`).
    Anyone,
    /// A host whose key the function accepts.
    Known(&'a Trust, &'a dyn Fn(&PeerKey) -> Result<(), KeyRefusal>),
}

impl Expected<'_> {
    fn trust(&self) -> Option<&Trust> {
        match self {
            Expected::Anyone => None,
            Expected::Known(trust, _) => Some(trust),
        }
    }
}

/// The transport of a control connection.
pub enum Over {
    /// A new TCP connection.
    Tcp,
    /// A new QUIC connection.
    Quic,
    /// A QUIC connection whose handshake is complete.
    Connected(Box<QuicStream>),
}

/// The command that usually listens at the address of [`greet`].
pub const SHARE: &str = "outboard share";

/// Connects to a device host and opens or resumes a session. Blocks for as long as `patience` allows. `listener` is the
/// command that should listen there, for an error.
pub fn greet(
    peer: SocketAddr,
    over: Over,
    expected: &Expected<'_>,
    handshake: &Handshake,
    patience: Patience,
    listener: &str,
) -> Result<(ControlStream, Welcomed), ServiceError> {
    let unreachable = |error: io::Error| ServiceError::Unreachable(unreachable(peer, &error, listener));
    let refused = |error: String| ServiceError::Peer(format!("{peer}: {error}"));
    // The sender of this error is not authenticated: the expected host may still answer a later attempt.
    let unknown = |error: String| ServiceError::Unreachable(format!("{peer}: {error}"));
    let connected = match over {
        Over::Tcp => connect_tcp(peer, expected, patience),
        Over::Quic => connect_quic(peer, expected, patience),
        Over::Connected(stream) => Ok(knows(expected, stream)),
    };
    let (mut stream, key) = connected.map_err(unreachable)?.map_err(unknown)?;
    if let (Expected::Known(_, check), Some(key)) = (expected, key) {
        check(&key).map_err(|refusal| match refusal {
            KeyRefusal::Mismatch(problem) => unknown(problem),
            KeyRefusal::Unrecorded { address, peer, fingerprint } => {
                ServiceError::UnrecordedPlace { address, peer, fingerprint }
            }
        })?;
    }
    let hello = handshake.hello().emit();
    let until = patience.answer_until();
    let answer = match &mut stream {
        ControlStream::Quic(stream) => {
            let preamble = match expected {
                Expected::Anyone => Preamble::Control,
                Expected::Known(..) => Preamble::SecureControl,
            };
            let said = [&preamble.emit()[..], &hello].concat();
            // A new stream has room for all of it.
            stream.write_all(&said).and_then(|()| read_frame(&mut stream.patient(patience.step), until))
        }
        stream => stream.write_all(&hello).and_then(|()| read_frame(stream, until)),
    };
    let answer = match answer {
        // The close frame carries the reason; the last message itself was lost.
        Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {
            return Err(refused(error.to_string()));
        }
        answer => answer.map_err(unreachable)?,
    };
    let answer = answer.map_err(|error| match expected {
        // The address may belong to another host now, which does not end the session with the expected one.
        Expected::Anyone => unknown(foreign(&error)),
        Expected::Known(..) => refused(error.to_string()),
    })?;
    let welcomed = handshake.handle(answer).map_err(|error| refused(error.to_string()))?;
    Ok((stream, welcomed))
}

/// Describes a failed connection, with its remedy.
fn unreachable(peer: SocketAddr, error: &io::Error, listener: &str) -> String {
    let advice = match (error.kind(), interface_advice(peer)) {
        (io::ErrorKind::ConnectionRefused, _) => format!("nothing listens there: is `{listener}` running?"),
        (io::ErrorKind::InvalidInput, Some(advice)) => advice.into(),
        _ => "is the host up and reachable?".into(),
    };
    format!("{peer} cannot be reached: {error} ({advice})")
}

/// Describes an answer of another program.
fn foreign(error: &impl std::fmt::Display) -> String {
    format!(
        "it does not speak Outboard: {error} (another program listens there: write HOST:PORT with the port that \
         `{SHARE}` shows)"
    )
}

/// A connected stream with the peer's key, if it has shown one; or the message of a peer that refuses.
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
    let shaken = match shake_hands(&mut secure, plain, patience.answer_until()) {
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Err(foreign(&error)),
        shaken => shaken?,
    };
    Ok(shaken.map(|key| (ControlStream::Secure(Box::new(secure)), Some(key))))
}

fn connect_quic(peer: SocketAddr, expected: &Expected<'_>, patience: Patience) -> Connected {
    let mut stream = begin_quic(peer, expected.trust())?;
    match stream.shake_hands(patience.connect) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(Err(error.to_string())),
        shaken => shaken.map(|()| knows(expected, Box::new(stream))),
    }
}

/// Starts a QUIC connection for a control channel.
pub fn begin_quic(peer: SocketAddr, trust: Option<&Trust>) -> io::Result<QuicStream> {
    QuicTrust { trust }.connect(udp_towards(peer)?)
}

/// Returns the connected QUIC stream with the peer's key; fails if the key is required and missing.
fn knows(
    expected: &Expected<'_>,
    mut stream: Box<QuicStream>,
) -> Result<(ControlStream, Option<PeerKey>), String> {
    match (expected.trust(), stream.peer()) {
        (Some(_), None) => Err("the other host showed no key".into()),
        (_, key) => Ok((ControlStream::Quic(stream), key)),
    }
}

/// Returns a UDP socket connected to `peer`, bound to the address that the present route selects.
pub fn udp_towards(peer: SocketAddr) -> io::Result<OwnedFd> {
    let any: SocketAddr = match peer {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any)?;
    socket.connect(peer)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// Returns this host's address on the present route to `peer`; sends nothing.
pub fn address_towards(peer: SocketAddr) -> io::Result<IpAddr> {
    Ok(UdpSocket::from(udp_towards(peer)?).local_addr()?.ip())
}

/// Performs the TLS handshake. A peer that refuses sends a plain `Goodbye` instead, which becomes the inner error.
fn shake_hands(
    secure: &mut SecureStream,
    mut plain: TcpStream,
    until: Instant,
) -> io::Result<Result<PeerKey, String>> {
    secure.begin()?;
    // Byte 2 tells them apart: it is the low byte of the version in a TLS record, 1 to 3, and zero in a `Goodbye`,
    // whose length is below 2^16.
    let mut head = [0; 5];
    read_exact(&mut plain, &mut head, until)?;
    if head[2] != 0 {
        return secure.shake_hands(&head, until).map(Ok);
    }
    Ok(Err(match read_frame(&mut head.chain(plain), until)? {
        Ok(Control::Goodbye { reason }) => format!("the other host refused: {reason}"),
        Ok(_) => "it does not speak TLS".into(),
        Err(error) => error.to_string(),
    }))
}

/// Reads exactly one frame and nothing after it, before `until`.
fn read_frame(stream: &mut impl Read, until: Instant) -> io::Result<Result<Control, wire::WireError>> {
    let mut length = [0; 4];
    read_exact(stream, &mut length, until)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > FRAME_BYTES_MAX {
        let (length, limit) = (length as u64, FRAME_BYTES_MAX as u64);
        return Ok(Err(wire::WireError::TooLong { what: "frame length", length, limit }));
    }
    let mut frame = vec![0; length];
    read_exact(stream, &mut frame, until)?;
    Ok(Control::parse(&frame))
}

/// The state of a data connection.
pub enum Dialled {
    /// In progress: call [`Dialling::run`] again when the poller or the timeout fires.
    Waiting,
    /// Connected and introduced: the socket, and the keys that seal its records.
    Ready(OwnedFd, Option<SealKeys>),
}

/// The first bytes of a data connection, and the keys that seal the rest.
pub type Introduced = (Vec<u8>, Option<SealKeys>);

/// A data connection in progress.
pub struct Dialling {
    transport: TransportPlan,
    peer: SocketAddr,
    socket: Option<OwnedFd>,
    /// The introduction on the present socket.
    introduction: Introduced,
    progress: Progress,
    /// A program was started since [`Dialling::take_begun`].
    has_begun: bool,
    at: Time,
    /// Delay before the next attempt after a failure.
    retry_interval: Duration,
    /// The timeout of the present socket, and its deadline.
    wait: Duration,
    until: Time,
    /// From this time on, the connection is late; `None` once that was reported.
    late_at: Option<Time>,
}

/// Progress of a data connection on its present socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    Connecting,
    /// The introduction has been sent.
    Introduced,
    /// The device host has confirmed the connection.
    Linked,
}

impl Dialling {
    /// Creates a connection that starts at the next [`Dialling::run`].
    pub fn new(transport: &TransportPlan, peer: SocketAddr, now: Time) -> Self {
        let is_program = transport.class.program().is_some();
        Dialling {
            transport: transport.clone(),
            peer,
            socket: None,
            introduction: (Vec::new(), None),
            progress: Progress::Connecting,
            has_begun: false,
            at: now,
            retry_interval: RETRY_INTERVAL,
            wait: if is_program { PROGRAM_WAIT } else { CONNECT_WAIT },
            until: now,
            late_at: Some(now.after(if is_program { PROGRAM_LATE } else { LATE })),
        }
    }

    /// Records that the device host has confirmed the connection.
    pub fn handle_linked(&mut self) {
        if self.progress == Progress::Introduced {
            self.progress = Progress::Linked;
        }
    }

    /// Returns whether the device host has confirmed the connection.
    pub fn is_linked(&self) -> bool {
        self.progress == Progress::Linked
    }

    /// Returns whether a program was started since the last call. The device host then starts its own.
    pub fn take_begun(&mut self) -> bool {
        std::mem::take(&mut self.has_begun)
    }

    /// Returns, once, the problem of a connection that takes too long. It is tried further.
    pub fn take_late(&mut self, now: Time) -> Option<String> {
        self.late_at.take_if(|at| now >= *at)?;
        let (class, peer) = (self.transport.class, self.peer);
        let problem = match (class.program(), class.is_datagram()) {
            (Some(_), _) => {
                "the programs of the two hosts have not met; their own output may tell why".to_string()
            }
            (None, true) => format!(
                "{peer} does not answer over UDP; let UDP port {} through the firewalls between the hosts, or \
                 use another transport (`tcp://`)",
                peer.port()
            ),
            (None, false) => format!(
                "{peer} accepts none, though the control channel works (does a firewall limit connections?)"
            ),
        };
        Some(format!("no data connection over `{}` yet: {problem}", class.name()))
    }

    /// Opens a socket, or starts the program of a transport that has one, and makes its introduction.
    fn begin(&mut self, introduce: &mut dyn FnMut() -> Introduced, meeting: &Meeting<'_>) {
        let (said, keys) = introduce();
        let options = &self.transport.options;
        match self.transport.class.program() {
            Some(program) => {
                self.introduction = (program.wrap(&said), keys);
                self.socket = program.begin(meeting, options).ok();
                self.has_begun = true;
            }
            None => {
                self.introduction = (said, keys);
                self.socket = self.transport.class.dial(self.peer, options).ok();
            }
        }
    }

    /// Performs the steps that are possible now; `introduce` creates a new introduction for each socket.
    pub fn run(
        &mut self,
        introduce: &mut dyn FnMut() -> Introduced,
        meeting: &Meeting<'_>,
        poller: &mut Poller,
        now: Time,
    ) -> Dialled {
        let confirmed = !self.transport.class.is_datagram();
        let is_ready = match self.progress {
            Progress::Connecting => false,
            Progress::Introduced => confirmed,
            Progress::Linked => true,
        };
        if is_ready && let Some(socket) = self.socket.take() {
            poller.forget(socket.as_fd());
            return Dialled::Ready(socket, self.introduction.1.take());
        }
        let is_program = self.transport.class.program().is_some();
        if (is_program || confirmed && self.progress == Progress::Connecting) && now >= self.until {
            self.drop_socket(poller);
            self.progress = Progress::Connecting;
        }
        if self.socket.is_none() {
            if now < self.at {
                return Dialled::Waiting;
            }
            self.begin(introduce, meeting);
            self.at = now.after(RETRY_INTERVAL);
            self.until = now.after(self.wait);
            self.wait = (self.wait * 3 / 2).min(if is_program { PROGRAM_WAIT_MAX } else { CONNECT_WAIT_MAX });
        }
        let Some(socket) = &self.socket else { return Dialled::Waiting };
        if self.progress == Progress::Introduced && now < self.at {
            return Dialled::Waiting;
        }
        let introduction = &self.introduction.0;
        match rustix::io::write(socket, introduction) {
            Ok(count) if count == introduction.len() => {
                self.progress = Progress::Introduced;
                self.at = now.after(INTRODUCTION_INTERVAL);
                if confirmed { self.run(introduce, meeting, poller, now) } else { Dialled::Waiting }
            }
            // The program is slow, and has its introduction.
            Err(Errno::AGAIN) if self.progress == Progress::Introduced => {
                self.at = now.after(INTRODUCTION_INTERVAL);
                Dialled::Waiting
            }
            // Still connecting.
            Err(Errno::AGAIN | Errno::NOTCONN | Errno::INPROGRESS) => Dialled::Waiting,
            Ok(_) | Err(_) => {
                self.drop_socket(poller);
                self.progress = Progress::Connecting;
                self.at = now.after(self.retry_interval);
                if is_program {
                    self.retry_interval = (self.retry_interval * 2).min(PROGRAM_RETRY_MAX);
                }
                Dialled::Waiting
            }
        }
    }

    /// Closes the socket of a connection in progress.
    pub(crate) fn drop_socket(&mut self, poller: &mut Poller) {
        if let Some(socket) = self.socket.take() {
            poller.forget(socket.as_fd());
        }
    }

    /// Registers the socket with the poller; returns the time of the next step.
    pub fn register(&self, poller: &mut Poller) -> Time {
        match &self.socket {
            Some(socket) if self.progress == Progress::Connecting => {
                poller.register(socket.as_fd(), false, true);
                if self.transport.class.is_datagram() { self.at.after(RETRY_INTERVAL) } else { self.until }
            }
            _ => self.at,
        }
    }
}

/// Returns whether this host has the address now; sends nothing.
pub fn is_here(address: SocketAddr) -> bool {
    let any_port = SocketAddr::new(address.ip(), 0);
    !matches!(UdpSocket::bind(any_port), Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable)
}

#[cfg(test)]
mod tests {
    use super::*;
    use contract::End;
    use std::net::TcpListener;
    use std::thread;

    /// Bytes that the host in this test sends at most: far more than fit before the deadline.
    const DRIBBLED_MAX: usize = 4000;

    /// Another host has the address now. It begins a frame of 64 KiB that may be a `Goodbye` in the clear, and sends the
    /// rest byte by byte.
    #[test]
    fn an_answer_that_never_ends_holds_no_greeting() {
        let directory = std::env::temp_dir().join(format!("outboard-dial-{}", std::process::id()));
        let trust = Trust::at(&directory).unwrap();
        let handshake = Handshake::new("a", None, 0, 1);
        let patience = Patience { connect: Duration::from_secs(60), step: Duration::from_millis(500) };
        for expected in [Expected::Anyone, Expected::Known(&trust, &|_| Ok(()))] {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let address = listener.local_addr().unwrap();
            let dribble = thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                stream.write_all(&[0, 255, 0, 0, 3]).unwrap();
                let mut send = || {
                    thread::sleep(Duration::from_millis(5));
                    stream.write_all(&[0]).is_ok()
                };
                (0..DRIBBLED_MAX).take_while(|_| send()).count()
            });
            assert!(greet(address, Over::Tcp, &expected, &handshake, patience, SHARE).is_err());
            assert!(dribble.join().unwrap() < DRIBBLED_MAX, "the greeting read it to the end");
        }
        std::fs::remove_dir_all(directory).unwrap();
    }

    /// A firewall drops the datagrams, and the control channel is TCP.
    #[test]
    fn a_data_connection_that_nothing_answers_is_reported_once() {
        let transport = TransportPlan::defaults("udp").unwrap();
        let silent = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let peer = silent.local_addr().unwrap();
        let meeting = Meeting { end: End::Dialled, peer: peer.ip(), device: "pad", driver: 1 };
        let (mut poller, at) = (Poller::new().unwrap(), Time::from_millis);
        let mut dialling = Dialling::new(&transport, peer, at(1000));
        let mut reports = Vec::new();
        for ms in (1000..60_000).step_by(50) {
            let dialled = dialling.run(&mut || (vec![0; 28], None), &meeting, &mut poller, at(ms));
            assert!(matches!(dialled, Dialled::Waiting));
            reports.extend(dialling.take_late(at(ms)).map(|problem| (ms, problem)));
        }
        let [(6000, problem)] = &reports[..] else { panic!("{reports:?}") };
        let port = format!("UDP port {}", peer.port());
        assert!(problem.contains("`udp`") && problem.contains(&port), "{problem}");
    }

    #[test]
    fn a_failed_connection_is_described_with_its_remedy() {
        let local = SocketAddr::from((Ipv4Addr::LOCALHOST, 7845));
        let linked: SocketAddr = "[fe80::1]:7845".parse().unwrap();
        for (peer, kind, says) in [
            (
                local,
                io::ErrorKind::ConnectionRefused,
                "nothing listens there: is `outboard whatif --listen` running?",
            ),
            (local, io::ErrorKind::TimedOut, "(is the host up and reachable?)"),
            (local, io::ErrorKind::InvalidInput, "(is the host up and reachable?)"),
            (linked, io::ErrorKind::InvalidInput, "write [fe80::1%eth0]; `ip link` lists the interfaces)"),
            (linked, io::ErrorKind::TimedOut, "(is the host up and reachable?)"),
        ] {
            let text = unreachable(peer, &kind.into(), "outboard whatif --listen");
            assert!(text.contains(says), "{kind}: {text}");
        }
    }

    #[test]
    fn a_host_has_its_own_addresses_and_not_those_of_others() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        assert!(is_here(listener.local_addr().unwrap()), "though the port is in use");
        // RFC 5737: a documentation address that no host has.
        assert!(!is_here(([192, 0, 2, 1], 7845).into()));
    }
}
