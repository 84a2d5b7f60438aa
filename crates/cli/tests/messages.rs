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
    let (share, address) = Service::share("pattern", &["--name", "p", "--require", "compress | bundle(3)"]);
    let from = format!("{address}/p");
    let refused = outboard(&["attach", &from, "--as", "null", "--via", "compress"]);
    let required = refused.stderr.split("type on the application host: --via ").nth(1).unwrap_or_default();
    let words = shlex::split(required.trim()).unwrap();
    Service::start(&["attach", &from, "--as", "null", "--via", &words[0]]).wait("attached");
    assert_eq!(share.stop(), Some(0));
}

#[test]
fn a_program_for_the_half_of_the_other_host_is_refused() {
    let attach = outboard(&["attach", "127.0.0.1:9/p", "--as", "null", "--via", "exec(source=\"cat -u\")"]);
    attach.refused(
        2,
        &[
            "its source half runs on the device host",
            "type there: outboard share DEVICE --via 'exec(source=\"cat -u\")'\n",
        ],
    );
    let share = outboard(&["share", "pattern", "--via-back", "exec(source=cat)"]);
    share.refused(
        2,
        &["its source half runs on the application host", "outboard attach HOST/NAME --via-back"],
    );
    // A pipeline that serves both hosts may be written on both.
    let (_share, address) =
        Service::share("pattern", &["--name", "p", "--via", "exec(source=cat, sink=cat)"]);
    let from = format!("{address}/p");
    let both = "exec(source=cat, sink=cat)";
    Service::start(&["attach", &from, "--as", "null", "--via", both]).wait("attached");
}

#[test]
fn an_application_that_takes_another_format_is_refused_before_the_device_is_opened() {
    let (_share, address) = Service::share("pattern:rate=1", &["--name", "p"]);
    for (application, class) in
        [("rfb:127.0.0.1:0", "rfb"), ("y4m:/nowhere/film.y4m", "y4m"), ("window", "window")]
    {
        let told = outboard(&["attach", &format!("{address}/p"), "--as", application]);
        assert!(!told.text().contains("\"attached\""), "{}", told.text());
        let says = format!(
            "p: `{class}` takes the format `video`, and this device of class `pattern` sends `bytes`: use `--as stdout`"
        );
        told.refused(1, &[&says]);
    }
}

#[test]
fn a_listing_leaves_no_trace_on_the_device_host() {
    let (mut share, address) = Service::share("pattern:rate=1", &["--name", "p"]);
    for _ in 0..20 {
        outboard(&["devices", &address]).done();
    }
    let top = outboard(&["top", "--once", "--json"]).done();
    assert!(!top.text().contains("did not reconnect"), "{}", top.text());
    let lost = share.pending().into_iter().find(|event| event["event"] == "link-lost");
    assert_eq!(lost, None);
}

#[test]
fn a_host_without_a_program_passes_messages_on() {
    let (source, sink) = (&["--via", "exec(source=cat)"][..], &["--via", "exec(sink=cat)"][..]);
    for (of_share, of_attach) in [(source, &[][..]), (&[], sink), (source, sink)] {
        let (share, address) = Service::share("exec:echo hello", &[&["--name", "text"], of_share].concat());
        let from = format!("{address}/text");
        let told = outboard(&[&["attach", &from, "--as", "stdout"], of_attach].concat()).done();
        assert_eq!(told.text(), "hello\n", "{of_share:?} {of_attach:?}");
        assert_eq!(share.stop(), Some(0));
    }
}

#[test]
fn a_stateful_half_without_its_program_is_refused_before_any_message() {
    let (share, address) = Service::share("exec:echo hello", &["--name", "text"]);
    let from = format!("{address}/text");
    for isolate in ["false", "true"] {
        let via = format!("exec(sink=cat, stateful=true, isolate={isolate})");
        let says = "must also name the program of its half: source=PROGRAM";
        outboard(&["attach", &from, "--as", "stdout", "--via", &via]).refused_with(1, says);
    }
    let nothing_named = ["attach", &from, "--as", "stdout", "--via", "exec(stateful=true)"];
    outboard(&nothing_named).refused_with(2, "the program of its half: sink=PROGRAM");
    // The device's messages wait for a driver that can pass them on.
    assert_eq!(outboard(&["attach", &from, "--as", "stdout"]).done().text(), "hello\n");
    assert_eq!(share.stop(), Some(0));
}
