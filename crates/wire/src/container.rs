//! A container: the frame of a message on a pipe and on the network (Networked Device Driver Architecture
//! (2012), 4.4).
//!
//! Layout: `length: u32` (of the body alone), `created: u64` (nanoseconds of the source host's boot clock),
//! body. A stage's own header is at the front of the body and counts as part of it.

use crate::{Reader, WireError};

/// The fixed header of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Container {
    /// Bytes in the body.
    pub length: u32,
    /// Creation time of the message: nanoseconds of the source host's boot clock.
    pub created: u64,
}

impl Container {
    /// Bytes of the header.
    pub const BYTES: usize = 12;

    /// The header as bytes.
    pub fn emit(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&self.length.to_le_bytes());
        bytes[4..].copy_from_slice(&self.created.to_le_bytes());
        bytes
    }

    /// Parses a header. Refuses a body of more than `limit` bytes.
    pub fn parse(bytes: &[u8], limit: usize) -> Result<Self, WireError> {
        let mut reader = Reader::new(bytes);
        let length = reader.u32("container length")?;
        if length as usize > limit {
            return Err(WireError::TooLong {
                what: "container length",
                length: length.into(),
                limit: limit as u64,
            });
        }
        Ok(Container { length, created: reader.u64("container creation time")? })
    }
}
