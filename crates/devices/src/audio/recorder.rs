//! The end of the slots at a device or a program: it puts each quantum there with the time of its first frame.
//!
//! A thread wakes a little late, by a different time for each quantum. The times are therefore smoothed, as by a delay-locked
//! loop (Fons Adriaensen, "Using a DLL to filter time" (2005)), of the first order: each time is that of the previous quantum
//! plus its length, corrected by a sixteenth of the error. Times never decrease: if the delay of the device grows, they are late
//! for a while.

use super::memory::{Memory, SLOTS, Word};
use super::{FRAME_BYTES, SPEC};
use crate::helper_thread::Wake;
use std::sync::Arc;
use wire::formats::audio::FRAMES_MAX;

/// The part of an error that one quantum corrects.
const CORRECTION: i64 = 16;
/// A later time by more than this is no error: the recording paused.
const PAUSE_NS: u64 = 50_000_000;

/// The writer of the slots.
#[derive(Debug)]
pub(super) struct Recorder {
    memory: Arc<Memory>,
    wake: Wake,
    recorded: u64,
    position: u64,
    /// The expected time of the next frame.
    next_ns: Option<u64>,
}

impl Recorder {
    /// A recorder whose first frame has this position.
    pub(super) fn new(memory: Arc<Memory>, wake: Wake, position: u64) -> Recorder {
        let recorded = memory.load(Word::Recorded);
        Recorder { memory, wake, recorded, position, next_ns: None }
    }

    /// Records frames, the last of which was captured at `now_ns`. `missed_frames` before them were never seen: they leave a gap.
    pub(super) fn record(&mut self, bytes: &[u8], now_ns: u64, missed_frames: u64) {
        self.position = self.position.wrapping_add(missed_frames);
        if self.memory.load(Word::IsWanted) != 1 {
            return;
        }
        let frames = &bytes[..bytes.len() / FRAME_BYTES * FRAME_BYTES];
        let mut later_frames = (frames.len() / FRAME_BYTES) as u64;
        for part in frames.chunks(FRAMES_MAX * FRAME_BYTES) {
            later_frames -= (part.len() / FRAME_BYTES) as u64;
            self.record_quantum(part, now_ns.saturating_sub(SPEC.duration_ns(later_frames)));
        }
        self.wake.signal();
    }

    fn record_quantum(&mut self, bytes: &[u8], now_ns: u64) {
        let frames = (bytes.len() / FRAME_BYTES) as u64;
        let duration_ns = SPEC.duration_ns(frames);
        let measured_ns = now_ns.saturating_sub(duration_ns);
        let created_ns = match self.next_ns {
            Some(next_ns) if measured_ns < next_ns.saturating_add(PAUSE_NS) => {
                let error = measured_ns.wrapping_sub(next_ns).cast_signed();
                next_ns.saturating_add_signed((error / CORRECTION).max(-duration_ns.cast_signed() / 2))
            }
            _ => measured_ns,
        };
        self.next_ns = Some(created_ns.saturating_add(duration_ns));
        if self.recorded.wrapping_sub(self.memory.load(Word::Taken)) < SLOTS {
            self.memory.write_slot(self.recorded, created_ns, self.position, bytes);
            self.recorded = self.recorded.wrapping_add(1);
            self.memory.store(Word::Recorded, self.recorded);
        } else {
            self.memory.add(Word::Dropped, frames);
        }
        self.position = self.position.wrapping_add(frames);
    }
}
