//! Chapter 6 of the dissertation (paper N) on this machine: every table and figure with our figures, the
//! dissertation's, and the limit that was measured beside ours.
//!
//! One file an experiment; `network` has the hosts, `paper` what the dissertation says, `page` and `figures` what
//! becomes of the rows. Ours is a mean, as the dissertation's figures are, and so is the limit.

mod all;
mod device;
mod end_to_end;
mod far;
mod figures;
mod instruments;
mod machine;
mod network;
mod page;
pub(crate) mod paper;
mod relay;
mod screen;
mod throughput;
mod video;

use crate::Failure;
use crate::measure::Times;
use clap::{Args, ValueEnum};
use pipeline::{Origin, Pipeline};
use runtime::registry;
use serde::Serialize;
use serde_json::{Map, Value};
use std::path::PathBuf;
use std::time::Duration;

pub(crate) use all::{AllSetting, run as run_all, stages};
pub(crate) use device::device;
pub(crate) use end_to_end::end_to_end;
pub(crate) use far::{FarSetting, run as run_far};
pub(crate) use machine::single_machine;
use network::NetworkKind;
pub(crate) use network::{Lab, in_namespace};
pub(crate) use relay::run as run_relay;
pub(crate) use screen::{ScreenSetting, screen};
pub(crate) use throughput::throughput;
pub(crate) use video::{batching, video, video_single};

/// One measured point.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Row {
    pub(crate) experiment: &'static str,
    /// What was varied, and what it was.
    pub(crate) params: Map<String, Value>,
    pub(crate) unit: &'static str,
    /// Mean of all runs.
    pub(crate) ours: f64,
    /// Mean of the bare mechanism, measured in turns with ours.
    pub(crate) limit: Option<f64>,
    /// What the dissertation has for the same parameters.
    pub(crate) paper: Option<f64>,
    pub(crate) runs: usize,
    pub(crate) p50: f64,
    pub(crate) p99: f64,
}

impl Row {
    /// A row of times, in microseconds.
    pub(crate) fn of_times(
        experiment: &'static str,
        params: Map<String, Value>,
        ours: &Times,
        limit: Option<&Times>,
        paper: Option<f64>,
    ) -> Row {
        Row {
            experiment,
            params,
            unit: "us",
            ours: ours.mean_us(),
            limit: limit.map(Times::mean_us),
            paper,
            runs: ours.count(),
            p50: ours.percentile_us(0.5),
            p99: ours.percentile_us(0.99),
        }
    }

    /// The parameter as text; empty if there is none of this name.
    pub(crate) fn param(&self, name: &str) -> String {
        match self.params.get(name) {
            Some(Value::String(text)) => text.clone(),
            Some(value) => value.to_string(),
            None => String::new(),
        }
    }

    /// Which half of section 6.8 it belongs to: `stages` has two, the others have none.
    fn section(&self) -> String {
        if self.experiment == "stages" { self.param("part") } else { String::new() }
    }

    /// The parameter as a number, 0 if it is none.
    pub(crate) fn number(&self, name: &str) -> f64 {
        self.params.get(name).and_then(Value::as_f64).unwrap_or(0.0)
    }
}

/// Parameters of a row: `params! { "bytes": 100, "link": "pipe" }`.
macro_rules! params {
    ($($name:literal: $value:expr),* $(,)?) => {
        serde_json::Map::from_iter([$(($name.to_string(), serde_json::json!($value))),*])
    };
}
pub(crate) use params;

/// How a stage is joined to its neighbours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LinkKind {
    /// A call
    Direct,
    /// A process behind pipes
    Pipe,
    /// A process behind shared memory
    Shm,
}

impl LinkKind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            LinkKind::Direct => "direct",
            LinkKind::Pipe => "pipe",
            LinkKind::Shm => "shm",
        }
    }

    /// So many pairs that pass on what comes.
    pub(crate) fn pipeline(self, pairs: usize) -> String {
        self.pipeline_of(pairs, "null")
    }

    /// The same with an option of shared memory or several, as `slots=3`.
    pub(crate) fn pipeline_with(self, pairs: usize, options: &str) -> String {
        self.pipeline_of(pairs, &format!("null({options})"))
    }

    fn pipeline_of(self, pairs: usize, pair: &str) -> String {
        match self {
            LinkKind::Direct => vec!["null"; pairs].join(" | "),
            _ => vec![format!("@{} {pair}", self.name()); pairs].join(" | "),
        }
    }
}

/// A pipeline of this host's own.
pub(crate) fn parse(text: &str) -> Result<Pipeline, Failure> {
    Pipeline::parse(text, registry::pairs(), Origin::Local).map_err(|error| error.to_string().into())
}

/// What the experiments of the chapter share.
#[derive(Args, Debug, Clone)]
pub(crate) struct ChapterSetting {
    /// Networks: two hosts on loopback; in a lab of their own; in one that is as fast as the dissertation's. The labs
    /// need root
    #[arg(long = "network", value_delimiter = ',', default_values_t = NetworkKind::EVERY)]
    pub(crate) networks: Vec<NetworkKind>,
    /// Links of the pairs [default: all]
    #[arg(long = "link", value_delimiter = ',')]
    pub(crate) links: Vec<LinkKind>,
    /// Numbers of pairs, where an experiment varies them [default: as the dissertation]
    #[arg(long, value_delimiter = ',')]
    pub(crate) pairs: Vec<usize>,
    /// Sizes of messages in bytes, or sides of frames in pixels [default: as the dissertation]
    #[arg(long = "size", value_delimiter = ',')]
    pub(crate) sizes: Vec<usize>,
    /// Measurements of a point, at most [default: as the dissertation]
    #[arg(long)]
    pub(crate) repeats: Option<usize>,
    /// Seconds that a point may take; there are a few measurements at least
    #[arg(long, default_value_t = 1.0)]
    pub(crate) seconds: f64,
    /// Pause before each message; the dissertation's is 2s
    #[arg(long, default_value = "0s", value_parser = read_duration)]
    pub(crate) pause: Duration,
    /// Turns that ours and the limit take
    #[arg(long, default_value_t = 2)]
    pub(crate) rounds: usize,
    /// Real-time priority, for a machine that others use too (needs a privilege)
    #[arg(long)]
    pub(crate) urgent: bool,
    /// The program `netlab` [default: beside this one]
    #[arg(long)]
    pub(crate) netlab: Option<PathBuf>,
    /// Write the experiment's pictures into this directory
    #[arg(long)]
    pub(crate) svg: Option<PathBuf>,
}

/// `2s`, `20ms`, `100us`.
fn read_duration(text: &str) -> Result<Duration, String> {
    let at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(at);
    let seconds = match unit {
        "s" => 1.0,
        "ms" => 1e-3,
        "us" => 1e-6,
        _ => return Err("give a number with s, ms or us".into()),
    };
    let number: f64 = number.parse().map_err(|_| format!("{number:?} is no number"))?;
    Duration::try_from_secs_f64(number * seconds).map_err(|error| error.to_string())
}

impl ChapterSetting {
    /// Before anything is measured. Threads and processes that are started later have what this thread has.
    fn begin(&self) -> Result<(), Failure> {
        if self.urgent && !sys::thread::be_urgent() {
            return Err("real-time priority needs a privilege: CAP_SYS_NICE".into());
        }
        use_outboard()
    }

    /// The links to measure: those asked for, or all.
    pub(crate) fn links(&self) -> Vec<LinkKind> {
        ChapterSetting::or(&self.links, LinkKind::value_variants().iter().copied())
    }

    /// The dissertation's values, or those asked for instead.
    pub(crate) fn or<T: Copy>(asked: &[T], papers: impl IntoIterator<Item = T>) -> Vec<T> {
        if asked.is_empty() { papers.into_iter().collect() } else { asked.to_vec() }
    }

    /// How a point is measured in one of the rounds.
    pub(crate) fn block(&self, bytes: usize, repeats: usize) -> Block {
        let rounds = self.rounds.max(1);
        Block {
            bytes,
            count: self.repeats.unwrap_or(repeats).div_ceil(rounds),
            budget: Duration::from_secs_f64((self.seconds / rounds as f64).clamp(0.0, 1e6)),
        }
    }
}

/// Messages of one size, one after the other.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Block {
    pub(crate) bytes: usize,
    /// At most.
    pub(crate) count: usize,
    /// No more are begun once so much time has gone, but for the first few.
    pub(crate) budget: Duration,
}

impl Block {
    /// Are measured however long they take.
    pub(crate) const LEAST: usize = 3;
    /// Go first and are not measured.
    pub(crate) const WARM_UP: usize = 2;
}

/// What a run leaves of itself while it goes on.
pub(crate) fn progress(what: &str) {
    eprintln!("bench: {what}");
}

/// Runs one experiment, prints its rows and draws its pictures.
pub(crate) fn run(
    setting: &ChapterSetting,
    experiment: impl FnOnce(&ChapterSetting) -> Result<Vec<Row>, Failure>,
) -> Result<Value, Failure> {
    setting.begin()?;
    let rows = experiment(setting)?;
    print!("{}", page::plain(&rows));
    if let Some(directory) = &setting.svg {
        figures::write(&rows, directory)?;
    }
    Ok(serde_json::to_value(&rows)?)
}

/// Modules run as processes of the program `outboard`, which stands beside this one.
pub(crate) fn use_outboard() -> Result<(), Failure> {
    let program = beside("outboard")?;
    runtime::use_program(program);
    Ok(())
}

/// A program that stands beside this one.
pub(crate) fn beside(name: &str) -> Result<PathBuf, Failure> {
    let program = std::env::current_exe()?.with_file_name(name);
    match program.is_file() {
        true => Ok(program),
        false => Err(format!(
            "there is no {}: `make install` puts it there, or `cargo build --release -p outboard -p outboard-lab`",
            program.display()
        )
        .into()),
    }
}
