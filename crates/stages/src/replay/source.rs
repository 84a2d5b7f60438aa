//! The half that restores the spacing.

use contract::{Message, Offset, Options, Outbox, Port, Report, Stage, StageResult, Time};
use std::collections::VecDeque;
use std::time::Duration;

/// A longer step back in time is the start of another recording in the same file, after a restart of its host.
const RESTART: Duration = Duration::from_secs(10);

const BEFORE_START: &str = "before the start of the replay";

pub(super) struct Source {
    speed: f64,
    from: Duration,
    pause: Duration,
    held_max: usize,
    bytes_max: usize,
    /// Creation time of the first message of the recording.
    start: Option<Time>,
    /// Recorded time and due time of the last message that arrived.
    last: Option<(Time, Time)>,
    held: VecDeque<(Time, Message)>,
    bytes: usize,
    sent: u64,
    late_max: Duration,
}

impl Source {
    pub(super) fn new(options: &Options) -> Self {
        Source {
            speed: options.number("speed"),
            from: options.duration("from"),
            pause: options.duration("pause"),
            held_max: options.count("held_max"),
            bytes_max: options.size("held_bytes"),
            start: None,
            last: None,
            held: VecDeque::new(),
            bytes: 0,
            sent: 0,
            late_max: Duration::ZERO,
        }
    }

    /// Due time of a message recorded at `recorded`: the first is due now, each other relative to
    /// the previous one.
    fn due(&mut self, recorded: Time, now: Time) -> Time {
        let due = match self.last {
            None => now,
            Some((previous, due)) => {
                let interval = recorded.since(previous);
                // Without scaling, the interval stays exact.
                let interval = if self.speed == 1.0 { interval } else { interval.div_f64(self.speed) };
                due.after(interval.min(self.pause))
            }
        };
        // A message recorded out of order does not lengthen the time to the next.
        let is_late = |previous: &Time| previous.since(recorded) <= RESTART;
        let latest = self.last.map(|(previous, _)| previous).filter(is_late);
        let latest = latest.map_or(recorded, |previous| previous.max(recorded));
        self.last = Some((latest, due));
        due
    }

    fn release(&mut self, until: Time, now: Time, out: &mut Outbox) {
        while self.held.front().is_some_and(|(due, _)| *due <= until)
            && let Some((due, mut message)) = self.held.pop_front()
        {
            self.bytes -= message.body.len();
            self.sent += 1;
            self.late_max = self.late_max.max(now.since(due));
            // The due time, so a late timer does not show in the spacing.
            let created = due.min(now);
            let shift = Offset(created.signed_since(message.created));
            message.attributes.deadline = message.attributes.deadline.map(|at| at.shifted(shift));
            message.created = created;
            out.send(Port::MAIN, message);
        }
    }
}

impl Stage for Source {
    fn handle(&mut self, _port: Port, message: Message, now: Time, out: &mut Outbox) -> StageResult {
        let start = *self.start.get_or_insert(message.created);
        if self.last.is_none() && message.created < start.after(self.from) {
            out.drop_counted(BEFORE_START, 1);
            return Ok(());
        }
        let due = self.due(message.created, now);
        self.bytes += message.body.len();
        self.held.push_back((due, message));
        self.release(now, now, out);
        Ok(())
    }

    fn handle_end(&mut self, _port: Port, now: Time, out: &mut Outbox) -> StageResult {
        self.release(Time(u64::MAX), now, out);
        Ok(())
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.held.front().map(|(due, _)| *due)
    }

    fn handle_timeout(&mut self, now: Time, out: &mut Outbox) -> StageResult {
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
            ("late_max_us", self.late_max.as_secs_f64() * 1e6),
        ]
    }
}
