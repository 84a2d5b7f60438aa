//! `colour`: changes the colours of pictures ("Networked Device Driver Architecture" (2012), 4.8.2:
//! "color-shifted").

mod mix;
#[cfg(test)]
mod tests;

use crate::picture::{AT, Filter, Memory, PartialPicture, Picture, PicturePair};
use contract::{ModuleEntry, OptionKind, OptionSpec, Options, StageResult, agreed};
use mix::ColourMap;
use wire::formats::video::{Geometry, PixelFormat};

/// The pair.
pub(crate) static COLOUR: PicturePair<ColourMap> = PicturePair::new();

const SHIFT: OptionKind = OptionKind::Integer { min: -255, max: 255 };

static OPTIONS: [OptionSpec; 7] = [
    agreed("hue", OptionKind::Number { min: -180.0, max: 180.0 }, "0", "rotation of hues, in degrees"),
    agreed("saturation", OptionKind::Number { min: 0.0, max: 8.0 }, "1", "factor of saturation; 0: gray"),
    agreed("brightness", SHIFT, "0", "added to red, green and blue, -255 to 255"),
    agreed("red", SHIFT, "0", "added to red, -255 to 255"),
    agreed("green", SHIFT, "0", "added to green, -255 to 255"),
    agreed("blue", SHIFT, "0", "added to blue, -255 to 255"),
    AT,
];

impl Filter for ColourMap {
    const ENTRY: ModuleEntry = ModuleEntry {
        name: "colour",
        summary: "changes hue, saturation, brightness, red, green and blue",
        doc: include_str!("doc.md"),
        options: &OPTIONS,
    };

    fn new(options: &Options) -> Self {
        ColourMap::new(options)
    }

    fn frame(&mut self, picture: Picture, memory: &mut Memory) -> StageResult<Picture> {
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

    fn partial(&mut self, mut partial: PartialPicture) -> StageResult<PartialPicture> {
        let mut into = vec![0; partial.pixels.len()];
        let pixels: PixelFormat = partial.geometry.pixels();
        self.pixels(pixels, &partial.pixels, &mut into);
        partial.pixels = into.into();
        Ok(partial)
    }

    fn geometry(&self, from: &Geometry) -> StageResult<Geometry> {
        Ok(from.tight())
    }
}
