//! What tracing costs the messages that pass: two hosts as in `flood` and `latency`, traced not at all, one
//! message in 64, and every message. All in one connection, tracing being switched on and off in it, in short turns
//! whose order is drawn: what drifts drifts for all. What is compared are the turns of one round.

use crate::devices::{Count, Echo, Flood, InFlight, Place, Rally, Window};
use crate::latency::{connection, tcp};
use crate::measure::median;
use crate::ours::{self, Host};
use crate::{Failure, Setting};
use contract::Body;
use netsim::Rng;
use serde_json::{Value, json};
use std::num::NonZeroU32;
use std::time::Duration;

/// Bytes of a message, and whether it is echoed before the next is made.
const LOADS: [(usize, bool); 4] = [(100, false), (1000, false), (1_000_000, false), (100, true)];
/// One message in so many is traced.
const WAYS: [Option<NonZeroU32>; 3] = [None, NonZeroU32::new(64), NonZeroU32::new(1)];
/// As often as `outboard trace` fetches what was traced, and as the kernel is asked to stamp what arrives.
const TURN: Duration = Duration::from_millis(250);
/// Times that each way has its turn, in a round of the setting.
const TURNS: usize = 12;
/// What is drawn before, each way once, counts for nothing.
const WARM_UP: usize = 1;
/// Draws of the bootstrap.
const DRAWS: usize = 2000;
const SEED: u64 = 1995;

/// What stood at the end of a turn: nanoseconds, messages that came, nanoseconds of both processors.
#[derive(Clone, Copy)]
struct Mark {
    at_ns: u64,
    messages: u64,
    cpu_ns: u64,
}

/// Each round's turns, by the way: time and processor time a message, nanoseconds.
fn turns(setting: &Setting, size: usize, is_echoed: bool) -> Result<Vec<[[f64; 2]; 3]>, Failure> {
    let window = Window::default();
    let body = Body::from(vec![7; size]);
    let places = [0, 1].map(|which| Place::new(setting, which));
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
        let mut ways = [0, 1, 2];
        (1..ways.len()).for_each(|last| ways.swap(last, rng.up_to(last as u64) as usize));
        order.extend(ways);
    }
    let mut marks: Vec<Mark> = Vec::with_capacity(order.len() + 1);
    let mut next_turn = || {
        let messages = window.received_bytes() / size as u64;
        let (at_ns, cpu_ns) = (sys::clock::boot_ns(), sys::clock::process_cpu_ns());
        marks.push(Mark { at_ns, messages, cpu_ns });
        let next = order.get(marks.len() - 1).map(|way| (WAYS[*way], TURN));
        if next.is_none() {
            window.finish();
        }
        next
    };
    ours::run_in_turns(&tcp(setting, is_echoed)?, hosts, || setting.be_broker(), &mut next_turn)?;
    // There and back are two.
    let halves = if is_echoed { 2.0 } else { 1.0 };
    let taken = |pair: &[Mark]| {
        let messages = (pair[1].messages - pair[0].messages).max(1) as f64 * halves;
        [pair[1].at_ns - pair[0].at_ns, pair[1].cpu_ns - pair[0].cpu_ns].map(|ns| ns as f64 / messages)
    };
    let all: Vec<[f64; 2]> = marks.windows(2).map(taken).collect();
    let rounds = order.chunks(WAYS.len()).zip(all.chunks(WAYS.len())).skip(WARM_UP);
    Ok(rounds
        .map(|(order, taken)| {
            let mut round = [[0.0; 2]; 3];
            order.iter().zip(taken).for_each(|(way, taken)| round[*way] = *taken);
            round
        })
        .collect())
}

/// The mean of the middle half.
fn midmean(figures: &mut [f64]) -> f64 {
    figures.sort_by(f64::total_cmp);
    let quarter = figures.len() / 4;
    let middle = &figures[quarter..figures.len() - quarter];
    middle.iter().sum::<f64>() / middle.len() as f64
}

/// What a way took beside no tracing in the same round, percent more: the midmean of all rounds and its 95 %
/// confidence interval (percentile bootstrap over rounds).
fn cost(rounds: &[[[f64; 2]; 3]], way: usize, figure: usize) -> [f64; 3] {
    let mut ratios: Vec<_> =
        rounds.iter().map(|round| (round[way][figure] / round[0][figure] - 1.0) * 100.0).collect();
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
    let what = format!("{size} B, {}", if is_echoed { "one way" } else { "as fast as it goes" });
    let rounds = turns(setting, size, is_echoed)?;
    let mut rows = Vec::new();
    for (way, traced) in WAYS.iter().enumerate() {
        let name = match traced.map(NonZeroU32::get) {
            None => "off".into(),
            Some(1) => "every message".into(),
            Some(one_in) => format!("1/{one_in}"),
        };
        let [time_ns, cpu_ns] =
            [0, 1].map(|figure| median(&rounds.iter().map(|round| round[way][figure]).collect::<Vec<_>>()));
        let [time, cpu] = [0, 1].map(|figure| cost(&rounds, way, figure));
        let shown = |[middle, low, high]: [f64; 3]| match way {
            0 => String::new(),
            _ => format!("{middle:+.2} % [{low:+.2}, {high:+.2}]"),
        };
        println!(
            "{what:<30} {name:<14} {time_ns:>10.0} {:>26} {cpu_ns:>10.0} {:>26}",
            shown(time),
            shown(cpu)
        );
        rows.push(json!({ "traced": name, "time_ns": time_ns, "cpu_ns": cpu_ns,
                          "time_more_percent": time, "cpu_more_percent": cpu }));
    }
    Ok(json!({ "what": what, "rounds": rounds.len(), "rows": rows }))
}

/// Measures and prints; gives the figures.
pub(crate) fn run(setting: &Setting) -> Result<Value, Failure> {
    println!(
        "Over loopback TCP ({}), {} turns of {} ms each way; both hosts traced; CPU of both",
        setting.congestion,
        setting.rounds * TURNS,
        TURN.as_millis()
    );
    println!(
        "{:<30} {:<14} {:>10} {:>26} {:>10} {:>26}",
        "", "traced", "ns/msg", "more [95 %]", "CPU ns/msg", "more [95 %]"
    );
    let mut all = Vec::new();
    for (size, is_echoed) in LOADS {
        if setting.size.is_none_or(|only| only == size) {
            all.push(measure(setting, size, is_echoed)?);
        }
    }
    Ok(
        json!({ "experiment": "trace-cost", "congestion": setting.congestion, "turn_ms": TURN.as_millis() as u64,
               "urgent": setting.urgent, "measured": all }),
    )
}
