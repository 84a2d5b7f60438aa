//! The ring of what a source has not been acknowledged.

use super::{ENDS, HEAD_BYTES, Kept, LENGTH_BYTES};
use contract::{Body, Bytes, Message, Time};
use wire::{BODY_BYTES_MAX, RecordHeader};

/// In place of a length: the ring goes on at its start, or right behind this if its end lies behind it.
const WRAP: u32 = u32::MAX;
/// In place of a length: it goes on right behind this.
const SKIP: u32 = u32::MAX - 1;
/// In place of where the ring begins and ends: what lies there has a gap.
const GAP: u64 = (u32::MAX as u64) << 32;
/// Memory that is used before the ring begins again at its start, if it can.
const USED_BYTES: usize = 1 << 20;

impl Kept {
    /// What lies in the ring, oldest first; `None` if that is nothing that was put there.
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
                // Whoever is killed leaves it so; once the ring goes on at its start again it would mean that.
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
            at = behind(at, length);
            self.entries.push_back(((header.epoch, header.sequence), at));
            let created = Time(header.container.created);
            records.push(Message::new(created, Body::from(Bytes::from(bytes))));
        }
        Some(records)
    }

    /// Where in the memory this place of the ring is.
    fn ring(&self, at: usize) -> Option<usize> {
        (at + LENGTH_BYTES <= self.ring_bytes).then_some(self.base + HEAD_BYTES + at)
    }

    /// Whether all records are kept that went out and were not settled.
    pub(crate) fn is_whole(&self) -> bool {
        !self.has_gap
    }

    /// Keeps a record, as it goes out, behind those before it. There is room for all that a store holds; without, another
    /// worker knows where the flow stands, and that some of what it had sent is no more.
    pub(crate) fn append(&mut self, place: (u32, u64), record: &Body) {
        let length = record.len();
        let at = if self.has_gap { None } else { self.place(LENGTH_BYTES + length + LENGTH_BYTES) };
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
        let end = behind(at, length);
        self.entries.push_back((place, end));
        self.store(ENDS, (start as u64) << 32 | end as u64);
    }

    /// Where the ring begins and ends; at its start, if nothing is in it.
    fn ends(&self) -> (usize, usize) {
        let ends = if self.entries.is_empty() { 0 } else { self.load(ENDS) };
        ((ends >> 32) as usize, ends as u32 as usize)
    }

    /// Where an entry goes that needs so many bytes. The ring goes on at its start before it has to, so that little of its
    /// memory is used, where what is kept would find room there twice.
    fn place(&mut self, needed: usize) -> Option<usize> {
        let (start, end) = self.ends();
        if end < start {
            return if needed < start - end { Some(end) } else { self.unwrap(start, end, needed) };
        }
        let fits_behind = end + needed <= self.ring_bytes;
        let saves = (USED_BYTES..BODY_BYTES_MAX).contains(&end) && end - start <= start;
        if needed < start && (saves || !fits_behind) {
            self.shared.copy_in(self.ring(end)?, &WRAP.to_le_bytes());
            return Some(0);
        }
        fits_behind.then_some(end)
    }

    /// The ring went on at its start, and more is kept by now than fits there: that goes on behind all else, and the mark
    /// that led there means so from the moment that the ring's end does. Says where the next entry goes.
    fn unwrap(&mut self, start: usize, end: usize, needed: usize) -> Option<usize> {
        let last = self.entries.iter().map(|(_, behind)| *behind).filter(|behind| *behind > end).max();
        let mark = last.unwrap_or(start);
        let to = mark + LENGTH_BYTES;
        if to + end + needed > self.ring_bytes {
            return None;
        }
        let mut bytes = vec![0; end];
        let is_moved =
            self.shared.copy_out(self.ring(0)?, &mut bytes) && self.shared.copy_in(self.ring(to)?, &bytes);
        is_moved.then_some(())?;
        self.entries.iter_mut().filter(|(_, behind)| *behind <= end).for_each(|(_, behind)| *behind += to);
        self.store(ENDS, (start as u64) << 32 | (to + end) as u64);
        self.shared.copy_in(self.ring(mark)?, &SKIP.to_le_bytes());
        Some(to + end)
    }

    /// What stands before `oldest`, epoch and sequence, is kept no longer; says whether there was such.
    pub(crate) fn settle(&mut self, oldest: (u32, u64)) -> bool {
        let mut start = None;
        while let Some((_, end)) = self.entries.pop_front_if(|(place, _)| *place < oldest) {
            start = Some(end);
        }
        let Some(start) = start else { return false };
        let end = self.entries.back().map_or(start, |(_, end)| *end);
        self.store(ENDS, (start as u64) << 32 | end as u64);
        true
    }
}

/// Where the next entry begins.
fn behind(at: usize, length: usize) -> usize {
    (at + LENGTH_BYTES + length).next_multiple_of(LENGTH_BYTES)
}
