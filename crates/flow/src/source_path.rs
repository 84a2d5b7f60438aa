//! The source path of a flow: partner, source stages, numbering, transport.
//!
//! Each purpose of the path has its own state, with a table of states and events in its module:
//!
//! - `lifecycle`: the end of the flow
//! - `audience`: the peer's view of the flow, which decides whether messages are sent, stored or dropped
//! - `change`: a pipeline change, or the restart of both halves after a crash
//! - `recovery`: saved state
//! - `report`: messages to the sink, notices to the broker, statistics
//! - `tracing`: stamps of traced messages
//!
//! A run ([`SourcePath::run`]) repeats these steps until one of them cannot proceed:
//!
//! ```text
//! 1. send all numbered records and all output of the stages     transport full, store full ──► stop
//! 2. advance a change: its stages may release more output       progress ──► 1
//! 3. check that a message may be read                           change, lost stages, end, no room ──► stop
//! 4. read a message from the device and pass it to the stages   no message ──► stop
//! ```
//!
//! Everything is sent before the next read, so backpressure from the network or from the replay store reaches the
//! device.

mod audience;
mod change;
mod lifecycle;
mod recovery;
mod report;
mod tracing;

pub use recovery::{PEER_RESTARTED, SourceHandover};

use crate::chain_runner::{self, ChainRunner};
use crate::fair::{BYTES_MAX, MESSAGES_MAX};
use crate::feedback::{FeedbackReader, SourceStatus};
use crate::neutral::{StateTracker, is_tracked};
use crate::pipeline_change::PipelineChangeSource;
use crate::recovery::RecoveryLog;
use crate::trace::Departures;
use crate::types::{DriverError, FlowPlan, Notice, PathContext, PathError, RunOutcome, Wake};
use audience::Audience;
use change::SourceChange;
use contract::{
    Attributes, Ctl, Direction, FlowClass, FlowDirection, FlowKey, FlowTemplate, Half, Message, Partner,
    PartnerError, PartnerResult, Pull, Pulled, Pushed, Time,
};
use lifecycle::Lifecycle;
use pipeline::{Chain, DropCounts, Pipeline};
use report::StoreMonitor;
use session::{Admission, Limits, SourceFlow, StoreFull};
use std::time::Duration;
use sys::poller::Poller;
use wire::{BODY_BYTES_MAX, FlowControl};

/// Drop reason of messages in the stages when the next epoch replaces theirs.
const EPOCH_ABANDONED: &str = "epoch abandoned";

/// One flow's path from the partner to the transport.
pub struct SourcePath {
    plan: FlowPlan,
    key: FlowKey,
    stages: ChainRunner,
    source: SourceFlow,
    /// The transport may lose records.
    lossy: bool,
    /// A record that the transport had no room for.
    unsent: Option<Message>,
    lifecycle: Lifecycle,
    audience: Audience,
    change: SourceChange,
    /// The device knows whether the pipeline merges changes.
    is_merging_told: bool,
    store: StoreMonitor,
    feedback: FeedbackReader,
    /// The device's state, of a state flow.
    state: StateTracker,
    drops: DropCounts,
    /// Messages in `drops` that the device's partner reported.
    device_drops: u64,
    /// Messages in `drops` at the start of the peer's silence, until the next epoch begins.
    drops_before_silence: Option<u64>,
    /// Traced records between the stages and the network.
    departures: Departures,
    log: Option<RecoveryLog>,
}

impl SourcePath {
    /// Builds the path, and resumes it if `log` holds saved state.
    pub fn new(
        mut plan: FlowPlan,
        key: FlowKey,
        lossy: bool,
        limits: &Limits,
        mut log: Option<RecoveryLog>,
    ) -> Result<Self, DriverError> {
        check_store(&plan, &plan.pipeline, limits.store_full).map_err(DriverError::Pipeline)?;
        let mut drops = DropCounts::default();
        let (source, is_resumed) = recovery::resume(&mut plan, lossy, limits, log.as_mut(), &mut drops);
        let chain = build_chain(&plan)?;
        // Flows of other classes begin their next epoch on the new link, with fresh stages on both hosts.
        let continues_stream = is_resumed && plan.class == FlowClass::Reliable;
        // The sink may still wait for the end of the previous epoch and may have lost its stages for it.
        let flow = (plan.flow, plan.direction);
        let active = (continues_stream && source.continues())
            .then(|| PipelineChangeSource::resume(flow, source.epoch(), plan.pipeline.clone()));
        let has_lost_stages = continues_stream && !plan.pipeline.pairs().is_empty();
        let mut path = SourcePath {
            audience: Audience::new(plan.class),
            plan,
            key,
            stages: ChainRunner::new(chain),
            source,
            lossy,
            unsent: None,
            lifecycle: Lifecycle::default(),
            change: SourceChange { active, has_lost_stages },
            is_merging_told: false,
            store: StoreMonitor::new(limits.store_full),
            feedback: FeedbackReader::default(),
            state: StateTracker::default(),
            drops,
            device_drops: 0,
            drops_before_silence: None,
            departures: Departures::default(),
            log,
        };
        path.save_ticket();
        Ok(path)
    }

    /// Opens the flow again on a device that returned.
    pub fn reopen(&mut self, partner: &mut dyn Partner) -> PartnerResult {
        self.key = partner.open(&self.template(Direction::Out), &Attributes::default())?;
        self.device_drops = 0;
        self.is_merging_told = false;
        self.state.clear();
        if let Some(log) = self.log.as_mut() {
            log.forget_device_state();
        }
        Ok(())
    }

    /// Returns the flow's template for a partner in this direction.
    pub fn template(&self, direction: Direction) -> FlowTemplate {
        FlowTemplate { direction, format: self.plan.format.clone(), class: self.plan.class }
    }

    /// Returns the number of the flow.
    pub fn flow(&self) -> u32 {
        self.plan.flow
    }

    /// Returns the direction of the flow.
    pub fn direction(&self) -> FlowDirection {
        self.plan.direction
    }

    /// Handles a new data connection. Unacknowledged records are retransmitted, unless the flow restarts.
    pub fn handle_link(&mut self, cx: PathContext<'_>) {
        self.lifecycle.handle_fresh_start();
        self.departures.handle_link();
        match self.audience.handle_link() {
            true => {
                // The source retransmits this record too.
                self.unsent = None;
                self.source.handle_link(cx.now);
                self.send_change(cx.notices);
            }
            false => self.begin_epoch(cx),
        }
    }

    /// Handles the peer's silence.
    pub fn handle_silence(&mut self) {
        self.audience.handle_silence();
        if self.plan.class != FlowClass::Reliable {
            self.drops_before_silence.get_or_insert(self.drops.total());
        }
    }

    /// Handles the end of the peer's silence. The peer may have missed messages that were dropped meanwhile, so a new
    /// epoch begins.
    pub fn handle_silence_end(&mut self, cx: PathContext<'_>) {
        self.source.handle_silence_end();
        if self.audience.handle_silence_end() {
            self.begin_epoch(cx);
        }
    }

    /// Handles the loss of the device: partial messages in the stages are dropped.
    pub fn handle_partner_gone(&mut self, now: Time) {
        if self.plan.class == FlowClass::State
            && let Ok(chain) = build_chain(&self.plan)
        {
            self.stages.replace(ChainRunner::new(chain), "device gone", now, &mut self.drops);
        }
    }

    /// Handles the return of the device: a flow with a state sends a snapshot.
    pub fn handle_partner(&mut self, cx: PathContext<'_>) {
        match self.plan.class {
            FlowClass::State => self.begin_epoch(cx),
            FlowClass::Reliable => self.request_state(cx),
            FlowClass::Timely => {}
        }
    }

    /// Makes the partner of a reliable flow send its state, behind the records that are not acknowledged.
    fn request_state(&self, cx: PathContext<'_>) {
        if self.plan.format.has_state()
            && let Some(partner) = cx.partner
        {
            let _ = partner.ctl(self.key, Ctl::Snapshot);
        }
    }

    /// Handles a control message, if it is for this flow.
    pub fn handle_control(&mut self, message: &FlowControl, cx: PathContext<'_>) {
        match message {
            FlowControl::Acknowledge { epoch, next } => {
                self.source.handle_acknowledge(*epoch, *next, cx.now);
                self.save_ticket();
            }
            FlowControl::Missing { epoch, ranges } => {
                self.source.handle_missing(*epoch, ranges);
            }
            // A request that names an earlier epoch was answered by the current one.
            FlowControl::Resync { epoch } if *epoch == self.source.epoch() => match self.plan.class {
                FlowClass::Reliable => self.request_state(cx),
                _ => self.begin_epoch(cx),
            },
            FlowControl::Changed { epoch, refusal } => {
                self.handle_change_answer(*epoch, refusal.as_deref(), cx);
            }
            FlowControl::Begun { epoch } => {
                self.source.handle_acknowledge(*epoch, 0, cx.now);
                self.save_ticket();
                self.change.active.take_if(|change| change.handle_begun(*epoch, cx.notices));
            }
            FlowControl::Pair { epoch, pair, body } if *epoch == self.source.epoch() => {
                self.stages.handle_control(*pair, body, cx.now);
            }
            FlowControl::Feedback { .. } => {
                let status = SourceStatus {
                    class: self.plan.class,
                    counters: self.source.counters(),
                    unacknowledged_bytes: self.waiting_bytes(),
                    round_trip: cx.facts.unwrap_or_default().round_trip,
                };
                if let Some(feedback) = self.feedback.read(message, &status, cx.now) {
                    self.stages.handle_feedback(&feedback, cx.now);
                }
            }
            _ => {}
        }
    }

    /// Returns the bytes of bodies that left the stages and are not acknowledged.
    fn waiting_bytes(&self) -> u64 {
        let waiting = self.stages.out.messages.iter().chain(&self.unsent);
        let bytes = waiting.map(|message| message.body.len()).sum::<usize>();
        (bytes + self.source.unacknowledged_bytes()) as u64
    }

    /// Begins the next epoch, because the peer missed messages. It begins now, or as soon as there is a link to a peer
    /// that is not silent.
    fn begin_epoch(&mut self, cx: PathContext<'_>) {
        if self.audience.handle_gap() && cx.transport.is_some() {
            self.restart(cx);
        }
    }

    /// Abandons the epoch and begins the next one with fresh stages and, for a state flow, with a snapshot.
    fn restart(&mut self, cx: PathContext<'_>) {
        let prev = self.source.epoch();
        let changed = self.change.active.as_mut().and_then(|change| {
            let fresh = change.handle_restart(prev, cx.notices)?;
            self.plan.pipeline = change.pipeline.clone();
            self.is_merging_told = false;
            Some((change.epoch, fresh))
        });
        let (epoch, fresh) = match changed {
            Some(changed) => changed,
            None => match build_chain(&self.plan) {
                Ok(chain) => (prev.saturating_add(1), ChainRunner::new(chain)),
                Err(_) => return,
            },
        };
        // This record already has its number, so it counts as one of the old epoch.
        self.unsent = None;
        self.stages.replace(fresh, EPOCH_ABANDONED, cx.now, &mut self.drops);
        self.drops.add(EPOCH_ABANDONED, self.source.restart_at(epoch));
        if let Some(before) = self.drops_before_silence.take() {
            let messages = self.drops.total().saturating_sub(before);
            let missed = Notice::Missed { direction: self.plan.direction, messages };
            cx.notices.extend((messages > 0).then_some(missed));
        }
        self.save_ticket();
        self.lifecycle.handle_fresh_start();
        self.audience.handle_epoch();
        self.send_epoch(cx.notices);
        if self.plan.class == FlowClass::State
            && let Some(partner) = cx.partner
        {
            // A device without snapshots has no state to restore.
            let _ = partner.ctl(self.key, Ctl::Snapshot);
        }
    }

    /// Moves all messages that can move now, within the limits of one turn.
    pub fn run(&mut self, mut cx: PathContext<'_>) -> Result<RunOutcome, PathError> {
        self.restart_both_halves(cx.notices);
        self.tell_merging(cx.partner.as_deref_mut());
        self.handle_read_start(cx.partner.as_deref_mut());
        let PathContext { mut partner, mut transport, facts, now, notices } = cx;
        let facts = facts.unwrap_or_default();
        let mut outcome = RunOutcome { progress: self.stages.run_timeouts(now), ..RunOutcome::default() };
        self.source.handle_timeout(now, facts.round_trip);
        if transport.is_some() && self.change.active.as_mut().is_some_and(|change| change.is_resend_due(now))
        {
            self.send_change(notices);
        }
        let mut budget = MESSAGES_MAX;
        loop {
            let is_clear = match transport.as_mut() {
                Some(transport) => self.send(transport.as_mut(), now, &mut outcome)?,
                None => self.store_or_drop(now),
            };
            if is_clear && self.advance_change(now, notices) {
                continue;
            }
            if !is_clear
                || self.change.suspends_reading()
                || self.lifecycle.has_ended()
                || !self.stages.has_room()
            {
                break;
            }
            if budget == 0 || outcome.bytes >= BYTES_MAX as u64 {
                outcome.progress = true;
                break;
            }
            budget -= 1;
            let Some(partner) = partner.as_mut().filter(|_| self.audience.may_read()) else { break };
            if !self.read(partner, transport.is_some(), now, &mut outcome)? {
                break;
            }
        }
        if self.lifecycle.is_draining() && self.stages.drain(now) {
            self.lifecycle.handle_drained();
            outcome.progress = true;
        }
        self.report(transport.is_some(), notices);
        self.handle_read_end(partner);
        Ok(outcome)
    }

    /// Reads a message from the device and passes it to the stages. Returns whether the device may have more.
    fn read(
        &mut self,
        partner: &mut Box<dyn Partner>,
        linked: bool,
        now: Time,
        outcome: &mut RunOutcome,
    ) -> Result<bool, PathError> {
        let read_at = self.trace_read_start();
        let pulled = match partner.pull(self.key, Pull::Yours) {
            // Another attempt would find the same fault, behind the same messages: the flow ends here.
            Err(PartnerError::Data(problem)) if self.plan.class == FlowClass::Reliable => {
                self.drops.add_loss(&problem, 1);
                Pulled::End
            }
            pulled => pulled.map_err(PathError::Partner)?,
        };
        outcome.count(&pulled);
        let pulled = self.observe(pulled);
        match pulled {
            Pulled::Message(_, message) if self.audience.is_dropping(linked) => {
                self.drops.add("link down", 1);
                drop(message);
            }
            Pulled::Message(_, mut message) => {
                self.trace_received(&mut message, read_at);
                self.stages.feed(message, now);
                self.handle_read_start(Some(partner));
            }
            Pulled::End => {
                self.lifecycle.handle_device_end();
                outcome.progress = true;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Reads the device's state from a message, if it is tracked.
    fn observe(&mut self, mut pulled: Pulled) -> Pulled {
        if is_tracked(self.plan.class, &self.plan.format)
            && let Pulled::Message(_, message) = &mut pulled
        {
            self.state.observe(&self.plan.format, &mut message.body);
        }
        pulled
    }

    /// Returns whether the flow holds something that the loss of the link would harm: records that are not acknowledged,
    /// or a device whose state is not neutral.
    pub fn is_holding(&self, partner: Option<&mut Box<dyn Partner>>) -> bool {
        let is_waiting = self.unsent.is_some() || !self.stages.out.messages.is_empty();
        let is_held = is_waiting || !self.source.is_settled() || self.change.active.is_some();
        is_held
            || is_tracked(self.plan.class, &self.plan.format) && !self.state.is_neutral_at(partner, self.key)
    }

    /// Takes the next message that has to be numbered. Messages that no record can carry are dropped.
    fn next_output(&mut self) -> Option<Message> {
        while let Some(message) = self.stages.out.messages.pop_front() {
            if message.body.len() <= BODY_BYTES_MAX {
                return Some(message);
            }
            self.drops.add_loss("larger than a record", 1);
        }
        None
    }

    /// Numbers the next output of the stages. Returns `Ok(None)` if there is none, and an error if the store is full.
    fn number(&mut self, now: Time) -> Result<Option<Message>, StoreIsFull> {
        let Some(message) = self.next_output() else { return Ok(None) };
        let admission = self.source.admit(message, now);
        if matches!(admission, Admission::Closed(_)) {
            self.store.handle_overrun();
        }
        match admission {
            Admission::Record(record) => {
                self.save_record(&record);
                Ok(Some(record))
            }
            Admission::Full(message) | Admission::Closed(message) => {
                self.stages.out.messages.push_front(message);
                Err(StoreIsFull)
            }
        }
    }

    /// Sends records to the transport. Returns whether none remains.
    fn send(
        &mut self,
        transport: &mut dyn Partner,
        now: Time,
        outcome: &mut RunOutcome,
    ) -> Result<bool, PathError> {
        loop {
            let record = match self.unsent.take().or_else(|| self.source.poll_retransmit(now)) {
                Some(record) => record,
                None => match self.number(now) {
                    Ok(Some(record)) => {
                        self.trace_numbered(&record);
                        record
                    }
                    Ok(None) => return Ok(true),
                    Err(StoreIsFull) => return Ok(false),
                },
            };
            let mark = record.attributes.mark;
            if mark != 0 && self.stages.out.trace.is_some() {
                self.departures.push(mark, transport, now);
            }
            match transport.push(FlowKey(self.plan.flow), record) {
                Ok(Pushed::Taken) => {
                    outcome.pushed = true;
                    if let Some(trace) = self.stages.out.trace.as_deref_mut().filter(|_| mark != 0) {
                        self.departures.pushed(mark, transport, trace);
                    }
                }
                Ok(Pushed::Full(record)) => {
                    self.unsent = Some(record);
                    return Ok(false);
                }
                Err((error, record)) => {
                    self.unsent = Some(record);
                    return Err(PathError::Transport(error));
                }
            }
        }
    }

    /// Without a link: moves messages to the replay store while it has room, or drops them. Returns whether none
    /// remains.
    fn store_or_drop(&mut self, now: Time) -> bool {
        if self.audience.is_dropping(false) {
            self.drops.add("link down", self.stages.out.messages.len() as u64);
            self.stages.out.messages.clear();
            return true;
        }
        self.source.handle_link_lost();
        loop {
            match self.number(now) {
                Ok(Some(_)) => {}
                Ok(None) => return true,
                Err(StoreIsFull) => return false,
            }
        }
    }

    /// Registers the descriptors and timers of the path.
    pub fn register(
        &self,
        partner: Option<&dyn Partner>,
        transport: Option<&dyn Partner>,
        round_trip: Duration,
        poller: &mut Poller,
        wake: &mut Wake,
    ) {
        self.stages.register(poller, wake);
        wake.at(self.source.poll_timeout(round_trip));
        let change = self.change.active.as_ref().filter(|_| transport.is_some());
        wake.at(change.and_then(PipelineChangeSource::resend_at));
        wake.at(self.stages.drain_timeout().filter(|_| !self.lifecycle.is_drained()));
        if self.unsent.is_some() {
            if let Some(transport) = transport {
                wake.add(poller, transport.readiness(FlowKey(self.plan.flow), Direction::In));
            }
            return;
        }
        // Messages wait for room in the replay store, which an acknowledgement frees.
        let is_full = !self.stages.out.messages.is_empty() || !self.stages.has_room();
        if is_full || self.lifecycle.has_ended() || self.change.suspends_reading() {
            return;
        }
        if let Some(partner) = partner.filter(|_| self.audience.may_read()) {
            wake.add(poller, partner.readiness(self.key, Direction::Out));
        }
    }
}

/// The replay store has no room for the next message.
struct StoreIsFull;

/// Checks that the stages tolerate discarded messages if the store's policy discards them.
fn check_store(plan: &FlowPlan, pipeline: &Pipeline, store_full: StoreFull) -> Result<(), String> {
    let discards = store_full == StoreFull::DropOldest && plan.class != FlowClass::Timely;
    match discards && pipeline.promises().needs_order {
        true => Err(format!(
            "`{}` needs every message of its other half, but --limit store_full=drop-oldest discards \
             some: use pairs that keep no history, or another store_full",
            pipeline.canonical()
        )),
        false => Ok(()),
    }
}

fn build_chain(plan: &FlowPlan) -> Result<Chain, DriverError> {
    chain_runner::build_chain(Half::Source, &plan.pipeline, &plan.format, &plan.site)
        .map_err(|error| DriverError::Pipeline(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use contract::{CtlReply, Format, Readiness, Site};
    use modules::registry;
    use pipeline::{Origin, Pipeline};
    use std::sync::{Arc, Mutex};

    fn path_context(notices: &mut Vec<Notice>) -> PathContext<'_> {
        PathContext { partner: None, transport: None, facts: None, now: Time::from_millis(1), notices }
    }

    /// Returns the sent `Change` and `Epoch` messages by their epochs.
    fn sent(notices: &mut Vec<Notice>) -> Vec<(&'static str, u32)> {
        let number = |notice| match notice {
            Notice::Flow { message: FlowControl::Change { epoch, .. }, .. } => Some(("change", epoch)),
            Notice::Flow { message: FlowControl::Epoch { epoch, .. }, .. } => Some(("epoch", epoch)),
            _ => None,
        };
        notices.drain(..).filter_map(number).collect()
    }

    fn plan(class: FlowClass, format: Format, pipeline: Pipeline) -> FlowPlan {
        let (flow, direction) = (7, FlowDirection::DeviceToApplication);
        FlowPlan { flow, direction, class, format, pipeline, requested: Vec::new(), site: Site::default() }
    }

    fn pipeline(text: &str) -> Pipeline {
        Pipeline::parse(text, registry::pairs(), Origin::Local).unwrap()
    }

    /// A sink that crashed in the new epoch may resume before it and needs the pipeline again.
    #[test]
    fn each_new_link_sends_the_current_pipeline_again() {
        let plan = plan(FlowClass::Reliable, Format::Bytes, pipeline("compress"));
        let mut flow = SourcePath::new(plan, FlowKey::DEFAULT, false, &Limits::default(), None).unwrap();
        let notices = &mut Vec::new();
        flow.handle_link(path_context(notices));
        let first = flow.source.epoch();
        assert_eq!(sent(notices), [("epoch", first)]);
        flow.change(pipeline("null"), notices);
        let epoch = flow.change.active.as_ref().unwrap().epoch;
        assert_eq!(sent(notices), [("change", epoch)]);
        flow.handle_control(&FlowControl::Changed { epoch, refusal: None }, path_context(notices));
        flow.run(path_context(notices)).unwrap();
        assert_eq!(sent(notices), [("epoch", epoch)]);
        for is_begun in [false, true] {
            if is_begun {
                flow.handle_control(&FlowControl::Begun { epoch }, path_context(notices));
                assert!(flow.change.active.is_none());
            }
            flow.handle_link(path_context(notices));
            assert_eq!(sent(notices), [("change", epoch), ("epoch", epoch)]);
        }
    }

    /// A device that is always ready, has no messages, and remembers what it was told about the pipeline.
    #[derive(Default)]
    struct Screen(Arc<Mutex<Vec<bool>>>);

    impl Partner for Screen {
        fn open(&mut self, _template: &FlowTemplate, _attributes: &Attributes) -> PartnerResult<FlowKey> {
            Ok(FlowKey(1))
        }

        fn close(&mut self, _flow: FlowKey) -> PartnerResult {
            Ok(())
        }

        fn push(&mut self, _flow: FlowKey, message: Message) -> Result<Pushed, (PartnerError, Message)> {
            Ok(Pushed::Full(message))
        }

        fn pull(&mut self, _flow: FlowKey, _request: Pull<'_>) -> PartnerResult<Pulled> {
            Ok(Pulled::Nothing)
        }

        fn ctl(&mut self, _flow: FlowKey, operation: Ctl<'_>) -> PartnerResult<CtlReply> {
            match operation {
                Ctl::Merging(merges) => self.0.lock().unwrap().push(merges),
                _ => return Err(PartnerError::Unsupported("this operation")),
            }
            Ok(CtlReply::Done)
        }

        fn readiness(&self, _flow: FlowKey, _direction: Direction) -> Readiness<'_> {
            Readiness::now()
        }
    }

    #[test]
    fn a_device_learns_once_whether_the_pipeline_merges_changes() {
        let told = Arc::new(Mutex::new(Vec::new()));
        let mut device: Box<dyn Partner> = Box::new(Screen(Arc::clone(&told)));
        let (plan, notices) = (plan(FlowClass::State, Format::Video, pipeline("null")), &mut Vec::new());
        let mut flow = SourcePath::new(plan, FlowKey::DEFAULT, false, &Limits::default(), None).unwrap();
        let mut run = |flow: &mut SourcePath, device: Option<&mut Box<dyn Partner>>| {
            flow.run(PathContext { partner: device, ..path_context(notices) }).unwrap();
        };
        run(&mut flow, None);
        run(&mut flow, Some(&mut device));
        // The source half of `screen` needs a codec; its promises do not.
        flow.plan.pipeline = pipeline("screen");
        flow.reopen(device.as_mut()).unwrap();
        run(&mut flow, Some(&mut device));
        run(&mut flow, Some(&mut device));
        assert_eq!(*told.lock().unwrap(), [false, true]);
        let notices = &mut Vec::new();
        flow.change(pipeline("compress"), notices);
        let epoch = flow.change.active.as_ref().unwrap().epoch;
        flow.handle_control(&FlowControl::Changed { epoch, refusal: None }, path_context(notices));
        for _ in 0..2 {
            flow.run(PathContext { partner: Some(&mut device), ..path_context(notices) }).unwrap();
        }
        assert_eq!(*told.lock().unwrap(), [false, true, false]);
    }

    #[test]
    fn a_change_away_from_stages_that_release_nothing_times_out() {
        let plan = plan(FlowClass::Reliable, Format::Bytes, pipeline("compress"));
        let mut flow = SourcePath::new(plan, FlowKey::DEFAULT, false, &Limits::default(), None).unwrap();
        let (notices, mut poller, mut wake) = (&mut Vec::new(), Poller::new().unwrap(), Wake::default());
        flow.stages = chain_runner::tests::stuck();
        flow.handle_link(path_context(notices));
        flow.change(pipeline("null"), notices);
        flow.run(path_context(notices)).unwrap();
        let device = Screen::default();
        flow.register(Some(&device), None, Duration::ZERO, &mut poller, &mut wake);
        assert!(wake.now && wake.at.is_none(), "the sink has not answered, and the old stages continue");
        let epoch = flow.change.active.as_ref().unwrap().epoch;
        flow.handle_control(&FlowControl::Changed { epoch, refusal: None }, path_context(notices));
        flow.run(path_context(notices)).unwrap();
        assert!(flow.change.suspends_reading());
        wake = Wake::default();
        flow.register(Some(&device), None, Duration::ZERO, &mut poller, &mut wake);
        assert!(!wake.now, "the device is not read before the old stages are empty");
        let now = wake.at.unwrap();
        sent(notices);
        flow.run(PathContext { now, ..path_context(notices) }).unwrap();
        assert_eq!(sent(notices), [("epoch", epoch)]);
        assert!(!flow.change.suspends_reading());
        assert_eq!(flow.drops.counts.get("pipeline: not released in time"), Some(&1));
    }

    #[test]
    fn a_refused_change_after_a_crash_keeps_the_epoch_and_restarts_both_halves() {
        let plan = plan(FlowClass::Reliable, Format::Bytes, pipeline("compress"));
        let mut flow = SourcePath::new(plan, FlowKey::DEFAULT, false, &Limits::default(), None).unwrap();
        let notices = &mut Vec::new();
        flow.handle_link(path_context(notices));
        flow.change.has_lost_stages = true;
        flow.change(pipeline("null"), notices);
        let first = flow.source.epoch();
        let refuse = |flow: &mut SourcePath, notices: &mut Vec<Notice>| {
            let (epoch, refusal) = (flow.change.active.as_ref().unwrap().epoch, Some("no".into()));
            sent(notices);
            flow.handle_control(&FlowControl::Changed { epoch, refusal }, path_context(notices));
        };
        refuse(&mut flow, notices);
        assert_eq!((sent(notices), flow.source.epoch()), (vec![], first));
        flow.run(path_context(notices)).unwrap();
        assert!(flow.change.active.as_ref().is_some_and(|change| change.pipeline.text() == "compress"));
        refuse(&mut flow, notices);
        assert_eq!(sent(notices), [("epoch", first + 1)]);
        assert!(!flow.change.suspends_reading());
    }
}
