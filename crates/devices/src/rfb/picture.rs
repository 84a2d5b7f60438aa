//! The picture that both sides keep, and what becomes of it when a message of `video` comes.

use super::pixels::PIXEL_BYTES;
use crate::bgrx;
use crate::damage::{Damage, TILE};
use contract::Body;
use wire::formats::video::{Content, Cursor, Geometry, Header, Kind, PixelFormat, Rectangle};

/// A whole picture, in blue, green, red and a byte more, row behind row.
#[derive(Debug, Clone, Default)]
pub(super) struct Picture {
    width: u32,
    height: u32,
    pixels: Vec<u8>,
}

impl Picture {
    /// A black picture.
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

    /// All of it as a place.
    pub(super) fn whole(&self) -> Rectangle {
        Rectangle { x: 0, y: 0, width: self.width, height: self.height }
    }

    /// All of it as bytes.
    pub(super) fn pixels(&self) -> &[u8] {
        &self.pixels
    }

    /// Bytes from one row to the next.
    fn stride(&self) -> usize {
        self.width as usize * PIXEL_BYTES
    }

    fn start(&self, x: u32, y: u32) -> usize {
        y as usize * self.stride() + x as usize * PIXEL_BYTES
    }

    /// The rows of a rectangle, which lies inside.
    pub(super) fn rows(&self, rectangle: &Rectangle) -> impl Iterator<Item = &[u8]> {
        let length = rectangle.width as usize * PIXEL_BYTES;
        let (x, y) = (rectangle.x, rectangle.y);
        (0..rectangle.height).map(move |row| &self.pixels[self.start(x, y + row)..][..length])
    }

    /// A part of one row, which lies inside, to be written.
    pub(super) fn row_mut(&mut self, x: u32, y: u32, width: u32) -> &mut [u8] {
        let start = self.start(x, y);
        &mut self.pixels[start..start + width as usize * PIXEL_BYTES]
    }

    /// Copies what stands at `(x, y)` to `to`; both lie inside and may overlap.
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

    /// Writes a part of a row; says in `damage` which tiles are not as they were.
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

/// Looks at a message of `video` before it is taken: whether it is something that can be shown.
pub(super) fn check(body: &Body) -> Result<(), String> {
    let header = header(body)?;
    match header.kind {
        Kind::Boxes | Kind::Cursor => Ok(()),
        Kind::Frame | Kind::Rectangles => bgrx::check(header.geometry.pixels()),
    }
}

fn header(body: &Body) -> Result<Header, String> {
    let front = body.peek_front::<{ Header::BYTES }>().ok_or("it is shorter than its header")?;
    Header::parse(&front).map_err(|error| error.to_string())
}

/// What a message did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Applied {
    /// The picture has another size; all of it is new.
    Size,
    /// Tiles of it changed, or none.
    Pixels,
    /// The pointer has another shape.
    Cursor,
    /// Nothing that is shown.
    Nothing,
}

/// What the application's side shows: the picture and the pointer's shape.
#[derive(Debug, Default)]
pub(super) struct Screen {
    /// Empty until the first picture came.
    pub(super) picture: Picture,
    pub(super) cursor: Option<Cursor>,
    /// Blue, green, red and opacity of the cursor.
    pub(super) cursor_pixels: Vec<u8>,
    /// What the last messages changed; its owner hands it on and clears it.
    pub(super) damage: Damage,
    /// One row of ours, made of one of another format.
    row: Vec<u8>,
}

impl Screen {
    /// Whether there is anything to show.
    pub(super) fn is_empty(&self) -> bool {
        self.picture.pixels.is_empty()
    }

    /// Takes a message of `video`. Errors say what is wrong with it and what to do.
    pub(super) fn apply(&mut self, body: &Body) -> Result<Applied, String> {
        let header = header(body)?;
        let mut rest = body.clone();
        rest.skip_front(Header::BYTES);
        let bytes = rest.into_bytes();
        let geometry = header.geometry;
        match header.parse_content(&bytes).map_err(|error| error.to_string())? {
            Content::Boxes(_) => Ok(Applied::Nothing),
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
                        let (now, later) = pixels.split_at(row_bytes);
                        self.write(x, y + row, now, geometry.pixels());
                        pixels = later;
                    }
                }
                Ok(applied)
            }
        }
    }

    /// Gives the picture this size, black, if it has another.
    fn fit(&mut self, geometry: &Geometry) -> Applied {
        let (width, height) = (geometry.width(), geometry.height());
        if (width, height) == (self.picture.width, self.picture.height) {
            return Applied::Pixels;
        }
        self.picture = Picture::new(width, height);
        self.damage = Damage::none(width, height);
        Applied::Size
    }

    /// Writes a part of a row of packed pixels.
    fn write(&mut self, x: u32, y: u32, row: &[u8], pixels: PixelFormat) {
        if pixels == PixelFormat::Bgrx32 {
            return self.picture.write(x, y, row, &mut self.damage);
        }
        self.row.clear();
        bgrx::packed_row(pixels, row, &mut self.row);
        self.picture.write(x, y, &self.row, &mut self.damage);
    }
}
