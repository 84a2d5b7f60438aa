//! `delta`: only what changed since the last message of the same length (paper N, section 4.8.2).

mod difference;
mod references;
mod sink;
mod source;
#[cfg(test)]
mod tests;

use crate::agreed;
use contract::{Format, OptionKind, OptionSpec, Options, Pair, Promises, Site, Stage, StageError};

/// The pair.
pub(crate) struct Delta;

static OPTIONS: [OptionSpec; 3] = [
    agreed(
        "key_every",
        OptionKind::Integer { min: 0, max: 1_000_000 },
        "1000",
        "every so many messages of a length, one is sent whole; 0: only when asked for",
    ),
    agreed("lengths", OptionKind::Integer { min: 1, max: 64 }, "8", "lengths whose last message is kept"),
    agreed(
        "held_bytes",
        OptionKind::Size { min: 1, max: 1 << 30 },
        "64MiB",
        "bytes of the messages kept, at most, at each side",
    ),
];

impl Pair for Delta {
    fn name(&self) -> &'static str {
        "delta"
    }

    fn summary(&self) -> &'static str {
        "sends only what changed since the last message of the same length"
    }

    fn doc(&self) -> &'static str {
        include_str!("doc.md")
    }

    fn options(&self) -> &'static [OptionSpec] {
        &OPTIONS
    }

    fn promises(&self, _options: &Options) -> Promises {
        Promises { may_drop: true, needs_control: true, ..Promises::default() }
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
