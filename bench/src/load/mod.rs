//! Many keyboard-like flows from many peers at one host, and a flood beside them: delay, processor time and memory, beside one
//! flow alone and beside bare datagrams with as many threads.
//!
//! The device host is the real program. Each peer has a broker and a worker in this process. All connections are sealed, over
//! loopback.

mod bare;

use crate::measure::Times;
use crate::processes;
use crate::setting::Failure;
use bare::Bare;
pub(crate) use bare::{SendersSetting, send};
use broker::ApplicationHost;
use clap::Args;
use contract::{Message, Partner};
use daemon::config::AttachWords;
use hub::ApplicationChoice;
use modules::limits::limits;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use sys::stop::Stop;
use testkit::taker::Taker;
use trust::Trust;

/// The longest start of all flows.
const PATIENCE: Duration = Duration::from_secs(120);
/// Messages a second and bytes of the flood, 500 Mbit/s together.
const FLOOD: (u64, u64) = (1000, 62_500);

/// The settings of `load`.
#[derive(Args, Debug)]
pub(crate) struct LoadSetting {
    /// Peers
    #[arg(long, default_value_t = 100)]
    peers: usize,
    /// Flows of each peer
    #[arg(long, default_value_t = 10)]
    flows: usize,
    /// Messages a second of each flow
    #[arg(long, default_value_t = 4)]
    rate: u32,
    /// Minutes with all flows; one flow alone and the flood have a fifth each
    #[arg(long, default_value_t = 10.0)]
    minutes: f64,
}

/// The received messages of some flows.
#[derive(Default)]
struct Received {
    times: Mutex<Times>,
    bytes: AtomicU64,
    /// Flows with at least one message.
    begun: AtomicU64,
}

impl Received {
    fn add(&self, age_ns: u64, bytes: usize) {
        self.times.lock().unwrap_or_else(PoisonError::into_inner).add(age_ns);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// Returns an application that records the age of each message.
fn sink(received: Arc<Received>) -> Box<dyn Partner> {
    let mut begun = false;
    Box::new(Taker::new(move |message: Message| {
        // The creation time in this host's clock, as every application sees it.
        received.add(sys::clock::boot_ns().saturating_sub(message.created.0), message.body.len());
        if !std::mem::replace(&mut begun, true) {
            received.begun.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }))
}

/// The device host's process with its directory. Dropping the value stops it.
struct DeviceHost {
    child: Child,
    address: String,
    directory: PathBuf,
}

impl DeviceHost {
    fn start(setting: &LoadSetting) -> Result<DeviceHost, Failure> {
        let directory = std::env::temp_dir().join(format!("outboard-load-{}", std::process::id()));
        std::fs::create_dir_all(&directory)?;
        let mut text = String::new();
        let most = setting.peers + 2;
        let bounds = format!(
            "sessions={most},sessions_per_peer={most},drivers={},store_bytes=1MiB",
            setting.flows.max(1)
        );
        let mut share = |device: String, name: String| {
            text.push_str(&format!(
                "[[share]]\ndevice = '{device}'\nname = '{name}'\nlisten = '127.0.0.1:0'\nlimits = '{bounds}'\n"
            ));
        };
        for flow in 0..setting.peers * setting.flows {
            share(format!("pattern:rate={},size=24", setting.rate), format!("key{flow}"));
        }
        share(format!("pattern:rate={},size={}", FLOOD.0, FLOOD.1), "flood".into());
        let file = directory.join("run.toml");
        std::fs::write(&file, text)?;
        let mut command = Command::new(crate::programs::beside("outboard")?);
        command.arg("run").arg(&file).arg("--json").stdin(Stdio::null()).stdout(Stdio::piped());
        command.env("XDG_STATE_HOME", &directory).env("XDG_RUNTIME_DIR", &directory);
        let mut child = command.spawn()?;
        let out = child.stdout.take().ok_or("the device host has no output")?;
        let mut lines = BufReader::new(out).lines();
        let address = loop {
            let line = lines.next().ok_or("the device host exited")??;
            let event: Value = serde_json::from_str(&line)?;
            if event["event"] == "listening" {
                break event["address"].as_str().unwrap_or_default().to_string();
            }
        };
        std::thread::spawn(move || lines.for_each(drop));
        Ok(DeviceHost { child, address, directory })
    }
}

impl Drop for DeviceHost {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// The peers. Dropping the value stops them.
struct Peers {
    stop: Stop,
    threads: Vec<JoinHandle<Result<(), String>>>,
}

impl Peers {
    fn new() -> Result<Peers, Failure> {
        Ok(Peers { stop: Stop::new()?, threads: Vec::new() })
    }

    /// Adds a peer with these devices.
    fn add(
        &mut self,
        device_host: &DeviceHost,
        names: &[String],
        received: &Arc<Received>,
    ) -> Result<(), Failure> {
        let from = names.iter().map(|name| format!("{}/{name}", device_host.address)).collect();
        // Peers use the identity of the measured device host, not the user's.
        let words = AttachWords { from, insecure: true, ..AttachWords::default() };
        let (requests, _) = words.requests()?;
        for mut request in requests {
            request.trust = Some(Trust::at(&device_host.directory.join("outboard"))?);
            request.limits = limits(None)?;
            for target in &mut request.targets {
                target.application = ApplicationChoice::Partner(sink(received.clone()));
            }
            let stop = self.stop.clone();
            let run = move || {
                let application_host = ApplicationHost::start(request).map_err(|error| error.to_string())?;
                application_host.run(&stop, &mut |_| {}).map_err(|error| error.to_string())
            };
            self.threads.push(std::thread::spawn(run));
        }
        Ok(())
    }

    /// Waits until this many flows have started. A stopped peer is an error.
    fn wait(&mut self, received: &Received, flows: usize) -> Result<(), Failure> {
        let since = Instant::now();
        while received.begun.load(Ordering::Relaxed) < flows as u64 {
            if let Some(ended) = self.threads.iter().position(JoinHandle::is_finished) {
                let result = self.threads.swap_remove(ended).join();
                return Err(format!("a peer ended: {result:?}").into());
            }
            if since.elapsed() > PATIENCE {
                return Err(format!(
                    "only {} of {flows} flows started",
                    received.begun.load(Ordering::Relaxed)
                )
                .into());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        self.stop.stop();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Measures an interval. `process` and its descendants send.
fn measure(name: &str, time: Duration, process: u32, received: &Received, flows: usize, idle: f64) -> Value {
    *received.times.lock().unwrap_or_else(PoisonError::into_inner) = Times::default();
    let processes = processes::with_descendants(process);
    let cpu_seconds = || processes::cpu_seconds(&processes);
    let (device_host_cpu, own_cpu, since) = (cpu_seconds(), sys::clock::process_cpu_ns(), Instant::now());
    std::thread::sleep(time);
    let seconds = since.elapsed().as_secs_f64();
    let device_host_cpu = (cpu_seconds() - device_host_cpu) / seconds * 100.0;
    let own_cpu = (sys::clock::process_cpu_ns() - own_cpu) as f64 / seconds / 1e7;
    let times = std::mem::take(&mut *received.times.lock().unwrap_or_else(PoisonError::into_inner));
    let kib = (processes::memory_bytes(&processes) - idle) / flows as f64 / 1024.0;
    let [p50, p99, most] = [0.5, 0.99, 1.0].map(|share| times.percentile_us(share));
    let count = times.count();
    println!(
        "{name:<28} {flows:>6} {count:>9} {p50:>9.0} {p99:>9.0} {most:>9.0} {device_host_cpu:>8.1} {own_cpu:>8.1} {kib:>9.0}"
    );
    json!({
        "load": name, "flows": flows, "messages": count, "p50_us": p50, "p99_us": p99, "max_us": most,
        "device_host_cpu_percent": device_host_cpu, "peers_cpu_percent": own_cpu, "device_host_kib_per_flow": kib,
    })
}

/// Runs `load`.
pub(crate) fn run(setting: &LoadSetting) -> Result<Value, Failure> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?;
    let all = Duration::from_secs_f64(setting.minutes * 60.0);
    let device_host = DeviceHost::start(setting)?;
    std::thread::sleep(Duration::from_secs(1));
    let idle = processes::memory_bytes(&processes::with_descendants(device_host.child.id()));
    println!("{} peers, {} flows each, {} messages/s a flow", setting.peers, setting.flows, setting.rate);
    println!(
        "{:<28} {:>6} {:>9} {:>9} {:>9} {:>9} {:>8} {:>8} {:>9}",
        "", "FLOWS", "MESSAGES", "P50 us", "P99 us", "MAX us", "CPU %", "PEERS %", "KiB/FLOW"
    );
    let mut figures = Vec::new();
    {
        let (received, mut peers) = (Arc::new(Received::default()), Peers::new()?);
        peers.add(&device_host, &["key0".into()], &received)?;
        peers.wait(&received, 1)?;
        figures.push(measure("one flow", all / 5, device_host.child.id(), &received, 1, idle));
    }
    let (received, mut peers) = (Arc::new(Received::default()), Peers::new()?);
    let flows = setting.peers * setting.flows;
    let begun = Instant::now();
    for peer in 0..setting.peers {
        let names = (peer * setting.flows..).take(setting.flows).map(|flow| format!("key{flow}"));
        peers.add(&device_host, &names.collect::<Vec<_>>(), &received)?;
    }
    peers.wait(&received, flows)?;
    let began = begun.elapsed().as_secs_f64();
    figures.push(measure("all", all, device_host.child.id(), &received, flows, idle));
    let flood = Arc::new(Received::default());
    peers.add(&device_host, &["flood".into()], &flood)?;
    peers.wait(&flood, 1)?;
    let (bytes, since) = (flood.bytes.load(Ordering::Relaxed), Instant::now());
    let with_flood =
        measure("all, with a flood of 500 Mbit/s", all / 5, device_host.child.id(), &received, flows, idle);
    figures.push(with_flood);
    let mbit = (flood.bytes.load(Ordering::Relaxed) - bytes) as f64 * 8e-6 / since.elapsed().as_secs_f64();
    drop((peers, device_host));
    let received = Arc::new(Received::default());
    let bare = Bare::start(setting, &received)?;
    std::thread::sleep(Duration::from_secs(1));
    let idle = processes::memory_bytes(&[bare.senders()]);
    figures.push(measure("bare datagrams at the same rate", all / 5, bare.senders(), &received, flows, idle));
    println!("all flows started within {began:.1} s; the flood delivered {mbit:.0} Mbit/s");
    Ok(json!({ "load": figures, "began_seconds": began, "flood_mbit_per_second": mbit }))
}
