//! Decodes rectangles from a server into the picture: Raw, CopyRect, ZRLE and Tight (RFC 6143, 7.7; `rfbproto`, Tight
//! encoding). The input is not trusted.

use super::codec::{TIGHT_DEFLATED_MIN, ZRLE_TILE, predict, zrle_index_bits, zrle_tiles};
use super::deflate::Inflater;
use super::palette::unpack;
use super::picture::Picture;
use super::pixels::{Expander, PIXEL_BYTES, Packing, PixelFormat};
use super::protocol::{Fault, encoding};
use bytes::Buf;
use wire::formats::video::Rectangle;

/// The decoder of one server. Zlib streams continue from one rectangle to the next.
#[derive(Debug)]
pub(super) struct Decoder {
    format: PixelFormat,
    expander: Expander,
    tight: [Inflater; 4],
    zrle: Inflater,
    /// Inflated data.
    plain: Vec<u8>,
    /// The colours of a palette, or the previous row of the gradient filter.
    pixels: Vec<[u8; PIXEL_BYTES]>,
}

/// The number of bytes of a rectangle; `None` if some are missing.
pub(super) type Consumed = Result<Option<usize>, Fault>;

/// Takes the next `length` bytes of `rest`, if there are so many.
fn take<'a>(rest: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (bytes, remaining) = rest.split_at_checked(length)?;
    *rest = remaining;
    Some(bytes)
}

/// The filter of a Tight rectangle.
enum Filter<'a> {
    Copy,
    /// A palette of packed colours.
    Palette(&'a [u8]),
    Gradient,
}

impl Decoder {
    pub(super) fn new(format: PixelFormat) -> Decoder {
        Decoder {
            expander: Expander::new(&format),
            format,
            tight: Default::default(),
            zrle: Inflater::default(),
            plain: Vec::new(),
            pixels: Vec::new(),
        }
    }

    pub(super) fn expander(&self) -> &Expander {
        &self.expander
    }

    pub(super) fn format(&self) -> &PixelFormat {
        &self.format
    }

    /// Decodes a rectangle inside `picture` from the front of `input`, if `input` has all of it.
    pub(super) fn decode(
        &mut self,
        encoding: i32,
        rectangle: &Rectangle,
        input: &[u8],
        picture: &mut Picture,
    ) -> Consumed {
        match encoding {
            encoding::COPY_RECT => copy(rectangle, input, picture),
            encoding::ZRLE => self.zrle(rectangle, input, picture),
            encoding::TIGHT => self.tight(rectangle, input, picture),
            other => Err(Fault(format!("it sends encoding {other}, which was not requested"))),
        }
    }

    /// Decodes one row of plain pixels.
    pub(super) fn raw_row(&mut self, row: &[u8], into: &mut [u8]) {
        if self.format == PixelFormat::NATIVE {
            return into.copy_from_slice(row);
        }
        put_row(&self.format.pixel(), &self.expander, row, into);
    }

    fn tight(&mut self, rectangle: &Rectangle, input: &[u8], picture: &mut Picture) -> Consumed {
        let packing = self.format.tpixel();
        let mut rest = input;
        let Some(&[control]) = take(&mut rest, 1) else { return Ok(None) };
        match control >> 4 {
            8 => {
                let Some(colour) = take(&mut rest, packing.bytes) else { return Ok(None) };
                let pixel = self.expander.pixel(packing.get(colour));
                self.reset(control);
                fill(rectangle, pixel, picture);
                return Ok(Some(input.len() - rest.len()));
            }
            0..8 => {}
            other => return Err(Fault(format!("it sends an unsupported Tight rectangle of type {other}"))),
        }
        let filter = match control & 0x40 {
            0 => 0,
            _ => match take(&mut rest, 1) {
                Some(&[filter]) => filter,
                _ => return Ok(None),
            },
        };
        let (width, height) = (rectangle.width as usize, rectangle.height as usize);
        let (filter, row_bytes) = match filter {
            0 => (Filter::Copy, width * packing.bytes),
            1 => {
                let Some(&[last]) = take(&mut rest, 1) else { return Ok(None) };
                let count = usize::from(last) + 1;
                let Some(colours) = take(&mut rest, count * packing.bytes) else { return Ok(None) };
                (Filter::Palette(colours), if count <= 2 { width.div_ceil(8) } else { width })
            }
            2 if packing.bytes == 3 => (Filter::Gradient, width * 3),
            other => {
                return Err(Fault(format!(
                    "it sends the Tight filter {other}, which is not valid for this pixel format"
                )));
            }
        };
        let bytes = row_bytes * height;
        let data = if bytes < TIGHT_DEFLATED_MIN {
            take(&mut rest, bytes)
        } else {
            take_length(&mut rest).and_then(|length| take(&mut rest, length))
        };
        let Some(data) = data else { return Ok(None) };
        self.reset(control);
        let mut plain = std::mem::take(&mut self.plain);
        plain.resize(bytes, 0);
        match bytes < TIGHT_DEFLATED_MIN {
            true => plain.copy_from_slice(data),
            false => self.tight[usize::from(control >> 4 & 3)].fill(data, &mut plain)?,
        }
        self.tight_pixels(&filter, &plain, row_bytes, rectangle, picture)?;
        self.plain = plain;
        Ok(Some(input.len() - rest.len()))
    }

    /// Resets the streams that the control byte names.
    fn reset(&mut self, control: u8) {
        for (number, stream) in self.tight.iter_mut().enumerate() {
            if control >> number & 1 == 1 {
                *stream = Inflater::default();
            }
        }
    }

    /// Writes the filtered data of a Tight rectangle to the picture.
    fn tight_pixels(
        &mut self,
        filter: &Filter<'_>,
        plain: &[u8],
        row_bytes: usize,
        rectangle: &Rectangle,
        picture: &mut Picture,
    ) -> Result<(), Fault> {
        let packing = self.format.tpixel();
        let Rectangle { x, y, width, .. } = *rectangle;
        if let Filter::Palette(colours) = filter {
            self.palette(colours, &packing);
        }
        let bits = if self.pixels.len() <= 2 { 1 } else { 8 };
        for (row, line) in plain.chunks_exact(row_bytes).enumerate() {
            let top = y + row as u32;
            match filter {
                Filter::Copy => put_row(&packing, &self.expander, line, picture.row_mut(x, top, width)),
                Filter::Palette(_) => {
                    let into = picture.row_mut(x, top, width).as_chunks_mut::<PIXEL_BYTES>().0;
                    for (column, pixel) in into.iter_mut().enumerate() {
                        *pixel = *self.colour(unpack(line, column, bits))?;
                    }
                }
                Filter::Gradient => {
                    self.gradient_row(row == 0, line);
                    let into = picture.row_mut(x, top, width).as_chunks_mut::<PIXEL_BYTES>().0;
                    into.copy_from_slice(&self.pixels);
                }
            }
        }
        Ok(())
    }

    fn colour(&self, index: u8) -> Result<&[u8; PIXEL_BYTES], Fault> {
        self.pixels.get(usize::from(index)).ok_or_else(|| {
            Fault(format!("it uses colour {index} of a palette with {} colours", self.pixels.len()))
        })
    }

    /// Decodes a palette.
    fn palette(&mut self, colours: &[u8], packing: &Packing) {
        self.pixels.clear();
        let colours = colours.chunks_exact(packing.bytes);
        self.pixels.extend(colours.map(|colour| self.expander.pixel(packing.get(colour))));
    }

    /// Adds the gradient prediction to a row of differences. `pixels` is the row above and becomes this row.
    fn gradient_row(&mut self, is_first: bool, line: &[u8]) {
        if is_first {
            self.pixels.clear();
            self.pixels.resize(line.len() / 3, [0; PIXEL_BYTES]);
        }
        let (mut left, mut above_left) = ([0; PIXEL_BYTES], [0; PIXEL_BYTES]);
        for (pixel, difference) in self.pixels.iter_mut().zip(line.as_chunks::<3>().0) {
            let above = *pixel;
            // Red comes first in Tight, blue in the picture.
            for (at, difference) in [2, 1, 0].into_iter().zip(difference) {
                let predicted = predict(left[at], above[at], above_left[at]);
                pixel[at] = predicted.wrapping_add(*difference);
            }
            (left, above_left) = (*pixel, above);
        }
    }

    fn zrle(&mut self, rectangle: &Rectangle, input: &[u8], picture: &mut Picture) -> Consumed {
        let packing = self.format.cpixel();
        let mut rest = input;
        let Some(length) = take(&mut rest, 4) else { return Ok(None) };
        let length = u32::from_be_bytes([length[0], length[1], length[2], length[3]]) as usize;
        let tile_bytes = 1 + (ZRLE_TILE * ZRLE_TILE) as usize * (packing.bytes + 1);
        let bytes_max = tile_bytes * zrle_tiles(rectangle).count();
        if length > bytes_max + 1024 {
            return Err(Fault(format!(
                "it sends {length} bytes of ZRLE for a rectangle of at most {bytes_max}"
            )));
        }
        let Some(data) = take(&mut rest, length) else { return Ok(None) };
        let mut plain = std::mem::take(&mut self.plain);
        plain.clear();
        self.zrle.append(data, &mut plain, bytes_max)?;
        let mut reader = &plain[..];
        for tile in zrle_tiles(rectangle) {
            self.zrle_tile(&mut reader, &packing, &tile, picture)?;
        }
        if !reader.is_empty() {
            return Err(Fault(format!("it sends {} extra bytes of ZRLE", reader.len())));
        }
        self.plain = plain;
        Ok(Some(input.len() - rest.len()))
    }

    fn zrle_tile(
        &mut self,
        reader: &mut &[u8],
        packing: &Packing,
        tile: &Rectangle,
        picture: &mut Picture,
    ) -> Result<(), Fault> {
        let short = || Fault::new("a ZRLE tile is truncated");
        let kind = reader.try_get_u8()?;
        let width = tile.width as usize;
        let colours = match kind {
            0 | 128 => 0,
            1..=16 => usize::from(kind),
            130.. => usize::from(kind - 128),
            other => return Err(Fault(format!("it sends a ZRLE tile of unknown type {other}"))),
        };
        let palette = take(reader, colours * packing.bytes).ok_or_else(short)?;
        self.palette(palette, packing);
        match kind {
            0 => {
                for row in 0..tile.height {
                    let line = take(reader, width * packing.bytes).ok_or_else(short)?;
                    let into = picture.row_mut(tile.x, tile.y + row, tile.width);
                    put_row(packing, &self.expander, line, into);
                }
            }
            1 => fill(tile, self.pixels[0], picture),
            2..=16 => {
                let bits = zrle_index_bits(colours);
                for row in 0..tile.height {
                    let line = take(reader, (width * bits).div_ceil(8)).ok_or_else(short)?;
                    let into = picture.row_mut(tile.x, tile.y + row, tile.width);
                    for (column, pixel) in into.as_chunks_mut::<PIXEL_BYTES>().0.iter_mut().enumerate() {
                        *pixel = *self.colour(unpack(line, column, bits))?;
                    }
                }
            }
            _ => self.zrle_runs(reader, packing, tile, picture)?,
        }
        Ok(())
    }

    /// Decodes a tile of runs. The runs are of palette colours, or of any colours if there is no palette.
    fn zrle_runs(
        &mut self,
        reader: &mut &[u8],
        packing: &Packing,
        tile: &Rectangle,
        picture: &mut Picture,
    ) -> Result<(), Fault> {
        let (width, area) = (tile.width as usize, (tile.width * tile.height) as usize);
        let mut done = 0;
        while done < area {
            let (pixel, has_length) = if self.pixels.is_empty() {
                let colour = take(reader, packing.bytes);
                let colour = colour.ok_or_else(|| Fault::new("a ZRLE run is truncated"))?;
                (self.expander.pixel(packing.get(colour)), true)
            } else {
                let index = reader.try_get_u8()?;
                (*self.colour(index & 0x7f)?, index & 0x80 != 0)
            };
            let mut run = if has_length { take_run(reader)? } else { 1 };
            if run > area - done {
                return Err(Fault::new("a ZRLE run exceeds its tile"));
            }
            while run > 0 {
                let (row, column) = (done / width, done % width);
                let count = run.min(width - column);
                let into = picture.row_mut(tile.x + column as u32, tile.y + row as u32, count as u32);
                into.as_chunks_mut::<PIXEL_BYTES>().0.fill(pixel);
                done += count;
                run -= count;
            }
        }
        Ok(())
    }
}

/// Takes the length of compressed Tight data: seven bits a byte, the lowest first, eight in the third.
fn take_length(rest: &mut &[u8]) -> Option<usize> {
    let mut length = 0;
    for at in 0..3 {
        let byte = usize::from(take(rest, 1)?[0]);
        let bits = if at == 2 { byte } else { byte & 0x7f };
        length |= bits << (7 * at);
        if byte & 0x80 == 0 {
            break;
        }
    }
    Some(length)
}

/// Takes the length of a ZRLE run: one plus a sum of bytes. All bytes but the last are 255.
fn take_run(reader: &mut &[u8]) -> Result<usize, Fault> {
    let mut run = 1;
    loop {
        let addend = reader.try_get_u8()?;
        run += usize::from(addend);
        if addend < 255 {
            return Ok(run);
        }
    }
}

fn put_row(packing: &Packing, expander: &Expander, line: &[u8], into: &mut [u8]) {
    let into = into.as_chunks_mut::<PIXEL_BYTES>().0;
    for (pixel, bytes) in into.iter_mut().zip(line.chunks_exact(packing.bytes)) {
        *pixel = expander.pixel(packing.get(bytes));
    }
}

fn fill(rectangle: &Rectangle, pixel: [u8; PIXEL_BYTES], picture: &mut Picture) {
    for row in 0..rectangle.height {
        let into = picture.row_mut(rectangle.x, rectangle.y + row, rectangle.width);
        into.as_chunks_mut::<PIXEL_BYTES>().0.fill(pixel);
    }
}

/// Decodes CopyRect: copies a part of the picture.
fn copy(to: &Rectangle, input: &[u8], picture: &mut Picture) -> Consumed {
    let mut rest = input;
    let Some(from) = take(&mut rest, 4) else { return Ok(None) };
    let (x, y) =
        (u16::from_be_bytes([from[0], from[1]]).into(), u16::from_be_bytes([from[2], from[3]]).into());
    let from = Rectangle { x, y, ..*to };
    if from.intersection(&picture.whole()) != Some(from) {
        return Err(Fault::new("it sends a copy from outside its picture"));
    }
    picture.copy(x, y, to);
    Ok(Some(4))
}
