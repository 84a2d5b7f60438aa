//! Tracks the slots of a region that other processes hold.
//!
//! There are no reference counts and no release messages. Every process has a bit for each slot that it holds. The
//! owner may reuse a slot once no bit is set and no entry in flight names it.
//!
//! A slot only moves forward: from a ring to a process (the reader sets the bit before it frees the entry), and
//! from a process to the next ring (the writer clears the bit after it published the entry). So the owner finds
//! every slot if it searches the rings and the processes in that order. The bits of a process that died disappear
//! with its block, so a dead process holds nothing.

use super::block::Block;
use super::entry::Piece;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A bitmap of slots.
#[derive(Debug, Clone)]
pub(super) struct Bits(Vec<u64>);

impl Bits {
    pub(super) fn new(words: usize) -> Bits {
        Bits(vec![0; words])
    }

    pub(super) fn set(&mut self, slot: usize) {
        if let Some(word) = self.0.get_mut(slot / 64) {
            *word |= 1 << (slot % 64);
        }
    }

    pub(super) fn has(&self, slot: usize) -> bool {
        self.0.get(slot / 64).is_some_and(|word| word & (1 << (slot % 64)) != 0)
    }

    pub(super) fn count(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }
}

/// The slots of one process's region that others may hold.
#[derive(Debug)]
pub(super) struct Lender {
    block: Arc<Block>,
    /// Owner of the region, and the first ring that its slots leave by.
    owner: usize,
    slots: Bits,
    /// Number of set bits in `slots`.
    lent: usize,
}

impl Lender {
    pub(super) fn new(block: Arc<Block>, owner: usize) -> Lender {
        let slots = Bits::new(block.geometry().words());
        Lender { block, owner, slots, lent: 0 }
    }

    /// Records that a slot leaves with an entry.
    pub(super) fn lend(&mut self, slot: usize) {
        self.lent += usize::from(!self.slots.has(slot));
        self.slots.set(slot);
    }

    /// Returns true if another process may hold the slot, as of the last [`Lender::refresh`].
    pub(super) fn is_lent(&self, slot: usize) -> bool {
        self.slots.has(slot)
    }

    /// Number of slots that others may hold, as of the last [`Lender::refresh`].
    pub(super) fn lent(&self) -> usize {
        self.lent
    }

    /// Finds the slots that were released, and calls `on_release` for each.
    pub(super) fn refresh(&mut self, mut on_release: impl FnMut(usize)) {
        if self.lent == 0 {
            return;
        }
        let geometry = self.block.geometry();
        let mut held = Bits::new(geometry.words());
        for process in self.owner..=geometry.stages {
            if process > self.owner {
                for (index, word) in held.0.iter_mut().enumerate() {
                    *word |= self.block.held_slots(process, self.owner, index).load(Ordering::SeqCst);
                }
            }
            let is_own = |piece: &Piece| usize::from(piece.region) == self.owner;
            for entry in self.block.in_flight(process) {
                entry
                    .pieces
                    .iter()
                    .filter(|piece| is_own(piece))
                    .for_each(|piece| held.set(piece.slot.into()));
            }
        }
        for (index, (slots, held)) in self.slots.0.iter_mut().zip(&held.0).enumerate() {
            let mut free = *slots & !held;
            while free != 0 {
                on_release(index * 64 + free.trailing_zeros() as usize);
                free &= free - 1;
            }
            *slots &= held;
        }
        self.lent = self.slots.count();
    }
}
