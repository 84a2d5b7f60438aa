//! The transport `striped`: the number of connections that it finds, beside every fixed number, one stream of iperf3, and background
//! traffic that comes and goes.

use super::ours::{Flow, Words};
use super::rivals::{self, Rival};
use super::{Network, with_hosts};
use crate::reliability::hosts::Hosts;
use crate::setting::Failure;
use clap::Args;
use serde_json::{Value, json};
use std::time::Duration;

/// Searching takes at most this share of a run; the rest is measured.
const SEARCH_SHARE: f64 = 0.75;

/// The settings of `striped`.
#[derive(Args, Debug, Clone)]
pub(crate) struct StripedSetting {
    /// Seconds of each run with a fixed number; the second half counts
    #[arg(long, default_value_t = 30.0)]
    seconds: f64,
    /// Seconds of a run that finds the number; the last quarter counts
    #[arg(long, default_value_t = 120.0)]
    search_seconds: f64,
    /// Rates of the link, Mbit/s
    #[arg(long = "rate", value_delimiter = ',', default_values_t = [900])]
    rates_mbit: Vec<u32>,
    /// Round trips, milliseconds
    #[arg(long = "round-trip", value_delimiter = ',', default_values_t = [40])]
    round_trips_ms: Vec<u32>,
    /// Losses in each direction, per cent
    #[arg(long = "loss", value_delimiter = ',', default_values_t = [0.0, 0.01])]
    losses_percent: Vec<f64>,
    /// Packets in the queue in front of the link
    #[arg(long, default_value_t = 5000)]
    queue: u32,
    /// Fixed numbers of connections
    #[arg(long = "ways", value_delimiter = ',', default_values_t = [1, 2, 4, 8, 16, 32, 64, 128])]
    ways: Vec<u32>,
    /// Further options of the transport on both hosts
    #[arg(long, default_value = "congestion=cubic")]
    options: String,
    /// Seed of the losses
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// The transport's own figures at one moment.
struct Figures {
    ways: f64,
    searches: f64,
    steps: f64,
    search_seconds: f64,
}

impl Figures {
    fn of(flow: &Flow) -> Figures {
        let stats = flow.device_stats();
        let figure = |name: &str| {
            let mut all = stats["transport"].as_array().into_iter().flatten();
            all.find(|figure| figure[0] == name).and_then(|figure| figure[1].as_f64()).unwrap_or(f64::NAN)
        };
        Figures {
            ways: figure("ways"),
            searches: figure("searches"),
            steps: figure("search_steps"),
            search_seconds: figure("search_seconds"),
        }
    }

    fn json(&self, mbit: f64) -> Value {
        json!({ "mbit": mbit, "ways": self.ways, "searches": self.searches, "steps": self.steps,
                "search_seconds": self.search_seconds })
    }
}

/// Starts a flow whose sender uses this number of connections.
fn start(hosts: &Hosts, setting: &StripedSetting, ways: &str) -> Result<Flow, Failure> {
    let share = format!("ways={ways},{}", setting.options);
    let words = Words { transport: "striped", attach: Some(&setting.options), share: Some(&share) };
    Flow::start(hosts, &words)
}

fn measure(hosts: &Hosts, setting: &StripedSetting, network: Network) -> Result<Value, Failure> {
    network.set(hosts)?;
    let lasts = Duration::from_secs_f64(setting.seconds);
    let searching = Duration::from_secs_f64(setting.search_seconds * SEARCH_SHARE);
    let counted = Duration::from_secs_f64(setting.search_seconds * (1.0 - SEARCH_SHARE));
    println!("{network}");
    let mut fixed = Vec::new();
    for &ways in &setting.ways {
        let mbit = start(hosts, setting, &ways.to_string())?.goodput_mbit(lasts);
        println!("  {ways:>4} ways, fixed: {mbit:>7.1} Mbit/s");
        fixed.push((ways, mbit));
    }
    let (best_ways, best) = fixed.iter().copied().fold((0, 0.0), |a, b| if b.1 > a.1 { b } else { a });
    let flow = start(hosts, setting, "auto")?;
    std::thread::sleep(searching);
    let mbit = flow.mbit_in(counted);
    let found = Figures::of(&flow);
    println!(
        "  {:>4} ways, found in {} steps and {:.0} s: {mbit:>7.1} Mbit/s, {:.3} of the best fixed number ({best_ways})",
        found.ways,
        found.steps,
        found.search_seconds,
        mbit / best.max(f64::MIN_POSITIVE),
    );
    let beside = beside_cubic(hosts, &flow, lasts)?;
    println!("  beside one cubic stream: {:.1} Mbit/s, cubic {:.1} Mbit/s", beside[0], beside[1]);
    drop(flow);
    let background = background(hosts, setting)?;
    let fixed: Vec<Value> = fixed.iter().map(|(ways, mbit)| json!({ "ways": ways, "mbit": mbit })).collect();
    Ok(json!({ "rate_mbit": network.rate_mbit, "round_trip_ms": network.round_trip_ms,
               "loss_percent": network.loss_percent, "queue_packets": network.queue,
               "fixed": fixed, "best_fixed_ways": best_ways, "best_fixed_mbit": best, "found": found.json(mbit),
               "beside_cubic": { "mbit": beside[0], "cubic_mbit": beside[1] }, "background": background }))
}

fn beside_cubic(hosts: &Hosts, flow: &Flow, lasts: Duration) -> Result<[f64; 2], Failure> {
    std::thread::scope(|scope| {
        let cubic = scope.spawn(|| rivals::goodput_mbit(&hosts.lab, Rival::Cubic, lasts));
        let ours = flow.goodput_mbit(lasts);
        let cubic = cubic.join().map_err(|_| "iperf3's thread panicked")??;
        Ok([ours, cubic])
    })
}

/// One flow, while eight streams of iperf3 begin and end. Returns the figures at the end of each phase.
fn background(hosts: &Hosts, setting: &StripedSetting) -> Result<Value, Failure> {
    let flow = start(hosts, setting, "auto")?;
    let lasts = Duration::from_secs_f64(setting.search_seconds);
    let counted = lasts.mul_f64(1.0 - SEARCH_SHARE);
    let mut phases = Vec::new();
    for (name, has_traffic) in [("alone", false), ("with background", true), ("alone again", false)] {
        let measured = std::thread::scope(|scope| {
            let traffic =
                has_traffic.then(|| scope.spawn(|| rivals::goodput_mbit(&hosts.lab, Rival::Cubic8, lasts)));
            std::thread::sleep(lasts - counted);
            let mbit = flow.mbit_in(counted);
            let figures = Figures::of(&flow);
            let traffic = traffic.map(|traffic| traffic.join().map_err(|_| "iperf3's thread panicked")?);
            Ok::<_, Failure>((mbit, figures, traffic.transpose()?))
        });
        let (mbit, figures, traffic) = measured?;
        let others = traffic.map_or(String::new(), |mbit| format!(", the others {mbit:.1} Mbit/s"));
        println!(
            "  {name}: {} ways, {mbit:.1} Mbit/s after {} searches{others}",
            figures.ways, figures.searches
        );
        phases.push(json!({ "phase": name, "ours": figures.json(mbit), "others_mbit": traffic }));
    }
    Ok(phases.into())
}

/// Runs `striped`.
pub(crate) fn run(setting: &StripedSetting) -> Result<Value, Failure> {
    let rows = with_hosts("striped", setting.seed, |hosts| {
        let mut rows = Vec::new();
        for &rate_mbit in &setting.rates_mbit {
            for &round_trip_ms in &setting.round_trips_ms {
                for &loss_percent in &setting.losses_percent {
                    let network = Network {
                        rate_mbit,
                        round_trip_ms,
                        loss_percent,
                        queue: setting.queue,
                        jitter_ms: 0,
                    };
                    rows.push(measure(hosts, setting, network)?);
                }
            }
        }
        Ok(rows)
    })?;
    Ok(json!({ "experiment": "striped", "seconds": setting.seconds, "search_seconds": setting.search_seconds,
               "options": setting.options, "seed": setting.seed, "rows": rows }))
}
