//! Tickets: the state of a session, saved outside of the worker process so that its successor can resume.
//!
//! A ticket holds the position of each flow; the unacknowledged records of a source are stored with it, as they
//! were sent. The ticket must be written before the peer learns anything that is in it. It holds the session's
//! token, so it is equally secret.

use crate::control::flag;
use crate::preamble::SessionToken;
use crate::{PROTOCOL_VERSION, Reader, WireError, Writer};

const MAGIC: [u8; 4] = *b"OUTT";
const SOURCE: u8 = 0;
const SINK: u8 = 1;

/// Flows in one ticket.
pub const TICKET_FLOWS_MAX: usize = 1024;

/// The position of a session on one host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ticket {
    /// The session.
    pub session: SessionToken,
    /// The number of numbered control messages received.
    pub received: u64,
    /// Its flows.
    pub flows: Vec<FlowTicket>,
}

/// The position of a flow on one host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FlowTicket {
    /// The flow starts here.
    Source(SourceTicket),
    /// The flow ends here.
    Sink(SinkTicket),
}

/// The position of a flow at its source. Unacknowledged records are stored with the ticket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourceTicket {
    /// Its number in the session.
    pub flow: u32,
    /// Its epoch.
    pub epoch: u32,
    /// One past the last sequence numbered.
    pub next: u64,
    /// The previous epoch, or 0 if there is none, and one past its last sequence.
    pub prev: (u32, u64),
    /// The epoch continues the previous one.
    pub continues: bool,
}

/// The position of a flow at its sink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SinkTicket {
    /// Its number in the session.
    pub flow: u32,
    /// Its epoch, 0 before the first.
    pub epoch: u32,
    /// Epochs up to this one are abandoned.
    pub abandoned: u32,
    /// The first sequence that the partner has not accepted.
    pub next: u64,
    /// The number of lost records.
    pub lost: u64,
    /// The epoch that continues this one, and the end of this one if known.
    pub upcoming: Option<(u32, Option<u64>)>,
    /// The source has dropped everything before this epoch and sequence.
    pub trimmed_to: (u32, u64),
}

impl Ticket {
    /// Returns the ticket as bytes.
    pub fn emit(&self) -> Vec<u8> {
        let mut w = Writer::new();
        w.raw(&MAGIC).u16(PROTOCOL_VERSION).raw(&self.session.0).u64(self.received);
        w.u16(self.flows.len() as u16);
        self.flows.iter().for_each(|flow| flow.write(&mut w));
        w.finish()
    }

    /// Parses a ticket. Checks the version before any field that depends on it.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new(bytes);
        let began = r.array::<4>("ticket magic")?;
        if began != MAGIC {
            return Err(WireError::Magic { began });
        }
        let theirs = r.u16("ticket version")?;
        if theirs != PROTOCOL_VERSION {
            return Err(WireError::Version { theirs, ours: PROTOCOL_VERSION });
        }
        let session = SessionToken(r.array("ticket session")?);
        let received = r.u64("ticket received")?;
        let count = r.count("ticket flows", TICKET_FLOWS_MAX)?;
        let flows = (0..count).map(|_| FlowTicket::read(&mut r)).collect::<Result<_, _>>()?;
        r.end("ticket")?;
        Ok(Ticket { session, received, flows })
    }
}

impl FlowTicket {
    /// Appends the ticket of this flow.
    pub fn write(&self, w: &mut Writer) {
        match self {
            FlowTicket::Source(source) => source.write(w.u8(SOURCE)),
            FlowTicket::Sink(sink) => sink.write(w.u8(SINK)),
        }
    }

    /// Parses the ticket of one flow.
    pub fn read(r: &mut Reader<'_>) -> Result<Self, WireError> {
        match r.u8("ticket side")? {
            SOURCE => Ok(FlowTicket::Source(SourceTicket::read(r)?)),
            SINK => Ok(FlowTicket::Sink(SinkTicket::read(r)?)),
            other => Err(WireError::Value { what: "ticket side", value: other.into() }),
        }
    }
}

impl SourceTicket {
    fn write(&self, w: &mut Writer) {
        w.u32(self.flow).u32(self.epoch).u64(self.next);
        w.u32(self.prev.0).u64(self.prev.1).u8(self.continues.into());
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(SourceTicket {
            flow: r.u32("source flow")?,
            epoch: r.u32("source epoch")?,
            next: r.u64("source next")?,
            prev: (r.u32("source previous epoch")?, r.u64("source previous end")?),
            continues: flag(r, "source continues")?,
        })
    }
}

impl SinkTicket {
    fn write(&self, w: &mut Writer) {
        w.u32(self.flow).u32(self.epoch).u32(self.abandoned).u64(self.next).u64(self.lost);
        w.u8(self.upcoming.is_some().into());
        if let Some((epoch, end)) = self.upcoming {
            w.u32(epoch).u8(end.is_some().into());
            if let Some(end) = end {
                w.u64(end);
            }
        }
        w.u32(self.trimmed_to.0).u64(self.trimmed_to.1);
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(SinkTicket {
            flow: r.u32("sink flow")?,
            epoch: r.u32("sink epoch")?,
            abandoned: r.u32("sink abandoned")?,
            next: r.u64("sink next")?,
            lost: r.u64("sink lost")?,
            upcoming: match flag(r, "sink upcoming")? {
                false => None,
                true => Some((r.u32("sink upcoming epoch")?, read_end(r)?)),
            },
            trimmed_to: (r.u32("sink trimmed epoch")?, r.u64("sink trimmed sequence")?),
        })
    }
}

fn read_end(r: &mut Reader<'_>) -> Result<Option<u64>, WireError> {
    Ok(if flag(r, "sink end")? { Some(r.u64("sink end")?) } else { None })
}
