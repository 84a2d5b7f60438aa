//! `average`: motion averaged over a time period (paper N, section 4.8.2), each part of a message treated as
//! what it is.

#[cfg(test)]
mod tests;

use crate::agreed;
use crate::movement::Movement;
use contract::{
    Attributes, Format, Message, OptionKind, OptionSpec, Options, Outbox, Pair, PassThrough, Port, Promises,
    Report, Site, Stage, StageError, Time,
};
use std::time::Duration;

/// The pair.
pub(crate) struct Average;

static OPTIONS: [OptionSpec; 1] = [agreed(
    "period",
    OptionKind::Duration { min: Duration::from_millis(1), max: Duration::from_secs(60) },
    "50ms",
    "the time over which motion is averaged",
)];

impl Pair for Average {
    fn name(&self) -> &'static str {
        "average"
    }

    fn summary(&self) -> &'static str {
        "averages motion over a time period; keys and buttons pass at once"
    }

    fn doc(&self) -> &'static str {
        include_str!("doc.md")
    }

    fn options(&self) -> &'static [OptionSpec] {
        &OPTIONS
    }

    fn promises(&self, _options: &Options) -> Promises {
        Promises { may_delay: true, may_change: true, ..Promises::default() }
    }

    fn accept(&self, format: &Format, _options: &Options) -> Result<Format, String> {
        movement(format).map(|_| format.clone())
    }

    fn source(&self, options: &Options, format: &Format, _site: &Site) -> Result<Box<dyn Stage>, StageError> {
        Ok(Box::new(Source {
            period: options.duration("period"),
            movement: movement(format).map_err(StageError::Own)?,
            ends: None,
            ended: Time::ZERO,
            last: None,
            messages: 0,
            taken: 0,
            made: 0,
        }))
    }

    fn sink(&self, _options: &Options, _format: &Format, _site: &Site) -> Result<Box<dyn Stage>, StageError> {
        Ok(Box::new(PassThrough))
    }
}

fn movement(format: &Format) -> Result<Movement, String> {
    Movement::of(format).ok_or_else(|| {
        format!("it averages `evdev` and `motion`: of `{format}` nobody knows here what is an axis")
    })
}

struct Source {
    period: Duration,
    movement: Movement,
    /// When the current period ends; none while nothing moves.
    ends: Option<Time>,
    /// When the last one ended.
    ended: Time,
    /// Of the last message taken in, and not told yet.
    last: Option<(Time, Attributes)>,
    messages: u64,
    taken: u64,
    made: u64,
}

impl Source {
    fn send(&mut self, body: Vec<u8>, now: Time, out: &mut Outbox) {
        let (created, attributes) = self.last.take().unwrap_or((now, Attributes::default()));
        self.made += 1;
        out.send(Port::MAIN, Message { created, attributes, body: body.into() });
    }

    /// Tells all that was taken in, before something that is no motion.
    fn flush(&mut self, now: Time, out: &mut Outbox) {
        while let Some(body) = self.movement.take_last() {
            self.send(body, now, out);
        }
        self.ends = None;
    }

    /// The end of the period that has begun, or begins: in step with the one before if that ended just now.
    fn period_end(&self, now: Time) -> Time {
        let in_step = self.ended.after(self.period);
        if in_step > now { in_step } else { now.after(self.period) }
    }
}

impl Stage for Source {
    fn handle(
        &mut self,
        port: Port,
        mut message: Message,
        now: Time,
        out: &mut Outbox,
    ) -> Result<(), StageError> {
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
        self.taken += 1;
        self.last = Some((message.created, message.attributes));
        self.ends.get_or_insert(self.period_end(now));
        Ok(())
    }

    fn handle_end(&mut self, _port: Port, now: Time, out: &mut Outbox) -> Result<(), StageError> {
        self.flush(now, out);
        Ok(())
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.ends
    }

    fn handle_timeout(&mut self, now: Time, out: &mut Outbox) -> Result<(), StageError> {
        let Some(end) = self.ends.take_if(|end| *end <= now) else { return Ok(()) };
        self.ended = end;
        if let Some(body) = self.movement.take_mean() {
            self.send(body, now, out);
        }
        if !self.movement.is_empty() {
            self.ends = Some(self.period_end(now));
        }
        Ok(())
    }

    fn held(&self) -> usize {
        usize::from(!self.movement.is_empty())
    }

    fn report(&self) -> Vec<Report> {
        vec![
            ("messages", self.messages as f64),
            ("averaged", self.taken as f64),
            ("averages", self.made as f64),
        ]
    }
}
