//! Control messages between the halves of a pair: a byte for the kind, then numbers ([`varint`]).

use crate::varint;
#[cfg(feature = "media")]
use contract::{StageError, StageResult};

/// Returns the bytes of a message of this kind with its numbers.
pub(crate) fn emit(kind: u8, numbers: &[u64]) -> Vec<u8> {
    let mut bytes = vec![kind];
    numbers.iter().for_each(|number| varint::put(&mut bytes, *number));
    bytes
}

/// The numbers of a message from the peer, in their order.
#[cfg(feature = "media")]
pub(crate) struct Numbers<'a>(&'a [u8]);

#[cfg(feature = "media")]
impl Numbers<'_> {
    /// Returns the next number; `None` if the message has no more.
    pub(crate) fn take(&mut self) -> Option<u64> {
        varint::take_slice(&mut self.0)
    }
}

/// Parses a message from the peer. `read` makes it of its kind and its numbers, and returns `None` if the kind is unknown or a
/// number is absent. Bytes that it leaves are an error.
#[cfg(feature = "media")]
pub(crate) fn parse<T>(bytes: &[u8], read: impl FnOnce(u8, &mut Numbers<'_>) -> Option<T>) -> StageResult<T> {
    let parsed = bytes.split_first().and_then(|(kind, rest)| {
        let mut numbers = Numbers(rest);
        read(*kind, &mut numbers).filter(|_| numbers.0.is_empty())
    });
    parsed.ok_or_else(|| StageError::Control("it is cut short, too long or of an unknown kind".into()))
}
