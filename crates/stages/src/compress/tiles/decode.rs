//! The way back: what comes may be anything.

use super::{
    AS_LAST, COLOURS_MAX, COLUMN_ROWS, COLUMNS, DIFFERENCES, PIXEL_BYTES, PIXELS, Pixel, Tile, bits,
    is_known, mean, plus, sides, tiles,
};
use crate::varint;
use wire::formats::video::{Header, Kind, Rectangle};

/// A message in tiles whose opening was read.
pub(crate) struct Tiled<'a> {
    header: Header,
    /// The header and the table of rectangles.
    prefix: &'a [u8],
    rectangles: Vec<Rectangle>,
    rest: &'a [u8],
}

impl<'a> Tiled<'a> {
    /// Reads what a message in tiles opens with.
    pub(crate) fn read(bytes: &'a [u8]) -> Result<Tiled<'a>, String> {
        let header = Header::parse(bytes).map_err(|error| error.to_string())?;
        if !is_known(&header) {
            return Err("its pixels cannot be in tiles".into());
        }
        let behind = &bytes[Header::BYTES..];
        let (rectangles, rest) = match header.kind {
            Kind::Frame => (Vec::new(), behind),
            _ => header.parse_places(behind).map_err(|error| error.to_string())?,
        };
        Ok(Tiled { header, prefix: &bytes[..bytes.len() - rest.len()], rectangles, rest })
    }

    /// Bytes of the message.
    pub(crate) fn bytes(&self) -> usize {
        let pixels: usize = sides(&self.header, &self.rectangles).map(|(width, height)| width * height).sum();
        self.prefix.len() + pixels * PIXEL_BYTES
    }

    /// Writes the message, as many bytes as it has.
    pub(crate) fn write(&self, into: &mut [u8]) -> Result<(), String> {
        let (prefix, pixels) = into.split_at_mut(self.prefix.len());
        prefix.copy_from_slice(self.prefix);
        let mut pixels = pixels.as_chunks_mut().0;
        let mut streams = Streams::read(self.rest)?;
        for (width, height) in sides(&self.header, &self.rectangles) {
            let (own, others) = pixels.split_at_mut(width * height);
            pixels = others;
            for tile in tiles(width, height) {
                streams.tile(own, width, tile).ok_or("a tile is cut short, or makes no sense")?;
            }
        }
        match streams.is_empty() {
            true => Ok(()),
            false => Err("more follows its last tile".into()),
        }
    }
}

/// What is left of the parts of a picture.
struct Streams<'a> {
    heads: &'a [u8],
    colours: &'a [u8],
    numbers: &'a [u8],
    pixels: &'a [u8],
    differences: [&'a [u8]; 3],
    fourth: u8,
    /// The colours of the last tile that had few.
    last: [Pixel; COLOURS_MAX],
    last_count: usize,
}

/// The first `count` bytes of a part.
fn take<'a>(bytes: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(count)?;
    *bytes = rest;
    Some(taken)
}

impl<'a> Streams<'a> {
    fn read(mut rest: &'a [u8]) -> Result<Streams<'a>, String> {
        let mut parts = || {
            let [fourth] = *take(&mut rest, 1)?.first_chunk()?;
            let mut lengths = [0; 4];
            for length in &mut lengths {
                *length = usize::try_from(varint::take_slice(&mut rest)?).ok()?;
            }
            let mut parts = [rest; 4];
            for (part, length) in parts.iter_mut().zip(lengths) {
                *part = take(&mut rest, length)?;
            }
            Some((fourth, parts, rest))
        };
        let (fourth, [heads, colours, numbers, pixels], rest) = parts().ok_or("its parts are cut short")?;
        if !rest.len().is_multiple_of(3) {
            return Err("its differences are not of three colours".into());
        }
        let (blue, others) = rest.split_at(rest.len() / 3);
        let (green, red) = others.split_at(blue.len());
        let last = [[0, 0, 0, fourth]; COLOURS_MAX];
        let differences = [blue, green, red];
        Ok(Streams { heads, colours, numbers, pixels, differences, fourth, last, last_count: 0 })
    }

    fn is_empty(&self) -> bool {
        let Streams { heads, colours, numbers, pixels, differences: [blue, ..], .. } = self;
        [heads, colours, numbers, pixels, blue].iter().all(|part| part.is_empty())
    }

    /// Writes a tile's pixels; `None` if they are not there.
    fn tile(&mut self, image: &mut [Pixel], width: usize, tile: Tile) -> Option<()> {
        let [head] = *take(&mut self.heads, 1)?.first_chunk()?;
        match head {
            DIFFERENCES => self.differences(image, width, tile),
            PIXELS => {
                let as_above = self.as_above(tile)?;
                for row in 0..tile.height {
                    if copy_above(image, width, tile, row, as_above) {
                        continue;
                    }
                    let colours = take(&mut self.pixels, tile.width * 3)?.as_chunks().0;
                    let into = &mut image[(tile.top + row) * width + tile.left..][..tile.width];
                    for (into, [blue, green, red]) in into.iter_mut().zip(colours) {
                        *into = [*blue, *green, *red, self.fourth];
                    }
                }
                Some(())
            }
            _ if head & !AS_LAST == COLUMNS | 2 => {
                self.palette(head & !COLUMNS)?;
                let [zero, one] = *self.last.first_chunk()?;
                for top in (0..tile.height).step_by(COLUMN_ROWS) {
                    let columns = take(&mut self.numbers, tile.width)?;
                    for at in 0..COLUMN_ROWS.min(tile.height - top) {
                        let into = &mut image[(tile.top + top + at) * width + tile.left..][..tile.width];
                        let bit = 1 << (COLUMN_ROWS - 1 - at);
                        for (into, column) in into.iter_mut().zip(columns) {
                            *into = if column & bit == 0 { zero } else { one };
                        }
                    }
                }
                Some(())
            }
            _ => {
                let count = self.palette(head)?;
                if count == 1 {
                    let colour = self.last[0];
                    for row in 0..tile.height {
                        image[(tile.top + row) * width + tile.left..][..tile.width].fill(colour);
                    }
                    return Some(());
                }
                let as_above = self.as_above(tile)?;
                let bits = bits(count);
                for row in 0..tile.height {
                    if copy_above(image, width, tile, row, as_above) {
                        continue;
                    }
                    let numbers = take(&mut self.numbers, (tile.width * bits).div_ceil(8))?;
                    let into = &mut image[(tile.top + row) * width + tile.left..][..tile.width];
                    unpack(numbers, bits, &self.last, count, into)?;
                }
                Some(())
            }
        }
    }

    /// Takes the colours of a tile that has few; how many.
    fn palette(&mut self, head: u8) -> Option<usize> {
        let count = usize::from(head & !AS_LAST);
        if !(1..=COLOURS_MAX).contains(&count) {
            return None;
        }
        if head & AS_LAST != 0 {
            return (count == self.last_count).then_some(count);
        }
        let colours = take(&mut self.colours, count * 3)?.as_chunks().0;
        for (into, [blue, green, red]) in self.last.iter_mut().zip(colours) {
            *into = [*blue, *green, *red, self.fourth];
        }
        self.last_count = count;
        Some(count)
    }

    /// Takes the bits of the rows that are as the one above; the first has none.
    fn as_above(&mut self, tile: Tile) -> Option<u16> {
        let mask = u16::from_le_bytes(*take(&mut self.heads, 2)?.first_chunk()?);
        (mask & 1 == 0 && u32::from(mask) >> tile.height == 0).then_some(mask)
    }

    fn differences(&mut self, image: &mut [Pixel], width: usize, tile: Tile) -> Option<()> {
        for y in tile.top..tile.top + tile.height {
            let start = y * width + tile.left;
            let mut parts = [&[][..]; 3];
            for (part, from) in parts.iter_mut().zip(&mut self.differences) {
                *part = take(from, tile.width)?;
            }
            let [blue, green, red] = parts;
            let (before, row) = image.split_at_mut(start);
            let row = &mut row[..tile.width];
            let left = before.last().filter(|_| tile.left > 0).map(value);
            let above = (y > 0).then(|| &before[start - width..][..tile.width]);
            let mut differences = blue
                .iter()
                .zip(green)
                .zip(red)
                .map(|((blue, green), red)| u32::from_le_bytes([*blue, *green, *red, 0]));
            // At the edge there is one neighbour, or none.
            let foretold = match (left, above) {
                (Some(left), Some(above)) => mean(left, value(&above[0])),
                (None, Some(above)) => value(&above[0]),
                (left, None) => left.unwrap_or(u32::from(self.fourth) << 24),
            };
            let mut last = plus(foretold, differences.next()?);
            let (first, row) = row.split_first_mut()?;
            *first = last.to_le_bytes();
            match above {
                Some(above) => {
                    for ((into, difference), above) in row.iter_mut().zip(differences).zip(&above[1..]) {
                        last = plus(mean(last, value(above)), difference);
                        *into = last.to_le_bytes();
                    }
                }
                None => {
                    for (into, difference) in row.iter_mut().zip(differences) {
                        last = plus(last, difference);
                        *into = last.to_le_bytes();
                    }
                }
            }
        }
        Some(())
    }
}

fn value(pixel: &Pixel) -> u32 {
    u32::from_le_bytes(*pixel)
}

/// Copies the row above to this one, if the mask says so.
fn copy_above(image: &mut [Pixel], width: usize, tile: Tile, row: usize, as_above: u16) -> bool {
    let is_as_above = as_above >> row & 1 != 0;
    if is_as_above {
        let start = (tile.top + row) * width + tile.left;
        image.copy_within(start - width..start - width + tile.width, start);
    }
    is_as_above
}

/// Writes a row of the colours that `numbers` stand for; `None` if one stands for none.
fn unpack(
    numbers: &[u8],
    bits: usize,
    colours: &[Pixel; COLOURS_MAX],
    count: usize,
    into: &mut [Pixel],
) -> Option<()> {
    let (each, mask) = (8 / bits, (1u8 << bits) - 1);
    let mut highest = 0;
    for (some, packed) in into.chunks_mut(each).zip(numbers) {
        for (at, into) in some.iter_mut().enumerate() {
            let number = packed >> (8 - bits * (at + 1)) & mask;
            highest = highest.max(number);
            *into = colours[usize::from(number) % COLOURS_MAX];
        }
    }
    (usize::from(highest) < count).then_some(())
}
