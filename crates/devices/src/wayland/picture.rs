//! The picture of an output as the viewer has it, and what changed in it.
//!
//! A compositor announces damage as one rectangle around all changes. Each tile in it is compared with the picture that was
//! read before, so a letter in one corner and a clock in another are two small changes.

use super::protocol::memory;
use crate::damage::{Damage, TILE};
use bytes::BytesMut;
use std::io;
use sys::memory::Shared;
use wire::formats::video::{Geometry, PixelFormat, Rectangle};

/// Bytes of a pixel in a buffer, and in a message.
const PIXEL_BYTES: usize = 4;
/// The most bytes at the end of a row that are no pixels.
const PADDING_MAX: u32 = 4096;

/// A buffer that a compositor writes to, as it describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BufferLayout {
    pub(super) format: u32,
    pub(super) width: u32,
    pub(super) height: u32,
    pub(super) stride: u32,
}

impl BufferLayout {
    /// Returns whether pictures can be read from such a buffer.
    pub(super) fn is_known(&self) -> bool {
        [memory::ARGB8888, memory::XRGB8888, memory::ABGR8888, memory::XBGR8888].contains(&self.format)
    }

    /// Returns the size in bytes, if it is that of a picture.
    pub(super) fn bytes(&self) -> io::Result<usize> {
        let wrong = || {
            let BufferLayout { width, height, stride, .. } = self;
            io::Error::other(format!(
                "the output has {width}x{height} pixels in rows of {stride} bytes, which is not supported"
            ))
        };
        Geometry::new(PixelFormat::Bgrx32, self.width, self.height).map_err(|_| wrong())?;
        let least = self.width * PIXEL_BYTES as u32;
        match (least..=least + PADDING_MAX).contains(&self.stride) {
            true => Ok(self.stride as usize * self.height as usize),
            false => Err(wrong()),
        }
    }

    fn has_red_first(&self) -> bool {
        [memory::ABGR8888, memory::XBGR8888].contains(&self.format)
    }
}

/// How the pixels of a buffer are turned: quarter turns, 4 if they are mirrored, and whether the last row comes first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Turn {
    pub(super) transform: u32,
    pub(super) upside_down: bool,
}

impl Turn {
    /// Returns the size of the upright picture in a buffer.
    fn upright(self, layout: &BufferLayout) -> (u32, u32) {
        let (width, height) = (layout.width, layout.height);
        if self.transform.is_multiple_of(2) { (width, height) } else { (height, width) }
    }

    /// Returns the column and row in the buffer of a pixel in the upright picture.
    fn place(self, (x, y): (u32, u32), layout: &BufferLayout) -> (u32, u32) {
        let (width, height) = (layout.width, layout.height);
        let across = self.upright(layout).0;
        let x = if self.transform >= 4 { across - 1 - x } else { x };
        let (x, y) = match self.transform % 4 {
            0 => (x, y),
            1 => (y, height - 1 - x),
            2 => (width - 1 - x, height - 1 - y),
            _ => (width - 1 - y, x),
        };
        (x, if self.upside_down { height - 1 - y } else { y })
    }
}

/// A frame in memory that the compositor, or a thread of the broker, has written.
#[derive(Debug)]
pub(super) struct Frame<'a> {
    pub(super) memory: &'a Shared,
    /// The place of its first pixel in the memory.
    pub(super) start: usize,
    pub(super) layout: BufferLayout,
    pub(super) turn: Turn,
}

/// A picture, rows without padding.
#[derive(Debug)]
pub(super) struct Picture {
    geometry: Geometry,
    pixels: Vec<u8>,
    changed: Damage,
    row: Vec<u8>,
}

impl Picture {
    /// Makes a black picture that fits a buffer. All of it counts as changed when it is read first.
    pub(super) fn new(layout: &BufferLayout, turn: Turn, rate_hz: f64) -> io::Result<Picture> {
        let bytes = layout.bytes()?;
        let (width, height) = turn.upright(layout);
        let geometry = Geometry::new(PixelFormat::Bgrx32, width, height).map_err(io::Error::other)?;
        let pixels = vec![0; bytes / layout.stride as usize * layout.width as usize * PIXEL_BYTES];
        let changed = Damage::none(width, height);
        Ok(Picture { geometry: geometry.with_rate_hz(rate_hz), pixels, changed, row: Vec::new() })
    }

    /// Returns whether the picture has the size of what is in such a buffer.
    pub(super) fn fits(&self, layout: &BufferLayout, turn: Turn) -> bool {
        (self.geometry.width(), self.geometry.height()) == turn.upright(layout)
    }

    pub(super) fn geometry(&self) -> Geometry {
        self.geometry
    }

    pub(super) fn size(&self) -> (u32, u32) {
        (self.geometry.width(), self.geometry.height())
    }

    pub(super) fn whole(&self) -> Rectangle {
        Rectangle { x: 0, y: 0, width: self.geometry.width(), height: self.geometry.height() }
    }

    pub(super) fn pixels(&self) -> &[u8] {
        &self.pixels
    }

    pub(super) fn has_changed(&self) -> bool {
        !self.changed.is_empty()
    }

    /// Returns the changed tiles.
    pub(super) fn changed(&mut self) -> &mut Damage {
        &mut self.changed
    }

    /// Appends the pixels of a part, row after row.
    pub(super) fn append(&self, part: &Rectangle, into: &mut BytesMut) {
        let (stride, length) = (self.geometry.stride() as usize, part.width as usize * PIXEL_BYTES);
        let rows = self.pixels.chunks_exact(stride).skip(part.y as usize).take(part.height as usize);
        rows.for_each(|row| into.extend_from_slice(&row[part.x as usize * PIXEL_BYTES..][..length]));
    }

    /// Reads the pixels that may have changed from a frame; `damaged` is a part of it.
    pub(super) fn read(&mut self, frame: &Frame<'_>, damaged: &Rectangle) -> io::Result<()> {
        let Frame { memory, start, layout, turn } = frame;
        let inside = || io::Error::other("the picture exceeds the shared memory");
        if *turn == Turn::default() {
            let Some(part) = damaged.intersection(&self.whole()) else { return Ok(()) };
            // Whole tiles, so that the comparison is one of whole tiles.
            let (left, right) = (
                part.x / TILE * TILE,
                ((part.x + part.width).next_multiple_of(TILE)).min(self.geometry.width()),
            );
            let mut row = std::mem::take(&mut self.row);
            row.resize((right - left) as usize * PIXEL_BYTES, 0);
            for y in part.y..part.y + part.height {
                let at = start + y as usize * layout.stride as usize + left as usize * PIXEL_BYTES;
                memory.copy_out(at, &mut row).then_some(()).ok_or_else(inside)?;
                self.compare(y, left, &mut row, layout);
            }
            self.row = row;
            return Ok(());
        }
        let mut buffer = vec![0; layout.bytes()?];
        memory.copy_out(*start, &mut buffer).then_some(()).ok_or_else(inside)?;
        let (width, height) = self.size();
        let mut row = Vec::with_capacity(width as usize * PIXEL_BYTES);
        for y in 0..height {
            row.clear();
            for x in 0..width {
                let (column, line) = turn.place((x, y), layout);
                let at = line as usize * layout.stride as usize + column as usize * PIXEL_BYTES;
                row.extend(&buffer[at..at + PIXEL_BYTES]);
            }
            self.compare(y, 0, &mut row, layout);
        }
        Ok(())
    }

    /// Compares a part of row `y` from column `left`, the first one of a tile, and takes over the tiles that differ.
    fn compare(&mut self, y: u32, left: u32, row: &mut [u8], layout: &BufferLayout) {
        if layout.has_red_first() {
            row.as_chunks_mut::<PIXEL_BYTES>().0.iter_mut().for_each(|pixel| pixel.swap(0, 2));
        }
        let start = y as usize * self.geometry.stride() as usize + left as usize * PIXEL_BYTES;
        let known = &mut self.pixels[start..start + row.len()];
        if known == row {
            return;
        }
        let tile_bytes = TILE as usize * PIXEL_BYTES;
        let tiles = known.chunks_mut(tile_bytes).zip(row.chunks(tile_bytes));
        for (column, (known, new)) in (left / TILE..).zip(tiles) {
            if known != new {
                known.copy_from_slice(new);
                self.changed.add_tile(column, y / TILE);
            }
        }
    }
}
