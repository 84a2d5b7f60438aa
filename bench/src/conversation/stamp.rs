//! Numbers in pictures: blocks of black and white that survive a codec at any rate.

use crate::camera::WIDTH;

/// The side of a block, in pixels.
const SIDE: usize = 40;
/// The blocks of a number, lowest bit first. A second row of blocks has the inverse.
const BITS: usize = 8;
const BLACK: u8 = 16;
const WHITE: u8 = 235;

/// Draws a number below 256 into the luminance of a picture.
pub(super) fn draw(picture: &mut [u8], number: usize) {
    for row in 0..2 * SIDE {
        for bit in 0..BITS {
            let is_set = (number >> bit & 1 == 1) == (row < SIDE);
            let from = row * WIDTH + bit * SIDE;
            picture[from..from + SIDE].fill(if is_set { WHITE } else { BLACK });
        }
    }
}

/// Reads the number of a picture. `None` if the picture has none, such as a damaged one.
pub(super) fn read(picture: &[u8]) -> Option<usize> {
    // The middle of a block keeps its colour best.
    let mean = |row: usize, bit: usize| {
        let rows = row * SIDE + SIDE / 4..row * SIDE + SIDE * 3 / 4;
        let columns = bit * SIDE + SIDE / 4..bit * SIDE + SIDE * 3 / 4;
        let pixels = rows.flat_map(|row| columns.clone().map(move |column| row * WIDTH + column));
        pixels.map(|at| u32::from(picture[at])).sum::<u32>() / (SIDE * SIDE / 4) as u32
    };
    let mut number = 0;
    for bit in 0..BITS {
        let [upper, lower] = [mean(0, bit), mean(1, bit)].map(|mean| mean > u32::from(WHITE / 2));
        if upper == lower {
            return None;
        }
        number |= usize::from(upper) << bit;
    }
    Some(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::camera::PICTURE_BYTES;

    #[test]
    fn a_number_is_read_from_its_picture_and_not_from_another() {
        let mut picture = vec![90; PICTURE_BYTES];
        assert_eq!(read(&picture), None);
        for number in [0, 1, 170, 239, 255] {
            draw(&mut picture, number);
            assert_eq!(read(&picture), Some(number));
        }
        picture[..2 * SIDE * WIDTH].fill(WHITE);
        assert_eq!(read(&picture), None);
    }
}
