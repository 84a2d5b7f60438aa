//! `periodic`: sends the most recent message at fixed times ("Networked Device Driver Architecture"
//! (2012), 4.8.2).

#[cfg(test)]
mod tests;

use crate::movement::Movement;
use contract::{
    Attributes, Format, Message, ModuleEntry, OptionKind, OptionSpec, Options, Outbox, Pair, Port, Promises,
    Report, Site, Stage, StageResult, Time, agreed,
};
use std::time::Duration;
use wire::formats::motion;

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
            Format::Midi
            | Format::Serial
            | Format::Viewer
            | Format::Controls
            | Format::Hid
            | Format::Block => Err("it drops messages, and this format needs every one".into()),
            _ => Ok(format.clone()),
        }
    }

    fn source(&self, options: &Options, format: &Format, _site: &Site) -> StageResult<Box<dyn Stage>> {
        let waiting = match Movement::of(format).filter(|_| *format == Format::Evdev) {
            Some(movement) => Waiting::Motion(movement, None),
            None => Waiting::Newest(None),
        };
        let (period, has_buttons) = (options.duration("period"), *format == Format::Motion);
        Ok(Box::new(Source { period, has_buttons, waiting, next: Time::ZERO, sent: 0, replaced: 0 }))
    }
}

/// The message for the end of the period.
enum Waiting {
    /// The newest message replaces those before it. A motion of a 3D mouse takes over their time.
    Newest(Option<Message>),
    /// The format `evdev`: the sum of distances and the latest positions; time and attributes of the newest, if there is motion.
    Motion(Movement, Option<(Time, Attributes)>),
}

impl Waiting {
    fn take(&mut self) -> Option<Message> {
        match self {
            Waiting::Newest(newest) => newest.take(),
            Waiting::Motion(movement, newest) => {
                let body = movement.take_last()?.into();
                let (created, attributes) = (*newest)?;
                Some(Message { created, attributes, body })
            }
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            Waiting::Newest(newest) => newest.is_none(),
            Waiting::Motion(movement, _) => movement.is_empty(),
        }
    }
}

struct Source {
    period: Duration,
    /// The format `motion`: its buttons and snapshots are sent only once, so they do not wait and are not replaced.
    has_buttons: bool,
    waiting: Waiting,
    /// Earliest time for the next message.
    next: Time,
    sent: u64,
    replaced: u64,
}

impl Source {
    fn send(&mut self, now: Time, out: &mut Outbox) {
        if let Some(message) = self.waiting.take() {
            // Messages stay on a grid of periods; a pause starts a new grid.
            let on_grid = self.next.after(self.period);
            self.next = if on_grid > now { on_grid } else { now.after(self.period) };
            self.sent += 1;
            out.send(Port::MAIN, message);
        }
    }

    /// Sends what waits and then this message, which is sent only once.
    fn pass(&mut self, message: Message, out: &mut Outbox) {
        while let Some(waiting) = self.waiting.take() {
            self.sent += 1;
            out.send(Port::MAIN, waiting);
        }
        self.sent += 1;
        out.send(Port::MAIN, message);
    }

    /// Lets a message wait; returns it if it must not.
    fn hold(&mut self, mut message: Message, out: &mut Outbox) -> Option<Message> {
        match &mut self.waiting {
            Waiting::Newest(newest) => {
                let is_button = self.has_buttons
                    && matches!(
                        motion::Update::parse(message.body.as_slice()),
                        Ok(motion::Update::Button { .. } | motion::Update::Snapshot { .. })
                    );
                if is_button {
                    return Some(message);
                }
                if let Some(replaced) = newest.take() {
                    if self.has_buttons {
                        add_time(&mut message, replaced);
                    }
                    self.replaced += 1;
                    out.drop_counted(REPLACED, 1);
                }
                *newest = Some(message);
            }
            Waiting::Motion(movement, newest) => {
                let update = movement.read(message.body.as_slice());
                if !movement.add(&update) {
                    // Motion that no longer fits one message leaves early.
                    while let Some(body) = movement.take_last()
                        && let Some((created, attributes)) = *newest
                    {
                        self.sent += 1;
                        out.send(Port::MAIN, Message { created, attributes, body: body.into() });
                    }
                    if !movement.add(&update) {
                        movement.pass(&update);
                        return Some(message);
                    }
                }
                *newest = Some((message.created, message.attributes));
            }
        }
        None
    }
}

/// Adds the time of a replaced motion of a 3D mouse to its successor. An application moves by axes times time, so without it
/// the motion would be too slow.
fn add_time(successor: &mut Message, mut replaced: Message) {
    let (Ok(motion::Update::Motion(motion)), Ok(motion::Update::Motion(replaced))) =
        (motion::Update::parse(successor.body.as_slice()), motion::Update::parse(replaced.body.as_slice()))
    else {
        return;
    };
    let period_us = motion.period_us.saturating_add(replaced.period_us);
    successor.body = motion::Motion { period_us, ..motion }.to_array().to_vec().into();
}

impl Stage for Source {
    fn handle(&mut self, _port: Port, message: Message, now: Time, out: &mut Outbox) -> StageResult {
        match self.hold(message, out) {
            Some(message) => {
                self.pass(message, out);
                Ok(())
            }
            None => self.handle_timeout(now, out),
        }
    }

    fn handle_end(&mut self, _port: Port, now: Time, out: &mut Outbox) -> StageResult {
        self.send(now, out);
        Ok(())
    }

    fn poll_timeout(&self) -> Option<Time> {
        (!self.waiting.is_empty()).then_some(self.next)
    }

    fn handle_timeout(&mut self, now: Time, out: &mut Outbox) -> StageResult {
        if self.next <= now {
            self.send(now, out);
        }
        Ok(())
    }

    /// The message for the end of the period. Merged motion is one message.
    fn held(&self) -> usize {
        usize::from(!self.waiting.is_empty())
    }

    fn report(&self) -> Vec<Report> {
        vec![("sent", self.sent as f64), ("replaced", self.replaced as f64)]
    }
}
