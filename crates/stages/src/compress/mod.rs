//! `compress`: compresses each message on its own ("Networked Device Driver Architecture" (2012),
//! 4.8.2).
//!
//! This is the pair to copy for a new one:
//!
//! ```text
//! mod.rs     the pair: options, promises, formats; makes both halves
//! source.rs  the half that compresses; writes the header
//! sink.rs    the half that decompresses; checks the header
//! codec.rs   zstd, zlib and lz4 behind one interface
//! effort.rs  the levels that `level=auto` chooses from, and their measured costs
//! auto.rs    `level=auto`
//! tiles/     lossless recoding of screen pictures, in front of the codec
//! doc.md     user documentation: `outboard modules compress`
//! ```
//!
//! # Adding an option
//!
//! 1. Add an entry to [`OPTIONS`]: `agreed(NAME, KIND, DEFAULT, HELP)` for an option that both hosts
//!    must agree on, `local(…)` for one that only this host may set. Add a row to the table in `doc.md`. Parsing, range checks, help and completion derive from it; a test compares the
//!    table with the options.
//! 2. Read it in `Source::new` or `Sink::new`, as `options.integer("level")` does. [`Pair::check`]
//!    refuses values that do not go together.
//!
//! If halves with and without the option would not understand each other, raise [`Pair::version`].

mod auto;
mod codec;
mod effort;
mod sink;
mod source;
#[cfg(test)]
mod tests;

use codec::Method;
use contract::{
    Format, ModuleEntry, OptionKind, OptionSpec, Options, Pair, Site, Stage, StageResult, Work, agreed,
};

/// The pair.
pub(crate) struct Compress;

static OPTIONS: [OptionSpec; 2] = [
    agreed("method", OptionKind::Choice(&["zstd", "zlib", "lz4"]), "zstd", "compression method"),
    agreed(
        "level",
        OptionKind::OrAuto(&OptionKind::Integer { min: -7, max: 19 }),
        "3",
        "effort of the method: higher is smaller and slower; auto adapts to the network",
    ),
];

impl Pair for Compress {
    fn entry(&self) -> ModuleEntry {
        ModuleEntry {
            name: "compress",
            summary: "compresses each message on its own (zstd, zlib, lz4)",
            doc: include_str!("doc.md"),
            options: &OPTIONS,
        }
    }

    fn version(&self) -> u16 {
        3
    }

    fn work(&self, _options: &Options) -> Work {
        Work::Symmetric
    }

    fn accept(&self, _format: &Format, _options: &Options) -> Result<Format, String> {
        Ok(Format::Bytes)
    }

    fn check(&self, options: &Options) -> Result<(), String> {
        let level = options.integer("level");
        match Method::from_options(options) {
            Method::Zlib | Method::Lz4 if options.is_auto("level") => {
                Err("level=auto chooses between no compression, lz4 and zstd: leave `method` out".into())
            }
            Method::Zlib if !(0..=9).contains(&level) => Err(format!("zlib has levels 0 to 9, not {level}")),
            _ => Ok(()),
        }
    }

    fn source(&self, options: &Options, format: &Format, _site: &Site) -> StageResult<Box<dyn Stage>> {
        Ok(Box::new(source::Source::new(options, *format == Format::Video)?))
    }

    fn sink(&self, options: &Options, format: &Format, site: &Site) -> StageResult<Box<dyn Stage>> {
        Ok(Box::new(sink::Sink::new(options, site.message_bytes, *format == Format::Video)?))
    }
}
