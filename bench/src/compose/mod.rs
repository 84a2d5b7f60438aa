//! All pairs together: random pipelines over two hosts with a bad network must deliver what their pairs promise, and
//! pipelines whose formats do not fit must be refused before anything starts.
//!
//! All choices of a pipeline come from its seed: `--seed SEED --pipelines 1` repeats it.

pub(crate) mod draw;
pub(crate) mod hosts;
mod judge;

use crate::setting::Failure;
use clap::Args;
use contract::{Direction, FlowClass, Format};
use draw::{Case, LEFT_OUT, Misfit};
use flow::raw_path::Connection;
use hosts::{Ends, Hosts};
use judge::Tally;
use modules::Pipelines;
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// The settings of `compose`.
#[derive(Args, Debug, Clone)]
pub(crate) struct ComposeSetting {
    /// Random pipelines
    #[arg(long, default_value_t = 1000)]
    pipelines: u64,
    /// Random pipelines whose formats do not fit
    #[arg(long, default_value_t = 200)]
    misfits: u64,
    /// Seed of the first pipeline; each further one adds 1
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Pipelines that run at the same time
    #[arg(long, default_value_t = 16)]
    threads: usize,
}

/// The result of all pipelines.
#[derive(Default)]
struct Outcome {
    /// By flow class and transport.
    flows: BTreeMap<String, Tally>,
    /// Number of pipelines with each pair.
    pairs: BTreeMap<&'static str, u64>,
    isolated: u64,
    refused: u64,
    broken: Vec<String>,
}

/// Runs `compose`. A broken promise is an error.
pub(crate) fn run(setting: &ComposeSetting) -> Result<Value, Failure> {
    let program = std::env::current_exe()?.with_file_name("outboard");
    let may_isolate = program.is_file();
    if may_isolate {
        modules::use_program(program);
    }
    let outcome = compose(setting, may_isolate);
    println!(
        "| flow | pipelines | pairs | sent | arrived | dropped and counted | changing pairs: sent | arrived |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for (flow, tally) in &outcome.flows {
        let Tally { pipelines, pairs, sent, arrived, absent, changing: [given, made] } = tally;
        println!("| {flow} | {pipelines} | {pairs} | {sent} | {arrived} | {absent} | {given} | {made} |");
    }
    println!("\n{LEGEND}\n");
    let times = outcome.pairs.iter().map(|(name, count)| format!("`{name}` {count}")).collect::<Vec<_>>();
    println!("Pipelines with each pair: {}.", times.join(", "));
    println!("Pipelines with a stage in a sandboxed process of its own: {}.", outcome.isolated);
    for (name, reason) in LEFT_OUT {
        println!("Never drawn: `{name}`: {reason}.");
    }
    println!(
        "\nRandom pipelines whose formats do not fit: {}. Refused by `Pipeline::check`, by `outboard connect` and by the \
         device host, before a device or a node was opened, with an error that names both ends: {}.",
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
Each pipeline has one to eight pairs with random options. It carries 40 to 100 messages between a device host and an application
host, over a network with a delay of up to 5 ms and a jitter of 1 to 20 ms; UDP also has reordering and a loss of 1 to 5 %. Received
messages are compared byte for byte: none may be wrong or repeated, and none out of order unless a pair (or UDP, on a timely flow)
may reorder. Each missing message must be in a named count of a host (a bundle is dropped as one; the sink counts the losses of a
timely flow on UDP). A reliable flow whose pairs do not drop must deliver every message. Half of the pipelines have only pairs that
neither drop nor change messages. Messages of pairs that change bodies are counted only, and the flow must end.";

/// Runs all pipelines in several threads.
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

/// Checks that every place refuses a pipeline with an error that names both ends.
fn refuse(misfit: &Misfit) -> Result<(), String> {
    let names_both = |place: &str, error: String| {
        let is_named = error.contains(&misfit.source) && error.contains(&misfit.sink);
        is_named.then_some(()).ok_or_else(|| format!("{place} does not name both ends: {error}"))
    };
    let taken = |place: &str| format!("{place} accepts it");
    let check = misfit.pipeline.check(&misfit.format).err().ok_or_else(|| taken("Pipeline::check"))?;
    names_both("Pipeline::check", check.to_string())?;

    let ends = Ends::new(VecDeque::new())?;
    let partners = [Direction::Out, Direction::In].map(|role| ends.partner(role));
    let made = ends.opened();
    let [device, application] = partners;
    let flows = hosts::flows(&misfit.format, FlowClass::Reliable);
    let pipelines = Pipelines { via: Some(misfit.pipeline.clone()), ..Pipelines::default() };
    let error =
        Connection::new(device, application, &flows, &pipelines).err().ok_or_else(|| taken("connect"))?;
    names_both("connect", error.to_string())?;
    if ends.opened() > made {
        return Err("connect opened a flow before it refused".into());
    }

    let ends = Ends::new(VecDeque::new())?;
    let network = (&netsim::Params::default(), 1);
    let flow: (&Format, _) = (&misfit.format, FlowClass::Reliable);
    let mut hosts = Hosts::start(&ends, flow, "tcp", network, &misfit.pipeline)?;
    let made = ends.opened();
    let error = hosts.end()?.err().ok_or_else(|| taken("attach"))?;
    names_both("attach", error)?;
    match ends.opened() > made {
        true => Err("a device or a node was opened before the device host refused".into()),
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
    fn random_pipelines_keep_their_promises_and_misfits_are_refused() {
        let setting = ComposeSetting { pipelines: 40, misfits: 10, seed: 1, threads: 20 };
        let outcome = compose(&setting, false);
        assert!(outcome.broken.is_empty(), "{}", outcome.broken.join("\n"));
        assert_eq!(outcome.flows.values().map(|tally| tally.pipelines).sum::<u64>(), setting.pipelines);
        assert_eq!(outcome.refused, setting.misfits);
    }
}
