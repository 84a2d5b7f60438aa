//! Pixels of any kind as screens have them: blue, green, red and one byte more (`XR24`).

use wire::formats::video::{Geometry, PixelFormat};

/// Bytes of a pixel of a screen.
pub(crate) const PIXEL_BYTES: usize = 4;

/// Makes rows of a screen's pixels, without padding, of a picture whose bytes are as many as its geometry says.
pub(crate) fn convert(geometry: &Geometry, pixels: &[u8], into: &mut Vec<u8>) -> Result<(), String> {
    if geometry.pixels() == PixelFormat::Mjpeg {
        return Err("the picture is compressed (MJPG): have the device give raw pixels".into());
    }
    into.clear();
    into.reserve(geometry.width() as usize * geometry.height() as usize * PIXEL_BYTES);
    let rows = geometry.plane(0).rows(pixels);
    match geometry.pixels() {
        PixelFormat::Bgrx32 => rows.for_each(|row| into.extend_from_slice(row)),
        PixelFormat::Rgb24 => {
            let pixels = rows.flat_map(|row| row.as_chunks::<3>().0);
            into.extend(pixels.flat_map(|[red, green, blue]| [*blue, *green, *red, 0]));
        }
        PixelFormat::Gray8 => into.extend(rows.flatten().flat_map(|bright| [*bright, *bright, *bright, 0])),
        PixelFormat::Yuyv => {
            let width = geometry.width() as usize;
            for row in rows {
                let pairs = row.as_chunks::<4>().0.iter();
                let pixels = pairs.flat_map(|[first, blue, second, red]| {
                    [colour(*first, *blue, *red), colour(*second, *blue, *red)]
                });
                into.extend(pixels.take(width).flatten());
            }
        }
        PixelFormat::I420 | PixelFormat::I422 | PixelFormat::I444 | PixelFormat::Mjpeg => {
            let (across, down) = geometry.pixels().subsampling().unwrap_or((1, 1));
            let chroma = |number: usize| {
                let plane = geometry.plane(number);
                move |y: usize| {
                    let start = plane.offset + y / down as usize * plane.stride;
                    &pixels[start..start + plane.row_bytes]
                }
            };
            let (blue, red) = (chroma(1), chroma(2));
            for (y, row) in rows.enumerate() {
                let (blue, red) = (blue(y), red(y));
                let pixel = |(x, bright): (usize, &u8)| {
                    colour(*bright, blue[x / across as usize], red[x / across as usize])
                };
                into.extend(row.iter().enumerate().flat_map(pixel));
            }
        }
    }
    Ok(())
}

/// A pixel of Y, Cb, Cr (ITU-R BT.601, Y from 16 to 235), in 256ths.
fn colour(bright: u8, blue: u8, red: u8) -> [u8; 4] {
    let (y, cb, cr) = (298 * (i32::from(bright) - 16) + 128, i32::from(blue) - 128, i32::from(red) - 128);
    let byte = |value: i32| (value >> 8).clamp(0, 255) as u8;
    [byte(y + 516 * cb), byte(y - 100 * cb - 208 * cr), byte(y + 409 * cr), 0]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(pixels: PixelFormat, width: u32, height: u32, more: u32, bytes: &[u8]) -> Vec<u8> {
        let geometry = Geometry::new(pixels, width, height).unwrap();
        let geometry = geometry.with_stride(geometry.stride() + more).unwrap();
        let mut into = vec![1];
        convert(&geometry, bytes, &mut into).unwrap();
        into
    }

    #[test]
    fn pixels_of_every_kind_are_a_screens() {
        assert_eq!(
            made(PixelFormat::Bgrx32, 1, 2, 1, &[1, 2, 3, 4, 0, 5, 6, 7, 8, 0]),
            [1, 2, 3, 4, 5, 6, 7, 8]
        );
        assert_eq!(made(PixelFormat::Rgb24, 2, 1, 1, &[1, 2, 3, 4, 5, 6, 0]), [3, 2, 1, 0, 6, 5, 4, 0]);
        assert_eq!(made(PixelFormat::Gray8, 1, 2, 1, &[7, 0, 8, 0]), [7, 7, 7, 0, 8, 8, 8, 0]);
        // Black, white, and a red of 3 across: the fourth of the second pair fills up.
        assert_eq!(
            made(PixelFormat::Yuyv, 3, 1, 0, &[16, 128, 235, 128, 81, 90, 0, 240])[..8],
            [0, 0, 0, 0, 255, 255, 255, 0]
        );
        assert_eq!(
            made(PixelFormat::Yuyv, 3, 1, 0, &[16, 128, 235, 128, 81, 90, 0, 240])[8..],
            [0, 0, 255, 0]
        );
        let three = made(PixelFormat::I420, 3, 1, 0, &[235, 16, 81, 128, 90, 128, 240]);
        assert_eq!(three, [255, 255, 255, 0, 0, 0, 0, 0, 0, 0, 255, 0]);
        assert_eq!(made(PixelFormat::I444, 1, 2, 0, &[235, 81, 128, 90, 128, 240])[4..], [0, 0, 255, 0]);
        assert_eq!(made(PixelFormat::I422, 1, 2, 0, &[235, 81, 128, 90, 128, 240])[4..], [0, 0, 255, 0]);
        let jpeg = Geometry::new(PixelFormat::Mjpeg, 1, 1).unwrap();
        assert!(convert(&jpeg, &[], &mut Vec::new()).unwrap_err().contains("MJPG"));
    }
}
