//! Where a numbered flow stands, by what its messages say of themselves: the start of the source half that numbered
//! them, and their numbers. No single message is believed that the flow is somewhere else: a bit of it may have been
//! flipped, or its sender may lie.

use contract::Time;
use std::time::Duration;

/// Numbers that a flow may skip, or fall back, without a doubt, where the window is smaller.
const REACH_MIN: u64 = 64;
/// No flow gets this far between two messages.
const JUMP_MAX: u64 = 1 << 32;
/// Messages in a row from behind after which the flow is believed to be there, if nothing else was heard meanwhile.
const BEHIND_MAX: u32 = 16;

/// Where a message has its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    /// The source half's start, by milliseconds of its clock, wrapping: its numbers begin anew with it.
    pub(crate) start: u32,
    /// Number of the message since then, from 0.
    pub(crate) sequence: u64,
    /// Which part of it this is, from 0: less than there are parts.
    pub(crate) part: usize,
}

/// What a place is beside those known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fit {
    /// Where the flow stands.
    Near,
    /// The flow is here from now on: this is the first message of all, or agrees with a doubtful one before it, its
    /// `rival`, or is the last of many from behind. `before` is the start that was known.
    Begins { rival: Option<Place>, before: Option<u32> },
    /// Of a later start, or far ahead: the next message may agree.
    Doubtful,
    /// Of an earlier start, or far behind.
    Behind,
    /// Further ahead than any flow gets.
    Nowhere,
}

/// Where a flow stands.
#[derive(Debug)]
pub(crate) struct Course {
    reach: u64,
    wait: Duration,
    start: Option<u32>,
    /// The doubtful place seen last, and whether the flow was heard elsewhere since.
    rival: Option<Place>,
    is_contradicted: bool,
    /// Messages from behind since something near.
    behind: u32,
    /// When something near was seen.
    heard: Time,
}

impl Course {
    /// Of a flow whose messages overtake at most `window` others, and none by longer than `wait`.
    pub(crate) fn new(window: usize, wait: Duration) -> Self {
        Course {
            reach: REACH_MIN.max(window as u64),
            wait,
            start: None,
            rival: None,
            is_contradicted: false,
            behind: 0,
            heard: Time::ZERO,
        }
    }

    /// The start that is known.
    pub(crate) fn start(&self) -> Option<u32> {
        self.start
    }

    /// Goes on where another stood that knew this start, and had a doubtful place if nothing spoke against it.
    pub(crate) fn go_on(&mut self, start: Option<u32>, rival: Option<Place>) {
        (self.start, self.rival, self.is_contradicted) = (start, rival, false);
    }

    /// What this place is, where `next` is the first number that has not come.
    pub(crate) fn see(&mut self, place: Place, next: u64, now: Time) -> Fit {
        let Some(start) = self.start else { return self.begin(place, None, now) };
        let is_same = place.start == start;
        if is_same && place.sequence.abs_diff(next) < self.reach {
            (self.heard, self.behind, self.is_contradicted) = (now, 0, true);
            return Fit::Near;
        }
        let is_later = match is_same {
            true => place.sequence > next,
            false => place.start.wrapping_sub(start).cast_signed() > 0,
        };
        if !is_later {
            self.behind = self.behind.saturating_add(1);
            return match self.behind < BEHIND_MAX || now < self.heard.after(self.wait) {
                true => Fit::Behind,
                false => self.begin(place, None, now),
            };
        }
        if is_same && place.sequence - next >= JUMP_MAX {
            return Fit::Nowhere;
        }
        match self.rival.filter(|rival| !self.is_contradicted && self.agree(*rival, place, is_same)) {
            Some(rival) => self.begin(place, Some(rival), now),
            None => {
                (self.rival, self.is_contradicted) = (Some(place), false);
                Fit::Doubtful
            }
        }
    }

    fn begin(&mut self, place: Place, rival: Option<Place>, now: Time) -> Fit {
        let before = self.start.replace(place.start);
        (self.rival, self.heard, self.behind) = (None, now, 0);
        Fit::Begins { rival, before }
    }

    /// Whether both say the same of where the flow is. Of a start that is known, a message's copies and parts say it
    /// only once: all of them crossed at the same time, and may have been altered alike.
    fn agree(&self, one: Place, other: Place, is_known_start: bool) -> bool {
        one.start == other.start
            && one.sequence.abs_diff(other.sequence) < self.reach
            && !(is_known_start && one.sequence == other.sequence)
    }

    /// Whether it is of the flow that is known.
    pub(crate) fn is_of(&self, start: u32) -> bool {
        self.start == Some(start)
    }

    /// The doubtful place seen last.
    pub(crate) fn rival(&self) -> Option<Place> {
        self.rival
    }

    /// Whether nothing spoke against the doubtful place seen last.
    pub(crate) fn is_likely(&self) -> bool {
        self.rival.is_some() && !self.is_contradicted
    }

    /// Whether a doubtful place of before is now where the flow stands.
    pub(crate) fn has_reached(&self, place: Place, next: u64) -> bool {
        self.is_of(place.start) && place.sequence.abs_diff(next) < self.reach
    }
}
