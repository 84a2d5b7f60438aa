//! A full replay store: the policy that the user chose applies, and it is reported.

mod support;

use netsim::Params;
use netsim::relay::Relay;
use std::net::SocketAddr;
use support::{Scratch, Service};

const MESSAGES: u64 = 4500;
const BYTES: u64 = 64;

/// Shares a pattern behind a relay that can cut the link.
fn share(store_bytes: &str, store_full: &str) -> (Service, Relay) {
    let device = format!("pattern:count={MESSAGES},rate=250,size={BYTES}");
    let (share, address) =
        Service::share(&device, &["--stats", "--limit", store_bytes, "--limit", store_full]);
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let relay = Relay::start(any, address.parse().unwrap(), Params::default(), 1).unwrap();
    (share, relay)
}

#[test]
fn drop_oldest_discards_and_counts_the_oldest_messages() {
    let scratch = Scratch::new();
    let output = scratch.path("out");
    let (mut share, relay) = share("store_bytes=9600", "store_full=drop-oldest");
    let from = format!("{}/pattern", relay.address());
    let mut attach = Service::start(&["attach", &from, "--as", &format!("file:{output}"), "--stats"]);
    attach.wait("stats");
    relay.cut();
    assert_eq!(share.wait("store-full")["policy"], "drop-oldest");
    attach.wait("link-lost");
    // Statistics arrive every second.
    let store =
        (0..3).map(|_| share.wait("stats")["stats"]["outgoing"]["store"].take()).last().expect("three");
    assert_eq!((&store["full"], &store["messages"]), (&true.into(), &150.into()), "{store}");
    relay.restore();
    attach.wait("link-back");
    attach.wait("flow-ended");
    assert_eq!(attach.child.wait().unwrap().code(), Some(0));
    let lost = attach.seen.iter().rev().find_map(|e| e["stats"]["incoming"]["lost"].as_u64()).unwrap();
    let delivered = std::fs::metadata(&output).unwrap().len() / BYTES;
    assert_eq!(delivered + lost, MESSAGES);
}

#[test]
fn close_ends_the_flow() {
    let (mut share, relay) = share("store_bytes=3200", "store_full=close");
    let from = format!("{}/pattern", relay.address());
    let mut attach = Service::start(&["attach", &from, "--as", "null", "--stats"]);
    attach.wait("stats");
    relay.cut();
    assert_eq!(share.wait("store-full")["policy"], "close");
    let detached = share.wait("detached");
    assert!(detached["reason"].as_str().unwrap().contains("the replay store is full"), "{detached}");
}

#[test]
fn drop_oldest_refuses_pairs_that_need_every_message() {
    let via = "exec(source=cat, sink=cat, stateful=true)";
    let more = ["--via", via, "--limit", "store_full=drop-oldest"];
    let (mut share, address) = Service::share("pattern:count=10", &more);
    let from = format!("{address}/pattern");
    let _attach = Service::start(&["attach", &from, "--as", "null", "--via", via]);
    let reason = share.wait("detached")["reason"].to_string();
    assert!(reason.contains("needs every message") && reason.contains("store_full"), "{reason}");
}
