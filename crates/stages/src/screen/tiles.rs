//! The tiles of a screen: the source half's knowledge of which pixels the sink half shows, and of their motion.
//!
//! ```text
//! flags           the sink half shows                   event                            then
//! none            the pixels of the canvas              a change                         DIRTY
//! DIRTY           older pixels                          sent as they are                 none
//!                                                       sent in a picture of the film    LOSSY
//! LOSSY           pixels that resemble them             a change                         LOSSY, DIRTY
//! LOSSY, DIRTY    older pixels that resembled theirs    as DIRTY                         as DIRTY
//! any             perhaps nothing: a message was lost                                    DIRTY
//! ```
//!
//! **Heat** separates films from text. Each change makes a tile warmer by one degree, and each [`COOLING_MS`] between two changes
//! colder by one. A tile of a film, or of scrolling text, is hot after a few pictures and stays so for a moment of rest; a tile in
//! which somebody types is not, because after a few letters the next tile follows.

use super::TILE;
use wire::formats::video::{RECTANGLES_MAX, Rectangle};

/// The sink half shows other pixels.
const DIRTY: u8 = 1;
/// The sink half shows a picture of the film there.
const LOSSY: u8 = 2;
/// A picture of the film that is on its way covers the tile.
const IN_PICTURE: u8 = 4;

/// Degrees at which a tile is hot, and the hottest.
const HOT: u8 = 5;
const HEAT_MAX: u8 = 12;
const COOLING_MS: u32 = 200;
/// A hot tile without a change for this time stands still.
const STILL_MS: u32 = 90;

#[derive(Debug, Clone, Copy, Default)]
struct Tile {
    changed_ms: u32,
    heat: u8,
    flags: u8,
}

impl Tile {
    fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    fn is_moving(self, now_ms: u32) -> bool {
        self.heat >= HOT && now_ms.wrapping_sub(self.changed_ms) < STILL_MS
    }
}

/// The tiles that a message is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Choice {
    /// New damage that is no motion: text.
    Text,
    /// Everything that the sink half does not show exactly.
    Rest,
}

/// The tiles of a screen.
pub(super) struct Tiles {
    pub(super) across: u32,
    pub(super) down: u32,
    width: u32,
    height: u32,
    tiles: Vec<Tile>,
    /// Tiles with any of [`DIRTY`] and [`LOSSY`].
    inexact: usize,
    /// The tile with which the next choice begins.
    cursor: usize,
    /// Hot tiles that changed again before the link had room for them, and changed hot tiles, since they were last read.
    pub(super) overrun: usize,
    pub(super) hot_changes: usize,
}

impl Tiles {
    /// Tiles of a screen of this size, of which the sink half shows none.
    pub(super) fn new(width: u32, height: u32) -> Tiles {
        let (across, down) = (width.div_ceil(TILE), height.div_ceil(TILE));
        let count = across as usize * down as usize;
        let tiles = vec![Tile { flags: DIRTY, ..Tile::default() }; count];
        let (cursor, overrun, hot_changes) = (0, 0, 0);
        Tiles { across, down, width, height, tiles, inexact: count, cursor, overrun, hot_changes }
    }

    /// The number of the tile in a column and a row.
    pub(super) fn number(&self, column: u32, row: u32) -> usize {
        row as usize * self.across as usize + column as usize
    }

    /// The tiles that a part of the screen touches.
    pub(super) fn covered(&self, part: &Rectangle) -> impl Iterator<Item = usize> + use<> {
        let (left, right) = (part.x / TILE, (part.x + part.width).div_ceil(TILE));
        let (top, bottom) = (part.y / TILE, (part.y + part.height).div_ceil(TILE));
        let across = self.across as usize;
        (top..bottom)
            .flat_map(move |row| (left..right).map(move |column| row as usize * across + column as usize))
    }

    /// Number of tiles.
    pub(super) fn count(&self) -> usize {
        self.tiles.len()
    }

    /// Number of tiles that the sink half does not show exactly.
    pub(super) fn inexact(&self) -> usize {
        self.inexact
    }

    fn set(&mut self, number: usize, flags: u8) {
        let Some(tile) = self.tiles.get_mut(number) else { return };
        let is_exact = |flags: u8| flags & (DIRTY | LOSSY) == 0;
        match (is_exact(tile.flags), is_exact(flags)) {
            (true, false) => self.inexact += 1,
            (false, true) => self.inexact -= 1,
            _ => {}
        }
        tile.flags = flags;
    }

    fn flags(&self, number: usize) -> u8 {
        self.tiles.get(number).map_or(0, |tile| tile.flags)
    }

    /// The pixels of a tile changed. Returns true the first time at this moment.
    pub(super) fn touch(&mut self, number: usize, now_ms: u32) -> bool {
        let Some(tile) = self.tiles.get_mut(number) else { return false };
        let gap = now_ms.wrapping_sub(tile.changed_ms);
        let was_dirty = tile.has(DIRTY);
        if gap == 0 && was_dirty && tile.heat > 0 {
            return false;
        }
        let cooled = u8::try_from(gap / COOLING_MS).unwrap_or(u8::MAX);
        tile.heat = (tile.heat.saturating_sub(cooled) + 1).min(HEAT_MAX);
        tile.changed_ms = now_ms;
        if tile.heat >= HOT {
            self.hot_changes += 1;
            self.overrun += usize::from(was_dirty);
        }
        self.set(number, self.flags(number) | DIRTY);
        true
    }

    /// The sink half does not show the pixels of a tile.
    pub(super) fn mark(&mut self, number: usize) {
        self.set(number, self.flags(number) | DIRTY);
    }

    /// As [`Tiles::mark`] for all tiles.
    pub(super) fn mark_all(&mut self) {
        (0..self.tiles.len()).for_each(|number| self.mark(number));
    }

    /// A message with the pixels of the tile as they are was sent.
    pub(super) fn sent(&mut self, number: usize) {
        self.set(number, self.flags(number) & IN_PICTURE);
    }

    /// As [`Tiles::sent`] for all tiles.
    pub(super) fn sent_all(&mut self) {
        (0..self.tiles.len()).for_each(|number| self.sent(number));
    }

    /// A picture of the film covers the tile.
    pub(super) fn filmed(&mut self, number: usize) {
        self.set(number, LOSSY | IN_PICTURE);
    }

    /// The last picture of the film was sent completely, or is given up.
    pub(super) fn end_picture(&mut self) {
        self.tiles.iter_mut().for_each(|tile| tile.flags &= !IN_PICTURE);
    }

    /// Returns true if somebody may be typing in the tile.
    pub(super) fn is_text(&self, number: usize) -> bool {
        self.tiles
            .get(number)
            .is_some_and(|tile| tile.heat < HOT && tile.flags & (DIRTY | IN_PICTURE) == DIRTY)
    }

    /// Chooses up to `most` tiles to be sent as they are; tiles in motion are left to the film if there is one. `recent` come
    /// first. Sorted.
    pub(super) fn choose(
        &mut self,
        choice: Choice,
        recent: &[usize],
        most: usize,
        now_ms: u32,
        has_film: bool,
    ) -> Vec<usize> {
        if self.inexact == 0 {
            return Vec::new();
        }
        let mut chosen: Vec<usize> = match choice {
            Choice::Text => {
                recent.iter().copied().filter(|number| self.is_text(*number)).take(most).collect()
            }
            Choice::Rest => Vec::new(),
        };
        if chosen.is_empty() {
            let count = self.tiles.len();
            let from = self.cursor % count;
            for number in (from..count).chain(0..from) {
                let tile = self.tiles[number];
                let is_chosen = match choice {
                    Choice::Text => self.is_text(number),
                    Choice::Rest => {
                        tile.has(DIRTY | LOSSY)
                            && !tile.has(IN_PICTURE)
                            && !(has_film && tile.is_moving(now_ms))
                    }
                };
                if is_chosen {
                    chosen.push(number);
                    self.cursor = number + 1;
                    if chosen.len() >= most {
                        break;
                    }
                }
            }
        }
        chosen.sort_unstable();
        chosen.dedup();
        chosen
    }

    /// Returns true for a tile whose change the next picture of the film would show.
    pub(super) fn is_filmable(&self, number: usize, now_ms: u32) -> bool {
        self.tiles.get(number).is_some_and(|tile| tile.is_moving(now_ms) && tile.has(DIRTY))
    }

    /// The smallest rectangle around the tiles in motion, in tiles; `None` without any.
    pub(super) fn moving(&self, now_ms: u32) -> Option<Rectangle> {
        let mut bounds: Option<[u32; 4]> = None;
        for row in 0..self.down {
            let first = self.number(0, row);
            let tiles = &self.tiles[first..first + self.across as usize];
            let is_moving = |tile: &Tile| tile.is_moving(now_ms);
            let Some(left) = tiles.iter().position(is_moving) else { continue };
            let right = tiles.iter().rposition(is_moving).unwrap_or(left);
            let (left, right) = (left as u32, right as u32 + 1);
            bounds = Some(match bounds {
                None => [left, row, right, row + 1],
                Some([x, y, end, _]) => [x.min(left), y, end.max(right), row + 1],
            });
        }
        bounds.map(|[x, y, end, below]| Rectangle { x, y, width: end - x, height: below - y })
    }

    /// The pixels of a rectangle of tiles, inside the screen.
    pub(super) fn pixels(&self, tiles: &Rectangle) -> Rectangle {
        let (x, y) = (tiles.x * TILE, tiles.y * TILE);
        let (right, bottom) = ((tiles.x + tiles.width) * TILE, (tiles.y + tiles.height) * TILE);
        Rectangle { x, y, width: right.min(self.width) - x, height: bottom.min(self.height) - y }
    }

    /// Joins sorted tiles to rectangles of pixels. Tiles beyond the most rectangles of a message are left out: returns how
    /// many tiles are in.
    pub(super) fn rectangles(&self, numbers: &[usize]) -> (Vec<Rectangle>, usize) {
        let across = self.across as usize;
        let mut joined: Vec<Rectangle> = Vec::new();
        let mut taken = 0;
        for run in numbers.chunk_by(|a, b| a + 1 == *b && b % across != 0) {
            let (x, y) = ((run[0] % across) as u32, (run[0] / across) as u32);
            let width = run.len() as u32;
            let above =
                |part: &&mut Rectangle| part.x == x && part.width == width && part.y + part.height == y;
            if let Some(above) = joined.iter_mut().rev().take(across).find(above) {
                above.height += 1;
            } else if joined.len() < RECTANGLES_MAX {
                joined.push(Rectangle { x, y, width, height: 1 });
            } else {
                break;
            }
            taken += run.len();
        }
        (joined.iter().map(|part| self.pixels(part)).collect(), taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_become_few_rectangles() {
        let tiles = Tiles::new(100, 40);
        assert_eq!((tiles.across, tiles.down, tiles.inexact()), (7, 3, 21));
        let (parts, taken) = tiles.rectangles(&[1, 2, 6, 7, 8, 9, 13, 15, 16, 20]);
        assert_eq!(taken, 10);
        let part = |x, y, width, height| Rectangle { x, y, width, height };
        assert_eq!(
            parts,
            [part(16, 0, 32, 16), part(96, 0, 4, 40), part(0, 16, 48, 16), part(16, 32, 32, 8)]
        );
    }

    #[test]
    fn a_film_is_hot_and_typing_is_not() {
        let mut tiles = Tiles::new(64, 16);
        tiles.sent_all();
        for picture in 0..8 {
            tiles.touch(0, 1000 + picture * 42);
        }
        for letter in 0..4 {
            tiles.touch(1, 1000 + letter * 60);
        }
        for blink in 0..20 {
            tiles.touch(2, 1000 + blink * 500);
        }
        assert!(tiles.tiles[0].is_moving(1300) && !tiles.tiles[0].is_moving(1500));
        assert!(!tiles.tiles[1].is_moving(1190) && !tiles.tiles[2].is_moving(10_501));
        assert_eq!(tiles.moving(1300), Some(Rectangle { x: 0, y: 0, width: 1, height: 1 }));
        assert_eq!(tiles.choose(Choice::Text, &[], 9, 1300, true), [1, 2]);
        assert_eq!(tiles.choose(Choice::Rest, &[], 9, 1500, true), [0, 1, 2]);
    }

    #[test]
    fn a_picture_on_its_way_keeps_its_tiles() {
        let mut tiles = Tiles::new(64, 16);
        tiles.sent_all();
        tiles.touch(3, 10);
        tiles.filmed(3);
        assert_eq!(tiles.choose(Choice::Rest, &[], 9, 900, true), []);
        tiles.end_picture();
        assert_eq!(tiles.choose(Choice::Rest, &[], 9, 900, true), [3]);
        tiles.sent(3);
        assert_eq!(tiles.inexact(), 0);
    }
}
