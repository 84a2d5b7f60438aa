//! How much of what is sent is lost, and whether by chance or by a queue that is too short to show. Sans-IO.
//!
//! Sending only what arrives tells which, in a [`Trial`]: a queue then loses nothing any more, and chance takes its share
//! of that, too. (BBR version 2 has a bound on the share lost, and PCC tries rates; this asks one question once.)

use contract::Time;
use std::time::Duration;

/// Over so many bytes, and over so many looks, what is lost is averaged: soon to see it, and evenly to make it good.
const LATELY_BYTES: f64 = 32_768.0;
const LOOKS: f64 = 6.0;
/// So many datagrams are about that.
const LATELY_DATAGRAMS: f64 = 24.0;
/// Larger shares than chance explains are too much from this much more on.
const MORE_MAX: f64 = 0.1;
/// So much is sent in a trial, or as much as leaves in this time if that is less, but for the first.
const TRIAL_BYTES: [usize; 2] = [12 << 10, 48 << 10];
const TRIAL_LASTS: Duration = Duration::from_millis(500);
/// Largest share lost that is taken for chance.
const CHANCE_MAX: f64 = 0.5;

/// What a connection loses. Shares are of the bytes sent.
#[derive(Debug, Default)]
pub(super) struct Loss {
    share: f64,
    lately: f64,
    chance: f64,
    trial: Option<Trial>,
}

/// How much is lost where only what arrives is sent.
#[derive(Debug, Clone, Copy)]
struct Trial {
    /// What is told of until then left before.
    from: Time,
    settled: usize,
    lost: usize,
}

impl Loss {
    /// The share lost, evenly averaged.
    pub(super) fn share(&self) -> f64 {
        self.share
    }

    /// The share that was lost of late.
    pub(super) fn lately(&self) -> f64 {
        self.lately
    }

    /// The share that is lost by chance.
    pub(super) fn chance(&self) -> f64 {
        self.chance
    }

    /// The largest share of late that chance explains: twice the standard deviation more than its own, and [`MORE_MAX`].
    pub(super) fn most(&self) -> f64 {
        self.chance + 2.0 * (self.chance * (1.0 - self.chance) / LATELY_DATAGRAMS).sqrt() + MORE_MAX
    }

    /// Whether more is lost than chance explains.
    pub(super) fn is_too_much(&self) -> bool {
        self.lately > self.most()
    }

    /// From now on only what arrives is sent; what is told of from `from` on left after that.
    pub(super) fn begin_trial(&mut self, from: Time) {
        self.trial = Some(Trial { from, settled: 0, lost: 0 });
    }

    /// Whether a trial goes on.
    pub(super) fn is_on_trial(&self) -> bool {
        self.trial.is_some()
    }

    /// The receiver told of so many bytes, of which so many were lost.
    pub(super) fn tell(&mut self, settled: usize, lost: usize, now: Time) {
        if let Some(trial) = self.trial.as_mut().filter(|trial| now >= trial.from) {
            trial.settled += settled;
            trial.lost += lost;
        }
    }

    /// A look at so many bytes, of which so many were lost; `pace`: bytes a second, if they are paced. Says whether a
    /// trial has just told.
    pub(super) fn look(&mut self, settled: usize, lost: usize, pace: Option<f64>) -> bool {
        let settled = settled.max(1) as f64;
        let share = lost as f64 / settled;
        // Of a hundred datagrams, those lost by chance are sometimes none and sometimes many.
        let weight = settled / (settled + LATELY_BYTES);
        self.lately += (share - self.lately) * weight;
        self.share += (share - self.share) * weight.min(1.0 / LOOKS);
        self.chance = self.chance.min(self.share.max(self.lately));
        let [least, most] = TRIAL_BYTES;
        let enough = pace.map_or(0, |pace| (pace * TRIAL_LASTS.as_secs_f64()) as usize).clamp(least, most);
        let Some(trial) = self.trial.take_if(|trial| trial.settled >= enough) else { return false };
        self.lately = trial.lost as f64 / trial.settled as f64;
        self.chance = self.lately.min(CHANCE_MAX);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time::from_millis(ms)
    }

    fn looks(loss: &mut Loss, count: usize, settled: usize, lost: usize) {
        for _ in 0..count {
            assert!(!loss.look(settled, lost, Some(1e6)));
        }
    }

    #[test]
    fn what_a_trial_loses_too_is_chance_and_the_rest_is_not() {
        for (lost, chance) in [(10_000, 0.2), (0, 0.0), (40_000, CHANCE_MAX)] {
            let mut loss = Loss::default();
            looks(&mut loss, 20, 50_000, 10_000);
            assert!(loss.is_too_much() && (loss.share() - 0.2).abs() < 0.01);
            loss.begin_trial(at(100));
            loss.tell(1_000_000, 1_000_000, at(99));
            assert!(!loss.look(50_000, 10_000, Some(1e6)), "it has seen nothing yet");
            loss.tell(50_000, lost, at(100));
            assert!(loss.look(50_000, lost, Some(1e6)) && !loss.is_on_trial());
            assert!((loss.chance() - chance).abs() < 1e-9, "{loss:?}");
            assert_eq!(loss.is_too_much(), chance == CHANCE_MAX && loss.lately() > loss.most());
        }
    }

    #[test]
    fn chance_that_ceases_is_forgotten() {
        let mut loss = Loss::default();
        loss.begin_trial(at(0));
        loss.tell(50_000, 15_000, at(1));
        assert!(loss.look(50_000, 15_000, Some(1e6)) && loss.most() > 0.5);
        looks(&mut loss, 30, 50_000, 0);
        assert!(loss.chance() < 0.01, "{loss:?}");
    }
}
