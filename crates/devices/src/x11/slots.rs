//! Zero-copy capture: the X server writes pictures to slots of shared memory, and the path reads them from there.
//!
//! The segment has `SLOTS` slots that are lent to messages and one more that pictures are copied from:
//!
//! ```text
//! start          + slot_bytes   + 2 slot_bytes   + 3 slot_bytes
//! | slot 0       | slot 1       | slot 2         | copied: used if no slot is free |
//! ```
//!
//! A slot is in use from the request for its picture until the last message that reads it is dropped.

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

/// The number of pictures that may be lent at a time. Further pictures are copied.
const SLOTS: usize = 3;

/// One flag for each slot: it is in use.
type InUse = Arc<[AtomicBool; SLOTS]>;

/// A shared memory segment, divided into slots.
#[derive(Debug)]
pub(super) struct Slots {
    segment: Segment,
    lent: Arc<Lent>,
    /// The offset of the first slot.
    start: usize,
    slot_bytes: usize,
    in_use: InUse,
    /// The buffers of copied pictures.
    pool: Pool,
}

/// The exclusive use of a slot, until it is dropped.
#[derive(Debug)]
pub(super) struct Slot {
    number: usize,
    in_use: InUse,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.in_use[self.number].store(false, Ordering::Release);
    }
}

impl Slots {
    /// Makes slots of `slot_bytes` in `memory` and asks the server to attach it. `prev` are the slots that these
    /// replace. The request fails if the server cannot attach the memory.
    pub(super) fn attach(
        client: &mut Client,
        shm: Extension,
        memory: &OwnedFd,
        slot_bytes: usize,
        prev: Option<&Slots>,
    ) -> io::Result<(Slots, Sequence)> {
        // Messages may still read slots of `prev`: then the new slots begin after them in the same memory.
        let start = if prev.is_some_and(Slots::is_lent) { fstat(memory)?.st_size as usize } else { 0 };
        let end = start + (SLOTS + 1) * slot_bytes;
        if u32::try_from(end).is_err() {
            return Err(io::Error::other("the screen grew too often while its pictures were in use"));
        }
        let (segment, request) = Segment::attach(client, shm, memory, end)?;
        let (lent, in_use) = (Arc::new(Lent::map(memory)?), InUse::default());
        let pool = Pool::new(slot_bytes, SLOTS);
        Ok((Slots { segment, lent, start, slot_bytes, in_use, pool }, request))
    }

    /// Asks the server to detach the memory. Lent slots stay readable.
    pub(super) fn detach(self, client: &mut Client, shm: Extension) {
        self.segment.detach(client, shm);
    }

    /// Returns the segment's identifier at the server.
    pub(super) fn number(&self) -> u32 {
        self.segment.number
    }

    /// Returns the size of the largest picture that fits into a slot.
    pub(super) fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    fn is_lent(&self) -> bool {
        self.in_use.iter().any(|in_use| in_use.load(Ordering::Acquire))
    }

    /// Returns a free slot, the lowest first: it was used most recently and is likely to be in the cache.
    pub(super) fn slot(&self) -> Option<Slot> {
        let is_free = |number: &usize| !self.in_use[*number].swap(true, Ordering::AcqRel);
        let number = (0..SLOTS).find(is_free)?;
        Some(Slot { number, in_use: self.in_use.clone() })
    }

    /// Returns the offset of a slot; without one, the offset of the area that pictures are copied from.
    pub(super) fn offset(&self, slot: Option<&Slot>) -> usize {
        self.start + slot.map_or(SLOTS, |slot| slot.number) * self.slot_bytes
    }

    /// Returns the first `bytes` that the server wrote to a slot.
    ///
    /// Large pictures are lent. Small ones are copied, so that they do not occupy a slot; pictures without a slot are
    /// copied in any case.
    pub(super) fn take(&self, slot: Option<Slot>, bytes: usize) -> io::Result<Bytes> {
        let too_many = || io::Error::other("a picture exceeds its slot");
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
