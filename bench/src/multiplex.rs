//! One device of 62.5 updates a second at four hosts through `multiplex`, over different networks: delay and rhythm at each
//! host, beside a host with such a device alone.

use crate::compose::hosts::{Ends, Running, any, attach, share};
use crate::measure::percentiles_ms;
use crate::plot::{Chart, Line, Scale};
use crate::setting::Failure;
use clap::Args;
use contract::{FlowClass, Format, Time};
use modules::Pipelines;
use netsim::relay::Relay;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The dissertation's period: 62.5 updates a second.
const PERIOD: Duration = Duration::from_millis(16);
/// Updates of one point of the picture.
const POINT: usize = 32;
/// A bound on every wait besides the flow itself.
const WATCHDOG: Duration = Duration::from_secs(60);
const VIA: &str = "multiplex(all, ways=4, join=false)";
/// Name and description of each host's network.
const NETWORKS: [(&str, &str); 4] = [
    ("same host", ""),
    ("10 to 12 ms", "delay=10ms,jitter=2ms"),
    ("40 to 50 ms", "delay=40ms,jitter=10ms"),
    ("100 ms", "delay=100ms"),
];

/// The settings of `multiplex`.
#[derive(Args, Debug, Clone)]
pub(crate) struct MultiplexSetting {
    /// Seconds of each run
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// Draw the delays at the four hosts to this file (SVG)
    #[arg(long)]
    picture: Option<PathBuf>,
}

/// Creation time and delay of each update.
type Delays = Vec<(Time, Duration)>;

/// Runs `multiplex`.
pub(crate) fn run(setting: &MultiplexSetting) -> Result<Value, Failure> {
    println!(
        "One device with an update every 16 ms for {} s, a reliable flow over TCP, at four hosts through\n`{VIA}`, each over its own network; \
         and each host with such a device alone. Delay:\nfrom the device to the application. Rhythm: difference between the times from one \
         update to the next at the application\nand at the device. Milliseconds.\n",
        setting.seconds
    );
    println!("| network | host | updates | median delay | 99 % | largest | median rhythm | 99 % |");
    println!("|---|---|---|---|---|---|---|---|");
    let together = carry(setting, Some(VIA))?;
    let alone = carry(setting, None)?;
    let (mut rows, mut lines) = (Vec::new(), Vec::new());
    for (number, (network, _)) in NETWORKS.iter().enumerate() {
        for (name, delays) in [("one of four", &together[number]), ("alone", &alone[number])] {
            let [median, most, largest] = percentiles_ms(delays.iter().map(|(_, delay)| *delay));
            let change = |two: &[(Time, Duration)]| two[1].1.abs_diff(two[0].1);
            let [rhythm, rhythm_most, _] = percentiles_ms(delays.windows(2).map(change));
            let count = delays.len();
            println!(
                "| {network} | {name} | {count} | {median:.2} | {most:.2} | {largest:.2} | {rhythm:.2} | {rhythm_most:.2} |"
            );
            rows.push(json!({ "experiment": "multiplex", "network": network, "host": name, "updates": count,
                "median_delay_ms": median, "p99_delay_ms": most, "largest_delay_ms": largest,
                "median_rhythm_ms": rhythm, "p99_rhythm_ms": rhythm_most }));
        }
        lines.push(Line::solid(*network, points(&together[number])));
    }
    if let Some(file) = &setting.picture {
        let title = "One device of 62.5 Hz at four hosts: largest delay in half a second";
        let svg = Chart { title, axes: ["time, s", "delay, ms"], scales: [Scale::Linear; 2], lines }.svg();
        std::fs::write(file, svg).map_err(|error| format!("cannot write {}: {error}", file.display()))?;
        println!("\n![{title}]({})", file.file_name().unwrap_or_default().display());
    }
    Ok(Value::Array(rows))
}

/// Runs four hosts at the same time: with one device, or with a device each.
fn carry(setting: &MultiplexSetting, via: Option<&str>) -> Result<Vec<Delays>, Failure> {
    let count = setting.seconds * 1_000_000 / PERIOD.as_micros() as u64;
    let to_send: VecDeque<(Duration, Vec<u8>)> =
        (0..count).map(|number| (PERIOD * number as u32, number.to_le_bytes().to_vec())).collect();
    let mut devices = Vec::new();
    for _ in 0..if via.is_some() { 1 } else { NETWORKS.len() } {
        let device = Ends::new(to_send.clone())?;
        let pipelines = Pipelines::parse(via, None, None)?;
        let (running, address) = share(&device, (&Format::Bytes, FlowClass::Reliable), pipelines)?;
        devices.push((device, running, address));
    }
    let mut hosts = Vec::new();
    for (number, (_, network)) in NETWORKS.iter().enumerate() {
        let (_, _, address) = &devices[number % devices.len()];
        let relay = Relay::start(any(), *address, network.parse()?, 1 + number as u64)?;
        let application = Ends::new(VecDeque::new())?;
        application.allow_end();
        let running = attach(&application, relay.address(), "tcp", Pipelines::default())?;
        hosts.push((application, running, relay));
    }
    wait(|| hosts.iter().all(|(application, ..)| application.is_attached()), WATCHDOG)?;
    devices.iter().for_each(|(device, ..)| device.begin());
    let patience = WATCHDOG + Duration::from_secs(setting.seconds);
    wait(|| hosts.iter().all(|(_, running, _): &(_, Running, _)| running.has_ended()), patience)?;
    let mut delays = Vec::new();
    for (number, (application, mut running, _)) in hosts.into_iter().enumerate() {
        running.result()?;
        let (device, ..) = &devices[number % devices.len()];
        delays.push(delays_of(&device.sent_at(), &application.arrivals())?);
    }
    Ok(delays)
}

fn wait(done: impl Fn() -> bool, patience: Duration) -> Result<(), Failure> {
    let began = Instant::now();
    while !done() {
        if began.elapsed() > patience {
            return Err("the hosts hang".into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Checks that each update arrived once and in order, and returns the delays.
fn delays_of(sent: &[Time], arrivals: &[(Time, Vec<u8>)]) -> Result<Delays, Failure> {
    let is_next = |(number, (_, body)): (u64, &(Time, Vec<u8>))| body.as_slice() == number.to_le_bytes();
    if sent.len() != arrivals.len() || !(0..).zip(arrivals).all(is_next) {
        return Err(
            format!("{} updates were sent; {} arrived, or not in order", sent.len(), arrivals.len()).into()
        );
    }
    Ok(sent.iter().zip(arrivals).map(|(sent, (received, _))| (*sent, received.since(*sent))).collect())
}

/// Returns the largest delay of each group of [`POINT`] updates.
fn points(delays: &[(Time, Duration)]) -> Vec<[f64; 2]> {
    let Some((begun, _)) = delays.first() else { return Vec::new() };
    let point = |part: &[(Time, Duration)]| {
        let largest = part.iter().map(|(_, delay)| *delay).max().unwrap_or_default();
        [part[0].0.since(*begun).as_secs_f64(), largest.as_secs_f64() * 1e3]
    };
    delays.chunks(POINT).map(point).collect()
}
