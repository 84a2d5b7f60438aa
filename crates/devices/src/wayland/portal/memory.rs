//! The memory that the portal's threads and a worker share: the newest frame of the desktop ([`slots`](crate::slots)), its
//! layout and its damage.
//!
//! The thread writes, the worker reads. The thread uses no number that the worker could write, apart from the order of the slots.

use crate::slots::{SLOT_BYTES, SLOTS, Slots};
use crate::wayland::picture::BufferLayout;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use sys::memory::Shared;
use wire::formats::video::Rectangle;

/// A number that both read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Word {
    /// Thread: the [`End`] of the share; 0 before.
    End = 1,
    /// Thread: frames of the compositor.
    Frames,
    /// Thread: input that the portal has refused.
    Refused,
}

/// Why a share has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::wayland) enum End {
    /// The desktop has ended it: its user did, its screen was locked, or the monitor is gone.
    Desktop = 1,
    /// The session bus or PipeWire has failed.
    Failure = 2,
}

/// The first word of a slot's layout, and the number of its words.
const LAYOUT: usize = 16;
const LAYOUT_WORDS: usize = 8;

/// A frame in the worker's slot.
#[derive(Debug)]
pub(super) struct Newest {
    pub(super) start: usize,
    pub(super) layout: BufferLayout,
    /// The part that may differ from the frame that was taken before.
    pub(super) damaged: Rectangle,
}

/// The memory, mapped by the worker.
#[derive(Debug)]
pub(super) struct Frames(Slots);

impl Frames {
    /// Makes new memory.
    pub(super) fn create() -> io::Result<OwnedFd> {
        Slots::create("outboard-desktop")
    }

    /// Maps memory of [`Frames::create`].
    pub(super) fn map(descriptor: impl AsFd) -> io::Result<Frames> {
        Slots::map(descriptor).map(Frames)
    }

    pub(super) fn memory(&self) -> &Shared {
        self.0.memory()
    }

    /// Returns why the share has ended, if it has.
    pub(super) fn end(&self) -> Option<End> {
        match self.0.load(Word::End as usize) {
            0 => None,
            1 => Some(End::Desktop),
            _ => Some(End::Failure),
        }
    }

    pub(super) fn set_end(&self, end: End) {
        self.0.store(Word::End as usize, end as u64);
    }

    pub(super) fn load(&self, word: Word) -> u64 {
        self.0.load(word as usize)
    }

    /// Counts one more.
    pub(super) fn count(&self, word: Word) {
        self.0.store(word as usize, self.load(word).wrapping_add(1));
    }

    /// Returns true if there is a frame that the worker has not taken.
    pub(super) fn is_fresh(&self) -> bool {
        self.0.is_fresh()
    }

    /// Worker: takes the newest frame, if it has not taken it before.
    pub(super) fn take(&self) -> Option<Newest> {
        self.0.take().then(|| self.front()).flatten()
    }

    /// Worker: returns the frame in its slot, if there is one.
    pub(super) fn front(&self) -> Option<Newest> {
        let slot = self.0.front()?;
        let [format, width, height, stride, x, y, damaged_width, damaged_height] = self.layout_words(slot)?;
        let layout = BufferLayout { format, width, height, stride };
        let damaged = Rectangle { x, y, width: damaged_width, height: damaged_height };
        (width > 0).then_some(Newest { start: Slots::start(slot), layout, damaged })
    }

    fn layout_words(&self, slot: usize) -> Option<[u32; LAYOUT_WORDS]> {
        let mut words = [0; LAYOUT_WORDS];
        for (index, word) in words.iter_mut().enumerate() {
            *word = u32::try_from(self.0.load(LAYOUT + slot * LAYOUT_WORDS + index)).ok()?;
        }
        Some(words)
    }
}

/// The thread's side: it knows which rows of each slot are out of date, so that it copies no others.
#[derive(Debug)]
pub(super) struct FrameWriter {
    layout: Option<BufferLayout>,
    /// The rows of each slot that are older than the newest frame: from the first to the one after the last.
    stale_rows: [(u32, u32); SLOTS],
    /// The part that has changed since the worker took a frame.
    damaged: Option<Rectangle>,
}

impl FrameWriter {
    /// Makes the writer for new memory.
    pub(super) fn new() -> FrameWriter {
        FrameWriter { layout: None, stale_rows: [(0, 0); SLOTS], damaged: None }
    }

    /// Writes a frame, and makes it the newest one. `damaged` is the part that has changed since the frame before; `None`:
    /// everything. Returns false for a frame that is too large or too short.
    pub(super) fn write(
        &mut self,
        frames: &Frames,
        layout: BufferLayout,
        pixels: &[u8],
        damaged: Option<Rectangle>,
    ) -> bool {
        let all = Rectangle { x: 0, y: 0, width: layout.width, height: layout.height };
        let fits = layout.bytes().is_ok_and(|bytes| bytes <= SLOT_BYTES.min(pixels.len()));
        let Some(back) = frames.0.back().filter(|_| fits) else { return false };
        let damaged = match damaged {
            Some(part) if self.layout == Some(layout) => part.intersection(&all),
            _ => {
                self.stale_rows = [(0, layout.height); SLOTS];
                self.damaged = None;
                Some(all)
            }
        };
        self.layout = Some(layout);
        // The worker may take the frame before just now: its part is then compared twice, which does no harm.
        let before = self.damaged.filter(|_| frames.is_fresh());
        self.damaged = match (before, damaged) {
            (Some(before), Some(part)) => Some(crate::wayland::screen::around(&before, &part)),
            (before, part) => before.or(part),
        };
        if let Some(part) = damaged {
            for (first, end) in &mut self.stale_rows {
                let (top, bottom) = (part.y, part.y + part.height);
                (*first, *end) =
                    if first == end { (top, bottom) } else { ((*first).min(top), (*end).max(bottom)) };
            }
        }
        let (first, end) = std::mem::take(&mut self.stale_rows[back]);
        let (from, to) = (first as usize * layout.stride as usize, end as usize * layout.stride as usize);
        let Some(rows) = pixels.get(from..to) else { return false };
        frames.0.memory().copy_in(Slots::start(back) + from, rows);
        let part = self.damaged.unwrap_or(Rectangle { x: 0, y: 0, width: 0, height: 0 });
        let BufferLayout { format, width, height, stride } = layout;
        let words = [format, width, height, stride, part.x, part.y, part.width, part.height];
        for (index, word) in words.into_iter().enumerate() {
            frames.0.store(LAYOUT + back * LAYOUT_WORDS + index, word.into());
        }
        frames.0.publish();
        frames.count(Word::Frames);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LAYOUT: BufferLayout = BufferLayout { format: 1, width: 8, height: 6, stride: 36 };

    fn row(y: u32) -> Rectangle {
        Rectangle { x: 0, y, width: 8, height: 1 }
    }

    /// The pixels of a frame as the worker reads them.
    fn read(frames: &Frames, newest: &Newest) -> Vec<u8> {
        let mut pixels = vec![0; newest.layout.bytes().unwrap()];
        assert!(frames.memory().copy_out(newest.start, &mut pixels));
        pixels
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

        /// A worker that takes some of the frames sees each one whole, and every change is in the damage of a frame that it takes.
        #[test]
        fn taken_frames_are_whole_and_their_damage_covers_the_changes(
            steps in prop::collection::vec((0..6_u32, 1..3_u32, any::<u8>(), any::<bool>()), 1..40),
        ) {
            let frames = Frames::map(Frames::create().unwrap()).unwrap();
            let mut writer = FrameWriter::new();
            let mut pixels = vec![0; 36 * 6];
            let mut seen = pixels.clone();
            for (step, (y, rows, value, takes)) in steps.into_iter().enumerate() {
                let part = Rectangle { height: rows.min(6 - y), ..row(y) };
                pixels[36 * y as usize..36 * (y + part.height) as usize].fill(value);
                prop_assert!(writer.write(&frames, LAYOUT, &pixels, (step > 0).then_some(part)));
                if takes {
                    let newest = frames.take().unwrap();
                    let read = read(&frames, &newest);
                    prop_assert_eq!(&read, &pixels);
                    let (top, end) = (newest.damaged.y, newest.damaged.y + newest.damaged.height);
                    let damaged = 36 * top as usize..36 * end as usize;
                    seen[damaged.clone()].copy_from_slice(&read[damaged]);
                    prop_assert_eq!(&seen, &pixels);
                }
            }
        }
    }

    #[test]
    fn a_frame_of_another_size_is_written_whole() {
        let frames = Frames::map(Frames::create().unwrap()).unwrap();
        assert!(frames.take().is_none() && frames.front().is_none());
        let mut writer = FrameWriter::new();
        assert!(writer.write(&frames, LAYOUT, &[1; 36 * 6], None));
        let wide = BufferLayout { format: 1, width: 9, height: 2, stride: 36 };
        assert!(writer.write(&frames, wide, &[2; 72], Some(row(0))));
        let newest = frames.take().unwrap();
        assert_eq!((newest.layout, newest.damaged.height), (wide, 2));
        assert_eq!(read(&frames, &newest), [2; 72]);
        assert!(frames.take().is_none(), "it is taken");
        assert_eq!(read(&frames, &frames.front().unwrap()), [2; 72], "and is there for the next worker");
        assert!(!writer.write(&frames, wide, &[3; 71], None), "too short");
        let huge = BufferLayout { format: 1, width: 16384, height: 16384, stride: 65536 };
        assert!(!writer.write(&frames, huge, &[3; 72], None));
        assert!(!frames.is_fresh());
    }
}
