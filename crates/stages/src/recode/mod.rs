//! Lossless recoding of screen pictures as tiles, in front of a general compressor.
//!
//! A byte compressor sees four bytes per pixel, one of which is padding, and recognises a colour
//! only in a context that it has seen before. Here, a picture is cut into tiles of [`TILE_WIDTH`]
//! by [`TILE_HEIGHT`] pixels. The encoding of a tile depends on its content:
//!
//! - *Palette*, for few colours (text, panels, drawings): the colours, and for each pixel the index
//!   of its colour in as few bits as possible. Rows equal to the row above are left out. The
//!   palette is sorted, so the same letter in the same colours is the same bytes everywhere.
//! - *Columns*, a palette of two colours in another order (text): eight rows at a time, column by
//!   column. A letter is then the same bytes at any horizontal position; row by row, its bytes
//!   would depend on its position modulo 8.
//! - *Pixels*, for many colours with repetition (text with soft edges): blue, green and red of each
//!   pixel.
//! - *Differences*, for many colours without repetition (photographs): the difference of each
//!   colour from the mean of its left and upper neighbours in the whole picture; all blues, then
//!   all greens, then all reds.
//!
//! Data of one kind is stored together, so that the compressor finds repetitions:
//!
//! ```text
//! the message's header and table of rectangles, unchanged
//! padding: u8, the fourth byte of every pixel
//! lengths of heads, colours, indices and pixels in bytes: LEB128 each
//! heads, colours, indices, pixels; then the differences: blue, green and red, of equal length
//! ```
//!
//! A head is one byte, for some kinds followed by a row mask (u16, little-endian: a bit for each
//! row, 1 if it equals the row above it in the tile):
//!
//! ```text
//! 1 to 16    palette of so many colours; a row mask follows if there are 2 or more
//!  + 128     the palette is that of the last tile with one
//!  2 + 64    columns: no row mask
//! 32         pixels; a row mask follows
//! 33         differences
//! ```
//!
//! Colours are blue, green, red. Indices take 1, 2 or 4 bits, highest bits first; each row starts
//! at a new byte. In columns, a byte holds eight rows of one column, the upper row in its highest
//! bit; the columns of eight rows are followed by those of the next eight, which may be fewer.
//! Tiles are ordered row by row from the upper left corner of each rectangle; tiles at its right
//! and lower edges are smaller.

mod decode;
mod encode;
#[cfg(test)]
mod tests;

pub(crate) use decode::TiledPicture;
pub(crate) use encode::Encoder;

use wire::formats::video::{Header, Kind, PixelFormat, Rectangle};

/// Width and height of a tile, in pixels.
const TILE_WIDTH: usize = 64;
const TILE_HEIGHT: usize = 16;
/// Largest palette.
const COLOURS_MAX: usize = 16;
/// Heads that are not the size of a palette.
const PIXELS: u8 = 32;
const DIFFERENCES: u8 = 33;
/// Flag of a head: the palette is that of the last tile with one.
const SAME_PALETTE: u8 = 128;
/// Flag of a head: two colours in columns; and the rows in a byte.
const COLUMNS: u8 = 64;
const COLUMN_ROWS: usize = 8;
/// Bytes of a pixel.
const PIXEL_BYTES: usize = 4;
/// Offset of the table of rectangles: behind the header and the number of rectangles.
const RECTANGLES_OFFSET: usize = Header::BYTES + 2;

/// Blue, green, red and padding.
type Pixel = [u8; PIXEL_BYTES];

/// Bits of an index into a palette of this size.
fn index_bits(colours: usize) -> usize {
    match colours {
        0..=2 => 1,
        3..=4 => 2,
        _ => 4,
    }
}

const LOW: u32 = 0x0101_0101;
const HIGH: u32 = LOW << 7;

/// Mean of two pixels, byte by byte, rounded down. The first summand has the bits that both share;
/// the second is half of the others, without those that would shift into the next byte.
fn mean_bytes(a: u32, b: u32) -> u32 {
    (a & b) + (((a ^ b) & !LOW) >> 1)
}

/// Sum of two pixels, byte by byte, wrapping. The highest bits are added apart, so no carry leaves a byte.
fn wrapping_add_bytes(a: u32, b: u32) -> u32 {
    ((a & !HIGH) + (b & !HIGH)) ^ ((a ^ b) & HIGH)
}

/// Difference of two pixels, byte by byte, wrapping. The highest bits are subtracted apart, so no borrow leaves a byte.
fn wrapping_sub_bytes(a: u32, b: u32) -> u32 {
    ((a | HIGH) - (b & !HIGH)) ^ ((a ^ !b) & HIGH)
}

/// A tile: its position in a rectangle and its size, in pixels.
#[derive(Debug, Clone, Copy)]
struct Tile {
    left: usize,
    top: usize,
    width: usize,
    height: usize,
}

/// The tiles of a rectangle of this size.
fn tiles(width: usize, height: usize) -> impl Iterator<Item = Tile> {
    (0..height).step_by(TILE_HEIGHT).flat_map(move |top| {
        (0..width).step_by(TILE_WIDTH).map(move |left| {
            let (width, height) = (TILE_WIDTH.min(width - left), TILE_HEIGHT.min(height - top));
            Tile { left, top, width, height }
        })
    })
}

/// True if pictures with this header are supported: four bytes a pixel, rows without gaps.
fn is_supported(header: &Header) -> bool {
    let is_tight = header.kind == Kind::Rectangles || header.geometry.is_tight();
    header.geometry.pixels() == PixelFormat::Bgrx32
        && matches!(header.kind, Kind::Frame | Kind::Rectangles)
        && is_tight
}

/// Width and height of each rectangle in a message; of the whole picture for a frame.
fn dimensions(header: &Header, rectangles: &[Rectangle]) -> impl Iterator<Item = (usize, usize)> {
    let whole = (header.kind == Kind::Frame).then(|| (header.geometry.width(), header.geometry.height()));
    let parts = rectangles.iter().map(|part| (part.width, part.height));
    whole.into_iter().chain(parts).map(|(width, height)| (width as usize, height as usize))
}
