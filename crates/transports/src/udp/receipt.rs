//! What a receiver tells of the datagrams that came (`docs/transport-udp.md`), and how it keeps count of them.

use contract::Time;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::time::Duration;
use wire::{Reader, WireError};

/// Gaps that one receipt tells of.
pub(super) const GAPS_MAX: usize = 64;
/// In so many receipts a gap is told of: some of them are lost.
const TELLINGS: u8 = 8;
/// How long a receipt waits for more to tell, and how long when something is missing.
const WAIT: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(1)];
/// Less than this in records of one datagram each is not worth a receipt by itself.
const SMALL_BYTES: usize = 8 << 10;
/// Bytes that are told of at once: at first this, and more as more has come, up to this share of the room.
const SOON_BYTES: usize = 16 << 10;
const ROOM_SHARE: usize = 4;

/// The number that ends in `low` and is next to `near`.
pub(super) fn extend(near: u64, low: u32) -> u64 {
    near.saturating_add_signed(low.wrapping_sub(near as u32).cast_signed().into())
}

/// What came of everything that was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Receipt {
    /// Bytes that came.
    pub(super) received_bytes: u64,
    /// When the newest came, by the receiver's clock.
    pub(super) came: Time,
    /// One past the newest number that came; the low bits of it.
    pub(super) next: u32,
    /// Before this nothing more is told.
    pub(super) from: u32,
    /// How long ago the newest came, microseconds.
    pub(super) held_us: u32,
    /// Memory in which the receiver's kernel keeps datagrams for it, bytes.
    pub(super) room: u32,
    /// Numbers between that did not come, as the first and one past the last; in order.
    pub(super) gaps: SmallVec<[(u32, u32); 4]>,
}

impl Receipt {
    /// Bytes without gaps.
    const BYTES: usize = 36;
    const GAP_BYTES: usize = 8;
    /// Where a fragment has its count, which is never 0, and where its index, which is the number of gaps here.
    const COUNT: usize = 18;
    const INDEX: usize = 16;

    /// Whether a datagram is a receipt, and not a part of a record.
    pub(super) fn is_one(datagram: &[u8]) -> bool {
        datagram.len() >= Self::BYTES && datagram[Self::COUNT..Self::COUNT + 2] == [0; 2]
    }

    /// As bytes.
    pub(super) fn emit(&self) -> SmallVec<[u8; 64]> {
        let mut bytes = SmallVec::new();
        bytes.extend_from_slice(&self.received_bytes.to_le_bytes());
        bytes.extend_from_slice(&self.came.0.to_le_bytes());
        debug_assert_eq!(bytes.len(), Self::INDEX);
        bytes.extend_from_slice(&(self.gaps.len() as u16).to_le_bytes());
        bytes.extend_from_slice(&[0; 2]);
        for word in [self.next, self.from, self.held_us, self.room] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        for (first, end) in &self.gaps {
            bytes.extend_from_slice(&first.to_le_bytes());
            bytes.extend_from_slice(&end.to_le_bytes());
        }
        bytes
    }

    /// Reads one, which [`Receipt::is_one`].
    pub(super) fn parse(datagram: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(datagram);
        let received_bytes = reader.u64("receipt bytes")?;
        let came = Time(reader.u64("receipt time")?);
        let count = reader.u16("receipt gaps")?;
        reader.u16("receipt count")?;
        let mut word = || reader.u32("receipt numbers");
        let (next, from, held_us, room) = (word()?, word()?, word()?, word()?);
        if usize::from(count) > GAPS_MAX || reader.left() != usize::from(count) * Self::GAP_BYTES {
            return Err(WireError::Value { what: "receipt gaps", value: count.into() });
        }
        let mut gaps = SmallVec::new();
        for _ in 0..count {
            gaps.push((reader.u32("receipt gap")?, reader.u32("receipt gap")?));
        }
        Ok(Receipt { received_bytes, came, next, from, held_us, room, gaps })
    }
}

/// Numbers that did not come.
#[derive(Debug, Clone, Copy)]
struct Gap {
    first: u64,
    end: u64,
    told: u8,
}

/// What came, for the receipts.
#[derive(Debug)]
pub(super) struct Seen {
    from: u64,
    next: u64,
    gaps: VecDeque<Gap>,
    received_bytes: u64,
    came: Time,
    untold_bytes: usize,
    /// So many of them are told of at once.
    soon: usize,
    due: Option<Time>,
    room: u32,
}

impl Seen {
    /// The receiver's kernel keeps datagrams for it in `room` bytes of memory.
    pub(super) fn new(room: usize) -> Self {
        Seen {
            from: 0,
            next: 0,
            gaps: VecDeque::new(),
            received_bytes: 0,
            came: Time::ZERO,
            untold_bytes: 0,
            soon: SOON_BYTES,
            due: None,
            room: u32::try_from(room).unwrap_or(u32::MAX),
        }
    }

    /// A datagram of so many bytes came; `is_part`: its record has more than one.
    pub(super) fn take(&mut self, number: u32, bytes: usize, is_part: bool, now: Time) {
        // Asked for every datagram; mostly one of a stream that is told of later.
        if number == self.next as u32 && self.due.is_some() && self.untold_bytes + bytes < self.soon {
            self.next += 1;
            self.came = now;
            self.received_bytes += bytes as u64;
            self.untold_bytes += bytes;
            return;
        }
        let number = extend(self.next, number);
        let is_gap = number > self.next;
        if number < self.next && !self.fill(number) {
            return;
        }
        if is_gap {
            self.gaps.push_back(Gap { first: self.next, end: number, told: 0 });
            if self.gaps.len() > GAPS_MAX
                && let Some(oldest) = self.gaps.pop_front()
            {
                self.from = oldest.end;
            }
        }
        if number >= self.next {
            self.next = number + 1;
            self.came = now;
        }
        let is_first = self.received_bytes == 0;
        self.received_bytes += bytes as u64;
        self.untold_bytes += bytes;
        if self.untold_bytes >= self.soon || is_first && is_part {
            self.due = Some(now);
        } else if is_part || self.untold_bytes >= SMALL_BYTES {
            let due = now.after(WAIT[usize::from(is_gap)]);
            self.due = Some(self.due.map_or(due, |known| known.min(due)));
        }
    }

    /// What was missing came; `false` if it was not missed.
    fn fill(&mut self, number: u64) -> bool {
        let Some(at) = self.gaps.iter().rposition(|gap| (gap.first..gap.end).contains(&number)) else {
            return false;
        };
        let gap = self.gaps[at];
        let (before, after) = (Gap { end: number, ..gap }, Gap { first: number + 1, ..gap });
        match (before.first < before.end, after.first < after.end) {
            (true, true) if self.gaps.len() < GAPS_MAX => {
                self.gaps[at] = before;
                self.gaps.insert(at + 1, after);
            }
            // It goes on counting as missing: at worst it comes twice.
            (true, true) => {}
            (true, false) => self.gaps[at] = before,
            (false, true) => self.gaps[at] = after,
            (false, false) => _ = self.gaps.remove(at),
        }
        true
    }

    /// When there is to be a receipt.
    pub(super) fn due(&self) -> Option<Time> {
        self.due
    }

    /// The receipt that is due.
    pub(super) fn poll(&mut self, now: Time) -> Option<Receipt> {
        self.due.take_if(|due| *due <= now)?;
        self.untold_bytes = 0;
        let soon_max = (self.room as usize / ROOM_SHARE).max(SOON_BYTES);
        self.soon = ((self.received_bytes / 4) as usize).clamp(SOON_BYTES, soon_max);
        while let Some(gap) = self.gaps.pop_front_if(|gap| gap.told >= TELLINGS) {
            self.from = gap.end;
        }
        self.gaps.iter_mut().for_each(|gap| gap.told += 1);
        Some(Receipt {
            received_bytes: self.received_bytes,
            came: self.came,
            next: self.next as u32,
            from: self.from as u32,
            held_us: u32::try_from(now.since(self.came).as_micros()).unwrap_or(u32::MAX),
            room: self.room,
            gaps: self.gaps.iter().map(|gap| (gap.first as u32, gap.end as u32)).collect(),
        })
    }
}
