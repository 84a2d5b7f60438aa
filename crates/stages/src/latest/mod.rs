//! `latest`: while the network is slower than the device, a newer message replaces the one that
//! waits.
//!
//! The sink half acknowledges every message by control message, so the source half knows how many
//! messages are in flight.
//!
//! - [`source`]: sends while the window has room, otherwise holds; detects lost messages by
//!   timeout.
//! - [`window`]: the limit on messages in flight, fixed or `auto`.
//! - [`pending`]: the held messages: the newest of each key, or merged motion of an input device.

mod pending;
mod sink;
mod source;
#[cfg(test)]
mod tests;
mod window;

use contract::{
    Format, ModuleEntry, OptionKind, OptionSpec, Options, Pair, Promises, Site, Stage, StageResult, agreed,
};

/// The pair.
pub(crate) struct Latest;

/// Largest window, in messages.
const IN_FLIGHT_MAX: usize = 4096;

const IN_FLIGHT: OptionKind = OptionKind::Integer { min: 1, max: IN_FLIGHT_MAX as i64 };

static OPTIONS: [OptionSpec; 3] = [
    agreed("in_flight", OptionKind::OrAuto(&IN_FLIGHT), "auto", "most messages in flight"),
    agreed(
        "merge",
        OptionKind::Flag,
        "true",
        "formats evdev and motion: merge motion and keep every key, instead of dropping messages",
    ),
    agreed(
        "held_max",
        OptionKind::Integer { min: 0, max: 1 << 20 },
        "1024",
        "most messages held: one for each key, or events that cannot be merged; 0: hold none and apply backpressure",
    ),
];

impl Pair for Latest {
    fn entry(&self) -> ModuleEntry {
        ModuleEntry {
            name: "latest",
            summary: "while the network is busy, the newest message replaces the one that waits",
            doc: include_str!("doc.md"),
            options: &OPTIONS,
        }
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

    fn accept(&self, format: &Format, options: &Options) -> Result<Format, String> {
        match format {
            Format::Serial => Err("it drops messages, and a serial line needs every byte".into()),
            Format::Midi => Err("it drops messages, and every note that begins must end".into()),
            Format::Viewer => Err("it drops messages, and a key release is sent only once".into()),
            Format::Controls => Err("it drops messages, and every setting is needed".into()),
            Format::Hid => Err("it drops messages, and every report and request of a HID device is needed".into()),
            Format::Block => Err("it drops messages, and every request to a disk is needed".into()),
            Format::Evdev | Format::Motion if !options.flag("merge") => Err(
                "with merge=false it drops messages, and input devices need every one (a key release is sent only \
                 once)"
                    .into(),
            ),
            _ => Ok(Format::Bytes),
        }
    }

    fn source(&self, options: &Options, format: &Format, _site: &Site) -> StageResult<Box<dyn Stage>> {
        Ok(Box::new(source::Source::new(options, format)))
    }

    fn sink(&self, _options: &Options, _format: &Format, _site: &Site) -> StageResult<Box<dyn Stage>> {
        Ok(Box::new(sink::Sink::default()))
    }
}
