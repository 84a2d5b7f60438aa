//! Changes of the stages on both hosts, at the source: a new pipeline, or fresh stages after a crash.
//!
//! The states of a change are in [`crate::pipeline_change`]. After a crash, the source has fresh stages, but those of
//! the sink may depend on messages that only the old stages knew. Both halves then restart together, as if the
//! pipeline changed to itself:
//!
//! | stages | event | stages | action |
//! |---|---|---|---|
//! | current | resumed after a crash, with pairs | lost | stop reading |
//! | lost, no change is active | a run | lost | begin a change to the same pipeline |
//! | lost | the change begins | current | read again |
//! | lost | the sink refuses the change to the same pipeline | current | abandon the epoch, begin another one with fresh stages |
//! | lost | the sink refuses a change to another pipeline | lost | begin a change to the same pipeline |
//!
//! Any change replaces lost stages, so a change that a user requests meanwhile serves as well. If the sink refuses
//! that one, it may still accept the current pipeline, and the unacknowledged records stay.

use super::{EPOCH_ABANDONED, SourcePath, build_chain, check_store};
use crate::chain_runner::{self, ChainRunner};
use crate::pipeline_change::PipelineChangeSource;
use crate::types::{Notice, PathContext};
use contract::{Ctl, Half, Partner, Time};
use pipeline::Pipeline;
use wire::FlowControl;

/// Change of the stages on both hosts.
#[derive(Default)]
pub(super) struct SourceChange {
    /// The change in progress.
    pub(super) active: Option<PipelineChangeSource>,
    /// The stages that match those of the sink are lost. Nothing is read until both halves have restarted.
    pub(super) has_lost_stages: bool,
}

impl SourceChange {
    /// Returns whether reading is suspended.
    pub(super) fn suspends_reading(&self) -> bool {
        self.has_lost_stages || self.active.as_ref().is_some_and(PipelineChangeSource::is_draining)
    }
}

impl SourcePath {
    /// Starts a pipeline change.
    pub fn change(&mut self, pipeline: Pipeline, notices: &mut Vec<Notice>) {
        let (format, site) = (&self.plan.format, &self.plan.site);
        let chain = chain_runner::build_chain(Half::Source, &pipeline, format, site);
        let allowed = check_store(&self.plan, &pipeline, self.store.policy);
        let refusal = match chain.map_err(|error| error.to_string()).and_then(|chain| allowed.map(|()| chain))
        {
            _ if self.change.active.is_some() => "another change of this flow is under way".into(),
            _ if self.lifecycle.has_ended() => "the flow has ended".into(),
            Err(refusal) => refusal,
            Ok(chain) => return self.begin_change(pipeline, ChainRunner::new(chain), notices),
        };
        let direction = self.plan.direction;
        notices.push(Notice::Changed { direction, result: Err(refusal) });
    }

    fn begin_change(&mut self, pipeline: Pipeline, stages: ChainRunner, notices: &mut Vec<Notice>) {
        let flow = (self.plan.flow, self.plan.direction);
        let change = PipelineChangeSource::begin(flow, self.source.epoch(), pipeline, stages, notices);
        self.change.active = Some(change);
    }

    /// Replaces lost stages on both hosts. The sink drains its old ones first.
    pub(super) fn restart_both_halves(&mut self, notices: &mut Vec<Notice>) {
        if self.change.has_lost_stages
            && self.change.active.is_none()
            && let Ok(chain) = build_chain(&self.plan)
        {
            self.begin_change(self.plan.pipeline.clone(), ChainRunner::new(chain), notices);
        }
    }

    /// Handles the sink's answer to `Change`.
    pub(super) fn handle_change_answer(&mut self, epoch: u32, refusal: Option<&str>, cx: PathContext<'_>) {
        let is_refused =
            |change: &mut PipelineChangeSource| !change.handle_answer(epoch, refusal, cx.notices);
        let Some(refused) = self.change.active.take_if(is_refused) else { return };
        if self.change.has_lost_stages && refused.pipeline == self.plan.pipeline {
            self.change.has_lost_stages = false;
            self.restart(cx);
        }
    }

    /// Advances a change after all output of the stages was numbered. Returns whether there may be more output.
    pub(super) fn advance_change(&mut self, now: Time, notices: &mut Vec<Notice>) -> bool {
        let Some(change) = self.change.active.as_mut() else { return false };
        if change.start_draining() {
            self.stages.end(now);
            return true;
        }
        if !change.is_draining() || !self.stages.drain(now) {
            return false;
        }
        let Some(fresh) = change.take_stages() else { return false };
        let (epoch, pipeline) = (change.epoch, change.pipeline.clone());
        self.send_stage_controls(notices);
        self.stages.replace(fresh, EPOCH_ABANDONED, now, &mut self.drops);
        self.plan.pipeline = pipeline;
        self.is_merging_told = false;
        self.source.continue_in(epoch);
        self.change.has_lost_stages = false;
        self.save_ticket();
        self.send_epoch(notices);
        true
    }

    /// Tells the device whether the current pipeline merges changes, once.
    pub(super) fn tell_merging(&mut self, partner: Option<&mut Box<dyn Partner>>) {
        if self.is_merging_told {
            return;
        }
        let Some(partner) = partner else { return };
        self.is_merging_told = true;
        // Most devices divide nothing, and do not support this.
        let _ = partner.ctl(self.key, Ctl::Merging(self.plan.pipeline.promises().merges));
    }

    /// Sends the pipeline of the current epoch and the epoch itself. The sink's worker may have crashed since the last
    /// time.
    pub(super) fn send_change(&self, notices: &mut Vec<Notice>) {
        let (flow, epoch) = ((self.plan.flow, self.plan.direction), self.source.epoch());
        match &self.change.active {
            Some(change) => change.send(notices),
            None if self.source.continues() => {
                PipelineChangeSource::resume(flow, epoch, self.plan.pipeline.clone()).send(notices);
            }
            None => {}
        }
        self.send_epoch(notices);
    }

    pub(super) fn send_epoch(&self, notices: &mut Vec<Notice>) {
        let (flow, source) = (self.plan.flow, &self.source);
        let (epoch, prev, continues) = (source.epoch(), source.prev(), source.continues());
        notices.push(Notice::Flow { flow, message: FlowControl::Epoch { epoch, prev, continues } });
    }
}
