use super::GRAY;
use crate::picture::tests::*;
use contract::{Body, Format, Half};
use testkit::stage::conforms;
use wire::formats::video::{PixelFormat, Rectangle};

#[test]
fn it_conforms() {
    for side in ["source", "sink"] {
        conforms(&GRAY, &[("at", side)], &Format::Video);
    }
}

#[test]
fn brightness_is_as_in_bt_601() {
    for pixels in [PixelFormat::Rgb24, PixelFormat::Bgrx32] {
        let from = geometry(pixels, 37, 5, 6);
        let bytes = noise(from.bytes(), 1);
        let (to, gray) = filtered(&GRAY, &[], from, &bytes);
        assert_eq!(to, geometry(PixelFormat::Gray8, 37, 5, 0));
        for (x, y) in (0..37).flat_map(|x| (0..5).map(move |y| (x, y))) {
            let pixel = pixel(&from, &bytes, 0, x, y);
            let (red, blue) = if pixels == PixelFormat::Rgb24 { (0, 2) } else { (2, 0) };
            let [red, green, blue] = [red, 1, blue].map(|place| f64::from(pixel[place]));
            let expected = 0.299 * red + 0.587 * green + 0.114 * blue;
            assert!((f64::from(gray[y * 37 + x]) - expected).abs() <= 1.0, "{pixels:?} {pixel:?}");
        }
    }
    for (colour, expected) in
        [([0; 3], 0), ([255; 3], 255), ([255, 0, 0], 77), ([0, 255, 0], 149), ([0, 0, 255], 29)]
    {
        let one = geometry(PixelFormat::Rgb24, 1, 1, 0);
        assert_eq!(filtered(&GRAY, &[], one, &colour).1, [expected]);
    }
}

#[test]
fn the_plane_of_brightness_is_shared() {
    for pixels in [PixelFormat::I420, PixelFormat::I422, PixelFormat::I444, PixelFormat::Gray8] {
        let from = geometry(pixels, 17, 9, 3);
        let bytes = noise(from.bytes(), 2);
        let sent = Body::from(bytes.clone());
        let first = sent.chunks().next().unwrap().as_ptr();
        let mut source = half(&GRAY, &[], Half::Source);
        let output = output_of(&mut *source, frame(from, sent)).unwrap();
        assert_eq!(output.chunks().nth(1).unwrap().as_ptr(), first, "copied");
        assert_eq!(output, frame(geometry(PixelFormat::Gray8, 17, 9, 3), bytes[..180].to_vec()));
    }
}

#[test]
fn rectangles_become_gray() {
    let from = geometry(PixelFormat::Bgrx32, 10, 10, 0);
    let places =
        [Rectangle { x: 1, y: 2, width: 2, height: 1 }, Rectangle { x: 9, y: 9, width: 1, height: 1 }];
    let pixels = [[255, 255, 255, 7], [0, 0, 255, 7], [255, 0, 0, 7]].concat();
    let mut source = half(&GRAY, &[], Half::Source);
    let output = output_of(&mut *source, rectangles(from, &places, &pixels)).unwrap();
    assert_eq!(output, rectangles(geometry(PixelFormat::Gray8, 10, 10, 0), &places, &[255, 77, 29]));
}
