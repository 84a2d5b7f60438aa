//! The writing half of a stream: messages to descriptor.

use super::frame::enframe;
use super::{Channel, Framing, Takes, Unwritten, now};
use contract::{CtlReply, Interest, Message, PartnerError, Pushed, Readiness, Time};
use rustix::io::Errno;
use std::time::Duration;

/// Writes messages to a stream. It holds the rest of at most one message that did not fit.
#[derive(Debug)]
pub(crate) struct Inlet {
    name: String,
    /// None after [`Inlet::finish`].
    channel: Option<Channel>,
    framing: Framing,
    unwritten: Unwritten,
    bytes: u64,
    /// Whether whoever reads may come back after it went away.
    may_return: bool,
    /// When to look again whether a reader took what lies in a FIFO, or whether a full disk has room.
    look_at: Option<Time>,
    /// How often the disk was found full.
    full: u64,
}

/// How often to look into a FIFO.
const LOOK: Duration = Duration::from_millis(10);
/// How often to look at a full disk.
const DISK_LOOK: Duration = Duration::from_millis(200);

impl Inlet {
    /// Writes to `channel`, which errors call `name`.
    pub(crate) fn new(name: impl Into<String>, channel: Channel, framing: Framing) -> Self {
        Inlet {
            name: name.into(),
            channel: Some(channel),
            framing,
            unwritten: Unwritten::default(),
            bytes: 0,
            may_return: false,
            look_at: None,
            full: 0,
        }
    }

    /// The same; a reader that went away may come back.
    pub(crate) fn with_return(self) -> Self {
        Inlet { may_return: true, ..self }
    }

    /// Writes what it can of what is unwritten; says whether that was everything.
    fn write(&mut self) -> Result<bool, PartnerError> {
        let Some(channel) = &self.channel else {
            return Err(PartnerError::Unsupported("a push after the flow was finished"));
        };
        if self.unwritten.left() > 0 && self.look_at.is_some_and(|at| at > now()) {
            return Ok(false);
        }
        self.look_at = None;
        match self.unwritten.write(channel) {
            Ok(count) => {
                self.bytes += count as u64;
                Ok(self.unwritten.left() == 0)
            }
            Err(Errno::NOSPC | Errno::DQUOT) if channel.is_on_disk() => {
                self.full += 1;
                self.look_at = Some(now().after(DISK_LOOK));
                Ok(false)
            }
            Err(Errno::PIPE | Errno::CONNRESET) if self.may_return => {
                Err(PartnerError::Gone(self.name.clone()))
            }
            Err(error) => Err(PartnerError::os(format!("writing to {}", self.name), error)),
        }
    }

    /// Whether the reader was told that nothing follows.
    pub(crate) fn is_finished(&self) -> bool {
        self.channel.is_none()
    }
}

impl Takes for Inlet {
    fn push(&mut self, message: Message) -> Result<Pushed, (PartnerError, Message)> {
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
        self.unwritten.replace(bytes);
        match self.write() {
            Ok(_) => Ok(Pushed::Taken),
            Err(error) => {
                self.unwritten = Unwritten::default();
                Err((error, message))
            }
        }
    }

    fn flush(&mut self) -> Result<CtlReply, PartnerError> {
        if self.channel.is_none() {
            return Ok(CtlReply::Done);
        }
        Ok(if self.write()? { CtlReply::Done } else { CtlReply::Pending })
    }

    fn unwritten(&mut self) -> Option<&mut Unwritten> {
        Some(&mut self.unwritten)
    }

    fn finish(&mut self) -> Result<CtlReply, PartnerError> {
        if let CtlReply::Pending = self.flush()? {
            return Ok(CtlReply::Pending);
        }
        let Some(channel) = self.channel.take() else { return Ok(CtlReply::Done) };
        match channel.kept_bytes() {
            Ok(1..) => {
                self.look_at = Some(now().after(LOOK));
                self.channel = Some(channel);
                Ok(CtlReply::Pending)
            }
            _ => {
                self.look_at = None;
                channel.end();
                Ok(CtlReply::Done)
            }
        }
    }

    fn close(&mut self) -> Result<(), PartnerError> {
        let reply = self.flush();
        let left = std::mem::take(&mut self.unwritten).left();
        match reply? {
            CtlReply::Pending => Err(PartnerError::Os {
                operation: format!("closing {}: {left} bytes are not written", self.name),
                error: Errno::AGAIN.into(),
            }),
            _ => Ok(()),
        }
    }

    fn readiness(&self) -> Readiness<'_> {
        match &self.channel {
            _ if self.look_at.is_some() => Readiness::never().or_at(self.look_at),
            Some(_) if self.unwritten.left() == 0 => Readiness::now(),
            Some(channel) => channel.readiness(Interest::Write),
            None => Readiness::never(),
        }
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn disk_full(&self) -> u64 {
        self.full
    }
}
