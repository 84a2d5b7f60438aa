//! Header of a datagram with a part of a record (`docs/reference/transport-udp.md`).

/// Identity of a record: its first 16 bytes (flow, epoch, sequence).
pub(crate) type RecordId = [u8; ID_BYTES];

/// Size of a record's identity. Every datagram carries the identity; only the rest of the record is split.
pub(crate) const ID_BYTES: usize = 16;

/// Returns the identity of a record.
pub(crate) fn record_id(flow: u32, epoch: u32, sequence: u64) -> RecordId {
    let mut id = [0; ID_BYTES];
    id[..4].copy_from_slice(&flow.to_le_bytes());
    id[4..8].copy_from_slice(&epoch.to_le_bytes());
    id[8..].copy_from_slice(&sequence.to_le_bytes());
    id
}

/// The header of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fragment {
    pub(crate) id: RecordId,
    /// Index of the part, from 0.
    pub(crate) index: u16,
    /// Number of parts of the record.
    pub(crate) count: u16,
    /// Low 32 bits of the datagram's number. Every transmission, also a repeated one, has a new number.
    pub(crate) number: u32,
}

impl Fragment {
    /// Size of the header.
    pub(crate) const BYTES: usize = ID_BYTES + 8;

    /// Encodes the header.
    pub(crate) fn emit(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..ID_BYTES].copy_from_slice(&self.id);
        bytes[ID_BYTES..ID_BYTES + 2].copy_from_slice(&self.index.to_le_bytes());
        bytes[ID_BYTES + 2..ID_BYTES + 4].copy_from_slice(&self.count.to_le_bytes());
        bytes[ID_BYTES + 4..].copy_from_slice(&self.number.to_le_bytes());
        bytes
    }

    /// Decodes the header at the front of a datagram. Returns `None` if the datagram is too short or the index is not
    /// below the count.
    pub(crate) fn parse(datagram: &[u8]) -> Option<Self> {
        let (header, _) = datagram.split_first_chunk::<{ Self::BYTES }>()?;
        let (id, rest) = header.split_first_chunk::<ID_BYTES>()?;
        let index = u16::from_le_bytes([rest[0], rest[1]]);
        let count = u16::from_le_bytes([rest[2], rest[3]]);
        let number = u32::from_le_bytes([rest[4], rest[5], rest[6], rest[7]]);
        (index < count).then_some(Fragment { id: *id, index, count, number })
    }

    /// Returns the flow, the first field of the identity.
    pub(crate) fn flow(&self) -> u32 {
        u32::from_le_bytes([self.id[0], self.id[1], self.id[2], self.id[3]])
    }
}
