//! Pictures to paint: a desktop's, a photograph's, and incompressible ones.

use clap::ValueEnum;

/// Bytes of a pixel: blue, green, red and an unused one.
pub(crate) const PIXEL_BYTES: usize = 4;

/// Pixels of a picture's number, at the start of the first row and at the end of the last row. A picture with both is complete.
pub(crate) const NUMBER_PIXELS: usize = 4;

/// Size of a text cell, and number of letters.
const CELL: [usize; 2] = [6, 11];
const LETTERS: u32 = 64;
/// The colour behind text.
const PAPER: u32 = 0x00fd_fdfd;

/// Content of pictures. Every pixel changes from one picture to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Content {
    /// A desktop: areas of one colour, and text
    Flat,
    /// Text before a photograph with grain
    Mixed,
    /// Random pixels
    Noisy,
    /// A film of 24 pictures a second: a camera moves over a landscape
    Film,
}

/// Number of different pictures, which repeat.
const PICTURES: u32 = 6;

/// The repeating pictures of a film.
pub(crate) struct Film {
    pub(crate) pictures: Vec<Vec<u8>>,
    /// Pictures a second, or 0 for the receiver's pace.
    pub(crate) rate_hz: f64,
}

/// A hash (the finaliser of murmur3).
fn hash(mut value: u32) -> u32 {
    value = (value ^ value >> 16).wrapping_mul(0x85eb_ca6b);
    value = (value ^ value >> 13).wrapping_mul(0xc2b2_ae35);
    value ^ value >> 16
}

fn grey(red: u32, green: u32, blue: u32) -> u32 {
    red << 16 | green << 8 | blue
}

impl Content {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Content::Flat => "flat",
            Content::Mixed => "mixed",
            Content::Noisy => "noisy",
            Content::Film => "film",
        }
    }

    /// Returns true if the content is painted in several sizes.
    pub(crate) fn is_varied(self) -> bool {
        matches!(self, Content::Mixed | Content::Film)
    }

    /// Returns square pictures with this side.
    pub(crate) fn film(self, side: usize) -> Film {
        let rate_hz = if self == Content::Film { 24.0 } else { 0.0 };
        let picture = |number| {
            let pixels = (0..side * side).map(|at| self.pixel(at % side, at / side, number, side));
            pixels.flat_map(u32::to_le_bytes).collect()
        };
        Film { pictures: (0..PICTURES).map(picture).collect(), rate_hz }
    }

    fn pixel(self, x: usize, y: usize, number: u32, side: usize) -> u32 {
        match self {
            // A different colour scheme each time changes every pixel.
            Content::Flat => desktop(x, y, number, side) ^ ((0x0011_2a43 * (number + 1)) & 0x00ff_ffff),
            Content::Mixed => match text(x, y, number, side) {
                Some(colour) => colour ^ (0x0001_0203 * (number + 1)),
                None => {
                    let grain = hash((y * side + x) as u32 ^ number << 24);
                    landscape(x + 13 * number as usize, y, grain)
                }
            },
            Content::Noisy => hash((y * side + x) as u32 ^ hash(number + 1)) & 0x00ff_ffff,
            Content::Film => {
                let grain = hash((y * side + x) as u32 ^ number << 24) & 0x0001_0101;
                landscape(x + 5 * number as usize, y + 2 * number as usize, grain)
            }
        }
    }
}

/// A panel, windows with titles, and text on another page each time.
fn desktop(x: usize, y: usize, number: u32, side: usize) -> u32 {
    if y < 24 {
        return 0x0030_3438;
    }
    text(x, y, number, side).unwrap_or(0x0033_6699)
}

/// Two windows of text on about two fifths of the picture.
fn text(x: usize, y: usize, number: u32, side: usize) -> Option<u32> {
    let windows =
        [(side / 14, side / 8, side / 2, side / 2), (side / 2, side / 2, side * 3 / 7, side * 2 / 5)];
    let (left, top, ..) = windows.into_iter().rev().find(|(left, top, width, height)| {
        (*left..left + width).contains(&x) && (*top..top + height).contains(&y)
    })?;
    let (x, y) = (x - left, y - top);
    if y < 20 {
        return Some(0x0050_5a64);
    }
    let (column, row) = (x / CELL[0], y / CELL[1]);
    let (across, down) = (x % CELL[0], y % CELL[1]);
    let place = hash((row * 4096 + column) as u32 ^ number << 24);
    // Words and lines end.
    let is_blank =
        place.is_multiple_of(6) || column > 20 + (hash(row as u32) % 60) as usize || across == 5 || down > 7;
    if is_blank {
        return Some(PAPER);
    }
    // Strokes with soft edges, like antialiased text.
    Some(match hash(hash(place % LETTERS) ^ (down * 8 + across) as u32) % 8 {
        0 | 1 => 0x0010_1010,
        shade @ 2..4 => 0x0020_2020 * shade,
        _ => PAPER,
    })
}

/// Hills of colour, coarse and fine, with the grain of a photograph.
fn landscape(x: usize, y: usize, grain: u32) -> u32 {
    let hill = |size: usize, salt: u32| {
        let corner = |x: usize, y: usize| hash((x * 8192 + y) as u32 ^ salt << 26) & 0xff;
        let (column, row, across, down) = (x / size, y / size, (x % size) as u32, (y % size) as u32);
        let size = size as u32;
        let between = |from: u32, to: u32, at: u32| (from * (size - at) + to * at) / size;
        let upper = between(corner(column, row), corner(column + 1, row), across);
        let lower = between(corner(column, row + 1), corner(column + 1, row + 1), across);
        between(upper, lower, down)
    };
    let height = (hill(160, 1) * 3 + hill(31, 2)) / 4;
    let tint = hill(220, 3);
    let colour = |base: u32, bits: u32| (base * 3 / 4 + 24 + (grain >> bits & 7)).min(255);
    grey(colour((height + tint) / 2, 0), colour(height, 8), colour((height + 255 - tint) / 2, 16))
}

/// Returns the number in pixels, 0 without one.
pub(crate) fn number_at(pixels: &[u8]) -> u32 {
    let pixels = pixels.as_chunks::<PIXEL_BYTES>().0;
    let Some(first) = pixels.first().map(|pixel| u32::from_le_bytes(*pixel) & 0x00ff_ffff) else { return 0 };
    let all = pixels.len() == NUMBER_PIXELS
        && pixels.iter().all(|pixel| u32::from_le_bytes(*pixel) & 0x00ff_ffff == first);
    if all { first } else { 0 }
}

/// Returns the pixels of a number.
pub(crate) fn number_pixels(number: u32) -> [u8; NUMBER_PIXELS * PIXEL_BYTES] {
    let mut pixels = [0; NUMBER_PIXELS * PIXEL_BYTES];
    pixels.as_chunks_mut::<PIXEL_BYTES>().0.iter_mut().for_each(|pixel| *pixel = number.to_le_bytes());
    pixels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pixel_changes_from_one_picture_to_the_next() {
        for content in [Content::Flat, Content::Mixed, Content::Noisy] {
            let film = content.film(100);
            for (one, next) in film.pictures.iter().zip(&film.pictures[1..]) {
                let pairs = one.as_chunks::<4>().0.iter().zip(next.as_chunks::<4>().0);
                let same = pairs.filter(|(one, next)| one == next).count();
                assert!(same < 200, "{content:?}: {same} of 10000");
            }
        }
    }

    #[test]
    fn a_number_is_read_only_at_its_position() {
        assert_eq!(number_at(&number_pixels(77)), 77);
        assert_eq!(number_at(&number_pixels(77)[..12]), 0);
        let mut pixels = number_pixels(77);
        pixels[4] = 1;
        assert_eq!(number_at(&pixels), 0);
    }
}
