//! "Networked Device Driver Architecture (2012)", figure 4.5: two devices with drifting clocks over networks with jitter, and
//! the skew of simultaneous updates at one sink, before and after `synchronize`. Virtual time: every run is the same.

use crate::measure::percentiles_ms;
use crate::plot::{Chart, Line, Scale};
use crate::setting::Failure;
use clap::Args;
use contract::Time;
use netsim::Params;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::Duration;
use testkit::joint::{self, JointRun, JointSetting, Passage};

/// The dissertation's period: 62.5 updates a second.
const PERIOD: Duration = Duration::from_millis(16);
/// The start of a run that does not count: clocks are compared and delays are learnt.
const SETTLE: Duration = Duration::from_secs(30);
/// Duration of one point of the picture.
const POINT: Duration = Duration::from_secs(5);

/// The settings of `skew`.
#[derive(Args, Debug, Clone)]
pub(crate) struct SkewSetting {
    /// Jitter of every network, each way, milliseconds
    #[arg(long, value_delimiter = ',', default_values_t = [20, 80, 160])]
    jitter_ms: Vec<u64>,
    /// Lead of the second device's clock, milliseconds a minute
    #[arg(long, default_value_t = 3)]
    drift_ms: i64,
    /// Minutes of each run
    #[arg(long, default_value_t = 10)]
    minutes: u64,
    /// Seed of the networks
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Draw the run with 80 ms of jitter, or the first one, to this file (SVG)
    #[arg(long)]
    picture: Option<PathBuf>,
}

/// One line of the table: its name, the options of `synchronize`, true if sessions compare the clocks, and the time of an update
/// for the skew.
struct Row {
    name: &'static str,
    given: &'static [(&'static str, &'static str)],
    compares_clocks: bool,
    when: fn(&Passage) -> Option<Time>,
}

const ALIGN: &[(&str, &str)] = &[("apart", "true"), ("wait", "400ms")];
const ORDER: &[(&str, &str)] = &[("align", "false"), ("apart", "true"), ("wait", "400ms")];

static ROWS: [Row; 4] = [
    Row { name: "order of arrival", given: ORDER, compares_clocks: true, when: |passage| passage.came },
    Row {
        name: "synchronize(align=false)",
        given: ORDER,
        compares_clocks: true,
        when: |passage| passage.left,
    },
    Row {
        name: "synchronize, clocks not compared",
        given: ALIGN,
        compares_clocks: false,
        when: |passage| passage.left,
    },
    Row { name: "synchronize", given: ALIGN, compares_clocks: true, when: |passage| passage.left },
];

impl SkewSetting {
    fn joint(&self, jitter_ms: u64, compares_clocks: bool) -> JointSetting {
        let link = Params {
            delay_ns: 20_000_000,
            jitter_ns: jitter_ms * 1_000_000,
            queue_packets: u32::MAX,
            ..Params::default()
        };
        JointSetting {
            // One millisecond a minute is 1000/60 ppm.
            drifts_ppm: vec![0, self.drift_ms * 1000 / 60],
            period: PERIOD,
            updates: self.minutes * 60_000 / PERIOD.as_millis() as u64,
            link,
            compares_clocks,
            seed: self.seed,
        }
    }
}

/// Runs `skew`.
pub(crate) fn run(setting: &SkewSetting) -> Result<Value, Failure> {
    let pairs = modules::registry::pairs();
    let pair = *pairs.iter().find(|pair| pair.name() == "synchronize").ok_or("there is no `synchronize`")?;
    println!(
        "Two devices, an update every 16 ms of each for {} minutes, the second clock {} ms a minute fast; every packet",
        setting.minutes, setting.drift_ms
    );
    println!(
        "takes 20 ms and 0 to J ms more, in order; seed {}. Skew: the time at the sink between updates of the",
        setting.seed
    );
    println!(
        "two devices that were made at the same time, in milliseconds. Delay: from making to leaving, both devices.\n"
    );
    println!("| J | at the sink | median skew | 99 % | largest | median delay |");
    println!("|---|---|---|---|---|---|");
    let drawn =
        if setting.jitter_ms.contains(&80) { 80 } else { setting.jitter_ms.first().copied().unwrap_or(80) };
    let (mut rows, mut lines) = (Vec::new(), Vec::new());
    for &jitter_ms in &setting.jitter_ms {
        for row in &ROWS {
            let run = joint::run(pair, row.given, &setting.joint(jitter_ms, row.compares_clocks));
            let skew = run.skew(SETTLE, row.when);
            let [median, most, largest] = percentiles_ms(skew.iter().map(|(_, skew)| *skew));
            let [delay, ..] = percentiles_ms(delays(&run, row));
            println!("| {jitter_ms} | {} | {median:.1} | {most:.1} | {largest:.1} | {delay:.1} |", row.name);
            rows.push(json!({ "experiment": "skew", "jitter_ms": jitter_ms, "drift_ms_per_minute": setting.drift_ms,
                "at": row.name, "updates": skew.len(), "median_ms": median, "p99_ms": most, "largest_ms": largest,
                "median_delay_ms": delay }));
            if jitter_ms == drawn {
                lines.push(Line::solid(row.name, points(&run.skew(Duration::ZERO, row.when))));
            }
        }
    }
    if let Some(file) = &setting.picture {
        let title = format!("Skew of two devices at one sink, {drawn} ms of jitter: 99 % of 5 s");
        let chart = Chart { title: &title, axes: ["time, s", "skew, ms"], scales: [Scale::Linear; 2], lines };
        let svg = chart.svg();
        std::fs::write(file, svg).map_err(|error| format!("cannot write {}: {error}", file.display()))?;
        println!("\n![{title}]({})", file.file_name().unwrap_or_default().display());
    }
    Ok(Value::Array(rows))
}

/// Returns the delays from creation to the row's time.
fn delays<'a>(run: &'a JointRun, row: &'a Row) -> impl Iterator<Item = Duration> + 'a {
    let passages = run.passages.iter().flatten();
    passages.filter_map(|passage| Some((row.when)(passage)?.since(passage.made)))
}

/// Returns the 99th percentile of each [`POINT`].
fn points(skew: &[(Time, Duration)]) -> Vec<[f64; 2]> {
    let Some((started, _)) = skew.first() else { return Vec::new() };
    let seconds = |at: Time| at.since(*started).as_secs_f64();
    let same = |a: &(Time, Duration), b: &(Time, Duration)| {
        let point = |at: Time| (seconds(at) / POINT.as_secs_f64()) as u64;
        point(a.0) == point(b.0)
    };
    let point = |part: &[(Time, Duration)]| [seconds(part[0].0), percentiles_ms(part.iter().map(|s| s.1))[1]];
    skew.chunk_by(same).map(point).collect()
}
