//! `format=video`: a coloured square that moves over a fixed background.

use super::{Numbered, nominal};
use contract::Options;
use wire::formats::video::{Geometry, Header, PixelFormat};

/// Values of option `pixels`.
pub(super) const PIXELS: &[&str] = &["bgrx", "rgb", "gray", "i420"];

/// Movement of the square per picture in pixels, horizontal and vertical.
const STEP: (u64, u64) = (4, 2);

/// Colours of the square as RGB and as YCbCr.
const COLOURS: [([u8; 3], [u8; 3]); 4] = [
    ([255, 0, 0], [82, 90, 240]),
    ([0, 255, 0], [144, 54, 34]),
    ([0, 0, 255], [41, 240, 110]),
    ([255, 255, 0], [210, 16, 146]),
];

/// The content of the pictures.
#[derive(Debug)]
pub(super) struct Scene {
    geometry: Geometry,
    background: Vec<u8>,
    /// Side of the square, pixels.
    side: u32,
    /// One pixel of the square per plane; packed formats use only the first.
    square: [Vec<u8>; 3],
}

impl Scene {
    pub(super) fn new(options: &Options) -> Result<Scene, String> {
        let side = |name| u32::try_from(options.integer(name)).unwrap_or(0);
        let pixels = match options.text("pixels") {
            "rgb" => PixelFormat::Rgb24,
            "gray" => PixelFormat::Gray8,
            "i420" => PixelFormat::I420,
            _ => PixelFormat::Bgrx32,
        };
        let geometry = Geometry::new(pixels, side("width"), side("height"))
            .map_err(|error| error.to_string())?
            .with_rate_hz(nominal(options.number("rate")));
        let ([red, green, blue], [y, cb, cr]) =
            COLOURS[options.count("seed").wrapping_sub(1) % COLOURS.len()];
        let first = match pixels {
            PixelFormat::Bgrx32 => vec![blue, green, red, 0],
            PixelFormat::Rgb24 => vec![red, green, blue],
            _ => vec![y],
        };
        let mut background = vec![128; geometry.bytes()];
        let plane = geometry.plane(0);
        for row in plane.rows_mut(&mut background) {
            let width = row.len();
            row.iter_mut().enumerate().for_each(|(at, byte)| *byte = (64 + at * 96 / width) as u8);
        }
        // An even side and even steps keep the square aligned with subsampled colours.
        let side = ((geometry.width().min(geometry.height()) / 4) & !1).max(1);
        Ok(Scene { geometry, background, side, square: [first, vec![cb], vec![cr]] })
    }

    pub(super) fn header(&self) -> Header {
        Header::frame(self.geometry)
    }

    /// Returns the upper left corner of the square, which bounces between the borders.
    fn position(&self, number: u64) -> (usize, usize) {
        let bounce = |step: u64, side: u32| {
            let range = u64::from((side - self.side) & !1);
            let at = number.wrapping_mul(step) % (2 * range).max(1);
            at.min(2 * range - at) as usize
        };
        (bounce(STEP.0, self.geometry.width()), bounce(STEP.1, self.geometry.height()))
    }
}

impl Numbered for Scene {
    fn size(&self) -> usize {
        self.geometry.bytes()
    }

    fn fill(&self, number: u64, into: &mut [u8]) {
        // A checked message of another size is wrong anyway.
        if into.len() != self.background.len() {
            return;
        }
        into.copy_from_slice(&self.background);
        let (x, y) = self.position(number);
        for (plane, pixel) in self.square.iter().enumerate().take(self.geometry.planes()) {
            let (across, down) = self.geometry.pixels().subsampling().filter(|_| plane > 0).unwrap_or((1, 1));
            let (columns, rows) = (self.side.div_ceil(across) as usize, self.side.div_ceil(down) as usize);
            let start = x / across as usize * pixel.len();
            for row in self.geometry.plane(plane).rows_mut(into).skip(y / down as usize).take(rows) {
                let square = row[start..].chunks_exact_mut(pixel.len()).take(columns);
                square.for_each(|into| into.copy_from_slice(pixel));
            }
        }
        let digits = number.to_le_bytes();
        let known = into.len().min(digits.len());
        into[..known].copy_from_slice(&digits[..known]);
    }
}
