//! The header in front of every message and part.

use contract::{Body, StageError, StageResult};

/// Position of a message in the flow, and its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    /// Start of the source half: milliseconds of its clock at its first message, wrapping.
    pub(super) start: u32,
    /// Number of the message, from 0.
    pub(super) sequence: u64,
    /// The way; in mode `split` also the index of the part.
    pub(super) way: u8,
}

impl Header {
    /// Puts the header in front of a body.
    pub(super) fn put(self, body: &mut Body) {
        let mut bytes = [0; 13];
        bytes[..4].copy_from_slice(&self.start.to_le_bytes());
        bytes[4..12].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[12] = self.way;
        body.push_front(&bytes);
    }

    /// Takes the header off a body; checks that its way is below `ways`.
    pub(super) fn take(body: &mut Body, ways: u16) -> StageResult<Header> {
        let short = || StageError::Input("its header is cut short".into());
        let start = body.take_front().map(u32::from_le_bytes).ok_or_else(short)?;
        let sequence = body.take_front().map(u64::from_le_bytes).ok_or_else(short)?;
        let [way] = body.take_front().ok_or_else(short)?;
        if u16::from(way) >= ways {
            return Err(StageError::Input(format!("its way is {way}, but there are {ways}")));
        }
        Ok(Header { start, sequence, way })
    }
}
