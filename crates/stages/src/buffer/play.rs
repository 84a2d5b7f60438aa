//! The sink of `mode=play`: releases each message at its creation time plus a shift, which is fixed
//! or adaptive.

use crate::adaptive::AdaptiveDelay;
use crate::checkpoint::{CheckpointReader, CheckpointWriter};
use crate::playout::{HELD_MAX, MinMaxWindow, Playout, STEP_NS, transit};
use contract::{Body, Choice, Message, Options, Outbox, Port, Report, Stage, StageResult, Time};
use std::time::Duration;

/// With a fixed delay, the shift moves by at most one part in this many of the elapsed time.
const SLEW: i64 = 1000;

pub(super) struct Sink {
    playout: Playout,
    transits: MinMaxWindow,
    delay: Duration,
    /// The controller of `delay=auto`.
    adaptive: Option<AdaptiveDelay>,
    last_slew: Time,
    late: u64,
    steps: u64,
}

impl Sink {
    pub(super) fn new(options: &Options) -> Self {
        Sink {
            playout: Playout::new(HELD_MAX),
            transits: MinMaxWindow::default(),
            delay: options.duration("delay"),
            adaptive: options.is_auto("delay").then(|| AdaptiveDelay::new(options.duration("delay_max"))),
            last_slew: Time::ZERO,
            late: 0,
            steps: 0,
        }
    }

    /// Updates the shift with one transit.
    fn update_shift(&mut self, created: Time, transit: i64, now: Time) {
        self.transits.add(transit, now);
        let previous = self.playout.shift();
        let shift = match &mut self.adaptive {
            Some(adaptive) => adaptive.update((created, 1), transit, now, previous),
            None => self.fixed_shift(transit, now),
        };
        let limit = if self.adaptive.is_some() { previous.unwrap_or(shift) } else { shift };
        self.late += u64::from(transit > limit);
        self.playout.set_shift(Some(shift));
    }

    /// The shift for a fixed delay:
    ///
    /// ```text
    /// nothing released yet, shift falls   the fastest transit plus the delay, but not into the past
    /// all late, or 500 ms too high        a step to the fastest transit plus the delay
    /// otherwise                           slewed towards it
    /// ```
    fn fixed_shift(&mut self, transit: i64, now: Time) -> i64 {
        let fastest = self.transits.low().unwrap_or(transit);
        let target = fastest.saturating_add(nanoseconds(self.delay));
        let step = nanoseconds(now.since(self.last_slew)) / SLEW;
        self.last_slew = now;
        let Some(shift) = self.playout.shift() else { return target };
        let is_unsettled = self.playout.released() == 0 && target < shift;
        // The first message cannot be released in the past.
        let earliest = self.playout.first_created().map_or(target, |created| now.signed_since(created));
        let all_late = fastest > shift;
        if is_unsettled {
            target.max(earliest)
        } else if all_late || shift.saturating_sub(target) > STEP_NS {
            self.steps += 1;
            target
        } else {
            shift.saturating_add(target.saturating_sub(shift).clamp(-step, step))
        }
    }
}

fn nanoseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

impl Stage for Sink {
    fn handle(&mut self, _port: Port, message: Message, now: Time, out: &mut Outbox) -> StageResult {
        self.playout.release(now, out);
        self.update_shift(message.created, transit(&message, now), now);
        self.playout.hold(message, now, out);
        Ok(())
    }

    fn handle_end(&mut self, _port: Port, _now: Time, out: &mut Outbox) -> StageResult {
        self.playout.flush(out);
        Ok(())
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.playout.next_due()
    }

    fn handle_timeout(&mut self, now: Time, out: &mut Outbox) -> StageResult {
        self.playout.release(now, out);
        Ok(())
    }

    fn held(&self) -> usize {
        self.playout.len()
    }

    fn finished(&self, last: u32) -> Option<u32> {
        Some(self.playout.finished(last))
    }

    fn checkpoint(&self) -> Option<Body> {
        let mut checkpoint = CheckpointWriter::default();
        self.playout.put(&mut checkpoint);
        Some(checkpoint.finish())
    }

    fn restore(&mut self, checkpoint: Body) -> StageResult {
        self.playout.restore(CheckpointReader(checkpoint))
    }

    fn report(&self) -> Vec<Report> {
        let mut figures = self.playout.figures(self.transits.low(), self.late);
        figures.push(("steps", self.steps as f64));
        figures
    }

    fn choices(&self) -> Vec<Choice> {
        self.adaptive.iter().map(|adaptive| adaptive.choice("delay", self.playout.shift())).collect()
    }
}
