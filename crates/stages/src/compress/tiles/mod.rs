//! What a screen shows, said in fewer bytes before a method for any bytes has its turn, and undone to the bit.
//!
//! A method for bytes sees four of them a pixel, one of which says nothing, and finds a colour only by having seen it in
//! the same company before. Here a picture is taken in tiles of [`ACROSS`] by [`DOWN`] pixels, and each says what it is:
//!
//! - of few colours (text, panels, drawings): which, and for each pixel the number of its own in as few bits as they take;
//!   rows that are as the one above are left out. Numbers are by the colours' order, so that the same letter in the same
//!   colours is the same bytes wherever it stands;
//! - of many that repeat (text with soft edges): blue, green and red of each pixel;
//! - of many that do not (photographs): what each colour differs by from the mean of its neighbours to the left and above,
//!   of the whole picture, all blues, then all greens, then all reds.
//!
//! What is of one kind stands together, for the method behind it to find what is alike:
//!
//! ```text
//! the message's header and table of rectangles, as they were
//! the fourth byte of every pixel: u8
//! bytes of heads, colours, numbers and pixels: LEB128 each
//! heads, colours, numbers, pixels; then the differences: blue, green and red in equal parts
//! ```
//!
//! A head is a byte: how many colours (1 to 16), 128 more if they are those of the last tile that had any; 32, pixels; 33,
//! differences. Behind one of 2 to 16 or 32 stand two bytes (little-endian) with a bit for each row, 1 if it is as the one
//! above it in the tile. Of two colours, 64 more says that nothing stands behind it, no row is left out, and numbers stand
//! in columns: eight rows of the first are a byte, the upper one its highest bit, then those of the second, and when all have
//! had theirs the next eight rows, which may be fewer. So a letter is the same bytes wherever it stands on its line, where in
//! rows eight of its pixels are others at each place. Tiles come row by row from the upper left corner of each rectangle; at its edges they are smaller.
//! Colours are blue, green and red; numbers are the highest bits first, 1, 2 or 4 a pixel, each row from a new byte.

mod decode;
mod encode;
#[cfg(test)]
mod tests;

pub(super) use decode::Tiled;
pub(super) use encode::Encoder;

use wire::formats::video::{Header, Kind, PixelFormat, Rectangle};

/// Pixels of a tile.
const ACROSS: usize = 64;
const DOWN: usize = 16;
/// Most colours that are numbered.
const COLOURS_MAX: usize = 16;
/// Heads that are no number of colours.
const PIXELS: u8 = 32;
const DIFFERENCES: u8 = 33;
/// The colours are those of the last tile that had any.
const AS_LAST: u8 = 128;
/// Numbers of two colours stand in columns, a byte for so many rows.
const COLUMNS: u8 = 64;
const COLUMN_ROWS: usize = 8;
/// Bytes of a pixel.
const PIXEL_BYTES: usize = 4;
/// Bytes of a header and the number of rectangles.
const COUNTED_BYTES: usize = Header::BYTES + 2;

/// Blue, green, red and a byte that means nothing.
type Pixel = [u8; PIXEL_BYTES];

/// Bits that a number of one of so many colours takes.
fn bits(colours: usize) -> usize {
    match colours {
        0..=2 => 1,
        3..=4 => 2,
        _ => 4,
    }
}

/// The lowest bit of each byte of a pixel, and the highest.
const LOW: u32 = 0x0101_0101;
const HIGH: u32 = LOW << 7;

/// The mean of two pixels, byte by byte, rounded down.
fn mean(a: u32, b: u32) -> u32 {
    (a & b) + (((a ^ b) & !LOW) >> 1)
}

/// Byte by byte, each by itself.
fn plus(a: u32, b: u32) -> u32 {
    ((a & !HIGH) + (b & !HIGH)) ^ ((a ^ b) & HIGH)
}

/// Byte by byte, each by itself.
fn minus(a: u32, b: u32) -> u32 {
    ((a | HIGH) - (b & !HIGH)) ^ ((a ^ !b) & HIGH)
}

/// A tile: columns and rows of a rectangle's pixels.
#[derive(Debug, Clone, Copy)]
struct Tile {
    left: usize,
    top: usize,
    width: usize,
    height: usize,
}

/// The tiles of so many pixels across and down.
fn tiles(width: usize, height: usize) -> impl Iterator<Item = Tile> {
    (0..height).step_by(DOWN).flat_map(move |top| {
        (0..width).step_by(ACROSS).map(move |left| {
            let (width, height) = (ACROSS.min(width - left), DOWN.min(height - top));
            Tile { left, top, width, height }
        })
    })
}

/// Whether pictures like this are understood: their pixels have four bytes, row behind row.
fn is_known(header: &Header) -> bool {
    let is_tight = header.kind == Kind::Rectangles || header.geometry.is_tight();
    header.geometry.pixels() == PixelFormat::Bgrx32
        && matches!(header.kind, Kind::Frame | Kind::Rectangles)
        && is_tight
}

/// Pixels across and down of what a message brings, a rectangle at a time.
fn sides(header: &Header, rectangles: &[Rectangle]) -> impl Iterator<Item = (usize, usize)> {
    let whole = (header.kind == Kind::Frame).then(|| (header.geometry.width(), header.geometry.height()));
    let parts = rectangles.iter().map(|part| (part.width, part.height));
    whole.into_iter().chain(parts).map(|(width, height)| (width as usize, height as usize))
}
