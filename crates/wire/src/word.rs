//! Words: control information between the containers on a chain of pipes. Only Outboard's own modules use them
//! (docs/reference/modules.md).
//!
//! A word is as long as a container's header; its first four bytes are a length that no container has. Counts
//! are increments since the last word, so a module that changes nothing may pass all bytes unread.

use crate::Container;

const COMPLETE: u32 = u32::MAX;
const GAP: u32 = u32::MAX - 1;

/// The information between two containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Word {
    /// All results of this many further host messages are before this word, and nothing else.
    Complete(u64),
    /// Messages were lost before the next container.
    Gap,
}

impl Word {
    /// The length of a word in bytes.
    pub const BYTES: usize = Container::BYTES;

    /// Returns the word as bytes.
    pub fn emit(&self) -> [u8; Word::BYTES] {
        let (length, created) = match self {
            Word::Complete(messages) => (COMPLETE, *messages),
            Word::Gap => (GAP, 0),
        };
        Container { length, created }.emit()
    }

    /// Parses a word; `None` if the bytes are not one, but perhaps a container's header.
    pub fn parse(bytes: &[u8; Word::BYTES]) -> Option<Word> {
        let header = Container::parse(bytes, u32::MAX as usize).ok()?;
        match header.length {
            COMPLETE => Some(Word::Complete(header.created)),
            GAP => Some(Word::Gap),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_has_these_bytes_and_is_no_container() {
        assert_eq!(Word::Complete(3).emit(), [255, 255, 255, 255, 3, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(Word::Gap.emit(), [254, 255, 255, 255, 0, 0, 0, 0, 0, 0, 0, 0]);
        for word in [Word::Complete(u64::MAX), Word::Complete(0), Word::Gap] {
            assert_eq!(Word::parse(&word.emit()), Some(word));
            assert!(Container::parse(&word.emit(), crate::BODY_BYTES_MAX).is_err());
        }
        assert_eq!(Word::parse(&Container { length: 5, created: 1 }.emit()), None);
    }
}
