//! The half that holds what is ahead of its turn.

use contract::{Message, Options, Outbox, Port, Report, Stage, StageError, Time};
use std::collections::VecDeque;
use std::time::Duration;

const LATE: &str = "came after its turn, or twice";
const OLD_START: &str = "from before the source started anew";

pub(super) struct Sink {
    window: usize,
    wait: Duration,
    bytes_max: usize,
    start: Option<u32>,
    /// Whose turn it is.
    next: u64,
    /// What comes after `next`, by number: a place is empty while its message is missing. The place of `next`
    /// itself, the first, is always empty; the last never is.
    held: VecDeque<Option<(Time, Message)>>,
    count: usize,
    bytes: usize,
    /// When the one held for the longest came.
    oldest: Option<Time>,
    moved: u64,
    missing: u64,
    restarts: u64,
}

impl Sink {
    pub(super) fn new(options: &Options) -> Self {
        Sink {
            window: options.count("window"),
            wait: options.duration("wait"),
            bytes_max: options.size("held_bytes"),
            start: None,
            next: 0,
            held: VecDeque::new(),
            count: 0,
            bytes: 0,
            oldest: None,
            moved: 0,
            missing: 0,
            restarts: 0,
        }
    }

    /// Begins with the source half that started at `start`, if it is not the one known; false if it is older.
    fn begin(&mut self, start: u32, sequence: u64, out: &mut Outbox) -> bool {
        match self.start {
            Some(known) if known == start => return true,
            Some(known) if (start.wrapping_sub(known)).cast_signed() < 0 => return false,
            Some(_) => {
                self.restarts += 1;
                self.flush(out);
            }
            None => {}
        }
        self.start = Some(start);
        // What came first may not be the first that was sent, or this half may have begun in the middle.
        self.next = if sequence < self.window as u64 { 0 } else { sequence };
        true
    }

    /// Sends what has its turn.
    fn advance(&mut self, out: &mut Outbox) {
        while let Some(Some(_)) = self.held.front() {
            self.send_first(out);
        }
        self.oldest = self.held.iter().flatten().map(|(came, _)| *came).min();
    }

    /// Takes the first place: sends its message, or counts it as missing.
    fn send_first(&mut self, out: &mut Outbox) {
        match self.held.pop_front() {
            Some(Some((_, message))) => {
                self.count -= 1;
                self.bytes -= message.body.len();
                out.send(Port::MAIN, message);
            }
            _ => self.missing += 1,
        }
        self.next = self.next.saturating_add(1);
    }

    /// Gives up everything missing before the first message held, and sends on from there.
    fn give_up(&mut self, out: &mut Outbox) {
        while let Some(None) = self.held.front() {
            self.send_first(out);
        }
        self.advance(out);
    }

    fn flush(&mut self, out: &mut Outbox) {
        while self.count > 0 {
            self.give_up(out);
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
        let short = || StageError::Input("its header is cut short".into());
        let start = message.body.take_front().map(u32::from_le_bytes).ok_or_else(short)?;
        let sequence = message.body.take_front().map(u64::from_le_bytes).ok_or_else(short)?;
        if !self.begin(start, sequence, out) {
            out.drop_counted(OLD_START, 1);
            return Ok(());
        }
        let Some(ahead) = sequence.checked_sub(self.next) else {
            out.drop_counted(LATE, 1);
            return Ok(());
        };
        if ahead == 0 && self.held.is_empty() {
            self.next = self.next.saturating_add(1);
            out.send(Port::MAIN, message);
            return Ok(());
        }
        // Make the window reach this far.
        let mut ahead = ahead;
        while ahead >= self.window as u64 && self.count > 0 {
            self.give_up(out);
            ahead = sequence - self.next;
        }
        if ahead >= self.window as u64 {
            self.missing = self.missing.saturating_add(ahead);
            self.next = sequence;
            self.held.clear();
            ahead = 0;
        }
        // Less than the window, which fits.
        let place = ahead as usize;
        if self.held.len() <= place {
            self.held.resize_with(place + 1, || None);
        }
        if self.held[place].is_some() {
            out.drop_counted(LATE, 1);
            return Ok(());
        }
        self.moved += u64::from(ahead > 0);
        self.count += 1;
        self.bytes += message.body.len();
        self.held[place] = Some((now, message));
        self.oldest.get_or_insert(now);
        if place == 0 {
            self.advance(out);
        }
        while self.bytes > self.bytes_max {
            self.give_up(out);
        }
        Ok(())
    }

    fn handle_end(&mut self, _port: Port, _now: Time, out: &mut Outbox) -> Result<(), StageError> {
        self.flush(out);
        Ok(())
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.oldest.map(|came| came.after(self.wait))
    }

    fn handle_timeout(&mut self, now: Time, out: &mut Outbox) -> Result<(), StageError> {
        while self.poll_timeout().is_some_and(|at| at <= now) {
            self.give_up(out);
        }
        Ok(())
    }

    fn report(&self) -> Vec<Report> {
        vec![
            ("held", self.count as f64),
            ("moved", self.moved as f64),
            ("missing", self.missing as f64),
            ("restarts", self.restarts as f64),
        ]
    }
}
