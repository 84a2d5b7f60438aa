//! Two users of the real program, each with its own identity: pairing, and attacks that it prevents.

mod support;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use support::users::{User, paired};
use support::{PATIENCE, Service, end, free_port, wait_until, workers_of};

/// Waits for more than `messages` messages and returns the statistics of the sink; all arrived once and in order.
#[track_caller]
fn flows(attach: &mut Service, messages: u64) -> Value {
    let since = Instant::now();
    loop {
        let stats = attach.wait("stats")["stats"].take();
        for figure in stats["partner"].as_array().unwrap() {
            if let Some("missing" | "repeated" | "wrong") = figure[0].as_str() {
                assert_eq!(figure[1], 0.0, "{stats}");
            }
        }
        if stats["incoming"]["messages"].as_u64() > Some(messages) {
            return stats;
        }
        assert!(since.elapsed() < PATIENCE, "{stats}");
    }
}

#[test]
fn only_paired_hosts_see_shared_devices() {
    let (a, b) = paired();
    let stranger = User::new();
    let (mut share, address) = a.shares("pattern:rate=200", &["--name", "secret-thing"]);
    for transport in ["quic", "tcp", "udp", "striped"] {
        let from = format!("{transport}://{address}/secret-thing");
        let mut attach = b.serves(&["attach", &from, "--as", "pattern", "--stats"]);
        attach.wait("attached");
        flows(&mut attach, 50);
        assert_eq!(attach.stop(), Some(0));
        assert!(share.wait("peer-joined")["peer"].as_str().unwrap().starts_with("b ("));
        share.wait("peer-left");
    }
    // An unknown host learns no name, with or without a key.
    let from = format!("{address}/secret-thing");
    for (more, says) in [(&[][..], "does not know"), (&["--insecure"], "--insecure on both")] {
        let told = stranger.says(&[&["attach", &from, "--as", "null", "--json"], more].concat());
        assert_eq!(told.code, Some(1), "{}", told.stderr);
        assert!(told.stderr.contains(says) && told.stderr.contains("outboard pair"), "{}", told.stderr);
    }
    // Authentication is mutual: the unknown host refuses `a` too.
    let reason = share.wait("refused")["reason"].take();
    assert!(
        reason.as_str().unwrap().contains("outboard pair") || reason.as_str().unwrap().contains("closed")
    );

    // The reverse: `b` shares with --insecure, and `a` requires authentication.
    let (mut open, address) = b.shares("pattern", &["--insecure"]);
    open.wait("insecure");
    a.says(&["attach", &format!("{address}/pattern"), "--as", "null"])
        .refused_with(1, "shares with --insecure");
    open.wait("refused");
}

#[test]
fn a_peer_sees_permitted_devices_and_is_disconnected_when_removed() {
    let (a, b) = paired();
    let (mut share, address) = a.shares("pattern:rate=200", &["--name", "cam"]);
    let attach = |name: &str| {
        let from = format!("{address}/{name}");
        b.serves(&["attach", &from, "--as", "pattern", "--stats"])
    };
    let mut using = attach("cam");
    using.wait("attached");
    flows(&mut using, 20);
    // A restriction to another device takes this one away; the node stays, and the device returns later.
    a.says(&["peers", "restrict", "b", "mouse"]).done();
    share.wait("detached");
    let gone = using.wait("device-gone")["reason"].as_str().unwrap().to_string();
    assert!(gone.contains("no longer shared with this host"), "{gone}");
    b.says(&["attach", &format!("{address}/cam"), "--as", "null"]).refused_with(1, "there is: nothing");
    a.says(&["peers", "restrict", "b", "--all"]).done();
    share.wait("attached");
    // A removed peer is disconnected immediately and stays out.
    a.says(&["peers", "remove", "b"]).done();
    let left = share.wait("peer-left")["reason"].as_str().unwrap().to_string();
    assert!(left.contains("no longer paired"), "{left}");
    let ended = end_of(using);
    assert_eq!(ended, Some(1));
    assert_eq!(a.peers().as_array().unwrap().len(), 0);
    b.says(&["attach", &format!("{address}/cam"), "--as", "null"]).refused_with(1, "not paired with");

    // A device with `--allow` for another peer is hidden from a peer that was paired later.
    let (mut shown, with) = a.shows();
    b.says(&["pair", &with]).done();
    let name = shown.wait("paired")["name"].as_str().unwrap().to_string();
    let other = User::new();
    let (mut shown, with) = a.shows();
    other.says(&["pair", &with]).done();
    let their_name = shown.wait("paired")["name"].as_str().unwrap().to_string();
    assert_ne!(name, their_name);
    let (_share, address) = a.shares("pattern", &["--name", "hers", "--allow", &their_name]);
    let mut hers = other.serves(&["attach", &format!("{address}/hers"), "--as", "null"]);
    hers.wait("attached");
    b.says(&["attach", &format!("{address}/hers"), "--as", "null"]).refused_with(1, "there is: nothing");
}

/// The application host requests the device again and again.
#[test]
fn a_lasting_refusal_is_reported_once_on_each_host() {
    let (a, b) = paired();
    let (mut share, address) = a.shares("pattern:rate=200", &["--name", "cam"]);
    let mut using = b.serves(&["attach", &format!("{address}/cam"), "--as", "null"]);
    using.wait("attached");
    let restrict = |more: &[&str]| drop(a.says(&[&["peers", "restrict", "b"], more].concat()).done());
    for device in ["mouse", "keyboard"] {
        restrict(&[device]);
        share.wait("forbidden");
        // Time for further requests.
        thread::sleep(Duration::from_secs(4));
        let is_repeated = |event: &Value| event["event"] == "forbidden";
        assert!(!share.pending().iter().any(is_repeated), "after {device}");
    }
    restrict(&["--all"]);
    share.wait("attached");
    // The device was closed, and then refused.
    let gone = using.pending().into_iter().filter(|event| event["event"] == "device-gone");
    assert_eq!(gone.count(), 2);
    // A refusal that follows is a new one.
    restrict(&["mouse"]);
    using.wait("device-gone");
    share.wait("forbidden");
}

/// The device host has restarted, and another session has taken the only place.
#[test]
fn an_attach_outlives_a_refusal_that_passes() {
    let (a, b) = paired();
    let (share, address) = a.shares("pattern:rate=200", &["--name", "cam"]);
    let attach = ["attach", &format!("{address}/cam"), "--as", "null"];
    let mut first = b.serves(&attach);
    first.wait("attached");
    let first_process = Pid::from_child(&first.child);
    kill_process(first_process, Signal::STOP).unwrap();
    assert_eq!(share.stop(), Some(0));
    let share = ["share", "pattern:rate=200", "--name", "cam", "--listen", &address, "--limit", "sessions=1"];
    let mut share = a.serves(&share);
    share.wait("listening");
    let mut second = b.serves(&attach);
    second.wait("attached");
    kill_process(first_process, Signal::CONT).unwrap();
    let reason = share.wait("refused")["reason"].to_string();
    assert!(reason.contains("--limit sessions=1"), "{reason}");
    second.stop();
    first.wait("link-back");
}

/// A worker that ignores orders loses the device with the permission, by a signal.
#[test]
fn a_stuck_worker_loses_a_device_with_the_permission() {
    let (a, b) = paired();
    let (mut share, address) = a.shares("pattern:rate=200", &["--name", "cam"]);
    let from = format!("{address}/cam");
    for (order, event) in
        [(&["peers", "restrict", "b", "mouse"][..], "detached"), (&["peers", "remove", "b"], "peer-left")]
    {
        let mut using = b.serves(&["attach", &from, "--as", "pattern", "--stats"]);
        using.wait("attached");
        flows(&mut using, 20);
        let [worker] = workers_of(&share.child)[..] else { panic!("one worker serves one peer") };
        kill_process(Pid::from_raw(worker.cast_signed()).unwrap(), Signal::STOP).unwrap();
        a.says(order).done();
        share.wait(event);
        // The signal is sent; the kernel takes a moment to end the process.
        wait_until("the stuck worker ends", || !workers_of(&share.child).contains(&worker));
        a.says(&["peers", "restrict", "b", "--all"]);
        using.stop();
        if event == "detached" {
            share.wait("peer-left");
        }
    }
}

#[track_caller]
fn end_of(mut service: Service) -> Option<i32> {
    let since = Instant::now();
    loop {
        if let Some(status) = service.child.try_wait().unwrap() {
            return status.code();
        }
        assert!(since.elapsed() < PATIENCE, "it does not end");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_code_takes_three_wrong_guesses_and_no_more() {
    let (a, b) = (User::new(), User::new());
    let (mut shown, with) = a.shows();
    let (code, place) = with.split_once('@').unwrap();
    let last = if code.ends_with('7') { "8" } else { "7" };
    let guess = format!("{}{last}@{place}", &code[..code.len() - 1]);
    for left in [2, 1, 0] {
        b.says(&["pair", &guess])
            .refused_with(1, "the code is wrong: type the code that `outboard pair` shows there");
        assert_eq!(shown.wait("wrong-guess")["guesses_left"], left);
    }
    assert_eq!(end_of(shown), Some(1));
    b.says(&["pair", &with]).refused_with(1, "nothing listens there");
    b.says(&["pair", "12-34@host"]).refused_with(2, "is no code");
    b.says(&["pair", "1234-5678"]).refused_with(2, "CODE@HOST");
    assert_eq!((a.peers(), b.peers()), (Value::Array(vec![]), Value::Array(vec![])));
}

/// The code is typed at the prompt: other users of the host would see it on a command line.
#[test]
fn a_code_is_read_from_standard_input() {
    let (a, b) = (User::new(), User::new());
    let (mut shown, with) = a.shows();
    let (code, place) = with.split_once('@').unwrap();
    let typed = |text: &str| {
        let mut child = b.command(&["pair", place]).stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        end(child, "pair")
    };
    typed("").refused_with(2, "an empty line is no code: it has 8 digits");
    typed("12-34\n").refused_with(2, "is no code");
    typed(&format!("{code}\n")).done();
    shown.wait("paired");
}

#[test]
fn an_identity_that_others_can_read_is_refused() {
    let user = User::new();
    user.says(&["peers"]).done();
    let key = user.0.path("state/outboard/identity.key");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    for arguments in [&["peers"][..], &["share", "pattern"], &["attach", "host/x", "--as", "null"], &["pair"]]
    {
        user.says(arguments).refused_with(2, "chmod 600");
    }
}

#[test]
fn a_reliable_flow_survives_a_relay_that_alters_bytes() {
    let (a, b) = paired();
    let (_share, address) = a.shares("pattern:rate=200", &[]);
    let relay = Meddler::start(&address);
    let from = format!("tcp://{}/pattern", relay.address);
    let mut attach = b.serves(&["attach", &from, "--as", "pattern", "--stats"]);
    attach.wait("attached");
    for round in 1..=3 {
        let before = flows(&mut attach, 0)["incoming"]["messages"].as_u64().unwrap();
        let altered = relay.altered.load(Ordering::Relaxed);
        relay.meddle.store(true, Ordering::Relaxed);
        flows(&mut attach, before + 300);
        assert!(relay.altered.load(Ordering::Relaxed) > altered, "round {round}: nothing was altered");
    }
}

#[test]
fn altered_repeated_and_delayed_datagrams_do_no_harm() {
    let (a, b) = paired();
    for transport in ["udp", "quic"] {
        let (_share, address) = a.shares("pattern:rate=200", &[]);
        let relay = Meddler::start(&address);
        let from = format!("{transport}://{}/pattern", relay.address);
        let mut attach = b.serves(&["attach", &from, "--as", "pattern", "--stats"]);
        attach.wait("attached");
        flows(&mut attach, 1000);
        assert!(relay.altered.load(Ordering::Relaxed) > 50, "{:?}", relay.altered);
        assert!(relay.repeated.load(Ordering::Relaxed) > 50, "{:?}", relay.repeated);
    }
}

/// A relay between two hosts that alters and repeats data. TCP: one byte of the next piece, on request. UDP: one
/// datagram in five is altered, and one in three is repeated, immediately or much later.
struct Meddler {
    address: String,
    meddle: Arc<AtomicBool>,
    altered: Arc<AtomicU64>,
    repeated: Arc<AtomicU64>,
}

impl Meddler {
    fn start(target: &str) -> Meddler {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (meddle, altered, repeated) = (Arc::<AtomicBool>::default(), Arc::default(), Arc::default());
        let datagrams = UdpSocket::bind(&address).unwrap();
        let (to, counts) = (target.to_string(), (Arc::clone(&altered), Arc::clone(&repeated)));
        thread::spawn(move || pass_datagrams(&datagrams, &to, &counts.0, &counts.1));
        let (to, said, count) = (target.to_string(), meddle.clone(), Arc::clone(&altered));
        thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let Ok(far) = TcpStream::connect(&to) else { return };
                for (from, to) in [(&near, &far), (&far, &near)] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let (said, count) = (said.clone(), count.clone());
                    thread::spawn(move || pass_stream(from, to, &said, &count));
                }
            }
        });
        Meddler { address, meddle, altered, repeated }
    }
}

fn pass_stream(mut from: TcpStream, mut to: TcpStream, meddle: &AtomicBool, altered: &AtomicU64) {
    let mut bytes = [0; 16 << 10];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        if count > 100 && meddle.swap(false, Ordering::Relaxed) {
            bytes[count / 2] ^= 0x10;
            altered.fetch_add(1, Ordering::Relaxed);
        }
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
    let _ = from.shutdown(std::net::Shutdown::Both);
}

/// Opens one socket for each peer, like an address translator.
fn pass_datagrams(near: &UdpSocket, target: &str, altered: &AtomicU64, repeated: &AtomicU64) {
    let mut peers: BTreeMap<SocketAddr, UdpSocket> = BTreeMap::new();
    thread::scope(|scope| {
        let mut bytes = [0; 65_536];
        while let Ok((count, peer)) = near.recv_from(&mut bytes) {
            let far = peers.entry(peer).or_insert_with(|| {
                let far = UdpSocket::bind("127.0.0.1:0").unwrap();
                far.connect(target).unwrap();
                let answers = far.try_clone().unwrap();
                scope.spawn(move || pass_answers(&answers, near, peer, altered, repeated));
                far
            });
            let _ = far.send(&bytes[..count]);
        }
    });
}

fn pass_answers(
    far: &UdpSocket,
    near: &UdpSocket,
    peer: SocketAddr,
    altered: &AtomicU64,
    repeated: &AtomicU64,
) {
    let mut kept: VecDeque<Vec<u8>> = VecDeque::new();
    let mut bytes = [0; 65_536];
    let mut number = 0u64;
    while let Ok(count) = far.recv(&mut bytes) {
        number += 1;
        let datagram = &mut bytes[..count];
        if number.is_multiple_of(3) {
            let _ = near.send_to(datagram, peer);
            repeated.fetch_add(1, Ordering::Relaxed);
            kept.push_back(datagram.to_vec());
        }
        if kept.len() > 50 {
            let _ = near.send_to(&kept.pop_front().unwrap(), peer);
        }
        if number.is_multiple_of(5) {
            datagram[count / 2] ^= 1;
            altered.fetch_add(1, Ordering::Relaxed);
        }
        let _ = near.send_to(datagram, peer);
    }
}

#[test]
fn the_log_contains_no_secret() {
    let (a, b) = (User::new(), User::new());
    let (mut shown, with) = a.shows();
    let code = with.split('@').next().unwrap().to_string();
    b.says(&["pair", &with]).done();
    shown.wait("paired");
    let key: Vec<u8> = (0..32).map(|byte| byte * 7 + 1).collect();
    for user in [&a, &b] {
        let path = user.0.path("flow.key");
        fs::write(&path, &key).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    }
    const PAYLOAD: &str = "the-payload-that-nobody-is-to-read";
    fs::write(a.0.path("in"), PAYLOAD.repeat(1000)).unwrap();
    let run = |user: &User, text: String| {
        let file = user.0.path("run.toml");
        fs::write(&file, text).unwrap();
        let mut command = user.command(&["run", &file, "--log", "json", "--stats"]);
        command.spawn().unwrap()
    };
    let sealed = |user: &User| format!("via = 'encrypt'\nkey_file = '{}'\n", user.0.path("flow.key"));
    let port = free_port();
    let device = format!("file:{}", a.0.path("in"));
    let share =
        run(&a, format!("[[share]]\ndevice = '{device}'\nlisten = '127.0.0.1:{port}'\n{}", sealed(&a)));
    let to = b.0.path("out");
    let attach = format!("[[attach]]\nfrom = '127.0.0.1:{port}/in'\nas = 'file:{to}'\n{}", sealed(&b));
    let attached = end(run(&b, attach), "run").done();
    assert_eq!(fs::read_to_string(&to).unwrap(), PAYLOAD.repeat(1000));
    // An unknown host, for its line in the log.
    User::new().says(&["devices", &format!("127.0.0.1:{port}")]);
    support::terminate(&share);
    let shared = end(share, "run").done();

    let logs = [&shared, &attached].map(|ended| format!("{}{}", ended.text(), ended.stderr));
    assert!(logs[0].contains("\"refused\"") && logs[1].contains("\"flow-ended\""), "{logs:?}");
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let mut secrets = vec![PAYLOAD.to_string(), code.replace('-', ""), code, hex(&key), format!("{key:?}")];
    for user in [&a, &b] {
        let mut kept = vec![std::path::PathBuf::from(user.0.path("state"))];
        while let Some(path) = kept.pop() {
            match fs::read_dir(&path) {
                Ok(entries) => kept.extend(entries.map(|entry| entry.unwrap().path())),
                // The public keys of peers are no secret.
                Err(_) if path.file_name().is_some_and(|name| name.to_string_lossy().contains("peers")) => {}
                Err(_) => {
                    let content = fs::read(&path).unwrap();
                    if content.len() >= 16 {
                        secrets.extend([hex(&content), format!("{content:?}")]);
                        secrets.extend(String::from_utf8(content).map(|text| text.trim().to_string()));
                    }
                }
            }
        }
    }
    assert!(secrets.len() > 6, "the identities were found");
    for log in &logs {
        for secret in &secrets {
            assert!(
                !log.contains(secret.as_str()),
                "a secret of {} bytes is in the log:\n{log}",
                secret.len()
            );
        }
    }
}
