//! `bundle`: several messages in one container (paper N, sections 4.8.2 and 6.7.2).

mod count;
mod growth;
mod sink;
mod source;
#[cfg(test)]
mod tests;

use crate::agreed;
use contract::{Format, OptionKind, OptionSpec, Options, Pair, Promises, Site, Stage, StageError};
use std::time::Duration;

/// The pair.
pub(crate) struct Bundle;

const COUNT_MAX: i64 = u16::MAX as i64;
/// Bytes of the header before the entries.
const COUNT_BYTES: usize = 2;
/// Bytes of an entry: creation time and length.
const ENTRY_BYTES: usize = 12;

static OPTIONS: [OptionSpec; 6] = [
    agreed(
        "count",
        OptionKind::OrAuto(&OptionKind::Integer { min: 1, max: COUNT_MAX }),
        "10",
        "messages to a bundle",
    ),
    agreed(
        "wait",
        OptionKind::Duration { min: Duration::from_millis(1), max: Duration::from_secs(60) },
        "250ms",
        "the longest that a bundle's first message waits for the others",
    ),
    agreed(
        "bytes_max",
        OptionKind::Size { min: 1, max: 32 << 20 },
        "1MiB",
        "bytes of a bundle's bodies, at most",
    ),
    agreed(
        "hold",
        OptionKind::Duration { min: Duration::ZERO, max: Duration::from_secs(10) },
        "0s",
        "held at the sink beyond the first bundle's need; 0s: as long as it spans",
    ),
    agreed(
        "held_max",
        OptionKind::Integer { min: 1, max: 1 << 20 },
        "4096",
        "messages held at the sink, at most",
    ),
    agreed(
        "held_bytes",
        OptionKind::Size { min: 1, max: 1 << 30 },
        "64MiB",
        "bytes held at the sink, at most",
    ),
];

impl Pair for Bundle {
    fn name(&self) -> &'static str {
        "bundle"
    }

    fn summary(&self) -> &'static str {
        "sends several messages as one, and restores their spacing"
    }

    fn doc(&self) -> &'static str {
        include_str!("doc.md")
    }

    fn options(&self) -> &'static [OptionSpec] {
        &OPTIONS
    }

    fn promises(&self, options: &Options) -> Promises {
        Promises { may_delay: true, needs_control: options.is_auto("count"), ..Promises::default() }
    }

    fn cost(&self) -> Option<&'static str> {
        Some(
            "the 99th percentile of the time from creation to hand-over, plus ten periods of the device for each share \
             that is late or lost",
        )
    }

    fn accept(&self, _format: &Format, _options: &Options) -> Result<Format, String> {
        Ok(Format::Bytes)
    }

    fn source(
        &self,
        options: &Options,
        _format: &Format,
        _site: &Site,
    ) -> Result<Box<dyn Stage>, StageError> {
        Ok(Box::new(source::Source::new(options)))
    }

    fn sink(&self, options: &Options, _format: &Format, _site: &Site) -> Result<Box<dyn Stage>, StageError> {
        Ok(Box::new(sink::Sink::new(options)))
    }
}
