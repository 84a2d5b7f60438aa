//! End-to-end tests in one process: a device host, a relay that simulates a bad network, and an application host,
//! with a device and an application in memory.

mod support;

use broker::{
    ApplicationHost, AttachRequest, AttachTarget, DeviceChoice, DeviceHost, Event, ShareDevice, ShareRequest,
    browse,
};
use console::{Answer, Operation};
use contract::{FlowClass, Options, Partner};
use hub::{ApplicationChoice, HubPolicy};
use modules::TransportPlan;
use modules::{Pipelines, registry};
use netsim::Params;
use netsim::relay::{Direction, Relay};
use pipeline::Edit;
use session::Limits;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use support::{BenchPartner, Handle, WATCHDOG, description};
use sys::stop::Stop;
use trust::Target;

/// Two hosts and the network between them.
struct Lab {
    device: Handle,
    application: Handle,
    relay: Relay,
    device_host: SocketAddr,
    events: Arc<Mutex<Vec<Event>>>,
    /// The consoles of the device host and of the application host.
    consoles: [PathBuf; 2],
    share: Option<(Stop, JoinHandle<()>)>,
    attach: Option<(Stop, JoinHandle<Result<(), String>>)>,
}

struct Setup {
    class: FlowClass,
    transport: &'static str,
    via: &'static str,
    params: Params,
    seed: u64,
}

/// The address of a device host, its console, and the handles to stop it.
type Share = (SocketAddr, PathBuf, Stop, JoinHandle<()>);

fn start_share(device: &Handle, class: FlowClass, listen: SocketAddr) -> Share {
    let make = device.clone();
    let own = DeviceChoice::Own(
        description(class),
        Arc::new(move || {
            let gone = make.bench.lock().unwrap().gone;
            let problem =
                || contract::DeviceError::Spec { what: "bench".into(), problem: "it is gone".into() };
            (!gone).then(|| Box::new(BenchPartner::new(&make)) as Box<dyn Partner>).ok_or_else(problem)
        }),
    );
    let (pipelines, hub) = (Pipelines::default(), HubPolicy::default());
    let device = ShareDevice {
        device: own,
        name: Some("bench".into()),
        pipelines,
        hub,
        allow: Vec::new(),
        transport: None,
    };
    let request = ShareRequest {
        devices: vec![device],
        listen,
        trust: None,
        limits: Limits::default(),
        host: "a".into(),
        announce: false,
    };
    let device_host = DeviceHost::start(request).unwrap();
    let (address, console) = (device_host.address(), device_host.console().unwrap().to_path_buf());
    let stop = Stop::new().unwrap();
    let said = stop.clone();
    let thread = std::thread::spawn(move || device_host.run(&said, &mut |_| {}).unwrap());
    (address, console, stop, thread)
}

impl Lab {
    /// Ends the device host without a goodbye. Returns the number of messages at the node, which is neutral.
    fn crash(&mut self) -> usize {
        let (stop, thread) = self.share.take().unwrap();
        self.relay.cut();
        stop.stop();
        thread.join().unwrap();
        self.application.wait("neutral", |bench| bench.neutral > 0);
        self.application.with(|bench| bench.pushed.len())
    }

    fn start(setup: Setup) -> Lab {
        Lab::start_behind(setup, |device_host| device_host)
    }

    /// Starts the hosts, with a network that leads to the address that `way` returns, and from there to the device
    /// host.
    fn start_behind(setup: Setup, way: impl FnOnce(SocketAddr) -> SocketAddr) -> Lab {
        println!("seed {}", setup.seed);
        let (device, application) = (Handle::new(), Handle::new());
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let (address, console, stop, thread) = start_share(&device, setup.class, any);
        let relay = Relay::start(any, way(address), setup.params, setup.seed).unwrap();
        let class = registry::transport(setup.transport).unwrap();
        let options = Options::defaults(class.options()).unwrap();
        let target = AttachTarget {
            name: "bench".into(),
            application: ApplicationChoice::Partner(Box::new(BenchPartner::new(&application))),
            pipelines: Pipelines::parse(Some(setup.via), None, None).unwrap(),
            expect: None,
        };
        let request = AttachRequest {
            peer: None,
            address: relay.address().to_string(),
            transport: TransportPlan { class, options },
            fallback: None,
            targets: vec![target],
            trust: None,
            limits: Limits::default(),
            host: "b".into(),
        };
        let application_host = ApplicationHost::start(request).unwrap();
        let consoles = [console, application_host.console().unwrap().to_path_buf()];
        let attach_stop = Stop::new().unwrap();
        let (said, events) = (attach_stop.clone(), Arc::new(Mutex::new(Vec::new())));
        let told = events.clone();
        let attach = std::thread::spawn(move || {
            let mut emit = |event| {
                // Printed if the test fails.
                if !matches!(event, Event::Stats { .. }) {
                    println!("{event:?}");
                }
                told.lock().unwrap().push(event);
            };
            application_host.run(&said, &mut emit).map_err(|error| error.to_string())
        });
        let (share, attach) = (Some((stop, thread)), Some((attach_stop, attach)));
        Lab { device, application, relay, device_host: address, events, consoles, share, attach }
    }

    fn wait_attach(&mut self) -> Result<(), String> {
        self.attach.take().unwrap().1.join().unwrap()
    }

    fn wait_event(&self, event: &str, mut is_it: impl FnMut(&Event) -> bool) {
        let began = Instant::now();
        while !self.events.lock().unwrap().iter().any(&mut is_it) {
            assert!(began.elapsed() < WATCHDOG, "waited in vain for {event}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.attach.take() {
            stop.stop();
            let _ = thread.join();
        }
        if let Some((stop, thread)) = self.share.take() {
            stop.stop();
            let _ = thread.join();
        }
    }
}

fn reliable_flow_arrives_whole(transport: &'static str, via: &'static str, network: &str, count: u32) {
    let params = network.parse().unwrap();
    let mut lab = Lab::start(Setup { class: FlowClass::Reliable, transport, via, params, seed: 7 });
    let said: Vec<Vec<u8>> =
        (0..count).map(|n| n.to_le_bytes().repeat(1 + (n as usize * 7919) % 300)).collect();
    lab.device.with(|bench| {
        bench.to_pull.extend(said.iter().cloned());
        bench.ends = true;
    });
    lab.wait_attach().unwrap();
    lab.application.with(|bench| {
        assert_eq!(bench.pushed.len(), said.len());
        assert!(bench.pushed == said, "bytes or order differ");
        assert!(bench.finished);
    });
}

#[test]
fn a_reliable_flow_arrives_whole_over_tcp() {
    reliable_flow_arrives_whole("tcp", "", "delay=5ms", 3000);
}

#[test]
fn a_reliable_flow_arrives_whole_over_lossy_udp() {
    reliable_flow_arrives_whole("udp", "", "delay=5ms,jitter=5ms,reorder,loss=3%", 3000);
}

#[test]
fn a_reliable_flow_arrives_whole_through_pairs() {
    reliable_flow_arrives_whole("tcp", "bundle(count=10) | compress(zstd)", "delay=5ms", 3000);
}

#[test]
fn a_reliable_flow_arrives_whole_through_a_requested_buffer() {
    // The pair drops messages that its source half cannot hold, so send fewer.
    reliable_flow_arrives_whole("tcp", "buffer(request)", "", 390);
}

/// Inserts, removes and changes pairs on a live flow, requested at either host: no message is lost, repeated or
/// mixed.
fn a_pipeline_changes(class: FlowClass, transport: &'static str, network: &str, seed: u64) {
    const CHANGES: u32 = 24;
    let params = network.parse().unwrap();
    let mut lab = Lab::start(Setup { class, transport, via: "", params, seed });
    if class == FlowClass::State {
        // The snapshot contains earlier presses.
        lab.application.wait("the first snapshot", |bench| !bench.pushed.is_empty());
    }
    let device = lab.device.clone();
    let done = Arc::new(AtomicBool::new(false));
    let talks = done.clone();
    let talker = std::thread::spawn(move || {
        let mut said: u32 = 0;
        while !talks.load(Ordering::Relaxed) || said < 500 {
            device.say(said.to_le_bytes().repeat(1 + said as usize % 50));
            said += 1;
            std::thread::sleep(Duration::from_millis(1));
        }
        device.with(|bench| bench.ends = true);
        said
    });
    lab.application.wait("the first message", |bench| !bench.pushed.is_empty());
    let edits = [
        Edit::Insert { pair: "bundle(count=4)".into(), at: None },
        Edit::Insert { pair: "compress".into(), at: None },
        Edit::Set("compress(lz4, level=1)".into()),
        Edit::Insert { pair: "delay(5ms)".into(), at: Some(0) },
        Edit::Remove("bundle".into()),
        Edit::Via(String::new()),
    ];
    for (number, edit) in (0..CHANGES).zip(edits.iter().cycle()) {
        let change = Operation::Change { name: "bench".into(), back: false, edit: edit.clone() };
        let answer = console::ask(&lab.consoles[number as usize / 6 % 2], &change).unwrap();
        assert!(matches!(answer, Answer::Changed { .. }), "change {number}, {edit:?}: {answer:?}");
    }
    let wrong = Operation::Change { name: "bench".into(), back: false, edit: Edit::Via("compres".into()) };
    let answer = console::ask(&lab.consoles[0], &wrong).unwrap();
    assert!(matches!(answer, Answer::Refused { ref problem } if problem.contains("compress")), "{answer:?}");
    done.store(true, Ordering::Relaxed);
    let said = talker.join().unwrap();
    lab.wait_attach().unwrap();
    lab.application.with(|bench| {
        let came = bench.pushed.iter().filter(|body| !body.starts_with(b"held:"));
        let numbers: Vec<u32> = came.map(|body| u32::from_le_bytes(body[..4].try_into().unwrap())).collect();
        let wrong = numbers.iter().zip(0..).find(|(came, said)| **came != *said);
        assert_eq!((numbers.len() as u32, wrong), (said, None), "lost, repeated or out of order");
    });
}

#[test]
fn a_pipeline_changes_on_a_live_reliable_flow() {
    a_pipeline_changes(FlowClass::Reliable, "tcp", "delay=5ms,jitter=3ms", 17);
}

#[test]
fn a_pipeline_changes_on_a_live_state_flow() {
    a_pipeline_changes(FlowClass::State, "tcp", "delay=5ms,jitter=3ms", 18);
}

#[test]
fn a_pipeline_changes_over_lossy_udp() {
    a_pipeline_changes(FlowClass::Reliable, "udp", "delay=5ms,jitter=5ms,reorder,loss=3%", 19);
}

fn a_cut_link_lets_go_and_takes_up_again(transport: &'static str) {
    let params = "delay=5ms".parse().unwrap();
    let lab = Lab::start(Setup { class: FlowClass::State, transport, via: "", params, seed: 11 });
    lab.application.wait("the first snapshot", |bench| bench.pushed.first().is_some_and(|m| m == b"held:"));
    lab.device.say("press shift");
    lab.device.with(|bench| bench.held = b"shift".to_vec());
    lab.application.wait("the press", |bench| bench.pushed.contains(&b"press shift".to_vec()));
    // On a busy machine, the link may have been silent for too long before.
    let neutral = lab.application.with(|bench| bench.neutral);
    lab.relay.cut();
    let cut = Instant::now();
    lab.application.wait("neutral", |bench| bench.neutral > neutral);
    println!("neutral {:?} after the cut", cut.elapsed());
    let before = lab.application.with(|bench| bench.pushed.len());
    (0..20).for_each(|n| lab.device.say(format!("typed in the dark {n}")));
    std::thread::sleep(Duration::from_secs(2));
    lab.relay.restore();
    let restored = Instant::now();
    lab.application.wait("the snapshot after the cut", |bench| bench.pushed.len() > before);
    println!("back {:?} after the link", restored.elapsed());
    lab.device.say("release shift");
    lab.application.wait("new events", |bench| bench.pushed.contains(&b"release shift".to_vec()));
    lab.application.with(|bench| {
        let after = &bench.pushed[before..];
        assert_eq!(after.first().map(Vec::as_slice), Some(&b"held:shift"[..]), "the snapshot comes first");
        let dark = |message: &&Vec<u8>| message.starts_with(b"typed in the dark");
        assert_eq!(after.iter().filter(dark).count(), 0, "input during the cut is dropped");
        assert_eq!(bench.pushed.iter().filter(|m| *m == b"press shift").count(), 1, "nothing is repeated");
    });
    lab.wait_event("the link's loss and return", |event| matches!(event, Event::LinkBack { .. }));
}

#[test]
fn a_cut_link_becomes_neutral_and_recovers_over_tcp() {
    a_cut_link_lets_go_and_takes_up_again("tcp");
}

#[test]
fn a_cut_link_becomes_neutral_and_recovers_over_udp() {
    a_cut_link_lets_go_and_takes_up_again("udp");
}

/// Returns the packets that the relay has carried.
fn packets(lab: &Lab) -> u64 {
    [Direction::ToTarget, Direction::FromTarget]
        .map(|way| lab.relay.traffic(way).counters.delivered)
        .iter()
        .sum()
}

#[test]
fn a_session_at_rest_is_quiet_until_a_key_is_down() {
    let params = "delay=5ms".parse().unwrap();
    let lab = Lab::start(Setup { class: FlowClass::State, transport: "tcp", via: "", params, seed: 41 });
    lab.application.wait("the first snapshot", |bench| !bench.pushed.is_empty());
    // In the short rhythm, 12 s are 500 messages. On the way to rest they are some 100.
    let begun = packets(&lab);
    std::thread::sleep(Duration::from_secs(12));
    let quiet = packets(&lab) - begun;
    assert!(quiet < 300, "{quiet} packets in 12 s");
    // The next message passes as before, and the key that it leaves down keeps both hosts awake.
    lab.device.with(|bench| bench.held = b"shift".to_vec());
    lab.device.say("press shift");
    lab.application.wait("the press", |bench| bench.pushed.contains(&b"press shift".to_vec()));
    let begun = packets(&lab);
    std::thread::sleep(Duration::from_secs(4));
    let held = packets(&lab) - begun;
    assert!(held > 40, "{held} packets in 4 s");
    let neutral = lab.application.with(|bench| bench.neutral);
    lab.relay.cut();
    let cut = Instant::now();
    lab.application.wait("neutral", |bench| bench.neutral > neutral);
    println!("neutral {:?} after the cut", cut.elapsed());
}

#[test]
fn a_reliable_flow_resumes_after_a_cut_without_gap_or_repeat() {
    for transport in ["tcp", "udp"] {
        let params = "delay=2ms".parse().unwrap();
        let mut lab = Lab::start(Setup { class: FlowClass::Reliable, transport, via: "", params, seed: 13 });
        let said: Vec<Vec<u8>> = (0..400u32).map(|n| format!("line {n}").into_bytes()).collect();
        for (n, message) in said.iter().enumerate() {
            lab.device.say(message.clone());
            match n {
                100 => lab.relay.cut(),
                300 => lab.relay.restore(),
                _ => {}
            }
            std::thread::sleep(Duration::from_millis(8));
        }
        lab.device.with(|bench| bench.ends = true);
        lab.wait_attach().unwrap();
        lab.application
            .with(|bench| assert!(bench.pushed == said, "over {transport}: {} came", bench.pushed.len()));
    }
}

#[test]
fn an_unplugged_device_comes_back() {
    let params = Params::default();
    let lab = Lab::start(Setup { class: FlowClass::State, transport: "tcp", via: "", params, seed: 17 });
    lab.application.wait("the first snapshot", |bench| !bench.pushed.is_empty());
    lab.device.with(|bench| bench.gone = true);
    lab.application.wait("neutral", |bench| bench.neutral > 0);
    lab.wait_event("the device's loss", |event| matches!(event, Event::DeviceGone { .. }));
    let before = lab.application.with(|bench| bench.pushed.len());
    lab.device.with(|bench| {
        bench.held = b"button".to_vec();
        bench.gone = false;
    });
    lab.application.wait("the snapshot", |bench| bench.pushed.len() > before);
    lab.application.with(|bench| assert_eq!(bench.pushed[before], b"held:button"));
    lab.device.say("again");
    lab.application.wait("new events", |bench| bench.pushed.contains(&b"again".to_vec()));
}

/// Forwards connections to `to`; returns both ends of each, the one towards `to` second.
fn passed_on(to: SocketAddr) -> (SocketAddr, Receiver<[TcpStream; 2]>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, (emit, told)) = (listener.local_addr().unwrap(), channel());
    std::thread::spawn(move || {
        for near in listener.incoming() {
            let ends = [near.unwrap(), TcpStream::connect(to).unwrap()];
            for [from, into] in [[0, 1], [1, 0]] {
                let [mut from, mut into] = [from, into].map(|end: usize| ends[end].try_clone().unwrap());
                std::thread::spawn(move || io::copy(&mut from, &mut into));
            }
            if emit.send(ends).is_err() {
                break;
            }
        }
    });
    (address, told)
}

/// Starts a lab whose connections are forwarded by [`passed_on`].
fn start_passed_on(class: FlowClass, transport: &'static str, seed: u64) -> (Lab, Receiver<[TcpStream; 2]>) {
    let mut connections = None;
    let lab = Lab::start_behind(
        Setup { class, transport, via: "", params: Params::default(), seed },
        |device_host| {
            let (address, told) = passed_on(device_host);
            connections = Some(told);
            address
        },
    );
    (lab, connections.unwrap())
}

/// Forwards the datagrams of one client to `to`.
fn datagrams_passed_on(to: SocketAddr) -> SocketAddr {
    // Nothing listens for connections at this address of the host.
    let [near, far] = ["127.0.0.2:0", "127.0.0.1:0"].map(|address| UdpSocket::bind(address).unwrap());
    far.connect(to).unwrap();
    let address = near.local_addr().unwrap();
    std::thread::spawn(move || {
        let (_, client) = near.peek_from(&mut [0]).unwrap();
        near.connect(client).unwrap();
        std::thread::scope(|scope| {
            for [from, into] in [[&near, &far], [&far, &near]] {
                scope.spawn(move || {
                    let mut datagram = vec![0; 1 << 16];
                    while let Ok(count) = from.recv(&mut datagram) {
                        let _ = into.send(&datagram[..count]);
                    }
                });
            }
        });
    });
    address
}

#[test]
fn the_devices_of_a_host_are_listed_where_only_udp_passes() {
    let any = "127.0.0.1:0".parse().unwrap();
    let (address, _, stop, thread) = start_share(&Handle::new(), FlowClass::State, any);
    let target = Target { peer: None, address: datagrams_passed_on(address).to_string() };
    let mut listed = Vec::new();
    let mut emit = |devices| listed = devices;
    let listing = browse(&target, None, "b".into(), None, &mut |_, _, _| false, &mut emit);
    stop.stop();
    thread.join().unwrap();
    listing.unwrap();
    assert_eq!(listed.iter().map(|device| device.name.as_str()).collect::<Vec<_>>(), ["bench"]);
}

/// Only the device host notices the loss of this connection, and must report it: the application host would wait
/// forever.
#[test]
fn a_data_connection_lost_by_the_device_host_alone_is_reconnected() {
    let (lab, connections) = start_passed_on(FlowClass::Reliable, "tcp", 29);
    lab.device.say("before");
    lab.application.wait("earlier messages", |bench| !bench.pushed.is_empty());
    let [_control, data] = [(); 2].map(|()| connections.recv_timeout(WATCHDOG).unwrap());
    data[1].shutdown(Shutdown::Both).unwrap();
    lab.device.say("after");
    lab.application.wait("later messages", |bench| bench.pushed.len() == 2);
}

#[test]
fn a_network_that_blocks_the_datagrams_of_udp_is_named() {
    let (lab, _connections) = start_passed_on(FlowClass::State, "udp", 43);
    lab.wait_event(
        "the warning",
        |event| matches!(event, Event::Warning { problem } if problem.contains("UDP port")),
    );
}

#[test]
fn a_restarted_device_host_is_found_again_and_the_node_stays() {
    let params = Params::default();
    let mut lab = Lab::start(Setup { class: FlowClass::State, transport: "tcp", via: "", params, seed: 19 });
    lab.application.wait("the first snapshot", |bench| !bench.pushed.is_empty());
    let before = lab.crash();
    let target = lab.device_host;
    let (_, _, stop, thread) = start_share(&lab.device, FlowClass::State, target);
    lab.share = Some((stop, thread));
    lab.relay.restore();
    lab.application.wait("the snapshot of the new device_host", |bench| bench.pushed.len() > before);
    lab.device.say("after the crash");
    lab.application.wait("new events", |bench| bench.pushed.contains(&b"after the crash".to_vec()));
}

/// A new QUIC connection takes two round trips. Here, that is longer than the first searches wait on a path that was short
/// before.
#[test]
fn a_device_host_is_found_again_on_a_longer_path() {
    let params = "delay=5ms".parse().unwrap();
    let mut lab = Lab::start(Setup { class: FlowClass::State, transport: "quic", via: "", params, seed: 41 });
    lab.application.wait("the first snapshot", |bench| !bench.pushed.is_empty());
    let before = lab.crash();
    let (_, _, stop, thread) = start_share(&lab.device, FlowClass::State, lab.device_host);
    lab.share = Some((stop, thread));
    lab.relay.set_both("delay=100ms".parse().unwrap());
    lab.application.wait("the snapshot over the longer path", |bench| bench.pushed.len() > before);
}

#[test]
fn a_restarted_device_host_gets_the_unacknowledged_messages() {
    let params = Params::default();
    let class = FlowClass::Reliable;
    let mut lab = Lab::start(Setup { class, transport: "tcp", via: "", params, seed: 37 });
    lab.device.say("before");
    lab.application.wait("the link", |bench| bench.pushed.contains(&b"before".to_vec()));
    lab.application.say("heard");
    lab.device.wait("the message before the crash", |bench| bench.pushed.contains(&b"heard".to_vec()));
    let (stop, thread) = lab.share.take().unwrap();
    lab.relay.cut();
    let said: Vec<Vec<u8>> =
        (0..50).map(|number| format!("while it was gone {number}").into_bytes()).collect();
    for words in &said {
        lab.application.say(str::from_utf8(words).unwrap());
    }
    stop.stop();
    thread.join().unwrap();
    let (_, _, stop, thread) = start_share(&lab.device, class, lab.device_host);
    lab.share = Some((stop, thread));
    lab.relay.restore();
    lab.device.wait("all that was said meanwhile", |bench| bench.pushed.ends_with(&said));
}

/// A program of `exec` on the device host gets this address.
#[test]
fn a_resumed_session_has_the_new_address_of_its_peer() {
    let (lab, connections) = start_passed_on(FlowClass::Reliable, "tcp", 43);
    lab.device.say("before");
    lab.application.wait("earlier messages", |bench| !bench.pushed.is_empty());
    let peer = || {
        let Answer::Status(status) = console::ask(&lab.consoles[0], &Operation::Stats {}).unwrap() else {
            panic!("the status");
        };
        assert_eq!(status.drivers[0].peer, format!("b ({})", status.peers[0].address));
        status.peers[0].address.clone()
    };
    let control = connections.recv_timeout(WATCHDOG).unwrap();
    assert_eq!(peer(), control[1].local_addr().unwrap().to_string());
    // The socket stays open, so that no other has its address.
    control.iter().for_each(|end| end.shutdown(Shutdown::Both).unwrap());
    lab.device.say("after");
    lab.application.wait("later messages", |bench| bench.pushed.len() == 2);
    assert_ne!(peer(), control[1].local_addr().unwrap().to_string());
}

/// Without keys, the host at the former address may be any.
#[test]
fn a_refusal_of_another_host_ends_no_search() {
    const REFUSALS: usize = 5;
    let params = Params::default();
    let mut lab = Lab::start(Setup { class: FlowClass::State, transport: "tcp", via: "", params, seed: 47 });
    lab.application.wait("the first snapshot", |bench| !bench.pushed.is_empty());
    let before = lab.crash();
    let other = TcpListener::bind(lab.device_host).unwrap();
    let (emit, refused) = channel();
    let refuses = std::thread::spawn(move || {
        // They stay open: one that is closed with unread input is reset, and its goodbye is lost. The relay may keep one
        // that nobody uses any more.
        let mut open = Vec::new();
        for stream in other.incoming().take(REFUSALS) {
            let mut stream = stream.unwrap();
            let goodbye = wire::Control::Goodbye { reason: "this host is full".into() };
            // A connection that the relay cut has nobody to refuse.
            let _ = io::Write::write_all(&mut stream, &goodbye.emit());
            open.push(stream);
            emit.send(()).unwrap();
        }
    });
    lab.relay.restore();
    (0..REFUSALS).for_each(|_| refused.recv_timeout(WATCHDOG).expect("the search goes on"));
    refuses.join().unwrap();
    let (_, _, stop, thread) = start_share(&lab.device, FlowClass::State, lab.device_host);
    lab.share = Some((stop, thread));
    lab.application.wait("the snapshot of the device host", |bench| bench.pushed.len() > before);
}

#[test]
fn a_refusal_contains_the_reason() {
    let params = Params::default();
    let mut lab = Lab::start(Setup { class: FlowClass::State, transport: "tcp", via: "", params, seed: 23 });
    lab.application.wait("the first snapshot", |bench| !bench.pushed.is_empty());
    let class = registry::transport("tcp").unwrap();
    let target = AttachTarget {
        name: "bank".into(),
        application: ApplicationChoice::Partner(Box::new(BenchPartner::new(&Handle::new()))),
        pipelines: Pipelines::default(),
        expect: None,
    };
    let request = AttachRequest {
        peer: None,
        address: lab.relay.address().to_string(),
        transport: TransportPlan { class, options: Options::defaults(class.options()).unwrap() },
        fallback: None,
        targets: vec![target],
        trust: None,
        limits: Limits::default(),
        host: "c".into(),
    };
    let stop = Stop::new().unwrap();
    let error = ApplicationHost::start(request).unwrap().run(&stop, &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("no device `bank`") && error.contains("bench"), "{error}");
    lab.device.with(|bench| bench.ends = true);
    lab.wait_attach().unwrap();
}

#[test]
fn a_silent_user_loses_its_device_to_a_host_that_requests_it() {
    let params = Params::default();
    let first = Lab::start(Setup { class: FlowClass::State, transport: "tcp", via: "", params, seed: 29 });
    first.application.wait("the first snapshot", |bench| !bench.pushed.is_empty());
    // On a busy machine, the link may have been silent for too long before.
    let neutral = first.application.with(|bench| bench.neutral);
    first.relay.cut();
    first.application.wait("neutral", |bench| bench.neutral > neutral);
    let second = Handle::new();
    let class = registry::transport("tcp").unwrap();
    let target = AttachTarget {
        name: "bench".into(),
        application: ApplicationChoice::Partner(Box::new(BenchPartner::new(&second))),
        pipelines: Pipelines::default(),
        expect: None,
    };
    let request = AttachRequest {
        peer: None,
        address: first.device_host.to_string(),
        transport: TransportPlan { class, options: Options::defaults(class.options()).unwrap() },
        fallback: None,
        targets: vec![target],
        trust: None,
        limits: Limits::default(),
        host: "c".into(),
    };
    let application_host = ApplicationHost::start(request).unwrap();
    let stop = Stop::new().unwrap();
    let said = stop.clone();
    let thread = std::thread::spawn(move || {
        application_host.run(&said, &mut |_| {}).map_err(|error| error.to_string())
    });
    second.wait("the snapshot at the second application", |bench| !bench.pushed.is_empty());
    // The first host reconnects, keeps its node, and gets the device back when the second releases it.
    first.relay.restore();
    first.wait_event("the loss of the device", |event| matches!(event, Event::DeviceGone { .. }));
    let before = first.application.with(|bench| bench.pushed.len());
    stop.stop();
    thread.join().unwrap().unwrap();
    first.application.wait("the snapshot, again at the first", |bench| bench.pushed.len() > before);
    // Meanwhile, the first host has asked for the device, but has not dialled for data connections again and again.
    let Answer::Status(status) = console::ask(&first.consoles[0], &Operation::Stats {}).unwrap() else {
        panic!("the status");
    };
    assert!(status.refused.is_empty(), "{:?}", status.refused);
}
