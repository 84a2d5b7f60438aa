//! Whole programs between two local sockets, as users run them: `share` and `attach` with locked workers, beside socat
//! (plain and with TLS) and a socket forwarded by OpenSSH. All cross loopback TCP once, Outboard's default over UDP.

mod routes;

use crate::bare;
use crate::devices::Window;
use crate::latency::joined;
use crate::measure::{Times, median};
use crate::programs;
use crate::setting::Failure;
use clap::Args;
use routes::{Ends, Route, Running};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::thread;

/// Message sizes, and measured round trips of a turn.
const SIZES: [(usize, usize); 4] = [(24, 1500), (1000, 1500), (64 << 10, 500), (1_000_000, 100)];
const WARM_UP: usize = 50;
/// Bytes of a turn at full throughput, and of its reads.
const FLOOD_BYTES: usize = 400_000_000;
/// Fewer bytes for small writes: each is a system call.
const WRITES_MAX: usize = 400_000;
const READ_BYTES: usize = 256 << 10;

/// The setting of `sockets`.
#[derive(Args, Debug)]
pub(crate) struct SocketsSetting {
    /// Turns of each program
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Measure one message size only, bytes
    #[arg(long)]
    size: Option<usize>,
    /// Measure one program only
    #[arg(long, value_enum)]
    only: Option<Route>,
    /// The program `outboard` to measure [default: the one beside this]
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
}

/// The figures of one route at one size.
#[derive(Default)]
struct Figures {
    times: Times,
    /// Median and 99th percentile of each turn, microseconds.
    p50_us: Vec<f64>,
    p99_us: Vec<f64>,
    gb_per_second: Vec<f64>,
}

/// Measures one-way times: each message is echoed, and the round trip is halved.
fn ping([near, far]: Ends, size: usize, count: usize) -> Result<Times, Failure> {
    thread::scope(|scope| {
        let echo = scope.spawn(|| bare::echo(far, size));
        let times = bare::ping(near, size, WARM_UP, count)?;
        joined(echo)?;
        Ok(times)
    })
}

/// Measures gigabytes a second of writes of `size` bytes.
fn flood([near, far]: Ends, size: usize) -> Result<f64, Failure> {
    let (window, begun_ns) = (Window::default(), sys::clock::boot_ns());
    let writes = (FLOOD_BYTES / size).min(WRITES_MAX);
    let sent_bytes = (writes * size) as u64;
    thread::scope(|scope| {
        let drain = scope.spawn(|| bare::drain(far, READ_BYTES, &window));
        bare::flood(near, size, writes)?;
        joined(drain)
    })?;
    match window.received_bytes() {
        received if received == sent_bytes => {
            Ok(sent_bytes as f64 / window.received_ns().saturating_sub(begun_ns) as f64)
        }
        received => Err(format!("{received} of {sent_bytes} bytes arrived").into()),
    }
}

/// Measures one turn of a route. Each turn starts its programs anew.
fn turn(
    route: Route,
    program: &std::path::Path,
    size: usize,
    count: usize,
    into: &mut Figures,
) -> Result<(), Failure> {
    let named = |error: Failure| format!("{}, {size} bytes: {error}", route.name());
    let times = Running::start(route, program)
        .and_then(|mut running| ping(running.ends()?, size, count))
        .map_err(named)?;
    into.p50_us.push(times.percentile_us(0.5));
    into.p99_us.push(times.percentile_us(0.99));
    into.times.append(&times);
    let speed =
        Running::start(route, program).and_then(|mut running| flood(running.ends()?, size)).map_err(named)?;
    into.gb_per_second.push(speed);
    Ok(())
}

/// Runs `sockets`.
pub(crate) fn run(setting: &SocketsSetting) -> Result<Value, Failure> {
    let program = match &setting.program {
        Some(program) => program.clone(),
        None => programs::beside("outboard")?,
    };
    let routes = Route::ALL.into_iter().filter(|route| setting.only.is_none_or(|only| only == *route));
    let routes: Vec<Route> = routes.collect();
    println!("One-way times, echoed and halved, and throughput; medians of {} turns", setting.rounds);
    println!("{:>9} {:<22} {:>10} {:>10} {:>8}", "bytes", "", "p50 us", "p99 us", "GB/s");
    let mut rows = Vec::new();
    for (size, count) in SIZES.into_iter().filter(|(size, _)| setting.size.is_none_or(|only| only == *size)) {
        let mut figures: Vec<Figures> = routes.iter().map(|_| Figures::default()).collect();
        for round in 0..setting.rounds {
            // Each route is first in turn.
            for index in 0..routes.len() {
                let at = (index + round) % routes.len();
                turn(routes[at], &program, size, count, &mut figures[at])?;
            }
        }
        for (route, figures) in routes.iter().zip(&figures) {
            let [p50_us, p99_us, gb_per_second] =
                [&figures.p50_us, &figures.p99_us, &figures.gb_per_second].map(|turns| median(turns));
            println!("{size:>9} {:<22} {p50_us:>10.1} {p99_us:>10.1} {gb_per_second:>8.3}", route.name());
            rows.push(json!({
                "bytes": size, "program": route.name(), "p50_us": p50_us, "p99_us": p99_us,
                "gb_per_second": gb_per_second, "turns_p50_us": figures.p50_us,
                "turns_gb_per_second": figures.gb_per_second,
            }));
        }
    }
    Ok(json!({ "experiment": "sockets", "rounds": setting.rounds, "rows": rows }))
}
