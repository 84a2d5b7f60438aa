//! The sink path of a flow: transport, reordering, sink stages in reverse, partner.
//!
//! Each purpose of the path has its own state, with a table of states and events in its module:
//!
//! - `lifecycle`: the end of the flow
//! - `epochs`: epoch changes, and the stages of a changed pipeline
//! - `acknowledge`: the time of acknowledgements
//! - `recovery`: saved state, with checkpoints of the stages
//! - `report`: requests to the source, notices to the broker, statistics
//! - `tracing`: stamps of traced messages
//!
//! A run ([`SinkPath::run`]) repeats these steps until one of them cannot proceed:
//!
//! ```text
//! 1. push all output of the stages to the partner        partner full, stages full ──► stop
//! 2. pass the next record in order to the stages         ──► 1
//! 3. advance to the next epoch                           progress ──► 1
//! 4. receive a record                                    no record, no room for it ──► stop
//! ```
//!
//! Everything is pushed before the next receive, so backpressure from the partner reaches the transport and, through
//! missing acknowledgements, the source.

mod acknowledge;
mod epochs;
mod lifecycle;
mod recovery;
mod report;
mod tracing;

use crate::chain_runner::{self, ChainRunner};
use crate::delays::Delays;
use crate::fair::{BYTES_MAX, MESSAGES_MAX};
use crate::feedback::FeedbackSender;
use crate::neutral::{StateTracker, is_tracked};
use crate::recovery::RecoveryLog;
use crate::trace;
use crate::types::{DriverError, FlowPlan, LinkFacts, Notice, PathContext, PathError, RunOutcome, Wake};
use acknowledge::Acknowledger;
use contract::{
    Attributes, Ctl, CtlReply, Direction, FlowClass, FlowKey, FlowTemplate, Format, Half, Message, Partner,
    PartnerError, PartnerResult, Pull, Pulled, Pushed, Readiness, RecoveryCtl, Time, TransportCtl,
};
use epochs::SinkChange;
use lifecycle::Lifecycle;
use pipeline::{Chain, DropCounts, Point};
use recovery::SinkRecovery;
use session::{Limits, Received, SinkFlow};
use std::time::Duration;
use sys::poller::Poller;
use tracing::{Read, SinkTracing};
use wire::{BODY_BYTES_MAX, FlowControl, RecordHeader};

/// Creation times further in the future than this are wrong: clock synchronization is more precise.
const AHEAD_MAX: Duration = Duration::from_secs(1);
/// Drop reason of messages whose epoch the source, or this host, does not continue.
const EPOCH_ABANDONED: &str = "epoch abandoned";

/// One flow's path from the transport to the partner.
pub struct SinkPath {
    plan: FlowPlan,
    key: FlowKey,
    stages: ChainRunner,
    sink: SinkFlow,
    /// The transport may lose records.
    lossy: bool,
    lifecycle: Lifecycle,
    change: SinkChange,
    acknowledger: Acknowledger,
    /// Time of the next request for missing records.
    missing_at: Option<Time>,
    feedback: FeedbackSender,
    delays: Delays,
    /// The partner's state, if it is tracked.
    state: StateTracker,
    /// The peer is silent: the partner stays neutral, whatever the stages still release.
    is_peer_silent: bool,
    /// The peer's device is absent: the partner stays neutral, whatever records still arrive.
    is_device_absent: bool,
    /// Messages that the partner accepted.
    delivered: u64,
    drops: DropCounts,
    tracing: SinkTracing,
    recovery: SinkRecovery,
}

impl SinkPath {
    /// Builds the path, and resumes it if `log` holds saved state.
    pub fn new(
        mut plan: FlowPlan,
        key: FlowKey,
        lossy: bool,
        limits: &Limits,
        log: Option<RecoveryLog>,
    ) -> Result<Self, DriverError> {
        let (sink, stages, drops, recovery) = recovery::resume(&mut plan, limits, log)?;
        Ok(SinkPath {
            plan,
            key,
            stages,
            sink,
            lossy,
            lifecycle: Lifecycle::default(),
            change: SinkChange::default(),
            acknowledger: Acknowledger::new(limits),
            missing_at: None,
            feedback: FeedbackSender::default(),
            delays: Delays::default(),
            state: StateTracker::default(),
            is_peer_silent: false,
            is_device_absent: false,
            delivered: 0,
            drops,
            tracing: SinkTracing::default(),
            recovery,
        })
    }

    /// Returns the number of the flow.
    pub fn flow(&self) -> u32 {
        self.plan.flow
    }

    /// Returns the flow's template for a partner in this direction.
    pub fn template(&self, direction: Direction) -> FlowTemplate {
        FlowTemplate { direction, format: self.plan.format.clone(), class: self.plan.class }
    }

    /// Opens the flow again on a device that returned. The device has lost its output state, so a snapshot is
    /// requested.
    pub fn reopen(&mut self, partner: &mut dyn Partner, notices: &mut Vec<Notice>) -> PartnerResult {
        self.key = partner.open(&self.template(Direction::In), &Attributes::default())?;
        self.state.clear();
        if let Some(log) = self.recovery.log.as_mut() {
            log.forget_device_state();
            log.forget_partial();
        }
        self.recovery.repeated.partial_bytes = None;
        self.handle_resync(notices);
        Ok(())
    }

    /// Requests a new snapshot, since the partner missed messages.
    pub fn handle_resync(&mut self, notices: &mut Vec<Notice>) {
        self.abandon_state();
        self.request_snapshot(notices);
    }

    /// Discards the received state of a state flow.
    fn abandon_state(&mut self) {
        if self.plan.class == FlowClass::State && !self.sink.is_abandoned() {
            let held = self.sink.abandon();
            self.drops.add("stale", held);
        }
    }

    /// Starts with a new data connection, without pending kernel timestamps.
    pub fn handle_link(&mut self) {
        self.tracing.arrivals = trace::Arrivals::default();
    }

    /// Handles the peer's silence: discards received state and makes the partner neutral.
    pub fn handle_silence(&mut self, cx: PathContext<'_>) {
        self.is_peer_silent = true;
        self.abandon_state();
        self.go_neutral(cx);
    }

    /// Requests a snapshot after silence, if received state was discarded.
    pub fn handle_silence_end(&mut self, notices: &mut Vec<Notice>) {
        self.is_peer_silent = false;
        self.request_snapshot(notices);
    }

    /// Handles the loss of the peer's device: records in flight change nothing any more. A state flow gets a new epoch when the
    /// device returns.
    pub fn handle_absence(&mut self, cx: PathContext<'_>) {
        self.is_device_absent = true;
        self.abandon_state();
        self.go_neutral(cx);
    }

    /// Handles the return of the peer's device. Its state may have arrived before this was known.
    pub fn handle_absence_end(&mut self, notices: &mut Vec<Notice>) {
        if std::mem::take(&mut self.is_device_absent) {
            self.request_snapshot(notices);
        }
    }

    fn go_neutral(&mut self, cx: PathContext<'_>) {
        let is_tracked = is_tracked(self.plan.class, &self.plan.format);
        match self.plan.class {
            FlowClass::Reliable if !is_tracked => return,
            // It keeps its messages: it resumes with them.
            FlowClass::Reliable => {}
            FlowClass::State | FlowClass::Timely => {
                if let Ok(chain) = build_chain(&self.plan) {
                    self.stages.replace(ChainRunner::new(chain), "stale", cx.now, &mut self.drops);
                }
            }
        }
        self.state.clear();
        if let Some(partner) = cx.partner {
            // A partner without a neutral state returns an error, which is harmless.
            let _ = partner.ctl(self.key, Ctl::Neutral);
        }
    }

    /// Returns whether the flow holds something that the loss of the link would harm: records that are not acknowledged,
    /// or a partner whose state is not neutral.
    pub fn is_holding(&self, partner: Option<&mut Box<dyn Partner>>) -> bool {
        let is_due = self.acknowledger.due_at().is_some() || self.is_missing_records();
        let is_waiting = !self.stages.out.messages.is_empty() || self.change.late_at.is_some();
        let is_held = is_due || is_waiting || self.lifecycle.pending_end().is_some();
        is_held
            || is_tracked(self.plan.class, &self.plan.format) && !self.state.is_neutral_at(partner, self.key)
    }

    /// Returns whether records before others are missing, which only a lossy transport loses.
    fn is_missing_records(&self) -> bool {
        self.lossy && self.sink.has_gap()
    }

    /// Handles a control message, if it is for this flow.
    pub fn handle_control(&mut self, message: &FlowControl, now: Time, notices: &mut Vec<Notice>) {
        match message {
            FlowControl::Pair { epoch, pair, body } if *epoch == self.sink.epoch() => {
                self.stages.handle_control(*pair, body, now);
            }
            FlowControl::Pair { epoch, pair, body } => {
                if let Some(change) = self.change.prepared.as_mut().filter(|change| change.epoch == *epoch) {
                    change.handle_control(*pair, body, now);
                }
            }
            FlowControl::Trimmed { epoch, sequence } => {
                self.sink.handle_trimmed(*epoch, *sequence);
            }
            FlowControl::End { epoch, sequence } => {
                self.lifecycle.handle_end(*epoch, *sequence, now);
            }
            FlowControl::Epoch { epoch, prev, continues } => {
                self.handle_epoch(*epoch, *prev, *continues, now, notices);
            }
            _ => {}
        }
        self.report(now, notices);
    }

    /// Moves all messages that can move now, within the limits of one turn.
    pub fn run(&mut self, cx: PathContext<'_>) -> Result<RunOutcome, PathError> {
        let PathContext { mut partner, mut transport, facts, now, notices } = cx;
        // Creation times have no meaning before the clocks are synchronized.
        transport = transport.filter(|_| facts.is_some());
        let facts = facts.unwrap_or_default();
        // Stages cannot send control messages before the source has named its epoch.
        let has_epoch = self.sink.epoch() > 0;
        let mut outcome =
            RunOutcome { progress: has_epoch && self.stages.run_timeouts(now), ..RunOutcome::default() };
        if std::mem::take(&mut self.recovery.needs_resync) {
            self.handle_resync(notices);
        }
        self.trace_prepare(transport.as_deref_mut(), now);
        let mut budget = MESSAGES_MAX;
        loop {
            if !self.push_out(partner.as_deref_mut(), now, &mut outcome)? || !self.stages.has_room() {
                break;
            }
            if let Some(message) = self.sink.poll() {
                self.acknowledger.add(message.body.len());
                self.stages.stamp(&message, Point::Ordered);
                self.stages.feed(message, now);
                continue;
            }
            if self.advance_epoch(partner.as_deref_mut(), now, notices) {
                continue;
            }
            // The next records of a stream belong to an epoch that cannot begin yet.
            if !self.lossy && self.sink.is_full() {
                break;
            }
            if budget == 0 || outcome.bytes >= BYTES_MAX as u64 {
                outcome.progress = true;
                break;
            }
            budget -= 1;
            let Some(transport) = transport.as_mut() else { break };
            let read_at = self.trace_read_start();
            let pulled = transport.pull(FlowKey::DEFAULT, Pull::Yours).map_err(PathError::Transport)?;
            outcome.count(&pulled);
            match pulled {
                Pulled::Message(_, record) => {
                    self.is_peer_silent = false;
                    let read = read_at.map(|at| (at, trace::arrival(transport.as_mut())));
                    if let Some(header) = self.receive(record, read, facts, now, notices)? {
                        let RecordHeader { flow, epoch, sequence, .. } = header;
                        // A transport that loses nothing returns an error, which is harmless.
                        let overflow = TransportCtl::Overflow { flow, epoch, sequence };
                        let _ = transport.ctl(FlowKey::DEFAULT, Ctl::Transport(overflow));
                    }
                }
                Pulled::End => return Err(PathError::Closed),
                _ => break,
            }
        }
        // A state flow has abandoned the epoch of the absent device.
        let is_absent = self.is_device_absent && self.plan.class == FlowClass::Reliable;
        if (self.is_peer_silent || is_absent)
            && is_tracked(self.plan.class, &self.plan.format)
            && outcome.pushed
            && let Some(partner) = partner.as_deref_mut()
        {
            // A stage released messages from before the silence, or they arrived after the device was gone.
            self.state.clear();
            let _ = partner.ctl(self.key, Ctl::Neutral);
        }
        self.finish(partner, now, notices, &mut outcome)?;
        // A record that nobody reads now would be requested again and again.
        let reads = self.stages.out.messages.is_empty() && self.stages.has_room();
        self.request_missing(transport.is_some() && reads, (now, facts), notices);
        self.report(now, notices);
        Ok(outcome)
    }

    /// Pushes the stages' output to the partner. Returns whether none remains.
    fn push_out(
        &mut self,
        partner: Option<&mut Box<dyn Partner>>,
        now: Time,
        outcome: &mut RunOutcome,
    ) -> Result<bool, PathError> {
        if self.stages.out.messages.is_empty() {
            return Ok(true);
        }
        let Some(partner) = partner else {
            if self.plan.class == FlowClass::Reliable {
                return Ok(false);
            }
            self.drops.add("device gone", self.stages.out.messages.len() as u64);
            self.stages.out.messages.clear();
            return Ok(true);
        };
        while let Some(mut message) = self.stages.out.messages.pop_front() {
            if self.recovery.repeated.count > 0 {
                self.recovery.repeated.count -= 1;
                continue;
            }
            if let Some(bytes) = self.recovery.repeated.partial_bytes.take() {
                // A partner that reports partial writes also supports this operation.
                let _ = partner.ctl(self.key, Ctl::Recovery(RecoveryCtl::Skip(bytes)));
            }
            if let Some(log) = &self.recovery.log {
                if let Some(bytes) = log.abandoned() {
                    // A partner whose messages have different sizes refuses, which is harmless.
                    let reply = partner.ctl(self.key, Ctl::Recovery(RecoveryCtl::Abandon(bytes)));
                    log.end_abandoned(reply.is_ok());
                }
                log.begin_push();
            }
            self.delays.record(message.created, now);
            self.stages.stamp(&message, Point::Handing);
            let mark = message.attributes.mark;
            if is_tracked(self.plan.class, &self.plan.format) {
                self.state.observe(&self.plan.format, &mut message.body);
            }
            match partner.push(self.key, message) {
                Ok(Pushed::Taken) => {
                    self.delivered += 1;
                    outcome.pushed = true;
                    self.save_push(1, partner.as_mut());
                    self.trace_handed(mark);
                    self.report_fill(partner.as_mut(), now);
                }
                Ok(Pushed::Full(message)) => {
                    self.stages.out.messages.push_front(message);
                    self.save_push(0, partner.as_mut());
                    return Ok(false);
                }
                Err((PartnerError::Message(_), _)) => {
                    self.drops.add_loss("refused by the device", 1);
                    self.save_push(1, partner.as_mut());
                    // It may have another rate than the device, which the stages learn by this report only.
                    self.report_fill(partner.as_mut(), now);
                }
                Err((error, message)) => {
                    match self.plan.class {
                        FlowClass::Reliable => self.stages.out.messages.push_front(message),
                        _ => self.drops.add("device gone", 1),
                    }
                    return Err(PathError::Partner(error));
                }
            }
        }
        Ok(true)
    }

    /// Tells the stages how much sound the partner holds. Their next message is resampled accordingly.
    fn report_fill(&mut self, partner: &mut dyn Partner, now: Time) {
        if self.plan.format == Format::Audio
            && let Ok(CtlReply::Fill(fill)) = partner.ctl(self.key, Ctl::Fill)
        {
            self.stages.handle_fill(fill, now);
        }
    }

    /// Processes a received record. Returns its header if there is no room for it.
    fn receive(
        &mut self,
        mut record: Message,
        read: Option<Read>,
        facts: LinkFacts,
        now: Time,
        notices: &mut Vec<Notice>,
    ) -> Result<Option<RecordHeader>, PathError> {
        let wrong = |problem: String| PathError::Transport(PartnerError::Peer(problem));
        let bytes = record
            .body
            .take_front::<{ RecordHeader::BYTES }>()
            .ok_or_else(|| wrong("a record shorter than its header".into()))?;
        let header = RecordHeader::parse(&bytes, BODY_BYTES_MAX).map_err(|error| wrong(error.to_string()))?;
        if header.flow != self.plan.flow || header.container.length as usize != record.body.len() {
            return Err(wrong(format!("a record of flow {} with a wrong flow or length", header.flow)));
        }
        record.created = creation_time(header.container.created, facts, now);
        self.trace_received(&mut record, &header, read);
        let received = match self.sink.handle(&header, record) {
            Received::NewEpoch(record) => {
                // `Epoch` arrives after the pipeline that the epoch may need. The previous worker may have prepared
                // that pipeline.
                let waits = self.plan.class == FlowClass::Reliable && self.sink.expect(header.epoch);
                if !waits {
                    self.begin_epoch(header.epoch, now, notices);
                }
                self.sink.handle(&header, record)
            }
            received => received,
        };
        match received {
            Received::Stale => self.drops.add("stale", 1),
            Received::Overflow => return Ok(Some(header)),
            Received::Accepted | Received::Repeated | Received::NewEpoch(_) => {}
        }
        Ok(None)
    }

    /// Ends the flow after everything before its end was delivered.
    fn finish(
        &mut self,
        partner: Option<&mut Box<dyn Partner>>,
        now: Time,
        notices: &mut Vec<Notice>,
        outcome: &mut RunOutcome,
    ) -> Result<(), PathError> {
        let end = self.lifecycle.pending_end().filter(|end| end.epoch == self.sink.epoch());
        let Some(end) = end else { return Ok(()) };
        let is_complete = self.sink.next_sequence() >= end.sequence;
        let is_late = now >= end.late_at;
        // Over a stream transport too: `End` has its own connection and may overtake the records.
        if !is_complete && (self.plan.class == FlowClass::Reliable || !is_late) {
            return Ok(());
        }
        self.sink.handle_end(end.epoch, end.sequence);
        if self.lifecycle.is_receiving() {
            if self.stages.drain(now) {
                self.lifecycle.handle_drained();
                outcome.progress = true;
            }
            return Ok(());
        }
        if !self.stages.out.messages.is_empty() {
            return Ok(());
        }
        // The broker may stop at the report of the end.
        self.stages.report_failures(self.plan.class, &mut self.drops, notices);
        let Some(partner) = partner else { return Ok(()) };
        if !CtlReply::is_complete(partner.ctl(self.key, Ctl::Finish)).map_err(PathError::Partner)? {
            return Ok(());
        }
        self.lifecycle.handle_finished();
        self.acknowledger.schedule(Some(now));
        let failure = self.stages.failure(&self.drops).filter(|_| self.delivered == 0);
        notices.push(failure.map_or(Notice::FlowEnded(self.plan.direction), Notice::Failed));
        Ok(())
    }

    /// Registers the descriptors and timers of the path.
    pub fn register(
        &self,
        partner: Option<&dyn Partner>,
        transport: Option<&dyn Partner>,
        poller: &mut Poller,
        wake: &mut Wake,
    ) {
        if self.sink.epoch() > 0 {
            self.stages.register(poller, wake);
        }
        for at in [self.acknowledger.due_at(), self.missing_at, self.change.late_at] {
            wake.at(at);
        }
        if let Some(end) = self.lifecycle.pending_end().filter(|_| self.lifecycle.is_receiving()) {
            // Late records have a deadline, unless the flow is reliable, and so do messages held by the stages.
            let late_at = Some(end.late_at).filter(|_| self.plan.class != FlowClass::Reliable);
            wake.at(self.stages.drain_timeout().or(late_at));
        }
        let is_blocked = !self.stages.out.messages.is_empty();
        if let Some(partner) = partner.filter(|_| is_blocked || self.lifecycle.is_finishing()) {
            let readiness = partner.readiness(self.key, Direction::In);
            wake.add(poller, Readiness { now: readiness.now && is_blocked, ..readiness });
        }
        // Stages that are not prepared yet have no deadline.
        if self.sink.is_ending() && self.change.prepared.is_some() {
            wake.at(self.stages.drain_timeout());
        }
        let is_waiting = !self.lossy && self.sink.is_full();
        if !is_blocked
            && !is_waiting
            && self.stages.has_room()
            && let Some(transport) = transport
        {
            wake.add(poller, transport.readiness(FlowKey::DEFAULT, Direction::Out));
        }
    }
}

fn build_chain(plan: &FlowPlan) -> Result<Chain, DriverError> {
    chain_runner::build_chain(Half::Sink, &plan.pipeline, &plan.format, &plan.site)
        .map_err(|error| DriverError::Pipeline(error.to_string()))
}

/// Converts a creation time from the peer's clock to this host's clock. It is capped, because a stage that plays
/// messages at their times would stall on one from the far future.
fn creation_time(created: u64, facts: LinkFacts, now: Time) -> Time {
    Time(created).shifted(facts.offset).min(now.after(AHEAD_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use contract::{Body, Fill, FlowDirection, Offset, Site};
    use modules::registry;
    use pipeline::{Origin, Pipeline};
    use std::sync::{Arc, Mutex};
    use wire::Container;
    use wire::formats::audio::{Frames, SampleFormat, SampleSpec};

    /// Plays sound of one rate, and refuses any other.
    struct Player;

    const RATE_HZ: u32 = 48_000;

    impl Partner for Player {
        fn open(&mut self, _: &FlowTemplate, _: &Attributes) -> PartnerResult<FlowKey> {
            Ok(FlowKey::DEFAULT)
        }

        fn close(&mut self, _: FlowKey) -> PartnerResult {
            Ok(())
        }

        fn push(&mut self, _: FlowKey, mut message: Message) -> Result<Pushed, (PartnerError, Message)> {
            let rate_hz = Frames::parse(message.body.as_slice()).unwrap().spec.rate_hz;
            match rate_hz {
                RATE_HZ => Ok(Pushed::Taken),
                _ => Err((PartnerError::Message(format!("{rate_hz} Hz")), message)),
            }
        }

        fn pull(&mut self, _: FlowKey, _: Pull<'_>) -> PartnerResult<Pulled> {
            Ok(Pulled::Nothing)
        }

        fn ctl(&mut self, _: FlowKey, operation: Ctl<'_>) -> PartnerResult<CtlReply> {
            let (held, target, lead) = Default::default();
            match operation {
                Ctl::Fill => Ok(CtlReply::Fill(Fill { held, target, lead, rate_hz: RATE_HZ })),
                _ => Ok(CtlReply::Done),
            }
        }

        fn readiness(&self, _: FlowKey, _: Direction) -> Readiness<'_> {
            Readiness::never()
        }
    }

    /// An instrument that tells its keys.
    struct Instrument(Arc<Mutex<String>>);

    impl Partner for Instrument {
        fn open(&mut self, _: &FlowTemplate, _: &Attributes) -> PartnerResult<FlowKey> {
            Ok(FlowKey::DEFAULT)
        }

        fn close(&mut self, _: FlowKey) -> PartnerResult {
            Ok(())
        }

        fn push(&mut self, _: FlowKey, _: Message) -> Result<Pushed, (PartnerError, Message)> {
            self.0.lock().unwrap().push_str("down ");
            Ok(Pushed::Taken)
        }

        fn pull(&mut self, _: FlowKey, _: Pull<'_>) -> PartnerResult<Pulled> {
            Ok(Pulled::Nothing)
        }

        fn ctl(&mut self, _: FlowKey, operation: Ctl<'_>) -> PartnerResult<CtlReply> {
            if let Ctl::Neutral = operation {
                self.0.lock().unwrap().push_str("neutral ");
            }
            Ok(CtlReply::Done)
        }

        fn readiness(&self, _: FlowKey, _: Direction) -> Readiness<'_> {
            Readiness::never()
        }
    }

    /// A path of sound.
    fn path(class: FlowClass, pipeline: &str) -> SinkPath {
        path_of(Format::Audio, class, pipeline)
    }

    /// A path in its first epoch, over a stream transport.
    fn path_of(format: Format, class: FlowClass, pipeline: &str) -> SinkPath {
        let plan = FlowPlan {
            flow: 7,
            direction: FlowDirection::DeviceToApplication,
            class,
            format,
            pipeline: Pipeline::parse(pipeline, registry::pairs(), Origin::Local).unwrap(),
            requested: Vec::new(),
            site: Site::default(),
        };
        let mut path = SinkPath::new(plan, FlowKey::DEFAULT, false, &Limits::default(), None).unwrap();
        let epoch = FlowControl::Epoch { epoch: 1, prev: (0, 0), continues: false };
        path.handle_control(&epoch, Time::from_millis(1000), &mut Vec::new());
        path
    }

    fn receive(path: &mut SinkPath, sequence: u64, rate_hz: u32, now: Time) {
        let spec = SampleSpec { format: SampleFormat::S16, channels: 1, rate_hz };
        let mut record = Body::from(Frames { spec, position: 441 * sequence, samples: &[0; 882] }.emit());
        let container = Container { length: record.len() as u32, created: 0 };
        record.push_front(&RecordHeader { flow: 7, epoch: 1, sequence, container }.emit());
        let record = Message::new(now, record);
        path.receive(record, None, LinkFacts::default(), now, &mut Vec::new()).unwrap();
    }

    /// Runs the path twice; returns whether its flow has ended.
    fn run(path: &mut SinkPath, now: Time) -> bool {
        let (mut player, notices): (Box<dyn Partner>, _) = (Box::new(Player), &mut Vec::new());
        for _ in 0..2 {
            let partner = Some(&mut player);
            path.run(PathContext { partner, transport: None, facts: None, now, notices }).unwrap();
        }
        notices.iter().any(|notice| matches!(notice, Notice::FlowEnded(_)))
    }

    #[test]
    fn stages_learn_the_rate_of_a_device_that_refuses_sound() {
        let now = Time::from_millis(1000);
        let mut path = path(FlowClass::Timely, "resample");
        for sequence in 0..4 {
            receive(&mut path, sequence, 44_100, now);
            run(&mut path, now);
        }
        assert_eq!((path.delivered, path.drops.total()), (3, 1));
    }

    #[test]
    fn an_end_that_overtakes_records_waits_for_them() {
        let at = Time::from_millis;
        for class in [FlowClass::Timely, FlowClass::State, FlowClass::Reliable] {
            for is_late in [false, true] {
                let mut path = path(class, "");
                path.handle_control(&FlowControl::End { epoch: 1, sequence: 1 }, at(1000), &mut Vec::new());
                assert!(!run(&mut path, at(1499)), "{class:?}");
                let gives_up = class != FlowClass::Reliable && is_late;
                let now = at(if is_late { 1500 } else { 1499 });
                assert_eq!(is_late && run(&mut path, now), gives_up, "{class:?}");
                if !gives_up {
                    receive(&mut path, 0, RATE_HZ, now);
                    assert!(run(&mut path, now));
                    assert_eq!(path.delivered, 1);
                }
            }
        }
    }

    #[test]
    fn a_reliable_flow_sleeps_until_the_records_before_its_end_arrive() {
        let (now, mut poller) = (Time::from_millis(1000), Poller::new().unwrap());
        let mut path = path(FlowClass::Reliable, "");
        path.handle_control(&FlowControl::End { epoch: 1, sequence: 1 }, now, &mut Vec::new());
        let later = Time::from_millis(5000);
        assert!(!run(&mut path, later));
        let mut wake = Wake::default();
        path.register(None, None, &mut poller, &mut wake);
        assert!(!wake.now && wake.at.is_none_or(|at| at > later), "{wake:?}");
    }

    /// Each request would bring a copy of a record that this path does not read.
    #[test]
    fn a_path_whose_partner_accepts_nothing_requests_no_records() {
        let (mut path, at) = (path(FlowClass::Reliable, ""), Time::from_millis);
        path.lossy = true;
        [0, 2].into_iter().for_each(|sequence| receive(&mut path, sequence, RATE_HZ, at(1000)));
        let mut ends: [Box<dyn Partner>; 2] = [Box::new(Player), Box::new(Player)];
        let mut requests = |accepts: bool, now: Time| {
            let ([player, network], mut notices) = (&mut ends, Vec::new());
            let (partner, transport) = (accepts.then_some(player), Some(network));
            let facts = Some(LinkFacts::default());
            path.run(PathContext { partner, transport, facts, now, notices: &mut notices }).unwrap();
            let is_request = |notice: &&Notice| {
                matches!(notice, Notice::Flow { message: FlowControl::Missing { .. }, .. })
            };
            notices.iter().filter(is_request).count()
        };
        assert_eq!((1000..2000).step_by(10).map(|ms| requests(false, at(ms))).sum::<usize>(), 0);
        assert!((2000..2100).step_by(10).map(|ms| requests(true, at(ms))).sum::<usize>() > 0);
    }

    /// Receives a key that goes down; returns the notices.
    fn press(path: &mut SinkPath, (epoch, sequence): (u32, u64), node: &mut Box<dyn Partner>) -> Vec<Notice> {
        let (now, mut notices) = (Time::from_millis(1000), Vec::new());
        let mut record = Body::from(vec![0x90, 60, 1]);
        let container = Container { length: record.len() as u32, created: 0 };
        record.push_front(&RecordHeader { flow: 7, epoch, sequence, container }.emit());
        let record = Message::new(now, record);
        path.receive(record, None, LinkFacts::default(), now, &mut notices).unwrap();
        for _ in 0..2 {
            let cx =
                PathContext { partner: Some(node), transport: None, facts: None, now, notices: &mut notices };
            path.run(cx).unwrap();
        }
        notices
    }

    #[test]
    fn a_key_that_arrives_after_its_device_is_gone_does_not_stay_down() {
        let now = Time::from_millis(1000);
        for class in [FlowClass::State, FlowClass::Reliable] {
            let mut path = path_of(Format::Midi, class, "");
            let told = Arc::<Mutex<String>>::default();
            let mut node: Box<dyn Partner> = Box::new(Instrument(told.clone()));
            press(&mut path, (1, 0), &mut node);
            assert_eq!(std::mem::take(&mut *told.lock().unwrap()), "down ", "{class:?}");
            let notices = &mut Vec::new();
            path.handle_absence(PathContext {
                partner: Some(&mut node),
                transport: None,
                facts: None,
                now,
                notices,
            });
            press(&mut path, (1, 1), &mut node);
            assert!(std::mem::take(&mut *told.lock().unwrap()).ends_with("neutral "), "{class:?}");
            path.handle_absence_end(notices);
            let is_resync =
                |notice: &Notice| matches!(notice, Notice::Flow { message: FlowControl::Resync { .. }, .. });
            assert!(notices.iter().any(is_resync), "{class:?}: the state may be lost");
            let epoch = if class == FlowClass::State { 2 } else { 1 };
            path.handle_control(&FlowControl::Epoch { epoch, prev: (1, 2), continues: false }, now, notices);
            press(&mut path, if epoch == 2 { (2, 0) } else { (1, 2) }, &mut node);
            assert_eq!(std::mem::take(&mut *told.lock().unwrap()), "down ", "{class:?}: the device is back");
        }
    }

    #[test]
    fn creation_times_are_capped() {
        let (now, facts) =
            (Time::from_millis(5000), LinkFacts { offset: Offset(-7), ..LinkFacts::default() });
        assert_eq!(creation_time(1000, facts, now), Time(993));
        assert_eq!(creation_time(now.0 + 100, facts, now), Time(now.0 + 93), "clocks may be off a little");
        for created in [now.0 + 3_600_000_000_000, u64::MAX] {
            assert_eq!(creation_time(created, facts, now), now.after(AHEAD_MAX));
        }
    }
}
