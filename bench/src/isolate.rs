//! What isolation costs a message: the pair `null` called directly, in a process of its own, and in a confined one.

use crate::Failure;
use crate::measure::{Times, median};
use contract::{
    Attributes, Direction, FlowClass, FlowKey, FlowTemplate, Format, Half, Interest, Message, Partner, Pull,
    Pulled, Pushed, Time,
};
use pipeline::{Origin, Pipeline};
use runtime::path::Paths;
use runtime::registry;
use serde_json::{Value, json};
use std::time::Duration;
use sys::poller::Poller;

/// Message sizes, how many are measured one by one, and how many at once.
const SIZES: [(usize, usize, usize); 3] = [(24, 2000, 20_000), (1000, 2000, 20_000), (1_000_000, 200, 500)];
const TURNS: usize = 5;
/// Longest wait for a message.
const PATIENCE: Duration = Duration::from_secs(30);

/// How the stage runs: name, pipeline.
const WAYS: [(&str, &str); 3] = [
    ("called directly", "null"),
    ("a program (cat)", "exec(source=cat)"),
    ("isolated", "null(isolate=true)"),
];

fn now() -> Time {
    Time(sys::clock::boot_ns())
}

/// A path of one stage, and a thread that waits for it.
struct Stage {
    paths: Paths,
    flow: FlowKey,
    poller: Poller,
}

impl Stage {
    fn new(pipeline: &str) -> Result<Stage, Failure> {
        let pipeline = Pipeline::parse(pipeline, registry::pairs(), Origin::Local)?;
        let mut paths = Paths::new(Half::Source, pipeline, 1 << 16, now);
        let (direction, format, class) = (Direction::Out, Format::Bytes, FlowClass::Reliable);
        let flow = paths.open(&FlowTemplate { direction, format, class }, &Attributes::default())?;
        Ok(Stage { paths, flow, poller: Poller::new()? })
    }

    /// Takes what came out; waits if nothing did.
    fn pull(&mut self) -> Result<Message, Failure> {
        let until = now().after(PATIENCE);
        loop {
            if let Pulled::Message(_, message) = self.paths.pull(self.flow, Pull::Yours)? {
                return Ok(message);
            }
            self.wait()?;
            if now() > until {
                return Err("the stage gave nothing back".into());
            }
        }
    }

    fn wait(&mut self) -> Result<(), Failure> {
        let readiness = self.paths.readiness(self.flow, Direction::Out);
        for (descriptor, interest) in readiness.descriptors.into_iter().flatten() {
            self.poller.want(descriptor, interest == Interest::Read, interest == Interest::Write);
        }
        self.poller.wait(Some(Duration::from_millis(100)))?;
        Ok(())
    }

    /// There and back, one message at a time.
    fn one_by_one(&mut self, body: &Message, count: usize) -> Result<Times, Failure> {
        let mut times = Times::with_capacity(count);
        for _ in 0..count {
            let begun = sys::clock::boot_ns();
            if let Ok(Pushed::Full(_)) | Err(_) = self.paths.push(self.flow, body.clone()) {
                return Err("the stage has no room for one message".into());
            }
            self.pull()?;
            times.add(sys::clock::boot_ns() - begun);
        }
        Ok(times)
    }

    /// Messages a second, as fast as they go.
    fn at_once(&mut self, body: &Message, count: usize) -> Result<f64, Failure> {
        let begun = sys::clock::boot_ns();
        let (mut pushed, mut pulled) = (0, 0);
        while pulled < count {
            let mut moved = false;
            while pushed < count {
                match self.paths.push(self.flow, body.clone()).map_err(|(error, _)| error)? {
                    Pushed::Taken => (pushed, moved) = (pushed + 1, true),
                    Pushed::Full(_) => break,
                }
            }
            while let Pulled::Message(..) = self.paths.pull(self.flow, Pull::Yours)? {
                (pulled, moved) = (pulled + 1, true);
            }
            if !moved {
                self.wait()?;
            }
        }
        Ok(count as f64 * 1e9 / (sys::clock::boot_ns() - begun) as f64)
    }
}

/// Measures and prints; gives the figures.
pub(crate) fn run() -> Result<Value, Failure> {
    runtime::use_program(crate::program()?);
    println!("There and back through one stage that does nothing, and as many as go");
    println!("{:>9}  {:<18} {:>10} {:>10} {:>14}", "bytes", "the stage is", "p50 us", "p99 us", "messages/s");
    let mut rows = Vec::new();
    for (size, count, burst) in SIZES {
        for (name, pipeline) in WAYS {
            let mut stage = Stage::new(pipeline)?;
            let body = Message::new(now(), vec![7; size]);
            stage.one_by_one(&body, count / 10)?;
            let (mut times, mut rates) = (Times::default(), Vec::new());
            for _ in 0..TURNS {
                times.append(&stage.one_by_one(&body, count)?);
                rates.push(stage.at_once(&body, burst)?);
            }
            let (p50, p99, rate) = (times.percentile_us(0.5), times.percentile_us(0.99), median(&rates));
            println!("{size:>9}  {name:<18} {p50:>10.1} {p99:>10.1} {rate:>14.0}");
            rows.push(json!({
                "bytes": size, "stage": name, "p50_us": p50, "p99_us": p99, "messages_per_s": rate,
            }));
        }
    }
    Ok(json!({ "experiment": "isolate", "rows": rows }))
}
