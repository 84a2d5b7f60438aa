//! The sink of `mode=play`: releases each message at its creation time plus a shift, which is fixed
//! or adaptive.

use super::shift::{Release, ShiftControl};
use crate::adaptive::LateCost;
use crate::checkpoint::{CheckpointReader, CheckpointWriter};
use crate::playout::{HELD_MAX, Playout, transit};
use contract::{Body, Choice, Message, Options, Outbox, Port, Report, Stage, StageResult, Time};

pub(super) struct Sink {
    playout: Playout,
    control: ShiftControl,
}

impl Sink {
    pub(super) fn new(options: &Options) -> Self {
        Sink { playout: Playout::new(HELD_MAX), control: ShiftControl::new(options, LateCost::Spacing) }
    }
}

impl Stage for Sink {
    fn handle(&mut self, _port: Port, message: Message, now: Time, out: &mut Outbox) -> StageResult {
        self.playout.release(now, out);
        let release = Release {
            shift: self.playout.shift(),
            first_created: self.playout.first_created(),
            has_begun: self.playout.released() > 0,
        };
        let shift = self.control.update(message.created, transit(&message, now), now, release);
        self.playout.set_shift(Some(shift));
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
        let mut figures = self.playout.figures(self.control.fastest(), self.control.late());
        figures.push(("steps", self.control.steps() as f64));
        figures
    }

    fn choices(&self) -> Vec<Choice> {
        self.control.choices(self.playout.shift())
    }
}
