//! The sink side of a flow: order, repeats, gaps, what was lost, and what to acknowledge.
//!
//! Reliable and state flows are handed on in order and without a gap; records that came early wait, within
//! bounds, and what is missing is asked for. Timely flows are handed on as they come, each once.
//!
//! What the source keeps no longer ([`SinkFlow::handle_gone`]) is counted and passed over. [`SinkFlow::ticket`] is all
//! that another process needs to go on behind what the partner took.
//!
//! An epoch that goes on behind another ([`SinkFlow::expect`]) waits until that one is over.

use crate::{FIRST_EPOCH, Limits, TicketError};
use contract::{FlowClass, Message};
use std::cmp::Ordering;
use std::collections::{BTreeMap, VecDeque};
use wire::RecordHeader;
use wire::control::MISSING_RANGES_MAX;
use wire::ticket::SinkTicket;

/// Sequences behind the newest that a timely flow still tells from repeats.
const TIMELY_WINDOW: u64 = 1024;
/// Epochs whose records came before word of them, at most; of older ones nothing more is counted.
const PAST_MAX: usize = 64;

/// Where a record stands.
#[derive(Debug, PartialEq, Eq)]
pub enum Received {
    /// Drain [`SinkFlow::poll`].
    Accepted,
    /// It came before, or its epoch is over.
    Repeated,
    /// Its epoch was given up.
    Stale,
    /// Its epoch has not begun here: call [`SinkFlow::begin`] and hand it in again.
    NewEpoch(Message),
    /// Too far ahead to hold, or more than may wait to be handed on.
    Overflow,
}

/// Figures since the flow began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SinkCounters {
    /// Records handed on.
    pub received: u64,
    /// Bytes of bodies handed on.
    pub received_bytes: u64,
    /// Records that came again.
    pub repeated: u64,
    /// Records that never came.
    pub lost: u64,
    /// Records of an epoch given up.
    pub stale: u64,
}

/// An epoch that goes on behind the current one.
#[derive(Debug, Clone)]
struct Following {
    epoch: u32,
    /// One past the last sequence of the current epoch, once that is known.
    end: Option<u64>,
    /// What came of it already.
    held: BTreeMap<u64, Message>,
    held_bytes: usize,
}

#[derive(Debug, Clone, Copy, Default)]
struct Taken {
    next: u64,
    lost: u64,
}

/// The sink side of one flow.
#[derive(Debug, Clone)]
pub struct SinkFlow {
    ordered: bool,
    held_records_max: usize,
    held_bytes_max: usize,
    epoch: u32,
    /// Epochs up to this one are given up.
    given_up: u32,
    following: Option<Following>,
    /// Ordered: the next sequence to hand on. Timely: one past the newest that came.
    next: u64,
    /// Ordered: the first sequence that the partner has not taken, and what was lost before it.
    taken: Taken,
    /// Ordered: before this, epoch and sequence, the source keeps nothing more.
    gone: (u32, u64),
    /// Ordered: what came early. Timely: what is to be handed on.
    held: BTreeMap<u64, Message>,
    held_bytes: usize,
    /// Timely: which of the last [`TIMELY_WINDOW`] sequences came, newest in bit 0 of word 0.
    seen: [u64; (TIMELY_WINDOW / 64) as usize],
    counters: SinkCounters,
    /// [`SinkCounters::lost`] when the epoch began.
    lost_before: u64,
    /// Timely: epochs that were left before it was said where they ended, and how many records of each came or were
    /// counted as lost. Oldest first, at most [`PAST_MAX`].
    past: VecDeque<(u32, u64)>,
    /// Epochs up to this one are counted.
    counted: u32,
}

impl SinkFlow {
    /// A flow of which nothing came yet.
    pub fn new(class: FlowClass, limits: &Limits) -> Self {
        SinkFlow {
            ordered: class != FlowClass::Timely,
            held_records_max: limits.held_records,
            held_bytes_max: limits.held_bytes,
            epoch: 0,
            given_up: 0,
            following: None,
            next: 0,
            taken: Taken::default(),
            gone: (0, 0),
            held: BTreeMap::new(),
            held_bytes: 0,
            seen: [0; (TIMELY_WINDOW / 64) as usize],
            counters: SinkCounters::default(),
            lost_before: 0,
            past: VecDeque::new(),
            counted: 0,
        }
    }

    /// A record came; `message` is its container's.
    pub fn handle(&mut self, header: &RecordHeader, message: Message) -> Received {
        if header.epoch <= self.given_up {
            self.counters.stale += 1;
            return Received::Stale;
        }
        if self.following.as_ref().is_some_and(|following| following.epoch == header.epoch) {
            return self.hold_for_later(header.sequence, message);
        }
        if header.epoch > self.epoch {
            return Received::NewEpoch(message);
        }
        if header.epoch < self.epoch {
            self.counters.repeated += 1;
            return Received::Repeated;
        }
        // The last number has no successor, so it is never used.
        if header.sequence == u64::MAX {
            return Received::Overflow;
        }
        match self.ordered {
            true => self.hold(header.sequence, message),
            false => self.pass(header.sequence, message),
        }
    }

    /// Records of `epoch` go on behind those of the current one: they wait until that is over. Says no, and waits for
    /// nothing new, if that epoch has begun, or while another is known to follow.
    #[must_use]
    pub fn expect(&mut self, epoch: u32) -> bool {
        match &self.following {
            _ if epoch <= self.epoch => false,
            Some(following) if following.epoch == epoch => true,
            Some(following) if following.end.is_some() || !following.held.is_empty() => false,
            _ => {
                self.following = Some(Following { epoch, end: None, held: BTreeMap::new(), held_bytes: 0 });
                true
            }
        }
    }

    /// The current epoch has so many messages, and the one expected follows. If the current one was given up, so
    /// is the one that goes on from it.
    pub fn expect_end(&mut self, sequence: u64) {
        let Some(following) = self.following.as_mut() else { return };
        following.end = Some(sequence);
        self.pass_over();
        if self.given_up == self.epoch {
            self.give_up();
        } else if !self.ordered {
            self.count_to(sequence);
        }
    }

    /// Whether the epoch expected is known to follow the current one.
    pub fn is_followed(&self) -> bool {
        self.end().is_some()
    }

    /// Whether everything of the current epoch came and was handed on, and another follows.
    pub fn is_over(&self) -> bool {
        let complete = |end| match self.ordered {
            true => self.next >= end,
            false => self.counters.lost == self.lost_before && self.held.is_empty(),
        };
        self.end().is_some_and(complete)
    }

    /// Begins the epoch expected, with what came of it already.
    pub fn advance(&mut self) {
        if let Some(following) = &self.following {
            self.begin(following.epoch);
        }
    }

    /// Whether a transport that loses nothing is to be left alone, because what it has next would find no room:
    /// word of what fills the gap, or of where the epoch ends, is on its way.
    pub fn is_waiting(&self) -> bool {
        self.is_following_full() || self.ordered && self.is_held_full(&self.held, self.held_bytes)
    }

    fn is_following_full(&self) -> bool {
        let following = self.following.as_ref();
        following.is_some_and(|following| self.is_held_full(&following.held, following.held_bytes))
    }

    /// Whether no more is to be held: one record may go over the bound.
    fn is_held_full(&self, held: &BTreeMap<u64, Message>, bytes: usize) -> bool {
        held.len() >= self.held_records_max || bytes >= self.held_bytes_max
    }

    fn hold_for_later(&mut self, sequence: u64, message: Message) -> Received {
        let is_full = self.is_following_full();
        let Some(following) = self.following.as_mut() else { return Received::Overflow };
        if following.held.contains_key(&sequence) {
            self.counters.repeated += 1;
            return Received::Repeated;
        }
        if is_full || sequence == u64::MAX {
            return Received::Overflow;
        }
        following.held_bytes += message.body.len();
        following.held.insert(sequence, message);
        Received::Accepted
    }

    fn hold(&mut self, sequence: u64, message: Message) -> Received {
        if sequence < self.next || self.held.contains_key(&sequence) {
            self.counters.repeated += 1;
            return Received::Repeated;
        }
        // What everything waits for always fits.
        if sequence != self.next && self.is_held_full(&self.held, self.held_bytes) {
            return Received::Overflow;
        }
        self.held_bytes += message.body.len();
        self.held.insert(sequence, message);
        self.pass_over();
        Received::Accepted
    }

    /// The source keeps nothing more of what is before this: what of it has not come is lost.
    pub fn handle_gone(&mut self, epoch: u32, sequence: u64) {
        if self.ordered && (epoch, sequence) > self.gone {
            self.gone = (epoch, sequence);
            self.pass_over();
        }
    }

    /// Passes over what will not come, up to the next that came.
    fn pass_over(&mut self) {
        let floor = match self.gone.0.cmp(&self.epoch) {
            Ordering::Less => return,
            Ordering::Equal => self.gone.1,
            Ordering::Greater => self.end().unwrap_or(0),
        };
        let to = self.held.first_key_value().map_or(floor, |(first, _)| *first.min(&floor));
        if self.ordered && to > self.next && self.epoch > self.given_up {
            self.counters.lost = self.counters.lost.saturating_add(to - self.next);
            self.next = to;
        }
    }

    fn pass(&mut self, sequence: u64, message: Message) -> Received {
        if let Some(behind) = self.next.checked_sub(sequence + 1)
            && (behind >= TIMELY_WINDOW || self.is_seen(behind))
        {
            self.counters.repeated += 1;
            return Received::Repeated;
        }
        if self.is_held_full(&self.held, self.held_bytes) {
            return Received::Overflow;
        }
        self.take_timely(sequence, message);
        Received::Accepted
    }

    fn take_timely(&mut self, sequence: u64, message: Message) {
        self.count_to(sequence.saturating_add(1));
        self.counters.lost = self.counters.lost.saturating_sub(1);
        let behind = self.next - 1 - sequence;
        self.seen[(behind / 64) as usize] |= 1 << (behind % 64);
        self.held_bytes += message.body.len();
        self.held.insert(sequence, message);
    }

    /// A timely flow's records before `next` exist: each that has not come counts as lost until it does.
    fn count_to(&mut self, next: u64) {
        if let Some(ahead) = next.checked_sub(self.next) {
            self.counters.lost = self.counters.lost.saturating_add(ahead);
            self.shift_seen(ahead);
            self.next = next;
        }
    }

    /// The flow ends before `sequence` of `epoch`: what a timely flow misses at its end counts as lost.
    pub fn handle_end(&mut self, epoch: u32, sequence: u64) {
        if self.ordered {
            return;
        }
        // Nothing came yet, and perhaps nothing will.
        if self.epoch == 0 {
            self.begin(epoch);
        }
        if epoch == self.epoch && !self.is_given_up() {
            self.count_to(sequence);
        }
    }

    /// `epoch` ended before `sequence`, and another begins or has begun without waiting for it: what a timely flow
    /// misses of it counts as lost.
    pub fn handle_past(&mut self, epoch: u32, sequence: u64) {
        if self.ordered || epoch <= self.given_up || epoch <= self.counted {
            return;
        }
        self.counted = epoch;
        if epoch == self.epoch {
            return self.count_to(sequence);
        }
        let mut known = 0;
        while let Some((past, records)) = self.past.pop_front_if(|(past, _)| *past <= epoch) {
            known = if past == epoch { records } else { 0 };
        }
        self.counters.lost = self.counters.lost.saturating_add(sequence.saturating_sub(known));
    }

    /// An epoch is left of which so many records came or were counted as lost.
    fn leave(&mut self, epoch: u32, records: u64) {
        if !self.ordered && epoch > self.counted {
            self.past.push_back((epoch, records));
        }
        if self.past.len() > PAST_MAX
            && let Some((epoch, _)) = self.past.pop_front()
        {
            self.counted = epoch;
        }
    }

    fn is_seen(&self, behind: u64) -> bool {
        self.seen[(behind / 64) as usize] >> (behind % 64) & 1 == 1
    }

    fn shift_seen(&mut self, by: u64) {
        if by >= TIMELY_WINDOW {
            self.seen = Default::default();
            return;
        }
        let (words, bits) = ((by / 64) as usize, by % 64);
        for index in (0..self.seen.len()).rev() {
            let low = index.checked_sub(words).map_or(0, |from| self.seen[from]);
            let lower = index.checked_sub(words + 1).map_or(0, |from| self.seen[from]);
            self.seen[index] = if bits == 0 { low } else { low << bits | lower >> (64 - bits) };
        }
    }

    /// The next message to hand on.
    pub fn poll(&mut self) -> Option<Message> {
        let sequence = *self.held.first_key_value()?.0;
        if self.ordered {
            if sequence != self.next {
                return None;
            }
            self.next += 1;
        }
        let message = self.held.remove(&sequence)?;
        self.held_bytes -= message.body.len();
        self.pass_over();
        self.counters.received += 1;
        self.counters.received_bytes += message.body.len() as u64;
        Some(message)
    }

    /// What an ordered flow misses between what it handed on and what came early.
    pub fn missing(&self) -> Vec<(u64, u64)> {
        if !self.ordered {
            return Vec::new();
        }
        let mut ranges = Vec::new();
        let mut expected = self.next;
        for &sequence in self.held.keys() {
            if ranges.len() == MISSING_RANGES_MAX {
                break;
            }
            if sequence > expected {
                ranges.push((expected, sequence));
            }
            expected = sequence + 1;
        }
        if let Some(end) = self.end().filter(|end| *end > expected && ranges.len() < MISSING_RANGES_MAX) {
            ranges.push((expected, end));
        }
        ranges
    }

    /// Whether an ordered flow waits for something earlier than what it holds, or than where its epoch ends.
    pub fn has_gap(&self) -> bool {
        let waits = || match self.held.first_key_value() {
            Some((first, _)) => *first != self.next,
            None => self.end().is_some_and(|end| end > self.next),
        };
        self.ordered && waits()
    }

    /// One past the last sequence of the current epoch, if another follows.
    fn end(&self) -> Option<u64> {
        self.following.as_ref().and_then(|following| following.end)
    }

    /// Begins an epoch, unless it has begun; what was held of the last is given up. Returns how many
    /// messages that is.
    pub fn begin(&mut self, epoch: u32) -> u64 {
        if epoch <= self.epoch {
            return 0;
        }
        self.leave(self.epoch, self.next);
        self.epoch = epoch;
        self.next = 0;
        self.taken = Taken { next: 0, lost: self.counters.lost };
        self.seen = Default::default();
        self.lost_before = self.counters.lost;
        let mut given_up = self.discard_held();
        if let Some(following) = self.following.take_if(|following| following.epoch <= epoch) {
            match following.epoch == epoch {
                true => self.take_early(following),
                false => {
                    let held = following.held.len() as u64;
                    given_up += held;
                    self.leave(following.epoch, held);
                }
            }
        }
        self.pass_over();
        given_up
    }

    /// The partner took everything that was handed on until now.
    pub fn handle_taken(&mut self) {
        self.taken = Taken { next: self.next, lost: self.counters.lost };
    }

    /// The first sequence of an ordered flow that the partner has not taken, as it is acknowledged.
    pub fn taken(&self) -> u64 {
        self.taken.next
    }

    /// Where `flow` stands, for another process to go on with. Whoever keeps it has it anew when the partner took
    /// something, and before word of an epoch goes out.
    pub fn ticket(&self, flow: u32) -> SinkTicket {
        let following = self.following.as_ref().map(|following| (following.epoch, following.end));
        let (next, lost) = match self.ordered {
            true => (self.taken.next, self.taken.lost),
            false => (self.next, self.counters.lost.saturating_add(self.held.len() as u64)),
        };
        let (epoch, given_up, gone) = (self.epoch, self.given_up, self.gone);
        SinkTicket { flow, epoch, given_up, next, lost, following, gone }
    }

    /// Goes on where another process stood. Of a timely flow, what was late then does not come any more.
    pub fn resume(ticket: &SinkTicket, class: FlowClass, limits: &Limits) -> Result<SinkFlow, TicketError> {
        let follows = ticket.following.is_none_or(|(epoch, _)| epoch > ticket.epoch);
        if ticket.given_up > ticket.epoch || !follows || ticket.epoch == 0 && ticket.next > 0 {
            return Err(TicketError::Epochs);
        }
        let mut sink = SinkFlow::new(class, limits);
        (sink.epoch, sink.given_up, sink.next) = (ticket.epoch, ticket.given_up, ticket.next);
        sink.seen = [u64::MAX; (TIMELY_WINDOW / 64) as usize];
        sink.counted = ticket.epoch.saturating_sub(1);
        (sink.counters.lost, sink.lost_before) = (ticket.lost, ticket.lost);
        sink.taken = Taken { next: ticket.next, lost: ticket.lost };
        sink.following = ticket.following.map(|(epoch, end)| Following {
            epoch,
            end,
            held: BTreeMap::new(),
            held_bytes: 0,
        });
        sink.gone = ticket.gone;
        sink.pass_over();
        Ok(sink)
    }

    fn take_early(&mut self, following: Following) {
        if self.ordered {
            (self.held, self.held_bytes) = (following.held, following.held_bytes);
            return;
        }
        following.held.into_iter().for_each(|(sequence, message)| self.take_timely(sequence, message));
    }

    /// Gives up the current epoch: its records are stale from now on. Returns how many were held. Before
    /// anything came, that is the first epoch, of which records may be under way; if another follows, that one.
    pub fn give_up(&mut self) -> u64 {
        if self.is_followed() {
            self.advance();
        }
        self.epoch = self.epoch.max(FIRST_EPOCH);
        self.given_up = self.epoch;
        self.discard_held()
    }

    fn discard_held(&mut self) -> u64 {
        let held = std::mem::take(&mut self.held).len() as u64;
        self.held_bytes = 0;
        self.counters.stale += held;
        held
    }

    /// Whether the current epoch was given up and the next has not begun.
    pub fn is_given_up(&self) -> bool {
        self.epoch > 0 && self.given_up == self.epoch
    }

    /// The epoch.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// The first sequence not handed on yet.
    pub fn next_sequence(&self) -> u64 {
        self.next
    }

    /// Figures.
    pub fn counters(&self) -> SinkCounters {
        self.counters
    }
}
