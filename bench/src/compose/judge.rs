//! Judges a flow by the promises of its pairs.

use super::draw::{Case, changes};
use super::hosts::{self, Arrived};
use crate::pairs::messages;
use contract::{FlowClass, Format};
use flow::FlowStats;
use netsim::Rng;
use serde_json::{Value, json};
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// Longest time between two messages, microseconds.
const GAP_US: u64 = 5000;

/// The result of some flows.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Tally {
    pub(super) pipelines: u64,
    pub(super) pairs: u64,
    pub(super) sent: u64,
    pub(super) arrived: u64,
    /// Messages that did not arrive and that a host counted.
    pub(super) absent: u64,
    /// Sent and arrived messages of flows whose pairs change bodies. They are not in the figures above.
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

/// Runs the flow and judges the result.
pub(super) fn run(case: &Case) -> Result<Tally, String> {
    let mut rng = Rng::new(case.seed, 3);
    let sent: Vec<Vec<u8>> = (0..case.messages).map(|number| body(&mut rng, &case.format, number)).collect();
    let is_burst = rng.chance(1, 4);
    let mut at = Duration::ZERO;
    let to_send: VecDeque<_> = sent
        .iter()
        .map(|body| {
            let gap = if is_burst { 0 } else { rng.up_to(GAP_US) };
            at += Duration::from_micros(gap);
            (at, body.clone())
        })
        .collect();
    let arrived = hosts::carry(case, to_send, |arrived| judge(case, &sent, arrived).is_ok())?;
    judge(case, &sent, &arrived)
}

/// Most messages of a bundle with `count=auto`, by its documentation.
const AUTO_BUNDLE_MAX: u64 = 64;

/// Draws a body of this format. Bodies of bytes are unique.
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
    let (count, received) = (sent.len() as u64, arrived.received.len() as u64);
    let tally = Tally { pipelines: 1, pairs: case.pipeline.pairs().len() as u64, ..Tally::default() };
    if case.pipeline.pairs().iter().any(|used| changes(used.pair, &used.options)) {
        let must_come = !promises.may_drop && !loses;
        return match must_come && received == 0 {
            true => Err("no message arrived".into()),
            false => Ok(Tally { changing: [count, received], ..tally }),
        };
    }
    let is_ordered = !(promises.may_reorder || loses && case.transport == "udp");
    compare(sent, &arrived.received, is_ordered)?;
    let absent = count - received;
    let drops = Drops::of(arrived);
    if absent > 0 && !promises.may_drop && !loses {
        return Err(format!("{absent} of {count} did not arrive, and no pair may drop: {drops:?}"));
    }
    let covered = drops.count().saturating_mul(messages_of_a_drop(case));
    match absent > covered {
        true => {
            Err(format!("{absent} of {count} did not arrive, and {covered} are accounted for: {drops:?}"))
        }
        false => Ok(Tally { sent: count, arrived: received, absent, ..tally }),
    }
}

/// Checks that every received message was sent, no more often than sent, and in order if required.
fn compare(sent: &[Vec<u8>], received: &[Vec<u8>], is_ordered: bool) -> Result<(), String> {
    let mut left: HashMap<&[u8], VecDeque<usize>> = HashMap::new();
    for (number, body) in sent.iter().enumerate() {
        left.entry(body).or_default().push_back(number);
    }
    let mut last = None;
    for (place, body) in received.iter().enumerate() {
        let numbers = left
            .get_mut(body.as_slice())
            .ok_or_else(|| format!("received message {place} was never sent ({} bytes)", body.len()))?;
        // Of equal messages, the first one after the last match.
        let is_next = |number: &usize| !is_ordered || last.is_none_or(|last| *number > last);
        let found = numbers.iter().position(is_next).and_then(|index| numbers.remove(index));
        let Some(number) = found else {
            return Err(format!("received message {place}, after {last:?}, is out of order or repeated"));
        };
        last = Some(number);
    }
    Ok(())
}

/// The drops that both hosts counted.
#[derive(Debug)]
struct Drops {
    named: Vec<(String, u64)>,
    /// Records of a timely flow that the network lost.
    lost: u64,
}

impl Drops {
    fn of(arrived: &Arrived) -> Drops {
        let [device_host, application_host] = &arrived.stats;
        let flows = || device_host.outgoing.iter().chain(&application_host.incoming);
        let named = |flow: &FlowStats| flow.drops.clone().into_iter().collect::<Vec<_>>();
        Drops { named: flows().flat_map(named).collect(), lost: flows().map(|flow| flow.lost).sum() }
    }

    fn count(&self) -> u64 {
        self.lost + self.named.iter().map(|(_, count)| count).sum::<u64>()
    }
}

/// Returns the most messages of the device that one drop may contain: a bundle is dropped as one.
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
    use flow::DriverStats;

    fn bodies(numbers: &[u8]) -> Vec<Vec<u8>> {
        numbers.iter().map(|number| vec![*number; 3]).collect()
    }

    #[test]
    fn wrong_repeated_and_reordered_messages_are_found() {
        let sent = bodies(&[1, 2, 2, 3]);
        assert_eq!(compare(&sent, &bodies(&[1, 2, 2, 3]), true), Ok(()));
        assert_eq!(compare(&sent, &bodies(&[2, 3]), true), Ok(()));
        assert_eq!(compare(&sent, &bodies(&[3, 2, 1]), false), Ok(()));
        assert!(compare(&sent, &bodies(&[3, 2, 1]), true).is_err());
        assert!(compare(&sent, &bodies(&[1, 1]), false).is_err());
        assert!(compare(&sent, &bodies(&[4]), false).is_err());
    }

    #[test]
    fn missing_messages_must_be_counted_by_a_pair_that_may_drop() {
        let judged = |via: &str, class, drops: u64| {
            let mut case = Case::draw(1, false).unwrap();
            case.pipeline = pipeline::Pipeline::parse(via, stages::PAIRS, pipeline::Origin::Local).unwrap();
            case.class = class;
            let mut incoming = FlowStats::default();
            incoming.drops.insert("a reason".into(), drops);
            let stats =
                [DriverStats::default(), DriverStats { incoming: Some(incoming), ..Default::default() }];
            judge(&case, &bodies(&[1, 2, 3]), &Arrived { received: bodies(&[1]), stats }).is_ok()
        };
        assert!(judged("periodic", FlowClass::Reliable, 2));
        assert!(!judged("periodic", FlowClass::Reliable, 1));
        assert!(judged("bundle(count=2) | periodic", FlowClass::Reliable, 1));
        assert!(!judged("compress", FlowClass::Reliable, 2));
        assert!(judged("compress", FlowClass::Timely, 2));
    }
}
