//! One-way time of a message over loopback TCP: from the source's pull, through the empty chain, to the sink's push. Each
//! message is echoed, and the round trip is halved.

use crate::bare;
use crate::devices::{Echo, Ping, Processor};
use crate::measure::{Times, Used, median, used};
use crate::ours::{self, Host, Link};
use crate::setting::{Failure, Setting, SizedSetting};
use contract::{Body, Format, Options, TransportClass};
use rustix::net::sockopt;
use serde_json::{Value, json};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::thread;
use transports::tcp::Tcp;
use wire::control::FlowClass;

/// Message sizes, and measured messages of a turn.
const SIZES: [(usize, usize); 3] = [(24, 3000), (1000, 3000), (1_000_000, 300)];
const WARM_UP: usize = 100;

/// Returns both ends of a connection over loopback.
pub(crate) fn connection(setting: &Setting) -> Result<(TcpStream, TcpStream), Failure> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    let (far, _) = listener.accept()?;
    for socket in [&near, &far] {
        socket.set_nodelay(true)?;
        sockopt::set_tcp_congestion(socket, &setting.congestion)?;
    }
    Ok((near, far))
}

/// Returns TCP with the setting's congestion control.
pub(crate) fn tcp(setting: &Setting, both_ways: bool) -> Result<Link, Failure> {
    let options = Options::check(Tcp.options(), [("congestion", setting.congestion.as_str())])?;
    let format = Format::Bytes;
    Ok(Link {
        transports: [&Tcp, &Tcp],
        options,
        format,
        class: FlowClass::Reliable,
        both_ways,
        sealed: false,
    })
}

/// Returns the result of a thread.
pub(crate) fn joined<T>(handle: thread::ScopedJoinHandle<'_, Result<T, Failure>>) -> Result<T, Failure> {
    handle.join().map_err(|_| "a thread panicked")?
}

fn ours(setting: &Setting, size: usize, count: usize) -> Result<Times, Failure> {
    our_turn(setting, &tcp(setting, true)?, size, count)
}

/// Measures a turn of Outboard.
pub(crate) fn our_turn(setting: &Setting, link: &Link, size: usize, count: usize) -> Result<Times, Failure> {
    let (near, far) = connection(setting)?;
    our_turn_over(setting, link, [near.into(), far.into()], size, count)
}

/// Measures a turn of Outboard over these sockets.
pub(crate) fn our_turn_over(
    setting: &Setting,
    link: &Link,
    [near, far]: [OwnedFd; 2],
    size: usize,
    count: usize,
) -> Result<Times, Failure> {
    let (results, times) = std::sync::mpsc::channel();
    let ping = Ping::new(Processor::new(setting, 0), Body::from(vec![7; size]), WARM_UP, count, results);
    let echo = Echo::new(Processor::new(setting, 1));
    let hosts = [Host { device: Box::new(ping), socket: near }, Host { device: Box::new(echo), socket: far }];
    ours::run(link, hosts, || ())?;
    Ok(times.recv()?)
}

fn theirs(setting: &Setting, size: usize, count: usize) -> Result<Times, Failure> {
    bare_turn_over(setting, connection(setting)?, size, count)
}

/// Measures a turn of bare sockets over this connection.
pub(crate) fn bare_turn_over(
    setting: &Setting,
    (near, far): (TcpStream, TcpStream),
    size: usize,
    count: usize,
) -> Result<Times, Failure> {
    thread::scope(|scope| {
        let echo = scope.spawn(|| {
            setting.settle(1);
            bare::echo(far, size)
        });
        let ping = scope.spawn(|| {
            setting.settle(0);
            bare::ping(near, size, WARM_UP, count)
        });
        let times = joined(ping)?;
        joined(echo)?;
        Ok(times)
    })
}

/// All turns of one side.
#[derive(Default)]
struct Side {
    times: Times,
    /// Median of each turn, microseconds.
    medians: Vec<f64>,
    used: Vec<Used>,
}

impl Side {
    fn add(&mut self, (times, used): (Times, Used)) {
        self.medians.push(times.percentile_us(0.5));
        self.times.append(&times);
        self.used.push(used);
    }

    fn figures(&self) -> Value {
        let turns = self.used.len().max(1);
        // A round trip is two messages.
        let messages = 2 * (self.times.count() + turns * WARM_UP);
        let cpu_ns: u64 = self.used.iter().map(|used| used.cpu_ns).sum();
        json!({
            "p50_us": self.times.percentile_us(0.5),
            "p99_us": self.times.percentile_us(0.99),
            "cpu_us_per_message": cpu_ns as f64 / 1e3 / messages.max(1) as f64,
            "peak_memory_kib": self.used.iter().map(|used| used.memory_kib).max(),
        })
    }
}

/// Runs `latency`.
pub(crate) fn run(sized: &SizedSetting) -> Result<Value, Failure> {
    let setting = &sized.turns;
    println!(
        "One-way time over loopback TCP ({}), echoed and halved; CPU of both ends together",
        setting.congestion
    );
    println!(
        "{:>9} {:>10} {:>10} {:>7} {:>10} {:>10} {:>18} {:>20}",
        "bytes", "p50 us", "bare p50", "ratio", "p99 us", "bare p99", "cpu us/msg (bare)", "peak KiB (bare)"
    );
    let mut rows = Vec::new();
    for (size, count) in SIZES.into_iter().filter(|(size, _)| sized.includes(*size)) {
        let (mut our_side, mut bare_side) = (Side::default(), Side::default());
        for _ in 0..setting.rounds {
            our_side.add(used(|| ours(setting, size, count))?);
            bare_side.add(used(|| theirs(setting, size, count))?);
        }
        let ratios: Vec<_> = our_side.medians.iter().zip(&bare_side.medians).map(|(a, b)| a / b).collect();
        let ratio = median(&ratios);
        let (ours, bare) = (our_side.figures(), bare_side.figures());
        println!(
            "{size:>9} {:>10.2} {:>10.2} {ratio:>7.3} {:>10.2} {:>10.2} {:>9.2} ({:>6.2}) {:>11} ({:>6})",
            number(&ours["p50_us"]),
            number(&bare["p50_us"]),
            number(&ours["p99_us"]),
            number(&bare["p99_us"]),
            number(&ours["cpu_us_per_message"]),
            number(&bare["cpu_us_per_message"]),
            number(&ours["peak_memory_kib"]),
            number(&bare["peak_memory_kib"]),
        );
        rows.push(json!({ "bytes": size, "ratio_p50": ratio, "ours": ours, "bare": bare }));
    }
    Ok(json!({
        "experiment": "latency",
        "congestion": setting.congestion,
        "rounds": setting.rounds,
        "rows": rows,
    }))
}

/// Returns a figure for the table, 0 where it was not measured.
pub(crate) fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(0.0)
}
