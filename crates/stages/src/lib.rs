//! Pairs: transformations of messages and their undoing. One folder a pair, one line each in
//! [`PAIRS`].
//!
//! A pair has two halves, each a [`Stage`](contract::Stage): the source half transforms messages,
//! and the sink half, on the other side of the network, undoes it ("Networked Device Driver
//! Architecture" (2012), 4.8).
//!
//! # Adding an option to a pair
//!
//! A line in the `OPTIONS` of its `mod.rs` and a row in its `doc.md`. The module comment of
//! `compress` shows how.
//!
//! # Adding a pair
//!
//! 1. Copy the folder of a similar pair: `compress` (each message on its own), `bundle` (several
//!    messages become one), `buffer` (the halves exchange control messages), `tap` (nothing to
//!    undo).
//! 2. In `mod.rs`, declare options, formats, documentation and [`Promises`](contract::Promises).
//!    The conformance suite forbids everything that is not promised.
//! 3. In `source.rs` and `sink.rs`, write the halves. A stage has no clock, no I/O and no thread;
//!    time is an argument. The source half puts its header in front of the body
//!    (`Body::push_front`). The sink half takes it off and checks it: it may hold anything. A half
//!    without work is [`PassThrough`](contract::PassThrough). A sink half with state implements
//!    [`Stage::checkpoint`](contract::Stage::checkpoint), because its process may be killed.
//! 4. In `tests.rs`, run `testkit::stage::conforms` with several sets of options, compare the bytes
//!    of the header, and test the purpose of the pair in virtual time
//!    (`testkit::stage::TwoHalves`).
//! 5. Add the pair to [`PAIRS`]. Help, option checks and completion derive from it.
//!
//! # Shared parts
//!
//! ```text
//! playout, adaptive            release messages at creation spacing; the controller of delay=auto
//! sequence, reorder_buffer     position of a numbered flow; releasing it in order
//! movement                     merging motion of input devices
//! picture, field               pictures; a number at a fixed offset of a body
//! sound                        samples: conversion of rates, concealment of gaps, splices
//! checkpoint, control, varint  byte formats
//! histogram, random            percentiles; seeded random numbers
//! round_trip, dispersion       the shortest round trip of a path; the rate of a link
//! ```

mod adaptive;
mod average;
mod buffer;
mod bundle;
mod checkpoint;
mod colour;
mod compress;
mod control;
mod crop;
mod delay;
mod delta;
mod dispersion;
mod encode;
mod encrypt;
mod exec;
mod fault;
mod fec;
mod field;
mod gray;
mod histogram;
mod latest;
mod movement;
mod multiplex;
mod null;
mod opus;
mod periodic;
mod picture;
mod playout;
mod prefetch;
mod random;
mod recode;
mod record;
mod reorder;
mod reorder_buffer;
mod replay;
mod resample;
#[cfg(feature = "media")]
mod round_trip;
mod scale;
mod screen;
mod sequence;
mod sound;
mod synchronize;
mod tap;
mod track;
mod varint;

use contract::Pair;

/// Bytes that a half holds, at most.
const HELD_BYTES_MAX: usize = 64 << 20;

/// All pairs.
pub static PAIRS: &[&dyn Pair] = &[
    &null::Null,
    &average::Average,
    &buffer::Buffer,
    &bundle::Bundle,
    &compress::Compress,
    &delta::Delta,
    &encode::Encode,
    &latest::Latest,
    &periodic::Periodic,
    &reorder::Reorder,
    &multiplex::Multiplex,
    &prefetch::Prefetch,
    &synchronize::Synchronize,
    &delay::Delay,
    &encrypt::Encrypt,
    &fault::Fault,
    &fec::Fec,
    &tap::Tap,
    &exec::Exec,
    &record::Record,
    &replay::Replay,
    &scale::SCALE,
    &screen::Screen,
    &crop::CROP,
    &gray::GRAY,
    &colour::COLOUR,
    &track::Track,
    &resample::Resample,
    &opus::Opus,
];

#[cfg(test)]
mod tests {
    use super::*;
    use contract::{Format, OptionSpec, Options, Scope};
    use pipeline::{Origin, Pipeline};
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique() {
        let names: BTreeSet<_> = PAIRS.iter().map(|pair| pair.name()).collect();
        assert_eq!(names.len(), PAIRS.len());
        for pair in PAIRS {
            let options: BTreeSet<_> = pair.options().iter().map(|option| option.name).collect();
            assert_eq!(options.len(), pair.options().len(), "{}", pair.name());
        }
    }

    #[test]
    fn documentation_has_a_row_with_the_default_of_every_option() {
        for pair in PAIRS {
            for OptionSpec { name, default, .. } in pair.options() {
                let default = if default.is_empty() { "none".into() } else { format!("`{default}`") };
                let row = format!("| `{name}` | {default} |");
                assert!(pair.entry().doc.contains(&row), "{}: its doc.md has no row {row}", pair.name());
            }
        }
    }

    #[test]
    fn documentation_names_the_formats_of_every_pair() {
        let page = include_str!("../../../docs/reference/pairs.md");
        for pair in PAIRS {
            let (name, options) = (pair.name(), Options::defaults(pair.options()).unwrap());
            let row = page.lines().find(|line| line.starts_with(&format!("| `{name}` |")));
            let cell = row.and_then(|row| row.split('|').nth(3)).expect("a row with formats").trim();
            let named: BTreeSet<&str> = cell.split('`').skip(1).step_by(2).collect();
            let takes_any = cell.starts_with("any");
            for word in Format::names() {
                let is_taken = pair.accept(&Format::from_name(word).unwrap(), &options).is_ok();
                assert_eq!(is_taken, takes_any != named.contains(word), "pairs.md: `{name}` and `{word}`");
                let is_in_doc = pair.entry().doc.contains(&format!("`{word}`"));
                assert!(is_taken || !takes_any || is_in_doc, "{name}: its doc.md does not refuse `{word}`");
            }
        }
    }

    #[test]
    fn a_peer_may_propose_all_pairs_in_one_pipeline() {
        let takes_any = |pair: &&&dyn Pair| {
            let options = Options::defaults(pair.options()).unwrap();
            let is_agreed = |option: &OptionSpec| option.scope == Scope::Agreed;
            pair.options().iter().all(is_agreed) && pair.accept(&Format::Bytes, &options).is_ok()
        };
        let text = PAIRS.iter().filter(takes_any).map(|pair| pair.name()).collect::<Vec<_>>().join(" | ");
        let pipeline = Pipeline::parse(&text, PAIRS, Origin::Peer).unwrap();
        assert_eq!(pipeline.check(&Format::Motion), Ok(Format::Bytes));
        assert_eq!(Pipeline::parse(pipeline.canonical(), PAIRS, Origin::Peer).unwrap(), pipeline);
    }
}
