//! From events to messages: frames put together, echoes and repeats left out, and a queue that joins
//! motion when the path falls behind.

use contract::Time;
use std::collections::VecDeque;
use sys::input::Event;
use sys::input::code::*;
use wire::formats::evdev::{self, EVENTS_MAX, Movement, Update, is_motion};

/// Events written and not yet seen again; more are forgotten, oldest first.
const ECHOES_MAX: usize = 64;

/// Events that this program wrote and that the kernel will show it as if they were somebody's.
#[derive(Debug, Default)]
pub(super) struct Echoes {
    expected: VecDeque<Event>,
}

impl Echoes {
    /// The kernel will show this one.
    pub(super) fn expect(&mut self, event: Event) {
        if self.expected.len() == ECHOES_MAX {
            self.expected.pop_front();
        }
        self.expected.push_back(event);
    }

    /// Whether this is one; it is expected no longer.
    pub(super) fn take(&mut self, event: Event) -> bool {
        let at = self.expected.iter().position(|expected| *expected == event);
        at.and_then(|at| self.expected.remove(at)).is_some()
    }

    /// Some were lost.
    pub(super) fn clear(&mut self) {
        self.expected.clear();
    }
}

/// What an event completed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Assembled {
    /// Nothing yet, or a frame with nothing in it to send.
    Nothing,
    /// A frame, without its SYN_REPORT.
    Frame(Vec<Event>),
    /// The kernel, or the limit on a frame, dropped events: where things stand must be read anew
    /// (`SYN_DROPPED` in the kernel's event-codes.rst).
    Lost,
}

/// Puts a device's events together to frames.
#[derive(Debug, Default)]
pub(super) struct Assembler {
    events: Vec<Event>,
    is_skipping: bool,
    /// What this program wrote to the device.
    pub(super) echoes: Echoes,
    /// Repeats left out: the application's kernel makes its own.
    pub(super) repeats: u64,
}

impl Assembler {
    /// Takes the next event.
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
            // Sounds and forces are what applications say to the device, never what it says.
            _ => {}
        }
        Assembled::Nothing
    }

    /// Forgets an unfinished frame.
    pub(super) fn clear(&mut self) {
        self.events.clear();
        self.is_skipping = false;
    }

    fn add(&mut self, event: Event) {
        match self.events.len() < EVENTS_MAX {
            true => self.events.push(event),
            false => self.skip(),
        }
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

/// Messages that wait for the path.
#[derive(Debug)]
pub(super) struct Queue {
    waiting: VecDeque<(Time, Update)>,
    /// More than this many, and frames of mere motion are joined.
    merge_after: usize,
    limit: usize,
    /// Frames joined with the one before them.
    pub(super) merged: u64,
}

impl Queue {
    /// An empty queue for `limit` messages that joins motion when more than `merge_after` wait.
    pub(super) fn new(merge_after: usize, limit: usize) -> Queue {
        Queue { waiting: VecDeque::new(), merge_after, limit, merged: 0 }
    }

    /// Whether none waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether as many wait as may.
    pub(super) fn is_full(&self) -> bool {
        self.waiting.len() >= self.limit
    }

    /// Appends a message; says no, and takes nothing, if there is no room.
    pub(super) fn push(&mut self, created: Time, update: Update) -> bool {
        if self.waiting.len() > self.merge_after
            && let Update::Frame(events) = &update
            && is_motion(events)
            && let Some((last, Update::Frame(before))) = self.waiting.back_mut()
            && let Some(joined) = join(before, events)
        {
            (*last, *before) = (created, joined);
            self.merged += 1;
            return true;
        }
        let has_room = !self.is_full();
        if has_room {
            self.waiting.push_back((created, update));
        }
        has_room
    }

    /// The oldest.
    pub(super) fn pop(&mut self) -> Option<(Time, Update)> {
        self.waiting.pop_front()
    }

    /// Drops all that wait; says how many there were.
    pub(super) fn clear(&mut self) -> u64 {
        let count = self.waiting.len() as u64;
        self.waiting.clear();
        count
    }
}

/// Two frames of mere motion as one.
fn join(before: &[evdev::Event], events: &[evdev::Event]) -> Option<Vec<evdev::Event>> {
    let mut movement = Movement::default();
    (movement.add(before) && movement.add(events)).then(|| movement.take_last())
}
