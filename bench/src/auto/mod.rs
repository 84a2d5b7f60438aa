//! The cost of `auto` beside fixed settings, on six networks, in virtual time.
//!
//! Each adaptive pair minimises its declared cost (`Subject::declared`). The experiment measures this cost for `auto` and for fixed
//! settings, with seeds that were not used for tuning. `networks` has the networks, `journey` the flow.

pub(crate) mod efforts;
mod journey;
mod networks;
mod picture;

use crate::setting::Failure;
use contract::{OptionKind, Pair};
use journey::{Journey, Traffic};
use networks::{NETWORKS, Network};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::Duration;

/// The settings of `auto`.
#[derive(clap::Args, Debug)]
pub(crate) struct AutoSetting {
    /// Virtual seconds of each run
    #[arg(long, default_value_t = 130)]
    seconds: u64,
    /// Runs of each setting on each network
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..1_000_000))]
    seeds: u64,
    /// The first seed
    #[arg(long, default_value_t = 2001, value_parser = clap::value_parser!(u64).range(..1 << 62))]
    first_seed: u64,
    /// Only this pair
    #[arg(long)]
    pair: Option<String>,
    /// Draw the costs to this file (SVG)
    #[arg(long)]
    svg: Option<PathBuf>,
}

/// The highest cost of `auto` relative to the best fixed setting on a network.
const RATIO_MAX: f64 = 1.1;

/// An adaptive pair with its fixed settings and its traffic.
struct Subject {
    pair: &'static str,
    /// Options of all settings.
    given: &'static [(&'static str, &'static str)],
    option: &'static str,
    /// Values of the option, or other options as in a pipeline.
    fixed: &'static [&'static str],
    device: &'static str,
    traffic: Traffic,
    cost: fn(&Journey, &Traffic) -> f64,
    /// The cost in words, fixed before any measurement.
    declared: &'static str,
    unit: &'static str,
}

const MOUSE: Traffic = Traffic { period: Duration::from_millis(16), body: |_| vec![7; 24] };

/// A gaming mouse.
const FAST_MOUSE: Traffic = Traffic { period: Duration::from_millis(1), body: |_| vec![7; 24] };

/// Fast enough that groups of `fec` are full before its `wait` ends.
const SPACE_MOUSE: Traffic = Traffic { period: Duration::from_millis(5), body: |_| vec![7; 24] };

static SUBJECTS: [Subject; 4] = [
    Subject {
        pair: "buffer",
        given: &[("mode", "play"), ("delay_max", "2s")],
        option: "delay",
        fixed: &[
            "0s", "50us", "100us", "200us", "500us", "1ms", "2ms", "3ms", "4ms", "5ms", "8ms", "12ms",
            "15ms", "20ms", "30ms", "40ms", "50ms", "60ms", "80ms", "120ms", "200ms", "300ms", "400ms",
            "600ms", "1s",
        ],
        device: "24 bytes every 16 ms",
        traffic: MOUSE,
        cost: rhythm_cost,
        declared: "the 99th percentile of the time from creation to release, plus ten message periods for each late share",
        unit: "ms",
    },
    Subject {
        pair: "bundle",
        given: &[],
        option: "count",
        fixed: &["1", "2", "3", "4", "5", "6", "7", "8", "10", "12", "16", "24", "32", "64"],
        device: "24 bytes every 1 ms",
        traffic: FAST_MOUSE,
        cost: rhythm_and_loss_cost,
        declared: "the 99th percentile of the time from creation to release, plus ten message periods for each share that is late or lost",
        unit: "ms",
    },
    Subject {
        pair: "compress",
        given: &[],
        option: "level",
        fixed: &["method=lz4", "1", "3", "6", "9"],
        device: "a message every 100 ms: eight in ten are 1 to 8 KiB of text, one is a frame of 490 KB with areas of one \
                 shade, one is 4 KiB of noise",
        traffic: Traffic { period: Duration::from_millis(100), body: efforts::mix },
        cost: mean_cost,
        declared: "the mean time from the arrival of a message to the end of its decompression: compression, network (bytes at its rate), queueing, decompression",
        unit: "ms",
    },
    Subject {
        pair: "fec",
        given: &[],
        option: "parity",
        fixed: &["0", "1", "2", "3", "4", "5", "6", "8", "10", "12", "16"],
        device: "24 bytes every 5 ms",
        traffic: SPACE_MOUSE,
        cost: loss_cost,
        declared: "100 × share of messages that stay lost + parity messages per message",
        unit: "",
    },
];

/// The 99th percentile of the delay plus ten periods times the share of late messages.
fn rhythm_cost(journey: &Journey, traffic: &Traffic) -> f64 {
    let late = journey.late() as f64 / journey.deliveries.len().max(1) as f64;
    journey.p99_ms() + 10.0 * late * traffic.period.as_secs_f64() * 1e3
}

/// [`rhythm_cost`] plus ten periods times the share of lost messages.
fn rhythm_and_loss_cost(journey: &Journey, traffic: &Traffic) -> f64 {
    let lost = 1.0 - journey.deliveries.len() as f64 / journey.messages.max(1) as f64;
    rhythm_cost(journey, traffic) + 10.0 * lost.max(0.0) * traffic.period.as_secs_f64() * 1e3
}

/// The mean time from creation to delivery.
fn mean_cost(journey: &Journey, _: &Traffic) -> f64 {
    journey.mean_ms()
}

/// A hundred times the share of lost messages plus the parity messages per message.
fn loss_cost(journey: &Journey, _: &Traffic) -> f64 {
    let messages = journey.messages.max(1) as f64;
    let lost = 1.0 - journey.deliveries.len() as f64 / messages;
    100.0 * lost.max(0.0) + (journey.records as f64 / messages - 1.0).max(0.0)
}

/// The mean costs of one setting on every network over all seeds.
struct Row {
    value: &'static str,
    costs: Vec<f64>,
    /// The cost of each run on every network.
    runs: Vec<Vec<f64>>,
    /// The choice of `auto` at the end of the last run on each network.
    choices: Vec<String>,
}

/// All measurements of one pair.
struct Sweep {
    subject: &'static Subject,
    auto: Row,
    fixed: Vec<Row>,
    /// The cost that the pair declares.
    /// The cheapest fixed setting on each network.
    best: Vec<usize>,
    first_seed: u64,
}

/// Runs `auto`.
pub(crate) fn run(setting: &AutoSetting) -> Result<Value, Failure> {
    let mut sweeps = Vec::new();
    println!(
        "Seeds {} to {}, {} s of virtual time each.\n",
        setting.first_seed,
        setting.first_seed + setting.seeds.saturating_sub(1),
        setting.seconds
    );
    for subject in &SUBJECTS {
        if setting.pair.as_deref().is_none_or(|pair| pair == subject.pair) {
            let sweep = sweep(subject, setting)?;
            sweep.print();
            sweeps.push(sweep);
        }
    }
    if let Some(file) = &setting.svg {
        std::fs::write(file, picture::draw(&sweeps))
            .map_err(|error| format!("cannot write {}: {error}", file.display()))?;
        println!(
            "![Cost by setting and network. Lines: fixed settings; dots: auto]({})",
            file.file_name().unwrap_or_default().display()
        );
    }
    Ok(sweeps.iter().map(Sweep::json).collect())
}

fn sweep(subject: &'static Subject, setting: &AutoSetting) -> Result<Sweep, Failure> {
    let pair = stages::PAIRS.iter().copied().find(|pair| pair.name() == subject.pair);
    let pair = pair.ok_or("there is no such pair")?;
    let is_adaptive = pair
        .options()
        .iter()
        .any(|option| option.name == subject.option && matches!(option.kind, OptionKind::OrAuto(_)));
    if !is_adaptive {
        return Err(format!("{}: `{}` has no `auto`", subject.pair, subject.option).into());
    }
    let auto = measure(pair, subject, "auto", setting)?;
    let fixed = subject.fixed.iter().map(|value| measure(pair, subject, value, setting));
    let fixed = fixed.collect::<Result<Vec<_>, _>>()?;
    let cheapest = |network: usize| {
        let costs = fixed.iter().map(|row: &Row| row.costs[network]).enumerate();
        costs.min_by(|a, b| a.1.total_cmp(&b.1)).map_or(0, |(index, _)| index)
    };
    let best = (0..NETWORKS.len()).map(cheapest).collect();
    Ok(Sweep { subject, auto, fixed, best, first_seed: setting.first_seed })
}

fn measure(
    pair: &dyn Pair,
    subject: &Subject,
    value: &'static str,
    setting: &AutoSetting,
) -> Result<Row, Failure> {
    let one = |text: &'static str| text.split_once('=').unwrap_or((subject.option, text));
    let given: Vec<_> = subject.given.iter().copied().chain(value.split(", ").map(one)).collect();
    let (mut runs, mut choices) = (Vec::new(), Vec::new());
    for network in &NETWORKS {
        let mut costs = Vec::new();
        let mut choice = String::new();
        for seed in setting.first_seed..setting.first_seed + setting.seeds {
            let journey = journey::run(pair, &given, &subject.traffic, network, setting.seconds, seed)
                .map_err(|error| {
                    format!("{}({value}) on {}, seed {seed}: {error}", pair.name(), network.name)
                })?;
            costs.push((subject.cost)(&journey, &subject.traffic));
            choice = journey.choices.first().map_or(String::new(), |choice| choice.value.to_string());
        }
        runs.push(costs);
        choices.push(choice);
    }
    let mean = |costs: &Vec<f64>| costs.iter().sum::<f64>() / costs.len() as f64;
    Ok(Row { value, costs: runs.iter().map(mean).collect(), runs, choices })
}

impl Sweep {
    fn least(&self, network: usize) -> f64 {
        self.fixed[self.best[network]].costs[network]
    }

    /// Returns the costs of a setting relative to the best fixed setting on each network.
    fn ratios(&self, row: &Row) -> Vec<f64> {
        let ratio = |(network, cost): (usize, &f64)| match self.least(network) {
            0.0 if *cost == 0.0 => 1.0,
            least => cost / least,
        };
        row.costs.iter().enumerate().map(ratio).collect()
    }

    fn over_all(&self, row: &Row) -> f64 {
        let ratios = self.ratios(row);
        ratios.iter().sum::<f64>() / ratios.len() as f64
    }

    /// Returns the best fixed setting over all networks.
    fn best_over_all(&self) -> Option<&Row> {
        self.fixed.iter().min_by(|a, b| self.over_all(a).total_cmp(&self.over_all(b)))
    }

    fn print(&self) {
        let Subject { declared, pair, option, device, unit, .. } = self.subject;
        println!("### {pair}({option}=auto)\n");
        println!("The pair minimises {declared}.\n");
        println!(
            "The device creates {device}.{}\n",
            if unit.is_empty() { "" } else { " Costs are in milliseconds." }
        );
        println!(
            "| network | best fixed `{option}` | its cost | last choice of auto | auto's cost | auto / best fixed |"
        );
        println!("|---|---|---|---|---|---|");
        for (index, (network, ratio)) in NETWORKS.iter().zip(self.ratios(&self.auto)).enumerate() {
            println!(
                "| {} | {} | {:.3} | {} | {:.3} | {ratio:.2} |",
                network.name,
                self.fixed[self.best[index]].value,
                self.least(index),
                self.auto.choices[index],
                self.auto.costs[index]
            );
        }
        if let Some(best) = self.best_over_all() {
            println!(
                "\nMean ratio over all networks: auto {:.2}; the best single fixed setting, {}, {:.2}.\n",
                self.over_all(&self.auto),
                best.value,
                self.over_all(best)
            );
            self.print_worst();
            self.print_missed(best);
        }
    }

    /// Prints the worst run of `auto` beside the best fixed setting of its network.
    fn print_worst(&self) {
        let beside = |network: usize| {
            self.auto.runs[network].iter().zip(&self.fixed[self.best[network]].runs[network])
        };
        let runs = (0..NETWORKS.len())
            .flat_map(|network| beside(network).zip(self.first_seed..).map(move |run| (network, run)));
        // A cost of zero has no multiples.
        let ratio = |auto: f64, fixed: f64| if fixed > 0.0 { auto / fixed } else { 1.0 };
        let worst = runs.max_by(|(_, (a, _)), (_, (b, _))| ratio(*a.0, *a.1).total_cmp(&ratio(*b.0, *b.1)));
        if let Some((network, ((auto, fixed), seed))) = worst {
            println!(
                "Worst run of auto: on {}, seed {seed}, {auto:.3} beside {fixed:.3}.\n",
                NETWORKS[network].name
            );
        }
    }

    /// Prints missed goals: `auto` is near the best fixed setting on each network and better than any single one over all.
    fn print_missed(&self, best: &Row) {
        let far = NETWORKS.iter().zip(self.ratios(&self.auto)).filter(|(_, ratio)| *ratio > RATIO_MAX);
        for (network, ratio) in far {
            println!(
                "**Missed**: on {}, {:.0} % above the best fixed setting.\n",
                network.name,
                (ratio - 1.0) * 100.0
            );
        }
        let (auto, fixed) = (self.over_all(&self.auto), self.over_all(best));
        if auto >= fixed {
            println!(
                "**Missed**: over all networks {auto:.3}, not better than {fixed:.3} of {}.\n",
                best.value
            );
        }
    }

    fn json(&self) -> Value {
        let row = |row: &Row| json!({ "value": row.value, "costs": row.costs, "ratios": self.ratios(row) });
        let names: Vec<_> = NETWORKS.iter().map(|network: &Network| network.name).collect();
        json!({
            "experiment": "auto", "pair": self.subject.pair, "option": self.subject.option, "networks": names,
            "auto": row(&self.auto), "fixed": self.fixed.iter().map(row).collect::<Vec<_>>(),
        })
    }
}
