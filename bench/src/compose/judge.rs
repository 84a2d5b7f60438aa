//! What must arrive of a flow, by what its pairs promise.

use super::draw::{Case, changes};
use super::hosts::{self, Arrived};
use crate::pairs::messages;
use contract::{FlowClass, Format};
use netsim::Rng;
use runtime::FlowStats;
use serde_json::{Value, json};
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// Longest time between two messages, microseconds.
const GAP_US: u64 = 5000;

/// What came of some flows.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Tally {
    pub(super) pipelines: u64,
    pub(super) pairs: u64,
    pub(super) sent: u64,
    pub(super) arrived: u64,
    /// Did not arrive, as somebody counted.
    pub(super) absent: u64,
    /// Sent to, and arrived through, pairs that change what messages say; in none of the figures above.
    pub(super) changing: [u64; 2],
}

impl Tally {
    pub(super) fn add(&mut self, other: &Tally) {
        self.pipelines += other.pipelines;
        self.pairs += other.pairs;
        self.sent += other.sent;
        self.arrived += other.arrived;
        self.absent += other.absent;
        for (sum, one) in self.changing.iter_mut().zip(other.changing) {
            *sum += one;
        }
    }

    pub(super) fn figures(&self) -> Value {
        let Tally { pipelines, pairs, sent, arrived, absent, changing } = self;
        json!({ "pipelines": pipelines, "pairs": pairs, "sent": sent, "arrived": arrived, "absent": absent,
            "changing_sent": changing[0], "changing_arrived": changing[1] })
    }
}

/// Runs the flow and judges what came of it.
pub(super) fn run(case: &Case) -> Result<Tally, String> {
    let mut rng = Rng::new(case.seed, 3);
    let sent: Vec<Vec<u8>> = (0..case.messages).map(|number| body(&mut rng, &case.format, number)).collect();
    let is_burst = rng.chance(1, 4);
    let mut at = Duration::ZERO;
    let to_say: VecDeque<_> = sent
        .iter()
        .map(|body| {
            let gap = if is_burst { 0 } else { rng.up_to(GAP_US) };
            at += Duration::from_micros(gap);
            (at, body.clone())
        })
        .collect();
    let arrived = hosts::carry(case, to_say, |arrived| judge(case, &sent, arrived).is_ok())?;
    judge(case, &sent, &arrived)
}

/// Messages of a bundle at most where `count` is `auto`, as its documentation has it.
const AUTO_BUNDLE_MAX: u64 = 64;

/// A body of this format; where any bytes are one, no other is the same.
fn body(rng: &mut Rng, format: &Format, number: u64) -> Vec<u8> {
    let mut body = messages::body(rng, format).into_bytes().to_vec();
    if !matches!(format, Format::Motion | Format::Video) {
        body.extend(number.to_le_bytes());
    }
    body
}

fn judge(case: &Case, sent: &[Vec<u8>], arrived: &Arrived) -> Result<Tally, String> {
    let promises = case.pipeline.promises();
    let loses = case.class == FlowClass::Timely;
    let (count, came) = (sent.len() as u64, arrived.came.len() as u64);
    let tally = Tally { pipelines: 1, pairs: case.pipeline.pairs().len() as u64, ..Tally::default() };
    if case.pipeline.pairs().iter().any(|used| changes(used.pair, &used.options)) {
        let must_come = !promises.may_drop && !loses;
        return match must_come && came == 0 {
            true => Err("nothing came".into()),
            false => Ok(Tally { changing: [count, came], ..tally }),
        };
    }
    let is_ordered = !(promises.may_reorder || loses && case.transport == "udp");
    compare(sent, &arrived.came, is_ordered)?;
    let absent = count - came;
    let drops = Drops::of(arrived);
    if absent > 0 && !promises.may_drop && !loses {
        return Err(format!("{absent} of {count} never came, and nobody may drop: {drops:?}"));
    }
    let covered = drops.count().saturating_mul(messages_of_a_drop(case));
    match absent > covered {
        true => Err(format!("{absent} of {count} never came, and {covered} are accounted for: {drops:?}")),
        false => Ok(Tally { sent: count, arrived: came, absent, ..tally }),
    }
}

/// Whether what came was sent, no more often than it was sent, and in order if it has to be.
fn compare(sent: &[Vec<u8>], came: &[Vec<u8>], is_ordered: bool) -> Result<(), String> {
    let mut left: HashMap<&[u8], VecDeque<usize>> = HashMap::new();
    for (number, body) in sent.iter().enumerate() {
        left.entry(body).or_default().push_back(number);
    }
    let mut last = None;
    for (place, body) in came.iter().enumerate() {
        let numbers = left
            .get_mut(body.as_slice())
            .ok_or_else(|| format!("message {place} of what came was never sent ({} bytes)", body.len()))?;
        // Of equal messages, the first that is not before what came already.
        let is_next = |number: &usize| !is_ordered || last.is_none_or(|last| *number > last);
        let found = numbers.iter().position(is_next).and_then(|index| numbers.remove(index));
        let Some(number) = found else {
            return Err(format!(
                "message {place} of what came, after {last:?}, is out of order or came before"
            ));
        };
        last = Some(number);
    }
    Ok(())
}

/// What both hosts counted.
#[derive(Debug)]
struct Drops {
    named: Vec<(String, u64)>,
    /// Records that the network lost of a timely flow.
    lost: u64,
}

impl Drops {
    fn of(arrived: &Arrived) -> Drops {
        let [sharer, attacher] = &arrived.stats;
        let flows = || sharer.outgoing.iter().chain(&attacher.incoming);
        let named = |flow: &FlowStats| flow.drops.clone().into_iter().collect::<Vec<_>>();
        Drops { named: flows().flat_map(named).collect(), lost: flows().map(|flow| flow.lost).sum() }
    }

    fn count(&self) -> u64 {
        self.lost + self.named.iter().map(|(_, count)| count).sum::<u64>()
    }
}

/// How many of the device's messages may end with one that is dropped: a bundle goes as one.
fn messages_of_a_drop(case: &Case) -> u64 {
    let bundles = case.pipeline.pairs().iter().filter(|used| used.pair.name() == "bundle");
    let of_one = |used: &pipeline::PairUse| match used.options.is_auto("count") {
        true => AUTO_BUNDLE_MAX,
        false => used.options.count("count") as u64,
    };
    bundles.map(of_one).fold(1, u64::saturating_mul)
}

#[cfg(test)]
mod tests {
    use super::*;
    use runtime::DriverStats;

    fn bodies(numbers: &[u8]) -> Vec<Vec<u8>> {
        numbers.iter().map(|number| vec![*number; 3]).collect()
    }

    #[test]
    fn what_is_wrong_comes_twice_or_is_out_of_order_is_found() {
        let sent = bodies(&[1, 2, 2, 3]);
        assert_eq!(compare(&sent, &bodies(&[1, 2, 2, 3]), true), Ok(()));
        assert_eq!(compare(&sent, &bodies(&[2, 3]), true), Ok(()));
        assert_eq!(compare(&sent, &bodies(&[3, 2, 1]), false), Ok(()));
        assert!(compare(&sent, &bodies(&[3, 2, 1]), true).is_err());
        assert!(compare(&sent, &bodies(&[1, 1]), false).is_err());
        assert!(compare(&sent, &bodies(&[4]), false).is_err());
    }

    #[test]
    fn what_is_absent_must_be_counted_by_a_pair_that_may_drop() {
        let judged = |via: &str, class, drops: u64| {
            let mut case = Case::draw(1, false).unwrap();
            case.pipeline = pipeline::Pipeline::parse(via, stages::PAIRS, pipeline::Origin::Local).unwrap();
            case.class = class;
            let mut incoming = FlowStats::default();
            incoming.drops.insert("a reason".into(), drops);
            let stats =
                [DriverStats::default(), DriverStats { incoming: Some(incoming), ..Default::default() }];
            judge(&case, &bodies(&[1, 2, 3]), &Arrived { came: bodies(&[1]), stats }).is_ok()
        };
        assert!(judged("periodic", FlowClass::Reliable, 2));
        assert!(!judged("periodic", FlowClass::Reliable, 1));
        assert!(judged("bundle(count=2) | periodic", FlowClass::Reliable, 1));
        assert!(!judged("compress", FlowClass::Reliable, 2));
        assert!(judged("compress", FlowClass::Timely, 2));
    }
}
