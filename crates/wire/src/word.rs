//! Words between the containers of a chain: what Outboard's own modules on one chain of pipes tell each other beside
//! the messages (docs/modules.md).
//!
//! A word is as long as a container's header, and its first four bytes are a length that no container has. Counts are
//! of what is new since the last word, so that a module that changes nothing may pass all of it on unread.

use crate::Container;

const COMPLETE: u32 = u32::MAX;
const GAP: u32 = u32::MAX - 1;

/// What stands between two containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Word {
    /// Everything that came of so many more of the host's messages has gone before, and nothing else.
    Complete(u64),
    /// Something was lost before the next container.
    Gap,
}

impl Word {
    /// Bytes of a word.
    pub const BYTES: usize = Container::BYTES;

    /// The word as bytes.
    pub fn emit(&self) -> [u8; Word::BYTES] {
        let (length, created) = match self {
            Word::Complete(messages) => (COMPLETE, *messages),
            Word::Gap => (GAP, 0),
        };
        Container { length, created }.emit()
    }

    /// Reads what may be a word; `None` if it is none, but a container's header perhaps.
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
    fn a_word_is_these_bytes_and_no_container() {
        assert_eq!(Word::Complete(3).emit(), [255, 255, 255, 255, 3, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(Word::Gap.emit(), [254, 255, 255, 255, 0, 0, 0, 0, 0, 0, 0, 0]);
        for word in [Word::Complete(u64::MAX), Word::Complete(0), Word::Gap] {
            assert_eq!(Word::parse(&word.emit()), Some(word));
            assert!(Container::parse(&word.emit(), crate::BODY_BYTES_MAX).is_err());
        }
        assert_eq!(Word::parse(&Container { length: 5, created: 1 }.emit()), None);
    }
}
