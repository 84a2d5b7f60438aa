//! Receipts: the receiver's reports of arrived datagrams (`docs/reference/transport-udp.md`). [`ArrivalTracker`] decides when a
//! receipt is due:
//!
//! | due | because |
//! |---|---|
//! | at once | the first datagram of a record in several, or [`ArrivalTracker`]`::soon` unreported bytes |
//! | after 1 ms | a gap before a part of a record |
//! | after 5 ms | a part of a record, or [`SMALL_BYTES`] |
//! | never | fewer bytes, in records of one datagram each |

use contract::Time;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::time::Duration;
use wire::{Reader, WireError};

/// Gaps in one receipt, at most.
pub(super) const GAPS_MAX: usize = 64;
/// A gap is reported in this many receipts, because receipts may be lost.
const REPORTS_PER_GAP: u8 = 8;
/// Delay of a receipt without and with a new gap.
const DELAY: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(1)];
/// Fewer unreported bytes in records of one datagram each need no receipt.
pub(super) const SMALL_BYTES: usize = 8 << 10;
/// Unreported bytes that make a receipt due at once. The threshold starts here and grows with the received bytes, up
/// to a share of the kernel's buffer.
const SOON_BYTES: usize = 16 << 10;
const ROOM_SHARE: usize = 4;

/// Returns the full number nearest to `near` with the low bits `low`.
pub(super) fn extend(near: u64, low: u32) -> u64 {
    near.saturating_add_signed(low.wrapping_sub(near as u32).cast_signed().into())
}

/// A report of all datagrams that arrived so far. Numbers are the low 32 bits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Receipt {
    /// All received bytes.
    pub(super) received_bytes: u64,
    /// Arrival of the newest datagram by the receiver's clock.
    pub(super) came: Time,
    /// Number after that of the newest datagram.
    pub(super) next: u32,
    /// Lower numbers are no longer reported.
    pub(super) from: u32,
    /// Time since the newest datagram arrived, microseconds.
    pub(super) held_us: u32,
    /// Receive buffer of the receiver's kernel, bytes.
    pub(super) room: u32,
    /// Missing numbers, as pairs of the first and the one after the last, ascending.
    pub(super) gaps: SmallVec<[(u32, u32); 4]>,
}

impl Receipt {
    /// Size without gaps.
    const BYTES: usize = 36;
    const GAP_BYTES: usize = 8;
    /// Offset of the count of parts in a fragment, which is never 0; a receipt has 0 there.
    const COUNT: usize = 18;
    /// Offset of the part's index in a fragment; a receipt has the number of gaps there.
    const INDEX: usize = 16;

    /// Returns true if a datagram is a receipt, false if it is a part of a record.
    pub(super) fn is_receipt(datagram: &[u8]) -> bool {
        datagram.len() >= Self::BYTES && datagram[Self::COUNT..Self::COUNT + 2] == [0; 2]
    }

    /// Encodes the receipt.
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

    /// Decodes a datagram for which [`Receipt::is_receipt`] is true.
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

/// Missing numbers from `first` to before `end`.
#[derive(Debug, Clone, Copy)]
struct Gap {
    first: u64,
    end: u64,
    /// Receipts that have reported it.
    reports: u8,
}

/// Tracks arrived datagrams and makes the receipts. Fields are named as in [`Receipt`].
#[derive(Debug)]
pub(super) struct ArrivalTracker {
    from: u64,
    next: u64,
    gaps: VecDeque<Gap>,
    received_bytes: u64,
    came: Time,
    /// Bytes received since the last receipt.
    unreported_bytes: usize,
    /// Unreported bytes that make a receipt due at once.
    soon: usize,
    due: Option<Time>,
    room: u32,
}

impl ArrivalTracker {
    /// Creates a tracker. `room` is the kernel's receive buffer, bytes.
    pub(super) fn new(room: usize) -> Self {
        ArrivalTracker {
            from: 0,
            next: 0,
            gaps: VecDeque::new(),
            received_bytes: 0,
            came: Time::ZERO,
            unreported_bytes: 0,
            soon: SOON_BYTES,
            due: None,
            room: u32::try_from(room).unwrap_or(u32::MAX),
        }
    }

    /// Notes the arrival of a datagram. `is_part`: its record has several parts.
    pub(super) fn on_arrival(&mut self, number: u32, bytes: usize, is_part: bool, now: Time) {
        // Fast path: the next datagram in order, with a receipt due already.
        if number == self.next as u32 && self.due.is_some() && self.unreported_bytes + bytes < self.soon {
            self.next += 1;
            self.came = now;
            self.received_bytes += bytes as u64;
            self.unreported_bytes += bytes;
            return;
        }
        let number = extend(self.next, number);
        let is_gap = number > self.next;
        if number < self.next && !self.fill_gap(number) {
            return;
        }
        if is_gap {
            self.gaps.push_back(Gap { first: self.next, end: number, reports: 0 });
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
        self.unreported_bytes += bytes;
        if self.unreported_bytes >= self.soon || is_first && is_part {
            self.due = Some(now);
        } else if is_part || self.unreported_bytes >= SMALL_BYTES {
            let due = now.after(DELAY[usize::from(is_gap)]);
            self.due = Some(self.due.map_or(due, |known| known.min(due)));
        }
    }

    /// Removes a number from its gap. Returns false if it is in no gap.
    fn fill_gap(&mut self, number: u64) -> bool {
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
            // No room for another gap: the number stays missing. At worst it is retransmitted.
            (true, true) => {}
            (true, false) => self.gaps[at] = before,
            (false, true) => self.gaps[at] = after,
            (false, false) => _ = self.gaps.remove(at),
        }
        true
    }

    /// Returns the time at which a receipt is due.
    pub(super) fn due(&self) -> Option<Time> {
        self.due
    }

    /// Returns a receipt if one is due.
    pub(super) fn poll_receipt(&mut self, now: Time) -> Option<Receipt> {
        self.due.take_if(|due| *due <= now)?;
        self.unreported_bytes = 0;
        let soon_max = (self.room as usize / ROOM_SHARE).max(SOON_BYTES);
        self.soon = ((self.received_bytes / 4) as usize).clamp(SOON_BYTES, soon_max);
        while let Some(gap) = self.gaps.pop_front_if(|gap| gap.reports >= REPORTS_PER_GAP) {
            self.from = gap.end;
        }
        self.gaps.iter_mut().for_each(|gap| gap.reports += 1);
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
