//! The map of one pixel: affine, computed once for red, green and blue and once for Y, Cb and Cr.

use crate::picture::channels;
use contract::Options;
use wire::formats::video::PixelFormat;

/// Fraction bits of a coefficient.
const FRACTION_BITS: u32 = 14;

/// ITU-R BT.601 from red, green and blue to Y, Cb and Cr; components from 0 to 1, Cb and Cr around
/// 0.
const RGB_TO_YCC: [[f64; 3]; 3] =
    [[0.299, 0.587, 0.114], [-0.168_736, -0.331_264, 0.5], [0.5, -0.418_688, -0.081_312]];
/// The inverse of `RGB_TO_YCC`.
const YCC_TO_RGB: [[f64; 3]; 3] = [[1.0, 0.0, 1.402], [1.0, -0.344_136, -0.714_136], [1.0, 1.772, 0.0]];

/// Range of eight-bit Y, and of Cb and Cr, relative to 255.
const LUMA_RANGE: f64 = 219.0 / 255.0;
const CHROMA_RANGE: f64 = 224.0 / 255.0;

/// See the module comment.
pub(crate) struct ColourMap {
    /// True if the map only adds: no rotation and no scaling.
    is_shift_only: bool,
    /// For red, green and blue; the last column is added.
    rgb: [[i32; 4]; 3],
    /// For Cb and Cr around 128; the last column is added.
    chroma: [[i32; 3]; 2],
    /// Added to red, green and blue.
    rgb_shift: [i16; 3],
    /// Added to Y.
    luma_shift: i16,
    /// Added to gray.
    gray_shift: i16,
}

impl ColourMap {
    pub(super) fn new(options: &Options) -> Self {
        let shift = |name| options.integer(name) as f64;
        let rgb_shift = ["red", "green", "blue"].map(|name| shift(name) + shift("brightness"));
        let (hue, saturation) = (options.number("hue").to_radians(), options.number("saturation"));
        let (sine, cosine) = (hue.sin() * saturation, hue.cos() * saturation);
        let rotation = [[1.0, 0.0, 0.0], [0.0, cosine, -sine], [0.0, sine, cosine]];
        let matrix = product(&YCC_TO_RGB, &product(&rotation, &RGB_TO_YCC));
        let ycc_shift = RGB_TO_YCC.map(|row| (0..3).map(|i| row[i] * rgb_shift[i]).sum::<f64>());
        // Rounds instead of truncating.
        let half = 1 << (FRACTION_BITS - 1);
        let row = |coefficients: [f64; 3], shift: f64| {
            let [a, b, c] = coefficients.map(fixed);
            [a, b, c, fixed(shift) + half]
        };
        let centre =
            |rotation: f64, shift: f64| fixed(128.0 - 128.0 * rotation + CHROMA_RANGE * shift) + half;
        ColourMap {
            is_shift_only: hue == 0.0 && saturation == 1.0,
            rgb: [0, 1, 2].map(|i| row(matrix[i], rgb_shift[i])),
            chroma: [
                [fixed(cosine), fixed(-sine), centre(cosine - sine, ycc_shift[1])],
                [fixed(sine), fixed(cosine), centre(sine + cosine, ycc_shift[2])],
            ],
            rgb_shift: rgb_shift.map(rounded),
            luma_shift: rounded(LUMA_RANGE * ycc_shift[0]),
            gray_shift: rounded(ycc_shift[0]),
        }
    }

    /// Maps a run of packed pixels, or of the plane of Y.
    pub(super) fn pixels(&self, pixels: PixelFormat, from: &[u8], into: &mut [u8]) {
        match pixels {
            PixelFormat::Gray8 => add(self.gray_shift, from, into),
            PixelFormat::Rgb24 => self.colours::<3>(channels(pixels), from, into),
            PixelFormat::Bgrx32 => self.colours::<4>(channels(pixels), from, into),
            _ => add(self.luma_shift, from, into),
        }
    }

    /// Maps runs of Cb and Cr.
    pub(super) fn chroma(&self, (blue, red): (&[u8], &[u8]), (to_blue, to_red): (&mut [u8], &mut [u8])) {
        let [for_blue, for_red] = self.chroma;
        for ((blue, red), (to_blue, to_red)) in blue.iter().zip(red).zip(to_blue.iter_mut().zip(to_red)) {
            let (b, r) = (i32::from(*blue), i32::from(*red));
            *to_blue = to_byte(for_blue[0] * b + for_blue[1] * r + for_blue[2]);
            *to_red = to_byte(for_red[0] * b + for_red[1] * r + for_red[2]);
        }
    }

    fn colours<const BYTES: usize>(&self, offsets: [usize; 3], from: &[u8], into: &mut [u8]) {
        let (from, _) = from.as_chunks::<BYTES>();
        let (into, _) = into.as_chunks_mut::<BYTES>();
        if self.is_shift_only {
            let mut shift = [0; BYTES];
            offsets.iter().zip(self.rgb_shift).for_each(|(offset, by)| shift[*offset] = by);
            for (from, into) in from.iter().zip(into) {
                *into = std::array::from_fn(|i| shifted(from[i], shift[i]));
            }
            return;
        }
        for (from, into) in from.iter().zip(into) {
            *into = *from;
            let [red, green, blue] = offsets.map(|offset| i32::from(from[offset]));
            for (offset, [from_red, from_green, from_blue, constant]) in offsets.iter().zip(self.rgb) {
                into[*offset] = to_byte(from_red * red + from_green * green + from_blue * blue + constant);
            }
        }
    }
}

fn add(shift: i16, from: &[u8], into: &mut [u8]) {
    for (from, into) in from.iter().zip(into) {
        *into = shifted(*from, shift);
    }
}

fn shifted(value: u8, shift: i16) -> u8 {
    (i16::from(value) + shift).clamp(0, 255) as u8
}

fn to_byte(fixed: i32) -> u8 {
    (fixed >> FRACTION_BITS).clamp(0, 255) as u8
}

fn fixed(number: f64) -> i32 {
    (number * f64::from(1 << FRACTION_BITS)).round() as i32
}

fn rounded(number: f64) -> i16 {
    number.round() as i16
}

fn product(left: &[[f64; 3]; 3], right: &[[f64; 3]; 3]) -> [[f64; 3]; 3] {
    std::array::from_fn(|i| std::array::from_fn(|j| (0..3).map(|k| left[i][k] * right[k][j]).sum()))
}
