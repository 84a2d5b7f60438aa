//! A stage's end of a run: receives from the previous process and sends to the next.

use super::arrival::{self, Arrival};
use super::block::{Block, Broken, Consumer, Geometry, Producer};
use super::entry::{Entry, MESSAGE_PIECES_MAX, PIECES_MAX, Piece};
use super::lender::Lender;
use super::wakeup::ShmWakeup;
use contract::{Body, Message, Port};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use sys::event::Event;
use sys::memory::{Access, Lent, Shared, Words};

/// A body of at most this size is copied at once: faster than holding its slot.
const SMALL_BYTES: usize = 512;

/// The slots that this process holds, of the regions of earlier processes.
#[derive(Debug)]
struct HeldSlots {
    block: Arc<Block>,
    process: usize,
    /// Number of messages in each slot, region by region.
    counts: Mutex<Vec<u32>>,
    /// A slot was released.
    has_released: AtomicBool,
}

impl HeldSlots {
    fn new(block: Arc<Block>, process: usize) -> HeldSlots {
        let counts = Mutex::new(vec![0; process * block.geometry().slots]);
        HeldSlots { block, process, counts, has_released: AtomicBool::new(false) }
    }

    /// Holds a slot until the returned guard is dropped. The caller checks the bounds.
    fn take(self: &Arc<Self>, region: usize, slot: usize) -> SlotGuard {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let count = &mut counts[region * self.block.geometry().slots + slot];
        *count += 1;
        if *count == 1 {
            self.set(region, slot, true);
        }
        SlotGuard { holds: self.clone(), region, slot }
    }

    /// Sets or clears a bit. Only this process writes these words, under the lock of `counts`. Release orders the
    /// bit before later stores.
    fn set(&self, region: usize, slot: usize, is_held: bool) {
        let (pins, held) =
            (self.block.held_count(self.process), self.block.held_slots(self.process, region, slot / 64));
        let (count, bits) = (pins.load(Ordering::Relaxed), held.load(Ordering::Relaxed));
        let bit = 1 << (slot % 64);
        match is_held {
            true => held.store(bits | bit, Ordering::Release),
            false => held.store(bits & !bit, Ordering::Release),
        }
        let count = if is_held { count.wrapping_add(1) } else { count.wrapping_sub(1) };
        pins.store(count, Ordering::Relaxed);
    }

    fn held(&self) -> usize {
        self.block.held_count(self.process).load(Ordering::Relaxed) as usize
    }
}

/// Holds a slot while it lives.
#[derive(Debug)]
struct SlotGuard {
    holds: Arc<HeldSlots>,
    region: usize,
    slot: usize,
}

impl Drop for SlotGuard {
    fn drop(&mut self) {
        let SlotGuard { holds, region, slot } = self;
        let mut counts = holds.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let count = &mut counts[*region * holds.block.geometry().slots + *slot];
        *count -= 1;
        if *count == 0 {
            holds.set(*region, *slot, false);
            holds.has_released.store(true, Ordering::Relaxed);
        }
    }
}

/// An item received: a message, or an entry without one.
#[derive(Debug, Default)]
pub struct Received {
    /// The message.
    pub message: Option<Message>,
    /// Messages were lost before it.
    pub has_gap: bool,
    /// Cumulative acknowledgement: all output of the host's first `covers` messages has been received; 0
    /// acknowledges nothing.
    pub covers: u64,
    /// The flow ends here.
    pub is_end: bool,
}

/// An item to send.
#[derive(Debug)]
enum Pending {
    Message(u16, Message),
    Covers(u64),
    End,
}

/// A stage's end of a run.
#[derive(Debug)]
pub struct StageEnd {
    pub(super) block: Arc<Block>,
    pub(super) process: usize,
    regions: Vec<Arc<Lent>>,
    own: Shared,
    holds: Arc<HeldSlots>,
    pub(super) input: Consumer,
    pub(super) output: Producer,
    lender: Lender,
    /// Wake-up descriptor of the host.
    host_wakeup: Event,
    /// Wake-up descriptors of the stages, in order.
    stage_wakeups: Vec<ShmWakeup>,
    /// Items that wait for room.
    pending: VecDeque<Pending>,
    /// Bodies of the queued entries: they hold their slots until the entries are visible.
    unpublished: Vec<Body>,
    /// `covers` of the last entry may still be set, unless the entry is visible.
    can_cover_last: bool,
    /// Entries were freed since the last check, after a fence, for a process that waits for room.
    has_consumed: bool,
    /// Messages were lost before the next one.
    gap_pending: bool,
    pub(super) sleeps: bool,
    /// The last sleep has consumed the wake-up signal.
    has_consumed_wakeup: bool,
    /// Value of the control counter when the control descriptor was last read.
    control_seen: u64,
}

impl StageEnd {
    /// Opens the end of process `process`. Takes descriptors in this order: the block, the host's wake-up, the
    /// stages' wake-ups, and the regions from the host's to the stage's own.
    pub fn open(
        process: usize,
        mut descriptors: impl Iterator<Item = io::Result<OwnedFd>>,
    ) -> io::Result<StageEnd> {
        let wrong = |problem: &str| io::Error::new(io::ErrorKind::InvalidInput, problem.to_string());
        let mut next =
            || descriptors.next().unwrap_or_else(|| Err(wrong("too few descriptors for a stage of a run")));
        let block = Arc::new(Block::open(Words::map(next()?)?)?);
        let geometry = block.geometry();
        if process == 0 || process > geometry.stages {
            return Err(wrong("this run has no such stage"));
        }
        let host_wakeup = Event::from(next()?);
        let stage_wakeups =
            (0..geometry.stages).map(|_| next().map(ShmWakeup::from)).collect::<io::Result<Vec<_>>>()?;
        let lent = |_| Ok::<_, io::Error>(Arc::new(Lent::map(next()?)?));
        let regions = (0..process).map(lent).collect::<Result<Vec<_>, _>>()?;
        let own = Shared::map(next()?, Access::Write)?;
        if own.bytes() < geometry.region_bytes() {
            return Err(wrong("the region is too small"));
        }
        Ok(StageEnd {
            process,
            regions,
            own,
            holds: Arc::new(HeldSlots::new(block.clone(), process)),
            input: Consumer::new(block.clone(), process - 1),
            output: Producer::new(block.clone(), process),
            lender: Lender::new(block.clone(), process),
            host_wakeup,
            stage_wakeups,
            pending: VecDeque::new(),
            unpublished: Vec::new(),
            can_cover_last: false,
            has_consumed: false,
            gap_pending: false,
            sleeps: false,
            has_consumed_wakeup: false,
            control_seen: 0,
            block,
        })
    }

    fn geometry(&self) -> Geometry {
        self.block.geometry()
    }

    /// Returns true if an item is ready.
    pub fn has_next(&mut self) -> Result<bool, Broken> {
        Ok(self.input.has_next())
    }

    /// Receives the next item.
    pub fn receive(&mut self) -> Result<Option<Received>, Broken> {
        let Some(arrival) = arrival::next(&self.input)? else { return Ok(None) };
        let Arrival { is_message, is_end, has_gap, created, covers, .. } = arrival;
        let message = if is_message { Some(Message::new(created, self.body(&arrival)?)) } else { None };
        self.input.advance(arrival.entries);
        self.has_consumed = true;
        self.wake_waiting(self.process - 1);
        Ok(Some(Received { message, has_gap, covers, is_end }))
    }

    /// Builds the body of a message from its pieces. Copies them if the message is small, or if this process
    /// already holds many slots.
    fn body(&self, arrival: &Arrival) -> Result<Body, Broken> {
        let geometry = self.geometry();
        let copies = arrival.bytes() <= SMALL_BYTES || self.holds.held() >= geometry.held_max;
        let mut body = Body::new();
        for piece in &arrival.pieces {
            let (region, slot) = (usize::from(piece.region), usize::from(piece.slot));
            let (offset, length) = (piece.offset as usize, piece.length as usize);
            let is_inside = slot < geometry.slots
                && offset.checked_add(length).is_some_and(|end| end <= geometry.slot_bytes);
            let lent = self.regions.get(region).filter(|_| is_inside);
            let at = slot * geometry.slot_bytes + offset;
            let bytes = match lent {
                Some(lent) if copies => lent.copy(at, length),
                Some(lent) => lent.share(at, length, self.holds.take(region, slot)),
                None => None,
            };
            body.push(bytes.ok_or_else(|| Broken(format!("{piece:?} is out of bounds")))?);
        }
        Ok(body)
    }

    /// Sends a message. It is queued if there is no room.
    pub fn send(&mut self, port: Port, message: Message) -> Result<(), Broken> {
        self.queue(Pending::Message(port.0, message))
    }

    /// Sends an acknowledgement: all output of the host's first `covers` messages has been sent.
    pub fn cover(&mut self, covers: u64) -> Result<(), Broken> {
        self.queue(Pending::Covers(covers))
    }

    /// Sends the end of the flow.
    pub fn end(&mut self) -> Result<(), Broken> {
        self.queue(Pending::End)
    }

    /// Marks the next message sent: messages were lost before it.
    pub fn mark_gap(&mut self) {
        self.gap_pending = true;
    }

    /// Returns true if an item waits for room.
    pub fn is_blocked(&self) -> bool {
        !self.pending.is_empty()
    }

    fn queue(&mut self, pending: Pending) -> Result<(), Broken> {
        if self.is_blocked() || !self.write(&pending)? {
            self.pending.push_back(pending);
            self.block.set_waits_for_room(self.process, true);
        } else if let Pending::Message(_, message) = pending {
            self.unpublished.push(message.body);
        }
        Ok(())
    }

    /// Sends the waiting items for which there is room, makes all entries visible, and wakes their reader.
    pub fn flush(&mut self) -> Result<(), Broken> {
        while let Some(pending) = self.pending.pop_front() {
            if !self.write(&pending)? {
                self.pending.push_front(pending);
                break;
            }
            if let Pending::Message(_, message) = pending {
                self.unpublished.push(message.body);
            }
        }
        self.block.set_waits_for_room(self.process, self.is_blocked());
        self.publish();
        // Wakes the processes that may wait for the freed entries or slots.
        let has_released = self.holds.has_released.load(Ordering::Relaxed);
        if std::mem::take(&mut self.has_consumed) || has_released {
            self.holds.has_released.store(false, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            self.wake_waiting(self.process - 1);
            if has_released {
                self.wake_waiting(0);
            }
        }
        Ok(())
    }

    pub(super) fn wake_waiting(&self, process: usize) {
        if self.block.waits_for_room(process) {
            self.wake(process);
        }
    }

    fn write(&mut self, pending: &Pending) -> Result<bool, Broken> {
        match pending {
            Pending::Message(port, message) => self.write_message(*port, message),
            Pending::Covers(covers) => self.write_covers(*covers),
            Pending::End if !self.output.has_room(1)? => Ok(false),
            Pending::End => {
                self.output.write(&Entry { is_end: true, ..Entry::default() });
                self.can_cover_last = false;
                Ok(true)
            }
        }
    }

    /// Sets `covers` of the last entry if it is not visible yet; otherwise writes an entry of its own.
    fn write_covers(&mut self, covers: u64) -> Result<bool, Broken> {
        if self.can_cover_last && self.output.cover(covers) {
            return Ok(true);
        }
        if !self.output.has_room(1)? {
            return Ok(false);
        }
        self.output.write(&Entry { covers, ..Entry::default() });
        self.can_cover_last = true;
        Ok(true)
    }

    /// Writes the entries of a message, if there is room for them and for the copied parts.
    fn write_message(&mut self, port: u16, message: &Message) -> Result<bool, Broken> {
        let mut pieces: SmallVec<[Piece; PIECES_MAX]> = SmallVec::new();
        // Own slots for the copied parts, and the bytes used in the last one.
        let (mut slots, mut used) = (SmallVec::<[usize; 4]>::new(), 0);
        let slot_bytes = self.geometry().slot_bytes;
        for chunk in message.body.chunks() {
            if let Some(piece) = self.locate(chunk) {
                push(&mut pieces, piece);
                continue;
            }
            let mut rest = chunk;
            while !rest.is_empty() {
                if slots.is_empty() || used == slot_bytes {
                    let Some(free) = self.free_slot(&slots) else { return Ok(false) };
                    slots.push(free);
                    used = 0;
                }
                let slot = slots[slots.len() - 1];
                let (now, later) = rest.split_at(rest.len().min(slot_bytes - used));
                self.own.copy_in(slot * slot_bytes + used, now);
                push(
                    &mut pieces,
                    Piece {
                        region: self.process as u16,
                        slot: slot as u16,
                        offset: used as u32,
                        length: now.len() as u32,
                    },
                );
                (used, rest) = (used + now.len(), later);
            }
        }
        if pieces.len() > MESSAGE_PIECES_MAX {
            return Err(Broken(format!("a message of {} pieces", pieces.len())));
        }
        if !self.output.has_room(arrival::entries(pieces.len()))? {
            return Ok(false);
        }
        slots.iter().for_each(|slot| self.lender.lend(*slot));
        let has_gap = std::mem::take(&mut self.gap_pending);
        let entry = Entry { is_message: true, has_gap, port, created: message.created.0, ..Entry::default() };
        arrival::write(&mut self.output, entry, &pieces);
        self.can_cover_last = true;
        Ok(true)
    }

    /// Finds the location of bytes that are in the region of an earlier process.
    fn locate(&self, chunk: &[u8]) -> Option<Piece> {
        let slot_bytes = self.geometry().slot_bytes;
        self.regions.iter().enumerate().find_map(|(region, lent)| {
            let at = lent.offset_of(chunk)?;
            let (slot, offset) = (at / slot_bytes, at % slot_bytes);
            Some(Piece {
                region: region as u16,
                slot: slot as u16,
                offset: offset as u32,
                length: chunk.len() as u32,
            })
        })
    }

    /// Takes a free slot of the own region: the first one, which is most likely in the cache.
    fn free_slot(&mut self, excluded: &[usize]) -> Option<usize> {
        let (slots, held_max) = (self.geometry().slots, self.geometry().held_max);
        let free =
            |lender: &Lender| (0..slots).find(|slot| !lender.is_lent(*slot) && !excluded.contains(slot));
        free(&self.lender).filter(|slot| *slot < held_max).or_else(|| {
            // Slots in queued entries count as held by others only once the entries are visible.
            self.publish();
            self.lender.refresh(|_| {});
            free(&self.lender)
        })
    }

    fn publish(&mut self) {
        if self.output.publish() {
            // Release the slots before the next process runs, because it may look for them at once.
            self.unpublished.clear();
            self.wake_next();
        }
    }

    pub(super) fn wake_next(&self) {
        self.wake((self.process + 1) % (self.geometry().stages + 1));
    }

    fn wake(&self, process: usize) {
        if self.block.claim_wakeup(process) {
            match process {
                0 => self.host_wakeup.signal(),
                stage => self.stage_wakeups[stage - 1].wake(),
            }
        }
    }

    /// Prepares to [`StageEnd::sleep`]. Returns true if there is input or control data, so the process must not
    /// sleep.
    pub fn go_to_sleep(&mut self) -> Result<bool, Broken> {
        if self.input.has_next() {
            return Ok(true);
        }
        self.block.mark_asleep(self.process);
        self.sleeps = true;
        Ok(self.has_next()? || self.has_control())
    }

    /// Returns true if the control descriptor has data that was not read yet.
    pub(super) fn has_control(&self) -> bool {
        self.block.control_count(self.process).load(Ordering::SeqCst) != self.control_seen
    }

    /// Sleeps until a wake-up, or until the timeout.
    pub fn sleep(&mut self, timeout: Option<Duration>) {
        if self.sleeps && timeout != Some(Duration::ZERO) {
            self.has_consumed_wakeup |= self.stage_wakeups[self.process - 1].wait(timeout);
        }
    }

    /// Like [`StageEnd::has_control`], and marks the data as read.
    pub fn take_control(&mut self) -> bool {
        let count = self.block.control_count(self.process).load(Ordering::SeqCst);
        std::mem::replace(&mut self.control_seen, count) != count
    }

    /// Prepares to sleep while an item waits for room. Returns true if everything was sent after all.
    pub fn wait_for_room(&mut self) -> Result<bool, Broken> {
        self.block.mark_asleep(self.process);
        self.sleeps = true;
        self.flush()?;
        Ok(!self.is_blocked())
    }

    /// Call this after [`StageEnd::sleep`].
    pub fn wake_up(&mut self) {
        let has_consumed_wakeup = std::mem::take(&mut self.has_consumed_wakeup);
        if std::mem::take(&mut self.sleeps) && self.block.mark_awake(self.process) && !has_consumed_wakeup {
            // The process that cleared the sleep flag signals the descriptor, perhaps later. Consume that signal
            // now, or it would end the next sleep at once.
            while !self.stage_wakeups[self.process - 1].wait(None) {}
        }
    }
}

/// Adds a piece. Merges it with the last one if it follows directly.
pub(super) fn push(pieces: &mut SmallVec<[Piece; PIECES_MAX]>, piece: Piece) {
    match pieces.last_mut() {
        Some(last)
            if (last.region, last.slot) == (piece.region, piece.slot)
                && last.offset + last.length == piece.offset =>
        {
            last.length += piece.length;
        }
        _ if piece.length > 0 => pieces.push(piece),
        _ => {}
    }
}
