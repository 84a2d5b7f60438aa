//! What both ends of a serial line do alike: bytes in and out of a descriptor, typed or plain.

use super::message::SerialMessage;
use crate::flows::Flows;
use crate::stream::{Channel, ReadBuffer, Unwritten};
use contract::{Body, Direction, FlowKey, FlowTemplate, Format, Message, PartnerError, Report};
use rustix::io::Errno;

/// Bytes of a read buffer: what the kernel's line discipline holds (`N_TTY_BUF_SIZE`).
const BUFFER_BYTES: usize = 4096;

/// A descriptor of a terminal, and what is on its way through it.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) channel: Channel,
    pub(crate) buffer: ReadBuffer,
    pub(crate) unwritten: Unwritten,
    /// Whether the flow out carries settings, too, or plain bytes.
    pub(crate) typed_out: bool,
    typed_in: bool,
    pub(crate) read_bytes: u64,
    written_bytes: u64,
}

impl Line {
    /// `status_bytes`: what every read opens with besides data.
    pub(crate) fn new(name: String, channel: Channel, status_bytes: usize) -> Self {
        Line {
            name,
            channel,
            buffer: ReadBuffer::new(BUFFER_BYTES + status_bytes),
            unwritten: Unwritten::default(),
            typed_out: true,
            typed_in: true,
            read_bytes: 0,
            written_bytes: 0,
        }
    }

    /// Opens a flow: of data and settings, or, for a partner of another format, of plain bytes.
    pub(crate) fn open(
        &mut self,
        flows: &mut Flows,
        template: &FlowTemplate,
    ) -> Result<FlowKey, PartnerError> {
        let key = flows.open(template, &Format::Bytes)?;
        let typed = template.format == Format::Serial;
        match template.direction {
            Direction::Out => self.typed_out = typed,
            Direction::In => self.typed_in = typed,
        }
        Ok(key)
    }

    /// Writes what is unwritten; says whether that was everything.
    pub(crate) fn write(&mut self) -> Result<bool, PartnerError> {
        match self.unwritten.write(&self.channel) {
            Ok(count) => {
                self.written_bytes += count as u64;
                Ok(self.unwritten.left() == 0)
            }
            Err(error) => Err(self.error("writing to", error)),
        }
    }

    /// What a message that was pushed says.
    pub(crate) fn message_in(&self, message: &Message) -> Result<SerialMessage, PartnerError> {
        match self.typed_in {
            true => SerialMessage::parse(&message.body)
                .map_err(|error| PartnerError::Message(format!("for {}: {error}", self.name))),
            false => Ok(SerialMessage::Data(message.body.clone())),
        }
    }

    /// The body of a message of data.
    pub(crate) fn data_out(&self, data: Body) -> Body {
        match self.typed_out {
            true => SerialMessage::Data(data).emit(),
            false => data,
        }
    }

    /// An error of the system; a port that was unplugged is gone.
    pub(crate) fn error(&self, verb: &str, error: Errno) -> PartnerError {
        match error {
            Errno::IO | Errno::NODEV | Errno::NXIO | Errno::BADF => PartnerError::Gone(self.name.clone()),
            _ => PartnerError::os(format!("{verb} {}", self.name), error),
        }
    }

    /// Figures for people and scripts.
    pub(crate) fn report(&self) -> Vec<Report> {
        vec![("read bytes", self.read_bytes as f64), ("written bytes", self.written_bytes as f64)]
    }
}
