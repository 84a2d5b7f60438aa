//! Which slots of a region are in other hands.
//!
//! Nobody counts and nobody gives back by name. Every process keeps a bit for each slot that it holds; a slot is the
//! owner's again once no bit is set and no entry names it. A slot only moves forward, from a ring into hands (the
//! bit is set before the ring's reader moves on) and from hands into the next ring (the bit is cleared after its
//! writer showed the entry): whoever looks at all places in that order misses none. The bits of a process that has
//! died go with its block: it can keep nothing.

use super::block::Block;
use super::entry::Piece;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A bit for each slot.
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
    /// Whose region: also the first ring that its slots leave by.
    owner: usize,
    sent: Bits,
    /// How many those are.
    out: usize,
}

impl Lender {
    pub(super) fn new(block: Arc<Block>, owner: usize) -> Lender {
        let sent = Bits::new(block.geometry().words());
        Lender { block, owner, sent, out: 0 }
    }

    /// The slot goes out with an entry.
    pub(super) fn send(&mut self, slot: usize) {
        self.out += usize::from(!self.sent.has(slot));
        self.sent.set(slot);
    }

    /// Whether others may hold it, as far as is known.
    pub(super) fn is_out(&self, slot: usize) -> bool {
        self.sent.has(slot)
    }

    /// How many others may hold, as far as is known.
    pub(super) fn out(&self) -> usize {
        self.out
    }

    /// Looks which came back, and names them.
    pub(super) fn refresh(&mut self, mut came_back: impl FnMut(usize)) {
        if self.out == 0 {
            return;
        }
        let geometry = self.block.geometry();
        let mut held = Bits::new(geometry.words());
        for process in self.owner..=geometry.stages {
            if process > self.owner {
                for (index, word) in held.0.iter_mut().enumerate() {
                    *word |= self.block.holds(process, self.owner, index).load(Ordering::SeqCst);
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
        for (index, (sent, held)) in self.sent.0.iter_mut().zip(&held.0).enumerate() {
            let mut free = *sent & !held;
            while free != 0 {
                came_back(index * 64 + free.trailing_zeros() as usize);
                free &= free - 1;
            }
            *sent &= held;
        }
        self.out = self.sent.count();
    }
}
