//! The memory that a worker and the sound thread of its broker share: one ring of frames to play, and slots of recorded quanta.
//!
//! The worker parses data of other hosts, so it may be compromised: the sound thread uses each number in the memory only as far
//! as it is possible. Wrong numbers make wrong sound, and nothing else.
//!
//! The ring has no state "full": its writer overwrites the oldest frames, and its reader jumps ahead if it is too far behind.
//! So a program that does not record never blocks the flow, and the frames are recent when it begins.

use super::{FRAME_BYTES, Frame};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use sys::memory::{Access, Shared};
use wire::formats::audio::FRAMES_MAX;

/// The frames of the ring: 1.4 s.
pub(super) const RING_FRAMES: u64 = 1 << 16;
/// Recorded quanta that wait for the worker, at most: 171 ms of the shortest usual quantum.
pub(super) const SLOTS: u64 = 64;

const RING: usize = 4096;
const SLOT_HEADERS: usize = RING + RING_FRAMES as usize * FRAME_BYTES;
const SLOT_HEADER_BYTES: usize = 24;
const SLOT_FRAMES: usize = SLOT_HEADERS + 4096;
const SLOT_BYTES: usize = FRAMES_MAX * FRAME_BYTES;
/// The size of the memory. The kernel provides only the pages that are touched: those of short quanta.
const MEMORY_BYTES: usize = SLOT_FRAMES + SLOTS as usize * SLOT_BYTES;

/// A number that both read. Each has one writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Word {
    /// Worker: frames written to the ring.
    Written,
    /// Sound thread: frames read from the ring.
    Read,
    /// Worker: the frames of its last message.
    MessageFrames,
    /// Sound thread: 1 while it plays frames, 0 while it plays silence for lack of them.
    IsPlaying,
    /// Sound thread: the frames that are to stay in the ring after a pull; 0 before the first.
    Margin,
    /// Sound thread: the frames of its last pull.
    Pull,
    /// Sound thread: the frames that stayed in the ring after the last pull that it played.
    Left,
    /// Sound thread: times that the ring ran empty while it played.
    Underruns,
    /// Sound thread: frames that were skipped, because they came too late or too fast.
    Skipped,
    /// Sound thread: recorded slots.
    Recorded,
    /// Worker: slots that it has read.
    Taken,
    /// Sound thread: recorded frames that found no slot.
    Dropped,
    /// Worker: 1 while it wants recorded frames.
    IsWanted,
    /// Sound thread: 1 while the device is absent.
    IsAbsent,
}

/// A recorded quantum.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Quantum {
    /// The time of its first frame.
    pub(super) created_ns: u64,
    /// The number of its first frame.
    pub(super) position: u64,
    /// Its samples.
    pub(super) bytes: Vec<u8>,
}

/// The memory, mapped.
#[derive(Debug)]
pub(super) struct Memory(Shared);

impl Memory {
    /// Makes new memory.
    pub(super) fn create() -> io::Result<OwnedFd> {
        sys::memory::create("outboard-audio", MEMORY_BYTES)
    }

    /// Maps memory of [`Memory::create`].
    pub(super) fn map(descriptor: impl AsFd) -> io::Result<Memory> {
        let shared = Shared::map(descriptor, Access::Write)?;
        match shared.bytes() {
            MEMORY_BYTES => Ok(Memory(shared)),
            _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "memory of another size")),
        }
    }

    pub(super) fn load(&self, word: Word) -> u64 {
        self.0.word(8 * word as usize).map_or(0, |word| word.load(Ordering::Acquire))
    }

    pub(super) fn store(&self, word: Word, value: u64) {
        if let Some(word) = self.0.word(8 * word as usize) {
            word.store(value, Ordering::Release);
        }
    }

    pub(super) fn add(&self, word: Word, value: u64) {
        self.store(word, self.load(word).wrapping_add(value));
    }

    /// Copies frames into the ring, from the frame with this number on; at most as many as the ring has.
    pub(super) fn write_frames(&self, at: u64, frames: &[Frame]) {
        for (index, frame) in frames.iter().enumerate() {
            let slot = (at.wrapping_add(index as u64) % RING_FRAMES) as usize;
            let [left, right] = frame.map(i16::to_le_bytes);
            self.0.copy_in(RING + slot * FRAME_BYTES, &[left[0], left[1], right[0], right[1]]);
        }
    }

    /// Copies frames out of the ring, from the frame with this number on.
    pub(super) fn read_frames(&self, at: u64, frames: &mut [Frame]) {
        for (index, frame) in frames.iter_mut().enumerate() {
            let slot = (at.wrapping_add(index as u64) % RING_FRAMES) as usize;
            let mut bytes = [0; FRAME_BYTES];
            self.0.copy_out(RING + slot * FRAME_BYTES, &mut bytes);
            *frame = super::frame(bytes);
        }
    }

    /// Copies a quantum into the slot with this number.
    pub(super) fn write_slot(&self, number: u64, created_ns: u64, position: u64, bytes: &[u8]) {
        let (header, slot) = slot_offsets(number);
        let bytes = &bytes[..bytes.len().min(SLOT_BYTES)];
        self.0.copy_in(slot, bytes);
        let fields = [created_ns, position, bytes.len() as u64].map(u64::to_le_bytes).concat();
        self.0.copy_in(header, &fields);
    }

    /// Copies the quantum of the slot with this number.
    pub(super) fn read_slot(&self, number: u64) -> Quantum {
        let (header, slot) = slot_offsets(number);
        let mut fields = [0; SLOT_HEADER_BYTES];
        self.0.copy_out(header, &mut fields);
        let (fields, _) = fields.as_chunks();
        let [created_ns, position, length] = [0, 1, 2].map(|field| u64::from_le_bytes(fields[field]));
        let mut bytes = vec![0; (length as usize).min(SLOT_BYTES)];
        self.0.copy_out(slot, &mut bytes);
        Quantum { created_ns, position, bytes }
    }
}

/// Returns the places of a slot's header and of its frames.
fn slot_offsets(number: u64) -> (usize, usize) {
    let index = (number % SLOTS) as usize;
    (SLOT_HEADERS + index * SLOT_HEADER_BYTES, SLOT_FRAMES + index * SLOT_BYTES)
}
