//! The sending side: splits records into datagrams, sends them at the rate of [`RateControl`], and retransmits lost
//! parts. Sans-IO.
//!
//! States of a part of a record:
//!
//! ```text
//! waiting ──sent──► in flight ──receipt: arrived──► done
//!                    │     ▲
//!     receipt: gap,  │     │ sent again, under
//!     or timeout     ▼     │ a new number
//!                  to retransmit ──nothing of the record arrives for `patience`──► abandoned
//! ```
//!
//! A record in one datagram is done as soon as it is sent. If it is lost, no other record suffers, and the session
//! retransmits it on a reliable flow. A record in several parts is retransmitted here, because one lost part would make
//! all others useless.

use super::fragment::{Fragment, ID_BYTES, RecordId};
use super::receipt::{Receipt, SMALL_BYTES, extend};
use super::unanswered::Unanswered;
use crate::rate::{RateControl, Sample};
use crate::send_queue::paced_queue_bytes;
use contract::{Body, Time};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::time::Duration;
use sys::net::SEGMENTS_MAX;

/// Largest payload of one UDP packet over IPv4, and so of one batch.
pub(super) const BATCH_BYTES_MAX: usize = 65_507;
/// A missing datagram is lost once this many later ones arrived, the newest of which was sent later by at least
/// [`RateControl::reorder_delay`].
const REORDER_NUMBERS: u64 = 3;
/// Doublings of the retransmission timeout, at most.
const DOUBLINGS_MAX: u32 = 5;
/// With at most this many bytes in flight the timeout doubles once in the first [`SMALL_FLIGHT_TIMEOUTS`]: they burden no
/// network, and random loss may take all of them. Then it doubles as usual: the path may have become longer than the
/// timeout, and each receipt arrives after its datagrams counted as lost.
const SMALL_FLIGHT_BYTES: usize = 6 << 10;
const SMALL_FLIGHT_TIMEOUTS: u32 = 4;
/// Delivered records that are remembered, and for how long. The session may ask for a record again that has just
/// arrived, because its acknowledgement is still in flight.
const DELIVERED_MAX: usize = 64;
const DELIVERED_MIN: Duration = Duration::from_millis(200);
/// The window is sent in at least this many calls.
const CALLS_MIN: usize = 8;
/// Memory that the receiver's kernel needs per datagram besides its bytes.
const KERNEL_OVERHEAD_BYTES: usize = 768;

/// Capacity of the sender.
#[derive(Debug, Clone, Copy)]
pub(super) struct SenderLimits {
    /// Records, in flight or waiting.
    pub(super) records_max: usize,
    /// Waiting bytes. An empty queue accepts one record of any size.
    pub(super) bytes_max: usize,
    /// A record is abandoned if no part of it arrives for this long.
    pub(super) patience: Duration,
}

/// A record with parts that are not done.
#[derive(Debug)]
struct Record {
    id: RecordId,
    /// The record without its identity.
    body: Body,
    parts: u16,
    /// Parts that were sent at least once.
    sent: u16,
    /// Parts that are done.
    done: u16,
    /// Arrival of its last part, or the first transmission.
    last_arrival: Time,
}

impl Record {
    fn is_done(&self) -> bool {
        self.done == self.parts
    }
}

/// Consecutive parts of one record.
#[derive(Debug, Clone, Copy)]
struct PartRange {
    /// Number of the record, counted from the first that was pushed.
    record: u64,
    first: u16,
    count: u16,
}

/// Datagrams in flight with consecutive numbers that were sent at the same time.
#[derive(Debug, Clone, Copy)]
struct Run {
    number: u64,
    count: u64,
    /// Size of every datagram but the last.
    each: usize,
    /// Size of the last datagram.
    last: usize,
    sent: Time,
    /// Number of the record and index of the first part; `None` if lost datagrams are not retransmitted.
    parts: Option<(u64, u16)>,
}

impl Run {
    fn end(&self) -> u64 {
        self.number + self.count
    }

    fn bytes(&self) -> usize {
        (self.count as usize - 1) * self.each + self.last
    }

    /// Splits off and returns the datagrams before `number`, which is inside the run.
    fn split_front(&mut self, number: u64) -> Run {
        let count = number - self.number;
        let front = Run { count, last: self.each, ..*self };
        self.number = number;
        self.count -= count;
        self.parts = self.parts.map(|(record, first)| (record, first + count as u16));
        front
    }
}

/// The datagrams of one call. All have the same size except the last, which may be smaller (UDP_SEGMENT).
#[derive(Debug, Default)]
pub(super) struct Batch {
    ranges: SmallVec<[PartRange; 4]>,
    headers: SmallVec<[[u8; Fragment::BYTES]; SEGMENTS_MAX]>,
    /// Size of each datagram's part.
    pub(super) parts: SmallVec<[usize; SEGMENTS_MAX]>,
    /// Size of all datagrams with their overhead.
    bytes: usize,
}

/// Permission to send now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Permission {
    /// Nothing is waiting.
    Empty,
    /// The window is full until a receipt arrives.
    WindowFull,
    /// The pace permits nothing before this time.
    At(Time),
    /// This many bytes may be sent, and one datagram in any case.
    Send(usize),
}

#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Counts {
    /// Records whose parts have all been sent once.
    pub(super) sent: u64,
    /// Retransmitted datagrams.
    pub(super) retransmitted: u64,
    /// Lost datagrams.
    pub(super) lost: u64,
    /// Records abandoned after `patience`.
    pub(super) abandoned: u64,
}

/// The sending side of one connection.
#[derive(Debug)]
pub(super) struct Sender {
    /// Bytes of a record in one datagram, at most.
    part_bytes: usize,
    /// Bytes of a datagram besides its part.
    overhead_bytes: usize,
    limits: SenderLimits,
    /// Oldest first.
    records: VecDeque<Record>,
    /// Number of the first of `records`.
    first: u64,
    /// Number of the first record with parts that were never sent.
    unsent: u64,
    /// Bytes that were never sent.
    waiting_bytes: usize,
    /// Parts to retransmit, before any waiting ones.
    retransmit: VecDeque<PartRange>,
    /// By number, oldest first.
    in_flight: VecDeque<Run>,
    /// Number of the next datagram.
    number: u64,
    /// Payload that the receiver's kernel can buffer in datagrams of the current size.
    receiver_bytes: usize,
    in_flight_bytes: usize,
    /// Bytes in flight that are retransmitted if they are lost.
    retransmittable_bytes: usize,
    rate: RateControl,
    /// Last acknowledgement or timeout, or the first transmission after an idle time.
    last_progress: Time,
    /// Consecutive timeouts of flights for which a receipt was due.
    timeouts: u32,
    /// The record with the highest epoch and sequence.
    newest: RecordId,
    /// Recently delivered records (see [`DELIVERED_MAX`]).
    delivered: VecDeque<(RecordId, Time)>,
    pub(super) unanswered: Unanswered,
    pub(super) counts: Counts,
}

/// Iterates over the bytes of one body.
struct Cursor<'a, Chunks> {
    chunks: Chunks,
    chunk: &'a [u8],
}

impl<'a, Chunks: Iterator<Item = &'a [u8]>> Cursor<'a, Chunks> {
    /// Takes the next `left` bytes, piece by piece.
    fn take(&mut self, mut left: usize, mut take: impl FnMut(&'a [u8])) {
        while left > 0 {
            if self.chunk.is_empty() {
                let Some(next) = self.chunks.next() else { break };
                self.chunk = next;
            }
            let (here, rest) = self.chunk.split_at(left.min(self.chunk.len()));
            take(here);
            left -= here.len();
            self.chunk = rest;
        }
    }
}

impl Batch {
    /// Calls `to` with the header and pieces of each datagram, until it returns false. Returns the number of calls that
    /// returned true.
    pub(super) fn each<'a>(&'a self, sender: &'a Sender, mut to: impl FnMut(&[&'a [u8]]) -> bool) -> usize {
        let (mut at, mut pieces) = (0, SmallVec::<[&[u8]; 16]>::new());
        for range in &self.ranges {
            let record = &sender.records[(range.record - sender.first) as usize];
            let mut cursor = Cursor { chunks: record.body.chunks(), chunk: &[] };
            cursor.take(usize::from(range.first) * sender.part_bytes, |_| {});
            for _ in 0..range.count {
                pieces.clear();
                pieces.push(&self.headers[at]);
                cursor.take(self.parts[at], |piece| pieces.push(piece));
                if !to(&pieces) {
                    return at;
                }
                at += 1;
            }
        }
        at
    }
}

impl Sender {
    pub(super) fn new(part_bytes: usize, overhead_bytes: usize, limits: SenderLimits) -> Self {
        Sender {
            part_bytes,
            overhead_bytes,
            limits,
            records: VecDeque::new(),
            first: 0,
            unsent: 0,
            waiting_bytes: 0,
            retransmit: VecDeque::new(),
            in_flight: VecDeque::new(),
            number: 0,
            receiver_bytes: 0,
            in_flight_bytes: 0,
            retransmittable_bytes: 0,
            rate: RateControl::new(),
            last_progress: Time::ZERO,
            timeouts: 0,
            newest: [0; ID_BYTES],
            delivered: VecDeque::new(),
            unanswered: Unanswered::default(),
            counts: Counts::default(),
        }
    }

    /// Returns the number of parts of a record of this size, or `None` if there are too many. The size includes the
    /// record's identity.
    pub(super) fn parts(&self, record_bytes: usize) -> Option<u16> {
        u16::try_from((record_bytes - ID_BYTES).div_ceil(self.part_bytes)).ok()
    }

    /// Returns true if a record of `more` bytes does not fit now.
    pub(super) fn is_full_for(&self, more: usize) -> bool {
        let queue_max = self.rate.pace().map_or(usize::MAX, paced_queue_bytes);
        self.records.len() >= self.limits.records_max
            || self.waiting_bytes >= queue_max.max(self.part_bytes)
            || self.waiting_bytes > 0 && self.waiting_bytes.saturating_add(more) > self.limits.bytes_max
    }

    /// Returns true if nothing is waiting or to be retransmitted.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting_bytes == 0 && self.retransmit.is_empty()
    }

    /// Returns the bytes that were never sent.
    pub(super) fn waiting_bytes(&self) -> usize {
        self.waiting_bytes
    }

    /// Returns the number of records with parts that were never sent.
    pub(super) fn waiting(&self) -> u64 {
        self.first + self.records.len() as u64 - self.unsent
    }

    /// Returns true if nothing in flight would be retransmitted.
    pub(super) fn is_acknowledged(&self) -> bool {
        self.retransmittable_bytes == 0
    }

    /// Returns true if only the pace delays the next datagram.
    pub(super) fn may_send(&self) -> bool {
        !self.is_empty() && self.room() > 0
    }

    /// Returns the free bytes of the window; 0 if they are too few to be worth a call.
    fn room(&self) -> usize {
        let window = self.rate.window();
        let room = window.saturating_sub(self.in_flight_bytes);
        if self.in_flight_bytes > 0 && room < BATCH_BYTES_MAX.min(window / CALLS_MIN) { 0 } else { room }
    }

    /// Returns the bytes in flight.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight_bytes
    }

    pub(super) fn rate(&self) -> &RateControl {
        &self.rate
    }

    #[cfg(test)]
    pub(super) fn pace_at(&mut self, pace: f64, now: Time) {
        self.rate.pace_at(pace, now);
    }

    /// Accepts a record that fits and has this many parts. Ignores a record that the session retransmits while it is
    /// still in flight here.
    pub(super) fn push(&mut self, mut record: Body, parts: u16, now: Time) {
        let id: RecordId = record.peek_front().unwrap_or_default();
        if order(&id) <= order(&self.newest) {
            self.unanswered.on_retransmission(order(&id), now);
            if self.is_known(&id, now) {
                return;
            }
        }
        self.newest = id;
        record.skip_front(ID_BYTES);
        self.waiting_bytes += record.len();
        self.records.push_back(Record { id, body: record, parts, sent: 0, done: 0, last_arrival: now });
    }

    /// Returns true if a record is in flight or was delivered recently.
    fn is_known(&self, id: &RecordId, now: Time) -> bool {
        let recent = (self.rate.round_trip() * 4).max(DELIVERED_MIN);
        self.records.iter().any(|record| record.id == *id && !record.is_done())
            || self.delivered.iter().any(|(delivered, at)| delivered == id && now.since(*at) < recent)
    }

    /// Decides whether and how much may be sent now.
    pub(super) fn permission(&mut self, now: Time) -> Permission {
        if self.is_empty() {
            return Permission::Empty;
        }
        // The receiver sends no receipt for a few small records. After a timeout they count as arrived or lost.
        if self.retransmittable_bytes == 0
            && self.in_flight_bytes > 0
            && now.since(self.last_progress) > self.rate.timeout()
        {
            self.forget_flight();
        }
        if self.rate.next() > now {
            return Permission::At(self.rate.next());
        }
        match self.room() {
            0 => Permission::WindowFull,
            room => Permission::Send(room.min(self.rate.quantum()).min(BATCH_BYTES_MAX)),
        }
    }

    /// Forgets the datagrams in flight, none of which is retransmitted.
    fn forget_flight(&mut self) {
        self.in_flight.clear();
        self.in_flight_bytes = 0;
    }

    /// Returns the next datagrams that one call can send: at most `datagrams_max`, and at most `bytes_max` bytes unless
    /// it is only one.
    pub(super) fn plan(&self, datagrams_max: usize, bytes_max: usize) -> Batch {
        let limits = (datagrams_max, bytes_max);
        let mut batch = Batch::default();
        for range in &self.retransmit {
            if !self.add(&mut batch, *range, limits) {
                return batch;
            }
        }
        let unsent = (self.unsent..).zip(self.records.range((self.unsent - self.first) as usize..));
        for (number, record) in unsent {
            let range = PartRange { record: number, first: record.sent, count: record.parts - record.sent };
            if !self.add(&mut batch, range, limits) {
                return batch;
            }
        }
        batch
    }

    /// Adds as many parts of the range as fit. Returns false if the batch is full.
    fn add(&self, batch: &mut Batch, range: PartRange, (datagrams_max, bytes_max): (usize, usize)) -> bool {
        let record = &self.records[(range.record - self.first) as usize];
        let mut added = PartRange { count: 0, ..range };
        let mut has_room = true;
        for index in range.first..range.first + range.count {
            let part = self.part_bytes.min(record.body.len() - usize::from(index) * self.part_bytes);
            let first = *batch.parts.first().unwrap_or(&part);
            let size = part + self.overhead_bytes;
            if part > first
                || batch.bytes + size > bytes_max && batch.bytes > 0
                || batch.parts.len() == datagrams_max
            {
                has_room = false;
                break;
            }
            let number = (self.number + batch.parts.len() as u64) as u32;
            let fragment = Fragment { id: record.id, index, count: record.parts, number };
            batch.headers.push(fragment.emit());
            batch.parts.push(part);
            batch.bytes += size;
            added.count += 1;
            // Only the last datagram of a batch may be smaller.
            if part < first {
                has_room = false;
                break;
            }
        }
        if added.count > 0 {
            batch.ranges.push(added);
        }
        has_room
    }

    /// Notes that the first `count` datagrams of the last planned batch were sent.
    pub(super) fn sent(&mut self, batch: &Batch, count: usize, now: Time) {
        let (mut left, mut at, mut bytes) = (count, 0, 0);
        for range in &batch.ranges {
            let range = PartRange { count: range.count.min(left as u16), ..*range };
            if range.count == 0 {
                break;
            }
            let sizes = &batch.parts[at..at + usize::from(range.count)];
            bytes += self.on_range_sent(range, sizes, now);
            (left, at) = (left - sizes.len(), at + sizes.len());
        }
        self.rate.sent(bytes, now);
        if self.is_empty() {
            self.rate.on_idle();
        }
        self.remove_done();
    }

    /// Moves parts to the state in flight. Returns the bytes of their datagrams.
    fn on_range_sent(&mut self, range: PartRange, sizes: &[usize], now: Time) -> usize {
        let record = &mut self.records[(range.record - self.first) as usize];
        let is_retransmission = range.first < record.sent;
        if record.sent == 0 {
            record.last_arrival = now;
        }
        match is_retransmission {
            true => {
                self.counts.retransmitted += sizes.len() as u64;
                if let Some(front) = self.retransmit.front_mut() {
                    (front.first, front.count) = (front.first + range.count, front.count - range.count);
                    if front.count == 0 {
                        self.retransmit.pop_front();
                    }
                }
            }
            false => {
                record.sent += range.count;
                self.waiting_bytes -= sizes.iter().sum::<usize>();
                if record.sent == record.parts {
                    self.unsent = range.record + 1;
                    self.counts.sent += 1;
                }
            }
        }
        let is_retransmittable = record.parts > 1;
        if !is_retransmittable {
            record.done = 1;
        }
        let overhead = self.overhead_bytes;
        let run = Run {
            number: self.number,
            count: sizes.len() as u64,
            each: sizes[0] + overhead,
            last: sizes[sizes.len() - 1] + overhead,
            sent: now,
            parts: is_retransmittable.then_some((range.record, range.first)),
        };
        if self.in_flight_bytes == 0 {
            self.last_progress = now;
        }
        self.number = run.end();
        self.in_flight_bytes += run.bytes();
        self.retransmittable_bytes += if is_retransmittable { run.bytes() } else { 0 };
        match self.in_flight.back_mut() {
            Some(back)
                if !is_retransmittable
                    && back.parts.is_none()
                    && back.sent == now
                    && back.last == run.each =>
            {
                back.count += run.count;
                back.last = run.last;
            }
            _ => self.in_flight.push_back(run),
        }
        run.bytes()
    }

    /// Removes records that are done from the front.
    fn remove_done(&mut self) {
        while let Some(record) = self.records.pop_front_if(|record| record.is_done()) {
            debug_assert!(record.sent == record.parts);
            self.first += 1;
        }
    }

    /// Processes a receipt. Returns false if it is invalid.
    ///
    /// ```text
    /// number:        from            next
    /// ───────────────┼──────────────┼──────────────►
    ///   lost unless    arrived, or    not yet
    ///   arrived before in a gap       acknowledged
    /// ```
    ///
    /// A gap counts as lost by the rule of [`REORDER_NUMBERS`]; before that its datagrams stay in flight.
    pub(super) fn handle_receipt(&mut self, receipt: &Receipt, now: Time) -> bool {
        let next = extend(self.number, receipt.next);
        let from = extend(next, receipt.from);
        if next > self.number || from > next {
            return false;
        }
        let each = self.in_flight.back().map_or(self.part_bytes, |run| run.each);
        self.receiver_bytes = (receipt.room as usize).saturating_mul(each) / (each + KERNEL_OVERHEAD_BYTES);
        let is_limited = 2 * self.in_flight_bytes >= self.rate.window();
        let newest = self.in_flight.iter().take_while(|run| run.number < next).last();
        let newest = newest.filter(|run| run.end() >= next).map(|run| run.sent);
        let held = Duration::from_micros(receipt.held_us.into());
        let round_trip = newest.map(|sent| now.since(sent).saturating_sub(held));
        let late = newest.unwrap_or(now.before(held).before(self.rate.round_trip()));
        let late = late.before(self.rate.reorder_delay());
        let (acknowledged, lost) = self.apply_receipt(receipt, (from, next), late, now);
        if acknowledged > 0 {
            (self.last_progress, self.timeouts) = (now, 0);
        }
        let (came, received_bytes, room) = (receipt.came, receipt.received_bytes, self.receiver_bytes);
        let is_idle = self.is_empty();
        let sample =
            Sample { round_trip, came, received_bytes, acknowledged, lost, room, is_limited, is_idle };
        self.rate.on_receipt(&sample, now);
        self.remove_done();
        true
    }

    /// Removes acknowledged and lost datagrams from those in flight. A gap is lost only if it was sent before `late`.
    /// Returns the acknowledged and the lost bytes.
    fn apply_receipt(
        &mut self,
        receipt: &Receipt,
        (from, next): (u64, u64),
        late: Time,
        now: Time,
    ) -> (usize, usize) {
        let mut gaps =
            receipt.gaps.iter().map(|(first, end)| (extend(next, *first), extend(next, *end))).peekable();
        let (mut kept, mut acknowledged, mut lost) = (SmallVec::<[Run; 8]>::new(), 0, 0);
        while let Some(mut run) = self.in_flight.pop_front_if(|run| run.number < next) {
            if run.end() > next {
                let rest = run;
                run = self.cut(rest, next);
            }
            if run.number < from {
                let unknown = if run.end() > from { self.cut(run, from) } else { run };
                lost += self.mark_lost(&unknown);
                continue;
            }
            while gaps.next_if(|(_, end)| *end <= run.number).is_some() {}
            // Each arm handles the front of the run up to the border of a gap and puts the rest back.
            match gaps.peek() {
                Some(&(first, end)) if first <= run.number => {
                    let missing = if run.end() > end { self.cut(run, end) } else { run };
                    match missing.end() + REORDER_NUMBERS <= next && missing.sent <= late {
                        true => lost += self.mark_lost(&missing),
                        false => kept.push(missing),
                    }
                }
                Some(&(first, _)) if first < run.end() => {
                    let arrived = self.cut(run, first);
                    acknowledged += self.acknowledge(&arrived, now);
                }
                _ => acknowledged += self.acknowledge(&run, now),
            }
        }
        kept.into_iter().rev().for_each(|run| self.in_flight.push_front(run));
        (acknowledged, lost)
    }

    /// Splits a run before `number`, which is inside it. Puts the rest back in flight and returns the front.
    fn cut(&mut self, mut run: Run, number: u64) -> Run {
        let front = run.split_front(number);
        self.in_flight.push_front(run);
        front
    }

    fn drop_run(&mut self, run: &Run) -> usize {
        self.in_flight_bytes -= run.bytes();
        self.retransmittable_bytes -= if run.parts.is_some() { run.bytes() } else { 0 };
        run.bytes()
    }

    /// Returns the record of a run with its number and the index of the first part, unless the record is done.
    fn record_of(&mut self, run: &Run) -> Option<(u64, u16, &mut Record)> {
        let (record, first) = run.parts?;
        let at = record.checked_sub(self.first)?;
        let held = self.records.get_mut(at as usize).filter(|held| !held.is_done())?;
        Some((record, first, held))
    }

    /// Notes that a run arrived. Returns its bytes.
    fn acknowledge(&mut self, run: &Run, now: Time) -> usize {
        if let Some((_, _, record)) = self.record_of(run) {
            record.last_arrival = now;
            record.done += run.count as u16;
            if record.is_done() {
                record.body = Body::new();
                let id = record.id;
                if self.delivered.len() == DELIVERED_MAX {
                    self.delivered.pop_front();
                }
                self.delivered.push_back((id, now));
            }
        }
        self.drop_run(run)
    }

    /// Notes that a run was lost, and queues it for retransmission. Returns its bytes.
    fn mark_lost(&mut self, run: &Run) -> usize {
        self.counts.lost += run.count;
        if let Some((record, first, _)) = self.record_of(run) {
            self.retransmit.push_back(PartRange { record, first, count: run.count as u16 });
        }
        self.drop_run(run)
    }

    /// Returns the time at which everything in flight counts as lost if no receipt arrives.
    pub(super) fn timeout(&self) -> Option<Time> {
        let is_waiting = self.retransmittable_bytes > 0 || self.in_flight_bytes > 0 && !self.is_empty();
        let doublings = match self.in_flight_bytes <= SMALL_FLIGHT_BYTES {
            true => self.timeouts.min(1).max(self.timeouts.saturating_sub(SMALL_FLIGHT_TIMEOUTS - 1)),
            false => self.timeouts,
        };
        let wait = self.rate.timeout() * (1 << doublings.min(DOUBLINGS_MAX));
        is_waiting.then(|| self.last_progress.after(wait))
    }

    /// Handles the retransmission timeout: marks old datagrams as lost and abandons overdue records.
    pub(super) fn handle_timeout(&mut self, now: Time) {
        if self.timeout().is_none_or(|at| now < at) {
            return;
        }
        if self.retransmittable_bytes == 0 && self.in_flight_bytes < SMALL_BYTES {
            // No receipt was due: the timeout says nothing about the path.
            self.forget_flight();
        } else {
            let late = now.before(self.rate.timeout());
            let mut lost = 0;
            while let Some(run) = self.in_flight.pop_front_if(|run| run.sent <= late) {
                lost += self.mark_lost(&run);
            }
            self.timeouts += 1;
            // Random loss alone may take a small flight, or its receipt: the rate stays.
            self.rate.on_timeout(if lost > SMALL_FLIGHT_BYTES { self.timeouts } else { 1 });
        }
        self.last_progress = now;
        self.abandon_overdue(now);
        self.remove_done();
    }

    /// A silent peer is back. The retransmission timeout has doubled during the silence: what is in flight goes out again at once.
    pub(super) fn probe(&mut self, now: Time) {
        let late = now.before(self.rate.round_trip());
        while let Some(run) = self.in_flight.pop_front_if(|run| run.sent <= late) {
            self.mark_lost(&run);
        }
        (self.timeouts, self.last_progress) = (0, now);
        self.rate.restart();
        self.remove_done();
    }

    fn abandon_overdue(&mut self, now: Time) {
        let patience = self.limits.patience;
        for (at, record) in (self.first..).zip(&mut self.records) {
            if record.sent == 0 || record.is_done() || now.since(record.last_arrival) <= patience {
                continue;
            }
            if record.sent < record.parts {
                self.waiting_bytes -= record.body.len() - usize::from(record.sent) * self.part_bytes;
                self.unsent = at + 1;
                self.counts.sent += 1;
            }
            self.counts.abandoned += 1;
            (record.sent, record.done, record.body) = (record.parts, record.parts, Body::new());
            self.retransmit.retain(|range| range.record != at);
        }
    }
}

/// Returns the sort key of a record within its flow: epoch and sequence.
fn order(id: &RecordId) -> (u32, u64) {
    let (epoch, sequence) = (&id[4..8], &id[8..ID_BYTES]);
    let mut bytes = ([0; 4], [0; 8]);
    bytes.0.copy_from_slice(epoch);
    bytes.1.copy_from_slice(sequence);
    (u32::from_le_bytes(bytes.0), u64::from_le_bytes(bytes.1))
}
