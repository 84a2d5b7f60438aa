//! A record: the unit that crosses the network, equal on every transport.
//!
//! Layout: `flow: u32, epoch: u32, sequence: u64`, then a container. A new epoch begins when a flow restarts or
//! changes its pipeline. Sequences start at 0 in each epoch.

use crate::{Container, Reader, WireError};

/// The fixed header of a record, including the container's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordHeader {
    /// The flow in its session.
    pub flow: u32,
    /// The epoch of the flow.
    pub epoch: u32,
    /// The number of the message in its epoch, from 0.
    pub sequence: u64,
    /// The container's header.
    pub container: Container,
}

impl RecordHeader {
    /// The length of the header, including the container's, in bytes.
    pub const BYTES: usize = 16 + Container::BYTES;

    /// Returns the header as bytes.
    pub fn emit(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&self.flow.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[16..].copy_from_slice(&self.container.emit());
        bytes
    }

    /// Parses a header from the front of `bytes`. Refuses a body of more than `limit` bytes.
    pub fn parse(bytes: &[u8], limit: usize) -> Result<Self, WireError> {
        let mut reader = Reader::new(bytes);
        Ok(RecordHeader {
            flow: reader.u32("record flow")?,
            epoch: reader.u32("record epoch")?,
            sequence: reader.u64("record sequence")?,
            container: Container::parse(reader.rest(), limit)?,
        })
    }
}
