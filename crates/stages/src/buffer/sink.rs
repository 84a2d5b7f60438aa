//! The half that asks, and releases at creation spacing.

use crate::checkpoint::{Checkpoint, Remembered};
use crate::playout::{Playout, STEP_NS, transit};
use contract::{Body, Message, Options, Outbox, Port, Report, Stage, StageError, Time};
use std::time::Duration;

/// How far a number may be ahead of what was asked for: an end gives out all that the source holds.
const AHEAD_MAX: u64 = 1 << 20;

/// No flow comes to so many messages.
const COUNT_MAX: u64 = 1 << 62;

/// While nothing comes a request is said again, ever less often: at last this often.
const SILENCE_MAX: Duration = Duration::from_secs(16);

pub(super) struct Sink {
    playout: Playout,
    min: u64,
    max: u64,
    lost_after: Duration,
    /// How many the source may have released in all.
    granted: u64,
    /// One more than the highest number seen, or known to be lost.
    seen: u64,
    /// What the source said it has released, and when what is missing of that is lost.
    released: Option<(u64, Time)>,
    /// When the request is said again, if nothing comes, and how long after the last time.
    repeat: Option<(Time, Duration)>,
    started: bool,
    requests: u64,
    late: u64,
    lost: u64,
    fastest: i64,
}

impl Sink {
    pub(super) fn new(options: &Options) -> Self {
        let max = options.count("max");
        Sink {
            // An end gives out all that the source holds, whatever was asked for.
            playout: Playout::new(max + options.count("source_max"), options.size("held_bytes")),
            min: options.count("min").min(max) as u64,
            max: max as u64,
            lost_after: options.duration("lost_after"),
            granted: 0,
            seen: 0,
            released: None,
            repeat: None,
            started: false,
            requests: 0,
            late: 0,
            lost: 0,
            fastest: i64::MAX,
        }
    }

    /// Below the minimum, asks for what brings it back to the maximum. What was asked for and has not come
    /// yet counts as held: else it would be asked for again and again for a round trip.
    fn request(&mut self, now: Time, out: &mut Outbox) {
        let held = self.playout.len() as u64 + self.coming();
        if held < self.min {
            self.granted = self.granted.max(self.seen) + self.max.saturating_sub(held);
            self.say(self.lost_after, now, out);
        }
    }

    /// What was asked for and has not come.
    fn coming(&self) -> u64 {
        self.granted.saturating_sub(self.seen)
    }

    /// Tells the source how many it may have released; again after `wait`, unless something comes. The
    /// number is a total, so that saying it again does no harm where the control channel was interrupted.
    fn say(&mut self, wait: Duration, now: Time, out: &mut Outbox) {
        self.requests += 1;
        self.repeat = Some((now.after(wait), wait));
        out.control(self.granted.to_le_bytes().to_vec());
    }

    /// Everything before number `next` has come or never will.
    fn see(&mut self, next: u64) {
        self.seen = self.seen.max(next);
        if self.released.is_some_and(|(released, _)| self.seen >= released) {
            self.released = None;
        }
    }

    /// Moves the shift where spacing has to start anew.
    fn anchor(&mut self, transit: i64) {
        self.fastest = self.fastest.min(transit);
        let Some(shift) = self.playout.shift() else {
            return self.playout.set_shift(Some(transit));
        };
        let ran_empty = self.playout.len() == 0;
        if ran_empty && transit > shift {
            self.late += 1;
            self.playout.set_shift(Some(transit));
        } else if ran_empty && shift.saturating_sub(transit) > STEP_NS {
            self.playout.set_shift(Some(transit));
        }
    }
}

impl Stage for Sink {
    fn handle(
        &mut self,
        _port: Port,
        mut message: Message,
        now: Time,
        out: &mut Outbox,
    ) -> Result<(), StageError> {
        let sequence = message.body.take_front().map(u64::from_le_bytes);
        let sequence = sequence.ok_or_else(|| StageError::Input("it has no number".into()))?;
        let ahead = sequence.saturating_sub(self.granted.max(self.seen));
        if ahead > AHEAD_MAX {
            return Err(StageError::Input(format!("its number is {ahead} ahead of all requests")));
        }
        self.lost += sequence.saturating_sub(self.seen);
        if sequence < self.seen {
            // It was taken for lost, and was only overtaken.
            self.lost = self.lost.saturating_sub(1);
        }
        self.see(sequence + 1);
        self.repeat = (self.coming() > 0).then(|| (now.after(self.lost_after), self.lost_after));
        self.playout.release(now, out);
        self.anchor(transit(&message, now));
        self.playout.hold(message, now, out);
        self.request(now, out);
        Ok(())
    }

    fn handle_control(&mut self, control: &[u8], now: Time, out: &mut Outbox) -> Result<(), StageError> {
        let released = <[u8; 8]>::try_from(control)
            .map_err(|_| StageError::Control(format!("a count has 8 bytes, not {}", control.len())))?;
        let released = u64::from_le_bytes(released);
        if released.saturating_sub(self.granted.max(self.seen)) > AHEAD_MAX {
            return Err(StageError::Control(format!("{released} released, {} asked for", self.granted)));
        }
        if self.granted < released && self.seen == 0 {
            // A half before this one asked for them and has them.
            (self.seen, self.granted) = (released, released);
            self.request(now, out);
        } else if released > self.seen {
            self.released = Some((released, now.after(self.lost_after)));
        }
        Ok(())
    }

    fn handle_end(&mut self, _port: Port, _now: Time, out: &mut Outbox) -> Result<(), StageError> {
        self.playout.flush(out);
        Ok(())
    }

    fn handle_gap(&mut self, _port: Port, _now: Time, _out: &mut Outbox) -> Result<(), StageError> {
        // What is missing shows in the numbers. Spacing starts anew when what is held has left.
        Ok(())
    }

    fn poll_timeout(&self) -> Option<Time> {
        if !self.started {
            return Some(Time::ZERO);
        }
        let lost_at = self.released.map(|(_, at)| at);
        let repeat_at = self.repeat.map(|(at, _)| at);
        self.playout.next_due().into_iter().chain(lost_at).chain(repeat_at).min()
    }

    fn handle_timeout(&mut self, now: Time, out: &mut Outbox) -> Result<(), StageError> {
        self.started = true;
        if let Some((released, at)) = self.released
            && at <= now
        {
            self.lost += released.saturating_sub(self.seen);
            self.see(released);
        }
        self.playout.release(now, out);
        self.request(now, out);
        if let Some((at, waited)) = self.repeat
            && at <= now
        {
            self.say((waited * 2).min(SILENCE_MAX.max(waited)), now, out);
        }
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
        checkpoint.put([self.granted, self.seen]);
        self.playout.put(&mut checkpoint);
        Some(checkpoint.finish())
    }

    fn restore(&mut self, checkpoint: Body) -> Result<(), StageError> {
        let mut remembered = Remembered(checkpoint);
        self.granted = remembered.number_below(COUNT_MAX)?;
        self.seen = remembered.number_below(COUNT_MAX)?;
        self.playout.restore(remembered)
    }

    fn report(&self) -> Vec<Report> {
        let mut figures = self.playout.figures(Some(self.fastest), self.late);
        figures.extend([("requests", self.requests as f64), ("lost", self.lost as f64)]);
        figures
    }
}
