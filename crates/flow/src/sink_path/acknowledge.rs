//! Decides when a sink acknowledges.
//!
//! An acknowledgement lets the source free its replay store. It is due after a delay, or early after an eighth of the
//! store, because a source with a full store reads nothing until an acknowledgement arrives.

use contract::Time;
use session::Limits;
use std::time::Duration;

/// Longest delay of an acknowledgement on a reliable transport and on a lossy one.
///
/// For stages with state, each acknowledgement copies a checkpoint. `WAIT_PER_BYTE` limits the share of time for that.
const ACKNOWLEDGE_WAIT: [Duration; 2] = [Duration::from_millis(100), Duration::from_millis(5)];
const WAIT_PER_BYTE: Duration = Duration::from_nanos(10);

/// Returns the longest delay of an acknowledgement. `checkpoint_bytes`: length of the checkpoint that it needs.
pub(super) fn longest_wait(lossy: bool, checkpoint_bytes: usize) -> Duration {
    let per_checkpoint = WAIT_PER_BYTE * u32::try_from(checkpoint_bytes).unwrap_or(u32::MAX);
    ACKNOWLEDGE_WAIT[usize::from(lossy)].max(per_checkpoint)
}

/// An amount of a flow's messages.
#[derive(Debug, Clone, Copy, Default)]
struct Amount {
    bytes: usize,
    messages: usize,
}

/// Acknowledgements of one epoch.
#[derive(Debug)]
pub(super) struct Acknowledger {
    /// An acknowledgement is due early after this amount: an eighth of the source's replay store.
    early: Amount,
    /// Amount since the last acknowledgement.
    pending: Amount,
    /// The last acknowledgement: everything before this sequence.
    sent: u64,
    due_at: Option<Time>,
}

impl Acknowledger {
    pub(super) fn new(limits: &Limits) -> Acknowledger {
        let early =
            Amount { bytes: limits.store_bytes.div_ceil(8), messages: limits.store_messages.div_ceil(8) };
        Acknowledger { early, pending: Amount::default(), sent: 0, due_at: None }
    }

    /// Counts a received message of this length.
    pub(super) fn add(&mut self, bytes: usize) {
        self.pending.bytes += bytes;
        self.pending.messages += 1;
    }

    /// Handles the start of an epoch.
    pub(super) fn handle_epoch(&mut self) {
        self.sent = 0;
        self.pending = Amount::default();
    }

    /// Sends the next acknowledgement even if it repeats the last one: the source may have missed that.
    pub(super) fn repeat(&mut self) {
        self.sent = u64::MAX;
    }

    /// Returns whether an acknowledgement is due, `wait` after the first call at the latest.
    pub(super) fn is_due(&mut self, wait: Duration, now: Time) -> bool {
        let due_at = *self.due_at.get_or_insert(now.after(wait));
        let is_early = self.pending.bytes >= self.early.bytes || self.pending.messages >= self.early.messages;
        now >= due_at || is_early
    }

    /// Returns whether `next` differs from the last acknowledgement.
    pub(super) fn is_new(&self, next: u64) -> bool {
        next != self.sent
    }

    /// Handles that everything before `next` was acknowledged.
    pub(super) fn handle_sent(&mut self, next: u64) {
        (self.sent, self.pending, self.due_at) = (next, Amount::default(), None);
    }

    /// Schedules an acknowledgement: at this time, or after the full delay.
    pub(super) fn schedule(&mut self, due_at: Option<Time>) {
        self.due_at = due_at;
    }

    /// Returns the time of the next acknowledgement, if one is pending.
    pub(super) fn due_at(&self) -> Option<Time> {
        self.due_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_eighth_of_the_store_is_acknowledged_early() {
        let (store, now, wait) = (Limits::default(), Time::ZERO, longest_wait(false, 0));
        for (bytes, messages) in [(store.store_bytes / 8, 1), (1, store.store_messages / 8)] {
            let mut acknowledger = Acknowledger::new(&store);
            (1..messages).for_each(|_| acknowledger.add(bytes));
            assert!(!acknowledger.is_due(wait, now));
            acknowledger.add(bytes);
            assert!(acknowledger.is_due(wait, now));
        }
    }
}
