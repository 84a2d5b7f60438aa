//! What handing a message on costs: one hop and a chain of eight, by a call, through pipes and in shared memory,
//! beside the bare mechanism in the same run. All take short turns, in an order that is drawn anew for each round, so that
//! what drifts drifts for all.

use crate::Failure;
use crate::links_judge::judge;
use crate::links_relay::{Chain as Bare, Means};
use crate::measure::{Times, median};
use crate::ours_links::{HANDLING, PASSING, Stages, now};
use crate::rivals::{self, Rival};
use clap::Args;
use contract::{Body, Format, Half, Message, Site, StageError, Time};
use links::process::{Process, SharedRun};
use netsim::Rng;
use pipeline::{Chain, ChainOut, Origin, PairUse, Pipeline};
use runtime::registry;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::Duration;

/// Bytes of a message.
pub(crate) const SIZES: [usize; 5] = [100, 1000, 10_000, 100_000, 1_000_000];
/// Stages of the long chain.
const STAGES: usize = 8;
/// Messages through stages that are called, of a turn.
const CALLS: usize = 200_000;

/// The shortest turn.
const TURN_NS: u64 = 1_000_000;
/// Between turns: a stage that looks for more goes on a moment longer, and would not look for a second if who comes next
/// took the processor from it meanwhile.
const REST: Duration = Duration::from_millis(1);

/// How much is measured.
#[derive(Args, Debug)]
pub(crate) struct LinksSetting {
    /// Rounds, in each of which all take a turn
    #[arg(long, default_value_t = 30)]
    rounds: usize,
    /// Messages of a turn
    #[arg(long, default_value_t = 60)]
    messages: usize,
    /// What the order of turns is drawn by, and the samples of them by which figures are judged
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Measure one message size only, bytes
    #[arg(long)]
    size: Option<usize>,
    /// Measure only what is so named, such as `chain: shm`; again for more
    #[arg(long, value_name = "WHAT: WAY")]
    only: Vec<String>,
    /// Measure hops over iceoryx2 and zenoh, too, by the program of `bench/rivals`
    #[arg(long, value_name = "PROGRAM")]
    rivals: Option<PathBuf>,
}

/// Something that a message passes.
enum Way {
    Bare(Bare),
    /// The same, with a clock that is read once a turn, as a path does.
    Clocked(Bare),
    /// A body that is made once, outside the clock.
    Ours(Stages, Body),
    /// A body that is made and read inside the clock.
    Whole(Stages, usize),
    /// Of another project: it measures itself.
    Rival(Rival),
}

impl Way {
    fn processes(&self) -> Vec<u32> {
        match self {
            Way::Bare(chain) | Way::Clocked(chain) => chain.processes().collect(),
            Way::Ours(stages, _) | Way::Whole(stages, _) => {
                stages.links.iter().filter_map(Process::process_id).collect()
            }
            // They take their places themselves.
            Way::Rival(_) => Vec::new(),
        }
    }

    fn take_part(&self, is_its_turn: bool) {
        if let Way::Bare(chain) | Way::Clocked(chain) = self {
            chain.take_part(is_its_turn);
        }
    }

    /// Passes a message; how long that took, nanoseconds.
    fn pass(&mut self) -> Result<u64, Failure> {
        let took = |begun: u64| sys::clock::boot_ns() - begun;
        match self {
            Way::Bare(chain) => {
                let begun = sys::clock::boot_ns();
                chain.pass()?;
                Ok(took(begun))
            }
            Way::Clocked(chain) => {
                let begun = sys::clock::boot_ns();
                chain.pass()?;
                std::hint::black_box(sys::clock::boot_ns());
                Ok(took(begun))
            }
            Way::Ours(stages, body) => {
                let message = Message::new(Time(1), body.clone());
                let begun = sys::clock::boot_ns();
                let back = stages.pass(Time(begun), message)?;
                let took = took(begun);
                drop(back);
                Ok(took)
            }
            Way::Whole(stages, size) => {
                let begun = sys::clock::boot_ns();
                let message = Message::new(Time(1), stages.body(*size));
                let back = stages.pass(Time(begun), message)?;
                let sum: u64 = back.body.chunks().flatten().map(|byte| u64::from(*byte)).sum();
                match sum == *size as u64 * 7 {
                    true => Ok(took(begun)),
                    false => Err("a body came back changed".into()),
                }
            }
            Way::Rival(rival) => Ok(rival.measure(1)?.into_iter().sum()),
        }
    }

    /// Passes so many messages, or more if those take less than [`TURN_NS`]; adds the whole time of each, divided by
    /// `hops`.
    fn turn(&mut self, messages: usize, hops: u64, times: &mut Times) -> Result<(), Failure> {
        if let Way::Rival(rival) = self {
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
    fn wants(&self, what: &str, way: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| *only == format!("{what}: {way}"))
    }
}

/// Times of each way in each round, a message's whole time divided by `hops`.
fn take_turns(ways: &mut [Named], setting: &LinksSetting, hops: u64) -> Result<Vec<Vec<Times>>, Failure> {
    let mut times = vec![Vec::with_capacity(setting.rounds); ways.len()];
    let mut order: Vec<usize> = (0..ways.len()).collect();
    let mut rng = Rng::new(setting.seed, hops);
    ways.iter().for_each(|(_, way)| way.take_part(false));
    for round in 0..=setting.rounds {
        // Whoever comes before another, comes behind it as often.
        for place in (1..order.len()).rev() {
            order.swap(place, rng.up_to(place as u64) as usize);
        }
        for &index in &order {
            let (_, way) = &mut ways[index];
            let (mut turn, mut warming) = (Times::with_capacity(setting.messages), Times::default());
            way.take_part(true);
            // A turn's first messages warm up, and its first round does.
            way.turn(setting.messages / 4, hops, &mut warming)?;
            way.turn(setting.messages, hops, &mut turn)?;
            way.take_part(false);
            if round > 0 {
                times[index].push(turn);
            }
            std::thread::sleep(REST);
        }
    }
    Ok(times)
}

/// Makes a way that is asked for.
type Make = fn(usize) -> Result<Way, Failure>;

/// One process that hands back.
const HOPS: [(&str, Make); 10] = [
    ("bare eventfd", |size| bare(Means::Eventfd, 1, size)),
    ("bare futex", |size| bare(Means::Futex, 1, size)),
    ("shm, waking", |size| ours(shared(&[PASSING], false)?, size)),
    ("bare spinning", |size| bare(Means::Spin, 1, size)),
    ("bare spinning, our lines", |size| bare(Means::Ring, 1, size)),
    ("bare spinning, and clock", |size| Ok(Way::Clocked(Bare::new(Means::Ring, 1, size)?))),
    ("shm, spinning", |size| ours(shared(&[PASSING], true)?, size)),
    ("shm, spinning, handled", |size| ours(shared(&[HANDLING], true)?, size)),
    ("bare pipe", |size| bare(Means::Pipe, 1, size)),
    ("pipe", |size| ours(Stages::pipes(1)?, size)),
];

/// Eight processes, wherever the system puts them.
const CHAINS: [(&str, Make); 8] = [
    ("bare eventfds", |size| bare(Means::Eventfd, STAGES, size)),
    ("bare futexes, together", |size| bare(Means::Together, STAGES, size)),
    ("shm", |size| ours(shared(&[PASSING; STAGES], true)?, size)),
    ("shm, handled", |size| ours(shared(&[HANDLING; STAGES], true)?, size)),
    ("shm, made and read", |size| Ok(Way::Whole(shared(&[HANDLING; STAGES], true)?, size))),
    ("bare pipes", |size| bare(Means::Pipe, STAGES, size)),
    ("bare splice", |size| bare(Means::Splice, STAGES, size)),
    ("pipes", |size| ours(Stages::pipes(STAGES)?, size)),
];

/// Eight processes at real-time priority, for which one needs a privilege.
const REALTIME: [(&str, Make); 3] = [
    ("bare futexes, realtime", |size| bare_realtime(Means::Together, size)),
    ("shm, realtime", |size| ours(realtime(&[PASSING; STAGES])?, size)),
    ("bare pipes, realtime", |size| bare_realtime(Means::Pipe, size)),
];

fn bare(means: Means, relays: usize, size: usize) -> Result<Way, Failure> {
    Ok(Way::Bare(Bare::new(means, relays, size)?))
}

fn bare_realtime(means: Means, size: usize) -> Result<Way, Failure> {
    Ok(Way::Bare(Bare::realtime(means, STAGES, size)?))
}

fn shared(pairs: &[&str], spins: bool) -> Result<Stages, Failure> {
    Stages::shared(pairs, SharedRun { slots: Some(4), latency: None, spins, is_realtime: false })
}

fn realtime(pairs: &[&str]) -> Result<Stages, Failure> {
    Stages::shared(pairs, SharedRun { slots: Some(4), latency: None, spins: true, is_realtime: true })
}

/// A body that is made once, outside the clock.
fn ours(stages: Stages, size: usize) -> Result<Way, Failure> {
    let body = stages.body(size);
    Ok(Way::Ours(stages, body))
}

type Named = (&'static str, Way);

/// Those of `all` that the user wants.
fn wanted(
    what: &str,
    all: &[(&'static str, Make)],
    size: usize,
    setting: &LinksSetting,
) -> Result<Vec<Named>, Failure> {
    let mut ways = Vec::new();
    for (name, make) in all.iter().filter(|(name, _)| setting.wants(what, name)) {
        ways.push((*name, make(size)?));
    }
    Ok(ways)
}

/// One process that hands back, on the other processor.
fn hops(size: usize, setting: &LinksSetting) -> Result<Vec<Named>, Failure> {
    let mut ways = wanted("hop", &HOPS, size, setting)?;
    // Only now: who begins on one processor alone takes it for all there are.
    for process in ways.iter().flat_map(|(_, way)| way.processes()) {
        sys::thread::pin_process_to_cpu(process, 1);
    }
    for (means, name) in rivals::MEANS.into_iter().filter(|(_, name)| setting.wants("hop", name)) {
        if let Some(program) = &setting.rivals {
            match Rival::start(program, means, size) {
                Ok(rival) => ways.push((name, Way::Rival(rival))),
                Err(error) => println!("SKIPPED: {error}"),
            }
        }
    }
    sys::thread::pin_to_cpu(0);
    Ok(ways)
}

/// Eight processes, at either priority.
fn chains(size: usize, setting: &LinksSetting) -> Result<Vec<Named>, Failure> {
    let mut ways = wanted("chain", &CHAINS, size, setting)?;
    // In a thread that ends at once.
    match std::thread::spawn(sys::thread::be_urgent).join() {
        Ok(true) => ways.extend(wanted("chain", &REALTIME, size, setting)?),
        _ => println!("SKIPPED: chains at real-time priority: it may not be asked for"),
    }
    Ok(ways)
}

fn table(
    title: &str,
    size: usize,
    mut ways: Vec<Named>,
    setting: &LinksSetting,
    hops: u64,
    rows: &mut Vec<Value>,
) -> Result<(), Failure> {
    let times = take_turns(&mut ways, setting, hops)?;
    for ((name, _), turns) in ways.iter().zip(&times) {
        let mut all = Times::default();
        turns.iter().for_each(|turn| all.append(turn));
        let turns: Vec<f64> = turns.iter().map(|turn| turn.percentile_us(0.5)).collect();
        let (p50, p99) = (median(&turns), all.percentile_us(0.99));
        println!("{size:>9}  {title:<9} {name:<24} {p50:>10.3} {p99:>10.2}");
        rows.push(
            json!({ "bytes": size, "what": title, "way": name, "p50_us": p50, "p99_us": p99, "turns_us": turns }),
        );
    }
    Ok(())
}

/// Nanoseconds a message through a chain of stages that are called.
fn direct(stages: usize, size: usize) -> Result<f64, Failure> {
    let text = vec!["null"; stages].join(" | ");
    let pipeline = Pipeline::parse(&text, registry::pairs(), Origin::Local)?;
    let mut make =
        |used: &PairUse, half: Half, format: &Format| -> Result<Box<dyn contract::Link>, StageError> {
            Ok(Box::new(links::Direct::new(used.pair.half(half, &used.options, format, &Site::default())?)))
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

/// Measures and prints; gives the figures.
pub(crate) fn run(setting: &LinksSetting) -> Result<Value, Failure> {
    sys::thread::be_punctual();
    let mut rows = Vec::new();
    println!("One hop (half of there and back, two processors), and all of a chain of {STAGES} stages");
    println!(
        "that pass messages on, unread unless they are `handled` or `read`; bodies are made and read outside the clock"
    );
    println!(
        "unless it says otherwise; {} rounds of {} messages; p50: the median of all turns' medians",
        setting.rounds, setting.messages
    );
    println!("{:>9}  {:<9} {:<24} {:>10} {:>10}", "bytes", "", "by", "p50 us", "p99 us");
    for size in SIZES.into_iter().filter(|size| setting.size.is_none_or(|only| only == *size)) {
        let (mut with, mut without) = (Vec::new(), Vec::new());
        for _ in 0..setting.rounds {
            with.push(direct(STAGES, size)?);
            without.push(direct(0, size)?);
        }
        let (with, without) = (median(&with), median(&without));
        println!("{size:>9}  {:<9} {:<24} {:>10.4}", "chain", "call", (with - without) / 1e3);
        rows.push(json!({ "bytes": size, "what": "chain", "way": "call", "p50_us": (with - without) / 1e3 }));
        let hops_of_one = std::thread::scope(|scope| {
            // Pinned, this thread would pin the chains' processes, too.
            scope.spawn(|| table("hop", size, hops(size, setting)?, setting, 2, &mut rows)).join()
        });
        hops_of_one.map_err(|_| "a turn panicked")??;
        table("chain", size, chains(size, setting)?, setting, 1, &mut rows)?;
    }
    judge(&rows, setting.seed);
    Ok(json!({ "experiment": "links", "rows": rows }))
}
