//! Pictures: encodings are unique, planes fill a picture without overlap, and any bytes are parsed or refused.

use proptest::prelude::*;
use wire::BODY_BYTES_MAX;
use wire::formats::video::{
    CURSOR_SIDE_MAX, Content, Cursor, Geometry, Header, Kind, PixelFormat, Rectangle, emit_rectangles,
};

fn any_geometry() -> impl Strategy<Value = Geometry> {
    let pixels = prop::sample::select(PixelFormat::ALL.map(|(format, _)| format).to_vec());
    (pixels, 1..300u32, 1..300u32, 0..20u32, any::<(u32, u32)>()).prop_map(
        |(pixels, width, height, more, (numerator, denominator))| {
            let tight = Geometry::new(pixels, width, height).unwrap().with_rate(numerator, denominator);
            tight.with_stride(tight.stride() + more).unwrap_or(tight)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn frames_survive_their_bytes(geometry in any_geometry()) {
        let header = Header::frame(geometry);
        prop_assert_eq!(Header::parse(&header.emit()), Ok(header));
        let pixels = vec![7; geometry.bytes()];
        prop_assert_eq!(header.parse_content(&pixels), Ok(Content::Frame(&pixels)));
        if geometry.pixels() != PixelFormat::Mjpeg {
            prop_assert!(header.parse_content(&pixels[1..]).is_err());
        }
    }

    #[test]
    fn planes_are_adjacent_and_tight_ones_fill_the_picture(geometry in any_geometry()) {
        let mut end = 0;
        for number in 0..geometry.planes() {
            let plane = geometry.plane(number);
            prop_assert_eq!(plane.offset, end);
            prop_assert!(plane.row_bytes <= plane.stride);
            end += plane.bytes();
        }
        prop_assert_eq!(end, geometry.bytes());
        let tight = geometry.tight();
        let mut pixels = vec![0; tight.bytes()];
        if tight.bytes() > 0 {
            for number in 0..tight.planes() {
                tight.plane(number).rows_mut(&mut pixels).for_each(|row| row.fill(1));
            }
        }
        prop_assert!(pixels.iter().all(|byte| *byte == 1));
    }

    #[test]
    fn rectangles_survive_their_bytes(
        places in prop::collection::vec((0..64u32, 0..48u32, 1..=64u32, 1..=48u32), 0..20),
    ) {
        let geometry = Geometry::new(PixelFormat::Rgb24, 64, 48).unwrap();
        let rectangle = |(x, y, width, height)| Rectangle { x, y, width, height };
        let inside = |rectangle: &Rectangle| rectangle.x + rectangle.width <= 64 && rectangle.y + rectangle.height <= 48;
        let rectangles: Vec<Rectangle> = places.into_iter().map(rectangle).collect();
        let header = Header { kind: Kind::Boxes, geometry };
        let bytes = emit_rectangles(&rectangles);
        if !rectangles.iter().all(inside) {
            prop_assert!(header.parse_content(&bytes).is_err());
            return Ok(());
        }
        prop_assert_eq!(header.parse_content(&bytes), Ok(Content::Boxes(rectangles.clone())));
        let pixels = vec![3; rectangles.iter().map(|one| one.bytes(PixelFormat::Rgb24)).sum()];
        let bytes = [bytes, pixels.clone()].concat();
        let header = Header { kind: Kind::Rectangles, geometry };
        prop_assert_eq!(header.parse_content(&bytes), Ok(Content::Rectangles(rectangles, &pixels)));
    }

    #[test]
    fn cursors_survive_their_bytes(
        (width, height) in prop_oneof![Just((0, 0)), (1..300u32, 1..300u32)],
        (across, down) in any::<(prop::sample::Index, prop::sample::Index)>(),
        wrong in 0..4u8,
    ) {
        let hot = |at: prop::sample::Index, side: u32| at.index(side.max(1) as usize) as u32;
        let mut cursor = Cursor { width, height, hot_x: hot(across, width), hot_y: hot(down, height) };
        match wrong {
            0 => cursor.hot_x += width.max(1),
            1 => cursor.hot_y += height.max(1),
            _ => {}
        }
        let header = Header { kind: Kind::Cursor, geometry: Geometry::new(PixelFormat::I420, 3, 3).unwrap() };
        let pixels = vec![9; cursor.pixel_bytes()];
        let bytes = [&cursor.emit()[..], &pixels].concat();
        if wrong < 2 || width.max(height) > CURSOR_SIDE_MAX {
            prop_assert!(header.parse_content(&bytes).is_err());
        } else {
            prop_assert_eq!(header.parse_content(&bytes), Ok(Content::Cursor(cursor, &pixels)));
            prop_assert!(header.parse_content(&bytes[..bytes.len() - 1]).is_err());
        }
    }

    #[test]
    fn any_bytes_are_parsed_or_refused(
        kind in 0..6u8,
        format in 0..PixelFormat::ALL.len(),
        rest in prop::collection::vec(any::<u8>(), 0..80),
    ) {
        let bytes = [&[kind][..], &PixelFormat::ALL[format].1, &rest].concat();
        if let Ok(header) = Header::parse(&bytes) {
            prop_assert_eq!(&header.emit()[..], &bytes[..Header::BYTES]);
            prop_assert!(header.geometry.bytes() <= BODY_BYTES_MAX);
            let _ = header.parse_content(&bytes[Header::BYTES..]);
        }
    }
}

#[test]
fn an_intersection_is_the_common_part() {
    let rectangle = |x, y, width, height| Rectangle { x, y, width, height };
    let whole = rectangle(0, 0, 10, 10);
    assert_eq!(rectangle(8, 2, 4, 3).intersection(&whole), Some(rectangle(8, 2, 2, 3)));
    assert_eq!(rectangle(10, 0, 1, 1).intersection(&whole), None);
    assert_eq!(rectangle(u32::MAX, 0, u32::MAX, 1).intersection(&whole), None);
    assert_eq!(rectangle(3, 3, 0, 3).intersection(&whole), None);
}
