//! Pictures of the format `video` as VP8 (RFC 6386), by libvpx. The codec is lossy: a decoded picture resembles its original.
//!
//! VP8 knows one layout of pixels (4:2:0); [`planes`] converts every other to it and back. An encoded picture depends on the
//! one before it, except a key picture.
//!
//! The crate does no input and no output. It is apart from the stages because the library is foreign code, which only the
//! feature `media` links.

#![cfg(feature = "media")]

pub mod planes;
#[cfg(test)]
mod tests;

use std::fmt;
pub use sys::vp8::{Encoded, Encoder, Planes, SIDE_MAX, VpxError};

/// Most pixels of a coded picture: 3840 by 2160. It bounds the memory of a decoder, about 90 MB.
pub const PIXELS_MAX: u32 = 3840 * 2160;

/// Returns true if pictures of this size can be coded.
pub fn can_code(width: u32, height: u32) -> bool {
    [width, height].iter().all(|side| (1..=SIDE_MAX).contains(side)) && width <= PIXELS_MAX / height
}

/// A picture could not be decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DecodeError {
    /// It depends on a picture that was not decoded.
    NoKey,
    /// The stream claims another size than the message.
    Size {
        /// Width and height in the stream.
        claimed: (u32, u32),
        /// Width and height in the message.
        described: (u32, u32),
    },
    /// The library refused it.
    Library(VpxError),
    /// There is no memory for a decoder.
    Memory,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DecodeError::NoKey => f.write_str("its first picture is no key picture"),
            DecodeError::Size { claimed, described } => write!(
                f,
                "its VP8 has {}x{} pixels, but its header says {}x{}",
                claimed.0, claimed.1, described.0, described.1
            ),
            DecodeError::Library(VpxError(text)) => write!(f, "its VP8 is damaged: {text}"),
            DecodeError::Memory => f.write_str("no memory for a decoder"),
        }
    }
}

impl std::error::Error for DecodeError {}

/// Decodes pictures of a peer. Their size is the one that their message describes, never one that only the stream claims.
#[derive(Debug, Default)]
pub struct Decoder {
    inner: Option<sys::vp8::Decoder>,
    /// Width and height of the last key picture.
    size: (u32, u32),
}

impl Decoder {
    /// Decodes a picture of `width` by `height` pixels. A key picture may change the size. After an error, only a key picture
    /// continues.
    pub fn decode(&mut self, bytes: &[u8], width: u32, height: u32) -> Result<Planes<'_>, DecodeError> {
        let described = (width, height);
        match sys::vp8::key_size(bytes).map_err(DecodeError::Library)? {
            Some(claimed) if claimed != described || !can_code(width, height) => {
                self.inner = None;
                return Err(DecodeError::Size { claimed, described });
            }
            Some(_) => {
                if self.size != described {
                    self.inner = None;
                }
                self.size = described;
                if self.inner.is_none() {
                    self.inner = Some(sys::vp8::Decoder::new().ok_or(DecodeError::Memory)?);
                }
            }
            None if self.inner.is_some() && self.size != described => {
                return Err(DecodeError::Size { claimed: self.size, described });
            }
            None => {}
        }
        let mut inner = self.inner.take().ok_or(DecodeError::NoKey)?;
        // A decoder that failed is dropped with its references.
        if let Err(error) = inner.decode(bytes).map(drop) {
            return Err(DecodeError::Library(error));
        }
        let planes = self.inner.insert(inner).planes().ok_or(DecodeError::NoKey)?;
        let decoded = (planes.width, planes.height);
        match decoded == described {
            true => Ok(planes),
            false => Err(DecodeError::Size { claimed: decoded, described }),
        }
    }
}
