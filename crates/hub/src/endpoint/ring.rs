//! One direction between two ends: a bounded ring of messages in shared memory, with a few flags. The
//! ends may be in different processes.
//!
//! The memory holds a few words (each has a single writer, except the first), an array of entries, and
//! the *arena*, a circular buffer with the bytes of the messages. The writer copies in, the reader
//! copies out. A compromised worker can change the memory at any moment, so neither end trusts the
//! values of the other: an impossible value marks the ring as broken. A broken ring carries nothing
//! more, and does no other harm.
//!
//! Both ends advance the first word, the number of entries taken, because a writer may discard the
//! oldest entry. A copied entry counts only after the reader has advanced that word. So each entry is
//! taken once, and a copy that was overwritten is discarded. The memory also holds the state that an end
//! needs: if its process is killed, the next process continues from there.

use buffers::Recycler;
use bytes::BytesMut;
use contract::{Attributes, Body, Fill, Message, PartnerError, Time};
use rustix::fs::{FallocateFlags, fallocate};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use sys::memory::Shared;
use wire::BODY_BYTES_MAX;

/// Limit of messages that wait in one ring.
pub(super) const CAPACITY_MAX: usize = 1 << 16;
/// Bytes of the arena: room for two messages of maximum size. Untouched pages use no memory.
const ARENA_BYTES: usize = 2 * BODY_BYTES_MAX;
/// Memory that is kept when the ring is empty.
const RESIDENT_BYTES: u64 = 4 << 20;
/// Shorter messages share a buffer when they are copied out.
const BUFFER_BYTES: usize = 64 << 10;
/// Number and bytes of buffers that are reused once all references to their content are dropped.
const BUFFERS: (usize, usize) = (8, 32 << 20);

const LINE: usize = 64;
/// Number of entries taken.
const HEAD: usize = 0;
/// Number of entries written, and the arena position of the next entry's bytes.
const TAIL: usize = LINE;
const AT: usize = TAIL + 8;
/// Flags of the writer: its flow has ended; it has closed; the partner behind it failed.
const ENDED: usize = 2 * LINE;
const CLOSED: usize = ENDED + 8;
const FAILED: usize = ENDED + 16;
/// The device behind the writer is absent, and its partner waits for it.
const ABSENT: usize = ENDED + 24;
/// The writer waits for room.
const WANTS_ROOM: usize = 3 * LINE;
/// The reader requests a snapshot.
const SNAPSHOT: usize = WANTS_ROOM + 8;
/// The sound from this ring that the partner behind the reader holds: a flag that it is new, the durations in nanoseconds, and the
/// rate in hertz.
const IS_FILL_NEW: usize = WANTS_ROOM + 16;
const FILL: [usize; 4] = [WANTS_ROOM + 24, WANTS_ROOM + 32, WANTS_ROOM + 40, WANTS_ROOM + 48];
/// The text of the writer's failure, or of its device's absence: length and bytes.
const REASON: usize = 4 * LINE;
const REASON_BYTES: usize = 4 * LINE - 8;
const ENTRIES: usize = 8 * LINE;
const ENTRY_BYTES: usize = LINE;

/// A failure of the partner behind an end, with its value of [`FAILED`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// It may return.
    Gone = 1,
    /// It will not.
    Broken = 2,
    /// Its data have a fault.
    Data = 3,
}

/// An item in the ring.
#[derive(Debug)]
pub(super) enum Item {
    Message(Message),
    Neutral,
}

/// The location of a ring in memory that holds several.
#[derive(Debug, Clone)]
pub(super) struct EndpointRing {
    memory: Arc<Shared>,
    base: usize,
    capacity: u64,
}

impl EndpointRing {
    /// Bytes of a ring with this capacity.
    pub(super) fn bytes(capacity: usize) -> usize {
        ENTRIES + capacity * ENTRY_BYTES + ARENA_BYTES
    }

    /// Ring number `index` of memory that holds rings of this capacity.
    pub(super) fn new(memory: &Arc<Shared>, index: usize, capacity: usize) -> io::Result<EndpointRing> {
        let base = index * EndpointRing::bytes(capacity);
        let is_whole =
            (1..=CAPACITY_MAX).contains(&capacity) && memory.bytes() >= base + EndpointRing::bytes(capacity);
        match is_whole && memory.word(base).is_some() {
            true => Ok(EndpointRing { memory: memory.clone(), base, capacity: capacity as u64 }),
            false => Err(io::Error::new(io::ErrorKind::InvalidData, "rings of an impossible size")),
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

    /// The memory ranges of `length` bytes from arena position `at`.
    fn stretches(&self, at: u64, length: usize) -> [(usize, usize); 2] {
        let arena = self.base + ENTRIES + self.capacity as usize * ENTRY_BYTES;
        let from = (at % ARENA_BYTES as u64) as usize;
        let first = length.min(ARENA_BYTES - from);
        [(arena + from, first), (arena, length - first)]
    }

    /// Number of waiting entries.
    pub(super) fn len(&self) -> usize {
        let head = self.load(HEAD);
        self.load(TAIL).saturating_sub(head).min(self.capacity) as usize
    }

    /// Asks the reader for a wakeup when it takes the next entry.
    pub(super) fn request_room(&self) {
        self.store(WANTS_ROOM, 1);
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

    pub(super) fn request_snapshot(&self) {
        self.store(SNAPSHOT, 1);
    }

    pub(super) fn is_snapshot_requested(&self) -> bool {
        self.load(SNAPSHOT) != 0
    }

    pub(super) fn take_snapshot_request(&self) -> bool {
        self.is_snapshot_requested() && self.word(SNAPSHOT).swap(0, Ordering::SeqCst) != 0
    }

    /// The reader's partner holds this much sound.
    pub(super) fn report_fill(&self, fill: Fill) {
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let [held, target, lead] = [fill.held, fill.target, fill.lead].map(nanoseconds);
        let values = [held, target, lead, fill.rate_hz.into()];
        FILL.into_iter().zip(values).for_each(|(word, value)| self.store(word, value));
        self.store(IS_FILL_NEW, 1);
    }

    /// The last report, if it is new.
    pub(super) fn take_fill(&self) -> Option<Fill> {
        if self.word(IS_FILL_NEW).swap(0, Ordering::SeqCst) == 0 {
            return None;
        }
        let [held, target, lead, rate_hz] = FILL.map(|word| self.load(word));
        let [held, target, lead] = [held, target, lead].map(Duration::from_nanos);
        Some(Fill { held, target, lead, rate_hz: u32::try_from(rate_hz).ok()? })
    }

    /// Reports a failure of the partner behind the writer; the first reason is kept.
    pub(super) fn fail(&self, failure: Failure, reason: &str) {
        if self.has_failed() {
            return;
        }
        self.write_reason(reason);
        self.store(FAILED, failure as u64);
    }

    fn write_reason(&self, reason: &str) {
        let reason = &reason.as_bytes()[..reason.floor_char_boundary(REASON_BYTES)];
        self.store(REASON, reason.len() as u64);
        self.memory.copy_in(self.base + REASON + 8, reason);
    }

    fn reason(&self) -> String {
        let length = usize::try_from(self.load(REASON)).unwrap_or(usize::MAX).min(REASON_BYTES);
        let mut bytes = vec![0; length];
        self.memory.copy_out(self.base + REASON + 8, &mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The device behind the writer is absent for this reason; `None` if it is present.
    pub(super) fn report_absence(&self, reason: Option<&str>) {
        if let Some(reason) = reason.filter(|_| !self.has_failed()) {
            self.write_reason(reason);
        }
        self.store(ABSENT, reason.is_some().into());
    }

    /// The reason of the absence that the other end reported.
    pub(super) fn absence(&self) -> Option<String> {
        (self.load(ABSENT) != 0).then(|| self.reason())
    }

    pub(super) fn has_failed(&self) -> bool {
        self.load(FAILED) != 0
    }

    /// The failure that the other end reported.
    pub(super) fn failure(&self) -> Option<PartnerError> {
        let failure = Some(self.load(FAILED)).filter(|failure| *failure != 0)?;
        let reason = self.reason();
        const GONE: u64 = Failure::Gone as u64;
        const DATA: u64 = Failure::Data as u64;
        Some(match failure {
            GONE => PartnerError::Gone(reason),
            DATA => PartnerError::Data(reason),
            _ => PartnerError::os("the partner at the other end", io::Error::other(reason)),
        })
    }
}

/// The content of an entry.
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
        // A trace mark is valid only in its own process.
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

    /// Parses untrusted bytes. Only the length is limited; every other field may have any value.
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

/// The writing end.
#[derive(Debug)]
pub(super) struct Producer {
    pub(super) ring: EndpointRing,
    memory: OwnedFd,
    tail: u64,
    at: u64,
    /// Arena position at which the ring was last empty.
    round: u64,
    /// The last seen number of entries taken.
    head: u64,
    /// The number of entries taken at the last push without room.
    refused: Option<u64>,
    is_broken: bool,
}

impl Producer {
    /// Continues from the state in memory; `memory` is the ring's.
    pub(super) fn new(ring: EndpointRing, memory: OwnedFd) -> Producer {
        let (tail, at, head) = (ring.load(TAIL), ring.load(AT), ring.load(HEAD));
        let is_broken = head > tail || tail - head > ring.capacity;
        let round = at - at % ARENA_BYTES as u64;
        Producer { ring, memory, tail, at, round, head, refused: None, is_broken }
    }

    /// Returns true if the other end wrote an impossible value: nothing more crosses.
    pub(super) fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// Loads the number of entries taken. Returns false if the ring is broken.
    fn refresh(&mut self) -> bool {
        let head = self.ring.load(HEAD);
        self.is_broken |= head < self.head || head > self.tail;
        self.head = head;
        !self.is_broken
    }

    /// Returns true if the next push finds no room.
    pub(super) fn is_full(&self) -> bool {
        let head = self.ring.load(HEAD);
        self.is_broken || self.tail.saturating_sub(head) >= self.ring.capacity || self.refused == Some(head)
    }

    fn has_room(&self, bytes: usize) -> bool {
        match self.tail - self.head {
            0 => true,
            waiting if waiting >= self.ring.capacity => false,
            // A wrong entry harms only the end that changed it.
            _ => (self.at.wrapping_sub(self.ring.entry(self.head).at)) as usize <= ARENA_BYTES - bytes,
        }
    }

    /// Appends an item of at most [`BODY_BYTES_MAX`]. Returns true if the reader may be asleep. Without
    /// room it returns the item, and asks the reader for a wakeup.
    pub(super) fn push(&mut self, item: Item) -> Result<bool, Item> {
        let bytes = match &item {
            Item::Message(message) => message.body.len(),
            Item::Neutral => 0,
        };
        if !self.refresh() {
            return Err(item);
        }
        if !self.has_room(bytes) {
            self.refused = Some(self.head);
            self.ring.request_room();
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
                let [(first, length), (second, _)] = self.ring.stretches(self.at, piece.len());
                self.ring.memory.copy_in(first, &piece[..length]);
                self.ring.memory.copy_in(second, &piece[length..]);
                self.at += piece.len() as u64;
            }
        }
        let entry = Entry { is_message, created, attributes, at, length: bytes };
        self.ring.memory.copy_in(self.ring.entry_at(self.tail), &entry.emit());
        // Bytes without an entry do no harm if the process is killed here.
        self.ring.store(AT, self.at);
        self.tail += 1;
        self.ring.store(TAIL, self.tail);
        Ok(self.ring.load(HEAD) >= self.tail - 1)
    }

    /// The ring is empty: starts again at the same memory, and returns pages beyond the resident limit.
    fn begin_round(&mut self) {
        let arena = ARENA_BYTES as u64;
        let used = (self.at - self.round).min(arena);
        if used > RESIDENT_BYTES {
            let [(start, _), _] = self.ring.stretches(0, 0);
            let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            // If the kernel refuses, the memory stays allocated.
            let _ = fallocate(&self.memory, mode, start as u64 + RESIDENT_BYTES, used - RESIDENT_BYTES);
        }
        self.at = self.at.next_multiple_of(arena);
        self.round = self.at;
    }

    /// Discards the oldest entry. Returns `None` if there is none, else true for a message.
    pub(super) fn discard_oldest(&mut self) -> Option<bool> {
        while self.refresh() && self.head < self.tail {
            let was_message = self.ring.entry(self.head).is_message;
            let is_taken = self.ring.word(HEAD).compare_exchange(
                self.head,
                self.head + 1,
                Ordering::SeqCst,
                Ordering::SeqCst,
            );
            if is_taken.is_ok() {
                self.head += 1;
                return Some(was_message);
            }
        }
        None
    }
}

/// The reading end.
#[derive(Debug)]
pub(super) struct Consumer {
    pub(super) ring: EndpointRing,
    head: u64,
    recycler: Recycler,
    buffer: BytesMut,
    buffer_bytes: usize,
    is_broken: bool,
}

impl Consumer {
    /// Continues from the state in memory.
    pub(super) fn new(ring: EndpointRing) -> Consumer {
        let head = ring.load(HEAD);
        let recycler = Recycler::new(BUFFERS.0, BUFFERS.1);
        Consumer { ring, head, recycler, buffer: BytesMut::new(), buffer_bytes: 0, is_broken: false }
    }

    /// Returns true if the other end wrote an impossible value: nothing more crosses.
    pub(super) fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// Returns true if no entry waits.
    pub(super) fn is_empty(&self) -> bool {
        self.is_broken || self.ring.len() == 0
    }

    /// Takes the oldest entry. The flag is true if the writer waits for room and needs a wakeup.
    pub(super) fn pop(&mut self) -> Option<(Item, bool)> {
        // An honest writer discards each entry at most once, and no more bytes than the arena holds.
        let mut discarded_bytes = 0;
        for _ in 0..=2 * self.ring.capacity {
            let (head, tail) = (self.ring.load(HEAD), self.ring.load(TAIL));
            if self.is_broken || head == tail {
                break;
            }
            if head < self.head || head > tail {
                self.is_broken = true;
                break;
            }
            if tail - head > self.ring.capacity {
                // Not broken if the writer discarded the oldest entry between the two loads.
                self.is_broken = self.ring.load(HEAD) == head;
                continue;
            }
            let entry = self.ring.entry(head);
            let message = entry.is_possible().then(|| self.copy(&entry));
            let is_taken =
                self.ring.word(HEAD).compare_exchange(head, head + 1, Ordering::SeqCst, Ordering::SeqCst);
            if is_taken.is_err() {
                discarded_bytes += entry.length;
                self.is_broken |= discarded_bytes > ARENA_BYTES;
                continue;
            }
            self.head = head + 1;
            let Some(message) = message else {
                self.is_broken = true;
                break;
            };
            let wants_room =
                self.ring.load(WANTS_ROOM) != 0 && self.ring.word(WANTS_ROOM).swap(0, Ordering::SeqCst) != 0;
            return Some((if entry.is_message { Item::Message(message) } else { Item::Neutral }, wants_room));
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
        for (start, length) in self.ring.stretches(entry.at, entry.length) {
            self.ring.memory.append_to(start, length, &mut self.buffer);
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

    /// A compromised worker that discards entries during their read does not block the reader forever.
    #[test]
    fn a_writer_that_discards_entries_during_reads_is_detected() {
        const CAPACITY: usize = 1 << 10;
        let memory = create("ring", EndpointRing::bytes(CAPACITY)).unwrap();
        let memory = Arc::new(Shared::map(&memory, Access::Write).unwrap());
        let ring = EndpointRing::new(&memory, 0, CAPACITY).unwrap();
        let attributes = Attributes::default();
        let entry = Entry { is_message: true, created: Time::ZERO, attributes, at: 0, length: 4 << 20 };
        for number in 0..CAPACITY as u64 {
            memory.copy_in(ring.entry_at(number), &entry.emit());
        }
        ring.store(TAIL, 8);
        let (mut reader, is_over) = (Consumer::new(ring.clone()), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    ring.store(TAIL, ring.load(HEAD) + 8);
                    ring.word(HEAD).fetch_add(1, Ordering::SeqCst);
                }
            });
            while !reader.is_broken() {
                reader.pop();
            }
            is_over.store(true, Ordering::Relaxed);
        });
    }
}
