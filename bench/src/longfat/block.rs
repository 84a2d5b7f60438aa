//! The disk of an unmodified NBD server (nbdkit) over long networks: the sessions that `nbd://` finds, beside fixed numbers of
//! sessions, and beside one client of libnbd with as many connections (Improving TCP Throughput for Cloud Applications (2014), 2.6).
//!
//! The application reads the disk from the front, 10 MB at a time, and a part of it ahead, as a kernel does.

use super::{Network, with_hosts};
use crate::processes::{cpu_seconds, with_descendants};
use crate::reliability::hosts::{ADDRESS_A, Host, Hosts, Service};
use crate::setting::Failure;
use clap::Args;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use wire::formats::block::Command as DiskCommand;
use wire::nbd::{Asked, ClientNegotiation, ClientStep, REPLY_BYTES, Reply, Request};

/// The port of NBD servers.
const PORT: u16 = 10809;
/// The read of the thesis.
const READ_BYTES: u64 = 10_000_000;
/// The longest request of the NBD clients that a kernel makes of such a read.
const REQUEST_BYTES: u32 = 1 << 20;
/// The size of the disk. Nothing stores it.
const DISK_BYTES: u64 = 500_000_000_000;
/// Searching takes at most this share of a run; the rest is measured.
const SEARCH_SHARE: f64 = 0.75;
const LOOK: Duration = Duration::from_millis(20);
const PATIENCE: Duration = Duration::from_secs(20);

/// The settings of `block`.
#[derive(Args, Debug, Clone)]
pub(crate) struct BlockSetting {
    /// Seconds of each run with a fixed number; the second half counts
    #[arg(long, default_value_t = 30.0)]
    seconds: f64,
    /// Seconds of a run that finds the number; the last quarter counts
    #[arg(long, default_value_t = 180.0)]
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
    #[arg(long = "loss", value_delimiter = ',', default_values_t = [0.0, 0.01])]
    losses_percent: Vec<f64>,
    /// Packets in the queue in front of the link
    #[arg(long, default_value_t = 5000)]
    queue: u32,
    /// Fixed numbers of sessions
    #[arg(long = "sessions", value_delimiter = ',', default_values_t = [1, 2, 8, 32, 128])]
    sessions: Vec<u32>,
    /// Megabytes that the application reads ahead
    #[arg(long, default_value_t = 64)]
    read_ahead_mb: u64,
    /// Seed of the losses
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// A process that ends with this value.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts nbdkit on the device host.
fn server(hosts: &Hosts, size_bytes: u64) -> Result<Running, Failure> {
    let mut nbdkit = hosts.lab.program(Host::Device.letter(), "nbdkit");
    nbdkit.args(["--foreground", "--threads", "16", "pattern", &format!("size={size_bytes}")]);
    let child =
        nbdkit.stdin(Stdio::null()).spawn().map_err(|error| format!("nbdkit: {error}; install it"))?;
    let server = Running(child);
    let begun = Instant::now();
    let address = (ADDRESS_A, PORT);
    while hosts.lab.on(Host::Application.letter(), || Ok(std::net::TcpStream::connect(address)?)).is_err() {
        if begun.elapsed() > PATIENCE {
            return Err("nbdkit does not listen".into());
        }
        thread::sleep(LOOK);
    }
    Ok(server)
}

/// Sets the congestion control of new connections on the device host, which sends.
fn set_congestion(hosts: &Hosts, name: &str) -> Result<(), Failure> {
    let name = name.to_string();
    let file = "/proc/sys/net/ipv4/tcp_congestion_control";
    hosts.lab.on(Host::Device.letter(), move || {
        std::fs::write(file, &name).map_err(|error| format!("congestion control {name}: {error}").into())
    })
}

/// A program that reads the disk of an NBD server at a local socket.
fn read_disk(path: &Path, read_ahead: u64, received_bytes: &AtomicU64) -> Result<(), Failure> {
    let mut stream = UnixStream::connect(path)?;
    let mut negotiation = ClientNegotiation::new("");
    let mut input = Vec::new();
    let size = loop {
        input.resize(negotiation.needs(), 0);
        stream.read_exact(&mut input)?;
        match negotiation.take(&input)? {
            ClientStep::Send(output) => stream.write_all(&output)?,
            ClientStep::Done { geometry, .. } => break geometry.size_bytes,
        }
    };
    let mut lengths = BTreeMap::new();
    let (mut asked, mut received, mut cookie) = (0, 0, 0);
    let mut data = vec![0; REQUEST_BYTES as usize];
    loop {
        while asked - received < READ_BYTES + read_ahead {
            let place = asked % READ_BYTES;
            let length = (READ_BYTES - place).min(REQUEST_BYTES.into()) as u32;
            let request = Request {
                asked: Asked::Do(DiskCommand::Read),
                force: false,
                keep_space: false,
                has_unknown_flags: false,
                cookie,
                offset: asked % (size - READ_BYTES),
                length,
            };
            stream.write_all(&request.to_bytes())?;
            lengths.insert(cookie, length);
            cookie += 1;
            asked += u64::from(length);
        }
        let mut header = [0; REPLY_BYTES];
        stream.read_exact(&mut header)?;
        let reply = Reply::parse(&header)?;
        let length = lengths.remove(&reply.cookie).ok_or("a reply to no request")?;
        reply.result.map_err(|failure| format!("a read failed: {failure:?}"))?;
        stream.read_exact(&mut data[..length as usize])?;
        received += u64::from(length);
        received_bytes.fetch_add(length.into(), Ordering::Relaxed);
    }
}

/// A running program that reads the disk through Outboard.
struct Reading {
    connect: Service,
    server: Running,
    received_bytes: Arc<AtomicU64>,
}

/// Figures of one interval.
struct Figures {
    mbit: f64,
    /// Open connections to the server at its end.
    sessions: usize,
    /// Processor time of the client's host and of the server, nanoseconds a bit.
    client_ns: f64,
    server_ns: f64,
}

impl Figures {
    fn json(&self) -> Value {
        json!({ "mbit": self.mbit, "sessions": self.sessions, "client_cpu_ns_per_bit": self.client_ns,
                "server_cpu_ns_per_bit": self.server_ns })
    }
}

impl Reading {
    fn start(hosts: &Hosts, setting: &BlockSetting, sessions: &str) -> Result<Reading, Failure> {
        let server = server(hosts, DISK_BYTES)?;
        let socket = hosts.file("disk");
        let _ = std::fs::remove_file(&socket);
        let mut connect = hosts.command(Host::Application)?;
        connect.args(["connect", &format!("nbd://{ADDRESS_A}:{PORT}/,sessions={sessions}")]);
        connect.arg(format!("nbd:{}", socket.display()));
        let mut connect = Service::start(connect)?;
        let begun = Instant::now();
        while !socket.exists() {
            if let Some(status) = connect.child.try_wait()? {
                return Err(format!("outboard exited ({status})").into());
            }
            if begun.elapsed() > PATIENCE {
                return Err("outboard makes no socket".into());
            }
            thread::sleep(LOOK);
        }
        let received_bytes = Arc::new(AtomicU64::new(0));
        let (counted, read_ahead) = (received_bytes.clone(), setting.read_ahead_mb * 1_000_000);
        // It ends with the server of its socket.
        thread::spawn(move || drop(read_disk(&socket, read_ahead, &counted)));
        Ok(Reading { connect, server, received_bytes })
    }

    fn figures(&self, lasts: Duration) -> Figures {
        let cpu = |process| cpu_seconds(&with_descendants(process));
        let [client, server] = [self.connect.child.id(), self.server.0.id()];
        let begun = (Instant::now(), self.received_bytes.load(Ordering::Relaxed), cpu(client), cpu(server));
        thread::sleep(lasts);
        let bits = (self.received_bytes.load(Ordering::Relaxed) - begun.1) as f64 * 8.0;
        let per_bit = |seconds: f64| seconds * 1e9 / bits.max(1.0);
        Figures {
            mbit: bits / 1e6 / begun.0.elapsed().as_secs_f64(),
            sessions: connections(client),
            client_ns: per_bit(cpu(client) - begun.2),
            server_ns: per_bit(cpu(server) - begun.3),
        }
    }
}

/// Counts the open connections to the server on the host of a process (`proc_pid_net(5)`).
fn connections(process: u32) -> usize {
    let table = std::fs::read_to_string(format!("/proc/{process}/net/tcp")).unwrap_or_default();
    let is_session = |line: &&str| {
        let mut fields = line.split_whitespace().skip(2);
        let remote = fields.next().is_some_and(|remote| remote.ends_with(&format!(":{PORT:04X}")));
        remote && fields.next() == Some("01")
    };
    table.lines().filter(is_session).count()
}

/// Returns the goodput of nbdcopy with this number of connections, from its start to its end.
fn nbdcopy_mbit(hosts: &Hosts, network: Network, connections: u32, seconds: f64) -> Result<f64, Failure> {
    // As much as a full link carries in this time.
    let bytes = (f64::from(network.rate_mbit) * 1e6 / 8.0 * seconds) as u64 / 4096 * 4096;
    let _server = server(hosts, bytes)?;
    let mut copy = hosts.lab.program(Host::Application.letter(), "nbdcopy");
    copy.args([&format!("--connections={connections}"), "--requests=64"]);
    copy.args([&format!("nbd://{ADDRESS_A}:{PORT}/"), "null:"]);
    let begun = Instant::now();
    // A path that it does not fill must not hold up everything.
    let most = Duration::from_secs_f64(seconds * 20.0);
    let mut copy = Running(copy.spawn().map_err(|error| format!("nbdcopy: {error}; install libnbd-bin"))?);
    loop {
        match copy.0.try_wait()? {
            Some(status) if status.success() => break,
            Some(status) => return Err(format!("nbdcopy exited ({status})").into()),
            None if begun.elapsed() > most => return Ok(0.0),
            None => thread::sleep(LOOK),
        }
    }
    Ok(bytes as f64 * 8.0 / 1e6 / begun.elapsed().as_secs_f64())
}

fn measure(hosts: &Hosts, setting: &BlockSetting, network: Network) -> Result<Value, Failure> {
    network.set(hosts)?;
    let half = Duration::from_secs_f64(setting.seconds / 2.0);
    println!("{network}");
    let (mut fixed, mut best) = (Vec::new(), (0, 0.0));
    for &sessions in &setting.sessions {
        let reading = Reading::start(hosts, setting, &sessions.to_string())?;
        thread::sleep(half);
        let figures = reading.figures(half);
        drop(reading);
        let copy = nbdcopy_mbit(hosts, network, sessions, setting.seconds)?;
        println!(
            "  {sessions:>4} sessions, fixed: {:>7.1} Mbit/s, {:.2} and {:.2} ns/bit; nbdcopy: {copy:>7.1} Mbit/s",
            figures.mbit, figures.client_ns, figures.server_ns,
        );
        best = if figures.mbit > best.1 { (sessions, figures.mbit) } else { best };
        fixed.push(json!({ "sessions": sessions, "ours": figures.json(), "nbdcopy_mbit": copy }));
    }
    set_congestion(hosts, "bbr")?;
    let bbr = Reading::start(hosts, setting, "1").map(|reading| {
        thread::sleep(half);
        reading.figures(half)
    });
    set_congestion(hosts, "cubic")?;
    let bbr = bbr?;
    println!("     1 session with bbr: {:>7.1} Mbit/s", bbr.mbit);
    let reading = Reading::start(hosts, setting, "auto")?;
    thread::sleep(Duration::from_secs_f64(setting.search_seconds * SEARCH_SHARE));
    let found = reading.figures(Duration::from_secs_f64(setting.search_seconds * (1.0 - SEARCH_SHARE)));
    println!(
        "  {:>4} sessions, found: {:>7.1} Mbit/s, {:.3} of the best fixed number ({}), {:.2} and {:.2} ns/bit",
        found.sessions,
        found.mbit,
        found.mbit / best.1.max(f64::MIN_POSITIVE),
        best.0,
        found.client_ns,
        found.server_ns,
    );
    Ok(json!({ "rate_mbit": network.rate_mbit, "round_trip_ms": network.round_trip_ms,
               "loss_percent": network.loss_percent, "queue_packets": network.queue, "fixed": fixed,
               "best_fixed_sessions": best.0, "best_fixed_mbit": best.1, "bbr": bbr.json(), "found": found.json() }))
}

/// Runs `block`.
pub(crate) fn run(setting: &BlockSetting) -> Result<Value, Failure> {
    let by_rate = setting.rates_mbit.iter().map(|rate| (*rate, setting.round_trip_ms));
    let by_round_trip = setting.round_trips_ms.iter().map(|ms| (setting.long_rate_mbit, *ms));
    let paths: Vec<(u32, u32)> = by_rate.chain(by_round_trip).collect();
    let rows = with_hosts("block", setting.seed, |hosts| {
        let mut rows = Vec::new();
        for &(rate_mbit, round_trip_ms) in &paths {
            for &loss_percent in &setting.losses_percent {
                let network = Network { rate_mbit, round_trip_ms, loss_percent, queue: setting.queue };
                rows.push(measure(hosts, setting, network)?);
            }
        }
        Ok(rows)
    })?;
    Ok(json!({ "experiment": "block", "seconds": setting.seconds, "search_seconds": setting.search_seconds,
               "read_ahead_mb": setting.read_ahead_mb, "seed": setting.seed, "rows": rows }))
}
