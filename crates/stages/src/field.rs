//! A little-endian number at a fixed offset of every body.

use contract::Body;

/// Offset and width of the number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Field {
    /// Offset of the first byte.
    pub(crate) at: usize,
    /// Width in bytes, 0 to 8. A field of width 0 is never found.
    pub(crate) width: usize,
}

impl Field {
    /// The number; `None` if the body is too short for it.
    pub(crate) fn read(self, body: &Body) -> Option<u64> {
        let mut bytes = [0; 8];
        let (mut skip, mut filled) = (self.at, 0);
        for chunk in body.chunks() {
            let skipped = skip.min(chunk.len());
            skip -= skipped;
            let count = (chunk.len() - skipped).min(self.width - filled);
            bytes[filled..filled + count].copy_from_slice(&chunk[skipped..skipped + count]);
            filled += count;
            if filled == self.width {
                break;
            }
        }
        (self.width > 0 && filled == self.width).then(|| u64::from_le_bytes(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use contract::Bytes;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_field_is_read_across_pieces(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..6), 0..6),
            at in 0usize..30,
            width in 0usize..9,
        ) {
            let flat = pieces.concat();
            let body: Body = pieces.into_iter().map(Bytes::from).collect();
            let expected = flat.get(at..at + width).filter(|field| !field.is_empty()).map(|field| {
                field.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
            });
            prop_assert_eq!(Field { at, width }.read(&body), expected);
        }
    }
}
