//! The host's end of a run: sends messages to the first stage and receives from the last.

use super::arrival;
use super::block::{Block, Broken, Consumer, Geometry, Producer, SLOTS_MAX};
use super::entry::{Entry, Line, MESSAGE_PIECES_MAX, PIECES_MAX, Piece};
use super::lender::Lender;
use super::stage_end::push;
use super::wakeup::ShmWakeup;
use buffers::Recycler;
use bytes::{Bytes, BytesMut};
use contract::{Body, Message, Time};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use sys::event::Event;
use sys::memory::{self, Access, Region, Shared, Words};
use wire::BODY_BYTES_MAX;

/// Smallest slot. It reserves address space, not memory.
const SLOT_BYTES_MIN: usize = 8 << 20;
/// Space in a region beyond the largest message.
const SPARE_BYTES: usize = 1 << 20;
/// A returned body of at most this size is copied, even where the host still has the original.
const SMALL_BYTES: usize = 512;
/// A body of at least this size reuses the slot of the previous one, if that was released: memory in use is mapped
/// and in the cache.
const LARGE_BYTES: usize = 64 << 10;
/// Recycled memory for returned bodies: buffers, bytes.
const RECYCLED: (usize, usize) = (32, 64 << 20);

/// Computes the sizes of a run whose host sends at most `slots` messages at once.
pub fn geometry(stages: usize, slots: usize) -> Geometry {
    let held_max = slots.div_ceil(2).max(2);
    // Slots for messages in flight, and for those that each stage keeps.
    let count = (2 * slots + stages * held_max).min(SLOTS_MAX);
    let slot_bytes = (BODY_BYTES_MAX / slots).next_multiple_of(4096).max(SLOT_BYTES_MIN) + SPARE_BYTES;
    // Also room for a message with the most pieces.
    let ring = (2 * count).max(arrival::entries(MESSAGE_PIECES_MAX)).next_power_of_two();
    Geometry { stages, slots: count, slot_bytes, ring, held_max }
}

/// An item that came back from the last stage.
#[derive(Debug, PartialEq, Eq)]
pub enum Returned {
    /// The host's message with this number (from 1) came back unchanged. All earlier ones are complete, too.
    Unchanged(u64),
    /// A message and its `covers`.
    Message(Message, u64),
    /// The first `n` messages are complete.
    Covers(u64),
    /// The flow has ended.
    End,
}

/// A message in flight.
#[derive(Debug)]
struct Sent {
    /// Index in the ring after its last entry.
    end: u64,
    /// Bytes of its body.
    bytes: usize,
    /// Its entry, if it has only one.
    entry: Option<Line>,
}

/// The original bytes that were copied into a slot, with their offsets.
type Originals = SmallVec<[(usize, Bytes); 1]>;

/// Part of a chunk of a body, and the location of its copy in the host's region.
#[derive(Debug)]
struct Location {
    chunk: usize,
    part: Range<usize>,
    slot: usize,
    offset: usize,
}

/// The host's end of a run.
#[derive(Debug)]
pub struct HostEnd {
    block: Arc<Block>,
    region: Region,
    regions: Vec<Shared>,
    output: Producer,
    input: Consumer,
    lender: Lender,
    originals: Vec<Originals>,
    /// The most recent messages that are not complete: all that the first stage has not read, and at most one per
    /// ring entry.
    sent: VecDeque<Sent>,
    /// Messages sent.
    sent_count: u64,
    host_wakeup: Event,
    /// The stages' wake-up descriptors, in order.
    stage_wakeups: Vec<ShmWakeup>,
    /// Most messages in flight.
    pub window: usize,
    /// A message waits for room in the window.
    waits_for_window: bool,
    memory: Recycler,
    sleeps: bool,
    /// Entries were freed since the last check, after a fence, for a stage that waits for room.
    has_consumed: bool,
}

impl HostEnd {
    /// Creates a run. Also returns the descriptors for each stage's process ([`super::StageEnd::open`]).
    pub fn create(geometry: Geometry) -> io::Result<(HostEnd, Vec<Vec<OwnedFd>>)> {
        let block_file = memory::create("outboard block", geometry.block_bytes())?;
        let block = Arc::new(Block::create(Words::map(&block_file)?, geometry)?);
        let host_wakeup = Event::new()?;
        let stage_wakeups = (0..geometry.stages).map(|_| ShmWakeup::new()).collect::<io::Result<Vec<_>>>()?;
        let region = Region::create("outboard host", geometry.region_bytes())?;
        let file = |_| memory::create("outboard stage", geometry.region_bytes());
        let files = (0..geometry.stages).map(file).collect::<io::Result<Vec<_>>>()?;
        let copy = |descriptor: BorrowedFd<'_>| descriptor.try_clone_to_owned();
        let descriptors = (1..=geometry.stages).map(|process| {
            let first = [block_file.as_fd(), host_wakeup.as_fd()].into_iter();
            let regions = [region.descriptor()].into_iter().chain(files[..process].iter().map(AsFd::as_fd));
            first.chain(stage_wakeups.iter().map(AsFd::as_fd)).chain(regions).map(copy).collect()
        });
        let descriptors = descriptors.collect::<io::Result<Vec<_>>>()?;
        let map = |file: &OwnedFd| Shared::map(file, Access::Read);
        let host = HostEnd {
            regions: files.iter().map(map).collect::<io::Result<_>>()?,
            output: Producer::new(block.clone(), 0),
            input: Consumer::new(block.clone(), geometry.stages),
            lender: Lender::new(block.clone(), 0),
            originals: vec![Originals::new(); geometry.slots],
            sent: VecDeque::new(),
            sent_count: 0,
            host_wakeup,
            stage_wakeups,
            window: geometry.held_max,
            waits_for_window: false,
            memory: Recycler::new(RECYCLED.0, RECYCLED.1),
            sleeps: false,
            has_consumed: false,
            region,
            block,
        };
        Ok((host, descriptors))
    }

    fn geometry(&self) -> Geometry {
        self.block.geometry()
    }

    /// Messages in flight: slots in use, without those that a stage keeps.
    fn in_flight(&self) -> usize {
        let Geometry { stages, held_max, .. } = self.geometry();
        let kept = |process| (self.block.held_count(process).load(Ordering::Relaxed) as usize).min(held_max);
        self.lender.lent().saturating_sub((1..=stages).map(kept).sum())
    }

    /// Finds the slots that the stages released, and drops their originals.
    fn refresh(&mut self) {
        let HostEnd { lender, originals, .. } = self;
        lender.refresh(|slot| originals[slot].clear());
    }

    /// Returns true if another message fits into the window and the ring. Otherwise the first stage wakes the host
    /// when it has read one.
    fn has_room(&mut self) -> Result<bool, Broken> {
        // `in_flight` reads a counter of each stage: skip that in the common case.
        let is_full = |host: &HostEnd| host.lender.lent() >= host.window && host.in_flight() >= host.window;
        if is_full(self) {
            self.refresh();
            if is_full(self) {
                return Ok(false);
            }
        }
        self.output.has_room(1)
    }

    /// Sends a body and wakes the first stage. Returns false if there is no room now.
    pub fn push(&mut self, created: Time, body: &Body, has_gap: bool) -> Result<bool, Broken> {
        let has_sent = self.push_without_wakeup(created, body, has_gap)?;
        if has_sent {
            self.wake_next();
        }
        Ok(has_sent)
    }

    /// Like [`HostEnd::push`], but the caller must call [`HostEnd::wake_next`] afterwards.
    pub fn push_without_wakeup(&mut self, created: Time, body: &Body, has_gap: bool) -> Result<bool, Broken> {
        let body_bytes = body.len();
        self.waits_for_window = !self.has_room()?;
        if self.waits_for_window {
            self.block.set_waits_for_room(0, true);
            return Ok(false);
        }
        let mut pieces: SmallVec<[Piece; PIECES_MAX]> = SmallVec::new();
        let slot_bytes = self.geometry().slot_bytes;
        if body_bytes >= LARGE_BYTES {
            self.refresh();
        }
        // The slot in use, and how much of it.
        let mut current: Option<(usize, usize)> = None;
        let mut locations: SmallVec<[Location; 2]> = SmallVec::new();
        for (number, chunk) in body.chunks().enumerate() {
            let mut done = 0;
            while done < chunk.len() {
                let (slot, used) = match current.filter(|(_, used)| *used < slot_bytes) {
                    Some(current) => current,
                    None => match self.free_slot(&locations) {
                        Some(slot) => (slot, 0),
                        None => {
                            self.block.set_waits_for_room(0, true);
                            return Ok(false);
                        }
                    },
                };
                let length = (chunk.len() - done).min(slot_bytes - used);
                let (start, part) = (slot * slot_bytes + used, done..done + length);
                self.region[start..start + length].copy_from_slice(&chunk[part.clone()]);
                push(&mut pieces, piece(slot, used, length));
                locations.push(Location { chunk: number, part, slot, offset: used });
                (done, current) = (done + length, Some((slot, used + length)));
            }
        }
        if !self.output.has_room(arrival::entries(pieces.len()))? {
            return Ok(false);
        }
        self.sent_count += 1;
        let entry = Entry {
            is_message: true,
            has_gap,
            created: created.0,
            covers: self.sent_count,
            ..Entry::default()
        };
        let entry = match pieces.len() <= PIECES_MAX {
            true => Some(self.output.write_published(&Entry { pieces, ..entry })),
            false => {
                arrival::write(&mut self.output, entry, &pieces);
                self.output.publish();
                None
            }
        };
        // The first stage may already process the entry: the host's own bookkeeping comes after publishing.
        self.track(body, &locations);
        if self.sent.len() >= self.geometry().ring {
            // The ring had room, so the first stage has read the oldest one.
            self.sent.pop_front();
        }
        self.sent.push_back(Sent { end: self.output.written(), bytes: body_bytes, entry });
        self.block.set_waits_for_room(0, false);
        Ok(true)
    }

    /// Records the slots of a body that was sent, and the originals of its parts, unless the body is small.
    fn track(&mut self, body: &Body, locations: &[Location]) {
        let is_small = body.len() <= SMALL_BYTES;
        for Location { chunk, part, slot, offset } in locations {
            // Several pieces of a body may be in one slot.
            if !self.lender.is_lent(*slot) {
                self.originals[*slot].clear();
                self.lender.lend(*slot);
            }
            if !is_small {
                self.originals[*slot].push((*offset, body.share(*chunk, part.clone())));
            }
        }
    }

    /// Sends the end of the flow to the stages. Returns false if there is no room now.
    pub fn end(&mut self) -> Result<bool, Broken> {
        if !self.output.has_room(1)? {
            return Ok(false);
        }
        self.output.write_published(&Entry { is_end: true, ..Entry::default() });
        self.wake_next();
        Ok(true)
    }

    /// Wakes the first stage, if it sleeps. Call it as late as possible after publishing: its fence waits until the
    /// stores are visible.
    pub fn wake_next(&mut self) {
        self.wake(1);
        // The fence of that call also orders the freed entries.
        if std::mem::take(&mut self.has_consumed) {
            self.wake_waiting();
        }
    }

    /// Notifies a stage, numbered from 0, that its control descriptor has data.
    pub fn notify_control(&self, stage: usize) {
        self.block.control_count(stage + 1).fetch_add(1, Ordering::SeqCst);
        self.wake(stage + 1);
    }

    /// Wakes a stage's process, if it sleeps.
    #[inline]
    fn wake(&self, process: usize) {
        if self.block.claim_wakeup(process) {
            self.stage_wakeups[process - 1].wake();
        }
    }

    /// Finds a slot that is free and not among `taken`: the first one, which is most likely in the cache.
    fn free_slot(&mut self, taken: &[Location]) -> Option<usize> {
        self.first_free(taken).or_else(|| {
            self.refresh();
            self.first_free(taken)
        })
    }

    fn first_free(&self, taken: &[Location]) -> Option<usize> {
        let is_taken = |slot| taken.iter().any(|location| location.slot == slot);
        (0..self.geometry().slots).find(|slot| !self.lender.is_lent(*slot) && !is_taken(*slot))
    }

    /// Receives the next item from the last stage.
    pub fn pop(&mut self) -> Result<Option<Returned>, Broken> {
        let Some(first) = self.input.peek_raw(0) else { return Ok(None) };
        // An entry that is equal to the one sent needs no validation: it is the host's own.
        let sent_entry = self.sent.front().and_then(|sent| sent.entry.as_ref());
        if sent_entry.is_some_and(|sent_entry| Entry::are_same(sent_entry, &first)) {
            let number = self.sent_count + 1 - self.sent.len() as u64;
            self.sent.pop_front();
            self.advance(1);
            return Ok(Some(Returned::Unchanged(number)));
        }
        let arrival = arrival::read(&self.input, &first)?;
        let sent_count = match (arrival.is_end, arrival.is_message) {
            (true, _) => Returned::End,
            (false, false) => Returned::Covers(arrival.covers),
            (false, true) => {
                let body = self.body(&arrival.pieces, arrival.bytes())?;
                Returned::Message(Message::new(arrival.created, body), arrival.covers)
            }
        };
        let complete = arrival.covers.saturating_sub(self.sent_count - self.sent.len() as u64);
        self.sent.drain(..self.sent.len().min(complete as usize));
        self.advance(arrival.entries);
        Ok(Some(sent_count))
    }

    /// Returns true if messages are outstanding.
    pub fn has_outstanding(&self) -> bool {
        !self.sent.is_empty()
    }

    fn advance(&mut self, entries: usize) {
        self.input.advance(entries);
        self.has_consumed = true;
        self.wake_waiting();
    }

    /// Wakes the stages that wait for room: a slot of any stage, or an entry in the last one's ring, may be free.
    fn wake_waiting(&self) {
        (1..=self.geometry().stages)
            .filter(|process| self.block.waits_for_room(*process))
            .for_each(|process| self.wake(process));
    }

    /// Builds the body of a message. Copies pieces out of a stage's region; takes pieces in the host's region from
    /// the originals.
    ///
    /// `pieces` are copies, so they cannot change between the check and the use. The bytes of a stage's region are read
    /// once, by the copy; nobody checks them before it.
    fn body(&mut self, pieces: &[Piece], bytes: usize) -> Result<Body, Broken> {
        let Geometry { slots, slot_bytes, .. } = self.geometry();
        let mut body = Body::new();
        let mut copied = None;
        for piece in pieces {
            let (slot, offset, length) =
                (usize::from(piece.slot), piece.offset as usize, piece.length as usize);
            let out_of_bounds = || Broken(format!("{piece:?} is out of bounds"));
            let is_inside = slot < slots && offset.checked_add(length).is_some_and(|end| end <= slot_bytes);
            if !is_inside {
                return Err(out_of_bounds());
            }
            match usize::from(piece.region).checked_sub(1) {
                None => self.append_own(slot, offset, length, &mut body),
                Some(index) => {
                    let region = self.regions.get(index).ok_or_else(out_of_bounds)?;
                    let memory = copied.get_or_insert_with(|| match bytes <= SMALL_BYTES {
                        true => BytesMut::with_capacity(bytes),
                        false => self.memory.take(bytes),
                    });
                    if !region.append_to(slot * slot_bytes + offset, length, memory) {
                        return Err(out_of_bounds());
                    }
                    body.push(memory.split().freeze());
                }
            }
        }
        if let Some(memory) = copied.filter(|_| bytes > SMALL_BYTES) {
            self.memory.retire(memory, bytes);
        }
        Ok(body)
    }

    /// Appends bytes of the host's own region: from the original that was copied there, if the host still has it.
    fn append_own(&self, slot: usize, offset: usize, length: usize, body: &mut Body) {
        let end = offset + length;
        let mut at = offset;
        for (start, share) in &self.originals[slot] {
            if (*start..start + share.len()).contains(&at) && at < end {
                let until = end.min(start + share.len());
                body.push(share.slice(at - start..until - start));
                at = until;
            }
        }
        if at < end {
            let start = slot * self.geometry().slot_bytes;
            body.push(Bytes::copy_from_slice(&self.region[start + at..start + end]));
        }
    }

    /// Number of slots of the host's region that the stages hold.
    pub fn slots_held(&mut self) -> usize {
        self.refresh();
        self.lender.lent()
    }

    /// Returns true if all rings are empty and all stages sleep.
    pub fn is_idle(&self) -> bool {
        self.block.is_idle()
    }

    /// Bytes and number of the messages that the first stage has not read.
    pub fn unread(&mut self) -> (usize, usize) {
        // A stage that writes an invalid index runs: any message may be the reason.
        let consumed = self.output.consumed().unwrap_or(u64::MAX);
        let unread = self.sent.iter().filter(|sent| sent.end > consumed);
        unread.fold((0, 0), |(bytes, messages), sent| (bytes + sent.bytes, messages + 1))
    }

    /// Prepares to sleep. Returns true if there is input, or room for a waiting message, so the host must not sleep.
    pub fn go_to_sleep(&mut self) -> bool {
        if std::mem::take(&mut self.has_consumed) {
            fence(Ordering::SeqCst);
            self.wake_waiting();
        }
        if self.input.has_next() {
            return true;
        }
        self.sleeps = true;
        self.block.mark_asleep(0);
        self.input.has_next() || self.waits_for_window && self.has_room().unwrap_or(true)
    }

    /// Call this after waiting.
    pub fn wake_up(&mut self) {
        if std::mem::take(&mut self.sleeps) && self.block.mark_awake(0) {
            self.host_wakeup.clear();
        }
    }

    /// Readable when a stage woke the host.
    pub fn wakeup(&self) -> BorrowedFd<'_> {
        self.host_wakeup.as_fd()
    }
}

fn piece(slot: usize, offset: usize, length: usize) -> Piece {
    Piece { region: 0, slot: slot as u16, offset: offset as u32, length: length as u32 }
}
