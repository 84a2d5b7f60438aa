//! All pairs compose: random pipelines over two hosts with a bad network between them, each delivering what its
//! pairs promise; and pipelines whose formats do not fit, refused before anything starts.
//!
//! Everything of a pipeline is drawn from its seed: `--seed SEED --pipelines 1` repeats it.

pub(crate) mod draw;
pub(crate) mod hosts;
mod judge;

use crate::Failure;
use clap::Args;
use contract::{Direction, FlowClass, Format};
use draw::{Case, LEFT_OUT, Misfit};
use hosts::{Bench, Hosts};
use judge::Tally;
use runtime::{Connection, Pipelines};
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// What to run.
#[derive(Args, Debug, Clone)]
pub(crate) struct ComposeSetting {
    /// Random pipelines
    #[arg(long, default_value_t = 1000)]
    pipelines: u64,
    /// Random pipelines whose formats do not fit
    #[arg(long, default_value_t = 200)]
    misfits: u64,
    /// Seed of the first pipeline; that of the next is one more
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Pipelines that run at a time
    #[arg(long, default_value_t = 16)]
    threads: usize,
}

/// What came of all pipelines.
#[derive(Default)]
struct Outcome {
    /// By flow class and transport.
    flows: BTreeMap<String, Tally>,
    /// In how many pipelines each pair stood.
    pairs: BTreeMap<&'static str, u64>,
    isolated: u64,
    refused: u64,
    broken: Vec<String>,
}

/// Prints what came of them; an error says what was broken.
pub(crate) fn run(setting: &ComposeSetting) -> Result<Value, Failure> {
    let program = std::env::current_exe()?.with_file_name("outboard");
    let may_isolate = program.is_file();
    if may_isolate {
        runtime::use_program(program);
    }
    let outcome = compose(setting, may_isolate);
    println!(
        "| flow | pipelines | pairs in them | sent | arrived | dropped by name | changed: sent | arrived |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for (flow, tally) in &outcome.flows {
        let Tally { pipelines, pairs, sent, arrived, absent, changing: [given, made] } = tally;
        println!("| {flow} | {pipelines} | {pairs} | {sent} | {arrived} | {absent} | {given} | {made} |");
    }
    println!("\n{LEGEND}\n");
    let times = outcome.pairs.iter().map(|(name, count)| format!("`{name}` {count}")).collect::<Vec<_>>();
    println!("Pipelines with each pair: {}.", times.join(", "));
    println!("{} pipelines had a stage in a confined process of its own.", outcome.isolated);
    for (name, reason) in LEFT_OUT {
        println!("Not drawn: `{name}`: {reason}.");
    }
    println!(
        "\nOf {} random pipelines whose formats do not fit, {} were refused by `Pipeline::check`, by what runs `outboard \
         connect`, and by the sharer, before a device or a node was opened, with an error that names both ends of the misfit.",
        setting.misfits, outcome.refused
    );
    match outcome.broken.is_empty() {
        true => Ok(outcome.figures()),
        false => Err(format!(
            "{} broken; `outboard-bench compose --seed SEED --pipelines 1 --misfits 1` repeats one:\n{}",
            outcome.broken.len(),
            outcome.broken.join("\n")
        )
        .into()),
    }
}

const LEGEND: &str = "\
Each pipeline has one to eight pairs with random options, and carries 40 to 100 messages between a sharer and an attacher, over a
network with a delay of up to 5 ms and a jitter of 1 to 20 ms, and for UDP reordering and a loss of 1 to 5 % as well. What arrives
is compared byte for byte: nothing wrong, nothing twice, and in order unless a pair may reorder (or UDP does, on a timely flow).
What does not arrive is covered by drops that either host counts by name (a bundle is dropped as one, and a timely flow's losses
on UDP are counted by its sink); on a reliable flow whose pairs do not drop,
everything arrives. Half of the pipelines are of pairs that neither drop nor change. Where a pair changes what messages say,
arrivals are counted only, and the flow has to end.";

/// Runs them all, several at a time.
fn compose(setting: &ComposeSetting, may_isolate: bool) -> Outcome {
    let outcome = Mutex::new(Outcome::default());
    let next = AtomicU64::new(0);
    let work = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let seed = setting.seed.wrapping_add(number);
            if number >= setting.pipelines.max(setting.misfits) {
                return;
            }
            if number < setting.pipelines {
                let ran = Case::draw(seed, may_isolate).and_then(|case| match judge::run(&case) {
                    Ok(tally) => Ok((case, tally)),
                    Err(problem) => Err(format!(
                        "{problem}\n  {}, {}: {}",
                        case.format,
                        case.network_text(),
                        case.pipeline.text()
                    )),
                });
                outcome.lock().unwrap_or_else(PoisonError::into_inner).add(seed, ran);
            }
            if number < setting.misfits {
                let refused = Misfit::draw(seed).and_then(|misfit| {
                    let Misfit { format, pipeline, .. } = &misfit;
                    refuse(&misfit).map_err(|problem| format!("{problem}\n  {format}: {}", pipeline.text()))
                });
                let mut outcome = outcome.lock().unwrap_or_else(PoisonError::into_inner);
                match refused {
                    Ok(()) => outcome.refused += 1,
                    Err(problem) => outcome.broken.push(format!("misfit, seed {seed}: {problem}")),
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..setting.threads.max(1) {
            scope.spawn(work);
        }
    });
    outcome.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Has a pipeline refused everywhere; an error says where it was not, or what was wrong with the refusal.
fn refuse(misfit: &Misfit) -> Result<(), String> {
    let names_both = |place: &str, error: String| {
        let is_named = error.contains(&misfit.maker) && error.contains(&misfit.taker);
        is_named.then_some(()).ok_or_else(|| format!("{place} does not name both ends: {error}"))
    };
    let taken = |place: &str| format!("{place} takes it");
    let check = misfit.pipeline.check(&misfit.format).err().ok_or_else(|| taken("Pipeline::check"))?;
    names_both("Pipeline::check", check.to_string())?;

    let bench = Bench::new(VecDeque::new())?;
    let partners = [Direction::Out, Direction::In].map(|role| bench.partner(role));
    let made = bench.opened();
    let [device, application] = partners;
    let flows = hosts::flows(&misfit.format, FlowClass::Reliable);
    let pipelines = Pipelines { via: Some(misfit.pipeline.clone()), ..Pipelines::default() };
    let error =
        Connection::new(device, application, &flows, &pipelines).err().ok_or_else(|| taken("connect"))?;
    names_both("connect", error.to_string())?;
    if bench.opened() > made {
        return Err("connect opened a flow before it refused".into());
    }

    let bench = Bench::new(VecDeque::new())?;
    let network = (&netsim::Params::default(), 1);
    let flow: (&Format, _) = (&misfit.format, FlowClass::Reliable);
    let mut hosts = Hosts::start(&bench, flow, "tcp", network, &misfit.pipeline)?;
    let made = bench.opened();
    let error = hosts.end()?.err().ok_or_else(|| taken("attach"))?;
    names_both("attach", error)?;
    match bench.opened() > made {
        true => Err("a device or a node was opened before the sharer refused".into()),
        false => Ok(()),
    }
}

impl Outcome {
    fn add(&mut self, seed: u64, ran: Result<(Case, Tally), String>) {
        let (case, tally) = match ran {
            Ok(ran) => ran,
            Err(problem) => return self.broken.push(format!("seed {seed}: {problem}")),
        };
        let class = format!("{:?}", case.class).to_lowercase();
        self.flows.entry(format!("{class}, {}", case.transport)).or_default().add(&tally);
        let mut names: Vec<_> = case.pipeline.pairs().iter().map(|used| used.pair.name()).collect();
        names.sort_unstable();
        names.dedup();
        names.into_iter().for_each(|name| *self.pairs.entry(name).or_default() += 1);
        self.isolated += u64::from(case.is_isolated);
    }

    fn figures(&self) -> Value {
        let flows = self.flows.iter().map(|(flow, tally)| (flow.clone(), tally.figures()));
        json!({ "flows": flows.collect::<serde_json::Map<_, _>>(), "pairs": self.pairs, "isolated": self.isolated,
            "misfits_refused": self.refused })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_pipelines_deliver_what_their_pairs_promise_and_misfits_are_refused() {
        let setting = ComposeSetting { pipelines: 40, misfits: 10, seed: 1, threads: 20 };
        let outcome = compose(&setting, false);
        assert!(outcome.broken.is_empty(), "{}", outcome.broken.join("\n"));
        assert_eq!(outcome.flows.values().map(|tally| tally.pipelines).sum::<u64>(), setting.pipelines);
        assert_eq!(outcome.refused, setting.misfits);
    }
}
