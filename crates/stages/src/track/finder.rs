//! Finds things in cells: what differs from what was there before, or what has a colour, put together to boxes.

use super::cells::{CELL, Cells, Mean};
use wire::formats::video::{Geometry, Rectangle};

/// Bits behind the point of what is known of the background.
const FRACTION_BITS: u32 = 8;
/// What stands still becomes background by an eighth of the difference a picture, what moves by a 256th.
const LEARN_STILL_BITS: u32 = 3;
const LEARN_MOVING_BITS: u32 = 8;

/// What is looked for.
pub(super) enum Wanted {
    /// What moves.
    Motion,
    /// What has this colour.
    Colour(Mean),
}

pub(super) struct Finder {
    wanted: Wanted,
    threshold: i16,
    smallest_cells: usize,
    most: usize,
    /// Cells across, of all that is remembered.
    across: usize,
    background: Vec<[i32; 3]>,
    last: Vec<Mean>,
    marks: Vec<bool>,
    thing: Vec<usize>,
}

impl Finder {
    pub(super) fn new(wanted: Wanted, threshold: i16, smallest_pixels: usize, most: usize) -> Self {
        Finder {
            wanted,
            threshold,
            smallest_cells: smallest_pixels.div_ceil(CELL * CELL),
            most,
            across: 0,
            background: Vec::new(),
            last: Vec::new(),
            marks: Vec::new(),
            thing: Vec::new(),
        }
    }

    /// Boxes around the things of a picture, the largest first.
    pub(super) fn find(&mut self, cells: &Cells, picture: &Geometry) -> Vec<Rectangle> {
        self.mark(cells);
        let mut found: Vec<(usize, Rectangle)> = Vec::new();
        for start in 0..cells.means.len() {
            if std::mem::take(&mut self.marks[start]) {
                self.gather(start, cells);
                let counts = self.thing.len() >= self.smallest_cells && self.is_moving(cells);
                self.learn(cells, counts);
                if counts {
                    found.push((self.thing.len(), self.surrounding(cells, picture)));
                }
            }
        }
        if matches!(self.wanted, Wanted::Motion) {
            self.last.clone_from(&cells.means);
        }
        found.sort_by_key(|(size, _)| std::cmp::Reverse(*size));
        found.truncate(self.most);
        found.into_iter().map(|(_, rectangle)| rectangle).collect()
    }

    /// Marks the cells that may belong to a thing; the others are background.
    fn mark(&mut self, cells: &Cells) {
        self.marks.clear();
        match self.wanted {
            Wanted::Colour(colour) => {
                // Light and shadow change brightness more than colour.
                let has = |mean: &Mean| {
                    let [y, cb, cr] = differences(mean, &colour);
                    (y / 2).max(cb).max(cr) <= self.threshold
                };
                self.marks.extend(cells.means.iter().map(has));
            }
            Wanted::Motion => {
                if self.across != cells.across || self.last.len() != cells.means.len() {
                    self.across = cells.across;
                    self.background = cells.means.iter().map(|mean| mean.map(fixed)).collect();
                    self.last.clone_from(&cells.means);
                }
                for (mean, background) in cells.means.iter().zip(&mut self.background) {
                    let differs = largest(mean, &background.map(|known| (known >> FRACTION_BITS) as i16))
                        > self.threshold;
                    self.marks.push(differs);
                    if !differs {
                        learn(background, mean, LEARN_STILL_BITS);
                    }
                }
            }
        }
    }

    /// Gathers the cells that hang together with this one, and takes their marks away.
    fn gather(&mut self, start: usize, cells: &Cells) {
        self.thing.clear();
        self.thing.push(start);
        let mut next = 0;
        while let Some(&cell) = self.thing.get(next) {
            next += 1;
            let (x, y) = (cell % cells.across, cell / cells.across);
            for y in y.saturating_sub(1)..(y + 2).min(cells.down) {
                for x in x.saturating_sub(1)..(x + 2).min(cells.across) {
                    if std::mem::take(&mut self.marks[y * cells.across + x]) {
                        self.thing.push(y * cells.across + x);
                    }
                }
            }
        }
    }

    /// Whether any of it changed since the last picture: what does not, has come to stay, or left a hole.
    fn is_moving(&self, cells: &Cells) -> bool {
        let changed = |cell: &usize| largest(&cells.means[*cell], &self.last[*cell]) > self.threshold / 4;
        matches!(self.wanted, Wanted::Colour(_)) || self.thing.iter().any(changed)
    }

    fn learn(&mut self, cells: &Cells, moves: bool) {
        if matches!(self.wanted, Wanted::Motion) {
            let bits = if moves { LEARN_MOVING_BITS } else { LEARN_STILL_BITS };
            for cell in &self.thing {
                learn(&mut self.background[*cell], &cells.means[*cell], bits);
            }
        }
    }

    /// The box around the gathered cells, in pixels of the picture.
    fn surrounding(&self, cells: &Cells, picture: &Geometry) -> Rectangle {
        let span = |place: fn(usize, usize) -> usize, side: u32| {
            let places = self.thing.iter().map(|cell| place(*cell, cells.across));
            let (first, last) = places.fold((usize::MAX, 0), |(low, high), at| (low.min(at), high.max(at)));
            let (start, end) = ((first * CELL) as u32, (((last + 1) * CELL) as u32).min(side));
            (start, end - start)
        };
        let (x, width) = span(|cell, across| cell % across, picture.width());
        let (y, height) = span(|cell, across| cell / across, picture.height());
        Rectangle { x, y, width, height }
    }
}

fn differences(a: &Mean, b: &Mean) -> Mean {
    [0, 1, 2].map(|i| (a[i] - b[i]).abs())
}

fn largest(a: &Mean, b: &Mean) -> i16 {
    let [y, cb, cr] = differences(a, b);
    y.max(cb).max(cr)
}

fn fixed(value: i16) -> i32 {
    i32::from(value) << FRACTION_BITS
}

fn learn(background: &mut [i32; 3], mean: &Mean, bits: u32) {
    for (known, seen) in background.iter_mut().zip(mean) {
        *known += (fixed(*seen) - *known) >> bits;
    }
}
