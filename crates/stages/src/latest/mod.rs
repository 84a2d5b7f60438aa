//! `latest`: where the network is slower than the device, only the newest counts.

mod pending;
mod sink;
mod source;
#[cfg(test)]
mod tests;
mod window;

use crate::agreed;
use contract::{Format, OptionKind, OptionSpec, Options, Pair, Promises, Site, Stage, StageError};
use std::time::Duration;

/// The pair.
pub(crate) struct Latest;

/// Messages under way at a time, at most.
const IN_FLIGHT_MAX: usize = 4096;

const IN_FLIGHT: OptionKind = OptionKind::Integer { min: 1, max: IN_FLIGHT_MAX as i64 };

static OPTIONS: [OptionSpec; 4] = [
    agreed("in_flight", OptionKind::OrAuto(&IN_FLIGHT), "auto", "messages under way at a time, at most"),
    agreed(
        "merge",
        OptionKind::Flag,
        "true",
        "join what input devices say, so that no key is lost, rather than drop it",
    ),
    agreed(
        "lost_after",
        OptionKind::Duration { min: Duration::from_millis(10), max: Duration::from_secs(60) },
        "1s",
        "a message of which nothing is heard for so long was lost",
    ),
    agreed(
        "held_max",
        OptionKind::Integer { min: 0, max: 1 << 20 },
        "1024",
        "messages held, at most: keys of the flow, or events that cannot be joined; 0: what cannot leave is not taken",
    ),
];

impl Pair for Latest {
    fn name(&self) -> &'static str {
        "latest"
    }

    fn summary(&self) -> &'static str {
        "while the network is busy, the newest message takes the place of the one that waits"
    }

    fn doc(&self) -> &'static str {
        include_str!("doc.md")
    }

    fn options(&self) -> &'static [OptionSpec] {
        &OPTIONS
    }

    fn promises(&self, options: &Options) -> Promises {
        Promises {
            may_drop: true,
            may_delay: true,
            may_change: options.flag("merge"),
            may_reorder: true,
            needs_control: true,
            ..Promises::default()
        }
    }

    fn cost(&self) -> Option<&'static str> {
        Some(
            "age of the newest message at the sink half, ms + 1 ms for each percent of the network's rate not used",
        )
    }

    fn accept(&self, format: &Format, options: &Options) -> Result<Format, String> {
        match format {
            Format::Serial => Err("it drops messages, and of a serial line each byte counts".into()),
            Format::Viewer => Err("it drops messages, and a key's release is not said twice".into()),
            Format::Controls => Err("it drops messages, and each setting counts".into()),
            Format::Evdev | Format::Motion if !options.flag("merge") => Err(
                "with merge=false it drops messages, and here each one counts (a key's release is not said \
                 twice)"
                    .into(),
            ),
            _ => Ok(Format::Bytes),
        }
    }

    fn source(&self, options: &Options, format: &Format, _site: &Site) -> Result<Box<dyn Stage>, StageError> {
        Ok(Box::new(source::Source::new(options, format)))
    }

    fn sink(&self, _options: &Options, _format: &Format, _site: &Site) -> Result<Box<dyn Stage>, StageError> {
        Ok(Box::new(sink::Sink::default()))
    }
}
