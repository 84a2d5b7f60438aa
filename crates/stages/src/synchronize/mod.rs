//! `synchronize`: puts several flows in order by creation time where they meet.

mod sink;
mod skew;
#[cfg(test)]
mod tests;

use crate::agreed;
use contract::{
    Format, OptionKind, OptionSpec, Options, Pair, PassThrough, Promises, Shape, Site, Stage, StageError,
};
use std::time::Duration;

/// The pair.
pub(crate) struct Synchronize;

const MINUTE: Duration = Duration::from_secs(60);

static OPTIONS: [OptionSpec; 9] = [
    agreed("flows", OptionKind::Integer { min: 2, max: 64 }, "2", "flows that meet, at most"),
    agreed(
        "align",
        OptionKind::Flag,
        "false",
        "let messages made at the same time leave at the same time, on a common delay that follows the slowest",
    ),
    agreed("apart", OptionKind::Flag, "false", "keep the flows apart, rather than make one of them"),
    agreed(
        "wait",
        OptionKind::Duration { min: Duration::ZERO, max: MINUTE },
        "200ms",
        "the longest a message is held, and the longest common delay",
    ),
    agreed(
        "silent",
        OptionKind::Choice(&["wait", "skip", "last"]),
        "skip",
        "a flow that falls silent: is waited for each time, left out, or its last message repeated as stale",
    ),
    agreed(
        "silence",
        OptionKind::Duration { min: Duration::from_millis(1), max: MINUTE },
        "500ms",
        "how long a flow says nothing before it counts as silent",
    ),
    agreed(
        "late",
        OptionKind::Choice(&["pass", "drop"]),
        "pass",
        "what came too late for its turn: goes on at once, or is dropped",
    ),
    agreed("window", OptionKind::Integer { min: 1, max: 1 << 16 }, "4096", "messages held, at most"),
    agreed("held_bytes", OptionKind::Size { min: 1, max: 1 << 30 }, "64MiB", "bytes held, at most"),
];

impl Pair for Synchronize {
    fn name(&self) -> &'static str {
        "synchronize"
    }

    fn summary(&self) -> &'static str {
        "puts several flows in order by creation time"
    }

    fn doc(&self) -> &'static str {
        include_str!("doc.md")
    }

    fn options(&self) -> &'static [OptionSpec] {
        &OPTIONS
    }

    fn promises(&self, options: &Options) -> Promises {
        Promises {
            may_delay: true,
            may_drop: options.text("late") == "drop",
            // What is repeated was never said.
            may_change: options.text("silent") == "last",
            ..Promises::default()
        }
    }

    fn shape(&self, _options: &Options) -> Shape {
        Shape::Joint
    }

    fn accept(&self, format: &Format, _options: &Options) -> Result<Format, String> {
        Ok(format.clone())
    }

    fn source(
        &self,
        _options: &Options,
        _format: &Format,
        _site: &Site,
    ) -> Result<Box<dyn Stage>, StageError> {
        Ok(Box::new(PassThrough))
    }

    fn sink(&self, options: &Options, _format: &Format, _site: &Site) -> Result<Box<dyn Stage>, StageError> {
        Ok(Box::new(sink::Sink::new(options)))
    }
}
