//! The memory that a worker and the picture thread of its broker share: the geometry of the pictures, and three slots.
//!
//! The worker writes them, and the thread shows the newest one ([`slots`](crate::slots)).
//!
//! The worker parses data of other hosts, so it may be compromised: the thread uses each number in the memory only as far as it
//! is possible. Wrong numbers make wrong pictures, and nothing else.

use crate::slots::Slots;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use wire::formats::video::{Geometry, Header, Kind};

pub(super) use crate::slots::SLOT_BYTES;

/// Place of the header of all pictures.
const GEOMETRY: usize = 256;

/// A number that both read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Word {
    /// Length of the picture in each slot; its owner writes it. 0 before the first.
    Length0 = 1,
    Length1,
    Length2,
    /// Broker, or the worker at the first picture: 1 if the geometry of the pictures is known.
    HasGeometry,
    /// Thread: 1 while a program takes pictures, and for some time afterwards.
    IsWanted,
    /// Worker: 1 while there are no new pictures, and the last one is repeated.
    IsStale,
    /// Thread: pictures passed to programs.
    Shown,
    /// Thread: repetitions of stale pictures.
    Repeated,
    /// Thread: times that programs had no room for a picture.
    Busy,
}

const LENGTHS: [Word; 3] = [Word::Length0, Word::Length1, Word::Length2];

/// The memory, mapped.
#[derive(Debug)]
pub(super) struct Pictures(Slots);

impl Pictures {
    /// Makes new memory.
    pub(super) fn create() -> io::Result<OwnedFd> {
        Slots::create("outboard-pictures")
    }

    /// Maps memory of [`Pictures::create`].
    pub(super) fn map(descriptor: impl AsFd) -> io::Result<Pictures> {
        Slots::map(descriptor).map(Pictures)
    }

    pub(super) fn load(&self, word: Word) -> u64 {
        self.0.load(word as usize)
    }

    pub(super) fn store(&self, word: Word, value: u64) {
        self.0.store(word as usize, value);
    }

    pub(super) fn add(&self, word: Word, value: u64) {
        self.store(word, self.load(word).wrapping_add(value));
    }

    /// Returns true if a word with two values is set.
    pub(super) fn is(&self, word: Word) -> bool {
        self.load(word) == 1
    }

    /// Sets the geometry of all pictures, once.
    pub(super) fn set_geometry(&self, geometry: Geometry) {
        self.0.memory().copy_in(GEOMETRY, &Header::frame(geometry).emit());
        self.store(Word::HasGeometry, 1);
    }

    /// Returns the geometry of all pictures, if it is known.
    pub(super) fn geometry(&self) -> Option<Geometry> {
        if !self.is(Word::HasGeometry) {
            return None;
        }
        let mut bytes = [0; Header::BYTES];
        self.0.memory().copy_out(GEOMETRY, &mut bytes);
        Header::parse(&bytes).ok().filter(|header| header.kind == Kind::Frame).map(|header| header.geometry)
    }

    /// Worker: makes a picture the newest one. One that is longer than a slot is cut off, which no message can be.
    pub(super) fn write(&self, picture: &[u8]) {
        let Some(back) = self.0.back() else { return };
        let picture = &picture[..picture.len().min(SLOT_BYTES)];
        self.0.memory().copy_in(Slots::start(back), picture);
        self.store(LENGTHS[back], picture.len() as u64);
        self.0.publish();
    }

    /// Returns true if the thread has not taken the newest picture yet.
    pub(super) fn is_fresh(&self) -> bool {
        self.0.is_fresh()
    }

    /// Thread: takes the newest picture to the front. Returns false if it is there already.
    pub(super) fn take(&self) -> bool {
        self.0.take()
    }

    /// Thread: returns the length of the picture at the front; `None` before the first.
    pub(super) fn front_bytes(&self) -> Option<usize> {
        let length = usize::try_from(self.load(LENGTHS[self.0.front()?])).ok()?;
        (1..=SLOT_BYTES).contains(&length).then_some(length)
    }

    /// Thread: copies the picture at the front.
    pub(super) fn copy_front(&self, into: &mut [u8]) {
        let Some(front) = self.0.front() else { return };
        let length = into.len().min(SLOT_BYTES);
        self.0.memory().copy_out(Slots::start(front), &mut into[..length]);
    }
}
