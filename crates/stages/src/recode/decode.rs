//! Decoding. The input may be hostile.

use super::{
    COLOURS_MAX, COLUMN_ROWS, COLUMNS, DIFFERENCES, PIXEL_BYTES, PIXELS, Pixel, SAME_PALETTE, Tile,
    dimensions, index_bits, is_supported, mean_bytes, tiles, wrapping_add_bytes,
};
use crate::varint;
use wire::formats::video::{Header, Kind, Rectangle};

/// A message in tiles with its prefix parsed.
pub(crate) struct TiledPicture<'a> {
    header: Header,
    prefix: &'a [u8],
    rectangles: Vec<Rectangle>,
    rest: &'a [u8],
}

impl<'a> TiledPicture<'a> {
    /// Parses the prefix of a message in tiles.
    pub(crate) fn read(bytes: &'a [u8]) -> Result<TiledPicture<'a>, String> {
        let header = Header::parse(bytes).map_err(|error| error.to_string())?;
        if !is_supported(&header) {
            return Err("its pixel format does not allow tiles".into());
        }
        let after_header = &bytes[Header::BYTES..];
        let (rectangles, rest) = match header.kind {
            Kind::Frame => (Vec::new(), after_header),
            _ => header.parse_places(after_header).map_err(|error| error.to_string())?,
        };
        Ok(TiledPicture { header, prefix: &bytes[..bytes.len() - rest.len()], rectangles, rest })
    }

    /// Size of the decoded message.
    pub(crate) fn bytes(&self) -> usize {
        let pixels: usize =
            dimensions(&self.header, &self.rectangles).map(|(width, height)| width * height).sum();
        self.prefix.len() + pixels * PIXEL_BYTES
    }

    /// Writes the decoded message to `into`, which has its size.
    pub(crate) fn write(&self, into: &mut [u8]) -> Result<(), String> {
        let (prefix, pixels) = into.split_at_mut(self.prefix.len());
        prefix.copy_from_slice(self.prefix);
        let mut pixels = pixels.as_chunks_mut().0;
        let mut streams = Streams::read(self.rest)?;
        for (width, height) in dimensions(&self.header, &self.rectangles) {
            let (own, others) = pixels.split_at_mut(width * height);
            pixels = others;
            for tile in tiles(width, height) {
                streams.decode_tile(own, width, tile).ok_or("a tile is cut short or invalid")?;
            }
        }
        if streams.is_empty() { Ok(()) } else { Err("bytes follow its last tile".into()) }
    }
}

/// The unread rest of each part of a picture.
struct Streams<'a> {
    heads: &'a [u8],
    colours: &'a [u8],
    indices: &'a [u8],
    pixels: &'a [u8],
    differences: [&'a [u8]; 3],
    padding: u8,
    /// The palette of the last tile with one.
    palette: [Pixel; COLOURS_MAX],
    palette_len: usize,
}

/// Takes the first `count` bytes of a part.
fn take_bytes<'a>(bytes: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(count)?;
    *bytes = rest;
    Some(taken)
}

impl<'a> Streams<'a> {
    fn read(mut rest: &'a [u8]) -> Result<Streams<'a>, String> {
        let mut parts = || {
            let [padding] = *take_bytes(&mut rest, 1)?.first_chunk()?;
            let mut lengths = [0; 4];
            for length in &mut lengths {
                *length = usize::try_from(varint::take_slice(&mut rest)?).ok()?;
            }
            let mut parts = [rest; 4];
            for (part, length) in parts.iter_mut().zip(lengths) {
                *part = take_bytes(&mut rest, length)?;
            }
            Some((padding, parts, rest))
        };
        let (padding, [heads, colours, indices, pixels], rest) = parts().ok_or("its parts are cut short")?;
        if !rest.len().is_multiple_of(3) {
            return Err("its differences are not three equal parts".into());
        }
        let (blue, others) = rest.split_at(rest.len() / 3);
        let (green, red) = others.split_at(blue.len());
        let palette = [[0, 0, 0, padding]; COLOURS_MAX];
        let differences = [blue, green, red];
        Ok(Streams { heads, colours, indices, pixels, differences, padding, palette, palette_len: 0 })
    }

    fn is_empty(&self) -> bool {
        let Streams { heads, colours, indices, pixels, differences: [blue, ..], .. } = self;
        [heads, colours, indices, pixels, blue].iter().all(|part| part.is_empty())
    }

    /// Decodes a tile; `None` if a part is cut short or a value is invalid.
    fn decode_tile(&mut self, image: &mut [Pixel], width: usize, tile: Tile) -> Option<()> {
        let [head] = *take_bytes(&mut self.heads, 1)?.first_chunk()?;
        match head {
            DIFFERENCES => self.differences(image, width, tile),
            PIXELS => {
                let repeated_rows = self.repeated_rows(tile)?;
                for row in 0..tile.height {
                    if copy_row_above(image, width, tile, row, repeated_rows) {
                        continue;
                    }
                    let colours = take_bytes(&mut self.pixels, tile.width * 3)?.as_chunks().0;
                    let into = &mut image[(tile.top + row) * width + tile.left..][..tile.width];
                    for (into, [blue, green, red]) in into.iter_mut().zip(colours) {
                        *into = [*blue, *green, *red, self.padding];
                    }
                }
                Some(())
            }
            _ if head & !SAME_PALETTE == COLUMNS | 2 => {
                self.read_palette(head & !COLUMNS)?;
                let [zero, one] = *self.palette.first_chunk()?;
                for top in (0..tile.height).step_by(COLUMN_ROWS) {
                    let columns = take_bytes(&mut self.indices, tile.width)?;
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
                let count = self.read_palette(head)?;
                if count == 1 {
                    let colour = self.palette[0];
                    for row in 0..tile.height {
                        image[(tile.top + row) * width + tile.left..][..tile.width].fill(colour);
                    }
                    return Some(());
                }
                let repeated_rows = self.repeated_rows(tile)?;
                let index_bits = index_bits(count);
                for row in 0..tile.height {
                    if copy_row_above(image, width, tile, row, repeated_rows) {
                        continue;
                    }
                    let indices = take_bytes(&mut self.indices, (tile.width * index_bits).div_ceil(8))?;
                    let into = &mut image[(tile.top + row) * width + tile.left..][..tile.width];
                    unpack_row(indices, index_bits, &self.palette, count, into)?;
                }
                Some(())
            }
        }
    }

    /// Takes the palette of a tile; returns its length.
    fn read_palette(&mut self, head: u8) -> Option<usize> {
        let count = usize::from(head & !SAME_PALETTE);
        if !(1..=COLOURS_MAX).contains(&count) {
            return None;
        }
        if head & SAME_PALETTE != 0 {
            return (count == self.palette_len).then_some(count);
        }
        let colours = take_bytes(&mut self.colours, count * 3)?.as_chunks().0;
        for (into, [blue, green, red]) in self.palette.iter_mut().zip(colours) {
            *into = [*blue, *green, *red, self.padding];
        }
        self.palette_len = count;
        Some(count)
    }

    /// Takes the mask of rows that repeat the row above. The first row cannot.
    fn repeated_rows(&mut self, tile: Tile) -> Option<u16> {
        let mask = u16::from_le_bytes(*take_bytes(&mut self.heads, 2)?.first_chunk()?);
        (mask & 1 == 0 && u32::from(mask) >> tile.height == 0).then_some(mask)
    }

    fn differences(&mut self, image: &mut [Pixel], width: usize, tile: Tile) -> Option<()> {
        for y in tile.top..tile.top + tile.height {
            let start = y * width + tile.left;
            let mut parts = [&[][..]; 3];
            for (part, from) in parts.iter_mut().zip(&mut self.differences) {
                *part = take_bytes(from, tile.width)?;
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
            // At the edges, a pixel has one neighbour or none.
            let predicted = match (left, above) {
                (Some(left), Some(above)) => mean_bytes(left, value(&above[0])),
                (None, Some(above)) => value(&above[0]),
                (left, None) => left.unwrap_or(u32::from(self.padding) << 24),
            };
            let mut last = wrapping_add_bytes(predicted, differences.next()?);
            let (first, row) = row.split_first_mut()?;
            *first = last.to_le_bytes();
            match above {
                Some(above) => {
                    for ((into, difference), above) in row.iter_mut().zip(differences).zip(&above[1..]) {
                        last = wrapping_add_bytes(mean_bytes(last, value(above)), difference);
                        *into = last.to_le_bytes();
                    }
                }
                None => {
                    for (into, difference) in row.iter_mut().zip(differences) {
                        last = wrapping_add_bytes(last, difference);
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

/// Copies the row above to this one if the mask says so; returns true if it did.
fn copy_row_above(image: &mut [Pixel], width: usize, tile: Tile, row: usize, repeated_rows: u16) -> bool {
    let is_as_above = repeated_rows >> row & 1 != 0;
    if is_as_above {
        let start = (tile.top + row) * width + tile.left;
        image.copy_within(start - width..start - width + tile.width, start);
    }
    is_as_above
}

/// Writes a row of pixels from their palette indices; `None` if an index is out of range.
fn unpack_row(
    indices: &[u8],
    index_bits: usize,
    colours: &[Pixel; COLOURS_MAX],
    count: usize,
    into: &mut [Pixel],
) -> Option<()> {
    let (each, mask) = (8 / index_bits, (1u8 << index_bits) - 1);
    let mut highest = 0;
    for (some, packed) in into.chunks_mut(each).zip(indices) {
        for (at, into) in some.iter_mut().enumerate() {
            let number = packed >> (8 - index_bits * (at + 1)) & mask;
            highest = highest.max(number);
            *into = colours[usize::from(number) % COLOURS_MAX];
        }
    }
    (usize::from(highest) < count).then_some(())
}
