//! The half that keeps the rhythm.

use contract::{Message, Offset, Options, Outbox, Port, Report, Stage, StageError, Time};
use std::collections::VecDeque;
use std::time::Duration;

const BEFORE: &str = "before where the replay begins";

pub(super) struct Source {
    speed: f64,
    from: Duration,
    pause: Duration,
    held_max: usize,
    bytes_max: usize,
    /// When the recording begins, on its own clock.
    begin: Option<Time>,
    /// When the last message that came was recorded, and when it is due.
    last: Option<(Time, Time)>,
    held: VecDeque<(Time, Message)>,
    bytes: usize,
    sent: u64,
    late: Duration,
}

impl Source {
    pub(super) fn new(options: &Options) -> Self {
        Source {
            speed: options.number("speed"),
            from: options.duration("from"),
            pause: options.duration("pause"),
            held_max: options.count("held_max"),
            bytes_max: options.size("held_bytes"),
            begin: None,
            last: None,
            held: VecDeque::new(),
            bytes: 0,
            sent: 0,
            late: Duration::ZERO,
        }
    }

    /// When a message recorded at `recorded` is due: the first now, each other after the one before it.
    fn due(&mut self, recorded: Time, now: Time) -> Time {
        let due = match self.last {
            None => now,
            Some((before, due)) => {
                let interval = recorded.since(before);
                // Exact where nothing is to be scaled.
                let interval = if self.speed == 1.0 { interval } else { interval.div_f64(self.speed) };
                due.after(interval.min(self.pause))
            }
        };
        // One recorded out of order does not lengthen the time to the next.
        let latest = self.last.map_or(recorded, |(before, _)| before.max(recorded));
        self.last = Some((latest, due));
        due
    }

    fn release(&mut self, until: Time, now: Time, out: &mut Outbox) {
        while self.held.front().is_some_and(|(due, _)| *due <= until)
            && let Some((due, mut message)) = self.held.pop_front()
        {
            self.bytes -= message.body.len();
            self.sent += 1;
            self.late = self.late.max(now.since(due));
            // What wakes this half late does not show in the rhythm.
            let created = due.min(now);
            let moved = Offset(created.signed_since(message.created));
            message.attributes.deadline = message.attributes.deadline.map(|at| at.shifted(moved));
            message.created = created;
            out.send(Port::MAIN, message);
        }
    }
}

impl Stage for Source {
    fn handle(
        &mut self,
        _port: Port,
        message: Message,
        now: Time,
        out: &mut Outbox,
    ) -> Result<(), StageError> {
        let begin = *self.begin.get_or_insert(message.created);
        if self.last.is_none() && message.created < begin.after(self.from) {
            out.drop_counted(BEFORE, 1);
            return Ok(());
        }
        let due = self.due(message.created, now);
        self.bytes += message.body.len();
        self.held.push_back((due, message));
        self.release(now, now, out);
        Ok(())
    }

    fn handle_end(&mut self, _port: Port, now: Time, out: &mut Outbox) -> Result<(), StageError> {
        self.release(Time(u64::MAX), now, out);
        Ok(())
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.held.front().map(|(due, _)| *due)
    }

    fn handle_timeout(&mut self, now: Time, out: &mut Outbox) -> Result<(), StageError> {
        self.release(now, now, out);
        Ok(())
    }

    fn has_room(&self) -> bool {
        self.held.len() < self.held_max && self.bytes < self.bytes_max
    }

    fn held(&self) -> usize {
        self.held.len()
    }

    fn finished(&self, last: u32) -> Option<u32> {
        Some(self.held.front().map_or(last, |(_, message)| message.attributes.mark.wrapping_sub(1)))
    }

    fn report(&self) -> Vec<Report> {
        vec![
            ("sent", self.sent as f64),
            ("held", self.held.len() as f64),
            ("late_max_us", self.late.as_secs_f64() * 1e6),
        ]
    }
}
