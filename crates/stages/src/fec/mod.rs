//! `fec`: forward error correction. Lost messages of a group are recovered from parity ("Networked
//! Device Driver Architecture" (2012), 4.8.2). Reed-Solomon over GF(2^16), systematic: messages are
//! sent at once and unchanged; parity follows them.
//!
//! ```text
//! source    groups messages, sends parity           parity_count  parity=auto
//! sink      delivers, recovers, reports outcomes    group         one group at the sink
//! header    headers and shards                      outcome       losses of groups, as reported
//! pace      detects delays that announce loss
//! ```

mod group;
mod header;
mod outcome;
mod pace;
mod parity_count;
mod sink;
mod source;
#[cfg(test)]
mod tests;

use crate::HELD_BYTES_MAX;
use contract::{
    Format, ModuleEntry, OptionKind, OptionSpec, Options, Pair, Promises, Site, Stage, StageResult, agreed,
};
use std::time::Duration;

/// The pair.
pub(crate) struct Fec;

const DATA_MAX: i64 = 128;
const PARITY_MAX: i64 = 64;
/// Bytes of a group, at most: a quarter of those held at the sink.
const GROUP_BYTES_MAX: usize = HELD_BYTES_MAX / 4;

static OPTIONS: [OptionSpec; 4] = [
    agreed("data", OptionKind::Integer { min: 1, max: DATA_MAX }, "8", "most messages per group"),
    agreed(
        "parity",
        OptionKind::OrAuto(&OptionKind::Integer { min: 0, max: PARITY_MAX }),
        "auto",
        "parity messages per group: as many losses are recovered; auto adapts to the network",
    ),
    agreed(
        "wait",
        OptionKind::Duration { min: Duration::from_millis(1), max: Duration::from_secs(10) },
        "50ms",
        "longest time a group waits for more messages",
    ),
    agreed(
        "limit",
        OptionKind::Size { min: 1, max: 15 << 20 },
        "1MiB",
        "largest protected message, in bytes; larger ones are sent without parity",
    ),
];

impl Pair for Fec {
    fn entry(&self) -> ModuleEntry {
        ModuleEntry {
            name: "fec",
            summary: "sends parity messages from which lost messages are recovered",
            doc: include_str!("doc.md"),
            options: &OPTIONS,
        }
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

    fn accept(&self, _format: &Format, _options: &Options) -> Result<Format, String> {
        Ok(Format::Bytes)
    }

    fn source(&self, options: &Options, _format: &Format, site: &Site) -> StageResult<Box<dyn Stage>> {
        Ok(Box::new(source::Source::new(options, site.seed)))
    }

    fn sink(&self, options: &Options, _format: &Format, _site: &Site) -> StageResult<Box<dyn Stage>> {
        Ok(Box::new(sink::Sink::new(options)))
    }
}
