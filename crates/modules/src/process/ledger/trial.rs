//! Finds the input that kills the process, after a death.
//!
//! A process may have many unfinished inputs when it dies, and any of them may be the cause. The next process gets them
//! one at a time: they are *on trial*. Inputs after them wait.
//!
//! | pace | event | next pace | action |
//! |---|---|---|---|
//! | full | the process dies and has read no unfinished input | full | |
//! | full | it dies and has read one | one at a time, up to the last input given | count the death against that input |
//! | full | it dies and has read several | one at a time, up to the last input given | |
//! | one at a time | the process dies and has read one unfinished input | the same | count the death against that input |
//! | one at a time | it dies and has read several: it holds inputs back | one at a time, with flushes | |
//! | with flushes, or without a way to flush | it dies and has read several | the same | count the death against the oldest |
//! | any | the deaths counted against an input are three | the same | drop the input |
//! | one at a time, with or without flushes | all inputs on trial are finished or dropped | full | |
//!
//! A death by an external signal counts as a quarter: an out-of-memory kill looks like a kill by a user.
//!
//! Only a program of a user that reports `done` is asked to flush. Outputs of a pair with a history must not change when they
//! are made again, and a flush ends a built-in stage.

use super::{Framing, Ledger};
use contract::Drop;

/// Deaths, in quarters, after which an input is dropped.
const QUARTERS_MAX: u32 = 12;
/// Quarters of a death by the process itself.
const OWN_QUARTERS: u32 = 4;
/// Deaths during replay after which the history is abandoned.
const EARLY_DEATHS_MAX: u32 = 3;

/// Reason of a dropped input.
const KILLED: &str = "the module failed on each";

/// Inputs on trial.
#[derive(Debug, Clone, Copy)]
pub(super) struct Trial {
    /// Inputs before this number are on trial.
    until: u64,
    /// Each input is followed by a flush.
    has_flushes: bool,
}

/// Effects of a death.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in super::super) struct Death {
    /// Messages that will be replayed.
    pub(in super::super) replayed: usize,
    /// The message against which the death counts, if it is kept.
    pub(in super::super) suspect: Option<u64>,
    /// The message that was dropped because it killed the process too often.
    pub(in super::super) dropped: Option<u64>,
    /// Messages lost because their era was too long to be kept.
    pub(in super::super) unreadable: u64,
}

impl Ledger {
    /// Returns true while inputs are sent one at a time.
    pub(in super::super) fn is_on_trial(&self) -> bool {
        self.trial.is_some_and(|trial| self.committed < trial.until)
    }

    /// Inputs before this number may be sent now.
    pub(in super::super) fn sendable(&self) -> u64 {
        match self.is_on_trial() {
            false => u64::MAX,
            // Inputs of the history, which an earlier process has finished, are not on trial.
            true if self.handed < self.committed => self.committed,
            true => self.handed + u64::from(self.partial > 0 || self.is_idle()),
        }
    }

    /// Returns true if the process must be asked to flush after each input.
    pub(in super::super) fn has_flushes(&self) -> bool {
        self.is_on_trial() && self.trial.is_some_and(|trial| trial.has_flushes)
    }

    fn can_flush(&self) -> bool {
        self.framing == Framing::Container && self.reports_done && !self.has_history
    }

    /// Number of unfinished inputs that the process has read, at least in part.
    fn read_unfinished(&self, unread: u64) -> usize {
        let given = (self.handed + u64::from(self.partial > 0)).saturating_sub(self.committed) as usize;
        let read = self.handed_bytes.saturating_sub(unread);
        let mut start = self.finished_bytes + self.bytes_between(self.finished, self.committed);
        let inputs = self.kept.iter().skip((self.committed - self.first) as usize).take(given);
        let is_read = |bytes: &usize| {
            let is_read = start < read;
            start += *bytes as u64;
            is_read
        };
        inputs.map(|kept| kept.bytes).take_while(is_read).count()
    }

    /// Returns true if the process has read an unfinished input, at least in part, and left `unread` bytes.
    pub(in super::super) fn has_read(&self, unread: u64) -> bool {
        self.read_unfinished(unread) > 0
    }

    /// The process died: discards its unconfirmed outputs; the next process gets its unfinished inputs. A message
    /// among the last `unread` bytes did not kill it. `is_outside`: an external signal killed it.
    pub(in super::super) fn on_death(&mut self, unread: u64, is_outside: bool) -> Death {
        let mut death = Death::default();
        let read = self.read_unfinished(unread);
        if read == 0 && !is_outside && self.committed > self.finished && self.handed_bytes > unread {
            self.early_deaths += 1;
        }
        self.is_truncated |= self.early_deaths >= EARLY_DEATHS_MAX;
        let given = self.handed + u64::from(self.partial > 0);
        if read > 0 {
            self.judge(read, is_outside, &mut death);
        }
        if self.is_truncated {
            while self.first < self.committed {
                self.remove_first();
            }
            while self.kept.front().is_some_and(|kept| kept.era == self.era) {
                self.remove_first();
                death.unreadable += 1;
            }
            self.committed = self.first;
            self.is_lost = true;
            let reason = super::HISTORY_LOST;
            self.drops.push(Drop { reason, count: death.unreadable, is_loss: true });
        }
        self.restart(self.first);
        // A process that gets the whole history knows the earlier messages; any other one learns of them by a gap.
        if death.dropped.is_some() || (!self.has_history && self.committed > 0) {
            match self.kept.get_mut((self.committed - self.first) as usize) {
                Some(next) => next.has_gap = true,
                None => self.gap_pending = true,
            }
        }
        (self.outputs_to_skip, self.drops_to_skip) =
            if self.has_history { (self.released, self.counted_drops) } else { (0, 0) };
        let replayed = given.saturating_sub(self.committed) as usize;
        death.replayed = replayed.saturating_sub(usize::from(death.dropped.is_some())).min(self.unfinished());
        death
    }

    /// The process died after it read this many unfinished inputs: puts its inputs on trial, and counts the death against
    /// one of them if the cause is clear.
    fn judge(&mut self, read: usize, is_outside: bool, death: &mut Death) {
        let before = self.trial.filter(|_| self.is_on_trial());
        let given = self.handed + u64::from(self.partial > 0);
        let mut trial = before.unwrap_or(Trial { until: given, has_flushes: false });
        trial.until = trial.until.max(given);
        let is_clear = read == 1 || before.is_some_and(|trial| trial.has_flushes || !self.can_flush());
        trial.has_flushes |= !is_clear && before.is_some();
        let front = (self.committed - self.first) as usize;
        if is_clear && let Some(kept) = self.kept.get_mut(front) {
            kept.quarters += if is_outside { 1 } else { OWN_QUARTERS };
            let number = kept.number;
            if kept.quarters < QUARTERS_MAX {
                death.suspect = Some(number);
            } else if let Some(kept) = self.kept.remove(front) {
                self.kept_bytes -= kept.bytes;
                self.attributed -= usize::from(kept.has_attributes);
                trial.until -= 1;
                death.dropped = Some(number);
                self.drops.push(Drop { reason: KILLED, count: 1, is_loss: true });
            }
        }
        self.trial = Some(trial);
    }
}
