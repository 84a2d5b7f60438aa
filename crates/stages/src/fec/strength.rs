//! How many parity messages a group gets: as many as the options say, or as many as cost least.
//!
//! The cost, declared before anything was measured: 100 × the share of messages that stay lost + parity
//! messages for each message. So a message in a hundred that stays lost weighs as much as sending everything twice.
//!
//! What it is computed from: what became of each group, as the sink half reports; what it said [`HALF_LIFE`] ago
//! counts half, and where a [`SPAN`] differs beyond chance, and beyond what spans differ by anyhow (interference comes
//! and goes), what was before counts no more. A group says
//! itself with how few parity messages it would have been whole. If those that it had were not enough, more
//! would have been lost with the probability `(l + 2 p) / (n + 2)`, `l` of its `n`
//! messages and parity messages being lost, and `p` the loss of all records: bursts take parity too.
//!
//! Interference and full queues hold messages up before they lose them, and are often over before anything lost is
//! reported. So the sink half says at once when messages begin and cease to take longer than usual (`pace`), each group
//! tells at which pace it began, and each pace has a number of its own, from the groups that began at it. Where pace
//! says nothing of loss both become the same.

use super::PARITY_MAX;
use super::fate::{Fate, Fates};
use contract::{Feedback, Options, StageError, Time};
use std::time::Duration;

/// Time in which a report loses half its weight.
const HALF_LIFE: Duration = Duration::from_secs(30);
/// Time over which groups are compared with those before, to tell whether the network has changed.
const SPAN: Duration = Duration::from_secs(1);
/// Spans that the spread is of.
const SPREAD_SPANS: f64 = 8.0;
/// What costs less by this share only is not worth a change.
const WORTH: f64 = 0.05;
/// What a flow begins with, when nothing is known of its way.
const FIRST: u8 = 1;
/// Groups as all are, that each pace is judged by besides its own.
const PRIOR: f64 = 8.0;

pub(super) struct Strength {
    /// At the usual pace, and while messages take longer.
    parity: [u8; 2],
    /// Whether they do, as the sink half says.
    is_slow: bool,
    auto: Option<Auto>,
}

/// What is known of the way.
struct Auto {
    /// Most messages of a group.
    data: usize,
    /// What became of groups since the network changed, but for the last of them.
    before: Fates,
    /// What became of the last ones, and since when they are these.
    last: Fates,
    since: Option<Time>,
    /// How far spans were off from what was before them: the mean square of the share of groups that lost.
    spread: f64,
    /// Share of all records that is lost, as the session says.
    loss: Option<f64>,
}

impl Strength {
    pub(super) fn new(options: &Options) -> Self {
        if !options.is_auto("parity") {
            let parity = u8::try_from(options.integer("parity")).unwrap_or(0);
            return Strength { parity: [parity; 2], is_slow: false, auto: None };
        }
        let data = options.count("data");
        let (before, last) = (Fates::default(), Fates::default());
        let auto = Auto { data, before, last, since: None, spread: 0.0, loss: None };
        Strength { parity: [FIRST; 2], is_slow: false, auto: Some(auto) }
    }

    /// Parity messages that the next group gets.
    pub(super) fn parity(&self) -> u8 {
        self.parity[usize::from(self.is_slow)]
    }

    /// Whether messages take longer than usual, as far as is known.
    pub(super) fn is_slow(&self) -> bool {
        self.is_slow
    }

    pub(super) fn handle_feedback(&mut self, feedback: &Feedback) {
        let Some(auto) = &mut self.auto else { return };
        let all = feedback.lost.saturating_add(feedback.received);
        if all > 0 {
            let loss = feedback.lost as f64 / all as f64;
            auto.loss = Some(auto.loss.map_or(loss, |before| before + (loss - before) / 4.0));
        }
    }

    /// The sink half says what became of groups.
    pub(super) fn handle_report(&mut self, report: &[u8], now: Time) -> Result<(), StageError> {
        let wrong = |problem: &str| StageError::Control(problem.into());
        let auto = self.auto.as_mut().ok_or_else(|| wrong("parity is not left to this pair"))?;
        let (is_slow, report) = match report.split_first() {
            Some((0, report)) => (false, report),
            Some((1, report)) => (true, report),
            _ => return Err(wrong("it does not say whether messages take longer than usual")),
        };
        let (entries, rest) = report.as_chunks::<{ Fate::BYTES }>();
        let data = auto.data;
        let fates: Option<Vec<_>> = entries.iter().map(|entry| Fate::from_bytes(*entry, data)).collect();
        let fates =
            fates.filter(|_| rest.is_empty()).ok_or_else(|| wrong("it tells of a group that cannot be"))?;
        fates.into_iter().for_each(|(fate, groups)| auto.last.add(fate, groups));
        auto.age(now);
        for (parity, slow) in self.parity.iter_mut().zip([false, true]) {
            let (best, cost) = auto.best(slow);
            if cost < auto.cost(*parity, slow) * (1.0 - WORTH) {
                *parity = best;
            }
        }
        self.is_slow = is_slow;
        Ok(())
    }

    /// Why it is so many, if that was left to this pair.
    pub(super) fn why(&self) -> Option<String> {
        let auto = self.auto.as_ref()?;
        if auto.since.is_none() {
            return Some("nothing is known of the way yet".into());
        }
        let at = |slow: bool| {
            let parity = self.parity[usize::from(slow)];
            let other = |parity: u8| format!("{:.3} with {parity}", auto.cost(parity, slow));
            let fewer = parity.checked_sub(1).map(other);
            let others: Vec<String> = fewer.into_iter().chain([other(parity + 1)]).collect();
            format!(
                "{parity} costs {:.3} ({:.3} % lost after repair), and {}",
                auto.cost(parity, slow),
                100.0 * auto.stays_lost(parity, slow),
                others.join(", ")
            )
        };
        Some(format!(
            "{:.2} % of messages lost on the way; {}; while messages take longer than usual, {}",
            100.0 * auto.lost(),
            at(false),
            at(true)
        ))
    }
}

impl Auto {
    /// Lets what was before fade, or forgets it if the network has changed.
    fn age(&mut self, now: Time) {
        let age = now.since(*self.since.get_or_insert(now));
        let has_changed = self.before.sum(|_| 1.0) > 0.0 && self.last.differ_from(&self.before, self.spread);
        if !has_changed && age < SPAN {
            return;
        }
        if self.before.sum(|_| 1.0) > 0.0 {
            self.spread += (self.last.off_squared(&self.before) - self.spread) / SPREAD_SPANS;
        }
        let faded = 0.5f64.powf(age.as_secs_f64() / HALF_LIFE.as_secs_f64());
        self.before.fade(if has_changed { 0.0 } else { faded });
        self.before.append(&std::mem::take(&mut self.last));
        self.since = Some(now);
    }

    fn sum(&self, of: impl Fn(&Fate) -> f64) -> f64 {
        self.before.sum(&of) + self.last.sum(&of)
    }

    /// What costs least, of two for each message at most.
    fn best(&self, slow: bool) -> (u8, f64) {
        let most = (2 * self.data).min(PARITY_MAX as usize);
        let costs = (0..=most as u8).map(|parity| (parity, self.cost(parity, slow)));
        costs.min_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or((FIRST, 0.0))
    }

    /// The sum of what `of` says of each group: of those that began at this pace, and of [`PRIOR`] as all are.
    fn sum_at(&self, slow: bool, of: impl Fn(&Fate) -> f64) -> f64 {
        let own = self.sum(|fate| if fate.is_slow == slow { of(fate) } else { 0.0 });
        own + PRIOR * share(self.sum(&of), self.sum(|_| 1.0))
    }

    fn cost(&self, parity: u8, slow: bool) -> f64 {
        let groups = self.sum_at(slow, |_| 1.0);
        let messages = self.sum_at(slow, |fate| fate.size.into());
        100.0 * self.stays_lost(parity, slow) + f64::from(parity) * share(groups, messages)
    }

    /// Share of messages lost on the way.
    fn lost(&self) -> f64 {
        share(self.sum(|fate| fate.lost.into()), self.sum(|fate| fate.size.into()))
    }

    /// Share of messages that stay lost with so many parity messages a group.
    fn stays_lost(&self, parity: u8, slow: bool) -> f64 {
        let loss = self.loss.unwrap_or_else(|| self.lost());
        let lost = self.sum_at(slow, |fate| f64::from(fate.lost) * fate.fails(parity, loss));
        share(lost, self.sum_at(slow, |fate| fate.size.into()))
    }
}

fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fate(lost: u8, parity: u8, parity_lost: u8, enough: Option<u8>, is_slow: bool) -> Fate {
        Fate { size: 8, lost, parity, parity_lost, enough, is_slow }
    }

    fn auto(fates: impl IntoIterator<Item = (Fate, f64)>) -> Auto {
        let mut before = Fates::default();
        fates.into_iter().for_each(|(fate, groups)| before.add(fate, groups));
        Auto { data: 8, before, last: Fates::default(), since: None, spread: 0.0, loss: Some(0.1) }
    }

    #[test]
    fn it_costs_what_was_declared() {
        let auto = auto([
            (fate(0, 2, 0, Some(0), false), 80.0),
            (fate(1, 2, 0, Some(1), false), 10.0),
            (fate(1, 2, 1, Some(2), false), 5.0),
            (fate(2, 2, 1, None, false), 5.0),
        ]);
        let third = 3.2 / 12.0;
        for (parity, lost) in [(0, 25.0), (1, 15.0), (2, 10.0), (3, 10.0 * third), (4, 10.0 * third * third)]
        {
            let cost = 100.0 * lost / 800.0 + f64::from(parity) / 8.0;
            for slow in [false, true] {
                let seen = auto.cost(parity, slow);
                assert!((seen - cost).abs() < 1e-9, "{parity}, slow {slow}: {seen} {cost}");
            }
        }
    }

    #[test]
    fn each_pace_has_its_own_where_it_tells_of_loss() {
        let some = |usual: f64, slow: f64| {
            let of = |is_slow: bool, all: f64, hit: f64| {
                [(fate(2, 2, 0, Some(2), is_slow), hit), (fate(0, 2, 0, Some(0), is_slow), all - hit)]
            };
            let auto = auto(of(false, 9000.0, usual).into_iter().chain(of(true, 1000.0, slow)));
            [auto.best(false).0, auto.best(true).0]
        };
        assert_eq!(some(0.0, 500.0), [0, 2]);
        assert_eq!(some(4500.0, 0.0), [2, 0]);
        assert_eq!(some(900.0, 100.0), [2, 2]);
        assert_eq!(some(20.0, 0.0), [0, 0]);
    }
}
