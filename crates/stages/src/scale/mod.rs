//! `scale`: pictures of another size (paper N, section 4.8.2: "resized").

#[cfg(test)]
mod tests;

use crate::agreed;
use crate::picture::{self, AT, Filter, Memory, Parts, Picture, too_large};
use contract::{Format, Half, OptionKind, OptionSpec, Options, Pair, Promises, Site, Stage, StageError};
use fast_image_resize::images::{TypedCroppedImage, TypedImage, TypedImageRef};
use fast_image_resize::pixels::{U8, U8x3, U8x4};
use fast_image_resize::{FilterType, PixelTrait, ResizeAlg, ResizeOptions, Resizer};
use wire::formats::video::{Geometry, Plane, SIDE_MAX};

/// The pair.
pub(crate) struct Scale;

const SIDE: OptionKind = OptionKind::Integer { min: 0, max: SIDE_MAX as i64 };

static OPTIONS: [OptionSpec; 5] = [
    agreed("width", SIDE, "0", "pixels across; 0: as the height, or the factor, says"),
    agreed("height", SIDE, "0", "pixels down; 0: as the width, or the factor, says"),
    agreed(
        "factor",
        OptionKind::Number { min: 0.001, max: 16.0 },
        "1",
        "of both sides, where neither is given",
    ),
    agreed(
        "filter",
        OptionKind::Choice(&["nearest", "box", "bilinear", "bicubic", "lanczos"]),
        "bilinear",
        "how pixels are made of pixels, from the fastest to the best",
    ),
    AT,
];

impl Pair for Scale {
    fn name(&self) -> &'static str {
        "scale"
    }

    fn summary(&self) -> &'static str {
        "pictures of another size"
    }

    fn doc(&self) -> &'static str {
        include_str!("doc.md")
    }

    fn options(&self) -> &'static [OptionSpec] {
        &OPTIONS
    }

    fn promises(&self, _options: &Options) -> Promises {
        Promises { may_change: true, ..Promises::default() }
    }

    fn accept(&self, format: &Format, _options: &Options) -> Result<Format, String> {
        picture::accept(format)
    }

    fn check(&self, options: &Options) -> Result<(), String> {
        let sides = options.integer("width") + options.integer("height");
        match options.number("factor") != 1.0 && sides > 0 {
            true => Err("`factor` and a width or a height contradict each other: give one".into()),
            false => Ok(()),
        }
    }

    fn source(&self, options: &Options, _: &Format, _: &Site) -> Result<Box<dyn Stage>, StageError> {
        Ok(picture::half(Half::Source, options, || Size::new(options)))
    }

    fn sink(&self, options: &Options, _: &Format, _: &Site) -> Result<Box<dyn Stage>, StageError> {
        Ok(picture::half(Half::Sink, options, || Size::new(options)))
    }
}

struct Size {
    width: u32,
    height: u32,
    factor: f64,
    algorithm: ResizeAlg,
    resizer: Resizer,
}

impl Size {
    fn new(options: &Options) -> Self {
        let side = |name| u32::try_from(options.integer(name)).unwrap_or(0);
        let algorithm = match options.text("filter") {
            "nearest" => ResizeAlg::Nearest,
            "box" => ResizeAlg::Convolution(FilterType::Box),
            "bicubic" => ResizeAlg::Convolution(FilterType::CatmullRom),
            "lanczos" => ResizeAlg::Convolution(FilterType::Lanczos3),
            _ => ResizeAlg::Convolution(FilterType::Bilinear),
        };
        Size {
            width: side("width"),
            height: side("height"),
            factor: options.number("factor"),
            algorithm,
            resizer: Resizer::new(),
        }
    }

    /// What becomes of a picture of this geometry.
    fn scaled(&self, from: &Geometry) -> Result<Geometry, StageError> {
        let times = |side: u32, factor: f64| ((f64::from(side) * factor).round() as u32).max(1);
        let ratio = |to: u32, of: u32| f64::from(to) / f64::from(of);
        let (width, height) = match (self.width, self.height) {
            (0, 0) => (times(from.width(), self.factor), times(from.height(), self.factor)),
            (width, 0) => (width, times(from.height(), ratio(width, from.width()))),
            (0, height) => (times(from.width(), ratio(height, from.height())), height),
            sides => sides,
        };
        let (numerator, denominator) = from.rate();
        let to = Geometry::new(from.pixels(), width, height).map_err(too_large)?;
        Ok(to.with_rate(numerator, denominator))
    }

    /// One plane into another. The bytes that fill up rows count as pixels that are left out.
    ///
    /// The resizer's own choice among pixel types would be compiled for all of them.
    fn plane<P: PixelTrait>(
        &mut self,
        (from, pixels): (Plane, &[u8]),
        (to, into): (Plane, &mut [u8]),
    ) -> Result<(), StageError> {
        let own = |error: &dyn std::fmt::Display| StageError::Own(format!("scale: {error}"));
        let across = |bytes: usize| (bytes / P::size()) as u32;
        let tight: Vec<u8>;
        let (pixels, stride) = match from.stride % P::size() {
            0 => (&pixels[from.offset..from.offset + from.bytes()], from.stride),
            _ => {
                tight = from.rows(pixels).flatten().copied().collect();
                (&tight[..], from.row_bytes)
            }
        };
        let down = from.rows as u32;
        let rows = TypedImageRef::<P>::from_buffer(across(stride), down, pixels).map_err(|e| own(&e))?;
        let source = TypedCroppedImage::new(rows, 0, 0, across(from.row_bytes), down).map_err(|e| own(&e))?;
        let into = &mut into[to.offset..to.offset + to.bytes()];
        let mut target =
            TypedImage::<P>::from_buffer(across(to.stride), to.rows as u32, into).map_err(|e| own(&e))?;
        let options = ResizeOptions::new().resize_alg(self.algorithm).use_alpha(false);
        self.resizer.resize_typed(&source, &mut target, &options).map_err(|e| own(&e))
    }
}

impl Filter for Size {
    fn frame(&mut self, picture: Picture, memory: &mut Memory) -> Result<Picture, StageError> {
        let from = picture.geometry;
        let to = self.scaled(&from)?;
        if (from.width(), from.height()) == (to.width(), to.height()) {
            return Ok(picture);
        }
        let mut into = memory.take(to.bytes());
        for number in 0..from.planes() {
            let from = (from.plane(number), &picture.pixels[..]);
            let to = (to.plane(number), &mut into[..]);
            match picture.geometry.pixels().pixel_bytes() {
                4 => self.plane::<U8x4>(from, to),
                3 => self.plane::<U8x3>(from, to),
                _ => self.plane::<U8>(from, to),
            }?;
        }
        Ok(Picture { geometry: to, pixels: into.freeze() })
    }

    fn parts(&mut self, _: Parts) -> Result<Parts, StageError> {
        Err(StageError::Own(
            "scale takes whole pictures: have the device send frames instead of rectangles".into(),
        ))
    }

    fn geometry(&self, from: &Geometry) -> Result<Geometry, StageError> {
        self.scaled(from)
    }
}
