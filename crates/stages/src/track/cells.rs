//! A picture in cells: the mean brightness and colour of squares, which averages out noise.

use crate::picture::{Picture, channels};
use wire::formats::video::Plane;

/// Width and height of a cell, in pixels.
pub(super) const CELL: usize = 8;

/// Brightness and two colours: Y from 0 to 255, Cb and Cr from -128 to 127 (ITU-R BT.601).
pub(super) type Mean = [i16; 3];

/// The cells of a picture, row by row.
#[derive(Default)]
pub(super) struct Cells {
    pub(super) across: usize,
    pub(super) down: usize,
    pub(super) means: Vec<Mean>,
    /// Sums of the bytes of one row of cells.
    sums: Vec<u32>,
}

impl Cells {
    /// Computes the cells of a picture.
    pub(super) fn update(&mut self, picture: &Picture) {
        let geometry = picture.geometry;
        self.across = (geometry.width() as usize).div_ceil(CELL);
        self.down = (geometry.height() as usize).div_ceil(CELL);
        self.means.clear();
        self.means.resize(self.across * self.down, [0; 3]);
        let (pixels, first) = (&picture.pixels, geometry.plane(0));
        let luma_cell = (CELL, CELL);
        match geometry.pixels().subsampling() {
            Some((across, down)) => {
                let chroma_cell = (CELL / across as usize, CELL / down as usize);
                self.sum::<1>(&first, pixels, luma_cell, |mean, [y]| mean[0] = full_range(y - 16, 219));
                self.sum::<1>(&geometry.plane(1), pixels, chroma_cell, |mean, [cb]| {
                    mean[1] = full_range(cb - 128, 224)
                });
                self.sum::<1>(&geometry.plane(2), pixels, chroma_cell, |mean, [cr]| {
                    mean[2] = full_range(cr - 128, 224)
                });
            }
            None => {
                let offsets = channels(geometry.pixels());
                match geometry.pixels().pixel_bytes() {
                    4 => self.sum::<4>(&first, pixels, luma_cell, |mean, at| {
                        *mean = ycc(offsets.map(|i| at[i] as u8))
                    }),
                    3 => self.sum::<3>(&first, pixels, luma_cell, |mean, at| {
                        *mean = ycc(offsets.map(|i| at[i] as u8))
                    }),
                    _ => self.sum::<1>(&first, pixels, luma_cell, |mean, [y]| mean[0] = y),
                }
            }
        }
    }

    /// Computes the mean of each byte of a plane's pixels, cell by cell, and passes it to `set`.
    fn sum<const BYTES: usize>(
        &mut self,
        plane: &Plane,
        pixels: &[u8],
        (cell_across, cell_down): (usize, usize),
        set: impl Fn(&mut Mean, [i16; BYTES]),
    ) {
        let width = plane.row_bytes / BYTES;
        let mut rows = plane.rows(pixels).peekable();
        for means in self.means.chunks_exact_mut(self.across) {
            self.sums.clear();
            self.sums.resize(means.len() * BYTES, 0);
            let (sums, _) = self.sums.as_chunks_mut::<BYTES>();
            let mut down = 0;
            while down < cell_down && rows.peek().is_some() {
                let (row, _) = rows.next().unwrap_or_default().as_chunks::<BYTES>();
                for (sum, cell) in sums.iter_mut().zip(row.chunks(cell_across)) {
                    for pixel in cell {
                        sum.iter_mut().zip(pixel).for_each(|(sum, byte)| *sum += u32::from(*byte));
                    }
                }
                down += 1;
            }
            for (number, (mean, sum)) in means.iter_mut().zip(sums).enumerate() {
                let across = cell_across.min(width.saturating_sub(number * cell_across));
                let count = (across * down).max(1) as u32;
                set(mean, sum.map(|sum| (sum / count) as i16));
            }
        }
    }
}

/// Y, Cb and Cr of red, green and blue.
pub(super) fn ycc([red, green, blue]: [u8; 3]) -> Mean {
    let (red, green, blue) = (i32::from(red), i32::from(green), i32::from(blue));
    let y = (77 * red + 150 * green + 29 * blue) >> 8;
    // Cb is (blue - Y) / 1.772, Cr is (red - Y) / 1.402.
    [y as i16, (((blue - y) * 144) >> 8) as i16, (((red - y) * 183) >> 8) as i16]
}

/// Scales a value of a range of `steps` to a range of 255.
fn full_range(value: i16, steps: i32) -> i16 {
    (i32::from(value) * 255 / steps) as i16
}
