//! Making connections: the control connection with its greeting, and data connections in the background.

use crate::error::RuntimeError;
use crate::trust::channel::{ControlStream, SecureStream};
use crate::trust::{PeerKey, Trust};
use crate::worker::TransportPlan;
use contract::{SealKeys, Time};
use rustix::io::Errno;
use session::{Handshake, Welcomed};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;
use sys::poller::Poller;
use wire::control::FRAME_BYTES_MAX;
use wire::{Control, Preamble};

/// Time between two introductions on a transport that may lose them.
const INTRODUCTION_INTERVAL: Duration = Duration::from_millis(50);
/// Time before a data connection that failed is made anew.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

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

/// Connects to a sharer and opens a session: blocks for as long as `patience` says.
pub(crate) fn greet(
    peer: SocketAddr,
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
    let mut socket = TcpStream::connect_timeout(&peer, patience.connect).map_err(unreachable)?;
    socket.set_read_timeout(Some(patience.step)).map_err(unreachable)?;
    socket.set_write_timeout(Some(patience.step)).map_err(unreachable)?;
    socket.set_nodelay(true).map_err(unreachable)?;
    let mut stream = match expected {
        Expected::Anyone => {
            socket.write_all(&Preamble::Control.emit()).map_err(unreachable)?;
            ControlStream::Bare(socket)
        }
        Expected::Known(trust, check) => {
            socket.write_all(&Preamble::SecureControl.emit()).map_err(unreachable)?;
            let plain = socket.try_clone().map_err(unreachable)?;
            let mut secure = SecureStream::connect(socket, trust).map_err(unreachable)?;
            let key = match shake_hands(&mut secure, plain).map_err(unreachable)? {
                Ok(key) => key,
                Err(reason) => return Err(unknown(reason)),
            };
            check(&key).map_err(unknown)?;
            ControlStream::Secure(Box::new(secure))
        }
    };
    stream.write_all(&handshake.hello().emit()).map_err(unreachable)?;
    let answer = read_frame(&mut stream).map_err(unreachable)?;
    let answer = answer.map_err(|error| refused(error.to_string()))?;
    let welcomed = handshake.handle(answer).map_err(|error| refused(error.to_string()))?;
    Ok((stream, welcomed))
}

/// The handshake of TLS, or what a host says that wants none: a `Goodbye` in the clear.
fn shake_hands(secure: &mut SecureStream, mut plain: TcpStream) -> io::Result<Result<PeerKey, String>> {
    secure.begin()?;
    // A record of TLS has its version in the third byte, 1 to 3; a `Goodbye` the third byte of a length below 2^16.
    let mut head = [0; 5];
    plain.read_exact(&mut head)?;
    if head[2] != 0 {
        return secure.shake_hands(&head).map(Ok);
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
        }
    }

    /// The sharer says that the connection is there.
    pub(crate) fn handle_linked(&mut self) {
        self.linked = self.introduced;
    }

    /// Does what can be done now; `introduce` gives each socket an introduction of its own.
    pub(crate) fn run(
        &mut self,
        introduce: &mut dyn FnMut() -> Introduced,
        poller: &mut Poller,
        now: Time,
    ) -> Dialled {
        let confirmed = !self.transport.class.facts().may_lose;
        if (self.linked || confirmed && self.introduced)
            && let Some(socket) = self.socket.take()
        {
            poller.forget(socket.as_fd());
            return Dialled::Ready(socket, self.introduction.1.take());
        }
        if self.socket.is_none() {
            if now < self.at {
                return Dialled::Waiting;
            }
            self.socket = self.transport.class.dial(self.peer, &self.transport.options).ok();
            self.introduction = introduce();
            self.at = now.after(RETRY_INTERVAL);
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
                if let Some(socket) = self.socket.take() {
                    poller.forget(socket.as_fd());
                }
                self.introduced = false;
                self.at = now.after(RETRY_INTERVAL);
                Dialled::Waiting
            }
        }
    }

    /// Puts what to wait for into the poller; when to run again otherwise.
    pub(crate) fn want(&self, poller: &mut Poller) -> Time {
        match &self.socket {
            Some(socket) if !self.introduced => {
                poller.want(socket.as_fd(), false, true);
                self.at.after(RETRY_INTERVAL)
            }
            _ => self.at,
        }
    }
}
