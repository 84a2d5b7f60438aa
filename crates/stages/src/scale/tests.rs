use super::SCALE;
use crate::picture::tests::*;
use contract::{Format, Half, Options, Pair};
use testkit::stage::conforms;
use wire::formats::video::{Geometry, PixelFormat, Rectangle};

#[test]
fn it_conforms() {
    for given in [&[][..], &[("width", "7"), ("filter", "lanczos")], &[("factor", "2"), ("at", "sink")]] {
        conforms(&SCALE, given, &Format::Video);
    }
}

fn size(given: &[(&str, &str)], width: u32, height: u32) -> (u32, u32) {
    let from = geometry(PixelFormat::I420, width, height, 0);
    let (to, _) = filtered(&SCALE, given, from, &vec![0; from.bytes()]);
    assert_eq!((to.pixels(), to.rate()), (PixelFormat::I420, (30, 1)));
    (to.width(), to.height())
}

#[test]
fn the_size_is_as_requested_and_keeps_proportions() {
    assert_eq!(size(&[("width", "320"), ("height", "100")], 640, 480), (320, 100));
    assert_eq!(size(&[("width", "320")], 640, 480), (320, 240));
    assert_eq!(size(&[("height", "240")], 641, 480), (321, 240));
    assert_eq!(size(&[("factor", "0.5")], 640, 481), (320, 241));
    assert_eq!(size(&[("factor", "0.001")], 640, 480), (1, 1));
    assert_eq!(size(&[], 641, 479), (641, 479));
    let both = Options::check(SCALE.options(), [("factor", "2"), ("width", "3")]).unwrap();
    assert!(SCALE.check(&both).unwrap_err().contains("contradict"));
}

#[test]
fn half_the_size_is_the_mean_of_four() {
    let given = [("factor", "0.5"), ("filter", "box")];
    for pixels in PLAIN {
        for padding in [0, 1, 12] {
            let from = geometry(pixels, 32, 16, padding);
            let bytes = noise(from.bytes(), 1);
            let (to, half) = filtered(&SCALE, &given, from, &bytes);
            assert_eq!(to, geometry(pixels, 16, 8, 0));
            for number in 0..to.planes() {
                let plane = to.plane(number);
                for (x, y) in (0..plane.row_bytes / pixels.pixel_bytes())
                    .flat_map(|x| (0..plane.rows).map(move |y| (x, y)))
                {
                    let four = [(0, 0), (1, 0), (0, 1), (1, 1)]
                        .map(|(right, down)| pixel(&from, &bytes, number, 2 * x + right, 2 * y + down));
                    for (byte, output) in pixel(&to, &half, number, x, y).into_iter().enumerate() {
                        let mean = four.iter().map(|pixel| f64::from(pixel[byte])).sum::<f64>() / 4.0;
                        assert!(
                            (f64::from(output) - mean).abs() <= 1.0,
                            "{pixels:?}+{padding} {number} at {x}, {y}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn twice_the_size_repeats_pixels() {
    for pixels in PLAIN {
        let from = geometry(pixels, 9, 5, 2);
        let bytes = noise(from.bytes(), 2);
        let (to, twice) = filtered(&SCALE, &[("factor", "2"), ("filter", "nearest")], from, &bytes);
        for (x, y) in (0..18).flat_map(|x| (0..10).map(move |y| (x, y))) {
            assert_eq!(
                pixel(&to, &twice, 0, x, y),
                pixel(&from, &bytes, 0, x / 2, y / 2),
                "{pixels:?} {x} {y}"
            );
        }
    }
}

#[test]
fn a_plain_picture_stays_plain_with_every_filter() {
    for filter in ["nearest", "box", "bilinear", "bicubic", "lanczos"] {
        for pixels in PLAIN {
            let from = geometry(pixels, 31, 17, 5);
            let given = [("width", "47"), ("height", "11"), ("filter", filter)];
            let (to, output) = filtered(&SCALE, &given, from, &plain(&from, [200, 90, 30]));
            assert_eq!(output, plain(&to, [200, 90, 30]), "{filter} {pixels:?}");
        }
    }
}

#[test]
fn impossible_sizes_and_rectangles_are_errors() {
    let mut large = half(&SCALE, &[("width", "16384")], Half::Source);
    let square = Geometry::new(PixelFormat::Bgrx32, 64, 64).unwrap();
    let error = output_of(&mut *large, frame(square, vec![0; square.bytes()])).unwrap_err();
    assert!(error.to_string().contains("over the limit"), "{error}");
    let tall = Geometry::new(PixelFormat::Gray8, 1, 16384).unwrap();
    let error = output_of(&mut *large, frame(tall, vec![0; tall.bytes()])).unwrap_err();
    assert!(error.to_string().contains("over the limit"), "{error}");
    let place = [Rectangle { x: 0, y: 0, width: 1, height: 1 }];
    let error = output_of(&mut *large, rectangles(square, &place, &[0; 4])).unwrap_err();
    assert!(error.to_string().contains("whole pictures"), "{error}");
}
