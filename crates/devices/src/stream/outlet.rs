//! The reading half of a stream: descriptor to messages.

use super::{Channel, Deframer, Frame, Framing, Gives, ReadBuffer};
use contract::{Interest, Next, PartnerError, Readiness, Time};
use rustix::io::Errno;

/// Bytes of a read buffer, unless a chunk wants another size.
const BUFFER_BYTES: usize = 64 << 10;

/// Reads of one search for a message, so that a long message does not hold up its thread.
const READS_MAX: usize = 16;

/// Reads a stream into pooled memory and cuts it into messages without a copy.
#[derive(Debug)]
pub(crate) struct Outlet {
    name: String,
    channel: Channel,
    buffer: ReadBuffer,
    deframer: Deframer,
    state: State,
    bytes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Reading,
    /// The stream has ended; what was read is still to be given out.
    Ending,
    Ended,
}

impl Outlet {
    /// Reads `channel`, which errors call `name`.
    pub(crate) fn new(name: impl Into<String>, channel: Channel, framing: Framing) -> Self {
        let buffer_bytes = match framing.frame {
            Frame::Chunk(size) => size,
            Frame::Line | Frame::Container => BUFFER_BYTES,
        };
        Outlet {
            name: name.into(),
            channel,
            buffer: ReadBuffer::new(buffer_bytes),
            deframer: Deframer::new(framing.frame, framing.max),
            state: State::Reading,
            bytes: 0,
        }
    }

    /// Whether the stream has ended and everything was given out.
    pub(crate) fn has_ended(&self) -> bool {
        self.state == State::Ended
    }

    /// Reads once; says whether there was anything, be it the end.
    fn read(&mut self) -> Result<bool, PartnerError> {
        let fresh = match self.buffer.read(&self.channel) {
            Ok(count) => count,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(false),
            // A terminal that was hung up says EIO where a pipe says end of file.
            Err(Errno::IO) if rustix::termios::isatty(&self.channel) => 0,
            Err(Errno::CONNRESET) => return Err(PartnerError::Gone(self.name.clone())),
            Err(error) => return Err(PartnerError::os(format!("reading {}", self.name), error)),
        };
        self.bytes += fresh as u64;
        if fresh == 0 {
            self.state = State::Ending;
        }
        if fresh == 0 || self.buffer.is_full() || self.deframer.is_whole_with(self.buffer.gathered(), fresh) {
            self.deframer.push(self.buffer.take());
        }
        Ok(true)
    }
}

impl Gives for Outlet {
    fn next(&mut self, now: Time) -> Result<Next, PartnerError> {
        for _ in 0..READS_MAX {
            if let Some(message) = self.deframer.next(now)? {
                return Ok(Next::Message(message));
            }
            match self.state {
                State::Reading => {}
                State::Ending => {
                    let last = self.deframer.end(now)?;
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
            State::Ending => Readiness::now(),
            State::Ended => Readiness::never(),
        }
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn ahead(&self) -> u64 {
        (self.buffer.gathered().len() + self.deframer.held_bytes()) as u64
    }
}
