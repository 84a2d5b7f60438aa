//! `delta`: sends only the bytes that changed since the last message of the same length ("Networked
//! Device Driver Architecture" (2012), 4.8.2).
//!
//! - [`references`]: the messages that both halves keep to compare with, by the same rule.
//! - [`difference`]: finds, encodes and applies changed runs of bytes.
//! - A lost reference: the sink drops the message and sends its number to the source, which
//!   discards all references and so sends whole messages.

mod difference;
mod references;
mod sink;
mod source;
#[cfg(test)]
mod tests;

use contract::{
    Format, ModuleEntry, OptionKind, OptionSpec, Options, Pair, Promises, Site, Stage, StageResult, agreed,
};

/// The pair.
pub(crate) struct Delta;

static OPTIONS: [OptionSpec; 3] = [
    agreed(
        "key_every",
        OptionKind::Integer { min: 0, max: 1_000_000 },
        "1000",
        "send every n-th message of a length whole; 0: only on request of the sink",
    ),
    agreed(
        "lengths",
        OptionKind::Integer { min: 1, max: 64 },
        "8",
        "most lengths whose last message is kept",
    ),
    agreed(
        "held_bytes",
        OptionKind::Size { min: 1, max: 1 << 30 },
        "64MiB",
        "most bytes of kept messages, at each half",
    ),
];

impl Pair for Delta {
    fn entry(&self) -> ModuleEntry {
        ModuleEntry {
            name: "delta",
            summary: "sends only the bytes that changed since the last message of the same length",
            doc: include_str!("doc.md"),
            options: &OPTIONS,
        }
    }

    fn promises(&self, _options: &Options) -> Promises {
        Promises { may_drop: true, needs_control: true, ..Promises::default() }
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
