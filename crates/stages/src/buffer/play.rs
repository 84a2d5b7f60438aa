//! The sink of `mode=play`: creation time plus a shift, fixed or following the jitter.

use crate::histogram::Histogram;
use crate::playout::{Playout, STEP_NS, Window, transit};
use contract::{Message, Options, Outbox, Port, Report, Stage, StageError, Time};
use std::time::Duration;

/// The shift moves by at most one part in this many of the time that passes.
const SLEW: i64 = 1000;
/// Messages seen before their percentile counts.
const SAMPLES_MIN: u32 = 64;
/// The share of messages that an adapted delay covers.
const COVERED: f64 = 0.99;

pub(super) struct Sink {
    playout: Playout,
    transits: Window,
    delay: Duration,
    delay_max: Duration,
    adapts: bool,
    lateness: [Histogram; 2],
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
            delay_max: options.duration("delay_max"),
            adapts: options.flag("adapt"),
            lateness: Default::default(),
            slewed: Time::ZERO,
            late: 0,
            steps: 0,
        }
    }

    /// Learns from one transit, and moves the shift.
    fn follow(&mut self, transit: i64, now: Time) {
        let turned = self.transits.add(transit, now);
        let fastest = self.transits.low().unwrap_or(transit);
        if self.adapts {
            self.adapt(turned, transit.saturating_sub(fastest));
        }
        let target = fastest.saturating_add(nanoseconds(self.delay));
        let Some(shift) = self.playout.shift() else {
            self.slewed = now;
            return self.playout.set_shift(Some(target));
        };
        let step = nanoseconds(now.since(self.slewed)) / SLEW;
        self.slewed = now;
        let unsettled = self.playout.released() == 0 && target < shift;
        // The first message cannot leave in the past.
        let soonest = self.playout.first_created().map_or(target, |created| now.signed_since(created));
        let all_late = fastest > shift;
        let shift = if unsettled {
            target.max(soonest)
        } else if all_late || shift.saturating_sub(target) > STEP_NS {
            self.steps += 1;
            target
        } else {
            shift.saturating_add(target.saturating_sub(shift).clamp(-step, step))
        };
        self.playout.set_shift(Some(shift));
        if transit > shift {
            self.late += 1;
            if self.adapts {
                let highest = fastest.saturating_add(nanoseconds(self.delay_max));
                self.playout.set_shift(Some(transit.min(highest).max(shift)));
            }
        }
    }

    fn adapt(&mut self, turned: bool, lateness: i64) {
        if turned {
            self.lateness.swap(0, 1);
            self.lateness[0].clear();
        }
        self.lateness[0].add(Duration::from_nanos(lateness.unsigned_abs()));
        let samples = self.lateness[0].total() + self.lateness[1].total();
        // Read now and then: the shift follows slowly anyway.
        if samples >= SAMPLES_MIN && samples.is_multiple_of(16) {
            let mut both = self.lateness[0].clone();
            both.merge(&self.lateness[1]);
            self.delay = both.percentile(COVERED).min(self.delay_max);
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
        self.follow(transit(&message, now), now);
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

    fn report(&self) -> Vec<Report> {
        let mut figures = self.playout.figures(self.transits.low(), self.late);
        figures.push(("steps", self.steps as f64));
        figures
    }
}
