use crate::PAIRS;
use contract::{Body, Format, Half, Message, Outbox, Pair, Port, Site, Stage, StageResult, Time};
use proptest::prelude::Rng;
use proptest::test_runner::{RngAlgorithm, TestRng};
use testkit::stage::options;
use wire::formats::video::{
    Content, Cursor, Geometry, Header, Kind, PixelFormat, Rectangle, emit_rectangles,
};

/// Pixel formats that a filter receives.
pub(crate) const PLAIN: [PixelFormat; 6] = [
    PixelFormat::Gray8,
    PixelFormat::Rgb24,
    PixelFormat::Bgrx32,
    PixelFormat::I420,
    PixelFormat::I422,
    PixelFormat::I444,
];

/// A geometry at 30 frames a second, with `padding` bytes at the end of each row.
pub(crate) fn geometry(pixels: PixelFormat, width: u32, height: u32, padding: u32) -> Geometry {
    let tight = Geometry::new(pixels, width, height).unwrap().with_rate(30, 1);
    tight.with_stride(tight.stride() + padding).unwrap()
}

pub(crate) fn noise(bytes: usize, seed: u8) -> Vec<u8> {
    let mut noise = vec![0; bytes];
    TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32]).fill_bytes(&mut noise);
    noise
}

pub(crate) fn frame(geometry: Geometry, pixels: impl Into<Body>) -> Body {
    let mut body = pixels.into();
    body.push_front(&Header::frame(geometry).emit());
    body
}

pub(crate) fn rectangles(geometry: Geometry, places: &[Rectangle], pixels: &[u8]) -> Body {
    let header = Header { kind: Kind::Rectangles, geometry }.emit();
    Body::from([&header[..], &emit_rectangles(places), pixels].concat())
}

pub(crate) fn half(pair: &dyn Pair, given: &[(&str, &str)], half: Half) -> Box<dyn Stage> {
    pair.half(half, &options(pair, given), &Format::Video, &Site::default()).unwrap()
}

/// Output of a stage on the main port.
pub(crate) fn output_of(stage: &mut dyn Stage, body: Body) -> StageResult<Body> {
    let mut out = Outbox::default();
    stage.handle(Port::MAIN, Message::new(Time(5), body), Time(9), &mut out)?;
    let message = out.messages.into_iter().find(|(port, _)| *port == Port::MAIN).unwrap().1;
    assert_eq!(message.created, Time(5));
    Ok(message.body)
}

/// Output of a source half for one frame.
pub(crate) fn filtered(
    pair: &dyn Pair,
    given: &[(&str, &str)],
    geometry: Geometry,
    pixels: &[u8],
) -> (Geometry, Vec<u8>) {
    let mut source = half(pair, given, Half::Source);
    let output = output_of(&mut *source, frame(geometry, pixels.to_vec())).unwrap().into_bytes();
    let header = Header::parse(&output).unwrap();
    let Content::Frame(pixels) = header.parse_content(&output[Header::BYTES..]).unwrap() else {
        panic!("{:?} instead of a frame", header.kind)
    };
    (header.geometry, pixels.to_vec())
}

/// The bytes of a pixel of a plane.
pub(crate) fn pixel(geometry: &Geometry, pixels: &[u8], plane: usize, x: usize, y: usize) -> Vec<u8> {
    let bytes = geometry.pixels().pixel_bytes();
    let row = geometry.plane(plane).rows(pixels).nth(y).unwrap();
    row[x * bytes..(x + 1) * bytes].to_vec()
}

/// A frame of one colour: red, green, blue, or Y, Cb, Cr.
pub(crate) fn plain(geometry: &Geometry, colour: [u8; 3]) -> Vec<u8> {
    let mut pixels = vec![0; geometry.bytes()];
    paint(geometry, &mut pixels, colour, Rectangle { x: 0, y: 0, width: 16384, height: 16384 });
    pixels
}

/// Paints a rectangle, clipped to the picture.
pub(crate) fn paint(geometry: &Geometry, pixels: &mut [u8], colour: [u8; 3], place: Rectangle) {
    let (start_x, start_y) = (place.x as usize, place.y as usize);
    let (end_x, end_y) = (start_x + place.width as usize, start_y + place.height as usize);
    let [a, b, c] = colour;
    for (number, sample) in colour.into_iter().enumerate().take(geometry.planes()) {
        let (across, down) = geometry.pixels().subsampling().filter(|_| number > 0).unwrap_or((1, 1));
        let pixel = match geometry.pixels() {
            PixelFormat::Rgb24 => vec![a, b, c],
            PixelFormat::Bgrx32 => vec![c, b, a, 0],
            _ => vec![sample],
        };
        let rows = geometry.plane(number).rows_mut(pixels).skip(start_y / down as usize);
        for row in rows.take((end_y - start_y).div_ceil(down as usize)) {
            let row = row.chunks_exact_mut(pixel.len()).take(end_x.div_ceil(across as usize));
            row.skip(start_x / across as usize).for_each(|into| into.copy_from_slice(&pixel));
        }
    }
}

fn video_pairs() -> impl Iterator<Item = &'static dyn Pair> {
    let names = ["scale", "crop", "gray", "colour", "track"];
    PAIRS.iter().copied().filter(move |pair| names.contains(&pair.name()))
}

#[test]
fn only_video_is_accepted() {
    assert_eq!(video_pairs().count(), 5);
    for pair in video_pairs() {
        let defaults = options(pair, &[]);
        assert_eq!(pair.accept(&Format::Video, &defaults), Ok(Format::Video));
        for other in [Format::Bytes, Format::Audio, Format::Evdev] {
            assert_eq!(pair.accept(&other, &defaults), Err("it takes only video".into()));
        }
    }
}

#[test]
fn incomplete_pictures_pass_unchanged() {
    let size = geometry(PixelFormat::Rgb24, 4, 4, 0);
    let whole = frame(size, noise(48, 1)).into_bytes();
    let boxes = Header { kind: Kind::Boxes, geometry: size }.emit();
    let bodies = [
        vec![],
        vec![0],
        vec![9; 100],
        whole[..60].to_vec(),
        [&whole[..], &[1]].concat(),
        [&boxes[..], &[0, 0]].concat(),
    ];
    for pair in video_pairs() {
        let mut source = half(pair, &[], Half::Source);
        for body in &bodies {
            assert_eq!(
                output_of(&mut *source, body.clone().into()),
                Ok(body.clone().into()),
                "{}",
                pair.name()
            );
        }
        assert!(source.report().contains(&("others", bodies.len() as f64)), "{}", pair.name());
    }
}

#[test]
fn a_cursor_follows_its_picture_and_keeps_its_shape() {
    let cursor = Cursor { width: 2, height: 1, hot_x: 1, hot_y: 0 };
    let rest = [&cursor.emit()[..], &[1, 2, 3, 4, 5, 6, 7, 8]].concat();
    for pixels in PLAIN.into_iter().chain([PixelFormat::Yuyv]) {
        let size = geometry(pixels, 8, 6, 4);
        let header = Header { kind: Kind::Cursor, geometry: size }.emit();
        for (pair, given) in [
            ("scale", &[("factor", "2")][..]),
            ("crop", &[("x", "2"), ("width", "4")]),
            ("gray", &[]),
            ("colour", &[("brightness", "40")]),
        ] {
            let pair = video_pairs().find(|known| known.name() == pair).unwrap();
            let mut source = half(pair, given, Half::Source);
            let whole = output_of(&mut *source, frame(size, vec![0; size.bytes()])).unwrap();
            let shape = output_of(&mut *source, [&header[..], &rest].concat().into()).unwrap().into_bytes();
            let geometry_of_picture = Header::parse(&whole.into_bytes()).unwrap().geometry;
            assert_eq!(
                Header::parse(&shape),
                Ok(Header { kind: Kind::Cursor, geometry: geometry_of_picture }),
                "{}",
                pair.name()
            );
            assert_eq!(shape[Header::BYTES..], rest);
        }
    }
}

#[test]
fn compressed_pictures_are_refused() {
    let jpeg = Geometry::new(PixelFormat::Mjpeg, 640, 480).unwrap();
    for pair in video_pairs() {
        let mut source = half(pair, &[], Half::Source);
        let error = output_of(&mut *source, frame(jpeg, vec![0xff, 0xd8])).unwrap_err();
        assert!(error.to_string().contains("MJPG"), "{}: {error}", pair.name());
    }
}

#[test]
fn only_the_chosen_half_is_active() {
    let gray = geometry(PixelFormat::Gray8, 8, 8, 0);
    let given = [[("at", "sink"), ("brightness", "9")], [("at", "source"), ("brightness", "9")]];
    for (active, given) in [Half::Sink, Half::Source].into_iter().zip(given) {
        for side in [Half::Source, Half::Sink] {
            let mut stage = half(&crate::colour::COLOUR, &given, side);
            let changed =
                output_of(&mut *stage, frame(gray, vec![1; 64])).unwrap() != frame(gray, vec![1; 64]);
            assert_eq!(changed, side == active);
        }
    }
}

#[test]
fn yuyv_is_converted_to_planes() {
    // Three pixels across: the second pair is incomplete.
    let size = geometry(PixelFormat::Yuyv, 3, 2, 1);
    let row = |first: u8| (first..first + 8).collect::<Vec<u8>>();
    let pixels = [row(10), vec![0], row(30), vec![0]].concat();
    let (geometry, planes) = filtered(&crate::crop::CROP, &[], size, &pixels);
    assert_eq!((geometry.pixels(), geometry.width(), geometry.height()), (PixelFormat::I422, 3, 2));
    assert_eq!(geometry.rate(), (30, 1));
    assert_eq!(planes, [10, 12, 14, 30, 32, 34, 11, 15, 31, 35, 13, 17, 33, 37]);
}

#[test]
fn a_picture_in_pieces_is_joined() {
    let size = geometry(PixelFormat::Gray8, 64, 2, 0);
    let pixels = noise(128, 3);
    let body = frame(size, pixels.clone()).into_bytes();
    let pieces: Body = body.chunks(7).map(contract::Bytes::copy_from_slice).collect();
    let mut source = half(&crate::gray::GRAY, &[], Half::Source);
    assert_eq!(output_of(&mut *source, pieces).unwrap(), frame(size, pixels));
}
