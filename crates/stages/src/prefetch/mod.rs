//! `prefetch`: requests data before the application does ("Networked Device Driver Architecture"
//! (2012), 4.8.2). For devices that answer each request with one message, in order.
//!
//! The pair is part of both flows of a driver. Its two halves on one host share state through
//! [`Site::shared`]:
//!
//! ```text
//! host         flow of requests                 flow of answers
//! application  application::Requests (source)   application::Answers (sink)      cache, pending requests
//! device       device::Requests (sink)          device::Answers (source)         order of outstanding requests
//! ```
//!
//! [`predict`]: the requests that probably come next. [`cache`]: answers not yet requested.
//! [`header`]: numbers that match answers to requests.

mod application;
mod cache;
mod device;
mod header;
mod predict;
#[cfg(test)]
mod tests;

use contract::{
    Format, ModuleEntry, OptionKind, OptionSpec, Options, Pair, Promises, Site, Stage, StageResult, agreed,
};
use std::time::Duration;

/// The pair.
pub(crate) struct Prefetch;

const MINUTE: Duration = Duration::from_secs(60);
/// Largest request that is prefetched.
const PREFETCH_BYTES_MAX: usize = 8192;
/// Requests without an answer, at most; then backpressure.
const UNANSWERED_MAX: usize = 1024;

static OPTIONS: [OptionSpec; 11] = [
    agreed("flow", OptionKind::Choice(&["requests", "answers"]), "requests", "content of this flow"),
    agreed(
        "ahead",
        OptionKind::Integer { min: 1, max: 64 },
        "4",
        "most prefetched requests without an answer",
    ),
    agreed(
        "step",
        OptionKind::Integer { min: 1, max: 1 << 32 },
        "1",
        "difference between the numbers of successive requests",
    ),
    agreed(
        "at",
        OptionKind::Integer { min: 0, max: 1 << 12 },
        "0",
        "offset of the number in a request, in bytes",
    ),
    agreed("width", OptionKind::Integer { min: 1, max: 8 }, "8", "width of that number, in bytes"),
    agreed(
        "only",
        OptionKind::Text { max: 64 },
        "",
        "hexadecimal: prefetch only requests that begin with these bytes; any other request empties the cache",
    ),
    agreed(
        "guess",
        OptionKind::Choice(&["run", "around"]),
        "run",
        "run: prefetch the continuation of a run; around: also the neighbours of any other request",
    ),
    agreed("cache", OptionKind::Size { min: 1, max: 1 << 30 }, "1MiB", "most bytes of cached answers"),
    agreed(
        "fresh",
        OptionKind::Duration { min: Duration::ZERO, max: Duration::from_secs(24 * 3600) },
        "10s",
        "longest time an answer stays in the cache",
    ),
    agreed(
        "others",
        OptionKind::Choice(&["answered", "silent"]),
        "answered",
        "answered: the device also answers requests that do not begin with `only`; silent: it does not",
    ),
    agreed(
        "wait",
        OptionKind::Duration { min: Duration::from_millis(1), max: MINUTE },
        "5s",
        "time after which an answer counts as missing",
    ),
];

fn carries_requests(options: &Options) -> bool {
    options.text("flow") == "requests"
}

/// Parses hexadecimal digits.
fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = text.chars().map(|c| Some(c.to_digit(16)? as u8)).collect();
    let digits = digits.filter(|digits| digits.len().is_multiple_of(2))?;
    Some(digits.chunks(2).map(|two| two[0] << 4 | two[1]).collect())
}

impl Pair for Prefetch {
    fn entry(&self) -> ModuleEntry {
        ModuleEntry {
            name: "prefetch",
            summary: "prefetches the requests that an application will probably make next",
            doc: include_str!("doc.md"),
            options: &OPTIONS,
        }
    }

    fn promises(&self, _options: &Options) -> Promises {
        Promises { may_drop: true, may_delay: true, ..Promises::default() }
    }

    fn accept(&self, _format: &Format, _options: &Options) -> Result<Format, String> {
        Ok(Format::Bytes)
    }

    fn isolates(&self, _options: &Options) -> Result<(), String> {
        Err("its halves in the two flows of a driver share state, which processes of their own cannot".into())
    }

    fn check(&self, options: &Options) -> Result<(), String> {
        match from_hex(options.text("only")) {
            Some(_) => Ok(()),
            None => Err("`only` takes bytes as hexadecimal digits, two each: `only=5201`".into()),
        }
    }

    fn source(&self, options: &Options, _format: &Format, site: &Site) -> StageResult<Box<dyn Stage>> {
        Ok(match carries_requests(options) {
            true => Box::new(application::Requests::new(options, site)),
            false => Box::new(device::Answers::new(site)),
        })
    }

    fn sink(&self, options: &Options, _format: &Format, site: &Site) -> StageResult<Box<dyn Stage>> {
        Ok(match carries_requests(options) {
            true => Box::new(device::Requests::new(options, site)),
            false => Box::new(application::Answers::new(site)),
        })
    }
}
