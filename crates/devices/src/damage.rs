//! The damaged area of a picture: one bit for each tile that changed since it was last sent.
//!
//! The bitmap has a fixed size, so the memory does not grow with the number of changes. A slow viewer receives the
//! latest pixels of each changed tile once.

use wire::formats::video::Rectangle;

/// The side of a tile, in pixels.
pub(crate) const TILE: u32 = 16;

/// The most rectangles that one row of tiles is split into. 1024 rows of so many rectangles still fit into one update.
const RUNS_MAX: usize = 32;

/// The damaged tiles of a picture.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Damage {
    width: u32,
    height: u32,
    /// Words of `bits` in a row of tiles.
    words: usize,
    bits: Vec<u64>,
}

/// Neighbouring damaged tiles: columns `from..to`, from row `top` downwards.
#[derive(Debug, Clone, Copy)]
struct Run {
    from: u32,
    to: u32,
    top: u32,
}

impl Damage {
    /// Returns an empty damage for a picture of this size.
    pub(crate) fn none(width: u32, height: u32) -> Damage {
        let words = width.div_ceil(TILE).div_ceil(u64::BITS) as usize;
        Damage { width, height, words, bits: vec![0; words * height.div_ceil(TILE) as usize] }
    }

    /// Returns the width and height of the picture, in pixels.
    pub(crate) fn size(&self) -> (u32, u32) {
        (self.width, self.height)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bits.iter().all(|word| *word == 0)
    }

    pub(crate) fn clear(&mut self) {
        self.bits.fill(0);
    }

    /// Returns whether this tile is damaged.
    pub(crate) fn has(&self, column: u32, row: u32) -> bool {
        let word = row as usize * self.words + (column / u64::BITS) as usize;
        self.bits[word] >> (column % u64::BITS) & 1 == 1
    }

    /// Marks this tile as damaged.
    pub(crate) fn add_tile(&mut self, column: u32, row: u32) {
        let word = row as usize * self.words + (column / u64::BITS) as usize;
        self.bits[word] |= 1 << (column % u64::BITS);
    }

    /// Marks every tile that overlaps `rectangle` as damaged. Parts outside the picture are ignored.
    pub(crate) fn add(&mut self, rectangle: &Rectangle) {
        let Some((columns, rows)) = self.tiles(rectangle) else { return };
        for row in rows {
            columns.clone().for_each(|column| self.add_tile(column, row));
        }
    }

    /// Adds the damage of `other`, a picture of the same size.
    pub(crate) fn merge(&mut self, other: &Damage) {
        for (into, word) in self.bits.iter_mut().zip(&other.bits) {
            *into |= word;
        }
    }

    /// Returns the columns and rows of the tiles that overlap `rectangle`.
    fn tiles(&self, rectangle: &Rectangle) -> Option<(std::ops::Range<u32>, std::ops::Range<u32>)> {
        let whole = Rectangle { x: 0, y: 0, width: self.width, height: self.height };
        let Rectangle { x, y, width, height } = rectangle.intersection(&whole)?;
        Some((x / TILE..(x + width).div_ceil(TILE), y / TILE..(y + height).div_ceil(TILE)))
    }

    /// Moves the damage of the tiles in `within` to `out`, as rectangles that do not overlap.
    ///
    /// The runs of a row are compared with the open runs of the rows above. A run with the same columns extends the
    /// open one downwards; an open run without such a successor is complete.
    pub(crate) fn take(&mut self, within: &Rectangle, out: &mut Vec<Rectangle>) {
        let Some((columns, rows)) = self.tiles(within) else { return };
        let (mut open, mut runs) = (Vec::new(), Vec::new());
        let bottom = rows.end;
        for row in rows {
            self.take_row(&columns, row, &mut runs);
            open.retain(|run: &Run| {
                let same = runs.iter().position(|new: &Run| (new.from, new.to) == (run.from, run.to));
                match same {
                    Some(at) => {
                        runs.remove(at);
                    }
                    None => out.push(self.rectangle(run, row)),
                }
                same.is_some()
            });
            open.append(&mut runs);
        }
        out.extend(open.iter().map(|run| self.rectangle(run, bottom)));
    }

    /// Moves the damage of one row to `runs`. If there are more than `RUNS_MAX` runs, one run covers them all.
    fn take_row(&mut self, columns: &std::ops::Range<u32>, row: u32, runs: &mut Vec<Run>) {
        let mut column = columns.start;
        while column < columns.end {
            let word = row as usize * self.words + (column / u64::BITS) as usize;
            if self.bits[word] >> (column % u64::BITS) == 0 {
                column = (column / u64::BITS + 1) * u64::BITS;
                continue;
            }
            if self.has(column, row) {
                self.bits[word] &= !(1 << (column % u64::BITS));
                let is_full = runs.len() > RUNS_MAX;
                match runs.last_mut() {
                    Some(run) if run.to == column || is_full => run.to = column + 1,
                    _ => runs.push(Run { from: column, to: column + 1, top: row }),
                }
            }
            column += 1;
        }
        if runs.len() > RUNS_MAX {
            let to = runs.last().map_or(0, |run| run.to);
            runs.truncate(1);
            runs[0].to = to;
        }
    }

    fn rectangle(&self, run: &Run, bottom: u32) -> Rectangle {
        let (x, y) = (run.from * TILE, run.top * TILE);
        let (right, bottom) = ((run.to * TILE).min(self.width), (bottom * TILE).min(self.height));
        Rectangle { x, y, width: right - x, height: bottom - y }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn taken_rectangles_cover_the_damage_without_overlap(
            (width, height) in (1u32..2200, 1u32..400),
            added in prop::collection::vec((0u32..2200, 0u32..400, 1u32..300, 1u32..60), 0..40),
        ) {
            let whole = Rectangle { x: 0, y: 0, width, height };
            let mut damage = Damage::none(width, height);
            let mut other = Damage::none(width, height);
            let mut inside = Vec::new();
            for (number, (x, y, w, h)) in added.into_iter().enumerate() {
                let rectangle = Rectangle { x, y, width: w, height: h };
                inside.extend(rectangle.intersection(&whole));
                if number % 2 == 0 { damage.add(&rectangle) } else { other.add(&rectangle) }
            }
            damage.merge(&other);
            prop_assert_eq!(damage.is_empty(), inside.is_empty());
            let mut taken = Vec::new();
            damage.take(&whole, &mut taken);
            prop_assert!(damage.is_empty());
            for (number, a) in taken.iter().enumerate() {
                prop_assert_eq!(a.intersection(&whole), Some(*a), "inside the picture");
                let clash = taken[..number].iter().find(|b| a.intersection(b).is_some());
                prop_assert_eq!(clash, None, "no pixel twice");
            }
            for Rectangle { x, y, width, height } in inside {
                for (x, y) in [(x, y), (x + width - 1, y), (x, y + height - 1), (x + width - 1, y + height - 1)] {
                    let pixel = Rectangle { x, y, width: 1, height: 1 };
                    prop_assert!(taken.iter().any(|taken| taken.intersection(&pixel).is_some()));
                }
            }
        }
    }

    #[test]
    fn a_checkerboard_becomes_few_rectangles() {
        let mut damage = Damage::none(16384, 1600);
        for row in 0..100 {
            (row % 2..1024).step_by(2).for_each(|column| damage.add_tile(column, row));
        }
        let mut taken = Vec::new();
        damage.take(&Rectangle { x: 0, y: 0, width: 16384, height: 1600 }, &mut taken);
        assert!(taken.len() <= 100, "{} rectangles", taken.len());
        assert!(damage.is_empty());
    }

    #[test]
    fn damage_outside_the_requested_area_stays() {
        let mut damage = Damage::none(100, 100);
        damage.add(&Rectangle { x: 0, y: 0, width: 100, height: 100 });
        let mut taken = Vec::new();
        damage.take(&Rectangle { x: 0, y: 0, width: 100, height: 16 }, &mut taken);
        assert_eq!(taken, [Rectangle { x: 0, y: 0, width: 100, height: 16 }]);
        damage.take(&Rectangle { x: 0, y: 0, width: 100, height: 100 }, &mut taken);
        assert_eq!(taken[1], Rectangle { x: 0, y: 16, width: 100, height: 84 });
    }
}
