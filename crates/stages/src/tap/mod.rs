//! `tap`: copies messages to a side port and measures their rate.

#[cfg(test)]
mod tests;

use crate::histogram::Histogram;
use contract::{
    Format, Message, ModuleEntry, OptionKind, OptionSpec, Options, Outbox, Pair, PassThrough, Port, Report,
    Site, Stage, StageResult, Time, agreed,
};

/// The pair.
pub(crate) struct Tap;

/// The port of the copies.
const COPIES: Port = Port(1);

static OPTIONS: [OptionSpec; 1] =
    [agreed("side", OptionKind::Choice(&["both", "source", "sink"]), "both", "halves that copy and measure")];

fn half(options: &Options, side: &str) -> Box<dyn Stage> {
    match options.text("side") {
        "both" => Box::new(Meter::default()),
        choice if choice == side => Box::new(Meter::default()),
        _ => Box::new(PassThrough),
    }
}

impl Pair for Tap {
    fn entry(&self) -> ModuleEntry {
        ModuleEntry {
            name: "tap",
            summary: "copies the flow to a side port, and measures its rate",
            doc: include_str!("doc.md"),
            options: &OPTIONS,
        }
    }

    fn side_ports(&self) -> &'static [&'static str] {
        &["tap"]
    }

    fn source(&self, options: &Options, _format: &Format, _site: &Site) -> StageResult<Box<dyn Stage>> {
        Ok(half(options, "source"))
    }

    fn sink(&self, options: &Options, _format: &Format, _site: &Site) -> StageResult<Box<dyn Stage>> {
        Ok(half(options, "sink"))
    }
}

#[derive(Default)]
struct Meter {
    messages: u64,
    bytes: u64,
    /// Times of the first and the last message.
    first_and_last: Option<(Time, Time)>,
    intervals: Histogram,
}

impl Stage for Meter {
    fn handle(&mut self, port: Port, message: Message, now: Time, out: &mut Outbox) -> StageResult {
        self.messages += 1;
        self.bytes += message.body.len() as u64;
        let first = match self.first_and_last {
            Some((first, last)) => {
                self.intervals.add(now.since(last));
                first
            }
            None => now,
        };
        self.first_and_last = Some((first, now));
        out.send(COPIES, message.clone());
        out.send(port, message);
        Ok(())
    }

    fn report(&self) -> Vec<Report> {
        let seconds = self.first_and_last.map_or(0.0, |(first, last)| last.since(first).as_secs_f64());
        let intervals = self.messages.saturating_sub(1) as f64;
        let rate = if seconds > 0.0 { intervals / seconds } else { 0.0 };
        let mean = if intervals > 0.0 { seconds / intervals } else { 0.0 };
        vec![
            ("messages", self.messages as f64),
            ("bytes", self.bytes as f64),
            ("rate_hz", rate),
            ("interval_mean_us", mean * 1e6),
            ("interval_p99_us", self.intervals.percentile(0.99).as_secs_f64() * 1e6),
        ]
    }
}
