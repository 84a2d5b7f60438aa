//! What happens to one pixel: an affine map, worked out once for pixels of red, green and blue and once for those of
//! Y, Cb and Cr.

use crate::picture::channels;
use contract::Options;
use wire::formats::video::PixelFormat;

/// Bits behind the point of a coefficient.
const FRACTION_BITS: u32 = 14;

/// ITU-R BT.601, all components from 0 to 1, colours about 0: Y, Cb and Cr of red, green and blue.
const YCC_OF_RGB: [[f64; 3]; 3] =
    [[0.299, 0.587, 0.114], [-0.168_736, -0.331_264, 0.5], [0.5, -0.418_688, -0.081_312]];
/// And back.
const RGB_OF_YCC: [[f64; 3]; 3] = [[1.0, 0.0, 1.402], [1.0, -0.344_136, -0.714_136], [1.0, 1.772, 0.0]];

/// Steps from black to white, and from one end of a colour to the other, in Y, Cb and Cr of eight bits, to 255.
const LUMA_RANGE: f64 = 219.0 / 255.0;
const CHROMA_RANGE: f64 = 224.0 / 255.0;

/// The map.
pub(super) struct Mix {
    /// Whether only something is added: nothing is turned or scaled.
    adds_only: bool,
    /// Of red, green and blue; the last column is added.
    rgb: [[i32; 4]; 3],
    /// Of Cb and Cr, about 128.
    chroma: [[i32; 3]; 2],
    /// Added to red, green and blue.
    rgb_shift: [i16; 3],
    /// Added to Y.
    luma_shift: i16,
    /// Added to gray.
    gray_shift: i16,
}

impl Mix {
    pub(super) fn new(options: &Options) -> Self {
        let shift = |name| options.integer(name) as f64;
        let rgb_shift = ["red", "green", "blue"].map(|name| shift(name) + shift("brightness"));
        let (hue, saturation) = (options.number("hue").to_radians(), options.number("saturation"));
        let (sine, cosine) = (hue.sin() * saturation, hue.cos() * saturation);
        let turned = [[1.0, 0.0, 0.0], [0.0, cosine, -sine], [0.0, sine, cosine]];
        let matrix = product(&RGB_OF_YCC, &product(&turned, &YCC_OF_RGB));
        let ycc_shift = YCC_OF_RGB.map(|row| (0..3).map(|i| row[i] * rgb_shift[i]).sum::<f64>());
        // Rounded, not cut.
        let half = 1 << (FRACTION_BITS - 1);
        let row = |coefficients: [f64; 3], shift: f64| {
            let [a, b, c] = coefficients.map(fixed);
            [a, b, c, fixed(shift) + half]
        };
        let centre = |turned: f64, shift: f64| fixed(128.0 - 128.0 * turned + CHROMA_RANGE * shift) + half;
        Mix {
            adds_only: hue == 0.0 && saturation == 1.0,
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

    /// A run of packed pixels, or of the plane of Y.
    pub(super) fn pixels(&self, pixels: PixelFormat, from: &[u8], into: &mut [u8]) {
        match pixels {
            PixelFormat::Gray8 => add(self.gray_shift, from, into),
            PixelFormat::Rgb24 => self.colours::<3>(channels(pixels), from, into),
            PixelFormat::Bgrx32 => self.colours::<4>(channels(pixels), from, into),
            _ => add(self.luma_shift, from, into),
        }
    }

    /// Runs of Cb and Cr.
    pub(super) fn chroma(&self, (blue, red): (&[u8], &[u8]), (to_blue, to_red): (&mut [u8], &mut [u8])) {
        let [for_blue, for_red] = self.chroma;
        for ((blue, red), (to_blue, to_red)) in blue.iter().zip(red).zip(to_blue.iter_mut().zip(to_red)) {
            let (b, r) = (i32::from(*blue), i32::from(*red));
            *to_blue = whole(for_blue[0] * b + for_blue[1] * r + for_blue[2]);
            *to_red = whole(for_red[0] * b + for_red[1] * r + for_red[2]);
        }
    }

    fn colours<const BYTES: usize>(&self, places: [usize; 3], from: &[u8], into: &mut [u8]) {
        let (from, _) = from.as_chunks::<BYTES>();
        let (into, _) = into.as_chunks_mut::<BYTES>();
        if self.adds_only {
            let mut shift = [0; BYTES];
            places.iter().zip(self.rgb_shift).for_each(|(place, by)| shift[*place] = by);
            for (from, into) in from.iter().zip(into) {
                *into = std::array::from_fn(|i| shifted(from[i], shift[i]));
            }
            return;
        }
        for (from, into) in from.iter().zip(into) {
            *into = *from;
            let [red, green, blue] = places.map(|place| i32::from(from[place]));
            for (place, [of_red, of_green, of_blue, more]) in places.iter().zip(self.rgb) {
                into[*place] = whole(of_red * red + of_green * green + of_blue * blue + more);
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

fn whole(fixed: i32) -> u8 {
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
