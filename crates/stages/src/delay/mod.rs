//! `delay`: a test pair that delays messages.

#[cfg(test)]
mod tests;

use crate::random::Random;
use contract::{
    Format, Message, ModuleEntry, OptionKind, OptionSpec, Options, Outbox, Pair, Port, Promises, Report,
    Site, Stage, StageResult, Time, agreed,
};
use std::collections::BTreeMap;
use std::time::Duration;

/// The pair.
pub(crate) struct Delay;

/// Messages held, at most; then backpressure.
const HELD_MAX: usize = 10_000;
const DURATION: OptionKind = OptionKind::Duration { min: Duration::ZERO, max: Duration::from_secs(60) };

static OPTIONS: [OptionSpec; 4] = [
    agreed("delay", DURATION, "20ms", "fixed delay of each message"),
    agreed("jitter", DURATION, "0s", "additional random delay, uniform from 0 to this"),
    agreed("reorder", OptionKind::Flag, "false", "true: jitter may change the order"),
    agreed("seed", OptionKind::Integer { min: 0, max: i64::MAX }, "1", "seed of the random numbers"),
];

impl Pair for Delay {
    fn entry(&self) -> ModuleEntry {
        ModuleEntry {
            name: "delay",
            summary: "test pair: delays messages, by a fixed or a random time",
            doc: include_str!("doc.md"),
            options: &OPTIONS,
        }
    }

    fn promises(&self, options: &Options) -> Promises {
        let may_reorder = options.flag("reorder") && !options.duration("jitter").is_zero();
        Promises { may_delay: true, may_reorder, ..Promises::default() }
    }

    fn source(&self, options: &Options, _format: &Format, _site: &Site) -> StageResult<Box<dyn Stage>> {
        Ok(Box::new(Source {
            delay: options.duration("delay"),
            // The range of the option fits.
            jitter_ns: u64::try_from(options.duration("jitter").as_nanos()).unwrap_or(0),
            may_reorder: options.flag("reorder"),
            random: Random::new(options.integer("seed").unsigned_abs()),
            held: BTreeMap::new(),
            latest: Time::ZERO,
            entered: 0,
            sent: 0,
        }))
    }
}

struct Source {
    delay: Duration,
    jitter_ns: u64,
    may_reorder: bool,
    random: Random,
    /// By due time, then by arrival.
    held: BTreeMap<(Time, u64), Message>,
    latest: Time,
    entered: u64,
    sent: u64,
}

impl Source {
    fn release(&mut self, until: Time, out: &mut Outbox) {
        while let Some(first) = self.held.first_entry()
            && first.key().0 <= until
        {
            self.sent += 1;
            out.send(Port::MAIN, first.remove());
        }
    }
}

impl Stage for Source {
    fn handle(&mut self, _port: Port, message: Message, now: Time, out: &mut Outbox) -> StageResult {
        let jitter = Duration::from_nanos(self.random.up_to(self.jitter_ns));
        let mut due = now.after(self.delay + jitter);
        if !self.may_reorder {
            due = due.max(self.latest);
            self.latest = due;
        }
        self.held.insert((due, self.entered), message);
        self.entered += 1;
        self.release(now, out);
        Ok(())
    }

    fn handle_end(&mut self, _port: Port, _now: Time, out: &mut Outbox) -> StageResult {
        self.release(Time(u64::MAX), out);
        Ok(())
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.held.first_key_value().map(|((due, _), _)| *due)
    }

    fn handle_timeout(&mut self, now: Time, out: &mut Outbox) -> StageResult {
        self.release(now, out);
        Ok(())
    }

    fn has_room(&self) -> bool {
        self.held.len() < HELD_MAX
    }

    fn held(&self) -> usize {
        self.held.len()
    }

    fn finished(&self, last: u32) -> Option<u32> {
        // All messages up to the mark before the oldest held one are finished. Marks wrap around,
        // so the oldest is the one furthest from `last`.
        let distance = self.held.values().map(|message| last.wrapping_sub(message.attributes.mark)).max();
        Some(distance.map_or(last, |distance| last.wrapping_sub(distance).wrapping_sub(1)))
    }

    fn report(&self) -> Vec<Report> {
        vec![("held", self.held.len() as f64), ("sent", self.sent as f64)]
    }
}
