//! Encoding.

use super::{
    COLOURS_MAX, COLUMN_ROWS, COLUMNS, DIFFERENCES, PIXELS, Pixel, RECTANGLES_OFFSET, SAME_PALETTE,
    TILE_HEIGHT, TILE_WIDTH, Tile, dimensions, index_bits, is_supported, mean_bytes, tiles,
    wrapping_sub_bytes,
};
use crate::varint;
use contract::Body;
use wire::formats::video::{Header, Kind, Rectangle};

/// Slots of the hash table of a palette: a power of two, well above `COLOURS_MAX`.
const SLOTS: usize = 64;
/// A tile has repetition if at least one pixel in this many equals a neighbour.
const REPEAT_SHARE: usize = 4;
/// A tile of two colours is stored in columns if at least this many rows differ from the row above:
/// then it is likely text and not lines.
const COLUMN_ROWS_MIN: usize = 4;

/// Encodes pictures as tiles. Its buffers are reused.
#[derive(Debug, Default)]
pub(crate) struct Encoder {
    heads: Vec<u8>,
    colours: Vec<u8>,
    indices: Vec<u8>,
    pixels: Vec<u8>,
    differences: [Vec<u8>; 3],
    out: Vec<u8>,
    /// The palette of the last tile with one.
    last_palette: Vec<u32>,
}

impl Encoder {
    /// Encodes a message of format `video`; `None` if it is malformed or its pixel format is not
    /// supported.
    pub(crate) fn encode(&mut self, body: &Body) -> Option<&[u8]> {
        let front = body.peek_front::<{ Header::BYTES }>()?;
        let header = Header::parse(&front).ok().filter(is_supported)?;
        let mut rest = body.clone();
        let prefix_bytes = match header.kind {
            Kind::Frame => Header::BYTES,
            _ => {
                let [.., low, high] = body.peek_front::<RECTANGLES_OFFSET>()?;
                RECTANGLES_OFFSET + usize::from(u16::from_le_bytes([low, high])) * Rectangle::BYTES
            }
        };
        let prefix = rest.split_front(prefix_bytes)?;
        let rectangles = match header.kind {
            Kind::Frame => Vec::new(),
            _ => header.parse_places(&prefix[Header::BYTES..]).ok()?.0,
        };
        let bytes = rest.into_bytes();
        let (mut pixels, remainder) = bytes.as_chunks();
        let expected: usize = dimensions(&header, &rectangles).map(|(width, height)| width * height).sum();
        if pixels.len() != expected || !remainder.is_empty() {
            return None;
        }
        self.clear();
        let padding = pixels.first().map_or(0, |pixel| pixel[3]);
        for (width, height) in dimensions(&header, &rectangles) {
            let (rectangle, rest_pixels) = pixels.split_at(width * height);
            pixels = rest_pixels;
            for tile in tiles(width, height) {
                if !self.encode_tile(rectangle, width, tile, padding) {
                    return None;
                }
            }
        }
        Some(self.finish(&prefix, padding))
    }

    fn clear(&mut self) {
        let Encoder { heads, colours, indices, pixels, differences, out, last_palette } = self;
        let [blue, green, red] = differences;
        [heads, colours, indices, pixels, blue, green, red, out].into_iter().for_each(Vec::clear);
        last_palette.clear();
    }

    fn finish(&mut self, prefix: &[u8], padding: u8) -> &[u8] {
        let parts = [&self.heads, &self.colours, &self.indices, &self.pixels];
        self.out.extend_from_slice(prefix);
        self.out.push(padding);
        parts.iter().for_each(|part| varint::put(&mut self.out, part.len() as u64));
        parts.into_iter().chain(&self.differences).for_each(|part| self.out.extend_from_slice(part));
        &self.out
    }

    /// Encodes a tile; `false` if the fourth byte of a pixel differs from `padding`.
    fn encode_tile(&mut self, image: &[Pixel], width: usize, tile: Tile, padding: u8) -> bool {
        let row = |row: usize| &image[(tile.top + row) * width + tile.left..][..tile.width];
        let first = u32::from_le_bytes(row(0)[0]);
        // No early exit, so that the compiler vectorises the loop.
        let differ = (0..tile.height).fold(0, |differ, number| {
            row(number).iter().fold(differ, |differ, pixel| differ | (u32::from_le_bytes(*pixel) ^ first))
        });
        if (differ | (first ^ (u32::from(padding) << 24))) >> 24 != 0 {
            return false;
        }
        if differ == 0 {
            self.put_palette(&[first]);
            return true;
        }
        let repeated_rows = (1..tile.height)
            .filter(|number| row(*number) == row(number - 1))
            .fold(0u16, |mask, number| mask | 1 << number);
        let rows = (0..tile.height).filter(|number| repeated_rows >> number & 1 == 0).map(row);
        let mut palette = Palette::new(padding);
        let mut indices = [0; TILE_WIDTH * TILE_HEIGHT];
        if palette.index_pixels(rows.clone(), &mut indices) {
            let ranks = palette.sort();
            let head = self.heads.len();
            self.put_palette(palette.colours());
            if palette.count == 2 && rows.clone().count() >= COLUMN_ROWS_MIN {
                self.heads[head] |= COLUMNS;
                pack_columns(&indices, ranks[0], tile, repeated_rows, &mut self.indices);
                return true;
            }
            self.heads.extend(repeated_rows.to_le_bytes());
            let index_bits = index_bits(palette.count);
            for indices in indices.chunks_exact(tile.width).take(rows.count()) {
                pack_row(indices, &ranks, index_bits, &mut self.indices);
            }
        } else if has_repetition(image, width, tile) {
            self.heads.push(PIXELS);
            self.heads.extend(repeated_rows.to_le_bytes());
            for row in rows {
                let start = self.pixels.len();
                self.pixels.resize(start + row.len() * 3, 0);
                let into = self.pixels[start..].as_chunks_mut().0;
                into.iter_mut()
                    .zip(row)
                    .for_each(|(into, [blue, green, red, _])| *into = [*blue, *green, *red]);
            }
        } else {
            self.heads.push(DIFFERENCES);
            self.encode_differences(image, width, tile);
        }
        true
    }

    fn put_palette(&mut self, colours: &[u32]) {
        let is_same = self.last_palette == colours;
        self.heads.push(colours.len() as u8 | if is_same { SAME_PALETTE } else { 0 });
        if !is_same {
            self.last_palette.clear();
            self.last_palette.extend(colours);
            self.colours.extend(colours.iter().flat_map(|colour| colour.to_le_bytes().into_iter().take(3)));
        }
    }

    fn encode_differences(&mut self, image: &[Pixel], width: usize, tile: Tile) {
        let value = |pixel: &Pixel| u32::from_le_bytes(*pixel);
        let mut row_differences = [0; TILE_WIDTH];
        let differences = &mut row_differences[..tile.width];
        for y in tile.top..tile.top + tile.height {
            let start = y * width + tile.left;
            let row = &image[start..start + tile.width];
            let left = (tile.left > 0).then(|| value(&image[start - 1]));
            let above = (y > 0).then(|| &image[start - width..][..tile.width]);
            // At the edges, a pixel has one neighbour or none.
            let predicted = match (left, above) {
                (Some(left), Some(above)) => mean_bytes(left, value(&above[0])),
                (None, Some(above)) => value(&above[0]),
                (left, None) => left.unwrap_or_default(),
            };
            differences[0] = wrapping_sub_bytes(value(&row[0]), predicted);
            let pairs = differences[1..].iter_mut().zip(row).zip(&row[1..]);
            match above {
                Some(above) => {
                    for (((into, left), pixel), above) in pairs.zip(&above[1..]) {
                        *into = wrapping_sub_bytes(value(pixel), mean_bytes(value(left), value(above)));
                    }
                }
                None => pairs
                    .for_each(|((into, left), pixel)| *into = wrapping_sub_bytes(value(pixel), value(left))),
            }
            for (channel, into) in self.differences.iter_mut().enumerate() {
                let start = into.len();
                into.resize(start + differences.len(), 0);
                let bytes = into[start..].iter_mut().zip(&*differences);
                bytes.for_each(|(into, difference)| *into = (difference >> (8 * channel)) as u8);
            }
        }
    }
}

/// True if many pixels of a tile equal their left or upper neighbour.
fn has_repetition(image: &[Pixel], width: usize, tile: Tile) -> bool {
    let same = |y: usize| {
        let start = y * width + tile.left;
        let row = &image[start..start + tile.width];
        let above = if y > tile.top { &image[start - width..][..tile.width] } else { row };
        let pairs = row.iter().zip(&row[1..]).zip(&above[1..]);
        pairs
            .map(|((left, pixel), above)| usize::from(pixel == left || y > tile.top && pixel == above))
            .sum::<usize>()
    };
    let count: usize = (tile.top..tile.top + tile.height).map(same).sum();
    count * REPEAT_SHARE >= tile.width * tile.height
}

/// The colours of a tile, in a hash table with linear probing.
struct Palette {
    slots: [u32; SLOTS],
    indices: [u8; SLOTS],
    colours: [u32; COLOURS_MAX],
    count: usize,
    empty: u32,
}

impl Palette {
    fn new(padding: u8) -> Palette {
        // Marks an empty slot: no pixel has this padding byte.
        let empty = u32::from(!padding) << 24;
        Palette { slots: [empty; SLOTS], indices: [0; SLOTS], colours: [0; COLOURS_MAX], count: 0, empty }
    }

    fn colours(&self) -> &[u32] {
        &self.colours[..self.count]
    }

    /// Writes the palette index of each pixel in `rows`; `false` if there are too many colours.
    fn index_pixels<'a>(&mut self, rows: impl Iterator<Item = &'a [Pixel]>, into: &mut [u8]) -> bool {
        let mut into = into.iter_mut();
        for row in rows {
            for (pixel, into) in row.iter().zip(into.by_ref()) {
                let Some(number) = self.index_of(u32::from_le_bytes(*pixel)) else { return false };
                *into = number;
            }
        }
        true
    }

    fn index_of(&mut self, colour: u32) -> Option<u8> {
        let mut slot = colour.wrapping_mul(0x9e37_79b1) as usize >> 26;
        while self.slots[slot % SLOTS] != colour {
            if self.slots[slot % SLOTS] == self.empty {
                return self.add(slot % SLOTS, colour);
            }
            slot += 1;
        }
        Some(self.indices[slot % SLOTS])
    }

    #[cold]
    fn add(&mut self, slot: usize, colour: u32) -> Option<u8> {
        let number = self.count;
        *self.colours.get_mut(number)? = colour;
        (self.slots[slot], self.indices[slot]) = (colour, number as u8);
        self.count += 1;
        Some(number as u8)
    }

    /// Sorts the palette; returns the new index of each old one.
    fn sort(&mut self) -> [u8; COLOURS_MAX] {
        let unsorted = self.colours;
        self.colours[..self.count].sort_unstable();
        let sorted = self.colours();
        std::array::from_fn(|number| {
            sorted.iter().position(|colour| *colour == unsorted[number]).unwrap_or(0) as u8
        })
    }
}

/// Packs the indices of two colours in columns. `zero` is the rank of the first colour. `indices`
/// has no entries for rows that repeat the row above.
fn pack_columns(indices: &[u8], zero: u8, tile: Tile, repeated_rows: u16, into: &mut Vec<u8>) {
    let mut stored_rows = indices.chunks_exact(tile.width);
    let mut row: &[u8] = &[];
    for top in (0..tile.height).step_by(COLUMN_ROWS) {
        let start = into.len();
        into.resize(start + tile.width, 0);
        let rows = COLUMN_ROWS.min(tile.height - top);
        for at in 0..rows {
            if repeated_rows >> (top + at) & 1 == 0 {
                row = stored_rows.next().unwrap_or_default();
            }
            let bit = COLUMN_ROWS - 1 - at;
            into[start..].iter_mut().zip(row).for_each(|(into, number)| *into |= (number ^ zero) << bit);
        }
    }
}

/// Packs a row of indices, by their ranks, in `bits` bits each.
fn pack_row(indices: &[u8], ranks: &[u8; COLOURS_MAX], index_bits: usize, into: &mut Vec<u8>) {
    let each = 8 / index_bits;
    into.extend(indices.chunks(each).map(|some| {
        let packed =
            some.iter().fold(0, |packed, number| packed << index_bits | ranks[usize::from(number % 16)]);
        packed << (index_bits * (each - some.len()))
    }));
}
