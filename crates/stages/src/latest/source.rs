//! The half that holds messages for which the network has no room.
//!
//! A message is lost if no acknowledgement comes for [`LOSS_TIMEOUT`]. Each further timeout in a row
//! doubles that time, up to [`LOSS_TIMEOUT_MAX`], so that a dead network is probed but not flooded.

use super::pending::{HoldOutcome, Pending};
use super::window::Window;
use crate::movement::Movement;
use crate::varint;
use contract::{
    Choice, Feedback, Format, Message, Options, Outbox, Port, Report, Stage, StageError, StageResult, Time,
};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::time::Duration;

/// Drop reason of a message that a newer one replaced.
pub(super) const REPLACED: &str = "replaced by a newer one";
/// Time for which feedback that the network is busy holds without new feedback.
const BUSY_FOR: Duration = Duration::from_secs(1);
/// First loss timeout.
const LOSS_TIMEOUT: Duration = Duration::from_secs(1);
/// Longest loss timeout.
const LOSS_TIMEOUT_MAX: Duration = Duration::from_secs(16);

pub(super) struct Source {
    pending: Pending,
    window: Window,
    held_max: usize,
    /// Number of the next message to send.
    sequence: u64,
    /// Send time and bytes of each message in flight, oldest first. The last has number `sequence -
    /// 1`.
    in_flight: VecDeque<(Time, usize)>,
    in_flight_bytes: u64,
    /// Until then only one message may be in flight, because bytes wait for the network.
    busy_until: Option<Time>,
    /// Start of the loss timer: the last acknowledgement, loss or begin of waiting.
    timer_start: Time,
    /// Consecutive loss timeouts.
    timeouts: u32,
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
            held_max: options.count("held_max"),
            sequence: 0,
            in_flight: VecDeque::new(),
            in_flight_bytes: 0,
            busy_until: None,
            timer_start: Time::ZERO,
            timeouts: 0,
            replaced: 0,
            joined: 0,
            lost: 0,
        }
    }

    fn may_send(&self) -> bool {
        let most = if self.busy_until.is_some() { 1 } else { self.window.size() };
        let by_bytes = self.window.has_room(self.in_flight.len(), self.in_flight_bytes);
        by_bytes.unwrap_or(self.in_flight.len() < most)
    }

    /// A message waits. Tells the window, unless the wait is for bytes in the network and the
    /// window has room.
    fn note_full(&mut self) {
        if self.in_flight.len() >= self.window.size() {
            self.window.set_full();
        }
    }

    /// True if an acknowledgement is awaited: by a held message, or by the caller because there is
    /// no room.
    fn is_waiting(&self) -> bool {
        self.pending.len() > 0 || self.held_max == 0 && !self.may_send()
    }

    fn send(&mut self, mut message: Message, now: Time, out: &mut Outbox) {
        let mut header = SmallVec::<[u8; 16]>::new();
        varint::put(&mut header, self.sequence);
        message.body.push_front(&header);
        self.sequence += 1;
        self.in_flight.push_back((now, message.body.len()));
        self.in_flight_bytes += message.body.len() as u64;
        out.send(Port::MAIN, message);
    }

    fn release(&mut self, now: Time, out: &mut Outbox) {
        while self.may_send() {
            let Some(message) = self.pending.take() else { return };
            self.send(message, now, out);
        }
    }

    /// Removes the oldest message in flight; returns its send time.
    fn remove_oldest(&mut self) -> Option<Time> {
        let (sent_at, bytes) = self.in_flight.pop_front()?;
        self.in_flight_bytes -= bytes as u64;
        Some(sent_at)
    }

    /// Time at which the oldest message in flight counts as lost.
    fn loss_deadline(&self) -> Time {
        self.timer_start.after((LOSS_TIMEOUT * (1 << self.timeouts.min(4))).min(LOSS_TIMEOUT_MAX))
    }
}

impl Stage for Source {
    fn handle(&mut self, _port: Port, mut message: Message, now: Time, out: &mut Outbox) -> StageResult {
        if self.pending.len() == 0 {
            if self.may_send() {
                self.pending.pass(&mut message);
                self.send(message, now, out);
                if self.is_waiting() {
                    self.timer_start = self.timer_start.max(now);
                    self.note_full();
                }
                return Ok(());
            }
            self.timer_start =
                self.timer_start.max(self.in_flight.back().map_or(now, |(sent_at, _)| *sent_at));
        }
        self.note_full();
        match self.pending.hold(message) {
            HoldOutcome::Queued => {}
            HoldOutcome::Merged => self.joined += 1,
            HoldOutcome::Replaced => {
                self.replaced += 1;
                out.drop_counted(REPLACED, 1);
            }
        }
        Ok(())
    }

    fn handle_control(&mut self, control: &[u8], now: Time, out: &mut Outbox) -> StageResult {
        let malformed = |problem: &str| StageError::Control(problem.into());
        let next = <[u8; 8]>::try_from(control).map_err(|_| malformed("it is not a sequence number"))?;
        let next = u64::from_le_bytes(next);
        if next > self.sequence {
            return Err(malformed("it acknowledges messages not yet sent"));
        }
        let acknowledged =
            self.in_flight.len() as u64 - (self.sequence - next).min(self.in_flight.len() as u64);
        let mut last = None;
        for _ in 0..acknowledged {
            let bytes = self.in_flight.front().map_or(0, |(_, bytes)| *bytes);
            last = self.remove_oldest().map(|sent_at| (sent_at, bytes));
        }
        if let Some((sent_at, bytes)) = last {
            self.timer_start = now;
            self.timeouts = 0;
            self.window.handle_ack(next - 1, self.sequence, (sent_at, bytes), now);
        }
        self.release(now, out);
        Ok(())
    }

    fn handle_feedback(&mut self, feedback: &Feedback, now: Time, out: &mut Outbox) -> StageResult {
        // Bytes in flight between the halves are expected to be unacknowledged; only more than
        // those wait.
        let is_busy = feedback.waiting_bytes > self.in_flight_bytes;
        self.busy_until = is_busy.then_some(now.after(BUSY_FOR));
        self.release(now, out);
        Ok(())
    }

    fn handle_end(&mut self, _port: Port, now: Time, out: &mut Outbox) -> StageResult {
        while let Some(message) = self.pending.take() {
            self.send(message, now, out);
        }
        Ok(())
    }

    fn poll_timeout(&self) -> Option<Time> {
        let loss = self.is_waiting().then(|| self.loss_deadline());
        loss.into_iter().chain(self.busy_until).min()
    }

    fn handle_timeout(&mut self, now: Time, out: &mut Outbox) -> StageResult {
        self.busy_until = self.busy_until.filter(|until| *until > now);
        if self.is_waiting() && self.loss_deadline() <= now {
            self.timer_start = now;
            self.timeouts += 1;
            // Removes more than one message only where the window has shrunk.
            while !self.may_send() && self.remove_oldest().is_some() {
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
            ("in_flight", self.in_flight.len() as f64),
            ("window", self.window.size() as f64),
            ("held", self.pending.len() as f64),
            ("lost", self.lost as f64),
        ]
    }

    fn choices(&self) -> Vec<Choice> {
        self.window.choice().into_iter().collect()
    }
}
