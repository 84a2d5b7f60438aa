//! What is kept of a session outside of the process that runs its flows, so that another process can go on.
//!
//! A ticket says where each flow stands; the records that a source keeps lie beside it, as they go out. Who keeps
//! a ticket writes it before what it says is told to the other host. It holds the session's token: it is as
//! secret as that.

use crate::control::flag;
use crate::preamble::SessionToken;
use crate::{PROTOCOL_VERSION, Reader, WireError, Writer};

const MAGIC: [u8; 4] = *b"OUTT";
const SOURCE: u8 = 0;
const SINK: u8 = 1;

/// Flows in one ticket.
pub const TICKET_FLOWS_MAX: usize = 1024;

/// Where a session stands on one host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ticket {
    /// The session.
    pub session: SessionToken,
    /// Numbered control messages that came of it.
    pub received: u64,
    /// Its flows.
    pub flows: Vec<FlowTicket>,
}

/// Where a flow stands on one host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FlowTicket {
    /// It starts here.
    Source(SourceTicket),
    /// It ends here.
    Sink(SinkTicket),
}

/// Where a flow stands at its source. What of it is unacknowledged lies beside the ticket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourceTicket {
    /// Its number in the session.
    pub flow: u32,
    /// Its epoch.
    pub epoch: u32,
    /// One past the last sequence numbered.
    pub next: u64,
    /// The epoch before, 0 if there is none, and one past its last sequence.
    pub before: (u32, u64),
    /// The epoch goes on from that one.
    pub goes_on: bool,
}

/// Where a flow stands at its sink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SinkTicket {
    /// Its number in the session.
    pub flow: u32,
    /// Its epoch, 0 before the first.
    pub epoch: u32,
    /// Epochs up to this one are given up.
    pub given_up: u32,
    /// The first sequence that the partner has not taken.
    pub next: u64,
    /// Records that never came.
    pub lost: u64,
    /// An epoch that goes on behind this one, and where this one ends once that is known.
    pub following: Option<(u32, Option<u64>)>,
    /// Before this, epoch and sequence, the source keeps nothing more.
    pub gone: (u32, u64),
}

impl Ticket {
    /// The ticket as bytes.
    pub fn emit(&self) -> Vec<u8> {
        let mut w = Writer::new();
        w.raw(&MAGIC).u16(PROTOCOL_VERSION).raw(&self.session.0).u64(self.received);
        w.u16(self.flows.len() as u16);
        self.flows.iter().for_each(|flow| flow.write(&mut w));
        w.finish()
    }

    /// Reads a ticket; the version is checked before anything that depends on it.
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
    /// Writes it behind what there is.
    pub fn write(&self, w: &mut Writer) {
        match self {
            FlowTicket::Source(source) => source.write(w.u8(SOURCE)),
            FlowTicket::Sink(sink) => sink.write(w.u8(SINK)),
        }
    }

    /// Reads one off the front.
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
        w.u32(self.before.0).u64(self.before.1).u8(self.goes_on.into());
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(SourceTicket {
            flow: r.u32("source flow")?,
            epoch: r.u32("source epoch")?,
            next: r.u64("source next")?,
            before: (r.u32("source epoch before")?, r.u64("source end before")?),
            goes_on: flag(r, "source goes on")?,
        })
    }
}

impl SinkTicket {
    fn write(&self, w: &mut Writer) {
        w.u32(self.flow).u32(self.epoch).u32(self.given_up).u64(self.next).u64(self.lost);
        w.u8(self.following.is_some().into());
        if let Some((epoch, end)) = self.following {
            w.u32(epoch).u8(end.is_some().into());
            if let Some(end) = end {
                w.u64(end);
            }
        }
        w.u32(self.gone.0).u64(self.gone.1);
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(SinkTicket {
            flow: r.u32("sink flow")?,
            epoch: r.u32("sink epoch")?,
            given_up: r.u32("sink given up")?,
            next: r.u64("sink next")?,
            lost: r.u64("sink lost")?,
            following: match flag(r, "sink following")? {
                false => None,
                true => Some((r.u32("sink epoch following")?, read_end(r)?)),
            },
            gone: (r.u32("sink epoch gone")?, r.u64("sink sequence gone")?),
        })
    }
}

fn read_end(r: &mut Reader<'_>) -> Result<Option<u64>, WireError> {
    Ok(match flag(r, "sink end")? {
        false => None,
        true => Some(r.u64("sink sequence at the end")?),
    })
}
