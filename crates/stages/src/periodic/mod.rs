//! `periodic`: sends the most recent message at fixed times ("Networked Device Driver Architecture"
//! (2012), 4.8.2).

#[cfg(test)]
mod tests;

use contract::{
    Format, Message, ModuleEntry, OptionKind, OptionSpec, Options, Outbox, Pair, Port, Promises, Report,
    Site, Stage, StageResult, Time, agreed,
};
use std::time::Duration;
use wire::formats::motion::Update;

/// The pair.
pub(crate) struct Periodic;

static OPTIONS: [OptionSpec; 1] = [agreed(
    "period",
    OptionKind::Duration { min: Duration::from_micros(100), max: Duration::from_secs(3600) },
    "16ms",
    "time between two messages",
)];

const REPLACED: &str = "replaced by a newer one";

impl Pair for Periodic {
    fn entry(&self) -> ModuleEntry {
        ModuleEntry {
            name: "periodic",
            summary: "sends only the most recent message at fixed times",
            doc: include_str!("doc.md"),
            options: &OPTIONS,
        }
    }

    fn promises(&self, _options: &Options) -> Promises {
        Promises { may_drop: true, may_delay: true, ..Promises::default() }
    }

    fn accept(&self, format: &Format, _options: &Options) -> Result<Format, String> {
        match format {
            Format::Evdev | Format::Serial | Format::Viewer | Format::Controls => {
                Err("it drops messages, and this format needs every one (a key release is sent only once)"
                    .into())
            }
            _ => Ok(format.clone()),
        }
    }

    fn source(&self, options: &Options, format: &Format, _site: &Site) -> StageResult<Box<dyn Stage>> {
        let (period, has_buttons) = (options.duration("period"), *format == Format::Motion);
        Ok(Box::new(Source { period, has_buttons, newest: None, next: Time::ZERO, sent: 0, replaced: 0 }))
    }
}

struct Source {
    period: Duration,
    /// The format `motion`: its buttons and snapshots are sent only once, so they do not wait and are not replaced.
    has_buttons: bool,
    newest: Option<Message>,
    /// Earliest time for the next message.
    next: Time,
    sent: u64,
    replaced: u64,
}

impl Source {
    fn send(&mut self, now: Time, out: &mut Outbox) {
        if let Some(message) = self.newest.take() {
            // Messages stay on a grid of periods; a pause starts a new grid.
            let on_grid = self.next.after(self.period);
            self.next = if on_grid > now { on_grid } else { now.after(self.period) };
            self.sent += 1;
            out.send(Port::MAIN, message);
        }
    }
}

impl Stage for Source {
    fn handle(&mut self, _port: Port, mut message: Message, now: Time, out: &mut Outbox) -> StageResult {
        if self.has_buttons
            && let Ok(Update::Button { .. } | Update::Snapshot { .. }) =
                Update::parse(message.body.as_slice())
        {
            // The motion before a button keeps its place.
            let passed = self.newest.take().into_iter().chain([message]);
            self.sent += passed.map(|message| out.send(Port::MAIN, message)).count() as u64;
            return Ok(());
        }
        if self.newest.replace(message).is_some() {
            self.replaced += 1;
            out.drop_counted(REPLACED, 1);
        }
        self.handle_timeout(now, out)
    }

    fn handle_end(&mut self, _port: Port, now: Time, out: &mut Outbox) -> StageResult {
        self.send(now, out);
        Ok(())
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.newest.as_ref().map(|_| self.next)
    }

    fn handle_timeout(&mut self, now: Time, out: &mut Outbox) -> StageResult {
        if self.next <= now {
            self.send(now, out);
        }
        Ok(())
    }

    fn report(&self) -> Vec<Report> {
        vec![("sent", self.sent as f64), ("replaced", self.replaced as f64)]
    }
}
