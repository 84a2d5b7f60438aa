//! Epoch changes at the sink, with the same pipeline or a new one.
//!
//! | event | prepared stages | action |
//! |---|---|---|
//! | `Change` for a later epoch | none, or other ones | build and prepare them, answer `Changed`; or refuse |
//! | `Change` for a later epoch | the same | answer `Changed` again |
//! | `Change` for an epoch that began with them | – | answer `Begun` again |
//! | `Change` for an epoch that began without them | – | reliable: refuse; else install them, answer `Begun`, request `Resync` |
//! | `Epoch` that continues, reliable or prepared | any | wait for the end of the current epoch |
//! | any other `Epoch` | any | begin it at once and abandon the current one |
//! | a record of a later epoch | any | reliable: the record waits for `Epoch`; else begin the epoch at once |
//! | the current epoch is delivered | theirs is next | drain the old stages, install the new ones, answer `Begun` |
//! | the current epoch is delivered | none | wait: the source sends `Change` again |
//! | an epoch begins | theirs, or of an earlier epoch | install them, answer `Begun` |
//! | an epoch begins | none, or for a later epoch | install fresh stages of the current pipeline |
//!
//! A crash of this host's worker loses prepared stages. Records of a reliable flow then wait, because the old stages
//! cannot process them. Flows of other classes begin the epoch with the old stages, and again with the new ones.

use super::lifecycle::LATE_WAIT;
use super::recovery::partial_bytes;
use super::{EPOCH_ABANDONED, SinkPath, build_chain};
use crate::chain_runner::{self, ChainRunner};
use crate::pipeline_change::PipelineChangeSink;
use crate::types::Notice;
use contract::{FlowClass, Half, Partner, Time};
use pipeline::Pipeline;
use wire::FlowControl;

/// Change of the stages.
#[derive(Default)]
pub(super) struct SinkChange {
    /// Stages that wait for their epoch.
    pub(super) prepared: Option<PipelineChangeSink>,
    /// Time from which missing records of a timely flow's epoch are lost, once another epoch follows.
    pub(super) late_at: Option<Time>,
}

impl SinkPath {
    /// Handles the start of an epoch at the source. `prev`: the previous epoch and its end.
    pub(super) fn handle_epoch(
        &mut self,
        epoch: u32,
        prev: (u32, u64),
        continues: bool,
        now: Time,
        notices: &mut Vec<Notice>,
    ) {
        if epoch == self.sink.epoch() {
            self.acknowledger.repeat();
        }
        let is_later = epoch > self.sink.epoch();
        let is_prepared = self.change.prepared.as_ref().is_some_and(|change| change.epoch == epoch);
        // The previous worker may have prepared the stages.
        let may_wait = self.plan.class == FlowClass::Reliable && self.sink.epoch() > 0;
        match is_later && continues && (is_prepared || may_wait && self.sink.expect(epoch)) {
            true => self.await_epoch_end(prev, now, notices),
            false => {
                self.sink.handle_epoch_end(prev.0, prev.1);
                self.begin_epoch(epoch, now, notices);
            }
        }
    }

    /// Waits for the end of the epoch `prev`, after which the expected epoch continues the flow.
    fn await_epoch_end(&mut self, prev: (u32, u64), now: Time, notices: &mut Vec<Notice>) {
        self.begin_epoch(prev.0, now, notices);
        self.sink.expect_end(prev.1);
        self.change.late_at = Some(now.after(LATE_WAIT));
        if self.sink.is_abandoned() {
            self.install_prepared(now, notices);
            self.request_snapshot(notices);
        }
    }

    /// Begins an epoch immediately, unless it has begun, and abandons the one before.
    pub(super) fn begin_epoch(&mut self, epoch: u32, now: Time, notices: &mut Vec<Notice>) {
        if epoch <= self.sink.epoch() {
            return;
        }
        // Outputs of an abandoned epoch are not repeated.
        self.recovery.abandon_repeated();
        let is_first = self.sink.epoch() == 0;
        let discarded = self.sink.begin(epoch);
        self.drops.add(EPOCH_ABANDONED, discarded);
        self.acknowledger.handle_epoch();
        self.lifecycle.handle_epoch(epoch);
        // The first epoch uses the initial stages. They may have processed control messages already.
        if !self.install_prepared(now, notices)
            && !is_first
            && let Ok(chain) = build_chain(&self.plan)
        {
            self.stages.replace(ChainRunner::new(chain), EPOCH_ABANDONED, now, &mut self.drops);
        }
        self.save_epoch();
    }

    /// Installs the prepared stages if their epoch has begun. Returns whether it has.
    fn install_prepared(&mut self, now: Time, notices: &mut Vec<Notice>) -> bool {
        let epoch = self.sink.epoch();
        let Some(change) = self.change.prepared.take_if(|change| change.epoch <= epoch) else {
            return false;
        };
        self.stages.replace(change.stages, EPOCH_ABANDONED, now, &mut self.drops);
        self.recovery.checkpoints.are_needed = self.stages.has_state();
        self.plan.pipeline = change.pipeline.clone();
        self.change.late_at = None;
        let (flow, direction) = (self.plan.flow, self.plan.direction);
        notices.push(Notice::Flow { flow, message: FlowControl::Begun { epoch } });
        notices.push(Notice::Changed { direction, result: Ok(change.pipeline.text().into()) });
        true
    }

    /// Builds the stages for a future epoch and answers the source.
    pub fn prepare(&mut self, epoch: u32, pipeline: Pipeline, now: Time, notices: &mut Vec<Notice>) {
        let (flow, is_reliable) = (self.plan.flow, self.plan.class == FlowClass::Reliable);
        let is_over = epoch <= self.sink.epoch();
        // The source repeats its request if its worker crashed before `Begun` arrived.
        if epoch == self.sink.epoch() && is_reliable || is_over && self.plan.pipeline == pipeline {
            return notices.push(Notice::Flow { flow, message: FlowControl::Begun { epoch } });
        }
        let prepared = self.change.prepared.as_ref();
        if prepared.is_some_and(|change| change.epoch == epoch && change.pipeline == pipeline) {
            return notices
                .push(Notice::Flow { flow, message: FlowControl::Changed { epoch, refusal: None } });
        }
        let change = chain_runner::build_chain(Half::Sink, &pipeline, &self.plan.format, &self.plan.site)
            .map(|chain| PipelineChangeSink::new(epoch, pipeline, ChainRunner::new(chain)));
        let refusal = match change {
            Err(error) => Some(error.to_string()),
            // A previous worker had prepared this pipeline and crashed. The epoch began with the old pipeline.
            Ok(change) if is_over && !is_reliable => {
                self.change.prepared = Some(change);
                self.install_prepared(now, notices);
                self.save_epoch();
                self.abandon_state();
                let epoch = self.sink.epoch();
                return notices.push(Notice::Flow { flow, message: FlowControl::Resync { epoch } });
            }
            Ok(_) if is_over => Some("its epoch is over".into()),
            Ok(_) if !self.sink.expect(epoch) => Some("the change before it is not over".into()),
            Ok(change) => {
                self.change.prepared = Some(change);
                None
            }
        };
        notices.push(Notice::Flow { flow, message: FlowControl::Changed { epoch, refusal } });
    }

    /// Advances to the following epoch after everything before it was delivered. Returns whether it advanced or
    /// produced output.
    pub(super) fn advance_epoch(
        &mut self,
        partner: Option<&mut Box<dyn Partner>>,
        now: Time,
        notices: &mut Vec<Notice>,
    ) -> bool {
        let is_late = self.plan.class == FlowClass::Timely && self.change.late_at.is_some_and(|at| now >= at);
        let is_over = self.sink.is_over() || is_late && self.sink.is_ending();
        if !is_over || self.change.prepared.is_none() || !self.stages.drain(now) {
            return false;
        }
        if !self.stages.out.messages.is_empty() {
            return true;
        }
        // A partially written output cannot be repeated after its epoch is over.
        let key = self.key;
        if self.delivery_log().is_some()
            && partner.is_some_and(|partner| partial_bytes(partner.as_mut(), key).is_some())
        {
            return false;
        }
        self.send_stage_controls(notices);
        // Outputs of the previous epoch are not repeated any more.
        self.recovery.abandon_repeated();
        self.sink.advance();
        self.install_prepared(now, notices);
        self.save_epoch();
        self.acknowledger.handle_epoch();
        if self.plan.class != FlowClass::Timely {
            // The whole previous epoch was delivered.
            let (flow, epoch) = (self.plan.flow, self.sink.epoch());
            notices.push(Notice::Flow { flow, message: FlowControl::Acknowledge { epoch, next: 0 } });
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{FlowPlan, LinkFacts};
    use contract::{Body, Bytes, FlowDirection, FlowKey, Format, Message, Site};
    use modules::registry;
    use pipeline::Origin;
    use session::Limits;
    use wire::{Container, RecordHeader};

    fn pipeline(text: &str) -> Pipeline {
        Pipeline::parse(text, registry::pairs(), Origin::Local).unwrap()
    }

    fn begins(epoch: u32, prev: (u32, u64), continues: bool) -> FlowControl {
        FlowControl::Epoch { epoch, prev, continues }
    }

    fn in_first_epoch(class: FlowClass) -> SinkPath {
        let plan = FlowPlan {
            flow: 7,
            direction: FlowDirection::DeviceToApplication,
            class,
            format: Format::Bytes,
            pipeline: pipeline("compress"),
            requested: Vec::new(),
            site: Site::default(),
        };
        let mut flow = SinkPath::new(plan, FlowKey::DEFAULT, false, &Limits::default(), None).unwrap();
        flow.handle_control(&begins(1, (0, 0), false), Time::ZERO, &mut Vec::new());
        flow
    }

    /// The worker crashed after the previous epoch had ended, or before `Epoch` arrived.
    #[test]
    fn an_epoch_that_a_killed_worker_prepared_waits_for_its_pipeline() {
        let (now, notices) = (Time::ZERO, &mut Vec::new());
        for is_announced in [false, true] {
            let mut flow = in_first_epoch(FlowClass::Reliable);
            // A restored ticket has this effect.
            assert!(flow.sink.expect(2));
            match is_announced {
                true => flow.sink.expect_end(0),
                false => flow.handle_control(&begins(2, (1, 0), true), now, notices),
            }
            assert!(!flow.advance_epoch(None, now, notices));
            flow.prepare(2, pipeline("null"), now, notices);
            assert!(flow.advance_epoch(None, now, notices));
            assert_eq!((flow.sink.epoch(), flow.plan.pipeline.text()), (2, "null"));
        }
    }

    /// A flow that does not wait begins the epoch with the old pipeline, and restarts it with the new one.
    #[test]
    fn an_epoch_that_began_with_the_old_pipeline_restarts_with_the_new_one() {
        let (now, notices) = (Time::ZERO, &mut Vec::new());
        for (class, begun) in [FlowClass::State, FlowClass::Timely].into_iter().flat_map(|c| [(c, 2), (c, 3)])
        {
            let mut flow = in_first_epoch(class);
            flow.handle_control(&begins(begun, (begun - 1, 0), begun == 2), now, notices);
            assert_eq!((flow.sink.epoch(), flow.plan.pipeline.text()), (begun, "compress"));
            notices.clear();
            flow.prepare(2, pipeline("null"), now, notices);
            assert_eq!(flow.plan.pipeline.text(), "null");
            let [begun_here, changed, resync] = &notices[..] else { panic!("{notices:?}") };
            assert!(
                matches!(begun_here, Notice::Flow { message: FlowControl::Begun { epoch, .. }, .. } if *epoch == begun)
            );
            assert!(matches!(changed, Notice::Changed { result: Ok(_), .. }));
            assert!(
                matches!(resync, Notice::Flow { message: FlowControl::Resync { epoch, .. }, .. } if *epoch == begun)
            );
            notices.clear();
            flow.prepare(2, pipeline("null"), now, notices);
            assert!(
                matches!(notices[..], [Notice::Flow { message: FlowControl::Begun { epoch: 2, .. }, .. }]),
                "{notices:?}"
            );
        }
    }

    /// The worker that prepared the pipeline crashed. The new worker receives records of the epoch before `Epoch`.
    #[test]
    fn records_of_an_epoch_wait_for_its_pipeline() {
        let (now, notices) = (Time::ZERO, &mut Vec::new());
        for continues in [false, true] {
            let mut flow = in_first_epoch(FlowClass::Reliable);
            let body = Bytes::from_static(b"as it is");
            let container = Container { length: body.len() as u32, created: 0 };
            let mut record = Body::from(body.clone());
            let header = RecordHeader { flow: 7, epoch: 2, sequence: 0, container };
            record.push_front(&header.emit());
            flow.receive(Message::new(now, record), None, LinkFacts::default(), now, notices).unwrap();
            assert_eq!(flow.sink.epoch(), 1);
            if continues {
                flow.prepare(2, pipeline("null"), now, notices);
            }
            flow.handle_control(&begins(2, (1, 0), continues), now, notices);
            assert_eq!(flow.advance_epoch(None, now, notices), continues);
            assert_eq!(flow.plan.pipeline.text(), if continues { "null" } else { "compress" });
            let received = flow.sink.poll().map(|message| message.body.into_bytes());
            assert_eq!((flow.sink.epoch(), received), (2, Some(body)));
        }
    }
}
