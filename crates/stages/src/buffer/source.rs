//! The source of `mode=request`: queues messages and releases them as granted. See `sink` for the
//! protocol.

use super::sink::{MORE, WAITED};
use crate::HELD_BYTES_MAX;
use contract::{Message, Options, Outbox, Port, Report, Stage, StageError, StageResult, Time};
use std::collections::VecDeque;
use std::time::Duration;

const DISCARDED: &str = "the source is full";

/// The time in which messages that wait are read, once there is room.
const READ_WITHIN: Duration = Duration::from_millis(20);

pub(super) struct Source {
    /// The messages, and whether each has the creation time of its room.
    queue: VecDeque<(Message, bool)>,
    bytes: usize,
    messages_max: usize,
    applies_backpressure: bool,
    /// The time at which it had room again. A device that waits is read then, until it is full again: the time of creation is
    /// that of the room. A stage in front of it may hold an earlier message.
    room_at: Option<Time>,
    /// Total number of messages that it may have released.
    granted: u64,
    released: u64,
}

impl Source {
    pub(super) fn new(options: &Options, applies_backpressure: bool) -> Self {
        Source {
            queue: VecDeque::new(),
            bytes: 0,
            messages_max: options.count("source_max"),
            applies_backpressure,
            room_at: None,
            granted: 0,
            released: 0,
        }
    }

    fn take_first(&mut self) -> Option<(Message, bool)> {
        let first = self.queue.pop_front()?;
        self.bytes -= first.0.body.len();
        Some(first)
    }

    fn release_first(&mut self, out: &mut Outbox) -> bool {
        let Some((mut message, has_waited)) = self.take_first() else { return false };
        let has_more = !self.queue.is_empty() && self.released + 1 >= self.granted;
        let bits = if has_more { MORE } else { 0 } | if has_waited { WAITED } else { 0 };
        message.body.push_front(&(self.released | bits).to_le_bytes());
        self.released += 1;
        out.send(Port::MAIN, message);
        true
    }

    fn release(&mut self, now: Time, out: &mut Outbox) {
        let (mut any, was_full) = (false, !self.has_room());
        while self.released < self.granted && self.release_first(out) {
            any = true;
        }
        if was_full && self.has_room() {
            self.room_at = Some(now);
        }
        if any && self.released == self.granted {
            out.control(self.released.to_le_bytes().to_vec());
        }
    }

    fn is_over(&self, messages_max: usize) -> bool {
        self.queue.len() > messages_max || self.bytes > HELD_BYTES_MAX
    }
}

impl Stage for Source {
    fn handle(&mut self, _port: Port, message: Message, now: Time, out: &mut Outbox) -> StageResult {
        self.bytes += message.body.len();
        let has_waited = self.room_at.is_some_and(|at| message.created <= at.after(READ_WITHIN));
        self.queue.push_back((message, has_waited));
        self.release(now, out);
        // The newest message stays even if it alone is over the bound.
        while !self.applies_backpressure && self.queue.len() > 1 && self.is_over(self.messages_max) {
            self.take_first();
            out.drop_counted(DISCARDED, 1);
        }
        Ok(())
    }

    fn handle_control(&mut self, control: &[u8], now: Time, out: &mut Outbox) -> StageResult {
        let granted = <[u8; 8]>::try_from(control)
            .map_err(|_| StageError::Control(format!("a request has 8 bytes, not {}", control.len())))?;
        let granted = u64::from_le_bytes(granted);
        if granted <= self.granted && self.released >= self.granted {
            // A repeated request: the released messages were lost, or the announcement of them was.
            out.control(self.granted.to_le_bytes().to_vec());
        }
        self.granted = self.granted.max(granted);
        self.release(now, out);
        Ok(())
    }

    fn handle_end(&mut self, _port: Port, _now: Time, out: &mut Outbox) -> StageResult {
        while self.release_first(out) {}
        Ok(())
    }

    fn has_room(&self) -> bool {
        !self.applies_backpressure || !self.is_over(self.messages_max - 1)
    }

    fn held(&self) -> usize {
        self.queue.len()
    }

    fn finished(&self, last: u32) -> Option<u32> {
        Some(self.queue.front().map_or(last, |(message, _)| message.attributes.mark.wrapping_sub(1)))
    }

    fn report(&self) -> Vec<Report> {
        vec![
            ("held", self.queue.len() as f64),
            ("granted", self.granted as f64),
            ("released", self.released as f64),
        ]
    }
}
