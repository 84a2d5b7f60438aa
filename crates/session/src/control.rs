//! The control channel: control messages over a sequence of connections, with bounded memory.
//!
//! Most messages are numbered ([`Control::is_numbered`]). The sender retains them until the peer reports how
//! many it has received. When a session resumes on a new connection, the sender retransmits the rest. So a
//! control message between the halves of a pair, or the end of a flow, is neither lost nor repeated.
//!
//! ```text
//!           send                                poll
//! messages ─────► outbox ~ connection n ~► inbox ────► messages
//!            │                                     │
//!            ▼                                     ▼
//!           kept ◄──── handle_received ◄──────── received
//!            │
//!            └ resume ─► outbox ~ connection n+1 ~►
//! ```

use contract::Bytes;
use std::collections::VecDeque;
use thiserror::Error;
use wire::control::{FRAME_BYTES_MAX, HELLO_BYTES_MAX};
use wire::{Control, WireError};

/// The control channel cannot be used any more.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ChannelError {
    /// The peer sent an invalid control message.
    #[error("the other host broke the protocol: {0}")]
    Wire(#[from] WireError),
    /// The peer stopped reading, and the waiting messages reached the limit.
    #[error("the other host stopped reading control messages: {0} bytes are waiting")]
    Full(usize),
    /// The peer's count is impossible: more than was sent, or less than was already acknowledged.
    #[error(
        "the other host claims {theirs} received control messages; this one retains {kept_from} to {kept_to}"
    )]
    Numbers {
        /// The peer's count of received messages.
        theirs: u64,
        /// The number of the first retained message.
        kept_from: u64,
        /// One past the number of the last message.
        kept_to: u64,
    },
}

/// The state of a control channel that outlives its process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavedChannel {
    /// The number of numbered messages received in the session.
    pub received: u64,
    /// Numbered frames that the peer has not acknowledged.
    pub kept: Vec<Bytes>,
    /// The number of the first of them.
    pub kept_from: u64,
}

/// One side of a control channel.
#[derive(Debug)]
pub struct ControlChannel {
    limit_bytes: usize,
    frame_bytes_max: usize,
    /// Received bytes; those before `taken` are already parsed.
    inbox: Vec<u8>,
    taken: usize,
    received: u64,
    /// Frames to send on this connection. Of the first, `sent_of_front` bytes are sent.
    outbox: VecDeque<Bytes>,
    sent_of_front: usize,
    outbox_bytes: usize,
    /// Numbered frames that the peer has not acknowledged. The first has the number `kept_from`.
    kept: VecDeque<Bytes>,
    kept_from: u64,
    kept_bytes: usize,
}

impl ControlChannel {
    /// A channel for a new session. It queues and retains at most `limit_bytes` each.
    pub fn new(limit_bytes: usize) -> Self {
        ControlChannel {
            limit_bytes,
            frame_bytes_max: FRAME_BYTES_MAX,
            inbox: Vec::new(),
            taken: 0,
            received: 0,
            outbox: VecDeque::new(),
            sent_of_front: 0,
            outbox_bytes: 0,
            kept: VecDeque::new(),
            kept_from: 0,
            kept_bytes: 0,
        }
    }

    /// A channel that refuses longer frames than a `Hello` has: for a peer that is not authenticated yet.
    pub fn for_hello(limit_bytes: usize) -> Self {
        ControlChannel { frame_bytes_max: HELLO_BYTES_MAX, ..ControlChannel::new(limit_bytes) }
    }

    /// Returns the state from which another process continues the session on a new connection.
    pub fn save(&self) -> SavedChannel {
        SavedChannel {
            received: self.received,
            kept: self.kept.iter().cloned().collect(),
            kept_from: self.kept_from,
        }
    }

    /// A channel without a connection, which continues a session of another process.
    pub fn restore(limit_bytes: usize, saved: SavedChannel) -> Self {
        let SavedChannel { received, kept, kept_from } = saved;
        let kept_bytes = kept.iter().map(Bytes::len).sum();
        ControlChannel {
            received,
            kept: kept.into(),
            kept_from,
            kept_bytes,
            ..ControlChannel::new(limit_bytes)
        }
    }

    /// Takes received bytes. Drain with [`ControlChannel::poll`] before the next call.
    pub fn handle_bytes(&mut self, bytes: &[u8]) {
        self.inbox.drain(..self.taken);
        self.taken = 0;
        self.inbox.extend_from_slice(bytes);
    }

    /// Returns true if the channel accepts more bytes.
    pub fn has_room(&self) -> bool {
        self.inbox.len() - self.taken <= self.frame_bytes_max + 4
    }

    /// Returns true if no byte follows the messages returned so far.
    pub fn is_drained(&self) -> bool {
        self.taken == self.inbox.len()
    }

    /// Returns the next complete message.
    pub fn poll(&mut self) -> Result<Option<Control>, ChannelError> {
        let frame = Control::parse_frame_within(&self.inbox[self.taken..], self.frame_bytes_max)?;
        let Some((message, bytes)) = frame else { return Ok(None) };
        self.taken += bytes;
        self.received += u64::from(message.is_numbered());
        Ok(Some(message))
    }

    /// The connection was lost. Discards its unparsed or invalid bytes; the peer retransmits the numbered
    /// messages among them.
    pub fn handle_disconnect(&mut self) {
        self.inbox = Vec::new();
        self.taken = 0;
    }

    /// The number of numbered messages received in this session.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Returns true if the peer has not acknowledged every numbered message.
    pub fn has_unacknowledged(&self) -> bool {
        !self.kept.is_empty()
    }

    /// Queues a message; retains it if it is numbered.
    pub fn send(&mut self, message: &Control) -> Result<(), ChannelError> {
        let frame = Bytes::from(message.emit());
        if self.outbox_bytes + frame.len() > self.limit_bytes {
            return Err(ChannelError::Full(self.limit_bytes));
        }
        if message.is_numbered() {
            self.keep_frame(frame.clone())?;
        }
        self.queue(frame);
        Ok(())
    }

    /// Retains a numbered message for the next connection, while there is none. Discards any other message.
    pub fn keep(&mut self, message: &Control) -> Result<(), ChannelError> {
        if message.is_numbered() { self.keep_frame(Bytes::from(message.emit())) } else { Ok(()) }
    }

    fn keep_frame(&mut self, frame: Bytes) -> Result<(), ChannelError> {
        if self.kept_bytes + frame.len() > self.limit_bytes {
            return Err(ChannelError::Full(self.limit_bytes));
        }
        self.kept_bytes += frame.len();
        self.kept.push_back(frame);
        Ok(())
    }

    fn queue(&mut self, frame: Bytes) {
        self.outbox_bytes += frame.len();
        self.outbox.push_back(frame);
    }

    /// The next bytes to send; empty if there are none.
    pub fn front(&self) -> &[u8] {
        self.outbox.front().map_or(&[], |frame| &frame[self.sent_of_front..])
    }

    /// Removes the first `count` bytes of [`ControlChannel::front`] after they were sent.
    pub fn handle_sent(&mut self, count: usize) {
        self.sent_of_front += count.min(self.front().len());
        if self.front().is_empty()
            && let Some(frame) = self.outbox.pop_front()
        {
            self.outbox_bytes -= frame.len();
            self.sent_of_front = 0;
        }
    }

    /// Handles the peer's count of received numbered messages.
    pub fn handle_received(&mut self, theirs: u64) -> Result<(), ChannelError> {
        let kept_to = self.kept_from + self.kept.len() as u64;
        if theirs < self.kept_from || theirs > kept_to {
            return Err(ChannelError::Numbers { theirs, kept_from: self.kept_from, kept_to });
        }
        while self.kept_from < theirs
            && let Some(frame) = self.kept.pop_front()
        {
            self.kept_bytes -= frame.len();
            self.kept_from += 1;
        }
        Ok(())
    }

    /// Resumes the session on a new connection. `first`, an unnumbered message, is sent before all others. The
    /// peer has received `theirs` numbered messages.
    pub fn resume(&mut self, theirs: u64, first: Option<&Control>) -> Result<(), ChannelError> {
        self.handle_received(theirs)?;
        self.inbox.clear();
        self.taken = 0;
        self.outbox.clear();
        self.outbox_bytes = 0;
        self.sent_of_front = 0;
        if let Some(first) = first {
            self.queue(Bytes::from(first.emit()));
        }
        for frame in self.kept.clone() {
            self.queue(frame);
        }
        Ok(())
    }
}
