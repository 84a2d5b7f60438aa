//! `multiplex`: divides one flow among several **ways** (to several hosts, or over several paths to
//! one), and joins them again ("Networked Device Driver Architecture" (2012), 4.8.2).
//!
//! - [`source`]: copies or divides each message and sends it by the port of each way.
//! - [`join`]: `join=true`. All ways end at one sink half, which restores the order with a
//!   [`ReorderBuffer`](crate::reorder_buffer::ReorderBuffer).
//! - [`keep`]: `join=false`. Each sink half gets one way and drops duplicates.

mod header;
mod join;
mod keep;
mod source;
#[cfg(test)]
mod tests;

use contract::{
    Format, ModuleEntry, OptionKind, OptionSpec, Options, Pair, Promises, Shape, Site, Stage, StageResult,
    agreed,
};
use std::time::Duration;

/// The pair.
pub(crate) struct Multiplex;

static OPTIONS: [OptionSpec; 7] = [
    agreed(
        "mode",
        OptionKind::Choice(&["all", "round_robin", "split", "key"]),
        "all",
        "content of each way: every message, every n-th in turn, a part of every message, or the messages of its keys",
    ),
    agreed("ways", OptionKind::Integer { min: 2, max: 64 }, "2", "number of ways"),
    agreed(
        "join",
        OptionKind::Flag,
        "true",
        "true: all ways end at one sink, which joins them; false: each ends at a sink of its own",
    ),
    agreed(
        "at",
        OptionKind::Integer { min: 0, max: 1 << 16 },
        "0",
        "mode=key: offset of the key in the body, in bytes, for messages without a key attribute",
    ),
    agreed(
        "width",
        OptionKind::Integer { min: 0, max: 8 },
        "0",
        "mode=key: width of that key, in bytes; 0: messages without a key attribute go the first way",
    ),
    agreed(
        "wait",
        OptionKind::Duration { min: Duration::ZERO, max: Duration::from_secs(60) },
        "200ms",
        "join=true: longest time a message waits for missing messages or parts",
    ),
    agreed(
        "window",
        OptionKind::Integer { min: 1, max: 1 << 16 },
        "1024",
        "most messages held (join=true) or remembered to detect duplicates (join=false)",
    ),
];

/// Content of each way ("Networked Device Driver Architecture" (2012), 4.8.2, "Multiplexing").
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

/// The number of ways, 2 to 64.
fn ways(options: &Options) -> u16 {
    options.integer("ways").clamp(2, 64) as u16
}

impl Pair for Multiplex {
    fn entry(&self) -> ModuleEntry {
        ModuleEntry {
            name: "multiplex",
            summary: "divides a flow among several hosts, or among several network paths to one host",
            doc: include_str!("doc.md"),
            options: &OPTIONS,
        }
    }

    fn promises(&self, options: &Options) -> Promises {
        let joins = options.flag("join");
        Promises {
            may_drop: true,
            may_delay: joins,
            may_reorder: !joins,
            // A part that is not joined is not the whole message.
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

    fn source(&self, options: &Options, _format: &Format, _site: &Site) -> StageResult<Box<dyn Stage>> {
        Ok(Box::new(source::Source::new(options)))
    }

    fn sink(&self, options: &Options, _format: &Format, _site: &Site) -> StageResult<Box<dyn Stage>> {
        Ok(match options.flag("join") {
            true => Box::new(join::Sink::new(options)),
            false => Box::new(keep::Sink::new(options)),
        })
    }
}
