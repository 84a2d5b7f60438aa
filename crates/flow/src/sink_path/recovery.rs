//! Saves the state of a sink in its recovery log, and resumes from it.
//!
//! The ticket holds the position up to which the partner accepted everything; the source retransmits from there.
//! Stages with state need their state at that position too. Their ticket therefore advances only with a checkpoint,
//! when an acknowledgement is due. A new worker restores the checkpoint, receives the later records again, and skips
//! the outputs that the partner already accepted. The source discards records only after an acknowledgement, so one
//! checkpoint per acknowledgement is enough.
//!
//! | event | saved | next |
//! |---|---|---|
//! | before an output is pushed, and before a flush | a push starts: its output is in doubt | |
//! | the partner accepted the output | the number of accepted outputs, the bytes of a partial one | |
//! | an acknowledgement is due, stages with state | | a checkpoint is due |
//! | a run is complete, the partner accepted everything, a checkpoint is due | the checkpoint, then the ticket | acknowledge |
//! | a run is complete, the partner accepted everything, stages without state | the ticket, if it advanced | acknowledge |
//! | an epoch begins with fresh stages | the ticket | no checkpoint is due |
//! | a new worker skips repeated outputs | nothing: the position stays | |
//! | a new worker's partial output never comes again | its written bytes, until the next push tells the partner | |

use super::acknowledge::longest_wait;
use super::{SinkPath, build_chain};
use crate::chain_runner::ChainRunner;
use crate::recovery::{RecoveryLog, SavedSink};
use crate::source_path::PEER_RESTARTED;
use crate::types::{DriverError, FlowPlan, Notice};
use contract::{Body, Ctl, CtlReply, FlowClass, FlowKey, Partner, RecoveryCtl, Time};
use pipeline::DropCounts;
use session::{Limits, SinkFlow};
use wire::FlowControl;
use wire::ticket::{FlowTicket, SinkTicket};

/// Saved state of a sink.
pub(super) struct SinkRecovery {
    pub(super) log: Option<RecoveryLog>,
    /// The ticket in the log.
    ticket: Option<SinkTicket>,
    pub(super) checkpoints: Checkpoints,
    pub(super) repeated: RepeatedOutputs,
    /// The path resumed after a crash and has not requested a snapshot yet.
    pub(super) needs_resync: bool,
}

/// Checkpoints of the stages.
#[derive(Debug, Default)]
pub(super) struct Checkpoints {
    /// The stages keep state: each acknowledgement needs a checkpoint.
    pub(super) are_needed: bool,
    /// A checkpoint is due as soon as the partner has accepted everything.
    is_due: bool,
    /// Length of the last checkpoint.
    last_bytes: usize,
    /// The last checkpoint was too large for the log: a new worker starts with fresh stages.
    is_missing: bool,
}

/// Outputs that the partner accepted from the previous worker, and that the stages emit again.
#[derive(Debug, Default)]
pub(super) struct RepeatedOutputs {
    /// Outputs accepted completely.
    pub(super) count: u64,
    /// Bytes that the partner wrote of the output after them.
    pub(super) partial_bytes: Option<u64>,
}

impl SinkRecovery {
    /// Handles that the source does not repeat the outputs that the previous worker had pushed.
    pub(super) fn abandon_repeated(&mut self) {
        let repeated = std::mem::take(&mut self.repeated);
        if let (Some(log), Some(bytes)) = (&self.log, repeated.partial_bytes) {
            log.abandon_partial(bytes);
        }
    }
}

impl RepeatedOutputs {
    fn is_empty(&self) -> bool {
        self.count == 0 && self.partial_bytes.is_none()
    }
}

/// Creates the sink from the saved state, if there is any, and builds its stages.
pub(super) fn resume(
    plan: &mut FlowPlan,
    limits: &Limits,
    mut log: Option<RecoveryLog>,
) -> Result<(SinkFlow, ChainRunner, DropCounts, SinkRecovery), DriverError> {
    let mut sink = SinkFlow::new(plan.class, limits);
    let mut drops = DropCounts::default();
    let saved = log.as_mut().and_then(RecoveryLog::sink).filter(|saved| saved.ticket.flow == plan.flow);
    if let (Some(log), None) = (&log, &saved) {
        drops = log.losses().drop_counts();
    }
    if let Some(saved) = &saved {
        plan.resume_pipeline(&saved.pipeline);
        sink = SinkFlow::resume(&saved.ticket, plan.class, limits).unwrap_or(sink);
        drops = saved.losses.drop_counts();
    }
    let mut chain = build_chain(plan)?;
    let are_needed = chain.remembers();
    let is_restorable = |saved: &&SavedSink| are_needed && !saved.checkpoint.is_empty();
    let mut is_restored = false;
    if let Some(saved) = saved.as_ref().filter(is_restorable) {
        is_restored = chain.restore(Body::from(saved.checkpoint.clone())).is_ok();
        if !is_restored {
            // An unusable checkpoint is ignored.
            chain = build_chain(plan)?;
        }
    }
    let mut stages = ChainRunner::new(chain);
    if saved.is_some() && !is_restored {
        stages.note_gap();
    }
    let mut recovery = SinkRecovery {
        log,
        ticket: None,
        checkpoints: Checkpoints { are_needed, ..Checkpoints::default() },
        needs_resync: saved.is_some(),
        repeated: saved.map_or_else(RepeatedOutputs::default, |saved| RepeatedOutputs {
            count: saved.accepted,
            partial_bytes: Some(saved.partial_bytes).filter(|bytes| *bytes > 0),
        }),
    };
    if plan.class != FlowClass::Reliable {
        recovery.abandon_repeated();
    }
    Ok((sink, stages, drops, recovery))
}

impl SinkPath {
    /// Takes the recovery log and the drop counts, for a rebuilt path.
    pub fn into_handover(mut self) -> (u32, Option<RecoveryLog>, DropCounts) {
        self.recovery.abandon_repeated();
        self.stages.settle(&mut self.drops);
        let held = self.sink.abandon() + (self.stages.at_risk() + self.stages.out.messages.len()) as u64;
        self.drops.add(PEER_RESTARTED, held);
        (self.plan.flow, self.recovery.log, self.drops)
    }

    /// Continues the drop counts of the previous session's flow.
    pub fn inherit(&mut self, drops: DropCounts) {
        self.drops = drops;
    }

    /// Passes the saved device state to the node.
    pub fn restore_device_state(&mut self, partner: &mut dyn Partner) {
        if let Some(log) = self.recovery.log.as_mut() {
            log.restore_device_state(partner, self.key);
        }
    }

    /// Returns the recovery log, if the position advances with deliveries: for reliable flows only.
    pub(super) fn delivery_log(&mut self) -> Option<&mut RecoveryLog> {
        self.recovery.log.as_mut().filter(|_| self.plan.class == FlowClass::Reliable)
    }

    /// Notes that a flush of the partner starts.
    pub fn handle_flush(&mut self) {
        if let Some(log) = &self.recovery.log {
            log.begin_push();
        }
    }

    /// Completes a run: saves the partner's progress, unless some of it is `unflushed`, and acknowledges it.
    pub fn complete_run(
        &mut self,
        partner: Option<&mut Box<dyn Partner>>,
        unflushed: bool,
        now: Time,
        notices: &mut Vec<Notice>,
    ) {
        let (key, at_risk) = (self.key, self.at_risk());
        let dropped = self.drops.total().saturating_add(self.sink.counters().stale);
        let is_all = !unflushed && self.stages.out.messages.is_empty();
        // While outputs are repeated and skipped, the position of the ticket must not advance.
        let may_advance = self.save_checkpoint(is_all && self.recovery.repeated.is_empty(), now);
        let has_repeated_part = self.recovery.repeated.partial_bytes.is_some();
        if let Some(log) = self.recovery.log.as_mut() {
            if let Some(partner) = partner {
                log.save_device_state(partner.as_mut(), key);
                match log.is_pushing() {
                    true if has_repeated_part => log.end_flush(),
                    true => log.end_push(0, partial_bytes(partner.as_mut(), key)),
                    false => {}
                }
            }
            log.end_read(at_risk, 0);
            log.save_dropped(dropped);
        }
        let has_advanced = may_advance && self.delivery_log().is_some_and(RecoveryLog::settle);
        // The ticket and the count of accepted outputs advance together. Otherwise the next worker would skip too
        // many.
        if may_advance {
            self.sink.handle_delivered();
        }
        if has_advanced || self.recovery.ticket != Some(self.sink.ticket(self.plan.flow)) {
            self.save_ticket();
        }
        self.acknowledge(now, notices);
    }

    /// Returns the number of messages in the stages that a new worker would not get again.
    fn at_risk(&mut self) -> usize {
        let Checkpoints { are_needed, is_missing, .. } = self.recovery.checkpoints;
        match are_needed && !is_missing && self.delivery_log().is_some() {
            true => self.stages.unsaved(),
            false => self.stages.at_risk(),
        }
    }

    /// Saves a checkpoint if the stages keep state and an acknowledgement is due. `is_all`: the partner accepted
    /// everything. Returns whether the ticket's position may advance.
    fn save_checkpoint(&mut self, is_all: bool, now: Time) -> bool {
        if !self.recovery.checkpoints.are_needed || self.delivery_log().is_none() {
            return is_all;
        }
        if self.sink.next_sequence() == self.sink.delivered() {
            return false;
        }
        if !self.recovery.checkpoints.is_due && self.is_acknowledgement_due(now) {
            self.recovery.checkpoints.is_due = true;
            self.acknowledger.schedule(None);
        }
        let is_now = is_all && self.recovery.checkpoints.is_due;
        let Some(checkpoint) = is_now.then(|| self.stages.checkpoint()).flatten() else { return false };
        self.recovery.checkpoints.last_bytes = checkpoint.len();
        let is_saved = self.delivery_log().is_some_and(|log| log.save_checkpoint(&checkpoint));
        self.recovery.checkpoints.is_missing = !is_saved;
        self.recovery.checkpoints.is_due = false;
        // The checkpoint lets this run acknowledge.
        self.acknowledger.schedule(Some(now));
        true
    }

    fn is_acknowledgement_due(&mut self, now: Time) -> bool {
        let Checkpoints { are_needed, last_bytes, .. } = self.recovery.checkpoints;
        let wait = longest_wait(self.lossy, if are_needed { last_bytes } else { 0 });
        self.acknowledger.is_due(wait, now)
    }

    /// Saves the start of an epoch with fresh stages, before the partner receives any of its output.
    pub(super) fn save_epoch(&mut self) {
        let repeated = self.recovery.repeated.count;
        self.recovery.checkpoints.is_due = false;
        if let Some(log) = self.delivery_log() {
            log.begin_epoch(repeated);
        }
        self.save_ticket();
    }

    fn save_ticket(&mut self) {
        let ticket = self.sink.ticket(self.plan.flow);
        if let Some(log) = self.recovery.log.as_mut() {
            log.save_ticket(&FlowTicket::Sink(ticket), self.plan.pipeline.text());
            self.recovery.ticket = Some(ticket);
        }
    }

    /// Saves that the partner accepted `count` more outputs.
    pub(super) fn save_push(&mut self, count: u64, partner: &mut dyn Partner) {
        let key = self.key;
        if let Some(log) = self.recovery.log.as_mut() {
            log.end_push(count, partial_bytes(partner, key));
        }
    }

    /// Advances a pending acknowledgement to the next run. Returns whether one is pending.
    pub fn ack_now(&mut self, now: Time) -> bool {
        let is_pending = self.acknowledger.due_at().is_some_and(|at| at > now);
        if is_pending {
            self.acknowledger.schedule(Some(now));
        }
        is_pending
    }

    /// Sends an acknowledgement, if one is due.
    fn acknowledge(&mut self, now: Time, notices: &mut Vec<Notice>) {
        let next = self.sink.delivered();
        let is_acknowledged = self.plan.class != FlowClass::Timely && self.sink.epoch() > 0;
        if is_acknowledged && self.acknowledger.is_new(next) && self.is_acknowledgement_due(now) {
            let (flow, epoch) = (self.plan.flow, self.sink.epoch());
            notices.push(Notice::Flow { flow, message: FlowControl::Acknowledge { epoch, next } });
            self.acknowledger.handle_sent(next);
        }
    }
}

/// Returns the bytes written of the output that the partner accepted last; `None` if it is complete or unknown.
pub(super) fn partial_bytes(partner: &mut dyn Partner, key: FlowKey) -> Option<u64> {
    match partner.ctl(key, Ctl::Recovery(RecoveryCtl::PartialWrite)) {
        Ok(CtlReply::Count(bytes)) => Some(bytes),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recovery::{map, memory};
    use crate::types::PathContext;
    use contract::{
        Attributes, Direction, FlowDirection, FlowTemplate, Format, Half, Message, PartnerError,
        PartnerResult, Pull, Pulled, Pushed, Readiness, Site,
    };
    use modules::registry;
    use pipeline::{Origin, Pipeline};
    use std::os::fd::OwnedFd;
    use std::sync::{Arc, Mutex};

    /// Notes its calls.
    #[derive(Clone, Default)]
    struct Notes(Arc<Mutex<Vec<&'static str>>>);

    impl Notes {
        fn record(&self, call: &'static str) {
            self.0.lock().unwrap().push(call);
        }
    }

    impl Partner for Notes {
        fn open(&mut self, _: &FlowTemplate, _: &Attributes) -> PartnerResult<FlowKey> {
            Ok(FlowKey::DEFAULT)
        }

        fn close(&mut self, _: FlowKey) -> PartnerResult {
            Ok(())
        }

        fn push(&mut self, _: FlowKey, _: Message) -> Result<Pushed, (PartnerError, Message)> {
            self.record("push");
            Ok(Pushed::Taken)
        }

        fn pull(&mut self, _: FlowKey, _: Pull<'_>) -> PartnerResult<Pulled> {
            Ok(Pulled::Nothing)
        }

        fn ctl(&mut self, _: FlowKey, operation: Ctl<'_>) -> PartnerResult<CtlReply> {
            match operation {
                Ctl::Recovery(RecoveryCtl::Skip(7)) => self.record("skip"),
                Ctl::Recovery(RecoveryCtl::Abandon(7)) => self.record("abandon"),
                _ => return Err(PartnerError::Unsupported("this")),
            }
            Ok(CtlReply::Done)
        }

        fn readiness(&self, _: FlowKey, _: Direction) -> Readiness<'_> {
            Readiness::never()
        }
    }

    fn plan(class: FlowClass, pipeline: &str) -> FlowPlan {
        FlowPlan {
            flow: 0,
            direction: FlowDirection::DeviceToApplication,
            class,
            format: Format::Bytes,
            pipeline: Pipeline::parse(pipeline, registry::pairs(), Origin::Local).unwrap(),
            requested: Vec::new(),
            site: Site::default(),
        }
    }

    /// Resumes the path of a worker that was killed.
    fn resumed(class: FlowClass, pipeline: &str, memory: &OwnedFd) -> SinkPath {
        let limits = Limits::default();
        let [log, _] = map(memory.try_clone().unwrap(), &limits).unwrap();
        SinkPath::new(plan(class, pipeline), FlowKey::DEFAULT, false, &limits, Some(log)).unwrap()
    }

    /// The ticket of a sink with `next` delivered messages.
    fn ticket(next: u64) -> FlowTicket {
        let (flow, epoch, abandoned, lost, upcoming, trimmed_to) = (0, 1, 0, 0, None, (0, 0));
        FlowTicket::Sink(SinkTicket { flow, epoch, abandoned, next, lost, upcoming, trimmed_to })
    }

    #[test]
    fn fec_does_not_recover_messages_that_were_delivered_before_a_crash() {
        let text = "fec(data=8, parity=8, wait=10s)";
        let plan = plan(FlowClass::Reliable, text);
        let chain =
            crate::chain_runner::build_chain(Half::Source, &plan.pipeline, &plan.format, &plan.site).unwrap();
        let mut source = ChainRunner::new(chain);
        (0..8u8).for_each(|number| source.feed(Message::new(Time(1), vec![number]), Time(1)));
        let records: Vec<Message> = source.out.messages.drain(..).collect();
        assert_eq!(records.len(), 16);
        for delivered in [0, 3] {
            let memory = memory(&Limits::default()).unwrap();
            let [mut log, _] = map(memory.try_clone().unwrap(), &Limits::default()).unwrap();
            log.save_ticket(&ticket(delivered), text);
            let mut path = resumed(FlowClass::Reliable, text, &memory);
            records[delivered as usize..].iter().for_each(|record| path.stages.feed(record.clone(), Time(1)));
            let received: Vec<_> =
                path.stages.out.messages.drain(..).map(|message| message.body.into_bytes()[0]).collect();
            assert_eq!(received, (delivered as u8..8).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_partner_learns_whether_a_partial_output_comes_again() {
        let cases = [
            (FlowClass::Reliable, false, ["skip", "push"]),
            (FlowClass::Reliable, true, ["abandon", "push"]),
            (FlowClass::Timely, false, ["abandon", "push"]),
            (FlowClass::State, true, ["abandon", "push"]),
        ];
        for (class, has_new_epoch, expected) in cases {
            let limits = Limits::default();
            let memory = memory(&limits).unwrap();
            let [mut log, _] = map(memory.try_clone().unwrap(), &limits).unwrap();
            log.save_ticket(&ticket(0), "");
            log.begin_push();
            log.end_push(1, Some(7));
            // The second worker is killed before the next output.
            for _ in 0..2 {
                let mut path = resumed(class, "", &memory);
                if has_new_epoch {
                    path.begin_epoch(2, Time::ZERO, &mut Vec::new());
                }
                path.handle_flush();
                let mut partner: Box<dyn Partner> = Box::new(Notes::default());
                path.complete_run(Some(&mut partner), false, Time::ZERO, &mut Vec::new());
            }
            let mut path = resumed(class, "", &memory);
            let notes = Notes::default();
            let mut partner: Box<dyn Partner> = Box::new(notes.clone());
            path.stages.out.messages.push_back(Message::new(Time::ZERO, Body::new()));
            let (partner, notices) = (Some(&mut partner), &mut Vec::new());
            path.run(PathContext { partner, transport: None, facts: None, now: Time::ZERO, notices })
                .unwrap();
            assert_eq!(*notes.0.lock().unwrap(), expected, "{class:?}, a new epoch: {has_new_epoch}");
        }
    }
}
