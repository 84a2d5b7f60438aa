//! A set of event codes.

/// The number of codes in a [`Bits`]: as many as there are keys, the kind with the most (`KEY_CNT`).
pub const BITS_COUNT: usize = 768;

const WORD_BITS: usize = u64::BITS as usize;

/// A set of codes from 0 to [`BITS_COUNT`] - 1.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Bits {
    words: [u64; BITS_COUNT / WORD_BITS],
}

impl Bits {
    /// The empty set.
    pub fn new() -> Bits {
        Bits::default()
    }

    /// Makes a set from bytes: code n is bit `n % 8` of byte `n / 8`. Codes from [`BITS_COUNT`] on are ignored.
    pub fn from_bytes(bytes: &[u8]) -> Bits {
        let mut bits = Bits::new();
        for (at, byte) in bytes.iter().enumerate().take(BITS_COUNT / 8) {
            bits.words[at / 8] |= u64::from(*byte) << (at % 8 * 8);
        }
        bits
    }

    /// Returns the bytes for [`Bits::from_bytes`], without trailing zeros.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes: Vec<u8> = self.words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.truncate(bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1));
        bytes
    }

    /// Returns true if `code` is a member.
    pub fn contains(&self, code: u16) -> bool {
        self.words
            .get(usize::from(code) / WORD_BITS)
            .is_some_and(|word| word >> (usize::from(code) % WORD_BITS) & 1 == 1)
    }

    /// Adds or removes `code`; returns true if that changed the set. Codes from [`BITS_COUNT`] on are ignored.
    pub fn set(&mut self, code: u16, member: bool) -> bool {
        let Some(word) = self.words.get_mut(usize::from(code) / WORD_BITS) else {
            return false;
        };
        let before = *word;
        let bit = 1 << (usize::from(code) % WORD_BITS);
        *word = if member { before | bit } else { before & !bit };
        *word != before
    }

    /// Iterates over the members, smallest first.
    pub fn iter(&self) -> impl Iterator<Item = u16> + '_ {
        (0..BITS_COUNT as u16).filter(|code| self.contains(*code))
    }

    /// Returns true if there is no member.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// The number of members.
    pub fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// The members that are not in `other`.
    pub fn without(&self, other: &Bits) -> Bits {
        let mut left = *self;
        left.words.iter_mut().zip(other.words).for_each(|(word, other)| *word &= !other);
        left
    }

    /// The members that are also in `other`.
    pub fn common(&self, other: &Bits) -> Bits {
        self.without(&self.without(other))
    }
}

impl FromIterator<u16> for Bits {
    fn from_iter<I: IntoIterator<Item = u16>>(codes: I) -> Self {
        let mut bits = Bits::new();
        codes.into_iter().for_each(|code| {
            bits.set(code, true);
        });
        bits
    }
}

impl std::fmt::Debug for Bits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_survive_their_bytes() {
        let bits = Bits::from_iter([0, 7, 8, 63, 64, 767]);
        assert_eq!(Bits::from_bytes(&bits.to_bytes()), bits);
        assert_eq!(bits.iter().collect::<Vec<_>>(), [0, 7, 8, 63, 64, 767]);
        assert_eq!(Bits::from_iter([1, 9]).to_bytes(), [2, 2]);
    }

    #[test]
    fn codes_beyond_the_last_are_ignored() {
        let mut bits = Bits::new();
        assert!(!bits.set(768, true));
        assert!(!bits.contains(u16::MAX));
        assert_eq!(Bits::from_bytes(&[255; 200]).len(), BITS_COUNT);
    }
}
