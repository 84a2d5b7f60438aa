//! Rectangles that a server sends, into our picture: Raw, CopyRect, ZRLE and Tight (RFC 6143, 7.7; `rfbproto`, Tight
//! encoding). All of it is a stranger's bytes.

use super::deflate::Inflater;
use super::encode::{ZRLE_TILE, tiles, zrle_bits};
use super::palette::unpack;
use super::picture::Picture;
use super::pixels::{Expander, PIXEL_BYTES, Packing, PixelFormat};
use super::protocol::{Fault, encoding};
use bytes::Buf;
use wire::formats::video::Rectangle;

/// Data of Tight that is shorter is not compressed.
const TIGHT_DEFLATED_MIN: usize = 12;

/// One server's decoder: zlib streams go on from one rectangle to the next.
#[derive(Debug)]
pub(super) struct Decoder {
    format: PixelFormat,
    expander: Expander,
    tight: [Inflater; 4],
    zrle: Inflater,
    plain: Vec<u8>,
    /// Pixels of ours: of a palette, a row or a tile.
    pixels: Vec<[u8; PIXEL_BYTES]>,
}

/// What the parser of a rectangle finds: how many bytes it has, or that some are still to come.
pub(super) type Taken = Result<Option<usize>, Fault>;

/// The next `length` bytes of `rest`, if they are there.
fn take<'a>(rest: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, behind) = rest.split_at_checked(length)?;
    *rest = behind;
    Some(taken)
}

/// How the bytes of a basic rectangle of Tight become pixels.
enum Filter<'a> {
    Copy,
    /// Packed colours.
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

    /// Decodes a rectangle that lies inside `picture` from the front of `input`, if all of it is there.
    pub(super) fn decode(
        &mut self,
        encoding: i32,
        rectangle: &Rectangle,
        input: &[u8],
        picture: &mut Picture,
    ) -> Taken {
        match encoding {
            encoding::COPY_RECT => copy(rectangle, input, picture),
            encoding::ZRLE => self.zrle(rectangle, input, picture),
            encoding::TIGHT => self.tight(rectangle, input, picture),
            other => Err(Fault(format!("it sends encoding {other}, which was not asked for"))),
        }
    }

    /// One row of plain pixels.
    pub(super) fn raw_row(&mut self, row: &[u8], into: &mut [u8]) {
        if self.format == PixelFormat::OURS {
            return into.copy_from_slice(row);
        }
        put_row(&self.format.pixel(), &self.expander, row, into);
    }

    fn tight(&mut self, rectangle: &Rectangle, input: &[u8], picture: &mut Picture) -> Taken {
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
            other => return Err(Fault(format!("it sends Tight's kind {other}, which was not asked for"))),
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
            other => return Err(Fault(format!("Tight's filter {other} is not one of pixels like these"))),
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

    /// Begins the streams anew that a control byte names.
    fn reset(&mut self, control: u8) {
        for (number, stream) in self.tight.iter_mut().enumerate() {
            if control >> number & 1 == 1 {
                *stream = Inflater::default();
            }
        }
    }

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

    fn colour(&self, number: u8) -> Result<&[u8; PIXEL_BYTES], Fault> {
        self.pixels
            .get(usize::from(number))
            .ok_or_else(|| Fault(format!("it names colour {number} of {}", self.pixels.len())))
    }

    /// Reads a palette.
    fn palette(&mut self, colours: &[u8], packing: &Packing) {
        self.pixels.clear();
        let colours = colours.chunks_exact(packing.bytes);
        self.pixels.extend(colours.map(|colour| self.expander.pixel(packing.get(colour))));
    }

    /// Adds what each colour was foretold as, from its neighbours to the left and above: the row above becomes
    /// this one.
    fn gradient_row(&mut self, is_first: bool, line: &[u8]) {
        if is_first {
            self.pixels.clear();
            self.pixels.resize(line.len() / 3, [0; PIXEL_BYTES]);
        }
        let (mut left, mut above_left) = ([0; PIXEL_BYTES], [0; PIXEL_BYTES]);
        for (pixel, difference) in self.pixels.iter_mut().zip(line.as_chunks::<3>().0) {
            let above = *pixel;
            // In Tight red comes first, here blue.
            for (at, off) in [2, 1, 0].into_iter().zip(difference) {
                let foretold = foretell(left[at], above[at], above_left[at]);
                pixel[at] = foretold.wrapping_add(*off);
            }
            (left, above_left) = (*pixel, above);
        }
    }

    fn zrle(&mut self, rectangle: &Rectangle, input: &[u8], picture: &mut Picture) -> Taken {
        let packing = self.format.cpixel();
        let mut rest = input;
        let Some(length) = take(&mut rest, 4) else { return Ok(None) };
        let length = u32::from_be_bytes([length[0], length[1], length[2], length[3]]) as usize;
        let tile_bytes = 1 + (ZRLE_TILE * ZRLE_TILE) as usize * (packing.bytes + 1);
        let most = tile_bytes * tiles(rectangle).count();
        if length > most + 1024 {
            return Err(Fault(format!("{length} bytes of ZRLE for a rectangle of at most {most}")));
        }
        let Some(data) = take(&mut rest, length) else { return Ok(None) };
        let mut plain = std::mem::take(&mut self.plain);
        plain.clear();
        self.zrle.append(data, &mut plain, most)?;
        let mut reader = &plain[..];
        for tile in tiles(rectangle) {
            self.zrle_tile(&mut reader, &packing, &tile, picture)?;
        }
        if !reader.is_empty() {
            return Err(Fault(format!("{} bytes of ZRLE are left over", reader.len())));
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
        let short = || Fault::new("a tile of ZRLE is cut short");
        let kind = reader.try_get_u8()?;
        let width = tile.width as usize;
        let colours = match kind {
            0 | 128 => 0,
            1..=16 => usize::from(kind),
            130.. => usize::from(kind - 128),
            other => return Err(Fault(format!("there is no tile of ZRLE of kind {other}"))),
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
                let bits = zrle_bits(colours);
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

    /// A tile of runs: of colours of the palette, or of any if there is none.
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
                let colour = colour.ok_or_else(|| Fault::new("a run of ZRLE is cut short"))?;
                (self.expander.pixel(packing.get(colour)), true)
            } else {
                let number = reader.try_get_u8()?;
                (*self.colour(number & 0x7f)?, number & 0x80 != 0)
            };
            let mut run = if has_length { take_run(reader)? } else { 1 };
            if run > area - done {
                return Err(Fault::new("a run of ZRLE goes beyond its tile"));
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

/// What Tight's gradient foretells a colour as.
pub(super) fn foretell(left: u8, above: u8, above_left: u8) -> u8 {
    (i16::from(left) + i16::from(above) - i16::from(above_left)).clamp(0, 255) as u8
}

/// The length of compressed data: seven bits a byte, the lowest first, eight in the third.
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

/// The length of a run of ZRLE: as many 255 as fit into it less one, then the rest.
fn take_run(reader: &mut &[u8]) -> Result<usize, Fault> {
    let mut run = 1;
    loop {
        let more = reader.try_get_u8()?;
        run += usize::from(more);
        if more < 255 {
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

fn copy(to: &Rectangle, input: &[u8], picture: &mut Picture) -> Taken {
    let mut rest = input;
    let Some(from) = take(&mut rest, 4) else { return Ok(None) };
    let (x, y) =
        (u16::from_be_bytes([from[0], from[1]]).into(), u16::from_be_bytes([from[2], from[3]]).into());
    let from = Rectangle { x, y, ..*to };
    if from.intersection(&picture.whole()) != Some(from) {
        return Err(Fault::new("it copies from outside its picture"));
    }
    picture.copy(x, y, to);
    Ok(Some(4))
}
