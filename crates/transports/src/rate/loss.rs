//! Estimates the loss rate of a connection, and separates random loss from loss in a full queue. Sans-IO.
//!
//! While the sender neither raises its rate nor sees a queue, all loss is random: such intervals measure its rate.
//!
//! A short queue overflows before it lengthens the round trip visibly, so loss without queueing delay has two possible
//! causes. A trial separates them: the sender sends only as fast as data arrive. A queue then loses nothing more, but
//! random loss takes its share of the trial, too. (BBR version 2 bounds the loss rate and PCC experiments with rates;
//! this asks one question, once.)

use contract::Time;
use std::time::Duration;

/// Averaging of the recent loss rate, bytes: short, to react fast.
const RECENT_BYTES: f64 = 32_768.0;
/// Size of a datagram, to estimate the deviation of the loss rate.
const DATAGRAM_BYTES: f64 = 1400.0;
/// Averaging of the smooth loss rate, measurement intervals: long, to compensate for losses evenly.
const SMOOTH_INTERVALS: f64 = 6.0;
/// Loss rate above the range of random loss that still counts as random: a constant, and a part for the deviation of a
/// rate that few datagrams show.
const MARGIN: f64 = 0.01;
const MARGIN_DATAGRAMS: f64 = 2.2;
/// Averaging of the random loss rate, bytes.
const RANDOM_BYTES: f64 = 1e6;
/// Random loss that calm intervals find, as a multiple of that of the last trial.
const CALM_FACTOR: f64 = 1.5;
/// Fewest losses in an interval that a queue explains.
const QUEUE_LOSS_BYTES_MIN: f64 = 2.0 * DATAGRAM_BYTES;
/// Shortest and longest trial, bytes. In between, a trial lasts [`TRIAL_TIME`].
const TRIAL_BYTES: [usize; 2] = [12 << 10, 512 << 10];
const TRIAL_TIME: Duration = Duration::from_millis(500);
/// Highest loss rate that counts as random.
const RANDOM_MAX: f64 = 0.5;

/// Loss rates of a connection, as shares of the bytes sent.
#[derive(Debug, Default)]
pub(super) struct Loss {
    smooth: f64,
    recent: f64,
    random: f64,
    /// Random loss in the last trial.
    tried: f64,
    /// Datagrams that the recent loss rate averages.
    datagrams: f64,
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

    /// Returns the highest recent loss rate that random loss explains: its mean, two standard deviations and a margin.
    pub(super) fn explained_max(&self) -> f64 {
        let datagrams = self.datagrams.max(RECENT_BYTES / DATAGRAM_BYTES);
        let deviation = (self.random * (1.0 - self.random) / datagrams).sqrt();
        self.random + 2.0 * deviation + MARGIN + MARGIN_DATAGRAMS / datagrams
    }

    /// Returns true if so much was lost in an interval that only a queue explains it, provided that there is one.
    pub(super) fn is_from_queue(&self, reported: usize, lost: usize) -> bool {
        let (expected, lost) = (self.random * reported as f64, lost as f64);
        lost > expected + 3.0 * (expected * DATAGRAM_BYTES).sqrt() + QUEUE_LOSS_BYTES_MIN
    }

    /// Adds an interval in which no queue lost data.
    pub(super) fn on_calm_interval(&mut self, reported: usize, lost: usize) {
        let reported = reported.max(1) as f64;
        let weight = reported / (reported + RANDOM_BYTES);
        // A queue shorter than its target may lose data, too: only a trial finds more.
        let most = (CALM_FACTOR * self.tried).max(MARGIN);
        self.random = (self.random + (lost as f64 / reported - self.random) * weight).min(most);
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
        self.datagrams = (reported + RECENT_BYTES) / DATAGRAM_BYTES;
        self.smooth += (share - self.smooth) * weight.min(1.0 / SMOOTH_INTERVALS);
        self.random = self.random.min(self.smooth.max(self.recent));
        let [least, most] = TRIAL_BYTES;
        let enough = pace.map_or(0, |pace| (pace * TRIAL_TIME.as_secs_f64()) as usize).clamp(least, most);
        let Some(trial) = self.trial.take_if(|trial| trial.reported >= enough) else { return false };
        self.recent = trial.lost as f64 / trial.reported as f64;
        self.random = self.recent.min(RANDOM_MAX);
        self.tried = self.random;
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
            loss.on_receipt(500_000, 10 * lost, at(100));
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
        loss.on_receipt(500_000, 150_000, at(1));
        assert!(loss.end_interval(50_000, 15_000, Some(1e6)) && loss.explained_max() > 0.4);
        intervals(&mut loss, 30, 50_000, 0);
        assert!(loss.random() < 0.01, "{loss:?}");
    }
}
