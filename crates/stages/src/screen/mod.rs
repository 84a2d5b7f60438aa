//! `screen`: a screen over a network that is too slow for its pixels. It is exact where it stands still, and a film where it moves.
//!
//! - [`header`]: the bytes between the halves.
//! - [`canvas`]: the pixels of the screen, which both halves keep.
//! - [`tiles`]: the tiles that the sink half does not show exactly, and those that move.
//! - [`link`]: rate and distance of the link.
//! - [`film`]: the moving part as VP8; the feature `media`.
//! - [`source`]: the order in which text, film and the rest share the link.
//! - [`sink`]: the pixels of both on one screen.
//!
//! # Why the source half keeps the screen
//!
//! While the link is busy, a change marks tiles instead of entering a queue. A message is made only when the link has room for it,
//! from the pixels of that moment. So nothing old is sent, memory is bounded by the screen, and the next message can be the letter
//! that was typed a moment ago. A message is as large as the link takes in 4 ms; a picture of the film is divided into such pieces.

mod canvas;
#[cfg(feature = "media")]
mod film;
mod header;
#[cfg(feature = "media")]
mod link;
mod sink;
#[cfg(feature = "media")]
mod source;
#[cfg(all(test, feature = "media"))]
mod tests;
#[cfg(feature = "media")]
mod tiles;

use contract::{
    Format, ModuleEntry, OptionKind, OptionSpec, Options, Pair, Promises, Site, Stage, StageResult, agreed,
};

/// Side of a tile in pixels: that of a macroblock of VP8.
const TILE: u32 = 16;
/// Most bytes of a coded picture of the film.
const FILM_PICTURE_BYTES_MAX: usize = 8 << 20;

/// The pair.
pub(crate) struct Screen;

static OPTIONS: [OptionSpec; 1] = [agreed(
    "film",
    OptionKind::Choice(&["auto", "never"]),
    "auto",
    "auto: moving tiles are sent as VP8 while the link is too slow for their pixels; never: every pixel is exact",
)];

impl Pair for Screen {
    fn entry(&self) -> ModuleEntry {
        ModuleEntry {
            name: "screen",
            summary: "a screen, exact where it stands still, and as VP8 where it moves while the network is too slow",
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
            merges: true,
            ..Promises::default()
        }
    }

    fn accept(&self, format: &Format, _options: &Options) -> Result<Format, String> {
        crate::picture::accept(format).map(|_| Format::Bytes)
    }

    /// A sink half without a decoder is possible: it makes the source half send exact pixels only.
    #[cfg(not(feature = "media"))]
    fn check_half(&self, half: contract::Half, _options: &Options) -> Result<(), String> {
        match half {
            contract::Half::Source => {
                Err(format!("{}; use `compress | latest(held_max=0)`", crate::encode::MISSING))
            }
            contract::Half::Sink => Ok(()),
        }
    }

    #[cfg(not(feature = "media"))]
    fn source(&self, _options: &Options, _format: &Format, _site: &Site) -> StageResult<Box<dyn Stage>> {
        Err(contract::StageError::Own(crate::encode::MISSING.into()))
    }

    #[cfg(feature = "media")]
    fn source(&self, options: &Options, _format: &Format, _site: &Site) -> StageResult<Box<dyn Stage>> {
        Ok(Box::new(source::Source::new(options.text("film") == "auto")?))
    }

    fn sink(&self, _options: &Options, _format: &Format, _site: &Site) -> StageResult<Box<dyn Stage>> {
        Ok(Box::new(sink::Sink::new()))
    }
}
