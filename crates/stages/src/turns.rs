//! Numbered messages in order: each leaves when its turn has come, or when what is missing before it was waited
//! for long enough. A message may come in several parts, which are put together.

use contract::{Message, Outbox, Port, Report, Time};
use smallvec::{SmallVec, smallvec};
use std::collections::VecDeque;
use std::time::Duration;
use wire::BODY_BYTES_MAX;

/// A source half's start, by milliseconds of its clock, wrapping: its numbers begin anew with it.
#[derive(Debug, Default)]
pub(crate) struct Start(Option<u32>);

/// What a start is beside the one known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Era {
    /// There was none before.
    First,
    /// The one known.
    Same,
    /// A later one; it is the one known from now on.
    Later,
    /// An earlier one.
    Earlier,
}

impl Start {
    /// What `start` is.
    pub(crate) fn see(&mut self, start: u32) -> Era {
        let era = match self.0 {
            None => Era::First,
            Some(known) if known == start => return Era::Same,
            Some(known) if start.wrapping_sub(known).cast_signed() < 0 => return Era::Earlier,
            Some(_) => Era::Later,
        };
        self.0 = Some(start);
        era
    }
}

/// Where a message has its turn.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    /// The source half's start.
    pub(crate) start: u32,
    /// Number of the message since then, from 0.
    pub(crate) sequence: u64,
    /// Which part of it this is, from 0: less than there are parts.
    pub(crate) part: usize,
}

/// What became of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It was sent, or is held for its turn.
    Taken,
    /// It came after its turn, or twice: dropped.
    Past,
    /// It is from before the source half started anew: dropped.
    Stale,
    /// With its other parts it would be longer than a body may be: dropped.
    TooLarge,
}

/// The parts of one message that have come.
#[derive(Debug)]
struct Held {
    /// When the first part came.
    came: Time,
    parts: SmallVec<[Option<Message>; 1]>,
    /// Parts that have not come.
    open: usize,
    bytes: usize,
}

/// Messages in order, within bounds.
#[derive(Debug)]
pub(crate) struct Turns {
    parts: usize,
    window: usize,
    wait: Duration,
    bytes_max: usize,
    start: Start,
    /// Whose turn it is.
    next: u64,
    /// What has come from `next` on, by number. The first place is never complete; the last is never empty.
    held: VecDeque<Option<Held>>,
    /// Parts held, and their bytes.
    count: usize,
    bytes: usize,
    /// When the first of all that is held came.
    oldest: Option<Time>,
    moved: u64,
    missing: u64,
    restarts: u64,
}

impl Turns {
    /// Of messages in so many `parts` each, holds at most `bytes_max` bytes of at most `window` messages, none
    /// for longer than `wait`.
    pub(crate) fn new(parts: usize, window: usize, wait: Duration, bytes_max: usize) -> Self {
        Turns {
            parts,
            window,
            wait,
            bytes_max,
            start: Start::default(),
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

    /// One message, or part of one. What has its turn by now is sent.
    pub(crate) fn take(&mut self, place: Place, message: Message, now: Time, out: &mut Outbox) -> Turn {
        if !self.begin(place, out) {
            return Turn::Stale;
        }
        let Some(mut ahead) = place.sequence.checked_sub(self.next) else {
            return Turn::Past;
        };
        if ahead == 0 && self.held.is_empty() && self.parts == 1 {
            self.next = self.next.saturating_add(1);
            out.send(Port::MAIN, message);
            return Turn::Taken;
        }
        // Make the window reach this far.
        while ahead >= self.window as u64 && self.count > 0 {
            self.give_up(out);
            ahead = place.sequence - self.next;
        }
        if ahead >= self.window as u64 {
            self.missing = self.missing.saturating_add(ahead);
            self.next = place.sequence;
            self.held.clear();
            ahead = 0;
        }
        // Less than the window, which fits.
        self.hold(ahead as usize, place.part, message, now, out)
    }

    fn hold(&mut self, at: usize, part: usize, message: Message, now: Time, out: &mut Outbox) -> Turn {
        if self.held.len() <= at {
            self.held.resize_with(at + 1, || None);
        }
        let parts = self.parts;
        let fresh = || Held { came: now, parts: smallvec![None; parts], open: parts, bytes: 0 };
        let held = self.held[at].get_or_insert_with(fresh);
        let bytes = message.body.len();
        if held.bytes > 0 && held.bytes + bytes > BODY_BYTES_MAX {
            return Turn::TooLarge;
        }
        match held.parts.get_mut(part) {
            Some(place @ None) => *place = Some(message),
            _ => return Turn::Past,
        }
        held.open -= 1;
        held.bytes += bytes;
        self.moved += u64::from(at > 0);
        self.count += 1;
        self.bytes += bytes;
        self.oldest.get_or_insert(now);
        if at == 0 {
            self.advance(out);
        }
        while self.bytes > self.bytes_max {
            self.give_up(out);
        }
        Turn::Taken
    }

    /// Begins with the start of this place, if it is not the one known; false if it is earlier.
    fn begin(&mut self, place: Place, out: &mut Outbox) -> bool {
        match self.start.see(place.start) {
            Era::Same => return true,
            Era::Earlier => return false,
            Era::Later => {
                self.restarts += 1;
                self.flush(out);
            }
            Era::First => {}
        }
        // What came first may not be the first that was sent, or this half may have begun in the middle.
        self.next = if place.sequence < self.window as u64 { 0 } else { place.sequence };
        true
    }

    /// Sends what has its turn.
    fn advance(&mut self, out: &mut Outbox) {
        while self.held.front().is_some_and(|first| first.as_ref().is_some_and(|held| held.open == 0)) {
            self.send_first(out);
        }
        self.oldest = self.held.iter().flatten().map(|held| held.came).min();
    }

    /// Takes the first place: sends its message, or counts it as missing.
    fn send_first(&mut self, out: &mut Outbox) {
        let held = self.held.pop_front().flatten();
        if let Some(held) = &held {
            self.count -= held.parts.len() - held.open;
            self.bytes -= held.bytes;
        }
        match held.filter(|held| held.open == 0) {
            Some(held) => {
                let mut parts = held.parts.into_iter().flatten();
                if let Some(mut whole) = parts.next() {
                    parts.for_each(|part| whole.body.append(part.body));
                    out.send(Port::MAIN, whole);
                }
            }
            None => self.missing = self.missing.saturating_add(1),
        }
        self.next = self.next.saturating_add(1);
    }

    /// Gives up the first message that is not complete, with those of which nothing came at all before the next,
    /// and sends on from there.
    fn give_up(&mut self, out: &mut Outbox) {
        self.send_first(out);
        while let Some(None) = self.held.front() {
            self.send_first(out);
        }
        self.advance(out);
    }

    /// Sends everything that is complete, and gives up the rest.
    pub(crate) fn flush(&mut self, out: &mut Outbox) {
        while self.count > 0 {
            self.give_up(out);
        }
    }

    /// When something held was waited for long enough.
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        self.oldest.map(|came| came.after(self.wait))
    }

    /// Gives up what was waited for long enough.
    pub(crate) fn handle_timeout(&mut self, now: Time, out: &mut Outbox) {
        while self.poll_timeout().is_some_and(|at| at <= now) {
            self.give_up(out);
        }
    }

    /// Messages, or parts of messages, that are held.
    pub(crate) fn held(&self) -> usize {
        self.count
    }

    /// Messages given up so far.
    pub(crate) fn missing(&self) -> u64 {
        self.missing
    }

    /// What is held, what came before its turn, what was given up, and how often the source half started anew.
    pub(crate) fn figures(&self) -> Vec<Report> {
        vec![
            ("held", self.count as f64),
            ("moved", self.moved as f64),
            ("missing", self.missing as f64),
            ("restarts", self.restarts as f64),
        ]
    }
}
