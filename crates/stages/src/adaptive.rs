//! How long to hold messages so that their spacing is whole: what `delay=auto` chooses, and when it is followed.
//!
//! The cost of a shift is the 99th percentile of the time from creation to hand-over, plus ten periods for each
//! late share. Of the transits of the last seconds, the shift that would have cost least is the one to have.

use contract::{Choice, Time, Value};
use std::collections::VecDeque;
use std::time::Duration;

/// What [`Hold`] minimises, in words.
pub(crate) const COST: &str = "the 99th percentile of the time from creation to hand-over, plus ten periods of the \
                               device for each late share";
/// How long a transit counts.
const WINDOW: Duration = Duration::from_secs(10);
/// Most transits that count: at higher rates not every message is looked at.
const SAMPLES_MAX: usize = 1024;
/// Messages between two choices, while none is late.
const INTERVAL: u32 = 16;
/// The shift comes down by at most one part in this many of the time that passes.
const SLEW: i64 = 100;
/// So far above what is chosen, clocks or route have changed, and the shift steps down.
const STEP_NS: i64 = 500_000_000;
/// So many late in a row, and what was before them counts no more.
const LATE_RUN: usize = 32;
/// Periods that a late share of one costs.
const LATE_PERIODS: i64 = 10;

/// What a shift would have cost, from the transits of the last seconds. All in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Chosen {
    shift: i64,
    fastest: i64,
    period: i64,
    samples: i64,
    late: i64,
}

/// Chooses a shift and follows it: up at once, with a message that is late anyway; down slowly.
#[derive(Debug)]
pub(crate) struct Hold {
    /// Arrival and transit.
    samples: VecDeque<(Time, i64)>,
    sorted: Vec<i64>,
    since_choice: u32,
    late_run: usize,
    /// The last message's creation time.
    last: Option<Time>,
    /// Mean time between two messages, nanoseconds.
    period: f64,
    delay_max: i64,
    chosen: Chosen,
    moved: Time,
    /// Nothing is left of what the shift came from.
    starts_anew: bool,
}

impl Hold {
    /// Holds no message longer than `delay_max` beyond the fastest transit.
    pub(crate) fn new(delay_max: Duration) -> Self {
        Hold {
            samples: VecDeque::new(),
            sorted: Vec::new(),
            since_choice: 0,
            late_run: 0,
            last: None,
            period: 0.0,
            delay_max: i64::try_from(delay_max.as_nanos()).unwrap_or(i64::MAX),
            chosen: Chosen::default(),
            moved: Time::ZERO,
            starts_anew: false,
        }
    }

    /// A message of this transit came at `now`, or so many at once, of which the first was created then and took so
    /// long; the shift to have, where it was `shift` until now.
    pub(crate) fn follow(
        &mut self,
        (created, messages): (Time, u32),
        transit: i64,
        now: Time,
        shift: Option<i64>,
    ) -> i64 {
        if let Some(before) = self.last.replace(created) {
            let period = created.signed_since(before).max(0) as f64 / f64::from(messages.max(1));
            let weight = if self.period == 0.0 { 1.0 } else { 1.0 / 64.0 };
            self.period += (period - self.period) * weight;
        }
        let shift = shift.filter(|_| !std::mem::take(&mut self.starts_anew));
        let is_late = shift.is_none_or(|shift| transit > shift);
        self.sample(transit, now);
        self.late_run = if is_late { self.late_run + 1 } else { 0 };
        if self.late_run >= LATE_RUN {
            let old = self.samples.len().saturating_sub(LATE_RUN);
            self.samples.drain(..old);
        }
        self.since_choice += 1;
        if is_late || self.since_choice >= INTERVAL {
            self.since_choice = 0;
            self.choose();
        }
        let step = i64::try_from(now.since(self.moved).as_nanos()).unwrap_or(i64::MAX) / SLEW;
        self.moved = now;
        match shift {
            None => transit,
            // What is held must not wait longer for the sake of one that is late by itself.
            Some(shift) if is_late => self.chosen.shift.max(shift),
            Some(shift) => match shift.saturating_sub(self.chosen.shift) {
                above if above > STEP_NS => self.chosen.shift,
                above => shift.saturating_sub(above.clamp(0, step)),
            },
        }
    }

    /// What came from `since` on was no jitter, and counts no more: the shift to have for what came before.
    pub(crate) fn forget_from(&mut self, since: Time) -> Option<i64> {
        let before = self.samples.len();
        while self.samples.back().is_some_and(|(at, _)| *at >= since) {
            self.samples.pop_back();
        }
        self.starts_anew = self.samples.is_empty();
        if self.starts_anew {
            return None;
        }
        if self.samples.len() < before {
            self.choose();
        }
        Some(self.chosen.shift)
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

    fn choose(&mut self) {
        self.sorted.clear();
        self.sorted.extend(self.samples.iter().map(|(_, transit)| *transit));
        self.sorted.sort_unstable();
        let count = self.sorted.len();
        let samples = i64::try_from(count).unwrap_or(i64::MAX);
        let period = self.period as i64;
        let covered = (count * 99).div_ceil(100).max(1) - 1;
        // Below the 99th percentile nothing is won: those that are late are what is slow.
        let (mut best, mut best_cost) = (covered, i64::MAX);
        for (index, transit) in self.sorted.iter().enumerate().skip(covered) {
            let late = samples - 1 - index as i64;
            let cost =
                transit.saturating_add(LATE_PERIODS.saturating_mul(period).saturating_mul(late) / samples);
            if cost < best_cost {
                (best, best_cost) = (index, cost);
            }
        }
        let fastest = self.sorted[0];
        let shift = self.sorted[best].min(fastest.saturating_add(self.delay_max));
        let late = samples - self.sorted.partition_point(|transit| *transit <= shift) as i64;
        self.chosen = Chosen { shift, fastest, period, samples, late };
    }

    /// What it stands at, and why.
    pub(crate) fn choice(&self, option: &'static str, shift: Option<i64>) -> Choice {
        let Chosen { shift: chosen, fastest, period, samples, late } = self.chosen;
        let held = shift.map_or(0, |shift| shift.saturating_sub(fastest)).max(0);
        let ms = |ns: i64| ns as f64 / 1e6;
        let late_cost = LATE_PERIODS.saturating_mul(period).saturating_mul(late) / samples.max(1);
        let all_cost = LATE_PERIODS.saturating_mul(period);
        Choice {
            option,
            // In steps that a person reads.
            value: Value::Duration(Duration::from_micros(held.unsigned_abs() / 1000)),
            why: format!(
                "of the last {samples} messages, {:.3} ms beyond the fastest would have covered all but {late}, whose \
                 lateness costs {:.3} ms; to hold none costs {:.3} ms",
                ms(chosen.saturating_sub(fastest)),
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

    /// Lets messages of these transits come, one each period; the shift after each.
    fn follow(transits_ms: &[i64]) -> Vec<i64> {
        let mut hold = Hold::new(Duration::from_secs(1));
        let mut shift = None;
        let one = |(index, transit_ms): (usize, &i64)| {
            let created = Time::from_millis(1000 + index as u64 * PERIOD_MS);
            let now = created.after(Duration::from_millis(transit_ms.unsigned_abs()));
            shift = Some(hold.follow((created, 1), transit_ms * 1_000_000, now, shift));
            shift.unwrap_or_default() / 1_000_000
        };
        transits_ms.iter().enumerate().map(one).collect()
    }

    #[test]
    fn a_steady_network_is_followed_exactly() {
        assert!(follow(&[20; 500]).iter().all(|shift| *shift == 20));
    }

    #[test]
    fn what_happens_once_in_a_thousand_is_not_waited_for() {
        let mut transits = vec![20; 950];
        transits[300] = 400;
        assert_eq!(follow(&transits).last(), Some(&20), "ten periods by a thousand are less than 380 ms");
        let often: Vec<i64> = (0..950).map(|n| if n % 20 == 0 { 60 } else { 20 }).collect();
        assert_eq!(follow(&often).last(), Some(&60), "one in twenty is the 99th percentile");
    }

    #[test]
    fn up_at_once_and_down_slowly() {
        let mut transits = vec![10; 300];
        transits.extend([200; 100]);
        let shifts = follow(&transits);
        assert_eq!(shifts[299], 10);
        assert_eq!(shifts[320], 200, "after one in a hundred");
        transits.extend([10; 2000]);
        let shifts = follow(&transits);
        let (before, after) = (shifts[1500], shifts[1600]);
        assert!((8..=12).contains(&(before - after)), "10 ms in a second: {before} {after}");
    }
}
