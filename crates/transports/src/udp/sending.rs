//! The records on their way out: split into datagrams, sent as fast as [`Rate`] lets, and of a record in several
//! datagrams those again that were lost. Sans-IO.
//!
//! A record of one datagram is forgotten once it has left: it is lost alone, and who minds sends it again as a whole. Of
//! others a lost part would cost all the rest.

use super::fragment::{Fragment, ID_BYTES, RecordId};
use super::rate::{Rate, Sample};
use super::receipt::{Receipt, extend};
use contract::{Body, Time};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::time::Duration;
use sys::net::SEGMENTS_MAX;

/// Largest payload of one UDP packet over IPv4, and so of one batch.
pub(super) const BATCH_BYTES_MAX: usize = 65_507;
/// A number that is missing is lost once so many behind it came, the newest of which left later by [`Rate::lateness`].
const REORDER_NUMBERS: u64 = 3;
/// Times that patience doubles while nothing is heard; and while so few bytes are under way that they burden nobody, and
/// chance alone may lose them all.
const DOUBLINGS_MAX: u32 = 5;
const FEW_BYTES: usize = 6 << 10;
const FEW_DOUBLINGS_MAX: u32 = 1;
/// How long data that may wait to leave take to leave, where the rate is known.
const WAITING_MAX: Duration = Duration::from_millis(100);
/// Whole records that are remembered, and for how long: word that they were missing may have been on its way.
const WHOLE_MAX: usize = 64;
const WHOLE_MIN: Duration = Duration::from_millis(200);

/// Calls that send what a window holds, at least.
const CALLS_MIN: usize = 8;
/// Memory that a datagram takes in a receiver's kernel beside its bytes.
const KEPT_BESIDE: usize = 768;

/// How much may wait.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Records.
    pub(super) records_max: usize,
    /// Bytes that did not leave yet; one record may wait whatever its size.
    pub(super) bytes_max: usize,
    /// How long nothing of a record may arrive before the rest of it is given up.
    pub(super) patience: Duration,
}

/// A record of which something is to be sent, or may have to be again.
#[derive(Debug)]
struct Record {
    id: RecordId,
    /// Without the identity.
    body: Body,
    parts: u16,
    /// Parts that have left once.
    sent: u16,
    /// Parts of which nothing more is expected.
    settled: u16,
    /// When something of it arrived, or began to leave.
    heard: Time,
}

impl Record {
    fn is_settled(&self) -> bool {
        self.settled == self.parts
    }
}

/// Consecutive parts of one record, by its place among all; to be sent again.
#[derive(Debug, Clone, Copy)]
struct Parts {
    record: u64,
    first: u16,
    count: u16,
}

/// Datagrams with consecutive numbers that left at once and are not heard of yet.
#[derive(Debug, Clone, Copy)]
struct Run {
    number: u64,
    count: u64,
    /// Bytes of each, and of the last.
    each: usize,
    last: usize,
    sent: Time,
    /// What record they are of, if lost ones are sent again, and which part of it is the first.
    parts: Option<(u64, u16)>,
}

impl Run {
    fn end(&self) -> u64 {
        self.number + self.count
    }

    fn bytes(&self) -> usize {
        (self.count as usize - 1) * self.each + self.last
    }

    /// Cuts off what is before `number`, which is within.
    fn split_front(&mut self, number: u64) -> Run {
        let count = number - self.number;
        let front = Run { count, last: self.each, ..*self };
        self.number = number;
        self.count -= count;
        self.parts = self.parts.map(|(record, first)| (record, first + count as u16));
        front
    }
}

/// Datagrams that one call sends: all of one size but the last.
#[derive(Debug, Default)]
pub(super) struct Batch {
    runs: SmallVec<[Parts; 4]>,
    headers: SmallVec<[[u8; Fragment::BYTES]; SEGMENTS_MAX]>,
    /// Bytes of the records in each.
    pub(super) parts: SmallVec<[usize; SEGMENTS_MAX]>,
    /// Bytes of all datagrams, with what is around the parts.
    bytes: usize,
}

/// Why nothing leaves, or what may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// There is nothing.
    Empty,
    /// Enough is under way: word of it is waited for.
    Window,
    /// It is not yet time.
    At(Time),
    /// Datagrams of so many bytes may leave, and one in any case.
    Go(usize),
}

#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Counts {
    /// Records of which nothing waits that has not left once.
    pub(super) sent: u64,
    /// Datagrams that were sent again.
    pub(super) again: u64,
    /// Datagrams that were found lost.
    pub(super) lost: u64,
    /// Records given up amid their way.
    pub(super) given_up: u64,
}

/// The records on their way out.
#[derive(Debug)]
pub(super) struct Sending {
    /// Most bytes of a record in one datagram, and bytes of it beside them.
    part_bytes: usize,
    around_bytes: usize,
    limits: Limits,
    /// Oldest first; the place of the first among all there were, and of the first that has not left whole.
    records: VecDeque<Record>,
    first: u64,
    fresh: u64,
    /// Bytes that did not leave yet.
    waiting_bytes: usize,
    again: VecDeque<Parts>,
    runs: VecDeque<Run>,
    number: u64,
    /// Bytes of datagrams like those sent last that the receiver's kernel keeps.
    kept_bytes: usize,
    /// Bytes in `runs`, and those of them that are sent again if they are lost.
    under_way: usize,
    minded: usize,
    rate: Rate,
    /// What was sent last, or heard of.
    heard: Time,
    starved: u32,
    newest: RecordId,
    whole: VecDeque<(RecordId, Time)>,
    pub(super) counts: Counts,
}

/// Goes through the bytes of one body.
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
    /// Gives each datagram's header and pieces, one after the other, until `to` has had enough; how many it took.
    pub(super) fn each<'a>(&'a self, sending: &'a Sending, mut to: impl FnMut(&[&'a [u8]]) -> bool) -> usize {
        let (mut at, mut pieces) = (0, SmallVec::<[&[u8]; 16]>::new());
        for run in &self.runs {
            let record = &sending.records[(run.record - sending.first) as usize];
            let mut cursor = Cursor { chunks: record.body.chunks(), chunk: &[] };
            cursor.take(usize::from(run.first) * sending.part_bytes, |_| {});
            for _ in 0..run.count {
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

impl Sending {
    pub(super) fn new(part_bytes: usize, around_bytes: usize, limits: Limits) -> Self {
        Sending {
            part_bytes,
            around_bytes,
            limits,
            records: VecDeque::new(),
            first: 0,
            fresh: 0,
            waiting_bytes: 0,
            again: VecDeque::new(),
            runs: VecDeque::new(),
            number: 0,
            kept_bytes: 0,
            under_way: 0,
            minded: 0,
            rate: Rate::new(),
            heard: Time::ZERO,
            starved: 0,
            newest: [0; ID_BYTES],
            whole: VecDeque::new(),
            counts: Counts::default(),
        }
    }

    /// How many parts a record of so many bytes has, its identity among them; `None` if they are too many.
    pub(super) fn parts(&self, record_bytes: usize) -> Option<u16> {
        u16::try_from((record_bytes - ID_BYTES).div_ceil(self.part_bytes)).ok()
    }

    /// Whether `more` bytes do not fit now.
    pub(super) fn is_full_for(&self, more: usize) -> bool {
        let soon = self.rate.pace().map_or(usize::MAX, |pace| (pace * WAITING_MAX.as_secs_f64()) as usize);
        self.records.len() >= self.limits.records_max
            || self.waiting_bytes >= soon.max(self.part_bytes)
            || self.waiting_bytes > 0 && self.waiting_bytes.saturating_add(more) > self.limits.bytes_max
    }

    /// Whether nothing waits to leave.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting_bytes == 0 && self.again.is_empty()
    }

    /// Bytes that did not leave yet.
    pub(super) fn waiting_bytes(&self) -> usize {
        self.waiting_bytes
    }

    /// Records that did not leave whole yet.
    pub(super) fn waiting(&self) -> u64 {
        self.first + self.records.len() as u64 - self.fresh
    }

    /// Whether nothing is under way that would be sent again.
    pub(super) fn is_settled(&self) -> bool {
        self.minded == 0
    }

    /// Whether something would leave if it were time.
    pub(super) fn may_leave(&self) -> bool {
        !self.is_empty() && self.room() > 0
    }

    /// Bytes that may leave beside those under way; none if they are so few that calls would be dear.
    fn room(&self) -> usize {
        let window = self.rate.window();
        let room = window.saturating_sub(self.under_way);
        if self.under_way > 0 && room < BATCH_BYTES_MAX.min(window / CALLS_MIN) { 0 } else { room }
    }

    /// Bytes under way.
    pub(super) fn under_way(&self) -> usize {
        self.under_way
    }

    pub(super) fn rate(&self) -> &Rate {
        &self.rate
    }

    /// Takes a record that was checked, fits and has so many parts; one that is on its way already is not sent twice.
    pub(super) fn push(&mut self, mut record: Body, parts: u16, now: Time) {
        let id: RecordId = record.peek_front().unwrap_or_default();
        if place(&id) <= place(&self.newest) && self.is_known(&id, now) {
            return;
        }
        self.newest = id;
        record.skip_front(ID_BYTES);
        self.waiting_bytes += record.len();
        self.records.push_back(Record { id, body: record, parts, sent: 0, settled: 0, heard: now });
    }

    fn is_known(&self, id: &RecordId, now: Time) -> bool {
        let lately = (self.rate.round_trip() * 4).max(WHOLE_MIN);
        self.records.iter().any(|record| record.id == *id && !record.is_settled())
            || self.whole.iter().any(|(whole, at)| whole == id && now.since(*at) < lately)
    }

    /// What may leave now.
    pub(super) fn turn(&mut self, now: Time) -> Turn {
        if self.is_empty() {
            return Turn::Empty;
        }
        // Nobody tells of a few small records; by now they are there, or lost.
        if self.minded == 0 && self.under_way > 0 && now.since(self.heard) > self.rate.patience() {
            self.runs.clear();
            self.under_way = 0;
        }
        if self.rate.next() > now {
            return Turn::At(self.rate.next());
        }
        match self.room() {
            0 => Turn::Window,
            room => Turn::Go(room.min(self.rate.quantum()).min(BATCH_BYTES_MAX)),
        }
    }

    /// The next datagrams that one call can send: at most `datagrams_max`, of `bytes_max` bytes if they are several.
    pub(super) fn plan(&self, datagrams_max: usize, bytes_max: usize) -> Batch {
        let most = (datagrams_max, bytes_max);
        let mut batch = Batch::default();
        for parts in &self.again {
            if !self.add(&mut batch, *parts, most) {
                return batch;
            }
        }
        let fresh = (self.fresh..).zip(self.records.range((self.fresh - self.first) as usize..));
        for (record, waits) in fresh {
            let parts = Parts { record, first: waits.sent, count: waits.parts - waits.sent };
            if !self.add(&mut batch, parts, most) {
                return batch;
            }
        }
        batch
    }

    /// Adds parts of one record as far as they go into the same call; `false` if nothing more does.
    fn add(&self, batch: &mut Batch, parts: Parts, (datagrams_max, bytes_max): (usize, usize)) -> bool {
        let record = &self.records[(parts.record - self.first) as usize];
        let mut run = Parts { count: 0, ..parts };
        let mut goes_on = true;
        for index in parts.first..parts.first + parts.count {
            let part = self.part_bytes.min(record.body.len() - usize::from(index) * self.part_bytes);
            let first = *batch.parts.first().unwrap_or(&part);
            let size = part + self.around_bytes;
            if part > first
                || batch.bytes + size > bytes_max && batch.bytes > 0
                || batch.parts.len() == datagrams_max
            {
                goes_on = false;
                break;
            }
            let number = (self.number + batch.parts.len() as u64) as u32;
            let fragment = Fragment { id: record.id, index, count: record.parts, number };
            batch.headers.push(fragment.emit());
            batch.parts.push(part);
            batch.bytes += size;
            run.count += 1;
            if part < first {
                goes_on = false;
                break;
            }
        }
        if run.count > 0 {
            batch.runs.push(run);
        }
        goes_on
    }

    /// The first `count` datagrams of the batch that was planned last have left.
    pub(super) fn sent(&mut self, batch: &Batch, count: usize, now: Time) {
        let (mut left, mut at, mut bytes) = (count, 0, 0);
        for parts in &batch.runs {
            let parts = Parts { count: parts.count.min(left as u16), ..*parts };
            if parts.count == 0 {
                break;
            }
            let sizes = &batch.parts[at..at + usize::from(parts.count)];
            bytes += self.leave(parts, sizes, now);
            (left, at) = (left - sizes.len(), at + sizes.len());
        }
        self.rate.sent(bytes, now);
        if self.is_empty() {
            self.rate.rest();
        }
        self.forget();
    }

    /// Notes parts of one record as sent; bytes of the datagrams.
    fn leave(&mut self, parts: Parts, sizes: &[usize], now: Time) -> usize {
        let record = &mut self.records[(parts.record - self.first) as usize];
        let is_again = parts.first < record.sent;
        if record.sent == 0 {
            record.heard = now;
        }
        match is_again {
            true => {
                self.counts.again += sizes.len() as u64;
                if let Some(front) = self.again.front_mut() {
                    (front.first, front.count) = (front.first + parts.count, front.count - parts.count);
                    if front.count == 0 {
                        self.again.pop_front();
                    }
                }
            }
            false => {
                record.sent += parts.count;
                self.waiting_bytes -= sizes.iter().sum::<usize>();
                if record.sent == record.parts {
                    self.fresh = parts.record + 1;
                    self.counts.sent += 1;
                }
            }
        }
        let is_minded = record.parts > 1;
        if !is_minded {
            record.settled = 1;
        }
        let around = self.around_bytes;
        let run = Run {
            number: self.number,
            count: sizes.len() as u64,
            each: sizes[0] + around,
            last: sizes[sizes.len() - 1] + around,
            sent: now,
            parts: is_minded.then_some((parts.record, parts.first)),
        };
        if self.under_way == 0 {
            self.heard = now;
        }
        self.number = run.end();
        self.under_way += run.bytes();
        self.minded += if is_minded { run.bytes() } else { 0 };
        match self.runs.back_mut() {
            Some(back) if !is_minded && back.parts.is_none() && back.sent == now && back.last == run.each => {
                back.count += run.count;
                back.last = run.last;
            }
            _ => self.runs.push_back(run),
        }
        run.bytes()
    }

    /// Drops what is done with.
    fn forget(&mut self) {
        while let Some(record) = self.records.pop_front_if(|record| record.is_settled()) {
            debug_assert!(record.sent == record.parts);
            self.first += 1;
        }
    }

    /// The receiver's word. `false`: no receiver of ours says that.
    pub(super) fn hear(&mut self, receipt: &Receipt, now: Time) -> bool {
        let next = extend(self.number, receipt.next);
        let from = extend(next, receipt.from);
        if next > self.number || from > next {
            return false;
        }
        let each = self.runs.back().map_or(self.part_bytes, |run| run.each);
        self.kept_bytes = (receipt.room as usize).saturating_mul(each) / (each + KEPT_BESIDE);
        let is_limited = 2 * self.under_way >= self.rate.window();
        let newest = self.runs.iter().take_while(|run| run.number < next).last();
        let newest = newest.filter(|run| run.end() >= next).map(|run| run.sent);
        let held = Duration::from_micros(receipt.held_us.into());
        let round_trip = newest.map(|sent| now.since(sent).saturating_sub(held));
        let late = newest.unwrap_or(now.before(held).before(self.rate.round_trip()));
        let late = late.before(self.rate.lateness());
        let mut gaps =
            receipt.gaps.iter().map(|(first, end)| (extend(next, *first), extend(next, *end))).peekable();
        let (mut kept, mut acknowledged, mut lost) = (SmallVec::<[Run; 8]>::new(), 0, 0);
        while let Some(mut run) = self.runs.pop_front_if(|run| run.number < next) {
            if run.end() > next {
                let rest = run;
                run = self.cut(rest, next);
            }
            if run.number < from {
                let unknown = if run.end() > from { self.cut(run, from) } else { run };
                lost += self.lose(&unknown);
                continue;
            }
            while gaps.next_if(|(_, end)| *end <= run.number).is_some() {}
            match gaps.peek() {
                Some(&(first, end)) if first <= run.number => {
                    let missing = if run.end() > end { self.cut(run, end) } else { run };
                    match missing.end() + REORDER_NUMBERS <= next && missing.sent <= late {
                        true => lost += self.lose(&missing),
                        false => kept.push(missing),
                    }
                }
                Some(&(first, _)) if first < run.end() => {
                    let came = self.cut(run, first);
                    acknowledged += self.settle(&came, now);
                }
                _ => acknowledged += self.settle(&run, now),
            }
        }
        kept.into_iter().rev().for_each(|run| self.runs.push_front(run));
        if acknowledged > 0 {
            (self.heard, self.starved) = (now, 0);
        }
        let (came, received_bytes, room) = (receipt.came, receipt.received_bytes, self.kept_bytes);
        let sample = Sample { round_trip, came, received_bytes, acknowledged, lost, room, is_limited };
        self.rate.hear(&sample, now);
        self.forget();
        true
    }

    /// Cuts a run before `number`, which is within; the rest goes back to the others.
    fn cut(&mut self, mut run: Run, number: u64) -> Run {
        let front = run.split_front(number);
        self.runs.push_front(run);
        front
    }

    fn drop_run(&mut self, run: &Run) -> usize {
        self.under_way -= run.bytes();
        self.minded -= if run.parts.is_some() { run.bytes() } else { 0 };
        run.bytes()
    }

    /// The record of a run, if something of it is still minded.
    fn record_of(&mut self, run: &Run) -> Option<(u64, u16, &mut Record)> {
        let (record, first) = run.parts?;
        let at = record.checked_sub(self.first)?;
        let held = self.records.get_mut(at as usize).filter(|held| !held.is_settled())?;
        Some((record, first, held))
    }

    /// A run came; its bytes.
    fn settle(&mut self, run: &Run, now: Time) -> usize {
        if let Some((_, _, record)) = self.record_of(run) {
            record.heard = now;
            record.settled += run.count as u16;
            if record.is_settled() {
                record.body = Body::new();
                let id = record.id;
                if self.whole.len() == WHOLE_MAX {
                    self.whole.pop_front();
                }
                self.whole.push_back((id, now));
            }
        }
        self.drop_run(run)
    }

    /// A run was lost; its bytes.
    fn lose(&mut self, run: &Run) -> usize {
        self.counts.lost += run.count;
        if let Some((record, first, _)) = self.record_of(run) {
            self.again.push_back(Parts { record, first, count: run.count as u16 });
        }
        self.drop_run(run)
    }

    /// When word of what is under way is waited for no longer.
    pub(super) fn timeout(&self) -> Option<Time> {
        let is_waiting = self.minded > 0 || self.under_way > 0 && !self.is_empty();
        let doublings_max = if self.under_way <= FEW_BYTES { FEW_DOUBLINGS_MAX } else { DOUBLINGS_MAX };
        is_waiting.then(|| self.heard.after(self.rate.patience() * (1 << self.starved.min(doublings_max))))
    }

    /// What the time brings: what is not heard of was lost, and what was in vain for long is given up.
    pub(super) fn handle_timeout(&mut self, now: Time) {
        if self.timeout().is_none_or(|at| now < at) {
            return;
        }
        let late = now.before(self.rate.patience());
        let mut lost = 0;
        while let Some(run) = self.runs.pop_front_if(|run| run.sent <= late) {
            lost += self.lose(&run);
        }
        self.starved += 1;
        self.heard = now;
        // Of a few datagrams chance alone may lose all, or the word of them.
        self.rate.starve(if lost > FEW_BYTES { self.starved } else { 1 });
        self.give_up(now);
        self.forget();
    }

    fn give_up(&mut self, now: Time) {
        let patience = self.limits.patience;
        for (at, record) in (self.first..).zip(&mut self.records) {
            if record.sent == 0 || record.is_settled() || now.since(record.heard) <= patience {
                continue;
            }
            if record.sent < record.parts {
                self.waiting_bytes -= record.body.len() - usize::from(record.sent) * self.part_bytes;
                self.fresh = at + 1;
                self.counts.sent += 1;
            }
            self.counts.given_up += 1;
            (record.sent, record.settled, record.body) = (record.parts, record.parts, Body::new());
            self.again.retain(|parts| parts.record != at);
        }
    }
}

/// Where a record stands among those of its flow.
fn place(id: &RecordId) -> (u32, u64) {
    let (epoch, sequence) = (&id[4..8], &id[8..ID_BYTES]);
    let mut bytes = ([0; 4], [0; 8]);
    bytes.0.copy_from_slice(epoch);
    bytes.1.copy_from_slice(sequence);
    (u32::from_le_bytes(bytes.0), u64::from_le_bytes(bytes.1))
}
