//! Counts of messages that did not reach their sink.

use std::collections::BTreeMap;

/// Messages that ended before their sink, by reason.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DropCounts {
    /// By reason.
    pub counts: BTreeMap<String, u64>,
    total: u64,
}

impl DropCounts {
    /// The counts of a path that resumes: `counted` messages before, and `lost` with workers, by reason. The total
    /// continues from `counted`: losses with workers are kept apart.
    pub fn resume(counted: u64, lost: &[(&str, u64)]) -> DropCounts {
        let mut drops = DropCounts::default();
        lost.iter().for_each(|(reason, count)| drops.add(reason, *count));
        drops.add("counted by earlier workers", counted);
        drops.total = counted;
        drops
    }

    /// All drops so far, without the losses with workers.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Counts `count` messages as dropped for `reason`.
    pub fn add(&mut self, reason: &str, count: u64) {
        if count == 0 {
            return;
        }
        self.total = self.total.saturating_add(count);
        match self.counts.get_mut(reason) {
            Some(known) => *known = known.saturating_add(count),
            None => {
                self.counts.insert(reason.into(), count);
            }
        }
    }
}
