//! One epoch of a flow follows another at its sink, with the stages of the same pipeline or of the next.

use super::keep::{Amount, partway};
use super::{Incoming, LATE_WAIT, build_chain};
use crate::driver::Notice;
use crate::segment::{self, Segment};
use crate::switch::Next;
use contract::{FlowClass, Half, Partner, Time};
use pipeline::Pipeline;
use wire::Control;

impl Incoming {
    /// The epoch that is expected goes on from `before`, which ends before that sequence.
    pub(super) fn follow(&mut self, before: (u32, u64), now: Time, notices: &mut Vec<Notice>) {
        self.begin(before.0, now, notices);
        self.sink.expect_end(before.1);
        self.over_at = Some(now.after(LATE_WAIT));
        if self.sink.is_given_up() {
            self.take_next(now, notices);
            self.handle_heard(notices);
        }
    }

    /// Begins an epoch, unless it has begun: what went before is over.
    pub(super) fn begin(&mut self, epoch: u32, now: Time, notices: &mut Vec<Notice>) {
        if epoch <= self.sink.epoch() {
            return;
        }
        // What was taken of an epoch that is over does not come again.
        (self.taken_before, self.partway_before) = (0, None);
        let is_first = self.sink.epoch() == 0;
        let held = self.sink.begin(epoch);
        self.drops.add("epoch given up", held);
        self.acknowledged = 0;
        self.unacknowledged = Amount::default();
        self.end = self.end.filter(|end| end.0 >= epoch);
        // The first epoch finds the stages as they were built, and what their halves said to them already.
        if !self.take_next(now, notices)
            && !is_first
            && let Ok(chain) = build_chain(&self.plan)
        {
            self.segment.replace(Segment::new(chain), "epoch given up", now, &mut self.drops);
        }
        self.keep_begun();
    }

    /// Puts the stages of a changed pipeline in place if their epoch has come; says whether it has.
    fn take_next(&mut self, now: Time, notices: &mut Vec<Notice>) -> bool {
        let epoch = self.sink.epoch();
        let Some(next) = self.next.take_if(|next| next.epoch <= epoch) else { return false };
        self.segment.replace(next.segment, "epoch given up", now, &mut self.drops);
        self.remembers = self.segment.remembers();
        self.plan.pipeline = next.pipeline.clone();
        self.over_at = None;
        let (flow, direction) = (self.plan.flow, self.plan.direction);
        notices.push(Notice::Control(Control::Begun { flow, epoch }));
        notices.push(Notice::Changed { direction, result: Ok(next.pipeline) });
        true
    }

    /// Builds the stages for an epoch to come.
    pub(crate) fn prepare(&mut self, epoch: u32, pipeline: Pipeline, now: Time, notices: &mut Vec<Notice>) {
        let (flow, is_reliable) = (self.plan.flow, self.plan.class == FlowClass::Reliable);
        let is_over = epoch <= self.sink.epoch();
        // The worker there that began it was killed before it heard that it has begun here.
        if epoch == self.sink.epoch() && is_reliable || is_over && self.plan.pipeline == pipeline {
            return notices.push(Notice::Control(Control::Begun { flow, epoch }));
        }
        if self.next.as_ref().is_some_and(|next| next.epoch == epoch && next.pipeline == pipeline) {
            return notices.push(Notice::Control(Control::Changed { flow, epoch, refusal: None }));
        }
        let next = segment::build_chain(Half::Sink, &pipeline, &self.plan.format, &self.plan.site)
            .map(|chain| Next::new(epoch, pipeline, Segment::new(chain)));
        let refusal = match next {
            Err(error) => Some(error.to_string()),
            // A worker before this one had prepared it, and it began with the pipeline before.
            Ok(next) if is_over && !is_reliable => {
                self.next = Some(next);
                self.take_next(now, notices);
                self.keep_begun();
                self.give_up();
                let epoch = self.sink.epoch();
                return notices.push(Notice::Control(Control::Resync { flow, epoch }));
            }
            Ok(_) if is_over => Some("its epoch is over".into()),
            Ok(_) if !self.sink.expect(epoch) => Some("the change before it is not over".into()),
            Ok(next) => {
                self.next = Some(next);
                None
            }
        };
        notices.push(Notice::Control(Control::Changed { flow, epoch, refusal }));
    }

    /// Goes on in the epoch that follows, once everything before it was handed on; says whether it did, or made
    /// something to be handed on.
    pub(super) fn go_on(
        &mut self,
        partner: Option<&mut Box<dyn Partner>>,
        now: Time,
        notices: &mut Vec<Notice>,
    ) -> bool {
        let is_late = self.plan.class == FlowClass::Timely && self.over_at.is_some_and(|at| now >= at);
        let is_over = self.sink.is_over() || is_late && self.sink.is_followed();
        // The stages that a worker before this one had prepared went with it: the source asks for them again.
        if !is_over || self.next.is_none() || !self.segment.drain(now) {
            return false;
        }
        if !self.segment.out.messages.is_empty() {
            return true;
        }
        // What it has written a part of cannot come again once its epoch is over.
        let key = self.key;
        if self.keeps().is_some() && partner.is_some_and(|partner| partway(partner.as_mut(), key).is_some()) {
            return false;
        }
        self.tell_controls(notices);
        self.sink.advance();
        self.take_next(now, notices);
        self.keep_begun();
        self.acknowledged = 0;
        self.unacknowledged = Amount::default();
        if self.plan.class != FlowClass::Timely {
            // The whole epoch before was taken.
            let (flow, epoch) = (self.plan.flow, self.sink.epoch());
            notices.push(Notice::Control(Control::Acknowledge { flow, epoch, next: 0 }));
        }
        true
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::driver::{FlowPlan, LinkFacts};
    use crate::registry;
    use contract::{Body, Bytes, FlowDirection, FlowKey, Format, Message, Site};
    use pipeline::Origin;
    use session::Limits;
    use wire::{Container, RecordHeader};

    fn pipeline(text: &str) -> Pipeline {
        Pipeline::parse(text, registry::pairs(), Origin::Local).unwrap()
    }

    fn begins(epoch: u32, before: (u32, u64), goes_on: bool) -> Control {
        Control::Epoch { flow: 7, epoch, before, goes_on }
    }

    pub(in crate::incoming) fn in_its_first_epoch(class: FlowClass) -> Incoming {
        let plan = FlowPlan {
            flow: 7,
            direction: FlowDirection::DeviceToApplication,
            class,
            format: Format::Bytes,
            pipeline: pipeline("compress"),
            site: Site::default(),
        };
        let mut flow = Incoming::new(plan, FlowKey::DEFAULT, false, &Limits::default(), None).unwrap();
        flow.handle_control(&begins(1, (0, 0), false), Time::ZERO, &mut Vec::new());
        flow
    }

    /// It was killed when the epoch before was over, or before it was told that.
    #[test]
    fn an_epoch_that_a_killed_worker_had_prepared_waits_for_its_pipeline() {
        let (now, notices) = (Time::ZERO, &mut Vec::new());
        for is_told in [false, true] {
            let mut flow = in_its_first_epoch(FlowClass::Reliable);
            // As a ticket has it.
            assert!(flow.sink.expect(2));
            match is_told {
                true => flow.sink.expect_end(0),
                false => flow.handle_control(&begins(2, (1, 0), true), now, notices),
            }
            assert!(!flow.go_on(None, now, notices));
            flow.prepare(2, pipeline("null"), now, notices);
            assert!(flow.go_on(None, now, notices));
            assert_eq!((flow.sink.epoch(), flow.plan.pipeline.text()), (2, "null"));
        }
    }

    /// The same, of a flow that waits for nothing: it begins with the pipeline before, and anew with its own.
    #[test]
    fn an_epoch_that_began_with_the_pipeline_before_begins_anew_with_its_own() {
        let (now, notices) = (Time::ZERO, &mut Vec::new());
        for (class, begun) in [FlowClass::State, FlowClass::Timely].into_iter().flat_map(|c| [(c, 2), (c, 3)])
        {
            let mut flow = in_its_first_epoch(class);
            flow.handle_control(&begins(begun, (begun - 1, 0), begun == 2), now, notices);
            assert_eq!((flow.sink.epoch(), flow.plan.pipeline.text()), (begun, "compress"));
            notices.clear();
            flow.prepare(2, pipeline("null"), now, notices);
            assert_eq!(flow.plan.pipeline.text(), "null");
            let [begun_here, changed, resync] = &notices[..] else { panic!("{notices:?}") };
            assert!(matches!(begun_here, Notice::Control(Control::Begun { epoch, .. }) if *epoch == begun));
            assert!(matches!(changed, Notice::Changed { result: Ok(_), .. }));
            assert!(matches!(resync, Notice::Control(Control::Resync { epoch, .. }) if *epoch == begun));
            notices.clear();
            flow.prepare(2, pipeline("null"), now, notices);
            assert!(matches!(notices[..], [Notice::Control(Control::Begun { epoch: 2, .. })]), "{notices:?}");
        }
    }

    /// A worker was killed that had prepared the pipeline of an epoch, and the next one has its records before any word of it.
    #[test]
    fn records_of_an_epoch_wait_for_its_pipeline() {
        let (now, notices) = (Time::ZERO, &mut Vec::new());
        for goes_on in [false, true] {
            let mut flow = in_its_first_epoch(FlowClass::Reliable);
            let body = Bytes::from_static(b"as it is");
            let container = Container { length: body.len() as u32, created: 0 };
            let mut record = Body::from(body.clone());
            let header = RecordHeader { flow: 7, epoch: 2, sequence: 0, container };
            record.push_front(&header.emit());
            flow.take_record(Message::new(now, record), None, LinkFacts::default(), now, notices).unwrap();
            assert_eq!(flow.sink.epoch(), 1);
            if goes_on {
                flow.prepare(2, pipeline("null"), now, notices);
            }
            flow.handle_control(&begins(2, (1, 0), goes_on), now, notices);
            assert_eq!(flow.go_on(None, now, notices), goes_on);
            assert_eq!(flow.plan.pipeline.text(), if goes_on { "null" } else { "compress" });
            let came = flow.sink.poll().map(|message| message.body.into_bytes());
            assert_eq!((flow.sink.epoch(), came), (2, Some(body)));
        }
    }
}
