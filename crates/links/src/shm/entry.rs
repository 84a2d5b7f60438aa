//! What crosses a ring: descriptors of messages, each in one cache line, so that whoever waits for the next one fetches
//! with it all there is to know.

use smallvec::SmallVec;

/// Words of an entry: a cache line.
pub(super) const ENTRY_WORDS: usize = 8;
/// An entry as it is written. The first word has its number in it, and is written last.
pub(super) type Line = [u64; ENTRY_WORDS];
/// Pieces in an entry; a message of more goes on in the next.
pub const PIECES_MAX: usize = 3;
/// Pieces of a message.
pub(crate) const MESSAGE_PIECES_MAX: usize = 256;

/// Where what it covers is said, and from where on its pieces: first where they lie, then how long they are.
const COVERS: usize = 2;
const PLACES: usize = 3;
const LENGTHS: usize = PLACES + PIECES_MAX;
const _: () = assert!(LENGTHS + PIECES_MAX.div_ceil(2) == ENTRY_WORDS);

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
            line[PLACES + index] = u64::from(region) | u64::from(slot) << 16 | u64::from(offset) << 32;
            line[LENGTHS + index / 2] |= u64::from(length) << (index % 2 * 32);
        }
        line
    }

    /// Has one that was written say what it covers.
    pub(super) fn cover(line: &mut Line, covers: u64) {
        line[COVERS] = covers;
    }

    /// Makes one that was written another ring's entry of this number.
    #[inline]
    pub(super) fn renumber(line: &mut Line, number: u32) {
        line[0] = line[0] >> 32 << 32 | u64::from(number);
    }

    /// Whether two that were written say the same, whatever their numbers.
    #[inline]
    pub(super) fn are_same(one: &Line, other: &Line) -> bool {
        // All words without a branch: quicker than the call that slices are compared by.
        let differ =
            (1..ENTRY_WORDS).fold((one[0] ^ other[0]) >> 32, |differ, at| differ | (one[at] ^ other[at]));
        differ == 0
    }

    /// Of one that was written: whether the message goes on in the next, and whether the flow ends here.
    #[inline]
    pub(super) fn goes_on_or_ends(line: &Line) -> (bool, bool) {
        let flags = (line[0] >> 32) as u8;
        (flags & MORE != 0, flags & END != 0)
    }

    /// Reads one; whether its number is the next, and its pieces are anywhere, is for its reader to see. `None` if it
    /// has too many.
    #[inline]
    pub(super) fn parse(line: &Line) -> Option<Entry> {
        let [.., flags, count, port_low, port_high] = line[0].to_le_bytes();
        if usize::from(count) > PIECES_MAX {
            return None;
        }
        let pieces = std::array::from_fn(|index| {
            let place = line[PLACES + index];
            let length = (line[LENGTHS + index / 2] >> (index % 2 * 32)) as u32;
            Piece { region: place as u16, slot: (place >> 16) as u16, offset: (place >> 32) as u32, length }
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
    fn an_entry_is_these_words() {
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
        let place = |slot: u64| 0x0000_0003_0000_0001 | slot << 16;
        let words = [0x0001_030a_0a0b_0c0d, 5, 9, place(0), place(1), place(2), 0x0000_0005_0000_0004, 6];
        assert_eq!(line, words);
        assert_eq!(Entry::parse(&line), Some(entry));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn no_words_do_harm(line in any::<Line>(), count in any::<Option<u8>>()) {
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
