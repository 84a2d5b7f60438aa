//! A flow's pipeline changes while it runs: both halves switch at the same message.
//!
//! The source names an epoch to come and its pipeline; the sink builds its halves and says that it is ready.
//! The source then lets its old stages give out what they hold, numbers that in the old epoch, and goes on in
//! the new one with new stages. The sink hands on everything of the old epoch through the old stages first.

use crate::driver::Notice;
use crate::segment::Segment;
use contract::{FlowDirection, Time};
use pipeline::Pipeline;
use std::time::Duration;
use wire::Control;

/// How far ahead of the current epoch a change's stands: what restarts meanwhile has its epochs in between.
const EPOCHS_AHEAD: u32 = 1024;
/// The sink is told again so often until it has begun: what it was told, or has said, may have ended with a worker.
const AGAIN: Duration = Duration::from_secs(1);
/// Most that new stages are told by their other halves before they begin.
const EARLY_CONTROLS_MAX: usize = 1024;

/// How far a change has come at the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// The sink was told.
    Told,
    /// The sink is ready.
    Ready,
    /// The old stages were told that their epoch ends.
    Ending,
    /// The new epoch has begun here.
    Begun,
}

/// A change at the source of a flow.
pub(crate) struct Switch {
    flow: u32,
    direction: FlowDirection,
    /// The first epoch of the new pipeline.
    pub(crate) epoch: u32,
    /// The new pipeline.
    pub(crate) pipeline: Pipeline,
    /// Its stages, until they begin.
    segment: Option<Segment>,
    progress: Progress,
    /// When the sink is told again.
    again_at: Option<Time>,
}

impl Switch {
    /// A change of a flow that is in `epoch` now; tells the sink.
    pub(crate) fn begin(
        (flow, direction): (u32, FlowDirection),
        epoch: u32,
        pipeline: Pipeline,
        segment: Segment,
        notices: &mut Vec<Notice>,
    ) -> Switch {
        let (segment, progress) = (Some(segment), Progress::Told);
        let mut switch = Switch { flow, direction, epoch, pipeline, segment, progress, again_at: None };
        switch.tell(epoch, notices);
        switch
    }

    /// A change to `epoch` that another worker made. Whether the sink has begun it, too, is not known.
    pub(crate) fn resume(flow: (u32, FlowDirection), epoch: u32, pipeline: Pipeline) -> Switch {
        let (flow, direction) = flow;
        let (segment, progress) = (None, Progress::Begun);
        Switch { flow, direction, epoch, pipeline, segment, progress, again_at: None }
    }

    /// Names the epoch, later than `epoch`, to the sink.
    fn tell(&mut self, epoch: u32, notices: &mut Vec<Notice>) {
        self.epoch = epoch.saturating_add(EPOCHS_AHEAD);
        self.progress = Progress::Told;
        self.tell_again(notices);
    }

    /// Tells the sink once more: what it has prepared may have ended with its worker.
    pub(crate) fn tell_again(&self, notices: &mut Vec<Notice>) {
        let (flow, epoch, pipeline) = (self.flow, self.epoch, self.pipeline.canonical().to_string());
        notices.push(Notice::Control(Control::Change { flow, epoch, pipeline }));
    }

    /// When the sink is to be told again, if it can be told.
    pub(crate) fn again_at(&self) -> Option<Time> {
        self.again_at
    }

    /// Whether it is time to tell the sink again.
    pub(crate) fn is_due(&mut self, now: Time) -> bool {
        let is_due = self.again_at.is_some_and(|at| now >= at);
        if is_due || self.again_at.is_none() {
            self.again_at = Some(now.after(AGAIN));
        }
        is_due
    }

    /// The sink's answer; says whether the change goes on.
    pub(crate) fn handle_answer(
        &mut self,
        epoch: u32,
        refusal: Option<&str>,
        notices: &mut Vec<Notice>,
    ) -> bool {
        if epoch != self.epoch || self.progress != Progress::Told {
            return true;
        }
        if let Some(reason) = refusal {
            let result = Err(format!("the other host refuses it: {reason}"));
            notices.push(Notice::Changed { direction: self.direction, result });
            return false;
        }
        self.progress = Progress::Ready;
        true
    }

    /// The sink is in `epoch`; says whether the change is done.
    pub(crate) fn handle_begun(&self, epoch: u32, notices: &mut Vec<Notice>) -> bool {
        let is_done = self.progress == Progress::Begun && epoch >= self.epoch;
        if is_done {
            notices.push(Notice::Changed { direction: self.direction, result: Ok(self.pipeline.clone()) });
        }
        is_done
    }

    /// Whether the old stages were told that their epoch ends, and the new ones have not begun.
    pub(crate) fn is_ending(&self) -> bool {
        self.progress == Progress::Ending
    }

    /// Whether the old stages are to be ended now; once.
    pub(crate) fn ends_old(&mut self) -> bool {
        let is_ready = self.progress == Progress::Ready;
        if is_ready {
            self.progress = Progress::Ending;
        }
        is_ready
    }

    /// The new stages, once the old ones have ended.
    pub(crate) fn take_new(&mut self) -> Option<Segment> {
        if self.progress != Progress::Ending {
            return None;
        }
        self.progress = Progress::Begun;
        self.segment.take()
    }

    /// The flow is to begin a new epoch after `epoch` for another reason: with the new stages if the old ones
    /// have ended, else with the old ones once more.
    pub(crate) fn handle_restart(&mut self, epoch: u32, notices: &mut Vec<Notice>) -> Option<Segment> {
        let fresh = self.take_new();
        if fresh.is_none() && self.progress != Progress::Begun && epoch.saturating_add(1) >= self.epoch {
            self.tell(epoch, notices);
        }
        fresh
    }
}

/// A change at the sink of a flow.
pub(crate) struct Next {
    /// The first epoch of the new pipeline.
    pub(crate) epoch: u32,
    /// The new pipeline.
    pub(crate) pipeline: Pipeline,
    /// Its stages.
    pub(crate) segment: Segment,
    early_controls: usize,
}

impl Next {
    /// New stages that wait for their epoch.
    pub(crate) fn new(epoch: u32, pipeline: Pipeline, segment: Segment) -> Next {
        Next { epoch, pipeline, segment, early_controls: 0 }
    }

    /// The other half of a new stage says something before the old epoch is over here.
    pub(crate) fn handle_control(&mut self, pair: u16, body: &[u8], now: Time) {
        if self.early_controls < EARLY_CONTROLS_MAX {
            self.early_controls += 1;
            self.segment.handle_control(pair, body, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry;
    use pipeline::Origin;

    #[test]
    fn the_sink_is_told_again_each_second() {
        let pipeline = Pipeline::parse("null", registry::pairs(), Origin::Local).unwrap();
        let mut switch = Switch::resume((7, FlowDirection::DeviceToApplication), 2, pipeline);
        let due = [0, 900, 1000, 1100, 2500, 3400, 3500].map(|ms| switch.is_due(Time::from_millis(ms)));
        assert_eq!(due, [false, false, true, false, true, false, true]);
        assert_eq!(switch.again_at(), Some(Time::from_millis(4500)));
    }
}
