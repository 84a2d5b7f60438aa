//! The end of the ring at a device or a program: it takes frames at its own pace, and never lacks one.
//!
//! Two clocks are never equal, and a network is never even. A pair such as `resample` or `buffer(play)` restores the pace; the
//! player absorbs the rest with a *margin*, the frames that stay in the ring after each pull.
//!
//! | state | a pull | next state |
//! |---|---|---|
//! | waiting | silence (or the tail of the sound), until the ring has the frames of this pull and the margin | playing |
//! | playing | frames of the ring | playing |
//! | playing, the ring has too few | the last frames, then a tail; counted as an underrun | waiting |
//!
//! The margin is one message. It rises by one message for each underrun that ends within 200 ms; a longer one is a pause of the
//! source. Every 5 s, frames that were never needed in these 5 s are skipped, so a delay that a burst or a fast clock brought
//! goes away again, and the margin falls with it. Frames that wait 50 ms longer than twice the margin are skipped at once.
//!
//! A pull may be longer than a message: its frames gather above the margin until it comes.

use super::joint::Joint;
use super::memory::{Memory, RING_FRAMES, Word};
use super::{Frame, RATE_HZ};
use std::sync::Arc;
use wire::formats::audio::FRAMES_MAX;

/// The longest gap that counts as an underrun: 200 ms.
const PAUSE_FRAMES: u64 = RATE_HZ as u64 / 5;
/// The frames in the ring after a pull, beyond twice the margin, that are too late: 50 ms.
pub(super) const LATE_FRAMES: u64 = RATE_HZ as u64 / 20;
/// The highest margin: 100 ms.
const MARGIN_FRAMES_MAX: u64 = RATE_HZ as u64 / 10;
/// The time between two decisions about frames that are never needed: 5 s.
const WINDOW_FRAMES: u64 = RATE_HZ as u64 * 5;
// Frames that wait are not overwritten.
const _: () =
    assert!(LATE_FRAMES + 4 * FRAMES_MAX as u64 <= RING_FRAMES && MARGIN_FRAMES_MAX < FRAMES_MAX as u64);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Since this many frames.
    Waiting(u64),
    Playing,
}

/// The reader of the ring.
#[derive(Debug)]
pub(super) struct Player {
    memory: Arc<Memory>,
    joint: Joint,
    read: u64,
    state: State,
    margin: u64,
    /// The fewest frames in the ring after a pull of this window.
    low: u64,
    window_left: u64,
}

impl Player {
    /// A player that begins with silence.
    pub(super) fn new(memory: Arc<Memory>) -> Player {
        let read = memory.load(Word::Written);
        memory.store(Word::Read, read);
        Player {
            memory,
            joint: Joint::new(),
            read,
            state: State::Waiting(u64::MAX),
            margin: 0,
            low: u64::MAX,
            window_left: WINDOW_FRAMES,
        }
    }

    /// Fills `frames` for the device or the program.
    pub(super) fn pull(&mut self, frames: &mut [Frame]) {
        let count = frames.len() as u64;
        let message = self.memory.load(Word::MessageFrames).clamp(1, FRAMES_MAX as u64);
        self.margin = self.margin.clamp(message, MARGIN_FRAMES_MAX.max(message));
        let written = self.memory.load(Word::Written);
        let fill = written.wrapping_sub(self.read);
        match self.state {
            State::Waiting(since) if fill < count + self.margin => {
                self.state = State::Waiting(since.saturating_add(count));
                self.joint.fill(frames);
            }
            State::Waiting(since) => {
                if since < PAUSE_FRAMES {
                    self.margin = (self.margin + message).min(MARGIN_FRAMES_MAX.max(message));
                }
                // Earlier quanta are old.
                self.read = written.wrapping_sub((count + self.margin).min(fill));
                (self.state, self.low, self.window_left) = (State::Playing, u64::MAX, WINDOW_FRAMES);
                self.play(frames, written);
            }
            State::Playing if fill < count => {
                self.memory.add(Word::Underruns, 1);
                let (last, missing) = frames.split_at_mut(fill as usize);
                self.memory.read_frames(self.read, last);
                self.read = written;
                self.joint.play(last);
                self.joint.fill(missing);
                self.state = State::Waiting(missing.len() as u64);
            }
            State::Playing => self.play(frames, written),
        }
        if self.state == State::Playing {
            self.memory.store(Word::Left, written.wrapping_sub(self.read));
        }
        self.memory.store(Word::Read, self.read);
        self.memory.store(Word::Margin, self.margin);
        self.memory.store(Word::Pull, count);
        self.memory.store(Word::IsPlaying, (self.state == State::Playing).into());
    }

    /// Plays frames that are there, and skips those that are not needed.
    fn play(&mut self, frames: &mut [Frame], written: u64) {
        let count = frames.len() as u64;
        let left = written.wrapping_sub(self.read).saturating_sub(count);
        self.low = self.low.min(left);
        self.window_left = self.window_left.saturating_sub(count);
        let skipped = match left {
            _ if left > 2 * self.margin + LATE_FRAMES => left - self.margin,
            _ if self.window_left == 0 => self.unneeded(),
            _ => 0,
        };
        self.memory.read_frames(self.read, frames);
        if skipped > 0 {
            self.read = self.read.wrapping_add(skipped);
            self.memory.add(Word::Skipped, skipped);
            let mut later = vec![Frame::default(); frames.len()];
            self.memory.read_frames(self.read, &mut later);
            cross_fade(frames, &later);
        }
        self.read = self.read.wrapping_add(count);
        self.joint.play(frames);
    }

    /// Ends a window. Returns the frames that were in the ring all the time although no pull needed them.
    fn unneeded(&mut self) -> u64 {
        let message = self.memory.load(Word::MessageFrames).clamp(1, FRAMES_MAX as u64);
        let unneeded = self.low.saturating_sub(message);
        (self.low, self.window_left) = (u64::MAX, WINDOW_FRAMES);
        // Less is the wavering of two clocks; a pair that steers the pace keeps about this many.
        if unneeded < message {
            return 0;
        }
        self.margin = self.margin.saturating_sub(unneeded).max(message);
        unneeded
    }
}

/// Changes from `frames` to `later` with a weight that rises.
fn cross_fade(frames: &mut [Frame], later: &[Frame]) {
    let count = frames.len() as i64;
    for (index, (frame, later)) in frames.iter_mut().zip(later).enumerate() {
        let weight = index as i64 + 1;
        let mix = |from: i16, to: i16| (i64::from(from) * (count - weight) + i64::from(to) * weight) / count;
        *frame = [0, 1].map(|channel| mix(frame[channel], later[channel]) as i16);
    }
}
