//! A stage's end of a run: messages in from the process before, out to the one behind.

use super::arrival::{self, Arrival};
use super::bell::Bell;
use super::block::{Block, Broken, Consumer, Geometry, Producer};
use super::entry::{Entry, MESSAGE_PIECES_MAX, PIECES_MAX, Piece};
use super::lender::Lender;
use super::spin::Spin;
use contract::{Body, Message, Port, Time};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use sys::event::Event;
use sys::memory::{Access, Lent, Shared, Words};

/// A body of at most so many bytes is copied out at once: that is quicker than to keep its slot.
const SMALL_BYTES: usize = 512;

/// What a process holds of the regions before its own, slot by slot.
#[derive(Debug)]
struct Holds {
    block: Arc<Block>,
    process: usize,
    /// Messages that lie in a slot, region by region.
    counts: Mutex<Vec<u32>>,
    /// Something was given back.
    has_released: AtomicBool,
}

impl Holds {
    fn new(block: Arc<Block>, process: usize) -> Holds {
        let counts = Mutex::new(vec![0; process * block.geometry().slots]);
        Holds { block, process, counts, has_released: AtomicBool::new(false) }
    }

    /// Bounds are the caller's.
    fn take(self: &Arc<Self>, region: usize, slot: usize) -> Hold {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let count = &mut counts[region * self.block.geometry().slots + slot];
        *count += 1;
        if *count == 1 {
            self.set(region, slot, true);
        }
        Hold { holds: self.clone(), region, slot }
    }

    /// The words are this process's alone to write, by whoever has the counts: seen before what is stored after.
    fn set(&self, region: usize, slot: usize, is_held: bool) {
        let (pins, held) = (self.block.pins(self.process), self.block.holds(self.process, region, slot / 64));
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
        self.block.pins(self.process).load(Ordering::Relaxed) as usize
    }
}

/// A slot that this process holds as long as this lives.
#[derive(Debug)]
struct Hold {
    holds: Arc<Holds>,
    region: usize,
    slot: usize,
}

impl Drop for Hold {
    fn drop(&mut self) {
        let Hold { holds, region, slot } = self;
        let mut counts = holds.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let count = &mut counts[*region * holds.block.geometry().slots + *slot];
        *count -= 1;
        if *count == 0 {
            holds.set(*region, *slot, false);
            holds.has_released.store(true, Ordering::Relaxed);
        }
    }
}

/// What came in: a message, or a word between messages.
#[derive(Debug, Default)]
pub struct Came {
    /// The message.
    pub message: Option<Message>,
    /// Something was lost before it.
    pub has_gap: bool,
    /// With this, the host's first so many messages are all here; 0 says nothing.
    pub covers: u64,
    /// The flow ends here.
    pub is_end: bool,
}

/// What is to leave.
#[derive(Debug)]
enum Waiting {
    Message(u16, Message),
    Covers(u64),
    End,
}

/// A stage's end of a run.
#[derive(Debug)]
pub struct Seat {
    pub(super) block: Arc<Block>,
    pub(super) process: usize,
    regions: Vec<Arc<Lent>>,
    own: Shared,
    holds: Arc<Holds>,
    pub(super) input: Consumer,
    pub(super) output: Producer,
    lender: Lender,
    /// What wakes the host.
    bell: Event,
    /// What wakes the stages, in their order.
    bells: Vec<Bell>,
    /// What waits for room.
    waiting: VecDeque<Waiting>,
    /// What lies in entries that nobody sees yet.
    unpublished: Vec<Body>,
    /// The last entry may be told what it covers, as long as nobody has seen it.
    covers_last: bool,
    /// Something was taken since it was looked, behind a fence, who waits for that.
    has_taken: bool,
    /// Something was lost before the next message.
    gap_waits: bool,
    spin: Spin,
    pub(super) sleeps: bool,
    /// Its bell was rung since, and it heard.
    has_heard: bool,
    /// How often it was told something, as far as it heard.
    heard: u64,
}

impl Seat {
    /// The end of process `process`, with as many descriptors as it takes: the block, the host's bell, the stages' bells in
    /// their order, and the regions from the host's to its own.
    pub fn take(
        process: usize,
        mut descriptors: impl Iterator<Item = io::Result<OwnedFd>>,
    ) -> io::Result<Seat> {
        let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidInput, what.to_string());
        let mut next =
            || descriptors.next().unwrap_or_else(|| Err(wrong("too few descriptors for a place in a run")));
        let block = Arc::new(Block::join(Words::map(next()?)?)?);
        let geometry = block.geometry();
        if process == 0 || process > geometry.stages {
            return Err(wrong("no such place in this run"));
        }
        let bell = Event::from(next()?);
        let bells = (0..geometry.stages).map(|_| next().map(Bell::from)).collect::<io::Result<Vec<_>>>()?;
        let lent = |_| Ok::<_, io::Error>(Arc::new(Lent::map(next()?)?));
        let regions = (0..process).map(lent).collect::<Result<Vec<_>, _>>()?;
        let own = Shared::map(next()?, Access::Write)?;
        if own.bytes() < geometry.region_bytes() {
            return Err(wrong("a region that is too small"));
        }
        Ok(Seat {
            process,
            regions,
            own,
            holds: Arc::new(Holds::new(block.clone(), process)),
            input: Consumer::new(block.clone(), process - 1),
            output: Producer::new(block.clone(), process),
            lender: Lender::new(block.clone(), process),
            bell,
            bells,
            waiting: VecDeque::new(),
            unpublished: Vec::new(),
            covers_last: false,
            has_taken: false,
            gap_waits: false,
            spin: Spin::new(geometry.spins[1]),
            sleeps: false,
            has_heard: false,
            heard: 0,
            block,
        })
    }

    fn geometry(&self) -> Geometry {
        self.block.geometry()
    }

    /// Whether something waits to be taken.
    pub fn has_next(&mut self) -> Result<bool, Broken> {
        Ok(self.input.has_next())
    }

    /// Takes what came next.
    pub fn receive(&mut self) -> Result<Option<Came>, Broken> {
        let Some(arrival) = arrival::next(&self.input)? else { return Ok(None) };
        let Arrival { is_message, is_end, has_gap, created, covers, .. } = arrival;
        let message = match is_message {
            true => Some(Message::new(created, self.body(&arrival)?)),
            false => None,
        };
        self.input.advance(arrival.entries);
        self.has_taken = true;
        self.wake_waiting(self.process - 1);
        Ok(Some(Came { message, has_gap, covers, is_end }))
    }

    /// The message's bytes where they lie; copied if they are few, or if this process keeps much already.
    fn body(&self, arrival: &Arrival) -> Result<Body, Broken> {
        let geometry = self.geometry();
        let copies = arrival.bytes() <= SMALL_BYTES || self.holds.held() >= geometry.keeps;
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
            body.push(bytes.ok_or_else(|| Broken(format!("{piece:?} is nowhere")))?);
        }
        Ok(body)
    }

    /// Sends a message on; it may wait for room.
    pub fn send(&mut self, port: Port, message: Message) -> Result<(), Broken> {
        self.put(Waiting::Message(port.0, message))
    }

    /// Everything that came of the host's first `covers` messages has been sent.
    pub fn cover(&mut self, covers: u64) -> Result<(), Broken> {
        self.put(Waiting::Covers(covers))
    }

    /// Everything has been sent, and the flow ends.
    pub fn end(&mut self) -> Result<(), Broken> {
        self.put(Waiting::End)
    }

    /// Something was lost before what is sent next.
    pub fn tell_gap(&mut self) {
        self.gap_waits = true;
    }

    /// Whether something that was sent still waits for room.
    pub fn is_blocked(&self) -> bool {
        !self.waiting.is_empty()
    }

    fn put(&mut self, waiting: Waiting) -> Result<(), Broken> {
        if self.is_blocked() || !self.write(&waiting)? {
            self.waiting.push_back(waiting);
            self.block.want_room(self.process, true);
        } else if let Waiting::Message(_, message) = waiting {
            self.unpublished.push(message.body);
        }
        Ok(())
    }

    /// Writes what waited for room, shows all that was written, and wakes whom it is for.
    pub fn flush(&mut self) -> Result<(), Broken> {
        while let Some(waiting) = self.waiting.pop_front() {
            if !self.write(&waiting)? {
                self.waiting.push_front(waiting);
                break;
            }
            if let Waiting::Message(_, message) = waiting {
                self.unpublished.push(message.body);
            }
        }
        self.block.want_room(self.process, self.is_blocked());
        self.publish();
        // Who waits for room, or for slots, may have them now.
        let has_released = self.holds.has_released.load(Ordering::Relaxed);
        if std::mem::take(&mut self.has_taken) || has_released {
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
        if self.block.wants_room(process) {
            self.wake(process);
        }
    }

    fn write(&mut self, waiting: &Waiting) -> Result<bool, Broken> {
        match waiting {
            Waiting::Message(port, message) => self.write_message(*port, message),
            Waiting::Covers(covers) => self.write_covers(*covers),
            Waiting::End if !self.output.has_room(1)? => Ok(false),
            Waiting::End => {
                self.output.write(&Entry { is_end: true, ..Entry::default() });
                self.covers_last = false;
                Ok(true)
            }
        }
    }

    /// Says it with the last entry if nobody has seen that, or with one of its own.
    fn write_covers(&mut self, covers: u64) -> Result<bool, Broken> {
        if self.covers_last && self.output.cover(covers) {
            return Ok(true);
        }
        if !self.output.has_room(1)? {
            return Ok(false);
        }
        self.output.write(&Entry { covers, ..Entry::default() });
        self.covers_last = true;
        Ok(true)
    }

    /// Writes a message's entries, if there is room for them and for what is to be copied.
    fn write_message(&mut self, port: u16, message: &Message) -> Result<bool, Broken> {
        let mut pieces: SmallVec<[Piece; PIECES_MAX]> = SmallVec::new();
        // Slots of its own for what is copied, and how much of the last is used.
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
        slots.iter().for_each(|slot| self.lender.send(*slot));
        let has_gap = std::mem::take(&mut self.gap_waits);
        let entry = Entry { is_message: true, has_gap, port, created: message.created.0, ..Entry::default() };
        arrival::write(&mut self.output, entry, &pieces);
        self.covers_last = true;
        Ok(true)
    }

    /// Where bytes lie that came from a region before.
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

    /// A slot of its own that nobody else holds: the first, which is the warmest.
    fn free_slot(&mut self, besides: &[usize]) -> Option<usize> {
        let (slots, keeps) = (self.geometry().slots, self.geometry().keeps);
        let free = |lender: &Lender| (0..slots).find(|slot| !lender.is_out(*slot) && !besides.contains(slot));
        free(&self.lender).filter(|slot| *slot < keeps).or_else(|| {
            // What others hold is known of what they can see.
            self.publish();
            self.lender.refresh(|_| {});
            free(&self.lender)
        })
    }

    fn publish(&mut self) {
        if self.output.publish() {
            // Given back before the next one runs, who may look at once what has come back.
            self.unpublished.clear();
            self.wake_next();
        }
    }

    pub(super) fn wake_next(&self) {
        self.wake((self.process + 1) % (self.geometry().stages + 1));
    }

    fn wake(&self, process: usize) {
        if self.block.is_to_wake(process) {
            match process {
                0 => self.bell.signal(),
                stage => self.bells[stage - 1].ring(),
            }
        }
    }

    /// Before [`Seat::sleep`]: whether there is something after all. Looks a moment longer where that has
    /// paid.
    pub fn go_to_sleep(&mut self, now: fn() -> Time) -> Result<bool, Broken> {
        let looks_shortly = self.looks_shortly();
        let Seat { input, spin, block, .. } = self;
        if looks_shortly || spin.look(now, |_| block.is_calm(), || input.has_next()) {
            return Ok(true);
        }
        self.block.go_to_sleep(self.process);
        self.sleeps = true;
        Ok(self.has_next()? || self.is_told())
    }

    /// Looks a moment without a clock, where that has paid; whether there is something.
    pub(super) fn looks_shortly(&self) -> bool {
        self.spin.look_shortly(|| self.input.has_next())
    }

    /// Whether there is something new on the control descriptor, which it has not heard of.
    pub(super) fn is_told(&self) -> bool {
        self.block.told(self.process).load(Ordering::SeqCst) != self.heard
    }

    /// Until it is woken, for so long at most.
    pub fn sleep(&mut self, timeout: Option<Duration>) {
        if self.sleeps && timeout != Some(Duration::ZERO) {
            self.has_heard |= self.bells[self.process - 1].wait(timeout);
        }
    }

    /// Whether there is something new on the control descriptor.
    pub fn was_told(&mut self) -> bool {
        let told = self.block.told(self.process).load(Ordering::SeqCst);
        std::mem::replace(&mut self.heard, told) != told
    }

    /// Before waiting for [`Seat::bell`] with something that waits for room: whether there is some after all.
    pub fn wait_for_room(&mut self) -> Result<bool, Broken> {
        self.block.go_to_sleep(self.process);
        self.sleeps = true;
        self.flush()?;
        Ok(!self.is_blocked())
    }

    /// After it.
    pub fn wake_up(&mut self, now: fn() -> Time) {
        let has_heard = std::mem::take(&mut self.has_heard);
        if std::mem::take(&mut self.sleeps) && self.block.wake_up(self.process) && !has_heard {
            // Who found it asleep rings, and may not have yet: the next sleep is not to end by that.
            while !self.bells[self.process - 1].wait(None) {}
        }
        self.spin.woke(now);
    }
}

/// Adds a piece; what lies right behind the last is one with it.
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
