//! One TCP connection through the relay: two sockets. For each direction, the stream is cut into segments and
//! reassembled.

use super::{Direction, WINDOW_BYTES};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

/// The payload of one segment: an Ethernet packet less the headers of IPv4 and of TCP with timestamps.
pub(super) const SEGMENT_BYTES: usize = 1448;
/// The length of these headers.
pub(super) const SEGMENT_HEADER_BYTES: u32 = 52;

/// A piece of a stream.
#[derive(Clone)]
pub(super) struct Segment {
    pub(super) sequence: u64,
    pub(super) body: Box<[u8]>,
    /// The last segment of the stream.
    pub(super) end: bool,
    /// A bit was flipped, so the checksum fails.
    pub(super) damaged: bool,
    /// The number of retransmissions.
    pub(super) resent: u32,
}

/// One direction of a connection.
#[derive(Default)]
struct Stream {
    /// The number of the next segment read from the source.
    next: u64,
    /// The source has closed its stream.
    source_ended: bool,
    /// The number of the next segment for the sink.
    expected: u64,
    /// Segments that arrived early.
    early: BTreeMap<u64, Segment>,
    /// Bytes in order that wait for the sink's socket.
    ready: VecDeque<u8>,
    /// The last segment has arrived.
    all_arrived: bool,
    /// The sink's stream is closed.
    sink_ended: bool,
    /// Bytes read from the source and not yet written to the sink.
    held_bytes: usize,
}

/// Both sockets and both directions.
pub(super) struct Splice {
    /// The socket that each direction reads: the client's, the target's. It writes to the other.
    sockets: [TcpStream; 2],
    streams: [Stream; 2],
}

impl Splice {
    /// Makes a splice for a connected client. It only starts to connect to the target.
    pub(super) fn new(client: TcpStream, target: SocketAddr) -> io::Result<Splice> {
        let family = if target.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
        match rustix::net::connect(&socket, &target) {
            Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        client.set_nonblocking(true)?;
        let sockets = [client, TcpStream::from(socket)];
        for socket in &sockets {
            socket.set_nodelay(true)?;
        }
        Ok(Splice { sockets, streams: Default::default() })
    }

    /// The socket that `direction` reads.
    pub(super) fn source(&self, direction: Direction) -> &TcpStream {
        &self.sockets[direction as usize]
    }

    /// The socket that `direction` writes.
    pub(super) fn sink(&self, direction: Direction) -> &TcpStream {
        &self.sockets[1 - direction as usize]
    }

    /// Returns true if the relay accepts more bytes.
    pub(super) fn wants_more(&self, direction: Direction) -> bool {
        let stream = &self.streams[direction as usize];
        !stream.source_ended && stream.held_bytes < WINDOW_BYTES
    }

    /// Returns true if bytes wait for the sink's socket.
    pub(super) fn wants_to_write(&self, direction: Direction) -> bool {
        let stream = &self.streams[direction as usize];
        !stream.ready.is_empty() || (stream.all_arrived && !stream.sink_ended)
    }

    /// Both directions have ended.
    pub(super) fn is_done(&self) -> bool {
        self.streams.iter().all(|stream| stream.sink_ended)
    }

    /// Reads from the source, up to `segments_max` segments.
    pub(super) fn read(
        &mut self,
        direction: Direction,
        segments_max: usize,
        buffer: &mut [u8],
    ) -> io::Result<Vec<Segment>> {
        let stream = &mut self.streams[direction as usize];
        let window = WINDOW_BYTES - stream.held_bytes;
        let limit = buffer.len().min(segments_max.saturating_mul(SEGMENT_BYTES)).min(window);
        let count = match (&self.sockets[direction as usize]).read(&mut buffer[..limit]) {
            Ok(count) => count,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                return Ok(Vec::new());
            }
            Err(error) => return Err(error),
        };
        stream.source_ended = count == 0;
        stream.held_bytes += count;
        let mut segment = |body: &[u8]| {
            stream.next += 1;
            let sequence = stream.next - 1;
            Segment { sequence, body: body.into(), end: body.is_empty(), damaged: false, resent: 0 }
        };
        if count == 0 {
            return Ok(vec![segment(&[])]);
        }
        Ok(buffer[..count].chunks(SEGMENT_BYTES).map(segment).collect())
    }

    /// Accepts a segment from the link, in any order, once or twice.
    pub(super) fn arrive(&mut self, direction: Direction, segment: Segment) -> io::Result<()> {
        let stream = &mut self.streams[direction as usize];
        if segment.sequence < stream.expected {
            return Ok(());
        }
        stream.early.insert(segment.sequence, segment);
        while let Some(segment) = stream.early.remove(&stream.expected) {
            stream.expected += 1;
            stream.ready.extend(segment.body.iter());
            stream.all_arrived = segment.end;
        }
        match self.write(direction) {
            // The connection to the target is not open yet; its socket becomes writable later.
            Err(error) if error.kind() == ErrorKind::NotConnected => Ok(()),
            result => result,
        }
    }

    /// Writes to the sink until its socket is full.
    pub(super) fn write(&mut self, direction: Direction) -> io::Result<()> {
        let stream = &mut self.streams[direction as usize];
        let mut sink = &self.sockets[1 - direction as usize];
        while !stream.ready.is_empty() {
            match sink.write(stream.ready.as_slices().0) {
                Ok(count) => {
                    stream.ready.drain(..count);
                    stream.held_bytes -= count;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if stream.all_arrived && !stream.sink_ended {
            sink.shutdown(Shutdown::Write)?;
            stream.sink_ended = true;
        }
        Ok(())
    }

    /// Resets the connection, so that both sides see it broken, as they would without a relay.
    pub(super) fn abort(self) {
        for socket in &self.sockets {
            // At worst the other side sees an orderly end instead.
            let _ = sockopt::set_socket_linger(socket, Some(Duration::ZERO));
        }
    }
}
