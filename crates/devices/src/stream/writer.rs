//! The writing half of a stream: messages to bytes.

use super::frame::enframe;
use super::terminal::TerminalFilter;
use super::{Channel, Framing, MessageWriter, PendingWrite, now};
use contract::{CtlReply, Interest, Message, PartnerError, PartnerResult, Pushed, Readiness, Time};
use rustix::io::Errno;
use std::time::Duration;

/// Writes messages to a stream. It holds the unwritten rest of at most one message.
#[derive(Debug)]
pub(crate) struct StreamWriter {
    name: String,
    /// None after [`StreamWriter::finish`].
    channel: Option<Channel>,
    framing: Framing,
    /// Removes control characters.
    filter: Option<TerminalFilter>,
    pending: PendingWrite,
    bytes: u64,
    /// A broken connection may be made again.
    may_reconnect: bool,
    /// Next check of an unread FIFO or a full disk, which poll does not report.
    retry_at: Option<Time>,
    /// Writes that found the disk full.
    full: u64,
}

/// Interval between checks of an unread FIFO.
const FIFO_INTERVAL: Duration = Duration::from_millis(10);
/// Interval between checks of a full disk.
const DISK_INTERVAL: Duration = Duration::from_millis(200);

impl StreamWriter {
    /// Creates a writer to `channel`; errors contain `name`.
    pub(crate) fn new(name: impl Into<String>, channel: Channel, framing: Framing) -> Self {
        StreamWriter {
            name: name.into(),
            channel: Some(channel),
            framing,
            filter: None,
            pending: PendingWrite::default(),
            bytes: 0,
            may_reconnect: false,
            retry_at: None,
            full: 0,
        }
    }

    /// Reports a broken connection as [`PartnerError::Gone`], because it may be made again.
    pub(crate) fn with_reconnect(self) -> Self {
        StreamWriter { may_reconnect: true, ..self }
    }

    /// Writes text without control characters.
    pub(crate) fn without_control_characters(self) -> Self {
        StreamWriter { filter: Some(TerminalFilter::default()), ..self }
    }

    /// Writes as many pending bytes as there is room for. Returns true if none are left.
    fn write(&mut self) -> PartnerResult<bool> {
        let Some(channel) = &self.channel else {
            return Err(PartnerError::Unsupported("a push after the flow was finished"));
        };
        if self.pending.left() > 0 && self.retry_at.is_some_and(|at| at > now()) {
            return Ok(false);
        }
        self.retry_at = None;
        match self.pending.write(channel) {
            Ok(count) => {
                self.bytes += count as u64;
                Ok(self.pending.left() == 0)
            }
            Err(Errno::NOSPC | Errno::DQUOT) if channel.is_on_disk() => {
                self.full += 1;
                self.retry_at = Some(now().after(DISK_INTERVAL));
                Ok(false)
            }
            Err(error) if self.may_reconnect && channel.is_lost(error) => {
                Err(PartnerError::Gone(self.name.clone()))
            }
            Err(error) => Err(PartnerError::os(format!("writing to {}", self.name), error)),
        }
    }

    /// Returns true if the stream has ended for its reader.
    pub(crate) fn is_finished(&self) -> bool {
        self.channel.is_none()
    }

    /// Accepts a message, or returns it while the previous one is not written completely.
    pub(crate) fn push(&mut self, message: Message) -> Result<Pushed, (PartnerError, Message)> {
        if message.body.len() > self.framing.max.max(wire::BODY_BYTES_MAX) {
            let problem = format!("{} bytes, over the limit of {}", message.body.len(), wire::BODY_BYTES_MAX);
            return Err((PartnerError::Message(problem), message));
        }
        match self.write() {
            Ok(true) => {}
            Ok(false) => return Ok(Pushed::Full(message)),
            Err(error) => return Err((error, message)),
        }
        let bytes = match enframe(self.framing.frame, message.clone()) {
            Ok(bytes) => bytes,
            Err(error) => return Err((error, message)),
        };
        let bytes = match &mut self.filter {
            Some(filter) => filter.apply(bytes),
            None => bytes,
        };
        self.pending.replace(bytes);
        match self.write() {
            Ok(_) => Ok(Pushed::Taken),
            Err(error) => {
                self.pending = PendingWrite::default();
                Err((error, message))
            }
        }
    }

    /// Writes pending bytes.
    pub(crate) fn flush(&mut self) -> PartnerResult<CtlReply> {
        if self.channel.is_none() {
            return Ok(CtlReply::Done);
        }
        Ok(if self.write()? { CtlReply::Done } else { CtlReply::Pending })
    }

    /// Returns the descriptor; `None` after [`StreamWriter::finish`].
    pub(crate) fn channel(&self) -> Option<&Channel> {
        self.channel.as_ref()
    }

    /// Returns the pending write, which another process can resume.
    pub(crate) fn pending(&mut self) -> &mut PendingWrite {
        &mut self.pending
    }

    /// Writes pending bytes, then ends the stream for its reader.
    pub(crate) fn finish(&mut self) -> PartnerResult<CtlReply> {
        if let CtlReply::Pending = self.flush()? {
            return Ok(CtlReply::Pending);
        }
        let Some(channel) = self.channel.take() else { return Ok(CtlReply::Done) };
        // Closing a FIFO without a reader would discard its bytes.
        match channel.unread_bytes() {
            Ok(1..) => {
                self.retry_at = Some(now().after(FIFO_INTERVAL));
                self.channel = Some(channel);
                Ok(CtlReply::Pending)
            }
            _ => {
                self.retry_at = None;
                channel.end();
                Ok(CtlReply::Done)
            }
        }
    }

    /// Releases the stream. Returns an error if bytes stay unwritten.
    pub(crate) fn close(&mut self) -> PartnerResult {
        let reply = self.flush();
        let left = std::mem::take(&mut self.pending).left();
        match reply? {
            CtlReply::Pending => Err(PartnerError::Os {
                operation: format!("closing {}: {left} bytes are not written", self.name),
                error: Errno::AGAIN.into(),
            }),
            _ => Ok(()),
        }
    }

    /// Returns the readiness for [`StreamWriter::push`].
    pub(crate) fn readiness(&self) -> Readiness<'_> {
        match &self.channel {
            _ if self.retry_at.is_some() => Readiness::never().or_at(self.retry_at),
            Some(_) if self.pending.left() == 0 => Readiness::now(),
            Some(channel) => channel.readiness(Interest::Write),
            None => Readiness::never(),
        }
    }

    /// Returns the bytes written so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the number of writes that found the disk full.
    pub(crate) fn disk_full(&self) -> u64 {
        self.full
    }
}

impl MessageWriter for StreamWriter {
    fn stream(&self) -> &StreamWriter {
        self
    }

    fn stream_mut(&mut self) -> &mut StreamWriter {
        self
    }

    fn push(&mut self, message: Message) -> Result<Pushed, (PartnerError, Message)> {
        self.push(message)
    }
}
