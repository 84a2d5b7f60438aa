//! Messages to the other host, notices to the broker, and statistics of a source path.

use super::SourcePath;
use crate::stats::{FlowStats, StoreStats};
use crate::types::Notice;
use contract::FlowClass;
use session::{SourceFlow, StoreFull};
use wire::FlowControl;

/// Reports on a full replay store.
pub(super) struct StoreMonitor {
    /// Policy for a full store.
    pub(super) policy: StoreFull,
    /// The full store was reported since everything was last acknowledged.
    is_reported: bool,
    /// The store overflowed, and its policy closes the flow.
    is_overrun: bool,
}

impl StoreMonitor {
    pub(super) fn new(policy: StoreFull) -> StoreMonitor {
        StoreMonitor { policy, is_reported: false, is_overrun: false }
    }

    /// Handles a message that has no room in a store whose policy closes the flow.
    pub(super) fn handle_overrun(&mut self) {
        self.is_overrun = true;
    }

    fn report(&mut self, source: &SourceFlow, notices: &mut Vec<Notice>) {
        if source.is_settled() {
            self.is_reported = false;
        } else if source.is_full() && !self.is_reported {
            self.is_reported = true;
            notices.push(Notice::StoreFull(self.policy));
        }
        if std::mem::take(&mut self.is_overrun) {
            notices.push(Notice::Failed("the replay store is full".into()));
        }
    }
}

impl SourcePath {
    /// Sends the control messages of the stages to their other halves.
    pub(super) fn send_stage_controls(&mut self, notices: &mut Vec<Notice>) {
        let (flow, epoch) = (self.plan.flow, self.source.epoch());
        for (pair, body) in self.stages.take_controls(&mut self.drops) {
            notices.push(Notice::Flow { flow, message: FlowControl::Pair { epoch, pair, body } });
        }
    }

    pub(super) fn report(&mut self, linked: bool, notices: &mut Vec<Notice>) {
        let (flow, epoch) = (self.plan.flow, self.source.epoch());
        self.send_stage_controls(notices);
        self.stages.report_failures(self.plan.class, &mut self.drops, notices);
        self.store.report(&self.source, notices);
        // Drops accumulate while there is no link. One message reports all of them.
        if let Some((epoch, sequence)) = linked.then(|| self.source.poll_trimmed()).flatten() {
            notices.push(Notice::Flow { flow, message: FlowControl::Trimmed { epoch, sequence } });
        }
        let is_all_sent = self.stages.out.messages.is_empty() && self.unsent.is_none();
        if linked && is_all_sent && self.lifecycle.handle_all_sent() {
            let sequence = self.source.next_sequence();
            notices.push(Notice::Flow { flow, message: FlowControl::End { epoch, sequence } });
        }
        if self.source.is_settled() && self.lifecycle.handle_settled() {
            notices.push(Notice::FlowEnded(self.plan.direction));
        }
    }

    /// Returns the statistics of the flow.
    pub fn stats(&self) -> FlowStats {
        let counters = self.source.counters();
        FlowStats {
            flow: self.plan.flow,
            epoch: self.source.epoch(),
            messages: counters.sent,
            bytes: counters.sent_bytes,
            resent: counters.retransmitted,
            lossy: self.lossy,
            ending: self.lifecycle.is_ending() && self.plan.class == FlowClass::Reliable,
            store: (self.plan.class != FlowClass::Timely).then(|| StoreStats {
                bytes: self.source.unacknowledged_bytes() as u64,
                messages: self.source.unacknowledged() as u64,
                full: self.source.is_full(),
                policy: self.store.policy.word().into(),
                discarded: counters.dropped,
            }),
            drops: self.drops.counts.clone(),
            pipeline: self.plan.pipeline.canonical().into(),
            stages: self.stages.report(),
            ..FlowStats::default()
        }
    }
}
