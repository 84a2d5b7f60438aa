//! Headers of messages and parity messages; shards, which parity is computed over.

use super::PARITY_MAX;
use contract::{Body, StageError, StageResult};

/// Bytes of a shard in front of the body: creation time and length.
pub(super) const SHARD_BYTES: usize = 12;
/// Index from which on messages are parity.
const PARITY_INDEX: u8 = 128;
/// Flag in the number of parity messages: the group began while messages took longer than usual.
pub(super) const SLOW: u8 = 128;

/// Identity of a message or parity message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    /// Random number of the source half.
    pub(super) source_id: u32,
    /// Its group: the number of the group's first message, counted from 0.
    pub(super) group: u64,
    /// Parity messages of the group.
    pub(super) parity: u8,
    /// True if messages took longer than usual when the group began, as far as the source half
    /// knew.
    pub(super) is_slow: bool,
    pub(super) part: Part,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Data {
        /// Index in the group.
        index: u8,
        /// Creation time in nanoseconds after that of the group's first message.
        created_after: i64,
    },
    Parity {
        /// Index among the parity messages.
        index: u8,
        /// Messages of the group.
        data: u8,
    },
}

impl Header {
    pub(super) fn put(&self, body: &mut Body) {
        let index = match self.part {
            Part::Data { index, created_after } => {
                body.push_front(&created_after.to_le_bytes());
                index
            }
            Part::Parity { index, data } => {
                body.push_front(&[data]);
                PARITY_INDEX + index
            }
        };
        let mut bytes = [0; 14];
        bytes[..4].copy_from_slice(&self.source_id.to_le_bytes());
        bytes[4..12].copy_from_slice(&self.group.to_le_bytes());
        bytes[12..].copy_from_slice(&[index, self.parity | if self.is_slow { SLOW } else { 0 }]);
        body.push_front(&bytes);
    }

    /// Takes a header off a body, for groups of at most `data_max` messages.
    pub(super) fn take(body: &mut Body, data_max: u8) -> StageResult<Header> {
        let malformed = |problem: &str| StageError::Input(problem.into());
        let short = || malformed("its header is cut short");
        let source_id = u32::from_le_bytes(body.take_front().ok_or_else(short)?);
        let group = u64::from_le_bytes(body.take_front().ok_or_else(short)?);
        let [index, parity] = body.take_front().ok_or_else(short)?;
        let (parity, is_slow) = (parity & !SLOW, parity & SLOW != 0);
        let part = match index.checked_sub(PARITY_INDEX) {
            None => {
                Part::Data { index, created_after: i64::from_le_bytes(body.take_front().ok_or_else(short)?) }
            }
            Some(index) => Part::Parity { index, data: body.take_front::<1>().ok_or_else(short)?[0] },
        };
        match part {
            _ if group > u64::MAX / 2 => Err(malformed("its group number is impossibly large")),
            _ if i64::from(parity) > PARITY_MAX => Err(malformed("it claims too much parity")),
            Part::Data { index, .. } if index >= data_max => {
                Err(malformed("its group is larger than agreed"))
            }
            Part::Parity { data, .. } if data > data_max => Err(malformed("its group is larger than agreed")),
            Part::Parity { index, data } if index >= parity || data == 0 => {
                Err(malformed("its index is outside its group"))
            }
            part => Ok(Header { source_id, group, parity, is_slow, part }),
        }
    }
}

/// Size of the shards of a group whose longest message has `longest` bytes. Shards have even
/// length.
pub(super) fn shard_bytes(longest: usize) -> usize {
    (SHARD_BYTES + longest).next_multiple_of(2)
}

/// Writes a message's shard into `shard`, which has the group's [`shard_bytes`].
pub(super) fn put_shard(created_after: i64, body: &Body, shard: &mut [u8]) {
    // A body is at most `limit` bytes, which fits.
    let length = body.len() as u32;
    shard[..8].copy_from_slice(&created_after.to_le_bytes());
    shard[8..SHARD_BYTES].copy_from_slice(&length.to_le_bytes());
    let (bytes, padding) = shard[SHARD_BYTES..].split_at_mut(body.len());
    body.copy_to(bytes);
    padding.fill(0);
}

/// Reads a shard: creation time and body; `None` if its length is wrong.
pub(super) fn read_shard(shard: &[u8]) -> Option<(i64, &[u8])> {
    let (created_after, rest) = shard.split_first_chunk()?;
    let (length, bytes) = rest.split_first_chunk()?;
    let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
    Some((i64::from_le_bytes(*created_after), bytes.get(..length)?))
}
