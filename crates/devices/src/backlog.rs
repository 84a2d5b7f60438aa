//! Damage that exceeded the limit of one message, and the choice of the rectangles for the next message.
//!
//! Small new damage is sent first and alone: it is likely to be the result of a key press, and the viewer displays it
//! only when the whole message has arrived. The rest waits in the backlog. The backlog is divided into pieces that are
//! sent in turn; each is captured when its turn comes, so it shows the latest pixels.

use crate::damage::{Damage, TILE};
use wire::formats::video::Rectangle;

/// The most rectangles in one message.
pub(crate) const RECTANGLES_MAX: usize = 64;
/// Damage of up to this many portions is sent in one message.
const PORTIONS_AT_ONCE: u64 = 2;
/// The width of a piece, in pixels. Its height is one tile.
const PIECE: u32 = 16 * TILE;

/// The waiting damage of a screen.
#[derive(Debug)]
pub(crate) struct Backlog {
    damage: Damage,
    /// The piece whose turn is next, counted by rows from the top left.
    next_piece: u32,
    /// The last message had new damage and none of the backlog.
    last_was_new: bool,
}

impl Backlog {
    /// Returns the empty backlog of a screen of this size.
    pub(crate) fn new(width: u32, height: u32) -> Backlog {
        Backlog { damage: Damage::none(width, height), next_piece: 0, last_was_new: false }
    }

    /// Empties the backlog, for a screen of a new size.
    pub(crate) fn resize(&mut self, width: u32, height: u32) {
        (self.damage, self.next_piece) = (Damage::none(width, height), 0);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.damage.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.damage.clear();
    }

    /// Returns whether a message may have this many pixels, if a portion has `pixels_max`. Never while there is a backlog.
    pub(crate) fn fits(&self, pixels: u64, pixels_max: u64) -> bool {
        self.is_empty() && pixels_max.saturating_mul(PORTIONS_AT_ONCE) >= pixels
    }

    /// Chooses all of the new damage if it fits; else rectangles of about `pixels_max` pixels from new damage and the
    /// backlog. The rest joins the backlog.
    pub(crate) fn choose(&mut self, new: Vec<Rectangle>, pixels_max: u64) -> Vec<Rectangle> {
        match self.fits(new.iter().map(area).sum(), pixels_max) {
            true => new,
            false => self.choose_some(new, pixels_max),
        }
    }

    fn choose_some(&mut self, mut new: Vec<Rectangle>, pixels_max: u64) -> Vec<Rectangle> {
        let mut room = pixels_max;
        new.sort_by_key(area);
        // Half of the room is reserved for the backlog, however much small damage arrives.
        let mut room_for_new = if self.damage.is_empty() { room } else { room / 2 };
        let mut chosen = Vec::new();
        for part in new {
            match room_for_new.checked_sub(area(&part)) {
                Some(rest) => {
                    (room_for_new, room) = (rest, room - area(&part));
                    chosen.push(part);
                }
                None => self.damage.add(&part),
            }
        }
        // Messages with new damage alone alternate with messages that also have pieces of the backlog.
        self.last_was_new = !self.last_was_new && !chosen.is_empty();
        if !self.last_was_new {
            self.take_pieces(room, &mut chosen);
        }
        chosen
    }

    /// Moves the damage of the next pieces to `chosen`, until `room` pixels are used.
    fn take_pieces(&mut self, mut room: u64, chosen: &mut Vec<Rectangle>) {
        let (width, height) = self.damage.size();
        let (across, down) = (width.div_ceil(PIECE), height.div_ceil(TILE));
        for _ in 0..across * down {
            if room == 0 || chosen.len() >= RECTANGLES_MAX {
                break;
            }
            let (x, y) = (self.next_piece % across * PIECE, self.next_piece / across * TILE);
            let prev_len = chosen.len();
            self.damage.take(&Rectangle { x, y, width: PIECE, height: TILE }, chosen);
            room = room.saturating_sub(chosen[prev_len..].iter().map(area).sum());
            self.next_piece = (self.next_piece + 1) % (across * down);
        }
    }
}

/// Returns the number of pixels in a rectangle.
pub(crate) fn area(rectangle: &Rectangle) -> u64 {
    u64::from(rectangle.width) * u64::from(rectangle.height)
}
