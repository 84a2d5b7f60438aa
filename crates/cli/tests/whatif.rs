//! `outboard whatif`: both halves on one host, and on two.

mod support;

use std::io::{BufRead, BufReader};
use support::users::paired;
use support::{command, outboard, terminate};

#[test]
fn work_that_is_left_out_makes_a_slow_pair_faster_on_one_host() {
    let mut words: Vec<_> =
        "whatif --by inf --message-size 16KiB --seconds 0.2 --rounds 1 --json --via".split(' ').collect();
    words.push("compress(level=15) | encrypt");
    let told = outboard(&words).done();
    let answer = told.json();
    let gain = |at: usize| answer["rows"][at]["points"][0]["gain"].as_f64().unwrap();
    assert_eq!(answer["message_bytes"], 16384);
    assert_eq!(answer["rows"][0]["faster"], serde_json::json!(["compress"]));
    assert_eq!(answer["rows"][2]["faster"], serde_json::json!(["compress", "encrypt"]));
    // Level 15 is nearly all of the work, on every machine.
    assert!(gain(0) > 2.0 && gain(2) > 2.0 && gain(0) > gain(1), "{answer}");
}

#[test]
fn the_other_host_makes_the_messages() {
    let mut other =
        command(&["whatif", "--listen", "127.0.0.1:0", "--message-size", "2KiB", "--json"]).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(other.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let shown: serde_json::Value = serde_json::from_str(&line).unwrap();
    let host = shown["address"].as_str().unwrap().to_string();
    assert!(shown["command"].as_str().unwrap().starts_with("outboard whatif "), "{shown}");
    let words = ["whatif", &host, "--via", "encrypt", "--by", "2", "--seconds", "0.2", "--rounds", "1"];
    let told = outboard(&words).done();
    for part in ["messages of 2048 bytes", &host, "encrypt", "2x"] {
        assert!(told.text().contains(part), "{part}: {}", told.text());
    }
    outboard(&[&words[..], &["--message-size", "1KiB"]].concat()).refused(2, &["--message-size", "--listen"]);
    terminate(&other);
    assert_eq!(other.wait().unwrap().code(), Some(0));
    outboard(&words).refused(1, &["nothing listens there: is `outboard whatif --listen` running?"]);
}

#[test]
fn the_uses_of_a_pair_have_numbers_and_both_halves_processor_time() {
    let via = "encrypt | encrypt(chacha20-poly1305)";
    let words = ["whatif", "--via", via, "--by", "inf", "--seconds", "0.1", "--rounds", "1", "--json"];
    let told = outboard(&[&words[..], &["--faster", "encrypt:2,encrypt:1+encrypt:2"]].concat()).done();
    let answer = told.json();
    assert_eq!(answer["rows"][0]["faster"], serde_json::json!(["encrypt:2"]));
    assert_eq!(answer["rows"][1]["faster"], serde_json::json!(["encrypt:1", "encrypt:2"]));
    for half in ["sender", "receiver"] {
        let share = answer["processors"][half].as_f64().unwrap();
        assert!(share > 0.0, "{half}: {answer}");
    }
    outboard(&["whatif", "--via", via, "--faster", "encrypt"])
        .refused(2, &["--faster", "encrypt:1, encrypt:2"]);
}

#[test]
fn hosts_with_keys_leave_no_work_out() {
    let (a, b) = paired();
    let (share, address) = a.shares("pattern:rate=10", &["--name", "sensor"]);
    let target = format!("{address}/sensor");
    b.says(&["attach", &target, "--as", "null", "--via", "encrypt(faster=2)"])
        .refused(1, &["`faster`", "--insecure"]);
    assert_eq!(share.stop(), Some(0));
}

#[test]
fn work_that_cannot_be_left_out_is_refused_with_the_reason() {
    for (via, reasons) in [
        ("buffer(play)", ["`buffer`", "depend on each other"]),
        ("encrypt(isolate=true)", ["`encrypt`", "a process of its own"]),
        ("gray", ["--via", "`gray`"]),
        ("compress(faster=1e-300)", ["`compress`", "at least 1"]),
    ] {
        outboard(&["whatif", "--via", via]).refused(2, &reasons);
    }
    outboard(&["whatif", "--via", "encrypt", "--faster", "compress"]).refused(2, &["--faster", "`compress`"]);
    outboard(&["whatif", "--via", "encrypt", "--by", "0.5"]).refused(2, &["--by"]);
}
