//! The sink side of a flow: order, repeats, gaps, losses and acknowledgements.
//!
//! - Reliable and state flows are delivered *in order* and without gaps. Records that arrive early are buffered, within
//!   limits, and missing ones are requested from the source. Records that the source has dropped
//!   ([`SinkFlow::handle_trimmed`]) are counted and skipped.
//! - Timely flows are delivered in the order of arrival, each record at most once (see `timely.rs`).
//!
//! # Epochs
//!
//! ```text
//!          begin(e)            expect(f)               expect_end(n)
//! nothing ──────────► epoch e ───────────► f upcoming ───────────────► e ends before n
//!                      │   ▲                                              │
//!              abandon │   └───────────── advance: f is current ──────────┘
//!                      ▼                  (when e is over)
//!                  e abandoned ─── begin(f) ──► epoch f
//! ```
//!
//! `begin` of a later epoch and `abandon` are possible in every state.
//!
//! The *upcoming* epoch continues the current one: its records wait until the current one is over. Any other later
//! epoch begins at once, and the rest of the current one is discarded.
//!
//! | a record of … | result |
//! |---|---|
//! | an abandoned epoch | `Stale`, counted |
//! | an earlier epoch | `Repeated`, counted |
//! | the current epoch, in order | `Repeated` if it was delivered or is buffered; `Overflow` if it is early and the buffer is full; else `Accepted` |
//! | the current epoch, timely | `Repeated` if it was seen or is too old to tell; `Overflow` if too many wait for delivery; else `Accepted` |
//! | the upcoming epoch | `Repeated` if it is buffered; `Overflow` if its buffer is full; else `Accepted` and buffered |
//! | another later epoch | `NewEpoch`: the caller calls `begin` and passes the record again |
//!
//! | event | no upcoming epoch | `f` is upcoming, end unknown | `f` is upcoming, end known |
//! |---|---|---|---|
//! | `expect(f)` | `f` is upcoming, if it is later than the current one | accepted again | accepted again |
//! | `expect(g)` | – | `g` replaces `f`; refused if records of `f` have arrived | refused |
//! | `expect_end(n)` | ignored | the end is known | the end is replaced |
//! | `abandon` | the current epoch is abandoned | the same | advance, then abandon `f` |
//!
//! # Recovery
//!
//! [`SinkFlow::ticket`] holds all that another process needs to resume the flow after the delivered messages.

use crate::reorder::{BufferLimit, ReorderBuffer};
use crate::timely::{Timely, WINDOW};
use crate::{FIRST_EPOCH, Limits, Position, TicketError};
use contract::{FlowClass, Message};
use std::cmp::Ordering;
use wire::RecordHeader;
use wire::control::MISSING_RANGES_MAX;
use wire::ticket::SinkTicket;

/// The result of receiving a record.
#[derive(Debug, PartialEq, Eq)]
pub enum Received {
    /// The record is buffered. Drain [`SinkFlow::poll`].
    Accepted,
    /// It was received before, or its epoch is over.
    Repeated,
    /// Its epoch is abandoned.
    Stale,
    /// Its epoch has not begun here: call [`SinkFlow::begin`] and pass it again.
    NewEpoch(Message),
    /// There is no room to buffer it.
    Overflow,
}

/// Counters since the flow began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SinkCounters {
    /// Records delivered.
    pub received: u64,
    /// Bytes of bodies delivered.
    pub received_bytes: u64,
    /// Records received again.
    pub repeated: u64,
    /// Records lost.
    pub lost: u64,
    /// Records of abandoned epochs.
    pub stale: u64,
}

/// The sink side of one flow.
#[derive(Debug, Clone)]
pub struct SinkFlow {
    order: Order,
    /// The progress of the partner: the position to acknowledge and to resume from.
    delivered: Delivered,
    buffer_max: BufferLimit,
    /// The current epoch, or 0 before the first.
    epoch: u32,
    /// Epochs up to this one are abandoned.
    abandoned: u32,
    upcoming: Option<Upcoming>,
    /// In order: the next sequence to deliver. Timely: one past the newest sequence known.
    next: u64,
    /// In order: early records. Timely: records to deliver.
    buffer: ReorderBuffer,
    counters: SinkCounters,
}

#[derive(Debug, Clone)]
enum Order {
    InOrder {
        /// The source has dropped everything before this.
        trimmed_to: Position,
    },
    Timely(Timely),
}

#[derive(Debug, Clone, Copy, Default)]
struct Delivered {
    /// The first sequence that the partner has not accepted.
    next: u64,
    /// The number of records lost before it.
    lost: u64,
}

/// The epoch that continues the current one.
#[derive(Debug, Clone)]
struct Upcoming {
    epoch: u32,
    /// One past the last sequence of the current epoch, if known.
    end: Option<u64>,
    /// Records that have arrived already.
    early: ReorderBuffer,
}

impl SinkFlow {
    /// A flow before its first record.
    pub fn new(class: FlowClass, limits: &Limits) -> Self {
        let order = match class {
            FlowClass::Timely => Order::Timely(Timely::default()),
            FlowClass::Reliable | FlowClass::State => Order::InOrder { trimmed_to: (0, 0) },
        };
        SinkFlow {
            order,
            delivered: Delivered::default(),
            buffer_max: BufferLimit { records: limits.held_records, bytes: limits.held_bytes },
            epoch: 0,
            abandoned: 0,
            upcoming: None,
            next: 0,
            buffer: ReorderBuffer::default(),
            counters: SinkCounters::default(),
        }
    }

    fn is_in_order(&self) -> bool {
        matches!(self.order, Order::InOrder { .. })
    }

    /// Receives a record; `message` is its content.
    pub fn handle(&mut self, header: &RecordHeader, message: Message) -> Received {
        let sequence = header.sequence;
        if header.epoch <= self.abandoned {
            self.counters.stale += 1;
            return Received::Stale;
        }
        if self.upcoming.as_ref().is_some_and(|upcoming| upcoming.epoch == header.epoch) {
            return self.receive_early(sequence, message);
        }
        if header.epoch > self.epoch {
            return Received::NewEpoch(message);
        }
        if header.epoch < self.epoch {
            self.counters.repeated += 1;
            return Received::Repeated;
        }
        // No source uses the last sequence, because its successor would overflow.
        if sequence == u64::MAX {
            return Received::Overflow;
        }
        match self.order {
            Order::InOrder { .. } => self.receive_in_order(sequence, message),
            Order::Timely(_) => self.receive_timely(sequence, message),
        }
    }

    fn receive_early(&mut self, sequence: u64, message: Message) -> Received {
        let is_full = self.is_upcoming_full();
        let Some(upcoming) = self.upcoming.as_mut() else { return Received::Overflow };
        if upcoming.early.contains(sequence) {
            self.counters.repeated += 1;
            return Received::Repeated;
        }
        if is_full || sequence == u64::MAX {
            return Received::Overflow;
        }
        upcoming.early.insert(sequence, message);
        Received::Accepted
    }

    fn receive_in_order(&mut self, sequence: u64, message: Message) -> Received {
        if sequence < self.next || self.buffer.contains(sequence) {
            self.counters.repeated += 1;
            return Received::Repeated;
        }
        // The next record always fits: it is the one that makes room.
        if sequence != self.next && self.buffer.is_full(self.buffer_max) {
            return Received::Overflow;
        }
        self.buffer.insert(sequence, message);
        self.skip_trimmed();
        Received::Accepted
    }

    fn receive_timely(&mut self, sequence: u64, message: Message) -> Received {
        let Order::Timely(timely) = &self.order else { return Received::Overflow };
        if let Some(below) = self.next.checked_sub(sequence + 1)
            && (below >= WINDOW || timely.seen.contains(below))
        {
            self.counters.repeated += 1;
            return Received::Repeated;
        }
        if self.buffer.is_full(self.buffer_max) {
            return Received::Overflow;
        }
        self.accept_timely(sequence, message);
        Received::Accepted
    }

    fn accept_timely(&mut self, sequence: u64, message: Message) {
        // Counts all records up to this one as lost, and then this one as received.
        self.count_to(sequence.saturating_add(1));
        self.counters.lost = self.counters.lost.saturating_sub(1);
        let below = self.next - 1 - sequence;
        if let Order::Timely(timely) = &mut self.order {
            timely.seen.insert(below);
        }
        self.buffer.insert(sequence, message);
    }

    /// The records of a timely flow before `next` exist: each one that has not arrived counts as lost until it does.
    fn count_to(&mut self, next: u64) {
        let Order::Timely(timely) = &mut self.order else { return };
        if let Some(ahead) = next.checked_sub(self.next) {
            self.counters.lost = self.counters.lost.saturating_add(ahead);
            timely.seen.shift(ahead);
            self.next = next;
        }
    }

    /// Makes `epoch` the upcoming epoch, which continues the current one. Returns false, without any change, if it has
    /// begun, or if another epoch is upcoming and already in use.
    #[must_use]
    pub fn expect(&mut self, epoch: u32) -> bool {
        match &self.upcoming {
            _ if epoch <= self.epoch => false,
            Some(upcoming) if upcoming.epoch == epoch => true,
            Some(upcoming) if upcoming.end.is_some() || !upcoming.early.is_empty() => false,
            _ => {
                self.upcoming = Some(Upcoming { epoch, end: None, early: ReorderBuffer::default() });
                true
            }
        }
    }

    /// The current epoch ends before `sequence`, and the upcoming one continues it. If the current epoch was abandoned,
    /// the upcoming one is abandoned too: it continues a state that this sink does not have.
    pub fn expect_end(&mut self, sequence: u64) {
        let Some(upcoming) = self.upcoming.as_mut() else { return };
        upcoming.end = Some(sequence);
        self.skip_trimmed();
        if self.abandoned == self.epoch {
            self.abandon();
        } else {
            self.count_to(sequence);
        }
    }

    /// Returns true if the end of the current epoch is known, because an upcoming one continues it.
    pub fn is_ending(&self) -> bool {
        self.end().is_some()
    }

    /// Returns true if the current epoch is ending and was delivered completely.
    pub fn is_over(&self) -> bool {
        let is_complete = |end| match &self.order {
            Order::InOrder { .. } => self.next >= end,
            Order::Timely(timely) => self.counters.lost == timely.lost_before && self.buffer.is_empty(),
        };
        self.end().is_some_and(is_complete)
    }

    /// Begins the upcoming epoch, with its early records.
    pub fn advance(&mut self) {
        if let Some(upcoming) = &self.upcoming {
            self.begin(upcoming.epoch);
        }
    }

    /// Returns true if a buffer is full. A stream should not be read then, because its next record may not fit; a
    /// control message that makes room is on its way.
    pub fn is_full(&self) -> bool {
        self.is_upcoming_full() || self.is_in_order() && self.buffer.is_full(self.buffer_max)
    }

    fn is_upcoming_full(&self) -> bool {
        self.upcoming.as_ref().is_some_and(|upcoming| upcoming.early.is_full(self.buffer_max))
    }

    /// The source has dropped everything before this position. Records that have not arrived are lost.
    pub fn handle_trimmed(&mut self, epoch: u32, sequence: u64) {
        if let Order::InOrder { trimmed_to, .. } = &mut self.order
            && (epoch, sequence) > *trimmed_to
        {
            *trimmed_to = (epoch, sequence);
            self.skip_trimmed();
        }
    }

    /// Skips records that the source has dropped, up to the next buffered one.
    fn skip_trimmed(&mut self) {
        let Order::InOrder { trimmed_to, .. } = self.order else { return };
        let floor = match trimmed_to.0.cmp(&self.epoch) {
            Ordering::Less => return,
            Ordering::Equal => trimmed_to.1,
            // All of this epoch is dropped, but its length is known only from the message that ends it.
            Ordering::Greater => self.end().unwrap_or(0),
        };
        let to = self.buffer.first().map_or(floor, |first| first.min(floor));
        if to > self.next && self.epoch > self.abandoned {
            self.counters.lost = self.counters.lost.saturating_add(to - self.next);
            self.next = to;
        }
    }

    /// The flow ends before `sequence` of `epoch`. Missing records of a timely flow are lost.
    pub fn handle_end(&mut self, epoch: u32, sequence: u64) {
        if self.is_in_order() {
            return;
        }
        // No record of the flow has arrived, and perhaps none will.
        if self.epoch == 0 {
            self.begin(epoch);
        }
        if epoch == self.epoch && !self.is_abandoned() {
            self.count_to(sequence);
        }
    }

    /// `epoch` ended before `sequence`, and a later one begins or has begun that does not continue it. Missing records
    /// of a timely flow are lost.
    pub fn handle_epoch_end(&mut self, epoch: u32, sequence: u64) {
        let Order::Timely(timely) = &mut self.order else { return };
        if epoch <= self.abandoned || !timely.count_epoch(epoch) {
            return;
        }
        if epoch == self.epoch {
            return self.count_to(sequence);
        }
        let known = timely.take_known(epoch);
        self.counters.lost = self.counters.lost.saturating_add(sequence.saturating_sub(known));
    }

    /// Returns the next message to deliver.
    pub fn poll(&mut self) -> Option<Message> {
        let sequence = self.buffer.first()?;
        if self.is_in_order() {
            if sequence != self.next {
                return None;
            }
            self.next += 1;
        }
        let message = self.buffer.remove(sequence)?;
        self.skip_trimmed();
        self.counters.received += 1;
        self.counters.received_bytes += message.body.len() as u64;
        Some(message)
    }

    /// Returns the gaps of an ordered flow: first and one past the last missing sequence of each.
    pub fn missing(&self) -> Vec<(u64, u64)> {
        let mut ranges = Vec::new();
        if !self.is_in_order() {
            return ranges;
        }
        let mut expected = self.next;
        for sequence in self.buffer.sequences() {
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

    /// Returns true if [`SinkFlow::missing`] is not empty.
    pub fn has_gap(&self) -> bool {
        let waits = || match self.buffer.first() {
            Some(first) => first != self.next,
            None => self.end().is_some_and(|end| end > self.next),
        };
        self.is_in_order() && waits()
    }

    /// One past the last sequence of the current epoch, if known.
    fn end(&self) -> Option<u64> {
        self.upcoming.as_ref().and_then(|upcoming| upcoming.end)
    }

    /// Begins an epoch, unless it has begun. Returns the number of discarded records of the last one.
    pub fn begin(&mut self, epoch: u32) -> u64 {
        if epoch <= self.epoch {
            return 0;
        }
        self.leave(self.epoch, self.next);
        self.epoch = epoch;
        self.next = 0;
        self.handle_delivered();
        if let Order::Timely(timely) = &mut self.order {
            timely.begin(self.counters.lost);
        }
        let mut discarded = self.discard_buffer();
        if let Some(upcoming) = self.upcoming.take_if(|upcoming| upcoming.epoch <= epoch) {
            if upcoming.epoch == epoch {
                self.take_early(upcoming.early);
            } else {
                // The source has left that epoch, too.
                let early = upcoming.early.len() as u64;
                discarded += early;
                self.leave(upcoming.epoch, early);
            }
        }
        self.skip_trimmed();
        discarded
    }

    fn leave(&mut self, epoch: u32, known: u64) {
        if let Order::Timely(timely) = &mut self.order {
            timely.leave(epoch, known);
        }
    }

    fn take_early(&mut self, mut early: ReorderBuffer) {
        match self.order {
            Order::InOrder { .. } => self.buffer = early,
            Order::Timely(_) => {
                early.drain().for_each(|(sequence, message)| self.accept_timely(sequence, message))
            }
        }
    }

    fn discard_buffer(&mut self) -> u64 {
        let discarded = self.buffer.drain().len() as u64;
        self.counters.stale += discarded;
        discarded
    }

    /// The partner has accepted all messages that were polled.
    pub fn handle_delivered(&mut self) {
        self.delivered = Delivered { next: self.next, lost: self.counters.lost };
    }

    /// The sequence to acknowledge: the first one of an ordered flow that the partner has not accepted.
    pub fn delivered(&self) -> u64 {
        self.delivered.next
    }

    /// Returns the position of the flow, for another process to resume. It must be saved together with each delivery,
    /// and before a control message about an epoch is sent.
    pub fn ticket(&self, flow: u32) -> SinkTicket {
        let (next, lost, trimmed_to) = match &self.order {
            Order::InOrder { trimmed_to } => (self.delivered.next, self.delivered.lost, *trimmed_to),
            // Buffered records would be lost with this process.
            Order::Timely(_) => {
                (self.next, self.counters.lost.saturating_add(self.buffer.len() as u64), (0, 0))
            }
        };
        let upcoming = self.upcoming.as_ref().map(|upcoming| (upcoming.epoch, upcoming.end));
        let (epoch, abandoned) = (self.epoch, self.abandoned);
        SinkTicket { flow, epoch, abandoned, next, lost, upcoming, trimmed_to }
    }

    /// Resumes a flow of another process. Late records of a timely flow from before the crash are dropped.
    pub fn resume(ticket: &SinkTicket, class: FlowClass, limits: &Limits) -> Result<SinkFlow, TicketError> {
        let follows = ticket.upcoming.is_none_or(|(epoch, _)| epoch > ticket.epoch);
        if ticket.abandoned > ticket.epoch || !follows || ticket.epoch == 0 && ticket.next > 0 {
            return Err(TicketError::Epochs);
        }
        let mut sink = SinkFlow::new(class, limits);
        (sink.epoch, sink.abandoned, sink.next) = (ticket.epoch, ticket.abandoned, ticket.next);
        sink.counters.lost = ticket.lost;
        sink.handle_delivered();
        sink.order = match sink.order {
            Order::InOrder { .. } => Order::InOrder { trimmed_to: ticket.trimmed_to },
            Order::Timely(_) => Order::Timely(Timely::resume(ticket.epoch, ticket.lost)),
        };
        let upcoming = |(epoch, end)| Upcoming { epoch, end, early: ReorderBuffer::default() };
        sink.upcoming = ticket.upcoming.map(upcoming);
        sink.skip_trimmed();
        Ok(sink)
    }

    /// Abandons the current epoch: its records are stale from now on. If its end is known, the upcoming epoch is
    /// abandoned too. Before any record, the first epoch is abandoned, because its records may be in flight. Returns
    /// the number of discarded records.
    pub fn abandon(&mut self) -> u64 {
        if self.is_ending() {
            self.advance();
        }
        self.epoch = self.epoch.max(FIRST_EPOCH);
        self.abandoned = self.epoch;
        self.discard_buffer()
    }

    /// Returns true if the current epoch is abandoned and the next has not begun.
    pub fn is_abandoned(&self) -> bool {
        self.epoch > 0 && self.abandoned == self.epoch
    }

    /// The current epoch, or 0 before the first.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// The first sequence of an ordered flow that was not polled.
    pub fn next_sequence(&self) -> u64 {
        self.next
    }

    /// The counters.
    pub fn counters(&self) -> SinkCounters {
        self.counters
    }
}
