//! `compress`: each message by itself (paper N, section 4.8.2; zlib as there, or zstd or lz4).

mod auto;
mod codec;
mod effort;
mod sink;
mod source;
#[cfg(test)]
mod tests;
mod tiles;

use crate::agreed;
use codec::Method;
use contract::{Format, OptionKind, OptionSpec, Options, Pair, Promises, Site, Stage, StageError};

/// The pair.
pub(crate) struct Compress;

static OPTIONS: [OptionSpec; 4] = [
    agreed("method", OptionKind::Choice(&["zstd", "zlib", "lz4"]), "zstd", "how to compress"),
    agreed(
        "level",
        OptionKind::OrAuto(&OptionKind::Integer { min: -7, max: 19 }),
        "3",
        "effort; more is smaller and slower",
    ),
    agreed(
        "limit",
        OptionKind::Size { min: 1, max: wire::BODY_BYTES_MAX as u64 },
        "64MiB",
        "largest body, before compression",
    ),
    agreed(
        "tiles",
        OptionKind::Flag,
        "true",
        "of pictures, first say in tiles how pixels are alike: what a screen shows becomes smaller, and sooner",
    ),
];

/// Whether pictures are said in tiles first: only what is one can be.
fn is_tiled(options: &Options, format: &Format) -> bool {
    *format == Format::Video && options.flag("tiles")
}

impl Pair for Compress {
    fn name(&self) -> &'static str {
        "compress"
    }

    fn version(&self) -> u16 {
        3
    }

    fn summary(&self) -> &'static str {
        "compresses each message by itself (zstd, zlib, lz4)"
    }

    fn doc(&self) -> &'static str {
        include_str!("doc.md")
    }

    fn options(&self) -> &'static [OptionSpec] {
        &OPTIONS
    }

    fn promises(&self, _options: &Options) -> Promises {
        Promises::default()
    }

    fn cost(&self) -> Option<&'static str> {
        Some(
            "the mean time from a message's being handed in to its being decompressed: compressing, bytes by the \
             way's rate, waiting, decompressing",
        )
    }

    fn accept(&self, _format: &Format, _options: &Options) -> Result<Format, String> {
        Ok(Format::Bytes)
    }

    fn check(&self, options: &Options) -> Result<(), String> {
        let level = options.integer("level");
        match Method::chosen(options) {
            Method::Zlib | Method::Lz4 if options.is_auto("level") => {
                Err("level=auto goes from stored over lz4 to zstd: leave `method` out".into())
            }
            Method::Zlib if !(0..=9).contains(&level) => Err(format!("zlib has levels 0 to 9, not {level}")),
            _ => Ok(()),
        }
    }

    fn source(&self, options: &Options, format: &Format, _site: &Site) -> Result<Box<dyn Stage>, StageError> {
        Ok(Box::new(source::Source::new(options, is_tiled(options, format))?))
    }

    fn sink(&self, options: &Options, format: &Format, site: &Site) -> Result<Box<dyn Stage>, StageError> {
        // A picture may be as large as a message can be; what else says so is more likely to be a bomb.
        let most = if *format == Format::Video { wire::BODY_BYTES_MAX } else { site.message_bytes };
        Ok(Box::new(sink::Sink::new(options, most, is_tiled(options, format))?))
    }
}
