//! Changes a flow's pipeline while it runs. Both halves switch at the same message.
//!
//! ```text
//!  source                                               sink
//!    │ Change(epoch, pipeline) ────────────────────────► │  builds its new stages
//!    │ ◄──────────────────────────────── Changed(epoch)  │  or refuses, and nothing changes
//!    │ drains its old stages into the old epoch          │
//!    │ Epoch(epoch, continues) ────────────────────────► │  delivers the old epoch, drains its old stages
//!    │ records of the new epoch ═══════════════════════► │
//!    │ ◄────────────────────────────────── Begun(epoch)  │  uses the new stages
//! ```
//!
//! The states of a change at the source ([`PipelineChangeSource`]):
//!
//! | state | event | next state | action |
//! |---|---|---|---|
//! | – | a change is requested | `Requested` | choose a later epoch, send `Change` |
//! | `Requested` | `Changed` with a refusal | – | report the failure; the old stages stay |
//! | `Requested` | `Changed` | `Accepted` | |
//! | `Requested`, `Accepted` | a restart of the flow reaches the epoch | `Requested` | choose a later epoch, send `Change` |
//! | `Accepted` | all output of the old stages is numbered | `Draining` | end the old stages, stop reading |
//! | `Draining` | the old stages are empty | `Begun` | install the new stages, send `Epoch` |
//! | `Draining` | a restart of the flow | `Begun` | abandon the old epoch, install the new stages, send `Epoch` |
//! | `Begun` | `Begun` | – | report the success |
//! | any | each second, each new link | the same | send `Change` again |
//!
//! At the sink, [`PipelineChangeSink`] holds the new stages until their epoch begins (`sink_path/epochs.rs`).

use crate::chain_runner::ChainRunner;
use crate::types::Notice;
use contract::{FlowDirection, Time};
use pipeline::Pipeline;
use std::time::Duration;
use wire::FlowControl;

/// Distance of a change's epoch from the current one. Restarts before the change use the epochs in between.
const EPOCHS_AHEAD: u32 = 1024;
/// Interval of repeated `Change` messages until the sink has begun. A worker's crash may lose the message or its
/// answer.
const RESEND_INTERVAL: Duration = Duration::from_secs(1);
/// Most control messages that new stages receive from their other halves before they begin.
const EARLY_CONTROLS_MAX: usize = 1024;

/// Progress of a change at the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// `Change` was sent to the sink.
    Requested,
    /// The sink accepted.
    Accepted,
    /// The old stages release their messages.
    Draining,
    /// The new epoch has begun at the source.
    Begun,
}

/// A pipeline change at the source of a flow.
pub struct PipelineChangeSource {
    flow: u32,
    direction: FlowDirection,
    /// The first epoch of the new pipeline.
    pub epoch: u32,
    /// The new pipeline.
    pub pipeline: Pipeline,
    /// New stages, until they begin.
    stages: Option<ChainRunner>,
    progress: Progress,
    /// Time of the next `Change` message.
    resend_at: Option<Time>,
}

impl PipelineChangeSource {
    /// Starts a change of a flow in `epoch` and sends `Change` to the sink.
    pub fn begin(
        (flow, direction): (u32, FlowDirection),
        epoch: u32,
        pipeline: Pipeline,
        stages: ChainRunner,
        notices: &mut Vec<Notice>,
    ) -> PipelineChangeSource {
        let (stages, progress) = (Some(stages), Progress::Requested);
        let mut change =
            PipelineChangeSource { flow, direction, epoch, pipeline, stages, progress, resend_at: None };
        change.request(epoch, notices);
        change
    }

    /// Resumes a change to `epoch` that another worker completed at the source. The sink may not have begun the epoch.
    pub fn resume(flow: (u32, FlowDirection), epoch: u32, pipeline: Pipeline) -> PipelineChangeSource {
        let (flow, direction) = flow;
        let (stages, progress) = (None, Progress::Begun);
        PipelineChangeSource { flow, direction, epoch, pipeline, stages, progress, resend_at: None }
    }

    /// Chooses an epoch after `epoch` and sends it to the sink.
    fn request(&mut self, epoch: u32, notices: &mut Vec<Notice>) {
        self.epoch = epoch.saturating_add(EPOCHS_AHEAD);
        self.progress = Progress::Requested;
        self.send(notices);
    }

    /// Sends `Change`, also again: the sink's worker may have crashed.
    pub fn send(&self, notices: &mut Vec<Notice>) {
        let (flow, epoch, pipeline) = (self.flow, self.epoch, self.pipeline.canonical().to_string());
        notices.push(Notice::Flow { flow, message: FlowControl::Change { epoch, pipeline } });
    }

    /// Returns the time of the next `Change` message, if there is a link.
    pub fn resend_at(&self) -> Option<Time> {
        self.resend_at
    }

    /// Returns whether the next `Change` message is due, and schedules the one after it.
    pub fn is_resend_due(&mut self, now: Time) -> bool {
        let is_due = self.resend_at.is_some_and(|at| now >= at);
        if is_due || self.resend_at.is_none() {
            self.resend_at = Some(now.after(RESEND_INTERVAL));
        }
        is_due
    }

    /// Handles the sink's answer. Returns whether the change continues.
    pub fn handle_answer(&mut self, epoch: u32, refusal: Option<&str>, notices: &mut Vec<Notice>) -> bool {
        if epoch != self.epoch || self.progress != Progress::Requested {
            return true;
        }
        if let Some(reason) = refusal {
            let result = Err(format!("the other host refuses it: {reason}"));
            notices.push(Notice::Changed { direction: self.direction, result });
            return false;
        }
        self.progress = Progress::Accepted;
        true
    }

    /// Handles `Begun` from the sink. Returns whether the change is complete.
    pub fn handle_begun(&self, epoch: u32, notices: &mut Vec<Notice>) -> bool {
        let is_done = self.progress == Progress::Begun && epoch >= self.epoch;
        if is_done {
            notices
                .push(Notice::Changed { direction: self.direction, result: Ok(self.pipeline.text().into()) });
        }
        is_done
    }

    /// Returns whether the old stages drain.
    pub fn is_draining(&self) -> bool {
        self.progress == Progress::Draining
    }

    /// Starts to drain the old stages once the sink has accepted. Returns whether it did.
    pub fn start_draining(&mut self) -> bool {
        let is_ready = self.progress == Progress::Accepted;
        if is_ready {
            self.progress = Progress::Draining;
        }
        is_ready
    }

    /// Takes the new stages after the old ones have drained.
    pub fn take_stages(&mut self) -> Option<ChainRunner> {
        if self.progress != Progress::Draining {
            return None;
        }
        self.progress = Progress::Begun;
        self.stages.take()
    }

    /// Handles a restart of the flow after `epoch` for another reason. Returns the new stages if the old ones had
    /// started to drain; otherwise the old stages continue and the change moves to a later epoch.
    pub fn handle_restart(&mut self, epoch: u32, notices: &mut Vec<Notice>) -> Option<ChainRunner> {
        let fresh = self.take_stages();
        if fresh.is_none() && self.progress != Progress::Begun && epoch.saturating_add(1) >= self.epoch {
            self.request(epoch, notices);
        }
        fresh
    }
}

/// A pipeline change at the sink of a flow.
pub struct PipelineChangeSink {
    /// The first epoch of the new pipeline.
    pub epoch: u32,
    /// The new pipeline.
    pub pipeline: Pipeline,
    /// New stages.
    pub stages: ChainRunner,
    early_controls: usize,
}

impl PipelineChangeSink {
    /// Holds new stages until their epoch begins.
    pub fn new(epoch: u32, pipeline: Pipeline, stages: ChainRunner) -> PipelineChangeSink {
        PipelineChangeSink { epoch, pipeline, stages, early_controls: 0 }
    }

    /// Passes on a control message that arrives for a new stage before the old epoch is over.
    pub fn handle_control(&mut self, pair: u16, body: &[u8], now: Time) {
        if self.early_controls < EARLY_CONTROLS_MAX {
            self.early_controls += 1;
            self.stages.handle_control(pair, body, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use modules::registry;
    use pipeline::Origin;

    #[test]
    fn a_change_is_sent_again_each_second() {
        let pipeline = Pipeline::parse("null", registry::pairs(), Origin::Local).unwrap();
        let mut change = PipelineChangeSource::resume((7, FlowDirection::DeviceToApplication), 2, pipeline);
        let due =
            [0, 900, 1000, 1100, 2500, 3400, 3500].map(|ms| change.is_resend_due(Time::from_millis(ms)));
        assert_eq!(due, [false, false, true, false, true, false, true]);
        assert_eq!(change.resend_at(), Some(Time::from_millis(4500)));
    }
}
