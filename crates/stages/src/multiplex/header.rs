//! What stands in front of every message and part.

use contract::{Body, StageError};

/// Where a message stands in the flow, and which way it went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    /// Milliseconds of the source's clock at its first message, wrapping.
    pub(super) start: u32,
    /// Number of the message, from 0.
    pub(super) sequence: u64,
    /// The way; of a divided message, the part too.
    pub(super) way: u8,
}

impl Header {
    /// Puts it in front of a body.
    pub(super) fn put(self, body: &mut Body) {
        let mut bytes = [0; 13];
        bytes[..4].copy_from_slice(&self.start.to_le_bytes());
        bytes[4..12].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[12] = self.way;
        body.push_front(&bytes);
    }

    /// Takes it off; the way is below `ways`.
    pub(super) fn take(body: &mut Body, ways: u16) -> Result<Header, StageError> {
        let short = || StageError::Input("its header is cut short".into());
        let start = body.take_front().map(u32::from_le_bytes).ok_or_else(short)?;
        let sequence = body.take_front().map(u64::from_le_bytes).ok_or_else(short)?;
        let [way] = body.take_front().ok_or_else(short)?;
        if u16::from(way) >= ways {
            return Err(StageError::Input(format!("it went way {way} of {ways}")));
        }
        Ok(Header { start, sequence, way })
    }
}
