//! Unsigned LEB128: whole numbers, seven bits a byte, lowest first, as in WebAssembly.

use contract::Body;

/// Bytes of the largest number.
const BYTES_MAX: usize = 10;

/// Appends a number.
pub(crate) fn put(into: &mut impl Extend<u8>, mut value: u64) {
    while value >= 0x80 {
        into.extend([value as u8 | 0x80]);
        value >>= 7;
    }
    into.extend([value as u8]);
}

/// Takes a number off the front of a body; `None` if it is cut short or over 64 bits.
pub(crate) fn take(body: &mut Body) -> Option<u64> {
    read(|| body.take_front().map(|[byte]| byte))
}

/// Takes a number off the front of a slice; `None` if it is cut short or over 64 bits.
pub(crate) fn take_slice(bytes: &mut &[u8]) -> Option<u64> {
    read(|| {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        Some(*first)
    })
}

fn read(mut next: impl FnMut() -> Option<u8>) -> Option<u64> {
    let mut value = 0;
    for at in 0..BYTES_MAX {
        let byte = next()?;
        let bits = u64::from(byte & 0x7f);
        let shifted = bits << (7 * at);
        if shifted >> (7 * at) != bits {
            return None;
        }
        value |= shifted;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn layout() {
        for (value, bytes) in
            [(0, &[0][..]), (127, &[0x7f]), (128, &[0x80, 1]), (624_485, &[0xe5, 0x8e, 0x26])]
        {
            let mut encoded = Vec::new();
            put(&mut encoded, value);
            assert_eq!(encoded, bytes);
        }
        for bytes in
            [&[][..], &[0x80], &[0xff; 11], &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2]]
        {
            assert_eq!(take_slice(&mut &*bytes), None, "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn numbers_survive_encoding(value: u64, shift in 0..64u32, rest: [u8; 3]) {
            let mut bytes = Vec::new();
            put(&mut bytes, value >> shift);
            bytes.extend(rest);
            let mut slice = &bytes[..];
            prop_assert_eq!(take_slice(&mut slice), Some(value >> shift));
            prop_assert_eq!(slice, rest);
            let mut body = Body::from(bytes);
            prop_assert_eq!(take(&mut body), Some(value >> shift));
            prop_assert_eq!(body.len(), rest.len());
        }
    }
}
