//! The half that holds back what the network has no room for.

use super::pending::{Held, Pending};
use super::window::Window;
use crate::movement::Movement;
use crate::varint;
use contract::{Choice, Feedback, Format, Message, Options, Outbox, Port, Report, Stage, StageError, Time};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::time::Duration;

/// What a message is counted as in whose place another one goes.
pub(super) const REPLACED: &str = "replaced by a newer one";
/// Feedback that the network is busy holds for so long, if no other comes.
const BUSY_FOR: Duration = Duration::from_secs(1);
/// The longest that nothing is sent because nothing is heard.
const PATIENCE_MAX: Duration = Duration::from_secs(16);

pub(super) struct Source {
    pending: Pending,
    window: Window,
    lost_after: Duration,
    held_max: usize,
    /// Of the next message that leaves.
    sequence: u64,
    /// When each message under way left, and its bytes, oldest first; the last has the sequence before the next.
    under_way: VecDeque<(Time, usize)>,
    under_way_bytes: u64,
    /// Until then only one may be under way: bytes wait for the network.
    busy_until: Option<Time>,
    /// When something was last heard of, or given up, or began to wait.
    patient_since: Time,
    /// How often in a row nothing was heard.
    given_up: u32,
    replaced: u64,
    joined: u64,
    lost: u64,
}

impl Source {
    pub(super) fn new(options: &Options, format: &Format) -> Self {
        let movement = Movement::of(format).filter(|_| options.flag("merge"));
        Source {
            pending: Pending::new(movement),
            window: Window::new(options),
            lost_after: options.duration("lost_after"),
            held_max: options.count("held_max"),
            sequence: 0,
            under_way: VecDeque::new(),
            under_way_bytes: 0,
            busy_until: None,
            patient_since: Time::ZERO,
            given_up: 0,
            replaced: 0,
            joined: 0,
            lost: 0,
        }
    }

    fn may_send(&self) -> bool {
        let most = if self.busy_until.is_some() { 1 } else { self.window.size() };
        let by_bytes = self.window.has_room(self.under_way.len(), self.under_way_bytes);
        by_bytes.unwrap_or(self.under_way.len() < most)
    }

    /// Something waits: for the window, unless less than that is under way because bytes wait for the network.
    fn note_full(&mut self) {
        if self.under_way.len() >= self.window.size() {
            self.window.fill();
        }
    }

    /// Whether somebody waits for what is under way to be heard of: a message, or who is told that there is no room.
    fn is_waiting(&self) -> bool {
        self.pending.len() > 0 || self.held_max == 0 && !self.may_send()
    }

    fn send(&mut self, mut message: Message, now: Time, out: &mut Outbox) {
        let mut header = SmallVec::<[u8; 16]>::new();
        varint::put(&mut header, self.sequence);
        message.body.push_front(&header);
        self.sequence += 1;
        self.under_way.push_back((now, message.body.len()));
        self.under_way_bytes += message.body.len() as u64;
        out.send(Port::MAIN, message);
    }

    fn release(&mut self, now: Time, out: &mut Outbox) {
        while self.may_send() {
            let Some(message) = self.pending.take() else { return };
            self.send(message, now, out);
        }
    }

    /// The oldest under way is no longer so.
    fn settle_one(&mut self) -> Option<Time> {
        let (left, bytes) = self.under_way.pop_front()?;
        self.under_way_bytes -= bytes as u64;
        Some(left)
    }

    /// When the oldest under way is given up: ever later while nothing is heard.
    fn patience_ends(&self) -> Time {
        let patience = self.lost_after.saturating_mul(1 << self.given_up.min(16));
        self.patient_since.after(patience.min(PATIENCE_MAX.max(self.lost_after)))
    }
}

impl Stage for Source {
    fn handle(
        &mut self,
        _port: Port,
        mut message: Message,
        now: Time,
        out: &mut Outbox,
    ) -> Result<(), StageError> {
        if self.pending.len() == 0 {
            if self.may_send() {
                self.pending.pass(&mut message);
                self.send(message, now, out);
                if self.is_waiting() {
                    self.patient_since = self.patient_since.max(now);
                    self.note_full();
                }
                return Ok(());
            }
            self.patient_since = self.patient_since.max(self.under_way.back().map_or(now, |(left, _)| *left));
        }
        self.note_full();
        match self.pending.hold(message) {
            Held::Waits => {}
            Held::Joins => self.joined += 1,
            Held::Replaces => {
                self.replaced += 1;
                out.drop_counted(REPLACED, 1);
            }
        }
        Ok(())
    }

    fn handle_control(&mut self, control: &[u8], now: Time, out: &mut Outbox) -> Result<(), StageError> {
        let wrong = |what: &str| StageError::Control(what.into());
        let next = <[u8; 8]>::try_from(control).map_err(|_| wrong("it is no number of messages"))?;
        let next = u64::from_le_bytes(next);
        if next > self.sequence {
            return Err(wrong("so many were not sent yet"));
        }
        let heard_of = self.under_way.len() as u64 - (self.sequence - next).min(self.under_way.len() as u64);
        let mut last = None;
        for _ in 0..heard_of {
            let bytes = self.under_way.front().map_or(0, |(_, bytes)| *bytes);
            last = self.settle_one().map(|left| (left, bytes));
        }
        if let Some((left, bytes)) = last {
            self.patient_since = now;
            self.given_up = 0;
            self.window.handle_heard(next - 1, self.sequence, (left, bytes), now);
        }
        self.release(now, out);
        Ok(())
    }

    fn handle_feedback(
        &mut self,
        feedback: &Feedback,
        now: Time,
        out: &mut Outbox,
    ) -> Result<(), StageError> {
        // What is under way between the halves may well not be acknowledged yet; more than that waits.
        let is_busy = feedback.waiting_bytes > self.under_way_bytes;
        self.busy_until = is_busy.then_some(now.after(BUSY_FOR));
        self.release(now, out);
        Ok(())
    }

    fn handle_end(&mut self, _port: Port, now: Time, out: &mut Outbox) -> Result<(), StageError> {
        while let Some(message) = self.pending.take() {
            self.send(message, now, out);
        }
        Ok(())
    }

    fn poll_timeout(&self) -> Option<Time> {
        let patience = self.is_waiting().then(|| self.patience_ends());
        patience.into_iter().chain(self.busy_until).min()
    }

    fn handle_timeout(&mut self, now: Time, out: &mut Outbox) -> Result<(), StageError> {
        self.busy_until = self.busy_until.filter(|until| *until > now);
        if self.is_waiting() && self.patience_ends() <= now {
            self.patient_since = now;
            self.given_up += 1;
            // More than one only where they were allowed and no longer are.
            while !self.may_send() && self.settle_one().is_some() {
                self.lost += 1;
            }
        }
        self.release(now, out);
        Ok(())
    }

    fn has_room(&self) -> bool {
        match self.held_max {
            0 => self.pending.len() == 0 && self.may_send(),
            most => self.pending.len() < most,
        }
    }

    fn held(&self) -> usize {
        self.pending.len()
    }

    fn report(&self) -> Vec<Report> {
        vec![
            ("sent", self.sequence as f64),
            ("replaced", self.replaced as f64),
            ("joined", self.joined as f64),
            ("under_way", self.under_way.len() as f64),
            ("in_flight", self.window.size() as f64),
            ("held", self.pending.len() as f64),
            ("lost", self.lost as f64),
        ]
    }

    fn choices(&self) -> Vec<Choice> {
        self.window.choice().into_iter().collect()
    }
}
