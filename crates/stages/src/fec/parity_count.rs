//! The number of parity messages per group: fixed, or `auto`.
//!
//! The cost that `auto` minimises is 100 × the share of messages that stay lost + parity messages
//! per message. So one message in a hundred that stays lost costs as much as sending everything
//! twice.
//!
//! - *Outcomes.* The sink half reports with how few parity messages each group would have been
//!   complete. If all it had were not enough, more parity messages are assumed lost with the
//!   probability `(l + 2 p) / (n + 2)`: `l` of the `n` messages and parity messages of the group
//!   were lost, and `p` is the loss of all records. So a burst also hits the parity.
//! - *History.* An outcome loses half its weight in [`HALF_LIFE`]. If a [`SPAN`] differs by more
//!   than chance, and more than spans usually differ, the network has changed and older outcomes
//!   are discarded.
//! - *Pace.* Interference and full queues delay messages before they lose them, and are often over
//!   before a loss is reported. So the sink half reports at once when messages begin or cease to
//!   take longer than usual (`pace`). Each group records the pace at which it began, and each pace
//!   has its own number of parity messages. If the pace says nothing about loss, both numbers
//!   become the same.

use super::PARITY_MAX;
use super::outcome::{Outcome, Outcomes};
use contract::{Feedback, Options, StageError, StageResult, Time};
use std::time::Duration;

/// Time in which an outcome loses half its weight.
const HALF_LIFE: Duration = Duration::from_secs(30);
/// Length of the spans that are compared with the history.
const SPAN: Duration = Duration::from_secs(1);
/// Spans in the mean of the spread.
const SPREAD_SPANS: f64 = 8.0;
/// Smallest relative gain that is worth a change.
const MIN_GAIN: f64 = 0.05;
/// Initial number of parity messages.
const FIRST: u8 = 1;
/// Groups of average outcome added to those of each pace.
const PRIOR_GROUPS: f64 = 8.0;

pub(super) struct ParityCount {
    /// At the usual pace, and while messages take longer than usual.
    parity: [u8; 2],
    /// True while messages take longer than usual, as last reported.
    is_slow: bool,
    auto: Option<Auto>,
}

/// State of `parity=auto`.
struct Auto {
    /// Most messages per group.
    data: usize,
    /// Outcomes since the network changed, without the recent ones.
    history: Outcomes,
    /// Outcomes of the current span, and its start.
    recent: Outcomes,
    since: Option<Time>,
    /// Mean square of the difference of a span from the history, in the share of groups with loss.
    spread: f64,
    /// Loss of all records, as the session reports it.
    loss: Option<f64>,
}

impl ParityCount {
    pub(super) fn new(options: &Options) -> Self {
        if !options.is_auto("parity") {
            let parity = u8::try_from(options.integer("parity")).unwrap_or(0);
            return ParityCount { parity: [parity; 2], is_slow: false, auto: None };
        }
        let data = options.count("data");
        let (history, recent) = (Outcomes::default(), Outcomes::default());
        let auto = Auto { data, history, recent, since: None, spread: 0.0, loss: None };
        ParityCount { parity: [FIRST; 2], is_slow: false, auto: Some(auto) }
    }

    /// Parity messages of the next group.
    pub(super) fn parity(&self) -> u8 {
        self.parity[usize::from(self.is_slow)]
    }

    /// True while messages take longer than usual, as last reported.
    pub(super) fn is_slow(&self) -> bool {
        self.is_slow
    }

    pub(super) fn handle_feedback(&mut self, feedback: &Feedback) {
        let Some(auto) = &mut self.auto else { return };
        let all = feedback.lost.saturating_add(feedback.received);
        if all > 0 {
            let loss = feedback.lost as f64 / all as f64;
            auto.loss = Some(auto.loss.map_or(loss, |mean| mean + (loss - mean) / 4.0));
        }
    }

    /// Handles a report of the sink half.
    pub(super) fn handle_report(&mut self, report: &[u8], now: Time) -> StageResult {
        let malformed = |problem: &str| StageError::Control(problem.into());
        let auto = self.auto.as_mut().ok_or_else(|| malformed("parity is not auto"))?;
        let (is_slow, report) = match report.split_first() {
            Some((0, report)) => (false, report),
            Some((1, report)) => (true, report),
            _ => return Err(malformed("it has no valid pace")),
        };
        let (entries, rest) = report.as_chunks::<{ Outcome::BYTES }>();
        let data = auto.data;
        let outcomes: Option<Vec<_>> =
            entries.iter().map(|entry| Outcome::from_bytes(*entry, data)).collect();
        let outcomes =
            outcomes.filter(|_| rest.is_empty()).ok_or_else(|| malformed("it has an impossible outcome"))?;
        outcomes.into_iter().for_each(|(outcome, groups)| auto.recent.add(outcome, groups));
        auto.update_history(now);
        for (parity, is_slow) in self.parity.iter_mut().zip([false, true]) {
            let (cheapest, cost) = auto.cheapest(is_slow);
            if cost < auto.cost(*parity, is_slow) * (1.0 - MIN_GAIN) {
                *parity = cheapest;
            }
        }
        self.is_slow = is_slow;
        Ok(())
    }

    /// Reason for the current number; `None` if it is fixed.
    pub(super) fn why(&self) -> Option<String> {
        let auto = self.auto.as_ref()?;
        if auto.since.is_none() {
            return Some("no report from the sink yet".into());
        }
        let at = |is_slow: bool| {
            let parity = self.parity[usize::from(is_slow)];
            let other = |parity: u8| format!("{:.3} with {parity}", auto.cost(parity, is_slow));
            let fewer = parity.checked_sub(1).map(other);
            let neighbours: Vec<String> = fewer.into_iter().chain([other(parity + 1)]).collect();
            format!(
                "{parity} costs {:.3} ({:.3} % lost after recovery), {}",
                auto.cost(parity, is_slow),
                100.0 * auto.residual_loss(parity, is_slow),
                neighbours.join(", ")
            )
        };
        Some(format!(
            "{:.2} % of messages lost in the network; {}; while messages take longer than usual, {}",
            100.0 * auto.lost(),
            at(false),
            at(true)
        ))
    }
}

impl Auto {
    /// At the end of a span, moves recent outcomes to the history: lets older ones decay, or
    /// discards them if the network has changed.
    fn update_history(&mut self, now: Time) {
        let elapsed = now.since(*self.since.get_or_insert(now));
        let has_changed =
            self.history.sum(|_| 1.0) > 0.0 && self.recent.differs_from(&self.history, self.spread);
        if !has_changed && elapsed < SPAN {
            return;
        }
        if self.history.sum(|_| 1.0) > 0.0 {
            self.spread += (self.recent.squared_deviation(&self.history) - self.spread) / SPREAD_SPANS;
        }
        let faded = 0.5f64.powf(elapsed.as_secs_f64() / HALF_LIFE.as_secs_f64());
        self.history.decay(if has_changed { 0.0 } else { faded });
        self.history.append(&std::mem::take(&mut self.recent));
        self.since = Some(now);
    }

    fn sum(&self, figure: impl Fn(&Outcome) -> f64) -> f64 {
        self.history.sum(&figure) + self.recent.sum(&figure)
    }

    /// The cheapest number of parity messages, up to two per message, and its cost.
    fn cheapest(&self, is_slow: bool) -> (u8, f64) {
        let max = (2 * self.data).min(PARITY_MAX as usize);
        let costs = (0..=max as u8).map(|parity| (parity, self.cost(parity, is_slow)));
        costs.min_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or((FIRST, 0.0))
    }

    /// Weighted sum of a figure over the groups of one pace, and [`PRIOR_GROUPS`] groups of average
    /// outcome.
    fn sum_at(&self, is_slow: bool, figure: impl Fn(&Outcome) -> f64) -> f64 {
        let own = self.sum(|outcome| if outcome.is_slow == is_slow { figure(outcome) } else { 0.0 });
        own + PRIOR_GROUPS * share(self.sum(&figure), self.sum(|_| 1.0))
    }

    fn cost(&self, parity: u8, is_slow: bool) -> f64 {
        let groups = self.sum_at(is_slow, |_| 1.0);
        let messages = self.sum_at(is_slow, |outcome| outcome.size.into());
        100.0 * self.residual_loss(parity, is_slow) + f64::from(parity) * share(groups, messages)
    }

    /// Share of messages lost in the network.
    fn lost(&self) -> f64 {
        share(self.sum(|outcome| outcome.lost.into()), self.sum(|outcome| outcome.size.into()))
    }

    /// Share of messages that stay lost with this number of parity messages.
    fn residual_loss(&self, parity: u8, is_slow: bool) -> f64 {
        let loss = self.loss.unwrap_or_else(|| self.lost());
        let lost = self
            .sum_at(is_slow, |outcome| f64::from(outcome.lost) * outcome.failure_probability(parity, loss));
        share(lost, self.sum_at(is_slow, |outcome| outcome.size.into()))
    }
}

fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(lost: u8, parity: u8, parity_lost: u8, parity_needed: Option<u8>, is_slow: bool) -> Outcome {
        Outcome { size: 8, lost, parity, parity_lost, parity_needed, is_slow }
    }

    fn auto(outcomes: impl IntoIterator<Item = (Outcome, f64)>) -> Auto {
        let mut history = Outcomes::default();
        outcomes.into_iter().for_each(|(outcome, groups)| history.add(outcome, groups));
        Auto { data: 8, history, recent: Outcomes::default(), since: None, spread: 0.0, loss: Some(0.1) }
    }

    #[test]
    fn the_cost_is_as_documented() {
        let auto = auto([
            (outcome(0, 2, 0, Some(0), false), 80.0),
            (outcome(1, 2, 0, Some(1), false), 10.0),
            (outcome(1, 2, 1, Some(2), false), 5.0),
            (outcome(2, 2, 1, None, false), 5.0),
        ]);
        let third = 3.2 / 12.0;
        for (parity, lost) in [(0, 25.0), (1, 15.0), (2, 10.0), (3, 10.0 * third), (4, 10.0 * third * third)]
        {
            let cost = 100.0 * lost / 800.0 + f64::from(parity) / 8.0;
            for is_slow in [false, true] {
                let seen = auto.cost(parity, is_slow);
                assert!((seen - cost).abs() < 1e-9, "{parity}, slow {is_slow}: {seen} {cost}");
            }
        }
    }

    #[test]
    fn each_pace_has_its_own_parity_if_it_predicts_loss() {
        let some = |usual: f64, is_slow: f64| {
            let figure = |is_slow: bool, all: f64, hit: f64| {
                [(outcome(2, 2, 0, Some(2), is_slow), hit), (outcome(0, 2, 0, Some(0), is_slow), all - hit)]
            };
            let auto = auto(figure(false, 9000.0, usual).into_iter().chain(figure(true, 1000.0, is_slow)));
            [auto.cheapest(false).0, auto.cheapest(true).0]
        };
        assert_eq!(some(0.0, 500.0), [0, 2]);
        assert_eq!(some(4500.0, 0.0), [2, 0]);
        assert_eq!(some(900.0, 100.0), [2, 2]);
        assert_eq!(some(20.0, 0.0), [0, 0]);
    }
}
