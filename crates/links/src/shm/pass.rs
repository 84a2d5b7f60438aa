//! Handing messages on as they are: what a stage does that passes each on at once ([`contract::Stage::passes`]).
//!
//! Its entries go from the ring in front into the one behind, and with them the slots that they name, what they cover,
//! what was lost, and the end: no message is made of them, and no slot held meanwhile. An entry is seen in the ring behind
//! before its place in front is given up, so that whoever looks for a slot finds it in one of the two; a process that
//! dies in between takes both with it. What an entry says is checked by whoever uses it.

use super::arrival;
use super::block::Broken;
use super::entry::{Entry, MESSAGE_PIECES_MAX};
use super::seat::Seat;

/// What [`Seat::pass_on`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Passed {
    /// There was nothing.
    Nothing,
    /// All that there was.
    All,
    /// The ring behind has no room for the next message.
    NoRoom,
    /// The flow has ended, and the next process knows.
    End,
}

impl Seat {
    /// Hands on all that came, as far as there is room, and what comes in the moment that it pays to look for more. A
    /// process that calls this receives and sends nothing.
    pub fn pass_on(&mut self) -> Result<Passed, Broken> {
        let mut passed = self.pass_what_came()?;
        // Who has handed on a ring of them sees what else there is.
        for _ in 0..self.block.geometry().ring {
            let has_room = matches!(passed, Passed::Nothing | Passed::All);
            if !has_room || self.is_told() || !self.looks_shortly() {
                break;
            }
            passed = self.pass_what_came()?;
        }
        Ok(passed)
    }

    fn pass_what_came(&mut self) -> Result<Passed, Broken> {
        let (mut count, mut has_moved) = (0, self.pass_singles()?);
        let mut passed = if has_moved { Passed::All } else { Passed::Nothing };
        while let Some((entries, is_end)) = self.whole(count)? {
            if !self.output.has_room(entries)? {
                passed = Passed::NoRoom;
                break;
            }
            for index in count..count + entries {
                // It was there a moment ago.
                self.input.peek_raw(index).into_iter().for_each(|entry| self.output.write_raw(entry));
            }
            count += entries;
            passed = if is_end { Passed::End } else { Passed::All };
            if is_end {
                break;
            }
        }
        self.block.want_room(self.process, passed == Passed::NoRoom);
        if self.output.publish() {
            self.input.advance(count);
            has_moved = true;
        }
        if has_moved {
            self.wake_next();
            // Who waits for room in front may have it now: asked behind the fence of the wake-up.
            self.wake_waiting(self.process - 1);
        }
        Ok(passed)
    }

    /// The usual case, a message after the other: each takes one entry, and the flow does not end. Whether there was
    /// any.
    fn pass_singles(&mut self) -> Result<bool, Broken> {
        // Who has handed on a ring of them sees to whom that concerns.
        for count in 0..self.block.geometry().ring {
            let single =
                self.input.peek_raw(0).filter(|entry| Entry::goes_on_or_ends(entry) == (false, false));
            let Some(entry) = single else { return Ok(count > 0) };
            if !self.output.has_room(1)? {
                return Ok(count > 0);
            }
            self.output.hand_on(entry);
            self.input.advance(1);
        }
        Ok(true)
    }

    /// How many entries the message behind `index` others takes, if there is one, and whether it is the flow's end.
    fn whole(&self, index: usize) -> Result<Option<(usize, bool)>, Broken> {
        for count in 1..=arrival::entries(MESSAGE_PIECES_MAX) {
            match self.input.peek_raw(index + count - 1).map(|entry| Entry::goes_on_or_ends(&entry)) {
                Some((false, is_end)) => return Ok(Some((count, is_end))),
                Some((true, _)) => {}
                None if count == 1 => return Ok(None),
                None => return Err(Broken("a message is cut short".into())),
            }
        }
        Err(Broken("a message has more entries than any".into()))
    }

    /// After [`Passed::NoRoom`], before looking once more and then [`Seat::sleep`].
    pub fn want_room(&mut self) {
        self.sleeps = true;
        self.block.go_to_sleep(self.process);
    }
}
