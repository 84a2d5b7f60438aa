//! A session with an NBD server: the client's side of `crates/wire/src/nbd.rs`, with the negotiation on a blocking connection.

use crate::sessions::{Ended, Expected, Order, Reply, Session};
use bytes::Bytes;
use contract::Body;
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::time::{Duration, Instant};
use wire::formats::block::{Command, Geometry};
use wire::nbd::{self, Asked, ClientNegotiation, ClientStep, REPLY_BYTES, Request};

/// A connection that blocks until a time limit.
pub(super) trait Waiting: Read + Write {
    /// Sets the limit of each later call.
    fn limit(&self, timeout: Duration) -> io::Result<()>;
}

impl Waiting for std::net::TcpStream {
    fn limit(&self, timeout: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(timeout)).and_then(|()| self.set_write_timeout(Some(timeout)))
    }
}

impl Waiting for std::os::unix::net::UnixStream {
    fn limit(&self, timeout: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(timeout)).and_then(|()| self.set_write_timeout(Some(timeout)))
    }
}

/// Agrees with a server on an export, within `timeout`. Returns the facts about the disk, and the longest read or write that the
/// server accepts. The session begins behind the last byte that was read.
pub(super) fn negotiate(
    stream: &mut impl Waiting,
    export: &str,
    timeout: Duration,
) -> io::Result<(Geometry, u32)> {
    let end = Instant::now() + timeout;
    let mut negotiation = ClientNegotiation::new(export);
    let mut input = Vec::new();
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.limit(left)?;
        input.resize(negotiation.needs(), 0);
        stream.read_exact(&mut input)?;
        match negotiation.take(&input).map_err(io::Error::other)? {
            ClientStep::Send(output) => stream.write_all(&output)?,
            ClientStep::Done { geometry, request_bytes_max } => return Ok((geometry, request_bytes_max)),
        }
    }
}

/// An NBD session after the negotiation.
#[derive(Debug, Default)]
pub(super) struct NbdSession {
    /// The lengths of the reads without a reply, by tag.
    reads: BTreeMap<u64, u32>,
    /// The read whose data come now, and the bytes that are left.
    data: Option<(u64, u32)>,
}

impl Session for NbdSession {
    fn submit(&mut self, order: &Order, data: Body, output: &mut Body) {
        let Order { tag, command, force, keep_space, offset, length } = *order;
        if command == Command::Read {
            self.reads.insert(tag, length);
        }
        let (asked, cookie, has_unknown_flags) = (Asked::Do(command), tag, false);
        let request = Request { asked, force, keep_space, has_unknown_flags, cookie, offset, length };
        output.push(Bytes::copy_from_slice(&request.to_bytes()));
        output.append(data);
    }

    fn end(&mut self, output: &mut Body) {
        let request = Request {
            asked: Asked::Disconnect,
            force: false,
            keep_space: false,
            has_unknown_flags: false,
            cookie: 0,
            offset: 0,
            length: 0,
        };
        output.push(Bytes::copy_from_slice(&request.to_bytes()));
    }

    fn expected(&self) -> Expected {
        match self.data {
            Some((tag, length)) => Expected::Data { tag, length },
            None => Expected::Header(REPLY_BYTES),
        }
    }

    fn handle_header(&mut self, header: &[u8], _: &mut Body) -> Result<Option<Reply>, Ended> {
        let header = header.try_into().map_err(|_| "a reply of another length".to_string())?;
        let nbd::Reply { cookie, result } = nbd::Reply::parse(header)
            .map_err(|error| format!("the server violates the protocol: {error}"))?;
        match (result, self.reads.remove(&cookie)) {
            (Ok(()), Some(length @ 1..)) => {
                self.data = Some((cookie, length));
                Ok(None)
            }
            _ => Ok(Some(Reply { tag: cookie, result })),
        }
    }

    fn handle_data(&mut self, length: u32, _: &mut Body) -> Result<Option<Reply>, Ended> {
        let Some((tag, left)) = self.data.take() else { return Ok(None) };
        match left.saturating_sub(length) {
            0 => Ok(Some(Reply { tag, result: Ok(()) })),
            left => {
                self.data = Some((tag, left));
                Ok(None)
            }
        }
    }
}
