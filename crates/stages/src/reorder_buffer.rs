//! A reorder buffer: releases numbered messages in order. A message waits until the messages before
//! it arrived or were abandoned. A message may come in several parts, which are joined.
//!
//! A missing message is abandoned when any message behind it has waited for `wait`, or when the
//! window or the byte bound is exceeded. [`SequenceTracker`] judges each position; one unconfirmed
//! message is kept beside the buffer until the next message confirms or contradicts it.

use crate::HELD_BYTES_MAX;
use crate::checkpoint::{self, CheckpointReader, CheckpointWriter};
use crate::sequence::{Position, SequenceTracker, Verdict};
use contract::{Body, Message, Outbox, Port, Report, StageResult, Time};
use smallvec::{SmallVec, smallvec};
use std::collections::VecDeque;
use std::time::Duration;
use wire::BODY_BYTES_MAX;

/// Drop reason: no other message confirmed its position.
const UNCONFIRMED: &str = "unconfirmed sequence number";

/// With at least this many messages missing before it, a single held message may be an outlier: see
/// `is_lone_outlier`.
const OUTLIER_GAP: usize = 16;

/// No flow has this many messages.
const NUMBER_MAX: u64 = 1 << 62;

/// The error for [`Admission::Impossible`].
pub(crate) const IMPOSSIBLE: &str = "its sequence number is impossibly far ahead";

/// The result of pushing a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admission {
    /// Sent, or held until its turn.
    Accepted,
    /// Dropped: it came after its turn, or twice.
    Late,
    /// Dropped: it is from before the source half restarted.
    Stale,
    /// Dropped: with its other parts it would exceed the size of a body.
    TooLarge,
    /// Dropped: its number is further ahead than any flow skips.
    Impossible,
}

/// A message at an unconfirmed position.
#[derive(Debug)]
struct UnconfirmedMessage {
    position: Position,
    arrived: Time,
    message: Message,
}

/// The parts of one message that have arrived.
#[derive(Debug)]
struct Slot {
    /// Arrival of the first part.
    arrived: Time,
    parts: SmallVec<[Option<Message>; 1]>,
    missing_parts: usize,
    bytes: usize,
}

/// See the module comment.
#[derive(Debug)]
pub(crate) struct ReorderBuffer {
    parts: usize,
    window: usize,
    wait: Duration,
    tracker: SequenceTracker,
    unconfirmed: Option<UnconfirmedMessage>,
    /// Number of the next message to release.
    next: u64,
    /// The messages from `next` on. The first slot is never complete; the last is never empty.
    slots: VecDeque<Option<Slot>>,
    parts_held: usize,
    bytes: usize,
    /// Arrival of the oldest held message.
    oldest: Option<Time>,
    /// Last arrival of a message at least `OUTLIER_GAP` before the last slot.
    last_behind: Time,
    reordered: u64,
    abandoned: u64,
    restarts: u64,
}

impl ReorderBuffer {
    /// For messages of `parts` parts each. Holds at most [`HELD_BYTES_MAX`] bytes and `window` messages,
    /// none for longer than `wait`; and one unconfirmed message besides.
    pub(crate) fn new(parts: usize, window: usize, wait: Duration) -> Self {
        ReorderBuffer {
            parts,
            window,
            wait,
            tracker: SequenceTracker::new(window, wait),
            unconfirmed: None,
            next: 0,
            slots: VecDeque::new(),
            parts_held: 0,
            bytes: 0,
            oldest: None,
            last_behind: Time::ZERO,
            reordered: 0,
            abandoned: 0,
            restarts: 0,
        }
    }

    /// Pushes a message, or a part of one. Sends the messages whose turn has come.
    pub(crate) fn push(
        &mut self,
        position: Position,
        message: Message,
        now: Time,
        out: &mut Outbox,
    ) -> Admission {
        match self.tracker.classify(position, self.next, now) {
            Verdict::InWindow => {}
            Verdict::Resync { candidate, previous_start } => {
                self.resync(position, candidate, previous_start, now, out)
            }
            Verdict::Unconfirmed => {
                self.drop_unconfirmed(out);
                self.unconfirmed = Some(UnconfirmedMessage { position, arrived: now, message });
                return Admission::Accepted;
            }
            Verdict::Behind if self.tracker.is_current_start(position.start) => return Admission::Late,
            Verdict::Behind => return Admission::Stale,
            Verdict::Impossible => return Admission::Impossible,
        }
        let admission = self.admit(position, message, now, out);
        if let Some(UnconfirmedMessage { position, message, .. }) =
            self.unconfirmed.take_if(|unconfirmed| self.tracker.is_in_window(unconfirmed.position, self.next))
        {
            // A late result needs no count: the message was counted when it was abandoned.
            self.admit(position, message, now, out);
        }
        admission
    }

    /// Pushes a message that is in the window.
    fn admit(&mut self, position: Position, message: Message, now: Time, out: &mut Outbox) -> Admission {
        let Some(mut ahead) = position.sequence.checked_sub(self.next) else {
            return Admission::Late;
        };
        if self.slots.len() as u64 > ahead + OUTLIER_GAP as u64 {
            self.last_behind = now;
        }
        if ahead == 0 && self.slots.is_empty() && self.parts == 1 {
            self.next = self.next.saturating_add(1);
            out.send(Port::MAIN, message);
            return Admission::Accepted;
        }
        // Move the window until it contains the message.
        while ahead >= self.window as u64 && self.parts_held > 0 {
            self.abandon_first(out);
            ahead = position.sequence - self.next;
        }
        if ahead >= self.window as u64 {
            self.abandoned = self.abandoned.saturating_add(ahead);
            self.next = position.sequence;
            self.slots.clear();
            ahead = 0;
        }
        // `ahead` is less than the window, which fits.
        self.hold(ahead as usize, position.part, message, now, out)
    }

    fn hold(&mut self, at: usize, part: usize, message: Message, now: Time, out: &mut Outbox) -> Admission {
        if self.slots.len() <= at {
            self.slots.resize_with(at + 1, || None);
        }
        let parts = self.parts;
        let fresh = || Slot { arrived: now, parts: smallvec![None; parts], missing_parts: parts, bytes: 0 };
        let held = self.slots[at].get_or_insert_with(fresh);
        let bytes = message.body.len();
        if held.bytes > 0 && held.bytes + bytes > BODY_BYTES_MAX {
            return Admission::TooLarge;
        }
        match held.parts.get_mut(part) {
            Some(part @ None) => *part = Some(message),
            _ => return Admission::Late,
        }
        held.missing_parts -= 1;
        held.bytes += bytes;
        self.reordered += u64::from(at > 0);
        self.parts_held += 1;
        self.bytes += bytes;
        self.oldest.get_or_insert(now);
        if at == 0 {
            self.advance(out);
        }
        while self.bytes > HELD_BYTES_MAX {
            self.abandon_first(out);
        }
        Admission::Accepted
    }

    /// Moves to a new position, confirmed by `candidate` if there is one.
    fn resync(
        &mut self,
        position: Position,
        candidate: Option<Position>,
        previous_start: Option<u32>,
        now: Time,
        out: &mut Outbox,
    ) {
        self.flush_held(out);
        let candidate_was_sent = candidate.is_some() && self.unconfirmed.is_none();
        let first = match candidate {
            Some(candidate) if candidate_was_sent => candidate.sequence.saturating_add(1),
            Some(candidate) => candidate.sequence.min(position.sequence),
            None => position.sequence,
        };
        if previous_start == Some(position.start) {
            self.abandoned = self.abandoned.saturating_add(first.saturating_sub(self.next));
            self.next = first;
        } else {
            self.restarts += u64::from(previous_start.is_some());
            // The first to arrive may have overtaken others, so wait from 0; but a sink that starts
            // in the middle of a flow must not wait for its beginning.
            self.next = if first < self.window as u64 && !candidate_was_sent { 0 } else { first };
        }
        match self.unconfirmed.take() {
            Some(unconfirmed) if candidate.is_some() => {
                self.admit(unconfirmed.position, unconfirmed.message, now, out);
            }
            other => {
                self.unconfirmed = other;
                self.drop_unconfirmed(out);
            }
        }
    }

    fn drop_unconfirmed(&mut self, out: &mut Outbox) {
        out.drop_counted(UNCONFIRMED, u64::from(self.unconfirmed.take().is_some()));
    }

    /// No message confirmed the unconfirmed one in time. It is sent behind the held messages if it
    /// is whole and no message contradicted it.
    fn resolve_unconfirmed(&mut self, out: &mut Outbox) {
        match self
            .unconfirmed
            .take_if(|_| self.parts == 1 && self.tracker.uncontradicted_candidate().is_some())
        {
            Some(unconfirmed) => {
                self.flush_held(out);
                out.send(Port::MAIN, unconfirmed.message);
            }
            None => self.drop_unconfirmed(out),
        }
    }

    /// Sends the complete messages at the front.
    fn advance(&mut self, out: &mut Outbox) {
        while self
            .slots
            .front()
            .is_some_and(|first| first.as_ref().is_some_and(|held| held.missing_parts == 0))
        {
            self.pop_first(out);
        }
        self.oldest = self.slots.iter().flatten().map(|held| held.arrived).min();
    }

    /// Removes the first slot: sends its message, or counts it as abandoned.
    fn pop_first(&mut self, out: &mut Outbox) {
        let held = self.slots.pop_front().flatten();
        if let Some(held) = &held {
            self.parts_held -= held.parts.len() - held.missing_parts;
            self.bytes -= held.bytes;
        }
        match held.filter(|held| held.missing_parts == 0) {
            Some(held) => {
                let mut parts = held.parts.into_iter().flatten();
                if let Some(mut whole) = parts.next() {
                    parts.for_each(|part| whole.body.append(part.body));
                    out.send(Port::MAIN, whole);
                }
            }
            None => self.abandoned = self.abandoned.saturating_add(1),
        }
        self.next = self.next.saturating_add(1);
    }

    /// Abandons the first message, which is incomplete, and the empty slots behind it. Sends the
    /// complete messages behind those.
    fn abandon_first(&mut self, out: &mut Outbox) {
        self.pop_first(out);
        while let Some(None) = self.slots.front() {
            self.pop_first(out);
        }
        self.advance(out);
    }

    /// Sends the complete messages and abandons the others.
    pub(crate) fn flush(&mut self, out: &mut Outbox) {
        self.flush_held(out);
        self.resolve_unconfirmed(out);
    }

    fn flush_held(&mut self, out: &mut Outbox) {
        while self.parts_held > 0 {
            self.abandon_first(out);
        }
    }

    /// The time at which the oldest message has waited for `wait`.
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        let unconfirmed = self.unconfirmed.as_ref().map(|unconfirmed| unconfirmed.arrived);
        [self.oldest, unconfirmed].into_iter().flatten().min().map(|arrived| arrived.after(self.wait))
    }

    /// Abandons the messages that are missing before those that have waited for `wait`.
    pub(crate) fn handle_timeout(&mut self, now: Time, out: &mut Outbox) {
        let is_due = |arrived: Time| arrived.after(self.wait) <= now;
        let is_unconfirmed_due =
            self.unconfirmed.as_ref().is_some_and(|unconfirmed| is_due(unconfirmed.arrived));
        while self.oldest.is_some_and(|arrived| arrived.after(self.wait) <= now) {
            if self.is_lone_outlier() {
                out.drop_counted(UNCONFIRMED, 1);
                self.slots.clear();
                (self.parts_held, self.bytes, self.oldest) = (0, 0, None);
                break;
            }
            self.abandon_first(out);
        }
        if is_unconfirmed_due {
            self.resolve_unconfirmed(out);
        }
    }

    /// True if the only held message is far ahead, and messages far behind it came later. Its
    /// number was altered on the way; releasing it would make all messages still to come late.
    fn is_lone_outlier(&self) -> bool {
        let mut held = self.slots.iter().enumerate().filter_map(|(at, held)| Some((at, held.as_ref()?)));
        match (held.next(), held.next()) {
            (Some((at, held)), None) => at >= OUTLIER_GAP && self.last_behind > held.arrived,
            _ => false,
        }
    }

    /// The position and the held messages, for [`ReorderBuffer::restore`].
    pub(crate) fn checkpoint(&self) -> Body {
        let mut checkpoint = CheckpointWriter::default();
        let start = self.tracker.start();
        checkpoint.put([start.is_some().into(), start.unwrap_or(0).into(), self.next]);
        let mut put = |is_unconfirmed: bool, position: &Position, arrived: Time, message: &Message| {
            let Position { start, sequence, part } = *position;
            checkpoint.put([is_unconfirmed.into(), start.into(), sequence, part as u64, arrived.0]);
            checkpoint.put_message(message);
        };
        let held = self
            .slots
            .iter()
            .zip(self.next..)
            .filter_map(|(held, sequence)| Some((held.as_ref()?, sequence)));
        for (held, sequence) in held {
            for (part, message) in held.parts.iter().enumerate() {
                let position = Position { start: start.unwrap_or(0), sequence, part };
                message.iter().for_each(|message| put(false, &position, held.arrived, message));
            }
        }
        if let Some(UnconfirmedMessage { position, arrived, message }) = &self.unconfirmed {
            put(true, position, *arrived, message);
        }
        checkpoint.finish()
    }

    /// Restores from a checkpoint.
    pub(crate) fn restore(&mut self, checkpoint: Body) -> StageResult {
        let mut from = CheckpointReader(checkpoint);
        let is_known = from.number_below(2)? == 1;
        let start = Some(from.number_below(1 << u32::BITS)? as u32).filter(|_| is_known);
        self.tracker.restore(start, None);
        self.next = from.number_below(NUMBER_MAX)?;
        // The first slot is never complete, so nothing is sent here.
        let mut none = Outbox::default();
        while !from.is_empty() {
            let is_unconfirmed = from.number_below(2)? == 1;
            let start_of = from.number_below(1 << u32::BITS)? as u32;
            let sequence = from.number()?;
            let part = from.number_below(self.parts as u64)? as usize;
            let (arrived, message) = (Time(from.number()?), from.message()?);
            let position = Position { start: start_of, sequence, part };
            let ahead = sequence.checked_sub(self.next).filter(|ahead| *ahead < self.window as u64);
            match ahead {
                _ if is_unconfirmed => {
                    self.tracker.restore(start, Some(position));
                    self.unconfirmed = Some(UnconfirmedMessage { position, arrived, message });
                }
                Some(ahead) => {
                    self.hold(ahead as usize, part, message, arrived, &mut none);
                }
                None => return Err(checkpoint::malformed()),
            }
        }
        Ok(())
    }

    /// Messages, or parts of messages, held.
    pub(crate) fn held(&self) -> usize {
        self.parts_held + usize::from(self.unconfirmed.is_some())
    }

    /// Messages abandoned so far.
    pub(crate) fn abandoned(&self) -> u64 {
        self.abandoned
    }

    /// Figures: messages held, arrived out of order, abandoned; and restarts of the source half.
    pub(crate) fn figures(&self) -> Vec<Report> {
        vec![
            ("held", self.held() as f64),
            ("reordered", self.reordered as f64),
            ("missing", self.abandoned as f64),
            ("restarts", self.restarts as f64),
        ]
    }
}
