//! Resizes planes of pixels.
//!
//! A crate of its own, because of the compiler's time: `fast_image_resize` is generic over pixels and precisions, and
//! its code is compiled where it is used. Optimised, that takes more processor time than all pairs together. The
//! profile for tests leaves this crate unoptimised.

use fast_image_resize::images::{TypedCroppedImage, TypedImage, TypedImageRef};
use fast_image_resize::pixels::{U8, U8x3, U8x4};
use fast_image_resize::{FilterType, PixelTrait, ResizeAlg, ResizeOptions};

/// The computation of a new pixel from the old ones around it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filter {
    /// The nearest pixel.
    Nearest,
    /// The mean of an area.
    Box,
    /// Linear interpolation.
    Bilinear,
    /// Cubic interpolation (Catmull-Rom).
    Bicubic,
    /// Windowed sinc (Lanczos, 3 lobes).
    Lanczos,
}

/// The plane to read.
#[derive(Debug, Clone, Copy)]
pub struct From<'a> {
    /// All rows, each with its padding.
    pub bytes: &'a [u8],
    /// Bytes from row to row, a multiple of the pixel's bytes.
    pub stride: usize,
    /// Bytes of a row without padding.
    pub row_bytes: usize,
    /// Rows.
    pub rows: usize,
}

/// The plane to fill, without padding.
#[derive(Debug)]
pub struct To<'a> {
    /// All rows.
    pub bytes: &'a mut [u8],
    /// Bytes of a row.
    pub row_bytes: usize,
    /// Rows.
    pub rows: usize,
}

/// A resizer with its tables and buffers, for pictures of one kind after the other.
pub struct Resizer {
    options: ResizeOptions,
    resizer: fast_image_resize::Resizer,
}

impl Resizer {
    /// Creates a resizer.
    pub fn new(filter: Filter) -> Resizer {
        let algorithm = match filter {
            Filter::Nearest => ResizeAlg::Nearest,
            Filter::Box => ResizeAlg::Convolution(FilterType::Box),
            Filter::Bilinear => ResizeAlg::Convolution(FilterType::Bilinear),
            Filter::Bicubic => ResizeAlg::Convolution(FilterType::CatmullRom),
            Filter::Lanczos => ResizeAlg::Convolution(FilterType::Lanczos3),
        };
        let options = ResizeOptions::new().resize_alg(algorithm).use_alpha(false);
        Resizer { options, resizer: fast_image_resize::Resizer::new() }
    }

    /// Resizes one plane. A pixel has `pixel_bytes` components of one byte: 1, 3 or 4. An error names planes whose
    /// bytes do not fit their geometry.
    pub fn resize(&mut self, pixel_bytes: usize, from: From<'_>, to: To<'_>) -> Result<(), String> {
        match pixel_bytes {
            4 => self.resize_typed::<U8x4>(from, to),
            3 => self.resize_typed::<U8x3>(from, to),
            1 => self.resize_typed::<U8>(from, to),
            other => Err(format!("a pixel has {other} bytes")),
        }
    }

    /// Resizes a plane of pixels `P`. The padding of rows counts as pixels that are cropped. Uses typed images, because
    /// the library's dynamic choice would compile code for all pixel types.
    fn resize_typed<P: PixelTrait>(&mut self, from: From<'_>, to: To<'_>) -> Result<(), String> {
        let across = |bytes: usize| (bytes / P::size()) as u32;
        let failed = |error: &dyn std::fmt::Display| error.to_string();
        let rows = TypedImageRef::<P>::from_buffer(across(from.stride), from.rows as u32, from.bytes)
            .map_err(|error| failed(&error))?;
        let source = TypedCroppedImage::new(rows, 0, 0, across(from.row_bytes), from.rows as u32)
            .map_err(|error| failed(&error))?;
        let mut target = TypedImage::<P>::from_buffer(across(to.row_bytes), to.rows as u32, to.bytes)
            .map_err(|error| failed(&error))?;
        self.resizer.resize_typed(&source, &mut target, &self.options).map_err(|error| failed(&error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_filter_halves_a_plane_with_padding() {
        // Two rows of four equal pixels and one pixel of padding.
        for (pixel_bytes, filter) in [
            (1, Filter::Nearest),
            (3, Filter::Box),
            (4, Filter::Bilinear),
            (1, Filter::Bicubic),
            (3, Filter::Lanczos),
        ] {
            let row = [vec![7; 4 * pixel_bytes], vec![200; pixel_bytes]].concat();
            let bytes = row.repeat(2);
            let from = From { bytes: &bytes, stride: row.len(), row_bytes: 4 * pixel_bytes, rows: 2 };
            let mut out = vec![0; 2 * pixel_bytes];
            let to = To { bytes: &mut out, row_bytes: 2 * pixel_bytes, rows: 1 };
            Resizer::new(filter).resize(pixel_bytes, from, to).unwrap();
            assert_eq!(out, vec![7; 2 * pixel_bytes], "{filter:?}");
        }
    }

    #[test]
    fn planes_that_do_not_fit_are_refused() {
        let mut out = [0; 4];
        let from = From { bytes: &[1; 3], stride: 4, row_bytes: 4, rows: 1 };
        let to = To { bytes: &mut out, row_bytes: 4, rows: 1 };
        assert!(Resizer::new(Filter::Box).resize(1, from, to).is_err());
        let from = From { bytes: &[1; 4], stride: 4, row_bytes: 4, rows: 1 };
        let to = To { bytes: &mut out, row_bytes: 4, rows: 1 };
        assert!(Resizer::new(Filter::Box).resize(2, from, to).unwrap_err().contains("2 bytes"));
    }
}
