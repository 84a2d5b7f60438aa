//! What stands in front of a message and of a parity message, and what parity is computed over.

use super::PARITY_MAX;
use contract::{Body, StageError};

/// What a shard says of its message, before the bytes: creation time and length.
pub(super) const SHARD_BYTES: usize = 12;
/// The place from which on messages are parity.
const PARITY_PLACE: u8 = 128;
/// Marks a number of parity messages as that of a group which began while messages took longer than usual.
pub(super) const SLOW: u8 = 128;

/// Which message this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    /// The source half that made it: drawn when it was made.
    pub(super) half: u32,
    /// Its group: the number of the group's first message, counted from 0 by the source half.
    pub(super) group: u64,
    /// How many parity messages the group has.
    pub(super) parity: u8,
    /// Whether messages took longer than usual when the group began, as far as the source half knew.
    pub(super) is_slow: bool,
    pub(super) part: Part,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Data {
        /// Its place in the group.
        place: u8,
        /// When it was created, nanoseconds after the group's first.
        after: i64,
    },
    Parity {
        /// Its place among the parity messages.
        place: u8,
        /// How many messages the group has.
        data: u8,
    },
}

impl Header {
    pub(super) fn put(&self, body: &mut Body) {
        let place = match self.part {
            Part::Data { place, after } => {
                body.push_front(&after.to_le_bytes());
                place
            }
            Part::Parity { place, data } => {
                body.push_front(&[data]);
                PARITY_PLACE + place
            }
        };
        let mut bytes = [0; 14];
        bytes[..4].copy_from_slice(&self.half.to_le_bytes());
        bytes[4..12].copy_from_slice(&self.group.to_le_bytes());
        bytes[12..].copy_from_slice(&[place, self.parity | if self.is_slow { SLOW } else { 0 }]);
        body.push_front(&bytes);
    }

    /// Takes a header off, for groups of at most `data_max` messages.
    pub(super) fn take(body: &mut Body, data_max: u8) -> Result<Header, StageError> {
        let wrong = |problem: &str| StageError::Input(problem.into());
        let short = || wrong("its header is cut short");
        let half = u32::from_le_bytes(body.take_front().ok_or_else(short)?);
        let group = u64::from_le_bytes(body.take_front().ok_or_else(short)?);
        let [place, parity] = body.take_front().ok_or_else(short)?;
        let (parity, is_slow) = (parity & !SLOW, parity & SLOW != 0);
        let part = match place.checked_sub(PARITY_PLACE) {
            None => Part::Data { place, after: i64::from_le_bytes(body.take_front().ok_or_else(short)?) },
            Some(place) => Part::Parity { place, data: body.take_front::<1>().ok_or_else(short)?[0] },
        };
        match part {
            _ if group > u64::MAX / 2 => Err(wrong("no flow is that long")),
            _ if i64::from(parity) > PARITY_MAX => Err(wrong("it has more parity than there can be")),
            Part::Data { place, .. } if place >= data_max => Err(wrong("its group is larger than agreed")),
            Part::Parity { data, .. } if data > data_max => Err(wrong("its group is larger than agreed")),
            Part::Parity { place, data } if place >= parity || data == 0 => Err(wrong("it is in no group")),
            part => Ok(Header { half, group, parity, is_slow, part }),
        }
    }
}

/// Bytes of the shards of a group whose longest message has so many; shards have an even number.
pub(super) fn shard_bytes(longest: usize) -> usize {
    (SHARD_BYTES + longest).next_multiple_of(2)
}

/// Writes a message's shard into `shard`, which has the group's [`shard_bytes`].
pub(super) fn put_shard(after: i64, body: &Body, shard: &mut [u8]) {
    // A body's length is below `limit`, which fits.
    let length = body.len() as u32;
    shard[..8].copy_from_slice(&after.to_le_bytes());
    shard[8..SHARD_BYTES].copy_from_slice(&length.to_le_bytes());
    let (bytes, padding) = shard[SHARD_BYTES..].split_at_mut(body.len());
    body.copy_to(bytes);
    padding.fill(0);
}

/// Reads a shard: when it was created, and its bytes; `None` if there are not so many.
pub(super) fn read_shard(shard: &[u8]) -> Option<(i64, &[u8])> {
    let (after, rest) = shard.split_first_chunk()?;
    let (length, bytes) = rest.split_first_chunk()?;
    let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
    Some((i64::from_le_bytes(*after), bytes.get(..length)?))
}
