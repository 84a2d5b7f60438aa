//! Messages through stages on shared memory whose processes are killed at random. The experiment checks every byte and counts
//! every slot.

use crate::links::{HANDLING, PASSING, Stages, now};
use crate::setting::Failure;
use clap::Args;
use contract::{Link, Message, Time};
use modules::process::SharedRun;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

/// The longest time without a message.
const PATIENCE: Duration = Duration::from_secs(60);
/// The interval of large messages.
const LARGE_EVERY: u64 = 997;
const LARGE_BYTES: u64 = 300_000;
const SMALL_BYTES: u64 = 2000;

/// The settings of `soak-shm`.
#[derive(Args, Debug)]
pub(crate) struct SoakSetting {
    /// Messages
    #[arg(long, default_value_t = 5_400_000)]
    messages: u64,
    /// Processes to kill
    #[arg(long, default_value_t = 500)]
    kills: u64,
    /// Stages
    #[arg(long, default_value_t = 3)]
    stages: usize,
    /// Seed of kills and sizes
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Returns the random number of `index`.
fn random(seed: u64, index: u64) -> u64 {
    let mut state = seed ^ index.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}

/// Returns the body of message `index`, with its own length and bytes.
fn body(seed: u64, index: u64) -> Vec<u8> {
    let random = random(seed, index);
    let most = if index % LARGE_EVERY == 5 { LARGE_BYTES } else { SMALL_BYTES };
    let words = (0..=random % most / 8).map(|word| random.wrapping_add(word.wrapping_mul(0x0101_0301)));
    let mut bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    bytes.truncate((random % most) as usize);
    bytes
}

/// The longest wait for slots that a running process releases, and the interval of checks.
const RELEASE_MAX: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(1);

/// Runs `soak-shm`. A wrong byte or a lost slot is an error.
pub(crate) fn run(setting: &SoakSetting) -> Result<Value, Failure> {
    let SoakSetting { messages, kills, stages, seed } = *setting;
    // Every other stage receives its messages; the others pass them on where they are.
    let pairs: Vec<_> = (0..stages).map(|stage| [PASSING, HANDLING][stage % 2]).collect();
    let mut run = Stages::shared(&pairs, SharedRun::default())?;
    let mut at: Vec<u64> = (0..kills).map(|kill| random(!seed, kill) % messages.max(1)).collect();
    at.sort_unstable();
    let mut at = at.into_iter().peekable();
    let (mut sent, mut received, mut killed, mut incidents) = (0, 0, 0, 0);
    let mut drops = BTreeMap::<&str, u64>::new();
    let (begun, mut received_at, mut has_ended) = (now(), now(), false);
    while !has_ended {
        while sent < messages && run.has_room() {
            run.hand(Message::new(Time(sent), body(seed, sent)))?;
            sent += 1;
        }
        if at.next_if(|at| *at <= received).is_some() {
            let victim = (random(seed, received) % stages as u64) as usize;
            if let Some(pid) = run.links[victim].process_id().and_then(|id| Pid::from_raw(id as i32)) {
                // The process may have exited.
                killed += u64::from(kill_process(pid, Signal::KILL).is_ok());
            }
        }
        if sent == messages && !run.links[0].is_ending() && received + drops.values().sum::<u64>() >= messages
        {
            run.end()?;
        }
        let out = run.collect()?;
        for (_, message) in out.messages.drain(..) {
            if message.created.0 != received || message.body.into_bytes() != body(seed, received) {
                return Err(format!("message {received} is changed or out of order (seed {seed})").into());
            }
            (received, received_at) = (received + 1, now());
        }
        for dropped in out.drops.drain(..) {
            *drops.entry(dropped.reason).or_default() += dropped.count;
        }
        incidents += run.links.iter_mut().map(|link| link.incidents().len()).sum::<usize>();
        has_ended = sent == messages && received >= messages && !run.links[0].is_ending();
        if now().since(received_at) > PATIENCE {
            return Err(format!("no message for {PATIENCE:?} after message {received} (seed {seed})").into());
        }
        let may_send = sent < messages && run.has_room();
        if !has_ended && !may_send {
            run.wait()?;
        }
    }
    let figure = |key: &str| {
        let figures = run.links[0].report();
        figures.iter().find(|(name, _)| *name == key).map_or(-1.0, |(_, value)| *value)
    };
    // A stage passes a message on before it releases the slot.
    let ended = now();
    while figure("slots in use") != 0.0 && now().since(ended) < RELEASE_MAX {
        std::thread::sleep(LOOK);
    }
    let (unreleased, starts) = (figure("slots in use"), figure("process starts"));
    let seconds = now().since(begun).as_secs_f64();
    println!(
        "{received} messages through {stages} stages in {seconds:.1} s; {killed} processes killed, {starts} \
         started; all bytes right; slots not released: {unreleased}; dropped: {drops:?}"
    );
    if unreleased != 0.0 || !drops.is_empty() || received != messages {
        return Err(
            format!("{unreleased} slots lost, {drops:?} dropped, {received} of {messages} received").into()
        );
    }
    Ok(json!({
        "experiment": "soak-shm", "messages": received, "stages": stages, "killed": killed, "starts": starts,
        "incidents": incidents, "slots_lost": unreleased, "seconds": seconds,
    }))
}
