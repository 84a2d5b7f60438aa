//! The connection of a peer before its preamble has arrived.

use std::io::{self, Read};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::Duration;
use sys::poller::Poller;
use trust::quic_stream::QuicStream;

/// A connection of either kind.
pub(super) enum Carrier {
    Tcp(TcpStream),
    /// `None` once its control channel has taken the stream over.
    Quic(Option<Box<QuicStream>>),
}

impl Carrier {
    /// Reads the bytes that have arrived.
    pub(super) fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Carrier::Tcp(stream) => stream.read(bytes),
            Carrier::Quic(Some(stream)) => stream.read(bytes),
            Carrier::Quic(None) => Ok(0),
        }
    }

    /// Registers the connection with the poller; returns its next timeout.
    pub(super) fn register(&self, poller: &mut Poller) -> Option<Duration> {
        match self {
            Carrier::Tcp(stream) => poller.register(stream.as_fd(), true, false),
            Carrier::Quic(stream) => {
                let stream = stream.as_ref()?;
                stream.register(poller);
                return stream.timeout();
            }
        }
        None
    }

    /// Returns whether the last wait found work for this connection.
    pub(super) fn is_ready(&self, poller: &Poller) -> bool {
        match self {
            Carrier::Tcp(stream) => poller.is_ready(stream.as_fd()),
            Carrier::Quic(stream) => stream.as_ref().is_some_and(|stream| stream.is_ready(poller)),
        }
    }

    /// Removes the connection from the poller.
    pub(super) fn forget(&self, poller: &mut Poller) {
        match self {
            Carrier::Tcp(stream) => poller.forget(stream.as_fd()),
            Carrier::Quic(Some(stream)) => stream.forget(poller),
            Carrier::Quic(None) => {}
        }
    }
}
