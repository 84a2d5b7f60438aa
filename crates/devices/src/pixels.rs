//! Converts pictures between pixel formats and fits them to another size: enlarged by a whole factor, with black borders.
//!
//! Each row is converted to an intermediate row: one Y, Cb and Cr for every pixel (ITU-R BT.601, Y from 16 to 235).
//! A direct conversion between two formats would be faster, but one intermediate format needs only one reader and one
//! writer for each format. Callers skip the conversion if the picture has the right format already.

use contract::{Body, Bytes};
use wire::formats::video::{Content, Geometry, Header, PixelFormat};

const BLACK: [u8; 3] = [16, 128, 128];

/// Parses the whole picture in a message. The error is a text for the user.
pub(crate) fn picture(body: &Body) -> Result<(Geometry, Bytes), String> {
    let front = body.peek_front::<{ Header::BYTES }>().ok_or("it is shorter than a picture header")?;
    let header = Header::parse(&front).map_err(|error| format!("it is not a picture: {error}"))?;
    let mut rest = body.clone();
    rest.skip_front(Header::BYTES);
    let bytes = rest.into_bytes();
    match header.parse_content(&bytes).map_err(|error| format!("the picture is incomplete: {error}"))? {
        Content::Frame(_) => Ok((header.geometry, bytes)),
        _ => {
            Err("only whole pictures are supported: set the device to send frames instead of rectangles"
                .into())
        }
    }
}

/// Converts red, green and blue to Y, Cb and Cr. The factors are in 256ths.
pub(crate) fn from_rgb([red, green, blue]: [u8; 3]) -> [u8; 3] {
    let [red, green, blue] = [red, green, blue].map(i32::from);
    [
        ((66 * red + 129 * green + 25 * blue + (16 << 8) + 128) >> 8) as u8,
        ((-38 * red - 74 * green + 112 * blue + (128 << 8) + 128) >> 8) as u8,
        ((112 * red - 94 * green - 18 * blue + (128 << 8) + 128) >> 8) as u8,
    ]
}

/// Converts Y, Cb and Cr to red, green and blue.
pub(crate) fn to_rgb([y, cb, cr]: [u8; 3]) -> [u8; 3] {
    let (y, cb, cr) = (298 * (i32::from(y) - 16), i32::from(cb) - 128, i32::from(cr) - 128);
    let part = |value: i32| ((value + 128) >> 8).clamp(0, 255) as u8;
    [part(y + 409 * cr), part(y - 100 * cb - 208 * cr), part(y + 516 * cb)]
}

/// Returns whether [`convert`] can read and write pictures of this format.
pub(crate) fn is_convertible(pixels: PixelFormat) -> bool {
    pixels != PixelFormat::Mjpeg
}

/// Returns true if the bytes of both pictures have the same meaning.
pub(crate) fn is_same_layout(one: &Geometry, other: &Geometry) -> bool {
    let layout =
        |geometry: &Geometry| (geometry.pixels(), geometry.width(), geometry.height(), geometry.stride());
    layout(one) == layout(other)
}

/// Checks that pictures can be converted to the format that the readers of a node know. The error is a text for the user.
pub(crate) fn check_convertible(from: &Geometry, to: &Geometry) -> Result<(), String> {
    if is_convertible(from.pixels()) && is_convertible(to.pixels()) {
        return Ok(());
    }
    let (fourcc, width, height) = (from.pixels().fourcc(), from.width(), from.height());
    let fourcc = String::from_utf8_lossy(&fourcc);
    Err(format!(
        "the pictures are {fourcc} of {width}x{height} now, and cannot be converted to the format that its readers expect: \
         share the device again, and attach again"
    ))
}

/// Copies a picture without the padding between its rows: `to` is the same geometry as `from`, but tight.
pub(crate) fn pack(from: &Geometry, pixels: &[u8], to: &Geometry, into: &mut [u8]) {
    for plane in 0..to.planes() {
        let rows = to.plane(plane).rows_mut(into).zip(from.plane(plane).rows(pixels));
        rows.for_each(|(into, row)| into.copy_from_slice(row));
    }
}

/// Draws a picture of geometry `from` into the middle of a picture of geometry `to`. A smaller picture is enlarged by the
/// largest whole factor with which it fits: a pair such as `scale` does not change the size of a node, and its pictures would
/// be a stamp in a black frame. Parts that do not fit are cut off; the rest of the target is black.
///
/// Neither format may be [`PixelFormat::Mjpeg`]. `pixels` and `into` are as long as their geometries require.
pub(crate) fn convert(from: &Geometry, pixels: &[u8], to: &Geometry, into: &mut [u8]) {
    let width = to.width() as usize;
    let factor = (to.width() / from.width()).min(to.height() / from.height()).max(1);
    let size = (from.width() * factor, from.height() * factor);
    let (mut read, mut drawn) = (vec![BLACK; from.width() as usize], vec![BLACK; width]);
    let mut enlarged = vec![BLACK; size.0 as usize];
    // Two rows may share Cb and Cr, so the row above is kept for the mean.
    let mut above = vec![BLACK; width];
    let (top, across) = (offset(size.1, to.height()), offset(size.0, to.width()));
    let factor = factor as usize;
    for row in 0..to.height() as usize {
        drawn.fill(BLACK);
        if let Some(y) = usize::try_from(row as i64 - top).ok().filter(|y| *y < size.1 as usize) {
            if y.is_multiple_of(factor) {
                read_row(from, pixels, y / factor, &mut read);
                enlarged.chunks_mut(factor).zip(&read).for_each(|(into, pixel)| into.fill(*pixel));
            }
            place(&enlarged, &mut drawn, across);
        }
        let is_second = row % 2 == 1;
        write_row(to, into, row, &drawn, is_second.then_some(&above[..]));
        std::mem::swap(&mut above, &mut drawn);
    }
}

/// Fills a picture with black.
pub(crate) fn black(to: &Geometry, into: &mut [u8]) {
    let row = vec![BLACK; to.width() as usize];
    for number in 0..to.height() as usize {
        write_row(to, into, number, &row, None);
    }
}

/// Returns the offset that centres `inner` in `outer`; negative if `inner` is longer. The offset is even, so that
/// pixels that share Cb and Cr stay together.
fn offset(inner: u32, outer: u32) -> i64 {
    (i64::from(outer) - i64::from(inner)) / 4 * 2
}

fn place(from: &[[u8; 3]], into: &mut [[u8; 3]], offset: i64) {
    let (skip, start) = (usize::try_from(-offset).unwrap_or(0), usize::try_from(offset).unwrap_or(0));
    let count = from.len().saturating_sub(skip).min(into.len().saturating_sub(start));
    into[start..start + count].copy_from_slice(&from[skip..skip + count]);
}

/// Returns one row of a plane.
pub(crate) fn plane_row<'a>(geometry: &Geometry, pixels: &'a [u8], plane: usize, row: usize) -> &'a [u8] {
    let plane = geometry.plane(plane);
    let start = plane.offset + plane.stride * row;
    &pixels[start..start + plane.row_bytes]
}

fn plane_row_mut<'a>(geometry: &Geometry, pixels: &'a mut [u8], plane: usize, row: usize) -> &'a mut [u8] {
    let plane = geometry.plane(plane);
    let start = plane.offset + plane.stride * row;
    &mut pixels[start..start + plane.row_bytes]
}

fn read_row(geometry: &Geometry, pixels: &[u8], row: usize, into: &mut [[u8; 3]]) {
    let first = plane_row(geometry, pixels, 0, row);
    match geometry.pixels() {
        PixelFormat::Gray8 => {
            into.iter_mut().zip(first).for_each(|(into, gray)| *into = from_rgb([*gray; 3]));
        }
        PixelFormat::Rgb24 => {
            into.iter_mut().zip(first.as_chunks::<3>().0).for_each(|(into, rgb)| *into = from_rgb(*rgb));
        }
        PixelFormat::Bgrx32 => {
            let four = first.as_chunks::<4>().0;
            into.iter_mut().zip(four).for_each(|(into, [b, g, r, _])| *into = from_rgb([*r, *g, *b]));
        }
        PixelFormat::Yuyv => {
            for (pair, [left, cb, right, cr]) in into.chunks_mut(2).zip(first.as_chunks::<4>().0) {
                pair.iter_mut().zip([left, right]).for_each(|(into, y)| *into = [*y, *cb, *cr]);
            }
        }
        PixelFormat::I420 | PixelFormat::I422 | PixelFormat::I444 => {
            let (across, down) = geometry.pixels().subsampling().unwrap_or((1, 1));
            let (across, down) = (across as usize, down as usize);
            let (cb, cr) =
                (plane_row(geometry, pixels, 1, row / down), plane_row(geometry, pixels, 2, row / down));
            for (x, (into, y)) in into.iter_mut().zip(first).enumerate() {
                *into = [*y, cb[x / across], cr[x / across]];
            }
        }
        PixelFormat::Mjpeg => {}
    }
}

fn mean(values: impl Iterator<Item = u8>) -> u8 {
    let (sum, count) = values.fold((0u32, 0u32), |(sum, count), value| (sum + u32::from(value), count + 1));
    ((sum + count / 2) / count.max(1)) as u8
}

/// Writes a row. `above` is the row above it, if both share Cb and Cr.
fn write_row(geometry: &Geometry, into: &mut [u8], row: usize, from: &[[u8; 3]], above: Option<&[[u8; 3]]>) {
    let first = plane_row_mut(geometry, into, 0, row);
    match geometry.pixels() {
        PixelFormat::Gray8 => {
            first.iter_mut().zip(from).for_each(|(into, [y, ..])| *into = to_rgb([*y, 128, 128])[0]);
        }
        PixelFormat::Rgb24 => {
            first
                .as_chunks_mut::<3>()
                .0
                .iter_mut()
                .zip(from)
                .for_each(|(into, pixel)| *into = to_rgb(*pixel));
        }
        PixelFormat::Bgrx32 => {
            for (into, pixel) in first.as_chunks_mut::<4>().0.iter_mut().zip(from) {
                let [red, green, blue] = to_rgb(*pixel);
                *into = [blue, green, red, 255];
            }
        }
        PixelFormat::Yuyv => {
            for (into, pair) in first.as_chunks_mut::<4>().0.iter_mut().zip(from.chunks(2)) {
                let colour = |part: usize| mean(pair.iter().map(|pixel| pixel[part]));
                *into = [pair[0][0], colour(1), pair[pair.len() - 1][0], colour(2)];
            }
        }
        PixelFormat::I420 | PixelFormat::I422 | PixelFormat::I444 => {
            first.iter_mut().zip(from).for_each(|(into, [y, ..])| *into = *y);
            let (across, down) = geometry.pixels().subsampling().unwrap_or((1, 1));
            let (across, down) = (across as usize, down as usize);
            let above = above.filter(|_| down == 2);
            for plane in 1..=2 {
                let chroma = plane_row_mut(geometry, into, plane, row / down);
                for (x, into) in chroma.iter_mut().enumerate() {
                    let part = |row: &'_ [[u8; 3]]| {
                        let end = (x * across + across).min(row.len());
                        mean(row[x * across..end].iter().map(|pixel| pixel[plane]))
                    };
                    *into = mean(std::iter::once(part(from)).chain(above.map(part)));
                }
            }
        }
        PixelFormat::Mjpeg => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KINDS: [PixelFormat; 7] = [
        PixelFormat::Gray8,
        PixelFormat::Rgb24,
        PixelFormat::Bgrx32,
        PixelFormat::Yuyv,
        PixelFormat::I420,
        PixelFormat::I422,
        PixelFormat::I444,
    ];

    fn converted(from: &Geometry, pixels: &[u8], to: &Geometry) -> Vec<u8> {
        let mut into = vec![0xee; to.bytes()];
        convert(from, pixels, to, &mut into);
        into
    }

    #[test]
    fn colours_match_bt_601() {
        for (rgb, ycbcr) in [
            ([0, 0, 0], [16, 128, 128]),
            ([255, 255, 255], [235, 128, 128]),
            ([255, 0, 0], [82, 90, 240]),
            ([0, 255, 0], [144, 54, 34]),
            ([0, 0, 255], [41, 240, 110]),
        ] {
            assert_eq!(from_rgb(rgb), ycbcr, "{rgb:?}");
            let back = to_rgb(ycbcr);
            assert!(rgb.iter().zip(back).all(|(a, b)| a.abs_diff(b) <= 3), "{rgb:?} came back as {back:?}");
        }
    }

    #[test]
    fn a_smaller_picture_is_centred_on_black() {
        let from = Geometry::new(PixelFormat::Gray8, 4, 2).unwrap();
        let to = Geometry::new(PixelFormat::Gray8, 6, 6).unwrap();
        let into = converted(&from, &[255; 8], &to);
        let rows: Vec<&[u8]> = into.chunks(6).collect();
        let [dark, line]: [&[u8]; 2] = [&[0; 6], &[255, 255, 255, 255, 0, 0]];
        assert_eq!(rows, [dark, dark, line, line, dark, dark]);
    }

    #[test]
    fn a_picture_of_half_the_size_fills_the_target() {
        let gray = |width, height| Geometry::new(PixelFormat::Gray8, width, height).unwrap();
        let into = converted(&gray(2, 2), &[0, 255, 255, 0], &gray(4, 4));
        let rows: Vec<&[u8]> = into.chunks(4).collect();
        let [upper, lower]: [&[u8]; 2] = [&[0, 0, 255, 255], &[255, 255, 0, 0]];
        assert_eq!(rows, [upper, upper, lower, lower]);
        // The factor is the smaller one of both sides.
        let into = converted(&gray(1, 1), &[255], &gray(6, 2));
        assert_eq!(into, [0_u8, 0, 255, 255, 0, 0].repeat(2));
        let into = converted(&gray(3, 1), &[255; 3], &gray(8, 2));
        assert_eq!(into, [255_u8, 255, 255, 255, 255, 255, 0, 0].repeat(2));
    }

    #[test]
    fn a_larger_picture_is_cropped_to_its_middle() {
        let from = Geometry::new(PixelFormat::Gray8, 8, 1).unwrap();
        let to = Geometry::new(PixelFormat::Gray8, 4, 1).unwrap();
        let into = converted(&from, &[0, 0, 255, 255, 255, 255, 0, 0], &to);
        assert_eq!(into, [255; 4]);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

        /// A picture of one colour keeps it between any two formats, except for rounding.
        #[test]
        fn a_uniform_colour_survives_every_conversion(
            from in prop::sample::select(&KINDS[..]), to in prop::sample::select(&KINDS[..]),
            size in (1u32..20, 1u32..20), gray in 16u8..236, padding in 0u32..9,
        ) {
            let (width, height) = size;
            let tight = Geometry::new(from, width, height).unwrap();
            let from = tight.with_stride(tight.stride() + padding * 2).unwrap();
            let to = Geometry::new(to, width, height).unwrap();
            let mut picture = vec![0; from.bytes()];
            let shade = to_rgb([gray, 128, 128]);
            let row = vec![from_rgb(shade); width as usize];
            for number in 0..height as usize {
                write_row(&from, &mut picture, number, &row, None);
            }
            let into = converted(&from, &picture, &to);
            let mut read = vec![BLACK; width as usize];
            for number in 0..height as usize {
                read_row(&to, &into, number, &mut read);
                for pixel in &read {
                    prop_assert!(pixel[0].abs_diff(gray) <= 3, "{pixel:?} of {gray}");
                    prop_assert!(pixel[1].abs_diff(128) <= 1 && pixel[2].abs_diff(128) <= 1, "{pixel:?}");
                }
            }
        }

        /// No conversion between any two sizes reads out of bounds, and each overwrites every byte of the target.
        #[test]
        fn every_size_converts_into_every_other(
            from in prop::sample::select(&KINDS[..]), to in prop::sample::select(&KINDS[..]),
            sizes in (1u32..24, 1u32..24, 1u32..24, 1u32..24), seed in any::<u8>(),
        ) {
            let from = Geometry::new(from, sizes.0, sizes.1).unwrap();
            let to = Geometry::new(to, sizes.2, sizes.3).unwrap();
            let pixels: Vec<u8> = (0..from.bytes()).map(|at| (at as u8).wrapping_mul(31) ^ seed).collect();
            let (mut once, mut again) = (vec![0; to.bytes()], vec![0xff; to.bytes()]);
            convert(&from, &pixels, &to, &mut once);
            convert(&from, &pixels, &to, &mut again);
            prop_assert_eq!(once, again);
            let mut dark = vec![0; to.bytes()];
            black(&to, &mut dark);
        }
    }
}
