//! What crossing a host and a network costs, beside the bare socket in the same run, and beside the papers.
//!
//! `outboard-bench EXPERIMENT [--json FILE]`, or `outboard bench`. Ours and the bare mechanism take turns, on the same two
//! processors, with the same congestion control, so that what drifts drifts for both.

mod attacks;
mod auto;
mod bare;
mod chaos;
mod chapter6;
mod compose;
mod congestion;
mod devices;
mod display;
mod flood;
mod isolate;
mod jitter;
mod latency;
mod links_chain;
mod links_judge;
mod links_relay;
mod load;
mod measure;
mod multiplex;
mod ours;
mod ours_links;
mod pairs;
mod partner;
mod plot;
mod processes;
mod reliability;
mod rivals;
mod seal_cost;
mod skew;
mod soak;
mod trace_cost;
mod tunnels;
mod viewer;

use chapter6::ChapterSetting;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use serde_json::Value;
use std::path::PathBuf;
use std::process::ExitCode;

/// Errors go to a person: what was tried is in them.
type Failure = Box<dyn std::error::Error + Send + Sync>;

#[derive(Parser)]
#[command(name = experiments::PROGRAM, about = "What crossing a host and a network costs, beside the bare socket")]
struct Arguments {
    #[command(subcommand)]
    experiment: Experiment,
    /// Write the figures to this file as JSON too
    #[arg(long, global = true)]
    json: Option<PathBuf>,
}

/// What they are for stands in the list of experiments.
#[derive(Subcommand)]
enum Experiment {
    All(chapter6::AllSetting),
    EndToEnd(ChapterSetting),
    SingleMachine(ChapterSetting),
    Throughput(ChapterSetting),
    Device(ChapterSetting),
    Screen(chapter6::ScreenSetting),
    Jitter(jitter::JitterSetting),
    Stages(ChapterSetting),
    Video(ChapterSetting),
    VideoSingle(ChapterSetting),
    Batching(ChapterSetting),
    Viewer(viewer::ViewerSetting),
    Latency(Setting),
    Flood(Setting),
    TraceCost(Setting),
    SealCost(Setting),
    Tunnels(Setting),
    Congestion(congestion::CongestionSetting),
    Reliability(reliability::ReliabilitySetting),
    Chaos(chaos::ChaosSetting),
    Attacks(attacks::AttacksSetting),
    Partner,
    Isolate,
    Links(links_chain::LinksSetting),
    SoakShm(soak::SoakSetting),
    Multiplex(multiplex::MultiplexSetting),
    Pairs(pairs::PairsSetting),
    Compose(compose::ComposeSetting),
    Skew(skew::SkewSetting),
    Auto(auto::AutoSetting),
    Efforts,
    Load(load::LoadSetting),
    /// The attacker of `attacks`
    #[command(hide = true)]
    Attacker(attacks::AttackerSetting),
    /// The application's host of `reliability`, which sleeps
    #[command(hide = true)]
    Sleeper(reliability::SleeperSetting),
    /// Who sends what `load` compares with
    #[command(hide = true)]
    LoadSenders(load::SendersSetting),
    /// One process of a bare chain of `links`
    #[command(hide = true)]
    LinksRelay(links_relay::Relay),
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
    /// The far host of the experiments of chapter 6
    #[command(hide = true)]
    FarHost(chapter6::FarSetting),
    /// A program that only hands on what it reads
    #[command(hide = true)]
    Relay,
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
    /// Measure one transport only: tcp, udp or quic
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

/// The program that runs modules, which is built beside this one.
fn program() -> Result<PathBuf, Failure> {
    let program = std::env::current_exe()?.with_file_name("outboard");
    match program.is_file() {
        true => Ok(program),
        false => Err(format!("{} is not built: cargo build --release -p outboard", program.display()).into()),
    }
}

/// The command line, with what the list of experiments says of each.
fn command() -> clap::Command {
    experiments::EXPERIMENTS.iter().fold(Arguments::command(), |command, experiment| {
        command.mut_subcommand(experiment.name, |subcommand| subcommand.about(experiment.summary))
    })
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}: {error}", experiments::PROGRAM);
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Failure> {
    let matches = command().get_matches();
    let arguments = Arguments::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let figures: Value = match &arguments.experiment {
        Experiment::All(setting) => chapter6::run_all(setting)?,
        Experiment::EndToEnd(setting) => chapter6::run(setting, chapter6::end_to_end)?,
        Experiment::SingleMachine(setting) => chapter6::run(setting, chapter6::single_machine)?,
        Experiment::Throughput(setting) => chapter6::run(setting, chapter6::throughput)?,
        Experiment::Device(setting) => chapter6::run(setting, chapter6::device)?,
        Experiment::Screen(setting) => chapter6::run(&setting.chapter, |_| chapter6::screen(setting))?,
        Experiment::Jitter(setting) => jitter::run(setting)?,
        Experiment::Stages(setting) => chapter6::run(setting, chapter6::stages)?,
        Experiment::Video(setting) => chapter6::run(setting, chapter6::video)?,
        Experiment::VideoSingle(setting) => chapter6::run(setting, chapter6::video_single)?,
        Experiment::Batching(setting) => chapter6::run(setting, chapter6::batching)?,
        Experiment::Viewer(setting) => viewer::run(setting)?,
        Experiment::Latency(setting) => latency::run(setting)?,
        Experiment::Flood(setting) => flood::run(setting)?,
        Experiment::TraceCost(setting) => trace_cost::run(setting)?,
        Experiment::SealCost(setting) => seal_cost::run(setting)?,
        Experiment::Tunnels(setting) => tunnels::run(setting)?,
        Experiment::Congestion(setting) => congestion::run(setting)?,
        Experiment::Reliability(setting) => reliability::run(setting)?,
        Experiment::Chaos(setting) => chaos::run(setting)?,
        Experiment::Attacks(setting) => attacks::run(setting)?,
        Experiment::Partner => partner::run(),
        Experiment::Isolate => isolate::run()?,
        Experiment::Multiplex(setting) => multiplex::run(setting)?,
        Experiment::Links(setting) => links_chain::run(setting)?,
        Experiment::SoakShm(setting) => soak::run(setting)?,
        Experiment::Attacker(setting) => return attacks::run_attacker(setting),
        Experiment::Sleeper(setting) => return reliability::sleep(setting),
        Experiment::LoadSenders(setting) => return load::send(setting),
        Experiment::LinksRelay(relay) => return links_relay::relay(relay),
        Experiment::Pairs(setting) => pairs::run(setting)?,
        Experiment::Compose(setting) => compose::run(setting)?,
        Experiment::Skew(setting) => skew::run(setting)?,
        Experiment::Auto(setting) => auto::run(setting)?,
        Experiment::Efforts => auto::efforts::run()?,
        Experiment::Load(setting) => load::run(setting)?,
        Experiment::JitterSource { updates } => return jitter::source(*updates),
        Experiment::JitterSink { pipeline } => return jitter::sink(pipeline),
        Experiment::FarHost(setting) => return chapter6::run_far(setting),
        Experiment::Relay => return chapter6::run_relay(),
    };
    if let Some(file) = arguments.json {
        std::fs::write(&file, serde_json::to_string_pretty(&figures)?)
            .map_err(|error| format!("cannot write {}: {error}", file.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `mut_subcommand` makes what it does not find, so a name without an experiment shows up without a parser.
    #[test]
    fn the_list_of_experiments_is_the_command_line() {
        let offered = Arguments::command();
        let offered: Vec<&str> =
            offered.get_subcommands().filter(|one| !one.is_hide_set()).map(clap::Command::get_name).collect();
        let listed: Vec<&str> = experiments::EXPERIMENTS.iter().map(|one| one.name).collect();
        assert_eq!(offered, listed);
        command().debug_assert();
    }
}
