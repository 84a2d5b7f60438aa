//! Making connections: the control connection with its greeting, and data connections in the background.

use crate::error::RuntimeError;
use crate::worker::TransportPlan;
use contract::Time;
use rustix::io::Errno;
use session::{Handshake, Welcomed};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;
use sys::poller::Poller;
use wire::control::FRAME_BYTES_MAX;
use wire::preamble::SessionToken;
use wire::{Control, Preamble};

/// Time between two introductions on a transport that may lose them.
const INTRODUCTION_INTERVAL: Duration = Duration::from_millis(50);
/// Time before a data connection that failed is made anew.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Connects to a sharer and opens a session: blocks, for `timeout` until connected and `patience` for each step of
/// the greeting at most.
pub(crate) fn greet(
    peer: SocketAddr,
    handshake: &Handshake,
    timeout: Duration,
    patience: Duration,
) -> Result<(TcpStream, Welcomed), RuntimeError> {
    let unreachable = |error: io::Error| {
        let advice = match error.kind() {
            io::ErrorKind::ConnectionRefused => "nothing listens there: is `outboard share` running?",
            _ => "is the host up, and does the network lead there?",
        };
        RuntimeError::Unreachable(format!("{peer} cannot be reached: {error} ({advice})"))
    };
    let mut stream = TcpStream::connect_timeout(&peer, timeout).map_err(unreachable)?;
    let patience = Some(patience);
    stream.set_read_timeout(patience).map_err(unreachable)?;
    stream.set_write_timeout(patience).map_err(unreachable)?;
    stream.set_nodelay(true).map_err(unreachable)?;
    let mut first = Preamble::Control.emit().to_vec();
    first.extend(handshake.hello().emit());
    stream.write_all(&first).map_err(unreachable)?;
    let answer = read_frame(&mut stream).map_err(unreachable)?;
    let answer = answer.map_err(|error| RuntimeError::Peer(format!("{peer}: {error}")))?;
    let welcomed =
        handshake.handle(answer).map_err(|error| RuntimeError::Peer(format!("{peer}: {error}")))?;
    Ok((stream, welcomed))
}

/// Reads one frame and not a byte more.
fn read_frame(stream: &mut TcpStream) -> io::Result<Result<Control, wire::WireError>> {
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
    /// Connected and introduced.
    Ready(OwnedFd),
}

/// A data connection under way.
pub(crate) struct Dialling {
    transport: TransportPlan,
    peer: SocketAddr,
    socket: Option<OwnedFd>,
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
            linked: false,
            introduced: false,
            at: now,
        }
    }

    /// The sharer says that the connection is there.
    pub(crate) fn handle_linked(&mut self) {
        self.linked = self.introduced;
    }

    /// Does what can be done now.
    pub(crate) fn run(
        &mut self,
        session: SessionToken,
        driver: u32,
        poller: &mut Poller,
        now: Time,
    ) -> Dialled {
        let confirmed = !self.transport.class.facts().may_lose;
        if (self.linked || confirmed && self.introduced)
            && let Some(socket) = self.socket.take()
        {
            poller.forget(socket.as_fd());
            return Dialled::Ready(socket);
        }
        if self.socket.is_none() {
            if now < self.at {
                return Dialled::Waiting;
            }
            self.socket = self.transport.class.dial(self.peer, &self.transport.options).ok();
            self.at = now.after(RETRY_INTERVAL);
        }
        let Some(socket) = &self.socket else { return Dialled::Waiting };
        if self.introduced && now < self.at {
            return Dialled::Waiting;
        }
        match rustix::io::write(socket, &Preamble::Data { session, driver }.emit()) {
            Ok(Preamble::BYTES) => {
                self.introduced = true;
                self.at = now.after(INTRODUCTION_INTERVAL);
                match confirmed {
                    true => self.run(session, driver, poller, now),
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
