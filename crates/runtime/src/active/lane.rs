//! One way between two ends, in memory that both see: a bounded ring of messages, and what its ends tell each other
//! beside it. The ends may be in different processes.
//!
//! A lane is a few words, each written by one end but for the first, then as many entries as messages may wait, then the
//! *arena*, where their bytes are, one behind the other and round again. Whoever writes copies in, whoever reads copies
//! out: what lies here may change at any moment, by the hand of a worker that was taken over. So nothing that the other
//! end writes is relied on: what makes no sense breaks the lane, which then carries nothing more, and can do no other harm.
//!
//! Both ends move the first word, the number of entries that were taken: a writer may take back the oldest. What was
//! copied out counts only once that word was moved, so an entry is taken once, and what was overwritten meanwhile is
//! nobody's. What an end has to know to go on stands here as well: if its process is killed, the next takes up where the
//! last stood.

use buffers::Recycler;
use bytes::BytesMut;
use contract::{Attributes, Body, Message, PartnerError, Time};
use rustix::fs::{FallocateFlags, fallocate};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use sys::memory::Shared;
use wire::BODY_BYTES_MAX;

/// Most messages that wait in one lane.
pub(super) const CAPACITY_MAX: usize = 1 << 16;
/// Bytes that wait in one lane: the longest message fits twice. No memory is used that no message touched.
const ARENA_BYTES: usize = 2 * BODY_BYTES_MAX;
/// So much memory stays when all was taken.
const RESIDENT_BYTES: u64 = 4 << 20;
/// Messages shorter than this share a buffer when they are copied out.
const BUFFER_BYTES: usize = 64 << 10;
/// Buffers, and their bytes, that are filled again once nobody has what was in them.
const BUFFERS: (usize, usize) = (8, 32 << 20);

const LINE: usize = 64;
/// Entries that were taken.
const HEAD: usize = 0;
/// Entries that were written, and where the next one's bytes go.
const TAIL: usize = LINE;
const AT: usize = TAIL + 8;
/// Who writes will write nothing more; is no longer there; stands before something that failed.
const ENDED: usize = 2 * LINE;
const CLOSED: usize = ENDED + 8;
const FAILED: usize = ENDED + 16;
/// Who writes waits for room.
const WANTS_ROOM: usize = 3 * LINE;
/// Who reads wants to know where things stand.
const SNAPSHOT: usize = WANTS_ROOM + 8;
/// Why what stands behind who writes has failed: a length, and text.
const REASON: usize = 4 * LINE;
const REASON_BYTES: usize = 4 * LINE - 8;
const ENTRIES: usize = 8 * LINE;
const ENTRY_BYTES: usize = LINE;

/// Values of [`FAILED`]: it may come back, or not.
const GONE: u64 = 1;
const BROKEN: u64 = 2;

/// What crosses, in order.
#[derive(Debug)]
pub(super) enum Item {
    Message(Message),
    Neutral,
}

/// The place of a lane in memory that it shares with others.
#[derive(Debug, Clone)]
pub(super) struct Lane {
    memory: Arc<Shared>,
    base: usize,
    capacity: u64,
}

impl Lane {
    /// Bytes of a lane of this many messages.
    pub(super) fn bytes(capacity: usize) -> usize {
        ENTRIES + capacity * ENTRY_BYTES + ARENA_BYTES
    }

    /// Lane number `index` of memory that holds lanes of this many messages.
    pub(super) fn new(memory: &Arc<Shared>, index: usize, capacity: usize) -> io::Result<Lane> {
        let base = index * Lane::bytes(capacity);
        let is_whole =
            (1..=CAPACITY_MAX).contains(&capacity) && memory.bytes() >= base + Lane::bytes(capacity);
        match is_whole && memory.word(base).is_some() {
            true => Ok(Lane { memory: memory.clone(), base, capacity: capacity as u64 }),
            false => Err(io::Error::new(io::ErrorKind::InvalidData, "lanes of an impossible size")),
        }
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        self.memory.word(self.base + offset).expect("every offset here is inside what `new` found")
    }

    fn load(&self, offset: usize) -> u64 {
        self.word(offset).load(Ordering::SeqCst)
    }

    fn store(&self, offset: usize, value: u64) {
        self.word(offset).store(value, Ordering::SeqCst);
    }

    fn entry_at(&self, number: u64) -> usize {
        self.base + ENTRIES + (number % self.capacity) as usize * ENTRY_BYTES
    }

    fn entry(&self, number: u64) -> Entry {
        let mut bytes = [0; ENTRY_BYTES];
        self.memory.copy_out(self.entry_at(number), &mut bytes);
        Entry::parse(&bytes)
    }

    /// The stretches of memory in which so many bytes lie from `at` on.
    fn stretches(&self, at: u64, length: usize) -> [(usize, usize); 2] {
        let arena = self.base + ENTRIES + self.capacity as usize * ENTRY_BYTES;
        let from = (at % ARENA_BYTES as u64) as usize;
        let first = length.min(ARENA_BYTES - from);
        [(arena + from, first), (arena, length - first)]
    }

    /// Entries that wait.
    pub(super) fn len(&self) -> usize {
        let head = self.load(HEAD);
        self.load(TAIL).saturating_sub(head).min(self.capacity) as usize
    }

    pub(super) fn end(&self) {
        self.store(ENDED, 1);
    }

    pub(super) fn has_ended(&self) -> bool {
        self.load(ENDED) != 0
    }

    pub(super) fn close(&self) {
        self.store(CLOSED, 1);
    }

    pub(super) fn is_closed(&self) -> bool {
        self.load(CLOSED) != 0
    }

    pub(super) fn ask_snapshot(&self) {
        self.store(SNAPSHOT, 1);
    }

    pub(super) fn is_snapshot_asked(&self) -> bool {
        self.load(SNAPSHOT) != 0
    }

    pub(super) fn take_snapshot_asked(&self) -> bool {
        self.is_snapshot_asked() && self.word(SNAPSHOT).swap(0, Ordering::SeqCst) != 0
    }

    /// What stands behind who writes has failed; the first reason is the one that counts.
    pub(super) fn fail(&self, is_gone: bool, what: &str) {
        if self.has_failed() {
            return;
        }
        let what = &what.as_bytes()[..what.floor_char_boundary(REASON_BYTES)];
        self.store(REASON, what.len() as u64);
        self.memory.copy_in(self.base + REASON + 8, what);
        self.store(FAILED, if is_gone { GONE } else { BROKEN });
    }

    pub(super) fn has_failed(&self) -> bool {
        self.load(FAILED) != 0
    }

    /// Why a push the other way is of no use.
    pub(super) fn failure(&self) -> Option<PartnerError> {
        let how = Some(self.load(FAILED)).filter(|how| *how != 0)?;
        let length = usize::try_from(self.load(REASON)).unwrap_or(usize::MAX).min(REASON_BYTES);
        let mut bytes = vec![0; length];
        self.memory.copy_out(self.base + REASON + 8, &mut bytes);
        let what = String::from_utf8_lossy(&bytes).into_owned();
        Some(match how {
            GONE => PartnerError::Gone(what),
            _ => PartnerError::os("what stands behind it", io::Error::other(what)),
        })
    }
}

/// What stands in an entry.
struct Entry {
    is_message: bool,
    created: Time,
    attributes: Attributes,
    at: u64,
    length: usize,
}

/// Bits of an entry's flags.
const MESSAGE: u8 = 1;
const HAS_DEADLINE: u8 = 2;
const HAS_KEY: u8 = 4;
const DROPPABLE: u8 = 8;
const STALE: u8 = 16;

impl Entry {
    fn emit(&self) -> [u8; ENTRY_BYTES] {
        // A trace is its process's own.
        let Attributes { deadline, priority, key, droppable, stale, mark: _ } = self.attributes;
        let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
        let mut bytes = [0; ENTRY_BYTES];
        bytes[0] = flag(self.is_message, MESSAGE)
            | flag(deadline.is_some(), HAS_DEADLINE)
            | flag(key.is_some(), HAS_KEY)
            | flag(droppable, DROPPABLE)
            | flag(stale, STALE);
        bytes[1] = priority;
        let words = [
            self.created.0,
            self.at,
            self.length as u64,
            deadline.map_or(0, |deadline| deadline.0),
            key.unwrap_or(0),
        ];
        for (word, into) in words.into_iter().zip(bytes[8..].chunks_exact_mut(8)) {
            into.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Whatever stands there, of which nothing is certain but that no body is longer than it may be.
    fn parse(bytes: &[u8; ENTRY_BYTES]) -> Entry {
        let mut words = bytes[8..]
            .chunks_exact(8)
            .map(|word| u64::from_le_bytes(word.try_into().expect("chunks of eight bytes")));
        let mut word = || words.next().unwrap_or(0);
        let (created, at, length, deadline, key) = (Time(word()), word(), word(), Time(word()), word());
        let has = |flag: u8| bytes[0] & flag != 0;
        let attributes = Attributes {
            deadline: has(HAS_DEADLINE).then_some(deadline),
            priority: bytes[1],
            key: has(HAS_KEY).then_some(key),
            droppable: has(DROPPABLE),
            stale: has(STALE),
            mark: 0,
        };
        let length = usize::try_from(length).unwrap_or(usize::MAX).min(BODY_BYTES_MAX + 1);
        Entry { is_message: has(MESSAGE), created, attributes, at, length }
    }

    fn is_possible(&self) -> bool {
        self.length <= BODY_BYTES_MAX
    }
}

/// The end that writes.
#[derive(Debug)]
pub(super) struct Producer {
    pub(super) lane: Lane,
    memory: OwnedFd,
    tail: u64,
    at: u64,
    /// Where the first of those that wait, and those before it since nothing did, have their bytes.
    round: u64,
    /// Taken, as far as was seen.
    head: u64,
    /// What was taken when there was no room last, for that message.
    refused: Option<u64>,
    is_broken: bool,
}

impl Producer {
    /// Goes on where the one before stood; `memory` is the lane's.
    pub(super) fn new(lane: Lane, memory: OwnedFd) -> Producer {
        let (tail, at, head) = (lane.load(TAIL), lane.load(AT), lane.load(HEAD));
        let is_broken = head > tail || tail - head > lane.capacity;
        let round = at - at % ARENA_BYTES as u64;
        Producer { lane, memory, tail, at, round, head, refused: None, is_broken }
    }

    /// What the other end wrote makes no sense: nothing more crosses.
    pub(super) fn is_broken(&self) -> bool {
        self.is_broken
    }

    fn look(&mut self) -> bool {
        let head = self.lane.load(HEAD);
        self.is_broken |= head < self.head || head > self.tail;
        self.head = head;
        !self.is_broken
    }

    /// Whether what is pushed next finds no room.
    pub(super) fn is_full(&self) -> bool {
        let head = self.lane.load(HEAD);
        self.is_broken || self.tail.saturating_sub(head) >= self.lane.capacity || self.refused == Some(head)
    }

    fn has_room(&self, bytes: usize) -> bool {
        match self.tail - self.head {
            0 => true,
            waiting if waiting >= self.lane.capacity => false,
            // What is wrong there, the other end has to bear.
            _ => (self.at.wrapping_sub(self.lane.entry(self.head).at)) as usize <= ARENA_BYTES - bytes,
        }
    }

    /// Appends an item, of at most [`BODY_BYTES_MAX`]. Says whether whoever reads may be asleep; where there is no room the item comes back, and who
    /// reads is told to wake this end.
    pub(super) fn push(&mut self, item: Item) -> Result<bool, Item> {
        let bytes = match &item {
            Item::Message(message) => message.body.len(),
            Item::Neutral => 0,
        };
        if !self.look() {
            return Err(item);
        }
        if !self.has_room(bytes) {
            self.refused = Some(self.head);
            self.lane.store(WANTS_ROOM, 1);
            return Err(item);
        }
        self.refused = None;
        if self.head == self.tail {
            self.begin_round();
        }
        let (is_message, created, attributes) = match &item {
            Item::Message(message) => (true, message.created, message.attributes),
            Item::Neutral => (false, Time::ZERO, Attributes::default()),
        };
        let at = self.at;
        if let Item::Message(message) = &item {
            for piece in message.body.chunks() {
                let [(first, length), (second, _)] = self.lane.stretches(self.at, piece.len());
                self.lane.memory.copy_in(first, &piece[..length]);
                self.lane.memory.copy_in(second, &piece[length..]);
                self.at += piece.len() as u64;
            }
        }
        let entry = Entry { is_message, created, attributes, at, length: bytes };
        self.lane.memory.copy_in(self.lane.entry_at(self.tail), &entry.emit());
        // Space that no entry names is lost to nobody, should the process end between.
        self.lane.store(AT, self.at);
        self.tail += 1;
        self.lane.store(TAIL, self.tail);
        Ok(self.lane.load(HEAD) >= self.tail - 1)
    }

    /// All was taken: the memory used last is used again, and what a time of waiting took beyond that goes back.
    fn begin_round(&mut self) {
        let arena = ARENA_BYTES as u64;
        let used = (self.at - self.round).min(arena);
        if used > RESIDENT_BYTES {
            let [(start, _), _] = self.lane.stretches(0, 0);
            let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            // Where the kernel refuses, the memory stays.
            let _ = fallocate(&self.memory, how, start as u64 + RESIDENT_BYTES, used - RESIDENT_BYTES);
        }
        self.at = self.at.next_multiple_of(arena);
        self.round = self.at;
    }

    /// Takes the oldest back that waits, which is then nobody's; `None` if there is none, else whether it was a message.
    pub(super) fn take_back(&mut self) -> Option<bool> {
        while self.look() && self.head < self.tail {
            let was_message = self.lane.entry(self.head).is_message;
            let moved = self.lane.word(HEAD).compare_exchange(
                self.head,
                self.head + 1,
                Ordering::SeqCst,
                Ordering::SeqCst,
            );
            if moved.is_ok() {
                self.head += 1;
                return Some(was_message);
            }
        }
        None
    }
}

/// The end that reads.
#[derive(Debug)]
pub(super) struct Consumer {
    pub(super) lane: Lane,
    head: u64,
    recycler: Recycler,
    buffer: BytesMut,
    buffer_bytes: usize,
    is_broken: bool,
}

impl Consumer {
    /// Goes on where the one before stood.
    pub(super) fn new(lane: Lane) -> Consumer {
        let head = lane.load(HEAD);
        let recycler = Recycler::new(BUFFERS.0, BUFFERS.1);
        Consumer { lane, head, recycler, buffer: BytesMut::new(), buffer_bytes: 0, is_broken: false }
    }

    /// What the other end wrote makes no sense: nothing more crosses.
    pub(super) fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// Whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.is_broken || self.lane.len() == 0
    }

    /// The oldest that waits. With it, whether who writes waits for room and is to be woken.
    pub(super) fn pop(&mut self) -> Option<(Item, bool)> {
        // An honest writer takes back what it had, and no more often; nor what is as long as all that can wait.
        let mut in_vain = 0;
        for _ in 0..=2 * self.lane.capacity {
            let (head, tail) = (self.lane.load(HEAD), self.lane.load(TAIL));
            if self.is_broken || head == tail {
                break;
            }
            if head < self.head || head > tail {
                self.is_broken = true;
                break;
            }
            if tail - head > self.lane.capacity {
                // Unless the oldest was taken back between the two looks.
                self.is_broken = self.lane.load(HEAD) == head;
                continue;
            }
            let entry = self.lane.entry(head);
            let message = entry.is_possible().then(|| self.copy(&entry));
            let moved =
                self.lane.word(HEAD).compare_exchange(head, head + 1, Ordering::SeqCst, Ordering::SeqCst);
            if moved.is_err() {
                in_vain += entry.length;
                self.is_broken |= in_vain > ARENA_BYTES;
                continue;
            }
            self.head = head + 1;
            let Some(message) = message else {
                self.is_broken = true;
                break;
            };
            let wants =
                self.lane.load(WANTS_ROOM) != 0 && self.lane.word(WANTS_ROOM).swap(0, Ordering::SeqCst) != 0;
            return Some((if entry.is_message { Item::Message(message) } else { Item::Neutral }, wants));
        }
        None
    }

    fn copy(&mut self, entry: &Entry) -> Message {
        if self.buffer.capacity() < entry.length {
            let full = std::mem::take(&mut self.buffer);
            if self.buffer_bytes > 0 {
                self.recycler.retire(full, self.buffer_bytes);
            }
            self.buffer_bytes = entry.length.max(BUFFER_BYTES);
            self.buffer = self.recycler.take(self.buffer_bytes);
            self.buffer_bytes = self.buffer.capacity();
        }
        for (start, length) in self.lane.stretches(entry.at, entry.length) {
            self.lane.memory.append_to(start, length, &mut self.buffer);
        }
        let body = Body::from(self.buffer.split().freeze());
        Message { created: entry.created, attributes: entry.attributes, body }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;
    use sys::memory::{Access, create};

    /// A worker that was taken over takes back what is being read, again and again: who reads is not kept by it.
    #[test]
    fn who_takes_away_what_is_being_read_is_found_out() {
        const CAPACITY: usize = 1 << 10;
        let memory = create("lane", Lane::bytes(CAPACITY)).unwrap();
        let memory = Arc::new(Shared::map(&memory, Access::Write).unwrap());
        let lane = Lane::new(&memory, 0, CAPACITY).unwrap();
        let attributes = Attributes::default();
        let entry = Entry { is_message: true, created: Time::ZERO, attributes, at: 0, length: 4 << 20 };
        for number in 0..CAPACITY as u64 {
            memory.copy_in(lane.entry_at(number), &entry.emit());
        }
        lane.store(TAIL, 8);
        let (mut reader, is_over) = (Consumer::new(lane.clone()), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    lane.store(TAIL, lane.load(HEAD) + 8);
                    lane.word(HEAD).fetch_add(1, Ordering::SeqCst);
                }
            });
            while !reader.is_broken() {
                reader.pop();
            }
            is_over.store(true, Ordering::Relaxed);
        });
    }
}
