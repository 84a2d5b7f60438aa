//! Messages to people, with the real program: they name the host, the cause, and the words to type.

mod support;

use rustix::process::{Pid, Signal, kill_process};
use std::thread;
use std::time::Duration;
use support::users::paired;
use support::{Service, outboard, pseudo_terminal, workers_of};

#[test]
fn the_owner_learns_the_command_that_permits_a_device() {
    let (a, b) = paired();
    let (mut share, address) = a.shares("pattern", &["--name", "cam"]);
    a.says(&["peers", "restrict", "b", "mouse", "the other"]).done();
    let from = format!("{address}/cam");
    // The peer is told nothing.
    let refused = b.says(&["attach", &from, "--as", "null"]);
    assert!(refused.stderr.contains("there is: nothing") && !refused.stderr.contains("restrict"));
    let event = share.wait("forbidden");
    assert!(event["peer"].as_str().unwrap().starts_with("b (127.0.0.1:"), "{event}");
    assert_eq!(event["name"], "cam");
    let remedy = event["remedy"].as_str().unwrap();
    assert_eq!(remedy, "`outboard peers restrict b mouse 'the other' cam`");
    let words = shlex::split(remedy.trim_matches('`')).unwrap();
    a.says(&words[1..].iter().map(String::as_str).collect::<Vec<_>>()).done();
    b.serves(&["attach", &from, "--as", "null"]).wait("attached");
    // A device that does not exist is no secret.
    b.says(&["attach", &format!("{address}/nothing"), "--as", "null"]).refused_with(1, "there is: cam");
    assert!(share.pending().iter().all(|event| event["event"] != "forbidden"));
}

#[test]
fn the_end_of_a_device_is_reported_in_a_sentence() {
    let (terminal, path) = pseudo_terminal();
    let (mut share, address) = Service::share(&format!("serial:{path}"), &["--name", "plc", "--insecure"]);
    let from = format!("{address}/plc");
    let mut using = Service::start(&["attach", &from, "--as", "null", "--insecure"]);
    using.wait("attached");
    share.wait("attached");
    drop(terminal);
    for host in [&mut share, &mut using] {
        let gone = host.wait("device-gone");
        assert!(gone["reason"].as_str().unwrap().ends_with(" is gone"), "{gone}");
    }
}

/// Sends a signal to a process and its workers.
fn signal(service: &Service, signal: Signal) {
    for process in workers_of(&service.child).into_iter().chain([service.child.id()]) {
        kill_process(Pid::from_raw(process.cast_signed()).unwrap(), signal).unwrap();
    }
}

#[test]
fn the_messages_of_a_cut_are_counted() {
    let silence = ["--silence", "300ms"];
    let device = "pattern:format=motion,rate=100";
    let (mut share, address) = Service::share(device, &[&["--name", "mouse"], &silence[..]].concat());
    let from = format!("{address}/mouse");
    let mut using = Service::start(&[&["attach", &from, "--as", "null", "--stats"], &silence[..]].concat());
    using.wait("attached");
    using.flows(20);
    signal(&using, Signal::STOP);
    share.wait("link-lost");
    thread::sleep(Duration::from_millis(500));
    signal(&using, Signal::CONT);
    share.wait("link-back");
    let missed = share.wait("missed");
    assert_eq!((&missed["name"], &missed["unit"]), (&"mouse".into(), &"messages".into()));
    assert!(missed["messages"].as_u64() >= Some(40), "{missed}");
}

#[test]
fn a_refused_pipeline_names_the_words_for_the_other_host() {
    let (share, address) = Service::share("pattern", &["--name", "p"]);
    let from = format!("{address}/p");
    let refused = outboard(&["attach", &from, "--as", "null", "--via", "exec(sink=cat)"]);
    refused.refused(1, &["`exec`", "type on the device host: outboard share … --via exec\n"]);
    assert_eq!(share.stop(), Some(0));
    // With these words, both hosts agree.
    let (share, address) = Service::share("pattern", &["--name", "p", "--via", "exec"]);
    let from = format!("{address}/p");
    Service::start(&["attach", &from, "--as", "null", "--via", "exec(sink=cat)"]).wait("attached");
    assert_eq!(share.stop(), Some(0));
    let (share, address) = Service::share("pattern", &["--name", "p", "--require", "compress | bundle(3)"]);
    let from = format!("{address}/p");
    let refused = outboard(&["attach", &from, "--as", "null", "--via", "compress"]);
    let required = refused.stderr.split("type on the application host: --via ").nth(1).unwrap_or_default();
    let words = shlex::split(required.trim()).unwrap();
    Service::start(&["attach", &from, "--as", "null", "--via", &words[0]]).wait("attached");
    assert_eq!(share.stop(), Some(0));
}
