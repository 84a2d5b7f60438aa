//! Estimates the loss rate of a connection, and separates random loss from loss in a full queue. Sans-IO.
//!
//! A short queue overflows before it lengthens the round trip visibly, so loss without queueing delay has two possible
//! causes. A trial separates them: the sender sends only as fast as data arrive. A queue then loses nothing more, but
//! random loss takes its share of the trial, too. (BBR version 2 bounds the loss rate and PCC experiments with rates;
//! this asks one question, once.)

use contract::Time;
use std::time::Duration;

/// Averaging of the recent loss rate, bytes: short, to react fast.
const RECENT_BYTES: f64 = 32_768.0;
/// The same amount in datagrams.
const RECENT_DATAGRAMS: f64 = 24.0;
/// Averaging of the smooth loss rate, measurement intervals: long, to compensate for losses evenly.
const SMOOTH_INTERVALS: f64 = 6.0;
/// Loss rate above the range of random loss that still counts as random.
const MARGIN: f64 = 0.1;
/// Shortest and longest trial, bytes. In between, a trial lasts [`TRIAL_TIME`].
const TRIAL_BYTES: [usize; 2] = [12 << 10, 48 << 10];
const TRIAL_TIME: Duration = Duration::from_millis(500);
/// Highest loss rate that counts as random.
const RANDOM_MAX: f64 = 0.5;

/// Loss rates of a connection, as shares of the bytes sent.
#[derive(Debug, Default)]
pub(super) struct Loss {
    smooth: f64,
    recent: f64,
    random: f64,
    trial: Option<Trial>,
}

/// Losses while the sender sends at the delivery rate.
#[derive(Debug, Clone, Copy)]
struct Trial {
    /// Losses reported before this time were sent before the trial.
    from: Time,
    /// Bytes reported as arrived or lost.
    reported: usize,
    lost: usize,
}

impl Loss {
    /// Returns the smooth loss rate.
    pub(super) fn smooth(&self) -> f64 {
        self.smooth
    }

    /// Returns the recent loss rate.
    pub(super) fn recent(&self) -> f64 {
        self.recent
    }

    /// Returns the rate of random loss.
    pub(super) fn random(&self) -> f64 {
        self.random
    }

    /// Returns the highest recent loss rate that random loss explains: its mean, two standard deviations and
    /// [`MARGIN`].
    pub(super) fn explained_max(&self) -> f64 {
        self.random + 2.0 * (self.random * (1.0 - self.random) / RECENT_DATAGRAMS).sqrt() + MARGIN
    }

    /// Returns true if random loss does not explain the recent loss rate.
    pub(super) fn is_unexplained(&self) -> bool {
        self.recent > self.explained_max()
    }

    /// Starts a trial. Reports from `from` on belong to it.
    pub(super) fn begin_trial(&mut self, from: Time) {
        self.trial = Some(Trial { from, reported: 0, lost: 0 });
    }

    /// Returns true during a trial.
    pub(super) fn is_on_trial(&self) -> bool {
        self.trial.is_some()
    }

    /// Adds the bytes of one receipt to the trial.
    pub(super) fn on_receipt(&mut self, reported: usize, lost: usize, now: Time) {
        if let Some(trial) = self.trial.as_mut().filter(|trial| now >= trial.from) {
            trial.reported += reported;
            trial.lost += lost;
        }
    }

    /// Updates the loss rates with the bytes of one measurement interval. `pace`: bytes a second on a paced connection.
    /// Returns true if this ends a trial.
    pub(super) fn end_interval(&mut self, reported: usize, lost: usize, pace: Option<f64>) -> bool {
        let reported = reported.max(1) as f64;
        let share = lost as f64 / reported;
        // Few datagrams vary much: weight the interval by its size.
        let weight = reported / (reported + RECENT_BYTES);
        self.recent += (share - self.recent) * weight;
        self.smooth += (share - self.smooth) * weight.min(1.0 / SMOOTH_INTERVALS);
        self.random = self.random.min(self.smooth.max(self.recent));
        let [least, most] = TRIAL_BYTES;
        let enough = pace.map_or(0, |pace| (pace * TRIAL_TIME.as_secs_f64()) as usize).clamp(least, most);
        let Some(trial) = self.trial.take_if(|trial| trial.reported >= enough) else { return false };
        self.recent = trial.lost as f64 / trial.reported as f64;
        self.random = self.recent.min(RANDOM_MAX);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time::from_millis(ms)
    }

    fn intervals(loss: &mut Loss, count: usize, reported: usize, lost: usize) {
        for _ in 0..count {
            assert!(!loss.end_interval(reported, lost, Some(1e6)));
        }
    }

    #[test]
    fn only_loss_during_a_trial_is_random() {
        for (lost, random) in [(10_000, 0.2), (0, 0.0), (40_000, RANDOM_MAX)] {
            let mut loss = Loss::default();
            intervals(&mut loss, 20, 50_000, 10_000);
            assert!(loss.is_unexplained() && (loss.smooth() - 0.2).abs() < 0.01);
            loss.begin_trial(at(100));
            loss.on_receipt(1_000_000, 1_000_000, at(99));
            assert!(!loss.end_interval(50_000, 10_000, Some(1e6)), "the trial has no data yet");
            loss.on_receipt(50_000, lost, at(100));
            assert!(loss.end_interval(50_000, lost, Some(1e6)) && !loss.is_on_trial());
            assert!((loss.random() - random).abs() < 1e-9, "{loss:?}");
            let is_high = random == RANDOM_MAX && loss.recent() > loss.explained_max();
            assert_eq!(loss.is_unexplained(), is_high);
        }
    }

    #[test]
    fn random_loss_that_ends_is_forgotten() {
        let mut loss = Loss::default();
        loss.begin_trial(at(0));
        loss.on_receipt(50_000, 15_000, at(1));
        assert!(loss.end_interval(50_000, 15_000, Some(1e6)) && loss.explained_max() > 0.5);
        intervals(&mut loss, 30, 50_000, 0);
        assert!(loss.random() < 0.01, "{loss:?}");
    }
}
