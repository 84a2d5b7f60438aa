//! Junctions in one process: one device for several hosts, and several devices for one application.

mod support;

use contract::FlowClass;
use hub::{HubOptions, HubPolicy};
use netsim::relay::Relay;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;
use support::{Handle, attach, join, share, share_via};

const ANY: &str = "127.0.0.1:0";

fn any() -> SocketAddr {
    ANY.parse().unwrap()
}

fn copy() -> HubPolicy {
    HubPolicy::Copy(HubOptions::default())
}

fn numbers(count: u32) -> Vec<Vec<u8>> {
    (0..count).map(|n| format!("message {n}").into_bytes()).collect()
}

#[test]
fn every_host_gets_all_messages_and_the_end() {
    let device = Handle::new();
    let device_host = share(&device, FlowClass::Reliable, any(), copy());
    let applications: [Handle; 4] = std::array::from_fn(|_| Handle::new());
    let attached: Vec<_> = applications.iter().map(|node| attach(device_host.address, node, None)).collect();
    for node in applications.iter().rev() {
        node.say("here");
    }
    device.wait("the owner's word", |bench| !bench.pushed.is_empty());
    let said = numbers(1000);
    device.with(|bench| bench.to_pull.extend(said.iter().cloned()));
    for node in &applications {
        node.wait("all of it", |bench| bench.pushed.len() >= said.len());
        node.with(|bench| assert!(bench.pushed == said && !bench.finished, "{} came", bench.pushed.len()));
    }
    // Checked while all are connected: when the owner leaves, the next host becomes the owner.
    device.with(|bench| assert_eq!(bench.pushed, [b"here".to_vec()], "only the owner writes"));
    device.with(|bench| bench.ends = true);
    for one in attached {
        one.wait().unwrap();
    }
    for node in &applications {
        node.with(|bench| assert!(bench.pushed == said && bench.finished, "{} came", bench.pushed.len()));
    }
    device_host.stop();
}

#[test]
fn a_snapshot_for_a_joining_host_repeats_no_event_to_the_others() {
    let device = Handle::new();
    let device_host = share(&device, FlowClass::State, any(), copy());
    let (first, second) = (Handle::new(), Handle::new());
    let one = attach(device_host.address, &first, None);
    first.wait("the first snapshot", |bench| bench.pushed == [b"held:".to_vec()]);
    device.with(|bench| bench.held = b"shift".to_vec());
    device.say("press shift");
    first.wait("the press", |bench| bench.pushed.len() == 2);
    let two = attach(device_host.address, &second, None);
    second.wait("its snapshot", |bench| bench.pushed == [b"held:shift".to_vec()]);
    device.say("press a");
    for node in [&first, &second] {
        node.wait("the next press", |bench| bench.pushed.last().is_some_and(|last| last == b"press a"));
    }
    let neutral = first.with(|bench| {
        let expected: [&[u8]; 4] = [b"held:", b"press shift", b"held:shift", b"press a"];
        assert_eq!(bench.pushed, expected);
        bench.neutral
    });
    second.with(|bench| assert_eq!(bench.pushed.len(), 2, "{:?}", bench.pushed));
    two.stop().unwrap();
    device.say("press b");
    first.wait("messages after one host left", |bench| bench.pushed.len() == 5);
    first.with(|bench| assert_eq!(bench.neutral, neutral, "the others do not become neutral"));
    one.stop().unwrap();
    device_host.stop();
}

#[test]
fn the_earliest_host_owns_the_flow_to_the_device_and_the_next_inherits_it() {
    let device = Handle::new();
    let device_host = share(&device, FlowClass::State, any(), copy());
    let (first, second) = (Handle::new(), Handle::new());
    first.with(|bench| bench.held = b"lights of the first".to_vec());
    second.with(|bench| bench.held = b"lights of the second".to_vec());
    let one = attach(device_host.address, &first, None);
    device.wait("the owner's lights", |bench| bench.pushed == [b"held:lights of the first".to_vec()]);
    let two = attach(device_host.address, &second, None);
    second.wait("the snapshot", |bench| !bench.pushed.is_empty());
    second.say("not heard");
    first.say("caps on");
    device.wait("the owner's word", |bench| bench.pushed.last().is_some_and(|last| last == b"caps on"));
    let neutral = device.with(|bench| bench.neutral);
    one.stop().unwrap();
    device.wait("the heir's lights", |bench| {
        bench.pushed.last().is_some_and(|last| last == b"held:lights of the second")
    });
    device.with(|bench| {
        assert!(bench.neutral > neutral, "the owner's settings were undone");
        assert!(!bench.pushed.contains(&b"not heard".to_vec()));
    });
    second.say("num on");
    device.wait("the new owner's word", |bench| bench.pushed.last().is_some_and(|last| last == b"num on"));
    two.stop().unwrap();
    device_host.stop();
}

#[test]
fn a_host_that_does_not_read_delays_no_other() {
    let device = Handle::new();
    let device_host = share(&device, FlowClass::State, any(), copy());
    let (quick, slow) = (Handle::new(), Handle::new());
    let attached = [&quick, &slow].map(|node| attach(device_host.address, node, None));
    for node in [&quick, &slow] {
        node.wait("the snapshot", |bench| !bench.pushed.is_empty());
    }
    slow.with(|bench| bench.full = true);
    // More than fits into the buffers between the device and a host.
    const ROUNDS: usize = 60;
    const EACH: usize = 32;
    for round in 0..ROUNDS {
        (0..EACH).for_each(|_| device.say(vec![b'e'; 32 << 10]));
        quick.wait("this round", |bench| {
            let events = bench.pushed.iter().filter(|message| message.first() == Some(&b'e'));
            events.count() == (round + 1) * EACH
        });
    }
    device.with(|bench| bench.held = b"all that".to_vec());
    slow.with(|bench| bench.full = false);
    slow.wait("where things stand", |bench| bench.pushed.last().is_some_and(|last| last == b"held:all that"));
    slow.with(|bench| assert!(bench.pushed.len() < ROUNDS * EACH, "{} came", bench.pushed.len()));
    device.say("after");
    slow.wait("the last message", |bench| bench.pushed.last().is_some_and(|last| last == b"after"));
    for one in attached {
        one.stop().unwrap();
    }
    device_host.stop();
}

#[test]
fn a_silent_host_loses_a_reliable_flow_once_the_others_wait_for_it() {
    let device = Handle::new();
    let policy = HubPolicy::Copy(HubOptions { queue: Some(4), ..HubOptions::default() });
    let device_host = share(&device, FlowClass::Reliable, any(), policy);
    let relay = Relay::start(any(), device_host.address, "delay=1ms".parse().unwrap(), 5).unwrap();
    let (quick, dead) = (Handle::new(), Handle::new());
    let one = attach(device_host.address, &quick, None);
    let two = attach(relay.address(), &dead, None);
    device.say("first");
    dead.wait("the first message", |bench| !bench.pushed.is_empty());
    relay.cut();
    // More than a session stores for a host that does not answer.
    let body = vec![7; 1 << 20];
    for _ in 0..40 {
        device.say(body.clone());
    }
    quick.wait("everything", |bench| bench.pushed.len() == 41);
    one.stop().unwrap();
    two.stop().unwrap();
    device_host.stop();
}

#[test]
fn a_host_that_does_not_read_loses_a_reliable_flow_after_the_patience_of_the_others() {
    let device = Handle::new();
    let patience = Duration::from_secs(2);
    let policy = HubPolicy::Copy(HubOptions { queue: Some(4), patience, ..HubOptions::default() });
    let device_host = share(&device, FlowClass::Reliable, any(), policy);
    let (quick, idle) = (Handle::new(), Handle::new());
    let one = attach(device_host.address, &quick, None);
    let two = attach(device_host.address, &idle, None);
    device.say("first");
    idle.wait("the first message", |bench| !bench.pushed.is_empty());
    idle.with(|bench| bench.full = true);
    // More than is stored for a host that answers but does not read.
    let body = vec![7; 1 << 20];
    for _ in 0..80 {
        device.say(body.clone());
    }
    quick.wait("everything", |bench| bench.pushed.len() == 81);
    one.stop().unwrap();
    two.stop().unwrap();
    device_host.stop();
}

#[test]
fn an_unplugged_device_comes_back_to_all_its_hosts() {
    let device = Handle::new();
    let device_host = share(&device, FlowClass::State, any(), copy());
    let nodes = [Handle::new(), Handle::new(), Handle::new()];
    let attached = nodes.each_ref().map(|node| attach(device_host.address, node, None));
    for node in &nodes {
        node.wait("the snapshot", |bench| !bench.pushed.is_empty());
    }
    device.with(|bench| bench.gone = true);
    for node in &nodes {
        node.wait("neutral", |bench| bench.neutral > 0);
    }
    let before = nodes.each_ref().map(|node| node.with(|bench| bench.pushed.len()));
    device.with(|bench| {
        bench.held = b"button".to_vec();
        bench.gone = false;
    });
    for (node, before) in nodes.iter().zip(before) {
        node.wait("the snapshot after", |bench| bench.pushed.len() > before);
        node.with(|bench| assert_eq!(bench.pushed[before], b"held:button"));
    }
    device.say("again");
    for node in &nodes {
        node.wait("new events", |bench| bench.pushed.last().is_some_and(|last| last == b"again"));
    }
    for one in attached {
        one.stop().unwrap();
    }
    device_host.stop();
}

#[test]
fn multiplex_copies_a_device_to_each_host() {
    let device = Handle::new();
    let via = "multiplex(all, ways=3, join=false) | compress";
    let device_host = share_via(&device, FlowClass::Reliable, any(), HubPolicy::default(), Some(via));
    let nodes = [Handle::new(), Handle::new(), Handle::new()];
    // One host takes the device's pipeline, one names the same, one has its own pairs after the dividing one.
    let own = [None, Some(via), Some("multiplex(all, ways=3, join=false) | bundle(count=7)")];
    let attached: Vec<_> =
        nodes.iter().zip(own).map(|(node, own)| attach(device_host.address, node, own)).collect();
    let refused = support::request(device_host.address, &Handle::new(), Some("compress"));
    let stop = sys::stop::Stop::new().unwrap();
    let error =
        broker::ApplicationHost::start(refused).unwrap().run(&stop, &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("the most uses at once that it allows: 3"), "{error}");
    let said = numbers(500);
    device.with(|bench| {
        bench.to_pull.extend(said.iter().cloned());
        bench.ends = true;
    });
    for one in attached {
        one.wait().unwrap();
    }
    for node in &nodes {
        node.with(|bench| assert!(bench.pushed == said && bench.finished, "{} came", bench.pushed.len()));
    }
    device_host.stop();
}

/// Shares a device through `via`, which divides it among three hosts; returns the messages of each.
fn divide(via: &str, said: &[Vec<u8>]) -> [Vec<Vec<u8>>; 3] {
    let device = Handle::new();
    let device_host = share_via(&device, FlowClass::Reliable, any(), HubPolicy::default(), Some(via));
    let nodes = [Handle::new(), Handle::new(), Handle::new()];
    let attached = nodes.each_ref().map(|node| attach(device_host.address, node, None));
    device.with(|bench| {
        bench.to_pull.extend(said.iter().cloned());
        bench.ends = true;
    });
    for one in attached {
        one.wait().unwrap();
    }
    device_host.stop();
    nodes.map(|node| {
        node.with(|bench| {
            assert!(bench.finished, "a host has no end");
            std::mem::take(&mut bench.pushed)
        })
    })
}

/// Parses the number of a message of [`numbers`].
fn number(message: &[u8]) -> usize {
    std::str::from_utf8(message).unwrap().strip_prefix("message ").unwrap().parse().unwrap()
}

#[test]
fn multiplex_divides_a_device_among_its_hosts() {
    let said = numbers(600);
    let came = divide("multiplex(round_robin, ways=3, join=false) | compress", &said);
    for host in &came {
        let numbers: Vec<usize> = host.iter().map(|message| number(message)).collect();
        assert_eq!(numbers.len(), said.len() / 3, "a host gets every third message");
        assert!(numbers.windows(2).all(|two| two[1] == two[0] + 3), "{numbers:?}");
    }
    assert_eq!(sorted(&came), sorted(&[said]), "each message comes to exactly one host");
}

#[test]
fn multiplex_divides_a_device_by_keys() {
    // The key is the last digit.
    let said: Vec<Vec<u8>> = (0..600).map(|n| format!("message {n:03}").into_bytes()).collect();
    let came = divide("multiplex(key, at=10, width=1, ways=3, join=false)", &said);
    let keys = came.each_ref().map(|host| host.iter().map(|message| message[10]).collect::<BTreeSet<u8>>());
    assert!(keys.iter().all(|keys| !keys.is_empty()), "ten keys leave no host without any: {keys:?}");
    assert_eq!(keys.iter().map(BTreeSet::len).sum::<usize>(), 10, "one host has all of a key: {keys:?}");
    assert!(came.iter().all(|host| host.is_sorted()), "each host has its messages in order");
    assert_eq!(sorted(&came), sorted(&[said]), "each message comes to exactly one host");
}

/// Returns the messages of all hosts in one order.
fn sorted(hosts: &[Vec<Vec<u8>>]) -> Vec<Vec<u8>> {
    let mut all = hosts.concat();
    all.sort();
    all
}

#[test]
fn a_pipeline_that_does_not_divide_a_divided_device_is_refused() {
    let device = Handle::new();
    let via = "multiplex(all, ways=3, join=false)";
    let device_host = share_via(&device, FlowClass::Reliable, any(), HubPolicy::default(), Some(via));
    let stop = sys::stop::Stop::new().unwrap();
    let request = support::request(device_host.address, &Handle::new(), Some("compress"));
    let error =
        broker::ApplicationHost::start(request).unwrap().run(&stop, &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("begins with that"), "{error}");
    device_host.stop();
}

#[test]
fn one_application_joins_two_devices_and_its_messages_reach_both() {
    let devices = [Handle::new(), Handle::new()];
    let device_hosts =
        devices.each_ref().map(|device| share(device, FlowClass::State, any(), HubPolicy::default()));
    let node = Handle::new();
    node.with(|bench| bench.held = b"lights".to_vec());
    let addresses = device_hosts.each_ref().map(|device_host| device_host.address);
    let joined = join(&addresses, &[&node], "a:(compress), b:(), synchronize | null");
    node.wait("both snapshots", |bench| bench.pushed.len() >= 2);
    for device in &devices {
        device.wait("the lights", |bench| bench.pushed.first().is_some_and(|m| m == b"held:lights"));
    }
    for n in 0..50 {
        devices[n % 2].say(format!("event {n}"));
    }
    node.wait("all events", |bench| bench.pushed.len() >= 52);
    node.with(|bench| {
        for device in 0..2 {
            let of = |message: &&Vec<u8>| {
                let text = String::from_utf8_lossy(message);
                text.strip_prefix("event ").is_some_and(|n| n.parse::<usize>().unwrap() % 2 == device)
            };
            let came: Vec<String> =
                bench.pushed.iter().filter(of).map(|m| String::from_utf8(m.clone()).unwrap()).collect();
            let said: Vec<String> =
                (0..50).filter(|n| n % 2 == device).map(|n| format!("event {n}")).collect();
            assert_eq!(came, said, "each device's order stays");
        }
    });
    node.say("all dark");
    for device in &devices {
        device.wait("the message to both", |bench| bench.pushed.last().is_some_and(|m| m == b"all dark"));
    }
    devices.iter().for_each(|device| device.with(|bench| bench.ends = true));
    for one in joined {
        one.wait().unwrap();
    }
    node.with(|bench| assert!(bench.finished));
    device_hosts.into_iter().for_each(|device_host| device_host.stop());
}

#[test]
fn separate_flows_have_a_node_each_and_a_disconnected_one_becomes_neutral() {
    let devices = [Handle::new(), Handle::new()];
    let device_hosts =
        devices.each_ref().map(|device| share(device, FlowClass::State, any(), HubPolicy::default()));
    let relay = Relay::start(any(), device_hosts[1].address, "delay=2ms".parse().unwrap(), 7).unwrap();
    let nodes = [Handle::new(), Handle::new()];
    let joined =
        join(&[device_hosts[0].address, relay.address()], &[&nodes[0], &nodes[1]], "synchronize(apart=true)");
    for (number, (device, node)) in devices.iter().zip(&nodes).enumerate() {
        // The first snapshot contains earlier events.
        node.wait("where things stand at first", |bench| !bench.pushed.is_empty());
        device.say(format!("of {number}"));
        node.wait("its own", |bench| {
            bench.pushed.last().is_some_and(|m| m == format!("of {number}").as_bytes())
        });
    }
    let neutral = nodes.each_ref().map(|node| node.with(|bench| bench.neutral));
    devices[1].with(|bench| bench.held = b"stuck".to_vec());
    relay.cut();
    nodes[1].wait("neutral", |bench| bench.neutral > neutral[1]);
    nodes[0].with(|bench| assert_eq!(bench.neutral, neutral[0], "the other is not concerned"));
    devices[0].say("on and on");
    nodes[0]
        .wait("messages of the other device", |bench| bench.pushed.last().is_some_and(|m| m == b"on and on"));
    relay.restore();
    nodes[1].wait("where things stand", |bench| bench.pushed.last().is_some_and(|m| m == b"held:stuck"));
    nodes[1].say("for the second");
    devices[1]
        .wait("the message of its node", |bench| bench.pushed.last().is_some_and(|m| m == b"for the second"));
    devices[0].with(|bench| assert!(!bench.pushed.contains(&b"for the second".to_vec())));
    for one in joined {
        one.stop().unwrap();
    }
    device_hosts.into_iter().for_each(|device_host| device_host.stop());
}

#[test]
fn a_flow_over_two_links_survives_the_loss_of_one() {
    let device = Handle::new();
    let via = "multiplex(all, ways=2, wait=100ms)";
    let device_host = share_via(&device, FlowClass::Timely, any(), HubPolicy::default(), Some(via));
    let relay = Relay::start(any(), device_host.address, "delay=2ms".parse().unwrap(), 9).unwrap();
    let node = Handle::new();
    let joined = join(&[device_host.address, relay.address()], &[&node], &format!("a:(compress), {via}"));
    let say = |range: std::ops::Range<u32>| {
        for n in range {
            device.say(format!("message {n}"));
            node.wait("it", |bench| {
                bench.pushed.last().is_some_and(|m| *m == format!("message {n}").into_bytes())
            });
        }
    };
    // The first messages may be lost while the links are established.
    let began = std::time::Instant::now();
    while node.with(|bench| bench.pushed.is_empty()) {
        assert!(began.elapsed() < support::WATCHDOG);
        device.say("first");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    say(0..50);
    relay.cut();
    say(50..150);
    relay.restore();
    say(150..200);
    node.with(|bench| {
        let of = |n: u32| bench.pushed.iter().filter(|m| **m == format!("message {n}").into_bytes()).count();
        assert!((0..200).all(|n| of(n) == 1), "once each");
    });
    for one in joined {
        one.stop().unwrap();
    }
    device_host.stop();
}

/// Returns the 1st, 50th and 99th percentile.
fn percentiles(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [0.01, 0.5, 0.99].map(|part| values[((values.len() - 1) as f64 * part) as usize])
}

/// Prints figures with `--nocapture`: a device with 62.5 Hz ("Networked Device Driver Architecture" (2012), chapter
/// 6) at four hosts, each behind its own simulated network.
#[test]
fn a_device_of_62_5_hz_reaches_four_hosts() {
    const COUNT: usize = 125;
    let period = std::time::Duration::from_millis(16);
    let device = Handle::new();
    let via = "multiplex(all, ways=4, join=false)";
    let device_host = share_via(&device, FlowClass::Reliable, any(), HubPolicy::default(), Some(via));
    let networks = ["", "delay=10ms,jitter=2ms", "delay=40ms,jitter=10ms", "delay=100ms"];
    let relays: Vec<_> = (1..)
        .zip(networks)
        .map(|(seed, network)| {
            Relay::start(any(), device_host.address, network.parse().unwrap(), seed).unwrap()
        })
        .collect();
    let nodes = [Handle::new(), Handle::new(), Handle::new(), Handle::new()];
    let attached: Vec<_> =
        nodes.iter().zip(&relays).map(|(node, relay)| attach(relay.address(), node, None)).collect();
    let mut due = std::time::Instant::now() + period;
    for _ in 0..COUNT {
        std::thread::sleep(due.saturating_duration_since(std::time::Instant::now()));
        due += period;
        device.say(sys::clock::boot_ns().to_le_bytes());
    }
    device.with(|bench| bench.ends = true);
    for one in attached {
        one.wait().unwrap();
    }
    for (network, node) in networks.iter().zip(&nodes) {
        node.with(|bench| {
            assert_eq!(bench.pushed.len(), COUNT);
            let made = |body: &Vec<u8>| u64::from_le_bytes(body[..8].try_into().unwrap());
            let ms = |ns: u64| ns as f64 / 1e6;
            let delay = bench.pushed.iter().zip(&bench.arrived).map(|(body, at)| ms(at.0 - made(body)));
            let spacing = bench.arrived.windows(2).map(|two| ms(two[1].0 - two[0].0));
            let [delay, spacing] = [delay.collect(), spacing.collect()].map(percentiles);
            println!("`{network}`: delay {delay:.2?} ms, spacing {spacing:.2?} ms (1 %, median, 99 %)");
        });
    }
    device_host.stop();
}
