//! What crosses a ring: descriptors of messages, each in one cache line, so that whoever waits for the next one fetches
//! with it all there is to know.

use smallvec::SmallVec;

/// Bytes of an entry: a cache line.
pub const ENTRY_BYTES: usize = 64;
/// Bytes of its first word, which has its number in it and is written last.
pub(super) const WORD_BYTES: usize = 8;
/// Where it says what it covers.
const COVERS_AT: usize = 16;
/// Pieces in an entry; a message of more goes on in the next.
pub const PIECES_MAX: usize = 3;
/// Pieces of a message.
pub(crate) const MESSAGE_PIECES_MAX: usize = 256;

const HEAD_BYTES: usize = 24;
const PIECE_BYTES: usize = 12;
const _: () = assert!(HEAD_BYTES + PIECES_MAX * PIECE_BYTES <= ENTRY_BYTES);

/// The message goes on in the next entry.
const MORE: u8 = 1;
/// Something was lost before it.
const GAP: u8 = 2;
/// The flow ends here; there is no message.
const END: u8 = 4;
/// There is a message; without it, only `covers` is said.
const MESSAGE: u8 = 8;

/// Some bytes of a message, where they lie.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Piece {
    /// Whose region: 0 is the host's, then stage by stage.
    pub region: u16,
    /// Which slot of it.
    pub slot: u16,
    /// Where in the slot.
    pub offset: u32,
    /// How many bytes.
    pub length: u32,
}

/// One entry of a ring.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Entry {
    /// There is a message, or part of one.
    pub is_message: bool,
    /// It goes on in the next entry.
    pub has_more: bool,
    /// Something was lost before it.
    pub has_gap: bool,
    /// The flow ends here.
    pub is_end: bool,
    /// The port that it left by.
    pub port: u16,
    /// When the message was created.
    pub created: u64,
    /// Everything that came of the host's first so many messages has gone before, or with, this entry, and nothing
    /// else; 0 says nothing.
    pub covers: u64,
    /// Where the message's bytes lie.
    pub pieces: SmallVec<[Piece; PIECES_MAX]>,
}

impl Entry {
    /// Writes it as the ring's entry of this number; pieces beyond [`PIECES_MAX`] are another entry's.
    #[inline]
    pub fn emit(&self, number: u32) -> [u8; ENTRY_BYTES] {
        let mut bytes = [0; ENTRY_BYTES];
        let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
        let pieces = &self.pieces[..self.pieces.len().min(PIECES_MAX)];
        bytes[0..4].copy_from_slice(&number.to_le_bytes());
        bytes[4] = flag(self.is_message, MESSAGE)
            | flag(self.has_more, MORE)
            | flag(self.has_gap, GAP)
            | flag(self.is_end, END);
        bytes[5] = pieces.len() as u8;
        bytes[6..8].copy_from_slice(&self.port.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.created.to_le_bytes());
        Self::cover(&mut bytes, self.covers);
        for (piece, into) in pieces.iter().zip(bytes[HEAD_BYTES..].chunks_exact_mut(PIECE_BYTES)) {
            into[0..2].copy_from_slice(&piece.region.to_le_bytes());
            into[2..4].copy_from_slice(&piece.slot.to_le_bytes());
            into[4..8].copy_from_slice(&piece.offset.to_le_bytes());
            into[8..12].copy_from_slice(&piece.length.to_le_bytes());
        }
        bytes
    }

    /// Has one that was written say what it covers.
    pub(super) fn cover(bytes: &mut [u8; ENTRY_BYTES], covers: u64) {
        bytes[COVERS_AT..HEAD_BYTES].copy_from_slice(&covers.to_le_bytes());
    }

    /// Makes one that was written another ring's entry of this number.
    pub(super) fn renumber(bytes: &mut [u8; ENTRY_BYTES], number: u32) {
        bytes[..4].copy_from_slice(&number.to_le_bytes());
    }

    /// Whether two that were written say the same, whatever their numbers.
    #[inline]
    pub(super) fn are_same(one: &[u8; ENTRY_BYTES], other: &[u8; ENTRY_BYTES]) -> bool {
        let words = |bytes: &[u8; ENTRY_BYTES]| {
            let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[at * 8 + byte]));
            std::array::from_fn::<u64, { ENTRY_BYTES / 8 }, _>(word)
        };
        let (one, other) = (words(one), words(other));
        // All words without a branch: quicker than the call that slices are compared by.
        let differ =
            (1..one.len()).fold((one[0] ^ other[0]) >> 32, |differ, at| differ | (one[at] ^ other[at]));
        differ == 0
    }

    /// Of one that was written: whether the message goes on in the next, and whether the flow ends here.
    pub(super) fn goes_on_or_ends(bytes: &[u8; ENTRY_BYTES]) -> (bool, bool) {
        (bytes[4] & MORE != 0, bytes[4] & END != 0)
    }

    /// Reads one; whether its number is the next, and its pieces are anywhere, is for its reader to see. `None` if it
    /// has too many.
    #[inline]
    pub fn parse(bytes: &[u8; ENTRY_BYTES]) -> Option<Entry> {
        let word = |at: usize| {
            let bytes = bytes[at..at + WORD_BYTES].try_into();
            u64::from_le_bytes(bytes.expect("a word of the entry's own"))
        };
        let [.., flags, count, port_low, port_high] = word(0).to_le_bytes();
        if usize::from(count) > PIECES_MAX {
            return None;
        }
        let piece = |bytes: &[u8]| {
            let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
            let u32_at =
                |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
            Piece { region: u16_at(0), slot: u16_at(2), offset: u32_at(4), length: u32_at(8) }
        };
        let pieces = std::array::from_fn(|index| piece(&bytes[HEAD_BYTES + index * PIECE_BYTES..]));
        Some(Entry {
            is_message: flags & MESSAGE != 0,
            has_more: flags & MORE != 0,
            has_gap: flags & GAP != 0,
            is_end: flags & END != 0,
            port: u16::from_le_bytes([port_low, port_high]),
            created: word(8),
            covers: word(COVERS_AT),
            pieces: SmallVec::from_buf_and_len(pieces, count.into()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_entry_is_these_bytes() {
        let entry = Entry {
            is_message: true,
            has_gap: true,
            port: 1,
            created: 0x0102_0304_0506_0708,
            covers: 9,
            pieces: SmallVec::from_slice(&[Piece { region: 1, slot: 2, offset: 3, length: 4 }]),
            ..Entry::default()
        };
        let bytes = entry.emit(0x0a0b_0c0d);
        let expected = [13, 12, 11, 10, 10, 1, 1, 0, 8, 7, 6, 5, 4, 3, 2, 1, 9, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(bytes[..24], expected);
        assert_eq!(bytes[24..36], [1, 0, 2, 0, 3, 0, 0, 0, 4, 0, 0, 0]);
        assert!(bytes[36..].iter().all(|byte| *byte == 0));
        assert_eq!(Entry::parse(&bytes), Some(entry));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn no_bytes_do_harm(bytes in prop::collection::vec(any::<u8>(), ENTRY_BYTES)) {
            let bytes: [u8; ENTRY_BYTES] = bytes.try_into().unwrap();
            prop_assert_eq!(Entry::parse(&bytes).is_some(), usize::from(bytes[5]) <= PIECES_MAX);
            if let Some(entry) = Entry::parse(&bytes) {
                prop_assert_eq!(Entry::parse(&entry.emit(7)), Some(entry));
            }
        }
    }
}
