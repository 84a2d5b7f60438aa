//! The same flows over every link, with the real program: whichever carries them, the same bytes come out.

mod support;

use std::fs;
use support::{Scratch, children, command, end, outboard};

/// Pairs that pass on, join, change, cut and hold what they are given.
const PIPELINES: [&str; 5] = [
    "null",
    "null | null | null",
    "bundle(count=7) | compress",
    "compress(lz4) | bundle(count=3, wait=1ms) | null",
    "buffer(mode=play, delay=5ms) | bundle(count=2)",
];

#[test]
fn what_comes_out_is_the_same_over_every_link() {
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

/// One slot, or a few, and a stage that holds more messages than there are.
#[test]
fn few_slots_slow_a_flow_down_and_stop_none() {
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

/// `sched(7)`: SCHED_RR.
const ROUND_ROBIN: &str = "2";

/// The scheduling policies of a process's descendants, those of stages (`proc_pid_stat(5)`, field 41).
fn policies(process: u32) -> Vec<String> {
    let mut found = Vec::new();
    for child in children(process) {
        let words = fs::read(format!("/proc/{child}/cmdline")).unwrap_or_default();
        let stat = fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
        if words.split(|byte| *byte == 0).any(|word| word == b"--fd-control") {
            // The name, which is the second, may have spaces and brackets.
            let behind_name = stat.rsplit_once(')').map_or("", |(_, behind)| behind);
            found.extend(behind_name.split_whitespace().nth(38).map(String::from));
        }
        found.extend(policies(child.cast_unsigned()));
    }
    found
}

#[test]
fn stages_asked_for_at_real_time_priority_have_it_and_give_out_the_same() {
    if !std::thread::spawn(sys::thread::be_urgent).join().unwrap() {
        println!("SKIPPED: this user may ask for no real-time priority");
        return;
    }
    let scratch = Scratch::new();
    let pattern = "pattern:size=3000,count=300,rate=200";
    let [expected, out] = ["expected", "out"].map(|name| scratch.path(name));
    outboard(&["connect", &pattern.replace("rate=200", "rate=0"), &format!("file:{expected}")]).done();
    let via = "@shm: null(realtime=true) | compress(realtime=true) | @pipe null(realtime=true)";
    let mut running = command(&["connect", pattern, &format!("file:{out}"), "--via", via]).spawn().unwrap();
    // Both halves of three.
    while policies(running.id()) != [ROUND_ROBIN; 6] {
        assert!(running.try_wait().unwrap().is_none(), "it ends, and no moment had them all");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    end(running, via).done();
    let of_a_program = "exec(source=cat, realtime=true)";
    outboard(&["connect", pattern, &format!("file:{out}.2"), "--via", of_a_program]).refused(2, &["chrt"]);
    assert!(fs::read(&out).unwrap() == fs::read(&expected).unwrap());
}
