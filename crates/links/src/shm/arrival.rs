//! Converts ring entries to messages and back. Both ends of a run use it.

use super::block::{self, Broken, Consumer, Producer};
use super::entry::{Entry, Line, MESSAGE_PIECES_MAX, PIECES_MAX, Piece};
use contract::Time;
use smallvec::SmallVec;
use wire::BODY_BYTES_MAX;

/// One item read from a ring: a message as its pieces, or an entry without a message.
#[derive(Debug, Default)]
pub(super) struct Arrival {
    pub(super) is_message: bool,
    pub(super) has_gap: bool,
    pub(super) is_end: bool,
    pub(super) created: Time,
    pub(super) covers: u64,
    pub(super) pieces: SmallVec<[Piece; PIECES_MAX]>,
    /// Number of ring entries that it occupies.
    pub(super) entries: usize,
}

impl Arrival {
    /// Total length of the pieces.
    pub(super) fn bytes(&self) -> usize {
        self.pieces.iter().map(|piece| piece.length as usize).sum()
    }
}

/// Reads the next item. It stays in the ring until the reader advances by its entries.
pub(super) fn next(from: &Consumer) -> Result<Option<Arrival>, Broken> {
    from.peek_raw(0).map(|first| read(from, &first)).transpose()
}

/// Reads the item that begins with the entry `first`.
pub(super) fn read(from: &Consumer, first: &Line) -> Result<Arrival, Broken> {
    let (mut entry, mut arrival) = (block::parsed(first)?, Arrival::default());
    loop {
        arrival.entries += 1;
        arrival.has_gap |= entry.has_gap;
        match arrival.pieces.is_empty() {
            true => arrival.pieces = entry.pieces,
            false => arrival.pieces.extend(entry.pieces),
        }
        if arrival.entries.max(arrival.pieces.len()) > MESSAGE_PIECES_MAX || arrival.bytes() > BODY_BYTES_MAX
        {
            return Err(too_large());
        }
        if !entry.has_more {
            let Entry { is_message, is_end, created, covers, .. } = entry;
            return Ok(Arrival { is_message, is_end, created: Time(created), covers, ..arrival });
        }
        let next = from.peek(arrival.entries)?;
        entry = next.ok_or_else(|| Broken("a message is truncated".into()))?;
    }
}

fn too_large() -> Broken {
    Broken("a message has too many pieces or bytes".into())
}

/// Number of entries that a message with this many pieces needs.
pub(super) const fn entries(pieces: usize) -> usize {
    if pieces == 0 { 1 } else { pieces.div_ceil(PIECES_MAX) }
}

/// Writes the entries of a message. The caller has checked that there is room.
pub(super) fn write(to: &mut Producer, last: Entry, pieces: &[Piece]) {
    let mut rest = pieces;
    let mut has_gap = last.has_gap;
    while rest.len() > PIECES_MAX {
        let (now, later) = rest.split_at(PIECES_MAX);
        let has_gap = std::mem::take(&mut has_gap);
        to.write(&Entry {
            has_more: true,
            has_gap,
            covers: 0,
            pieces: SmallVec::from_slice(now),
            ..last.clone()
        });
        rest = later;
    }
    to.write(&Entry { has_gap, pieces: SmallVec::from_slice(rest), ..last });
}
