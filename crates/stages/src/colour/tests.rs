use super::COLOUR;
use crate::picture::tests::*;
use contract::{Format, Half};
use testkit::stage::conforms;
use wire::formats::video::{PixelFormat, Rectangle};

#[test]
fn it_conforms() {
    for given in [&[][..], &[("hue", "90")], &[("red", "20"), ("at", "sink")]] {
        conforms(&COLOUR, given, &Format::Video);
    }
}

#[test]
fn the_defaults_change_nothing() {
    for pixels in PLAIN {
        let tight = geometry(pixels, 19, 7, 0);
        let bytes = noise(tight.bytes(), 1);
        assert_eq!(filtered(&COLOUR, &[], tight, &bytes), (tight, bytes.clone()), "{pixels:?}");
        let rotated = filtered(&COLOUR, &[("hue", "0"), ("saturation", "1.0001")], tight, &bytes).1;
        let error = bytes.iter().zip(&rotated).map(|(a, b)| a.abs_diff(*b)).max();
        assert!(error <= Some(1), "{pixels:?}: {error:?}");
    }
}

/// The map of the standard, in floating point.
fn reference(rgb: [f64; 3], hue: f64, saturation: f64, shift: [f64; 3]) -> [f64; 3] {
    let [red, green, blue] = rgb;
    let y = 0.299 * red + 0.587 * green + 0.114 * blue;
    let (cb, cr) = ((blue - y) / 1.772 * saturation, (red - y) / 1.402 * saturation);
    let (sine, cosine) = (hue.to_radians().sin(), hue.to_radians().cos());
    let (cb, cr) = (cb * cosine - cr * sine, cb * sine + cr * cosine);
    let rotated = [y + 1.402 * cr, y - (0.299 * 1.402 * cr + 0.114 * 1.772 * cb) / 0.587, y + 1.772 * cb];
    [0, 1, 2].map(|i| (rotated[i] + shift[i]).clamp(0.0, 255.0))
}

#[test]
fn colours_are_rotated_as_in_bt_601() {
    for (hue, saturation, shift) in [
        ("0", "0", [0.0; 3]),
        ("120", "1", [0.0; 3]),
        ("-77", "1.5", [30.0, 10.0, -90.0]),
        ("0", "1", [255.0, -255.0, 3.0]),
    ] {
        let [red, green, blue] = shift.map(|shift| format!("{shift}"));
        let given =
            [("hue", hue), ("saturation", saturation), ("red", &red), ("green", &green), ("blue", &blue)];
        for pixels in [PixelFormat::Rgb24, PixelFormat::Bgrx32] {
            let from = geometry(pixels, 40, 5, 1);
            let bytes = noise(from.bytes(), 2);
            let (to, mixed) = filtered(&COLOUR, &given, from, &bytes);
            assert_eq!(to, from.tight());
            for (x, y) in (0..40).flat_map(|x| (0..5).map(move |y| (x, y))) {
                let rgb = |pixel: Vec<u8>| {
                    let offsets = if pixels == PixelFormat::Rgb24 { [0, 1, 2] } else { [2, 1, 0] };
                    offsets.map(|offset| f64::from(pixel[offset]))
                };
                let before = rgb(pixel(&from, &bytes, 0, x, y));
                let expected = reference(before, hue.parse().unwrap(), saturation.parse().unwrap(), shift);
                let output = rgb(pixel(&to, &mixed, 0, x, y));
                let error = (0..3).map(|i| (output[i] - expected[i]).abs()).fold(0.0, f64::max);
                assert!(error <= 1.0, "{given:?} {pixels:?}: {before:?} became {output:?}, not {expected:?}");
            }
        }
    }
}

/// Y, Cb and Cr of eight bits.
fn ycc([red, green, blue]: [f64; 3]) -> [u8; 3] {
    let y = 0.299 * red + 0.587 * green + 0.114 * blue;
    let colour = |part: f64, range: f64| 128.0 + (part - y) / range * 224.0 / 255.0;
    [16.0 + y * 219.0 / 255.0, colour(blue, 1.772), colour(red, 1.402)].map(|part| part.round() as u8)
}

#[test]
fn planes_agree_with_red_green_and_blue() {
    let given = [("hue", "40"), ("saturation", "0.8"), ("brightness", "12"), ("green", "-30")];
    let shift = [12.0, -18.0, 12.0];
    for before in [[100.0, 120.0, 90.0], [180.0, 60.0, 70.0], [40.0, 90.0, 160.0]] {
        let expected = ycc(reference(before, 40.0, 0.8, shift));
        for pixels in [PixelFormat::I420, PixelFormat::I422, PixelFormat::I444] {
            let from = geometry(pixels, 5, 3, 2);
            let (to, mixed) = filtered(&COLOUR, &given, from, &plain(&from, ycc(before)));
            for number in 0..3 {
                let output = pixel(&to, &mixed, number, 1, 1)[0];
                assert!(
                    output.abs_diff(expected[number]) <= 2,
                    "{pixels:?} {number}: {output} of {expected:?}"
                );
            }
        }
    }
    let gray = geometry(PixelFormat::Gray8, 4, 1, 0);
    let (_, output) = filtered(&COLOUR, &[("hue", "90"), ("brightness", "-20")], gray, &[0, 19, 20, 255]);
    assert_eq!(output, [0, 0, 0, 235]);
}

#[test]
fn rectangles_are_changed_too() {
    let from = geometry(PixelFormat::Rgb24, 10, 10, 0);
    let places = [Rectangle { x: 1, y: 2, width: 1, height: 2 }];
    let mut source = half(&COLOUR, &[("blue", "100")], Half::Source);
    let output = output_of(&mut *source, rectangles(from, &places, &[1, 2, 3, 4, 5, 200])).unwrap();
    assert_eq!(output, rectangles(from, &places, &[1, 2, 103, 4, 5, 255]));
}
