//! `gray`: removes the colours of pictures.

#[cfg(test)]
mod tests;

use crate::picture::{AT, Filter, Memory, PartialPicture, Picture, PicturePair, channels, too_large};
use contract::{ModuleEntry, Options, StageResult};
use wire::formats::video::{Geometry, PixelFormat};

/// The pair.
pub(crate) static GRAY: PicturePair<GrayFilter> = PicturePair::new();

pub(crate) struct GrayFilter;

impl Filter for GrayFilter {
    const ENTRY: ModuleEntry = ModuleEntry {
        name: "gray",
        summary: "removes the colours of pictures, and a third or more of the bytes",
        doc: include_str!("doc.md"),
        options: &[AT],
    };

    fn new(_options: &Options) -> Self {
        GrayFilter
    }

    fn frame(&mut self, picture: Picture, memory: &mut Memory) -> StageResult<Picture> {
        let Picture { geometry, pixels } = picture;
        let (plane, gray) = (geometry.plane(0), self.geometry(&geometry)?);
        if geometry.pixels().pixel_bytes() == 1 {
            // Shared, not copied.
            return Ok(Picture { geometry: gray, pixels: pixels.slice(..plane.bytes()) });
        }
        let mut into = memory.take(gray.bytes());
        for (from, into) in plane.rows(&pixels).zip(into.chunks_exact_mut(gray.width() as usize)) {
            convert(geometry.pixels(), from, into);
        }
        Ok(Picture { geometry: gray, pixels: into.freeze() })
    }

    fn partial(&mut self, mut partial: PartialPicture) -> StageResult<PartialPicture> {
        let pixels = partial.geometry.pixels();
        if pixels.pixel_bytes() > 1 {
            let mut into = vec![0; partial.pixels.len() / pixels.pixel_bytes()];
            convert(pixels, &partial.pixels, &mut into);
            partial.pixels = into.into();
            partial.geometry = gray(&partial.geometry)?;
        }
        Ok(partial)
    }

    fn geometry(&self, from: &Geometry) -> StageResult<Geometry> {
        let gray = gray(from)?;
        match from.pixels().pixel_bytes() {
            // The plane of brightness exists already, with its stride.
            1 => gray.with_stride(from.stride()).map_err(too_large),
            _ => Ok(gray),
        }
    }
}

/// The geometry of the picture in gray.
fn gray(from: &Geometry) -> StageResult<Geometry> {
    let (numerator, denominator) = from.rate();
    let gray = Geometry::new(PixelFormat::Gray8, from.width(), from.height()).map_err(too_large)?;
    Ok(gray.with_rate(numerator, denominator))
}

fn convert(pixels: PixelFormat, from: &[u8], into: &mut [u8]) {
    match pixels.pixel_bytes() {
        4 => brightness::<4>(from, into, channels(pixels)),
        _ => brightness::<3>(from, into, channels(pixels)),
    }
}

/// Brightness of packed pixels: 0.299 red + 0.587 green + 0.114 blue (ITU-R BT.601), in 256ths.
fn brightness<const BYTES: usize>(from: &[u8], into: &mut [u8], [red, green, blue]: [usize; 3]) {
    let (pixels, _) = from.as_chunks::<BYTES>();
    for (into, pixel) in into.iter_mut().zip(pixels) {
        let sum = 77 * u16::from(pixel[red]) + 150 * u16::from(pixel[green]) + 29 * u16::from(pixel[blue]);
        *into = ((sum + 128) >> 8) as u8;
    }
}
