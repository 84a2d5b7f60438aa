//! A picture in cells: the mean brightness and colour of each square, which noise hardly moves.

use crate::picture::{Picture, channels};
use wire::formats::video::Plane;

/// Pixels of a cell, across and down.
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
    /// Looks at a picture.
    pub(super) fn look(&mut self, picture: &Picture) {
        let geometry = picture.geometry;
        self.across = (geometry.width() as usize).div_ceil(CELL);
        self.down = (geometry.height() as usize).div_ceil(CELL);
        self.means.clear();
        self.means.resize(self.across * self.down, [0; 3]);
        let (pixels, first) = (&picture.pixels, geometry.plane(0));
        let whole = (CELL, CELL);
        match geometry.pixels().subsampling() {
            Some((across, down)) => {
                let part = (CELL / across as usize, CELL / down as usize);
                self.sum::<1>(&first, pixels, whole, |mean, [y]| mean[0] = stretched(y - 16, 219));
                self.sum::<1>(&geometry.plane(1), pixels, part, |mean, [cb]| {
                    mean[1] = stretched(cb - 128, 224)
                });
                self.sum::<1>(&geometry.plane(2), pixels, part, |mean, [cr]| {
                    mean[2] = stretched(cr - 128, 224)
                });
            }
            None => {
                let places = channels(geometry.pixels());
                match geometry.pixels().pixel_bytes() {
                    4 => self.sum::<4>(&first, pixels, whole, |mean, at| {
                        *mean = normal(places.map(|i| at[i] as u8))
                    }),
                    3 => self.sum::<3>(&first, pixels, whole, |mean, at| {
                        *mean = normal(places.map(|i| at[i] as u8))
                    }),
                    _ => self.sum::<1>(&first, pixels, whole, |mean, [y]| mean[0] = y),
                }
            }
        }
    }

    /// Hands the mean of each of the `BYTES` bytes of a plane's pixels to `set`, cell by cell.
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
pub(super) fn normal([red, green, blue]: [u8; 3]) -> Mean {
    let (red, green, blue) = (i32::from(red), i32::from(green), i32::from(blue));
    let y = (77 * red + 150 * green + 29 * blue) >> 8;
    // Cb is (blue - Y) / 1.772, Cr is (red - Y) / 1.402.
    [y as i16, (((blue - y) * 144) >> 8) as i16, (((red - y) * 183) >> 8) as i16]
}

/// What is one of so many steps, in steps of 255.
fn stretched(value: i16, steps: i32) -> i16 {
    (i32::from(value) * 255 / steps) as i16
}
