//! `buffer`: restores the original spacing of messages by holding them at the sink ("Networked
//! Device Driver Architecture" (2012), 4.8.2 and 6.7.1).
//!
//! - `mode=play`: [`play`] holds each message until its creation time plus a shift; [`sound`] does so for sound, without gaps. The
//!   source half passes messages on.
//! - `mode=request`: credit-based flow control. [`sink`] grants the [`source`] a number of
//!   messages; the source queues the rest.

mod play;
mod shift;
mod sink;
mod sound;
#[cfg(test)]
mod sound_tests;
mod source;
#[cfg(test)]
mod tests;

use contract::{
    Format, ModuleEntry, OptionKind, OptionSpec, Options, Pair, PassThrough, Promises, Site, Stage,
    StageResult, agreed,
};
use std::time::Duration;

/// The pair.
pub(crate) struct Buffer;

const COUNT: OptionKind = OptionKind::Integer { min: 1, max: 100_000 };
const DELAY: OptionKind = OptionKind::Duration { min: Duration::ZERO, max: Duration::from_secs(10) };

static OPTIONS: [OptionSpec; 8] = [
    agreed(
        "mode",
        OptionKind::Choice(&["request", "play"]),
        "request",
        "request: the sink requests messages; play: the source sends at once, the sink delays",
    ),
    agreed(
        "min",
        COUNT,
        "10",
        "request: below this many messages, held or requested, the sink requests more",
    ),
    agreed(
        "max",
        COUNT,
        "10",
        "request: messages that the sink holds or requests, beside those that a round trip needs",
    ),
    agreed("source_max", COUNT, "400", "request: most messages held at the source"),
    agreed(
        "full",
        OptionKind::Choice(&["auto", "discard", "wait"]),
        "auto",
        "request: a full source drops the oldest message (discard) or applies backpressure (wait); auto depends on the format",
    ),
    agreed(
        "lost_after",
        OptionKind::Duration { min: Duration::from_millis(1), max: Duration::from_secs(60) },
        "500ms",
        "request: a released message that does not arrive within this time is lost",
    ),
    agreed(
        "delay",
        OptionKind::OrAuto(&DELAY),
        "50ms",
        "play: delay beyond the fastest transit; auto adapts to the network",
    ),
    agreed("delay_max", DELAY, "1s", "play: longest delay that auto may choose"),
];

fn is_play(options: &Options) -> bool {
    options.text("mode") == "play"
}

/// True if a full source applies backpressure instead of discarding.
fn applies_backpressure(options: &Options, format: &Format) -> bool {
    match options.text("full") {
        "auto" => matches!(
            format,
            Format::Evdev
                | Format::Midi
                | Format::Serial
                | Format::Viewer
                | Format::Controls
                | Format::Hid
                | Format::Block
        ),
        chosen => chosen == "wait",
    }
}

impl Pair for Buffer {
    fn entry(&self) -> ModuleEntry {
        ModuleEntry {
            name: "buffer",
            summary: "restores the original spacing of messages",
            doc: include_str!("doc.md"),
            options: &OPTIONS,
        }
    }

    fn version(&self) -> u16 {
        2
    }

    fn promises(&self, options: &Options) -> Promises {
        let requests = !is_play(options);
        Promises {
            may_delay: true,
            // Late sound is dropped in `play`.
            may_drop: !requests || options.text("full") != "wait",
            // Missing sound is concealed.
            may_change: !requests,
            needs_control: requests,
            ..Promises::default()
        }
    }

    fn accept(&self, format: &Format, options: &Options) -> Result<Format, String> {
        // With a header, pairs behind this one cannot interpret the body.
        Ok(if is_play(options) { format.clone() } else { Format::Bytes })
    }

    fn check(&self, options: &Options) -> Result<(), String> {
        if options.duration("delay") > options.duration("delay_max") {
            return Err("`delay` is above `delay_max`".into());
        }
        Ok(())
    }

    fn source(&self, options: &Options, format: &Format, _site: &Site) -> StageResult<Box<dyn Stage>> {
        Ok(match is_play(options) {
            true => Box::new(PassThrough),
            false => Box::new(source::Source::new(options, applies_backpressure(options, format))),
        })
    }

    fn sink(&self, options: &Options, format: &Format, _site: &Site) -> StageResult<Box<dyn Stage>> {
        Ok(match (is_play(options), format) {
            (true, Format::Audio) => Box::new(sound::Sink::new(options)),
            (true, _) => Box::new(play::Sink::new(options)),
            (false, _) => Box::new(sink::Sink::new(options)),
        })
    }
}
