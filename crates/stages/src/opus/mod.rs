//! `opus`: compresses sound with the codec Opus (RFC 6716), and conceals lost packets.
//!
//! [`source`] cuts sound into frames of 2.5 to 20 ms and encodes them. [`sink`] decodes them; the position in each header shows
//! lost ones, which it restores from the next packet (in-band FEC) or conceals. [`header`] is the layout between the halves.
//! With `when=needed`, [`need`] decides when sound is coded, and [`probe`] measures the link for it.
//!
//! The codec is C (libopus, in the crate `opusic-c`), so it is behind the Cargo feature `media`. It runs in the locked worker like
//! every stage. With `when=needed`, a host without it can receive: [`plain`] makes the source half send sound as it is.

#[cfg(feature = "media")]
mod header;
#[cfg(feature = "media")]
mod need;
#[cfg(any(test, not(feature = "media")))]
mod plain;
#[cfg(feature = "media")]
mod probe;
#[cfg(feature = "media")]
mod sink;
#[cfg(feature = "media")]
mod source;
#[cfg(all(test, feature = "media"))]
mod tests;

use contract::{
    Format, ModuleEntry, OptionKind, OptionSpec, Options, Pair, Promises, Site, Stage, StageResult, agreed,
};

/// The pair.
pub(crate) struct Opus;

const KBITS: OptionKind = OptionKind::Integer { min: 6, max: 510 };

/// The kind of a body that is no packet: the rest passes unchanged.
const PLAIN: u8 = 0;
/// The sink half's control message: it has no decoder.
const NO_DECODER: u8 = 0;

static OPTIONS: [OptionSpec; 2] = [
    agreed(
        "kbits",
        OptionKind::OrAuto(&KBITS),
        "auto",
        "kilobits a second; auto: 32 for one channel, 96 for two, and less on a network that is too slow",
    ),
    agreed(
        "when",
        OptionKind::Choice(&["always", "needed"]),
        "always",
        "needed: sound as it is while the network is fast enough and loses nothing",
    ),
];

fn is_needed_only(options: &Options) -> bool {
    options.text("when") == "needed"
}

#[cfg(not(feature = "media"))]
const MISSING: &str =
    "this program was built without the codec: take one from a package, or build it with `--features media`";

impl Pair for Opus {
    fn entry(&self) -> ModuleEntry {
        ModuleEntry {
            name: "opus",
            summary: "compresses sound with the codec Opus, and conceals lost packets",
            doc: include_str!("doc.md"),
            options: &OPTIONS,
        }
    }

    fn promises(&self, options: &Options) -> Promises {
        Promises {
            may_delay: true,
            may_drop: true,
            may_change: true,
            needs_control: is_needed_only(options),
            ..Promises::default()
        }
    }

    fn accept(&self, format: &Format, _options: &Options) -> Result<Format, String> {
        match format {
            Format::Audio => Ok(Format::Bytes),
            other => Err(format!("it compresses `audio`; `{other}` has no samples")),
        }
    }

    #[cfg(not(feature = "media"))]
    fn check_half(&self, half: contract::Half, options: &Options) -> Result<(), String> {
        match half {
            contract::Half::Sink if is_needed_only(options) => Ok(()),
            _ => Err(MISSING.into()),
        }
    }

    #[cfg(not(feature = "media"))]
    fn source(&self, _: &Options, _: &Format, _: &Site) -> StageResult<Box<dyn Stage>> {
        Err(contract::StageError::Own(MISSING.into()))
    }

    #[cfg(not(feature = "media"))]
    fn sink(&self, _: &Options, _: &Format, _: &Site) -> StageResult<Box<dyn Stage>> {
        Ok(Box::<plain::Sink>::default())
    }

    #[cfg(feature = "media")]
    fn source(&self, options: &Options, _format: &Format, _site: &Site) -> StageResult<Box<dyn Stage>> {
        Ok(Box::new(source::Source::new(options)))
    }

    #[cfg(feature = "media")]
    fn sink(&self, _options: &Options, _format: &Format, _site: &Site) -> StageResult<Box<dyn Stage>> {
        Ok(Box::<sink::Sink>::default())
    }
}

/// The error of a call of the codec.
#[cfg(feature = "media")]
fn codec_error(operation: &str, error: opusic_c::ErrorCode) -> contract::StageError {
    contract::StageError::Own(format!("opus: {operation}: {}", error.message()))
}
