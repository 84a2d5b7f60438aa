//! Three slots of memory that two processes share: one writes pictures, the other reads the newest one.
//!
//! | slot | owner |
//! |---|---|
//! | front | the reader |
//! | middle | neither: the newest whole picture, fresh until the reader takes it |
//! | back | the writer, which writes the next picture |
//!
//! One word holds the front and the middle; the back is the third slot. So a slot changes its owner in one step, nobody waits, a
//! slow reader gets the newest picture, and a process that starts again knows its slot.
//!
//! Neither side trusts the other: a word that is no order changes nothing.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use sys::memory::{Access, Shared};
use wire::BODY_BYTES_MAX;

/// Bytes of the words in front of the slots.
const WORDS_BYTES: usize = 4096;
/// The size of a slot. The kernel provides only the pages that are touched: those of the actual pictures.
pub(crate) const SLOT_BYTES: usize = BODY_BYTES_MAX;
/// The number of slots.
pub(crate) const SLOTS: usize = 3;
const MEMORY_BYTES: usize = WORDS_BYTES + SLOTS * SLOT_BYTES;
/// The word of the [`Order`]; the others belong to the user of the memory.
const ORDER: usize = 0;
/// Attempts to exchange slots. Each failure means that the other side has succeeded, which it does once a picture.
const ATTEMPTS: usize = 16;

/// The owners of the slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Order {
    front: usize,
    middle: usize,
    /// The reader has not taken the middle yet.
    is_fresh: bool,
}

impl Order {
    /// Memory of zeros has this order.
    fn parse(word: u64) -> Option<Order> {
        let (front, middle) = ((word & 3) as usize, (word >> 2 & 3) as usize);
        match word {
            0 => Some(Order { front: 0, middle: 1, is_fresh: false }),
            _ if front < SLOTS && middle < SLOTS && front != middle && word >> 5 == 0 => {
                Some(Order { front, middle, is_fresh: word >> 4 & 1 == 1 })
            }
            _ => None,
        }
    }

    fn emit(self) -> u64 {
        self.front as u64 | (self.middle as u64) << 2 | u64::from(self.is_fresh) << 4
    }

    fn back(self) -> usize {
        SLOTS - self.front - self.middle
    }
}

/// The memory, mapped: words that both read, and the slots.
#[derive(Debug)]
pub(crate) struct Slots(Shared);

impl Slots {
    /// Makes new memory. `name` appears in `/proc/PID/maps`.
    pub(crate) fn create(name: &str) -> io::Result<OwnedFd> {
        sys::memory::create(name, MEMORY_BYTES)
    }

    /// Maps memory of [`Slots::create`].
    pub(crate) fn map(descriptor: impl AsFd) -> io::Result<Slots> {
        let shared = Shared::map(descriptor, Access::Write)?;
        match shared.bytes() {
            MEMORY_BYTES => Ok(Slots(shared)),
            _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "memory of another size")),
        }
    }

    /// The memory, to copy bytes of a slot that the caller owns.
    pub(crate) fn memory(&self) -> &Shared {
        &self.0
    }

    /// Returns the place of a slot in the memory.
    pub(crate) fn start(slot: usize) -> usize {
        WORDS_BYTES + slot * SLOT_BYTES
    }

    /// Returns the value of a word; its index is at least 1, and less than 512.
    pub(crate) fn load(&self, word: usize) -> u64 {
        self.0.word(8 * word).map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// Sets a word.
    pub(crate) fn store(&self, word: usize, value: u64) {
        if let Some(word) = self.0.word(8 * word) {
            word.store(value, Ordering::Release);
        }
    }

    fn order(&self) -> Option<Order> {
        Order::parse(self.load(ORDER))
    }

    /// Changes the order of the slots. Returns false if `change` refuses it, or if it is damaged.
    fn exchange(&self, change: impl Fn(Order) -> Option<Order>) -> bool {
        let Some(word) = self.0.word(8 * ORDER) else { return false };
        for _ in 0..ATTEMPTS {
            let before = word.load(Ordering::Acquire);
            let Some(after) = Order::parse(before).and_then(&change) else { return false };
            if word.compare_exchange(before, after.emit(), Ordering::AcqRel, Ordering::Acquire).is_ok() {
                return true;
            }
        }
        false
    }

    /// Writer: returns its slot. Only the writer changes which one that is.
    pub(crate) fn back(&self) -> Option<usize> {
        self.order().map(Order::back)
    }

    /// Writer: makes the picture in its slot the newest one.
    pub(crate) fn publish(&self) {
        self.exchange(|order| Some(Order { front: order.front, middle: order.back(), is_fresh: true }));
    }

    /// Returns true if the reader has not taken the newest picture yet.
    pub(crate) fn is_fresh(&self) -> bool {
        self.order().is_some_and(|order| order.is_fresh)
    }

    /// Reader: takes the newest picture to its slot. Returns false if it is there already.
    pub(crate) fn take(&self) -> bool {
        self.exchange(|order| {
            let swapped = Order { front: order.middle, middle: order.front, is_fresh: false };
            order.is_fresh.then_some(swapped)
        })
    }

    /// Reader: returns its slot.
    pub(crate) fn front(&self) -> Option<usize> {
        self.order().map(|order| order.front)
    }
}
