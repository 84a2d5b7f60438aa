//! The parts of Tight and ZRLE that the encoder and the decoder share.

use wire::formats::video::Rectangle;

/// Data of Tight that is shorter than this is not compressed.
pub(super) const TIGHT_DEFLATED_MIN: usize = 12;

/// The side of a ZRLE tile.
pub(super) const ZRLE_TILE: u32 = 64;

/// Returns the ZRLE tiles of a rectangle, row by row.
pub(super) fn zrle_tiles(rectangle: &Rectangle) -> impl Iterator<Item = Rectangle> + use<> {
    let Rectangle { x, y, width, height } = *rectangle;
    (0..height).step_by(ZRLE_TILE as usize).flat_map(move |top| {
        (0..width).step_by(ZRLE_TILE as usize).map(move |left| {
            let (width, height) = (ZRLE_TILE.min(width - left), ZRLE_TILE.min(height - top));
            Rectangle { x: x + left, y: y + top, width, height }
        })
    })
}

/// Returns the bits of a palette index in a packed ZRLE tile with a palette of this many colours.
pub(super) fn zrle_index_bits(colours: usize) -> usize {
    match colours {
        0..=2 => 1,
        3..=4 => 2,
        _ => 4,
    }
}

/// Predicts a colour value from its neighbours, as the gradient filter of Tight does.
pub(super) fn predict(left: u8, above: u8, above_left: u8) -> u8 {
    (i16::from(left) + i16::from(above) - i16::from(above_left)).clamp(0, 255) as u8
}
