//! `buffer`: original spacing from a store at the sink (paper N, sections 4.8.2 and 6.7.1).

mod play;
mod sink;
mod source;
#[cfg(test)]
mod tests;

use crate::{adaptive, agreed};
use contract::{
    Format, OptionKind, OptionSpec, Options, Pair, PassThrough, Promises, Site, Stage, StageError,
};
use std::time::Duration;

/// The pair.
pub(crate) struct Buffer;

const COUNT: OptionKind = OptionKind::Integer { min: 1, max: 100_000 };
const DELAY: OptionKind = OptionKind::Duration { min: Duration::ZERO, max: Duration::from_secs(10) };

static OPTIONS: [OptionSpec; 10] = [
    agreed("mode", OptionKind::Choice(&["request", "play"]), "request", "who sets the pace"),
    agreed("min", COUNT, "10", "request: the sink asks for more below this many messages, held or asked for"),
    agreed("max", COUNT, "10", "request: messages held at the sink or asked for, at most"),
    agreed("source_max", COUNT, "400", "request: messages held at the source, at most"),
    agreed(
        "full",
        OptionKind::Choice(&["auto", "discard", "wait"]),
        "auto",
        "request: when the source is full",
    ),
    agreed(
        "lost_after",
        OptionKind::Duration { min: Duration::from_millis(1), max: Duration::from_secs(60) },
        "500ms",
        "request: what was released and does not come is lost after this long",
    ),
    agreed("delay", OptionKind::OrAuto(&DELAY), "50ms", "play: held this long beyond the fastest transit"),
    agreed("delay_max", DELAY, "1s", "play: the longest delay that auto may choose"),
    agreed("held_max", COUNT, "4096", "play: messages held at the sink, at most"),
    agreed(
        "held_bytes",
        OptionKind::Size { min: 1, max: 1 << 30 },
        "64MiB",
        "bytes held at either half, at most",
    ),
];

fn plays(options: &Options) -> bool {
    options.text("mode") == "play"
}

/// Whether a full source takes no more, rather than discard.
fn waits(options: &Options, format: &Format) -> bool {
    match options.text("full") {
        "auto" => matches!(format, Format::Evdev | Format::Serial | Format::Controls),
        chosen => chosen == "wait",
    }
}

impl Pair for Buffer {
    fn name(&self) -> &'static str {
        "buffer"
    }

    fn summary(&self) -> &'static str {
        "gives messages back their original spacing"
    }

    fn doc(&self) -> &'static str {
        include_str!("doc.md")
    }

    fn options(&self) -> &'static [OptionSpec] {
        &OPTIONS
    }

    fn promises(&self, options: &Options) -> Promises {
        let requests = !plays(options);
        Promises {
            may_delay: true,
            may_drop: requests && options.text("full") != "wait",
            needs_control: requests,
            ..Promises::default()
        }
    }

    fn cost(&self) -> Option<&'static str> {
        Some(adaptive::COST)
    }

    fn accept(&self, format: &Format, options: &Options) -> Result<Format, String> {
        // A header makes the body unreadable to pairs behind it.
        Ok(if plays(options) { format.clone() } else { Format::Bytes })
    }

    fn check(&self, options: &Options) -> Result<(), String> {
        if options.duration("delay") > options.duration("delay_max") {
            return Err("`delay` is above `delay_max`".into());
        }
        Ok(())
    }

    fn source(&self, options: &Options, format: &Format, _site: &Site) -> Result<Box<dyn Stage>, StageError> {
        Ok(match plays(options) {
            true => Box::new(PassThrough),
            false => Box::new(source::Source::new(options, waits(options, format))),
        })
    }

    fn sink(&self, options: &Options, _format: &Format, _site: &Site) -> Result<Box<dyn Stage>, StageError> {
        Ok(match plays(options) {
            true => Box::new(play::Sink::new(options)),
            false => Box::new(sink::Sink::new(options)),
        })
    }
}
