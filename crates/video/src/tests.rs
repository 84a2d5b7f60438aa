use crate::planes::{Buffer, from_picture, to_picture};
use crate::{DecodeError, Decoder, Encoder};
use wire::formats::video::{Geometry, PixelFormat};

/// A smooth picture that moves with `number`, in any format but `MJPG`.
fn picture(geometry: &Geometry, number: usize) -> Vec<u8> {
    let mut pixels = vec![0; geometry.bytes()];
    for plane in 0..geometry.planes() {
        let plane = geometry.plane(plane);
        for (y, row) in plane.rows_mut(&mut pixels).enumerate() {
            for (x, byte) in row.iter_mut().enumerate() {
                // Whole groups of four bytes have one value, so no format sees an edge of colours.
                *byte = (60 + ((x / 4 + y + number) % 64) * 2) as u8;
            }
        }
    }
    pixels
}

/// Peak signal to noise ratio in decibels, over the bytes of rows.
fn psnr_db(geometry: &Geometry, one: &[u8], other: &[u8]) -> f64 {
    let (mut sum, mut count) = (0.0, 0.0);
    for plane in 0..geometry.planes() {
        let plane = geometry.plane(plane);
        for (one, other) in plane.rows(one).zip(plane.rows(other)) {
            for (at, (one, other)) in one.iter().zip(other).enumerate() {
                let is_pixel = geometry.pixels() != PixelFormat::Bgrx32 || at % 4 < 3;
                let difference = if is_pixel { f64::from(*one) - f64::from(*other) } else { 0.0 };
                sum += difference * difference;
                count += 1.0;
            }
        }
    }
    10.0 * (255.0 * 255.0 / (sum / count).max(1e-9)).log10()
}

const FORMATS: [PixelFormat; 7] = [
    PixelFormat::Gray8,
    PixelFormat::Rgb24,
    PixelFormat::Bgrx32,
    PixelFormat::Yuyv,
    PixelFormat::I420,
    PixelFormat::I422,
    PixelFormat::I444,
];

#[test]
fn every_format_survives_the_planes() {
    for pixels in FORMATS {
        for (width, height) in [(64, 48), (33, 17), (1, 1), (2, 5)] {
            let tight = Geometry::new(pixels, width, height).unwrap();
            for geometry in [tight, tight.with_stride(tight.stride() + 12).unwrap()] {
                let original = picture(&geometry, 3);
                let mut buffer = Buffer::default();
                let planes = from_picture(&geometry, &original, &mut buffer).unwrap();
                let mut back = vec![0; geometry.bytes()];
                to_picture(&planes, &geometry, &mut back);
                let psnr = psnr_db(&geometry, &original, &back);
                assert!(psnr > 30.0, "{pixels:?} {width}x{height}: {psnr} dB");
            }
        }
    }
}

#[test]
fn coded_pictures_resemble_their_originals() {
    for pixels in FORMATS {
        let geometry = Geometry::new(pixels, 162, 121).unwrap();
        let (mut encoder, mut decoder) = (Encoder::new(162, 121, 4000).unwrap(), Decoder::default());
        let mut buffer = Buffer::default();
        for number in 0..12 {
            let original = picture(&geometry, number);
            let planes = from_picture(&geometry, &original, &mut buffer).unwrap();
            let encoded = encoder.encode(&planes, number as i64 * 3000, 3000, false).unwrap();
            let decoded = decoder.decode(encoded.bytes, 162, 121).unwrap();
            let mut back = vec![0; geometry.bytes()];
            to_picture(&decoded, &geometry, &mut back);
            let psnr = psnr_db(&geometry, &original, &back);
            assert!(psnr > 30.0, "{pixels:?}, picture {number}: {psnr} dB");
        }
    }
}

#[test]
fn a_false_size_is_refused_before_it_costs_memory() {
    let geometry = Geometry::new(PixelFormat::Gray8, 64, 48).unwrap();
    let original = picture(&geometry, 0);
    let mut buffer = Buffer::default();
    let planes = from_picture(&geometry, &original, &mut buffer).unwrap();
    let mut encoder = Encoder::new(64, 48, 1000).unwrap();
    let mut key = encoder.encode(&planes, 0, 3000, true).unwrap().bytes.to_vec();
    let next = encoder.encode(&planes, 3000, 3000, false).unwrap().bytes.to_vec();
    let mut decoder = Decoder::default();
    assert_eq!(decoder.decode(&next, 64, 48).unwrap_err(), DecodeError::NoKey);
    assert!(decoder.decode(&key, 64, 48).is_ok());
    let described = (64, 50);
    assert_eq!(
        decoder.decode(&next, 64, 50).unwrap_err(),
        DecodeError::Size { claimed: (64, 48), described }
    );
    assert!(decoder.decode(&next, 64, 48).is_ok(), "a wrong description costs nothing");
    // Width and height of a key picture: 14 bits each, behind the start code (RFC 6386, 9.1).
    key[6..10].copy_from_slice(&[0xff, 0x3f, 0xff, 0x3f]);
    assert!(matches!(decoder.decode(&key, 64, 48), Err(DecodeError::Size { claimed: (16383, 16383), .. })));
    assert!(decoder.decode(&key, 16383, 16383).is_err(), "larger than any picture that is coded");
    assert_eq!(decoder.decode(&next, 64, 48).unwrap_err(), DecodeError::NoKey);
}
