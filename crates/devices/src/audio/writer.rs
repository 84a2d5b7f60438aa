//! The worker's ends of the shared memory: the writer of the ring, and the reader of the slots.

use super::joint::Joint;
use super::memory::{Memory, Quantum, RING_FRAMES, SLOTS, Word};
use super::player::LATE_FRAMES;
use super::{FADE_FRAMES, Frame, RATE_HZ, SPEC};
use contract::Fill;
use std::sync::Arc;
use std::time::Duration;
use wire::formats::audio::FRAMES_MAX;

/// The longest gap that keeps its length: 100 ms. A longer one is a new beginning.
const GAP_FRAMES_MAX: u64 = RATE_HZ as u64 / 10;

/// Writes messages to the ring. A gap between two of them keeps its length, without a click.
#[derive(Debug)]
pub(super) struct RingWriter {
    memory: Arc<Memory>,
    joint: Joint,
    written: u64,
    /// The position of the next frame, if the previous message is known.
    expected: Option<u64>,
    /// Frames that were lost before they came here.
    pub(super) lost_frames: u64,
}

impl RingWriter {
    /// Continues where a previous worker stopped.
    pub(super) fn new(memory: Arc<Memory>) -> RingWriter {
        let written = memory.load(Word::Written);
        let mut history = [Frame::default(); FADE_FRAMES];
        memory.read_frames(written.wrapping_sub(FADE_FRAMES as u64), &mut history);
        RingWriter { memory, joint: Joint::after(history), written, expected: None, lost_frames: 0 }
    }

    /// Writes the frames of a message.
    pub(super) fn write(&mut self, position: u64, mut frames: Vec<Frame>) {
        let gap = self.expected.map(|expected| position.wrapping_sub(expected));
        // A player that waits for more frames has ended the sound, unless frames from before the gap wait, too.
        let is_ended = self.memory.load(Word::IsPlaying) != 1 && self.fill_frames() == 0;
        match gap {
            Some(0) => {}
            _ if is_ended => self.joint = Joint::new(),
            Some(gap) if gap <= GAP_FRAMES_MAX => self.fill_gap(gap),
            _ => self.fill_gap(FADE_FRAMES as u64),
        }
        self.lost_frames += gap.filter(|gap| *gap <= GAP_FRAMES_MAX).unwrap_or(0);
        self.expected = Some(position.wrapping_add(frames.len() as u64));
        self.joint.play(&mut frames);
        self.memory.store(Word::MessageFrames, frames.len() as u64);
        self.append(&frames);
    }

    /// The frames that wait in the ring.
    pub(super) fn fill_frames(&self) -> u64 {
        self.written.wrapping_sub(self.memory.load(Word::Read)).min(RING_FRAMES)
    }

    /// Returns the sound that waits, after a message was written. `None` while nobody plays.
    ///
    /// Messages raise the ring and pulls lower it, so its frames run in a sawtooth, as high as the longer of both. The frames
    /// just after the longer one do not:
    ///
    /// ```text
    /// the longer one   these frames            to be
    /// a message        all that wait now       the margin and the message
    /// a pull           those that it left      the margin; `held` and `target` add the mean rise until the next pull
    /// ```
    pub(super) fn fill(&self) -> Option<Fill> {
        let frames = |word| self.memory.load(word).min(FRAMES_MAX as u64);
        let (message, pull) = (frames(Word::MessageFrames), frames(Word::Pull));
        let margin = self.memory.load(Word::Margin);
        let waiting = self.fill_frames();
        let is_played =
            (1..=RING_FRAMES).contains(&margin) && waiting <= 2 * margin + LATE_FRAMES + message + pull;
        let rise = pull.saturating_sub(message) / 2;
        let held = match pull > message {
            true => self.memory.load(Word::Left).min(RING_FRAMES) + rise + message,
            false => waiting,
        };
        let time = |frames| Duration::from_nanos(SPEC.duration_ns(frames));
        is_played.then(|| Fill {
            held: time(held),
            target: time(margin + rise + message),
            lead: time(margin + rise),
            rate_hz: RATE_HZ,
        })
    }

    fn fill_gap(&mut self, count: u64) {
        let mut frames = vec![Frame::default(); count as usize];
        self.joint.fill(&mut frames);
        self.append(&frames);
    }

    fn append(&mut self, frames: &[Frame]) {
        self.memory.write_frames(self.written, frames);
        self.written = self.written.wrapping_add(frames.len() as u64);
        self.memory.store(Word::Written, self.written);
    }
}

/// Reads recorded quanta.
#[derive(Debug)]
pub(super) struct SlotReader {
    memory: Arc<Memory>,
    taken: u64,
}

impl SlotReader {
    /// Continues where a previous worker stopped.
    pub(super) fn new(memory: Arc<Memory>) -> SlotReader {
        let taken = memory.load(Word::Taken);
        SlotReader { memory, taken }
    }

    /// Starts or stops the recording. Quanta of a previous recording are dropped.
    pub(super) fn set_wanted(&mut self, is_wanted: bool) {
        self.taken = self.memory.load(Word::Recorded);
        self.memory.store(Word::Taken, self.taken);
        self.memory.store(Word::IsWanted, is_wanted.into());
    }

    /// Returns true if there is a quantum.
    pub(super) fn has_next(&self) -> bool {
        self.memory.load(Word::Recorded) != self.taken
    }

    /// Returns the next quantum.
    pub(super) fn next(&mut self) -> Option<Quantum> {
        let waiting = self.memory.load(Word::Recorded).wrapping_sub(self.taken);
        if waiting == 0 || waiting > SLOTS {
            return None;
        }
        let quantum = self.memory.read_slot(self.taken);
        self.taken = self.taken.wrapping_add(1);
        self.memory.store(Word::Taken, self.taken);
        Some(quantum)
    }
}
