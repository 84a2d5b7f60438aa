//! Encodes rectangles of the picture for a viewer, without loss: Raw, ZRLE and Tight (RFC 6143, 7.7.1 and 7.7.6;
//! `rfbproto`, Tight encoding).
//!
//! Tight analyses each rectangle: one colour is sent as such, up to 256 colours as palette indices, and more as the
//! differences from a gradient prediction. ZRLE chooses the shortest form of each tile.

use super::codec::{TIGHT_DEFLATED_MIN, ZRLE_TILE, predict, zrle_index_bits, zrle_tiles};
use super::deflate::Deflater;
use super::huffman::HuffmanDeflater;
use super::palette::{Palette, pack};
use super::picture::Picture;
use super::pixels::{Packing, PixelFormat, Translator};
use super::protocol::{emit_rectangle, encoding};
use wire::formats::video::Rectangle;

/// The most pixels that are analysed and compressed together. They fit into the cache.
const AREA_MAX: u32 = 1 << 16;

/// The most pixels of a Tight rectangle with many colours. A larger one is split, since a half may have few colours.
const MANY_COLOURS_AREA_MAX: u32 = 1 << 14;

/// The largest width of a Tight rectangle.
const TIGHT_WIDTH_MAX: u32 = 2048;

/// The deflate level of full pixels: low, since they have few repetitions.
const PIXELS_LEVEL: u32 = 1;
/// The deflate level of palette indices: higher, since there are few bytes.
const INDICES_LEVEL: u32 = 3;

/// The encoding of an update's pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Encoding {
    Raw,
    Zrle,
    Tight,
}

impl Encoding {
    /// Returns the encoding with this number.
    pub(super) fn from_number(number: i32) -> Option<Encoding> {
        match number {
            encoding::RAW => Some(Encoding::Raw),
            encoding::ZRLE => Some(Encoding::Zrle),
            encoding::TIGHT => Some(Encoding::Tight),
            _ => None,
        }
    }
}

/// The use of Tight's four zlib streams.
mod stream {
    pub(super) const FULL: usize = 0;
    pub(super) const TWO_COLOURS: usize = 1;
    pub(super) const PALETTE: usize = 2;
    pub(super) const GRADIENT: usize = 3;
}

/// The encoder of one viewer. Zlib streams continue from one rectangle to the next, so viewers cannot share one.
#[derive(Debug)]
pub(super) struct Encoder {
    translator: Translator,
    /// The viewer supports the gradient filter of Tight.
    pub(super) has_gradient: bool,
    tight: [Option<Deflater>; 3],
    gradient: HuffmanDeflater,
    zrle: Option<Deflater>,
    palette: Palette,
    /// The current rectangle in the viewer's pixels.
    values: Vec<u32>,
    /// The current rectangle as palette indices.
    indices: Vec<u8>,
    /// The bytes to deflate.
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
            indices: Vec::new(),
            plain: Vec::new(),
        }
    }

    /// Sets the pixel format of the following rectangles.
    pub(super) fn set_format(&mut self, format: PixelFormat) {
        self.translator = Translator::new(format);
    }

    /// Appends a rectangle of `picture`, split into several if the encoding requires it. Returns their number.
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

    /// Appends a row of pixels without compression. It need not be part of the picture.
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

    /// Appends one or more Tight rectangles. Returns their number.
    fn tight(&mut self, picture: &Picture, rectangle: &Rectangle, out: &mut Vec<u8>) -> usize {
        self.translate(picture, rectangle);
        let packing = self.translator.format().tpixel();
        // An index is as large as a pixel of one byte, so a palette saves nothing there.
        let colours_max = if packing.bytes == 1 { 2 } else { 256.min(self.values.len() / 2).max(1) };
        let has_few_colours = self.palette.index(&self.values, colours_max, &mut self.indices);
        if !has_few_colours && self.values.len() as u32 > MANY_COLOURS_AREA_MAX {
            return halves(rectangle).iter().map(|half| self.tight(picture, half, out)).sum();
        }
        emit_rectangle(out, rectangle, encoding::TIGHT);
        self.plain.clear();
        match has_few_colours {
            true => self.tight_few(rectangle.width as usize, &packing, out),
            false => self.tight_many(rectangle.width as usize, &packing, out),
        }
        1
    }

    /// Appends pixels of few colours: one colour, or a palette and indices.
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
        pack(&self.indices, width, bits, &mut self.plain);
        self.tight_deflated(stream, out);
    }

    /// Appends pixels of many colours: unfiltered, or their differences from the gradient prediction.
    fn tight_many(&mut self, width: usize, packing: &Packing, out: &mut Vec<u8>) {
        packing.put(&self.values, &mut self.plain);
        if packing.bytes != 3 || !self.has_gradient {
            out.push((stream::FULL as u8) << 4);
            return self.tight_deflated(stream::FULL, out);
        }
        out.extend([0x40 | (stream::GRADIENT as u8) << 4, 2]);
        subtract_prediction(&mut self.plain, width * 3);
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
        let level = if stream == stream::FULL { PIXELS_LEVEL } else { INDICES_LEVEL };
        self.tight[stream].get_or_insert_with(|| Deflater::new(level)).append(&self.plain, out);
        insert_length(out, start);
    }

    fn zrle(&mut self, picture: &Picture, rectangle: &Rectangle, out: &mut Vec<u8>) {
        let packing = self.translator.format().cpixel();
        self.plain.clear();
        for tile in zrle_tiles(rectangle) {
            self.translate(picture, &tile);
            let has_few_colours = self.palette.index(&self.values, 127, &mut self.indices);
            let colours = if has_few_colours { self.palette.colours() } else { &[] };
            let width = tile.width as usize;
            zrle_tile(&self.values, &self.indices, colours, width, &packing, &mut self.plain);
        }
        let start = out.len();
        out.extend([0; 4]);
        self.zrle.get_or_insert_with(|| Deflater::new(PIXELS_LEVEL)).append(&self.plain, out);
        let length = (out.len() - start - 4) as u32;
        out[start..start + 4].copy_from_slice(&length.to_be_bytes());
    }
}

fn picture_bytes(rectangle: &Rectangle) -> usize {
    rectangle.width as usize * rectangle.height as usize * 4
}

/// Splits a rectangle into pieces of at most [`AREA_MAX`] pixels, no wider than `width_max`. The height of each piece
/// but the last is a multiple of `step`.
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

/// Splits a rectangle into two halves, across its longer side.
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

/// Subtracts from each colour value its gradient prediction.
fn subtract_prediction(pixels: &mut [u8], row_bytes: usize) {
    let mut rows = pixels.chunks_exact_mut(row_bytes).rev().peekable();
    while let Some(row) = rows.next() {
        // From the last value to the first, since the prediction uses original values.
        match rows.peek() {
            Some(above) => {
                for at in (3..row_bytes).rev() {
                    row[at] = row[at].wrapping_sub(predict(row[at - 3], above[at], above[at - 3]));
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

/// Inserts at `start` the length of the data from there on, in Tight's form: seven bits a byte, the lowest first.
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
        let continues = at + 1 < used;
        out[start + at] = byte | if continues { 0x80 } else { 0 };
    }
}

/// Returns the runs of equal elements: the element and its count.
fn runs<T: PartialEq + Copy>(pixels: &[T]) -> impl Iterator<Item = (T, usize)> {
    let mut rest = pixels;
    std::iter::from_fn(move || {
        let first = *rest.first()?;
        let run = rest.iter().take_while(|next| **next == first).count();
        rest = &rest[run..];
        Some((first, run))
    })
}

/// Appends one ZRLE tile, in the form that is shortest before compression. `colours` is empty if there are too many.
fn zrle_tile(
    values: &[u32],
    indices: &[u8],
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
    let (mut packed, mut palette_runs) = (usize::MAX, usize::MAX);
    if !colours.is_empty() {
        palette_runs = palette_bytes + 2 * count - single;
    }
    let bits = zrle_index_bits(colours.len());
    if (2..=16).contains(&colours.len()) {
        packed = palette_bytes + (width * bits).div_ceil(8) * (values.len() / width);
    }
    let shortest = raw.min(plain_runs).min(packed).min(palette_runs);
    if shortest == packed {
        out.push(colours.len() as u8);
        packing.put(colours, out);
        pack(indices, width, bits, out);
    } else if shortest == palette_runs {
        out.push(128 + colours.len() as u8);
        packing.put(colours, out);
        for (index, run) in runs(indices) {
            match run {
                1 => out.push(index),
                _ => {
                    out.push(index | 0x80);
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

/// Appends the length of a run less one, as a sum of bytes. Each byte but the last is 255.
fn put_run(run: usize, out: &mut Vec<u8>) {
    out.resize(out.len() + (run - 1) / 255, 255);
    out.push(((run - 1) % 255) as u8);
}
