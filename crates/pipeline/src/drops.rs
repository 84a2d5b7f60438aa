//! Counts of messages that did not reach their sink.

use std::collections::BTreeMap;

/// Messages that ended before their sink, by reason.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DropCounts {
    /// By reason.
    pub counts: BTreeMap<String, u64>,
    /// Those among them that failures lost, by reason. The owner may take them to report them once.
    pub losses: BTreeMap<String, u64>,
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
        increase(&mut self.counts, reason, count);
    }

    /// Counts `count` messages as lost by a failure, for `reason`.
    pub fn add_loss(&mut self, reason: &str, count: u64) {
        self.add(reason, count);
        if count > 0 {
            increase(&mut self.losses, reason, count);
        }
    }
}

fn increase(counts: &mut BTreeMap<String, u64>, reason: &str, count: u64) {
    match counts.get_mut(reason) {
        Some(known) => *known = known.saturating_add(count),
        None => {
            counts.insert(reason.into(), count);
        }
    }
}
