use super::{BOXES, Track};
use crate::picture::tests::*;
use contract::{Body, Format, Half, Message, Options, Outbox, Pair, Port, Stage, Time};
use testkit::stage::conforms;
use wire::formats::video::{Content, Geometry, Header, PixelFormat, Rectangle};

const COLOURS: [PixelFormat; 5] =
    [PixelFormat::Rgb24, PixelFormat::Bgrx32, PixelFormat::I420, PixelFormat::I422, PixelFormat::I444];

#[test]
fn it_conforms() {
    for given in [&[][..], &[("mode", "colour"), ("draw", "true")], &[("at", "sink")]] {
        conforms(&Track, given, &Format::Video);
    }
}

/// Passes one frame; returns the picture sent on and the boxes found.
fn pass(stage: &mut dyn Stage, body: Body) -> (Body, Vec<Rectangle>) {
    let mut out = Outbox::default();
    stage.handle(Port::MAIN, Message::new(Time(5), body), Time(9), &mut out).unwrap();
    let [(BOXES, boxes), (Port::MAIN, picture)] = out.messages.make_contiguous() else {
        panic!("{:?}", out.messages)
    };
    assert_eq!((boxes.created, picture.created), (Time(5), Time(5)));
    let bytes = boxes.body.clone().into_bytes();
    let header = Header::parse(&bytes).unwrap();
    let Content::Boxes(found) = header.parse_content(&bytes[Header::BYTES..]).unwrap() else {
        panic!("{:?}", header.kind)
    };
    (picture.body.clone(), found)
}

fn square(x: u32, y: u32) -> Rectangle {
    Rectangle { x, y, width: 40, height: 40 }
}

/// A noisy scene with a red square.
fn scene(geometry: &Geometry, square: Option<Rectangle>, seed: u8) -> Vec<u8> {
    let planar = geometry.pixels().subsampling().is_some();
    let (background, red) =
        if planar { ([90, 120, 130], [81, 90, 240]) } else { ([90, 100, 95], [255, 0, 0]) };
    let mut pixels = plain(geometry, background);
    square.into_iter().for_each(|square| paint(geometry, &mut pixels, red, square));
    let noise = noise(pixels.len(), seed);
    pixels.iter().zip(noise).map(|(pixel, noise)| pixel.saturating_add(noise % 12)).collect()
}

/// Asserts that the box contains the square, and is at most a cell larger on each side.
fn fits(found: &[Rectangle], square: Rectangle) {
    let [found] = found else { panic!("{found:?} for {square:?}") };
    assert_eq!(found.intersection(&square), Some(square), "{found:?}");
    assert!(found.width < square.width + 16 && found.height < square.height + 16, "{found:?} for {square:?}");
}

#[test]
fn a_moving_square_is_found_and_a_still_one_is_not() {
    for pixels in COLOURS.into_iter().chain([PixelFormat::Gray8]) {
        let size = geometry(pixels, 333, 201, 4);
        let mut source = half(&Track, &[], Half::Source);
        let (mut found, mut last) = (Vec::new(), square(0, 0));
        for step in 0..60u32 {
            last = square(20 + step * 4, 60 + step);
            let place = Some(last).filter(|_| step >= 3);
            let body = frame(size, scene(&size, place, step as u8));
            let passed = pass(&mut *source, body.clone());
            assert_eq!(passed.0, body, "{pixels:?}: the picture is as it was");
            found = passed.1;
            match step {
                // Found by its moving edges, a box may be slightly small.
                5.. => {
                    let [one] = found[..] else { panic!("{pixels:?} at {step}: {found:?}") };
                    let common = one.intersection(&last).expect("they touch");
                    assert!(
                        common.width >= 32 && common.height >= 32,
                        "{pixels:?} at {step}: {one:?} {last:?}"
                    );
                    assert!(one.width <= 56 && one.height <= 56, "{pixels:?} at {step}: {one:?} {last:?}");
                }
                0..3 => assert_eq!(found, [], "{pixels:?}"),
                _ => {}
            }
        }
        assert_eq!(found.len(), 1);
        for still in 0..40 {
            found = pass(&mut *source, frame(size, scene(&size, Some(last), still))).1;
        }
        assert_eq!(found, [], "{pixels:?}: a stopped object is background");
    }
}

#[test]
fn an_object_of_the_first_picture_leaves_no_box_behind() {
    let size = geometry(PixelFormat::Bgrx32, 320, 200, 0);
    let mut source = half(&Track, &[], Half::Source);
    for step in 0..30u32 {
        let place = square(10 + step * 6, 80);
        let (_, found) = pass(&mut *source, frame(size, scene(&size, Some(place), step as u8)));
        if step > 12 {
            let [one] = found[..] else { panic!("at {step}: {found:?}") };
            assert!(one.intersection(&place).is_some_and(|common| common.width >= 32), "{one:?} {place:?}");
        }
    }
}

#[test]
fn a_colour_is_found_at_once_largest_object_first() {
    for pixels in COLOURS {
        let size = geometry(pixels, 333, 201, 0);
        let given = [("mode", "colour"), ("threshold", "40")];
        let mut source = half(&Track, &given, Half::Source);
        assert_eq!(pass(&mut *source, frame(size, scene(&size, None, 1))).1, []);
        let first = square(48, 16);
        fits(&pass(&mut *source, frame(size, scene(&size, Some(first), 2))).1, first);
        let small = Rectangle { x: 200, y: 104, width: 24, height: 24 };
        let planar = pixels.subsampling().is_some();
        let mut both = scene(&size, Some(first), 3);
        paint(&size, &mut both, if planar { [81, 90, 240] } else { [255, 0, 0] }, small);
        let (_, found) = pass(&mut *source, frame(size, both.clone()));
        assert_eq!(found.len(), 2, "{pixels:?}: {found:?}");
        fits(&found[..1], first);
        fits(&found[1..], small);
        for (option, value) in [("most", "1"), ("smallest", "1024")] {
            let given = [("mode", "colour"), ("threshold", "40"), (option, value)];
            let mut source = half(&Track, &given, Half::Source);
            fits(&pass(&mut *source, frame(size, both.clone())).1, first);
        }
    }
}

#[test]
fn drawing_boxes_changes_no_other_pixels() {
    for pixels in COLOURS {
        let size = geometry(pixels, 160, 120, 0);
        let mut source =
            half(&Track, &[("mode", "colour"), ("draw", "true"), ("threshold", "40")], Half::Source);
        let bytes = scene(&size, Some(square(48, 40)), 1);
        let (drawn, found) = pass(&mut *source, frame(size, bytes.clone()));
        let [Rectangle { x, y, width, height }] = found[..] else { panic!("{found:?}") };
        let drawn = drawn.into_bytes();
        let drawn = &drawn[Header::BYTES..];
        let white = if pixels.subsampling().is_some() { 235 } else { 255 };
        for (across, down) in (0..160).flat_map(|x| (0..120).map(move |y| (x, y))) {
            let inside = |by: u32| {
                (x + by..x + width - by).contains(&(across as u32))
                    && (y + by..y + height - by).contains(&(down as u32))
            };
            let output = pixel(&size, drawn, 0, across, down);
            match inside(0) && !inside(2) {
                true => assert!(output.iter().all(|byte| *byte == white), "{pixels:?} {across} {down}"),
                false => {
                    assert_eq!(output, pixel(&size, &bytes, 0, across, down), "{pixels:?} {across} {down}")
                }
            }
        }
    }
}

#[test]
fn a_colour_is_six_digits() {
    for (text, good) in [("00ff7F", true), ("red", false), ("12345", false), ("+12345", false), ("", false)] {
        let options = Options::check(Track.options(), [("colour", text)]).unwrap();
        assert_eq!(Track.check(&options).is_ok(), good, "{text}");
    }
}

#[test]
fn a_picture_of_another_size_restarts_tracking() {
    let mut source = half(&Track, &[], Half::Source);
    for (width, height) in [(64, 64), (8, 512), (1, 1), (320, 200), (200, 320)] {
        let size = geometry(PixelFormat::I420, width, height, 0);
        assert_eq!(pass(&mut *source, frame(size, noise(size.bytes(), 1))).1, []);
    }
}
