//! The settings that the experiments of the chapter share, and the hosts' constants.

use super::paper::Grid;
use crate::setting::Failure;
use clap::{Args, ValueEnum};
use modules::registry;
use pipeline::{Origin, Pipeline};
use session::Limits;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// A bound on every wait: nothing takes longer.
pub(crate) const WATCHDOG: Duration = Duration::from_secs(120);
/// The processor of this host and that of the far host. Each host has one, as the dissertation's in section 6.8.
pub(crate) const CPUS: [usize; 2] = [0, 1];

/// Returns limits under which a busy machine is no lost link.
pub(crate) fn limits() -> Limits {
    Limits { silence: Duration::from_secs(10), ..Limits::default() }
}

/// The network between the two hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum NetworkKind {
    /// Two processes and the loopback interface
    Loopback,
    /// Two namespaces and a link without delay or limit
    Lab,
    /// Two namespaces and a link like the dissertation's: 11.3 MB/s, 0.235 ms there and back
    Paper,
}

impl fmt::Display for NetworkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl NetworkKind {
    pub(crate) const EVERY: [NetworkKind; 3] = [NetworkKind::Loopback, NetworkKind::Lab, NetworkKind::Paper];

    pub(crate) fn name(self) -> &'static str {
        match self {
            NetworkKind::Loopback => "loopback",
            NetworkKind::Lab => "lab",
            NetworkKind::Paper => "paper",
        }
    }
}

/// The connection that carries Outboard's flows between the hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Carrier {
    /// TCP, not sealed, as the dissertation's.
    Tcp,
    /// QUIC, sealed: the user's default.
    Sealed,
}

/// A turn of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    Bare,
    Ours(Carrier),
}

/// Returns the turns of `rounds` rounds. Every other round runs in reverse order: a drift of the machine affects all
/// alike.
pub(crate) fn turns(rounds: usize) -> impl Iterator<Item = Turn> {
    let order = [Turn::Bare, Turn::Ours(Carrier::Tcp), Turn::Ours(Carrier::Sealed)];
    (0..rounds.max(1)).flat_map(move |round| {
        let mut order = order;
        if !round.is_multiple_of(2) {
            order.reverse();
        }
        order
    })
}

/// The link between a stage and its neighbours.
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

    /// Returns a pipeline of this many pairs that pass each message on.
    pub(crate) fn pipeline(self, pairs: usize) -> String {
        self.pipeline_of(pairs, "null")
    }

    /// Returns the same pipeline with options of shared memory, such as `slots=3`.
    pub(crate) fn pipeline_with(self, pairs: usize, options: &str) -> String {
        self.pipeline_of(pairs, &format!("null({options})"))
    }

    fn pipeline_of(self, pairs: usize, pair: &str) -> String {
        match self {
            LinkKind::Direct => vec!["null"; pairs].join(" | "),
            _ => vec![format!("@{} {pair}", self.name()); pairs].join(" | "),
        }
    }

    /// Returns the dissertation's figure from its grid for this link. It has no calls.
    pub(crate) fn paper(self, [pipe, shared]: [&Grid; 2], pairs: usize, column: usize) -> Option<f64> {
        let grid = match self {
            LinkKind::Direct => return None,
            LinkKind::Pipe => pipe,
            LinkKind::Shm => shared,
        };
        grid.at(&pairs.to_string(), column as u64)
    }
}

/// Parses a pipeline that this host chooses.
pub(crate) fn parse(text: &str) -> Result<Pipeline, Failure> {
    Pipeline::parse(text, registry::pairs(), Origin::Local).map_err(|error| error.to_string().into())
}

/// The settings that all experiments of the chapter share.
#[derive(Args, Debug, Clone)]
pub(crate) struct ChapterSetting {
    /// Networks (`lab` and `paper` need root)
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
    /// Most measurements of a point [default: as the dissertation]
    #[arg(long)]
    pub(crate) repeats: Option<usize>,
    /// Seconds that a point may take; it has a few measurements at least
    #[arg(long, default_value_t = 1.0)]
    pub(crate) seconds: f64,
    /// Pause before each message; the dissertation's is 2s
    #[arg(long, default_value = "0s", value_parser = read_duration)]
    pub(crate) pause: Duration,
    /// Turns of Outboard and of the bare program
    #[arg(long, default_value_t = 2)]
    pub(crate) rounds: usize,
    /// The program `netlab` [default: beside this one]
    #[arg(long)]
    pub(crate) netlab: Option<PathBuf>,
    /// Write the experiment's pictures into this directory
    #[arg(long)]
    pub(crate) svg: Option<PathBuf>,
}

/// Reads `2s`, `20ms`, `100us`.
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
    /// Returns the links that the user wants, or all.
    pub(crate) fn links(&self) -> Vec<LinkKind> {
        ChapterSetting::or(&self.links, LinkKind::value_variants().iter().copied())
    }

    /// Returns the values that the user wants, or the dissertation's.
    pub(crate) fn or<T: Copy>(wanted: &[T], papers: impl IntoIterator<Item = T>) -> Vec<T> {
        if wanted.is_empty() { papers.into_iter().collect() } else { wanted.to_vec() }
    }

    /// Returns the number of rounds, at least 1.
    pub(crate) fn turns(&self) -> usize {
        self.rounds.max(1)
    }

    /// Returns one turn's block of messages.
    pub(crate) fn block(&self, bytes: usize, repeats: usize) -> Block {
        let rounds = self.turns();
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
    /// Most messages that are measured.
    pub(crate) count: usize,
    /// The block ends after this time, but not before [`Block::LEAST`] messages.
    pub(crate) budget: Duration,
}

impl Block {
    /// Messages that are measured whatever time they take.
    pub(crate) const LEAST: usize = 3;
    /// Messages at the start that are not measured.
    pub(crate) const WARM_UP: usize = 2;

    /// Returns true if the block is complete after `sent` messages and `elapsed_ns`.
    pub(crate) fn is_done(&self, sent: usize, elapsed_ns: u64) -> bool {
        let least = (Block::WARM_UP + Block::LEAST).min(Block::WARM_UP + self.count);
        sent >= Block::WARM_UP + self.count || sent >= least && elapsed_ns > self.budget.as_nanos() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_other_round_runs_in_reverse_order() {
        let ours = [Carrier::Tcp, Carrier::Sealed].map(Turn::Ours);
        let expected = [Turn::Bare, ours[0], ours[1], ours[1], ours[0], Turn::Bare];
        assert_eq!(turns(2).collect::<Vec<_>>(), expected);
    }
}
