//! Paper N, sections 6.7.1 and 6.7.2: what a network's jitter leaves of a device's rhythm, without a pair and with.
//!
//! An update every 16 ms over TCP; each packet is late by 0 to J ms. Two hosts in network namespaces, joined by
//! `netlab`; this program starts itself once in each. For every two updates that follow each other, the metric
//! is how far the time between their arrivals is from the time between their making.

use crate::Failure;
use crate::chapter6::paper::{JITTER_BELOW_MS, JITTER_MS};
use crate::chapter6::{self, Row, params};
use crate::measure::{median, percentile};
use clap::Args;
use contract::{Message, Options, Partner, Time};
use runtime::worker::TransportPlan;
use runtime::{
    ApplicationChoice, AttachRequest, AttachTarget, Attacher, DeviceChoice, Limits, Pipelines, ShareDevice,
    ShareRequest, Sharer, Stop, registry,
};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use testkit::taker::Taker;

/// The paper's period: 62.5 updates a second.
const PERIOD: Duration = Duration::from_millis(16);
const ADDRESS: &str = "10.77.0.1:7845";
/// Name of the emulated network.
const LAB: &str = "jitter";
/// For the source to listen before the sink dials.
const START_GAP: Duration = Duration::from_millis(300);

/// The paper's jitters, and its updates of a run.
const JITTERS_MS: [u64; 6] = [5, 10, 25, 50, 100, 200];
const UPDATES: usize = 200;

/// What to measure.
#[derive(Args, Debug, Clone)]
pub(crate) struct JitterSetting {
    /// J, milliseconds
    #[arg(long, value_delimiter = ',', default_values_t = JITTERS_MS)]
    pub(crate) jitter_ms: Vec<u64>,
    /// Updates of each run
    #[arg(long, default_value_t = UPDATES)]
    pub(crate) updates: usize,
    /// Keep packets in order: a late one holds those behind it up. Without it jitter reorders them, as netem's does
    #[arg(long)]
    pub(crate) in_order: bool,
    /// Only the updates' way has jitter, not the way back
    #[arg(long)]
    pub(crate) one_way: bool,
    /// Seed of the link
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// The program `netlab` [default: beside this one]
    #[arg(long)]
    pub(crate) netlab: Option<PathBuf>,
    /// Write the table to this file, Markdown
    #[arg(long)]
    pub(crate) markdown: Option<PathBuf>,
}

impl Default for JitterSetting {
    /// As without a command line.
    fn default() -> Self {
        JitterSetting {
            jitter_ms: JITTERS_MS.to_vec(),
            updates: UPDATES,
            in_order: false,
            one_way: false,
            seed: 1,
            netlab: None,
            markdown: None,
        }
    }
}

/// The pipelines of one run, with their names in the table and in the dissertation.
fn pipelines(jitter_ms: u64) -> [(&'static str, &'static str, String); 4] {
    // Play covers the jitter of the flow's own packets and, over TCP, of those that they wait for and that the
    // sender took for lost.
    let delay_ms = 3 * jitter_ms + 20;
    [
        ("none", "none", String::new()),
        ("buffer, as the paper's", "buffer", "buffer(request,min=10,max=10,source_max=400)".into()),
        ("buffer(play)", "buffer", format!("buffer(play,delay={delay_ms}ms)")),
        ("bundle(10)", "bundle", "bundle(10)".into()),
    ]
}

/// What the dissertation has for this J and pair, milliseconds: the mean difference, or what it stays below.
fn paper(jitter_ms: u64, pair: &str) -> (Option<f64>, Option<f64>) {
    let of = |known: &[(u64, &str, f64)]| {
        known.iter().find(|(j, name, _)| (*j, *name) == (jitter_ms, pair)).map(|(_, _, ms)| *ms)
    };
    (of(&JITTER_MS), of(&JITTER_BELOW_MS))
}

/// Runs the experiment and prints its table.
pub(crate) fn run(setting: &JitterSetting) -> Result<Value, Failure> {
    let mut table = String::new();
    let rows = rows(setting, &mut |line| {
        println!("{line}");
        table.push_str(line);
        table.push('\n');
    })?;
    if let Some(file) = &setting.markdown {
        std::fs::write(file, table).map_err(|error| format!("cannot write {}: {error}", file.display()))?;
    }
    Ok(serde_json::to_value(rows)?)
}

/// Runs the experiment and tells its table, line by line. Each point has a row of the mean difference, and one of its
/// standard deviation, which the dissertation draws as bars.
pub(crate) fn rows(setting: &JitterSetting, tell: &mut dyn FnMut(&str)) -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    let order = if setting.in_order { "in order" } else { "reordering" };
    let ways = if setting.one_way { "the updates' way alone" } else { "both ways" };
    tell(&format!(
        "One update every 16 ms over TCP, {} updates a run; each packet late by 0 to J ms, {ways}, {order}; seed {}.",
        setting.updates, setting.seed
    ));
    tell("Milliseconds; difference of inter-message times at arrival and at creation.\n");
    tell("| J | pair | mean difference | standard deviation | max | mean delay | lost | paper's mean |");
    tell("|---|---|---|---|---|---|---|---|");
    for &jitter_ms in &setting.jitter_ms {
        for (name, pair, pipeline) in pipelines(jitter_ms) {
            let run = measure(setting, jitter_ms, &pipeline)?;
            let figure = |key: &str| run[key].as_f64().unwrap_or(f64::NAN);
            let updates = run["updates"].as_u64().unwrap_or_default() as usize;
            let lost = setting.updates.saturating_sub(updates);
            let (known, below) = paper(jitter_ms, pair);
            let theirs = match (known, below) {
                (Some(ms), _) => ms.to_string(),
                (None, Some(ms)) => format!("< {ms}"),
                (None, None) => String::new(),
            };
            let (mean, deviation) = (figure("mean_ms"), figure("deviation_ms"));
            tell(&format!(
                "| {jitter_ms} | {name} | {mean:.3} | {deviation:.3} | {:.2} | {:.1} | {lost} | {theirs} |",
                figure("max_ms"),
                figure("delay_ms")
            ));
            for (statistic, ours, paper) in [("mean", mean, known), ("standard deviation", deviation, None)] {
                rows.push(Row {
                    experiment: "jitter",
                    params: params! {
                        "jitter_ms": jitter_ms, "pair": name, "pipeline": pipeline, "order": order, "ways": ways,
                        "statistic": statistic, "paper_below_ms": below,
                    },
                    unit: "ms",
                    ours,
                    limit: None,
                    paper,
                    runs: updates,
                    p50: figure("p50_ms"),
                    p99: figure("p99_ms"),
                });
            }
        }
    }
    Ok(rows)
}

/// One run in a lab of its own.
fn measure(setting: &JitterSetting, jitter_ms: u64, pipeline: &str) -> Result<Value, Failure> {
    let program = std::env::current_exe()?;
    let program = program.to_str().ok_or("this program's path is not text")?;
    let updates = setting.updates.to_string();
    let order = if setting.in_order { "in-order" } else { "reorder" };
    let (seed, jitter) = (setting.seed.to_string(), format!("jitter={jitter_ms}ms"));
    let netlab_path = match &setting.netlab {
        Some(path) => path.clone(),
        None => chapter6::beside("netlab")?,
    };
    let netlab = |arguments: &[&str]| {
        Command::new(&netlab_path)
            .arg(arguments[0])
            .args(["--name", LAB])
            .args(&arguments[1..])
            .output()
            .map_err(|error| {
                let program = netlab_path.display();
                format!("cannot run {program}: {error}; build it: cargo build -p outboard-lab")
            })
    };
    netlab(&["up", "--seed", &seed])?;
    let direction: &[&str] = if setting.one_way { &["set", "--from", "a"] } else { &["set"] };
    netlab(&[direction, &[&jitter, order]].concat())?;
    let mut source = Command::new(&netlab_path)
        .args(["exec", "--name", LAB, "a", "--", program, "jitter-source", &updates])
        .spawn()?;
    std::thread::sleep(START_GAP);
    let output = netlab(&["exec", "b", "--", program, "jitter-sink", pipeline]);
    netlab(&["down"])?;
    source.wait()?;
    let output = output?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text
        .lines()
        .find(|line| line.starts_with('{'))
        .ok_or_else(|| format!("the run gave nothing:\n{text}{}", String::from_utf8_lossy(&output.stderr)))?;
    Ok(serde_json::from_str(line)?)
}

/// The host with the device.
pub(crate) fn source(updates: usize) -> Result<(), Failure> {
    let spec = format!("pattern:size=24,rate=62.5,count={updates}");
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
        trust: None,
        limits: limits(),
        host: "a".into(),
        announce: false,
    };
    Ok(Sharer::start(request)?.run(&Stop::new()?, &mut |_| {})?)
}

/// 700 ms of silence are part of a link with 200 ms of jitter; here only the rhythm counts.
fn limits() -> Limits {
    Limits { silence: Duration::from_secs(10), ..Limits::default() }
}

/// The host with the application: attaches, measures, prints one JSON line.
pub(crate) fn sink(pipeline: &str) -> Result<(), Failure> {
    let arrivals = Arc::new(Mutex::new(Vec::new()));
    let class = registry::transport("tcp").ok_or("there is no transport tcp")?;
    let target = AttachTarget {
        name: "mouse".into(),
        application: ApplicationChoice::Partner(recorder(arrivals.clone())),
        pipelines: Pipelines::parse(Some(pipeline), None, None)?,
    };
    let request = AttachRequest {
        address: ADDRESS.into(),
        transport: TransportPlan { class, options: Options::defaults(class.options())? },
        fallback: None,
        targets: vec![target],
        trust: None,
        limits: limits(),
        host: "b".into(),
    };
    Attacher::start(request)?.run(&Stop::new()?, &mut |_| {})?;
    let arrivals = arrivals.lock().map_err(|_| "the recorder failed")?;
    println!("{}", figures(&arrivals));
    Ok(())
}

fn figures(arrivals: &[(Time, Time)]) -> Value {
    let delays: Vec<f64> =
        arrivals.iter().map(|(made, came)| came.signed_since(*made) as f64 / 1e6).collect();
    let differences: Vec<f64> = arrivals
        .windows(2)
        .map(|two| {
            let made = two[1].0.signed_since(two[0].0);
            let came = two[1].1.signed_since(two[0].1);
            // Updates that were dropped between the two lengthen both times alike.
            (came - made).abs() as f64 / 1e6
        })
        .collect();
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
    let middle = mean(&differences);
    let variance = differences.iter().map(|value| (value - middle).powi(2)).sum::<f64>();
    json!({
        "updates": arrivals.len(),
        "period_ms": PERIOD.as_millis() as u64,
        "mean_ms": middle,
        "deviation_ms": (variance / differences.len().max(1) as f64).sqrt(),
        "max_ms": differences.iter().copied().fold(0.0, f64::max),
        "p50_ms": median(&differences),
        "p99_ms": percentile(&differences, 0.99),
        "delay_ms": mean(&delays),
    })
}

/// Notes when each message was made and when it came.
fn recorder(arrivals: Arc<Mutex<Vec<(Time, Time)>>>) -> Box<dyn Partner> {
    let mut begun = false;
    Box::new(Taker::new(move |message: Message| {
        let came = Time(sys::clock::boot_ns());
        if !std::mem::replace(&mut begun, true) {
            sys::thread::be_urgent();
        }
        if let Ok(mut arrivals) = arrivals.lock() {
            arrivals.push((message.created, came));
        }
        Ok(())
    }))
}
