//! The same flows over every link, with the real program: the output is the same for each link.

mod support;

use std::fs;
use support::{Scratch, outboard};

/// Pairs that pass on, join, change, cut and hold messages.
const PIPELINES: [&str; 5] = [
    "null",
    "null | null | null",
    "bundle(count=7) | compress",
    "compress(lz4) | bundle(count=3, wait=1ms) | null",
    "buffer(mode=play, delay=5ms) | bundle(count=2)",
];

#[test]
fn the_output_is_the_same_over_every_link() {
    let scratch = Scratch::new();
    for (size, count) in [(0, 40), (100, 2000), (5000, 500), (700_000, 12)] {
        let pattern = format!("pattern:size={size},count={count},rate=0");
        let [expected, out] = ["expected", "out"].map(|name| scratch.path(name));
        outboard(&["connect", &pattern, &format!("file:{expected}")]).done();
        for pipeline in PIPELINES {
            for link in ["@direct: ", "@pipe: ", "@shm: "] {
                let via = format!("{link}{pipeline}");
                outboard(&["connect", &pattern, &format!("file:{out}"), "--via", &via]).done();
                assert!(fs::read(&out).unwrap() == fs::read(&expected).unwrap(), "{pattern} through {via}");
            }
        }
    }
}

/// One slot, or a few, and a stage that holds more messages than there are slots.
#[test]
fn few_slots_slow_a_flow_but_do_not_block_it() {
    let scratch = Scratch::new();
    let pattern = "pattern:size=3000,count=300,rate=0";
    let [expected, out] = ["expected", "out"].map(|name| scratch.path(name));
    outboard(&["connect", pattern, &format!("file:{expected}")]).done();
    for slots in [1, 3] {
        let via = format!("@shm: null(slots={slots}) | bundle(count=40, slots={slots}, wait=1s)");
        outboard(&["connect", pattern, &format!("file:{out}"), "--via", &via]).done();
        assert!(fs::read(&out).unwrap() == fs::read(&expected).unwrap(), "{via}");
    }
}

/// A program in C makes the negative of each message, and another one the negative of that.
#[test]
fn the_output_of_a_program_is_the_same_over_pipes_and_shared_memory() {
    if !testkit::skip::has_program("cc", "gcc") {
        return;
    }
    let scratch = Scratch::new();
    let sdk = concat!(env!("CARGO_MANIFEST_DIR"), "/../../sdk/c");
    let program = scratch.path("negative");
    let mut compiler = std::process::Command::new("cc");
    compiler.args(["-std=c99", "-O1", "-I", sdk, &format!("{sdk}/examples/negative.c"), "-o", &program]);
    assert!(compiler.status().unwrap().success());
    for (size, count) in [(0, 40), (100, 2000), (700_000, 12)] {
        let pattern = format!("pattern:size={size},count={count},rate=0");
        let [expected, out] = ["expected", "out"].map(|name| scratch.path(name));
        outboard(&["connect", &pattern, &format!("file:{expected}")]).done();
        for (link, options) in
            [("", ""), ("@shm ", ""), ("@shm ", ", isolate=true, sandbox=possible"), ("@shm ", ", slots=1")]
        {
            let one = format!("{link}exec(source=\"{program}\"{options})");
            let via = format!("{one} | {one}");
            outboard(&["connect", &pattern, &format!("file:{out}"), "--via", &via]).done();
            assert!(fs::read(&out).unwrap() == fs::read(&expected).unwrap(), "{pattern} through {via}");
        }
    }
}
