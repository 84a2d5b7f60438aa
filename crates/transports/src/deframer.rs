//! Splits a byte stream into records without copying them.
//!
//! ```text
//!            small records: slices of the slab
//! socket ──► slab ─┬──────────────────────────────► next()
//!                  └► header announces > 16 KiB:
//! socket ────────────► buffer for this record ────► next()
//! ```
//!
//! The start of a large record is in the slab when its header arrives and must be copied; the rest is received
//! directly into the record's own buffer. The amount read ahead into the slab therefore adapts: it shrinks after a
//! large record and doubles with every full read of small ones.

use buffers::Recycler;
use bytes::BytesMut;
use std::io;
use sys::net::Room;
use wire::{RecordHeader, WireError};

/// Largest read into a slab.
const READ_BYTES_MAX: usize = 64 << 10;
/// Larger records get their own buffer.
const SMALL_BYTES_MAX: usize = 16 << 10;
/// Size of a slab: one incomplete small record and a full read behind it.
const SLAB_BYTES: usize = SMALL_BYTES_MAX + READ_BYTES_MAX;
/// Bytes to read ahead after a large record, because the next one is probably large too.
const AHEAD_BYTES_MIN: usize = 4 << 10;
/// First allocation for a record that is larger than every record before it. The buffer then doubles as bytes
/// arrive, so that a forged length costs the peer as many bytes as it costs this host.
const UNPROVEN_BYTES_MAX: usize = 1 << 20;
/// Capacities of large buffers are multiples of this, so that records of similar size reuse them.
const LARGE_STEP_BYTES: usize = 64 << 10;
/// Slabs kept for reuse.
const SLABS_KEPT_MAX: usize = 4;
/// Large buffers kept for reuse. Several are in use at once when the replay store holds records.
const LARGES_KEPT_MAX: usize = 16;

/// Splits one stream into records.
#[derive(Debug)]
pub(crate) struct Deframer {
    body_bytes_max: usize,
    /// Size of the authentication tag behind each record. The record header does not count it.
    tag_bytes: usize,
    /// Received bytes that `next` has not returned yet.
    slab: BytesMut,
    slabs: Recycler,
    /// Bytes to read beyond the current record.
    ahead_bytes: usize,
    large: Option<LargeRecord>,
    larges: Recycler,
    /// Size of the largest complete record so far.
    proven_bytes: usize,
}

/// An incomplete record in its own buffer.
#[derive(Debug)]
struct LargeRecord {
    flow: u32,
    /// Size of the complete record.
    bytes: usize,
    buffer: BytesMut,
}

impl Deframer {
    /// Creates a deframer for records with bodies of at most `body_bytes_max` bytes and a tag of `tag_bytes` behind
    /// each. It keeps up to `kept_bytes_max` bytes of unused large buffers.
    pub(crate) fn new(body_bytes_max: usize, tag_bytes: usize, kept_bytes_max: usize) -> Self {
        Deframer {
            body_bytes_max,
            tag_bytes,
            slab: BytesMut::with_capacity(SLAB_BYTES),
            slabs: Recycler::new(SLABS_KEPT_MAX, SLABS_KEPT_MAX * SLAB_BYTES),
            ahead_bytes: READ_BYTES_MAX,
            large: None,
            larges: Recycler::new(LARGES_KEPT_MAX, kept_bytes_max),
            proven_bytes: UNPROVEN_BYTES_MAX,
        }
    }

    /// Returns true if [`Deframer::next`] would return a record or an error.
    pub(crate) fn has_next(&self) -> bool {
        match (&self.large, self.slab_header()) {
            (Some(large), _) => large.buffer.len() == large.bytes,
            (None, Some(Ok(header))) => self.slab.len() >= self.record_bytes(&header),
            (None, Some(Err(_))) => true,
            (None, None) => false,
        }
    }

    /// Returns true if all received bytes belong to records that `next` has returned.
    pub(crate) fn is_at_record_boundary(&self) -> bool {
        self.large.is_none() && self.slab.is_empty()
    }

    /// Returns the memory that incomplete records use, bytes.
    pub(crate) fn held_bytes(&self) -> usize {
        self.slab.len() + self.large.as_ref().map_or(0, |large| large.buffer.capacity())
    }

    /// Returns true while a large record is incomplete.
    pub(crate) fn is_inside_large(&self) -> bool {
        self.large.as_ref().is_some_and(|large| large.buffer.len() < large.bytes)
    }

    /// Returns the next complete record and its flow. After an error the stream is unusable.
    pub(crate) fn next(&mut self) -> Result<Option<(u32, BytesMut)>, WireError> {
        if self.large.is_none() {
            let Some(header) = self.slab_header() else { return Ok(None) };
            let header = header?;
            let bytes = self.record_bytes(&header);
            if self.slab.len() >= bytes {
                return Ok(Some((header.flow, self.slab.split_to(bytes))));
            }
            if bytes <= SMALL_BYTES_MAX {
                return Ok(None);
            }
            self.begin_large(header.flow, bytes);
        }
        Ok(self.finish_large())
    }

    /// Receives more bytes: `fill` appends to the two rooms in order and returns the number of bytes. Returns that
    /// number, and true if it filled both rooms.
    pub(crate) fn receive(
        &mut self,
        fill: impl FnOnce([Room<'_>; 2]) -> io::Result<usize>,
    ) -> io::Result<(usize, bool)> {
        self.make_slab_room();
        let mut none = BytesMut::new();
        let ahead = Room { buffer: &mut self.slab, limit: self.ahead_bytes };
        let (first, second) = match &mut self.large {
            None => (ahead, Room { buffer: &mut none, limit: 0 }),
            Some(large) => {
                large.grow();
                let rest = Room { limit: large.bytes - large.buffer.len(), buffer: &mut large.buffer };
                // The slab may take the bytes behind the record only if the buffer has room for all of the record;
                // otherwise they would still be part of the record.
                let limit = if rest.bytes() == rest.limit { self.ahead_bytes } else { 0 };
                (rest, Room { limit, ..ahead })
            }
        };
        let offered = first.bytes() + second.bytes();
        let received = fill([first, second])?;
        if received == offered && self.large.is_none() {
            self.ahead_bytes = (self.ahead_bytes * 2).min(READ_BYTES_MAX);
        }
        Ok((received, received == offered))
    }

    /// Returns the size of a complete record with its tag.
    fn record_bytes(&self, header: &RecordHeader) -> usize {
        RecordHeader::BYTES + header.container.length as usize + self.tag_bytes
    }

    fn slab_header(&self) -> Option<Result<RecordHeader, WireError>> {
        (self.slab.len() >= RecordHeader::BYTES).then(|| RecordHeader::parse(&self.slab, self.body_bytes_max))
    }

    fn begin_large(&mut self, flow: u32, bytes: usize) {
        let capacity = bytes.min(self.proven_bytes).next_multiple_of(LARGE_STEP_BYTES);
        let mut buffer = self.larges.take(capacity);
        buffer.extend_from_slice(&self.slab.split());
        self.ahead_bytes = AHEAD_BYTES_MIN;
        self.large = Some(LargeRecord { flow, bytes, buffer });
    }

    fn finish_large(&mut self) -> Option<(u32, BytesMut)> {
        let mut large = self.large.take_if(|large| large.buffer.len() == large.bytes)?;
        self.proven_bytes = self.proven_bytes.max(large.bytes);
        let capacity = large.buffer.capacity();
        let record = large.buffer.split();
        self.larges.retire(large.buffer, capacity);
        Some((large.flow, record))
    }

    /// Makes room in the slab for the rest of any small record and for reading ahead.
    fn make_slab_room(&mut self) {
        if self.slab.capacity() - self.slab.len() > SMALL_BYTES_MAX || self.slab.try_reclaim(READ_BYTES_MAX) {
            return;
        }
        let mut fresh = self.slabs.take(SLAB_BYTES);
        fresh.extend_from_slice(&self.slab);
        let full = std::mem::replace(&mut self.slab, fresh);
        self.slabs.retire(full, SLAB_BYTES);
    }
}

impl LargeRecord {
    /// Doubles a full buffer (see [`UNPROVEN_BYTES_MAX`]).
    fn grow(&mut self) {
        let left = self.bytes - self.buffer.len();
        if self.buffer.capacity() == self.buffer.len() {
            self.buffer.reserve(left.min(self.buffer.len()));
        }
    }
}
