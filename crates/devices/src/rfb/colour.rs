//! Rows of pictures of other formats as rows of ours: blue, green, red and a byte more.

use wire::formats::video::{Geometry, PixelFormat};

/// Whether pictures of this format can be shown. Errors say what to do.
pub(super) fn check(pixels: PixelFormat) -> Result<(), String> {
    match pixels {
        PixelFormat::Mjpeg => {
            Err("a screen shows no compressed pictures (MJPG): have the device give raw ones".into())
        }
        _ => Ok(()),
    }
}

/// Appends a row of packed pixels as one of ours.
pub(super) fn packed_row(pixels: PixelFormat, row: &[u8], out: &mut Vec<u8>) {
    match pixels {
        PixelFormat::Rgb24 => {
            out.extend(row.as_chunks::<3>().0.iter().flat_map(|[red, green, blue]| [*blue, *green, *red, 0]));
        }
        PixelFormat::Gray8 => out.extend(row.iter().flat_map(|gray| [*gray, *gray, *gray, 0])),
        _ => out.extend(row),
    }
}

/// Appends row `y` of a picture of Y, Cb and Cr as one of ours.
pub(super) fn luma_row(geometry: &Geometry, pixels: &[u8], y: usize, out: &mut Vec<u8>) {
    let width = geometry.width() as usize;
    let row = |number: usize, y: usize| {
        let plane = geometry.plane(number);
        &pixels[plane.offset + y * plane.stride..][..plane.row_bytes]
    };
    let luma = row(0, y);
    match geometry.pixels().subsampling() {
        Some((across, down)) => {
            let [blue, red] = [1, 2].map(|number| row(number, y / down as usize));
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

/// A pixel of ours of ITU-R BT.601's Y (16 to 235), Cb and Cr, in 256ths.
fn pixel(luma: u8, blue: u8, red: u8) -> [u8; 4] {
    let bright = 298 * (i32::from(luma) - 16) + 128;
    let (blue, red) = (i32::from(blue) - 128, i32::from(red) - 128);
    let colours = [bright + 516 * blue, bright - 100 * blue - 208 * red, bright + 409 * red];
    let [blue, green, red] = colours.map(|colour| (colour >> 8).clamp(0, 255) as u8);
    [blue, green, red, 0]
}
