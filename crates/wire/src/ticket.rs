//! Tickets: the position of a flow, saved outside of the worker process so that its successor can resume.
//!
//! The unacknowledged records of a source are stored beside its ticket, as they were sent. The ticket must be written
//! before the peer learns anything that is in it.

use crate::control::flag;
use crate::{Reader, WireError, Writer};

const SOURCE: u8 = 0;
const SINK: u8 = 1;

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
