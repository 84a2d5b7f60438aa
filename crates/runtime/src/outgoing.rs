//! The source path of a flow: partner, source stages, numbering, transport.

mod telling;
mod tracing;

use crate::driver::{DriverError, FlowPlan, Moved, Notice, PathError, Surroundings, Wake};
use crate::fair::{BYTES_MAX, MESSAGES_MAX};
use crate::feedback::{Known, Reader};
use crate::kept::Kept;
use crate::registry;
use crate::segment::{self, DropCounts, Segment};
use crate::switch::Switch;
use crate::trace::Departures;
use contract::{
    Attributes, Ctl, CtlReply, Direction, FlowClass, FlowDirection, FlowKey, FlowTemplate, Half, Message,
    Partner, PartnerError, Pull, Pulled, Pushed, Time,
};
use pipeline::{Chain, Origin, Pipeline};
use session::{Admission, Limits, SourceFlow, StoreFull};
use std::collections::VecDeque;
use std::time::Duration;
use sys::poller::Poller;
use wire::ticket::FlowTicket;
use wire::{BODY_BYTES_MAX, Control, RecordHeader};

/// What the other host makes of what a flow says that is not reliable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Audience {
    /// It is not heard, so it may not hear us: what is made now is worthless to it.
    Silent,
    /// It is heard, but what it knows is not to be relied on. Once it is linked too, the next epoch begins.
    Stale,
    /// It knows, or will be told, everything of this epoch.
    Following,
}

pub(crate) struct Outgoing {
    plan: FlowPlan,
    key: FlowKey,
    segment: Segment,
    source: SourceFlow,
    lossy: bool,
    store_full: StoreFull,
    /// It was told that the store is full, since everything was acknowledged.
    full_told: bool,
    /// The store was full, and the flow ends for it.
    overrun: bool,
    /// A record that the transport had no room for.
    unsent: Option<Message>,
    audience: Audience,
    /// There was a link.
    begun: bool,
    ended: bool,
    /// The stages have given out everything.
    drained: bool,
    end_told: bool,
    end_settled: bool,
    feedback: Reader,
    drops: DropCounts,
    /// Of them, those that the device's partner told of.
    given_up: u64,
    /// The pipeline changes.
    switch: Option<Switch>,
    /// Traced records on their way out.
    departures: Departures,
    /// What another worker would go on with.
    kept: Option<Kept>,
    /// A worker before this one ran the flow, and the sink's stages know its: nothing is taken from the device before
    /// both begin anew.
    begins_again: bool,
}

/// Why messages end with their session.
pub(crate) const BEGAN_ANEW: &str = "the other host began anew";

/// What a flow leaves when its session is over and the other host begins another.
#[derive(Default)]
pub(crate) struct Legacy {
    /// What the other host has not acknowledged, oldest first, as it left the last stage.
    unsent: VecDeque<Message>,
    pub(crate) drops: DropCounts,
    /// Of them, those that the device's partner told of, which goes on counting.
    given_up: u64,
}

impl Outgoing {
    pub(crate) fn new(
        plan: FlowPlan,
        key: FlowKey,
        lossy: bool,
        limits: &Limits,
        mut kept: Option<Kept>,
    ) -> Result<Self, DriverError> {
        check_store(&plan, &plan.pipeline, limits.store_full).map_err(DriverError::Pipeline)?;
        let mut plan = plan;
        let mut drops = DropCounts::default();
        let (source, is_resumed) = resume(&mut plan, lossy, limits, kept.as_mut(), &mut drops);
        let chain = build_chain(&plan)?;
        let begins_again =
            is_resumed && plan.class == FlowClass::Reliable && !plan.pipeline.pairs().is_empty();
        // What goes on in it may wait for the epoch before, at a sink that has lost its stages for it.
        let flow = (plan.flow, plan.direction);
        let switch = (is_resumed && plan.class == FlowClass::Reliable && source.goes_on())
            .then(|| Switch::resume(flow, source.epoch(), plan.pipeline.clone()));
        let mut outgoing = Outgoing {
            plan,
            key,
            segment: Segment::new(chain),
            source,
            lossy,
            store_full: limits.store_full,
            full_told: false,
            overrun: false,
            unsent: None,
            audience: Audience::Stale,
            begun: false,
            ended: false,
            drained: false,
            end_told: false,
            end_settled: false,
            feedback: Reader::default(),
            drops,
            given_up: 0,
            switch,
            departures: Departures::default(),
            kept,
            begins_again,
        };
        outgoing.keep_ticket();
        Ok(outgoing)
    }

    /// What another worker would go on with, and what the flow of another session does, for paths that are built anew.
    pub(crate) fn into_kept(mut self) -> (u32, Option<Kept>, Legacy) {
        self.segment.settle(&mut self.drops);
        let numbered = self.source.kept().filter_map(|mut record| {
            record.body.take_front::<{ RecordHeader::BYTES }>()?;
            Some(record)
        });
        let numbered: Vec<Message> = numbered.collect();
        let (in_doubt, held) = (numbered.len() as u64, self.segment.kept() as u64);
        let mut unsent: VecDeque<Message> =
            numbered.into_iter().chain(self.segment.out.messages.drain(..)).collect();
        // Pairs of a session that is over made the others, with its keys and what both halves knew.
        if self.plan.class == FlowClass::Reliable && self.plan.pipeline.pairs().is_empty() {
            self.drops.add("in doubt when the other host began anew", in_doubt);
        } else {
            self.drops.add(BEGAN_ANEW, unsent.len() as u64);
            unsent.clear();
        }
        self.drops.add(BEGAN_ANEW, held);
        (self.plan.flow, self.kept, Legacy { unsent, drops: self.drops, given_up: self.given_up })
    }

    /// Goes on with what the flow of a session before left.
    pub(crate) fn inherit(&mut self, legacy: Legacy) {
        (self.drops, self.given_up) = (legacy.drops, legacy.given_up);
        match self.plan.pipeline.pairs().is_empty() {
            true => self.segment.out.messages = legacy.unsent,
            false => self.drops.add(BEGAN_ANEW, legacy.unsent.len() as u64),
        }
    }

    /// Keeps where the flow stands, and nothing more of what was acknowledged or given up.
    fn keep_ticket(&mut self) {
        if let Some(kept) = self.kept.as_mut() {
            kept.put_ticket(&FlowTicket::Source(self.source.ticket()), self.plan.pipeline.text());
            kept.settle(self.source.oldest());
        }
    }

    /// Keeps a record of a reliable flow until it is acknowledged.
    fn keep(&mut self, record: &Message) {
        let Some(kept) = self.kept.as_mut().filter(|_| self.plan.class == FlowClass::Reliable) else {
            return;
        };
        let place = (self.source.epoch(), self.source.next_sequence() - 1);
        if self.store_full == StoreFull::DropOldest {
            kept.settle(self.source.oldest());
        }
        kept.append(place, &record.body);
    }

    /// Messages that are in this process's memory alone. A reliable flow's records are in its broker's, too.
    fn alone(&self) -> usize {
        let is_kept = self.plan.class == FlowClass::Reliable && self.kept.as_ref().is_none_or(Kept::is_whole);
        let numbered = if is_kept { 0 } else { self.source.unacknowledged() };
        self.segment.kept() + self.segment.out.messages.len() + numbered
    }

    /// Keeps how much is in this process's memory alone, while more is being taken.
    fn handle_taking(&self, partner: Option<&mut Box<dyn Partner>>) {
        if let Some(kept) = &self.kept {
            kept.handle_taking(self.alone(), count(partner, self.key, Ctl::Ahead));
        }
    }

    /// The same, when nothing is, and what else another worker is to know.
    fn handle_taken(&mut self, mut partner: Option<&mut Box<dyn Partner>>) {
        self.count_given_up(partner.as_deref_mut());
        let (alone, dropped) = (self.alone(), self.drops.total());
        let Some(kept) = self.kept.as_mut() else { return };
        match partner {
            Some(partner) => {
                kept.keep_legacy(partner.as_mut(), self.key);
                kept.handle_taken(alone, count(Some(partner), self.key, Ctl::Ahead));
            }
            None => kept.handle_taken(alone, 0),
        }
        kept.keep_dropped(dropped);
    }

    /// What the device's partner gave up by itself, the flow counts with all else that it dropped.
    fn count_given_up(&mut self, partner: Option<&mut Box<dyn Partner>>) {
        let count = count(partner, self.key, Ctl::GivenUp);
        let before = std::mem::replace(&mut self.given_up, count);
        self.drops.add("by the device", count.saturating_sub(before));
    }

    /// The device is one that a worker before this one read of.
    pub(crate) fn hand_legacy(&mut self, partner: &mut dyn Partner) {
        if let Some(kept) = self.kept.as_mut() {
            kept.hand_legacy(partner, self.key);
        }
    }

    /// Whether what is made now is worthless: a state flow says where things stand instead, once it can, and
    /// what is late for a timely flow is late.
    fn is_dropping(&self, linked: bool) -> bool {
        match self.plan.class {
            FlowClass::Reliable => false,
            FlowClass::State => self.audience != Audience::Following,
            FlowClass::Timely => self.audience == Audience::Silent || !linked,
        }
    }

    /// Opens the flow again on the device that came back.
    pub(crate) fn reopen(&mut self, partner: &mut dyn Partner) -> Result<(), PartnerError> {
        self.key = partner.open(&self.template(Direction::Out), &Attributes::default())?;
        self.given_up = 0;
        if let Some(kept) = self.kept.as_mut() {
            kept.forget_legacy();
        }
        Ok(())
    }

    /// The flow as a partner opens it that it is pulled out of, or pushed into.
    pub(crate) fn template(&self, direction: Direction) -> FlowTemplate {
        FlowTemplate { direction, format: self.plan.format.clone(), class: self.plan.class }
    }

    /// A new data connection. What the sink has not acknowledged goes out again, unless the flow begins anew.
    pub(crate) fn handle_link(&mut self, around: Surroundings<'_>) {
        self.end_told = false;
        self.begun = true;
        self.departures.handle_link();
        match (self.plan.class, self.audience) {
            (FlowClass::Reliable, _) | (FlowClass::State, Audience::Following) => {
                self.unsent = None;
                self.source.handle_link(around.now);
                self.tell_change(around.notices);
            }
            _ => self.begin_anew(around),
        }
    }

    pub(crate) fn handle_silence(&mut self) {
        self.audience = Audience::Silent;
    }

    /// The other host is heard again. What was dropped meanwhile it may never have missed, if only its words
    /// were lost and not ours: so it is told where things stand.
    pub(crate) fn handle_heard(&mut self, around: Surroundings<'_>) {
        if self.audience == Audience::Silent {
            self.audience = Audience::Stale;
            self.begin_anew(around);
        }
    }

    /// The device went away: what stands half done is given up with it.
    pub(crate) fn handle_partner_gone(&mut self, now: Time) {
        if self.plan.class == FlowClass::State
            && let Ok(chain) = build_chain(&self.plan)
        {
            self.segment.replace(Segment::new(chain), "device gone", now, &mut self.drops);
        }
    }

    /// The device is back: a state flow says where things stand now.
    pub(crate) fn handle_partner(&mut self, around: Surroundings<'_>) {
        if self.plan.class == FlowClass::State {
            self.begin_anew(around);
        }
    }

    pub(crate) fn handle_control(&mut self, message: &Control, around: Surroundings<'_>) {
        match message {
            Control::Acknowledge { flow, epoch, next } if *flow == self.plan.flow => {
                self.source.handle_acknowledge(*epoch, *next);
                self.keep_ticket();
            }
            Control::Missing { flow, epoch, ranges } if *flow == self.plan.flow => {
                self.source.handle_missing(*epoch, ranges);
            }
            Control::Resync { flow, epoch } if *flow == self.plan.flow && *epoch == self.source.epoch() => {
                self.begin_anew(around);
            }
            Control::Changed { flow, epoch, refusal } if *flow == self.plan.flow => {
                let refused = self
                    .switch
                    .take_if(|switch| !switch.handle_answer(*epoch, refusal.as_deref(), around.notices));
                if refused.is_some() && std::mem::take(&mut self.begins_again) {
                    self.restart(around);
                }
            }
            Control::Begun { flow, epoch } if *flow == self.plan.flow => {
                self.source.handle_acknowledge(*epoch, 0);
                self.keep_ticket();
                self.switch.take_if(|switch| switch.handle_begun(*epoch, around.notices));
            }
            Control::Pair { flow, epoch, pair, body }
                if *flow == self.plan.flow && *epoch == self.source.epoch() =>
            {
                self.segment.handle_control(*pair, body, around.now);
            }
            Control::Feedback { flow, .. } if *flow == self.plan.flow => {
                let known = Known {
                    class: self.plan.class,
                    counters: self.source.counters(),
                    unacknowledged_bytes: self.waiting_bytes(),
                    round_trip: around.facts.unwrap_or_default().round_trip,
                };
                if let Some(feedback) = self.feedback.read(message, &known, around.now) {
                    self.segment.handle_feedback(&feedback, around.now);
                }
            }
            _ => {}
        }
    }

    /// Bytes of bodies that left the stages and are not known to have arrived.
    fn waiting_bytes(&self) -> u64 {
        let waiting = self.segment.out.messages.iter().chain(&self.unsent);
        let bytes = waiting.map(|message| message.body.len()).sum::<usize>();
        (bytes + self.source.unacknowledged_bytes()) as u64
    }

    /// What the other host knows is not to be relied on: the next epoch begins, now or as soon as it is heard and
    /// linked. Whichever of the two comes last finds the flow stale.
    fn begin_anew(&mut self, around: Surroundings<'_>) {
        if self.plan.class == FlowClass::Reliable || self.audience == Audience::Silent {
            return;
        }
        self.audience = Audience::Stale;
        if around.transport.is_some() {
            self.restart(around);
        }
    }

    /// Begins the next epoch with fresh stages and, for a state flow, with where things stand.
    fn restart(&mut self, around: Surroundings<'_>) {
        let before = self.source.epoch();
        let changed = self.switch.as_mut().and_then(|switch| {
            let fresh = switch.handle_restart(before, around.notices)?;
            self.plan.pipeline = switch.pipeline.clone();
            Some((switch.epoch, fresh))
        });
        let (epoch, fresh) = match changed {
            Some(changed) => changed,
            None => match build_chain(&self.plan) {
                Ok(chain) => (before.saturating_add(1), Segment::new(chain)),
                Err(_) => return,
            },
        };
        // It has its number: whoever counts the epoch's records counts it with them.
        self.unsent = None;
        self.segment.replace(fresh, "epoch given up", around.now, &mut self.drops);
        self.drops.add("epoch given up", self.source.restart_at(epoch));
        self.keep_ticket();
        self.end_told = false;
        self.audience = Audience::Following;
        self.tell_epoch(around.notices);
        if self.plan.class == FlowClass::State
            && let Some(partner) = around.partner
        {
            // A device that cannot say where it stands has no state to restore.
            let _ = partner.ctl(self.key, Ctl::Snapshot);
        }
    }

    pub(crate) fn run(&mut self, mut around: Surroundings<'_>) -> Result<Moved, PathError> {
        if self.begins_again && self.switch.is_none() {
            self.begin_again(&mut around);
        }
        self.handle_taking(around.partner.as_deref_mut());
        self.run_path(around)
    }

    /// The sink's stages know those of a worker that is gone: both begin anew, behind what they have still to undo.
    fn begin_again(&mut self, around: &mut Surroundings<'_>) {
        if let Ok(chain) = build_chain(&self.plan) {
            let (flow, epoch) = ((self.plan.flow, self.plan.direction), self.source.epoch());
            let (pipeline, segment) = (self.plan.pipeline.clone(), Segment::new(chain));
            self.switch = Some(Switch::begin(flow, epoch, pipeline, segment, around.notices));
        }
    }

    fn run_path(&mut self, around: Surroundings<'_>) -> Result<Moved, PathError> {
        let Surroundings { mut partner, mut transport, facts, now, notices } = around;
        let facts = facts.unwrap_or_default();
        let mut moved = Moved { progress: self.segment.run_timeouts(now), ..Moved::default() };
        self.source.handle_timeout(now, facts.round_trip);
        if transport.is_some() && self.switch.as_mut().is_some_and(|switch| switch.is_due(now)) {
            self.tell_change(notices);
        }
        let mut budget = MESSAGES_MAX;
        loop {
            let clear = match transport.as_mut() {
                Some(transport) => self.send(transport.as_mut(), now, &mut moved)?,
                None => self.keep_or_drop(now),
            };
            if clear && self.switch_over(now, notices) {
                continue;
            }
            if !clear || self.is_switching() || self.begins_again || self.ended || !self.segment.has_room() {
                break;
            }
            if budget == 0 || moved.bytes >= BYTES_MAX as u64 {
                moved.progress = true;
                break;
            }
            budget -= 1;
            // What a reliable flow's device makes before there is a link waits in the device.
            let Some(partner) = partner.as_mut().filter(|_| self.begun || self.is_dropping(false)) else {
                break;
            };
            let read_at = self.read_begins();
            let pulled = partner.pull(self.key, Pull::Yours).map_err(PathError::Partner)?;
            moved.count(&pulled);
            match pulled {
                Pulled::Message(_, message) if self.is_dropping(transport.is_some()) => {
                    self.drops.add("link down", 1);
                    drop(message);
                }
                Pulled::Message(_, mut message) => {
                    self.trace_received(&mut message, read_at);
                    self.segment.feed(message, now);
                    self.handle_taking(Some(partner));
                }
                Pulled::End => {
                    self.ended = true;
                    moved.progress = true;
                }
                _ => break,
            }
        }
        if self.ended && !self.drained && self.segment.drain(now) {
            self.drained = true;
            moved.progress = true;
        }
        self.tell(transport.is_some(), notices);
        self.handle_taken(partner);
        Ok(moved)
    }

    /// Tells the sink in which epoch the flow is, and before that which pipeline it needs: a worker that had been told may be gone.
    fn tell_change(&self, notices: &mut Vec<Notice>) {
        let (flow, epoch) = ((self.plan.flow, self.plan.direction), self.source.epoch());
        match &self.switch {
            Some(switch) => switch.tell_again(notices),
            None if self.source.goes_on() => {
                Switch::resume(flow, epoch, self.plan.pipeline.clone()).tell_again(notices);
            }
            None => {}
        }
        self.tell_epoch(notices);
    }

    fn tell_epoch(&self, notices: &mut Vec<Notice>) {
        let (flow, source) = (self.plan.flow, &self.source);
        let (epoch, before, goes_on) = (source.epoch(), source.before(), source.goes_on());
        notices.push(Notice::Control(Control::Epoch { flow, epoch, before, goes_on }));
    }

    pub(crate) fn direction(&self) -> FlowDirection {
        self.plan.direction
    }

    /// Begins to give the flow another pipeline.
    pub(crate) fn change(&mut self, pipeline: Pipeline, notices: &mut Vec<Notice>) {
        let (format, site) = (&self.plan.format, &self.plan.site);
        let chain = segment::build_chain(Half::Source, &pipeline, format, site);
        let allowed = check_store(&self.plan, &pipeline, self.store_full);
        let refusal = match chain.map_err(|error| error.to_string()).and_then(|chain| allowed.map(|()| chain))
        {
            _ if self.switch.is_some() => "another change of this flow is under way".into(),
            _ if self.ended => "the flow has ended".into(),
            Err(refusal) => refusal,
            Ok(chain) => {
                let flow = (self.plan.flow, self.plan.direction);
                let segment = Segment::new(chain);
                self.switch = Some(Switch::begin(flow, self.source.epoch(), pipeline, segment, notices));
                return;
            }
        };
        let direction = self.plan.direction;
        notices.push(Notice::Changed { direction, result: Err(refusal) });
    }

    /// Whether nothing is taken from the device: the old stages have not given out everything yet.
    fn is_switching(&self) -> bool {
        self.switch.as_ref().is_some_and(Switch::is_ending)
    }

    /// Brings a change of pipeline a step further, all that came out of the stages being numbered; says whether
    /// there may be more by now.
    fn switch_over(&mut self, now: Time, notices: &mut Vec<Notice>) -> bool {
        let Some(switch) = self.switch.as_mut() else { return false };
        if switch.ends_old() {
            self.segment.end(now);
            return true;
        }
        if self.segment.is_ending() {
            return false;
        }
        let Some(fresh) = switch.take_new() else { return false };
        let (epoch, pipeline) = (switch.epoch, switch.pipeline.clone());
        self.tell_controls(notices);
        self.segment.replace(fresh, "epoch given up", now, &mut self.drops);
        self.plan.pipeline = pipeline;
        self.source.go_on(epoch);
        self.begins_again = false;
        self.keep_ticket();
        self.tell_epoch(notices);
        true
    }

    /// Sends what is to be sent; says whether nothing is left waiting.
    fn send(&mut self, transport: &mut dyn Partner, now: Time, moved: &mut Moved) -> Result<bool, PathError> {
        loop {
            let record = match self.unsent.take().or_else(|| self.source.poll_resend(now)) {
                Some(record) => record,
                None => match self.segment.out.messages.pop_front() {
                    None => return Ok(true),
                    Some(message) if message.body.len() > BODY_BYTES_MAX => {
                        self.drops.add("larger than a record may be", 1);
                        continue;
                    }
                    Some(message) => match self.source.admit(message, now) {
                        Admission::Record(record) => {
                            self.keep(&record);
                            self.trace_numbered(&record);
                            record
                        }
                        Admission::Full(message) => {
                            self.segment.out.messages.push_front(message);
                            return Ok(false);
                        }
                        Admission::Closed(message) => {
                            self.segment.out.messages.push_front(message);
                            self.overrun = true;
                            return Ok(false);
                        }
                    },
                },
            };
            let mark = record.attributes.mark;
            if mark != 0 && self.segment.out.trace.is_some() {
                self.departures.push(mark, transport, now);
            }
            match transport.push(FlowKey(self.plan.flow), record) {
                Ok(Pushed::Taken) => {
                    moved.pushed = true;
                    if let Some(trace) = self.segment.out.trace.as_deref_mut().filter(|_| mark != 0) {
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

    /// Without a link: messages go to the store while it has room, or end here.
    fn keep_or_drop(&mut self, now: Time) -> bool {
        if self.is_dropping(false) {
            self.drops.add("link down", self.segment.out.messages.len() as u64);
            self.segment.out.messages.clear();
            return true;
        }
        self.source.handle_link_lost();
        while let Some(message) = self.segment.out.messages.pop_front() {
            if message.body.len() > BODY_BYTES_MAX {
                self.drops.add("larger than a record may be", 1);
                continue;
            }
            let admission = self.source.admit(message, now);
            self.overrun |= matches!(admission, Admission::Closed(_));
            match admission {
                Admission::Record(record) => self.keep(&record),
                Admission::Full(message) | Admission::Closed(message) => {
                    self.segment.out.messages.push_front(message);
                    return false;
                }
            }
        }
        true
    }

    pub(crate) fn want(
        &self,
        partner: Option<&dyn Partner>,
        transport: Option<&dyn Partner>,
        round_trip: Duration,
        poller: &mut Poller,
        wake: &mut Wake,
    ) {
        self.segment.want(poller, wake);
        wake.add(poller, contract::Readiness::never().or_at(self.source.poll_timeout(round_trip)));
        let again_at = self.switch.as_ref().and_then(Switch::again_at).filter(|_| transport.is_some());
        wake.add(poller, contract::Readiness::never().or_at(again_at));
        let drain_at = self.segment.drain_timeout().filter(|_| !self.drained);
        wake.add(poller, contract::Readiness::never().or_at(drain_at));
        if self.unsent.is_some() {
            if let Some(transport) = transport {
                wake.add(poller, transport.readiness(FlowKey(self.plan.flow), Direction::In));
            }
            return;
        }
        // Messages wait for the store to empty, which an acknowledgement brings about.
        let is_full = !self.segment.out.messages.is_empty() || !self.segment.has_room();
        if is_full || self.ended || self.begins_again {
            return;
        }
        if let Some(partner) = partner.filter(|_| self.begun || self.is_dropping(false)) {
            wake.add(poller, partner.readiness(self.key, Direction::Out));
        }
    }
}

/// What a partner answers with a number; 0 if it has none.
fn count(partner: Option<&mut Box<dyn Partner>>, key: FlowKey, question: Ctl<'_>) -> u64 {
    match partner.map(|partner| partner.ctl(key, question)) {
        Some(Ok(CtlReply::Count(count))) => count,
        _ => 0,
    }
}

/// Goes on where a worker before this one stood, if one did; says whether.
fn resume(
    plan: &mut FlowPlan,
    lossy: bool,
    limits: &Limits,
    kept: Option<&mut Kept>,
    drops: &mut DropCounts,
) -> (SourceFlow, bool) {
    let mut fresh = SourceFlow::new(plan.flow, plan.class, lossy, limits);
    let Some(kept) = kept else { return (fresh, false) };
    let Some(stand) = kept.source().filter(|stand| stand.ticket.flow == plan.flow) else {
        *drops = DropCounts::resume(&kept.losses());
        return (fresh, false);
    };
    *drops = DropCounts::resume(&stand.losses);
    let stood = Pipeline::parse(&stand.pipeline, registry::pairs(), Origin::Local);
    if let Ok(pipeline) = stood.and_then(|stood| stood.in_place_of(&plan.pipeline)) {
        plan.pipeline = pipeline;
    }
    let count = stand.records.as_ref().map_or(0, |records| records.len() as u64);
    let source =
        stand.records.map(|records| SourceFlow::resume(&stand.ticket, records, plan.class, lossy, limits));
    match source {
        Some(Ok(source)) => (source, true),
        Some(Err(_)) | None => {
            drops.add("of no use when the worker ended", count);
            fresh.restart_at(stand.ticket.epoch.saturating_add(1));
            (fresh, true)
        }
    }
}

/// Whether the stages of a flow bear that messages are given up.
fn check_store(plan: &FlowPlan, pipeline: &Pipeline, store_full: StoreFull) -> Result<(), String> {
    let gives_up = store_full == StoreFull::DropOldest && plan.class != FlowClass::Timely;
    match gives_up && pipeline.promises().needs_order {
        true => Err(format!(
            "`{}` needs every message of its other half, and with --limit store_full=drop-oldest some are given \
             up: use pairs that keep no history, or another store_full",
            pipeline.canonical()
        )),
        false => Ok(()),
    }
}

fn build_chain(plan: &FlowPlan) -> Result<Chain, DriverError> {
    segment::build_chain(Half::Source, &plan.pipeline, &plan.format, &plan.site)
        .map_err(|error| DriverError::Pipeline(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry;
    use contract::{Format, Site};
    use pipeline::{Origin, Pipeline};

    fn around(notices: &mut Vec<Notice>) -> Surroundings<'_> {
        Surroundings { partner: None, transport: None, facts: None, now: Time::from_millis(1), notices }
    }

    /// What is told of changes and epochs, by number.
    fn told(notices: &mut Vec<Notice>) -> Vec<(&'static str, u32)> {
        let number = |notice| match notice {
            Notice::Control(Control::Change { epoch, .. }) => Some(("change", epoch)),
            Notice::Control(Control::Epoch { epoch, .. }) => Some(("epoch", epoch)),
            _ => None,
        };
        notices.drain(..).filter_map(number).collect()
    }

    /// A sink that was killed when it had begun the epoch may go on before that: it needs the pipeline again.
    #[test]
    fn with_each_link_the_sink_is_told_of_the_pipeline_that_the_flow_goes_on_with() {
        let pipeline = |text| Pipeline::parse(text, registry::pairs(), Origin::Local).unwrap();
        let plan = FlowPlan {
            flow: 7,
            direction: FlowDirection::DeviceToApplication,
            class: FlowClass::Reliable,
            format: Format::Bytes,
            pipeline: pipeline("compress"),
            site: Site::default(),
        };
        let mut flow = Outgoing::new(plan, FlowKey::DEFAULT, false, &Limits::default(), None).unwrap();
        let notices = &mut Vec::new();
        flow.handle_link(around(notices));
        let first = flow.source.epoch();
        assert_eq!(told(notices), [("epoch", first)]);
        flow.change(pipeline("null"), notices);
        let epoch = flow.switch.as_ref().unwrap().epoch;
        assert_eq!(told(notices), [("change", epoch)]);
        flow.handle_control(&Control::Changed { flow: 7, epoch, refusal: None }, around(notices));
        flow.run(around(notices)).unwrap();
        assert_eq!(told(notices), [("epoch", epoch)]);
        for is_begun in [false, true] {
            if is_begun {
                flow.handle_control(&Control::Begun { flow: 7, epoch }, around(notices));
                assert!(flow.switch.is_none());
            }
            flow.handle_link(around(notices));
            assert_eq!(told(notices), [("change", epoch), ("epoch", epoch)]);
        }
    }
}
