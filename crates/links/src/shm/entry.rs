//! The entries of a ring: descriptors of messages, one cache line each, so a reader fetches a single line per
//! message.

use smallvec::SmallVec;

/// Words in an entry: one cache line.
pub(super) const ENTRY_WORDS: usize = 8;
/// An entry as stored. The first word has its sequence number and is stored last.
pub(super) type Line = [u64; ENTRY_WORDS];
/// Pieces in an entry; a message with more pieces continues in the next entry.
pub const PIECES_MAX: usize = 3;
/// Most pieces in a message.
pub(super) const MESSAGE_PIECES_MAX: usize = 256;

/// Offsets of the words: `covers`; the location (region, slot, offset) of each piece; the lengths, two to a word.
const COVERS: usize = 2;
const LOCATIONS: usize = 3;
const LENGTHS: usize = LOCATIONS + PIECES_MAX;
const _: () = assert!(LENGTHS + PIECES_MAX.div_ceil(2) == ENTRY_WORDS);

/// The message continues in the next entry.
const MORE: u8 = 1;
/// Messages were lost before this one.
const GAP: u8 = 2;
/// The flow ends here; the entry has no message.
const END: u8 = 4;
/// The entry has a message. Without this flag only `covers` counts.
const MESSAGE: u8 = 8;

/// A contiguous part of a message.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Piece {
    /// Owner of the region: 0 is the host, `n` is stage `n`.
    pub region: u16,
    /// Slot in the region.
    pub slot: u16,
    /// Offset in the slot.
    pub offset: u32,
    /// Length in bytes.
    pub length: u32,
}

/// One entry of a ring.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Entry {
    /// The entry has a message or a part of one.
    pub is_message: bool,
    /// The message continues in the next entry.
    pub has_more: bool,
    /// Messages were lost before this one.
    pub has_gap: bool,
    /// The flow ends here.
    pub is_end: bool,
    /// Output port of the message.
    pub port: u16,
    /// Creation time of the message.
    pub created: u64,
    /// Cumulative acknowledgement: all output of the host's first `covers` messages is in this entry or before it,
    /// and no output of later ones. 0 acknowledges nothing.
    pub covers: u64,
    /// Location of the message's bytes.
    pub pieces: SmallVec<[Piece; PIECES_MAX]>,
}

impl Entry {
    /// Encodes the entry with this sequence number. Pieces beyond [`PIECES_MAX`] belong to the next entry.
    #[inline]
    pub(super) fn emit(&self, number: u32) -> Line {
        let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
        let flags = flag(self.is_message, MESSAGE)
            | flag(self.has_more, MORE)
            | flag(self.has_gap, GAP)
            | flag(self.is_end, END);
        let pieces = &self.pieces[..self.pieces.len().min(PIECES_MAX)];
        let mut line = [0; ENTRY_WORDS];
        line[0] = u64::from(number)
            | u64::from(flags) << 32
            | (pieces.len() as u64) << 40
            | u64::from(self.port) << 48;
        (line[1], line[COVERS]) = (self.created, self.covers);
        for (index, piece) in pieces.iter().enumerate() {
            let Piece { region, slot, offset, length } = *piece;
            line[LOCATIONS + index] = u64::from(region) | u64::from(slot) << 16 | u64::from(offset) << 32;
            line[LENGTHS + index / 2] |= u64::from(length) << (index % 2 * 32);
        }
        line
    }

    /// Sets `covers` of an encoded entry.
    pub(super) fn cover(line: &mut Line, covers: u64) {
        line[COVERS] = covers;
    }

    /// Sets the sequence number of an encoded entry.
    #[inline]
    pub(super) fn renumber(line: &mut Line, number: u32) {
        line[0] = line[0] >> 32 << 32 | u64::from(number);
    }

    /// Compares two encoded entries, except for their sequence numbers.
    #[inline]
    pub(super) fn are_same(one: &Line, other: &Line) -> bool {
        // Compares all words without a branch: faster than comparing slices.
        let differ =
            (1..ENTRY_WORDS).fold((one[0] ^ other[0]) >> 32, |differ, at| differ | (one[at] ^ other[at]));
        differ == 0
    }

    /// Returns two flags of an encoded entry: it continues in the next one; the flow ends with it.
    #[inline]
    pub(super) fn continues_or_ends(line: &Line) -> (bool, bool) {
        let flags = (line[0] >> 32) as u8;
        (flags & MORE != 0, flags & END != 0)
    }

    /// Decodes an entry; `None` if it has too many pieces. The caller checks the sequence number and the bounds of
    /// the pieces.
    #[inline]
    pub(super) fn parse(line: &Line) -> Option<Entry> {
        let [.., flags, count, port_low, port_high] = line[0].to_le_bytes();
        if usize::from(count) > PIECES_MAX {
            return None;
        }
        let pieces = std::array::from_fn(|index| {
            let location = line[LOCATIONS + index];
            let length = (line[LENGTHS + index / 2] >> (index % 2 * 32)) as u32;
            Piece {
                region: location as u16,
                slot: (location >> 16) as u16,
                offset: (location >> 32) as u32,
                length,
            }
        });
        Some(Entry {
            is_message: flags & MESSAGE != 0,
            has_more: flags & MORE != 0,
            has_gap: flags & GAP != 0,
            is_end: flags & END != 0,
            port: u16::from_le_bytes([port_low, port_high]),
            created: line[1],
            covers: line[COVERS],
            pieces: SmallVec::from_buf_and_len(pieces, count.into()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_entry_is_encoded_as_these_words() {
        let piece = |slot| Piece { region: 1, slot, offset: 3, length: 4 + u32::from(slot) };
        let entry = Entry {
            is_message: true,
            has_gap: true,
            port: 1,
            created: 5,
            covers: 9,
            pieces: [piece(0), piece(1), piece(2)].into_iter().collect(),
            ..Entry::default()
        };
        let line = entry.emit(0x0a0b_0c0d);
        let location = |slot: u64| 0x0000_0003_0000_0001 | slot << 16;
        let words =
            [0x0001_030a_0a0b_0c0d, 5, 9, location(0), location(1), location(2), 0x0000_0005_0000_0004, 6];
        assert_eq!(line, words);
        assert_eq!(Entry::parse(&line), Some(entry));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn arbitrary_words_are_parsed_or_rejected(line in any::<Line>(), count in any::<Option<u8>>()) {
            let mut line = line;
            if let Some(count) = count {
                line[0] = line[0] & !(0xff << 40) | u64::from(count % 5) << 40;
            }
            prop_assert_eq!(Entry::parse(&line).is_some(), line[0] >> 40 & 0xff <= PIECES_MAX as u64);
            if let Some(entry) = Entry::parse(&line) {
                prop_assert_eq!(Entry::parse(&entry.emit(7)), Some(entry));
            }
        }
    }
}
