//! `reorder`: puts messages back in order, behind a transport that reorders them (`udp`).
//!
//! Mechanism: [`crate::reorder_buffer`] and [`crate::sequence`]. Layout and figures: `doc.md`.

mod sink;
mod source;
#[cfg(test)]
mod tests;

use contract::{
    Format, ModuleEntry, OptionKind, OptionSpec, Options, Pair, Promises, Site, Stage, StageResult, agreed,
};
use std::time::Duration;

/// The pair.
pub(crate) struct Reorder;

static OPTIONS: [OptionSpec; 2] = [
    agreed(
        "window",
        OptionKind::Integer { min: 1, max: 1 << 16 },
        "64",
        "most messages held while one is missing",
    ),
    agreed(
        "wait",
        OptionKind::Duration { min: Duration::ZERO, max: Duration::from_secs(60) },
        "50ms",
        "longest time a message waits for a missing one",
    ),
];

impl Pair for Reorder {
    fn entry(&self) -> ModuleEntry {
        ModuleEntry {
            name: "reorder",
            summary: "puts messages back in order, for transports that reorder (udp)",
            doc: include_str!("doc.md"),
            options: &OPTIONS,
        }
    }

    fn promises(&self, _options: &Options) -> Promises {
        Promises { may_drop: true, may_delay: true, ..Promises::default() }
    }

    fn accept(&self, _format: &Format, _options: &Options) -> Result<Format, String> {
        Ok(Format::Bytes)
    }

    fn source(&self, _options: &Options, _format: &Format, _site: &Site) -> StageResult<Box<dyn Stage>> {
        Ok(Box::new(source::Source::default()))
    }

    fn sink(&self, options: &Options, _format: &Format, _site: &Site) -> StageResult<Box<dyn Stage>> {
        Ok(Box::new(sink::Sink::new(options)))
    }
}
