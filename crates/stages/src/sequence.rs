//! Tracks the position of a numbered flow. Every message carries a sequence number, and the start of
//! its source half, which tells a restarted source from its predecessor.
//!
//! No single message moves the position by more than the window, because a bit of it may have been
//! flipped, or its sender may lie. The [`SequenceTracker`] judges each message by the distance of
//! its position from `next`, the first number that has not arrived:
//!
//! ```text
//! position of the message                  verdict       effect
//! any, and no start is known               Resync        the flow is there
//! less than `reach` from `next`            InWindow      accepted; contradicts the candidate
//! same start, 2^32 or more ahead           Impossible    refused
//! later start, or `reach` or more ahead    Unconfirmed   becomes the candidate, or,
//!                                          Resync        if it agrees with an uncontradicted candidate, the flow is there
//! earlier start, or `reach` or more behind Behind        dropped, until
//!                                          Resync        16 came in a row and none in the window for `wait`
//! ```

use contract::Time;
use std::time::Duration;

/// Smallest reach: a message this far from the expected number is accepted even with a smaller
/// window.
const REACH_MIN: u64 = 64;
/// No flow skips this many numbers.
const JUMP_MAX: u64 = 1 << 32;
/// Consecutive messages from behind that move the flow back, if none was in the window meanwhile.
const BEHIND_MAX: u32 = 16;

/// The position of a message in a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Position {
    /// Start of the source half, in milliseconds of its clock, wrapping. Its numbers begin at 0
    /// with it.
    pub(crate) start: u32,
    /// Number of the message since the start, from 0.
    pub(crate) sequence: u64,
    /// Index of the part, from 0, for a message in several parts.
    pub(crate) part: usize,
}

/// The judgement of a position. See the table in the module comment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Close to the expected number.
    InWindow,
    /// The flow continues here: first message, confirmed candidate, or last of many from behind.
    /// `candidate` is the confirmed one; `previous_start` the start known until now.
    Resync { candidate: Option<Position>, previous_start: Option<u32> },
    /// A later start, or far ahead. The next message may confirm it.
    Unconfirmed,
    /// An earlier start, or far behind.
    Behind,
    /// Further ahead than any flow skips.
    Impossible,
}

/// The last unconfirmed position.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    position: Position,
    /// A message in the window came after it, so the flow has not moved there.
    is_contradicted: bool,
}

/// Judges positions. See the module comment.
#[derive(Debug)]
pub(crate) struct SequenceTracker {
    reach: u64,
    wait: Duration,
    start: Option<u32>,
    candidate: Option<Candidate>,
    /// Consecutive messages from behind.
    behind_count: u32,
    /// Arrival of the last message in the window.
    last_in_window: Time,
}

impl SequenceTracker {
    /// For a flow whose messages overtake at most `window` others, by at most `wait`.
    pub(crate) fn new(window: usize, wait: Duration) -> Self {
        SequenceTracker {
            reach: REACH_MIN.max(window as u64),
            wait,
            start: None,
            candidate: None,
            behind_count: 0,
            last_in_window: Time::ZERO,
        }
    }

    /// The current start.
    pub(crate) fn start(&self) -> Option<u32> {
        self.start
    }

    /// Restores the start and the uncontradicted candidate from a checkpoint.
    pub(crate) fn restore(&mut self, start: Option<u32>, candidate: Option<Position>) {
        self.start = start;
        self.candidate = candidate.map(|position| Candidate { position, is_contradicted: false });
    }

    /// Judges a position; `next` is the first number that has not arrived.
    pub(crate) fn classify(&mut self, position: Position, next: u64, now: Time) -> Verdict {
        let Some(start) = self.start else { return self.resync(position, None, now) };
        let is_same = position.start == start;
        if is_same && position.sequence.abs_diff(next) < self.reach {
            (self.last_in_window, self.behind_count) = (now, 0);
            if let Some(candidate) = &mut self.candidate {
                candidate.is_contradicted = true;
            }
            return Verdict::InWindow;
        }
        let is_later = match is_same {
            true => position.sequence > next,
            false => position.start.wrapping_sub(start).cast_signed() > 0,
        };
        if !is_later {
            self.behind_count = self.behind_count.saturating_add(1);
            return match self.behind_count < BEHIND_MAX || now < self.last_in_window.after(self.wait) {
                true => Verdict::Behind,
                false => self.resync(position, None, now),
            };
        }
        if is_same && position.sequence - next >= JUMP_MAX {
            return Verdict::Impossible;
        }
        let candidate = self.uncontradicted_candidate();
        match candidate.filter(|candidate| self.agree(*candidate, position, is_same)) {
            Some(candidate) => self.resync(position, Some(candidate), now),
            None => {
                self.candidate = Some(Candidate { position, is_contradicted: false });
                Verdict::Unconfirmed
            }
        }
    }

    fn resync(&mut self, position: Position, candidate: Option<Position>, now: Time) -> Verdict {
        let previous_start = self.start.replace(position.start);
        (self.candidate, self.last_in_window, self.behind_count) = (None, now, 0);
        Verdict::Resync { candidate, previous_start }
    }

    /// True if both positions place the flow in the same range. With the current start, copies and
    /// parts of one message do not confirm each other: they crossed the network together and may
    /// have been altered alike.
    fn agree(&self, one: Position, other: Position, is_known_start: bool) -> bool {
        one.start == other.start
            && one.sequence.abs_diff(other.sequence) < self.reach
            && !(is_known_start && one.sequence == other.sequence)
    }

    /// True if `start` is the current start.
    pub(crate) fn is_current_start(&self, start: u32) -> bool {
        self.start == Some(start)
    }

    /// The last unconfirmed position.
    pub(crate) fn candidate(&self) -> Option<Position> {
        self.candidate.map(|candidate| candidate.position)
    }

    /// The last unconfirmed position, if no message in the window came after it.
    pub(crate) fn uncontradicted_candidate(&self) -> Option<Position> {
        self.candidate.filter(|candidate| !candidate.is_contradicted).map(|candidate| candidate.position)
    }

    /// True if a position is in the window now.
    pub(crate) fn is_in_window(&self, position: Position, next: u64) -> bool {
        self.is_current_start(position.start) && position.sequence.abs_diff(next) < self.reach
    }
}
