//! A half's place in a chain of pipes: containers, and words between them ([`wire::Word`]).

use super::reader::{Part, ReadError, Reader};
use super::writer::Writer;
use contract::{Message, Time};
use links::shm::Came;
use std::io;
use std::os::fd::OwnedFd;
use wire::Word;

/// A place in a chain.
pub(super) struct Place {
    pub(super) reader: Reader,
    pub(super) writer: Writer,
    /// Messages of the host's that are all here, and those of which the next was told that they are complete.
    here: u64,
    told: u64,
    /// Something was lost before the next message.
    has_gap: bool,
    /// The next of the chain has gone, and with it all.
    pub(super) is_cut_off: bool,
}

impl Place {
    pub(super) fn new(reader: Reader, writer: Writer) -> Place {
        Place { reader, writer, here: 0, told: 0, has_gap: false, is_cut_off: false }
    }

    /// Where it reads and writes, before it has done either.
    pub(super) fn into_ends(self) -> Option<(OwnedFd, OwnedFd)> {
        Some((self.reader.into_descriptor(), self.writer.into_descriptor()?))
    }

    /// The next message, or how many of the host's are all here now.
    pub(super) fn next(&mut self) -> Result<Option<Came>, ReadError> {
        loop {
            match self.reader.next_part()? {
                None => return Ok(None),
                Some(Part::Message(message)) => {
                    let has_gap = std::mem::take(&mut self.has_gap);
                    return Ok(Some(Came { message: Some(message), has_gap, ..Came::default() }));
                }
                Some(Part::Word(Word::Complete(messages))) => {
                    self.here = self.here.saturating_add(messages);
                    return Ok(Some(Came { covers: self.here, ..Came::default() }));
                }
                Some(Part::Word(Word::Gap)) => self.has_gap = true,
            }
        }
    }

    /// Sends a message on; one that is too large for a container comes back.
    pub(super) fn push(&mut self, message: Message) -> Result<(), Message> {
        self.writer.push(message)
    }

    /// Everything that came of the host's first `covers` messages has been sent.
    pub(super) fn cover(&mut self, covers: u64) {
        if covers > self.told {
            self.writer.push_word(Word::Complete(covers - self.told));
            self.told = covers;
        }
    }

    /// Writes all that there is room for.
    pub(super) fn flush(&mut self, now: Time) -> io::Result<()> {
        match self.writer.flush(now) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => self.is_cut_off = true,
            other => drop(other?),
        }
        Ok(())
    }

    /// Something was lost before what is sent next.
    pub(super) fn tell_gap(&mut self) {
        self.writer.push_word(Word::Gap);
    }
}
