//! `multiplex`: one flow divided among several ways, and joined again.

mod header;
mod join;
mod keep;
mod source;
#[cfg(test)]
mod tests;

use crate::agreed;
use contract::{Format, OptionKind, OptionSpec, Options, Pair, Promises, Shape, Site, Stage, StageError};
use std::time::Duration;

/// The pair.
pub(crate) struct Multiplex;

static OPTIONS: [OptionSpec; 8] = [
    agreed(
        "mode",
        OptionKind::Choice(&["all", "round_robin", "split", "key"]),
        "all",
        "what each way gets: every message, the next one, a part of every message, or those of its keys",
    ),
    agreed("ways", OptionKind::Integer { min: 2, max: 64 }, "2", "ways that the flow is divided among"),
    agreed("join", OptionKind::Flag, "true", "whether the ways meet again at one sink"),
    agreed(
        "at",
        OptionKind::Integer { min: 0, max: 1 << 16 },
        "0",
        "key: where in the body the key stands, for messages that have none of their own",
    ),
    agreed(
        "width",
        OptionKind::Integer { min: 0, max: 8 },
        "0",
        "key: bytes of that key; 0: what has no key of its own goes the first way",
    ),
    agreed(
        "wait",
        OptionKind::Duration { min: Duration::ZERO, max: Duration::from_secs(60) },
        "200ms",
        "join: the longest a message waits for what is missing before it, or of it",
    ),
    agreed(
        "window",
        OptionKind::Integer { min: 1, max: 1 << 16 },
        "1024",
        "messages held for what is missing, or remembered to know those that come twice, at most",
    ),
    agreed("held_bytes", OptionKind::Size { min: 1, max: 1 << 30 }, "64MiB", "join: bytes held, at most"),
];

/// What each way gets (paper N, section 4.8.2, "Multiplexing").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    All,
    RoundRobin,
    Split,
    Key,
}

impl Mode {
    fn of(options: &Options) -> Mode {
        match options.text("mode") {
            "round_robin" => Mode::RoundRobin,
            "split" => Mode::Split,
            "key" => Mode::Key,
            _ => Mode::All,
        }
    }
}

/// From 2 to 64.
fn ways(options: &Options) -> u16 {
    options.integer("ways").clamp(2, 64) as u16
}

impl Pair for Multiplex {
    fn name(&self) -> &'static str {
        "multiplex"
    }

    fn summary(&self) -> &'static str {
        "divides a flow among several ways: hosts, or paths through the network"
    }

    fn doc(&self) -> &'static str {
        include_str!("doc.md")
    }

    fn options(&self) -> &'static [OptionSpec] {
        &OPTIONS
    }

    fn promises(&self, options: &Options) -> Promises {
        let joins = options.flag("join");
        Promises {
            may_drop: true,
            may_delay: joins,
            may_reorder: !joins,
            // A part that is not joined is not the message.
            may_change: !joins && Mode::of(options) == Mode::Split,
            ..Promises::default()
        }
    }

    fn shape(&self, options: &Options) -> Shape {
        Shape::Fan(ways(options))
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
        Ok(match options.flag("join") {
            true => Box::new(join::Sink::new(options)),
            false => Box::new(keep::Sink::new(options)),
        })
    }
}
