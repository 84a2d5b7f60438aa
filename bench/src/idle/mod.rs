//! The cost of devices that nobody touches: wake-ups, bytes and processor time of both hosts, and the delay of the first
//! event afterwards.
//!
//! A wake-up is a voluntary context switch of a thread of `outboard`: of both brokers, their workers, and all other
//! processes of theirs. Bytes are those of IP packets on the link between the hosts, in both directions together.

mod devices;

use crate::display::cpu_ns;
use crate::programs::{beside, progress};
use crate::provenance::Provenance;
use crate::reliability::hosts::{Host, Hosts, Use};
use crate::setting::Failure;
use clap::Args;
use devices::{Device, Kind};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The promise of a session at rest, over both hosts.
const WAKE_UPS_MAX: f64 = 5.0;
const BYTES_MAX: f64 = 200.0;
/// Time for the devices to settle after their start: the intervals of the pings grow to their longest.
const SETTLING: Duration = Duration::from_secs(30);
/// Attempts of the first event.
const TRIES_MAX: u32 = 5;
/// Events before the rest, and the pause between them.
const EVENTS: usize = 40;
const PAUSE: Duration = Duration::from_millis(50);
/// The first event is late if it takes longer than the 90th percentile of the events before the rest by more than this share.
const LATE_SHARE: f64 = 0.5;
const PERCENTILE: usize = 90;
const HEAD: &str = "# Idle\n";

/// The settings of `idle`.
#[derive(Args, Debug, Clone)]
pub(crate) struct IdleSetting {
    /// Seconds of rest that are measured
    #[arg(long, default_value_t = 60.0)]
    seconds: f64,
    /// Rests, each with a first event
    #[arg(long, default_value_t = 1)]
    rounds: usize,
    /// Transports
    #[arg(long, value_delimiter = ',', default_values_t = ["quic", "tcp"].map(String::from))]
    transports: Vec<String>,
    /// Classes of devices, all at once [default: those that this machine can carry]
    #[arg(long = "class", value_delimiter = ',', value_enum)]
    kinds: Vec<Kind>,
    /// Write the page to this file
    #[arg(long)]
    page: Option<PathBuf>,
}

/// The counters of both hosts at one time.
struct Counters {
    wake_ups: u64,
    bytes: u64,
    cpu_ns: u64,
    at: Instant,
}

/// The result for one transport.
struct Row {
    transport: String,
    kinds: String,
    wake_ups: f64,
    bytes: f64,
    cpu_percent: f64,
    /// Delays of events in close succession: median and 90th percentile.
    usual_ms: [f64; 2],
    /// Delays of the first events after the rests, longest first.
    first_ms: Vec<f64>,
}

impl Row {
    fn is_quiet(&self) -> bool {
        self.wake_ups <= WAKE_UPS_MAX && self.bytes <= BYTES_MAX
    }

    fn is_early(&self) -> bool {
        let longest = self.first_ms.first().copied().unwrap_or(f64::INFINITY);
        longest <= self.usual_ms[1] * (1.0 + LATE_SHARE)
    }
}

/// Returns the voluntary context switches of all threads of a process.
fn wake_ups(process: u32) -> u64 {
    let Ok(threads) = fs::read_dir(format!("/proc/{process}/task")) else { return 0 };
    let switches = |thread: &Path| {
        let status = fs::read_to_string(thread.join("status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        line.trim().parse::<u64>().ok()
    };
    threads.flatten().filter_map(|thread| switches(&thread.path())).sum()
}

/// Returns the bytes that a process's network namespace has received and sent on the link.
fn link_bytes(process: u32) -> Result<u64, Failure> {
    let text = fs::read_to_string(format!("/proc/{process}/net/dev"))?;
    let line = text.lines().find_map(|line| line.trim().strip_prefix("wan0:")).ok_or("there is no wan0")?;
    let fields: Vec<u64> = line.split_whitespace().filter_map(|field| field.parse().ok()).collect();
    match fields[..] {
        [received, _, _, _, _, _, _, _, sent, ..] => Ok(received + sent),
        _ => Err("/proc/net/dev has another layout".into()),
    }
}

fn count(hosts: &mut Hosts) -> Result<Counters, Failure> {
    let device = hosts.processes(Host::Device);
    let first = device.first().ok_or("the device host does not run")?.as_raw_nonzero().get().cast_unsigned();
    let all = device.into_iter().chain(hosts.processes(Host::Application));
    let all: Vec<u32> = all.map(|process| process.as_raw_nonzero().get().cast_unsigned()).collect();
    Ok(Counters {
        wake_ups: all.iter().copied().map(wake_ups).sum(),
        bytes: link_bytes(first)?,
        cpu_ns: all.iter().copied().map(cpu_ns).sum(),
        at: Instant::now(),
    })
}

/// Starts the devices over one transport and measures their rests.
fn measure(setting: &IdleSetting, transport: &str, directory: &Path) -> Result<Row, Failure> {
    let mut hosts = Hosts::new(Some(transport), &beside("netlab")?, directory, 1)?;
    let mut devices =
        setting.kinds.iter().map(|kind| Device::new(*kind, directory)).collect::<Result<Vec<_>, _>>()?;
    let uses: Vec<Use> = devices.iter().map(Device::used).collect();
    let nodes = hosts.begin_all(&uses, "")?;
    devices.iter_mut().zip(&nodes).try_for_each(|(device, node)| device.open(node))?;
    let probe = devices.iter_mut().find(|device| device.has_events()).ok_or("no device has an event")?;
    // A state flow drops events before its data connection exists.
    let mut tries = 0;
    while let Err(error) = probe.event() {
        tries += 1;
        if tries == TRIES_MAX {
            return Err(error);
        }
    }
    let mut usual_ms = Vec::new();
    for _ in 0..EVENTS {
        usual_ms.push(probe.event()?.as_secs_f64() * 1e3);
        std::thread::sleep(PAUSE);
    }
    usual_ms.sort_by(f64::total_cmp);
    let (mut rest_s, mut totals, mut first_ms) = (0.0, [0.0; 3], Vec::new());
    for _ in 0..setting.rounds {
        std::thread::sleep(SETTLING);
        let before = count(&mut hosts)?;
        std::thread::sleep(Duration::from_secs_f64(setting.seconds));
        let after = count(&mut hosts)?;
        rest_s += after.at.duration_since(before.at).as_secs_f64();
        totals[0] += (after.wake_ups - before.wake_ups) as f64;
        totals[1] += (after.bytes - before.bytes) as f64;
        totals[2] += (after.cpu_ns - before.cpu_ns) as f64;
        first_ms.push(probe.event()?.as_secs_f64() * 1e3);
    }
    first_ms.sort_by(|a, b| b.total_cmp(a));
    let [wake_ups, bytes, cpu_ns] = totals.map(|total| total / rest_s);
    Ok(Row {
        transport: transport.into(),
        kinds: setting.kinds.iter().map(|kind| kind.name()).collect::<Vec<_>>().join(", "),
        wake_ups,
        bytes,
        cpu_percent: cpu_ns / 1e7,
        usual_ms: [usual_ms[EVENTS / 2], usual_ms[EVENTS * PERCENTILE / 100]],
        first_ms,
    })
}

fn table(setting: &IdleSetting, rows: &[Row]) -> String {
    let mut text = format!(
        "Both hosts together, {} s of rest, a link with 10 ms round trip. At most {WAKE_UPS_MAX} wake-ups and {BYTES_MAX} bytes a \
         second. The delay of the first event afterwards counts as early up to {} times the 90th percentile of {EVENTS} \
         events in close succession.\n\n\
         | transport | devices | wake-ups/s | bytes/s | processor, % | quiet | event, ms: median | 90th percentile | first after the rest | early |\n\
         |---|---|---|---|---|---|---|---|---|---|\n",
        setting.seconds,
        1.0 + LATE_SHARE
    );
    let word = |holds| if holds { "yes" } else { "**no**" };
    for row in rows {
        let first: Vec<String> = row.first_ms.iter().map(|ms| format!("{ms:.2}")).collect();
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "| {} | {} | {:.2} | {:.0} | {:.4} | {} | {:.2} | {:.2} | {} | {} |",
            row.transport,
            row.kinds,
            row.wake_ups,
            row.bytes,
            row.cpu_percent,
            word(row.is_quiet()),
            row.usual_ms[0],
            row.usual_ms[1],
            first.join(", "),
            word(row.is_early())
        );
    }
    text
}

/// Runs `idle`.
pub(crate) fn run(setting: &IdleSetting) -> Result<Value, Failure> {
    let mut setting = setting.clone();
    if setting.kinds.is_empty() {
        setting.kinds = Kind::carried();
    }
    let provenance = Provenance::of_this_run();
    let mut rows = Vec::new();
    for transport in &setting.transports {
        progress(&format!("idle: {transport}"));
        let directory = std::env::temp_dir().join(format!("outboard-idle-{}", std::process::id()));
        fs::create_dir(&directory)?;
        let row = measure(&setting, transport, &directory);
        // A directory that stays does no harm.
        let _ = fs::remove_dir_all(&directory);
        rows.push(row?);
    }
    let text = table(&setting, &rows);
    if let Some(file) = &setting.page {
        fs::write(file, format!("{HEAD}\n{provenance}\n\n{text}"))
            .map_err(|error| format!("cannot write {}: {error}", file.display()))?;
    }
    print!("{text}");
    let figures = |row: &Row| {
        json!({ "transport": row.transport, "devices": row.kinds, "wake_ups_per_second": row.wake_ups,
                "bytes_per_second": row.bytes, "cpu_percent": row.cpu_percent, "is_quiet": row.is_quiet(),
                "usual_ms": row.usual_ms, "first_ms": row.first_ms, "is_early": row.is_early() })
    };
    let rows: Vec<Value> = rows.iter().map(figures).collect();
    Ok(json!({ "experiment": "idle", "seconds": setting.seconds, "rows": rows }))
}
