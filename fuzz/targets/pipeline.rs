//! A pipeline from a stranger, against every pair there is: a refusal that can be shown, or a pipeline
//! without local options whose canonical text gives the same again.
#![no_main]

use contract::Scope;
use libfuzzer_sys::fuzz_target;
use pipeline::{Origin, Pipeline, Requirement};
use stages::PAIRS;

fuzz_target!(|text: &str| {
    match Pipeline::parse(text, PAIRS, Origin::Peer) {
        Ok(parsed) => {
            for used in parsed.pairs() {
                assert!(used.pair.options().iter().all(|option| option.scope != Scope::Local));
                assert!(used.link.is_none());
            }
            let again = Pipeline::parse(parsed.canonical(), PAIRS, Origin::Peer)
                .expect("what a host writes, a host reads");
            assert!(again == parsed && again.canonical() == parsed.canonical());
            let accepted = Requirement::new(again).accept(text, PAIRS);
            assert!(accepted.is_ok(), "a proposal is refused by its own requirement");
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    // What the user of this host writes.
    if let Err(error) = Pipeline::parse(text, PAIRS, Origin::Local) {
        assert!(!error.to_string().is_empty());
    }
});
