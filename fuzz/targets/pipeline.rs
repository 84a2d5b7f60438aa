//! Pipelines from the network, checked against every pair. The result is a printable error, or a pipeline
//! with the defaults of this host's own options whose canonical text parses to the same pipeline.
#![no_main]

use contract::{Options, Scope};
use libfuzzer_sys::fuzz_target;
use pipeline::{Origin, Pipeline, Requirement};
use stages::PAIRS;

fuzz_target!(|text: &str| {
    match Pipeline::parse(text, PAIRS, Origin::Peer) {
        Ok(parsed) => {
            for used in parsed.pairs() {
                let defaults = Options::defaults(used.pair.options()).expect("a pair without required options");
                for option in used.pair.options().iter().filter(|option| option.scope == Scope::Local) {
                    assert!(used.options.value(option.name) == defaults.value(option.name));
                }
                assert!(used.link.is_none());
            }
            let again =
                Pipeline::parse(parsed.canonical(), PAIRS, Origin::Peer).expect("a written text parses");
            assert!(again == parsed && again.canonical() == parsed.canonical());
            let accepted = Requirement::new(again).accept(text, PAIRS);
            assert!(accepted.is_ok(), "a proposal is refused by its own requirement");
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    // A pipeline from the local user.
    if let Err(error) = Pipeline::parse(text, PAIRS, Origin::Local) {
        assert!(!error.to_string().is_empty());
    }
});
