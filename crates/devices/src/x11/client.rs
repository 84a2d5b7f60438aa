//! A non-blocking X11 client: a queue of requests to the server, and a stream of replies, errors and events from it.
//!
//! The server is not trusted. A packet that is too long, or a reply that no request awaits, ends the connection.

use crate::received::{ReceiveBuffer, wait};
use rustix::event::PollFlags;
use std::borrow::Cow;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;
use wire::BODY_BYTES_MAX;
use x11rb_protocol::protocol::xproto::{GetInputFocusRequest, Setup};
use x11rb_protocol::x11_utils::TryParse;

/// Bytes of an event, of an error and of the start of a reply (X11 protocol, section 8).
pub(super) const PACKET_BYTES: usize = 32;
/// The most bytes of a reply. The largest is a picture.
const REPLY_BYTES_MAX: usize = BODY_BYTES_MAX;
/// The most requests in a row without a reply. A packet holds only the lower 16 bits of a request's number, so the
/// server must send a packet before these bits become ambiguous.
const SILENT_REQUESTS_MAX: u64 = 1 << 15;
/// Bytes of queued requests above which `Client::is_full` reports backpressure.
const QUEUE_BYTES_MAX: usize = 1 << 18;

/// A serialized request: its bytes and its descriptors.
pub(super) type Request<'a, const PARTS: usize> = ([Cow<'a, [u8]>; PARTS], Vec<OwnedFd>);

/// The number of a request, from 1.
pub(super) type Sequence = u64;

/// A packet from the server.
#[derive(Debug)]
pub(super) enum Packet {
    /// The reply to a request.
    Reply(Sequence, Vec<u8>),
    /// A request failed with this error code.
    Error(Sequence, u8),
    /// An event.
    Event([u8; PACKET_BYTES]),
}

/// A connection that the server has accepted.
#[derive(Debug)]
pub(super) struct Client {
    socket: OwnedFd,
    setup: Setup,
    /// The number of resource identifiers allocated so far.
    resources: u32,
    queue: Vec<u8>,
    /// The descriptors of the requests in the queue.
    descriptors: Vec<OwnedFd>,
    received: ReceiveBuffer,
    /// Packets that arrived during a wait for another packet.
    deferred: VecDeque<Packet>,
    /// The number of the last request in the queue or sent.
    sent: Sequence,
    /// The number of the last request that the server is known to have processed.
    processed: Sequence,
    /// Requests that have a reply, and whether the caller wants it.
    awaited: VecDeque<(Sequence, bool)>,
}

impl Client {
    /// Makes a client of a connection that has sent its setup request. Waits until `deadline` for the server's setup.
    pub(super) fn new(socket: OwnedFd, deadline: Instant) -> io::Result<Client> {
        let mut received = ReceiveBuffer::default();
        let length = |bytes: &[u8]| setup_bytes(bytes);
        let bytes = loop {
            if let Some(bytes) = received.take(length)? {
                break bytes;
            }
            wait(socket.as_fd(), PollFlags::IN, deadline)?;
            received.fill(socket.as_fd())?;
        };
        let (setup, _) = Setup::try_parse(&bytes).map_err(|_| protocol_error("the setup is malformed"))?;
        if setup.roots.is_empty() || setup.resource_id_mask == 0 {
            return Err(protocol_error("the setup names no screen"));
        }
        Ok(Client {
            socket,
            setup,
            resources: 0,
            queue: Vec::new(),
            descriptors: Vec::new(),
            received,
            deferred: VecDeque::new(),
            sent: 0,
            processed: 0,
            awaited: VecDeque::new(),
        })
    }

    /// Returns the server's setup: its screens, formats and limits.
    pub(super) fn setup(&self) -> &Setup {
        &self.setup
    }

    /// Returns the socket, to poll it.
    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Allocates an identifier for a new resource. A client makes few, so the identifiers never run out.
    pub(super) fn resource(&mut self) -> u32 {
        let mask = self.setup.resource_id_mask;
        // The lowest bit of the mask is the step from one number to the next.
        let step = 1 << mask.trailing_zeros();
        self.resources += 1;
        self.setup.resource_id_base | (self.resources.wrapping_mul(step) & mask)
    }

    /// Returns whether requests are queued.
    pub(super) fn is_writing(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Returns whether too many requests are queued: the caller must not add more.
    pub(super) fn is_full(&self) -> bool {
        self.queue.len() > QUEUE_BYTES_MAX
    }

    /// Queues a request that has no reply. The server sends an error if the request fails.
    pub(super) fn send<const PARTS: usize>(&mut self, request: Request<'_, PARTS>) -> Sequence {
        let (parts, descriptors) = request;
        parts.iter().for_each(|part| self.queue.extend_from_slice(part));
        self.descriptors.extend(descriptors);
        self.sent += 1;
        let request = self.sent;
        let last_numbered = self.awaited.back().map_or(self.processed, |(awaited, _)| *awaited);
        if self.sent - last_numbered > SILENT_REQUESTS_MAX {
            self.sync(false);
        }
        request
    }

    /// Queues a request that has a reply.
    pub(super) fn query<const PARTS: usize>(&mut self, request: Request<'_, PARTS>) -> Sequence {
        self.queue_query(request, true)
    }

    fn queue_query<const PARTS: usize>(&mut self, request: Request<'_, PARTS>, is_wanted: bool) -> Sequence {
        let (parts, _) = request;
        parts.iter().for_each(|part| self.queue.extend_from_slice(part));
        self.sent += 1;
        self.awaited.push_back((self.sent, is_wanted));
        self.sent
    }

    /// Queues a request only for its reply: the reply shows that the server has processed all earlier requests.
    fn sync(&mut self, is_wanted: bool) -> Sequence {
        self.queue_query(GetInputFocusRequest.serialize(), is_wanted)
    }

    /// Sends queued requests, as many as the socket takes without blocking.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        let mut done = 0;
        while done < self.queue.len() {
            match sys::descriptor::pass(&self.socket, &self.queue[done..], &self.descriptors) {
                Ok(written) => {
                    // All descriptors leave with the first byte.
                    self.descriptors.clear();
                    done += written;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        self.queue.drain(..done);
        Ok(())
    }

    /// Receives the bytes that wait in the socket.
    pub(super) fn receive(&mut self) -> io::Result<()> {
        self.received.fill(self.socket.as_fd())
    }

    /// Returns the next packet, if a whole one was received.
    pub(super) fn next_packet(&mut self) -> io::Result<Option<Packet>> {
        match self.deferred.pop_front() {
            Some(packet) => Ok(Some(packet)),
            None => self.parse(),
        }
    }

    fn parse(&mut self) -> io::Result<Option<Packet>> {
        loop {
            let Some(bytes) = self.received.take(packet_bytes)? else { return Ok(None) };
            // Every packet but this event has the lower 16 bits of the number of the last processed request.
            let is_unnumbered = bytes[0] & 0x7f == x11rb_protocol::protocol::xproto::KEYMAP_NOTIFY_EVENT;
            let processed = match is_unnumbered {
                true => self.processed,
                false => {
                    self.processed
                        + u64::from(
                            u16::from_ne_bytes([bytes[2], bytes[3]]).wrapping_sub(self.processed as u16),
                        )
                }
            };
            if processed > self.sent {
                return Err(protocol_error("a packet names a request that was not sent"));
            }
            self.processed = processed;
            match bytes[0] {
                0 => {
                    let awaited = self.awaited.front().copied().filter(|(awaited, _)| *awaited == processed);
                    if awaited.is_some() {
                        self.awaited.pop_front();
                    }
                    if awaited.is_none_or(|(_, is_wanted)| is_wanted) {
                        return Ok(Some(Packet::Error(processed, bytes[1])));
                    }
                }
                1 => match self.awaited.pop_front() {
                    Some((awaited, true)) if awaited == processed => {
                        return Ok(Some(Packet::Reply(processed, bytes)));
                    }
                    Some((awaited, false)) if awaited == processed => {}
                    _ => return Err(protocol_error("a reply arrived that no request awaits")),
                },
                _ => {
                    let event =
                        bytes[..].first_chunk().ok_or_else(|| protocol_error("an event is too short"))?;
                    return Ok(Some(Packet::Event(*event)));
                }
            }
        }
    }

    /// Waits until `deadline` for the reply to a request, or for its error code. `next_packet` returns the other
    /// packets that arrive until then.
    pub(super) fn wait_for(
        &mut self,
        request: Sequence,
        deadline: Instant,
    ) -> io::Result<Result<Vec<u8>, u8>> {
        loop {
            while let Some(packet) = self.parse()? {
                match packet {
                    Packet::Reply(of, bytes) if of == request => return Ok(Ok(bytes)),
                    Packet::Error(of, code) if of == request => return Ok(Err(code)),
                    other => self.deferred.push_back(other),
                }
            }
            self.flush()?;
            let writes = if self.is_writing() { PollFlags::OUT } else { PollFlags::empty() };
            wait(self.socket.as_fd(), PollFlags::IN | writes, deadline)?;
            self.receive()?;
        }
    }

    /// Waits until `deadline` for the server to process a request without a reply. Returns its error code if it failed.
    pub(super) fn wait_done(&mut self, request: Sequence, deadline: Instant) -> io::Result<Result<(), u8>> {
        let sync = self.sync(true);
        let _ = self.wait_for(sync, deadline)?;
        let of_request = |packet: &Packet| matches!(packet, Packet::Error(of, _) if *of == request);
        let failed = self.deferred.iter().position(of_request).and_then(|at| self.deferred.remove(at));
        Ok(match failed {
            Some(Packet::Error(_, code)) => Err(code),
            _ => Ok(()),
        })
    }
}

/// Returns the length of the packet that begins with `start`, if `start` is long enough to tell.
fn packet_bytes(start: &[u8]) -> io::Result<Option<usize>> {
    let Some(start) = start.first_chunk::<PACKET_BYTES>() else { return Ok(None) };
    // Only replies and generic events are longer than 32 bytes. Bit 7 marks an event sent by another client.
    let more = match start[0] & 0x7f {
        1 | x11rb_protocol::protocol::xproto::GE_GENERIC_EVENT => {
            u32::from_ne_bytes([start[4], start[5], start[6], start[7]]) as usize
        }
        _ => 0,
    };
    match more.checked_mul(4).and_then(|more| more.checked_add(PACKET_BYTES)) {
        Some(length) if length <= REPLY_BYTES_MAX => Ok(Some(length)),
        _ => Err(protocol_error("a reply is too large")),
    }
}

/// Returns the length of the setup that begins with `start`, if `start` is long enough to tell.
fn setup_bytes(start: &[u8]) -> io::Result<Option<usize>> {
    let Some(start) = start.first_chunk::<8>() else { return Ok(None) };
    Ok(Some(8 + 4 * usize::from(u16::from_ne_bytes([start[6], start[7]]))))
}

/// Returns the error for a packet that violates the X11 protocol.
pub(super) fn protocol_error(problem: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the X server violates the X11 protocol: {problem}"))
}
