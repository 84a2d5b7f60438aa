//! The cost of tracing: two hosts as in `flood` and `latency` with no tracing, one traced message in 64, and every message
//! traced.
//!
//! All turns share one connection and are short. Their order is random, and only turns of the same round are compared: a
//! drift of the machine affects all alike.

use crate::devices::{Count, Echo, Flood, InFlight, Processor, Rally, Window};
use crate::latency::{connection, tcp};
use crate::measure::median;
use crate::ours::{self, Host};
use crate::setting::{Failure, Setting, SizedSetting};
use contract::Body;
use netsim::Rng;
use serde_json::{Value, json};
use std::num::NonZeroU32;
use std::time::Duration;

/// Bytes of a message, and true if it is echoed before the next one.
const LOADS: [(usize, bool); 4] = [(100, false), (1000, false), (1_000_000, false), (100, true)];
/// The traced share of messages.
const SHARES: [Option<NonZeroU32>; 3] = [None, NonZeroU32::new(64), NonZeroU32::new(1)];
/// The duration of a turn: the interval at which `outboard trace` fetches traces and the kernel is asked for timestamps.
const TURN: Duration = Duration::from_millis(250);
/// Turns of each share in a round of the setting.
const TURNS: usize = 12;
/// Rounds at the start that do not count.
const WARM_UP: usize = 1;
/// Samples of the bootstrap.
const DRAWS: usize = 2000;
const SEED: u64 = 1995;

/// The state at the end of a turn: time, received messages, processor time.
#[derive(Clone, Copy)]
struct Mark {
    at_ns: u64,
    messages: u64,
    cpu_ns: u64,
}

/// Returns time and processor time per message in nanoseconds, by round and traced share.
fn turns(setting: &Setting, size: usize, is_echoed: bool) -> Result<Vec<[[f64; 2]; 3]>, Failure> {
    let window = Window::default();
    let body = Body::from(vec![7; size]);
    let places = [0, 1].map(|which| Processor::new(setting, which));
    let (near, far) = connection(setting)?;
    let [near_place, far_place] = places;
    let hosts = if is_echoed {
        let rally = Rally::new(near_place, body, window.clone());
        [
            Host { device: Box::new(rally), socket: near.into() },
            Host { device: Box::new(Echo::new(far_place)), socket: far.into() },
        ]
    } else {
        let flood = Flood::new(near_place, body, usize::MAX, InFlight::new(window.clone(), u64::MAX));
        let count = Count::new(far_place, window.clone());
        [
            Host { device: Box::new(flood), socket: near.into() },
            Host { device: Box::new(count), socket: far.into() },
        ]
    };
    let mut rng = Rng::new(SEED, size as u64);
    let mut order: Vec<usize> = Vec::new();
    for _ in 0..WARM_UP + setting.rounds * TURNS {
        let mut shares = [0, 1, 2];
        (1..shares.len()).for_each(|last| shares.swap(last, rng.up_to(last as u64) as usize));
        order.extend(shares);
    }
    let mut marks: Vec<Mark> = Vec::with_capacity(order.len() + 1);
    let mut next_turn = || {
        let messages = window.received_bytes() / size as u64;
        let (at_ns, cpu_ns) = (sys::clock::boot_ns(), sys::clock::process_cpu_ns());
        marks.push(Mark { at_ns, messages, cpu_ns });
        let next = order.get(marks.len() - 1).map(|share| (SHARES[*share], TURN));
        if next.is_none() {
            window.finish();
        }
        next
    };
    ours::run_in_turns(&tcp(setting, is_echoed)?, hosts, || (), &mut next_turn)?;
    // A round trip is two messages.
    let messages_of_a_trip = if is_echoed { 2.0 } else { 1.0 };
    let taken = |pair: &[Mark]| {
        let messages = (pair[1].messages - pair[0].messages).max(1) as f64 * messages_of_a_trip;
        [pair[1].at_ns - pair[0].at_ns, pair[1].cpu_ns - pair[0].cpu_ns].map(|ns| ns as f64 / messages)
    };
    let all: Vec<[f64; 2]> = marks.windows(2).map(taken).collect();
    let rounds = order.chunks(SHARES.len()).zip(all.chunks(SHARES.len())).skip(WARM_UP);
    Ok(rounds
        .map(|(order, taken)| {
            let mut round = [[0.0; 2]; 3];
            order.iter().zip(taken).for_each(|(share, taken)| round[*share] = *taken);
            round
        })
        .collect())
}

/// Returns the mean of the middle half.
fn midmean(figures: &mut [f64]) -> f64 {
    figures.sort_by(f64::total_cmp);
    let quarter = figures.len() / 4;
    let middle = &figures[quarter..figures.len() - quarter];
    middle.iter().sum::<f64>() / middle.len() as f64
}

/// Returns the additional cost of a traced share within the rounds, in per cent: the midmean of all rounds and its 95 %
/// confidence interval (percentile bootstrap over rounds).
fn cost(rounds: &[[[f64; 2]; 3]], share: usize, figure: usize) -> [f64; 3] {
    let mut ratios: Vec<_> =
        rounds.iter().map(|round| (round[share][figure] / round[0][figure] - 1.0) * 100.0).collect();
    let mut rng = Rng::new(SEED, 1);
    let mut draws: Vec<f64> = (0..DRAWS)
        .map(|_| {
            let mut drawn: Vec<f64> =
                ratios.iter().map(|_| ratios[rng.up_to(ratios.len() as u64 - 1) as usize]).collect();
            midmean(&mut drawn)
        })
        .collect();
    draws.sort_by(f64::total_cmp);
    [midmean(&mut ratios), draws[DRAWS / 40], draws[DRAWS - DRAWS / 40]]
}

fn measure(setting: &Setting, size: usize, is_echoed: bool) -> Result<Value, Failure> {
    let load = format!("{size} B, {}", if is_echoed { "one at a time" } else { "full throughput" });
    let rounds = turns(setting, size, is_echoed)?;
    let mut rows = Vec::new();
    for (share, traced) in SHARES.iter().enumerate() {
        let name = match traced.map(NonZeroU32::get) {
            None => "off".into(),
            Some(1) => "every message".into(),
            Some(one_in) => format!("1/{one_in}"),
        };
        let [time_ns, cpu_ns] =
            [0, 1].map(|figure| median(&rounds.iter().map(|round| round[share][figure]).collect::<Vec<_>>()));
        let [time, cpu] = [0, 1].map(|figure| cost(&rounds, share, figure));
        let shown = |[middle, low, high]: [f64; 3]| match share {
            0 => String::new(),
            _ => format!("{middle:+.2} % [{low:+.2}, {high:+.2}]"),
        };
        println!(
            "{load:<30} {name:<14} {time_ns:>10.0} {:>26} {cpu_ns:>10.0} {:>26}",
            shown(time),
            shown(cpu)
        );
        rows.push(json!({ "traced": name, "time_ns": time_ns, "cpu_ns": cpu_ns,
                          "time_more_percent": time, "cpu_more_percent": cpu }));
    }
    Ok(json!({ "load": load, "rounds": rounds.len(), "rows": rows }))
}

/// Runs `trace-cost`.
pub(crate) fn run(sized: &SizedSetting) -> Result<Value, Failure> {
    let setting = &sized.turns;
    println!(
        "Over loopback TCP ({}), {} turns of {} ms for each traced share; both hosts traced; CPU of both hosts",
        setting.congestion,
        setting.rounds * TURNS,
        TURN.as_millis()
    );
    println!(
        "{:<30} {:<14} {:>10} {:>26} {:>10} {:>26}",
        "", "traced", "ns/msg", "more [95 %]", "CPU ns/msg", "more [95 %]"
    );
    let mut all = Vec::new();
    for (size, is_echoed) in LOADS.into_iter().filter(|(size, _)| sized.includes(*size)) {
        all.push(measure(setting, size, is_echoed)?);
    }
    Ok(
        json!({ "experiment": "trace-cost", "congestion": setting.congestion, "turn_ms": TURN.as_millis() as u64,
               "measured": all }),
    )
}
