//! A pair with the options and the format of its runs.

use contract::{Format, Half, Options, Pair, Promises, Shape};
use testkit::stage::site;

/// The part of a message that must stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Compared {
    /// Creation time and body.
    Whole,
    /// The body. The pair changes creation times.
    Body,
    /// Nothing. The pair changes bodies.
    Nothing,
}

/// A pair with its options and format.
pub(super) struct Subject {
    pub(super) pair: &'static dyn Pair,
    pub(super) given: &'static [(&'static str, &'static str)],
    pub(super) format: Format,
    pub(super) promises: Promises,
    pub(super) compared: Compared,
    /// Links between the halves: several for a pair that joins flows.
    pub(super) lanes: usize,
    /// True if the halves are the user's programs, which run as processes only.
    pub(super) is_program: bool,
}

type Given = &'static [(&'static str, &'static str)];

/// Options of pairs. Other pairs run with their defaults.
static SETTINGS: &[(&str, &[Given])] = &[
    (
        "buffer",
        &[
            &[("full", "wait")],
            &[("min", "2"), ("max", "4"), ("source_max", "3"), ("full", "wait")],
            &[("mode", "play")],
            &[("mode", "play"), ("delay", "auto")],
            &[],
        ],
    ),
    ("bundle", &[&[], &[("count", "3"), ("wait", "20ms")]]),
    ("compress", &[&[], &[("method", "zlib")], &[("method", "lz4")]]),
    ("delay", &[&[("jitter", "30ms")]]),
    ("delta", &[&[], &[("key_every", "10")], &[("key_every", "0"), ("lengths", "2")]]),
    ("encrypt", &[&[], &[("cipher", "chacha20-poly1305")]]),
    ("exec", &[&[("source", "cat"), ("sink", "cat")]]),
    ("fec", &[&[], &[("parity", "2")], &[("data", "3"), ("parity", "1"), ("wait", "5ms")]]),
    // Merging is tested with motion. Without it `latest` changes no body.
    ("latest", &[&[("merge", "false")]]),
    ("multiplex", &[&[], &[("mode", "round_robin"), ("ways", "3")], &[("mode", "split")]]),
    ("prefetch", &[&[("flow", "requests")], &[("flow", "answers")]]),
    ("replay", &[&[("speed", "1")]]),
];

const DEFAULTS: &[Given] = &[&[]];

/// Formats in order of preference: a pair runs with the first one that it accepts.
const FORMATS: [Format; 6] =
    [Format::Bytes, Format::Motion, Format::Video, Format::Evdev, Format::Audio, Format::Serial];

/// Returns a pair's subjects, or the reason if it cannot run.
pub(super) fn subjects(pair: &'static dyn Pair) -> Result<Vec<Subject>, String> {
    let settings = SETTINGS.iter().find(|(name, _)| *name == pair.name());
    let given = settings.map_or(DEFAULTS, |(_, given)| *given);
    given.iter().map(|given| subject(pair, given)).collect()
}

fn subject(pair: &'static dyn Pair, given: Given) -> Result<Subject, String> {
    let options = Options::check(pair.options(), given.iter().copied()).map_err(|error| error.to_string())?;
    let is_program = [Half::Source, Half::Sink].iter().any(|half| pair.program(&options, *half).is_some());
    pair.check(&options)?;
    let accepts = |format: &&Format| pair.accept(format, &options).is_ok();
    let format = FORMATS.iter().find(accepts).ok_or("it accepts none of the formats")?;
    for half in [Half::Source, Half::Sink].into_iter().filter(|_| !is_program) {
        pair.half(half, &options, format, &site(0)).map_err(|error| error.to_string())?;
    }
    let lanes = if pair.shape(&options) == Shape::Joint { 2 } else { 1 };
    let mut promises = pair.promises(&options);
    // Different flows have no common order.
    promises.may_reorder |= lanes > 1;
    let compared = match promises.may_change {
        // `replay` changes creation times only.
        true if pair.name() == "replay" => Compared::Body,
        true => Compared::Nothing,
        false => Compared::Whole,
    };
    Ok(Subject { pair, given, format: format.clone(), promises, compared, lanes, is_program })
}

impl Subject {
    pub(super) fn options_text(&self) -> String {
        let options: Vec<String> = self.given.iter().map(|(name, value)| format!("{name}={value}")).collect();
        if options.is_empty() { "defaults".into() } else { options.join(", ") }
    }
}

/// Describes the options and the format of a pair's subjects.
pub(super) fn describe(subjects: &[Subject]) -> String {
    let options: Vec<String> = subjects.iter().map(Subject::options_text).collect();
    let format = subjects.first().map_or("bytes", |subject| subject.format.name());
    format!("{} ({format})", options.join("; "))
}
