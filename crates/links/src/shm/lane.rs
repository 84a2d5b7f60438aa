//! The host's end of a run: messages out to the first stage, in from the last.

use super::arrival;
use super::bell::Bell;
use super::block::{Block, Broken, Consumer, Geometry, Producer, SLOTS_MAX};
use super::entry::{Entry, Line, MESSAGE_PIECES_MAX, PIECES_MAX, Piece};
use super::lender::Lender;
use super::seat::push;
use super::spin::{Crowd, Spin};
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
use sys::memory::{self, Access, Lease, Shared, Slots, Words};
use wire::BODY_BYTES_MAX;

/// The smallest slot: address space, not memory.
const SLOT_BYTES_MIN: usize = 8 << 20;
/// Room of a region beyond the largest message.
const SPARE_BYTES: usize = 1 << 20;
/// What at most this long came back is copied, where the host still has what it put there.
const SMALL_BYTES: usize = 512;
/// What is longer goes where the last one was, if that came back: memory that is used again is there, and warm.
const LARGE_BYTES: usize = 64 << 10;
/// Memory for what came back, used again and again.
const RECYCLED: (usize, usize) = (32, 64 << 20);

/// How large the parts of a run are whose host hands over at most `slots` messages at once.
pub(crate) fn geometry(stages: usize, slots: usize, spins: [bool; 2]) -> Geometry {
    let keeps = slots.div_ceil(2).max(2);
    // For what is on its way, for what each stage keeps, and for what is made in place.
    let count = (2 * slots + stages * keeps).min(SLOTS_MAX);
    let slot_bytes = (BODY_BYTES_MAX / slots).next_multiple_of(4096).max(SLOT_BYTES_MIN) + SPARE_BYTES;
    // For whatever a message may be in pieces, too.
    let ring = (2 * count).max(arrival::entries(MESSAGE_PIECES_MAX)).next_power_of_two();
    Geometry { stages, slots: count, slot_bytes, ring, keeps, spins }
}

/// What came back.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Given {
    /// The host's message of this number, from 1, as it went; all before it are complete, too.
    Back(u64),
    /// A message; it completes the first so many of the host's, if not 0.
    Message(Message, u64),
    /// The first so many messages are complete.
    Covers(u64),
    /// The flow has ended.
    End,
}

/// A message that was handed over.
#[derive(Debug)]
struct Sent {
    /// The ring's index behind it.
    behind: u64,
    /// Bytes of its body.
    bytes: usize,
    /// Its entry, if that is one.
    entry: Option<Line>,
}

/// What was copied into a slot of the host's region.
type Origin = SmallVec<[(usize, Bytes); 1]>;

/// Where part of a piece of a body is in the host's region: put there, or made there.
#[derive(Debug)]
struct Place {
    chunk: usize,
    part: Range<usize>,
    slot: usize,
    offset: usize,
    is_copy: bool,
}

/// The host's end of a run.
#[derive(Debug)]
pub(crate) struct Lane {
    block: Arc<Block>,
    slots: Arc<Slots>,
    regions: Vec<Shared>,
    output: Producer,
    input: Consumer,
    lender: Lender,
    origins: Vec<Origin>,
    /// The last messages that were handed over and are not complete: all that the first stage has not taken, and as
    /// many as the ring has entries.
    sent: VecDeque<Sent>,
    /// Messages handed over.
    given: u64,
    bell: Event,
    /// The stages', in their order.
    bells: Vec<Bell>,
    /// Most messages that are on their way.
    pub(crate) window: usize,
    /// A message would go if the window had room.
    waits_for_window: bool,
    memory: Recycler,
    spin: Spin,
    crowd: Crowd,
    sleeps: bool,
    /// Something was taken since it was looked, behind a fence, who waits for that.
    has_taken: bool,
    /// So often has something come at once since the kernel was asked how many want a processor.
    unasked: u8,
}

/// The host's region of a run, which lives longer than its processes.
pub(crate) fn slots(geometry: Geometry) -> io::Result<Arc<Slots>> {
    Ok(Arc::new(Slots::create("outboard host", geometry.slots, geometry.slot_bytes)?))
}

impl Lane {
    /// A fresh run with the host's region; with it, what each stage's process is to have ([`super::Seat::take`]).
    pub(crate) fn begin(geometry: Geometry, slots: Arc<Slots>) -> io::Result<(Lane, Vec<Vec<OwnedFd>>)> {
        let block_file = memory::create("outboard block", geometry.block_bytes())?;
        let block = Arc::new(Block::begin(Words::map(&block_file)?, geometry)?);
        let bell = Event::new()?;
        let bells = (0..geometry.stages).map(|_| Bell::new()).collect::<io::Result<Vec<_>>>()?;
        let region = |_| memory::create("outboard stage", geometry.region_bytes());
        let files = (0..geometry.stages).map(region).collect::<io::Result<Vec<_>>>()?;
        let copy = |descriptor: BorrowedFd<'_>| descriptor.try_clone_to_owned();
        let descriptors = (1..=geometry.stages).map(|process| {
            let first = [block_file.as_fd(), bell.as_fd()].into_iter();
            let regions = [slots.descriptor()].into_iter().chain(files[..process].iter().map(AsFd::as_fd));
            first.chain(bells.iter().map(AsFd::as_fd)).chain(regions).map(copy).collect()
        });
        let descriptors = descriptors.collect::<io::Result<Vec<_>>>()?;
        let map = |file: &OwnedFd| Shared::map(file, Access::Read);
        let lane = Lane {
            regions: files.iter().map(map).collect::<io::Result<_>>()?,
            output: Producer::new(block.clone(), 0),
            input: Consumer::new(block.clone(), geometry.stages),
            lender: Lender::new(block.clone(), 0),
            origins: vec![Origin::new(); geometry.slots],
            sent: VecDeque::new(),
            given: 0,
            bell,
            bells,
            window: geometry.keeps,
            waits_for_window: false,
            memory: Recycler::new(RECYCLED.0, RECYCLED.1),
            spin: Spin::new(geometry.spins[0]),
            crowd: Crowd::new(),
            sleeps: false,
            has_taken: false,
            unasked: 0,
            slots,
            block,
        };
        Ok((lane, descriptors))
    }

    fn geometry(&self) -> Geometry {
        self.block.geometry()
    }

    /// Messages on their way: in slots that no stage keeps for longer.
    fn on_their_way(&self) -> usize {
        let Geometry { stages, keeps, .. } = self.geometry();
        let kept = |process| (self.block.pins(process).load(Ordering::Relaxed) as usize).min(keeps);
        self.lender.out().saturating_sub((1..=stages).map(kept).sum())
    }

    /// What came back from the stages needs no original any more.
    fn refresh(&mut self) {
        let Lane { lender, origins, .. } = self;
        lender.refresh(|slot| origins[slot].clear());
    }

    /// Whether another message may go; if not, the first stage says when it took one.
    fn has_room(&mut self) -> Result<bool, Broken> {
        // What the stages keep is theirs to count: a look that can be spared.
        let is_full = |lane: &Lane| lane.lender.out() >= lane.window && lane.on_their_way() >= lane.window;
        if is_full(self) {
            self.refresh();
            if is_full(self) {
                return Ok(false);
            }
        }
        self.output.has_room(1)
    }

    /// Hands over a body, created at that time, and wakes whom it is for; `false` if there is no room now.
    pub(crate) fn push(&mut self, created: Time, body: &Body, has_gap: bool) -> Result<bool, Broken> {
        let is_over = self.put(created, body, has_gap)?;
        if is_over {
            self.wake_next();
        }
        Ok(is_over)
    }

    /// The same, but that [`Lane::wake_next`] is still to be called.
    pub(crate) fn put(&mut self, created: Time, body: &Body, has_gap: bool) -> Result<bool, Broken> {
        let body_bytes = body.len();
        self.waits_for_window = !self.has_room()?;
        if self.waits_for_window {
            self.block.want_room(0, true);
            return Ok(false);
        }
        let mut pieces: SmallVec<[Piece; PIECES_MAX]> = SmallVec::new();
        let (mut leases, mut used) = (SmallVec::<[Lease; 2]>::new(), 0);
        let slot_bytes = self.geometry().slot_bytes;
        // Where its bytes are, in order.
        let mut places: SmallVec<[Place; 2]> = SmallVec::new();
        for (number, chunk) in body.chunks().enumerate() {
            if let Some((slot, offset)) = self.slots.locate(chunk) {
                push(&mut pieces, piece(slot, offset, chunk.len()));
                places.push(Place { chunk: number, part: 0..chunk.len(), slot, offset, is_copy: false });
                continue;
            }
            let mut done = 0;
            while done < chunk.len() {
                if leases.is_empty() || used == slot_bytes {
                    if body_bytes >= LARGE_BYTES && leases.is_empty() {
                        self.refresh();
                    }
                    let Some(lease) = self.free_slot() else {
                        self.block.want_room(0, true);
                        return Ok(false);
                    };
                    (used, _) = (0, leases.push(lease));
                }
                let lease = leases.last_mut().expect("one was pushed if there was none");
                let length = (chunk.len() - done).min(slot_bytes - used);
                lease[used..used + length].copy_from_slice(&chunk[done..done + length]);
                push(&mut pieces, piece(lease.slot(), used, length));
                let part = done..done + length;
                places.push(Place { chunk: number, part, slot: lease.slot(), offset: used, is_copy: true });
                (done, used) = (done + length, used + length);
            }
        }
        if !self.output.has_room(arrival::entries(pieces.len()))? {
            return Ok(false);
        }
        self.given += 1;
        let entry =
            Entry { is_message: true, has_gap, created: created.0, covers: self.given, ..Entry::default() };
        let entry = match pieces.len() <= PIECES_MAX {
            true => Some(self.output.write_out(&Entry { pieces, ..entry })),
            false => {
                arrival::write(&mut self.output, entry, &pieces);
                self.output.publish();
                None
            }
        };
        // Who looks is at it: what only this process goes by comes later.
        self.note(body, &places);
        if self.sent.len() >= self.geometry().ring {
            // The ring had room: the first was taken.
            self.sent.pop_front();
        }
        self.sent.push_back(Sent { behind: self.output.written(), bytes: body_bytes, entry });
        self.block.want_room(0, false);
        Ok(true)
    }

    /// The slots that a body went out in, and what was put there, as far as that is not copied again anyway.
    fn note(&mut self, body: &Body, places: &[Place]) {
        let is_small = body.len() <= SMALL_BYTES;
        for Place { chunk, part, slot, offset, is_copy } in places {
            // Several pieces of a body may lie in one slot.
            if !self.lender.is_out(*slot) {
                self.origins[*slot].clear();
                self.lender.send(*slot);
            }
            if *is_copy && !is_small {
                self.origins[*slot].push((*offset, body.share(*chunk, part.clone())));
            }
        }
    }

    /// Tells the stages that the flow ends; `false` if there is no room now.
    pub(crate) fn end(&mut self) -> Result<bool, Broken> {
        if !self.output.has_room(1)? {
            return Ok(false);
        }
        self.output.write_out(&Entry { is_end: true, ..Entry::default() });
        self.wake_next();
        Ok(true)
    }

    /// Wakes the first stage, if it sleeps, behind what was shown. The later the cheaper: its fence waits until that has
    /// gone.
    pub(crate) fn wake_next(&mut self) {
        self.wake(1);
        // Its fence stands behind what was taken, too.
        if std::mem::take(&mut self.has_taken) {
            self.wake_waiting();
        }
    }

    /// Has a stage, numbered from 0, read what it was told on its control descriptor.
    pub(crate) fn tell(&self, stage: usize) {
        self.block.told(stage + 1).fetch_add(1, Ordering::SeqCst);
        self.wake(stage + 1);
    }

    /// Wakes a stage's process, if it sleeps.
    #[inline]
    fn wake(&self, process: usize) {
        if self.block.is_to_wake(process) {
            self.bells[process - 1].ring();
        }
    }

    /// A slot for a copy: the first that is free, which is the warmest.
    fn free_slot(&mut self) -> Option<Lease> {
        self.free_of(0..self.copies()).or_else(|| {
            self.refresh();
            self.free_of(0..self.copies())
        })
    }

    /// So many slots, the first, are for copies. In the others bodies are made.
    fn copies(&self) -> usize {
        self.geometry().slots - self.geometry().keeps
    }

    fn free_of(&self, mut slots: Range<usize>) -> Option<Lease> {
        slots.find_map(|slot| self.slots.lease(slot).filter(|_| !self.lender.is_out(slot)))
    }

    /// A slot to make a body in, so that it is not copied; `None` if none is free.
    pub(crate) fn lease(&mut self) -> Option<Lease> {
        self.refresh();
        self.free_of(self.copies()..self.geometry().slots)
    }

    /// Takes what came back next.
    pub(crate) fn pop(&mut self) -> Result<Option<Given>, Broken> {
        let Some(first) = self.input.peek_raw(0) else { return Ok(None) };
        // What is as it went is what went: nothing of it need be believed.
        let went = self.sent.front().and_then(|sent| sent.entry.as_ref());
        if went.is_some_and(|went| Entry::are_same(went, &first)) {
            let number = self.given + 1 - self.sent.len() as u64;
            self.sent.pop_front();
            self.advance(1);
            return Ok(Some(Given::Back(number)));
        }
        let arrival = arrival::read(&self.input, &first)?;
        let given = match (arrival.is_end, arrival.is_message) {
            (true, _) => Given::End,
            (false, false) => Given::Covers(arrival.covers),
            (false, true) => {
                let body = self.body(&arrival.pieces, arrival.bytes())?;
                Given::Message(Message::new(arrival.created, body), arrival.covers)
            }
        };
        let complete = arrival.covers.saturating_sub(self.given - self.sent.len() as u64);
        self.sent.drain(..self.sent.len().min(complete as usize));
        self.advance(arrival.entries);
        Ok(Some(given))
    }

    /// Whether something of what was handed over has not come back.
    pub(crate) fn is_owed(&self) -> bool {
        !self.sent.is_empty()
    }

    fn advance(&mut self, entries: usize) {
        self.input.advance(entries);
        self.has_taken = true;
        self.wake_waiting();
    }

    /// Any stage's slots may be free, or the last one's ring.
    fn wake_waiting(&self) {
        (1..=self.geometry().stages)
            .filter(|process| self.block.wants_room(*process))
            .for_each(|process| self.wake(process));
    }

    /// What lies in a stage's region is copied; of what lies in the host's, the host has the original.
    fn body(&mut self, pieces: &[Piece], bytes: usize) -> Result<Body, Broken> {
        let Geometry { slots, slot_bytes, .. } = self.geometry();
        let mut body = Body::new();
        let mut copied = None;
        for piece in pieces {
            let (slot, offset, length) =
                (usize::from(piece.slot), piece.offset as usize, piece.length as usize);
            let nowhere = || Broken(format!("{piece:?} is nowhere"));
            let is_inside = slot < slots && offset.checked_add(length).is_some_and(|end| end <= slot_bytes);
            if !is_inside {
                return Err(nowhere());
            }
            match usize::from(piece.region).checked_sub(1) {
                None => self.own(slot, offset, length, &mut body)?,
                Some(index) => {
                    let region = self.regions.get(index).ok_or_else(nowhere)?;
                    let memory = copied.get_or_insert_with(|| match bytes <= SMALL_BYTES {
                        true => BytesMut::with_capacity(bytes),
                        false => self.memory.take(bytes),
                    });
                    if !region.append_to(slot * slot_bytes + offset, length, memory) {
                        return Err(nowhere());
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

    /// Bytes of the host's own region: what was made there, or what was copied there.
    fn own(&self, slot: usize, offset: usize, length: usize, body: &mut Body) -> Result<(), Broken> {
        let end = offset + length;
        let not_given = || Broken(format!("slot {slot} is not its to give"));
        if slot >= self.copies() {
            body.push(self.slots.share(slot, offset..end).ok_or_else(not_given)?);
            return Ok(());
        }
        let mut at = offset;
        for (start, share) in &self.origins[slot] {
            if (*start..start + share.len()).contains(&at) && at < end {
                let until = end.min(start + share.len());
                body.push(share.slice(at - start..until - start));
                at = until;
            }
        }
        if at < end {
            let lease = self.slots.lease(slot).ok_or_else(not_given)?;
            body.push(Bytes::copy_from_slice(&lease[at..end]));
        }
        Ok(())
    }

    /// Slots of the host's region that are in the stages' hands.
    pub(crate) fn out(&mut self) -> usize {
        self.refresh();
        self.lender.out()
    }

    /// Whether nothing is on its way and every stage waits.
    pub(crate) fn is_quiet(&self) -> bool {
        self.block.is_quiet()
    }

    /// Bytes of bodies, and bodies, that the first stage has not taken.
    pub(crate) fn untaken(&mut self) -> (usize, usize) {
        // What a broken index says is not worth more than nothing.
        let taken = self.output.taken().unwrap_or(0);
        let untaken = self.sent.iter().filter(|sent| sent.behind > taken);
        untaken.fold((0, 0), |(bytes, messages), sent| (bytes + sent.bytes, messages + 1))
    }

    /// Whether the host, about to wait, would look a moment longer.
    pub(crate) fn is_about_to_look(&self, now: impl Fn() -> Time) -> bool {
        self.spin.is_about_to(now)
    }

    /// Whether that pays at present.
    pub(crate) fn looking_pays(&self) -> bool {
        self.spin.pays()
    }

    /// Whether the host, about to wait, has something to take or to hand over after all. Looks a moment longer where that has paid.
    pub(crate) fn go_to_sleep(&mut self, is_owed: bool, now: impl Fn() -> Time + Copy) -> bool {
        if std::mem::take(&mut self.has_taken) {
            fence(Ordering::SeqCst);
            self.wake_waiting();
        }
        self.unasked = self.unasked.wrapping_add(1);
        if self.unasked != 0 && (self.input.has_next() || is_owed && self.looks_shortly()) {
            return true;
        }
        let Lane { input, spin, crowd, block, .. } = self;
        let is_calm = |at, looks| {
            let is_calm = crowd.is_calm(at, looks);
            block.be_calm(is_calm);
            is_calm
        };
        if block.geometry().spins[1] {
            // The stage looks by what the host finds.
            is_calm(now(), false);
        }
        if is_owed && spin.look(now, |at| is_calm(at, true), || input.has_next()) {
            return true;
        }
        self.sleeps = true;
        self.block.go_to_sleep(0);
        self.input.has_next() || self.waits_for_window && self.has_room().unwrap_or(true)
    }

    /// Looks a moment without a clock.
    fn looks_shortly(&mut self) -> bool {
        let Lane { input, spin, .. } = self;
        spin.look_shortly(|| input.has_next())
    }

    /// The host is awake.
    pub(crate) fn wake_up(&mut self, now: Time) {
        if std::mem::take(&mut self.sleeps) && self.block.wake_up(0) {
            self.bell.clear();
        }
        self.spin.woke(|| now);
    }

    /// Readable when the host was woken.
    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

fn piece(slot: usize, offset: usize, length: usize) -> Piece {
    Piece { region: 0, slot: slot as u16, offset: offset as u32, length: length as u32 }
}
