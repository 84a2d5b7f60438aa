//! The replay store of a source: unacknowledged records, oldest first, and the retransmissions that are due.
//!
//! The store keeps bodies as they left the last source stage, by reference, so that storing one costs no copy. It
//! serves resumed links and lossy transports alike.
//!
//! Two limits apply:
//!
//! - The *store limit* bounds memory. A store at this limit is full. On a long and fast path it holds little but data in
//!   flight, and would bound their rate to itself divided by the round trip. Therefore it grows while full of records in
//!   flight, up to [`STORE_FACTOR_MAX`] times, and shrinks when they become fewer.
//! - The *flight limit* bounds the records in flight on a lossy transport: a sink buffers no more than this behind a
//!   missing record, and would drop the rest. A stream needs no such limit: it accepts only what it can send.

use crate::{Limits, Position};
use contract::{Body, Message, Time};
use std::collections::VecDeque;
use std::time::Duration;

const RETRANSMIT_MIN: Duration = Duration::from_millis(50);
/// Longest timeout after doublings.
const RETRANSMIT_MAX: Duration = Duration::from_secs(2);
/// Timeouts without an acknowledgement before the first doubling: chance alone may lose a record and its first
/// retransmissions.
const EQUAL_TIMEOUTS: u32 = 4;
const RETRANSMITS_AT_ONCE: usize = 64;
/// Largest store limit, as a multiple of [`Limits::store_bytes`].
pub const STORE_FACTOR_MAX: usize = 8;
/// A record that is acknowledged later was not only in flight: its reader is slow, or the link was lost.
const FLIGHT_MAX: Duration = Duration::from_secs(1);
/// The store shrinks when an acknowledgement leaves less than this part of it.
const STORE_USED_MIN: usize = 4;
/// A timeout retransmits the oldest record, and further ones up to this many bytes.
const RETRANSMIT_BYTES: usize = 32 << 10;

#[derive(Debug, Clone)]
pub(crate) struct ReplayStore {
    records: VecDeque<Stored>,
    bytes: usize,
    /// The store limit before it grows.
    store_bytes: usize,
    store_max: Limit,
    /// The flight limit; `None` on a transport that loses nothing.
    flight_max: Option<Limit>,
    /// Records to retransmit next. Some may be acknowledged or dropped by now.
    due: VecDeque<Position>,
    /// The last acknowledgement of a record: the timeout begins anew.
    acknowledged: Time,
    /// Timeouts since then.
    timeouts: u32,
}

#[derive(Debug, Clone)]
pub(crate) struct Stored {
    pub(crate) position: Position,
    created: Time,
    body: Body,
    /// The time of the last transmission.
    sent: Time,
}

#[derive(Debug, Clone, Copy)]
struct Limit {
    bytes: usize,
    messages: usize,
}

impl Stored {
    pub(crate) fn new(position: Position, message: &Message, sent: Time) -> Stored {
        Stored { position, created: message.created, body: message.body.clone(), sent }
    }

    pub(crate) fn message(&self) -> Message {
        Message::new(self.created, self.body.clone())
    }
}

impl ReplayStore {
    pub(crate) fn new(lossy: bool, limits: &Limits) -> ReplayStore {
        ReplayStore {
            records: VecDeque::new(),
            bytes: 0,
            store_bytes: limits.store_bytes,
            store_max: Limit { bytes: limits.store_bytes, messages: limits.store_messages },
            flight_max: lossy.then_some(Limit { bytes: limits.held_bytes, messages: limits.held_records }),
            due: VecDeque::new(),
            acknowledged: Time::ZERO,
            timeouts: 0,
        }
    }

    /// Returns true if one more message may be sent. An empty store accepts any message: one that is larger than the
    /// limits would otherwise never be sent.
    pub(crate) fn has_room(&self) -> bool {
        let within = |max: Limit| self.bytes < max.bytes && self.records.len() < max.messages;
        self.records.is_empty() || within(self.store_max) && self.flight_max.is_none_or(within)
    }

    /// Returns true at the store limit, regardless of the flight limit.
    pub(crate) fn is_full(&self) -> bool {
        let Limit { bytes, messages } = self.store_max;
        !self.records.is_empty() && (self.bytes >= bytes || self.records.len() >= messages)
    }

    pub(crate) fn push(&mut self, stored: Stored) {
        self.bytes += stored.body.len();
        self.records.push_back(stored);
    }

    /// Removes all records before `position`, and adapts the store limit.
    pub(crate) fn acknowledge(&mut self, position: Position, now: Time) {
        let is_in_flight = self.records.front().is_some_and(|oldest| now.since(oldest.sent) <= FLIGHT_MAX);
        let was_full = self.bytes >= self.store_max.bytes;
        if was_full && is_in_flight {
            let most = self.store_bytes.saturating_mul(STORE_FACTOR_MAX);
            self.store_max.bytes = self.store_max.bytes.saturating_mul(2).min(most);
        }
        while let Some(stored) = self.records.pop_front_if(|stored| stored.position < position) {
            self.bytes -= stored.body.len();
            (self.acknowledged, self.timeouts) = (now, 0);
        }
        if !was_full && self.bytes < self.store_max.bytes / STORE_USED_MIN {
            self.store_max.bytes = (self.store_max.bytes / 2).max(self.store_bytes);
        }
        self.due.retain(|due| *due >= position);
    }

    /// Removes the oldest records until one more fits; returns their number.
    pub(crate) fn drop_oldest(&mut self) -> u64 {
        let mut dropped = 0;
        while !self.has_room()
            && let Some(oldest) = self.records.pop_front()
        {
            self.bytes -= oldest.body.len();
            dropped += 1;
        }
        dropped
    }

    /// Removes all records; returns their number.
    pub(crate) fn clear(&mut self) -> u64 {
        let dropped = self.records.len() as u64;
        self.records.clear();
        self.bytes = 0;
        self.due.clear();
        self.timeouts = 0;
        dropped
    }

    /// The sink misses these sequences of `epoch`: first and one past the last of each gap.
    pub(crate) fn handle_missing(&mut self, epoch: u32, ranges: &[(u64, u64)]) {
        // A stream loses nothing while its link is up, and a new link retransmits everything anyway.
        if self.flight_max.is_none() {
            return;
        }
        'ranges: for &(from, to) in ranges {
            for stored in self.records.range(self.index_of((epoch, from))..) {
                if stored.position >= (epoch, to) {
                    break;
                }
                // The peer chooses the ranges: bound the work that one request causes.
                if self.due.len() >= RETRANSMITS_AT_ONCE {
                    break 'ranges;
                }
                if !self.due.contains(&stored.position) {
                    self.due.push_back(stored.position);
                }
            }
        }
    }

    /// The next record to retransmit.
    pub(crate) fn poll_retransmit(&mut self, now: Time) -> Option<&Stored> {
        loop {
            let position = self.due.pop_front()?;
            let index = self.index_of(position);
            // The record may have been acknowledged or dropped since it became due.
            if self.records.get(index).is_some_and(|stored| stored.position == position) {
                let stored = &mut self.records[index];
                stored.sent = now;
                return Some(stored);
            }
        }
    }

    /// Everything goes out again, in order.
    pub(crate) fn retransmit_all(&mut self, now: Time) {
        self.due = self.records.iter().map(|stored| stored.position).collect();
        self.records.iter_mut().for_each(|stored| stored.sent = now);
        self.timeouts = 0;
    }

    /// The peer answers again after a silence: what timed out meanwhile is no sign of a reader that has stopped.
    pub(crate) fn handle_silence_end(&mut self) {
        self.timeouts = 0;
    }

    /// The retransmission timeout of the oldest record. It is needed because the loss of the newest records shows in no
    /// gap, so that the sink does not request them. It doubles while nothing is acknowledged: a sink whose reader has stopped
    /// has all records, and acknowledges none.
    pub(crate) fn poll_timeout(&self, round_trip: Duration) -> Option<Time> {
        let is_idle = self.flight_max.is_some() && self.due.is_empty();
        let oldest = self.records.front().filter(|_| is_idle)?;
        Some(oldest.sent.max(self.acknowledged).after(retransmit_timeout(round_trip, self.timeouts)))
    }

    pub(crate) fn handle_timeout(&mut self, now: Time, round_trip: Duration) {
        if self.poll_timeout(round_trip).is_none_or(|due| now < due) {
            return;
        }
        // Retransmit the next ones too if they are due: the loss of a burst would otherwise cost one round trip for
        // each of its records. Once the timeout doubles, the oldest one alone finds out whether anything is accepted.
        let timeout = retransmit_timeout(round_trip, 0);
        let at_once = if doublings(self.timeouts) == 0 { RETRANSMITS_AT_ONCE } else { 1 };
        self.timeouts = self.timeouts.saturating_add(1);
        let mut bytes = 0;
        for stored in self.records.iter().take(at_once) {
            if bytes > RETRANSMIT_BYTES || now < stored.sent.after(timeout) {
                break;
            }
            bytes += stored.body.len();
            self.due.push_back(stored.position);
        }
    }

    /// Forgets due retransmissions before `position`.
    pub(crate) fn forget_due(&mut self, position: Position) {
        while self.due.pop_front_if(|due| *due < position).is_some() {}
    }

    pub(crate) fn oldest(&self) -> Option<Position> {
        self.records.front().map(|stored| stored.position)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Stored> {
        self.records.iter()
    }

    pub(crate) fn len(&self) -> usize {
        self.records.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The index of the first record at `position` or after it.
    fn index_of(&self, position: Position) -> usize {
        self.records.partition_point(|stored| stored.position < position)
    }
}

/// Returns how often the timeout has doubled after so many timeouts without an acknowledgement.
fn doublings(timeouts: u32) -> u32 {
    timeouts.saturating_sub(EQUAL_TIMEOUTS - 1)
}

fn retransmit_timeout(round_trip: Duration, timeouts: u32) -> Duration {
    let shortest = round_trip.saturating_mul(3).max(RETRANSMIT_MIN);
    shortest.saturating_mul(2u32.saturating_pow(doublings(timeouts))).min(shortest.max(RETRANSMIT_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY_BYTES: usize = 1000;

    fn store() -> ReplayStore {
        ReplayStore::new(false, &Limits { store_bytes: 10 * BODY_BYTES, ..Limits::default() })
    }

    /// Fills the store and acknowledges it after `delay`, several times. Returns its limit.
    fn cycle(store: &mut ReplayStore, delay: Duration) -> usize {
        let (mut now, mut next) = (Time::from_millis(1), 0);
        for _ in 0..5 {
            while store.has_room() {
                let message = Message::new(now, Body::from(vec![0; BODY_BYTES]));
                store.push(Stored::new((1, next), &message, now));
                next += 1;
            }
            now = now.after(delay);
            store.acknowledge((1, next - 1), now);
        }
        store.store_max.bytes
    }

    #[test]
    fn the_store_grows_only_for_records_in_flight() {
        assert_eq!(cycle(&mut store(), Duration::from_secs(2)), 10 * BODY_BYTES);
        assert!(cycle(&mut store(), Duration::from_millis(200)) > 10 * BODY_BYTES);
    }

    /// The reader at the sink has stopped: the sink has all records, and acknowledges none.
    #[test]
    fn retransmissions_become_rare_while_nothing_is_acknowledged() {
        let mut store = ReplayStore::new(true, &Limits::default());
        for next in 0..2 {
            let message = Message::new(Time::ZERO, Body::from(vec![0; BODY_BYTES]));
            store.push(Stored::new((1, next), &message, Time::ZERO));
        }
        let (round_trip, end) = (Duration::from_millis(1), Time::from_millis(60_000));
        let mut sent = [Vec::new(), Vec::new()];
        while let Some(at) = store.poll_timeout(round_trip).filter(|at| *at < end) {
            store.handle_timeout(at, round_trip);
            while let Some(stored) = store.poll_retransmit(at) {
                sent[stored.position.1 as usize].push(at.0 / 1_000_000);
            }
        }
        assert_eq!(sent[0][..9], [50, 100, 150, 200, 300, 500, 900, 1700, 3300]);
        assert!(
            sent[0].windows(2).all(|pair| pair[1] - pair[0] <= 2000) && sent[0].len() < 40,
            "{:?}",
            sent[0]
        );
        assert_eq!(sent[1], [50, 100, 150, 200], "then the oldest record alone asks");
        store.acknowledge((1, 1), end);
        assert_eq!(store.poll_timeout(round_trip), Some(end.after(RETRANSMIT_MIN)), "the reader goes on");
    }

    /// A path slower than the round trip of the control channel brings acknowledgements later, but steadily.
    #[test]
    fn an_acknowledgement_restarts_the_timeout() {
        let (mut store, round_trip) = (ReplayStore::new(true, &Limits::default()), Duration::from_millis(1));
        for next in 0..100 {
            let message = Message::new(Time::ZERO, Body::from(vec![0; BODY_BYTES]));
            store.push(Stored::new((1, next), &message, Time::ZERO));
        }
        for next in 1..100 {
            let now = Time::from_millis(next * 40);
            store.handle_timeout(now, round_trip);
            assert!(store.poll_retransmit(now).is_none());
            store.acknowledge((1, next), now);
        }
    }

    #[test]
    fn a_store_with_little_in_flight_shrinks() {
        let mut store = store();
        store.store_max.bytes = 40 * BODY_BYTES;
        for next in 0..10 {
            let now = Time::from_millis(next);
            store.push(Stored::new((1, next), &Message::new(now, Body::from(vec![0; BODY_BYTES])), now));
            store.acknowledge((1, next + 1), now);
        }
        assert_eq!(store.store_max.bytes, 10 * BODY_BYTES);
    }
}
