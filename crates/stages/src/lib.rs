//! Pairs of transformation modules (paper N, section 4.8): one folder a pair, one line in [`PAIRS`].
//!
//! # Adding a pair
//!
//! 1. Copy the folder of a pair of the same kind: `compress` (every message by itself), `bundle` (several
//!    become one), `buffer` (its halves talk), `tap` (nothing to undo).
//! 2. `mod.rs` declares it: options (`agreed(...)`), [`Promises`](contract::Promises), the formats it takes,
//!    its `doc.md`. What is not promised, the suite forbids.
//! 3. `source.rs` and `sink.rs` are its halves, [`Stage`](contract::Stage)s: no clock, no I/O, no thread. A
//!    header stands at the front of the body (`Body::push_front`), and the sink half takes it off and checks
//!    it: it may be anything. What a sink half remembers or holds, it says
//!    ([`Stage::checkpoint`](contract::Stage::checkpoint)): its process may be killed. A half without work is [`PassThrough`](contract::PassThrough).
//! 4. `tests.rs` runs `testkit::stage::conforms` with several sets of options, holds the bytes of its header,
//!    and says what this pair is for, in virtual time (`testkit::stage::TwoHalves`).
//! 5. Add a line to [`PAIRS`]. Help, checks and completion follow from it.

mod adaptive;
mod average;
mod buffer;
mod bundle;
mod checkpoint;
mod colour;
mod compress;
mod course;
mod crop;
mod delay;
mod delta;
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
mod periodic;
mod picture;
mod playout;
mod prefetch;
mod random;
mod record;
mod reorder;
mod replay;
mod scale;
mod synchronize;
mod tap;
mod track;
mod turns;
mod varint;

use contract::{OptionKind, OptionSpec, Pair, Scope};

/// Every pair there is.
pub static PAIRS: &[&dyn Pair] = &[
    &null::Null,
    &average::Average,
    &buffer::Buffer,
    &bundle::Bundle,
    &compress::Compress,
    &delta::Delta,
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
    &scale::Scale,
    &crop::Crop,
    &gray::Gray,
    &colour::Colour,
    &track::Track,
];

/// An option that both hosts agree on.
const fn agreed(
    name: &'static str,
    kind: OptionKind,
    default: &'static str,
    doc: &'static str,
) -> OptionSpec {
    OptionSpec { name, kind, default, scope: Scope::Agreed, doc }
}

#[cfg(test)]
mod tests {
    use super::*;
    use contract::{Format, Options};
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
    fn all_pairs_stand_in_one_pipeline_a_peer_may_propose() {
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
