//! `bundle`: several messages in one container ("Networked Device Driver Architecture" (2012),
//! 4.8.2 and 6.7.2).
//!
//! - [`source`]: collects messages until the bundle is full, or its first message has waited long
//!   enough.
//! - [`sink`]: unpacks bundles and releases the messages at creation spacing.
//! - [`count`]: `count=auto`, the number of messages per bundle; runs at the source.
//! - [`growth`]: for `count=auto`, detects at the sink that a queue grows in the network.

mod count;
mod growth;
mod sink;
mod source;
#[cfg(test)]
mod tests;

use contract::{
    Format, ModuleEntry, OptionKind, OptionSpec, Options, Pair, Promises, Site, Stage, StageResult, agreed,
};
use std::time::Duration;

/// The pair.
pub(crate) struct Bundle;

const COUNT_MAX: i64 = u16::MAX as i64;
/// Bytes of the header before the entries.
const COUNT_BYTES: usize = 2;
/// Bytes of an entry: creation time and length.
const ENTRY_BYTES: usize = 12;

static OPTIONS: [OptionSpec; 3] = [
    agreed(
        "count",
        OptionKind::OrAuto(&OptionKind::Integer { min: 1, max: COUNT_MAX }),
        "10",
        "messages per bundle; auto adapts to the network",
    ),
    agreed(
        "wait",
        OptionKind::Duration { min: Duration::from_millis(1), max: Duration::from_secs(60) },
        "250ms",
        "longest time the first message of a bundle waits for the others",
    ),
    agreed(
        "hold",
        OptionKind::Duration { min: Duration::ZERO, max: Duration::from_secs(10) },
        "0s",
        "extra time the sink holds messages; 0s: as long as the longest bundle spans",
    ),
];

impl Pair for Bundle {
    fn entry(&self) -> ModuleEntry {
        ModuleEntry {
            name: "bundle",
            summary: "sends several messages as one, and restores their spacing",
            doc: include_str!("doc.md"),
            options: &OPTIONS,
        }
    }

    fn promises(&self, options: &Options) -> Promises {
        Promises { may_delay: true, needs_control: options.is_auto("count"), ..Promises::default() }
    }

    fn accept(&self, _format: &Format, _options: &Options) -> Result<Format, String> {
        Ok(Format::Bytes)
    }

    fn source(&self, options: &Options, _format: &Format, _site: &Site) -> StageResult<Box<dyn Stage>> {
        Ok(Box::new(source::Source::new(options)))
    }

    fn sink(&self, options: &Options, _format: &Format, _site: &Site) -> StageResult<Box<dyn Stage>> {
        Ok(Box::new(sink::Sink::new(options)))
    }
}
