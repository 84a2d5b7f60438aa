//! What stands in front of every datagram (`docs/transport-udp.md`).

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
    /// Of the datagram: each that is sent has the next, what is sent again too; the low bits of it.
    pub(super) number: u32,
}

impl Fragment {
    /// Bytes of the header.
    pub(super) const BYTES: usize = ID_BYTES + 8;

    /// The header as bytes.
    pub(super) fn emit(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..ID_BYTES].copy_from_slice(&self.id);
        bytes[ID_BYTES..ID_BYTES + 2].copy_from_slice(&self.index.to_le_bytes());
        bytes[ID_BYTES + 2..ID_BYTES + 4].copy_from_slice(&self.count.to_le_bytes());
        bytes[ID_BYTES + 4..].copy_from_slice(&self.number.to_le_bytes());
        bytes
    }

    /// Reads a header off the front of a datagram; `None` if there is none, or it names a part beyond the last.
    pub(super) fn parse(datagram: &[u8]) -> Option<Self> {
        let (header, _) = datagram.split_first_chunk::<{ Self::BYTES }>()?;
        let (id, rest) = header.split_first_chunk::<ID_BYTES>()?;
        let index = u16::from_le_bytes([rest[0], rest[1]]);
        let count = u16::from_le_bytes([rest[2], rest[3]]);
        let number = u32::from_le_bytes([rest[4], rest[5], rest[6], rest[7]]);
        (index < count).then_some(Fragment { id: *id, index, count, number })
    }

    /// The flow, which a record begins with.
    pub(super) fn flow(&self) -> u32 {
        u32::from_le_bytes([self.id[0], self.id[1], self.id[2], self.id[3]])
    }
}
