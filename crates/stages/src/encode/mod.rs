//! `encode`: pictures as they are while the link carries them, and as VP8 (RFC 6386) while it does not.
//!
//! - [`header`]: the bytes between the halves.
//! - [`link`]: the time that the link takes for a byte, measured in both halves.
//! - [`source`]: chooses between the picture as it is and its coded form, and the rate.
//! - [`sink`]: order, requests for missing messages, decoding.
//! - [`decoding`]: pictures to and from VP8; the feature `media`.
//!
//! # Loss
//!
//! Most pictures are larger than a datagram. The transports `quic`, `tcp` and `striped` send their lost parts again, so a
//! picture arrives late, but it arrives; later pictures may overtake it. The sink half therefore waits, and asks for a
//! missing picture only when the round trip of such a repetition is over; the source half then repeats the very same bytes. A
//! key picture, many times as large, is the last resort. Its references stay those of the encoder all the time, which needs no
//! error resilience of the codec and no extra reference pictures.

mod decoding;
mod header;
#[cfg(feature = "media")]
mod link;
mod sink;
#[cfg(feature = "media")]
mod source;
#[cfg(all(test, feature = "media"))]
mod tests;

pub(crate) use decoding::Decoding;
#[cfg(feature = "media")]
pub(crate) use decoding::Encoding;

use contract::{
    Format, ModuleEntry, OptionKind, OptionSpec, Options, Pair, Promises, Site, Stage, StageResult, agreed,
};

/// The pair.
pub(crate) struct Encode;

/// The end of the errors of a build without the feature `media`.
#[cfg(not(feature = "media"))]
pub(crate) const MISSING: &str = "this build of Outboard has no VP8: it was built without the feature `media`, which the Debian package has";

static OPTIONS: [OptionSpec; 1] = [agreed(
    "codec",
    OptionKind::OrAuto(&OptionKind::Choice(&["vp8"])),
    "auto",
    "auto: pictures as they are while the link carries them, otherwise VP8; vp8: always VP8",
)];

impl Pair for Encode {
    fn entry(&self) -> ModuleEntry {
        ModuleEntry {
            name: "encode",
            summary: "pictures of a camera as VP8 while the network is too slow for them as they are",
            doc: include_str!("doc.md"),
            options: &OPTIONS,
        }
    }

    fn promises(&self, _options: &Options) -> Promises {
        Promises {
            may_drop: true,
            may_delay: true,
            may_change: true,
            needs_control: true,
            ..Promises::default()
        }
    }

    fn accept(&self, format: &Format, _options: &Options) -> Result<Format, String> {
        crate::picture::accept(format).map(|_| Format::Bytes)
    }

    /// A sink half without a decoder is possible: it makes the source half send pictures as they are.
    #[cfg(not(feature = "media"))]
    fn check_half(&self, half: contract::Half, _options: &Options) -> Result<(), String> {
        match half {
            contract::Half::Source => {
                Err(format!("{MISSING}; without `encode`, pictures are sent as they are"))
            }
            contract::Half::Sink => Ok(()),
        }
    }

    #[cfg(not(feature = "media"))]
    fn source(&self, _options: &Options, _format: &Format, _site: &Site) -> StageResult<Box<dyn Stage>> {
        Err(contract::StageError::Own(MISSING.into()))
    }

    #[cfg(feature = "media")]
    fn source(&self, options: &Options, _format: &Format, _site: &Site) -> StageResult<Box<dyn Stage>> {
        Ok(Box::new(source::Source::new(!options.is_auto("codec"))))
    }

    fn sink(&self, _options: &Options, _format: &Format, _site: &Site) -> StageResult<Box<dyn Stage>> {
        Ok(Box::new(sink::Sink::new()))
    }
}
