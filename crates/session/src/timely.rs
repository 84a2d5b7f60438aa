//! The accounting of a timely flow at its sink: each record is delivered at most once, and each missing one is counted.
//!
//! Records are delivered in the order of arrival, so a missing record may still come. It counts as lost as soon as its
//! existence is known: a later record or the end of the epoch shows it. If it comes after all, it is subtracted again.
//!
//! An epoch may begin before the end of the previous one is known, because records and control messages travel
//! separately. The sink remembers how many records of such an epoch it knows; the source's report of the end then
//! tells how many more were lost.

use std::collections::VecDeque;

/// The sequences below the newest within which repeats are detected.
pub(crate) const WINDOW: u64 = 1024;
const WORDS: usize = (WINDOW / 64) as usize;
/// The most epochs whose end is unknown. The losses at the end of older ones are not counted.
const PAST_MAX: usize = 64;

#[derive(Debug, Clone, Default)]
pub(crate) struct Timely {
    pub(crate) seen: SeenWindow,
    /// The number of lost records when the epoch began.
    pub(crate) lost_before: u64,
    /// Past epochs whose end is unknown, with the number of records that are known of each. Oldest first.
    past: VecDeque<(u32, u64)>,
    /// The losses of all epochs up to this one are counted.
    counted: u32,
}

impl Timely {
    /// The accounting of a resumed flow in this epoch. Its window counts all records as seen: a late one is dropped,
    /// not repeated.
    pub(crate) fn resume(epoch: u32, lost: u64) -> Timely {
        let seen = SeenWindow([u64::MAX; WORDS]);
        Timely { seen, lost_before: lost, past: VecDeque::new(), counted: epoch.saturating_sub(1) }
    }

    /// A new epoch begins.
    pub(crate) fn begin(&mut self, lost: u64) {
        self.seen = SeenWindow::default();
        self.lost_before = lost;
    }

    /// An epoch is over, of which this many records are known.
    pub(crate) fn leave(&mut self, epoch: u32, known: u64) {
        if epoch > self.counted {
            self.past.push_back((epoch, known));
        }
        if self.past.len() > PAST_MAX
            && let Some((epoch, _)) = self.past.pop_front()
        {
            self.counted = epoch;
        }
    }

    /// Returns true if the losses of this epoch are not counted yet, and marks them as counted.
    pub(crate) fn count_epoch(&mut self, epoch: u32) -> bool {
        let is_new = epoch > self.counted;
        self.counted = self.counted.max(epoch);
        is_new
    }

    /// Forgets past epochs up to this one; returns the number of known records of this one.
    pub(crate) fn take_known(&mut self, epoch: u32) -> u64 {
        let mut known = 0;
        while let Some((past, records)) = self.past.pop_front_if(|(past, _)| *past <= epoch) {
            known = if past == epoch { records } else { 0 };
        }
        known
    }
}

/// The recent sequences that have arrived. The newest is bit 0 of word 0.
#[derive(Debug, Clone, Default)]
pub(crate) struct SeenWindow([u64; WORDS]);

impl SeenWindow {
    /// Returns true if the sequence this far below the newest has arrived.
    pub(crate) fn contains(&self, below: u64) -> bool {
        self.0[(below / 64) as usize] >> (below % 64) & 1 == 1
    }

    pub(crate) fn insert(&mut self, below: u64) {
        self.0[(below / 64) as usize] |= 1 << (below % 64);
    }

    /// The newest sequence rises by this much.
    pub(crate) fn shift(&mut self, by: u64) {
        if by >= WINDOW {
            self.0 = Default::default();
            return;
        }
        let (words, bits) = ((by / 64) as usize, by % 64);
        for index in (0..WORDS).rev() {
            let low = index.checked_sub(words).map_or(0, |from| self.0[from]);
            let lower = index.checked_sub(words + 1).map_or(0, |from| self.0[from]);
            // A shift by 64 bits would overflow.
            self.0[index] = if bits == 0 { low } else { low << bits | lower >> (64 - bits) };
        }
    }
}
