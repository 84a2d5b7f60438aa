//! `outboard whatif`: the gain of a faster pair, before anybody makes or buys one ("Improving TCP Throughput for Cloud
//! Applications" (2014), chapter 3). The work of a pair is left out on both hosts and takes its measured time divided by a speedup
//! (`crates/links/src/bypass.rs`); the throughput from end to end is measured.
//!
//! Both hosts are brokers as in `share` and `attach`, without keys; on this host alone they are two threads.

mod answer;
mod ends;

use crate::arguments;
use crate::output::{Failure, print, print_json};
use crate::services::stop_on_signals;
use answer::{Answer, Point, Processors, Row};
use broker::{
    ApplicationHost, AttachRequest, AttachTarget, DeviceChoice, DeviceHost, ShareDevice, ShareRequest,
    with_port,
};
use contract::{Body, Format, OptionKind, OptionSpec, Partner, ServiceError, Value, local, parse_value};
use ends::{Count, Repeater, counter};
use hosts::place::{WRONG_PORT, has_wrong_port, listen_address};
use hub::{ApplicationChoice, HubPolicy};
use modules::{Pipelines, registry, transport_plan};
use pipeline::{Origin, Pipeline};
use session::Limits;
use std::io::IsTerminal;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use sys::address::host_name;
use sys::stop::Stop;

/// The name of the device.
const DEVICE: &str = "whatif";
/// The command of the other host.
const LISTENER: &str = "outboard whatif --listen";
const ANY_PORT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
/// The start of a run that does not count: both halves learn the times of their work, and the link finds its rate.
const SETTLING: Duration = Duration::from_millis(700);
/// Messages of the start, at least. The halves learn from the first 16 (`links::Bypass`); what is on its way then must arrive.
const SETTLING_MESSAGES: u64 = 64;
/// Messages of a run that count, at least.
const MESSAGES_MIN: u64 = 32;
/// The longest wait for these messages.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(2);

static SIZE: OptionSpec =
    local("--message-size", OptionKind::Size { min: 1, max: 16 << 20 }, "64KiB", "bytes of a message");
static SPEEDUP: OptionSpec =
    local("--by", OptionKind::Number { min: 1.0, max: f64::INFINITY }, "inf", "a speedup");

/// `outboard whatif`.
pub(crate) fn whatif(words: &arguments::Whatif) -> Result<(), Failure> {
    let stop = Stop::new()?;
    stop_on_signals(&stop)?;
    match &words.listen {
        Some(address) => listen(words, address, &stop),
        None => ask(words, &stop),
    }
}

/// The other host of a measurement: shares the message until a signal.
fn listen(words: &arguments::Whatif, address: &str, stop: &Stop) -> Result<(), Failure> {
    let host = share(listen_address(address)?, message(words)?, &Count::default())?;
    let command = format!("outboard whatif {}:{} --via PIPELINE", host_name(), host.address().port());
    match words.json.json {
        true => {
            print_json(&serde_json::json!({ "address": host.address().to_string(), "command": command }))?
        }
        false => print(&format!("measure on the other host: {command}\n"))?,
    }
    Ok(host.run(stop, &mut |_| ())?)
}

/// A measurement.
fn ask(words: &arguments::Whatif, stop: &Stop) -> Result<(), Failure> {
    let usage = |problem: String| Failure::Usage(problem);
    let via = words.via.as_deref().ok_or_else(|| usage("--via: which pipeline?".into()))?;
    let pipeline = Pipeline::parse(via, registry::pairs(), Origin::Local)
        .map_err(|error| usage(format!("--via: {error}")))?;
    pipeline.check(&Format::Bytes).map_err(|error| usage(format!("--via: {error}")))?;
    let combinations = combinations(&pipeline, &words.faster)?;
    let mut speedups = words.by.iter().map(|text| speedup(text)).collect::<Result<Vec<_>, _>>()?;
    speedups.sort_by(f64::total_cmp);
    let seconds =
        Duration::try_from_secs_f64(words.seconds).map_err(|error| usage(format!("--seconds: {error}")))?;
    if words.host.is_some() && (words.message_size.is_some() || words.sample.is_some()) {
        return Err(usage(
            "--message-size and --sample belong to the host with --listen, which makes the messages".into(),
        ));
    }

    let (mut local, mut sender) = (None, None);
    let (host, address) = match &words.host {
        Some(host) if has_wrong_port(host) => {
            return Err(usage(format!("`{host}`: {WRONG_PORT}; write HOST[:PORT]")));
        }
        Some(host) => (host.clone(), with_port(host)),
        None => {
            let host = share(ANY_PORT, message(words)?, sender.insert(Count::default()))?;
            let address = host.address().to_string();
            local = Some(spawn(stop, |stop| host.run(stop, &mut |_| ()))?);
            ("this host".to_string(), address)
        }
    };
    let bench = Bench { address, transport: words.transport.clone(), seconds, sender, stop: stop.clone() };
    let measured = bench.all(&pipeline, &combinations, &speedups, words.rounds.max(1));
    stop.stop();
    if let Some(thread) = local {
        joined(thread)?;
    }
    let answer = measured?.into_answer(via, host, &words.transport);
    if words.json.json { print_json(&answer) } else { print(&answer.text()) }
}

/// Returns the message: a file, or text, which compresses well.
fn message(words: &arguments::Whatif) -> Result<Body, Failure> {
    if let Some(path) = &words.sample {
        let failed = |error| Failure::Failed(format!("--sample {}: {error}", path.display()));
        let bytes = std::fs::read(path).map_err(failed)?;
        let usual = bytes.len() as u64;
        parse_value(&SIZE, &usual.to_string()).map_err(|error| {
            Failure::Usage(format!("--sample {}: its size: {}", path.display(), error.problem))
        })?;
        return Ok(Body::from(bytes));
    }
    let size = words.message_size.as_deref().unwrap_or(SIZE.default);
    let Value::Size(bytes) = parse_value(&SIZE, size)
        .map_err(|error| Failure::Usage(format!("--message-size: {}", error.problem)))?
    else {
        return Err(Failure::Usage(format!("--message-size: {size} is no size")));
    };
    Ok(Body::from(text(bytes as usize)))
}

/// Returns words in an order without a period (a linear congruential generator; Knuth, "The Art of Computer Programming" 2, 3.3.4).
fn text(bytes: usize) -> Vec<u8> {
    const WORDS: [&str; 16] = [
        "device ", "driver ", "host ", "network ", "module ", "message ", "time ", "delay ", "jitter ",
        "loss ", "rate ", "picture ", "sound ", "key ", "disk ", "port\n",
    ];
    let mut text = Vec::with_capacity(bytes);
    let mut state = 1u64;
    while text.len() < bytes {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        text.extend_from_slice(WORDS[(state >> 60) as usize].as_bytes());
    }
    text.truncate(bytes);
    text
}

fn speedup(text: &str) -> Result<f64, Failure> {
    match parse_value(&SPEEDUP, text) {
        Ok(Value::Number(speedup)) => Ok(speedup),
        Ok(_) => Err(Failure::Usage(format!("--by: {text} is no number"))),
        Err(error) => Err(Failure::Usage(format!("--by: {}", error.problem))),
    }
}

/// Returns the pairs that become faster together, as places in the pipeline: those that the user named, or each pair whose work can
/// be left out, and all of these.
fn combinations(pipeline: &Pipeline, named: &[String]) -> Result<Vec<Vec<usize>>, Failure> {
    let pairs = pipeline.pairs();
    if !named.is_empty() {
        let all = labels(pipeline);
        let place = |name: &str| {
            let found = all.iter().position(|label| label == name.trim());
            let at = found.ok_or_else(|| {
                let there = all.join(", ");
                Failure::Usage(format!("--faster: there is no `{name}` in the pipeline, only {there}"))
            })?;
            pairs[at].check_speedup().map_err(|problem| Failure::Usage(format!("--faster: {problem}")))?;
            Ok(at)
        };
        return named.iter().map(|names| names.split('+').map(place).collect()).collect();
    }
    let possible: Vec<usize> = (0..pairs.len()).filter(|at| pairs[*at].check_speedup().is_ok()).collect();
    if possible.is_empty() {
        let problem = pairs.first().map_or(Err("the pipeline is empty".into()), |used| used.check_speedup());
        return Err(Failure::Usage(format!("--via: {}", problem.err().unwrap_or_default())));
    }
    let mut all: Vec<Vec<usize>> = possible.iter().map(|at| vec![*at]).collect();
    if possible.len() > 1 {
        all.push(possible);
    }
    Ok(all)
}

/// Returns a name for each pair of the pipeline. The uses of a pair that is there several times have numbers: `encrypt:2`.
fn labels(pipeline: &Pipeline) -> Vec<String> {
    let names: Vec<&str> = pipeline.pairs().iter().map(|used| used.pair.name()).collect();
    let number = |at: usize| names[..=at].iter().filter(|name| **name == names[at]).count();
    let is_single = |at: usize| names.iter().filter(|name| **name == names[at]).count() == 1;
    let label = |at: usize| match is_single(at) {
        true => names[at].into(),
        false => format!("{}:{}", names[at], number(at)),
    };
    (0..names.len()).map(label).collect()
}

/// Both hosts, and how long each run takes.
struct Bench {
    address: String,
    transport: String,
    seconds: Duration,
    /// The counts of the device, if it is on this host.
    sender: Option<Count>,
    stop: Stop,
}

/// The figures of one run.
struct Run {
    message_bytes: usize,
    bytes_per_second: f64,
    processors: Processors,
}

/// A speedup with its runs.
type Sped = (f64, Vec<Run>);

/// All runs.
struct Measured {
    names: Vec<String>,
    as_it_is: Vec<Run>,
    at_its_own_speed: Vec<Run>,
    /// For each combination and speedup.
    faster: Vec<(Vec<usize>, Vec<Sped>)>,
}

impl Bench {
    /// Measures everything `rounds` times in turns, so that a drift of the machine affects all alike.
    fn all(
        &self,
        pipeline: &Pipeline,
        combinations: &[Vec<usize>],
        speedups: &[f64],
        rounds: usize,
    ) -> Result<Measured, Failure> {
        let pairs = pipeline.pairs();
        let mut measured = Measured {
            names: labels(pipeline),
            as_it_is: Vec::new(),
            at_its_own_speed: Vec::new(),
            faster: combinations
                .iter()
                .map(|places| {
                    (places.clone(), speedups.iter().map(|speedup| (*speedup, Vec::new())).collect())
                })
                .collect(),
        };
        let every: Vec<usize> = (0..pairs.len()).filter(|at| pairs[*at].check_speedup().is_ok()).collect();
        let runs = rounds * (2 + combinations.len() * speedups.len());
        let (mut done, is_shown) = (0, std::io::stderr().is_terminal());
        let mut run = |places: &[usize], speedup: Option<f64>| {
            done += 1;
            if is_shown {
                eprint!("\r\x1b[Krun {done} of {runs} ");
            }
            let speedups: Vec<_> =
                (0..pairs.len()).map(|at| speedup.filter(|_| places.contains(&at))).collect();
            let with = pipeline.clone().with_speedups(&speedups);
            let with = with.map_err(|error| Failure::Usage(format!("--via: {error}")))?;
            self.run(with)
        };
        for _ in 0..rounds {
            measured.as_it_is.push(run(&[], None)?);
            measured.at_its_own_speed.push(run(&every, Some(1.0))?);
            for (places, points) in &mut measured.faster {
                for (speedup, runs) in points {
                    runs.push(run(places, Some(*speedup))?);
                }
            }
        }
        if is_shown {
            eprint!("\r\x1b[K");
        }
        Ok(measured)
    }

    /// Measures one pipeline.
    fn run(&self, pipeline: Pipeline) -> Result<Run, Failure> {
        let count = Count::default();
        let request = AttachRequest {
            peer: None,
            address: self.address.clone(),
            transport: transport_plan(&self.transport, None)?,
            fallback: None,
            targets: vec![AttachTarget {
                name: DEVICE.into(),
                application: ApplicationChoice::Partner(counter(count.clone())),
                pipelines: Pipelines { via: Some(pipeline), ..Pipelines::default() },
                expect: None,
            }],
            trust: None,
            limits: Limits::default(),
            host: host_name(),
        };
        let stop = Stop::new()?;
        // If it refuses or fails, it ends, and that stops the wait.
        let host = spawn(&stop, move |stop| {
            ApplicationHost::start_towards(request, LISTENER)?.run(stop, &mut |_| ())
        })?;
        // Waits for this time and this many messages.
        let wait = |time: Duration, messages: u64| {
            let counts = || (count.get(), self.sender.as_ref().map(Count::get));
            let (began, before) = (Instant::now(), counts());
            let is_over = || stop.is_requested() || self.stop.is_requested() || began.elapsed() > PATIENCE;
            while (began.elapsed() < time || count.get()[0] < before.0[0] + messages) && !is_over() {
                std::thread::sleep(LOOK);
            }
            (before, counts(), began.elapsed())
        };
        wait(SETTLING, SETTLING_MESSAGES);
        let (before, after, took) = wait(self.seconds, MESSAGES_MIN);
        stop.stop();
        joined(host)?;
        if self.stop.is_requested() {
            return Err(Failure::Failed("stopped".into()));
        }
        let [messages, bytes] = [0, 1].map(|at| after.0[at] - before.0[at]);
        if messages == 0 {
            return Err(Failure::Failed(format!("no message arrives from {}", self.address)));
        }
        let seconds = took.as_secs_f64();
        let share =
            |[after, before]: [[u64; 3]; 2]| after[2].saturating_sub(before[2]) as f64 / 1e9 / seconds;
        Ok(Run {
            message_bytes: (bytes / messages) as usize,
            bytes_per_second: bytes as f64 / seconds,
            processors: Processors {
                sender: after.1.zip(before.1).map(|(after, before)| share([after, before])),
                receiver: share([after.0, before.0]),
            },
        })
    }
}

impl Measured {
    fn into_answer(self, pipeline: &str, host: String, transport: &str) -> Answer {
        let as_it_is = rate(&self.as_it_is);
        let rows = self.faster.iter().map(|(places, points)| {
            let names = places.iter().map(|at| self.names[*at].clone()).collect();
            let point = |(speedup, runs): &Sped| {
                let (bytes_per_second, processors) = (rate(runs), processors(runs));
                Point { speedup: *speedup, bytes_per_second, gain: bytes_per_second / as_it_is, processors }
            };
            Row::new(names, points.iter().map(point).collect())
        });
        Answer {
            pipeline: pipeline.into(),
            host,
            transport: transport.into(),
            message_bytes: self.as_it_is.last().map_or(0, |run| run.message_bytes),
            bytes_per_second: as_it_is,
            processors: processors(&self.as_it_is),
            method_error: rate(&self.at_its_own_speed) / as_it_is - 1.0,
            rows: rows.collect(),
        }
    }
}

fn rate(runs: &[Run]) -> f64 {
    median(runs.iter().map(|run| run.bytes_per_second))
}

fn processors(runs: &[Run]) -> Processors {
    let senders: Option<Vec<f64>> = runs.iter().map(|run| run.processors.sender).collect();
    Processors {
        sender: senders.map(|senders| median(senders.into_iter())),
        receiver: median(runs.iter().map(|run| run.processors.receiver)),
    }
}

fn median(figures: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = figures.collect();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}

/// Starts a device host that shares the message and counts it.
fn share(listen: SocketAddr, message: Body, count: &Count) -> Result<DeviceHost, ServiceError> {
    let count = count.clone();
    DeviceHost::start(ShareRequest {
        devices: vec![ShareDevice {
            device: DeviceChoice::Own(
                ends::description(),
                Arc::new(move || {
                    Ok(Box::new(Repeater::new(message.clone(), count.clone())) as Box<dyn Partner>)
                }),
            ),
            name: Some(DEVICE.into()),
            pipelines: Pipelines::default(),
            hub: HubPolicy::Exclusive,
            allow: Vec::new(),
            transport: None,
        }],
        listen,
        trust: None,
        limits: Limits::default(),
        host: host_name(),
        announce: false,
    })
}

fn spawn(
    stop: &Stop,
    host: impl FnOnce(&Stop) -> Result<(), ServiceError> + Send + 'static,
) -> Result<JoinHandle<Result<(), ServiceError>>, Failure> {
    let stop = stop.clone();
    let run = move || {
        let result = host(&stop);
        stop.stop();
        result
    };
    Ok(std::thread::Builder::new().name("host".into()).spawn(run)?)
}

fn joined(host: JoinHandle<Result<(), ServiceError>>) -> Result<(), Failure> {
    match host.join() {
        Ok(result) => Ok(result?),
        Err(_) => Err(Failure::Failed("a host panicked: please report this".into())),
    }
}
