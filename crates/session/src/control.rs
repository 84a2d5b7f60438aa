//! Control messages to and from the bytes of their connection, bounded both ways.

use contract::Bytes;
use std::collections::VecDeque;
use wire::control::FRAME_BYTES_MAX;
use wire::{Control, WireError};

/// Bytes of a control connection on their way in.
#[derive(Debug, Default)]
pub struct ControlInbox {
    bytes: Vec<u8>,
    taken: usize,
}

impl ControlInbox {
    /// Bytes came. Never holds more than two frames' worth: drain with [`ControlInbox::poll`] in between.
    pub fn handle_bytes(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.taken);
        self.taken = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// Whether more bytes may be handed in.
    pub fn has_room(&self) -> bool {
        self.bytes.len() - self.taken <= FRAME_BYTES_MAX + 4
    }

    /// The next whole message. An error is the peer's: the connection is of no more use.
    pub fn poll(&mut self) -> Result<Option<Control>, WireError> {
        match Control::parse_frame(&self.bytes[self.taken..])? {
            Some((message, bytes)) => {
                self.taken += bytes;
                Ok(Some(message))
            }
            None => Ok(None),
        }
    }
}

/// Control messages on their way out.
#[derive(Debug)]
pub struct ControlOutbox {
    frames: VecDeque<Bytes>,
    bytes: usize,
    limit: usize,
}

impl ControlOutbox {
    /// Holds at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        ControlOutbox { frames: VecDeque::new(), bytes: 0, limit }
    }

    /// Queues a message; `false` if the peer has taken so little that there is no room, after which the
    /// connection is of no more use.
    #[must_use]
    pub fn send(&mut self, message: &Control) -> bool {
        let frame = message.emit();
        if self.bytes + frame.len() > self.limit {
            return false;
        }
        self.bytes += frame.len();
        self.frames.push_back(Bytes::from(frame));
        true
    }

    /// Bytes to send next; empty when there are none.
    pub fn front(&self) -> &[u8] {
        self.frames.front().map_or(&[], |frame| &frame[..])
    }

    /// So many of [`ControlOutbox::front`]'s bytes were sent.
    pub fn handle_sent(&mut self, count: usize) {
        let Some(frame) = self.frames.front_mut() else { return };
        let count = count.min(frame.len());
        let _ = frame.split_to(count);
        self.bytes -= count;
        if frame.is_empty() {
            self.frames.pop_front();
        }
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }
}
