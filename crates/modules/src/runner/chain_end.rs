//! A half's end of a chain of pipes: containers, and words between them ([`wire::Word`]).

use super::reader::{Part, ReadError, Reader};
use super::writer::Writer;
use contract::{Message, Time};
use links::shm::Received;
use std::io;
use std::os::fd::OwnedFd;
use wire::Word;

/// A half's end of a chain.
pub(super) struct ChainEnd {
    pub(super) reader: Reader,
    pub(super) writer: Writer,
    /// Messages of the host that were received completely, and those acknowledged to the next process.
    received: u64,
    acknowledged: u64,
    /// Messages were lost before the next one.
    has_gap: bool,
    /// The next process has ended, and the chain with it.
    pub(super) is_disconnected: bool,
}

impl ChainEnd {
    pub(super) fn new(reader: Reader, writer: Writer) -> ChainEnd {
        ChainEnd { reader, writer, received: 0, acknowledged: 0, has_gap: false, is_disconnected: false }
    }

    /// Returns the descriptors, before anything was read or written.
    pub(super) fn into_ends(self) -> Option<(OwnedFd, OwnedFd)> {
        Some((self.reader.into_descriptor(), self.writer.into_descriptor()?))
    }

    /// Receives the next message or acknowledgement.
    pub(super) fn next(&mut self) -> Result<Option<Received>, ReadError> {
        loop {
            match self.reader.next_part()? {
                None => return Ok(None),
                Some(Part::Message(message)) => {
                    let has_gap = std::mem::take(&mut self.has_gap);
                    return Ok(Some(Received { message: Some(message), has_gap, ..Received::default() }));
                }
                Some(Part::Word(Word::Complete(messages))) => {
                    self.received = self.received.saturating_add(messages);
                    return Ok(Some(Received { covers: self.received, ..Received::default() }));
                }
                Some(Part::Word(Word::Gap)) => self.has_gap = true,
            }
        }
    }

    /// Sends a message. Returns it if it is too large for a container.
    pub(super) fn push(&mut self, message: Message) -> Result<(), Message> {
        self.writer.push(message)
    }

    /// Sends an acknowledgement: all output of the host's first `covers` messages has been sent.
    pub(super) fn cover(&mut self, covers: u64) {
        if covers > self.acknowledged {
            self.writer.push_word(Word::Complete(covers - self.acknowledged));
            self.acknowledged = covers;
        }
    }

    /// Writes as far as there is room.
    pub(super) fn flush(&mut self, now: Time) -> io::Result<()> {
        match self.writer.flush(now) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => self.is_disconnected = true,
            other => drop(other?),
        }
        Ok(())
    }

    /// Marks the next message sent: messages were lost before it.
    pub(super) fn mark_gap(&mut self) {
        self.writer.push_word(Word::Gap);
    }
}
