//! Finds objects in cells: marks cells that differ from the background, or have the colour, and
//! joins adjacent marked cells.

use super::cells::{CELL, Cells, Mean};
use wire::formats::video::{Geometry, Rectangle};

/// Fraction bits of the background.
const FRACTION_BITS: u32 = 8;
/// Share of the difference by which the background follows a still cell (1/8) and a moving one
/// (1/256), per picture.
const LEARN_STILL_BITS: u32 = 3;
const LEARN_MOVING_BITS: u32 = 8;

/// The objects to find.
pub(super) enum Target {
    /// Objects that move.
    Motion,
    /// Objects of this colour.
    Colour(Mean),
}

pub(super) struct Finder {
    target: Target,
    threshold: i16,
    smallest_cells: usize,
    boxes_max: usize,
    /// Width of the stored vectors, in cells.
    across: usize,
    background: Vec<[i32; 3]>,
    previous: Vec<Mean>,
    marked: Vec<bool>,
    object: Vec<usize>,
}

impl Finder {
    pub(super) fn new(target: Target, threshold: i16, smallest_pixels: usize, boxes_max: usize) -> Self {
        Finder {
            target,
            threshold,
            smallest_cells: smallest_pixels.div_ceil(CELL * CELL),
            boxes_max,
            across: 0,
            background: Vec::new(),
            previous: Vec::new(),
            marked: Vec::new(),
            object: Vec::new(),
        }
    }

    /// Boxes around the objects of a picture, the largest first.
    pub(super) fn find(&mut self, cells: &Cells, picture: &Geometry) -> Vec<Rectangle> {
        self.mark(cells);
        let mut found: Vec<(usize, Rectangle)> = Vec::new();
        for start in 0..cells.means.len() {
            if std::mem::take(&mut self.marked[start]) {
                self.gather(start, cells);
                let is_object = self.object.len() >= self.smallest_cells && self.is_moving(cells);
                self.learn(cells, is_object);
                if is_object {
                    found.push((self.object.len(), self.bounding_box(cells, picture)));
                }
            }
        }
        if matches!(self.target, Target::Motion) {
            self.previous.clone_from(&cells.means);
        }
        found.sort_by_key(|(size, _)| std::cmp::Reverse(*size));
        found.truncate(self.boxes_max);
        found.into_iter().map(|(_, rectangle)| rectangle).collect()
    }

    /// Marks the cells that may belong to an object; the others are background.
    fn mark(&mut self, cells: &Cells) {
        self.marked.clear();
        match self.target {
            Target::Colour(colour) => {
                // Light and shadow change brightness more than colour.
                let has = |mean: &Mean| {
                    let [y, cb, cr] = differences(mean, &colour);
                    (y / 2).max(cb).max(cr) <= self.threshold
                };
                self.marked.extend(cells.means.iter().map(has));
            }
            Target::Motion => {
                if self.across != cells.across || self.previous.len() != cells.means.len() {
                    self.across = cells.across;
                    self.background = cells.means.iter().map(|mean| mean.map(fixed)).collect();
                    self.previous.clone_from(&cells.means);
                }
                for (mean, background) in cells.means.iter().zip(&mut self.background) {
                    let differs = largest_difference(
                        mean,
                        &background.map(|background| (background >> FRACTION_BITS) as i16),
                    ) > self.threshold;
                    self.marked.push(differs);
                    if !differs {
                        learn(background, mean, LEARN_STILL_BITS);
                    }
                }
            }
        }
    }

    /// Gathers the marked cells connected to this one, and unmarks them.
    fn gather(&mut self, start: usize, cells: &Cells) {
        self.object.clear();
        self.object.push(start);
        let mut next = 0;
        while let Some(&cell) = self.object.get(next) {
            next += 1;
            let (x, y) = (cell % cells.across, cell / cells.across);
            for y in y.saturating_sub(1)..(y + 2).min(cells.down) {
                for x in x.saturating_sub(1)..(x + 2).min(cells.across) {
                    if std::mem::take(&mut self.marked[y * cells.across + x]) {
                        self.object.push(y * cells.across + x);
                    }
                }
            }
        }
    }

    /// True if any cell of the object changed since the previous picture. If not, it has stopped,
    /// or is a hole that an object of the first picture left.
    fn is_moving(&self, cells: &Cells) -> bool {
        let changed = |cell: &usize| {
            largest_difference(&cells.means[*cell], &self.previous[*cell]) > self.threshold / 4
        };
        matches!(self.target, Target::Colour(_)) || self.object.iter().any(changed)
    }

    fn learn(&mut self, cells: &Cells, is_moving: bool) {
        if matches!(self.target, Target::Motion) {
            let bits = if is_moving { LEARN_MOVING_BITS } else { LEARN_STILL_BITS };
            for cell in &self.object {
                learn(&mut self.background[*cell], &cells.means[*cell], bits);
            }
        }
    }

    /// Bounding box of the gathered cells, in pixels of the picture.
    fn bounding_box(&self, cells: &Cells, picture: &Geometry) -> Rectangle {
        let span = |coordinate: fn(usize, usize) -> usize, side: u32| {
            let coordinates = self.object.iter().map(|cell| coordinate(*cell, cells.across));
            let (first, last) =
                coordinates.fold((usize::MAX, 0), |(low, high), at| (low.min(at), high.max(at)));
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

fn largest_difference(a: &Mean, b: &Mean) -> i16 {
    let [y, cb, cr] = differences(a, b);
    y.max(cb).max(cr)
}

fn fixed(value: i16) -> i32 {
    i32::from(value) << FRACTION_BITS
}

fn learn(background: &mut [i32; 3], mean: &Mean, bits: u32) {
    for (background, current) in background.iter_mut().zip(mean) {
        *background += (fixed(*current) - *background) >> bits;
    }
}
