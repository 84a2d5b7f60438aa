//! The picture that client and server keep, and the server's screen, to which `video` messages are applied.

use super::pixels::PIXEL_BYTES;
use crate::bgrx;
use crate::clipboard::clean;
use crate::damage::{Damage, TILE};
use contract::Body;
use wire::formats::video::{Content, Cursor, Geometry, Header, Kind, PixelFormat, Rectangle};

/// A whole picture in native pixels (`XR24`), rows without padding.
#[derive(Debug, Clone, Default)]
pub(super) struct Picture {
    width: u32,
    height: u32,
    pixels: Vec<u8>,
}

impl Picture {
    /// Makes a black picture.
    pub(super) fn new(width: u32, height: u32) -> Picture {
        let bytes = width as usize * height as usize * PIXEL_BYTES;
        Picture { width, height, pixels: vec![0; bytes] }
    }

    pub(super) fn width(&self) -> u32 {
        self.width
    }

    pub(super) fn height(&self) -> u32 {
        self.height
    }

    /// Returns the rectangle of the whole picture.
    pub(super) fn whole(&self) -> Rectangle {
        Rectangle { x: 0, y: 0, width: self.width, height: self.height }
    }

    /// Returns all pixels as bytes.
    pub(super) fn pixels(&self) -> &[u8] {
        &self.pixels
    }

    /// Returns the bytes from one row to the next.
    fn stride(&self) -> usize {
        self.width as usize * PIXEL_BYTES
    }

    fn start(&self, x: u32, y: u32) -> usize {
        y as usize * self.stride() + x as usize * PIXEL_BYTES
    }

    /// Returns the rows of a rectangle inside the picture.
    pub(super) fn rows(&self, rectangle: &Rectangle) -> impl Iterator<Item = &[u8]> {
        let length = rectangle.width as usize * PIXEL_BYTES;
        let (x, y) = (rectangle.x, rectangle.y);
        (0..rectangle.height).map(move |row| &self.pixels[self.start(x, y + row)..][..length])
    }

    /// Returns a part of a row, for writing. The part is inside the picture.
    pub(super) fn row_mut(&mut self, x: u32, y: u32, width: u32) -> &mut [u8] {
        let start = self.start(x, y);
        &mut self.pixels[start..start + width as usize * PIXEL_BYTES]
    }

    /// Copies the pixels at `(x, y)` to `to`. Both rectangles are inside the picture and may overlap.
    pub(super) fn copy(&mut self, x: u32, y: u32, to: &Rectangle) {
        let length = to.width as usize * PIXEL_BYTES;
        let mut copy_row = |row: u32| {
            let (from, into) = (self.start(x, y + row), self.start(to.x, to.y + row));
            self.pixels.copy_within(from..from + length, into);
        };
        match y < to.y {
            true => (0..to.height).rev().for_each(&mut copy_row),
            false => (0..to.height).for_each(&mut copy_row),
        }
    }

    /// Writes a part of a row. Adds the tiles that change to `damage`.
    fn write(&mut self, x: u32, y: u32, from: &[u8], damage: &mut Damage) {
        let width = (from.len() / PIXEL_BYTES) as u32;
        let into = self.row_mut(x, y, width);
        if into == from {
            return;
        }
        let row = y / TILE;
        let mut left = 0;
        while left < width {
            let column = (x + left) / TILE;
            let right = ((column + 1) * TILE - x).min(width);
            let part = left as usize * PIXEL_BYTES..right as usize * PIXEL_BYTES;
            if !damage.has(column, row) && into[part.clone()] != from[part] {
                damage.add_tile(column, row);
            }
            left = right;
        }
        into.copy_from_slice(from);
    }
}

/// Checks that a `video` message can be displayed. Checks only its header, since this precedes the queue to the thread.
pub(super) fn check(body: &Body) -> Result<(), String> {
    let header = header(body)?;
    match header.kind {
        Kind::Boxes | Kind::Cursor | Kind::Clipboard => Ok(()),
        Kind::Frame | Kind::Rectangles => bgrx::check(header.geometry.pixels()),
    }
}

fn header(body: &Body) -> Result<Header, String> {
    let front = body.peek_front::<{ Header::BYTES }>().ok_or("it is shorter than a picture header")?;
    Header::parse(&front).map_err(|error| error.to_string())
}

/// The effect of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Applied {
    /// The picture has a new size and is completely new.
    Size,
    /// Tiles of the picture may have changed.
    Pixels,
    /// The pointer shape has changed.
    Cursor,
    /// The clipboard has this text; `None`: it has a new one.
    Clipboard(Option<String>),
    /// The message has nothing to display.
    Nothing,
}

/// The screen that viewers see: the picture and the pointer shape.
#[derive(Debug, Default)]
pub(super) struct Screen {
    /// Empty until the first picture arrives.
    pub(super) picture: Picture,
    pub(super) cursor: Option<Cursor>,
    /// Blue, green, red and opacity of the cursor.
    pub(super) cursor_pixels: Vec<u8>,
    /// The damage of the last messages. The owner merges it into each viewer's damage and clears it.
    pub(super) damage: Damage,
    /// A buffer for one converted row.
    row: Vec<u8>,
}

impl Screen {
    /// Returns whether no picture has arrived yet.
    pub(super) fn is_empty(&self) -> bool {
        self.picture.pixels.is_empty()
    }

    /// Applies a `video` message. The error names the problem and the remedy.
    pub(super) fn apply(&mut self, body: &Body) -> Result<Applied, String> {
        let header = header(body)?;
        let mut rest = body.clone();
        rest.skip_front(Header::BYTES);
        let bytes = rest.into_bytes();
        let geometry = header.geometry;
        match header.parse_content(&bytes).map_err(|error| error.to_string())? {
            Content::Boxes(_) => Ok(Applied::Nothing),
            Content::Clipboard(text) => Ok(Applied::Clipboard(text.map(clean))),
            Content::Cursor(cursor, pixels) => {
                self.cursor = Some(cursor);
                self.cursor_pixels.clear();
                self.cursor_pixels.extend(pixels);
                Ok(Applied::Cursor)
            }
            Content::Frame(pixels) => {
                bgrx::check(geometry.pixels())?;
                let applied = self.fit(&geometry);
                if geometry.pixels().is_packed() {
                    for (y, row) in geometry.plane(0).rows(pixels).enumerate() {
                        self.write(0, y as u32, row, geometry.pixels());
                    }
                } else {
                    for y in 0..geometry.height() {
                        self.row.clear();
                        bgrx::luma_row(&geometry, pixels, y as usize, &mut self.row);
                        self.picture.write(0, y, &self.row, &mut self.damage);
                    }
                }
                Ok(applied)
            }
            Content::Rectangles(rectangles, mut pixels) => {
                let applied = self.fit(&geometry);
                for Rectangle { x, y, width, height } in rectangles {
                    let row_bytes = width as usize * geometry.pixels().pixel_bytes();
                    for row in 0..height {
                        let (row_pixels, remaining) = pixels.split_at(row_bytes);
                        self.write(x, y + row, row_pixels, geometry.pixels());
                        pixels = remaining;
                    }
                }
                Ok(applied)
            }
        }
    }

    /// Replaces the picture by a black one if its size differs.
    fn fit(&mut self, geometry: &Geometry) -> Applied {
        let (width, height) = (geometry.width(), geometry.height());
        if (width, height) == (self.picture.width, self.picture.height) {
            return Applied::Pixels;
        }
        self.picture = Picture::new(width, height);
        self.damage = Damage::none(width, height);
        Applied::Size
    }

    /// Converts and writes a part of a row of packed pixels.
    fn write(&mut self, x: u32, y: u32, row: &[u8], pixels: PixelFormat) {
        if pixels == PixelFormat::Bgrx32 {
            return self.picture.write(x, y, row, &mut self.damage);
        }
        self.row.clear();
        bgrx::packed_row(pixels, row, &mut self.row);
        self.picture.write(x, y, &self.row, &mut self.damage);
    }
}
