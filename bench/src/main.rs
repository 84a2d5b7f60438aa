//! The cost of crossing a host and a network, beside a bare socket in the same run and beside the papers.
//!
//! `outboard-bench EXPERIMENT [--json FILE]`, or `outboard bench`. Outboard and the bare mechanism take turns on the
//! same two processors with the same congestion control: a drift of the machine affects both alike.

mod attacks;
mod auto;
mod bare;
mod camera;
mod chaos;
mod chapter6;
mod compose;
mod congestion;
mod conversation;
mod devices;
mod display;
mod encode;
#[cfg(target_arch = "x86_64")]
mod escape;
mod flood;
mod idle;
mod lab;
mod latency;
mod links;
mod load;
mod longfat;
mod measure;
mod mouse;
mod multiplex;
mod ours;
mod pairs;
mod partner;
mod pipewire;
mod plot;
mod processes;
mod programs;
mod provenance;
mod reliability;
mod seal_cost;
mod setting;
mod skew;
mod soak;
mod sockets;
mod sound;
mod trace_cost;
mod tunnels;
mod viewer;
mod vose;

use chapter6::ChapterSetting;
use clap::{Parser, Subcommand};
use provenance::Provenance;
use serde_json::Value;
use setting::{Failure, Setting, SizedSetting};
use std::path::PathBuf;
use std::process::ExitCode;

/// The name of the program, for its help and its errors.
const PROGRAM: &str = "outboard-bench";
const EXAMPLES: &str = "\
Examples:
  outboard bench latency                     compare with a bare ping-pong over loopback TCP
  outboard bench links --size 100            compare the links between stages, messages of 100 bytes
  outboard bench end-to-end --json all.json  also write each point to a file
  sudo outboard bench attacks                run an experiment that needs root

`outboard bench` runs this program.";

/// Measures Outboard beside bare sockets, other programs and published figures.
///
/// Sections and figures are those of the dissertation "Networked Device Driver Architecture (2012)". Measure on a quiet
/// machine with two processors or more. The programs `outboard` and `netlab` must be beside this one.
#[derive(Parser)]
#[command(name = PROGRAM, version, after_help = EXAMPLES)]
struct Arguments {
    #[command(subcommand)]
    experiment: Experiment,
    /// Also write the figures to this file as JSON
    #[arg(long, global = true)]
    json: Option<PathBuf>,
    /// Print a section of a Markdown page with this title: date, commit, machine, command and output
    #[arg(long, global = true, value_name = "TITLE")]
    section: Option<String>,
}

#[derive(Subcommand)]
enum Experiment {
    /// Sections 6.1 to 6.9 in one run: tables, pictures and a page (without root: loopback only)
    All(chapter6::AllSetting),
    /// Section 6.1: time of a message between two hosts, 1,000 to 1,024,000 bytes
    EndToEnd(ChapterSetting),
    /// Section 6.2: time from making a message until right before the write to the network
    SingleMachine(ChapterSetting),
    /// Section 6.3: throughput of the whole system in MB/s, timed by one acknowledgement
    Throughput(ChapterSetting),
    /// Section 6.4: a 3D mouse at 62.5 Hz: time at the device, in the network and at the application
    Device(ChapterSetting),
    /// Sections 6.5 and 6.6: frame rate of a screen, beside TigerVNC, x11vnc and GStreamer
    Screen(chapter6::ScreenSetting),
    /// Section 6.7: rhythm of a device over a network with jitter, with and without pairs (needs root)
    Jitter(chapter6::JitterSetting),
    /// Section 6.8: cost of 0 to 8 pairs, as calls and as processes over pipes and shared memory
    Stages(ChapterSetting),
    /// Section 6.9.1: time between frames of 100 to 700 pixels, 0 to 8 pairs
    Video(ChapterSetting),
    /// Section 6.9.2: time of a frame on a single machine, 0 to 8 pairs
    VideoSingle(ChapterSetting),
    /// Section 6.9.2: time of a frame on a single machine, 1 to 10 slots of shared memory
    Batching(ChapterSetting),
    /// The value of faster parts: predictions of `outboard whatif` beside the truth (clocks other than 1 need root)
    Vose(vose::VoseSetting),
    /// A viewer over a thin network: response to keys and clicks, beside TigerVNC and xpra
    Viewer(viewer::ViewerSetting),
    /// A camera over thin and lossy links, beside ffmpeg with the same codec (needs root)
    Encode(encode::EncodeSetting),
    /// Camera, microphone and speaker between two hosts over a thin link, beside a rival (needs root)
    Conversation(conversation::ConversationSetting),
    /// One-way time of a message over loopback TCP, beside a bare ping-pong
    Latency(SizedSetting),
    /// Throughput of 1 MB messages over TCP and UDP, beside bare sockets
    Flood(Setting),
    /// Cost of `outboard trace`: off, one message in 64, and every message, in turns
    TraceCost(SizedSetting),
    /// Cost of encryption: TCP and UDP with and without it, and QUIC with secret and with public keys
    SealCost(Setting),
    /// Tunnels of OpenSSH and of WireGuard in user space, beside Outboard and bare TCP
    Tunnels(Setting),
    /// Whole programs between two local sockets, beside socat, socat with TLS and OpenSSH
    Sockets(sockets::SocketsSetting),
    /// QUIC and UDP over a thin and lossy link: a flood and small records beside it, by congestion control
    Congestion(congestion::CongestionSetting),
    /// Goodput of one flow over fast, long and lossy networks, beside iperf3 (needs root)
    #[command(name = "longfat")]
    LongFat(longfat::LongFatSetting),
    /// The transport `striped`: connections found, beside fixed numbers and background traffic (needs root)
    Striped(longfat::striped::StripedSetting),
    /// The disk of an NBD server over several sessions, found and fixed, beside nbdcopy (needs root)
    Block(longfat::block::BlockSetting),
    /// Wake-ups, bytes and processor time of devices that nobody touches, and the first event afterwards (needs root)
    Idle(idle::IdleSetting),
    /// Cost of faults, for each class of device: cut links, killed processes, full disks and more (needs root)
    Reliability(reliability::ReliabilitySetting),
    /// Random faults from a seed on random devices, pipelines and transports (needs root)
    Chaos(chaos::ChaosSetting),
    /// Effect of attacks on a device host and on a running flow (needs root)
    Attacks(attacks::AttacksSetting),
    /// Attempts to leave the sandbox: every system call, known attacks, hostile messages (more with root)
    #[cfg(target_arch = "x86_64")]
    Escape(escape::EscapeSetting),
    /// "The Partner architecture (2002)", tables 3 and 4: cost of the partner vector
    Partner,
    /// Cost of passing a message to a stage: by a call, through pipes and in shared memory, beside bare mechanisms
    Links(links::LinksSetting),
    /// Messages through stages on shared memory while random stages are killed; checks each byte
    SoakShm(soak::SoakSetting),
    /// One device of 62.5 updates a second at four hosts near and far, beside one host alone
    Multiplex(multiplex::MultiplexSetting),
    /// Each pair under loss, reordering, corruption, extreme sizes, restarts and kills
    Pairs(pairs::PairsSetting),
    /// Random pipelines of pairs between two hosts over a bad network
    Compose(compose::ComposeSetting),
    /// Sections 6.4 and 6.7 with a 3D mouse through spacenavd, as a user has it (needs root)
    Mouse(mouse::MouseSetting),
    /// Figure 4.5: two devices with drifting clocks at one sink
    Skew(skew::SkewSetting),
    /// Speech over lossy networks: PESQ, ViSQOL and segmental SNR of `buffer(play)` and `opus`, beside silence for a loss
    Sound(sound::SoundSetting),
    /// Adaptive pairs beside fixed settings on six networks, in virtual time
    Auto(auto::AutoSetting),
    /// Time and ratio of each level of `compress`, by content: the constants behind `level=auto`
    Efforts,
    /// Age of messages in 1,000 flows from 100 peers, alone and beside 500 Mbit/s, and in one flow
    Load(load::LoadSetting),
    #[command(flatten)]
    Helper(Helper),
}

/// The processes that experiments and scripts start.
#[derive(Subcommand)]
enum Helper {
    /// Print date, commit and machine of another command's measurement
    #[command(hide = true)]
    Provenance {
        /// The command
        command: String,
    },
    /// The attacker of `attacks`
    #[command(hide = true)]
    Attacker(attacks::AttackerSetting),
    /// The application host of `reliability` that suspends
    #[command(hide = true)]
    Sleeper(reliability::SleeperSetting),
    /// The bare senders of `load`
    #[command(hide = true)]
    LoadSenders(load::SendersSetting),
    /// The times of pairs for `vose`
    #[command(hide = true)]
    PairTimes(vose::PairTimesSetting),
    /// One process of a bare chain of `links`
    #[command(hide = true)]
    LinksRelay(links::Relay),
    /// One host of `jitter`
    #[command(hide = true)]
    JitterSource(chapter6::JitterHostSetting),
    /// The other host of `jitter`
    #[command(hide = true)]
    JitterSink(chapter6::JitterHostSetting),
    /// The far host of the experiments of chapter 6
    #[command(hide = true)]
    FarHost(chapter6::FarSetting),
    /// A relay that copies its input to its output
    #[command(hide = true)]
    Relay,
}

impl Experiment {
    /// Returns true if the output is Markdown, not aligned text.
    fn prints_markdown(&self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Experiment::Escape(_) => true,
            Experiment::Jitter(_)
            | Experiment::Multiplex(_)
            | Experiment::Mouse(_)
            | Experiment::Skew(_)
            | Experiment::Sound(_)
            | Experiment::Auto(_)
            | Experiment::Pairs(_)
            | Experiment::Compose(_)
            | Experiment::Reliability(_)
            | Experiment::Attacks(_)
            | Experiment::Idle(_)
            | Experiment::Encode(_)
            | Experiment::Conversation(_)
            | Experiment::Viewer(_)
            | Experiment::Block(_)
            | Experiment::Vose(_) => true,
            _ => false,
        }
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}: {error}", PROGRAM);
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Failure> {
    let arguments = Arguments::parse();
    let fence = arguments.section.is_some() && !arguments.experiment.prints_markdown();
    if let Some(title) = &arguments.section {
        println!("## {title}\n\n{}\n", Provenance::of_this_run());
    }
    if fence {
        println!("```text");
    }
    let figures = measure(&arguments.experiment)?;
    if fence {
        println!("```");
    }
    if let Some(file) = arguments.json {
        std::fs::write(&file, serde_json::to_string_pretty(&figures)?)
            .map_err(|error| format!("cannot write {}: {error}", file.display()))?;
    }
    Ok(())
}

/// Runs an experiment and returns its figures.
fn measure(experiment: &Experiment) -> Result<Value, Failure> {
    Ok(match experiment {
        Experiment::All(setting) => chapter6::run_all(setting)?,
        Experiment::EndToEnd(setting) => chapter6::run(setting, chapter6::end_to_end)?,
        Experiment::SingleMachine(setting) => chapter6::run(setting, chapter6::single_machine)?,
        Experiment::Throughput(setting) => chapter6::run(setting, chapter6::throughput)?,
        Experiment::Device(setting) => chapter6::run(setting, chapter6::device)?,
        Experiment::Screen(setting) => chapter6::run(&setting.chapter, |_| chapter6::screen(setting))?,
        Experiment::Jitter(setting) => chapter6::run_jitter(setting)?,
        Experiment::Stages(setting) => chapter6::run(setting, chapter6::stages)?,
        Experiment::Video(setting) => chapter6::run(setting, chapter6::video)?,
        Experiment::VideoSingle(setting) => chapter6::run(setting, chapter6::video_single)?,
        Experiment::Batching(setting) => chapter6::run(setting, chapter6::batching)?,
        Experiment::Viewer(setting) => viewer::run(setting)?,
        Experiment::Vose(setting) => vose::run(setting)?,
        Experiment::Encode(setting) => encode::run(setting)?,
        Experiment::Conversation(setting) => conversation::run(setting)?,
        Experiment::Latency(setting) => latency::run(setting)?,
        Experiment::Flood(setting) => flood::run(setting)?,
        Experiment::TraceCost(setting) => trace_cost::run(setting)?,
        Experiment::SealCost(setting) => seal_cost::run(setting)?,
        Experiment::Tunnels(setting) => tunnels::run(setting)?,
        Experiment::Sockets(setting) => sockets::run(setting)?,
        Experiment::Congestion(setting) => congestion::run(setting)?,
        Experiment::LongFat(setting) => longfat::run(setting)?,
        Experiment::Striped(setting) => longfat::striped::run(setting)?,
        Experiment::Block(setting) => longfat::block::run(setting)?,
        Experiment::Idle(setting) => idle::run(setting)?,
        Experiment::Reliability(setting) => reliability::run(setting)?,
        Experiment::Chaos(setting) => chaos::run(setting)?,
        Experiment::Attacks(setting) => attacks::run(setting)?,
        #[cfg(target_arch = "x86_64")]
        Experiment::Escape(setting) => escape::run(setting)?,
        Experiment::Partner => partner::run(),
        Experiment::Multiplex(setting) => multiplex::run(setting)?,
        Experiment::Links(setting) => links::run(setting)?,
        Experiment::SoakShm(setting) => soak::run(setting)?,
        Experiment::Pairs(setting) => pairs::run(setting)?,
        Experiment::Compose(setting) => compose::run(setting)?,
        Experiment::Mouse(setting) => mouse::measure(setting)?,
        Experiment::Skew(setting) => skew::run(setting)?,
        Experiment::Sound(setting) => sound::run(setting)?,
        Experiment::Auto(setting) => auto::run(setting)?,
        Experiment::Efforts => auto::efforts::run()?,
        Experiment::Load(setting) => load::run(setting)?,
        Experiment::Helper(helper) => {
            help(helper)?;
            Value::Null
        }
    })
}

/// Runs one of the processes that experiments start.
fn help(helper: &Helper) -> Result<(), Failure> {
    match helper {
        Helper::Provenance { command } => println!("{}", Provenance::of(command)),
        Helper::Attacker(setting) => attacks::run_attacker(setting)?,
        Helper::Sleeper(setting) => reliability::sleep(setting)?,
        Helper::LoadSenders(setting) => load::send(setting)?,
        Helper::PairTimes(setting) => vose::print_pair_times(setting)?,
        Helper::LinksRelay(relay) => links::relay(relay)?,
        Helper::JitterSource(setting) => chapter6::jitter_source(setting)?,
        Helper::JitterSink(setting) => chapter6::jitter_sink(setting)?,
        Helper::FarHost(setting) => chapter6::run_far(setting)?,
        Helper::Relay => chapter6::run_relay()?,
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn every_experiment_has_a_summary() {
        let command = Arguments::command();
        command.clone().debug_assert();
        for experiment in command.get_subcommands() {
            assert!(experiment.get_about().is_some(), "{}", experiment.get_name());
        }
    }
}
