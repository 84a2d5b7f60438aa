//! Messages through stages on shared memory whose processes are killed at random: every byte checked, every slot
//! counted.

use crate::Failure;
use crate::ours_links::{HANDLING, PASSING, Stages, now};
use clap::Args;
use contract::{Link, Message, Time};
use links::process::SharedRun;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

/// Longest time without a message.
const PATIENCE: Duration = Duration::from_secs(60);
/// One in so many messages is large.
const LARGE_EVERY: u64 = 997;
const LARGE_BYTES: u64 = 300_000;
const SMALL_BYTES: u64 = 2000;

/// How long, and how hard.
#[derive(Args, Debug)]
pub(crate) struct SoakSetting {
    /// Messages; 24 hours of a device of 62.5 Hz are 5,400,000
    #[arg(long, default_value_t = 5_400_000)]
    messages: u64,
    /// Processes that are killed meanwhile
    #[arg(long, default_value_t = 500)]
    kills: u64,
    /// Stages
    #[arg(long, default_value_t = 3)]
    stages: usize,
    /// What the kills and the sizes follow
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// A number of the stream that belongs to `index`.
fn random(seed: u64, index: u64) -> u64 {
    let mut state = seed ^ index.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}

/// Message number `index`: of its own length, its bytes all of its own.
fn body(seed: u64, index: u64) -> Vec<u8> {
    let random = random(seed, index);
    let most = if index % LARGE_EVERY == 5 { LARGE_BYTES } else { SMALL_BYTES };
    let words = (0..=random % most / 8).map(|word| random.wrapping_add(word.wrapping_mul(0x0101_0301)));
    let mut bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    bytes.truncate((random % most) as usize);
    bytes
}

/// Slots that a running process gives back are back by then; looked at so often.
const GIVING_BACK: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(1);

/// Runs it; what is wrong is an error.
pub(crate) fn run(setting: &SoakSetting) -> Result<Value, Failure> {
    let SoakSetting { messages, kills, stages, seed } = *setting;
    // Every other stage holds what it is handed, the others hand on where it lies.
    let pairs: Vec<_> = (0..stages).map(|stage| [PASSING, HANDLING][stage % 2]).collect();
    let mut run =
        Stages::shared(&pairs, SharedRun { slots: None, latency: None, spins: true, is_realtime: false })?;
    let mut at: Vec<u64> = (0..kills).map(|kill| random(!seed, kill) % messages.max(1)).collect();
    at.sort_unstable();
    let mut at = at.into_iter().peekable();
    let (mut fed, mut came, mut killed, mut incidents) = (0, 0, 0, 0);
    let mut drops = BTreeMap::<&str, u64>::new();
    let (begun, mut moved_at, mut has_ended) = (now(), now(), false);
    while !has_ended {
        while fed < messages && run.has_room() {
            run.hand(Message::new(Time(fed), body(seed, fed)))?;
            fed += 1;
        }
        if at.next_if(|at| *at <= came).is_some() {
            let victim = (random(seed, came) % stages as u64) as usize;
            if let Some(pid) = run.links[victim].process_id().and_then(|id| Pid::from_raw(id as i32)) {
                // It may be gone by itself.
                killed += u64::from(kill_process(pid, Signal::KILL).is_ok());
            }
        }
        if fed == messages && !run.links[0].is_ending() && came + drops.values().sum::<u64>() >= messages {
            run.end()?;
        }
        let out = run.collect()?;
        for (_, message) in out.messages.drain(..) {
            if message.created.0 != came || message.body.into_bytes() != body(seed, came) {
                return Err(format!("message {came} came as another, or changed (seed {seed})").into());
            }
            (came, moved_at) = (came + 1, now());
        }
        for dropped in out.drops.drain(..) {
            *drops.entry(dropped.reason).or_default() += dropped.count;
        }
        incidents += run.links.iter_mut().map(|link| link.incidents().len()).sum::<usize>();
        has_ended = fed == messages && came >= messages && !run.links[0].is_ending();
        if now().since(moved_at) > PATIENCE {
            return Err(format!("nothing came for {PATIENCE:?} behind message {came} (seed {seed})").into());
        }
        let may_feed = fed < messages && run.has_room();
        if !has_ended && !may_feed {
            run.wait()?;
        }
    }
    let figure = |wanted: &str| {
        let figures = run.links[0].report();
        figures.iter().find(|(name, _)| *name == wanted).map_or(-1.0, |(_, value)| *value)
    };
    // A stage shows a message before it gives back what that lay in.
    let ended = now();
    while figure("slots in use") != 0.0 && now().since(ended) < GIVING_BACK {
        std::thread::sleep(LOOK);
    }
    let (leaked, starts) = (figure("slots in use"), figure("process starts"));
    let seconds = now().since(begun).as_secs_f64();
    println!(
        "{came} messages through {stages} stages in {seconds:.1} s; {killed} processes killed, runs started {starts} \
         times; each byte as it was; slots not given back: {leaked}; dropped: {drops:?}"
    );
    if leaked != 0.0 || !drops.is_empty() || came != messages {
        return Err(format!("{leaked} slots lost, {drops:?} dropped, {came} of {messages} came").into());
    }
    Ok(json!({
        "experiment": "soak-shm", "messages": came, "stages": stages, "killed": killed, "starts": starts,
        "incidents": incidents, "slots_lost": leaked, "seconds": seconds,
    }))
}
