//! Under overload a host refuses new work, names and counts the limit, and keeps existing work. A flood starves no
//! other flow.

mod support;

use rustix::net::sockopt::set_socket_linger;
use rustix::net::{AddressFamily, SocketType, bind, listen, socket};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::time::{Duration, Instant};
use support::{PATIENCE, Scratch, Service, children, outboard};
use wire::{Control, Preamble};

fn attach(address: &str, name: &str, more: &[&str]) -> Service {
    let from = format!("{address}/{name}");
    Service::start(&[&["attach", &from, "--as", "null", "--insecure", "--stats"], more].concat())
}

/// Adds up the device host's metrics in lines that begin with `name`.
fn metric(share: &Service, name: &str) -> f64 {
    let status = outboard(&["top", "--once", "--json"]).done().json();
    let hosts = status["hosts"].as_array().unwrap();
    let mine = hosts.iter().filter(|host| host["process"] == share.child.id());
    mine.map(|host| host[name].as_f64().unwrap()).sum()
}

#[test]
fn one_session_above_the_limit_is_refused_and_the_limit_named() {
    let limits = ["--insecure", "--limit", "sessions=2", "--limit", "drivers=1"];
    let (mut share, address) = Service::share("pattern:rate=50", &[&limits[..], &["--hub", "copy"]].concat());
    let mut old: Vec<_> = (0..2).map(|_| attach(&address, "pattern", &[])).collect();
    old.iter_mut().for_each(|old| drop(old.wait("attached")));
    let from = format!("{address}/pattern");
    let refused = outboard(&["attach", &from, "--as", "null", "--insecure"]);
    refused.refused(1, &["--limit sessions=2"]);
    assert!(share.wait("refused")["reason"].as_str().unwrap().contains("--limit sessions=2"));
    // Existing sessions continue.
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
fn a_driver_is_refused_if_its_replay_store_might_not_fit() {
    // Each device has two flows.
    let limits = ["--insecure", "--limit", "store_bytes=5GiB"];
    let (_share, address) = Service::share("pattern:rate=50", &[&limits[..], &["--hub", "copy"]].concat());
    let mut old = attach(&address, "pattern", &[]);
    old.wait("attached");
    let from = format!("{address}/pattern");
    let refused = outboard(&["attach", &from, "--as", "null", "--insecure"]);
    refused.refused_with(1, "limit store_bytes_of_all=17179869184");
    let before = old.wait("stats")["stats"]["incoming"]["messages"].as_u64();
    while old.wait("stats")["stats"]["incoming"]["messages"].as_u64() <= before {}
}

#[test]
fn existing_flows_survive_a_flood_of_connections() {
    let (mut share, address) = Service::share("pattern:rate=250", &["--insecure"]);
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
    let hello =
        Control::Hello { host: "stranger".into(), resume: None, received: 0, attempt: 1, features: vec![] };
    let said = [Preamble::Control.emit().to_vec(), hello.emit()].concat();
    let mut told = String::new();
    let refusal = "limit connections_per_second=100";
    while !told.contains(refusal) {
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        // The listener may close a refused connection before it has read everything.
        let _ = stream.write_all(&said);
        let mut head = [0; 512];
        let count = stream.read(&mut head).unwrap_or(0);
        told += &String::from_utf8_lossy(&head[..count]);
    }
    share.wait("refused");
    let stats = flow.wait("stats")["stats"].take();
    assert!(stats["partner"].as_array().unwrap().iter().all(|figure| {
        !matches!(figure[0].as_str(), Some("missing" | "repeated" | "wrong")) || figure[1] == 0.0
    }));
    assert!(flow.seen.iter().all(|event| event["event"] != "link-lost"), "{:?}", flow.seen);
}

#[test]
fn a_rate_limit_delays_and_loses_nothing() {
    let scratch = Scratch::new();
    let (file, content) = scratch.noise("in", 300_000);
    let limit = ["--insecure", "--limit", "device_bytes=200kB"];
    let (_share, address) = Service::share(&format!("file:{file},frame=chunk(10kB)"), &limit);
    let since = Instant::now();
    let out = scratch.path("out");
    let from = format!("{address}/in");
    outboard(&["attach", &from, "--as", &format!("file:{out}"), "--insecure"]).done();
    assert!(std::fs::read(out).unwrap() == content);
    // The limit allows a burst of 0.1 s, and the messages of one turn.
    assert!(since.elapsed().as_secs_f64() > 0.2, "{:?}", since.elapsed());
}

#[test]
fn a_peer_stays_within_its_processor_limit() {
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
    // The worker pauses after a turn that exceeds the limit.
    assert!(used < passed * 0.10 + 0.5, "{used} s of the processor in {passed} s");
    assert!(messages(&mut flow) > begun, "it does not go on");
    assert!(flow.seen.iter().all(|event| event["event"] != "link-lost"), "{:?}", flow.seen);
}

#[test]
fn a_peer_that_floods_the_control_channel_is_slowed_down_and_its_flows_continue() {
    const LIMIT: u64 = 20_000;
    let limit = format!("control_messages_per_peer={LIMIT}");
    // A long silence: a slow machine must not lose the link for another reason.
    let (mut share, address) = Service::share("pattern:rate=250", &["--insecure", "--silence", "60s"]);
    // Without keys, all hosts of one address are one peer.
    let mut flow = attach(&address, "pattern", &["--limit", "silence=60s"]);
    flow.wait("attached");
    let since = Instant::now();
    let mut talker = TcpStream::connect(&address).unwrap();
    let hello =
        Control::Hello { host: "talker".into(), resume: None, received: 0, attempt: 1, features: vec![] };
    talker.write_all(&[Preamble::Control.emit().to_vec(), hello.emit()].concat()).unwrap();
    // A client that sends before the welcome is refused.
    assert!(talker.read(&mut [0; 64]).unwrap() > 0);
    let ping = Control::Ping { id: 1, sent: 1, received: 0 }.emit().repeat(1000);
    let pong_bytes = Control::Pong { id: 1, sent: 1, received: 1, replied: 1 }.emit().len() as u64;
    let (mut listener, hangs_up) = (talker.try_clone().unwrap(), talker.try_clone().unwrap());
    let messages = |flow: &mut Service| flow.wait("stats")["stats"]["incoming"]["messages"].as_u64();
    std::thread::scope(|scope| {
        scope.spawn(|| while talker.write_all(&ping).is_ok() {});
        let answered = scope.spawn(move || {
            let mut bytes = [0; 1 << 16];
            let counts = std::iter::from_fn(|| listener.read(&mut bytes).ok().filter(|count| *count > 0));
            counts.sum::<usize>() as u64 / pong_bytes
        });
        let warning = share.wait("warning")["problem"].take();
        assert!(warning.as_str().unwrap().contains(&limit), "{warning}");
        let begun = messages(&mut flow);
        // The talker sends far more than the limit in this time.
        while since.elapsed().as_secs() < 4 {
            messages(&mut flow);
        }
        assert!(messages(&mut flow) > begun, "the flow does not continue");
        hangs_up.shutdown(std::net::Shutdown::Both).unwrap();
        let (answered, passed) = (answered.join().unwrap(), since.elapsed().as_secs_f64());
        // One second is saved up; a turn may exceed the limit by its 64 messages.
        let most = (passed + 2.0) * LIMIT as f64;
        assert!((answered as f64) < most, "{answered} pings were answered in {passed} s");
        assert!(answered > LIMIT, "{answered} pings were answered");
    });
    assert!(flow.seen.iter().all(|event| event["event"] != "link-lost"), "{:?}", flow.seen);
}

#[test]
fn a_message_that_decompresses_above_the_limit_is_refused() {
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
    // The statistics contain the cost of each peer.
    assert!(metric(&share, "busy_seconds") > 0.0);
    assert!(metric(&share, "bytes") > 65536.0 * 300.0);
}

/// A server that is switched off answers nothing. Its listener drops connections while its queue is full.
#[test]
fn a_server_that_does_not_answer_delays_no_other_device() {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).unwrap();
    listen(&socket, 0).unwrap();
    let server = TcpListener::from(socket);
    let at = server.local_addr().unwrap();
    let scratch = Scratch::new();
    let file = scratch.path("run.toml");
    let share = |device: &str, name: &str| {
        format!("[[share]]\ndevice = '{device}'\nname = '{name}'\nlisten = '127.0.0.1:0'\ninsecure = true\n")
    };
    let remote = share(&format!("tcp:{at},timeout=3600s"), "remote");
    std::fs::write(&file, remote + &share("pattern:rate=50", "local")).unwrap();
    let mut share = Service::start(&["run", &file]);
    let address = share.wait("listening")["address"].as_str().unwrap().to_string();
    let answers = || {
        let mut local = attach(&address, "local", &[]);
        local.wait("attached");
        assert_eq!(local.stop(), Some(0));
    };
    let (opened_at_start, _) = server.accept().unwrap();
    let mut first = attach(&address, "remote", &[]);
    first.wait("attached");
    assert_eq!(first.stop(), Some(0));
    share.wait("peer-left");
    drop(opened_at_start);

    // The device is opened for its next user.
    let fill = || TcpStream::connect(at).unwrap();
    let _full = fill();
    let mut second = attach(&address, "remote", &[]);
    share.wait("peer-joined");
    answers();
    let _ = server.accept().unwrap();
    let (connection, _) = server.accept().unwrap();
    second.wait("attached");

    // The device is lost, and opened again.
    let _full = fill();
    set_socket_linger(&connection, Some(Duration::ZERO)).unwrap();
    drop(connection);
    second.wait("device-gone");
    answers();
    let _ = server.accept().unwrap();
    let _again = server.accept().unwrap();
    second.wait("device-back");
}
