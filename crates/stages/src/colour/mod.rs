//! `colour`: pictures with other colours (paper N, section 4.8.2: "color-shifted").

mod mix;
#[cfg(test)]
mod tests;

use crate::agreed;
use crate::picture::{self, AT, Filter, Memory, Parts, Picture};
use contract::{Format, Half, OptionKind, OptionSpec, Options, Pair, Promises, Site, Stage, StageError};
use mix::Mix;
use wire::formats::video::{Geometry, PixelFormat};

/// The pair.
pub(crate) struct Colour;

const SHIFT: OptionKind = OptionKind::Integer { min: -255, max: 255 };

static OPTIONS: [OptionSpec; 7] = [
    agreed("hue", OptionKind::Number { min: -180.0, max: 180.0 }, "0", "degrees by which hues are turned"),
    agreed("saturation", OptionKind::Number { min: 0.0, max: 8.0 }, "1", "factor of the colours; 0: none"),
    agreed("brightness", SHIFT, "0", "added to red, green and blue, of 255"),
    agreed("red", SHIFT, "0", "added to red, of 255"),
    agreed("green", SHIFT, "0", "added to green, of 255"),
    agreed("blue", SHIFT, "0", "added to blue, of 255"),
    AT,
];

impl Pair for Colour {
    fn name(&self) -> &'static str {
        "colour"
    }

    fn summary(&self) -> &'static str {
        "pictures with other colours: hue, saturation, brightness, red, green and blue"
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

    fn source(&self, options: &Options, _: &Format, _: &Site) -> Result<Box<dyn Stage>, StageError> {
        Ok(picture::half(Half::Source, options, || Mix::new(options)))
    }

    fn sink(&self, options: &Options, _: &Format, _: &Site) -> Result<Box<dyn Stage>, StageError> {
        Ok(picture::half(Half::Sink, options, || Mix::new(options)))
    }
}

impl Filter for Mix {
    fn frame(&mut self, picture: Picture, memory: &mut Memory) -> Result<Picture, StageError> {
        let (from, to) = (picture.geometry, picture.geometry.tight());
        let mut into = memory.take(to.bytes());
        let (first, chroma) = into.split_at_mut(to.plane(0).bytes());
        let rows = from.plane(0).rows(&picture.pixels);
        for (from, into) in rows.zip(first.chunks_exact_mut(to.plane(0).stride)) {
            self.pixels(to.pixels(), from, into);
        }
        if from.planes() > 1 {
            let (blue, red) = chroma.split_at_mut(to.plane(1).bytes());
            let rows = from.plane(1).rows(&picture.pixels).zip(from.plane(2).rows(&picture.pixels));
            let stride = to.plane(1).stride;
            let into = blue.chunks_exact_mut(stride).zip(red.chunks_exact_mut(stride));
            rows.zip(into).for_each(|(from, into)| self.chroma(from, into));
        }
        Ok(Picture { geometry: to, pixels: into.freeze() })
    }

    fn parts(&mut self, mut parts: Parts) -> Result<Parts, StageError> {
        let mut into = vec![0; parts.pixels.len()];
        let pixels: PixelFormat = parts.geometry.pixels();
        self.pixels(pixels, &parts.pixels, &mut into);
        parts.pixels = into.into();
        Ok(parts)
    }

    fn geometry(&self, from: &Geometry) -> Result<Geometry, StageError> {
        Ok(from.tight())
    }
}
