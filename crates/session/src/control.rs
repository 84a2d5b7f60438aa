//! The control channel: messages to and from the bytes of its connection, bounded both ways, and whole
//! across connections.
//!
//! Most messages are numbered ([`Control::is_numbered`]). The sender keeps those that the other side has not
//! said it received; when a session is resumed on a new connection they go out again, so that a pair's
//! request or a flow's end is neither lost nor said twice.

use contract::Bytes;
use std::collections::VecDeque;
use thiserror::Error;
use wire::control::FRAME_BYTES_MAX;
use wire::{Control, WireError};

/// Why a control channel is of no more use.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ChannelError {
    /// The peer sent what is no control message.
    #[error("the other host broke the protocol: {0}")]
    Wire(#[from] WireError),
    /// The peer took nothing for so long that the bound was reached.
    #[error("the other host took no control message until {0} bytes were waiting")]
    Full(usize),
    /// The peer claims messages that were never sent, or misses some that are no longer kept.
    #[error("the other host is at control message {theirs}; this one keeps {kept_from} to {kept_to}")]
    Numbers {
        /// What the peer says it received.
        theirs: u64,
        /// First number kept here.
        kept_from: u64,
        /// One past the last number sent.
        kept_to: u64,
    },
}

/// One side of a control channel.
#[derive(Debug)]
pub struct ControlChannel {
    limit_bytes: usize,
    /// Bytes that came and are no whole message yet.
    inbox: Vec<u8>,
    taken: usize,
    received: u64,
    /// Frames to send on this connection; of the first, `sent_of_front` bytes are gone.
    outbox: VecDeque<Bytes>,
    sent_of_front: usize,
    outbox_bytes: usize,
    /// Numbered frames that the peer has not said it received; the first is number `kept_from`.
    kept: VecDeque<Bytes>,
    kept_from: u64,
    kept_bytes: usize,
}

impl ControlChannel {
    /// A channel of a new session that keeps and queues at most `limit_bytes` each.
    pub fn new(limit_bytes: usize) -> Self {
        ControlChannel {
            limit_bytes,
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

    /// Bytes came. Drain with [`ControlChannel::poll`] before the next.
    pub fn handle_bytes(&mut self, bytes: &[u8]) {
        self.inbox.drain(..self.taken);
        self.taken = 0;
        self.inbox.extend_from_slice(bytes);
    }

    /// Whether more bytes may be handed in.
    pub fn has_room(&self) -> bool {
        self.inbox.len() - self.taken <= FRAME_BYTES_MAX + 4
    }

    /// Whether no byte is left that came behind the messages given so far.
    pub fn is_drained(&self) -> bool {
        self.taken == self.inbox.len()
    }

    /// The next whole message.
    pub fn poll(&mut self) -> Result<Option<Control>, ChannelError> {
        let Some((message, bytes)) = Control::parse_frame(&self.inbox[self.taken..])? else {
            return Ok(None);
        };
        self.taken += bytes;
        self.received += u64::from(message.is_numbered());
        Ok(Some(message))
    }

    /// The connection is gone: what came of it and was not taken, or cannot be understood, is forgotten. Numbered
    /// messages among that come again.
    pub fn handle_disconnect(&mut self) {
        self.inbox = Vec::new();
        self.taken = 0;
    }

    /// Numbered messages that came in this session.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Queues a message, and keeps it if it is numbered.
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

    /// Keeps a numbered message for the next connection, while there is none. Others are forgotten.
    pub fn keep(&mut self, message: &Control) -> Result<(), ChannelError> {
        match message.is_numbered() {
            true => self.keep_frame(Bytes::from(message.emit())),
            false => Ok(()),
        }
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

    /// Bytes to send next; empty when there are none.
    pub fn front(&self) -> &[u8] {
        self.outbox.front().map_or(&[], |frame| &frame[self.sent_of_front..])
    }

    /// So many of [`ControlChannel::front`]'s bytes were sent.
    pub fn handle_sent(&mut self, count: usize) {
        self.sent_of_front += count.min(self.front().len());
        if self.front().is_empty()
            && let Some(frame) = self.outbox.pop_front()
        {
            self.outbox_bytes -= frame.len();
            self.sent_of_front = 0;
        }
    }

    /// The peer says how many numbered messages came to it.
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

    /// The session goes on over a new connection, on which `first` goes out before anything else (an
    /// unnumbered message); `theirs` numbered messages came to the peer.
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
