//! `replay`: releases a recording at the spacing at which it was made ("Networked Device Driver
//! Architecture" (2012), 4.8.2).

mod source;
#[cfg(test)]
mod tests;

use contract::{
    Format, ModuleEntry, OptionKind, OptionSpec, Options, Pair, Promises, Site, Stage, StageResult, agreed,
};
use std::time::Duration;

/// The pair.
pub(crate) struct Replay;

const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

static OPTIONS: [OptionSpec; 5] = [
    agreed(
        "speed",
        OptionKind::Number { min: 0.001, max: 1000.0 },
        "1",
        "speed factor: 2 is twice as fast, 0.5 half as fast",
    ),
    agreed(
        "from",
        OptionKind::Duration { min: Duration::ZERO, max: YEAR },
        "0s",
        "start position, from the first message of the recording",
    ),
    agreed(
        "pause",
        OptionKind::Duration { min: Duration::from_millis(1), max: YEAR },
        "60s",
        "longest time between two messages; longer pauses are cut to this",
    ),
    agreed(
        "held_max",
        OptionKind::Integer { min: 1, max: 1 << 20 },
        "64",
        "most messages held; then backpressure",
    ),
    agreed(
        "held_bytes",
        OptionKind::Size { min: 1, max: 1 << 30 },
        "16MiB",
        "most bytes held; then backpressure",
    ),
];

impl Pair for Replay {
    fn entry(&self) -> ModuleEntry {
        ModuleEntry {
            name: "replay",
            summary: "replays a recording at its original spacing",
            doc: include_str!("doc.md"),
            options: &OPTIONS,
        }
    }

    fn promises(&self, options: &Options) -> Promises {
        let may_drop = !options.duration("from").is_zero();
        Promises { may_drop, may_delay: true, may_change: true, ..Promises::default() }
    }

    fn source(&self, options: &Options, _format: &Format, _site: &Site) -> StageResult<Box<dyn Stage>> {
        Ok(Box::new(source::Source::new(options)))
    }
}
