//! Numbered messages in order: each leaves when its turn has come, or when what is missing before it was waited
//! for long enough. A message may come in several parts, which are put together.

use crate::checkpoint::{self, Checkpoint, Remembered};
use crate::course::{Course, Fit, Place};
use contract::{Body, Message, Outbox, Port, Report, StageError, Time};
use smallvec::{SmallVec, smallvec};
use std::collections::VecDeque;
use std::time::Duration;
use wire::BODY_BYTES_MAX;

/// What is dropped of which nobody knows where it belongs.
const UNBELIEVED: &str = "its number fits nothing else that came";

/// Messages missing before one that comes alone, from which on it is doubted if the flow goes on without it.
const LONELY: usize = 16;

/// No flow comes to so many messages.
const NUMBER_MAX: u64 = 1 << 62;

/// What is wrong with a message of [`Turn::Nowhere`].
pub(crate) const NOWHERE: &str = "its number is further ahead than any flow gets";

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
    /// Its number is further ahead than any flow gets: dropped.
    Nowhere,
}

/// A message that says that the flow is somewhere else, until another says so too.
#[derive(Debug)]
struct Doubted {
    place: Place,
    came: Time,
    message: Message,
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
    course: Course,
    doubted: Option<Doubted>,
    /// Whose turn it is.
    next: u64,
    /// What has come from `next` on, by number. The first place is never complete; the last is never empty.
    held: VecDeque<Option<Held>>,
    /// Parts held, and their bytes.
    count: usize,
    bytes: usize,
    /// When the first of all that is held came.
    oldest: Option<Time>,
    /// When something last came of far behind the last that is held.
    behind: Time,
    moved: u64,
    missing: u64,
    restarts: u64,
}

impl Turns {
    /// Of messages in so many `parts` each, holds at most `bytes_max` bytes of at most `window` messages, none
    /// for longer than `wait`; and one more of which it is not known where it belongs.
    pub(crate) fn new(parts: usize, window: usize, wait: Duration, bytes_max: usize) -> Self {
        Turns {
            parts,
            window,
            wait,
            bytes_max,
            course: Course::new(window, wait),
            doubted: None,
            next: 0,
            held: VecDeque::new(),
            count: 0,
            bytes: 0,
            oldest: None,
            behind: Time::ZERO,
            moved: 0,
            missing: 0,
            restarts: 0,
        }
    }

    /// One message, or part of one. What has its turn by now is sent.
    pub(crate) fn take(&mut self, place: Place, message: Message, now: Time, out: &mut Outbox) -> Turn {
        match self.course.see(place, self.next, now) {
            Fit::Near => {}
            Fit::Begins { rival, before } => self.begin(place, rival, before, now, out),
            Fit::Doubtful => {
                self.drop_doubted(out);
                self.doubted = Some(Doubted { place, came: now, message });
                return Turn::Taken;
            }
            Fit::Behind if self.course.is_of(place.start) => return Turn::Past,
            Fit::Behind => return Turn::Stale,
            Fit::Nowhere => return Turn::Nowhere,
        }
        let turn = self.admit(place, message, now, out);
        if let Some(Doubted { place, message, .. }) =
            self.doubted.take_if(|doubted| self.course.has_reached(doubted.place, self.next))
        {
            // If its turn is past, it was counted when that was given up.
            self.admit(place, message, now, out);
        }
        turn
    }

    /// One message of the flow that is known.
    fn admit(&mut self, place: Place, message: Message, now: Time, out: &mut Outbox) -> Turn {
        let Some(mut ahead) = place.sequence.checked_sub(self.next) else {
            return Turn::Past;
        };
        if self.held.len() as u64 > ahead + LONELY as u64 {
            self.behind = now;
        }
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

    /// Begins where this place is; a `rival` said so before it.
    fn begin(
        &mut self,
        place: Place,
        rival: Option<Place>,
        before: Option<u32>,
        now: Time,
        out: &mut Outbox,
    ) {
        self.flush_held(out);
        let has_left = rival.is_some() && self.doubted.is_none();
        let first = match rival {
            Some(rival) if has_left => rival.sequence.saturating_add(1),
            Some(rival) => rival.sequence.min(place.sequence),
            None => place.sequence,
        };
        if before == Some(place.start) {
            self.missing = self.missing.saturating_add(first.saturating_sub(self.next));
            self.next = first;
        } else {
            self.restarts += u64::from(before.is_some());
            // What came first may not be the first that was sent, or this half may have begun in the middle.
            self.next = if first < self.window as u64 && !has_left { 0 } else { first };
        }
        match self.doubted.take() {
            Some(doubted) if rival.is_some() => {
                self.admit(doubted.place, doubted.message, now, out);
            }
            other => {
                self.doubted = other;
                self.drop_doubted(out);
            }
        }
    }

    fn drop_doubted(&mut self, out: &mut Outbox) {
        out.drop_counted(UNBELIEVED, u64::from(self.doubted.take().is_some()));
    }

    /// Nothing else came that could say where a doubtful message belongs: it leaves, behind what is held, if nothing
    /// spoke against it and it is whole.
    fn end_doubt(&mut self, out: &mut Outbox) {
        match self.doubted.take_if(|_| self.parts == 1 && self.course.is_likely()) {
            Some(doubted) => {
                self.flush_held(out);
                out.send(Port::MAIN, doubted.message);
            }
            None => self.drop_doubted(out),
        }
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
        self.flush_held(out);
        self.end_doubt(out);
    }

    fn flush_held(&mut self, out: &mut Outbox) {
        while self.count > 0 {
            self.give_up(out);
        }
    }

    /// When something held was waited for long enough.
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        let doubted = self.doubted.as_ref().map(|doubted| doubted.came);
        [self.oldest, doubted].into_iter().flatten().min().map(|came| came.after(self.wait))
    }

    /// Gives up what was waited for long enough.
    pub(crate) fn handle_timeout(&mut self, now: Time, out: &mut Outbox) {
        let is_due = |came: Time| came.after(self.wait) <= now;
        let ends_doubt = self.doubted.as_ref().is_some_and(|doubted| is_due(doubted.came));
        while self.oldest.is_some_and(|came| came.after(self.wait) <= now) {
            if self.is_lonely() {
                out.drop_counted(UNBELIEVED, 1);
                self.held.clear();
                (self.count, self.bytes, self.oldest) = (0, 0, None);
                break;
            }
            self.give_up(out);
        }
        if ends_doubt {
            self.end_doubt(out);
        }
    }

    /// Whether all that is held is one message far ahead, and others came of far behind it since: its number was altered
    /// on the way, and all that is still to come would be past were it given its turn.
    fn is_lonely(&self) -> bool {
        let mut held = self.held.iter().enumerate().filter_map(|(at, held)| Some((at, held.as_ref()?)));
        match (held.next(), held.next()) {
            (Some((at, held)), None) => at >= LONELY && self.behind > held.came,
            _ => false,
        }
    }

    /// Where the flow stands and what is held, for [`Turns::restore`].
    pub(crate) fn checkpoint(&self) -> Body {
        let mut checkpoint = Checkpoint::default();
        let start = self.course.start();
        checkpoint.put([start.is_some().into(), start.unwrap_or(0).into(), self.next]);
        let mut put = |is_doubted: bool, place: &Place, came: Time, message: &Message| {
            let Place { start, sequence, part } = *place;
            checkpoint.put([is_doubted.into(), start.into(), sequence, part as u64, came.0]);
            checkpoint.put_message(message);
        };
        let held =
            self.held.iter().zip(self.next..).filter_map(|(held, sequence)| Some((held.as_ref()?, sequence)));
        for (held, sequence) in held {
            for (part, message) in held.parts.iter().enumerate() {
                let place = Place { start: start.unwrap_or(0), sequence, part };
                message.iter().for_each(|message| put(false, &place, held.came, message));
            }
        }
        if let Some(Doubted { place, came, message }) = &self.doubted {
            put(true, place, *came, message);
        }
        checkpoint.finish()
    }

    /// Goes on from a checkpoint.
    pub(crate) fn restore(&mut self, checkpoint: Body) -> Result<(), StageError> {
        let mut from = Remembered(checkpoint);
        let is_known = from.number_below(2)? == 1;
        let start = Some(from.number_below(1 << u32::BITS)? as u32).filter(|_| is_known);
        self.course.go_on(start, None);
        self.next = from.number_below(NUMBER_MAX)?;
        // The first place held is never complete: nothing has its turn here.
        let mut none = Outbox::default();
        while !from.is_empty() {
            let is_doubted = from.number_below(2)? == 1;
            let start_of = from.number_below(1 << u32::BITS)? as u32;
            let sequence = from.number()?;
            let part = from.number_below(self.parts as u64)? as usize;
            let (came, message) = (Time(from.number()?), from.message()?);
            let place = Place { start: start_of, sequence, part };
            let ahead = sequence.checked_sub(self.next).filter(|ahead| *ahead < self.window as u64);
            match ahead {
                _ if is_doubted => {
                    self.course.go_on(start, Some(place));
                    self.doubted = Some(Doubted { place, came, message });
                }
                Some(ahead) => {
                    self.hold(ahead as usize, part, message, came, &mut none);
                }
                None => return Err(checkpoint::wrong()),
            }
        }
        Ok(())
    }

    /// Messages, or parts of messages, that are held.
    pub(crate) fn held(&self) -> usize {
        self.count + usize::from(self.doubted.is_some())
    }

    /// Messages given up so far.
    pub(crate) fn missing(&self) -> u64 {
        self.missing
    }

    /// What is held, what came before its turn, what was given up, and how often the source half started anew.
    pub(crate) fn figures(&self) -> Vec<Report> {
        vec![
            ("held", self.held() as f64),
            ("moved", self.moved as f64),
            ("missing", self.missing as f64),
            ("restarts", self.restarts as f64),
        ]
    }
}
