//! Outcomes of groups: reported by the sink half, remembered by the source half.

use super::header::SLOW;
use std::collections::BTreeMap;

/// Most different outcomes remembered.
const OUTCOMES_MAX: usize = 512;
/// An outcome of less weight is removed.
const WEIGHT_MIN: f64 = 0.01;

/// The outcome of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Outcome {
    /// Messages of the group.
    pub(super) size: u8,
    /// Messages of the group that were lost.
    pub(super) lost: u8,
    /// Parity messages of the group.
    pub(super) parity: u8,
    /// Parity messages of the group that were lost.
    pub(super) parity_lost: u8,
    /// The fewest parity messages with which the group would have been complete; `None` if all it
    /// had were not enough.
    pub(super) parity_needed: Option<u8>,
    /// True if it began while messages took longer than usual.
    pub(super) is_slow: bool,
}

impl Outcome {
    /// Bytes of an entry of a report: the outcome and the number of groups with it.
    pub(super) const BYTES: usize = 7;

    pub(super) fn to_bytes(self, groups: u16) -> [u8; Self::BYTES] {
        let [low, high] = groups.to_le_bytes();
        let parity = self.parity | if self.is_slow { SLOW } else { 0 };
        [self.size, self.lost, parity, self.parity_lost, self.parity_needed.unwrap_or(u8::MAX), low, high]
    }

    pub(super) fn from_bytes(bytes: [u8; Self::BYTES], data_max: usize) -> Option<(Outcome, f64)> {
        let [size, lost, parity, parity_lost, parity_needed, low, high] = bytes;
        let (parity, is_slow) = (parity & !SLOW, parity & SLOW != 0);
        let parity_needed = (parity_needed != u8::MAX).then_some(parity_needed);
        let fits = usize::from(size) <= data_max
            && size > 0
            && lost <= size
            && parity_lost <= parity
            && parity_needed.is_none_or(|parity_needed| parity_needed <= parity);
        let outcome = Outcome { size, lost, parity, parity_lost, parity_needed, is_slow };
        fits.then(|| (outcome, u16::from_le_bytes([low, high]).into()))
    }

    /// Probability that another message of this group would have been lost: see `parity_count`.
    fn message_loss(&self, overall: f64) -> f64 {
        let (lost, all) = (self.lost + self.parity_lost, self.size + self.parity);
        (f64::from(lost) + 2.0 * overall) / (f64::from(all) + 2.0)
    }

    /// Probability that the group would have been incomplete with `parity` parity messages.
    pub(super) fn failure_probability(&self, parity: u8, overall: f64) -> f64 {
        match self.parity_needed {
            Some(parity_needed) => f64::from(u8::from(parity < parity_needed)),
            None if parity <= self.parity => 1.0,
            None => {
                let needed = (self.lost + self.parity_lost).saturating_sub(self.parity);
                fewer_than(
                    needed.into(),
                    (parity - self.parity).into(),
                    1.0 - self.message_loss(overall).min(1.0),
                )
            }
        }
    }
}

/// Outcomes of the recent groups, weighted.
#[derive(Debug, Clone, Default)]
pub(super) struct Outcomes {
    weights: BTreeMap<Outcome, f64>,
}

impl Outcomes {
    /// Multiplies all weights by `by`.
    pub(super) fn decay(&mut self, by: f64) {
        self.weights.retain(|_, weight| {
            *weight *= by;
            *weight >= WEIGHT_MIN
        });
    }

    /// Adds groups with this outcome.
    pub(super) fn add(&mut self, outcome: Outcome, groups: f64) {
        if self.weights.len() < OUTCOMES_MAX || self.weights.contains_key(&outcome) {
            *self.weights.entry(outcome).or_default() += groups;
        }
    }

    /// Adds other outcomes.
    pub(super) fn append(&mut self, others: &Outcomes) {
        others.weights.iter().for_each(|(outcome, groups)| self.add(*outcome, *groups));
    }

    /// Weighted sum of a figure of each group.
    pub(super) fn sum(&self, figure: impl Fn(&Outcome) -> f64) -> f64 {
        self.weights.iter().map(|(outcome, weight)| weight * figure(outcome)).sum()
    }

    /// True if the share of groups with loss differs from that in `history` by more than chance: by
    /// three groups and 3.5 standard deviations. `spread` is the variance of that share besides
    /// chance.
    pub(super) fn differs_from(&self, history: &Outcomes, spread: f64) -> bool {
        let groups = self.sum(|_| 1.0);
        let loss_probability = history.loss_probability();
        let deviation = (self.groups_with_loss() - loss_probability * groups).abs();
        let variance = loss_probability * (1.0 - loss_probability) * groups + spread * groups * groups;
        deviation > 3.0 && deviation > 3.5 * variance.sqrt()
    }

    /// Squared difference of the share of groups with loss from that in `history`.
    pub(super) fn squared_deviation(&self, history: &Outcomes) -> f64 {
        (self.groups_with_loss() / self.sum(|_| 1.0).max(1.0) - history.loss_probability()).powi(2)
    }

    fn groups_with_loss(&self) -> f64 {
        self.sum(|outcome| f64::from(u8::from(outcome.lost > 0)))
    }

    /// Probability that a group has loss (with one success and one failure added).
    fn loss_probability(&self) -> f64 {
        (self.groups_with_loss() + 1.0) / (self.sum(|_| 1.0) + 2.0)
    }
}

/// Probability of fewer than `needed` successes in `tries`, each of this probability (binomial
/// distribution).
fn fewer_than(needed: usize, tries: usize, probability: f64) -> f64 {
    let mut exactly = (1.0 - probability).powi(tries as i32);
    if probability >= 1.0 {
        return if tries < needed { 1.0 } else { 0.0 };
    }
    let mut sum = 0.0;
    for successes in 0..needed.min(tries + 1) {
        sum += exactly;
        exactly *= (tries - successes) as f64 / (successes + 1) as f64 * probability / (1.0 - probability);
    }
    sum.min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_distribution_is_the_binomial_one() {
        for (needed, tries, probability, expected) in [
            (1, 1, 0.25, 0.75),
            (2, 3, 0.5, 0.5),
            (3, 2, 0.9, 1.0),
            (0, 5, 0.1, 0.0),
            (1, 0, 0.5, 1.0),
            (2, 2, 1.0, 0.0),
            (5, 10, 0.8, 0.006369382),
        ] {
            let sum = fewer_than(needed, tries, probability);
            assert!((sum - expected).abs() < 1e-8, "{needed} of {tries}: {sum}");
        }
    }

    fn outcome(lost: u8, parity: u8, parity_lost: u8, parity_needed: Option<u8>) -> Outcome {
        Outcome { size: 8, lost, parity, parity_lost, parity_needed, is_slow: false }
    }

    #[test]
    fn reports_survive_encoding() {
        for outcome in [outcome(1, 2, 1, Some(2)), Outcome { is_slow: true, ..outcome(2, 2, 1, None) }] {
            assert_eq!(Outcome::from_bytes(outcome.to_bytes(500), 8), Some((outcome, 500.0)));
            assert_eq!(Outcome::from_bytes(outcome.to_bytes(500), 7), None);
        }
        for invalid in [outcome(9, 2, 0, None), outcome(1, 2, 3, None), outcome(1, 2, 0, Some(3))] {
            assert_eq!(Outcome::from_bytes(invalid.to_bytes(1), 8), None);
        }
    }

    #[test]
    fn a_change_is_distinguished_from_chance() {
        let some = |groups_with_loss: f64, all: f64| {
            let mut outcomes = Outcomes::default();
            outcomes.add(outcome(1, 1, 0, Some(1)), groups_with_loss);
            outcomes.add(outcome(0, 1, 0, Some(0)), all - groups_with_loss);
            outcomes
        };
        let history = some(100.0, 1000.0);
        for (groups_with_loss, all, differs) in [
            (10.0, 100.0, false),
            (15.0, 100.0, false),
            (25.0, 100.0, true),
            (0.0, 20.0, false),
            (0.0, 200.0, true),
        ] {
            assert_eq!(
                some(groups_with_loss, all).differs_from(&history, 0.0),
                differs,
                "{groups_with_loss} of {all}"
            );
        }
        assert!(!some(2.0, 10.0).differs_from(&some(0.0, 1000.0), 0.0));
        assert!(some(5.0, 10.0).differs_from(&some(0.0, 1000.0), 0.0));
        assert!(!some(5.0, 10.0).differs_from(&some(0.0, 1000.0), 0.04), "it often differed as much");
    }
}
