//! Pictures in memory that the X server writes and everybody behind reads, so that none is copied in between.

use super::client::{Client, Sequence};
use super::display::{Extension, Segment};
use buffers::Pool;
use contract::Bytes;
use rustix::fs::fstat;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use sys::memory::Lent;

/// Pictures that may be under way at a time before the next is copied.
const SLOTS: usize = 3;

type Taken = Arc<[AtomicBool; SLOTS]>;

/// A segment with room for some pictures that are lent, and for one that is copied.
#[derive(Debug)]
pub(super) struct Slots {
    segment: Segment,
    lent: Arc<Lent>,
    /// Where the first begins.
    start: usize,
    slot_bytes: usize,
    taken: Taken,
    /// Where copies go.
    pool: Pool,
}

/// A place for one picture, whose pixels are nobody else's until it is dropped.
#[derive(Debug)]
pub(super) struct Slot {
    number: usize,
    taken: Taken,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.taken[self.number].store(false, Ordering::Release);
    }
}

impl Slots {
    /// Makes memory for pictures of so many bytes and has the server attach it, instead of `before`; the request fails if
    /// it cannot.
    pub(super) fn attach(
        client: &mut Client,
        shm: Extension,
        memory: &OwnedFd,
        slot_bytes: usize,
        before: Option<&Slots>,
    ) -> io::Result<(Slots, Sequence)> {
        // What is still lent of the memory stays as it is, and the pictures stand behind it.
        let start = match before.is_some_and(Slots::is_lent) {
            true => fstat(memory)?.st_size as usize,
            false => 0,
        };
        let end = start + (SLOTS + 1) * slot_bytes;
        if u32::try_from(end).is_err() {
            return Err(io::Error::other("the screen grew too often while its pictures were under way"));
        }
        let (segment, request) = Segment::attach(client, shm, memory, end)?;
        let (lent, taken) = (Arc::new(Lent::map(memory)?), Taken::default());
        let pool = Pool::new(slot_bytes, SLOTS);
        Ok((Slots { segment, lent, start, slot_bytes, taken, pool }, request))
    }

    /// Has the server let go of it; what is lent stays.
    pub(super) fn detach(self, client: &mut Client, shm: Extension) {
        self.segment.detach(client, shm);
    }

    /// Its number with the server.
    pub(super) fn number(&self) -> u32 {
        self.segment.number
    }

    /// Bytes of the largest picture that a slot has room for.
    pub(super) fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    fn is_lent(&self) -> bool {
        self.taken.iter().any(|taken| taken.load(Ordering::Acquire))
    }

    /// A slot that is free: the one that was written last is likely to be in the cache.
    pub(super) fn slot(&self) -> Option<Slot> {
        let is_free = |number: &usize| !self.taken[*number].swap(true, Ordering::AcqRel);
        let number = (0..SLOTS).find(is_free)?;
        Some(Slot { number, taken: self.taken.clone() })
    }

    /// Where in the segment a picture goes: to its slot, or to where it is copied from.
    pub(super) fn offset(&self, slot: Option<&Slot>) -> usize {
        self.start + slot.map_or(SLOTS, |slot| slot.number) * self.slot_bytes
    }

    /// The first bytes of what the server wrote: lent, or a copy, if it has no slot or is so small that it would keep
    /// others from one.
    pub(super) fn take(&self, slot: Option<Slot>, bytes: usize) -> io::Result<Bytes> {
        let too_many = || io::Error::other("more changed than there is");
        if bytes > self.slot_bytes {
            return Err(too_many());
        }
        let (at, is_large) = (self.offset(slot.as_ref()), bytes > self.slot_bytes / 2);
        match slot {
            Some(slot) if is_large => self.lent.share(at, bytes, slot).ok_or_else(too_many),
            _ if is_large => {
                let mut pixels = self.pool.take();
                self.segment.read(at, &mut pixels[..bytes])?;
                Ok(pixels.freeze().slice(..bytes))
            }
            _ => self.lent.copy(at, bytes).ok_or_else(too_many),
        }
    }
}
