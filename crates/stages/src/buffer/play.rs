//! The sink of `mode=play`: creation time plus a shift, fixed or chosen by what the network does.

use crate::adaptive::Hold;
use crate::checkpoint::{Checkpoint, Remembered};
use crate::playout::{Playout, STEP_NS, Window, transit};
use contract::{Body, Choice, Message, Options, Outbox, Port, Report, Stage, StageError, Time};
use std::time::Duration;

/// A fixed shift moves by at most one part in this many of the time that passes.
const SLEW: i64 = 1000;

pub(super) struct Sink {
    playout: Playout,
    transits: Window,
    delay: Duration,
    /// Chooses the delay, where it is `auto`.
    hold: Option<Hold>,
    slewed: Time,
    late: u64,
    steps: u64,
}

impl Sink {
    pub(super) fn new(options: &Options) -> Self {
        Sink {
            playout: Playout::new(options.count("held_max"), options.size("held_bytes")),
            transits: Window::default(),
            delay: options.duration("delay"),
            hold: options.is_auto("delay").then(|| Hold::new(options.duration("delay_max"))),
            slewed: Time::ZERO,
            late: 0,
            steps: 0,
        }
    }

    /// Learns from one transit, and moves the shift.
    fn follow(&mut self, created: Time, transit: i64, now: Time) {
        self.transits.add(transit, now);
        let before = self.playout.shift();
        let shift = match &mut self.hold {
            Some(hold) => hold.follow((created, 1), transit, now, before),
            None => self.shift(transit, now),
        };
        let limit = if self.hold.is_some() { before.unwrap_or(shift) } else { shift };
        self.late += u64::from(transit > limit);
        self.playout.set_shift(Some(shift));
    }

    /// The shift of a fixed delay.
    fn shift(&mut self, transit: i64, now: Time) -> i64 {
        let fastest = self.transits.low().unwrap_or(transit);
        let target = fastest.saturating_add(nanoseconds(self.delay));
        let step = nanoseconds(now.since(self.slewed)) / SLEW;
        self.slewed = now;
        let Some(shift) = self.playout.shift() else { return target };
        let unsettled = self.playout.released() == 0 && target < shift;
        // The first message cannot leave in the past.
        let soonest = self.playout.first_created().map_or(target, |created| now.signed_since(created));
        let all_late = fastest > shift;
        if unsettled {
            target.max(soonest)
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
    fn handle(
        &mut self,
        _port: Port,
        message: Message,
        now: Time,
        out: &mut Outbox,
    ) -> Result<(), StageError> {
        self.playout.release(now, out);
        self.follow(message.created, transit(&message, now), now);
        self.playout.hold(message, now, out);
        Ok(())
    }

    fn handle_end(&mut self, _port: Port, _now: Time, out: &mut Outbox) -> Result<(), StageError> {
        self.playout.flush(out);
        Ok(())
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.playout.next_due()
    }

    fn handle_timeout(&mut self, now: Time, out: &mut Outbox) -> Result<(), StageError> {
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
        let mut checkpoint = Checkpoint::default();
        self.playout.put(&mut checkpoint);
        Some(checkpoint.finish())
    }

    fn restore(&mut self, checkpoint: Body) -> Result<(), StageError> {
        self.playout.restore(Remembered(checkpoint))
    }

    fn report(&self) -> Vec<Report> {
        let mut figures = self.playout.figures(self.transits.low(), self.late);
        figures.push(("steps", self.steps as f64));
        figures
    }

    fn choices(&self) -> Vec<Choice> {
        self.hold.iter().map(|hold| hold.choice("delay", self.playout.shift())).collect()
    }
}
