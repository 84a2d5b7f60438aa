//! `crop`: cuts out a part of each picture.

#[cfg(test)]
mod tests;

use crate::picture::{AT, Filter, Memory, PartialPicture, Picture, PicturePair, too_large};
use contract::{ModuleEntry, OptionKind, OptionSpec, Options, StageError, StageResult, agreed};
use wire::formats::video::{Geometry, Rectangle, SIDE_MAX};

/// The pair.
pub(crate) static CROP: PicturePair<Cropper> = PicturePair::new();

const SIDE: OptionKind = OptionKind::Integer { min: 0, max: SIDE_MAX as i64 };

static OPTIONS: [OptionSpec; 5] = [
    agreed("x", SIDE, "0", "left edge, in pixels"),
    agreed("y", SIDE, "0", "upper edge, in pixels"),
    agreed("width", SIDE, "0", "width in pixels; 0: up to the right edge"),
    agreed("height", SIDE, "0", "height in pixels; 0: down to the lower edge"),
    AT,
];

pub(crate) struct Cropper {
    requested: Rectangle,
}

impl Cropper {
    /// The requested part, clipped to the picture. With subsampled colour, it starts at a whole
    /// colour sample.
    fn available(&self, picture: &Geometry) -> StageResult<Rectangle> {
        let (across, down) = picture.pixels().subsampling().unwrap_or((1, 1));
        let whole = Rectangle { x: 0, y: 0, width: picture.width(), height: picture.height() };
        let part = self.requested.intersection(&whole).ok_or_else(|| {
            let Rectangle { x, y, .. } = self.requested;
            let (width, height) = (whole.width, whole.height);
            StageError::Own(format!("crop: nothing is left at x={x}, y={y} of a picture of {width}x{height}"))
        })?;
        let (x_extra, y_extra) = (part.x % across, part.y % down);
        let (x, y) = (part.x - x_extra, part.y - y_extra);
        Ok(Rectangle { x, y, width: part.width + x_extra, height: part.height + y_extra })
    }
}

/// The geometry of a part.
fn cropped(from: &Geometry, part: Rectangle) -> StageResult<Geometry> {
    let (numerator, denominator) = from.rate();
    let to = Geometry::new(from.pixels(), part.width, part.height).map_err(too_large)?;
    Ok(to.with_rate(numerator, denominator))
}

impl Filter for Cropper {
    const ENTRY: ModuleEntry = ModuleEntry {
        name: "crop",
        summary: "cuts out a part of each picture",
        doc: include_str!("doc.md"),
        options: &OPTIONS,
    };

    fn new(options: &Options) -> Self {
        let side = |name| u32::try_from(options.integer(name)).unwrap_or(0);
        let or_all = |name| Some(side(name)).filter(|side| *side > 0).unwrap_or(SIDE_MAX);
        let (width, height) = (or_all("width"), or_all("height"));
        Cropper { requested: Rectangle { x: side("x"), y: side("y"), width, height } }
    }

    fn frame(&mut self, picture: Picture, memory: &mut Memory) -> StageResult<Picture> {
        let from = picture.geometry;
        let part = self.available(&from)?;
        let to = cropped(&from, part)?;
        let mut into = memory.take(to.bytes());
        for number in 0..from.planes() {
            let (across, down) = from.pixels().subsampling().filter(|_| number > 0).unwrap_or((1, 1));
            let start = (part.x / across) as usize * from.pixels().pixel_bytes();
            let rows = from.plane(number).rows(&picture.pixels).skip((part.y / down) as usize);
            for (from, into) in rows.zip(to.plane(number).rows_mut(&mut into)) {
                into.copy_from_slice(&from[start..start + into.len()]);
            }
        }
        Ok(Picture { geometry: to, pixels: into.freeze() })
    }

    fn partial(&mut self, partial: PartialPicture) -> StageResult<PartialPicture> {
        let kept = self.available(&partial.geometry)?;
        let pixels = partial.geometry.pixels();
        let (mut rectangles, mut into) = (Vec::new(), Vec::new());
        let mut rest = &partial.pixels[..];
        for rectangle in partial.rectangles {
            let (current, following) = rest.split_at(rectangle.bytes(pixels));
            rest = following;
            let Some(common) = rectangle.intersection(&kept) else { continue };
            let start = (common.x - rectangle.x) as usize * pixels.pixel_bytes();
            let length = common.width as usize * pixels.pixel_bytes();
            let rows = current.chunks_exact(rectangle.width as usize * pixels.pixel_bytes());
            for row in rows.skip((common.y - rectangle.y) as usize).take(common.height as usize) {
                into.extend_from_slice(&row[start..start + length]);
            }
            rectangles.push(Rectangle { x: common.x - kept.x, y: common.y - kept.y, ..common });
        }
        Ok(PartialPicture { geometry: cropped(&partial.geometry, kept)?, rectangles, pixels: into.into() })
    }

    fn geometry(&self, from: &Geometry) -> StageResult<Geometry> {
        cropped(from, self.available(from)?)
    }
}
