//! `scale`: resizes pictures ("Networked Device Driver Architecture" (2012), 4.8.2: "resized").

#[cfg(test)]
mod tests;

use crate::picture::{AT, Filter, Memory, PartialPicture, Picture, PicturePair, too_large};
use contract::{ModuleEntry, OptionKind, OptionSpec, Options, StageError, StageResult, agreed};
use resize::{From, Resizer, To};
use wire::formats::video::{Geometry, Plane, SIDE_MAX};

/// The pair.
pub(crate) static SCALE: PicturePair<Scaler> = PicturePair::new();

const SIDE: OptionKind = OptionKind::Integer { min: 0, max: SIDE_MAX as i64 };

static OPTIONS: [OptionSpec; 5] = [
    agreed("width", SIDE, "0", "width in pixels; 0: in proportion to `height`, or by `factor`"),
    agreed("height", SIDE, "0", "height in pixels; 0: in proportion to `width`, or by `factor`"),
    agreed(
        "factor",
        OptionKind::Number { min: 0.001, max: 16.0 },
        "1",
        "factor of width and height, if neither is given",
    ),
    agreed(
        "filter",
        OptionKind::Choice(&["nearest", "box", "bilinear", "bicubic", "lanczos"]),
        "bilinear",
        "interpolation, from the fastest to the best",
    ),
    AT,
];

pub(crate) struct Scaler {
    width: u32,
    height: u32,
    factor: f64,
    resizer: Resizer,
}

impl Scaler {
    /// The geometry of the resized picture.
    fn scaled(&self, from: &Geometry) -> StageResult<Geometry> {
        let multiplied = |side: u32, factor: f64| ((f64::from(side) * factor).round() as u32).max(1);
        let ratio = |to: u32, of: u32| f64::from(to) / f64::from(of);
        let (width, height) = match (self.width, self.height) {
            (0, 0) => (multiplied(from.width(), self.factor), multiplied(from.height(), self.factor)),
            (width, 0) => (width, multiplied(from.height(), ratio(width, from.width()))),
            (0, height) => (multiplied(from.width(), ratio(height, from.height())), height),
            sides => sides,
        };
        let (numerator, denominator) = from.rate();
        let to = Geometry::new(from.pixels(), width, height).map_err(too_large)?;
        Ok(to.with_rate(numerator, denominator))
    }

    /// Resizes one plane.
    fn scale_plane(
        &mut self,
        pixel_bytes: usize,
        (from, pixels): (Plane, &[u8]),
        (to, into): (Plane, &mut [u8]),
    ) -> StageResult {
        let tight: Vec<u8>;
        let (bytes, stride) = match from.stride % pixel_bytes {
            0 => (&pixels[from.offset..from.offset + from.bytes()], from.stride),
            _ => {
                tight = from.rows(pixels).flatten().copied().collect();
                (&tight[..], from.row_bytes)
            }
        };
        let source = From { bytes, stride, row_bytes: from.row_bytes, rows: from.rows };
        let into = &mut into[to.offset..to.offset + to.bytes()];
        let target = To { bytes: into, row_bytes: to.stride, rows: to.rows };
        let resized = self.resizer.resize(pixel_bytes, source, target);
        resized.map_err(|error| StageError::Own(format!("scale: {error}")))
    }
}

impl Filter for Scaler {
    const ENTRY: ModuleEntry = ModuleEntry {
        name: "scale",
        summary: "resizes pictures",
        doc: include_str!("doc.md"),
        options: &OPTIONS,
    };

    fn new(options: &Options) -> Self {
        let side = |name| u32::try_from(options.integer(name)).unwrap_or(0);
        let filter = match options.text("filter") {
            "nearest" => resize::Filter::Nearest,
            "box" => resize::Filter::Box,
            "bicubic" => resize::Filter::Bicubic,
            "lanczos" => resize::Filter::Lanczos,
            _ => resize::Filter::Bilinear,
        };
        Scaler {
            width: side("width"),
            height: side("height"),
            factor: options.number("factor"),
            resizer: Resizer::new(filter),
        }
    }

    fn check(options: &Options) -> Result<(), String> {
        let sides = options.integer("width") + options.integer("height");
        match options.number("factor") != 1.0 && sides > 0 {
            true => Err("`factor` contradicts `width` and `height`: give one of them".into()),
            false => Ok(()),
        }
    }

    fn frame(&mut self, picture: Picture, memory: &mut Memory) -> StageResult<Picture> {
        let from = picture.geometry;
        let to = self.scaled(&from)?;
        if (from.width(), from.height()) == (to.width(), to.height()) {
            return Ok(picture);
        }
        let mut into = memory.take(to.bytes());
        for number in 0..from.planes() {
            let from = (from.plane(number), &picture.pixels[..]);
            let to = (to.plane(number), &mut into[..]);
            // A plane of several is one byte for each pixel.
            let pixel_bytes = match picture.geometry.pixels().pixel_bytes() {
                several @ (3 | 4) => several,
                _ => 1,
            };
            self.scale_plane(pixel_bytes, from, to)?;
        }
        Ok(Picture { geometry: to, pixels: into.freeze() })
    }

    fn partial(&mut self, _: PartialPicture) -> StageResult<PartialPicture> {
        Err(StageError::Own(
            "scale takes whole pictures: set the device to send frames instead of rectangles".into(),
        ))
    }

    fn geometry(&self, from: &Geometry) -> StageResult<Geometry> {
        self.scaled(from)
    }
}
