//! The cost of sealing: two hosts as in `flood` and `latency`, with bare and sealed records in turns.

use crate::flood::{self, Load, datagram_pair};
use crate::latency::{self, connection};
use crate::measure::{median, used};
use crate::ours::Link;
use crate::setting::{Failure, Setting};
use serde_json::{Value, json};
use std::os::fd::OwnedFd;

/// Messages of a turn and bytes of each, for throughput.
const LOADS: [(usize, usize); 2] = [(200_000, 1000), (1000, 1_000_000)];
/// Round trips of a turn and bytes of each message.
const PINGS: [(usize, usize); 3] = [(3000, 24), (3000, 1000), (200, 1_000_000)];
/// Most bytes in flight over UDP.
const WINDOW_BYTES: u64 = 3_000_000;
/// `quic` is always encrypted: without the session's keys it uses public ones.
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

/// Measures time and processor time of a message in nanoseconds at full throughput.
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

/// Measures time and processor time of a message in nanoseconds, one message at a time; half a round trip.
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

/// Runs `seal-cost`.
pub(crate) fn run(setting: &Setting) -> Result<Value, Failure> {
    println!(
        "Loopback ({}), {} rounds; nanoseconds per message; CPU of both hosts",
        setting.congestion, setting.rounds
    );
    println!(
        "{:<5} {:<22} {:>9} {:>11} {:>11} {:>7} {:>11} {:>11}",
        "", "", "bytes", "bare ns", "sealed ns", "ratio", "bare CPU", "sealed CPU"
    );
    let mut rows = Vec::new();
    type Turn = fn(&Setting, &str, (usize, usize), bool) -> Result<[f64; 2], Failure>;
    for name in TRANSPORTS {
        let pings = PINGS.iter().map(|load| ("one-way delay (p50)", *load, ping as Turn));
        let streams = LOADS.iter().map(|load| ("full throughput", *load, stream as Turn));
        for (load_name, load, turn) in pings.chain(streams) {
            let mut turns: [Vec<[f64; 2]>; 2] = Default::default();
            for round in 0..setting.rounds {
                // Both kinds start in turn.
                for kind in [round % 2, 1 - round % 2] {
                    turns[kind].push(turn(setting, name, load, kind == 1)?);
                }
            }
            let figure = |kind: usize, column: usize| {
                median(&turns[kind].iter().map(|turn| turn[column]).collect::<Vec<_>>())
            };
            let ratios: Vec<_> =
                turns[1].iter().zip(&turns[0]).map(|(sealed, bare)| sealed[0] / bare[0]).collect();
            let (ratio, size) = (median(&ratios), load.1);
            let [bare, sealed] = [0, 1].map(|kind| [figure(kind, 0), figure(kind, 1)]);
            println!(
                "{name:<5} {load_name:<22} {size:>9} {:>11.0} {:>11.0} {ratio:>7.3} {:>11.0} {:>11.0}",
                bare[0], sealed[0], bare[1], sealed[1]
            );
            rows.push(json!({ "transport": name, "load": load_name, "bytes": size, "ratio": ratio,
                              "bare": { "time_ns": bare[0], "cpu_ns": bare[1] },
                              "sealed": { "time_ns": sealed[0], "cpu_ns": sealed[1] } }));
        }
    }
    Ok(
        json!({ "experiment": "seal-cost", "congestion": setting.congestion, "rounds": setting.rounds, "rows": rows }),
    )
}
