//! From a stream of bytes, cut anywhere, to whole records, without copying them.
//!
//! What is received lands in a slab, and small records are slices of it. A record too large for that gets
//! a buffer of its own, into which the rest of it is received directly. How far the slab reads ahead adapts
//! to what comes, so that little of a large record lands in the slab and has to be moved.

use buffers::Recycler;
use bytes::BytesMut;
use std::io;
use sys::net::Room;
use wire::{RecordHeader, WireError};

/// What one call receives at most into a slab.
const READ_BYTES_MAX: usize = 64 << 10;
/// A record of more bytes gets a buffer of its own.
const SMALL_BYTES_MAX: usize = 16 << 10;
/// Bytes of a slab: a small record whose end is to come, and a whole read behind it.
const SLAB_BYTES: usize = SMALL_BYTES_MAX + READ_BYTES_MAX;
/// How far to read ahead after a large record: the next is probably large too.
const AHEAD_BYTES_MIN: usize = 4 << 10;
/// A record that announces more than was ever seen gets this much at first, then what it has shown again.
const UNPROVEN_BYTES_MAX: usize = 1 << 20;
/// Large buffers have capacities of whole steps, so that one serves records of about the same size.
const LARGE_STEP_BYTES: usize = 64 << 10;
/// Slabs that are remembered for another use.
const SLABS_KEPT_MAX: usize = 4;
/// Large buffers that are: a replay store may hold a few records before it gives them back.
const LARGES_KEPT_MAX: usize = 16;

/// Takes a stream apart into records.
#[derive(Debug)]
pub(crate) struct Inbox {
    body_bytes_max: usize,
    /// Bytes behind each record that its header does not count: its tag.
    tag_bytes: usize,
    /// Received and not given out yet.
    slab: BytesMut,
    slabs: Recycler,
    /// How much to read beyond the record that is being received.
    ahead_bytes: usize,
    large: Option<Large>,
    larges: Recycler,
    /// Bytes of the largest record that came whole.
    proven_bytes: usize,
}

/// A record that is being received into a buffer of its own.
#[derive(Debug)]
struct Large {
    flow: u32,
    /// Bytes of the whole record.
    bytes: usize,
    buffer: BytesMut,
}

impl Inbox {
    /// An inbox for records with bodies of at most `body_bytes_max` and `tag_bytes` behind each, that keeps at
    /// most `kept_bytes_max` of memory for large records when there is none.
    pub(crate) fn new(body_bytes_max: usize, tag_bytes: usize, kept_bytes_max: usize) -> Self {
        Inbox {
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

    /// Whether [`Inbox::next`] would find a record, or something that is none.
    pub(crate) fn has_next(&self) -> bool {
        match (&self.large, self.slab_header()) {
            (Some(large), _) => large.buffer.len() == large.bytes,
            (None, Some(Ok(header))) => self.slab.len() >= self.record_bytes(&header),
            (None, Some(Err(_))) => true,
            (None, None) => false,
        }
    }

    /// Whether the stream stands between two records.
    pub(crate) fn is_at_border(&self) -> bool {
        self.large.is_none() && self.slab.is_empty()
    }

    /// Memory that it holds for what has not come whole, bytes.
    pub(crate) fn held_bytes(&self) -> usize {
        self.slab.len() + self.large.as_ref().map_or(0, |large| large.buffer.capacity())
    }

    /// Whether more of a large record is to come.
    pub(crate) fn is_amid_large(&self) -> bool {
        self.large.as_ref().is_some_and(|large| large.buffer.len() < large.bytes)
    }

    /// The next whole record and its flow, if it is there. After an error the stream cannot go on.
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

    /// Receives more: `fill` appends to the rooms, in order, and says how many bytes. Answers that, and
    /// whether the rooms were filled to their end.
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
                // Until the buffer holds the whole record, what comes next is not what comes ahead.
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

    /// Bytes of a whole record, its tag included.
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
        self.large = Some(Large { flow, bytes, buffer });
    }

    fn finish_large(&mut self) -> Option<(u32, BytesMut)> {
        let mut large = self.large.take_if(|large| large.buffer.len() == large.bytes)?;
        self.proven_bytes = self.proven_bytes.max(large.bytes);
        let capacity = large.buffer.capacity();
        let record = large.buffer.split();
        self.larges.retire(large.buffer, capacity);
        Some((large.flow, record))
    }

    /// Makes room in the slab for the rest of any small record, and for reading ahead.
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

impl Large {
    /// Makes room for as much again as there is, if there is none left: what a peer announces costs nothing
    /// until it comes.
    fn grow(&mut self) {
        let left = self.bytes - self.buffer.len();
        if self.buffer.capacity() == self.buffer.len() {
            self.buffer.reserve(left.min(self.buffer.len()));
        }
    }
}
