//! Ring of a source's unacknowledged records.

use super::{ENDS, HEAD_BYTES, LENGTH_BYTES, RecoveryLog};
use contract::{Body, Bytes, Message, Time};
use wire::{BODY_BYTES_MAX, RecordHeader};

/// Length value: the ring continues at its start, or directly after this word if the ring's end is after it.
const WRAP: u32 = u32::MAX;
/// Length value: the ring continues directly after this word.
const SKIP: u32 = u32::MAX - 1;
/// Value of `ENDS`: the ring overflowed.
const GAP: u64 = (u32::MAX as u64) << 32;
/// The ring wraps early after this many bytes, if possible, to use little memory.
const USED_BYTES: usize = 1 << 20;

impl RecoveryLog {
    /// Returns the records in the ring, oldest first; `None` if its content is invalid.
    pub(super) fn records(&mut self) -> Option<Vec<Message>> {
        let ends = self.load(ENDS);
        let (mut at, end) = ((ends >> 32) as usize, ends as u32 as usize);
        self.entries.clear();
        let mut records = Vec::new();
        let mut has_wrapped = false;
        while at != end {
            let mut length = [0; LENGTH_BYTES];
            self.shared.copy_out(self.ring(at)?, &mut length).then_some(())?;
            let length = u32::from_le_bytes(length);
            if length == SKIP || length == WRAP && at < end {
                // A crash in `unwrap` leaves a stale WRAP mark. It is replaced, since it would be misread once the
                // ring wraps again.
                self.shared.copy_in(self.ring(at)?, &SKIP.to_le_bytes());
                at += LENGTH_BYTES;
                continue;
            }
            if length == WRAP {
                if std::mem::replace(&mut has_wrapped, true) {
                    return None;
                }
                at = 0;
                continue;
            }
            let length = length as usize;
            if length > RecordHeader::BYTES + BODY_BYTES_MAX || at + LENGTH_BYTES + length > self.ring_bytes {
                return None;
            }
            let mut bytes = vec![0; length];
            self.shared.copy_out(self.ring(at + LENGTH_BYTES)?, &mut bytes).then_some(())?;
            let header = RecordHeader::parse(bytes.get(..RecordHeader::BYTES)?, BODY_BYTES_MAX).ok()?;
            at = entry_end(at, length);
            self.entries.push_back(((header.epoch, header.sequence), at));
            let created = Time(header.container.created);
            records.push(Message::new(created, Body::from(Bytes::from(bytes))));
        }
        Some(records)
    }

    /// Returns the offset of a ring position in the memory.
    fn ring(&self, at: usize) -> Option<usize> {
        (at + LENGTH_BYTES <= self.ring_bytes).then_some(self.base + HEAD_BYTES + at)
    }

    /// Returns whether the ring holds all unacknowledged records.
    pub fn is_whole(&self) -> bool {
        !self.has_gap
    }

    /// Appends a record. The ring has room for a full replay store. If it overflows nevertheless, a new worker knows
    /// the position of the flow but cannot retransmit.
    pub fn append(&mut self, position: (u32, u64), record: &Body) {
        let length = record.len();
        let at = if self.has_gap { None } else { self.allocate(LENGTH_BYTES + length + LENGTH_BYTES) };
        let Some((at, mut to)) = at.and_then(|at| Some((at, self.ring(at)?))) else {
            self.has_gap = true;
            self.entries.clear();
            return self.store(ENDS, GAP);
        };
        self.shared.copy_in(to, &(length as u32).to_le_bytes());
        to += LENGTH_BYTES;
        for piece in record.chunks() {
            self.shared.copy_in(to, piece);
            to += piece.len();
        }
        let start = self.ends().0;
        let end = entry_end(at, length);
        self.entries.push_back((position, end));
        self.store(ENDS, (start as u64) << 32 | end as u64);
    }

    /// Returns the start and end of the ring; an empty ring begins at 0.
    fn ends(&self) -> (usize, usize) {
        let ends = if self.entries.is_empty() { 0 } else { self.load(ENDS) };
        ((ends >> 32) as usize, ends as u32 as usize)
    }

    /// Returns the position for a new entry. The ring wraps early if the start has room for twice its content, so that
    /// it touches little memory.
    fn allocate(&mut self, needed: usize) -> Option<usize> {
        let (start, end) = self.ends();
        if end < start {
            return if needed < start - end { Some(end) } else { self.unwrap(start, end, needed) };
        }
        let fits_at_end = end + needed <= self.ring_bytes;
        let saves = (USED_BYTES..BODY_BYTES_MAX).contains(&end) && end - start <= start;
        if needed < start && (saves || !fits_at_end) {
            self.shared.copy_in(self.ring(end)?, &WRAP.to_le_bytes());
            return Some(0);
        }
        fits_at_end.then_some(end)
    }

    /// Undoes an early wrap when the entries at the start collide with the oldest ones: moves them after all others.
    /// The store of the new ring end also changes the meaning of the WRAP mark to SKIP. Returns the position for the
    /// next entry.
    fn unwrap(&mut self, start: usize, end: usize, needed: usize) -> Option<usize> {
        let last =
            self.entries.iter().map(|(_, entry_end)| *entry_end).filter(|entry_end| *entry_end > end).max();
        let mark = last.unwrap_or(start);
        let to = mark + LENGTH_BYTES;
        if to + end + needed > self.ring_bytes {
            return None;
        }
        let mut bytes = vec![0; end];
        let is_moved =
            self.shared.copy_out(self.ring(0)?, &mut bytes) && self.shared.copy_in(self.ring(to)?, &bytes);
        is_moved.then_some(())?;
        self.entries
            .iter_mut()
            .filter(|(_, entry_end)| *entry_end <= end)
            .for_each(|(_, entry_end)| *entry_end += to);
        self.store(ENDS, (start as u64) << 32 | (to + end) as u64);
        self.shared.copy_in(self.ring(mark)?, &SKIP.to_le_bytes());
        Some(to + end)
    }

    /// Removes the entries before `oldest` (epoch and sequence). Returns whether there were any.
    pub fn trim(&mut self, oldest: (u32, u64)) -> bool {
        let mut start = None;
        while let Some((_, end)) = self.entries.pop_front_if(|(position, _)| *position < oldest) {
            start = Some(end);
        }
        let Some(start) = start else { return false };
        let end = self.entries.back().map_or(start, |(_, end)| *end);
        self.store(ENDS, (start as u64) << 32 | end as u64);
        true
    }
}

/// Returns the position after an entry.
fn entry_end(at: usize, length: usize) -> usize {
    (at + LENGTH_BYTES + length).next_multiple_of(LENGTH_BYTES)
}
