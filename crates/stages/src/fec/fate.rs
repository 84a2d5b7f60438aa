//! What became of groups: what the sink half reports, and what the source half remembers of it.

use super::header::SLOW;
use std::collections::BTreeMap;

/// Different fates that are remembered.
const FATES_MAX: usize = 512;
/// Of a fate that weighs less nothing is remembered.
const WEIGHT_MIN: f64 = 0.01;

/// What became of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Fate {
    /// How many messages it had.
    pub(super) size: u8,
    /// How many of them were lost.
    pub(super) lost: u8,
    /// How many parity messages it had.
    pub(super) parity: u8,
    /// How many of them were lost.
    pub(super) parity_lost: u8,
    /// With how few parity messages all would have come, if with those it had.
    pub(super) enough: Option<u8>,
    /// Whether it began while messages took longer than usual.
    pub(super) is_slow: bool,
}

impl Fate {
    /// Bytes of a report's entry: the fate, and of how many groups it was.
    pub(super) const BYTES: usize = 7;

    pub(super) fn to_bytes(self, groups: u16) -> [u8; Self::BYTES] {
        let [low, high] = groups.to_le_bytes();
        let parity = self.parity | if self.is_slow { SLOW } else { 0 };
        [self.size, self.lost, parity, self.parity_lost, self.enough.unwrap_or(u8::MAX), low, high]
    }

    pub(super) fn from_bytes(bytes: [u8; Self::BYTES], data_max: usize) -> Option<(Fate, f64)> {
        let [size, lost, parity, parity_lost, enough, low, high] = bytes;
        let (parity, is_slow) = (parity & !SLOW, parity & SLOW != 0);
        let enough = (enough != u8::MAX).then_some(enough);
        let fits = usize::from(size) <= data_max
            && size > 0
            && lost <= size
            && parity_lost <= parity
            && enough.is_none_or(|enough| enough <= parity);
        let fate = Fate { size, lost, parity, parity_lost, enough, is_slow };
        fits.then(|| (fate, u16::from_le_bytes([low, high]).into()))
    }

    /// Probability that a message is lost that would have been in its group.
    fn loss(&self, overall: f64) -> f64 {
        let (lost, all) = (self.lost + self.parity_lost, self.size + self.parity);
        (f64::from(lost) + 2.0 * overall) / (f64::from(all) + 2.0)
    }

    /// Probability that it would not have come whole with `parity` parity messages.
    pub(super) fn fails(&self, parity: u8, overall: f64) -> f64 {
        match self.enough {
            Some(enough) => f64::from(u8::from(parity < enough)),
            None if parity <= self.parity => 1.0,
            None => {
                let wanted = (self.lost + self.parity_lost).saturating_sub(self.parity);
                fewer_than(wanted.into(), (parity - self.parity).into(), 1.0 - self.loss(overall).min(1.0))
            }
        }
    }
}

/// Fates of the last groups, and what each weighs.
#[derive(Debug, Clone, Default)]
pub(super) struct Fates {
    weights: BTreeMap<Fate, f64>,
}

impl Fates {
    /// What is remembered weighs so much less.
    pub(super) fn fade(&mut self, by: f64) {
        self.weights.retain(|_, weight| {
            *weight *= by;
            *weight >= WEIGHT_MIN
        });
    }

    /// So many more groups met with this fate.
    pub(super) fn add(&mut self, fate: Fate, groups: f64) {
        if self.weights.len() < FATES_MAX || self.weights.contains_key(&fate) {
            *self.weights.entry(fate).or_default() += groups;
        }
    }

    /// Adds others.
    pub(super) fn append(&mut self, others: &Fates) {
        others.weights.iter().for_each(|(fate, groups)| self.add(*fate, *groups));
    }

    /// The sum of what `of` says of each group, by its weight.
    pub(super) fn sum(&self, of: impl Fn(&Fate) -> f64) -> f64 {
        self.weights.iter().map(|(fate, weight)| weight * of(fate)).sum()
    }

    /// Whether groups lose messages so much more, or less, often than those of `before` that it is no chance: three
    /// groups and three and a half standard deviations, where the share of groups that lose has a variance of
    /// `spread` besides chance.
    pub(super) fn differ_from(&self, before: &Fates, spread: f64) -> bool {
        let groups = self.sum(|_| 1.0);
        let chance = before.chance();
        let off = (self.hit() - chance * groups).abs();
        let variance = chance * (1.0 - chance) * groups + spread * groups * groups;
        off > 3.0 && off > 3.5 * variance.sqrt()
    }

    /// How far the share of groups that lose is from that of `before`, squared.
    pub(super) fn off_squared(&self, before: &Fates) -> f64 {
        (self.hit() / self.sum(|_| 1.0).max(1.0) - before.chance()).powi(2)
    }

    fn hit(&self) -> f64 {
        self.sum(|fate| f64::from(u8::from(fate.lost > 0)))
    }

    /// Probability that a group loses messages.
    fn chance(&self) -> f64 {
        (self.hit() + 1.0) / (self.sum(|_| 1.0) + 2.0)
    }
}

/// Probability of fewer than `wanted` of `tries` successes of probability `chance` (binomial distribution).
fn fewer_than(wanted: usize, tries: usize, chance: f64) -> f64 {
    let mut exactly = (1.0 - chance).powi(tries as i32);
    if chance >= 1.0 {
        return if tries < wanted { 1.0 } else { 0.0 };
    }
    let mut sum = 0.0;
    for successes in 0..wanted.min(tries + 1) {
        sum += exactly;
        exactly *= (tries - successes) as f64 / (successes + 1) as f64 * chance / (1.0 - chance);
    }
    sum.min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_distribution_is_the_binomial_one() {
        for (wanted, tries, chance, expected) in [
            (1, 1, 0.25, 0.75),
            (2, 3, 0.5, 0.5),
            (3, 2, 0.9, 1.0),
            (0, 5, 0.1, 0.0),
            (1, 0, 0.5, 1.0),
            (2, 2, 1.0, 0.0),
            (5, 10, 0.8, 0.006369382),
        ] {
            let sum = fewer_than(wanted, tries, chance);
            assert!((sum - expected).abs() < 1e-8, "{wanted} of {tries}: {sum}");
        }
    }

    fn fate(lost: u8, parity: u8, parity_lost: u8, enough: Option<u8>) -> Fate {
        Fate { size: 8, lost, parity, parity_lost, enough, is_slow: false }
    }

    #[test]
    fn reports_come_back() {
        for fate in [fate(1, 2, 1, Some(2)), Fate { is_slow: true, ..fate(2, 2, 1, None) }] {
            assert_eq!(Fate::from_bytes(fate.to_bytes(500), 8), Some((fate, 500.0)));
            assert_eq!(Fate::from_bytes(fate.to_bytes(500), 7), None);
        }
        for wrong in [fate(9, 2, 0, None), fate(1, 2, 3, None), fate(1, 2, 0, Some(3))] {
            assert_eq!(Fate::from_bytes(wrong.to_bytes(1), 8), None);
        }
    }

    #[test]
    fn a_change_is_told_from_chance() {
        let some = |hit: f64, all: f64| {
            let mut fates = Fates::default();
            fates.add(fate(1, 1, 0, Some(1)), hit);
            fates.add(fate(0, 1, 0, Some(0)), all - hit);
            fates
        };
        let before = some(100.0, 1000.0);
        for (hit, all, differs) in [
            (10.0, 100.0, false),
            (15.0, 100.0, false),
            (25.0, 100.0, true),
            (0.0, 20.0, false),
            (0.0, 200.0, true),
        ] {
            assert_eq!(some(hit, all).differ_from(&before, 0.0), differs, "{hit} of {all}");
        }
        assert!(!some(2.0, 10.0).differ_from(&some(0.0, 1000.0), 0.0));
        assert!(some(5.0, 10.0).differ_from(&some(0.0, 1000.0), 0.0));
        assert!(!some(5.0, 10.0).differ_from(&some(0.0, 1000.0), 0.04), "it was often so far off");
    }
}
