//! Overload refuses the new and keeps the old, names the limit, and counts; a flow that floods starves none beside it.

mod support;

use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Instant;
use support::{PATIENCE, Scratch, Service, children, outboard};
use wire::{Control, Preamble};

fn attach(address: &str, name: &str, more: &[&str]) -> Service {
    let from = format!("{address}/{name}");
    Service::start(&[&["attach", &from, "--as", "null", "--insecure", "--stats"], more].concat())
}

/// What of the sharer's metrics begins with this, added up.
fn metric(share: &Service, name: &str) -> f64 {
    let status = outboard(&["top", "--once", "--json"]).done().json();
    let hosts = status["hosts"].as_array().unwrap();
    let mine = hosts.iter().filter(|host| host["process"] == share.child.id());
    mine.map(|host| host[name].as_f64().unwrap()).sum()
}

#[test]
fn one_more_than_may_be_is_refused_by_the_name_of_the_limit() {
    let limits = ["--insecure", "--limit", "sessions=2", "--limit", "drivers=1"];
    let (mut share, address) = Service::share("pattern:rate=50", &[&limits[..], &["--hub", "copy"]].concat());
    let mut old: Vec<_> = (0..2).map(|_| attach(&address, "pattern", &[])).collect();
    old.iter_mut().for_each(|old| drop(old.wait("attached")));
    let from = format!("{address}/pattern");
    let refused = outboard(&["attach", &from, "--as", "null", "--insecure"]);
    refused.refused(1, &["--limit sessions=2"]);
    assert!(share.wait("refused")["reason"].as_str().unwrap().contains("--limit sessions=2"));
    // Who is in goes on.
    for old in &mut old {
        let before = old.wait("stats")["stats"]["incoming"]["messages"].as_u64();
        while old.wait("stats")["stats"]["incoming"]["messages"].as_u64() <= before {}
    }
    assert_eq!(old.pop().unwrap().stop(), Some(0));
    share.wait("peer-left");
    let two = outboard(&["attach", &from, &from, "--as", "null", "--as", "null", "--insecure"]);
    two.refused_with(1, "--limit drivers=1");
    assert!(old[0].seen.iter().all(|event| event["event"] != "link-lost"));
}

#[test]
fn a_store_that_might_not_fit_is_not_begun() {
    // Two flows a device.
    let limits = ["--insecure", "--limit", "store_bytes=1MiB", "--limit", "store_bytes_of_all=3MiB"];
    let (_share, address) = Service::share("pattern:rate=50", &[&limits[..], &["--hub", "copy"]].concat());
    let mut old = attach(&address, "pattern", &[]);
    old.wait("attached");
    let from = format!("{address}/pattern");
    let refused = outboard(&["attach", &from, "--as", "null", "--insecure"]);
    refused.refused_with(1, "--limit store_bytes_of_all=3145728");
    let before = old.wait("stats")["stats"]["incoming"]["messages"].as_u64();
    while old.wait("stats")["stats"]["incoming"]["messages"].as_u64() <= before {}
}

#[test]
fn a_flood_of_handshakes_keeps_the_flows_that_are_there() {
    let limits =
        ["--insecure", "--limit", "handshakes_per_second=20", "--limit", "connections_per_second=300"];
    let (mut share, address) = Service::share("pattern:rate=250", &limits);
    let mut flow = Service::start(&[
        "attach",
        &format!("{address}/pattern"),
        "--as",
        "pattern",
        "--insecure",
        "--stats",
    ]);
    flow.wait("attached");
    flow.wait("stats");
    let hello = Control::Hello { host: "stranger".into(), resume: None, received: 0, attempt: 1 };
    let said = [Preamble::Control.emit().to_vec(), hello.emit()].concat();
    let mut told = Vec::new();
    for _ in 0..1000 {
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        // Who is refused at once may be closed before all was said.
        let _ = stream.write_all(&said);
        let mut head = [0; 512];
        let count = stream.read(&mut head).unwrap_or(0);
        told.extend_from_slice(&head[..count]);
    }
    let told = String::from_utf8_lossy(&told);
    assert!(told.contains("--limit handshakes_per_second=20"), "{told}");
    assert!(told.contains("--limit connections_per_second=300"), "{told}");
    share.wait("refused");
    let stats = flow.wait("stats")["stats"].take();
    assert!(stats["partner"].as_array().unwrap().iter().all(|figure| {
        !matches!(figure[0].as_str(), Some("missing" | "repeated" | "wrong")) || figure[1] == 0.0
    }));
    assert!(flow.seen.iter().all(|event| event["event"] != "link-lost"), "{:?}", flow.seen);
}

#[test]
fn a_rate_is_kept_and_nothing_is_lost() {
    let scratch = Scratch::new();
    let (file, content) = scratch.noise("in", 300_000);
    let limit = ["--insecure", "--limit", "device_bytes=200kB"];
    let (_share, address) = Service::share(&format!("file:{file},frame=chunk(10kB)"), &limit);
    let since = Instant::now();
    let out = scratch.path("out");
    let from = format!("{address}/in");
    outboard(&["attach", &from, "--as", &format!("file:{out}"), "--insecure"]).done();
    assert!(std::fs::read(out).unwrap() == content);
    // A tenth of a second's worth may come at once, and what one turn takes.
    assert!(since.elapsed().as_secs_f64() > 0.2, "{:?}", since.elapsed());
}

#[test]
fn a_peer_keeps_to_its_share_of_the_processor() {
    let limit = ["--insecure", "--limit", "cpu_percent_per_peer=10"];
    let (share, address) = Service::share("pattern:rate=0,size=65536", &limit);
    let mut flow = attach(&address, "pattern", &["--via", "compress(zlib, level=9)"]);
    flow.wait("attached");
    let messages = |flow: &mut Service| flow.wait("stats")["stats"]["incoming"]["messages"].as_u64();
    messages(&mut flow);
    let used = |share: &Service| -> f64 {
        let workers = children(share.child.id());
        let used = workers.iter().map(|worker| sys::clock::cpu_ns_of(worker.cast_unsigned()).unwrap());
        used.sum::<u64>() as f64 / 1e9
    };
    let (before, since) = (used(&share), Instant::now());
    let begun = messages(&mut flow);
    while since.elapsed().as_secs() < 4 {
        messages(&mut flow);
    }
    let (used, passed) = (used(&share) - before, since.elapsed().as_secs_f64());
    // What one turn takes too much is rested for later.
    assert!(used < passed * 0.10 + 0.5, "{used} s of the processor in {passed} s");
    assert!(messages(&mut flow) > begun, "it does not go on");
    assert!(flow.seen.iter().all(|event| event["event"] != "link-lost"), "{:?}", flow.seen);
}

#[test]
fn a_peer_that_speaks_without_end_is_heard_for_its_part_and_its_flows_go_on() {
    let limit = ["--insecure", "--limit", "control_percent_per_peer=2"];
    let (mut share, address) = Service::share("pattern:rate=250", &limit);
    // Of a host that asks nobody for a key, both are one peer.
    let mut flow = attach(&address, "pattern", &[]);
    flow.wait("attached");
    let mut talker = TcpStream::connect(&address).unwrap();
    let hello = Control::Hello { host: "talker".into(), resume: None, received: 0, attempt: 1 };
    talker.write_all(&[Preamble::Control.emit().to_vec(), hello.emit()].concat()).unwrap();
    // Who goes on before it is welcomed is sent away.
    assert!(talker.read(&mut [0; 64]).unwrap() > 0);
    let ping = Control::Ping { id: 1, sent: 1, received: 0 }.emit().repeat(1000);
    let (mut listener, hangs_up) = (talker.try_clone().unwrap(), talker.try_clone().unwrap());
    let messages = |flow: &mut Service| flow.wait("stats")["stats"]["incoming"]["messages"].as_u64();
    std::thread::scope(|scope| {
        scope.spawn(|| while talker.write_all(&ping).is_ok() {});
        scope.spawn(|| while listener.read(&mut [0; 1 << 16]).is_ok_and(|count| count > 0) {});
        let told = share.wait("warning")["problem"].take();
        let used = || sys::clock::cpu_ns_of(share.child.id()).unwrap();
        let (before, since, begun) = (used(), Instant::now(), messages(&mut flow));
        while since.elapsed().as_secs() < 4 {
            messages(&mut flow);
        }
        let (used, passed) = ((used() - before) as f64 / 1e9, since.elapsed().as_secs_f64());
        hangs_up.shutdown(std::net::Shutdown::Both).unwrap();
        assert!(told.as_str().unwrap().contains("--limit control_percent_per_peer=2"), "{told}");
        // It has other work, too.
        assert!(used < passed * 0.02 + 0.5, "{used} s of the processor in {passed} s");
        assert!(messages(&mut flow) > begun, "it does not go on");
    });
    assert!(flow.seen.iter().all(|event| event["event"] != "link-lost"), "{:?}", flow.seen);
}

#[test]
fn what_becomes_too_large_is_refused_before_it_is_made() {
    let scratch = Scratch::new();
    let file = scratch.path("in");
    std::fs::write(&file, vec![0; 1 << 20]).unwrap();
    let (_share, address) =
        Service::share(&format!("file:{file},frame=chunk(512KiB)"), &["--insecure", "--via", "compress"]);
    let from = format!("{address}/in");
    let limit = ["--insecure", "--limit", "message_bytes=100KiB"];
    let out = outboard(&[&["attach", &from, "--as", "null"], &limit[..]].concat());
    out.refused_with(1, "--limit message_bytes");
}

#[test]
fn a_flood_beside_a_keyboard_does_not_starve_it() {
    let scratch = Scratch::new();
    let file = scratch.path("run.toml");
    let text = "[[share]]\ndevice = 'pattern:rate=0,size=65536'\nname = 'flood'\nlisten = '127.0.0.1:0'\ninsecure = true\n\
                [[share]]\ndevice = 'pattern:rate=100,size=24'\nname = 'keys'\nlisten = '127.0.0.1:0'\ninsecure = true\n";
    std::fs::write(&file, text).unwrap();
    let mut share = Service::start(&["run", &file]);
    let address = share.wait("listening")["address"].as_str().unwrap().to_string();
    let both = [format!("{address}/flood"), format!("{address}/keys")];
    let mut attach = Service::start(&[
        "attach",
        &both[0],
        &both[1],
        "--as",
        "null",
        "--as",
        "null",
        "--insecure",
        "--stats",
    ]);
    let messages = |stats: &Value| stats["stats"]["incoming"]["messages"].as_u64().unwrap_or(0);
    let (mut keys, mut flood) = (0, 0);
    let since = Instant::now();
    while keys < 300 {
        let stats = attach.wait("stats");
        match stats["name"].as_str() {
            Some("keys") => keys = messages(&stats),
            _ => flood = messages(&stats),
        }
        assert!(since.elapsed() < PATIENCE, "{keys} keys beside {flood} messages of the flood");
    }
    assert!(flood > 300, "{flood}");
    // What each has cost is told.
    assert!(metric(&share, "busy_seconds") > 0.0);
    assert!(metric(&share, "bytes") > 65536.0 * 300.0);
}
