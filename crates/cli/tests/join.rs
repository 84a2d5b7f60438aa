//! A second `share` on one address: it joins the first through the local socket.

mod support;

use serde_json::Value;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use support::{PATIENCE, RUNTIME_DIRECTORY, Scratch, Service, noise, outboard};

/// Path of the local socket of the device host that listens on `address`.
fn door(address: &str) -> String {
    let port = address.rsplit(':').next().unwrap();
    format!("{RUNTIME_DIRECTORY}/outboard/{port}.sock")
}

/// Sends bytes to the local socket of the device host and returns the answer.
fn told(address: &str, said: &[u8]) -> String {
    let mut stream = UnixStream::connect(door(address)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // The device host may close the connection before it has read everything.
    let _ = stream.write_all(said);
    let mut told = Vec::new();
    let _ = stream.read_to_end(&mut told);
    String::from_utf8(told).unwrap()
}

/// Waits for new statistics; checks that all messages arrived once, in order, on an uninterrupted link.
fn check(attach: &mut Service) {
    attach.pending();
    attach.wait("stats");
    let stats = attach.wait("stats")["stats"].take();
    for figure in stats["partner"].as_array().unwrap() {
        if let Some("missing" | "repeated" | "wrong") = figure[0].as_str() {
            assert_eq!(figure[1], 0.0, "{stats}");
        }
    }
    let disturbed = |event: &Value| event["event"] == "link-lost" || event["event"] == "detached";
    assert!(!attach.seen.iter().any(disturbed), "{:?}", attach.seen);
}

#[test]
fn a_second_share_joins_the_first_and_leaves_it_undisturbed() {
    let (mut first, address) = Service::share("pattern:rate=250", &["--name", "one"]);
    first.wait("offered");
    let mut one = Service::start(&["attach", &format!("{address}/one"), "--as", "pattern", "--stats"]);
    one.wait("attached");

    let join =
        |name: &str| ["share", "pattern:rate=250", "--name", name, "--listen", &address].map(String::from);
    let words = join("two");
    let mut second = Service::start(&words.each_ref().map(String::as_str));
    assert_eq!(second.wait("joined")["process"], first.child.id());
    assert_eq!(second.wait("offered")["name"], "two");
    assert_eq!(first.wait("offered")["name"], "two");
    let mut two = Service::start(&["attach", &format!("{address}/two"), "--as", "pattern", "--stats"]);
    two.wait("attached");
    check(&mut two);

    let words = join("one");
    outboard(&words.each_ref().map(String::as_str)).refused(2, &["two devices are called `one`"]);

    assert_eq!(second.stop(), Some(0));
    assert_eq!(first.wait("withdrawn")["name"], "two");
    check(&mut one);
    // The application host keeps the node, and gets the device back after it is shared again.
    let words = join("two");
    let mut third = Service::start(&words.each_ref().map(String::as_str));
    third.wait("joined");
    // A new pattern starts at 0, so the node has already received these numbers.
    let again = |figure: &Value| figure[0] == "repeated" && figure[1].as_f64() > Some(0.0);
    while !two.wait("stats")["stats"]["partner"].as_array().unwrap().iter().any(again) {}

    assert_eq!(first.stop(), Some(0));
    assert_eq!(third.child.wait().unwrap().code(), Some(1), "the share that offered its device has ended");
    assert!(!std::path::Path::new(&door(&address)).exists());
}

#[test]
fn a_join_with_other_session_options_is_refused() {
    let scratch = Scratch::new();
    let (input, _) = scratch.noise("in", 10);
    let (_first, address) = Service::share(&format!("file:{input}"), &[]);
    let join = |device: &str, more: &[&str]| {
        outboard(&[&["share", device, "--name", "other", "--listen", &address], more].concat())
    };
    join("stdin", &[]).refused(2, &["standard input"]);
    join("pattern", &["--silence", "2s"]).refused(2, &["limits"]);
    join("file:/nowhere/at/all", &[]).refused(1, &["/nowhere/at/all"]);
}

#[test]
fn a_join_from_another_directory_means_its_own_files() {
    let scratch = Scratch::new();
    std::fs::create_dir(scratch.path("it's here")).unwrap();
    std::fs::write(scratch.path("it's here/lines"), "of this directory\n").unwrap();
    let (_first, address) = Service::share("pattern:rate=1", &[]);
    let join = |device: &str, more: &[&str]| {
        let words = [&["share", device, "--name", "there", "--listen", &address], more].concat();
        let mut command = support::command(&words);
        command.current_dir(scratch.path("it's here"));
        command
    };
    for device in ["file:lines", "exec:cat lines", "exec:cat lines,frame=line"] {
        let mut second = Service::start_as(join(device, &[]));
        second.wait("joined");
        let read = outboard(&["attach", &format!("{address}/there"), "--as", "stdout"]).done();
        assert_eq!(read.text(), "of this directory\n", "{device}");
        assert_eq!(second.stop(), Some(0));
    }
    let program = scratch.path("it's here/cat.sh");
    std::fs::write(&program, "#!/bin/sh\nexec cat\n").unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let refused = join("pattern", &["--via", "exec(source=\"./cat.sh\")"]).spawn().unwrap();
    support::end(refused, "share").refused(2, &["another working directory: write `", "it's here/cat.sh`"]);
}

#[test]
fn an_address_in_use_by_another_program_is_an_error() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    outboard(&["share", "pattern", "--listen", &address]).refused(1, &["listening on", &address]);
}

#[test]
fn a_pattern_that_cannot_join_has_a_remedy() {
    let (_first, address) = Service::share("pattern:rate=1", &[]);
    let says = ["already in use", "a pattern cannot join a `share` that runs: put both into a run file"];
    outboard(&["share", "evdev:name=no such device*", "--listen", &address]).refused(1, &says);
}

#[test]
fn invalid_requests_to_the_local_socket_do_not_affect_its_flows() {
    let (mut first, address) = Service::share("pattern:rate=250", &[]);
    let mut attach = Service::start(&["attach", &format!("{address}/pattern"), "--as", "pattern", "--stats"]);
    attach.wait("attached");
    assert!(told(&address, b"GET / HTTP/1.1\n").contains("invalid request"));
    assert!(told(&address, b"{\"words\":{\"device\":7}}\n").contains("invalid request"));
    assert!(told(&address, &[b'['; 60_000]).contains("in time"), "a line without an end");
    assert!(told(&address, b"").contains("in time"));
    // The device host closes the connection after too many bytes; the kernel decides whether the answer still arrives.
    told(&address, &vec![b'a'; 1 << 20]);
    told(&address, &noise(300_000));
    let silent: Vec<_> = (0..100).map(|_| UnixStream::connect(door(&address)).unwrap()).collect();
    check(&mut attach);
    drop(silent);
    let listen = ["share", "null", "--listen", &address];
    let mut second = Service::start(&listen);
    second.wait("joined");
    first.pending();
    check(&mut attach);
}
