//! What stands in front of every datagram (`docs/transport-udp.md`).

use wire::{Reader, WireError};

/// The record a datagram belongs to: the first 16 bytes of the record itself (flow, epoch, sequence).
pub(super) type RecordId = [u8; ID_BYTES];

/// Bytes of a record's identity; they are sent in every datagram, and the rest of the record is split.
pub(super) const ID_BYTES: usize = 16;

/// The header of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fragment {
    pub(super) id: RecordId,
    /// Which part of the record, from 0.
    pub(super) index: u16,
    /// How many parts it has.
    pub(super) count: u16,
}

impl Fragment {
    /// Bytes of the header.
    pub(super) const BYTES: usize = ID_BYTES + 4;

    /// The header as bytes.
    pub(super) fn emit(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..ID_BYTES].copy_from_slice(&self.id);
        bytes[ID_BYTES..ID_BYTES + 2].copy_from_slice(&self.index.to_le_bytes());
        bytes[ID_BYTES + 2..].copy_from_slice(&self.count.to_le_bytes());
        bytes
    }

    /// Reads a header off the front of a datagram.
    pub(super) fn parse(datagram: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(datagram);
        let id = reader.array("datagram record")?;
        let (index, count) = (reader.u16("datagram index")?, reader.u16("datagram count")?);
        if index >= count {
            return Err(WireError::Value { what: "datagram index", value: index.into() });
        }
        Ok(Fragment { id, index, count })
    }

    /// The flow, which a record begins with.
    pub(super) fn flow(&self) -> u32 {
        u32::from_le_bytes([self.id[0], self.id[1], self.id[2], self.id[3]])
    }
}
