//! Converts pictures of any pixel format to screen pixels: blue, green, red and one unused byte (`XR24`).

use crate::pixels::{plane_row, to_rgb};
use contract::{Body, Bytes};
use wire::formats::video::{Content, Cursor, Geometry, Header, Kind, PixelFormat, Rectangle};

/// Bytes of a screen pixel.
pub(crate) const PIXEL_BYTES: usize = 4;

/// The content of a `video` message, for a viewer.
#[derive(Debug)]
pub(crate) enum Update {
    /// A whole picture of this size.
    Frame(u32, u32),
    /// Parts of a picture of this size. The pixels of the parts follow each other.
    Parts(u32, u32, Vec<Rectangle>),
    /// The shape of the pointer: blue, green, red and opacity of each pixel.
    Cursor(Cursor),
    /// The text on the clipboard; `None`: there is a new one.
    Clipboard(Option<String>),
    /// Nothing to display.
    Nothing,
}

/// Parses a `video` message and returns its content and its screen pixels, rows without padding.
///
/// The pixels share memory with the message if they have the right format already; otherwise they are converted.
/// The error names the problem and the remedy.
pub(crate) fn read(body: &Body) -> Result<(Update, Body), String> {
    let front = body.peek_front::<{ Header::BYTES }>().ok_or("it is shorter than a picture header")?;
    let header = Header::parse(&front).map_err(|error| error.to_string())?;
    let (geometry, mut rest) = (header.geometry, body.clone());
    rest.skip_front(Header::BYTES);
    let (width, height) = (geometry.width(), geometry.height());
    let is_screen_format = geometry.pixels() == PixelFormat::Bgrx32;
    if header.kind == Kind::Frame && is_screen_format && geometry.is_tight() && rest.len() == geometry.bytes()
    {
        return Ok((Update::Frame(width, height), rest));
    }
    let bytes = rest.into_bytes();
    match header.parse_content(&bytes).map_err(|error| error.to_string())? {
        Content::Boxes(_) => Ok((Update::Nothing, Body::new())),
        Content::Cursor(cursor, pixels) => Ok((Update::Cursor(cursor), bytes.slice_ref(pixels).into())),
        Content::Clipboard(text) => Ok((Update::Clipboard(text.map(String::from)), Body::new())),
        Content::Frame(pixels) => {
            let mut into = Vec::new();
            convert(&geometry, pixels, &mut into)?;
            Ok((Update::Frame(width, height), into.into()))
        }
        Content::Rectangles(parts, pixels) => {
            let pixels = if is_screen_format {
                bytes.slice_ref(pixels)
            } else {
                convert_parts(&geometry, &parts, pixels)?
            };
            Ok((Update::Parts(width, height, parts), pixels.into()))
        }
    }
}

fn convert_parts(geometry: &Geometry, parts: &[Rectangle], mut pixels: &[u8]) -> Result<Bytes, String> {
    let mut into = Vec::new();
    for part in parts {
        let (part_pixels, remaining) = pixels.split_at(part.bytes(geometry.pixels()));
        pixels = remaining;
        let part =
            Geometry::new(geometry.pixels(), part.width, part.height).map_err(|error| error.to_string())?;
        convert(&part, part_pixels, &mut into)?;
    }
    Ok(into.into())
}

/// Appends the rows of a picture. `pixels` is as long as the geometry requires.
fn convert(geometry: &Geometry, pixels: &[u8], into: &mut Vec<u8>) -> Result<(), String> {
    check(geometry.pixels())?;
    into.reserve(geometry.width() as usize * geometry.height() as usize * PIXEL_BYTES);
    match geometry.pixels().is_packed() {
        true => geometry.plane(0).rows(pixels).for_each(|row| packed_row(geometry.pixels(), row, into)),
        false => (0..geometry.height() as usize).for_each(|y| luma_row(geometry, pixels, y, into)),
    }
    Ok(())
}

/// Checks that pictures of this format can be displayed. The error names the remedy.
pub(crate) fn check(pixels: PixelFormat) -> Result<(), String> {
    match pixels {
        PixelFormat::Mjpeg => {
            Err("a screen cannot display compressed pictures (MJPG): set the device to a raw format".into())
        }
        _ => Ok(()),
    }
}

/// Converts a row of packed pixels and appends it.
pub(crate) fn packed_row(pixels: PixelFormat, row: &[u8], out: &mut Vec<u8>) {
    match pixels {
        PixelFormat::Rgb24 => {
            out.extend(row.as_chunks::<3>().0.iter().flat_map(|[red, green, blue]| [*blue, *green, *red, 0]));
        }
        PixelFormat::Gray8 => out.extend(row.iter().flat_map(|gray| [*gray, *gray, *gray, 0])),
        _ => out.extend(row),
    }
}

/// Converts row `y` of a picture of Y, Cb and Cr and appends it.
pub(crate) fn luma_row(geometry: &Geometry, pixels: &[u8], y: usize, out: &mut Vec<u8>) {
    let width = geometry.width() as usize;
    let luma = plane_row(geometry, pixels, 0, y);
    match geometry.pixels().subsampling() {
        Some((across, down)) => {
            let [blue, red] = [1, 2].map(|plane| plane_row(geometry, pixels, plane, y / down as usize));
            let across = across as usize;
            out.extend((0..width).flat_map(|x| pixel(luma[x], blue[x / across], red[x / across])));
        }
        // Two pixels share four bytes.
        None => {
            let pairs = luma.as_chunks::<4>().0.iter();
            let both = pairs.flat_map(|[y0, cb, y1, cr]| [pixel(*y0, *cb, *cr), pixel(*y1, *cb, *cr)]);
            out.extend(both.take(width).flatten());
        }
    }
}

fn pixel(luma: u8, blue: u8, red: u8) -> [u8; PIXEL_BYTES] {
    let [red, green, blue] = to_rgb([luma, blue, red]);
    [blue, green, red, 0]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn converted(pixels: PixelFormat, width: u32, height: u32, padding: u32, bytes: &[u8]) -> Vec<u8> {
        let geometry = Geometry::new(pixels, width, height).unwrap();
        let geometry = geometry.with_stride(geometry.stride() + padding).unwrap();
        let mut into = Vec::new();
        convert(&geometry, bytes, &mut into).unwrap();
        into
    }

    #[test]
    fn every_raw_format_is_converted_to_screen_pixels() {
        assert_eq!(
            converted(PixelFormat::Bgrx32, 1, 2, 1, &[1, 2, 3, 4, 0, 5, 6, 7, 8, 0]),
            [1, 2, 3, 4, 5, 6, 7, 8]
        );
        assert_eq!(converted(PixelFormat::Rgb24, 2, 1, 1, &[1, 2, 3, 4, 5, 6, 0]), [3, 2, 1, 0, 6, 5, 4, 0]);
        assert_eq!(converted(PixelFormat::Gray8, 1, 2, 1, &[7, 0, 8, 0]), [7, 7, 7, 0, 8, 8, 8, 0]);
        // Black, white and red, three pixels wide: the second half of the second pair is padding.
        assert_eq!(
            converted(PixelFormat::Yuyv, 3, 1, 0, &[16, 128, 235, 128, 81, 90, 0, 240])[..8],
            [0, 0, 0, 0, 255, 255, 255, 0]
        );
        assert_eq!(
            converted(PixelFormat::Yuyv, 3, 1, 0, &[16, 128, 235, 128, 81, 90, 0, 240])[8..],
            [0, 0, 255, 0]
        );
        let three = converted(PixelFormat::I420, 3, 1, 0, &[235, 16, 81, 128, 90, 128, 240]);
        assert_eq!(three, [255, 255, 255, 0, 0, 0, 0, 0, 0, 0, 255, 0]);
        assert_eq!(converted(PixelFormat::I444, 1, 2, 0, &[235, 81, 128, 90, 128, 240])[4..], [0, 0, 255, 0]);
        assert_eq!(converted(PixelFormat::I422, 1, 2, 0, &[235, 81, 128, 90, 128, 240])[4..], [0, 0, 255, 0]);
        let jpeg = Geometry::new(PixelFormat::Mjpeg, 1, 1).unwrap();
        assert!(convert(&jpeg, &[], &mut Vec::new()).unwrap_err().contains("MJPG"));
    }
}
