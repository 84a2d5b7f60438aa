//! Questions to `outboard whatif`, and the times of pairs alone.

use super::clock::Clock;
use super::program::Programs;
use crate::measure::Times;
use crate::setting::Failure;
use clap::Args;
use contract::{Body, Format, Half, Message, Outbox, Port, Stage, Time};
use modules::registry;
use netsim::Rng;
use pipeline::{Origin, Pipeline};
use serde::Deserialize;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Shares of one processor.
#[derive(Debug, Clone, Copy, Deserialize)]
pub(super) struct Processors {
    /// `whatif` runs both halves on this host, so it knows both.
    pub(super) sender: f64,
    pub(super) receiver: f64,
}

/// The answer of `whatif`.
#[derive(Debug, Deserialize)]
pub(super) struct Answer {
    pub(super) bytes_per_second: f64,
    pub(super) processors: Processors,
    pub(super) method_error: f64,
    pub(super) rows: Vec<Row>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Row {
    pub(super) points: Vec<Point>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
pub(super) struct Point {
    pub(super) bytes_per_second: f64,
    pub(super) gain: f64,
    pub(super) processors: Processors,
}

/// A question to `whatif`: one round.
pub(super) struct Question<'a> {
    pub(super) via: &'a str,
    /// Pairs that become faster, as `--faster` takes them; empty for each pair.
    pub(super) faster: &'a [String],
    pub(super) by: &'a [f64],
    pub(super) sample: &'a Path,
    pub(super) seconds: f64,
}

impl Question<'_> {
    /// Returns the command of a program.
    pub(super) fn command(&self, program: &Path) -> Command {
        let by: Vec<String> = self.by.iter().map(f64::to_string).collect();
        let mut command = Command::new(program);
        command.args(["whatif", "--json", "--rounds", "1", "--via", self.via, "--by", &by.join(",")]);
        command.args(["--seconds", &self.seconds.to_string(), "--sample"]).arg(self.sample);
        if !self.faster.is_empty() {
            command.args(["--faster", &self.faster.join(",")]);
        }
        command
    }

    /// Asks one program.
    pub(super) fn ask(&self, programs: &Programs, clock: &Clock) -> Result<Answer, Failure> {
        let child = self.command(&programs.outboard).stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        clock.admit(child.id())?;
        let output = child.wait_with_output()?;
        if !output.status.success() {
            return Err(format!("outboard whatif --via '{}' failed ({})", self.via, output.status).into());
        }
        Ok(serde_json::from_slice(&output.stdout)?)
    }
}

/// The settings of the helper `pair-times`.
#[derive(Args, Debug, Clone)]
pub(crate) struct PairTimesSetting {
    /// The pipeline
    #[arg(long)]
    via: String,
    /// The file with the message
    #[arg(long)]
    sample: PathBuf,
    /// Duration of the measurement
    #[arg(long, default_value_t = 0.5)]
    seconds: f64,
}

/// The times of a pair's halves for one message, medians in microseconds.
#[derive(Debug, Clone, Copy, Deserialize)]
pub(super) struct PairTimes {
    pub(super) source_us: f64,
    pub(super) sink_us: f64,
}

impl PairTimes {
    pub(super) fn sum(self) -> f64 {
        self.source_us + self.sink_us
    }
}

/// Measures the pairs of a pipeline in one of the programs.
pub(super) fn pair_times(
    programs: &Programs,
    via: &str,
    sample: &Path,
    seconds: f64,
) -> Result<Vec<PairTimes>, Failure> {
    let mut command = Command::new(&programs.bench);
    command.args(["pair-times", "--via", via, "--seconds", &seconds.to_string(), "--sample"]).arg(sample);
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err(format!("outboard-bench pair-times --via '{via}' failed ({})", output.status).into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// A half of a pair with its times.
struct Timed {
    stage: Box<dyn Stage>,
    times: Times,
}

impl Timed {
    fn handle(&mut self, message: Message) -> Result<Message, Failure> {
        let mut out = Outbox::default();
        // As the product does: work that another program interrupts takes no longer.
        let begun = sys::clock::thread_cpu_ns();
        self.stage.handle(Port::MAIN, message, now(), &mut out)?;
        self.times.add(sys::clock::thread_cpu_ns() - begun);
        let (_, made) = out.messages.pop_front().ok_or("a half makes no message of one")?;
        Ok(made)
    }
}

fn now() -> Time {
    Time(sys::clock::boot_ns())
}

/// The helper `pair-times`: prints the times of a pipeline's halves, each called with one message.
pub(crate) fn print_pair_times(setting: &PairTimesSetting) -> Result<(), Failure> {
    let pipeline = Pipeline::parse(&setting.via, registry::pairs(), Origin::Local)
        .map_err(|error| format!("--via: {error}"))?;
    let body = Body::from(std::fs::read(&setting.sample)?);
    let site = testkit::stage::site(1);
    let mut format = Format::Bytes;
    let (mut sources, mut sinks) = (Vec::new(), Vec::new());
    for used in pipeline.pairs() {
        let half = |half| used.pair.half(half, &used.options, &format, &site);
        let timed = |stage| Timed { stage, times: Times::default() };
        sources.push(timed(half(Half::Source)?));
        sinks.push(timed(half(Half::Sink)?));
        format = used.pair.accept(&format, &used.options)?;
    }
    let lasts = Duration::from_secs_f64(setting.seconds);
    let begun = Instant::now();
    while begun.elapsed() < lasts {
        let message = Message::new(now(), body.clone());
        let sent = sources.iter_mut().try_fold(message, |message, half| half.handle(message))?;
        let received = sinks.iter_mut().rev().try_fold(sent, |message, half| half.handle(message))?;
        if received.body != body {
            return Err(format!("`{}` changes the message", setting.via).into());
        }
    }
    let row = |(source, sink): (&Timed, &Timed)| json!({ "source_us": source.times.percentile_us(0.5), "sink_us": sink.times.percentile_us(0.5) });
    let rows: Vec<Value> = sources.iter().zip(&sinks).map(row).collect();
    println!("{}", Value::Array(rows));
    Ok(())
}

/// Writes a message of bytes without a pattern, which no pair can make smaller.
pub(super) fn write_sample(file: &Path, bytes: usize, seed: u64) -> Result<(), Failure> {
    let mut rng = Rng::new(seed, bytes as u64);
    let made: Vec<u8> = (0..bytes).map(|_| rng.up_to(255) as u8).collect();
    Ok(std::fs::write(file, made)?)
}
