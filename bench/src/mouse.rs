//! "Networked Device Driver Architecture (2012)", sections 6.4 and 6.7, as a user has them: a 3D mouse, the unmodified spacenavd of
//! the device host, and a program that reads its events, as libspnav does, through Outboard on the other host.
//!
//! The mouse is a Magellan on a pseudo-terminal and moves every 16 ms. A second program reads spacenavd's own socket: the time by which
//! an event is later at the application host is Outboard's and the network's. Both hosts have one clock.

use crate::measure::{median, percentile};
use crate::programs::{beside, progress};
use crate::reliability::hosts::{ADDRESS_A, Host, Hosts, Use};
use crate::reliability::port::{Port, Written, serial_port};
use crate::setting::Failure;
use clap::Args;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The dissertation's period.
const PERIOD: Duration = Duration::from_millis(16);
/// The dissertation's path without its instruments: device side, network one way, application side (figure 6.6).
const PAPER_US: f64 = 36.0 + 380.0 + 17.0;
/// The dissertation's jitters.
const JITTERS_MS: [u64; 6] = [5, 10, 25, 50, 100, 200];
/// The dissertation's mean differences without a pair, and its bounds with `buffer`, milliseconds (figure 6.12).
const PAPER_NONE_MS: [(u64, f64); 3] = [(5, 3.6), (100, 25.6), (200, 28.8)];
const PAPER_BUFFER_MS: [(u64, f64); 5] = [(5, 0.1), (10, 0.1), (25, 0.1), (50, 0.1), (200, 1.5)];
/// The bound of `bundle` up to 100 ms (figure 6.14).
const PAPER_BUNDLE_MS: f64 = 1.0;
/// Bytes of an event of spacenavd: eight integers, of which the first is the kind and the last the time since the one before.
const EVENT_BYTES: usize = 32;
const MOTION: i32 = 0;
/// The first position. It is above spacenavd's dead zone.
const FIRST: i32 = 100;
/// Updates before those that count: the data connection is made.
const WARM_UP: usize = 50;
/// The longest wait for a socket or for the last events.
const PATIENCE: Duration = Duration::from_secs(20);

/// The settings of `mouse`.
#[derive(Args, Debug, Clone)]
pub(crate) struct MouseSetting {
    /// Updates for section 6.4
    #[arg(long, default_value_t = 2000)]
    updates: usize,
    /// Updates of each run for section 6.7
    #[arg(long, default_value_t = 200)]
    rhythm_updates: usize,
    /// Largest delay J of a packet, milliseconds
    #[arg(long, value_delimiter = ',', default_values_t = JITTERS_MS)]
    jitter_ms: Vec<u64>,
    /// Transports
    #[arg(long, value_delimiter = ',', default_values_t = ["tcp", "quic"].map(String::from))]
    transports: Vec<String>,
}

/// A process that ends with this value.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The 3D mouse and the daemon that has it.
struct Mouse {
    port: Arc<Port>,
    stop: Arc<AtomicBool>,
    _daemon: Daemon,
    socket: PathBuf,
    position: i32,
}

impl Drop for Mouse {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

impl Mouse {
    fn new(directory: &Path) -> Result<Mouse, Failure> {
        let (end, path) = serial_port()?;
        let (port, stop) = (Arc::new(Port::hardware(end)), Arc::new(AtomicBool::new(false)));
        let (answering, ends) = (port.clone(), stop.clone());
        thread::spawn(move || answer(&answering, &ends));
        // The daemon makes its socket below its working directory.
        fs::create_dir_all(directory.join("run"))?;
        fs::write(directory.join("spnavrc"), format!("serial = {}\n", path.display()))?;
        let daemon = Command::new("spacenavd")
            .args(["-d", "-c", "spnavrc", "-l", "spnavd.log"])
            .current_dir(directory)
            .env_remove("DISPLAY")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("spacenavd: {error}; install it"))?;
        let socket = directory.join("run/spnav.sock");
        let mouse = Mouse { port, stop, _daemon: Daemon(daemon), socket, position: FIRST };
        until("the socket of spacenavd", || mouse.socket.exists())?;
        Ok(mouse)
    }

    /// Moves to the next position; returns it and the time.
    fn step(&mut self) -> Result<(i32, Instant), Failure> {
        self.position += 1;
        let at = Instant::now();
        match self.port.write(&packet(self.position), &self.stop) {
            Written::All => Ok((self.position, at)),
            _ => Err("spacenavd does not read its 3D mouse".into()),
        }
    }
}

/// Answers as a Magellan until `stop`: to `vQ`, its version. The protocol is that of spacenavd's `dev_serial.c`.
fn answer(port: &Port, stop: &AtomicBool) {
    let (mut heard, mut buffer) = (Vec::new(), [0; 64]);
    while !stop.load(Ordering::Relaxed) {
        let count = port.read(&mut buffer).unwrap_or(0);
        heard.extend_from_slice(&buffer[..count]);
        if heard.windows(2).any(|two| two == b"vQ") {
            heard.clear();
            port.write(b"vMAGELLAN  Version 6.60\r", stop);
        }
    }
}

/// Returns a Magellan's packet of this position of its first axis: six numbers of four digits, each in the low bits of a byte.
fn packet(position: i32) -> Vec<u8> {
    let digits = |axis: i32| {
        let raw = axis + 0x8000;
        [12, 8, 4, 0].map(|shift| 0x40 | (raw >> shift & 0xf) as u8)
    };
    let axes = [position, 0, 0, 0, 0, 0];
    let mut packet = vec![b'd'];
    packet.extend(axes.into_iter().flat_map(digits));
    packet.push(b'\r');
    packet
}

/// Waits until the condition holds.
fn until(what: &str, holds: impl Fn() -> bool) -> Result<(), Failure> {
    let begun = Instant::now();
    while !holds() {
        if begun.elapsed() > PATIENCE {
            return Err(format!("{what}: nothing within {} s", PATIENCE.as_secs()).into());
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// A motion that a program was told.
#[derive(Debug, Clone, Copy)]
struct Motion {
    position: i32,
    at: Instant,
    period_ms: i32,
}

/// A program that reads a daemon's socket as libspnav does. Its thread ends with the socket.
#[derive(Clone)]
struct Program(Arc<Mutex<Vec<Motion>>>);

impl Program {
    fn new(socket: &Path) -> Result<Program, Failure> {
        let mut stream = UnixStream::connect(socket)
            .map_err(|error| format!("connecting to {}: {error}", socket.display()))?;
        let program = Program(Arc::default());
        let motions = program.clone();
        thread::spawn(move || {
            let mut event = [0; EVENT_BYTES];
            while stream.read_exact(&mut event).is_ok() {
                let at = Instant::now();
                let (words, _) = event.as_chunks::<4>();
                let word = |index: usize| i32::from_ne_bytes(words[index]);
                if word(0) == MOTION {
                    motions.motions().push(Motion { position: word(1), at, period_ms: word(7) });
                }
            }
        });
        Ok(program)
    }

    fn motions(&self) -> MutexGuard<'_, Vec<Motion>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn last(&self) -> i32 {
        self.motions().last().map_or(0, |motion| motion.position)
    }

    /// Returns the time at which each position arrived.
    fn arrivals(&self) -> BTreeMap<i32, Instant> {
        self.motions().iter().map(|motion| (motion.position, motion.at)).collect()
    }

    /// Returns the sum of all motion since a position, each times the time for which it held.
    fn motion(&self, since: i32) -> f64 {
        let motions = self.motions();
        let counted = motions.iter().filter(|motion| motion.position > since);
        counted.map(|motion| f64::from(motion.position) * f64::from(motion.period_ms)).sum()
    }
}

/// One run: both hosts, the mouse and its two programs.
struct Run {
    made: BTreeMap<i32, Instant>,
    at_daemon: Program,
    at_b: Program,
}

/// Moves the mouse over one link and pipeline.
fn run(transport: &str, link: &[&str], pipeline: Option<&str>, updates: usize) -> Result<Run, Failure> {
    let directory = std::env::temp_dir().join(format!("outboard-mouse-{}", std::process::id()));
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory)?;
    let made = moved(transport, link, pipeline, updates, &directory);
    let _ = fs::remove_dir_all(&directory);
    made
}

fn moved(
    transport: &str,
    link: &[&str],
    pipeline: Option<&str>,
    updates: usize,
    directory: &Path,
) -> Result<Run, Failure> {
    let mut mouse = Mouse::new(directory)?;
    let mut hosts = Hosts::new(Some(transport), &beside("netlab")?, directory, 1)?;
    hosts.lab.ask(&[&["set"], link].concat())?;
    let application = directory.join("b.sock");
    let used = Use {
        name: "mouse".into(),
        device: format!("spnav:{}", mouse.socket.display()),
        application: format!("spnav:{}", application.display()),
        via: [pipeline.map(str::to_string), None],
    };
    hosts.begin_all(&[used], "")?;
    let (at_daemon, at_b) = (Program::new(&mouse.socket)?, Program::new(&application)?);
    let mut next = Instant::now();
    let mut step = |mouse: &mut Mouse| {
        next += PERIOD;
        thread::sleep(next.saturating_duration_since(Instant::now()));
        mouse.step()
    };
    for _ in 0..WARM_UP {
        step(&mut mouse)?;
    }
    let mut made = BTreeMap::new();
    for _ in 0..updates {
        let (position, at) = step(&mut mouse)?;
        made.insert(position, at);
    }
    // Only `average` changes positions: its last one is that of the rest.
    until("the last position at the application host", || at_b.last() == mouse.position)?;
    Ok(Run { made, at_daemon, at_b })
}

/// Measures the round trip of an event's bytes over a bare connection at the same rate, one way, in microseconds.
fn bare_us(updates: usize) -> Result<Vec<f64>, Failure> {
    let directory = std::env::temp_dir().join(format!("outboard-mouse-bare-{}", std::process::id()));
    fs::create_dir_all(&directory)?;
    let hosts = Hosts::new(Some("tcp"), &beside("netlab")?, &directory, 1)?;
    hosts.lab.ask(&["set", "delay=0ms"])?;
    let listener = hosts.lab.on(Host::Device.letter(), || Ok(TcpListener::bind((ADDRESS_A, 0))?))?;
    let address = listener.local_addr()?;
    let echo = thread::spawn(move || -> std::io::Result<()> {
        let (mut stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        let mut event = [0; EVENT_BYTES];
        while stream.read_exact(&mut event).is_ok() {
            stream.write_all(&event)?;
        }
        Ok(())
    });
    let mut stream = hosts.lab.on(Host::Application.letter(), || Ok(TcpStream::connect(address)?))?;
    stream.set_nodelay(true)?;
    let mut event = [0; EVENT_BYTES];
    let mut times = Vec::new();
    for _ in 0..updates {
        thread::sleep(PERIOD);
        let begun = Instant::now();
        stream.write_all(&event)?;
        stream.read_exact(&mut event)?;
        times.push(begun.elapsed().as_secs_f64() * 1e6 / 2.0);
    }
    drop(stream);
    echo.join().map_err(|_| "the echo panicked")??;
    drop(hosts);
    let _ = fs::remove_dir_all(&directory);
    Ok(times)
}

/// Section 6.4: the path of an update.
fn path(setting: &MouseSetting) -> Result<Vec<Value>, Failure> {
    println!("| path | p50 | p99 | mean | updates |");
    println!("|---|---|---|---|---|");
    let mut rows = Vec::new();
    let mut row = |name: &str, times: &[f64]| {
        let mean = times.iter().sum::<f64>() / times.len().max(1) as f64;
        let [p50, p99] = [median(times), percentile(times, 0.99)];
        println!("| {name} | {p50:.0} | {p99:.0} | {mean:.0} | {} |", times.len());
        rows.push(
            json!({ "experiment": "mouse", "path": name, "p50_us": p50, "p99_us": p99, "mean_us": mean,
            "updates": times.len() }),
        );
    };
    row("bare TCP, half of a round trip", &bare_us(setting.updates.min(500))?);
    for transport in &setting.transports {
        progress(&format!("mouse, {transport}: {:.0} s", setting.updates as f64 * PERIOD.as_secs_f64()));
        let run = run(transport, &["delay=0ms"], None, setting.updates)?;
        let (at_daemon, at_b) = (run.at_daemon.arrivals(), run.at_b.arrivals());
        let us = |from: &BTreeMap<i32, Instant>, to: &BTreeMap<i32, Instant>| -> Vec<f64> {
            let late = |(position, at): (&i32, &Instant)| {
                let came = to.get(position)?;
                // A program may be told before the other one, which has its own processor.
                let early = at.saturating_duration_since(*came).as_secs_f64();
                Some((came.saturating_duration_since(*at).as_secs_f64() - early) * 1e6)
            };
            let counted = from.iter().filter(|(position, _)| run.made.contains_key(*position));
            counted.filter_map(late).collect()
        };
        row(&format!("{transport}: mouse to a program of spacenavd"), &us(&run.made, &at_daemon));
        row(&format!("{transport}: mouse to a program at the other host"), &us(&run.made, &at_b));
        row(&format!("{transport}: Outboard's part, the later arrival"), &us(&at_daemon, &at_b));
    }
    println!("| the dissertation's three parts together | - | - | {PAPER_US:.0} | 2000 |\n");
    Ok(rows)
}

/// Returns the pairs for one J, as `jitter` has them, with those that only motion has.
fn pipelines(jitter_ms: u64) -> [(&'static str, Option<String>); 6] {
    [
        ("none", None),
        ("buffer(request)", Some("buffer(request,min=10,max=10,source_max=400)".into())),
        ("buffer(play)", Some(format!("buffer(play,delay={}ms)", 3 * jitter_ms + 20))),
        ("bundle(10)", Some("bundle(10)".into())),
        ("periodic", Some("periodic(period=16ms)".into())),
        ("average", Some("average(period=50ms)".into())),
    ]
}

fn paper_ms(jitter_ms: u64, pair: &str) -> String {
    let of = |known: &[(u64, f64)]| known.iter().find(|(j, _)| *j == jitter_ms).map(|(_, ms)| *ms);
    match pair {
        "none" => of(&PAPER_NONE_MS).map(|ms| ms.to_string()),
        "buffer(request)" => of(&PAPER_BUFFER_MS).map(|ms| format!("< {ms}")),
        "bundle(10)" if jitter_ms <= 100 => Some(format!("< {PAPER_BUNDLE_MS}")),
        _ => None,
    }
    .unwrap_or_default()
}

/// Section 6.7: the rhythm of updates at the program.
fn rhythm(setting: &MouseSetting) -> Result<Vec<Value>, Failure> {
    println!("| J | pair | transport | mean | p99 | delay | updates | motion | paper |");
    println!("|---|---|---|---|---|---|---|---|---|");
    let mut rows = Vec::new();
    for &jitter_ms in &setting.jitter_ms {
        for (name, pipeline) in pipelines(jitter_ms) {
            for transport in &setting.transports {
                let link = ["delay=0ms".to_string(), format!("jitter={jitter_ms}ms"), "reorder".to_string()];
                let link: Vec<&str> = link.iter().map(String::as_str).collect();
                let run = run(transport, &link, pipeline.as_deref(), setting.rhythm_updates)?;
                let at_b = run.at_b.arrivals();
                let came: Vec<(Instant, Instant)> = run
                    .made
                    .iter()
                    .filter_map(|(position, made)| Some((*made, *at_b.get(position)?)))
                    .collect();
                let gap_s = |early: Instant, late: Instant| {
                    late.saturating_duration_since(early).as_secs_f64()
                        - early.saturating_duration_since(late).as_secs_f64()
                };
                let differences: Vec<f64> = came
                    .windows(2)
                    .map(|two| (gap_s(two[0].1, two[1].1) - gap_s(two[0].0, two[1].0)).abs() * 1e3)
                    .collect();
                let delays: Vec<f64> = came.iter().map(|(made, at)| gap_s(*made, *at) * 1e3).collect();
                let first = *run.made.keys().next().ok_or("the mouse did not move")? - 1;
                let motion = run.at_b.motion(first) / run.at_daemon.motion(first);
                let updates = run.at_b.motions().iter().filter(|motion| motion.position > first).count();
                let mean = differences.iter().sum::<f64>() / differences.len().max(1) as f64;
                let (p99, delay) = (percentile(&differences, 0.99), median(&delays));
                let paper = paper_ms(jitter_ms, name);
                println!(
                    "| {jitter_ms} | `{name}` | {transport} | {mean:.3} | {p99:.2} | {delay:.1} | {updates} | {motion:.3} | {paper} |"
                );
                rows.push(json!({ "experiment": "mouse", "jitter_ms": jitter_ms, "pair": name, "pipeline": pipeline,
                    "transport": transport, "mean_ms": mean, "p99_ms": p99, "delay_ms": delay, "updates": updates,
                    "motion": motion, "paper_ms": paper }));
            }
        }
    }
    Ok(rows)
}

/// Runs `mouse`.
pub(crate) fn measure(setting: &MouseSetting) -> Result<Value, Failure> {
    println!(
        "A 3D mouse that moves every 16 ms, spacenavd, and a program that reads its events on the other host. Times of an"
    );
    println!("update in microseconds, without added delay:\n");
    let mut rows = path(setting)?;
    println!(
        "The rhythm at the program, every packet late by 0 to J ms in both directions and not in order: difference between the"
    );
    println!(
        "time from one update to the next at the mouse and at the program, and median delay, in milliseconds. Of {} updates,",
        setting.rhythm_updates
    );
    println!(
        "each is a position; motion is the sum of positions times their duration, beside that of a program of spacenavd.\n"
    );
    rows.extend(rhythm(setting)?);
    Ok(Value::Array(rows))
}
