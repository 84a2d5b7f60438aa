//! `replay`: gives a recording back in the rhythm in which it was made (paper N, section 4.8.2).

mod source;
#[cfg(test)]
mod tests;

use crate::agreed;
use contract::{
    Format, OptionKind, OptionSpec, Options, Pair, PassThrough, Promises, Site, Stage, StageError,
};
use std::time::Duration;

/// The pair.
pub(crate) struct Replay;

const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

static OPTIONS: [OptionSpec; 5] = [
    agreed("speed", OptionKind::Number { min: 0.001, max: 1000.0 }, "1", "times as fast as it was recorded"),
    agreed(
        "from",
        OptionKind::Duration { min: Duration::ZERO, max: LONGEST },
        "0s",
        "where in the recording it begins",
    ),
    agreed(
        "pause",
        OptionKind::Duration { min: Duration::from_millis(1), max: LONGEST },
        "60s",
        "longest time between two messages; a longer one in the recording is cut to this",
    ),
    agreed("held_max", OptionKind::Integer { min: 1, max: 1 << 20 }, "64", "messages held, at most"),
    agreed("held_bytes", OptionKind::Size { min: 1, max: 1 << 30 }, "16MiB", "bytes held, at most"),
];

impl Pair for Replay {
    fn name(&self) -> &'static str {
        "replay"
    }

    fn summary(&self) -> &'static str {
        "gives a recording back in its own rhythm"
    }

    fn doc(&self) -> &'static str {
        include_str!("doc.md")
    }

    fn options(&self) -> &'static [OptionSpec] {
        &OPTIONS
    }

    fn promises(&self, options: &Options) -> Promises {
        let may_drop = !options.duration("from").is_zero();
        Promises { may_drop, may_delay: true, may_change: true, ..Promises::default() }
    }

    fn accept(&self, format: &Format, _options: &Options) -> Result<Format, String> {
        Ok(format.clone())
    }

    fn source(
        &self,
        options: &Options,
        _format: &Format,
        _site: &Site,
    ) -> Result<Box<dyn Stage>, StageError> {
        Ok(Box::new(source::Source::new(options)))
    }

    fn sink(&self, _options: &Options, _format: &Format, _site: &Site) -> Result<Box<dyn Stage>, StageError> {
        Ok(Box::new(PassThrough))
    }
}
