//! Networks that pass only one protocol: a session works over UDP alone, and over TCP alone.

mod support;

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::io::copy;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use support::{Scratch, Service, figure, outboard, wait_until};

/// The state of a relay.
#[derive(Default)]
struct Network {
    /// UDP is silently dropped.
    drops_udp: AtomicBool,
    dropped: AtomicU64,
    /// New connections of TCP are closed.
    closes_tcp: AtomicBool,
    connections: Mutex<Vec<TcpStream>>,
}

impl Network {
    fn close_tcp(&self) {
        self.closes_tcp.store(true, Ordering::Relaxed);
        for connection in self.connections.lock().unwrap().drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }
}

/// Starts a relay that forwards TCP and silently drops UDP. Returns its address.
fn tcp_alone(target: &str) -> SocketAddr {
    let network = Arc::new(Network::default());
    network.drops_udp.store(true, Ordering::Relaxed);
    both(target, network)
}

/// Starts a relay that forwards TCP and UDP as `network` says. Returns its address.
fn both(target: &str, network: Arc<Network>) -> SocketAddr {
    let (listener, near) = loop {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        // Another program may use the UDP port of a free TCP port.
        if let Ok(near) = UdpSocket::bind(listener.local_addr().unwrap()) {
            break (listener, near);
        }
    };
    let (address, target) = (listener.local_addr().unwrap(), target.to_string());
    pass_udp(near, target.clone(), network.clone());
    thread::spawn(move || {
        for near in listener.incoming().map_while(Result::ok) {
            if network.closes_tcp.load(Ordering::Relaxed) {
                continue;
            }
            network.connections.lock().unwrap().push(near.try_clone().unwrap());
            let far = TcpStream::connect(&target).unwrap();
            for (mut from, mut to) in [(&near, &far), (&far, &near)]
                .map(|(from, to)| (from.try_clone().unwrap(), to.try_clone().unwrap()))
            {
                thread::spawn(move || {
                    let _ = copy(&mut from, &mut to);
                    let _ = to.shutdown(Shutdown::Both);
                });
            }
        }
    });
    address
}

/// Starts a relay that forwards UDP and refuses TCP. Returns its address.
fn udp_alone(target: &str) -> SocketAddr {
    let near = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = near.local_addr().unwrap();
    pass_udp(near, target.into(), Arc::default());
    address
}

fn pass_udp(near: UdpSocket, target: String, network: Arc<Network>) {
    thread::spawn(move || {
        let mut peers: BTreeMap<SocketAddr, UdpSocket> = BTreeMap::new();
        let mut bytes = [0; 65_536];
        while let Ok((count, peer)) = near.recv_from(&mut bytes) {
            if network.drops_udp.load(Ordering::Relaxed) {
                network.dropped.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            let far = peers.entry(peer).or_insert_with(|| {
                let far = UdpSocket::bind("127.0.0.1:0").unwrap();
                far.connect(&target).unwrap();
                let (answers, near, network) =
                    (far.try_clone().unwrap(), near.try_clone().unwrap(), network.clone());
                thread::spawn(move || {
                    let mut bytes = [0; 65_536];
                    while let Ok(count) = answers.recv(&mut bytes) {
                        if !network.drops_udp.load(Ordering::Relaxed) {
                            let _ = near.send_to(&bytes[..count], peer);
                        }
                    }
                });
                far
            });
            let _ = far.send(&bytes[..count]);
        }
    });
}

/// Transfers a file through a relay and returns the events of `attach`.
fn crosses_whole(through: impl Fn(&str) -> SocketAddr) -> Vec<Value> {
    let scratch = Scratch::new();
    let (input, content) = scratch.noise("in", 300_000);
    let (_share, address) = Service::share(&format!("file:{input}"), &[]);
    let (from, output) = (format!("{}/in", through(&address)), scratch.path("out"));
    let told = outboard(&["attach", &from, "--as", &format!("file:{output}"), "--json"]).done();
    assert!(std::fs::read(&output).unwrap() == content, "what arrived is not what was sent");
    told.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_session_works_over_udp_alone() {
    let told = crosses_whole(udp_alone);
    assert!(!told.iter().any(|event| event["event"] == "fallback-started"), "{told:?}");
}

#[test]
fn a_session_falls_back_to_tcp_without_udp_and_reports_it() {
    let told = crosses_whole(tcp_alone);
    let fell_back = told.iter().find(|event| event["event"] == "fallback-started");
    let fell_back = fell_back.unwrap_or_else(|| panic!("{told:?}"));
    assert_eq!((&fell_back["from"], &fell_back["to"]), (&"quic".into(), &"tcp".into()));
}

/// A firewall blocks UDP during a session, and unblocks it later.
#[test]
fn a_session_falls_back_to_tcp_while_udp_is_blocked() {
    let (_share, address) = Service::share("pattern:rate=500,size=200", &[]);
    let network = Arc::new(Network::default());
    let from = format!("{}/pattern", both(&address, network.clone()));
    let mut attach = Service::start(&["attach", &from, "--as", "pattern:size=200", "--stats"]);
    let mut messages = 0;
    for (is_open, told, carries) in
        [(true, "attached", "quic"), (false, "fallback-started", "tcp"), (true, "fallback-ended", "quic")]
    {
        network.drops_udp.store(!is_open, Ordering::Relaxed);
        let told = attach.wait(told);
        assert!(told["to"].is_null() || told["to"] == carries, "{told}");
        // Only QUIC counts migrations. Earlier statistics may still arrive.
        let is_quic = |stats: &Value| figure(&stats["transport"], "migrations") >= 0.0;
        let mut all = (0..60).map(|_| attach.flows(messages + 500));
        let stats = all.find(|stats| is_quic(stats) == (carries == "quic")).expect("figures of what carries");
        messages = stats["incoming"]["messages"].as_u64().unwrap();
        for name in ["missing", "repeated", "wrong"] {
            assert_eq!(figure(&stats["partner"], name), 0.0, "{stats}");
        }
    }
}

/// Returns the number of the UDP sockets of a process.
fn udp_sockets(process: u32) -> usize {
    let table = |name| std::fs::read_to_string(format!("/proc/{process}/net/{name}")).unwrap_or_default();
    let [four, six] = ["udp", "udp6"].map(table);
    let inode = |line: &str| line.split_whitespace().nth(9).map(|inode| format!("socket:[{inode}]"));
    let known: BTreeSet<String> = four.lines().chain(six.lines()).filter_map(inode).collect();
    let files = std::fs::read_dir(format!("/proc/{process}/fd")).unwrap().flatten();
    let targets = files.filter_map(|file| std::fs::read_link(file.path()).ok());
    targets.filter(|target| known.contains(&*target.to_string_lossy())).count()
}

/// The connection over TCP is lost while the host probes for UDP, and UDP is there for the next one.
#[test]
fn a_probe_ends_when_its_connection_is_lost() {
    let (_share, address) = Service::share("pattern:rate=500,size=200", &[]);
    let network = Arc::new(Network::default());
    network.drops_udp.store(true, Ordering::Relaxed);
    let from = format!("{}/pattern", both(&address, network.clone()));
    let mut attach = Service::start(&["attach", &from, "--as", "pattern:size=200", "--stats"]);
    attach.wait("fallback-started");
    attach.flows(100);
    let process = attach.child.id();
    wait_until("the end of the first attempts over UDP", || udp_sockets(process) == 0);
    let dropped = network.dropped.load(Ordering::Relaxed);
    wait_until("a probe", || network.dropped.load(Ordering::Relaxed) > dropped);
    network.close_tcp();
    attach.wait("link-lost");
    network.drops_udp.store(false, Ordering::Relaxed);
    attach.wait("fallback-ended");
    attach.flows(100);
    assert_eq!(udp_sockets(process), 1, "the control channel alone");
}

#[test]
fn an_explicit_quic_has_no_fallback() {
    let (_share, address) = Service::share("pattern", &[]);
    let from = format!("quic://{}/pattern", tcp_alone(&address));
    outboard(&["attach", &from, "--as", "null"]).refused(1, &["cannot be reached"]);
}
