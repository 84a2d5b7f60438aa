//! `fec`: forward error correction (paper N, section 4.8.2): of a group of messages some may be lost, and all
//! come. Reed-Solomon over GF(2^16), systematic: the messages themselves go at once, as they are.

mod fate;
mod group;
mod header;
mod pace;
mod sink;
mod source;
mod strength;
#[cfg(test)]
mod tests;

use crate::agreed;
use contract::{Format, OptionKind, OptionSpec, Options, Pair, Promises, Site, Stage, StageError};
use std::time::Duration;

/// The pair.
pub(crate) struct Fec;

const DATA_MAX: i64 = 128;
const PARITY_MAX: i64 = 64;
/// Of the bytes held at the sink, a group has at most one part in so many.
const GROUPS_HELD: usize = 4;

static OPTIONS: [OptionSpec; 5] = [
    agreed("data", OptionKind::Integer { min: 1, max: DATA_MAX }, "8", "messages of a group, at most"),
    agreed(
        "parity",
        OptionKind::OrAuto(&OptionKind::Integer { min: 0, max: PARITY_MAX }),
        "auto",
        "parity messages of a group: so many of it may be lost",
    ),
    agreed(
        "wait",
        OptionKind::Duration { min: Duration::from_millis(1), max: Duration::from_secs(10) },
        "50ms",
        "longest time that a group waits for more messages",
    ),
    agreed(
        "limit",
        OptionKind::Size { min: 1, max: 64 << 20 },
        "1MiB",
        "largest message that is protected; larger ones go as they are",
    ),
    agreed(
        "held_bytes",
        OptionKind::Size { min: 64, max: 1 << 30 },
        "64MiB",
        "bytes that the sink half keeps for repairs, at most",
    ),
];

impl Pair for Fec {
    fn name(&self) -> &'static str {
        "fec"
    }

    fn summary(&self) -> &'static str {
        "sends parity along, so that lost messages are made again"
    }

    fn doc(&self) -> &'static str {
        include_str!("doc.md")
    }

    fn options(&self) -> &'static [OptionSpec] {
        &OPTIONS
    }

    fn promises(&self, options: &Options) -> Promises {
        Promises {
            may_drop: true,
            may_delay: true,
            may_reorder: true,
            needs_control: options.is_auto("parity"),
            ..Promises::default()
        }
    }

    fn cost(&self) -> Option<&'static str> {
        Some("100 × the share of messages that stay lost + parity messages for each message")
    }

    fn accept(&self, _format: &Format, _options: &Options) -> Result<Format, String> {
        Ok(Format::Bytes)
    }

    fn check(&self, options: &Options) -> Result<(), String> {
        let (limit, held) = (options.size("limit"), options.size("held_bytes"));
        match header::shard_bytes(limit) > held / GROUPS_HELD {
            true => Err(format!(
                "held_bytes must be {GROUPS_HELD} times a message of limit={limit} at least, not {held}"
            )),
            false => Ok(()),
        }
    }

    fn source(&self, options: &Options, _format: &Format, site: &Site) -> Result<Box<dyn Stage>, StageError> {
        Ok(Box::new(source::Source::new(options, site.seed)))
    }

    fn sink(&self, options: &Options, _format: &Format, _site: &Site) -> Result<Box<dyn Stage>, StageError> {
        Ok(Box::new(sink::Sink::new(options)))
    }
}
