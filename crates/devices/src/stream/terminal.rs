//! Text for a terminal, without control characters: a terminal executes them.

use buffers::Body;

/// Replaces control characters and invalid UTF-8 by `?`, byte for byte. Line feed, carriage return and tab stay.
///
/// A character may be divided between two messages, and its bytes may begin before a control character that only a
/// terminal without UTF-8 sees. So the filter follows each character.
#[derive(Debug, Default)]
pub(crate) struct TerminalFilter {
    /// Continuation bytes that the character still needs.
    left: u8,
    /// Least value of the next continuation byte. It excludes U+0080 to U+009F, the control characters beyond ASCII,
    /// and longer encodings of them.
    least: u8,
}

impl TerminalFilter {
    /// Returns the filtered bytes, as many as before.
    pub(crate) fn apply(&mut self, body: Body) -> Body {
        let mut bytes = body.into_bytes().to_vec();
        bytes.iter_mut().filter(|byte| !self.is_text(**byte)).for_each(|byte| *byte = b'?');
        bytes.into()
    }

    fn is_text(&mut self, byte: u8) -> bool {
        if self.left > 0 && (0x80..=0xbf).contains(&byte) {
            let is_valid = byte >= self.least;
            (self.left, self.least) = (if is_valid { self.left - 1 } else { 0 }, 0x80);
            return is_valid;
        }
        (self.left, self.least) = match byte {
            0xc2 => (1, 0xa0),
            0xc3..=0xdf => (1, 0x80),
            0xe0 => (2, 0xa0),
            0xe1..=0xef => (2, 0x80),
            0xf0 => (3, 0x90),
            0xf1..=0xf4 => (3, 0x80),
            _ => (0, 0x80),
        };
        self.left > 0 || matches!(byte, b'\n' | b'\r' | b'\t' | b' '..=b'~')
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn filtered(pieces: &[&[u8]]) -> Vec<u8> {
        let mut filter = TerminalFilter::default();
        pieces
            .iter()
            .flat_map(|piece| filter.apply(Body::from(piece.to_vec())).into_bytes().to_vec())
            .collect()
    }

    #[test]
    fn text_stays_and_control_characters_do_not() {
        let text = "a line\r\n\tGrüße, 世界 🦀\n".as_bytes();
        assert_eq!(filtered(&[text]), text);
        assert_eq!(filtered(&[b"\x1b]0;owned\x07 \x7f\x00"]), b"?]0;owned? ??");
        // CSI as one character, divided between messages, alone, and in longer encodings.
        for csi in [
            &[&b"\xc2\x9b"[..]][..],
            &[b"\xc2", b"\x9b"],
            &[b"\x9b"],
            &[b"\xe0\x82\x9b"],
            &[b"\xf0\x80\x82\x9b"],
        ] {
            let filtered = filtered(csi);
            assert!(!filtered.iter().any(|byte| (0x80..=0x9f).contains(byte)), "{csi:?}: {filtered:?}");
        }
    }

    proptest! {
        #[test]
        fn any_text_without_control_characters_stays(text in "\\PC{0,40}", at in any::<prop::sample::Index>()) {
            let (one, other) = text.as_bytes().split_at(at.index(text.len() + 1));
            prop_assert_eq!(filtered(&[one, other]), text.as_bytes());
        }

        #[test]
        fn no_bytes_become_a_control_character(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let filtered = filtered(&[&bytes]);
            prop_assert_eq!(filtered.len(), bytes.len());
            let shown = String::from_utf8_lossy(&filtered);
            prop_assert!(shown.chars().all(|c| !c.is_control() || "\r\n\t".contains(c)), "{shown:?}");
        }
    }
}
