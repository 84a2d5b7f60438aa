//! One TCP connection of `striped`.

use super::unit::{Mark, NUMBER_BYTES, Piece, Unit};
use crate::deframer::Deframer;
use crate::seal::{Seal, TAG_BYTES};
use crate::send_queue::SendQueue;
use crate::socket;
use crate::tcp::stall::StallDetector;
use contract::{Body, PartnerError, PartnerResult, SealKeys, Time};
use rustix::net::{Shutdown, shutdown};
use smallvec::SmallVec;
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use wire::RecordHeader;

/// Unused buffers for large pieces that a way keeps for reuse, bytes.
const KEPT_BYTES_MAX: usize = 1 << 20;
/// Slices in one gathering send.
const SLICES_MAX: usize = sys::net::SLICES_MAX / 4;

/// The sending side of a way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sending {
    /// The peer has not joined the way: it carries marks only.
    Joining,
    Open,
    /// The end mark is queued.
    Ending,
    /// The end mark is sent, and the socket's sending side is shut down.
    Ended,
}

/// The receiving side of a way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Receiving {
    /// The join mark is expected.
    Joining,
    Open,
    /// The end mark has arrived; nothing may follow.
    Ending,
    Ended,
}

/// The result of [`Way::receive`].
pub(super) enum Received {
    /// More bytes, perhaps.
    Some,
    Nothing,
    /// The peer has closed the connection before its end mark.
    Cut(io::Error),
}

/// One way.
#[derive(Debug)]
pub(super) struct Way {
    /// Name in the poll set.
    pub(super) name: u64,
    pub(super) socket: OwnedFd,
    seal: Option<Box<Seal>>,
    deframer: Deframer,
    /// Sealed units for the socket.
    units: SendQueue<()>,
    pub(super) sending: Sending,
    pub(super) receiving: Receiving,
    /// The next piece of this way.
    pub(super) head: Option<Piece>,
    /// The least number that the next piece may have.
    number_min: u64,
    pub(super) has_sent_pieces: bool,
    has_received_pieces: bool,
    /// The socket may have bytes; false after a call that found none, until the next event.
    pub(super) may_receive: bool,
    /// The socket may have room.
    pub(super) may_send: bool,
    /// Bytes that have been given to the kernel, and calls for that.
    pub(super) sent_bytes: u64,
    pub(super) send_calls: u64,
    pub(super) received_bytes: u64,
    pub(super) receive_calls: u64,
    pub(super) stall_detector: StallDetector,
}

impl Way {
    /// Makes a way of a connected socket. `body_bytes_max` limits a received piece.
    pub(super) fn new(name: u64, socket: OwnedFd, keys: Option<&SealKeys>, body_bytes_max: usize) -> Way {
        let tag_bytes = NUMBER_BYTES + if keys.is_some() { TAG_BYTES } else { 0 };
        Way {
            name,
            socket,
            seal: keys.map(|keys| Box::new(Seal::new(keys))),
            deframer: Deframer::new(body_bytes_max, tag_bytes, KEPT_BYTES_MAX),
            units: SendQueue::new(usize::MAX),
            sending: Sending::Joining,
            receiving: Receiving::Joining,
            head: None,
            number_min: 0,
            has_sent_pieces: false,
            has_received_pieces: false,
            may_receive: true,
            may_send: true,
            sent_bytes: 0,
            send_calls: 0,
            received_bytes: 0,
            receive_calls: 0,
            stall_detector: StallDetector::default(),
        }
    }

    /// Returns true if records may be sent on this way.
    pub(super) fn is_open(&self) -> bool {
        self.sending == Sending::Open
    }

    /// Returns true if both sides have ended.
    pub(super) fn is_over(&self) -> bool {
        self.sending == Sending::Ended && self.receiving == Receiving::Ended
    }

    /// Returns true if the loss of this way loses no record.
    pub(super) fn is_unused(&self) -> bool {
        !self.has_sent_pieces && !self.has_received_pieces
    }

    /// Returns the bytes that the peer has acknowledged; those given to the kernel where it does not tell.
    pub(super) fn acknowledged_bytes(&self) -> u64 {
        sys::net::stream_state(&self.socket).map_or(self.sent_bytes, |stream| stream.acknowledged_bytes)
    }

    /// Returns true if the socket has accepted all units.
    pub(super) fn is_flushed(&self) -> bool {
        self.units.is_empty()
    }

    /// Queues a unit. The caller bounds the number of pieces.
    pub(super) fn queue(&mut self, unit: &Body) {
        let sealed = match &mut self.seal {
            None => unit.clone(),
            Some(seal) => seal.sealer.record(unit),
        };
        self.units.push((), sealed);
    }

    /// Queues a mark.
    pub(super) fn mark(&mut self, mark: Mark) {
        self.queue(&mark.emit());
    }

    /// Ends the sending side behind the queued units.
    pub(super) fn end(&mut self) {
        if matches!(self.sending, Sending::Joining | Sending::Open) {
            self.mark(Mark::End);
            self.sending = Sending::Ending;
        }
    }

    /// Sends the queued units until the socket is full.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        let sent_bytes = self.sent_bytes;
        while !self.units.is_empty() && self.may_send {
            let mut slices = SmallVec::<[IoSlice<'_>; SLICES_MAX]>::new();
            let chunks = self.units.records.iter().flat_map(|(_, unit)| unit.chunks());
            slices.extend(chunks.take(SLICES_MAX).map(IoSlice::new));
            self.send_calls += 1;
            match sys::net::send(&self.socket, &slices) {
                Ok(count) => {
                    drop(slices);
                    self.sent_bytes += count as u64;
                    self.units.sent(count);
                }
                Err(error) if socket::would_block(&error) => self.may_send = false,
                Err(error) => return Err(error),
            }
        }
        if self.units.is_empty() && sent_bytes != self.sent_bytes {
            self.stall_detector.on_sent(|| Time(sys::clock::boot_ns()));
        }
        if self.sending == Sending::Ending && self.units.is_empty() {
            self.sending = Sending::Ended;
            // It fails only if the connection is gone, which the next call reports.
            let _ = shutdown(&self.socket, Shutdown::Write);
        }
        Ok(())
    }

    /// Checks the way, if that is due, until the peer's kernel has acknowledged everything. Returns true if the way is stalled.
    pub(super) fn check_sent(&mut self, now: Time) -> bool {
        if self.stall_detector.sent_due().is_none_or(|at| now < at) {
            return false;
        }
        let stream = sys::net::stream_state(&self.socket).ok();
        // A way that the peer has not joined carries no record.
        self.stall_detector.check_sent(stream.as_ref(), now) && self.sending != Sending::Joining
    }

    /// Receives once. `is_polled`: an event announces more bytes, so a call that takes all of them is the last one.
    pub(super) fn receive(&mut self, is_polled: bool) -> Received {
        self.receive_calls += 1;
        let socket = &self.socket;
        match self.deframer.receive(|rooms| sys::net::receive(socket, rooms)) {
            Ok((0, _)) => {
                self.may_receive = false;
                match (self.receiving, self.deframer.is_at_record_boundary()) {
                    (Receiving::Ending | Receiving::Ended, true) => {
                        self.receiving = Receiving::Ended;
                        Received::Some
                    }
                    _ => Received::Cut(io::ErrorKind::UnexpectedEof.into()),
                }
            }
            Ok((count, is_full)) => {
                self.received_bytes += count as u64;
                self.may_receive = is_full || self.deframer.is_inside_large() || !is_polled;
                Received::Some
            }
            Err(error) if socket::would_block(&error) => {
                self.may_receive = false;
                Received::Nothing
            }
            Err(error) => {
                self.may_receive = false;
                Received::Cut(error)
            }
        }
    }

    /// Returns true if a call of [`Way::receive`] may help.
    pub(super) fn wants_bytes(&self) -> bool {
        self.may_receive && self.head.is_none() && self.receiving != Receiving::Ended
    }

    /// Takes the received units up to the next piece, which becomes the head. Returns the next mark.
    pub(super) fn advance(&mut self) -> Result<Option<Mark>, String> {
        if self.head.is_some() {
            return Ok(None);
        }
        let Some((flow, mut unit)) = self.deframer.next().map_err(|error| error.to_string())? else {
            return Ok(None);
        };
        if let Some(seal) = &mut self.seal
            && seal.opener.record(&mut unit).is_err()
        {
            return Err("a record was altered in transit, or belongs to another session".into());
        }
        let unit = Unit::parse(flow, unit).map_err(|error| error.to_string())?;
        match (self.receiving, unit) {
            (Receiving::Joining, Unit::Mark(mark @ Mark::Join(_))) => Ok(Some(mark)),
            (Receiving::Open, Unit::Mark(mark @ (Mark::Want(_) | Mark::End))) => {
                if mark == Mark::End {
                    self.receiving = Receiving::Ending;
                }
                Ok(Some(mark))
            }
            (Receiving::Open, Unit::Piece(piece)) if piece.number >= self.number_min => {
                self.number_min = piece.number + 1;
                self.has_received_pieces = true;
                self.head = Some(piece);
                Ok(None)
            }
            (Receiving::Open, Unit::Piece(_)) => Err("the numbers of its pieces do not rise".into()),
            (_, unit) => {
                let kind = if matches!(unit, Unit::Mark(_)) { "mark" } else { "piece of a record" };
                Err(format!("a {kind} came out of turn"))
            }
        }
    }
}

/// A record whose pieces arrive.
#[derive(Debug, Default)]
pub(super) struct Assembly {
    header: Option<RecordHeader>,
    body: Body,
}

impl Assembly {
    /// Adds the next piece. Returns the record and its flow once it is complete.
    pub(super) fn add(&mut self, piece: Piece, bytes_max: usize) -> PartnerResult<Option<(u32, Body)>> {
        let Piece { continues, flow, bytes, .. } = piece;
        if self.header.is_none() && !continues {
            return Ok(Some((flow, Body::from(bytes))));
        }
        let wrong = |problem: &str| PartnerError::Peer(problem.into());
        let header = RecordHeader::parse(&bytes, bytes.len()).map_err(|error| wrong(&error.to_string()))?;
        let first = *self.header.get_or_insert(header);
        let is_same = (first.flow, first.epoch, first.sequence, first.container.created)
            == (header.flow, header.epoch, header.sequence, header.container.created);
        if !is_same || self.body.len() + (bytes.len() - RecordHeader::BYTES) > bytes_max {
            return Err(wrong("the pieces of a record do not belong together, or are too many"));
        }
        self.body.push(bytes.slice(RecordHeader::BYTES..));
        if continues {
            return Ok(None);
        }
        self.header = None;
        let mut record = std::mem::take(&mut self.body);
        let container = wire::Container { length: record.len() as u32, ..first.container };
        record.push_front(&RecordHeader { container, ..first }.emit());
        Ok(Some((flow, record)))
    }

    /// Returns true if no record is incomplete.
    pub(super) fn is_empty(&self) -> bool {
        self.header.is_none()
    }
}
