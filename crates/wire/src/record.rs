//! A record: what crosses the network, the same on every transport.
//!
//! `flow: u32, epoch: u32, sequence: u64`, then a container. An epoch begins when a flow's pipeline is
//! changed or restarted; sequences count from 0 in each epoch.

use crate::{Container, Reader, WireError};

/// The fixed header of a record, the container's included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordHeader {
    /// Which flow of the session.
    pub flow: u32,
    /// Which life of the flow.
    pub epoch: u32,
    /// Which message of this epoch, from 0.
    pub sequence: u64,
    /// The container's header.
    pub container: Container,
}

impl RecordHeader {
    /// Bytes of the header, the container's included.
    pub const BYTES: usize = 16 + Container::BYTES;

    /// The header as bytes.
    pub fn emit(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&self.flow.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[16..].copy_from_slice(&self.container.emit());
        bytes
    }

    /// Reads a header from the front of `bytes` and refuses a body of more than `limit` bytes.
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
