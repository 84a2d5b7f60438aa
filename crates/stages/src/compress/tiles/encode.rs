//! The way there.

use super::{
    ACROSS, AS_LAST, COLOURS_MAX, COLUMN_ROWS, COLUMNS, COUNTED_BYTES, DIFFERENCES, DOWN, PIXELS, Pixel,
    Tile, bits, is_known, mean, minus, sides, tiles,
};
use crate::varint;
use contract::Body;
use wire::formats::video::{Header, Kind, Rectangle};

/// Places where a colour's number is looked for; a power of two, and well more than colours.
const SLOTS: usize = 64;
/// One pixel in so many is as its neighbour where colours repeat.
const REPEAT_SHARE: usize = 4;
/// A tile of two colours is said in columns if so many of its rows are not as the one above: a letter more likely than lines.
const COLUMN_ROWS_MIN: usize = 4;

/// Says pictures in tiles; its memory serves one after the other.
#[derive(Debug, Default)]
pub(crate) struct Encoder {
    heads: Vec<u8>,
    colours: Vec<u8>,
    numbers: Vec<u8>,
    pixels: Vec<u8>,
    differences: [Vec<u8>; 3],
    out: Vec<u8>,
    /// The colours of the last tile that had few.
    last: Vec<u32>,
}

impl Encoder {
    /// A message of `video` in tiles; `None` if it is none, or of pixels that are not understood.
    pub(crate) fn encode(&mut self, body: &Body) -> Option<&[u8]> {
        let front = body.peek_front::<{ Header::BYTES }>()?;
        let header = Header::parse(&front).ok().filter(is_known)?;
        let mut rest = body.clone();
        let prefix_bytes = match header.kind {
            Kind::Frame => Header::BYTES,
            _ => {
                let [.., low, high] = body.peek_front::<COUNTED_BYTES>()?;
                COUNTED_BYTES + usize::from(u16::from_le_bytes([low, high])) * Rectangle::BYTES
            }
        };
        let prefix = rest.split_front(prefix_bytes)?;
        let rectangles = match header.kind {
            Kind::Frame => Vec::new(),
            _ => header.parse_places(&prefix[Header::BYTES..]).ok()?.0,
        };
        let bytes = rest.into_bytes();
        let (mut pixels, odd) = bytes.as_chunks();
        let wanted: usize = sides(&header, &rectangles).map(|(width, height)| width * height).sum();
        if pixels.len() != wanted || !odd.is_empty() {
            return None;
        }
        self.clear();
        let fourth = pixels.first().map_or(0, |pixel| pixel[3]);
        for (width, height) in sides(&header, &rectangles) {
            let (own, others) = pixels.split_at(width * height);
            pixels = others;
            for tile in tiles(width, height) {
                if !self.tile(own, width, tile, fourth) {
                    return None;
                }
            }
        }
        Some(self.finish(&prefix, fourth))
    }

    fn clear(&mut self) {
        let Encoder { heads, colours, numbers, pixels, differences, out, last } = self;
        let [blue, green, red] = differences;
        [heads, colours, numbers, pixels, blue, green, red, out].into_iter().for_each(Vec::clear);
        last.clear();
    }

    fn finish(&mut self, prefix: &[u8], fourth: u8) -> &[u8] {
        let parts = [&self.heads, &self.colours, &self.numbers, &self.pixels];
        self.out.extend_from_slice(prefix);
        self.out.push(fourth);
        parts.iter().for_each(|part| varint::put(&mut self.out, part.len() as u64));
        parts.into_iter().chain(&self.differences).for_each(|part| self.out.extend_from_slice(part));
        &self.out
    }

    /// Says a tile; `false` if not all of its pixels have that fourth byte.
    fn tile(&mut self, image: &[Pixel], width: usize, tile: Tile, fourth: u8) -> bool {
        let row = |row: usize| &image[(tile.top + row) * width + tile.left..][..tile.width];
        let first = u32::from_le_bytes(row(0)[0]);
        // Without a way out, so that many pixels are looked at at a time.
        let differ = (0..tile.height).fold(0, |differ, number| {
            row(number).iter().fold(differ, |differ, pixel| differ | (u32::from_le_bytes(*pixel) ^ first))
        });
        if (differ | (first ^ (u32::from(fourth) << 24))) >> 24 != 0 {
            return false;
        }
        if differ == 0 {
            self.palette(&[first]);
            return true;
        }
        let as_above = (1..tile.height)
            .filter(|number| row(*number) == row(number - 1))
            .fold(0u16, |mask, number| mask | 1 << number);
        let rows = (0..tile.height).filter(|number| as_above >> number & 1 == 0).map(row);
        let mut palette = Palette::new(fourth);
        let mut numbers = [0; ACROSS * DOWN];
        if palette.number(rows.clone(), &mut numbers) {
            let ranks = palette.sort();
            let head = self.heads.len();
            self.palette(palette.colours());
            if palette.count == 2 && rows.clone().count() >= COLUMN_ROWS_MIN {
                self.heads[head] |= COLUMNS;
                columns(&numbers, ranks[0], tile, as_above, &mut self.numbers);
                return true;
            }
            self.heads.extend(as_above.to_le_bytes());
            let bits = bits(palette.count);
            for numbers in numbers.chunks_exact(tile.width).take(rows.count()) {
                pack(numbers, &ranks, bits, &mut self.numbers);
            }
        } else if repeats(image, width, tile) {
            self.heads.push(PIXELS);
            self.heads.extend(as_above.to_le_bytes());
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
            self.foretell(image, width, tile);
        }
        true
    }

    fn palette(&mut self, colours: &[u32]) {
        let is_as_last = self.last == colours;
        self.heads.push(colours.len() as u8 | if is_as_last { AS_LAST } else { 0 });
        if !is_as_last {
            self.last.clear();
            self.last.extend(colours);
            self.colours.extend(colours.iter().flat_map(|colour| colour.to_le_bytes().into_iter().take(3)));
        }
    }

    fn foretell(&mut self, image: &[Pixel], width: usize, tile: Tile) {
        let value = |pixel: &Pixel| u32::from_le_bytes(*pixel);
        let mut row_differences = [0; ACROSS];
        let differences = &mut row_differences[..tile.width];
        for y in tile.top..tile.top + tile.height {
            let start = y * width + tile.left;
            let row = &image[start..start + tile.width];
            let left = (tile.left > 0).then(|| value(&image[start - 1]));
            let above = (y > 0).then(|| &image[start - width..][..tile.width]);
            // At the edge there is one neighbour, or none.
            let foretold = match (left, above) {
                (Some(left), Some(above)) => mean(left, value(&above[0])),
                (None, Some(above)) => value(&above[0]),
                (left, None) => left.unwrap_or_default(),
            };
            differences[0] = minus(value(&row[0]), foretold);
            let pairs = differences[1..].iter_mut().zip(row).zip(&row[1..]);
            match above {
                Some(above) => {
                    for (((into, left), pixel), above) in pairs.zip(&above[1..]) {
                        *into = minus(value(pixel), mean(value(left), value(above)));
                    }
                }
                None => pairs.for_each(|((into, left), pixel)| *into = minus(value(pixel), value(left))),
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

/// Whether many of a tile's pixels are as their neighbours to the left or above.
fn repeats(image: &[Pixel], width: usize, tile: Tile) -> bool {
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

/// The colours of a tile, while there are few, and where each is found.
struct Palette {
    slots: [u32; SLOTS],
    numbers: [u8; SLOTS],
    colours: [u32; COLOURS_MAX],
    count: usize,
    empty: u32,
}

impl Palette {
    fn new(fourth: u8) -> Palette {
        // No pixel has another fourth byte.
        let empty = u32::from(!fourth) << 24;
        Palette { slots: [empty; SLOTS], numbers: [0; SLOTS], colours: [0; COLOURS_MAX], count: 0, empty }
    }

    fn colours(&self) -> &[u32] {
        &self.colours[..self.count]
    }

    /// Numbers the colours of all pixels in `rows`; `false` if they are too many.
    fn number<'a>(&mut self, rows: impl Iterator<Item = &'a [Pixel]>, into: &mut [u8]) -> bool {
        let mut into = into.iter_mut();
        for row in rows {
            for (pixel, into) in row.iter().zip(into.by_ref()) {
                let Some(number) = self.find(u32::from_le_bytes(*pixel)) else { return false };
                *into = number;
            }
        }
        true
    }

    fn find(&mut self, colour: u32) -> Option<u8> {
        let mut slot = colour.wrapping_mul(0x9e37_79b1) as usize >> 26;
        while self.slots[slot % SLOTS] != colour {
            if self.slots[slot % SLOTS] == self.empty {
                return self.add(slot % SLOTS, colour);
            }
            slot += 1;
        }
        Some(self.numbers[slot % SLOTS])
    }

    #[cold]
    fn add(&mut self, slot: usize, colour: u32) -> Option<u8> {
        let number = self.count;
        *self.colours.get_mut(number)? = colour;
        (self.slots[slot], self.numbers[slot]) = (colour, number as u8);
        self.count += 1;
        Some(number as u8)
    }

    /// Puts the colours in order; which number each has then.
    fn sort(&mut self) -> [u8; COLOURS_MAX] {
        let found = self.colours;
        self.colours[..self.count].sort_unstable();
        let sorted = self.colours();
        std::array::from_fn(|number| {
            sorted.iter().position(|colour| *colour == found[number]).unwrap_or(0) as u8
        })
    }
}

/// The numbers of two colours in columns, where `zero` is the rank of the first. Those of rows that are as the one above were
/// not found anew.
fn columns(numbers: &[u8], zero: u8, tile: Tile, as_above: u16, into: &mut Vec<u8>) {
    let mut found = numbers.chunks_exact(tile.width);
    let mut row: &[u8] = &[];
    for top in (0..tile.height).step_by(COLUMN_ROWS) {
        let start = into.len();
        into.resize(start + tile.width, 0);
        let rows = COLUMN_ROWS.min(tile.height - top);
        for at in 0..rows {
            if as_above >> (top + at) & 1 == 0 {
                row = found.next().unwrap_or_default();
            }
            let bit = COLUMN_ROWS - 1 - at;
            into[start..].iter_mut().zip(row).for_each(|(into, number)| *into |= (number ^ zero) << bit);
        }
    }
}

/// A row of numbers in so many bits each, by their ranks.
fn pack(numbers: &[u8], ranks: &[u8; COLOURS_MAX], bits: usize, into: &mut Vec<u8>) {
    let each = 8 / bits;
    into.extend(numbers.chunks(each).map(|some| {
        let packed = some.iter().fold(0, |packed, number| packed << bits | ranks[usize::from(number % 16)]);
        packed << (bits * (each - some.len()))
    }));
}
