//! A client of an X server, without waiting: requests go into a queue, answers and events come out of one.
//!
//! What an X server sends is not believed: a packet of any length, an answer to nothing that was asked, end the
//! connection.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recv, send, sendmsg};
use std::borrow::Cow;
use std::collections::VecDeque;
use std::io;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};
use wire::BODY_BYTES_MAX;
use x11rb_protocol::protocol::xproto::{GetInputFocusRequest, Setup};
use x11rb_protocol::x11_utils::TryParse;

/// Bytes of an event, an error, and the start of a reply (X11 protocol, section 8).
pub(super) const PACKET_BYTES: usize = 32;
/// The largest reply is a picture.
const REPLY_BYTES_MAX: usize = BODY_BYTES_MAX;
/// Bytes received at a time.
const BUFFER_BYTES: usize = 1 << 16;
/// The server numbers what it says with the lower 16 bits of the request it follows: it must say something
/// before that is ambiguous.
const SILENT_REQUESTS_MAX: u64 = 1 << 15;
/// Bytes of requests that wait for the server; more is not taken on.
const QUEUE_BYTES_MAX: usize = 1 << 18;

/// What an extension's request, or one of the protocol itself, is as bytes and descriptors.
pub(super) type Request<'a, const PARTS: usize> = ([Cow<'a, [u8]>; PARTS], Vec<OwnedFd>);

/// Number of a request, from 1.
pub(super) type Sequence = u64;

/// What the server says.
#[derive(Debug)]
pub(super) enum Packet {
    /// The answer to a request.
    Reply(Sequence, Vec<u8>),
    /// A request failed, for this reason.
    Error(Sequence, u8),
    /// Something happened.
    Event([u8; PACKET_BYTES]),
}

/// A connection that was accepted.
#[derive(Debug)]
pub(super) struct Client {
    socket: OwnedFd,
    setup: Setup,
    /// Resources made so far.
    resources: u32,
    queue: Vec<u8>,
    /// Those of requests in the queue.
    descriptors: Vec<OwnedFd>,
    received: Received,
    /// Told while something else was waited for.
    early: VecDeque<Packet>,
    /// The last request, and the last the server was heard to have reached.
    sent: Sequence,
    heard: Sequence,
    /// Requests that have an answer, and whether anybody wants it.
    awaited: VecDeque<(Sequence, bool)>,
}

impl Client {
    /// A client on a connection whose setup was asked for; the server's answer is waited for until `deadline`.
    pub(super) fn new(socket: OwnedFd, deadline: Instant) -> io::Result<Client> {
        let mut received = Received::default();
        let length = |bytes: &[u8]| setup_bytes(bytes);
        let bytes = loop {
            if let Some(bytes) = received.take(length)? {
                break bytes;
            }
            wait(socket.as_fd(), PollFlags::IN, deadline)?;
            received.fill(socket.as_fd())?;
        };
        let (setup, _) = Setup::try_parse(&bytes).map_err(|_| broken("its setup makes no sense"))?;
        if setup.roots.is_empty() || setup.resource_id_mask == 0 {
            return Err(broken("it has no screen"));
        }
        Ok(Client {
            socket,
            setup,
            resources: 0,
            queue: Vec::new(),
            descriptors: Vec::new(),
            received,
            early: VecDeque::new(),
            sent: 0,
            heard: 0,
            awaited: VecDeque::new(),
        })
    }

    /// What the server is.
    pub(super) fn setup(&self) -> &Setup {
        &self.setup
    }

    /// To wait for what the server says.
    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// A number for a resource that the server is asked to make. A client makes few: they never run out.
    pub(super) fn resource(&mut self) -> u32 {
        let mask = self.setup.resource_id_mask;
        // The lowest bit of the mask is the step from one number to the next.
        let step = 1 << mask.trailing_zeros();
        self.resources += 1;
        self.setup.resource_id_base | (self.resources.wrapping_mul(step) & mask)
    }

    /// Whether requests wait for the server.
    pub(super) fn is_writing(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Whether too many requests wait for the server.
    pub(super) fn is_full(&self) -> bool {
        self.queue.len() > QUEUE_BYTES_MAX
    }

    /// Queues a request that has no answer, or none but an error.
    pub(super) fn send<const PARTS: usize>(&mut self, request: Request<'_, PARTS>) -> Sequence {
        let (parts, descriptors) = request;
        parts.iter().for_each(|part| self.queue.extend_from_slice(part));
        self.descriptors.extend(descriptors);
        self.sent += 1;
        let request = self.sent;
        let told = self.awaited.back().map_or(self.heard, |(awaited, _)| *awaited);
        if self.sent - told > SILENT_REQUESTS_MAX {
            self.sync(false);
        }
        request
    }

    /// Queues a request that has an answer.
    pub(super) fn ask<const PARTS: usize>(&mut self, request: Request<'_, PARTS>) -> Sequence {
        self.ask_if(request, true)
    }

    fn ask_if<const PARTS: usize>(&mut self, request: Request<'_, PARTS>, is_wanted: bool) -> Sequence {
        let (parts, _) = request;
        parts.iter().for_each(|part| self.queue.extend_from_slice(part));
        self.sent += 1;
        self.awaited.push_back((self.sent, is_wanted));
        self.sent
    }

    /// Has the server say something, so that all before is known to be done.
    fn sync(&mut self, is_wanted: bool) -> Sequence {
        self.ask_if(GetInputFocusRequest.serialize(), is_wanted)
    }

    /// Hands the server what it takes now.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        let mut done = 0;
        while done < self.queue.len() {
            match self.write(done) {
                Ok(written) => {
                    // All descriptors went with the first of these bytes.
                    self.descriptors.clear();
                    done += written;
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.queue.drain(..done);
        Ok(())
    }

    fn write(&self, from: usize) -> rustix::io::Result<usize> {
        let (bytes, flags) = (&self.queue[from..], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        if self.descriptors.is_empty() {
            return send(&self.socket, bytes, flags);
        }
        let descriptors: Vec<_> = self.descriptors.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
            return Err(Errno::TOOBIG);
        }
        sendmsg(&self.socket, &[IoSlice::new(bytes)], &mut control, flags)
    }

    /// Receives what the server has said so far.
    pub(super) fn fill(&mut self) -> io::Result<()> {
        self.received.fill(self.socket.as_fd())
    }

    /// The next of what was received.
    pub(super) fn take(&mut self) -> io::Result<Option<Packet>> {
        match self.early.pop_front() {
            Some(packet) => Ok(Some(packet)),
            None => self.parse(),
        }
    }

    fn parse(&mut self) -> io::Result<Option<Packet>> {
        loop {
            let Some(bytes) = self.received.take(packet_bytes)? else { return Ok(None) };
            let is_unnumbered = bytes[0] & 0x7f == x11rb_protocol::protocol::xproto::KEYMAP_NOTIFY_EVENT;
            let reached = match is_unnumbered {
                true => self.heard,
                false => {
                    self.heard
                        + u64::from(u16::from_ne_bytes([bytes[2], bytes[3]]).wrapping_sub(self.heard as u16))
                }
            };
            if reached > self.sent {
                return Err(broken("it answers what was not asked"));
            }
            self.heard = reached;
            match bytes[0] {
                0 => {
                    let awaited = self.awaited.front().copied().filter(|(awaited, _)| *awaited == reached);
                    if awaited.is_some() {
                        self.awaited.pop_front();
                    }
                    if awaited.is_none_or(|(_, is_wanted)| is_wanted) {
                        return Ok(Some(Packet::Error(reached, bytes[1])));
                    }
                }
                1 => match self.awaited.pop_front() {
                    Some((awaited, true)) if awaited == reached => {
                        return Ok(Some(Packet::Reply(reached, bytes)));
                    }
                    Some((awaited, false)) if awaited == reached => {}
                    _ => return Err(broken("it answers what was not asked")),
                },
                _ => {
                    let event = bytes[..].first_chunk().ok_or_else(|| broken("an event is too short"))?;
                    return Ok(Some(Packet::Event(*event)));
                }
            }
        }
    }

    /// Waits until `deadline` for the answer to a request; what else is told meanwhile is kept for later.
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
                    other => self.early.push_back(other),
                }
            }
            self.flush()?;
            let writes = if self.is_writing() { PollFlags::OUT } else { PollFlags::empty() };
            wait(self.socket.as_fd(), PollFlags::IN | writes, deadline)?;
            self.fill()?;
        }
    }

    /// Waits until `deadline` for a request without an answer to be done; the code of its error if it failed.
    pub(super) fn wait_done(&mut self, request: Sequence, deadline: Instant) -> io::Result<Result<(), u8>> {
        let sync = self.sync(true);
        let _ = self.wait_for(sync, deadline)?;
        let of_request = |packet: &Packet| matches!(packet, Packet::Error(of, _) if *of == request);
        let failed = self.early.iter().position(of_request).and_then(|at| self.early.remove(at));
        Ok(match failed {
            Some(Packet::Error(_, code)) => Err(code),
            _ => Ok(()),
        })
    }
}

/// Bytes that were received and not taken yet.
#[derive(Debug, Default)]
struct Received {
    buffer: Vec<u8>,
    taken: usize,
    filled: usize,
    /// Bytes of the packet that is not whole yet.
    wanted: usize,
}

impl Received {
    /// Receives what there is, up to a whole packet or what the buffer holds.
    fn fill(&mut self, socket: BorrowedFd<'_>) -> io::Result<()> {
        if self.taken > 0 {
            self.buffer.copy_within(self.taken..self.filled, 0);
            (self.filled, self.taken) = (self.filled - self.taken, 0);
        }
        self.buffer.resize(self.wanted.max(BUFFER_BYTES), 0);
        while self.filled < self.buffer.len() {
            match recv(socket, &mut self.buffer[self.filled..], RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok((_, received)) => {
                    self.filled += received;
                    if self.filled >= self.wanted {
                        break;
                    }
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// The next packet, if it is whole. `length` says from its start how long it is.
    fn take(&mut self, length: impl Fn(&[u8]) -> io::Result<Option<usize>>) -> io::Result<Option<Vec<u8>>> {
        let waiting = &self.buffer[self.taken..self.filled];
        let Some(length) = length(waiting)? else { return Ok(None) };
        if waiting.len() < length {
            self.wanted = length;
            return Ok(None);
        }
        let packet = waiting[..length].to_vec();
        self.taken += length;
        self.wanted = 0;
        Ok(Some(packet))
    }
}

fn packet_bytes(start: &[u8]) -> io::Result<Option<usize>> {
    let Some(start) = start.first_chunk::<PACKET_BYTES>() else { return Ok(None) };
    let more = match start[0] & 0x7f {
        1 | x11rb_protocol::protocol::xproto::GE_GENERIC_EVENT => {
            u32::from_ne_bytes([start[4], start[5], start[6], start[7]]) as usize
        }
        _ => 0,
    };
    match more.checked_mul(4).and_then(|more| more.checked_add(PACKET_BYTES)) {
        Some(length) if length <= REPLY_BYTES_MAX => Ok(Some(length)),
        _ => Err(broken("an answer is larger than any")),
    }
}

fn setup_bytes(start: &[u8]) -> io::Result<Option<usize>> {
    let Some(start) = start.first_chunk::<8>() else { return Ok(None) };
    Ok(Some(8 + 4 * usize::from(u16::from_ne_bytes([start[6], start[7]]))))
}

/// Waits until `deadline` for a descriptor.
fn wait(descriptor: BorrowedFd<'_>, flags: PollFlags, deadline: Instant) -> io::Result<()> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left == Duration::ZERO {
        return Err(io::ErrorKind::TimedOut.into());
    }
    let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
    match poll(&mut [PollFd::from_borrowed_fd(descriptor, flags)], Some(&timeout)) {
        Ok(0) => Err(io::ErrorKind::TimedOut.into()),
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The server says what makes no sense.
pub(super) fn broken(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the X server breaks its protocol: {what}"))
}
