//! `prefetch`: makes the requests ahead that an application will probably make next. It stands in both flows of a
//! driver, and its halves on one host meet in what the two flows share there.

mod application;
mod cache;
mod device;
mod guess;
mod header;
#[cfg(test)]
mod tests;

use crate::agreed;
use contract::{Format, OptionKind, OptionSpec, Options, Pair, Promises, Site, Stage, StageError};
use std::time::Duration;

/// The pair.
pub(crate) struct Prefetch;

const MINUTE: Duration = Duration::from_secs(60);
/// The longest request that is made ahead.
const AHEAD_BYTES_MAX: usize = 8192;

static OPTIONS: [OptionSpec; 13] = [
    agreed("flow", OptionKind::Choice(&["requests", "answers"]), "requests", "what this flow carries"),
    agreed(
        "ahead",
        OptionKind::Integer { min: 1, max: 64 },
        "4",
        "requests made ahead and not answered, at most",
    ),
    agreed(
        "step",
        OptionKind::Integer { min: 1, max: 1 << 32 },
        "1",
        "how far the number in a request is from that in the next",
    ),
    agreed("at", OptionKind::Integer { min: 0, max: 1 << 12 }, "0", "where in a request its number stands"),
    agreed("width", OptionKind::Integer { min: 1, max: 8 }, "8", "bytes of that number"),
    agreed(
        "only",
        OptionKind::Text { max: 64 },
        "",
        "hex: only requests that begin with these bytes are made ahead, and leave the others as they are",
    ),
    agreed(
        "guess",
        OptionKind::Choice(&["run", "around"]),
        "run",
        "what is made ahead: what continues a run of requests, or also what lies on both sides of any other",
    ),
    agreed("cache", OptionKind::Size { min: 1, max: 1 << 30 }, "1MiB", "bytes of answers kept, at most"),
    agreed("keep", OptionKind::Flag, "false", "keep answers after they were asked for"),
    agreed(
        "fresh",
        OptionKind::Duration { min: Duration::ZERO, max: Duration::from_secs(24 * 3600) },
        "10s",
        "how long an answer may be kept",
    ),
    agreed(
        "others",
        OptionKind::Choice(&["answered", "silent"]),
        "answered",
        "whether the device answers requests that do not begin as `only` says",
    ),
    agreed(
        "wait",
        OptionKind::Duration { min: Duration::from_millis(1), max: MINUTE },
        "5s",
        "how long an answer is waited for",
    ),
    agreed(
        "asked",
        OptionKind::Integer { min: 1, max: 1 << 16 },
        "1024",
        "requests without an answer, at most",
    ),
];

fn carries_requests(options: &Options) -> bool {
    options.text("flow") == "requests"
}

/// Bytes written in hexadecimal digits.
fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = text.chars().map(|c| Some(c.to_digit(16)? as u8)).collect();
    let digits = digits.filter(|digits| digits.len().is_multiple_of(2))?;
    Some(digits.chunks(2).map(|two| two[0] << 4 | two[1]).collect())
}

impl Pair for Prefetch {
    fn name(&self) -> &'static str {
        "prefetch"
    }

    fn summary(&self) -> &'static str {
        "makes requests ahead that an application will probably make next"
    }

    fn doc(&self) -> &'static str {
        include_str!("doc.md")
    }

    fn options(&self) -> &'static [OptionSpec] {
        &OPTIONS
    }

    fn promises(&self, _options: &Options) -> Promises {
        Promises { may_drop: true, may_delay: true, ..Promises::default() }
    }

    fn accept(&self, _format: &Format, _options: &Options) -> Result<Format, String> {
        Ok(Format::Bytes)
    }

    fn isolates(&self, _options: &Options) -> Result<(), String> {
        Err("its halves in a driver's two flows share what they know, and processes of their own share nothing".into())
    }

    fn check(&self, options: &Options) -> Result<(), String> {
        match from_hex(options.text("only")) {
            Some(_) => Ok(()),
            None => Err("`only` takes bytes as hexadecimal digits, two each: `only=5201`".into()),
        }
    }

    fn source(&self, options: &Options, _format: &Format, site: &Site) -> Result<Box<dyn Stage>, StageError> {
        Ok(match carries_requests(options) {
            true => Box::new(application::Requests::new(options, site)),
            false => Box::new(device::Answers::new(site)),
        })
    }

    fn sink(&self, options: &Options, _format: &Format, site: &Site) -> Result<Box<dyn Stage>, StageError> {
        Ok(match carries_requests(options) {
            true => Box::new(device::Requests::new(options, site)),
            false => Box::new(application::Answers::new(site)),
        })
    }
}
