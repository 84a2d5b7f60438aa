//! The controller behind `delay=auto`: how long the sink holds messages so that they leave evenly
//! spaced.
//!
//! A **transit** is arrival minus creation; a **shift** is release minus creation (see
//! [`playout`](crate::playout)). The cost of a shift is the 99th percentile of the time from
//! creation to release, plus ten message periods for each late share. Late sound is missing, so its cost is the delay itself, plus
//! [`MISSING_COST`] for each late share ([`LateCost`]). The controller keeps the transits of the last [`WINDOW`] and picks the
//! shift that would have cost least over them.
//!
//! The shift rises at once, but only with a message that is late: the spacing of that message is
//! spoilt anyway, and the messages behind it keep theirs. It falls by at most one part in [`SLEW`]
//! of the elapsed time, so that spacing is not visibly squeezed, or in one step when it is
//! [`STEP_NS`] too high.

use contract::{Choice, Time, Value};
use std::collections::VecDeque;
use std::time::Duration;

/// Age up to which a transit is a sample.
const WINDOW: Duration = Duration::from_secs(10);
/// Most samples kept. At higher message rates, some messages are not sampled.
const SAMPLES_MAX: usize = 1024;
/// Messages between two evaluations while no message is late, or early by more than [`STEP_NS`].
const INTERVAL: u32 = 16;
/// The shift falls by at most one part in this many of the elapsed time.
const SLEW: i64 = 100;
/// A shift this far above the best one means that clocks or route have changed, or that an outage has ended: it falls in one
/// step.
const STEP_NS: i64 = 500_000_000;
/// After this many late messages in a row, the samples before them are discarded.
const LATE_RUN: usize = 32;
/// Cost, in message periods, of a late share of 100 %.
const LATE_PERIODS: i64 = 10;
/// Cost of sound of which nothing is in time, in nanoseconds: one percent is as bad as 10 ms of delay.
const MISSING_COST: i64 = 1_000_000_000;

/// The harm of late messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LateCost {
    /// They are used late: their spacing is wrong.
    Spacing,
    /// They are not used: sound has a gap.
    Missing,
}

/// The best shift for the samples, and the figures that explain it. Times are in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct BestShift {
    shift: i64,
    fastest: i64,
    period: i64,
    samples: i64,
    late: i64,
}

/// Chooses the shift. See the module comment.
#[derive(Debug)]
pub(crate) struct AdaptiveDelay {
    /// Arrival time and transit, oldest first.
    samples: VecDeque<(Time, i64)>,
    sorted: Vec<i64>,
    since_evaluation: u32,
    late_run: usize,
    last_created: Option<Time>,
    /// Mean time between two messages, nanoseconds.
    period: f64,
    delay_max: i64,
    late_cost: LateCost,
    best: BestShift,
    updated: Time,
    /// No sample is left that supports the current shift: the next message sets it.
    is_reset: bool,
}

impl AdaptiveDelay {
    /// Limits the delay to `delay_max` beyond the fastest transit.
    pub(crate) fn new(delay_max: Duration, late_cost: LateCost) -> Self {
        AdaptiveDelay {
            samples: VecDeque::new(),
            sorted: Vec::new(),
            since_evaluation: 0,
            late_run: 0,
            last_created: None,
            period: 0.0,
            delay_max: i64::try_from(delay_max.as_nanos()).unwrap_or(i64::MAX),
            late_cost,
            best: BestShift::default(),
            updated: Time::ZERO,
            is_reset: false,
        }
    }

    /// Records an arrival at `now` and returns the new shift; `shift` is the current one.
    /// `messages` is the number of messages that arrived together, `created` the creation time of
    /// the first, and `transit` its transit.
    pub(crate) fn update(
        &mut self,
        (created, messages): (Time, u32),
        transit: i64,
        now: Time,
        shift: Option<i64>,
    ) -> i64 {
        if let Some(previous) = self.last_created.replace(created) {
            let period = created.signed_since(previous).max(0) as f64 / f64::from(messages.max(1));
            let weight = if self.period == 0.0 { 1.0 } else { 1.0 / 64.0 };
            self.period += (period - self.period) * weight;
        }
        let shift = shift.filter(|_| !std::mem::take(&mut self.is_reset));
        let is_late = shift.is_none_or(|shift| transit > shift);
        self.sample(transit, now);
        self.late_run = if is_late { self.late_run + 1 } else { 0 };
        if self.late_run >= LATE_RUN {
            let old = self.samples.len().saturating_sub(LATE_RUN);
            self.samples.drain(..old);
        }
        self.since_evaluation += 1;
        // An outage that is longer than the window leaves one sample, the message that it held: the messages behind that one must
        // not wait as long.
        let are_few = self.samples.len() <= INTERVAL as usize;
        let is_excessive = are_few && shift.is_some_and(|shift| shift.saturating_sub(transit) > STEP_NS);
        if is_late || is_excessive || self.since_evaluation >= INTERVAL {
            self.since_evaluation = 0;
            self.evaluate();
        }
        let step = i64::try_from(now.since(self.updated).as_nanos()).unwrap_or(i64::MAX) / SLEW;
        self.updated = now;
        match shift {
            None => transit,
            // Up to the best shift, not to this transit: queued messages must not wait for one
            // outlier.
            Some(shift) if is_late => self.best.shift.max(shift),
            Some(shift) => match shift.saturating_sub(self.best.shift) {
                above if above > STEP_NS => self.best.shift,
                above => shift.saturating_sub(above.clamp(0, step)),
            },
        }
    }

    /// Discards the samples that arrived from `since` on, because a queue and not jitter delayed
    /// them. Returns the shift that the other samples support.
    pub(crate) fn discard_from(&mut self, since: Time) -> Option<i64> {
        let before = self.samples.len();
        while self.samples.back().is_some_and(|(at, _)| *at >= since) {
            self.samples.pop_back();
        }
        self.is_reset = self.samples.is_empty();
        if self.is_reset {
            return None;
        }
        if self.samples.len() < before {
            self.evaluate();
        }
        Some(self.best.shift)
    }

    fn sample(&mut self, transit: i64, now: Time) {
        while self.samples.front().is_some_and(|(at, _)| now.since(*at) > WINDOW) {
            self.samples.pop_front();
        }
        let spacing = WINDOW / SAMPLES_MAX as u32;
        if self.samples.back().is_none_or(|(at, _)| now.since(*at) >= spacing || self.samples.len() < 64) {
            self.samples.push_back((now, transit));
        }
        if self.samples.len() > SAMPLES_MAX {
            self.samples.pop_front();
        }
    }

    fn evaluate(&mut self) {
        self.sorted.clear();
        self.sorted.extend(self.samples.iter().map(|(_, transit)| *transit));
        self.sorted.sort_unstable();
        let count = self.sorted.len();
        let samples = i64::try_from(count).unwrap_or(i64::MAX);
        let period = self.period as i64;
        let covered = match self.late_cost {
            // No shift below the 99th percentile is cheaper: late messages then set the percentile.
            LateCost::Spacing => (count * 99).div_ceil(100).max(1) - 1,
            LateCost::Missing => 0,
        };
        let all_cost = self.all_cost(period);
        let (mut best, mut best_cost) = (covered, i64::MAX);
        for (index, transit) in self.sorted.iter().enumerate().skip(covered) {
            let late = samples - 1 - index as i64;
            let cost = transit.saturating_add(all_cost.saturating_mul(late) / samples);
            if cost < best_cost {
                (best, best_cost) = (index, cost);
            }
        }
        let fastest = self.sorted[0];
        let shift = self.sorted[best].min(fastest.saturating_add(self.delay_max));
        let late = samples - self.sorted.partition_point(|transit| *transit <= shift) as i64;
        self.best = BestShift { shift, fastest, period, samples, late };
    }

    /// The cost if all messages are late.
    fn all_cost(&self, period: i64) -> i64 {
        match self.late_cost {
            LateCost::Spacing => LATE_PERIODS.saturating_mul(period),
            LateCost::Missing => MISSING_COST,
        }
    }

    /// The current delay and its reason, for `outboard top`.
    pub(crate) fn choice(&self, option: &'static str, shift: Option<i64>) -> Choice {
        let BestShift { shift: best, fastest, period, samples, late } = self.best;
        let held = shift.map_or(0, |shift| shift.saturating_sub(fastest)).max(0);
        let ms = |ns: i64| ns as f64 / 1e6;
        let all_cost = self.all_cost(period);
        let late_cost = all_cost.saturating_mul(late) / samples.max(1);
        Choice {
            option,
            // Whole microseconds are enough for a reader.
            value: Value::Duration(Duration::from_micros(held.unsigned_abs() / 1000)),
            why: format!(
                "of the last {samples} messages, {:.3} ms beyond the fastest would have covered all but {late}: their \
                 lateness costs {:.3} ms; to delay none costs {:.3} ms",
                ms(best.saturating_sub(fastest)),
                ms(late_cost),
                ms(all_cost)
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD_MS: u64 = 10;

    /// Feeds one message per period with these transits; returns the shift after each.
    fn update(transits_ms: &[i64]) -> Vec<i64> {
        let mut delay = AdaptiveDelay::new(Duration::from_secs(1), LateCost::Spacing);
        let mut shift = None;
        let one = |(index, transit_ms): (usize, &i64)| {
            let created = Time::from_millis(1000 + index as u64 * PERIOD_MS);
            let now = created.after(Duration::from_millis(transit_ms.unsigned_abs()));
            shift = Some(delay.update((created, 1), transit_ms * 1_000_000, now, shift));
            shift.unwrap_or_default() / 1_000_000
        };
        transits_ms.iter().enumerate().map(one).collect()
    }

    #[test]
    fn a_steady_network_needs_no_extra_delay() {
        assert!(update(&[20; 500]).iter().all(|shift| *shift == 20));
    }

    #[test]
    fn one_slow_message_in_a_thousand_does_not_raise_the_shift() {
        let mut transits = vec![20; 950];
        transits[300] = 400;
        assert_eq!(update(&transits).last(), Some(&20), "ten periods / 950 cost less than 380 ms");
        let often: Vec<i64> = (0..950).map(|n| if n % 20 == 0 { 60 } else { 20 }).collect();
        assert_eq!(update(&often).last(), Some(&60), "one in twenty is the 99th percentile");
    }

    #[test]
    fn a_message_of_an_outage_delays_none_behind_it() {
        let mut delay = AdaptiveDelay::new(Duration::from_secs(1), LateCost::Missing);
        let mut shift = None;
        let mut arrive = |created_ms: u64, transit_ms: u64| {
            let created = Time::from_millis(created_ms);
            let now = created.after(Duration::from_millis(transit_ms));
            let transit = now.signed_since(created);
            let next = delay.update((created, 1), transit, now, shift);
            shift = Some(next);
            next / 1_000_000
        };
        for number in 0..100 {
            assert_eq!(arrive(1000 + number * PERIOD_MS, 20), 20);
        }
        assert_eq!(arrive(2000, 15_000), 15_000, "the only sample of the last 10 s");
        assert_eq!(arrive(17_010, 20), 20);
    }

    #[test]
    fn the_shift_rises_at_once_and_falls_slowly() {
        let mut transits = vec![10; 300];
        transits.extend([200; 100]);
        let shifts = update(&transits);
        assert_eq!(shifts[299], 10);
        assert_eq!(shifts[320], 200, "after one in a hundred");
        transits.extend([10; 2000]);
        let shifts = update(&transits);
        let (before, after) = (shifts[1500], shifts[1600]);
        assert!((8..=12).contains(&(before - after)), "10 ms in a second: {before} {after}");
    }
}
