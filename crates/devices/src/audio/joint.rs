//! Joints: the ends and beginnings of sound, without clicks.
//!
//! A gap begins with the last 5 ms played backwards while their volume falls to zero, so that the first frame of the gap equals
//! the last frame before it. After a gap the volume rises for 5 ms. Frames without a gap pass as they are.
//!
//! | state | frames come: [`Joint::play`] | frames lack: [`Joint::fill`] |
//! |---|---|---|
//! | full volume | as they are | keeps the last 5 ms; its first frames backwards |
//! | tail | rising volume, plus the rest of the tail | the rest of the tail, then silence |
//! | silence | rising volume | silence |

use super::{FADE_FRAMES, Frame};

/// The joint between the sound before and the sound after a gap.
#[derive(Debug)]
pub(super) struct Joint {
    /// The last frames that left, as a ring.
    history: [Frame; FADE_FRAMES],
    /// The place in `history` of the next frame.
    next: usize,
    /// The tail of the last gap, backwards.
    mirror: [Frame; FADE_FRAMES],
    /// The frames of the tail that have left.
    tail: usize,
    /// The steps that the volume has risen since the last gap.
    volume: usize,
}

impl Joint {
    /// The joint after silence.
    pub(super) fn new() -> Joint {
        Joint::after([Frame::default(); FADE_FRAMES])
    }

    /// The joint after these frames. A gap follows.
    pub(super) fn after(history: [Frame; FADE_FRAMES]) -> Joint {
        let mut mirror = history;
        mirror.reverse();
        Joint { history, next: 0, mirror, tail: 0, volume: 0 }
    }

    /// Passes frames on.
    pub(super) fn play(&mut self, frames: &mut [Frame]) {
        for frame in frames {
            if self.volume < FADE_FRAMES {
                self.volume += 1;
                let tail = self.next_of_tail();
                let rising = scaled(*frame, self.volume);
                *frame = [0, 1].map(|channel| tail[channel].saturating_add(rising[channel]));
            }
            self.keep(*frame);
        }
    }

    /// Fills a gap.
    pub(super) fn fill(&mut self, frames: &mut [Frame]) {
        if self.volume > 0 && !frames.is_empty() {
            for (index, frame) in self.mirror.iter_mut().enumerate() {
                *frame = self.history[(self.next + 2 * FADE_FRAMES - 1 - index) % FADE_FRAMES];
            }
            (self.tail, self.volume) = (0, 0);
        }
        for frame in frames {
            *frame = self.next_of_tail();
            self.keep(*frame);
        }
    }

    fn next_of_tail(&mut self) -> Frame {
        let Some(frame) = self.mirror.get(self.tail) else { return Frame::default() };
        self.tail += 1;
        scaled(*frame, FADE_FRAMES - self.tail)
    }

    fn keep(&mut self, frame: Frame) {
        self.history[self.next] = frame;
        self.next = (self.next + 1) % FADE_FRAMES;
    }
}

/// Returns the frame at a volume of so many steps, of [`FADE_FRAMES`].
fn scaled(frame: Frame, steps: usize) -> Frame {
    frame.map(|sample| (i32::from(sample) * steps as i32 / FADE_FRAMES as i32) as i16)
}
