//! `record`: copies a flow, with its timing, to a side port ("Networked Device Driver Architecture"
//! (2012), 4.8.2).

#[cfg(test)]
mod tests;

use contract::{
    Format, Message, ModuleEntry, OptionKind, OptionSpec, Options, Outbox, Pair, PassThrough, Port, Report,
    Site, Stage, StageResult, Time, agreed,
};

/// The pair.
pub(crate) struct Record;

/// The port of the copies.
const COPIES: Port = Port(1);

static OPTIONS: [OptionSpec; 1] = [agreed(
    "side",
    OptionKind::Choice(&["both", "source", "sink"]),
    "both",
    "halves that record, each to its own port `record`",
)];

fn half(options: &Options, side: &str) -> Box<dyn Stage> {
    match options.text("side") {
        choice if choice == "both" || choice == side => Box::new(Recorder::default()),
        _ => Box::new(PassThrough),
    }
}

impl Pair for Record {
    fn entry(&self) -> ModuleEntry {
        ModuleEntry {
            name: "record",
            summary: "copies the flow, with its timing, to a file or another partner",
            doc: include_str!("doc.md"),
            options: &OPTIONS,
        }
    }

    fn side_ports(&self) -> &'static [&'static str] {
        &["record"]
    }

    fn source(&self, options: &Options, _format: &Format, _site: &Site) -> StageResult<Box<dyn Stage>> {
        Ok(half(options, "source"))
    }

    fn sink(&self, options: &Options, _format: &Format, _site: &Site) -> StageResult<Box<dyn Stage>> {
        Ok(half(options, "sink"))
    }
}

#[derive(Default)]
struct Recorder {
    messages: u64,
    bytes: u64,
}

impl Stage for Recorder {
    fn handle(&mut self, port: Port, message: Message, _now: Time, out: &mut Outbox) -> StageResult {
        self.messages += 1;
        self.bytes += message.body.len() as u64;
        out.send(COPIES, message.clone());
        out.send(port, message);
        Ok(())
    }

    fn report(&self) -> Vec<Report> {
        vec![("messages", self.messages as f64), ("bytes", self.bytes as f64)]
    }
}
