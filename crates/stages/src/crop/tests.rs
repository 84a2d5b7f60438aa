use super::CROP;
use crate::picture::tests::*;
use contract::{Format, Half};
use testkit::stage::conforms;
use wire::formats::video::{PixelFormat, Rectangle};

#[test]
fn it_conforms() {
    for given in [&[][..], &[("x", "3"), ("width", "10")], &[("y", "2"), ("at", "sink")]] {
        conforms(&CROP, given, &Format::Video);
    }
}

#[test]
fn every_pixel_of_the_part_is_unchanged() {
    // An odd corner: with subsampled colour, the part starts at a whole colour sample.
    let given = [("x", "5"), ("y", "3"), ("width", "7"), ("height", "4")];
    for pixels in PLAIN {
        let from = geometry(pixels, 21, 15, 3);
        let bytes = noise(from.bytes(), 4);
        let (to, part) = filtered(&CROP, &given, from, &bytes);
        let (across, down) = pixels.subsampling().unwrap_or((1, 1));
        let (left, top) = (5 / across * across, 3 / down * down);
        assert_eq!((to.width(), to.height()), (12 - left, 7 - top), "{pixels:?}");
        assert_eq!((to.pixels(), to.rate()), (pixels, (30, 1)));
        for number in 0..to.planes() {
            let (across, down) = if number > 0 { (across, down) } else { (1, 1) };
            for y in 0..to.plane(number).rows {
                for x in 0..(to.width().div_ceil(across) as usize) {
                    let (there_x, there_y) = (x + (left / across) as usize, y + (top / down) as usize);
                    let there = pixel(&from, &bytes, number, there_x, there_y);
                    assert_eq!(pixel(&to, &part, number, x, y), there, "{pixels:?} {number}: {x}, {y}");
                }
            }
        }
    }
}

#[test]
fn a_part_is_clipped_and_must_not_be_empty() {
    let from = geometry(PixelFormat::Rgb24, 20, 10, 0);
    let pixels = noise(from.bytes(), 5);
    let (to, _) = filtered(&CROP, &[("x", "15"), ("width", "100")], from, &pixels);
    assert_eq!((to.width(), to.height()), (5, 10));
    let (to, whole) = filtered(&CROP, &[], from, &pixels);
    assert_eq!((to, whole), (from, pixels.clone()));
    let mut source = half(&CROP, &[("x", "20")], Half::Source);
    let error = output_of(&mut *source, frame(from, pixels)).unwrap_err();
    assert_eq!(error.to_string(), "crop: nothing is left at x=20, y=0 of a picture of 20x10");
}

#[test]
fn rectangles_are_clipped_to_the_part() {
    let from = geometry(PixelFormat::Gray8, 20, 10, 0);
    let rectangle = |x, y, width, height| Rectangle { x, y, width, height };
    let places = [rectangle(3, 3, 3, 2), rectangle(0, 0, 2, 2), rectangle(9, 9, 1, 1)];
    let mut source = half(&CROP, &[("x", "4"), ("y", "4")], Half::Source);
    let output =
        output_of(&mut *source, rectangles(from, &places, &[1, 2, 3, 4, 5, 6, 7, 7, 7, 7, 8])).unwrap();
    let to = geometry(PixelFormat::Gray8, 16, 6, 0);
    assert_eq!(output, rectangles(to, &[rectangle(0, 0, 2, 1), rectangle(5, 5, 1, 1)], &[5, 6, 8]));
}
