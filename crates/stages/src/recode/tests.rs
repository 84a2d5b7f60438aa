use super::{Encoder, TiledPicture};
use contract::Body;
use proptest::prelude::*;
use wire::formats::video::{Geometry, Header, Kind, PixelFormat, Rectangle, emit_rectangles};

fn frame(width: u32, height: u32, pixels: Vec<u8>) -> Body {
    let mut body = Body::from(pixels);
    body.push_front(&Header::frame(Geometry::new(PixelFormat::Bgrx32, width, height).unwrap()).emit());
    body
}

fn parts(rectangles: &[Rectangle], pixels: Vec<u8>) -> Body {
    let geometry = Geometry::new(PixelFormat::Bgrx32, 400, 300).unwrap();
    let mut body = Body::from(pixels);
    body.push_front(&emit_rectangles(rectangles));
    body.push_front(&Header { kind: Kind::Rectangles, geometry }.emit());
    body
}

fn decode(tiles: &[u8]) -> Result<Body, String> {
    let tiled = TiledPicture::read(tiles)?;
    let mut message = vec![0xaa; tiled.bytes()];
    tiled.write(&mut message)?;
    Ok(message.into())
}

/// Pixels of one kind: flat, two-coloured text, some colours, repetition, a gradient with grain,
/// noise.
fn pixels(kind: u8, seed: u32, width: u32, height: u32) -> Vec<u8> {
    let hash = |value: u32| {
        let value = (value ^ seed).wrapping_mul(0x9e37_79b1);
        (value ^ (value >> 15)).wrapping_mul(0x85eb_ca6b) >> 8
    };
    let pixel = |at: u32| {
        let (x, y) = (at % width, at / width);
        match kind % 6 {
            0 => seed & 0xff_ffff,
            1 => hash(hash((x / 3) ^ ((y / 5) << 12)) % 2),
            2 => hash(hash(at) % (2 + seed % 15)),
            3 => hash(hash(at / 2) % 200),
            4 => ((x * 3 + (hash(at) & 7)) % 256) | ((y * 2 % 256) << 8) | (((x + y) % 256) << 16),
            _ => hash(at),
        }
    };
    (0..width * height)
        .map(|at| (pixel(at) & 0xff_ffff) | (seed & 0xff00_0000))
        .flat_map(u32::to_le_bytes)
        .collect()
}

#[test]
fn layout() {
    let white = [0xff, 0xff, 0xff, 0];
    let black = [0, 0, 0, 0];
    // Two rows of a letter; the third repeats the second.
    let rows = [[white, black, white], [black, white, white], [black, white, white]];
    let body = frame(3, 3, rows.concat().concat());
    let mut encoder = Encoder::default();
    let tiles = encoder.encode(&body).unwrap();
    let header = body.peek_front::<{ Header::BYTES }>().unwrap();
    assert_eq!(tiles[..header.len()], header);
    // Padding 0; 3 bytes of heads, 6 of colours, 2 of indices, no pixels.
    let parts = [&[0, 3, 6, 2, 0][..], &[2, 4, 0], &[0, 0, 0, 0xff, 0xff, 0xff], &[0b101 << 5, 0b011 << 5]];
    assert_eq!(tiles[header.len()..], parts.concat());
    assert_eq!(decode(tiles), Ok(body));
}

#[test]
fn letters_are_stored_in_columns() {
    let (white, black) = ([0xff, 0xff, 0xff, 0], [0, 0, 0, 0]);
    // A slash of ten rows; the last two are alike.
    let row = |ink: usize| (0..3).flat_map(move |at| if at == ink { black } else { white });
    let rows = [2, 1, 0, 2, 1, 0, 2, 1, 0, 0];
    let body = frame(3, 10, rows.into_iter().flat_map(row).collect());
    let mut encoder = Encoder::default();
    let tiles = encoder.encode(&body).unwrap();
    let numbers = [0b1101_1011, 0b1011_0110, 0b0110_1101, 0, 0b1100_0000, 0b1100_0000];
    let parts = [&[0, 1, 6, 6, 0][..], &[2 | 64], &[0, 0, 0, 0xff, 0xff, 0xff], &numbers];
    assert_eq!(tiles[Header::BYTES..], parts.concat());
    assert_eq!(decode(tiles), Ok(body));
}

#[test]
fn differences_are_from_the_mean_of_neighbours() {
    // Two rows of 17 pixels, all different.
    let pixels: Vec<u8> = (0..34u8).flat_map(|at| [at * 7, at * 5, at * 3 + 1, 9]).collect();
    let body = frame(17, 2, pixels);
    let mut encoder = Encoder::default();
    let tiles = encoder.encode(&body).unwrap();
    let rest = &tiles[Header::BYTES..];
    assert_eq!(rest[..6], [9, 1, 0, 0, 0, 33]);
    let blue = &rest[6..6 + 34];
    // The first value as it is; then the difference from the left pixel, from the upper one, and
    // from the mean of both.
    assert_eq!((blue[0], blue[1], blue[17], blue[18]), (0, 7, 119, 126 - (119 + 7) / 2));
    assert_eq!(decode(tiles), Ok(body));
}

#[test]
fn unsupported_pictures_are_not_encoded() {
    let mut encoder = Encoder::default();
    let whole = frame(20, 20, pixels(2, 1, 20, 20));
    assert!(encoder.encode(&whole).is_some());
    let bytes = whole.into_bytes();
    assert!(encoder.encode(&bytes.slice(..bytes.len() - 1).into()).is_none(), "cut short");
    assert!(encoder.encode(&[&bytes[..], &[0; 4]].concat().into()).is_none(), "too long");
    let mut odd = bytes.to_vec();
    *odd.last_mut().unwrap() = 77;
    assert!(encoder.encode(&odd.into()).is_none(), "a fourth byte that differs");
    let gray = Header::frame(Geometry::new(PixelFormat::Gray8, 2, 2).unwrap()).emit();
    assert!(encoder.encode(&[&gray[..], &[1; 4]].concat().into()).is_none());
    assert!(encoder.encode(&Body::new()).is_none() && encoder.encode(&b"abc".to_vec().into()).is_none());
    assert!(TiledPicture::read(&gray).is_err() && TiledPicture::read(&[]).is_err());
}

#[test]
fn a_screen_of_text_becomes_small() {
    let (width, height) = (640, 400);
    let letter = |x: u32, y: u32| (x / 6 * 31 + y / 11 * 17) % 40 * 64 + x % 6 * 11 + y % 11;
    let ink = |at: u32| {
        if letter(at % width, at / width).wrapping_mul(0x9e37_79b1) >> 30 == 0 { 0 } else { 0xff_ffff }
    };
    let body = frame(width, height, (0..width * height).map(ink).flat_map(u32::to_le_bytes).collect());
    let mut encoder = Encoder::default();
    let bytes = encoder.encode(&body).unwrap().len();
    assert!(bytes * 30 < body.len(), "{bytes} of {}", body.len());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn every_picture_survives_encoding(
        shown in prop::collection::vec((any::<u8>(), any::<u32>(), 1u32..150, 1u32..60), 1..5),
        is_whole: bool,
    ) {
        let mut encoder = Encoder::default();
        let (kind, seed, width, height) = shown[0];
        let body = match is_whole {
            true => frame(width, height, pixels(kind, seed, width, height)),
            false => {
                let rectangles: Vec<_> = shown.iter().map(|(_, _, width, height)| {
                    Rectangle { x: 400 - width, y: 7, width: *width, height: *height }
                }).collect();
                // The fourth byte is the same for all.
                let seeded = |other: u32| (other & 0xff_ffff) | (seed & 0xff00_0000);
                parts(&rectangles, shown.iter().flat_map(|(kind, other, width, height)| {
                    pixels(*kind, seeded(*other), *width, *height)
                }).collect())
            }
        };
        let tiles = encoder.encode(&body).unwrap();
        prop_assert_eq!(decode(tiles), Ok(body));
    }

    /// A damaged message is an error or some picture of the same size.
    #[test]
    fn damaged_messages_are_survived(
        (kind, seed, width, height) in (any::<u8>(), any::<u32>(), 1u32..150, 1u32..60),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut encoder = Encoder::default();
        let mut tiles = encoder.encode(&frame(width, height, pixels(kind, seed, width, height))).unwrap().to_vec();
        prop_assert!(decode(&tiles[..cut.index(tiles.len())]).is_err());
        let start = Header::BYTES;
        for (at, byte) in damage {
            let at = start + at.index(tiles.len() - start);
            tiles[at] = byte;
        }
        if let Ok(picture) = decode(&tiles) {
            prop_assert_eq!(picture.len(), Header::BYTES + (width * height * 4) as usize);
        }
    }
}
