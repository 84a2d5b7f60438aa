//! What a source path tells the other host and people: notices, and its figures.

use super::Outgoing;
use crate::driver::Notice;
use crate::stats::{FlowStats, StoreStats};
use contract::FlowClass;
use wire::Control;

impl Outgoing {
    /// Tells what the stages say to their other halves.
    pub(super) fn tell_controls(&mut self, notices: &mut Vec<Notice>) {
        let (flow, epoch) = (self.plan.flow, self.source.epoch());
        for (pair, body) in self.segment.take_controls(&mut self.drops) {
            notices.push(Notice::Control(Control::Pair { flow, epoch, pair, body }));
        }
    }

    pub(super) fn tell(&mut self, linked: bool, notices: &mut Vec<Notice>) {
        let (flow, epoch) = (self.plan.flow, self.source.epoch());
        self.tell_controls(notices);
        notices.extend(self.segment.incidents().map(Notice::Incident));
        self.segment.settle(&mut self.drops);
        self.tell_store(linked, notices);
        let drained = self.drained && self.segment.out.messages.is_empty();
        if drained && linked && self.unsent.is_none() && !self.end_told {
            let sequence = self.source.next_sequence();
            notices.push(Notice::Control(Control::End { flow, epoch, sequence }));
            self.end_told = true;
        }
        if self.end_told && self.source.is_settled() && !self.end_settled {
            self.end_settled = true;
            notices.push(Notice::FlowEnded(self.plan.direction));
        }
    }

    /// Tells people that the store is full, and the sink what is kept no longer.
    fn tell_store(&mut self, linked: bool, notices: &mut Vec<Notice>) {
        if self.source.is_settled() {
            self.full_told = false;
        } else if self.source.is_overrun() && !self.full_told {
            self.full_told = true;
            notices.push(Notice::StoreFull(self.store_full));
        }
        if std::mem::take(&mut self.overrun) {
            notices.push(Notice::Failed("what is kept to be sent again is as much as it may be".into()));
        }
        // While there is no link, what is given up grows: all of it is told at once.
        if let Some((epoch, sequence)) = linked.then(|| self.source.poll_gone()).flatten() {
            let flow = self.plan.flow;
            notices.push(Notice::Control(Control::Gone { flow, epoch, sequence }));
        }
    }

    pub(crate) fn stats(&self) -> FlowStats {
        let counters = self.source.counters();
        FlowStats {
            flow: self.plan.flow,
            epoch: self.source.epoch(),
            messages: counters.sent,
            bytes: counters.sent_bytes,
            resent: counters.resent,
            lossy: self.lossy,
            ending: self.ended && !self.end_settled && self.plan.class == FlowClass::Reliable,
            store: (self.plan.class != FlowClass::Timely).then(|| StoreStats {
                bytes: self.source.unacknowledged_bytes() as u64,
                messages: self.source.unacknowledged() as u64,
                full: self.source.is_overrun(),
                policy: self.store_full.word().into(),
                given_up: counters.given_up,
            }),
            drops: self.drops.counts.clone(),
            pipeline: self.plan.pipeline.canonical().into(),
            stages: self.segment.report(),
            ..FlowStats::default()
        }
    }
}
