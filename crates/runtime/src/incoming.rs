//! The sink path of a flow: transport, order, sink stages in reverse, partner.

mod epochs;
mod keep;
mod tracing;

use crate::delays::Delays;
use crate::driver::{DriverError, FlowPlan, LinkFacts, Moved, Notice, PathError, Surroundings, Wake};
use crate::fair::{BYTES_MAX, MESSAGES_MAX};
use crate::feedback::Teller;
use crate::kept::Kept;
use crate::outgoing::BEGAN_ANEW;
use crate::registry;
use crate::segment::{self, DropCounts, Segment};
use crate::stats::FlowStats;
use crate::switch::Next;
use crate::trace::{self, Arrivals};
use contract::{
    Attributes, Body, Ctl, CtlReply, Direction, FlowClass, FlowKey, FlowTemplate, Half, Message, Partner,
    PartnerError, Pull, Pulled, Pushed, Readiness, Time,
};
use keep::Amount;
use pipeline::{Chain, Origin, Pipeline, Point};
use session::{Limits, Received, SinkFlow};
use std::time::Duration;
use sys::poller::Poller;
use wire::ticket::SinkTicket;
use wire::{BODY_BYTES_MAX, Control, RecordHeader};

/// How long a gap may be mere reordering before it is asked for.
const REORDER_WAIT: Duration = Duration::from_millis(5);
/// Shortest time between two requests for the same gap.
const MISSING_INTERVAL: Duration = Duration::from_millis(20);
/// How long after its end a timely flow still waits for late records.
const LATE_WAIT: Duration = Duration::from_millis(500);
/// Marked messages that wait for the partner's flush; of more, the end is not seen.
const HANDED_MAX: usize = 1024;

/// A message that says it was made later than this after it came was not: clocks are known better than that.
const AHEAD_MAX: Duration = Duration::from_secs(1);

/// When a read of the network began, and when the kernel had what it brought.
type Read = (Time, Option<Time>);

pub(crate) struct Incoming {
    plan: FlowPlan,
    key: FlowKey,
    segment: Segment,
    sink: SinkFlow,
    lossy: bool,
    /// So much is acknowledged before its time: an eighth of what the source may have to keep.
    acknowledge_amount: Amount,
    /// Everything before this was acknowledged.
    acknowledged: u64,
    unacknowledged: Amount,
    acknowledge_at: Option<Time>,
    missing_at: Option<Time>,
    feedback: Teller,
    delays: Delays,
    end: Option<(u32, u64)>,
    end_at: Option<Time>,
    finishing: bool,
    finished: bool,
    /// Messages that the partner took.
    delivered: u64,
    drops: DropCounts,
    /// The pipeline changes.
    next: Option<Next>,
    /// When what is still missing of a timely flow's epoch is waited for no longer, once another follows.
    over_at: Option<Time>,
    /// While traced: the sequence that comes next if nothing is lost, and what waits for the partner's flush.
    expected: u64,
    arrivals: Arrivals,
    handed: Vec<u32>,
    /// What another worker would go on with, and what of it is written.
    kept: Option<Kept>,
    kept_ticket: Option<SinkTicket>,
    /// The stages remember: what the partner took is kept with what they remember then, when that is acknowledged.
    remembers: bool,
    /// That is due, as soon as the partner has taken everything.
    keeps_next: bool,
    checkpoint_bytes: usize,
    /// A worker before this one ran the flow, and that is not told yet.
    is_resumed: bool,
    /// So many outputs the partner took of that one, which come again, and so much of the next it wrote.
    taken_before: u64,
    partway_before: Option<u64>,
}

impl Incoming {
    pub(crate) fn new(
        plan: FlowPlan,
        key: FlowKey,
        lossy: bool,
        limits: &Limits,
        mut kept: Option<Kept>,
    ) -> Result<Self, DriverError> {
        let mut plan = plan;
        let mut sink = SinkFlow::new(plan.class, limits);
        let mut drops = DropCounts::default();
        let stand = kept.as_mut().and_then(Kept::sink).filter(|stand| stand.ticket.flow == plan.flow);
        if let Some(stand) = &stand {
            let stood = Pipeline::parse(&stand.pipeline, registry::pairs(), Origin::Local);
            if let Ok(pipeline) = stood.and_then(|stood| stood.in_place_of(&plan.pipeline)) {
                plan.pipeline = pipeline;
            }
            sink = SinkFlow::resume(&stand.ticket, plan.class, limits).unwrap_or(sink);
            drops = DropCounts::resume(&stand.losses);
        }
        let mut chain = build_chain(&plan)?;
        let remembers = chain.remembers();
        if let Some(stand) = stand.as_ref().filter(|stand| remembers && !stand.checkpoint.is_empty())
            && chain.restore(Body::from(stand.checkpoint.clone())).is_err()
        {
            // What another said means nothing: as if it had said nothing.
            chain = build_chain(&plan)?;
        }
        Ok(Incoming {
            plan,
            key,
            remembers,
            keeps_next: false,
            checkpoint_bytes: 0,
            segment: Segment::new(chain),
            sink,
            lossy,
            acknowledge_amount: Amount {
                bytes: limits.store_bytes.div_ceil(8),
                messages: limits.store_messages.div_ceil(8),
            },
            acknowledged: 0,
            unacknowledged: Amount::default(),
            acknowledge_at: None,
            missing_at: None,
            feedback: Teller::default(),
            delays: Delays::default(),
            end: None,
            end_at: None,
            finishing: false,
            finished: false,
            delivered: 0,
            drops,
            next: None,
            over_at: None,
            expected: 0,
            arrivals: Arrivals::default(),
            handed: Vec::new(),
            kept,
            kept_ticket: None,
            is_resumed: stand.is_some(),
            taken_before: stand.as_ref().map_or(0, |stand| stand.taken),
            partway_before: stand.map(|stand| stand.partway).filter(|bytes| *bytes > 0),
        })
    }

    /// What another worker would go on with, and what was counted, for paths that are built anew.
    pub(crate) fn into_kept(mut self) -> (u32, Option<Kept>, DropCounts) {
        self.segment.settle(&mut self.drops);
        let held = self.sink.give_up() + (self.segment.kept() + self.segment.out.messages.len()) as u64;
        self.drops.add(BEGAN_ANEW, held);
        (self.plan.flow, self.kept, self.drops)
    }

    /// Goes on counting where the flow of a session before ended.
    pub(crate) fn inherit(&mut self, drops: DropCounts) {
        self.drops = drops;
    }

    /// The node is one that a worker before this one wrote to.
    pub(crate) fn hand_legacy(&mut self, partner: &mut dyn Partner) {
        if let Some(kept) = self.kept.as_mut() {
            kept.hand_legacy(partner, self.key);
        }
    }

    /// Opens the flow again on the device that came back. It knows nothing of its lights and effects: where things
    /// stand is asked anew.
    pub(crate) fn reopen(
        &mut self,
        partner: &mut dyn Partner,
        notices: &mut Vec<Notice>,
    ) -> Result<(), PartnerError> {
        let format = self.plan.format.clone();
        let template = FlowTemplate { direction: Direction::In, format, class: self.plan.class };
        self.key = partner.open(&template, &Attributes::default())?;
        if let Some(kept) = self.kept.as_mut() {
            kept.forget_legacy();
        }
        self.give_up();
        self.handle_heard(notices);
        Ok(())
    }

    /// What was said before did not reach the partner: it is asked for anew.
    pub(crate) fn handle_resync(&mut self, notices: &mut Vec<Notice>) {
        self.give_up();
        self.handle_heard(notices);
    }

    /// Relies on nothing that was said before.
    fn give_up(&mut self) {
        if self.plan.class == FlowClass::State && !self.sink.is_given_up() {
            let held = self.sink.give_up();
            self.drops.add("stale", held);
        }
    }

    /// A new data connection: its kernel was asked nothing yet.
    pub(crate) fn handle_link(&mut self) {
        self.arrivals = Arrivals::default();
    }

    /// The other host fell silent: what it last said is not to be relied on.
    pub(crate) fn handle_silence(&mut self, around: Surroundings<'_>) {
        self.give_up();
        self.go_neutral(around);
    }

    /// The device there is gone; a new epoch follows when it is back.
    pub(crate) fn handle_absence(&mut self, around: Surroundings<'_>) {
        self.go_neutral(around);
    }

    fn go_neutral(&mut self, around: Surroundings<'_>) {
        if self.plan.class == FlowClass::Reliable {
            return;
        }
        if let Ok(chain) = build_chain(&self.plan) {
            self.segment.replace(Segment::new(chain), "stale", around.now, &mut self.drops);
        }
        if let Some(partner) = around.partner {
            // A partner without a neutral state has nothing to let go of.
            let _ = partner.ctl(self.key, Ctl::Neutral);
        }
    }

    /// The other host is heard again: if what it said was given up, ask where things stand.
    pub(crate) fn handle_heard(&self, notices: &mut Vec<Notice>) {
        if self.sink.is_given_up() {
            let (flow, epoch) = (self.plan.flow, self.sink.epoch());
            notices.push(Notice::Control(Control::Resync { flow, epoch }));
        }
    }

    pub(crate) fn handle_control(&mut self, message: &Control, now: Time, notices: &mut Vec<Notice>) {
        match message {
            Control::Pair { flow, epoch, pair, body }
                if *flow == self.plan.flow && *epoch == self.sink.epoch() =>
            {
                self.segment.handle_control(*pair, body, now);
            }
            Control::Pair { flow, epoch, pair, body } if *flow == self.plan.flow => {
                if let Some(next) = self.next.as_mut().filter(|next| next.epoch == *epoch) {
                    next.handle_control(*pair, body, now);
                }
            }
            Control::Gone { flow, epoch, sequence } if *flow == self.plan.flow => {
                self.sink.handle_gone(*epoch, *sequence);
            }
            Control::End { flow, epoch, sequence } if *flow == self.plan.flow => {
                self.end = Some((*epoch, *sequence));
                self.end_at = Some(now.after(LATE_WAIT));
            }
            Control::Epoch { flow, epoch, before, goes_on } if *flow == self.plan.flow => {
                // Said again after a link was made anew, or a worker there: what was acknowledged may be unknown.
                if *epoch == self.sink.epoch() {
                    self.acknowledged = u64::MAX;
                }
                // The pipeline that it goes on with may have been prepared by a worker before this one: the source asks for it again.
                let is_prepared = self.next.as_ref().is_some_and(|next| next.epoch == *epoch);
                let may_wait = self.plan.class == FlowClass::Reliable && self.sink.epoch() > 0;
                let is_ahead = *epoch > self.sink.epoch();
                match is_ahead && *goes_on && (is_prepared || may_wait && self.sink.expect(*epoch)) {
                    true => self.follow(*before, now, notices),
                    false => {
                        self.sink.handle_past(before.0, before.1);
                        self.begin(*epoch, now, notices);
                    }
                }
            }
            _ => {}
        }
        self.tell(now, LinkFacts::default(), notices);
    }

    pub(crate) fn flow(&self) -> u32 {
        self.plan.flow
    }

    pub(crate) fn run(&mut self, around: Surroundings<'_>) -> Result<Moved, PathError> {
        let Surroundings { mut partner, mut transport, facts, now, notices } = around;
        // Until the clocks were compared, nobody could say when a message was made.
        transport = transport.filter(|_| facts.is_some());
        let facts = facts.unwrap_or_default();
        // Until the source has said in which epoch it is, its halves could not understand ours.
        let begun = self.sink.epoch() > 0;
        let mut moved = Moved { progress: begun && self.segment.run_timeouts(now), ..Moved::default() };
        if std::mem::take(&mut self.is_resumed) {
            self.give_up();
            self.handle_heard(notices);
        }
        if let (Some(trace), Some(transport)) = (self.segment.out.trace.as_deref(), transport.as_mut()) {
            self.arrivals.prepare(trace, self.expected, transport.as_mut(), now);
        }
        let mut budget = MESSAGES_MAX;
        loop {
            if !self.push_out(partner.as_deref_mut(), now, &mut moved)? || !self.segment.has_room() {
                break;
            }
            if let Some(message) = self.sink.poll() {
                self.unacknowledged.add(message.body.len());
                self.segment.stamp(&message, Point::Ordered);
                self.segment.feed(message, now);
                continue;
            }
            if self.go_on(partner.as_deref_mut(), now, notices) {
                continue;
            }
            // A stream's next records are those of an epoch that does not begin yet.
            if !self.lossy && self.sink.is_waiting() {
                break;
            }
            if budget == 0 || moved.bytes >= BYTES_MAX as u64 {
                moved.progress = true;
                break;
            }
            budget -= 1;
            let Some(transport) = transport.as_mut() else { break };
            let read_at = self.read_begins();
            let pulled = transport.pull(FlowKey::DEFAULT, Pull::Yours).map_err(PathError::Transport)?;
            moved.count(&pulled);
            match pulled {
                Pulled::Message(_, record) => {
                    let read = read_at.map(|at| (at, trace::arrival(transport.as_mut())));
                    self.take_record(record, read, facts, now, notices)?;
                }
                Pulled::End => return Err(PathError::Closed),
                _ => break,
            }
        }
        self.finish(partner, now, notices, &mut moved)?;
        self.tell(now, facts, notices);
        Ok(moved)
    }

    /// Hands what came out of the stages to the partner; says whether nothing is left waiting.
    fn push_out(
        &mut self,
        partner: Option<&mut Box<dyn Partner>>,
        now: Time,
        moved: &mut Moved,
    ) -> Result<bool, PathError> {
        if self.segment.out.messages.is_empty() {
            return Ok(true);
        }
        let Some(partner) = partner else {
            if self.plan.class == FlowClass::Reliable {
                return Ok(false);
            }
            self.drops.add("device gone", self.segment.out.messages.len() as u64);
            self.segment.out.messages.clear();
            return Ok(true);
        };
        while let Some(message) = self.segment.out.messages.pop_front() {
            if self.taken_before > 0 {
                self.taken_before -= 1;
                continue;
            }
            if let Some(bytes) = self.partway_before.take() {
                // Whoever told how much it wrote knows the word.
                let _ = partner.ctl(self.key, Ctl::Skip(bytes));
            }
            if let Some(kept) = self.keeps() {
                kept.begin_pushing();
            }
            self.delays.record(message.created, now);
            self.segment.stamp(&message, Point::Handing);
            let mark = message.attributes.mark;
            match partner.push(self.key, message) {
                Ok(Pushed::Taken) => {
                    self.delivered += 1;
                    moved.pushed = true;
                    self.keep_pushed(1, partner.as_mut());
                    if let Some(trace) = self.segment.out.trace.as_deref_mut().filter(|_| mark != 0) {
                        trace.stamp(mark, Point::Handed, 0);
                        if self.handed.len() < HANDED_MAX {
                            self.handed.push(mark);
                        }
                    }
                }
                Ok(Pushed::Full(message)) => {
                    self.segment.out.messages.push_front(message);
                    self.keep_pushed(0, partner.as_mut());
                    return Ok(false);
                }
                Err((PartnerError::Message(_), _)) => {
                    self.drops.add("refused by the device", 1);
                    self.keep_pushed(1, partner.as_mut());
                }
                Err((error, message)) => {
                    match self.plan.class {
                        FlowClass::Reliable => self.segment.out.messages.push_front(message),
                        _ => self.drops.add("device gone", 1),
                    }
                    return Err(PathError::Partner(error));
                }
            }
        }
        Ok(true)
    }

    fn take_record(
        &mut self,
        mut record: Message,
        read: Option<Read>,
        facts: LinkFacts,
        now: Time,
        notices: &mut Vec<Notice>,
    ) -> Result<(), PathError> {
        let wrong = |what: String| PathError::Transport(PartnerError::Peer(what));
        let bytes = record
            .body
            .take_front::<{ RecordHeader::BYTES }>()
            .ok_or_else(|| wrong("a record shorter than its header".into()))?;
        let header = RecordHeader::parse(&bytes, BODY_BYTES_MAX).map_err(|error| wrong(error.to_string()))?;
        if header.flow != self.plan.flow || header.container.length as usize != record.body.len() {
            return Err(wrong(format!("a record of flow {} with a wrong flow or length", header.flow)));
        }
        record.created = made_at(header.container.created, facts, now);
        self.trace_received(&mut record, &header, read);
        match self.sink.handle(&header, record) {
            Received::NewEpoch(record) => {
                // Its beginning is told behind the pipeline that it may need, which a worker before this one may have prepared.
                let waits = self.plan.class == FlowClass::Reliable && self.sink.expect(header.epoch);
                if !waits {
                    self.begin(header.epoch, now, notices);
                }
                self.sink.handle(&header, record);
            }
            Received::Stale => self.drops.add("stale", 1),
            Received::Accepted | Received::Repeated | Received::Overflow => {}
        }
        Ok(())
    }

    /// Ends the flow here once everything before its end was handed on.
    fn finish(
        &mut self,
        partner: Option<&mut Box<dyn Partner>>,
        now: Time,
        notices: &mut Vec<Notice>,
        moved: &mut Moved,
    ) -> Result<(), PathError> {
        let Some((epoch, sequence)) = self.end.filter(|_| !self.finished) else { return Ok(()) };
        if epoch != self.sink.epoch() {
            return Ok(());
        }
        let late = self.end_at.is_some_and(|at| now >= at);
        let complete = self.sink.next_sequence() >= sequence;
        if !complete && (self.plan.class == FlowClass::Reliable || self.lossy && !late) {
            return Ok(());
        }
        self.sink.handle_end(epoch, sequence);
        if !self.finishing {
            if !self.segment.drain(now) {
                return Ok(());
            }
            self.finishing = true;
            moved.progress = true;
            return Ok(());
        }
        if !self.segment.out.messages.is_empty() {
            return Ok(());
        }
        self.segment.settle(&mut self.drops);
        let Some(partner) = partner else { return Ok(()) };
        match partner.ctl(self.key, Ctl::Finish) {
            Ok(CtlReply::Pending) => return Ok(()),
            Ok(_) | Err(PartnerError::Unsupported(_)) => {}
            Err(error) => return Err(PathError::Partner(error)),
        }
        self.finished = true;
        self.acknowledge_at = Some(now);
        let failure = self.segment.failure(&self.drops).filter(|_| self.delivered == 0);
        notices.push(failure.map_or(Notice::FlowEnded(self.plan.direction), Notice::Failed));
        Ok(())
    }

    /// Tells what the stages say to their other halves.
    fn tell_controls(&mut self, notices: &mut Vec<Notice>) {
        let (flow, epoch) = (self.plan.flow, self.sink.epoch());
        for (pair, body) in self.segment.take_controls(&mut self.drops) {
            notices.push(Notice::Control(Control::Pair { flow, epoch, pair, body }));
        }
    }

    /// Acknowledgements, requests for what is missing, feedback, and what stages say to their halves.
    fn tell(&mut self, now: Time, facts: LinkFacts, notices: &mut Vec<Notice>) {
        let (flow, epoch) = (self.plan.flow, self.sink.epoch());
        self.tell_controls(notices);
        notices.extend(self.segment.incidents().map(Notice::Incident));
        self.segment.settle(&mut self.drops);
        if self.lossy && self.sink.has_gap() {
            let due = *self.missing_at.get_or_insert(now.after(REORDER_WAIT));
            if now >= due {
                notices.push(Notice::Control(Control::Missing { flow, epoch, ranges: self.sink.missing() }));
                self.missing_at = Some(now.after((facts.round_trip * 2).max(MISSING_INTERVAL)));
            }
        } else {
            self.missing_at = None;
        }
        let feedback = self.feedback.poll(flow, self.sink.counters(), || self.delays.percentiles(), now);
        notices.extend(feedback.map(Notice::Control));
    }

    pub(crate) fn want(
        &self,
        partner: Option<&dyn Partner>,
        transport: Option<&dyn Partner>,
        poller: &mut Poller,
        wake: &mut Wake,
    ) {
        if self.sink.epoch() > 0 {
            self.segment.want(poller, wake);
        }
        let timers = [self.acknowledge_at, self.missing_at, self.over_at];
        for at in timers {
            wake.add(poller, Readiness::never().or_at(at));
        }
        if self.end.is_some() && !self.finished {
            // What is late by now is waited for no longer; what is held is, for a while.
            let until = self.segment.drain_timeout().or(self.end_at);
            wake.add(poller, Readiness::never().or_at(until.filter(|_| !self.finishing)));
        }
        let blocked = !self.segment.out.messages.is_empty();
        if let Some(partner) = partner.filter(|_| blocked || (self.finishing && !self.finished)) {
            let readiness = partner.readiness(self.key, Direction::In);
            wake.add(poller, Readiness { now: readiness.now && blocked, ..readiness });
        }
        // Stages that are not there yet are waited for without a time.
        if self.sink.is_followed() && self.next.is_some() {
            wake.add(poller, Readiness::never().or_at(self.segment.drain_timeout()));
        }
        let is_waiting = !self.lossy && self.sink.is_waiting();
        if !blocked
            && !is_waiting
            && self.segment.has_room()
            && let Some(transport) = transport
        {
            wake.add(poller, transport.readiness(FlowKey::DEFAULT, Direction::Out));
        }
    }

    pub(crate) fn stats(&self) -> FlowStats {
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
            ending: self.end.is_some() && !self.finished && self.plan.class == FlowClass::Reliable,
            delay_us: self.delays.percentiles().map(|percentiles| percentiles.map(|ns| ns as f64 / 1e3)),
            drops: self.drops.counts.clone(),
            pipeline: self.plan.pipeline.canonical().into(),
            stages: self.segment.report(),
            ..FlowStats::default()
        }
    }
}

fn build_chain(plan: &FlowPlan) -> Result<Chain, DriverError> {
    segment::build_chain(Half::Sink, &plan.pipeline, &plan.format, &plan.site)
        .map_err(|error| DriverError::Pipeline(error.to_string()))
}

/// When a message was made, by this host's clock, of which the other says `created` by its own. Who plays messages out by
/// their times would wait for one of the year to come, and let all behind it wait.
fn made_at(created: u64, facts: LinkFacts, now: Time) -> Time {
    Time(created).shifted(facts.offset).min(now.after(AHEAD_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use contract::Offset;

    #[test]
    fn nothing_is_made_long_after_it_came() {
        let (now, facts) =
            (Time::from_millis(5000), LinkFacts { offset: Offset(-7), ..LinkFacts::default() });
        assert_eq!(made_at(1000, facts, now), Time(993));
        assert_eq!(made_at(now.0 + 100, facts, now), Time(now.0 + 93), "clocks may be off a little");
        for created in [now.0 + 3_600_000_000_000, u64::MAX] {
            assert_eq!(made_at(created, facts, now), now.after(AHEAD_MAX));
        }
    }
}
