//! The disk of an unmodified server over long networks: the sessions that Outboard finds, beside fixed numbers of sessions, one client
//! of libnbd with as many connections, and one connection with bbr and large buffers ("Improving TCP Throughput for Cloud Applications"
//! (2014), 2.6).
//!
//! The application reads the disk from the front, 10 MB at a time, and a part of it ahead, as a kernel does. fio reads and writes it.
//! A second protocol is a row in `protocol.rs`.
//!
//! | study | figures of the thesis | file |
//! |---|---|---|
//! | goodput by rate, round trip and number of sessions; the number over time | 2.8 to 2.11 | `reading.rs` |
//! | processor time of both ends, also for each bit | 2.12 to 2.15 | `reading.rs` |
//! | a copy by a program of its own | none | `copy.rs` |
//! | requests on one host | none | `requests.rs` |

mod copy;
mod fio;
mod protocol;
mod reading;
mod report;
mod requests;

use super::{Network, with_hosts};
use crate::programs::{Running, progress};
use crate::reliability::hosts::{ADDRESS_A, Host, Hosts};
use crate::setting::Failure;
use clap::Args;
use copy::Copied;
use fio::{Done, Load};
use protocol::{Disk, Protocol, Values, local};
use reading::{DISK_BYTES, Figures, Reading, connect, serve};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

/// Searching takes at most this share of a run; the rest is measured.
const SEARCH_SHARE: f64 = 0.75;
/// Points of the evolution in a search.
const INTERVALS: u32 = 30;
const LOOK: Duration = Duration::from_millis(20);
const PATIENCE: Duration = Duration::from_secs(20);
/// The largest buffer of a socket beside bbr: it bounds no network here.
const MODERN_SOCKET_BYTES: u32 = 64 << 20;
/// As many writes as reads, each as long as the longest request of table 2.1.
const MIXED: Load = Load { rw: "randrw", block_bytes: 1 << 20, depth: 16 };

/// The settings of `block`. The defaults are those of table 2.1.
#[derive(Args, Debug, Clone)]
pub(crate) struct BlockSetting {
    /// Protocol of the disk servers
    #[arg(long, default_value = "nbd")]
    protocol: String,
    /// Seconds of each run with a fixed number; the second half counts
    #[arg(long, default_value_t = 30.0)]
    seconds: f64,
    /// Seconds of a run that finds the number; the last quarter counts
    #[arg(long, default_value_t = 120.0)]
    search_seconds: f64,
    /// Rates of the link at the first round trip, Mbit/s
    #[arg(long = "rate", value_delimiter = ',', default_values_t = [200, 400, 600, 800, 1000])]
    rates_mbit: Vec<u32>,
    /// The round trip for all rates, milliseconds
    #[arg(long, default_value_t = 10)]
    round_trip_ms: u32,
    /// Further round trips, milliseconds, at the long rate
    #[arg(long = "round-trip", value_delimiter = ',', default_values_t = [20, 40, 60, 80, 100])]
    round_trips_ms: Vec<u32>,
    /// The rate for the further round trips, Mbit/s
    #[arg(long, default_value_t = 900)]
    long_rate_mbit: u32,
    /// Losses in each direction, per cent
    #[arg(long = "loss", value_delimiter = ',', default_values_t = [0.0])]
    losses_percent: Vec<f64>,
    /// Packets in the queue in front of the link
    #[arg(long, default_value_t = 5000)]
    queue: u32,
    /// Fixed numbers of sessions
    #[arg(long = "sessions", value_delimiter = ',', default_values_t = [1, 2, 8, 32, 128])]
    sessions: Vec<u32>,
    /// Megabytes that the application reads ahead
    #[arg(long, default_value_t = 128)]
    read_ahead_mb: u64,
    /// Congestion control of both hosts, but for the session with bbr
    #[arg(long, default_value = "reno")]
    congestion: String,
    /// The largest buffer of a TCP socket, bytes, but for the session with bbr
    #[arg(long, default_value_t = 512 << 10)]
    socket_bytes: u32,
    /// Seed of the losses
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Draw the pictures into this directory (SVG)
    #[arg(long)]
    svg: Option<PathBuf>,
}

/// All figures on one network.
struct Row {
    network: Network,
    /// For each fixed number: Outboard, and the program that copies.
    fixed: Vec<(u32, Figures, Option<Copied>)>,
    /// One session with bbr and [`MODERN_SOCKET_BYTES`].
    modern: Figures,
    found: Figures,
    /// Seconds, Mbit/s and sessions during the search.
    evolution: Vec<[f64; 3]>,
    /// Reads and writes with the number that is found, and by fio alone.
    mixed: Done,
    mixed_direct: Option<Done>,
}

impl Row {
    /// Returns the best fixed number and its goodput.
    fn best(&self) -> (u32, f64) {
        let all = self.fixed.iter().map(|(sessions, figures, _)| (*sessions, figures.mbit));
        all.fold((0, 0.0), |best, row| if row.1 > best.1 { row } else { best })
    }

    fn json(&self) -> Value {
        let Network { rate_mbit, round_trip_ms, loss_percent, queue, .. } = self.network;
        let fixed = |(sessions, figures, copy): &(u32, Figures, Option<Copied>)| json!({ "sessions": sessions, "ours": figures.json(), "copy": copy.map(Copied::json) });
        let fixed: Vec<Value> = self.fixed.iter().map(fixed).collect();
        let (best_sessions, best_mbit) = self.best();
        json!({ "rate_mbit": rate_mbit, "round_trip_ms": round_trip_ms, "loss_percent": loss_percent,
                "queue_packets": queue, "fixed": fixed, "best_fixed_sessions": best_sessions,
                "best_fixed_mbit": best_mbit, "modern": self.modern.json(), "found": self.found.json(),
                "evolution": self.evolution, "mixed_mbit": self.mixed.mbit,
                "mixed_direct_mbit": self.mixed_direct.map(|done| done.mbit) })
    }
}

/// Writes a setting of TCP for the new connections of a host.
fn set_tcp(hosts: &Hosts, host: Host, name: &str, value: &str) -> Result<(), Failure> {
    let (file, value) = (format!("/proc/sys/net/ipv4/{name}"), value.to_string());
    hosts.lab.on(host.letter(), move || {
        std::fs::write(&file, &value).map_err(|error| format!("{file}: {value}: {error}").into())
    })
}

/// Sets TCP on both hosts: the congestion control, and the largest buffer of a socket.
fn set_hosts(hosts: &Hosts, congestion: &str, most: u32) -> Result<(), Failure> {
    // Least, first and largest (`tcp(7)`); the first ones are the kernel's.
    for host in Host::BOTH {
        set_tcp(hosts, host, "tcp_congestion_control", congestion)?;
        set_tcp(hosts, host, "tcp_rmem", &format!("4096 {} {most}", most.min(131_072)))?;
        set_tcp(hosts, host, "tcp_wmem", &format!("4096 {} {most}", most.min(16_384)))?;
    }
    Ok(())
}

/// Reads and writes with fio over the link: through Outboard, and alone.
fn mixed(
    hosts: &Hosts,
    protocol: &Protocol,
    setting: &BlockSetting,
) -> Result<(Done, Option<Done>), Failure> {
    let values = Values { host: ADDRESS_A, disk: Disk::Null, size_bytes: DISK_BYTES, sessions: "auto" };
    let _server = serve(hosts, protocol, Host::Device, values)?;
    let search = setting.search_seconds;
    let times = [SEARCH_SHARE, 1.0 - SEARCH_SHARE].map(|share| Duration::from_secs_f64(search * share));
    let ours = {
        let (_connect, socket) = connect(hosts, protocol, values)?;
        fio::run(hosts, &local(&socket), MIXED, times)?
    };
    let half = Duration::from_secs_f64(setting.seconds / 2.0);
    let alone = |address| fio::run(hosts, &protocol.fill(address, values), MIXED, [half; 2]);
    Ok((ours, protocol.fio.map(alone).transpose()?))
}

fn measure(
    hosts: &Hosts,
    protocol: &Protocol,
    setting: &BlockSetting,
    network: Network,
) -> Result<Row, Failure> {
    network.set(hosts)?;
    set_hosts(hosts, &setting.congestion, setting.socket_bytes)?;
    progress(&format!("block: {network}"));
    let half = Duration::from_secs_f64(setting.seconds / 2.0);
    let start = |sessions: &str| Reading::start(hosts, protocol, setting.read_ahead_mb * 1_000_000, sessions);
    let second_half = |reading: Reading| {
        thread::sleep(half);
        reading.figures(half)
    };
    let mut fixed = Vec::new();
    for &sessions in &setting.sessions {
        let figures = start(&sessions.to_string()).map(second_half)?;
        let copy = copy::measure(hosts, protocol, sessions)?;
        fixed.push((sessions, figures, copy));
    }
    set_hosts(hosts, "bbr", MODERN_SOCKET_BYTES)?;
    let modern = start("1").map(second_half)?;
    set_hosts(hosts, &setting.congestion, setting.socket_bytes)?;
    let reading = start("auto")?;
    let search = setting.search_seconds;
    let evolution = reading.evolution(Duration::from_secs_f64(search * SEARCH_SHARE), INTERVALS);
    let found = reading.figures(Duration::from_secs_f64(search * (1.0 - SEARCH_SHARE)));
    drop(reading);
    let (mixed, mixed_direct) = mixed(hosts, protocol, setting)?;
    Ok(Row { network, fixed, modern, found, evolution, mixed, mixed_direct })
}

/// Runs `block`.
pub(crate) fn run(setting: &BlockSetting) -> Result<Value, Failure> {
    let protocol = Protocol::named(&setting.protocol)?;
    let by_rate = setting.rates_mbit.iter().map(|rate| (*rate, setting.round_trip_ms));
    let by_round_trip = setting.round_trips_ms.iter().map(|ms| (setting.long_rate_mbit, *ms));
    let paths: Vec<(u32, u32)> = by_rate.chain(by_round_trip).collect();
    let (rows, (requests, requests_json)) = with_hosts("block", setting.seed, |hosts| {
        let mut rows = Vec::new();
        for &loss_percent in &setting.losses_percent {
            for &(rate_mbit, round_trip_ms) in &paths {
                let network =
                    Network { rate_mbit, round_trip_ms, loss_percent, queue: setting.queue, jitter_ms: 0 };
                rows.push(measure(hosts, protocol, setting, network)?);
            }
        }
        let Some(fio) = protocol.fio else { return Ok((rows, (String::new(), Value::Null))) };
        progress("block: requests on one host");
        Ok((rows, requests::study(hosts, setting, protocol, fio)?))
    })?;
    print!("{}", report::text(setting, protocol, &rows, &requests));
    if let Some(directory) = &setting.svg {
        report::draw(setting, &rows, directory)?;
    }
    let rows: Vec<Value> = rows.iter().map(Row::json).collect();
    Ok(json!({ "experiment": "block", "protocol": setting.protocol, "seconds": setting.seconds,
               "search_seconds": setting.search_seconds, "read_ahead_mb": setting.read_ahead_mb,
               "congestion": setting.congestion, "socket_bytes": setting.socket_bytes, "seed": setting.seed,
               "rows": rows, "requests": requests_json }))
}
