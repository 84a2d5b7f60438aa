//! The source side of a flow: numbers messages, keeps them until they are acknowledged, sends them again.
//!
//! An epoch ends in one of two ways. Given up ([`SourceFlow::restart`]), what of it is unacknowledged goes
//! with it. Gone on from ([`SourceFlow::go_on`]), it stays until it is acknowledged, in front of the next.
//!
//! A full store is somebody's choice ([`StoreFull`]); what it costs is told to the sink, which counts it.
//! [`SourceFlow::ticket`] and [`SourceFlow::kept`] are all that another process needs to go on.
//!
//! The replay store holds bodies as they left the last source stage, by reference, so that keeping one
//! costs no copy. It serves a resumed link and transports that lose alike. How much of it is under way at once is the
//! transport's to say, by taking it; over one that may lose it is no more than a sink holds while it waits
//! for what was lost.

use crate::{FIRST_EPOCH, Limits, StoreFull, TicketError};
use contract::{Body, FlowClass, Message, Time};
use std::collections::VecDeque;
use std::time::Duration;
use wire::ticket::SourceTicket;
use wire::{BODY_BYTES_MAX, Container, RecordHeader};

/// No record is of this epoch: numbers that came round again would repeat themselves, and nonces with them.
const EPOCH_END: u32 = u32::MAX;
const RETRANSMIT_MIN: Duration = Duration::from_millis(50);
const RETRANSMITS_AT_ONCE: usize = 64;
/// Bytes from which on nothing more goes with the oldest that is sent again by itself.
const RETRANSMIT_BYTES: usize = 32 << 10;

/// An epoch and a sequence in it: epochs are in order, so records of all of them are.
type Place = (u32, u64);

/// What became of a message handed to a flow.
#[derive(Debug)]
pub enum Admission {
    /// Send this record.
    Record(Message),
    /// No room in the store until something is acknowledged: here it is again.
    Full(Message),
    /// No room in the store, and the flow is to end for it ([`StoreFull::Close`]): here it is again.
    Closed(Message),
}

/// Figures since the flow began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SourceCounters {
    /// Records numbered.
    pub sent: u64,
    /// Records sent again.
    pub resent: u64,
    /// Bytes of bodies numbered.
    pub sent_bytes: u64,
    /// Records given up for want of room. Some of them may have arrived: how many did not, the sink counts.
    pub given_up: u64,
}

/// The source side of one flow.
#[derive(Debug, Clone)]
pub struct SourceFlow {
    flow: u32,
    class: FlowClass,
    lossy: bool,
    /// There is a link; without one nothing is under way.
    linked: bool,
    store_full: StoreFull,
    store_bytes_max: usize,
    store_messages_max: usize,
    epoch: u32,
    next: u64,
    /// The epoch before this one, and one past its last sequence.
    before: Place,
    /// This epoch goes on from the one before.
    goes_on: bool,
    /// Unacknowledged records, oldest first.
    store: VecDeque<Stored>,
    store_bytes: usize,
    /// Bytes and messages that a sink holds which waits for an earlier one.
    held_max: (usize, usize),
    resend: VecDeque<Place>,
    /// Before this, nothing is kept, and the sink does not know it yet.
    gone: Option<Place>,
    counters: SourceCounters,
}

#[derive(Debug, Clone)]
struct Stored {
    place: Place,
    created: Time,
    body: Body,
    sent: Time,
}

impl SourceFlow {
    /// A flow in its first epoch. `lossy`: the transport may lose records.
    pub fn new(flow: u32, class: FlowClass, lossy: bool, limits: &Limits) -> Self {
        SourceFlow {
            flow,
            class,
            lossy,
            linked: true,
            store_full: limits.store_full,
            store_bytes_max: limits.store_bytes,
            store_messages_max: limits.store_messages,
            epoch: FIRST_EPOCH,
            next: 0,
            before: (0, 0),
            goes_on: false,
            store: VecDeque::new(),
            store_bytes: 0,
            held_max: (limits.held_bytes, limits.held_records),
            resend: VecDeque::new(),
            gone: None,
            counters: SourceCounters::default(),
        }
    }

    /// Numbers a message and makes its record, to be sent after all that [`SourceFlow::poll_resend`] gives.
    /// The body is at most [`wire::BODY_BYTES_MAX`] long, or no sink would take the record.
    pub fn admit(&mut self, message: Message, now: Time) -> Admission {
        if self.epoch == EPOCH_END {
            return Admission::Full(message);
        }
        if !self.has_room() {
            match self.store_full {
                _ if !self.is_overrun() => return Admission::Full(message),
                StoreFull::Block => return Admission::Full(message),
                StoreFull::Close => return Admission::Closed(message),
                StoreFull::DropOldest => self.drop_oldest(),
            }
        }
        let sequence = self.next;
        self.next += 1;
        self.counters.sent += 1;
        self.counters.sent_bytes += message.body.len() as u64;
        if self.keeps() {
            self.store_bytes += message.body.len();
            let place = (self.epoch, sequence);
            let (created, body) = (message.created, message.body.clone());
            self.store.push_back(Stored { place, created, body, sent: now });
        }
        Admission::Record(self.record((self.epoch, sequence), message))
    }

    /// Whether the store has room. One message always fits, whatever its size, or it never would.
    pub fn has_room(&self) -> bool {
        let (bytes_max, messages_max) = if self.lossy { self.held_max } else { (usize::MAX, usize::MAX) };
        self.store.is_empty()
            || self.store_bytes < self.store_bytes_max.min(bytes_max)
                && self.store.len() < self.store_messages_max.min(messages_max)
    }

    /// Whether the store is full, and not merely what may be under way at once.
    pub fn is_overrun(&self) -> bool {
        let full = self.store_bytes >= self.store_bytes_max || self.store.len() >= self.store_messages_max;
        !self.store.is_empty() && (full || !self.linked && !self.has_room())
    }

    /// Gives up the oldest records until one more fits.
    fn drop_oldest(&mut self) {
        while !self.has_room()
            && let Some(oldest) = self.store.pop_front()
        {
            self.store_bytes -= oldest.body.len();
            self.counters.given_up += 1;
        }
        let oldest = self.oldest();
        self.gone = Some(oldest);
        while self.resend.pop_front_if(|place| *place < oldest).is_some() {}
    }

    /// What the sink is to be told, if anything: before this epoch and sequence, nothing is kept any more.
    pub fn poll_gone(&mut self) -> Option<(u32, u64)> {
        self.gone.take()
    }

    fn keeps(&self) -> bool {
        self.class != FlowClass::Timely
    }

    fn record(&self, (epoch, sequence): Place, mut message: Message) -> Message {
        let length = message.body.len() as u32;
        let container = Container { length, created: message.created.0 };
        let header = RecordHeader { flow: self.flow, epoch, sequence, container };
        message.body.push_front(&header.emit());
        message
    }

    /// The sink's partner took everything before `next` of `epoch`, and so all before that epoch.
    pub fn handle_acknowledge(&mut self, epoch: u32, next: u64) {
        let place = (epoch, next);
        if place > (self.epoch, self.next) {
            return;
        }
        let mut acknowledged = 0;
        while self.oldest() < place
            && let Some(stored) = self.store.pop_front()
        {
            acknowledged += stored.body.len();
        }
        self.store_bytes -= acknowledged;
        self.resend.retain(|known| *known >= place);
    }

    /// The sink misses these sequences of `epoch`: first and one past the last of each gap.
    pub fn handle_missing(&mut self, epoch: u32, ranges: &[(u64, u64)]) {
        if !self.lossy {
            return;
        }
        'ranges: for &(from, to) in ranges {
            for stored in self.store.range(self.index_of((epoch, from))..) {
                if stored.place >= (epoch, to) {
                    break;
                }
                if self.resend.len() >= RETRANSMITS_AT_ONCE {
                    break 'ranges;
                }
                if !self.resend.contains(&stored.place) {
                    self.resend.push_back(stored.place);
                }
            }
        }
    }

    /// A record to send again, if any.
    pub fn poll_resend(&mut self, now: Time) -> Option<Message> {
        loop {
            let place = self.resend.pop_front()?;
            let index = self.index_of(place);
            let Some(stored) = self.store.get_mut(index).filter(|stored| stored.place == place) else {
                continue;
            };
            stored.sent = now;
            let message = stored.message();
            self.counters.resent += 1;
            return Some(self.record(place, message));
        }
    }

    /// The link is gone.
    pub fn handle_link_lost(&mut self) {
        self.linked = false;
    }

    /// The link is new: everything unacknowledged goes out again, in order.
    pub fn handle_link(&mut self, now: Time) {
        self.linked = true;
        self.resend = self.store.iter().map(|stored| stored.place).collect();
        self.store.iter_mut().for_each(|stored| stored.sent = now);
    }

    /// When the oldest unacknowledged record is to be sent again by itself, with `round_trip` between the
    /// hosts: the last record's loss shows in no gap.
    pub fn poll_timeout(&self, round_trip: Duration) -> Option<Time> {
        let oldest = self.store.front().filter(|_| self.lossy && self.resend.is_empty())?;
        Some(oldest.sent.after(retransmit_wait(round_trip)))
    }

    /// The time of [`SourceFlow::poll_timeout`] has come.
    pub fn handle_timeout(&mut self, now: Time, round_trip: Duration) {
        if self.poll_timeout(round_trip).is_none_or(|due| now < due) {
            return;
        }
        // Those due besides the oldest go with it: a burst at the end would else take a round trip each.
        let wait = retransmit_wait(round_trip);
        let mut bytes = 0;
        for stored in self.store.iter().take(RETRANSMITS_AT_ONCE) {
            if bytes > RETRANSMIT_BYTES || now < stored.sent.after(wait) {
                break;
            }
            bytes += stored.body.len();
            self.resend.push_back(stored.place);
        }
    }

    /// Begins the next epoch: what is unacknowledged is given up. Returns how many messages that is.
    /// A flow that has used up its epochs takes nothing more.
    pub fn restart(&mut self) -> u64 {
        self.restart_at(self.epoch.saturating_add(1))
    }

    /// As [`SourceFlow::restart`], in an epoch after this one.
    pub fn restart_at(&mut self, epoch: u32) -> u64 {
        let given_up = self.store.len() as u64;
        self.begin(epoch, false);
        self.store.clear();
        self.store_bytes = 0;
        self.resend.clear();
        self.gone = None;
        given_up
    }

    /// Begins an epoch after this one, which goes on behind it: nothing is given up.
    pub fn go_on(&mut self, epoch: u32) {
        self.begin(epoch, true);
    }

    fn begin(&mut self, epoch: u32, goes_on: bool) {
        debug_assert!(epoch > self.epoch || epoch == EPOCH_END);
        self.before = (self.epoch, self.next);
        self.goes_on = goes_on;
        self.epoch = epoch;
        self.next = 0;
    }

    /// Where the flow stands, for another process to go on with. Whoever keeps it has it anew before a record or
    /// word of an epoch goes out; what has been acknowledged since does no harm.
    pub fn ticket(&self) -> SourceTicket {
        let (flow, epoch, next) = (self.flow, self.epoch, self.next);
        SourceTicket { flow, epoch, next, before: self.before, goes_on: self.goes_on }
    }

    /// What is unacknowledged, oldest first, as it goes out.
    pub fn kept(&self) -> impl Iterator<Item = Message> {
        self.store.iter().map(|stored| self.record(stored.place, stored.message()))
    }

    /// Goes on where another process stood, with the records that were kept of it, as they went out. They go out
    /// again with [`SourceFlow::handle_link`]. A record that was kept but not yet in the ticket counts as sent.
    pub fn resume(
        ticket: &SourceTicket,
        kept: impl IntoIterator<Item = Message>,
        class: FlowClass,
        lossy: bool,
        limits: &Limits,
    ) -> Result<SourceFlow, TicketError> {
        if !(FIRST_EPOCH..EPOCH_END).contains(&ticket.epoch) || ticket.before.0 >= ticket.epoch {
            return Err(TicketError::Epochs);
        }
        let mut source = SourceFlow::new(ticket.flow, class, lossy, limits);
        (source.epoch, source.next) = (ticket.epoch, ticket.next);
        (source.before, source.goes_on) = (ticket.before, ticket.goes_on);
        source.linked = false;
        let mut expected = None;
        for mut record in kept {
            let bytes = record.body.take_front::<{ RecordHeader::BYTES }>().ok_or(TicketError::Record)?;
            let header = RecordHeader::parse(&bytes, BODY_BYTES_MAX).map_err(|_| TicketError::Record)?;
            let place = (header.epoch, header.sequence);
            let follows = match expected {
                None => place.0 == source.epoch || source.goes_on && place < source.before,
                Some(expected) => place == expected,
            };
            let is_whole =
                header.flow == source.flow && header.container.length as usize == record.body.len();
            if !is_whole
                || !follows
                || header.sequence == u64::MAX
                || source.store.len() >= limits.store_messages
            {
                return Err(TicketError::Record);
            }
            expected = Some(source.behind(place));
            source.store_bytes += record.body.len();
            let created = Time(header.container.created);
            source.store.push_back(Stored { place, created, body: record.body, sent: Time::ZERO });
        }
        match expected {
            Some((epoch, next)) if epoch == ticket.epoch && next >= ticket.next => source.next = next,
            Some(_) => return Err(TicketError::Record),
            None => {}
        }
        if source.store_full == StoreFull::DropOldest {
            // The process before may have given up records and not lived to tell.
            source.gone = Some(source.oldest());
        }
        Ok(source)
    }

    /// What comes behind a place in the store.
    fn behind(&self, (epoch, sequence): Place) -> Place {
        match self.goes_on && (epoch, sequence + 1) == self.before {
            true => (self.epoch, 0),
            false => (epoch, sequence + 1),
        }
    }

    /// The epoch before this one, 0 if there is none, and one past its last sequence.
    pub fn before(&self) -> (u32, u64) {
        self.before
    }

    /// Whether this epoch goes on from the one before; else that was given up.
    pub fn goes_on(&self) -> bool {
        self.goes_on
    }

    /// The epoch and sequence before which everything was acknowledged or given up.
    pub fn oldest(&self) -> (u32, u64) {
        self.store.front().map_or((self.epoch, self.next), |stored| stored.place)
    }

    /// Where in the store `place` stands, or would.
    fn index_of(&self, place: Place) -> usize {
        self.store.partition_point(|stored| stored.place < place)
    }

    /// The epoch.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// One past the last sequence.
    pub fn next_sequence(&self) -> u64 {
        self.next
    }

    /// Bytes of bodies that are not acknowledged yet.
    pub fn unacknowledged_bytes(&self) -> usize {
        self.store_bytes
    }

    /// Messages that are not acknowledged yet.
    pub fn unacknowledged(&self) -> usize {
        self.store.len()
    }

    /// Whether everything was acknowledged that ever will be.
    pub fn is_settled(&self) -> bool {
        self.store.is_empty()
    }

    /// What it promises.
    pub fn class(&self) -> FlowClass {
        self.class
    }

    /// Figures.
    pub fn counters(&self) -> SourceCounters {
        self.counters
    }
}

impl Stored {
    fn message(&self) -> Message {
        Message::new(self.created, self.body.clone())
    }
}

fn retransmit_wait(round_trip: Duration) -> Duration {
    round_trip.saturating_mul(3).max(RETRANSMIT_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_that_used_up_its_epochs_takes_nothing_more() {
        let mut flow = SourceFlow::new(1, FlowClass::State, false, &Limits::default());
        flow.epoch = EPOCH_END - 2;
        flow.restart();
        assert!(matches!(flow.admit(Message::default(), Time::ZERO), Admission::Record(_)));
        for _ in 0..2 {
            flow.restart();
            assert_eq!(flow.epoch(), EPOCH_END);
            assert!(matches!(flow.admit(Message::default(), Time::ZERO), Admission::Full(_)));
        }
    }
}
