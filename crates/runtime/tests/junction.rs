//! Junctions: one device with several hosts, several devices with one application, in one process.

mod support;

use contract::FlowClass;
use netsim::relay::Relay;
use runtime::{HubOptions, HubPolicy};
use std::net::SocketAddr;
use std::time::Duration;
use support::{Handle, attach, share};

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
fn every_host_gets_everything_and_the_end() {
    let device = Handle::new();
    let sharer = share(&device, FlowClass::Reliable, any(), copy());
    let applications: [Handle; 4] = std::array::from_fn(|_| Handle::new());
    let attached: Vec<_> = applications.iter().map(|node| attach(sharer.address, node, None)).collect();
    for node in applications.iter().rev() {
        node.say("here");
    }
    device.wait("the owner's word", |bench| !bench.pushed.is_empty());
    let said = numbers(1000);
    device.with(|bench| {
        bench.to_pull.extend(said.iter().cloned());
        bench.ends = true;
    });
    for one in attached {
        one.wait().unwrap();
    }
    for node in &applications {
        node.with(|bench| assert!(bench.pushed == said && bench.finished, "{} came", bench.pushed.len()));
    }
    device.with(|bench| assert_eq!(bench.pushed, [b"here".to_vec()], "only the owner writes"));
    sharer.stop();
}

#[test]
fn who_joins_gets_where_things_stand_and_nobody_else_does() {
    let device = Handle::new();
    let sharer = share(&device, FlowClass::State, any(), copy());
    let (first, second) = (Handle::new(), Handle::new());
    let one = attach(sharer.address, &first, None);
    first.wait("the first snapshot", |bench| bench.pushed == [b"held:".to_vec()]);
    device.with(|bench| bench.held = b"shift".to_vec());
    device.say("press shift");
    first.wait("the press", |bench| bench.pushed.len() == 2);
    let two = attach(sharer.address, &second, None);
    second.wait("its snapshot", |bench| bench.pushed == [b"held:shift".to_vec()]);
    device.say("press a");
    for node in [&first, &second] {
        node.wait("the next press", |bench| bench.pushed.last().is_some_and(|last| last == b"press a"));
    }
    first.with(|bench| assert_eq!(bench.pushed.len(), 3, "{:?}", bench.pushed));
    two.stop().unwrap();
    device.say("press b");
    first.wait("what comes after one left", |bench| bench.pushed.len() == 4);
    one.stop().unwrap();
    sharer.stop();
}

#[test]
fn the_earliest_owns_what_flows_back_and_the_next_inherits_it() {
    let device = Handle::new();
    let sharer = share(&device, FlowClass::State, any(), copy());
    let (first, second) = (Handle::new(), Handle::new());
    first.with(|bench| bench.held = b"lights of the first".to_vec());
    second.with(|bench| bench.held = b"lights of the second".to_vec());
    let one = attach(sharer.address, &first, None);
    device.wait("the owner's lights", |bench| bench.pushed == [b"held:lights of the first".to_vec()]);
    let two = attach(sharer.address, &second, None);
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
        assert!(bench.neutral > neutral, "what the owner set was undone");
        assert!(!bench.pushed.contains(&b"not heard".to_vec()));
    });
    second.say("num on");
    device.wait("the new owner's word", |bench| bench.pushed.last().is_some_and(|last| last == b"num on"));
    two.stop().unwrap();
    sharer.stop();
}

#[test]
fn a_host_that_takes_nothing_keeps_no_other_waiting() {
    let device = Handle::new();
    let sharer = share(&device, FlowClass::State, any(), copy());
    let (quick, slow) = (Handle::new(), Handle::new());
    let attached = [&quick, &slow].map(|node| attach(sharer.address, node, None));
    for node in [&quick, &slow] {
        node.wait("the snapshot", |bench| !bench.pushed.is_empty());
    }
    slow.with(|bench| bench.full = true);
    // More than lies between the device and a host.
    const ROUNDS: usize = 60;
    const EACH: usize = 32;
    for round in 0..ROUNDS {
        (0..EACH).for_each(|_| device.say(vec![b'e'; 32 << 10]));
        quick.wait("this round", |bench| bench.pushed.len() == 1 + (round + 1) * EACH);
    }
    device.with(|bench| bench.held = b"all that".to_vec());
    slow.with(|bench| bench.full = false);
    slow.wait("where things stand", |bench| bench.pushed.last().is_some_and(|last| last == b"held:all that"));
    slow.with(|bench| assert!(bench.pushed.len() < ROUNDS * EACH, "{} came", bench.pushed.len()));
    device.say("after");
    slow.wait("what comes then", |bench| bench.pushed.last().is_some_and(|last| last == b"after"));
    for one in attached {
        one.stop().unwrap();
    }
    sharer.stop();
}

#[test]
fn a_silent_host_of_a_reliable_flow_is_let_go_once_the_others_wait_for_it() {
    let device = Handle::new();
    let policy = HubPolicy::Copy(HubOptions { queue: 4, ..HubOptions::default() });
    let sharer = share(&device, FlowClass::Reliable, any(), policy);
    let relay = Relay::start(any(), sharer.address, "delay=1ms".parse().unwrap(), 5).unwrap();
    let (quick, dead) = (Handle::new(), Handle::new());
    let one = attach(sharer.address, &quick, None);
    let two = attach(relay.address(), &dead, None);
    device.say("first");
    dead.wait("the first message", |bench| !bench.pushed.is_empty());
    relay.cut();
    // More than a session keeps for a host that does not answer.
    let body = vec![7; 1 << 20];
    for _ in 0..40 {
        device.say(body.clone());
    }
    quick.wait("everything", |bench| bench.pushed.len() == 41);
    one.stop().unwrap();
    two.stop().unwrap();
    sharer.stop();
}

#[test]
fn an_unplugged_device_comes_back_to_all_its_hosts() {
    let device = Handle::new();
    let sharer = share(&device, FlowClass::State, any(), copy());
    let nodes = [Handle::new(), Handle::new(), Handle::new()];
    let attached = nodes.each_ref().map(|node| attach(sharer.address, node, None));
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
    sharer.stop();
}
