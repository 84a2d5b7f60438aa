//! `average`: averages motion over a time period ("Networked Device Driver Architecture" (2012),
//! 4.8.2).
//!
//! All the work is in the source half. [`Movement`] knows the parts of a message: distances add up,
//! positions are averaged, everything else is sent at once, after the motion before it. A period
//! starts with the first motion, and its message is sent when it ends:
//!
//! ```text
//! motion, no period runs   start a period
//! motion, period runs      add to it
//! period ends              send the mean; start another period if an axis differs from its mean
//! anything else            send the accumulated motion with its latest positions, then the message; end the period
//! ```

#[cfg(test)]
mod tests;

use crate::movement::Movement;
use contract::{
    Attributes, Format, Message, ModuleEntry, OptionKind, OptionSpec, Options, Outbox, Pair, Port, Promises,
    Report, Site, Stage, StageError, StageResult, Time, agreed,
};
use std::time::Duration;

/// The pair.
pub(crate) struct Average;

static OPTIONS: [OptionSpec; 1] = [agreed(
    "period",
    OptionKind::Duration { min: Duration::from_millis(1), max: Duration::from_secs(60) },
    "50ms",
    "time over which motion is averaged",
)];

impl Pair for Average {
    fn entry(&self) -> ModuleEntry {
        ModuleEntry {
            name: "average",
            summary: "averages motion over a time period; keys and buttons pass at once",
            doc: include_str!("doc.md"),
            options: &OPTIONS,
        }
    }

    fn promises(&self, _options: &Options) -> Promises {
        Promises { may_delay: true, may_change: true, ..Promises::default() }
    }

    fn accept(&self, format: &Format, _options: &Options) -> Result<Format, String> {
        movement(format).map(|_| format.clone())
    }

    fn source(&self, options: &Options, format: &Format, _site: &Site) -> StageResult<Box<dyn Stage>> {
        Ok(Box::new(Source {
            period: options.duration("period"),
            movement: movement(format).map_err(StageError::Own)?,
            period_ends: None,
            last_period_end: Time::ZERO,
            last: None,
            messages: 0,
            averaged: 0,
            averages: 0,
        }))
    }
}

fn movement(format: &Format) -> Result<Movement, String> {
    Movement::of(format)
        .ok_or_else(|| format!("it averages `evdev` and `motion`; the axes of `{format}` are unknown"))
}

struct Source {
    period: Duration,
    movement: Movement,
    /// End of the current period; `None` while nothing moves.
    period_ends: Option<Time>,
    /// End of the last period.
    last_period_end: Time,
    /// Creation time and attributes of the newest accumulated message.
    last: Option<(Time, Attributes)>,
    messages: u64,
    averaged: u64,
    averages: u64,
}

impl Source {
    fn send(&mut self, body: Vec<u8>, now: Time, out: &mut Outbox) {
        let (created, attributes) = self.last.take().unwrap_or((now, Attributes::default()));
        self.averages += 1;
        out.send(Port::MAIN, Message { created, attributes, body: body.into() });
    }

    /// Sends the accumulated motion with its latest positions, in front of another message.
    fn flush(&mut self, now: Time, out: &mut Outbox) {
        while let Some(body) = self.movement.take_last() {
            self.send(body, now, out);
        }
        self.period_ends = None;
    }

    /// The end of a period that starts now: in step with the last one if that has just ended.
    fn period_end(&self, now: Time) -> Time {
        let in_step = self.last_period_end.after(self.period);
        if in_step > now { in_step } else { now.after(self.period) }
    }
}

impl Stage for Source {
    fn handle(&mut self, port: Port, mut message: Message, now: Time, out: &mut Outbox) -> StageResult {
        self.messages += 1;
        let update = self.movement.read(message.body.as_slice());
        if !self.movement.add(&update) {
            self.flush(now, out);
            if !self.movement.add(&update) {
                self.movement.pass(&update);
                out.send(port, message);
                return Ok(());
            }
        }
        self.averaged += 1;
        self.last = Some((message.created, message.attributes));
        self.period_ends.get_or_insert(self.period_end(now));
        Ok(())
    }

    fn handle_end(&mut self, _port: Port, now: Time, out: &mut Outbox) -> StageResult {
        self.flush(now, out);
        Ok(())
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.period_ends
    }

    fn handle_timeout(&mut self, now: Time, out: &mut Outbox) -> StageResult {
        let Some(end) = self.period_ends.take_if(|end| *end <= now) else { return Ok(()) };
        self.last_period_end = end;
        if let Some(body) = self.movement.take_mean() {
            self.send(body, now, out);
        }
        if !self.movement.is_empty() {
            self.period_ends = Some(self.period_end(now));
        }
        Ok(())
    }

    fn held(&self) -> usize {
        usize::from(!self.movement.is_empty())
    }

    fn report(&self) -> Vec<Report> {
        vec![
            ("messages", self.messages as f64),
            ("averaged", self.averaged as f64),
            ("averages", self.averages as f64),
        ]
    }
}
