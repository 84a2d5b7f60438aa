//! Paper N, sections 6.7.1 and 6.7.2: what a network's jitter leaves of a device's rhythm, without a pair and with.
//!
//! An update every 16 ms over TCP; each packet is late by 0 to J ms. Two hosts in network namespaces, joined by
//! `netlab`; this program starts itself once in each. For every two updates that follow each other, the metric
//! is how far the time between their arrivals is from the time between their making.

use crate::Failure;
use clap::Args;
use contract::{
    Attributes, Ctl, CtlReply, Direction, FlowKey, FlowTemplate, Message, Options, Partner, PartnerError,
    Pull, Pulled, Pushed, Readiness, Time,
};
use runtime::worker::TransportPlan;
use runtime::{
    ApplicationChoice, AttachRequest, AttachTarget, Attacher, DeviceChoice, Limits, Pipelines, ShareDevice,
    ShareRequest, Sharer, Stop, registry,
};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The paper's period: 62.5 updates a second.
const PERIOD: Duration = Duration::from_millis(16);
const ADDRESS: &str = "10.77.0.1:7845";
/// Name of the emulated network.
const LAB: &str = "jitter";
/// For the source to listen before the sink dials.
const START_GAP: Duration = Duration::from_millis(300);

/// What to measure.
#[derive(Args, Debug, Clone)]
pub(crate) struct JitterSetting {
    /// J, milliseconds
    #[arg(long, value_delimiter = ',', default_values_t = [5, 10, 25, 50, 100, 200])]
    jitter_ms: Vec<u64>,
    /// Updates of each run
    #[arg(long, default_value_t = 200)]
    updates: usize,
    /// Keep packets in order: a late one holds those behind it up. Without it jitter reorders them, as netem's does
    #[arg(long)]
    in_order: bool,
    /// Only the updates' way has jitter, not the way back
    #[arg(long)]
    one_way: bool,
    /// Seed of the link
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The program `netlab`
    #[arg(long, default_value = "target/debug/netlab")]
    netlab: PathBuf,
    /// Write the table to this file, Markdown
    #[arg(long)]
    markdown: Option<PathBuf>,
}

/// The pipelines of one run, with their names in the table.
fn pipelines(jitter_ms: u64) -> [(&'static str, String); 4] {
    // Play covers the jitter of the flow's own packets and, over TCP, of those that they wait for and that the
    // sender took for lost.
    let delay_ms = 3 * jitter_ms + 20;
    [
        ("none", String::new()),
        ("buffer, as the paper's", "buffer(request,min=10,max=10,source_max=400)".into()),
        ("buffer(play)", format!("buffer(play,delay={delay_ms}ms)")),
        ("bundle(10)", "bundle(10)".into()),
    ]
}

/// What the paper reads at this J, milliseconds: mean difference without a pair, with `buffer`, with `bundle`.
fn paper(jitter_ms: u64) -> [&'static str; 3] {
    match jitter_ms {
        5 => ["3.6", "< 0.1", "< 1"],
        10 | 25 | 50 => ["", "< 0.1", "< 1"],
        100 => ["25.6", "< 1.5", "< 1"],
        200 => ["28.8", "< 1.5", ""],
        _ => ["", "", ""],
    }
}

/// Runs the experiment and prints its table.
pub(crate) fn run(setting: &JitterSetting) -> Result<Value, Failure> {
    let mut rows = Vec::new();
    let mut table = String::new();
    let order = if setting.in_order { "in order" } else { "reordering" };
    let ways = if setting.one_way { "the updates' way alone" } else { "both ways" };
    writeln!(
        table,
        "One update every 16 ms over TCP, {} updates a run; each packet late by 0 to J ms, {ways}, {order}; seed {}.",
        setting.updates, setting.seed
    )?;
    writeln!(table, "Milliseconds; difference of inter-message times at arrival and at creation.\n")?;
    writeln!(
        table,
        "| J | pair | mean difference | standard deviation | max | mean delay | lost | paper's mean |"
    )?;
    writeln!(table, "|---|---|---|---|---|---|---|---|")?;
    print!("{table}");
    for &jitter_ms in &setting.jitter_ms {
        for (index, (name, pipeline)) in pipelines(jitter_ms).into_iter().enumerate() {
            let row = measure(setting, jitter_ms, &pipeline)?;
            let figure = |key: &str| row[key].as_f64().unwrap_or(f64::NAN);
            let lost = setting.updates as u64 - row["updates"].as_u64().unwrap_or_default();
            let theirs = paper(jitter_ms)[[0, 1, 1, 2][index]];
            let line = format!(
                "| {jitter_ms} | {name} | {:.3} | {:.3} | {:.2} | {:.1} | {lost} | {theirs} |",
                figure("mean_ms"),
                figure("deviation_ms"),
                figure("max_ms"),
                figure("delay_ms")
            );
            println!("{line}");
            writeln!(table, "{line}")?;
            rows.push(
                json!({ "experiment": "jitter", "jitter_ms": jitter_ms, "pair": name, "pipeline": pipeline,
                "order": order, "ours": row, "paper_mean_ms": theirs }),
            );
        }
    }
    if let Some(file) = &setting.markdown {
        std::fs::write(file, table).map_err(|error| format!("cannot write {}: {error}", file.display()))?;
    }
    Ok(Value::Array(rows))
}

/// One run in a lab of its own.
fn measure(setting: &JitterSetting, jitter_ms: u64, pipeline: &str) -> Result<Value, Failure> {
    let program = std::env::current_exe()?;
    let program = program.to_str().ok_or("this program's path is not text")?;
    let updates = setting.updates.to_string();
    let order = if setting.in_order { "in-order" } else { "reorder" };
    let (seed, jitter) = (setting.seed.to_string(), format!("jitter={jitter_ms}ms"));
    let netlab = |arguments: &[&str]| {
        Command::new(&setting.netlab)
            .arg(arguments[0])
            .args(["--name", LAB])
            .args(&arguments[1..])
            .output()
            .map_err(|error| {
                let program = setting.netlab.display();
                format!("cannot run {program}: {error}; build it: cargo build -p outboard-lab")
            })
    };
    netlab(&["up", "--seed", &seed])?;
    let direction: &[&str] = if setting.one_way { &["set", "--from", "a"] } else { &["set"] };
    netlab(&[direction, &[&jitter, order]].concat())?;
    let mut source = Command::new(&setting.netlab)
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
    };
    let request = ShareRequest {
        devices: vec![device],
        listen: ADDRESS.parse()?,
        insecure: true,
        limits: limits(),
        host: "a".into(),
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
    let recorder = Recorder { arrivals: arrivals.clone() };
    let class = registry::transport("tcp").ok_or("there is no transport tcp")?;
    let target = AttachTarget {
        name: "mouse".into(),
        application: ApplicationChoice::Partner(Box::new(recorder)),
        pipelines: Pipelines::parse(Some(pipeline), None, None)?,
    };
    let request = AttachRequest {
        address: ADDRESS.into(),
        transport: TransportPlan { class, options: Options::defaults(class.options())? },
        targets: vec![target],
        insecure: true,
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
        "delay_ms": mean(&delays),
    })
}

/// Notes when each message was made and when it came.
struct Recorder {
    arrivals: Arc<Mutex<Vec<(Time, Time)>>>,
}

impl Partner for Recorder {
    fn open(&mut self, template: &FlowTemplate, _: &Attributes) -> Result<FlowKey, PartnerError> {
        sys::thread::be_urgent();
        match template.direction {
            Direction::In => Ok(FlowKey(1)),
            Direction::Out => Err(PartnerError::Unsupported("a flow out of a recorder")),
        }
    }

    fn close(&mut self, _: FlowKey) -> Result<(), PartnerError> {
        Ok(())
    }

    fn push(&mut self, _: FlowKey, message: Message) -> Result<Pushed, (PartnerError, Message)> {
        let came = Time(sys::clock::boot_ns());
        if let Ok(mut arrivals) = self.arrivals.lock() {
            arrivals.push((message.created, came));
        }
        Ok(Pushed::Taken)
    }

    fn pull(&mut self, _: FlowKey, _: Pull<'_>) -> Result<Pulled, PartnerError> {
        Ok(Pulled::Nothing)
    }

    fn ctl(&mut self, _: FlowKey, _: Ctl<'_>) -> Result<CtlReply, PartnerError> {
        Ok(CtlReply::Done)
    }

    fn readiness(&self, _: FlowKey, direction: Direction) -> Readiness<'_> {
        match direction {
            Direction::In => Readiness::now(),
            Direction::Out => Readiness::never(),
        }
    }
}
