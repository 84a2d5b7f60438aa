//! What somebody comes to a sharer by, until it has said what it comes for.

use crate::trust::quic_stream::QuicStream;
use std::io::{self, Read};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::Duration;
use sys::poller::Poller;

/// A connection of one or the other kind.
pub(super) enum Carrier {
    Tcp(TcpStream),
    /// Until its preamble is heard.
    Quic(Option<Box<QuicStream>>),
}

impl Carrier {
    /// Reads what there is.
    pub(super) fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Carrier::Tcp(stream) => stream.read(bytes),
            Carrier::Quic(Some(stream)) => stream.read(bytes),
            Carrier::Quic(None) => Ok(0),
        }
    }

    /// Waits for more; says how long it can be left alone.
    pub(super) fn want(&self, poller: &mut Poller) -> Option<Duration> {
        match self {
            Carrier::Tcp(stream) => poller.want(stream.as_fd(), true, false),
            Carrier::Quic(stream) => {
                let stream = stream.as_ref()?;
                stream.want(poller);
                return stream.timeout();
            }
        }
        None
    }

    /// Whether the last wait found something to do here.
    pub(super) fn is_ready(&self, poller: &Poller) -> bool {
        match self {
            Carrier::Tcp(stream) => poller.is_ready(stream.as_fd()),
            Carrier::Quic(stream) => stream.as_ref().is_some_and(|stream| stream.is_ready(poller)),
        }
    }

    /// Has a poller forget it.
    pub(super) fn forget(&self, poller: &mut Poller) {
        match self {
            Carrier::Tcp(stream) => poller.forget(stream.as_fd()),
            Carrier::Quic(Some(stream)) => stream.forget(poller),
            Carrier::Quic(None) => {}
        }
    }
}
