//! Many flows like keyboards from many peers at one host, and one that floods beside them: delay, processor and memory,
//! beside those of one flow alone. The sharer is the real program; the peers are in this process, a broker and a worker
//! each. Everything is sealed, over loopback. What bare datagrams of as many threads take is measured in the same run.

mod bare;

use crate::Failure;
use crate::measure::Times;
use crate::processes;
use bare::Bare;
pub(crate) use bare::{SendersSetting, send};
use clap::Args;
use contract::{Message, Partner};
use runtime::config::{AttachWords, limits};
use runtime::trust::Trust;
use runtime::{ApplicationChoice, Attacher, Stop};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use testkit::taker::Taker;

/// How long all flows may take to begin.
const PATIENCE: Duration = Duration::from_secs(120);
/// The flood: messages a second, and bytes of each; together 500 Mbit/s.
const FLOOD: (u64, u64) = (1000, 62_500);

/// How many, and how long.
#[derive(Args, Debug)]
pub(crate) struct LoadSetting {
    /// Peers
    #[arg(long, default_value_t = 100)]
    peers: usize,
    /// Flows of each
    #[arg(long, default_value_t = 10)]
    flows: usize,
    /// Messages a second of each flow
    #[arg(long, default_value_t = 4)]
    rate: u32,
    /// Minutes that all run; one flow alone and the flood take a fifth of that each
    #[arg(long, default_value_t = 10.0)]
    minutes: f64,
}

/// What came of some flows.
#[derive(Default)]
struct Came {
    times: Mutex<Times>,
    bytes: AtomicU64,
    /// Flows that have brought something.
    begun: AtomicU64,
}

impl Came {
    fn add(&self, age_ns: u64, bytes: usize) {
        self.times.lock().unwrap_or_else(PoisonError::into_inner).add(age_ns);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// An application that notes how old what comes is.
fn sink(came: Arc<Came>) -> Box<dyn Partner> {
    let mut begun = false;
    Box::new(Taker::new(move |message: Message| {
        // One machine has one clock: what the two ends take each other's to be, and how well, is not what is asked here.
        let made = message
            .body
            .peek_front::<16>()
            .and_then(|start| start.last_chunk().map(|made| u64::from_le_bytes(*made)));
        came.add(sys::clock::boot_ns().saturating_sub(made.unwrap_or(0)), message.body.len());
        if !std::mem::replace(&mut begun, true) {
            came.begun.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }))
}

/// The sharer's process, ended with this, and its directory.
struct Sharer {
    child: Child,
    address: String,
    directory: PathBuf,
}

impl Sharer {
    fn start(setting: &LoadSetting) -> Result<Sharer, Failure> {
        let directory = std::env::temp_dir().join(format!("outboard-load-{}", std::process::id()));
        std::fs::create_dir_all(&directory)?;
        let mut text = String::new();
        let most = setting.peers + 2;
        let bounds = format!(
            "sessions={most},sessions_per_peer={most},drivers={},connections_per_second=100000,greetings=4096,\
             greetings_per_address=4096,handshakes_per_second=100000,control_percent_per_peer=0,store_bytes_of_all=1024GiB",
            setting.flows.max(1)
        );
        let mut share = |device: String, name: String| {
            text.push_str(&format!(
                "[[share]]\ndevice = '{device}'\nname = '{name}'\nlisten = '127.0.0.1:0'\nlimits = '{bounds}'\n"
            ));
        };
        for flow in 0..setting.peers * setting.flows {
            share(format!("pattern:rate={},size=24,stamped=true", setting.rate), format!("key{flow}"));
        }
        share(format!("pattern:rate={},size={},stamped=true", FLOOD.0, FLOOD.1), "flood".into());
        let file = directory.join("run.toml");
        std::fs::write(&file, text)?;
        let mut command = Command::new(crate::program()?);
        command.arg("run").arg(&file).arg("--json").stdin(Stdio::null()).stdout(Stdio::piped());
        command.env("XDG_STATE_HOME", &directory).env("XDG_RUNTIME_DIR", &directory);
        let mut child = command.spawn()?;
        let out = child.stdout.take().ok_or("the sharer has no output")?;
        let mut lines = BufReader::new(out).lines();
        let address = loop {
            let line = lines.next().ok_or("the sharer ended")??;
            let event: Value = serde_json::from_str(&line)?;
            if event["event"] == "listening" {
                break event["address"].as_str().unwrap_or_default().to_string();
            }
        };
        std::thread::spawn(move || lines.for_each(drop));
        Ok(Sharer { child, address, directory })
    }
}

impl Drop for Sharer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// The peers, until they are dropped.
struct Peers {
    stop: Stop,
    threads: Vec<JoinHandle<Result<(), String>>>,
}

impl Peers {
    fn new() -> Result<Peers, Failure> {
        Ok(Peers { stop: Stop::new()?, threads: Vec::new() })
    }

    /// One more peer, with these devices.
    fn add(&mut self, sharer: &Sharer, names: &[String], came: &Arc<Came>) -> Result<(), Failure> {
        let from = names.iter().map(|name| format!("{}/{name}", sharer.address)).collect();
        // Who is known is not this user's matter, but that of the sharer that is measured.
        let words = AttachWords { from, insecure: true, ..AttachWords::default() };
        let (requests, _) = words.requests()?;
        for mut request in requests {
            request.trust = Some(Trust::at(&sharer.directory.join("outboard"))?);
            request.limits = limits(None)?;
            for target in &mut request.targets {
                target.application = ApplicationChoice::Partner(sink(came.clone()));
            }
            let stop = self.stop.clone();
            let run = move || {
                let attacher = Attacher::start(request).map_err(|error| error.to_string())?;
                attacher.run(&stop, &mut |_| {}).map_err(|error| error.to_string())
            };
            self.threads.push(std::thread::spawn(run));
        }
        Ok(())
    }

    /// Waits until so many flows have begun. A peer that has ended is an error.
    fn wait(&mut self, came: &Came, flows: usize) -> Result<(), Failure> {
        let since = Instant::now();
        while came.begun.load(Ordering::Relaxed) < flows as u64 {
            if let Some(ended) = self.threads.iter().position(JoinHandle::is_finished) {
                let result = self.threads.swap_remove(ended).join();
                return Err(format!("a peer ended: {result:?}").into());
            }
            if since.elapsed() > PATIENCE {
                return Err(
                    format!("only {} of {flows} flows began", came.begun.load(Ordering::Relaxed)).into()
                );
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

/// What a stretch of time showed; `process` and those that it started are who sends.
fn measure(what: &str, time: Duration, process: u32, came: &Came, flows: usize, idle: f64) -> Value {
    *came.times.lock().unwrap_or_else(PoisonError::into_inner) = Times::default();
    let processes = processes::with_descendants(process);
    let cpu_seconds = || processes::cpu_seconds(&processes);
    let (sharer_cpu, own_cpu, since) = (cpu_seconds(), sys::clock::process_cpu_ns(), Instant::now());
    std::thread::sleep(time);
    let seconds = since.elapsed().as_secs_f64();
    let sharer_cpu = (cpu_seconds() - sharer_cpu) / seconds * 100.0;
    let own_cpu = (sys::clock::process_cpu_ns() - own_cpu) as f64 / seconds / 1e7;
    let times = std::mem::take(&mut *came.times.lock().unwrap_or_else(PoisonError::into_inner));
    let kib = (processes::memory_bytes(&processes) - idle) / flows as f64 / 1024.0;
    let [p50, p99, most] = [0.5, 0.99, 1.0].map(|share| times.percentile_us(share));
    let count = times.count();
    println!(
        "{what:<28} {flows:>6} {count:>9} {p50:>9.0} {p99:>9.0} {most:>9.0} {sharer_cpu:>8.1} {own_cpu:>8.1} {kib:>9.0}"
    );
    json!({
        "what": what, "flows": flows, "messages": count, "p50_us": p50, "p99_us": p99, "max_us": most,
        "sharer_cpu_percent": sharer_cpu, "peers_cpu_percent": own_cpu, "sharer_kib_per_flow": kib,
    })
}

/// Runs it.
pub(crate) fn run(setting: &LoadSetting) -> Result<Value, Failure> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?;
    let all = Duration::from_secs_f64(setting.minutes * 60.0);
    let sharer = Sharer::start(setting)?;
    std::thread::sleep(Duration::from_secs(1));
    let idle = processes::memory_bytes(&processes::with_descendants(sharer.child.id()));
    println!("{} peers, {} flows each, {} messages/s a flow", setting.peers, setting.flows, setting.rate);
    println!(
        "{:<28} {:>6} {:>9} {:>9} {:>9} {:>9} {:>8} {:>8} {:>9}",
        "", "FLOWS", "MESSAGES", "P50 us", "P99 us", "MAX us", "CPU %", "PEERS %", "KiB/FLOW"
    );
    let mut figures = Vec::new();
    {
        let (came, mut peers) = (Arc::new(Came::default()), Peers::new()?);
        peers.add(&sharer, &["key0".into()], &came)?;
        peers.wait(&came, 1)?;
        figures.push(measure("one flow", all / 5, sharer.child.id(), &came, 1, idle));
    }
    let (came, mut peers) = (Arc::new(Came::default()), Peers::new()?);
    let flows = setting.peers * setting.flows;
    let begun = Instant::now();
    for peer in 0..setting.peers {
        let names = (peer * setting.flows..).take(setting.flows).map(|flow| format!("key{flow}"));
        peers.add(&sharer, &names.collect::<Vec<_>>(), &came)?;
    }
    peers.wait(&came, flows)?;
    let began = begun.elapsed().as_secs_f64();
    figures.push(measure("all", all, sharer.child.id(), &came, flows, idle));
    let flood = Arc::new(Came::default());
    peers.add(&sharer, &["flood".into()], &flood)?;
    peers.wait(&flood, 1)?;
    let (bytes, since) = (flood.bytes.load(Ordering::Relaxed), Instant::now());
    let beside = measure("all, beside 500 Mbit/s", all / 5, sharer.child.id(), &came, flows, idle);
    figures.push(beside);
    let mbit = (flood.bytes.load(Ordering::Relaxed) - bytes) as f64 * 8e-6 / since.elapsed().as_secs_f64();
    drop((peers, sharer));
    let came = Arc::new(Came::default());
    let bare = Bare::start(setting, &came)?;
    std::thread::sleep(Duration::from_secs(1));
    let idle = processes::memory_bytes(&[bare.senders()]);
    figures.push(measure("bare datagrams, as many", all / 5, bare.senders(), &came, flows, idle));
    println!("all flows began within {began:.1} s; the flood brought {mbit:.0} Mbit/s");
    Ok(json!({ "load": figures, "began_seconds": began, "flood_mbit_per_second": mbit }))
}
