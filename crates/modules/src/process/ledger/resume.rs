//! Passes a ledger on to the next worker, when the worker of its process has ended.

use super::{Framing, Kept, Ledger, kept_extra};
use crate::process::checkpoint::{Saved, SavedInput};
use wire::Container;

impl Ledger {
    /// Returns the kept inputs and the position in the era, for a ledger in another process. Withheld outputs are
    /// left out: the next process makes them again.
    pub(in super::super) fn save(&self) -> Saved {
        let input = |kept: &Kept| {
            let mut message = kept.message.clone();
            if self.framing != Framing::Bare {
                let length = kept.bytes - kept_extra(self.framing);
                message.body.skip_front(Container::BYTES);
                message.body = message.body.split_off_front(length).unwrap_or_default();
            }
            SavedInput { number: kept.number, message, era: kept.era, has_gap: kept.has_gap }
        };
        Saved {
            has_finished: self.committed > 0,
            is_truncated: self.is_truncated,
            era: self.era,
            newest_era: self.newest_era,
            admitted: self.admitted,
            released: self.released,
            counted_drops: self.counted_drops,
            outputs: self.ready.iter().map(|(_, output)| output.clone()).collect(),
            inputs: self.kept.iter().map(input).collect(),
            finished: (self.committed - self.first) as usize,
        }
    }

    /// Continues the ledger of another process in this new one, as after the death of a process.
    pub(in super::super) fn restore(&mut self, saved: Saved) {
        for SavedInput { number, message, era, has_gap } in saved.inputs {
            (self.gap_pending, self.admitted) = (has_gap, number.saturating_sub(1));
            self.admit(message, era);
        }
        self.admitted = saved.admitted;
        (self.era, self.newest_era) = (saved.era, saved.newest_era);
        (self.released, self.counted_drops) = (saved.released, saved.counted_drops);
        self.is_truncated = saved.is_truncated;
        self.committed = self.first + saved.finished as u64;
        self.on_death(0, true);
        // The next process learns of the messages before its first one by a gap.
        if saved.has_finished && !self.has_history {
            match self.kept.front_mut() {
                Some(next) => next.has_gap = true,
                None => self.gap_pending = true,
            }
        }
    }
}
