//! Conversion between the pixel formats of Outboard and the three planes of VP8.
//!
//! Colours of neighbouring pixels become their mean on the way in, and are repeated on the way out. Red, green and blue become
//! Y, Cb and Cr by ITU-R BT.601 with the full range, which both ways share, so no range is lost.

use crate::Planes;
use wire::formats::video::{Geometry, PixelFormat, Plane};

/// Memory for three planes, reused from picture to picture.
#[derive(Debug, Default)]
pub struct Buffer {
    bytes: Vec<u8>,
}

/// Bits behind the point in the coefficients of BT.601.
const SHIFT: u32 = 16;
const ROUND: i32 = 1 << (SHIFT - 1);

/// A coefficient as an integer.
const fn fixed(coefficient: f64) -> i32 {
    (coefficient * (1 << SHIFT) as f64) as i32
}

fn byte(scaled: i32) -> u8 {
    ((scaled + ROUND) >> SHIFT).clamp(0, 255) as u8
}

/// Y, and Cb and Cr less 128 before the shift.
fn to_yuv(red: i32, green: i32, blue: i32) -> [i32; 3] {
    [
        fixed(0.299) * red + fixed(0.587) * green + fixed(0.114) * blue,
        fixed(0.5) * blue - fixed(0.168_736) * red - fixed(0.331_264) * green,
        fixed(0.5) * red - fixed(0.418_688) * green - fixed(0.081_312) * blue,
    ]
}

/// Red, green and blue.
fn to_rgb(y: u8, cb: u8, cr: u8) -> [u8; 3] {
    let (y, cb, cr) = (i32::from(y) << SHIFT, i32::from(cb) - 128, i32::from(cr) - 128);
    [
        byte(y + fixed(1.402) * cr),
        byte(y - fixed(0.344_136) * cb - fixed(0.714_136) * cr),
        byte(y + fixed(1.772) * cb),
    ]
}

/// Offsets of red, green and blue in a packed pixel.
fn channels(pixels: PixelFormat) -> [usize; 3] {
    match pixels {
        PixelFormat::Bgrx32 => [2, 1, 0],
        _ => [0, 1, 2],
    }
}

fn mean(a: u8, b: u8) -> u8 {
    (u16::from(a) + u16::from(b)).div_ceil(2) as u8
}

/// The row of a plane.
fn row(plane: Plane, pixels: &[u8], number: usize) -> &[u8] {
    let start = plane.offset + plane.stride * number.min(plane.rows - 1);
    &pixels[start..start + plane.row_bytes]
}

/// Returns the picture's three planes: those of `pixels` where the layout is VP8's, converted in `buffer` otherwise. `None`
/// for compressed pictures, and where `pixels` is shorter than the geometry requires.
pub fn from_picture<'a>(geometry: &Geometry, pixels: &'a [u8], buffer: &'a mut Buffer) -> Option<Planes<'a>> {
    let (width, height) = (geometry.width(), geometry.height());
    if geometry.pixels() == PixelFormat::Mjpeg || pixels.len() < geometry.bytes() {
        return None;
    }
    if geometry.pixels() == PixelFormat::I420 {
        let planes = [0, 1, 2].map(|number| geometry.plane(number));
        return Some(Planes {
            width,
            height,
            planes: planes.map(|plane| &pixels[plane.offset..plane.offset + plane.bytes()]),
            strides: planes.map(|plane| plane.stride as u32),
        });
    }
    let (across, down) = (width as usize, height as usize);
    let (half_across, half_down) = (across.div_ceil(2), down.div_ceil(2));
    let chroma_bytes = half_across * half_down;
    buffer.bytes.resize(across * down + 2 * chroma_bytes, 128);
    let (luma, chroma) = buffer.bytes.split_at_mut(across * down);
    let (blue, red) = chroma.split_at_mut(chroma_bytes);
    let first = geometry.plane(0);
    for (number, into) in luma.chunks_exact_mut(across).enumerate() {
        let from = row(first, pixels, number);
        match geometry.pixels() {
            PixelFormat::Yuyv => {
                into.iter_mut().zip(from.chunks_exact(2)).for_each(|(into, pair)| *into = pair[0])
            }
            PixelFormat::Rgb24 => luma_row::<3>(from, into, channels(PixelFormat::Rgb24)),
            PixelFormat::Bgrx32 => luma_row::<4>(from, into, channels(PixelFormat::Bgrx32)),
            _ => into.copy_from_slice(&from[..across]),
        }
    }
    let rows = blue.chunks_exact_mut(half_across).zip(red.chunks_exact_mut(half_across));
    for (number, (blue, red)) in rows.enumerate() {
        let pair = |plane: usize| {
            let plane = geometry.plane(plane);
            [row(plane, pixels, 2 * number), row(plane, pixels, 2 * number + 1)]
        };
        match geometry.pixels() {
            PixelFormat::Yuyv => {
                let [upper, lower] = pair(0);
                let fours = upper.chunks_exact(4).zip(lower.chunks_exact(4));
                for ((blue, red), (upper, lower)) in blue.iter_mut().zip(red).zip(fours) {
                    (*blue, *red) = (mean(upper[1], lower[1]), mean(upper[3], lower[3]));
                }
            }
            PixelFormat::I422 => {
                for (into, plane) in [(blue, 1), (red, 2)] {
                    let [upper, lower] = pair(plane);
                    for (into, (upper, lower)) in into.iter_mut().zip(upper.iter().zip(lower)) {
                        *into = mean(*upper, *lower);
                    }
                }
            }
            PixelFormat::I444 => {
                for (into, plane) in [(blue, 1), (red, 2)] {
                    let [upper, lower] = pair(plane);
                    for (into, (upper, lower)) in into.iter_mut().zip(upper.chunks(2).zip(lower.chunks(2))) {
                        let ends = |pair: &[u8]| mean(pair[0], pair[pair.len() - 1]);
                        *into = mean(ends(upper), ends(lower));
                    }
                }
            }
            PixelFormat::Rgb24 => chroma_row::<3>(pair(0), blue, red, channels(PixelFormat::Rgb24)),
            PixelFormat::Bgrx32 => chroma_row::<4>(pair(0), blue, red, channels(PixelFormat::Bgrx32)),
            _ => {
                blue.fill(128);
                red.fill(128);
            }
        }
    }
    let half = half_across as u32;
    Some(Planes { width, height, planes: [luma, blue, red], strides: [width, half, half] })
}

fn luma_row<const BYTES: usize>(from: &[u8], into: &mut [u8], [red, green, blue]: [usize; 3]) {
    for (into, pixel) in into.iter_mut().zip(from.chunks_exact(BYTES)) {
        *into = byte(to_yuv(pixel[red].into(), pixel[green].into(), pixel[blue].into())[0]);
    }
}

/// One row of Cb and Cr from two rows of pixels.
fn chroma_row<const BYTES: usize>(
    [upper, lower]: [&[u8]; 2],
    into_blue: &mut [u8],
    into_red: &mut [u8],
    channels: [usize; 3],
) {
    let pairs = upper.chunks(2 * BYTES).zip(lower.chunks(2 * BYTES));
    for ((into_blue, into_red), (upper, lower)) in into_blue.iter_mut().zip(into_red).zip(pairs) {
        // The last pixel of a row of odd length counts twice.
        let last = upper.len() - BYTES;
        let sum = channels.map(|at| {
            [upper[at], upper[last + at], lower[at], lower[last + at]].into_iter().map(i32::from).sum::<i32>()
        });
        let [_, blue, red] = to_yuv(sum[0], sum[1], sum[2]);
        (*into_blue, *into_red) = (byte(blue / 4 + (128 << SHIFT)), byte(red / 4 + (128 << SHIFT)));
    }
}

/// Writes decoded planes as a picture of `geometry`, of the same size. Bytes between rows stay as they are.
pub fn to_picture(planes: &Planes<'_>, geometry: &Geometry, into: &mut [u8]) {
    let plane_row = |number: usize, row: usize| {
        let start = planes.strides[number] as usize * row;
        let width = planes.width as usize;
        let bytes = if number == 0 { width } else { width.div_ceil(2) };
        &planes.planes[number][start..start + bytes]
    };
    let rows = geometry.height() as usize;
    match geometry.pixels() {
        PixelFormat::Mjpeg => {}
        PixelFormat::Yuyv | PixelFormat::Rgb24 | PixelFormat::Bgrx32 => {
            for (number, into) in geometry.plane(0).rows_mut(into).take(rows).enumerate() {
                let [luma, blue, red] =
                    [plane_row(0, number), plane_row(1, number / 2), plane_row(2, number / 2)];
                match geometry.pixels() {
                    PixelFormat::Yuyv => yuyv_row(luma, blue, red, into),
                    PixelFormat::Rgb24 => rgb_row::<3>([luma, blue, red], into, channels(PixelFormat::Rgb24)),
                    _ => rgb_row::<4>([luma, blue, red], into, channels(PixelFormat::Bgrx32)),
                }
            }
        }
        pixels => {
            for plane in 0..geometry.planes() {
                let down = if plane > 0 { pixels.subsampling().map_or(1, |(_, down)| down) } else { 1 };
                for (number, into) in geometry.plane(plane).rows_mut(into).enumerate() {
                    // VP8 has one row of colours for two rows of pixels.
                    let from = match plane {
                        0 => plane_row(0, number),
                        _ => plane_row(plane, if down == 2 { number } else { number / 2 }),
                    };
                    match into.len() > from.len() {
                        true => into.iter_mut().enumerate().for_each(|(at, into)| *into = from[at / 2]),
                        false => into.copy_from_slice(&from[..into.len()]),
                    }
                }
            }
        }
    }
}

fn yuyv_row(luma: &[u8], blue: &[u8], red: &[u8], into: &mut [u8]) {
    for ((into, luma), (blue, red)) in into.chunks_exact_mut(4).zip(luma.chunks(2)).zip(blue.iter().zip(red))
    {
        into.copy_from_slice(&[luma[0], *blue, luma[luma.len() - 1], *red]);
    }
}

fn rgb_row<const BYTES: usize>([luma, cb, cr]: [&[u8]; 3], into: &mut [u8], [red, green, blue]: [usize; 3]) {
    for (at, (into, luma)) in into.chunks_exact_mut(BYTES).zip(luma).enumerate() {
        let colour = to_rgb(*luma, cb[at / 2], cr[at / 2]);
        (into[red], into[green], into[blue]) = (colour[0], colour[1], colour[2]);
        if BYTES == 4 {
            into[3] = 0;
        }
    }
}
