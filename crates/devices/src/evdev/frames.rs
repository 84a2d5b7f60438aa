//! From events to messages:
//!
//! ```text
//! events ─► Assembler ─► frames ─► Queue ─► messages
//!            │ drops key repeats,    │ merges motion while the path is slow
//!            │ echoes                │
//!            └ SYN_DROPPED           └ full ──► the owner queues a snapshot instead
//! ```

use contract::Time;
use std::collections::VecDeque;
use sys::input::Event;
use sys::input::code::*;
use wire::formats::evdev::{self, EVENTS_MAX, Movement, Update, is_motion};

/// Expected echoes, at most; the oldest are forgotten.
const ECHOES_MAX: usize = 64;

/// Echoes: events that this program writes to a node and then reads from it like events of others.
#[derive(Debug, Default)]
pub(super) struct Echoes {
    expected: VecDeque<Event>,
}

impl Echoes {
    /// Notes that the kernel will echo this event.
    pub(super) fn expect(&mut self, event: Event) {
        if self.expected.len() == ECHOES_MAX {
            self.expected.pop_front();
        }
        self.expected.push_back(event);
    }

    /// Returns true if the event is an expected echo, and removes it.
    pub(super) fn take(&mut self, event: Event) -> bool {
        let at = self.expected.iter().position(|expected| *expected == event);
        at.and_then(|at| self.expected.remove(at)).is_some()
    }

    /// Forgets all echoes, after the kernel has dropped events.
    pub(super) fn clear(&mut self) {
        self.expected.clear();
    }
}

/// Result of [`Assembler::handle`].
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Assembled {
    /// The frame is incomplete, or has no events to send.
    Nothing,
    /// A frame without its SYN_REPORT.
    Frame(Vec<Event>),
    /// The kernel dropped events, or the frame was too long: the state must be read again (`SYN_DROPPED` in the kernel's
    /// event-codes.rst).
    Lost,
}

/// Assembles a device's events into frames.
#[derive(Debug, Default)]
pub(super) struct Assembler {
    events: Vec<Event>,
    /// Events were lost: skip those up to the next SYN_REPORT.
    is_skipping: bool,
    pub(super) echoes: Echoes,
    /// Dropped key repeats; the application's kernel generates its own.
    pub(super) repeats: u64,
}

impl Assembler {
    /// Processes the next event.
    pub(super) fn handle(&mut self, event: Event) -> Assembled {
        match (event.kind, event.code) {
            (EV_SYN, SYN_REPORT) => return self.end(),
            (EV_SYN, SYN_DROPPED) => self.skip(),
            _ if self.is_skipping => {}
            (EV_KEY, _) if event.value == 2 => self.repeats += 1,
            (EV_SYN, SYN_MT_REPORT) | (EV_KEY | EV_REL | EV_ABS | EV_MSC | EV_SW | EV_REP, _) => {
                self.add(event);
            }
            (EV_LED, _) if !self.echoes.take(event) => self.add(event),
            // Sounds and forces only go from applications to the device.
            _ => {}
        }
        Assembled::Nothing
    }

    /// Drops an incomplete frame.
    pub(super) fn clear(&mut self) {
        self.events.clear();
        self.is_skipping = false;
    }

    fn add(&mut self, event: Event) {
        if self.events.len() < EVENTS_MAX { self.events.push(event) } else { self.skip() }
    }

    fn skip(&mut self) {
        self.events.clear();
        self.echoes.clear();
        self.is_skipping = true;
    }

    fn end(&mut self) -> Assembled {
        if std::mem::take(&mut self.is_skipping) {
            return Assembled::Lost;
        }
        match self.events.is_empty() {
            true => Assembled::Nothing,
            false => Assembled::Frame(std::mem::take(&mut self.events)),
        }
    }
}

/// Messages that were not pulled yet.
#[derive(Debug)]
pub(super) struct Queue {
    messages: VecDeque<(Time, Update)>,
    /// With more messages than this, frames of motion are merged.
    merge_after: usize,
    limit: usize,
    /// Frames merged with the previous one.
    pub(super) merged: u64,
}

impl Queue {
    /// Creates an empty queue with room for `limit` messages.
    pub(super) fn new(merge_after: usize, limit: usize) -> Queue {
        Queue { messages: VecDeque::new(), merge_after, limit, merged: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.messages.len() >= self.limit
    }

    /// Appends or merges a message. Returns false if there is no room.
    pub(super) fn push(&mut self, created: Time, update: Update) -> bool {
        if self.messages.len() > self.merge_after
            && let Update::Frame(events) = &update
            && is_motion(events)
            && let Some((last_created, Update::Frame(last))) = self.messages.back_mut()
            && let Some(merged) = merge(last, events)
        {
            (*last_created, *last) = (created, merged);
            self.merged += 1;
            return true;
        }
        let has_room = !self.is_full();
        if has_room {
            self.messages.push_back((created, update));
        }
        has_room
    }

    /// Removes and returns the oldest message.
    pub(super) fn pop(&mut self) -> Option<(Time, Update)> {
        self.messages.pop_front()
    }

    /// Drops all messages. Returns their number.
    pub(super) fn clear(&mut self) -> u64 {
        let count = self.messages.len() as u64;
        self.messages.clear();
        count
    }
}

/// Merges two frames that contain only motion.
fn merge(first: &[evdev::Event], second: &[evdev::Event]) -> Option<Vec<evdev::Event>> {
    let mut movement = Movement::default();
    (movement.add(first) && movement.add(second)).then(|| movement.take_last())
}
