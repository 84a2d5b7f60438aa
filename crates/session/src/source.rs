//! The source side of a flow: numbers messages, stores them until they are acknowledged, and retransmits them.
//!
//! # Epochs
//!
//! A record is identified by its epoch and its sequence in that epoch. A new epoch begins in one of two ways:
//!
//! ```text
//!                     admit: the next sequence
//!                       ┌──────┐
//!                       │      ▼
//!  begin ──────────►  epoch e ──── continue_in(f) ───►  epoch f, which continues e:
//!                       │                               records of e stay in the store, before those of f
//!                       │
//!                       └──── restart, restart_at(f) ─►  epoch f:
//!                                                        records of e are abandoned
//! ```
//!
//! # States and events
//!
//! The link is up or lost. The replay store has room, or has reached the flight limit, or is full (see `replay.rs`).
//!
//! | event | link up | link lost |
//! |---|---|---|
//! | `admit`, room | number and store; the caller sends the record | the same; the record goes out with the next link |
//! | `admit`, at the flight limit | `Full`: wait for an acknowledgement | as for a full store: no acknowledgement will come |
//! | `admit`, full | by [`StoreFull`]: `Full`, `Closed`, or drop the oldest records and admit | the same |
//! | `handle_acknowledge` | remove the records before it | the same |
//! | `handle_missing` | retransmit these records (lossy transport) | – |
//! | `handle_timeout` | retransmit the oldest records, ever more rarely until one is acknowledged (lossy transport) | – |
//! | `handle_silence_end` | the timeout is short again (lossy transport) | – |
//! | `handle_link_lost` | the link is lost | – |
//! | `handle_link` | retransmit everything, notify of dropped records | the link is up: the same |
//! | `restart` | abandon everything, begin the next epoch | the same |
//! | `continue_in` | begin a later epoch, keep everything | the same |
//!
//! Timely flows store nothing, so they are never full and retransmit nothing.
//!
//! # Recovery
//!
//! [`SourceFlow::ticket`] and [`SourceFlow::stored`] hold all that another process needs to resume the flow.

use crate::replay::{ReplayStore, Stored};
use crate::{FIRST_EPOCH, Limits, Position, StoreFull, TicketError};
use contract::{FlowClass, Message, Time};
use std::time::Duration;
use wire::ticket::SourceTicket;
use wire::{BODY_BYTES_MAX, Container, RecordHeader};

/// The last epoch, which has no records. If epochs wrapped around, sequences and nonces would repeat.
const EPOCH_END: u32 = u32::MAX;

/// The result of admitting a message.
#[derive(Debug)]
pub enum Admission {
    /// Send this record.
    Record(Message),
    /// The store has no room until an acknowledgement arrives. The message is returned.
    Full(Message),
    /// The store has no room, and the flow must end ([`StoreFull::Close`]). The message is returned.
    Closed(Message),
}

/// Counters since the flow began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SourceCounters {
    /// Records numbered.
    pub sent: u64,
    /// Records retransmitted.
    pub retransmitted: u64,
    /// Bytes of bodies numbered.
    pub sent_bytes: u64,
    /// Records dropped because the store was full. Some of them may have arrived; the sink counts the lost ones.
    pub dropped: u64,
}

/// The source side of one flow.
#[derive(Debug, Clone)]
pub struct SourceFlow {
    flow: u32,
    class: FlowClass,
    store_full: StoreFull,
    /// The link is up. Without a link nothing is in flight.
    linked: bool,
    epoch: u32,
    /// The next sequence of the epoch.
    next: u64,
    /// The previous epoch, or 0 if there is none, and one past its last sequence.
    prev: Position,
    /// The epoch continues the previous one.
    continues: bool,
    store: ReplayStore,
    /// Everything before this was dropped, and the sink was not notified yet.
    trimmed_to: Option<Position>,
    /// Records of this epoch, or of one that it continues, were dropped.
    has_dropped: bool,
    counters: SourceCounters,
}

impl SourceFlow {
    /// A flow in its first epoch. `lossy`: the transport may lose records.
    pub fn new(flow: u32, class: FlowClass, lossy: bool, limits: &Limits) -> Self {
        SourceFlow {
            flow,
            class,
            store_full: limits.store_full,
            linked: true,
            epoch: FIRST_EPOCH,
            next: 0,
            prev: (0, 0),
            continues: false,
            store: ReplayStore::new(lossy, limits),
            trimmed_to: None,
            has_dropped: false,
            counters: SourceCounters::default(),
        }
    }

    /// Numbers a message and makes its record. The caller sends the record after all records of
    /// [`SourceFlow::poll_retransmit`]. The body is at most [`wire::BODY_BYTES_MAX`] long; no sink accepts more.
    pub fn admit(&mut self, message: Message, now: Time) -> Admission {
        if self.epoch == EPOCH_END {
            return Admission::Full(message);
        }
        if !self.has_room() {
            match self.store_full {
                // Only the flight limit is reached: an acknowledgement is on its way.
                _ if !self.is_full() => return Admission::Full(message),
                StoreFull::Block => return Admission::Full(message),
                StoreFull::Close => return Admission::Closed(message),
                StoreFull::DropOldest => self.drop_oldest(),
            }
        }
        let position = (self.epoch, self.next);
        self.next += 1;
        self.counters.sent += 1;
        self.counters.sent_bytes += message.body.len() as u64;
        if self.class != FlowClass::Timely {
            self.store.push(Stored::new(position, &message, now));
        }
        Admission::Record(self.record(position, message))
    }

    /// Returns true if the store accepts another message without dropping one.
    pub fn has_room(&self) -> bool {
        self.store.has_room()
    }

    /// Returns true if the replay store is full. Reaching the flight limit counts only while the link is lost:
    /// otherwise an acknowledgement will soon make room.
    pub fn is_full(&self) -> bool {
        self.store.is_full() || !self.linked && !self.store.has_room()
    }

    fn drop_oldest(&mut self) {
        self.counters.dropped += self.store.drop_oldest();
        let oldest = self.oldest();
        (self.trimmed_to, self.has_dropped) = (Some(oldest), true);
        self.store.forget_due(oldest);
    }

    /// Returns an epoch and sequence before which everything was dropped, once after a drop and after each new link. The sink
    /// must be notified.
    pub fn poll_trimmed(&mut self) -> Option<(u32, u64)> {
        self.trimmed_to.take()
    }

    fn record(&self, (epoch, sequence): Position, mut message: Message) -> Message {
        let length = message.body.len() as u32;
        let container = Container { length, created: message.created.0 };
        let header = RecordHeader { flow: self.flow, epoch, sequence, container };
        message.body.push_front(&header.emit());
        message
    }

    /// The sink's partner has accepted everything before `next` of `epoch`, and all of earlier epochs.
    pub fn handle_acknowledge(&mut self, epoch: u32, next: u64, now: Time) {
        let position = (epoch, next);
        // A peer cannot acknowledge records that were not sent.
        if position <= (self.epoch, self.next) {
            self.store.acknowledge(position, now);
        }
    }

    /// The sink misses these sequences of `epoch`: first and one past the last of each gap.
    pub fn handle_missing(&mut self, epoch: u32, ranges: &[(u64, u64)]) {
        self.store.handle_missing(epoch, ranges);
    }

    /// Returns the next record to retransmit.
    pub fn poll_retransmit(&mut self, now: Time) -> Option<Message> {
        let stored = self.store.poll_retransmit(now)?;
        let (position, message) = (stored.position, stored.message());
        self.counters.retransmitted += 1;
        Some(self.record(position, message))
    }

    /// The link is lost.
    pub fn handle_link_lost(&mut self) {
        self.linked = false;
    }

    /// The link is new: everything unacknowledged is retransmitted, in order.
    pub fn handle_link(&mut self, now: Time) {
        self.linked = true;
        if self.has_dropped {
            // The sink's process may have crashed since the last notice. Its successor would wait for the dropped records.
            self.trimmed_to = Some(self.oldest());
        }
        self.store.retransmit_all(now);
    }

    /// The retransmission timeout of the oldest record, with `round_trip` between the hosts.
    pub fn poll_timeout(&self, round_trip: Duration) -> Option<Time> {
        self.store.poll_timeout(round_trip)
    }

    /// The time of [`SourceFlow::poll_timeout`] has come.
    pub fn handle_timeout(&mut self, now: Time, round_trip: Duration) {
        self.store.handle_timeout(now, round_trip);
    }

    /// The peer was silent and answers again.
    pub fn handle_silence_end(&mut self) {
        self.store.handle_silence_end();
    }

    /// Begins the next epoch and abandons all unacknowledged messages; returns their number. A flow that has used up
    /// its epochs admits nothing more.
    pub fn restart(&mut self) -> u64 {
        self.restart_at(self.epoch.saturating_add(1))
    }

    /// As [`SourceFlow::restart`], with a given later epoch.
    pub fn restart_at(&mut self, epoch: u32) -> u64 {
        self.begin(epoch, false);
        (self.trimmed_to, self.has_dropped) = (None, false);
        self.store.clear()
    }

    /// Begins a given later epoch that continues the current one. Nothing is abandoned.
    pub fn continue_in(&mut self, epoch: u32) {
        self.begin(epoch, true);
    }

    fn begin(&mut self, epoch: u32, continues: bool) {
        debug_assert!(epoch > self.epoch || epoch == EPOCH_END);
        self.prev = (self.epoch, self.next);
        self.continues = continues;
        self.epoch = epoch;
        self.next = 0;
    }

    /// Returns the position of the flow, for another process to resume. It must be saved before a record or a control
    /// message of a new epoch is sent. It need not be saved after acknowledgements: an older ticket only causes
    /// repeated records, which the sink detects.
    pub fn ticket(&self) -> SourceTicket {
        let (flow, epoch, next) = (self.flow, self.epoch, self.next);
        SourceTicket { flow, epoch, next, prev: self.prev, continues: self.continues }
    }

    /// Returns the unacknowledged records, oldest first, as they are sent.
    pub fn stored(&self) -> impl Iterator<Item = Message> {
        self.store.iter().map(|stored| self.record(stored.position, stored.message()))
    }

    /// Resumes a flow of another process from its ticket and its stored records. They are retransmitted after
    /// [`SourceFlow::handle_link`]. The records may go beyond the ticket: the process may have crashed between storing
    /// a record and saving the ticket. Such a record counts as sent.
    pub fn resume(
        ticket: &SourceTicket,
        stored: impl IntoIterator<Item = Message>,
        class: FlowClass,
        lossy: bool,
        limits: &Limits,
    ) -> Result<SourceFlow, TicketError> {
        if !(FIRST_EPOCH..EPOCH_END).contains(&ticket.epoch) || ticket.prev.0 >= ticket.epoch {
            return Err(TicketError::Epochs);
        }
        let mut source = SourceFlow::new(ticket.flow, class, lossy, limits);
        (source.epoch, source.next) = (ticket.epoch, ticket.next);
        (source.prev, source.continues) = (ticket.prev, ticket.continues);
        source.linked = false;
        let mut expected = None;
        for record in stored {
            let (position, message) = source.parse_stored(record)?;
            let follows = match expected {
                None => position.0 == source.epoch || source.continues && position < source.prev,
                Some(expected) => position == expected,
            };
            if !follows || position.1 == u64::MAX || source.store.len() >= limits.store_messages {
                return Err(TicketError::Record);
            }
            expected = Some(source.after(position));
            source.store.push(Stored::new(position, &message, Time::ZERO));
        }
        match expected {
            Some((epoch, next)) if epoch == ticket.epoch && next >= ticket.next => source.next = next,
            Some(_) => return Err(TicketError::Record),
            None => {}
        }
        if source.store_full == StoreFull::DropOldest {
            // The crashed process may have dropped records without notifying the sink.
            (source.trimmed_to, source.has_dropped) = (Some(source.oldest()), true);
        }
        Ok(source)
    }

    /// Checks a stored record of this flow, and removes its header.
    fn parse_stored(&self, mut record: Message) -> Result<(Position, Message), TicketError> {
        let bytes = record.body.take_front::<{ RecordHeader::BYTES }>().ok_or(TicketError::Record)?;
        let header = RecordHeader::parse(&bytes, BODY_BYTES_MAX).map_err(|_| TicketError::Record)?;
        if header.flow != self.flow || header.container.length as usize != record.body.len() {
            return Err(TicketError::Record);
        }
        let created = Time(header.container.created);
        Ok(((header.epoch, header.sequence), Message::new(created, record.body)))
    }

    /// The position of the record after this one: the end of a continued epoch leads to the start of the current one.
    fn after(&self, (epoch, sequence): Position) -> Position {
        match self.continues && (epoch, sequence + 1) == self.prev {
            true => (self.epoch, 0),
            false => (epoch, sequence + 1),
        }
    }

    /// The previous epoch, or 0 if there is none, and one past its last sequence.
    pub fn prev(&self) -> (u32, u64) {
        self.prev
    }

    /// Returns true if the epoch continues the previous one, false if the previous one was abandoned.
    pub fn continues(&self) -> bool {
        self.continues
    }

    /// The epoch and sequence before which everything is acknowledged, dropped or abandoned.
    pub fn oldest(&self) -> (u32, u64) {
        self.store.oldest().unwrap_or((self.epoch, self.next))
    }

    /// The current epoch.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// One past the last sequence of the current epoch.
    pub fn next_sequence(&self) -> u64 {
        self.next
    }

    /// The size of the unacknowledged bodies in bytes.
    pub fn unacknowledged_bytes(&self) -> usize {
        self.store.bytes()
    }

    /// The number of unacknowledged messages.
    pub fn unacknowledged(&self) -> usize {
        self.store.len()
    }

    /// Returns true if nothing is unacknowledged.
    pub fn is_settled(&self) -> bool {
        self.store.is_empty()
    }

    /// The counters.
    pub fn counters(&self) -> SourceCounters {
        self.counters
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_without_further_epochs_admits_nothing() {
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
