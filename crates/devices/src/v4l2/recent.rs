//! The choice among the frames that wait in the driver.
//!
//! A driver whose buffers are all filled keeps their frames, and misses those that come. So a reader that is slower than the camera
//! would only get frames that are as old as all buffers take to be read.
//!
//! | state | frames that wait | effect | next state |
//! |---|---|---|---|
//! | in step | any, and a buffer is free | the oldest | in step |
//! | in step | as many as the driver has buffers | the newest; the others are dropped | behind |
//! | behind | as many as the driver has buffers | all are dropped: the next one is new. The second time in a row, the newest | behind |
//! | behind | several, and a buffer is free | the newest; the others are dropped | behind |
//! | behind | one | it; after [`IN_STEP_FRAMES`] of these in a row the reader keeps up | behind, in step |

use std::io;

/// The frames in a row that were taken before the next one came, after which a reader keeps up.
const IN_STEP_FRAMES: u32 = 12;
/// The most frames that one choice drops, as a faulty driver may never end them.
const DROPPED_MAX: usize = 32;

/// The state of a reader.
#[derive(Debug, Default)]
pub(super) struct Recent {
    is_behind: bool,
    /// All frames were dropped, and none was taken since.
    has_dropped_all: bool,
    /// Frames in a row that were taken alone.
    alone: u32,
}

impl Recent {
    /// Takes a frame by `next`, the oldest first, and passes those that are too old to `drop_old`. `is_full` tells that the driver has no
    /// free buffer.
    pub(super) fn take<T>(
        &mut self,
        is_full: bool,
        mut next: impl FnMut() -> io::Result<Option<T>>,
        mut drop_old: impl FnMut(T),
    ) -> io::Result<Option<T>> {
        let Some(mut frame) = next()? else { return Ok(None) };
        let was_behind = self.is_behind;
        if !is_full && !was_behind {
            return Ok(Some(frame));
        }
        let mut dropped = 0;
        while dropped < DROPPED_MAX
            && let Some(newer) = next()?
        {
            drop_old(std::mem::replace(&mut frame, newer));
            dropped += 1;
        }
        self.alone = if is_full || dropped > 0 { 0 } else { self.alone + 1 };
        self.is_behind = self.alone < IN_STEP_FRAMES;
        // A reader that is always this slow gets a frame each second time, at least.
        self.has_dropped_all = is_full && was_behind && !self.has_dropped_all;
        if self.has_dropped_all {
            drop_old(frame);
            return Ok(None);
        }
        Ok(Some(frame))
    }
}
