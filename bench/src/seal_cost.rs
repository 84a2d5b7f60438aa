//! What sealing costs the messages that pass: two hosts as in `flood` and `latency`, bare and sealed in turns.

use crate::flood::{self, Load, datagram_pair};
use crate::latency::{self, connection};
use crate::measure::{median, used};
use crate::ours::Link;
use crate::{Failure, Setting};
use serde_json::{Value, json};
use std::os::fd::OwnedFd;

/// Messages a turn and bytes of each, as fast as they go.
const LOADS: [(usize, usize); 2] = [(200_000, 1000), (1000, 1_000_000)];
/// Messages there and back a turn, and bytes of each.
const PINGS: [(usize, usize); 3] = [(3000, 24), (3000, 1000), (200, 1_000_000)];
/// What may be on its way over UDP.
const WINDOW_BYTES: u64 = 3_000_000;
/// `quic` is never bare: without keys of the session it has keys that anybody has.
const TRANSPORTS: [&str; 3] = ["tcp", "udp", "quic"];

fn joined(setting: &Setting, name: &str, both_ways: bool) -> Result<(Link, [OwnedFd; 2]), Failure> {
    Ok(match name {
        "udp" => {
            let (near, far) = datagram_pair()?;
            (flood::udp(both_ways)?, [near.into(), far.into()])
        }
        "quic" => {
            let (near, far) = datagram_pair()?;
            (flood::quic(both_ways)?, [near.into(), far.into()])
        }
        _ => {
            let (near, far) = connection(setting)?;
            (latency::tcp(setting, both_ways)?, [near.into(), far.into()])
        }
    })
}

/// Time and processor time of a message, nanoseconds: as fast as they go.
fn stream(
    setting: &Setting,
    name: &str,
    (messages, size): (usize, usize),
    sealed: bool,
) -> Result<[f64; 2], Failure> {
    let (mut link, sockets) = joined(setting, name, false)?;
    link.sealed = sealed;
    let window_bytes = if name == "udp" { WINDOW_BYTES } else { u64::MAX };
    let turn =
        flood::our_turn(setting, &link, sockets, Load { messages, message_bytes: size, window_bytes })?;
    Ok([turn.nanoseconds, turn.used.cpu_ns].map(|figure| figure as f64 / messages as f64))
}

/// The same of one message at a time, one way.
fn ping(
    setting: &Setting,
    name: &str,
    (count, size): (usize, usize),
    sealed: bool,
) -> Result<[f64; 2], Failure> {
    let (mut link, sockets) = joined(setting, name, true)?;
    link.sealed = sealed;
    let (times, used) = used(|| latency::our_turn_over(setting, &link, sockets, size, count))?;
    Ok([times.percentile_us(0.5) * 1e3, used.cpu_ns as f64 / (2 * count) as f64])
}

/// Measures and prints; gives the figures.
pub(crate) fn run(setting: &Setting) -> Result<Value, Failure> {
    println!("Over loopback ({}), {} rounds; CPU of both hosts", setting.congestion, setting.rounds);
    println!(
        "{:<5} {:<22} {:>9} {:>11} {:>11} {:>7} {:>11} {:>11}",
        "", "", "bytes", "bare ns", "sealed ns", "ratio", "bare CPU", "sealed CPU"
    );
    let mut rows = Vec::new();
    type Turn = fn(&Setting, &str, (usize, usize), bool) -> Result<[f64; 2], Failure>;
    let is_wanted = |name: &&str| setting.transport.as_ref().is_none_or(|only| only == name);
    for name in TRANSPORTS.into_iter().filter(is_wanted) {
        let pings = PINGS.iter().map(|load| ("one way (p50)", *load, ping as Turn));
        let streams = LOADS.iter().map(|load| ("as fast as they go", *load, stream as Turn));
        for (what, load, turn) in pings.chain(streams) {
            if setting.size.is_some_and(|only| only != load.1) {
                continue;
            }
            let mut ways: [Vec<[f64; 2]>; 2] = Default::default();
            for round in 0..setting.rounds {
                // Each way begins in turn.
                for way in [round % 2, 1 - round % 2] {
                    ways[way].push(turn(setting, name, load, way == 1)?);
                }
            }
            let figure = |way: usize, which: usize| {
                median(&ways[way].iter().map(|turn| turn[which]).collect::<Vec<_>>())
            };
            let ratios: Vec<_> =
                ways[1].iter().zip(&ways[0]).map(|(sealed, bare)| sealed[0] / bare[0]).collect();
            let (ratio, size) = (median(&ratios), load.1);
            let [bare, sealed] = [0, 1].map(|way| [figure(way, 0), figure(way, 1)]);
            println!(
                "{name:<5} {what:<22} {size:>9} {:>11.0} {:>11.0} {ratio:>7.3} {:>11.0} {:>11.0}",
                bare[0], sealed[0], bare[1], sealed[1]
            );
            rows.push(json!({ "transport": name, "what": what, "bytes": size, "ratio": ratio,
                              "bare": { "time_ns": bare[0], "cpu_ns": bare[1] },
                              "sealed": { "time_ns": sealed[0], "cpu_ns": sealed[1] } }));
        }
    }
    Ok(
        json!({ "experiment": "seal-cost", "congestion": setting.congestion, "rounds": setting.rounds, "rows": rows }),
    )
}
