//! What crossing a host and a network costs, beside the bare socket in the same run, and beside the papers.
//!
//! `outboard-bench latency|throughput|partner|isolate|jitter|skew|multiplex|auto|pairs|compose [--json FILE]`. Ours and the bare socket take turns, on
//! the same two processors, with the same congestion control, so that what drifts drifts for both.

mod auto;
mod bare;
mod compose;
mod devices;
mod isolate;
mod jitter;
mod latency;
mod measure;
mod multiplex;
mod ours;
mod pairs;
mod partner;
mod plot;
mod skew;
mod throughput;

use clap::{Args, Parser, Subcommand};
use serde_json::Value;
use std::path::PathBuf;

/// Errors go to a person: what was tried is in them.
type Failure = Box<dyn std::error::Error + Send + Sync>;

#[derive(Parser)]
#[command(about = "What crossing a host and a network costs, beside the bare socket")]
struct Arguments {
    #[command(subcommand)]
    experiment: Experiment,
    /// Write the figures to this file as JSON too
    #[arg(long, global = true)]
    json: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Experiment {
    /// One-way time of a message over loopback TCP, beside a bare ping-pong
    Latency(Setting),
    /// Messages of 1 MB as fast as they go, over TCP and UDP, beside bare sockets
    Throughput(Setting),
    /// Tables 3 and 4 of the Partner paper: what the partner vector costs
    Partner,
    /// What a stage in a process of its own costs, isolated or not, beside a call
    Isolate,
    /// Sections 6.7.1 and 6.7.2 of the dissertation: a device's rhythm over a network with jitter (needs root)
    Jitter(jitter::JitterSetting),
    /// Every pair × what it must stand: undo, loss, reordering, corruption, empty and large messages, restart
    Pairs(pairs::PairsSetting),
    /// Random pipelines of pairs over two hosts and a bad network, each delivering what its pairs promise
    Compose(compose::ComposeSetting),
    /// Figure 4.5 of the dissertation: two devices whose clocks drift, and how far apart they are at one sink
    Skew(skew::SkewSetting),
    /// One device of 62.5 updates a second at four hosts far and near: delay and rhythm, beside one host alone
    Multiplex(multiplex::MultiplexSetting),
    /// What `auto` costs beside every fixed setting, on six networks, in virtual time
    Auto(auto::AutoSetting),
    /// One host of `jitter`
    #[command(hide = true)]
    JitterSource {
        /// Updates
        updates: usize,
    },
    /// The other host of `jitter`
    #[command(hide = true)]
    JitterSink {
        /// Device to application
        pipeline: String,
    },
}

/// What both sides of a comparison share.
#[derive(Args, Debug, Clone)]
struct Setting {
    /// Turns that ours and the bare socket take
    #[arg(long, default_value_t = 10)]
    rounds: usize,
    /// Congestion control of every TCP socket
    #[arg(long, default_value = "cubic")]
    congestion: String,
    /// The two processors
    #[arg(long, value_delimiter = ',', num_args = 2, default_values_t = [0, 1])]
    cpus: Vec<usize>,
    /// Real-time priority, for a machine that others use too (needs a privilege)
    #[arg(long)]
    urgent: bool,
    /// Measure one message size only, bytes
    #[arg(long)]
    size: Option<usize>,
    /// Measure one transport's throughput only: tcp or udp
    #[arg(long)]
    transport: Option<String>,
    /// Measure for a profiler: only ours
    #[arg(long)]
    only_ours: bool,
}

impl Setting {
    /// What carries between hosts must not wait for what it serves: it may run on either processor.
    fn be_broker(&self) {
        if self.urgent {
            sys::thread::be_urgent();
        }
    }

    /// Takes its place on processor 0 or 1 of the setting.
    fn settle(&self, which: usize) {
        if let Some(cpu) = self.cpus.get(which) {
            sys::thread::pin_to_cpu(*cpu);
        }
        if self.urgent {
            sys::thread::be_urgent();
        }
    }
}

fn main() -> Result<(), Failure> {
    let arguments = Arguments::parse();
    let figures: Value = match &arguments.experiment {
        Experiment::Latency(setting) => latency::run(setting)?,
        Experiment::Throughput(setting) => throughput::run(setting)?,
        Experiment::Partner => partner::run(),
        Experiment::Isolate => isolate::run()?,
        Experiment::Jitter(setting) => jitter::run(setting)?,
        Experiment::Pairs(setting) => pairs::run(setting)?,
        Experiment::Compose(setting) => compose::run(setting)?,
        Experiment::Skew(setting) => skew::run(setting)?,
        Experiment::Multiplex(setting) => multiplex::run(setting)?,
        Experiment::Auto(setting) => auto::run(setting)?,
        Experiment::JitterSource { updates } => return jitter::source(*updates),
        Experiment::JitterSink { pipeline } => return jitter::sink(pipeline),
    };
    if let Some(file) = arguments.json {
        std::fs::write(&file, serde_json::to_string_pretty(&figures)?)
            .map_err(|error| format!("cannot write {}: {error}", file.display()))?;
    }
    Ok(())
}
