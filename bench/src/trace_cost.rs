//! What tracing costs the messages that pass: two hosts as in `flood` and `latency`, traced not at all, one
//! message in 64, and every message, in turns. What is compared are turns that stood side by side.

use crate::flood::{self, Load};
use crate::latency::{self, connection, tcp};
use crate::measure::{median, used};
use crate::{Failure, Setting};
use serde_json::{Value, json};
use std::num::NonZeroU32;

/// Messages a turn and bytes of each: sent as fast as they go.
const LOADS: [(usize, usize); 3] = [(600_000, 100), (400_000, 1000), (3000, 1_000_000)];
/// Messages there and back a turn, and bytes of each.
const PINGS: (usize, usize) = (20_000, 100);
/// One message in so many is traced.
const WAYS: [Option<NonZeroU32>; 3] = [None, NonZeroU32::new(64), NonZeroU32::new(1)];

/// A way of moving messages, whose time and processor time a message are measured, nanoseconds.
type Turn<'a> = dyn Fn(Option<NonZeroU32>) -> Result<[f64; 2], Failure> + 'a;

fn stream(setting: &Setting, load: Load, traced: Option<NonZeroU32>) -> Result<[f64; 2], Failure> {
    let mut link = tcp(setting, false)?;
    link.traced = traced;
    let (near, far) = connection(setting)?;
    let turn = flood::our_turn(setting, &link, [near.into(), far.into()], load)?;
    let messages = load.messages as f64;
    Ok([turn.nanoseconds as f64 / messages, turn.used.cpu_ns as f64 / messages])
}

fn ping(setting: &Setting, traced: Option<NonZeroU32>) -> Result<[f64; 2], Failure> {
    let mut link = tcp(setting, true)?;
    link.traced = traced;
    let (count, size) = PINGS;
    let (times, used) = used(|| latency::our_turn(setting, &link, size, count))?;
    Ok([times.percentile_us(0.5) * 1e3, used.cpu_ns as f64 / (2 * count) as f64])
}

/// The median of what each turn took beside the one without tracing, and its 95 % confidence interval (of the
/// median's rank, which is binomial), percent more.
fn cost(ways: &[Vec<[f64; 2]>; 3], way: usize, figure: usize) -> [f64; 3] {
    let pairs = ways[way].iter().zip(&ways[0]);
    let mut ratios: Vec<_> = pairs.map(|(on, off)| (on[figure] / off[figure] - 1.0) * 100.0).collect();
    ratios.sort_by(f64::total_cmp);
    let count = ratios.len() as f64;
    let reach = 0.98 * count.sqrt();
    let at = |rank: f64| ratios[(rank.max(0.0) as usize).min(ratios.len() - 1)];
    [median(&ratios), at((count / 2.0 - reach).floor()), at((count / 2.0 + reach).ceil())]
}

fn measure(setting: &Setting, what: &str, turn: &Turn<'_>) -> Result<Value, Failure> {
    let mut ways: [Vec<[f64; 2]>; 3] = Default::default();
    for round in 0..setting.rounds {
        // Each way stands at each place in turn.
        for place in 0..WAYS.len() {
            let way = (place + round) % WAYS.len();
            ways[way].push(turn(WAYS[way])?);
        }
    }
    let mut rows = Vec::new();
    for (way, traced) in WAYS.iter().enumerate() {
        let name = match traced.map(NonZeroU32::get) {
            None => "off".into(),
            Some(1) => "every message".into(),
            Some(one_in) => format!("1/{one_in}"),
        };
        let figures = |figure: usize| median(&ways[way].iter().map(|turn| turn[figure]).collect::<Vec<_>>());
        let [time, cpu] = [cost(&ways, way, 0), cost(&ways, way, 1)];
        let shown = |[middle, low, high]: [f64; 3]| match way {
            0 => String::new(),
            _ => format!("{middle:+.2} % [{low:+.2}, {high:+.2}]"),
        };
        println!(
            "{what:<28} {name:<14} {:>10.0} {:>26} {:>10.0} {:>26}",
            figures(0),
            shown(time),
            figures(1),
            shown(cpu)
        );
        rows.push(json!({ "traced": name, "time_ns": figures(0), "cpu_ns": figures(1),
                          "time_more_percent": time, "cpu_more_percent": cpu }));
    }
    Ok(json!({ "what": what, "rows": rows }))
}

/// Measures and prints; gives the figures.
pub(crate) fn run(setting: &Setting) -> Result<Value, Failure> {
    println!(
        "Over loopback TCP ({}), {} rounds; both hosts traced; CPU of both",
        setting.congestion, setting.rounds
    );
    println!(
        "{:<28} {:<14} {:>10} {:>26} {:>10} {:>26}",
        "", "traced", "ns/msg", "more [95 %]", "CPU ns/msg", "more [95 %]"
    );
    let mut all = Vec::new();
    for (messages, message_bytes) in LOADS {
        if setting.size.is_some_and(|only| only != message_bytes) {
            continue;
        }
        let load = Load { messages, message_bytes, window_bytes: u64::MAX };
        let what = format!("{message_bytes} B, as fast as it goes");
        all.push(measure(setting, &what, &|traced| stream(setting, load, traced))?);
    }
    if setting.size.is_none_or(|only| only == PINGS.1) {
        all.push(measure(setting, &format!("{} B, one way (p50)", PINGS.1), &|traced| {
            ping(setting, traced)
        })?);
    }
    Ok(json!({ "experiment": "trace-cost", "congestion": setting.congestion, "rounds": setting.rounds,
               "urgent": setting.urgent, "measured": all }))
}
