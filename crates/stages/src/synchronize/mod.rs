//! `synchronize`: merges or aligns several flows by creation time at the sink ("Networked Device
//! Driver Architecture" (2012), 4.8.2, figure 4.5). Creation times are in every container, so the
//! source half passes messages on.

mod sink;
mod skew;
mod stretch;
#[cfg(test)]
mod tests;

use contract::{
    Format, ModuleEntry, OptionKind, OptionSpec, Options, Pair, Promises, Shape, Site, Stage, StageResult,
    agreed,
};
use std::time::Duration;

/// The pair.
pub(crate) struct Synchronize;

const MINUTE: Duration = Duration::from_secs(60);

static OPTIONS: [OptionSpec; 8] = [
    agreed("flows", OptionKind::Integer { min: 2, max: 64 }, "2", "most flows"),
    agreed(
        "align",
        OptionKind::Flag,
        "true",
        "true: release messages with the same creation time together, at a common delay that adapts to the slowest flow; false: wait for each flow, for strict order",
    ),
    agreed(
        "apart",
        OptionKind::Flag,
        "false",
        "true: each flow leaves by its own port; false: all become one flow",
    ),
    agreed(
        "wait",
        OptionKind::Duration { min: Duration::ZERO, max: MINUTE },
        "200ms",
        "longest time a message is held, and longest common delay",
    ),
    agreed(
        "silent",
        OptionKind::Choice(&["wait", "skip", "last"]),
        "skip",
        "treatment of a silent flow: wait for it each time, skip it, or repeat its last message as stale",
    ),
    agreed(
        "silence",
        OptionKind::Duration { min: Duration::from_millis(1), max: MINUTE },
        "500ms",
        "time without a message after which a flow is silent",
    ),
    agreed(
        "late",
        OptionKind::Choice(&["pass", "drop"]),
        "pass",
        "treatment of a late message: pass it on at once, or drop it",
    ),
    agreed(
        "window",
        OptionKind::Integer { min: 1, max: 1 << 16 },
        "4096",
        "most messages held; over it, the oldest leave early",
    ),
];

impl Pair for Synchronize {
    fn entry(&self) -> ModuleEntry {
        ModuleEntry {
            name: "synchronize",
            summary: "merges several flows by creation time",
            doc: include_str!("doc.md"),
            options: &OPTIONS,
        }
    }

    fn promises(&self, options: &Options) -> Promises {
        Promises {
            may_delay: true,
            may_drop: options.text("late") == "drop",
            // A repeated message was not sent by the device; sound is made longer while the common delay rises.
            may_change: options.text("silent") == "last" || options.flag("align"),
            ..Promises::default()
        }
    }

    fn shape(&self, _options: &Options) -> Shape {
        Shape::Joint
    }

    fn sink(&self, options: &Options, _format: &Format, site: &Site) -> StageResult<Box<dyn Stage>> {
        Ok(Box::new(sink::Sink::new(options, &site.inputs)))
    }
}
