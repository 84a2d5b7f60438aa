//! Share on one side, attach on the other, with the real program over loopback.

mod support;

use serde_json::Value;
use std::io::{Read, Write};
use support::{Scratch, Service, outboard, outboard_fed};

const BYTES: usize = 3_000_000;

fn crosses_whole(transport: &str, more: &[&str]) {
    let scratch = Scratch::new();
    let (input, content) = scratch.noise("in", BYTES);
    let (mut share, address) = Service::share(&format!("file:{input}"), &[]);
    let (from, output) = (format!("{transport}://{address}/in"), scratch.path("out"));
    outboard(&[&["attach", &from, "--as", &format!("file:{output}")], more].concat()).done();
    assert!(std::fs::read(&output).unwrap() == content, "what arrived is not what was sent");
    share.wait("peer-left");
    assert_eq!(share.stop(), Some(0));
}

#[test]
fn a_file_crosses_whole_over_tcp() {
    crosses_whole("tcp", &[]);
}

#[test]
fn a_file_crosses_whole_over_quic() {
    crosses_whole("quic", &[]);
}

#[test]
fn a_file_crosses_whole_over_udp() {
    crosses_whole("udp", &["--via", "reorder"]);
}

#[test]
fn a_file_crosses_whole_through_pairs_and_options() {
    crosses_whole("tcp", &["--via", "bundle(count=4) | compress(zstd, level=3)", "--transport", "outbox=8"]);
}

#[test]
fn a_flow_without_any_readable_message_fails() {
    let scratch = Scratch::new();
    let (input, _) = scratch.noise("in", 200_000);
    let [ours, theirs] = [7, 8].map(|byte| {
        let key = scratch.path(&format!("key{byte}"));
        std::fs::write(&key, [byte; 32]).unwrap();
        std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        key
    });
    let (_share, address) = Service::share(&format!("file:{input}"), &["--key-file", &ours]);
    for via in ["encrypt", "encrypt(isolate=true, sandbox=possible)"] {
        let attach = |key| outboard(&["attach", &format!("{address}/in"), "--via", via, "--key-file", key]);
        attach(&theirs)
            .refused(1, &["no received message could be used", "`encrypt` refused", "same --key-file"]);
        attach(&ours).done();
    }
}

#[test]
fn standard_output_contains_only_data() {
    let scratch = Scratch::new();
    let (input, content) = scratch.noise("in", 200_000);
    let (_share, address) = Service::share(&format!("file:{input}"), &["--name", "it"]);
    let ended = outboard(&["attach", &format!("{address}/it"), "--as", "stdout", "--json", "--stats"]).done();
    assert!(ended.stdout == content, "{} bytes", ended.stdout.len());
    let events: Vec<Value> = ended.stderr.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(events.iter().any(|event| event["event"] == "flow-ended"), "{events:?}");
    // A file can be shared again: the next peer reads it from its start.
    let again = outboard(&["attach", &format!("{address}/it")]).done();
    assert!(again.stdout == content, "without --as, a file goes to standard output");
}

#[test]
fn several_devices_of_one_host_end_together() {
    let scratch = Scratch::new();
    let (left, _) = scratch.noise("left", 5000);
    let (right, _) = scratch.noise("right", 70_000);
    let file = scratch.path("run.toml");
    let text = format!(
        "[[share]]\ndevice = 'file:{left}'\nlisten = '127.0.0.1:0'\n[[share]]\ndevice = 'file:{right}'\n\
         listen = '127.0.0.1:0'\nvia = 'compress'"
    );
    std::fs::write(&file, text).unwrap();
    let mut share = Service::start(&["run", &file]);
    let address = share.wait("listening")["address"].as_str().unwrap().to_string();
    let (a, b) = (scratch.path("a"), scratch.path("b"));
    let (from_a, from_b) = (format!("{address}/left"), format!("{address}/right"));
    outboard(&["attach", &from_a, &from_b, "--as", &format!("file:{a}"), "--as", &format!("file:{b}")])
        .done();
    for (from, to) in [(left, a), (right, b)] {
        assert!(std::fs::read(from).unwrap() == std::fs::read(to).unwrap());
    }
    assert_eq!(share.stop(), Some(0));
}

#[test]
fn a_run_file_connects_partners_and_ends_with_them() {
    let scratch = Scratch::new();
    let (input, content) = scratch.noise("in", 100_000);
    let output = scratch.path("out");
    let text = format!("[[connect]]\nsource = 'file:{input}'\nsink = 'file:{output}'\nvia = 'compress(lz4)'");
    let ended = outboard_fed(&["run", "-", "--json"], text.as_bytes()).done();
    assert!(std::fs::read(output).unwrap() == content);
    assert_eq!(ended.json()["bytes"], 100_000);
}

#[test]
fn a_pattern_arrives_unchanged() {
    let (_share, address) = Service::share("pattern:count=300,rate=0,size=500", &[]);
    let mut attach =
        Service::start(&["attach", &format!("{address}/pattern"), "--as", "pattern:size=500", "--stats"]);
    attach.wait("attached");
    attach.wait("flow-ended");
    assert_eq!(attach.child.wait().unwrap().code(), Some(0));
}

#[test]
fn figures_are_reported_every_second() {
    let (mut share, address) = Service::share("pattern:rate=200", &["--stats"]);
    let mut attach = Service::start(&["attach", &format!("{address}/pattern"), "--as", "null", "-v"]);
    let figures = attach.wait("stats");
    assert!(figures["stats"]["incoming"]["messages"].is_u64(), "{figures}");
    share.wait("stats");
    assert_eq!(attach.stop(), Some(0), "a signal is a wish, not a failure");
    share.wait("peer-left");
}

#[test]
fn a_forbidden_request_of_a_peer_is_refused_with_its_position() {
    let (_share, address) = Service::share("pattern", &["--require", "compress(zstd)", "--name", "p"]);
    let attach =
        |more: &[&str]| outboard(&[&["attach", &format!("{address}/p"), "--as", "null"], more].concat());
    attach(&["--via", "compress(zlib)"]).refused(1, &["p: ", "^"]);
    attach(&["--via", "null"]).refused(1, &["p: "]);
    outboard(&["attach", &format!("{address}/q"), "--as", "null"]).refused(1, &["q"]);
}

#[test]
fn an_unreachable_host_is_reported_with_advice() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let from = format!("{nobody}/x");
    outboard(&["attach", &from, "--as", "null"]).refused(1, &["cannot be reached", "outboard share"]);
}

#[test]
fn another_program_at_the_address_is_recognized() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let from = format!("tcp://{}/x", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let mut socket = socket.unwrap();
            socket.write_all(b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n").unwrap();
            // Until the other side closes.
            let _ = socket.read_to_end(&mut Vec::new());
        }
    });
    for more in [&[][..], &["--insecure"]] {
        outboard(&[&["attach", &from, "--as", "null"], more].concat()).refused(
            1,
            &["it does not speak Outboard: ", "another program listens there", "`outboard share`"],
        );
    }
}

#[test]
fn a_device_is_free_again_after_its_application_host_is_killed() {
    let (_share, address) = Service::share("pattern:rate=100,count=300", &["--name", "it"]);
    let mut killed = Service::start(&["attach", &format!("{address}/it"), "--as", "null"]);
    killed.wait("attached");
    drop(killed);
    outboard(&["attach", &format!("{address}/it"), "--as", "null"]).done();
}

/// A file that was read to its end arrives completely, even if its host is stopped while most of it is in flight.
#[test]
fn a_file_arrives_completely_although_its_host_stops() {
    let scratch = Scratch::new();
    let (file, content) = scratch.noise("in", 200_000);
    let limit = ["--insecure", "--stats", "--limit", "drain=50s"];
    let (mut share, address) = Service::share(&format!("file:{file},frame=chunk(10kB)"), &limit);
    let (from, out, go) = (format!("{address}/in"), scratch.path("out"), scratch.path("go"));
    // More than a pipe holds; the reader starts later.
    let sink = format!("exec:while [ ! -e {go} ]; do sleep 0.05; done; cat >{out}");
    let _attach = Service::start(&["attach", &from, "--as", &sink, "--insecure"]);
    while share.wait("stats")["stats"]["outgoing"]["ending"] != true {}
    let goes = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(300));
        std::fs::write(go, "").unwrap();
    });
    assert_eq!(share.stop(), Some(0));
    goes.join().unwrap();
    let since = std::time::Instant::now();
    while std::fs::read(&out).unwrap_or_default() != content {
        assert!(since.elapsed() < support::PATIENCE, "it is not whole");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}
