//! The common part of a port and a terminal: reading and writing a descriptor, and encoding messages.

use super::message::SerialMessage;
use crate::stream::{Channel, PendingWrite, ReadBuffer};
use contract::{Body, Direction, FlowTemplate, Format, Message, PartnerError, PartnerResult, Report};
use rustix::io::Errno;

/// Size of a read buffer: the size of the kernel's line buffer (`N_TTY_BUF_SIZE`).
const BUFFER_BYTES: usize = 4096;

/// Content of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Encoding {
    /// [`SerialMessage`]s.
    Messages,
    /// Data only, for a partner of another format.
    PlainBytes,
}

/// A terminal descriptor with its buffers.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) channel: Channel,
    pub(crate) buffer: ReadBuffer,
    pub(crate) pending: PendingWrite,
    out: Encoding,
    into: Encoding,
    pub(crate) read_bytes: u64,
    pub(crate) written_bytes: u64,
}

impl Line {
    /// `status_bytes`: size of the status at the front of every read.
    pub(crate) fn new(name: String, channel: Channel, status_bytes: usize) -> Self {
        Line {
            name,
            channel,
            buffer: ReadBuffer::new(BUFFER_BYTES + status_bytes),
            pending: PendingWrite::default(),
            out: Encoding::Messages,
            into: Encoding::Messages,
            read_bytes: 0,
            written_bytes: 0,
        }
    }

    /// Encodes the opened flow in the format of the template.
    pub(crate) fn opened(&mut self, template: &FlowTemplate) {
        let encoding = match template.format {
            Format::Serial => Encoding::Messages,
            _ => Encoding::PlainBytes,
        };
        match template.direction {
            Direction::Out => self.out = encoding,
            Direction::In => self.into = encoding,
        }
    }

    /// Returns true if the flow out can carry more than data.
    pub(crate) fn sends_messages(&self) -> bool {
        self.out == Encoding::Messages
    }

    /// Writes as many pending bytes as there is room for. Returns true if none are left.
    pub(crate) fn write(&mut self) -> PartnerResult<bool> {
        match self.pending.write(&self.channel) {
            Ok(count) => {
                self.written_bytes += count as u64;
                Ok(self.pending.left() == 0)
            }
            Err(error) => Err(self.error("writing to", error)),
        }
    }

    /// Decodes a pushed message.
    pub(crate) fn decode(&self, message: &Message) -> PartnerResult<SerialMessage> {
        match self.into {
            Encoding::Messages => SerialMessage::parse(&message.body)
                .map_err(|error| PartnerError::Message(format!("for {}: {error}", self.name))),
            Encoding::PlainBytes => Ok(SerialMessage::Data(message.body.clone())),
        }
    }

    /// Encodes received data for the flow out.
    pub(crate) fn encode(&self, message: SerialMessage) -> Body {
        match (self.out, message) {
            (Encoding::PlainBytes, SerialMessage::Data(data) | SerialMessage::Fault(_, data)) => data,
            (_, message) => message.emit(),
        }
    }

    /// Converts an error of the system: an unplugged port is [`PartnerError::Gone`].
    pub(crate) fn error(&self, verb: &str, error: Errno) -> PartnerError {
        match error {
            Errno::IO | Errno::NODEV | Errno::NXIO | Errno::BADF => PartnerError::Gone(self.name.clone()),
            _ => PartnerError::os(format!("{verb} {}", self.name), error),
        }
    }

    /// Returns the common figures of [`contract::Ctl::Report`].
    pub(crate) fn report(&self) -> Vec<Report> {
        vec![("read bytes", self.read_bytes as f64), ("written bytes", self.written_bytes as f64)]
    }
}
