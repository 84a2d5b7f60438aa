//! Checked little-endian reading and writing. All code of this crate uses it to access bytes.

use thiserror::Error;

/// A parser refused its input.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WireError {
    /// The input ends before `what` is complete.
    #[error("{what}: needs {needed} bytes, {left} are left")]
    Short {
        /// The field.
        what: &'static str,
        /// Bytes the field needs.
        needed: usize,
        /// Bytes that were left.
        left: usize,
    },
    /// A length or count is over its limit.
    #[error("{what}: {length} is over the limit of {limit}")]
    TooLong {
        /// The field.
        what: &'static str,
        /// The value in the input.
        length: u64,
        /// The limit.
        limit: u64,
    },
    /// A field has an invalid value.
    #[error("{what}: {value} is not a valid value")]
    Value {
        /// The field.
        what: &'static str,
        /// The value in the input.
        value: u64,
    },
    /// Text is not UTF-8.
    #[error("{what}: not UTF-8 text")]
    Text {
        /// The field.
        what: &'static str,
    },
    /// Bytes follow a complete message.
    #[error("{what}: {left} bytes too many")]
    Trailing {
        /// The message.
        what: &'static str,
        /// The number of extra bytes.
        left: usize,
    },
    /// The peer uses another version of the protocol.
    #[error("protocol version {theirs}, this program speaks {ours}")]
    Version {
        /// The peer's version.
        theirs: u16,
        /// This program's version.
        ours: u16,
    },
    /// The first bytes are not those of an Outboard peer.
    #[error("not an Outboard peer (first bytes {began:02x?})")]
    Magic {
        /// The first bytes.
        began: [u8; 4],
    },
}

/// Reads fields from the front of a byte slice.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    left: &'a [u8],
}

impl<'a> Reader<'a> {
    /// A reader over `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Reader { left: bytes }
    }

    /// The number of unread bytes.
    pub fn left(&self) -> usize {
        self.left.len()
    }

    /// The next `needed` bytes.
    pub fn bytes(&mut self, what: &'static str, needed: usize) -> Result<&'a [u8], WireError> {
        let Some((head, tail)) = self.left.split_at_checked(needed) else {
            return Err(WireError::Short { what, needed, left: self.left.len() });
        };
        self.left = tail;
        Ok(head)
    }

    /// All unread bytes.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.left)
    }

    /// The next `N` bytes as an array.
    pub fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], WireError> {
        let mut array = [0; N];
        array.copy_from_slice(self.bytes(what, N)?);
        Ok(array)
    }

    /// One byte.
    pub fn u8(&mut self, what: &'static str) -> Result<u8, WireError> {
        Ok(self.array::<1>(what)?[0])
    }

    /// Two bytes.
    pub fn u16(&mut self, what: &'static str) -> Result<u16, WireError> {
        Ok(u16::from_le_bytes(self.array(what)?))
    }

    /// Four bytes.
    pub fn u32(&mut self, what: &'static str) -> Result<u32, WireError> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    /// Eight bytes.
    pub fn u64(&mut self, what: &'static str) -> Result<u64, WireError> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// A `u32` length of at most `limit`, then that many bytes.
    pub fn blob(&mut self, what: &'static str, limit: usize) -> Result<&'a [u8], WireError> {
        let length = self.u32(what)? as usize;
        if length > limit {
            return Err(WireError::TooLong { what, length: length as u64, limit: limit as u64 });
        }
        self.bytes(what, length)
    }

    /// A `u32` length of at most `limit`, then that much UTF-8 text.
    pub fn text(&mut self, what: &'static str, limit: usize) -> Result<&'a str, WireError> {
        std::str::from_utf8(self.blob(what, limit)?).map_err(|_| WireError::Text { what })
    }

    /// A `u16` count of at most `limit`.
    pub fn count(&mut self, what: &'static str, limit: usize) -> Result<usize, WireError> {
        let count = self.u16(what)? as usize;
        if count > limit {
            return Err(WireError::TooLong { what, length: count as u64, limit: limit as u64 });
        }
        Ok(count)
    }

    /// Checks that no bytes are left.
    pub fn end(&self, what: &'static str) -> Result<(), WireError> {
        match self.left.len() {
            0 => Ok(()),
            left => Err(WireError::Trailing { what, left }),
        }
    }
}

/// Appends fields to a byte vector; the mirror of [`Reader`].
#[derive(Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// An empty writer.
    pub fn new() -> Self {
        Writer::default()
    }

    /// Appends one byte.
    pub fn u8(&mut self, value: u8) -> &mut Self {
        self.bytes.push(value);
        self
    }

    /// Appends two bytes.
    pub fn u16(&mut self, value: u16) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    /// Appends four bytes.
    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    /// Appends eight bytes.
    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    /// Appends bytes as they are.
    pub fn raw(&mut self, value: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(value);
        self
    }

    /// Appends a `u32` length, then the bytes.
    pub fn blob(&mut self, value: &[u8]) -> &mut Self {
        self.u32(value.len() as u32).raw(value)
    }

    /// Appends a `u32` length, then the text.
    pub fn text(&mut self, value: &str) -> &mut Self {
        self.blob(value.as_bytes())
    }

    /// The bytes written so far.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Clears the writer and keeps its memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
    }

    /// Takes the written bytes.
    pub fn finish(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }
}
