//! Sections 6.7.1 and 6.7.2: the effect of a network's jitter on a device's rhythm, without a pair and with pairs.
//!
//! The device creates an update every 16 ms. Each packet is late by 0 to J ms. Two hosts in network namespaces are joined
//! by `netlab`; this program starts itself once on each. The metric of two consecutive updates is the difference between
//! the time between their arrivals and the time between their creations.

use super::paper::{JITTER_BELOW, JITTER_MS, Statistic};
use super::row::{Row, params};
use super::setting::{Carrier, limits};
use crate::lab::Lab;
use crate::measure::{median, percentile};
use crate::programs::beside;
use crate::setting::Failure;
use broker::{
    ApplicationHost, AttachRequest, AttachTarget, DeviceChoice, DeviceHost, ShareDevice, ShareRequest,
};
use clap::Args;
use contract::{Message, Options, Partner, Time};
use hub::ApplicationChoice;
use modules::{Pipelines, TransportPlan, registry};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use sys::stop::Stop;
use testkit::taker::Taker;
use trust::Trust;

/// The far host's address in the lab.
const ADDRESS: &str = "10.77.0.1:7845";
/// The source listens before the sink dials.
const START_GAP: Duration = Duration::from_millis(300);

/// The dissertation's jitters and its updates of a run.
const JITTERS_MS: [u64; 6] = [5, 10, 25, 50, 100, 200];
const UPDATES: usize = 200;

/// The settings of `jitter`.
#[derive(Args, Debug, Clone)]
pub(crate) struct JitterSetting {
    /// Largest delay J of a packet, milliseconds
    #[arg(long, value_delimiter = ',', default_values_t = JITTERS_MS)]
    pub(super) jitter_ms: Vec<u64>,
    /// Updates of each run
    #[arg(long, default_value_t = UPDATES)]
    pub(super) updates: usize,
    /// Keep packets in order: a late packet holds up those behind it. Without it jitter reorders them, as netem's does
    #[arg(long)]
    in_order: bool,
    /// Jitter on the updates' direction only, not on the way back
    #[arg(long)]
    one_way: bool,
    /// Seed of the link
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The program `netlab` [default: beside this one]
    #[arg(long)]
    pub(super) netlab: Option<PathBuf>,
}

impl Default for JitterSetting {
    /// The settings without a command line.
    fn default() -> Self {
        JitterSetting {
            jitter_ms: JITTERS_MS.to_vec(),
            updates: UPDATES,
            in_order: false,
            one_way: false,
            seed: 1,
            netlab: None,
        }
    }
}

/// The arguments of a host of `jitter`.
#[derive(Args, Debug, Clone)]
pub(crate) struct HostSetting {
    /// Updates of the source, or the sink's pipeline
    word: String,
    /// Directory of the identity that both hosts use; without it the connection is TCP and not sealed
    #[arg(long)]
    identity: Option<PathBuf>,
}

impl HostSetting {
    fn trust(&self) -> Result<Option<Trust>, Failure> {
        Ok(self.identity.as_deref().map(Trust::at).transpose()?)
    }
}

/// A pair of the experiment.
struct Pair {
    /// Its name in the tables.
    name: &'static str,
    /// Its name in the dissertation, if the dissertation has it.
    paper: Option<&'static str>,
    pipeline: String,
}

/// The delay of `buffer(play)`: a multiple of J and a constant, milliseconds. Over TCP an update waits for late packets
/// before it and for packets that the sender retransmits, not only for its own.
const PLAY_FACTOR: u64 = 3;
const PLAY_MORE_MS: u64 = 20;

/// Returns the pairs for one J.
fn pairs(jitter_ms: u64) -> [Pair; 4] {
    let play_ms = PLAY_FACTOR * jitter_ms + PLAY_MORE_MS;
    let request = "buffer(request,min=10,max=10,source_max=400)".to_string();
    [
        Pair { name: "none", paper: Some("none"), pipeline: String::new() },
        Pair { name: "buffer(request)", paper: Some("buffer"), pipeline: request },
        Pair { name: "buffer(play)", paper: None, pipeline: format!("buffer(play,delay={play_ms}ms)") },
        Pair { name: "bundle(10)", paper: Some("bundle"), pipeline: "bundle(10)".into() },
    ]
}

/// The dissertation's figure for this J, pair and statistic in milliseconds: a value, or an upper bound.
fn paper(jitter_ms: u64, pair: Option<&str>, statistic: Statistic) -> (Option<f64>, Option<f64>) {
    let of = |known: &[(u64, &str, Statistic, f64)]| {
        let is = |(j, name, of, _): &&(u64, &str, Statistic, f64)| {
            *j == jitter_ms && Some(*name) == pair && *of == statistic
        };
        known.iter().find(is).map(|(.., ms)| *ms)
    };
    (of(&JITTER_MS), of(&JITTER_BELOW))
}

/// Runs the experiment and prints its table.
pub(crate) fn run(setting: &JitterSetting) -> Result<Value, Failure> {
    let rows = rows(setting, &mut |line| println!("{line}"))?;
    Ok(serde_json::to_value(rows)?)
}

/// Runs the experiment and passes its table to `print`, line by line. Each point has a row of the mean difference and one
/// of the standard deviation, which the dissertation draws as bars.
pub(super) fn rows(setting: &JitterSetting, print: &mut dyn FnMut(&str)) -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    let order = if setting.in_order { "in order" } else { "reordered" };
    let directions = if setting.one_way { "one way" } else { "both directions" };
    print(&format!(
        "One update every 16 ms, {} updates a run; each packet is late by 0 to J ms, {directions}, {order}; seed {}.",
        setting.updates, setting.seed
    ));
    print(
        "Difference between the time from one arrival to the next and the time from one creation to the next,",
    );
    print(
        "milliseconds. \"Default\" is sealed QUIC, all other columns are TCP. Delay: from creation to arrival.",
    );
    print(&format!("`buffer(play)` has a delay of {PLAY_FACTOR} J + {PLAY_MORE_MS} ms.\n"));
    print(
        "| J | pipeline | mean | standard deviation | max | delay | lost | paper's mean | default: mean | delay | lost |",
    );
    print("|---|---|---|---|---|---|---|---|---|---|---|");
    for &jitter_ms in &setting.jitter_ms {
        for pair in pairs(jitter_ms) {
            let tcp = measure(setting, jitter_ms, &pair.pipeline, Carrier::Tcp)?;
            let sealed = measure(setting, jitter_ms, &pair.pipeline, Carrier::Sealed)?;
            let lost = |run: &Figures| setting.updates.saturating_sub(run.updates);
            let theirs = match paper(jitter_ms, pair.paper, Statistic::Mean) {
                (Some(ms), _) => ms.to_string(),
                (None, Some(ms)) => format!("< {ms}"),
                (None, None) => String::new(),
            };
            print(&format!(
                "| {jitter_ms} | `{}` | {:.3} | {:.3} | {:.2} | {:.1} | {} | {theirs} | {:.3} | {:.1} | {} |",
                if pair.pipeline.is_empty() { "none" } else { &pair.pipeline },
                tcp.mean_ms,
                tcp.deviation_ms,
                tcp.max_ms,
                tcp.delay_ms,
                lost(&tcp),
                sealed.mean_ms,
                sealed.delay_ms,
                lost(&sealed),
            ));
            for statistic in [Statistic::Mean, Statistic::Deviation] {
                let of = |run: &Figures| match statistic {
                    Statistic::Mean => run.mean_ms,
                    Statistic::Deviation => run.deviation_ms,
                };
                let (known, below) = paper(jitter_ms, pair.paper, statistic);
                rows.push(Row {
                    experiment: "jitter",
                    params: params! {
                        "jitter_ms": jitter_ms, "pair": pair.name, "pipeline": pair.pipeline, "order": order,
                        "directions": directions, "statistic": statistic.name(), "paper_below_ms": below,
                    },
                    unit: "ms",
                    ours: of(&tcp),
                    sealed: Some(of(&sealed)),
                    bare: None,
                    paper: known,
                    runs: tcp.updates,
                    turns: 1,
                    p50: tcp.p50_ms,
                    p99: tcp.p99_ms,
                    bare_p50: None,
                });
            }
        }
    }
    Ok(rows)
}

/// Measures one run in a lab of its own.
fn measure(
    setting: &JitterSetting,
    jitter_ms: u64,
    pipeline: &str,
    carrier: Carrier,
) -> Result<Figures, Failure> {
    let netlab = setting.netlab.clone().map_or_else(|| beside("netlab"), Ok)?;
    let program = std::env::current_exe()?.display().to_string();
    let identity = std::env::temp_dir().join(format!("outboard-jitter-{}", std::process::id()));
    let lab = Lab::up(&netlab, &["--seed", &setting.seed.to_string()])?;
    let direction: &[&str] = if setting.one_way { &["set", "--from", "a"] } else { &["set"] };
    let order = if setting.in_order { "in-order" } else { "reorder" };
    lab.ask(&[direction, &[&format!("jitter={jitter_ms}ms"), order]].concat())?;
    let host = |host: &str, role: &str, word: &str| {
        let mut command = lab.program(host, &program);
        command.args([role, word]);
        if carrier == Carrier::Sealed {
            command.arg("--identity").arg(&identity);
        }
        command
    };
    if carrier == Carrier::Sealed {
        // Creates the directory, for this user only, and the key.
        Trust::at(&identity)?;
    }
    let mut source = host("a", "jitter-source", &setting.updates.to_string()).spawn()?;
    std::thread::sleep(START_GAP);
    let output = host("b", "jitter-sink", pipeline).output();
    drop(lab);
    source.wait()?;
    let _ = std::fs::remove_dir_all(&identity);
    let output = output?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find(|line| line.starts_with('{')).ok_or_else(|| {
        format!("the run had no result:\n{text}{}", String::from_utf8_lossy(&output.stderr))
    })?;
    Ok(serde_json::from_str(line)?)
}

/// Runs the host with the device.
pub(crate) fn source(setting: &HostSetting) -> Result<(), Failure> {
    let spec = format!("pattern:size=24,rate=62.5,count={}", setting.word);
    let pipelines = Pipelines::default();
    let device = ShareDevice {
        device: DeviceChoice::Spec(spec),
        name: Some("mouse".into()),
        pipelines,
        hub: Default::default(),
        allow: Vec::new(),
        transport: None,
    };
    let request = ShareRequest {
        devices: vec![device],
        listen: ADDRESS.parse()?,
        trust: setting.trust()?,
        limits: limits(),
        host: "a".into(),
        announce: false,
    };
    Ok(DeviceHost::start(request)?.run(&Stop::new()?, &mut |_| {})?)
}

/// Runs the host with the application: attaches, measures, prints one line of JSON.
pub(crate) fn sink(setting: &HostSetting) -> Result<(), Failure> {
    let arrivals = Arc::new(Mutex::new(Vec::new()));
    let name = if setting.identity.is_some() { "quic" } else { "tcp" };
    let class = registry::transport(name).ok_or_else(|| format!("there is no transport {name}"))?;
    let target = AttachTarget {
        name: "mouse".into(),
        application: ApplicationChoice::Partner(recorder(arrivals.clone())),
        pipelines: Pipelines::parse(Some(&setting.word), None, None)?,
        expect: None,
    };
    let request = AttachRequest {
        peer: None,
        address: ADDRESS.into(),
        transport: TransportPlan { class, options: Options::defaults(class.options())? },
        fallback: None,
        targets: vec![target],
        trust: setting.trust()?,
        limits: limits(),
        host: "b".into(),
    };
    ApplicationHost::start(request)?.run(&Stop::new()?, &mut |_| {})?;
    let arrivals = arrivals.lock().map_err(|_| "the recorder failed")?;
    println!("{}", serde_json::to_string(&Figures::of(&arrivals))?);
    Ok(())
}

/// The figures of one run.
#[derive(Debug, Serialize, Deserialize)]
struct Figures {
    /// Updates that arrived.
    updates: usize,
    mean_ms: f64,
    deviation_ms: f64,
    max_ms: f64,
    p50_ms: f64,
    p99_ms: f64,
    delay_ms: f64,
}

impl Figures {
    /// Computes the figures from the updates' creation and arrival times.
    fn of(arrivals: &[(Time, Time)]) -> Figures {
        let delays: Vec<f64> =
            arrivals.iter().map(|(made, arrived)| arrived.signed_since(*made) as f64 / 1e6).collect();
        let differences: Vec<f64> = arrivals
            .windows(2)
            .map(|two| {
                let made = two[1].0.signed_since(two[0].0);
                let arrived = two[1].1.signed_since(two[0].1);
                // A dropped update between the two adds the same to both times.
                (arrived - made).abs() as f64 / 1e6
            })
            .collect();
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
        let middle = mean(&differences);
        let variance = differences.iter().map(|value| (value - middle).powi(2)).sum::<f64>();
        Figures {
            updates: arrivals.len(),
            mean_ms: middle,
            deviation_ms: (variance / differences.len().max(1) as f64).sqrt(),
            max_ms: differences.iter().copied().fold(0.0, f64::max),
            p50_ms: median(&differences),
            p99_ms: percentile(&differences, 0.99),
            delay_ms: mean(&delays),
        }
    }
}

/// Returns a partner that records the creation time and the arrival time of each message.
fn recorder(arrivals: Arc<Mutex<Vec<(Time, Time)>>>) -> Box<dyn Partner> {
    Box::new(Taker::new(move |message: Message| {
        let arrived = Time(sys::clock::boot_ns());
        if let Ok(mut arrivals) = arrivals.lock() {
            arrivals.push((message.created, arrived));
        }
        Ok(())
    }))
}
