//! Goodput of one flow over fast, long and lossy networks: the whole program, from a socket of a program on one host to a
//! socket of a program on the other, beside iperf3 on the same network.
//!
//! The second half of each run counts. Without a delay only the processors limit a sender, with the work that losses make; a
//! row that they limit with the delay, too, says so.

pub(crate) mod block;
mod ours;
mod rivals;
pub(crate) mod striped;

use crate::plot::{Chart, Line, Scale, Stroke};
use crate::programs::{beside, progress};
use crate::reliability::hosts::Hosts;
use crate::setting::Failure;
use clap::Args;
use rivals::Rival;
use serde_json::{Value, json};
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// The settings of `longfat`.
#[derive(Args, Debug, Clone)]
pub(crate) struct LongFatSetting {
    /// Seconds of each run; the second half counts
    #[arg(long, default_value_t = 30.0)]
    seconds: f64,
    /// Rates of the link, Mbit/s
    #[arg(long = "rate", value_delimiter = ',', default_values_t = [40, 900])]
    rates_mbit: Vec<u32>,
    /// Round trips, milliseconds
    #[arg(long = "round-trip", value_delimiter = ',', default_values_t = [20, 100, 200])]
    round_trips_ms: Vec<u32>,
    /// Losses in each direction, per cent
    #[arg(long = "loss", value_delimiter = ',', default_values_t = [0.0, 0.01, 0.1, 1.0])]
    losses_percent: Vec<f64>,
    /// Packets in the queue in front of the link
    #[arg(long, default_value_t = 1000)]
    queue: u32,
    /// Longest further delay of a packet in each direction, milliseconds: packets overtake each other
    #[arg(long = "jitter", default_value_t = 0)]
    jitter_ms: u32,
    /// Outboard's transports, as in an address; `default` for an address without one
    #[arg(long = "transport", value_delimiter = ',', default_values_t = ["default".to_string()])]
    transports: Vec<String>,
    /// Options of the transport, such as `socket_bytes=212992` for Debian's default limit
    #[arg(long = "options")]
    options: Option<String>,
    /// Streams of iperf3 to compare with
    #[arg(long = "rival", value_delimiter = ',', default_values_t = [Rival::Cubic, Rival::Cubic8, Rival::Bbr])]
    rivals: Vec<Rival>,
    /// Also run each transport beside one stream of iperf3 with cubic
    #[arg(long)]
    beside: bool,
    /// Seed of the losses
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Draw the goodput to this file (SVG)
    #[arg(long)]
    picture: Option<PathBuf>,
}

impl LongFatSetting {
    fn words<'a>(&'a self, transport: &'a str) -> ours::Words<'a> {
        ours::Words { transport, attach: self.options.as_deref(), share: None }
    }
}

/// A network between the two hosts.
#[derive(Debug, Clone, Copy)]
struct Network {
    rate_mbit: u32,
    round_trip_ms: u32,
    loss_percent: f64,
    queue: u32,
    /// Longest further delay of a packet in each direction.
    jitter_ms: u32,
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Network { rate_mbit, round_trip_ms, loss_percent, queue, .. } = self;
        write!(f, "{rate_mbit} Mbit/s, {round_trip_ms} ms, {loss_percent}% loss, a queue of {queue} packets")
    }
}

impl Network {
    /// Sets the link between the hosts.
    fn set(self, hosts: &Hosts) -> Result<(), Failure> {
        let Network { rate_mbit, round_trip_ms, loss_percent, queue, jitter_ms } = self;
        // netlab counts in whole microseconds and millionths.
        let words = [
            format!("delay={}us", u64::from(round_trip_ms) * 500),
            format!("rate={rate_mbit}mbit"),
            format!("loss={loss_percent}%"),
            format!("queue={queue}"),
            format!("jitter={jitter_ms}ms"),
            "reorder".to_string(),
        ];
        let words: Vec<&str> = ["set"].into_iter().chain(words.iter().map(String::as_str)).collect();
        hosts.lab.ask(&words).map(drop)
    }
}

/// Goodput on one network, Mbit/s.
struct Row {
    network: Network,
    /// For each transport.
    ours: Vec<Ours>,
    /// For each rival.
    rivals: Vec<f64>,
}

struct Ours {
    alone: f64,
    /// Without delay.
    undelayed: f64,
    beside: Option<Beside>,
}

/// A transport and one stream of iperf3 with cubic at the same time.
struct Beside {
    ours: f64,
    cubic: f64,
}

/// A flow reaches a network's peers with this share of the best.
const PEER_SHARE: f64 = 0.9;
/// Least goodput of a good network as a share of its rate, and its largest loss.
const LINK_SHARE: f64 = 0.85;
const GOOD_LOSS_PERCENT: f64 = 0.1;

impl Row {
    fn best(&self) -> f64 {
        self.rivals.iter().copied().fold(0.0, f64::max)
    }

    /// Returns the judgement of a transport's goodput.
    fn verdict(&self, ours: &Ours) -> &'static str {
        let is_good = self.network.loss_percent <= GOOD_LOSS_PERCENT;
        let link = if is_good { LINK_SHARE * f64::from(self.network.rate_mbit) } else { 0.0 };
        let least = (PEER_SHARE * self.best()).max(link);
        match () {
            () if ours.alone >= least => "yes",
            () if ours.undelayed < least && ours.alone >= PEER_SHARE * ours.undelayed => "processor",
            () => "no",
        }
    }
}

fn measure(hosts: &Hosts, setting: &LongFatSetting) -> Result<Vec<Row>, Failure> {
    let lasts = Duration::from_secs_f64(setting.seconds);
    let mut rows = Vec::new();
    for &rate_mbit in &setting.rates_mbit {
        let network = |round_trip_ms, loss_percent| Network {
            rate_mbit,
            round_trip_ms,
            loss_percent,
            queue: setting.queue,
            jitter_ms: if round_trip_ms > 0 { setting.jitter_ms } else { 0 },
        };
        // For each loss and transport.
        let mut undelayed = Vec::new();
        for &loss_percent in &setting.losses_percent {
            network(0, loss_percent).set(hosts)?;
            let goodput =
                |transport| Ok(ours::Flow::start(hosts, &setting.words(transport))?.goodput_mbit(lasts));
            let rates = setting.transports.iter().map(|transport| goodput(transport));
            undelayed.push(rates.collect::<Result<Vec<f64>, Failure>>()?);
        }
        for &round_trip_ms in &setting.round_trips_ms {
            for (&loss_percent, undelayed) in setting.losses_percent.iter().zip(&undelayed) {
                let network = network(round_trip_ms, loss_percent);
                network.set(hosts)?;
                let rival = |rival: &Rival| rivals::goodput_mbit(&hosts.lab, *rival, lasts);
                let rivals = setting.rivals.iter().map(rival).collect::<Result<_, _>>()?;
                let mut ours = Vec::new();
                for (transport, &undelayed) in setting.transports.iter().zip(undelayed) {
                    let start = || ours::Flow::start(hosts, &setting.words(transport));
                    let alone = start()?.goodput_mbit(lasts);
                    let beside = setting.beside.then(|| beside_cubic(hosts, start()?, lasts)).transpose()?;
                    ours.push(Ours { alone, undelayed, beside });
                }
                let row = Row { network, ours, rivals };
                print(setting, &row);
                rows.push(row);
            }
        }
    }
    Ok(rows)
}

fn beside_cubic(hosts: &Hosts, flow: ours::Flow, lasts: Duration) -> Result<Beside, Failure> {
    std::thread::scope(|scope| {
        let cubic = scope.spawn(|| rivals::goodput_mbit(&hosts.lab, Rival::Cubic, lasts));
        let ours = flow.goodput_mbit(lasts);
        let cubic = cubic.join().map_err(|_| "iperf3's thread panicked")??;
        Ok(Beside { ours, cubic })
    })
}

fn print(setting: &LongFatSetting, row: &Row) {
    let Network { rate_mbit, round_trip_ms, loss_percent, .. } = row.network;
    let rivals: String = row.rivals.iter().map(|mbit| format!(" {mbit:>8.1}")).collect();
    for (transport, ours) in setting.transports.iter().zip(&row.ours) {
        let beside = ours.beside.as_ref();
        let beside =
            beside.map_or(String::new(), |beside| format!(" {:>8.1} {:>8.1}", beside.ours, beside.cubic));
        println!(
            "{rate_mbit:>6} {round_trip_ms:>5} {:>7} {rivals} {transport:>8} {:>8.1} {:>8.2} {:>6.2} {:>9.1} {:>9}{beside}",
            format!("{loss_percent}%"),
            ours.alone,
            ours.alone / row.best().max(f64::MIN_POSITIVE),
            ours.alone / f64::from(rate_mbit),
            ours.undelayed,
            row.verdict(ours),
        );
    }
}

fn figures(setting: &LongFatSetting, row: &Row) -> Value {
    let Network { rate_mbit, round_trip_ms, loss_percent, queue, jitter_ms } = row.network;
    let rivals: serde_json::Map<String, Value> = setting
        .rivals
        .iter()
        .zip(&row.rivals)
        .map(|(rival, mbit)| (rival.name().into(), json!(mbit)))
        .collect();
    let ours: Vec<Value> = setting
        .transports
        .iter()
        .zip(&row.ours)
        .map(|(transport, ours)| {
            json!({ "transport": transport, "mbit": ours.alone, "undelayed_mbit": ours.undelayed,
                    "reaches": row.verdict(ours),
                    "beside_cubic": ours.beside.as_ref().map(|beside| json!({ "mbit": beside.ours, "cubic_mbit": beside.cubic })) })
        })
        .collect();
    json!({ "rate_mbit": rate_mbit, "round_trip_ms": round_trip_ms, "loss_percent": loss_percent, "queue_packets": queue, "jitter_ms": jitter_ms,
            "rivals": rivals, "ours": ours })
}

/// Draws the share of the link against the loss: one line for each sender and round trip.
fn draw(setting: &LongFatSetting, rows: &[Row]) -> String {
    /// No loss has a place on the logarithmic axis, too.
    const NO_LOSS_PERCENT: f64 = 0.001;
    let strokes = [Stroke::Solid, Stroke::Dashed, Stroke::Dotted, Stroke::DashDotted];
    let mut lines = Vec::new();
    for &rate_mbit in &setting.rates_mbit {
        for (&round_trip_ms, stroke) in setting.round_trips_ms.iter().zip(strokes.iter().cycle()) {
            let chosen =
                |row: &&Row| row.network.rate_mbit == rate_mbit && row.network.round_trip_ms == round_trip_ms;
            let mut add = |name: String, mbit: &dyn Fn(&Row) -> f64| {
                let point = |row: &Row| {
                    [row.network.loss_percent.max(NO_LOSS_PERCENT), mbit(row) / f64::from(rate_mbit)]
                };
                let points = rows.iter().filter(chosen).map(point).collect();
                lines.push(Line { stroke: *stroke, ..Line::solid(format!("{name}, {rate_mbit}"), points) });
            };
            for (at, transport) in setting.transports.iter().enumerate() {
                add(transport.clone(), &|row| row.ours[at].alone);
            }
            add("best of iperf3".into(), &Row::best);
        }
    }
    let title =
        "Share of the link by loss (solid, dashed, dotted: increasing round trip; Mbit/s behind the name)";
    let axes = ["loss, % (0.001: none)", "share of the link"];
    Chart { title, axes, scales: [Scale::Logarithmic, Scale::Linear], lines }.svg()
}

/// Runs an experiment between two hosts with a directory of their own.
fn with_hosts<T>(
    name: &str,
    seed: u64,
    act: impl FnOnce(&Hosts) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let directory = std::env::temp_dir().join(format!("outboard-{name}-{}", std::process::id()));
    std::fs::create_dir(&directory)?;
    let hosts = Hosts::new(None, &beside("netlab")?, &directory, seed);
    let result = hosts.and_then(|hosts| act(&hosts));
    if let Err(error) = std::fs::remove_dir_all(&directory) {
        progress(&format!("cannot remove {}: {error}", directory.display()));
    }
    result
}

/// Runs `longfat`.
pub(crate) fn run(setting: &LongFatSetting) -> Result<Value, Failure> {
    let rows = with_hosts("longfat", setting.seed, |hosts| {
        let jitter = match setting.jitter_ms {
            0 => String::new(),
            ms => format!(" each packet 0 to {ms} ms later, so that they overtake each other;"),
        };
        println!(
            "Goodput in Mbit/s, second half of {} s; a queue of {} packets;{jitter} best: the best of iperf3",
            setting.seconds, setting.queue
        );
        let rivals: String = setting.rivals.iter().map(|rival| format!(" {:>8}", rival.name())).collect();
        let beside = if setting.beside { format!(" {:>8} {:>8}", "beside", "cubic") } else { String::new() };
        println!(
            "{:>6} {:>5} {:>7} {rivals} {:>8} {:>8} {:>8} {:>6} {:>9} {:>9}{beside}",
            "Mbit/s", "ms", "loss", "ours", "Mbit/s", "of best", "link", "no delay", "reached"
        );
        measure(hosts, setting)
    })?;
    if let Some(file) = &setting.picture {
        std::fs::write(file, draw(setting, &rows))
            .map_err(|error| format!("cannot write {}: {error}", file.display()))?;
    }
    let rows: Vec<Value> = rows.iter().map(|row| figures(setting, row)).collect();
    Ok(json!({ "experiment": "longfat", "seconds": setting.seconds, "seed": setting.seed, "rows": rows }))
}
