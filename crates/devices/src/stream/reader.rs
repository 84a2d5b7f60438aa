//! The reading half of a stream: bytes to messages.

use super::{Channel, Deframer, Frame, Framing, MessageReader, ReadBuffer};
use contract::{Interest, Next, PartnerError, PartnerResult, Readiness, Time};
use rustix::io::Errno;

/// Size of a read buffer for lines and containers.
const BUFFER_BYTES: usize = 64 << 10;

/// Reads of one call, at most, so that a long message does not starve the thread's other work.
const READS_MAX: usize = 16;

/// Bytes discarded with one read.
const DISCARD_BYTES: usize = 4096;

/// Reads a stream into pooled memory and splits it into messages without copying.
#[derive(Debug)]
pub(crate) struct StreamReader {
    name: String,
    channel: Channel,
    buffer: ReadBuffer,
    deframer: Deframer,
    state: State,
    /// The last read took all that there was: another one would find nothing, and its system call would delay the message.
    /// Polling tells what has come since.
    is_emptied: bool,
    bytes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Reading,
    /// The stream has ended; messages are left.
    Draining,
    Ended,
}

impl StreamReader {
    /// Creates a reader of `channel`; errors contain `name`.
    pub(crate) fn new(name: impl Into<String>, channel: Channel, framing: Framing) -> Self {
        let buffer_bytes = match framing.frame {
            Frame::Chunk(size) => size,
            Frame::Line | Frame::Container => BUFFER_BYTES,
        };
        StreamReader {
            name: name.into(),
            channel,
            buffer: ReadBuffer::new(buffer_bytes),
            deframer: Deframer::new(framing.frame, framing.max),
            state: State::Reading,
            is_emptied: false,
            bytes: 0,
        }
    }

    /// Returns true if the stream has ended and no messages are left.
    pub(crate) fn has_ended(&self) -> bool {
        self.state == State::Ended
    }

    /// Reads and discards bytes, which may be no messages.
    pub(crate) fn discard(&mut self) -> PartnerResult {
        let mut discarded = [0; DISCARD_BYTES];
        for _ in 0..READS_MAX {
            let read = self.channel.read(&mut discarded);
            match self.checked(read)? {
                None => break,
                Some(0) => {
                    self.state = State::Ended;
                    break;
                }
                Some(count) => self.bytes += count as u64,
            }
        }
        Ok(())
    }

    /// Returns the bytes of a read: `None` if there are none, 0 at the end.
    fn checked(&self, read: rustix::io::Result<usize>) -> PartnerResult<Option<usize>> {
        match read {
            Ok(count) => Ok(Some(count)),
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            // A terminal that was hung up returns EIO instead of the end of file.
            Err(Errno::IO) if rustix::termios::isatty(&self.channel) => Ok(Some(0)),
            Err(error) if self.channel.is_lost(error) => Err(PartnerError::Gone(self.name.clone())),
            Err(error) => Err(PartnerError::os(format!("reading {}", self.name), error)),
        }
    }

    /// Adds the stream's name to a fault in its bytes.
    fn named(&self, fault: PartnerError) -> PartnerError {
        match fault {
            PartnerError::Data(problem) => PartnerError::Data(format!("{}: {problem}", self.name)),
            other => other,
        }
    }

    /// Reads once. Returns true if there was data or the end.
    fn read(&mut self) -> PartnerResult<bool> {
        if std::mem::take(&mut self.is_emptied) {
            return Ok(false);
        }
        let read = self.buffer.read(&self.channel);
        let Some(fresh) = self.checked(read)? else { return Ok(false) };
        self.bytes += fresh as u64;
        self.is_emptied = fresh > 0 && !self.buffer.is_full() && self.channel.can_wait();
        if fresh == 0 {
            self.state = State::Draining;
        }
        let is_complete = self.deframer.is_complete_with(self.buffer.filled(), fresh);
        if fresh == 0 || self.buffer.is_full() || is_complete {
            self.deframer.push(self.buffer.take());
        }
        Ok(true)
    }
}

impl MessageReader for StreamReader {
    fn next(&mut self, now: Time) -> PartnerResult<Next> {
        for _ in 0..READS_MAX {
            if let Some(message) = self.deframer.next(now).map_err(|fault| self.named(fault))? {
                return Ok(Next::Message(message));
            }
            match self.state {
                State::Reading => {}
                State::Draining => {
                    let last = self.deframer.end(now).map_err(|fault| self.named(fault))?;
                    if last.is_none() {
                        self.state = State::Ended;
                    }
                    return Ok(last.map_or(Next::End, Next::Message));
                }
                State::Ended => return Ok(Next::End),
            }
            if !self.read()? {
                return Ok(Next::Nothing);
            }
        }
        Ok(Next::Nothing)
    }

    fn readiness(&self) -> Readiness<'_> {
        match self.state {
            State::Reading if self.deframer.is_ready() => Readiness::now(),
            State::Reading => self.channel.readiness(Interest::Read),
            State::Draining => Readiness::now(),
            State::Ended => Readiness::never(),
        }
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn ahead(&self) -> u64 {
        (self.buffer.filled().len() + self.deframer.held_bytes()) as u64
    }
}
