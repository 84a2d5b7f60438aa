//! What handing a message on costs: one hop and a chain of eight, by a call, through pipes and in shared memory,
//! beside the bare mechanism in the same run. All take turns, so that what drifts drifts for all.

use crate::Failure;
use crate::links_relay::{Chain as Bare, Means};
use crate::measure::{Times, median};
use crate::ours_links::{HANDLING, PASSING, Stages, now};
use crate::rivals::{self, Rival};
use clap::Args;
use contract::{Body, Format, Half, Message, Site, StageError, Time};
use links::process::{Process, SharedRun};
use pipeline::{Chain, ChainOut, Origin, PairUse, Pipeline};
use runtime::registry;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::Duration;

/// Bytes of a message.
const SIZES: [usize; 5] = [100, 1000, 10_000, 100_000, 1_000_000];
/// Stages of the long chain.
const STAGES: usize = 8;
/// Messages through stages that are called, of a turn.
const CALLS: usize = 200_000;

/// Between turns: a stage that looks for more goes on a moment longer, and would not look for a second if who comes next
/// took the processor from it meanwhile.
const REST: Duration = Duration::from_millis(1);

/// How much is measured.
#[derive(Args, Debug)]
pub(crate) struct LinksSetting {
    /// Turns that all take
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Messages of a turn
    #[arg(long, default_value_t = 300)]
    messages: usize,
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
            Way::Bare(chain) => chain.processes().collect(),
            Way::Ours(stages, _) | Way::Whole(stages, _) => {
                stages.links.iter().filter_map(Process::process_id).collect()
            }
            // They take their places themselves.
            Way::Rival(_) => Vec::new(),
        }
    }

    fn take_part(&self, is_its_turn: bool) {
        if let Way::Bare(chain) = self {
            chain.take_part(is_its_turn);
        }
    }

    fn pass(&mut self) -> Result<(), Failure> {
        match self {
            Way::Bare(chain) => chain.pass(),
            Way::Ours(stages, body) => stages.pass(body.clone()).map(drop),
            Way::Whole(stages, size) => {
                let body = stages.body(*size);
                let back = stages.pass(body)?;
                let sum: u64 = back.chunks().flatten().map(|byte| u64::from(*byte)).sum();
                match sum == *size as u64 * 7 {
                    true => Ok(()),
                    false => Err("a body came back changed".into()),
                }
            }
            Way::Rival(rival) => rival.measure(1).map(drop),
        }
    }

    /// Passes so many messages; adds the whole time of each, divided by `hops`.
    fn turn(&mut self, messages: usize, hops: u64, times: &mut Times) -> Result<(), Failure> {
        if let Way::Rival(rival) = self {
            rival.measure(messages)?.into_iter().for_each(|time| times.add(time));
            return Ok(());
        }
        for _ in 0..messages {
            let begun = sys::clock::boot_ns();
            self.pass()?;
            times.add((sys::clock::boot_ns() - begun) / hops);
        }
        Ok(())
    }
}

impl LinksSetting {
    fn wants(&self, what: &str, way: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| *only == format!("{what}: {way}"))
    }
}

/// Times of each way, a message's whole time divided by `hops`.
fn take_turns(ways: &mut [Named], setting: &LinksSetting, hops: u64) -> Result<Vec<Times>, Failure> {
    let mut times = vec![Times::default(); ways.len()];
    let mut warming = Times::default();
    ways.iter().for_each(|(_, way)| way.take_part(false));
    for round in 0..=setting.rounds {
        for ((_, way), times) in ways.iter_mut().zip(&mut times) {
            way.take_part(true);
            // A turn's first messages warm up, and its first round does.
            way.turn(setting.messages / 10, hops, &mut warming)?;
            way.turn(setting.messages, hops, if round > 0 { times } else { &mut warming })?;
            way.take_part(false);
            std::thread::sleep(REST);
        }
    }
    Ok(times)
}

/// Makes a way that is asked for.
type Make = fn(usize) -> Result<Way, Failure>;

/// One process that hands back.
const HOPS: [(&str, Make); 9] = [
    ("bare eventfd", |size| bare(Means::Eventfd, 1, size)),
    ("bare futex", |size| bare(Means::Futex, 1, size)),
    ("shm, waking", |size| ours(shared(&[PASSING], false)?, size)),
    ("bare spinning", |size| bare(Means::Spin, 1, size)),
    ("bare spinning, our lines", |size| bare(Means::Ring, 1, size)),
    ("shm, spinning", |size| ours(shared(&[PASSING], true)?, size)),
    ("shm, spinning, handled", |size| ours(shared(&[HANDLING], true)?, size)),
    ("bare pipe", |size| bare(Means::Pipe, 1, size)),
    ("pipe", |size| ours(Stages::pipes(1)?, size)),
];

/// Eight processes, wherever the system puts them.
const CHAINS: [(&str, Make); 7] = [
    ("bare eventfds", |size| bare(Means::Eventfd, STAGES, size)),
    ("shm", |size| ours(shared(&[PASSING; STAGES], true)?, size)),
    ("shm, handled", |size| ours(shared(&[HANDLING; STAGES], true)?, size)),
    ("shm, made and read", |size| Ok(Way::Whole(shared(&[HANDLING; STAGES], true)?, size))),
    ("bare pipes", |size| bare(Means::Pipe, STAGES, size)),
    ("bare splice", |size| bare(Means::Splice, STAGES, size)),
    ("pipes", |size| ours(Stages::pipes(STAGES)?, size)),
];

fn bare(means: Means, relays: usize, size: usize) -> Result<Way, Failure> {
    Ok(Way::Bare(Bare::new(means, relays, size)?))
}

fn shared(pairs: &[&str], spins: bool) -> Result<Stages, Failure> {
    Stages::shared(pairs, SharedRun { slots: Some(4), latency: None, spins })
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

fn table(
    title: &str,
    size: usize,
    mut ways: Vec<Named>,
    setting: &LinksSetting,
    hops: u64,
    rows: &mut Vec<Value>,
) -> Result<(), Failure> {
    let times = take_turns(&mut ways, setting, hops)?;
    for ((name, _), times) in ways.iter().zip(&times) {
        let (p50, p99) = (times.percentile_us(0.5), times.percentile_us(0.99));
        println!("{size:>9}  {title:<9} {name:<24} {p50:>10.2} {p99:>10.2}");
        rows.push(json!({ "bytes": size, "what": title, "way": name, "p50_us": p50, "p99_us": p99 }));
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
    println!("unless it says otherwise");
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
        table("chain", size, wanted("chain", &CHAINS, size, setting)?, setting, 1, &mut rows)?;
    }
    judge(&rows);
    Ok(json!({ "experiment": "links", "rows": rows }))
}

/// Prints each goal's ratio.
fn judge(rows: &[Value]) {
    let figure = |size: usize, what: &str, way: &str| {
        let row = rows.iter().find(|row| row["bytes"] == size && row["what"] == what && row["way"] == way);
        row.and_then(|row| row["p50_us"].as_f64())
    };
    println!();
    println!("{:<58} {:>8} {:>8}", "goal (medians)", "wanted", "is");
    let say = |what: String, wanted: &str, is: Option<f64>| {
        if let Some(is) = is {
            println!("{what:<58} {wanted:>8} {is:>8.2}");
        }
    };
    let ratio = |size, what, ours, bare| Some(figure(size, what, ours)? / figure(size, what, bare)?);
    for size in SIZES {
        say(format!("8 calls, {size} B, ns"), "< 100", figure(size, "chain", "call").map(|us| us * 1e3));
        let least = |a: Option<f64>, b: Option<f64>| a.into_iter().chain(b).min_by(f64::total_cmp);
        let wake = least(
            ratio(size, "hop", "shm, waking", "bare eventfd"),
            ratio(size, "hop", "shm, waking", "bare futex"),
        );
        say(format!("shm hop by the bare futex or eventfd, {size} B"), "<= 1.3", wake);
        for (_, rival) in rivals::MEANS {
            let ratio = ratio(size, "hop", "shm, waking", rival);
            say(format!("shm hop, waking, by {rival}, {size} B"), "< 1", ratio);
        }
        say(
            format!("shm hop, spinning, by bare spinning, {size} B"),
            "<= 2",
            ratio(size, "hop", "shm, spinning", "bare spinning"),
        );
        say(
            format!("the same by bare spinning on our lines, {size} B"),
            "",
            ratio(size, "hop", "shm, spinning", "bare spinning, our lines"),
        );
        say(
            format!("the same with a stage that is handed each, {size} B"),
            "",
            ratio(size, "hop", "shm, spinning, handled", "bare spinning"),
        );
        say(
            format!("pipe hop by the bare pipe, {size} B"),
            "<= 1.3",
            ratio(size, "hop", "pipe", "bare pipe"),
        );
        say(
            format!("8 pipe stages by bare splicing, {size} B"),
            "",
            ratio(size, "chain", "pipes", "bare splice"),
        );
        say(
            format!("8 shm stages by bare descriptors, {size} B"),
            "<= 1.3",
            ratio(size, "chain", "shm", "bare eventfds"),
        );
        say(
            format!("8 bare whole-message pipes by 8 shm stages, {size} B"),
            ">= 60 *",
            ratio(size, "chain", "bare pipes", "shm"),
        );
        say(
            format!("the same pipes by 8 that are handed each, {size} B"),
            "",
            ratio(size, "chain", "bare pipes", "shm, handled"),
        );
        say(
            format!("the same pipes by bare descriptors, {size} B"),
            "",
            ratio(size, "chain", "bare pipes", "bare eventfds"),
        );
        say(
            format!("the same pipes by 8 shm stages, made and read, {size} B"),
            "",
            ratio(size, "chain", "bare pipes", "shm, made and read"),
        );
    }
    let (small, large) = (figure(100, "hop", "shm, waking"), figure(1_000_000, "hop", "shm, waking"));
    say("shm hop, 1 MB by 100 B".into(), "<= 1.2", large.zip(small).map(|(large, small)| large / small));
    println!("* at 1 MB");
}
