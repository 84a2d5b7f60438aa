//! The cost of passing a message to a stage: one hop and a chain of eight, by a call, through pipes and in shared
//! memory, beside the bare mechanism in the same run.
//!
//! All mechanisms take short turns. Each round draws their order at random, so that a drift of the machine affects all
//! of them alike.

mod judge;
mod relay;
mod rivals;
mod stages;

use crate::measure::{Times, median};
use crate::setting::Failure;
use clap::Args;
use contract::{Body, Format, Half, Message, Site, StageResult, Time};
use judge::judge;
use modules::process::{Process, SharedRun};
use modules::registry;
use netsim::Rng;
use pipeline::{Chain, ChainOut, Origin, PairUse, Pipeline};
use relay::{Chain as Bare, Medium};
use rivals::Rival;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::Duration;

pub(crate) use relay::{Relay, relay};
pub(crate) use stages::{HANDLING, PASSING, Stages, now};

/// Bytes of a message.
const SIZES: [usize; 5] = [100, 1000, 10_000, 100_000, 1_000_000];
/// Stages of a chain.
const STAGES: usize = 8;
/// Messages of a turn through stages that are called.
const CALLS: usize = 200_000;

/// The shortest turn.
const TURN_NS: u64 = 1_000_000;
/// The pause between turns, in which the processes of the last one go to sleep.
const REST: Duration = Duration::from_millis(1);

#[derive(Args, Debug)]
pub(crate) struct LinksSetting {
    /// Rounds; each mechanism takes one turn a round
    #[arg(long, default_value_t = 30)]
    rounds: usize,
    /// Messages of a turn
    #[arg(long, default_value_t = 60)]
    messages: usize,
    /// Seed for the order of turns and for the bootstrap samples
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Measure one message size only, bytes
    #[arg(long)]
    size: Option<usize>,
    /// Measure only this mechanism, such as `chain: shm` (may be repeated)
    #[arg(long, value_name = "PATH: MECHANISM")]
    only: Vec<String>,
    /// Also measure hops over iceoryx2 and zenoh, with this build of `bench/rivals`
    #[arg(long, value_name = "PROGRAM")]
    rivals: Option<PathBuf>,
}

/// A mechanism that passes a message.
enum Mechanism {
    Bare(Bare),
    /// Outboard's stages. The body is created once, outside the measured time.
    Ours(Stages, Body),
    /// Outboard's stages. Creating and reading the body counts.
    Whole(Stages, usize),
    /// Another project's library, which measures itself.
    Rival(Rival),
}

impl Mechanism {
    fn processes(&self) -> Vec<u32> {
        match self {
            Mechanism::Bare(chain) => chain.processes().collect(),
            Mechanism::Ours(stages, _) | Mechanism::Whole(stages, _) => {
                stages.links.iter().filter_map(Process::process_id).collect()
            }
            // Rivals choose their processors themselves.
            Mechanism::Rival(_) => Vec::new(),
        }
    }

    fn begin_turn(&self) {
        if let Mechanism::Bare(chain) = self {
            chain.begin_turn();
        }
    }

    /// Passes a message and returns the time it took in nanoseconds.
    fn pass(&mut self) -> Result<u64, Failure> {
        let took = |begun: u64| sys::clock::boot_ns() - begun;
        match self {
            Mechanism::Bare(chain) => {
                let begun = sys::clock::boot_ns();
                chain.pass()?;
                Ok(took(begun))
            }
            Mechanism::Ours(stages, body) => {
                let message = Message::new(Time(1), body.clone());
                let begun = sys::clock::boot_ns();
                let back = stages.pass(Time(begun), message)?;
                let took = took(begun);
                drop(back);
                Ok(took)
            }
            Mechanism::Whole(stages, size) => {
                let begun = sys::clock::boot_ns();
                let message = Message::new(Time(1), Body::from(vec![7; *size]));
                let back = stages.pass(Time(begun), message)?;
                let sum: u64 = back.body.chunks().flatten().map(|byte| u64::from(*byte)).sum();
                match sum == *size as u64 * 7 {
                    true => Ok(took(begun)),
                    false => Err("a body came back changed".into()),
                }
            }
            Mechanism::Rival(rival) => Ok(rival.measure(1)?.into_iter().sum()),
        }
    }

    /// Passes at least `messages` messages, and more until [`TURN_NS`] is over. Adds the time of each, divided by
    /// `hops`.
    fn turn(&mut self, messages: usize, hops: u64, times: &mut Times) -> Result<(), Failure> {
        if let Mechanism::Rival(rival) = self {
            rival.measure(messages)?.into_iter().for_each(|time| times.add(time));
            return Ok(());
        }
        let (mut passed, mut taken_ns) = (0, 0);
        while passed < messages || taken_ns < TURN_NS {
            let took = self.pass()?;
            times.add(took / hops);
            (passed, taken_ns) = (passed + 1, taken_ns + took);
        }
        Ok(())
    }
}

impl LinksSetting {
    fn wants(&self, path: &str, mechanism: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| *only == format!("{path}: {mechanism}"))
    }
}

/// Returns the times of each mechanism in each round. A message's time is divided by `hops`.
fn take_turns(
    mechanisms: &mut [Named],
    setting: &LinksSetting,
    hops: u64,
) -> Result<Vec<Vec<Times>>, Failure> {
    let mut times = vec![Vec::with_capacity(setting.rounds); mechanisms.len()];
    let mut order: Vec<usize> = (0..mechanisms.len()).collect();
    let mut rng = Rng::new(setting.seed, hops);
    for round in 0..=setting.rounds {
        // A random order: no mechanism always follows the same other one.
        for place in (1..order.len()).rev() {
            order.swap(place, rng.up_to(place as u64) as usize);
        }
        for &index in &order {
            let (_, mechanism) = &mut mechanisms[index];
            let (mut turn, mut warming) = (Times::with_capacity(setting.messages), Times::default());
            mechanism.begin_turn();
            // The first messages of a turn and the first round warm up.
            mechanism.turn(setting.messages / 4, hops, &mut warming)?;
            mechanism.turn(setting.messages, hops, &mut turn)?;
            if round > 0 {
                times[index].push(turn);
            }
            std::thread::sleep(REST);
        }
    }
    Ok(times)
}

/// Creates a mechanism for messages of this many bytes.
type Make = fn(usize) -> Result<Mechanism, Failure>;

/// One process that passes each message back.
const HOPS: [(&str, Make); 7] = [
    ("bare eventfd", |size| bare(Medium::Eventfd, 1, size)),
    ("bare futex", |size| bare(Medium::Futex, 1, size)),
    ("shm", |size| ours(shared(&[PASSING])?, size)),
    ("bare pipe", |size| bare(Medium::Pipe, 1, size)),
    ("pipe", |size| ours(Stages::pipes(1)?, size)),
    // A program that makes a new message of each one.
    ("program in C, pipe", |size| ours(Stages::program(None)?, size)),
    ("program in C, shm", |size| ours(Stages::program(Some(SLOTS))?, size)),
];

/// Slots of a run on shared memory.
const SLOTS: SharedRun = SharedRun { slots: Some(4), latency: None };

/// Eight processes. The system chooses their processors.
const CHAINS: [(&str, Make); 8] = [
    ("bare eventfds", |size| bare(Medium::Eventfd, STAGES, size)),
    ("bare futexes, together", |size| bare(Medium::Together, STAGES, size)),
    ("shm", |size| ours(shared(&[PASSING; STAGES])?, size)),
    ("shm, handled", |size| ours(shared(&[HANDLING; STAGES])?, size)),
    ("shm, made and read", |size| Ok(Mechanism::Whole(shared(&[HANDLING; STAGES])?, size))),
    ("bare pipes", |size| bare(Medium::Pipe, STAGES, size)),
    ("bare splice", |size| bare(Medium::Splice, STAGES, size)),
    ("pipes", |size| ours(Stages::pipes(STAGES)?, size)),
];

fn bare(medium: Medium, relays: usize, size: usize) -> Result<Mechanism, Failure> {
    Ok(Mechanism::Bare(Bare::new(medium, relays, size)?))
}

fn shared(pairs: &[&str]) -> Result<Stages, Failure> {
    Stages::shared(pairs, SLOTS)
}

fn ours(stages: Stages, size: usize) -> Result<Mechanism, Failure> {
    let body = Body::from(vec![7; size]);
    Ok(Mechanism::Ours(stages, body))
}

type Named = (&'static str, Mechanism);

/// Creates the mechanisms of `all` that the user wants.
fn wanted(
    path: &str,
    all: &[(&'static str, Make)],
    size: usize,
    setting: &LinksSetting,
) -> Result<Vec<Named>, Failure> {
    let mut mechanisms = Vec::new();
    for (name, make) in all.iter().filter(|(name, _)| setting.wants(path, name)) {
        mechanisms.push((*name, make(size)?));
    }
    Ok(mechanisms)
}

/// One process that passes each message back, on the other processor.
fn hops(size: usize, setting: &LinksSetting) -> Result<Vec<Named>, Failure> {
    let mut mechanisms = wanted("hop", &HOPS, size, setting)?;
    for process in mechanisms.iter().flat_map(|(_, mechanism)| mechanism.processes()) {
        crate::setting::pin_process_to_cpu(process, 1);
    }
    for (library, name) in rivals::LIBRARIES.into_iter().filter(|(_, name)| setting.wants("hop", name)) {
        if let Some(program) = &setting.rivals {
            match Rival::start(program, library, size) {
                Ok(rival) => mechanisms.push((name, Mechanism::Rival(rival))),
                Err(error) => println!("SKIPPED: {error}"),
            }
        }
    }
    crate::setting::pin_to_cpu(0);
    Ok(mechanisms)
}

/// Eight processes.
fn chains(size: usize, setting: &LinksSetting) -> Result<Vec<Named>, Failure> {
    wanted("chain", &CHAINS, size, setting)
}

fn table(
    title: &str,
    size: usize,
    mut mechanisms: Vec<Named>,
    setting: &LinksSetting,
    hops: u64,
    rows: &mut Vec<Value>,
) -> Result<(), Failure> {
    let times = take_turns(&mut mechanisms, setting, hops)?;
    for ((name, _), turns) in mechanisms.iter().zip(&times) {
        let mut all = Times::default();
        turns.iter().for_each(|turn| all.append(turn));
        let turns: Vec<f64> = turns.iter().map(|turn| turn.percentile_us(0.5)).collect();
        let (p50, p99) = (median(&turns), all.percentile_us(0.99));
        println!("{size:>9}  {title:<9} {name:<30} {p50:>10.3} {p99:>10.2}");
        rows.push(
            json!({ "bytes": size, "path": title, "mechanism": name, "p50_us": p50, "p99_us": p99, "turns_us": turns }),
        );
    }
    Ok(())
}

/// Returns nanoseconds per message through a chain of stages that are called.
fn direct(stages: usize, size: usize) -> Result<f64, Failure> {
    let text = vec!["null"; stages].join(" | ");
    let pipeline = Pipeline::parse(&text, registry::pairs(), Origin::Local)?;
    let mut make = |used: &PairUse, half: Half, format: &Format| -> StageResult<Box<dyn contract::Link>> {
        Ok(Box::new(::links::Direct::new(used.pair.half(half, &used.options, format, &Site::default())?)))
    };
    let mut chain = Chain::source(&pipeline, &Format::Bytes, &mut make)?;
    let (mut out, at) = (ChainOut::default(), now());
    let mut message = Message::new(Time(1), vec![7; size]);
    let begun = sys::clock::boot_ns();
    for _ in 0..CALLS {
        chain.handle(message, at, &mut out);
        message = out.messages.pop_front().ok_or("a stage kept a message")?;
    }
    Ok((sys::clock::boot_ns() - begun) as f64 / CALLS as f64)
}

/// Runs `links`.
pub(crate) fn run(setting: &LinksSetting) -> Result<Value, Failure> {
    sys::thread::be_punctual();
    let mut rows = Vec::new();
    println!(
        "hop: half a round trip between two processors; chain: {STAGES} stages, from the first to the last."
    );
    println!(
        "Stages pass descriptors on. `handled`: each stage receives the message. `made and read`: creating and"
    );
    println!(
        "reading the body counts; elsewhere it does not. `bare futexes, together`: the processes wake each other and"
    );
    println!("pass no message, the bound for stages that sleep. p50: median of the turns' medians.");
    println!("{} rounds of {} messages, seed {}", setting.rounds, setting.messages, setting.seed);
    println!("{:>9}  {:<9} {:<30} {:>10} {:>10}", "bytes", "", "mechanism", "p50 us", "p99 us");
    let sizes = setting.size.map_or_else(|| SIZES.to_vec(), |only| vec![only]);
    for size in sizes.iter().copied() {
        let (mut with, mut without) = (Vec::new(), Vec::new());
        for _ in 0..setting.rounds {
            with.push(direct(STAGES, size)?);
            without.push(direct(0, size)?);
        }
        let (with, without) = (median(&with), median(&without));
        println!("{size:>9}  {:<9} {:<30} {:>10.4}", "chain", "call", (with - without) / 1e3);
        rows.push(
            json!({ "bytes": size, "path": "chain", "mechanism": "call", "p50_us": (with - without) / 1e3 }),
        );
        let hops_of_one = std::thread::scope(|scope| {
            // A thread of its own: the chains' processes would inherit the pinning.
            scope.spawn(|| table("hop", size, hops(size, setting)?, setting, 2, &mut rows)).join()
        });
        hops_of_one.map_err(|_| "a turn panicked")??;
        table("chain", size, chains(size, setting)?, setting, 1, &mut rows)?;
    }
    judge(&rows, &sizes, setting.seed);
    Ok(json!({ "experiment": "links", "rows": rows }))
}
