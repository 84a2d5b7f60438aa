//! Messages to the other host, notices to the broker, and statistics of a sink path.

use super::SinkPath;
use crate::stats::FlowStats;
use crate::types::{LinkFacts, Notice};
use contract::{FlowClass, Time};
use std::time::Duration;
use wire::FlowControl;

/// Time after which a gap counts as loss and not as reordering.
const REORDER_WAIT: Duration = Duration::from_millis(5);
/// Shortest time between two requests for the same gap.
const MISSING_INTERVAL: Duration = Duration::from_millis(20);

impl SinkPath {
    /// Sends the control messages of the stages to their other halves.
    pub(super) fn send_stage_controls(&mut self, notices: &mut Vec<Notice>) {
        let (flow, epoch) = (self.plan.flow, self.sink.epoch());
        for (pair, body) in self.stages.take_controls(&mut self.drops) {
            notices.push(Notice::Flow { flow, message: FlowControl::Pair { epoch, pair, body } });
        }
    }

    /// Requests missing records while this path can receive them. A request is retained for a peer that does not answer, so another
    /// one would only add to it.
    pub(super) fn request_missing(
        &mut self,
        can_receive: bool,
        (now, facts): (Time, LinkFacts),
        notices: &mut Vec<Notice>,
    ) {
        if !can_receive || self.is_peer_silent || !self.is_missing_records() {
            self.missing_at = None;
            return;
        }
        let due = *self.missing_at.get_or_insert(now.after(REORDER_WAIT));
        if now >= due {
            let (flow, epoch) = (self.plan.flow, self.sink.epoch());
            let ranges = self.sink.missing();
            notices.push(Notice::Flow { flow, message: FlowControl::Missing { epoch, ranges } });
            self.missing_at = Some(now.after((facts.round_trip * 2).max(MISSING_INTERVAL)));
        }
    }

    /// Sends feedback and the stages' control messages, and reports incidents.
    pub(super) fn report(&mut self, now: Time, notices: &mut Vec<Notice>) {
        let flow = self.plan.flow;
        self.send_stage_controls(notices);
        self.stages.report_failures(self.plan.class, &mut self.drops, notices);
        let feedback = self.feedback.poll(self.sink.counters(), || self.delays.percentiles(), now);
        notices.extend(feedback.map(|message| Notice::Flow { flow, message }));
    }

    /// Requests a snapshot, if received state was discarded, or the partner's state beside the data of a reliable flow.
    pub(super) fn request_snapshot(&self, notices: &mut Vec<Notice>) {
        let has_lost_state = self.plan.class == FlowClass::Reliable && self.plan.format.has_state();
        if self.sink.is_abandoned() || has_lost_state {
            let (flow, epoch) = (self.plan.flow, self.sink.epoch());
            notices.push(Notice::Flow { flow, message: FlowControl::Resync { epoch } });
        }
    }

    /// Returns the statistics of the flow.
    pub fn stats(&self) -> FlowStats {
        let counters = self.sink.counters();
        FlowStats {
            flow: self.plan.flow,
            epoch: self.sink.epoch(),
            messages: counters.received,
            bytes: counters.received_bytes,
            repeated: counters.repeated,
            lost: counters.lost,
            stale: counters.stale,
            lossy: self.lossy,
            ending: self.lifecycle.pending_end().is_some() && self.plan.class == FlowClass::Reliable,
            delay_us: self.delays.percentiles().map(|percentiles| percentiles.map(|ns| ns as f64 / 1e3)),
            drops: self.drops.counts.clone(),
            pipeline: self.plan.pipeline.canonical().into(),
            stages: self.stages.report(),
            ..FlowStats::default()
        }
    }
}
