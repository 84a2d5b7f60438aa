//! Forwarding: a stage that passes on each message unchanged and at once ([`contract::Stage::passes`]) moves
//! entries from its input ring to its output ring.
//!
//! With an entry move the slots that it names, its `covers`, its gap mark and the end of the flow. The stage builds
//! no message and holds no slot. An entry is visible in the output ring before its place in the input ring is
//! freed, so the owner of a slot finds it in at least one of them; if the process dies in between, both rings are
//! discarded. The final reader of an entry checks its contents.

use super::arrival;
use super::block::Broken;
use super::entry::{Entry, MESSAGE_PIECES_MAX};
use super::stage_end::StageEnd;

/// Result of [`StageEnd::forward`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forwarded {
    /// The input ring was empty.
    Nothing,
    /// All entries were forwarded.
    All,
    /// The output ring has no room for the next message.
    NoRoom,
    /// The flow has ended, and the end was forwarded.
    End,
}

impl StageEnd {
    /// Forwards all messages for which there is room. A process that calls this must not call `receive` or `send`.
    pub fn forward(&mut self) -> Result<Forwarded, Broken> {
        let (mut count, mut has_moved) = (0, self.forward_singles()?);
        let mut passed = if has_moved { Forwarded::All } else { Forwarded::Nothing };
        while let Some((entries, is_end)) = self.whole(count)? {
            if !self.output.has_room(entries)? {
                passed = Forwarded::NoRoom;
                break;
            }
            for index in count..count + entries {
                // `whole` has just seen this entry.
                self.input.peek_raw(index).into_iter().for_each(|entry| self.output.write_raw(entry));
            }
            count += entries;
            passed = if is_end { Forwarded::End } else { Forwarded::All };
            if is_end {
                break;
            }
        }
        self.block.set_waits_for_room(self.process, passed == Forwarded::NoRoom);
        if self.output.publish() {
            self.input.advance(count);
            has_moved = true;
        }
        if has_moved {
            self.wake_next();
            // The previous process may wait for this room. The fence in `wake_next` orders this check.
            self.wake_waiting(self.process - 1);
        }
        Ok(passed)
    }

    /// The common case: messages of one entry each, not at the end of the flow. Returns true if any was forwarded.
    fn forward_singles(&mut self) -> Result<bool, Broken> {
        // After a full ring of messages, return and wake the others.
        for count in 0..self.block.geometry().ring {
            let single =
                self.input.peek_raw(0).filter(|entry| Entry::continues_or_ends(entry) == (false, false));
            let Some(entry) = single else { return Ok(count > 0) };
            if !self.output.has_room(1)? {
                return Ok(count > 0);
            }
            self.output.forward(entry);
            self.input.advance(1);
        }
        Ok(true)
    }

    /// Number of entries of the message that begins `index` entries after the next one, and whether it is the end
    /// of the flow; `None` if there is none.
    fn whole(&self, index: usize) -> Result<Option<(usize, bool)>, Broken> {
        for count in 1..=arrival::entries(MESSAGE_PIECES_MAX) {
            match self.input.peek_raw(index + count - 1).map(|entry| Entry::continues_or_ends(&entry)) {
                Some((false, is_end)) => return Ok(Some((count, is_end))),
                Some((true, _)) => {}
                None if count == 1 => return Ok(None),
                None => return Err(Broken("a message is truncated".into())),
            }
        }
        Err(Broken("a message has too many entries".into()))
    }

    /// Call this after [`Forwarded::NoRoom`]; then try [`StageEnd::forward`] once more before [`StageEnd::sleep`].
    pub fn prepare_sleep(&mut self) {
        self.sleeps = true;
        self.block.mark_asleep(self.process);
    }
}
