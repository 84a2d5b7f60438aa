//! Rectangles of our picture as a viewer reads them: Raw, ZRLE and Tight (RFC 6143, 7.7.1 and 7.7.6; `rfbproto`, Tight
//! encoding), all without loss.

use super::decode::foretell;
use super::deflate::Deflater;
use super::huffman::HuffmanDeflater;
use super::palette::{Palette, pack};
use super::picture::Picture;
use super::pixels::{Packing, PixelFormat, Translator};
use super::protocol::{emit_rectangle, encoding};
use wire::formats::video::Rectangle;

/// Most pixels that are analysed and compressed as one, so that all of it stays in the cache.
const AREA_MAX: u32 = 1 << 16;

/// Most pixels of many colours that are sent as one: smaller, what of it has few colours is found.
const MANY_AREA_MAX: u32 = 1 << 14;

/// Widest rectangle of Tight.
const TIGHT_WIDTH_MAX: u32 = 2048;

/// Data of Tight that is shorter is not compressed.
const TIGHT_DEFLATED_MIN: usize = 12;

/// How hard deflate looks for repetitions: in pixels of many colours hardly, for there are few; in numbers of colours
/// more, which takes little time.
const MANY_LEVEL: u32 = 1;
const FEW_LEVEL: u32 = 3;

/// Side of a tile of ZRLE.
pub(super) const ZRLE_TILE: u32 = 64;

/// How the pixels of an update travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Encoding {
    Raw,
    Zrle,
    Tight,
}

impl Encoding {
    /// That of this number.
    pub(super) fn from_number(number: i32) -> Option<Encoding> {
        match number {
            encoding::RAW => Some(Encoding::Raw),
            encoding::ZRLE => Some(Encoding::Zrle),
            encoding::TIGHT => Some(Encoding::Tight),
            _ => None,
        }
    }
}

/// What of Tight's streams is for what.
mod stream {
    pub(super) const FULL: usize = 0;
    pub(super) const TWO_COLOURS: usize = 1;
    pub(super) const PALETTE: usize = 2;
    pub(super) const GRADIENT: usize = 3;
}

/// One viewer's encoder: zlib streams go on from one rectangle to the next, so each viewer has its own.
#[derive(Debug)]
pub(super) struct Encoder {
    translator: Translator,
    /// The viewer reads gradients, which most do.
    pub(super) has_gradient: bool,
    tight: [Option<Deflater>; 3],
    gradient: HuffmanDeflater,
    zrle: Option<Deflater>,
    palette: Palette,
    /// A rectangle in the viewer's pixels.
    values: Vec<u32>,
    /// The same as numbers of colours.
    numbers: Vec<u8>,
    /// Bytes to be deflated.
    plain: Vec<u8>,
}

impl Encoder {
    pub(super) fn new(format: PixelFormat) -> Encoder {
        Encoder {
            translator: Translator::new(format),
            has_gradient: true,
            tight: [None, None, None],
            gradient: HuffmanDeflater::default(),
            zrle: None,
            palette: Palette::default(),
            values: Vec::new(),
            numbers: Vec::new(),
            plain: Vec::new(),
        }
    }

    /// From here on, pixels travel in this format.
    pub(super) fn set_format(&mut self, format: PixelFormat) {
        self.translator = Translator::new(format);
    }

    /// Appends a rectangle of `picture`, in as many of the protocol's as it takes; says how many.
    pub(super) fn encode(
        &mut self,
        encoding: Encoding,
        picture: &Picture,
        rectangle: &Rectangle,
        out: &mut Vec<u8>,
    ) -> usize {
        match encoding {
            Encoding::Raw => {
                emit_rectangle(out, rectangle, encoding::RAW);
                self.raw(picture, rectangle, out);
                1
            }
            Encoding::Zrle => pieces(rectangle, u32::MAX, ZRLE_TILE)
                .map(|piece| {
                    emit_rectangle(out, &piece, encoding::ZRLE);
                    self.zrle(picture, &piece, out);
                })
                .count(),
            Encoding::Tight => {
                pieces(rectangle, TIGHT_WIDTH_MAX, 1).map(|piece| self.tight(picture, &piece, out)).sum()
            }
        }
    }

    /// Pixels of any place, such as a cursor's, as they are.
    pub(super) fn raw_row(&mut self, row: &[u8], out: &mut Vec<u8>) {
        if self.translator.is_identity() {
            return out.extend(row);
        }
        self.values.clear();
        self.translator.row(row, &mut self.values);
        self.translator.format().pixel().put(&self.values, out);
    }

    fn raw(&mut self, picture: &Picture, rectangle: &Rectangle, out: &mut Vec<u8>) {
        out.reserve(picture_bytes(rectangle));
        for row in picture.rows(rectangle) {
            self.raw_row(row, out);
        }
    }

    fn translate(&mut self, picture: &Picture, rectangle: &Rectangle) {
        self.values.clear();
        for row in picture.rows(rectangle) {
            self.translator.row(row, &mut self.values);
        }
    }

    /// Appends rectangles of Tight; says how many.
    fn tight(&mut self, picture: &Picture, rectangle: &Rectangle, out: &mut Vec<u8>) -> usize {
        self.translate(picture, rectangle);
        let packing = self.translator.format().tpixel();
        // A number takes as much room as a pixel of one byte.
        let most = if packing.bytes == 1 { 2 } else { 256.min(self.values.len() / 2).max(1) };
        let is_few = self.palette.index(&self.values, most, &mut self.numbers);
        if !is_few && self.values.len() as u32 > MANY_AREA_MAX {
            return halves(rectangle).iter().map(|half| self.tight(picture, half, out)).sum();
        }
        emit_rectangle(out, rectangle, encoding::TIGHT);
        self.plain.clear();
        match is_few {
            true => self.tight_few(rectangle.width as usize, &packing, out),
            false => self.tight_many(rectangle.width as usize, &packing, out),
        }
        1
    }

    /// Pixels of few colours: one, or numbers of them.
    fn tight_few(&mut self, width: usize, packing: &Packing, out: &mut Vec<u8>) {
        let colours = self.palette.colours();
        if colours.len() == 1 {
            out.push(0x80);
            return packing.put(colours, out);
        }
        let (stream, bits) = match colours.len() {
            2 => (stream::TWO_COLOURS, 1),
            _ => (stream::PALETTE, 8),
        };
        out.extend([0x40 | (stream as u8) << 4, 1, (colours.len() - 1) as u8]);
        packing.put(colours, out);
        pack(&self.numbers, width, bits, &mut self.plain);
        self.tight_deflated(stream, out);
    }

    /// Pixels of many colours: as they are, or what is left of them behind a gradient.
    fn tight_many(&mut self, width: usize, packing: &Packing, out: &mut Vec<u8>) {
        packing.put(&self.values, &mut self.plain);
        if packing.bytes != 3 || !self.has_gradient {
            out.push((stream::FULL as u8) << 4);
            return self.tight_deflated(stream::FULL, out);
        }
        out.extend([0x40 | (stream::GRADIENT as u8) << 4, 2]);
        take_gradient(&mut self.plain, width * 3);
        match self.plain.len() < TIGHT_DEFLATED_MIN {
            true => out.extend(&self.plain),
            false => {
                let start = out.len();
                self.gradient.append(&self.plain, out);
                insert_length(out, start);
            }
        }
    }

    fn tight_deflated(&mut self, stream: usize, out: &mut Vec<u8>) {
        if self.plain.len() < TIGHT_DEFLATED_MIN {
            return out.extend(&self.plain);
        }
        let start = out.len();
        let level = if stream == stream::FULL { MANY_LEVEL } else { FEW_LEVEL };
        self.tight[stream].get_or_insert_with(|| Deflater::new(level)).append(&self.plain, out);
        insert_length(out, start);
    }

    fn zrle(&mut self, picture: &Picture, rectangle: &Rectangle, out: &mut Vec<u8>) {
        let packing = self.translator.format().cpixel();
        self.plain.clear();
        for tile in tiles(rectangle) {
            self.translate(picture, &tile);
            let is_few = self.palette.index(&self.values, 127, &mut self.numbers);
            let colours = if is_few { self.palette.colours() } else { &[] };
            let width = tile.width as usize;
            zrle_tile(&self.values, &self.numbers, colours, width, &packing, &mut self.plain);
        }
        let start = out.len();
        out.extend([0; 4]);
        self.zrle.get_or_insert_with(|| Deflater::new(MANY_LEVEL)).append(&self.plain, out);
        let length = (out.len() - start - 4) as u32;
        out[start..start + 4].copy_from_slice(&length.to_be_bytes());
    }
}

fn picture_bytes(rectangle: &Rectangle) -> usize {
    rectangle.width as usize * rectangle.height as usize * 4
}

/// A rectangle in pieces of at most [`AREA_MAX`] pixels, no wider than `width_max`, their borders at multiples of
/// `step` rows.
fn pieces(rectangle: &Rectangle, width_max: u32, step: u32) -> impl Iterator<Item = Rectangle> + use<> {
    let Rectangle { x, y, width, height } = *rectangle;
    let across = width.min(width_max);
    let down = (AREA_MAX / across / step * step).max(step);
    (0..height.div_ceil(down)).flat_map(move |row| {
        (0..width.div_ceil(across)).map(move |column| {
            let (left, top) = (column * across, row * down);
            let (width, height) = (across.min(width - left), down.min(height - top));
            Rectangle { x: x + left, y: y + top, width, height }
        })
    })
}

/// The two halves of a rectangle, across its longer side.
fn halves(rectangle: &Rectangle) -> [Rectangle; 2] {
    let Rectangle { x, y, width, height } = *rectangle;
    let (across, down) = (width / 2, height / 2);
    match width > height {
        true => [
            Rectangle { width: across, ..*rectangle },
            Rectangle { x: x + across, width: width - across, ..*rectangle },
        ],
        false => [
            Rectangle { height: down, ..*rectangle },
            Rectangle { y: y + down, height: height - down, ..*rectangle },
        ],
    }
}

/// Takes from each colour what Tight's gradient foretells it as, out of its neighbours to the left and above.
fn take_gradient(pixels: &mut [u8], row_bytes: usize) {
    let mut rows = pixels.chunks_exact_mut(row_bytes).rev().peekable();
    while let Some(row) = rows.next() {
        // From the last to the first: those that foretell are still as they were.
        match rows.peek() {
            Some(above) => {
                for at in (3..row_bytes).rev() {
                    row[at] = row[at].wrapping_sub(foretell(row[at - 3], above[at], above[at - 3]));
                }
                row.iter_mut()
                    .zip(above.iter())
                    .take(3)
                    .for_each(|(first, above)| *first = first.wrapping_sub(*above));
            }
            None => (3..row_bytes).rev().for_each(|at| row[at] = row[at].wrapping_sub(row[at - 3])),
        }
    }
}

/// The tiles of ZRLE, row by row.
pub(super) fn tiles(rectangle: &Rectangle) -> impl Iterator<Item = Rectangle> + use<> {
    let Rectangle { x, y, width, height } = *rectangle;
    (0..height).step_by(ZRLE_TILE as usize).flat_map(move |top| {
        (0..width).step_by(ZRLE_TILE as usize).map(move |left| {
            let (width, height) = (ZRLE_TILE.min(width - left), ZRLE_TILE.min(height - top));
            Rectangle { x: x + left, y: y + top, width, height }
        })
    })
}

/// Puts Tight's length of what stands from `start` on before it: seven bits a byte, the lowest first.
fn insert_length(out: &mut Vec<u8>, start: usize) {
    let length = out.len() - start;
    let bytes = [length as u8 & 0x7f, (length >> 7) as u8 & 0x7f, (length >> 14) as u8];
    let used = match length {
        0..0x80 => 1,
        0x80..0x4000 => 2,
        _ => 3,
    };
    out.resize(out.len() + used, 0);
    out.copy_within(start..start + length, start + used);
    for (at, byte) in bytes[..used].iter().enumerate() {
        let goes_on = at + 1 < used;
        out[start + at] = byte | if goes_on { 0x80 } else { 0 };
    }
}

/// Bits of a packed number of one of so many colours.
pub(super) fn zrle_bits(colours: usize) -> usize {
    match colours {
        0..=2 => 1,
        3..=4 => 2,
        _ => 4,
    }
}

/// Runs of equal pixels, from the front.
fn runs<T: PartialEq + Copy>(pixels: &[T]) -> impl Iterator<Item = (T, usize)> {
    let mut rest = pixels;
    std::iter::from_fn(move || {
        let first = *rest.first()?;
        let run = rest.iter().take_while(|next| **next == first).count();
        rest = &rest[run..];
        Some((first, run))
    })
}

/// One tile of ZRLE, in whichever of its ways is shortest before it is deflated. `colours` are empty if there are
/// many.
fn zrle_tile(
    values: &[u32],
    numbers: &[u8],
    colours: &[u32],
    width: usize,
    packing: &Packing,
    out: &mut Vec<u8>,
) {
    if let [colour] = colours {
        out.push(1);
        return packing.put(&[*colour], out);
    }
    let (mut count, mut single) = (0, 0);
    for (_, run) in runs(values) {
        count += 1 + run / 255;
        single += usize::from(run == 1);
    }
    let palette_bytes = colours.len() * packing.bytes;
    let raw = values.len() * packing.bytes;
    let plain_runs = count * (packing.bytes + 1);
    let (mut packed, mut numbered_runs) = (usize::MAX, usize::MAX);
    if !colours.is_empty() {
        numbered_runs = palette_bytes + 2 * count - single;
    }
    let bits = zrle_bits(colours.len());
    if (2..=16).contains(&colours.len()) {
        packed = palette_bytes + (width * bits).div_ceil(8) * (values.len() / width);
    }
    let shortest = raw.min(plain_runs).min(packed).min(numbered_runs);
    if shortest == packed {
        out.push(colours.len() as u8);
        packing.put(colours, out);
        pack(numbers, width, bits, out);
    } else if shortest == numbered_runs {
        out.push(128 + colours.len() as u8);
        packing.put(colours, out);
        for (number, run) in runs(numbers) {
            match run {
                1 => out.push(number),
                _ => {
                    out.push(number | 0x80);
                    put_run(run, out);
                }
            }
        }
    } else if shortest == plain_runs {
        out.push(128);
        for (value, run) in runs(values) {
            packing.put(&[value], out);
            put_run(run, out);
        }
    } else {
        out.push(0);
        packing.put(values, out);
    }
}

/// The length of a run: as many 255 as fit into it less one, then the rest.
fn put_run(run: usize, out: &mut Vec<u8>) {
    out.resize(out.len() + (run - 1) / 255, 255);
    out.push(((run - 1) % 255) as u8);
}
