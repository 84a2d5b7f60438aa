//! The bytes between the halves. `doc.md` has the layout.

use crate::{control, varint};
use contract::{Body, StageError, StageResult};
#[cfg(feature = "media")]
use smallvec::SmallVec;

/// The content of a message behind its header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Coding {
    /// A message of the format `video` as it is.
    Stored,
    /// The same, compressed by zstd.
    Compressed {
        /// Bytes of the message before its compression.
        length: u64,
    },
    /// A picture in tiles ([`crate::recode`]), compressed by zstd.
    Tiled {
        /// Bytes of the tiles before their compression.
        length: u64,
    },
    /// A piece of a picture of the film.
    Piece {
        /// The picture ends with this piece.
        is_last: bool,
    },
    /// The header of a whole picture: the screen has this size from here on.
    Begin,
}

/// The header of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) coding: Coding,
    /// Number of the message.
    pub(super) sequence: u64,
}

impl Header {
    /// Puts the header in front of a body.
    #[cfg(feature = "media")]
    pub(super) fn put(&self, body: &mut Body) {
        let mut bytes = SmallVec::<[u8; 32]>::new();
        let (code, length) = match self.coding {
            Coding::Stored => (0, None),
            Coding::Compressed { length } => (1, Some(length)),
            Coding::Piece { is_last: false } => (2, None),
            Coding::Piece { is_last: true } => (3, None),
            Coding::Begin => (4, None),
            Coding::Tiled { length } => (5, Some(length)),
        };
        bytes.push(code);
        varint::put(&mut bytes, self.sequence);
        if let Some(length) = length {
            varint::put(&mut bytes, length);
        }
        body.push_front(&bytes);
    }

    /// Takes the header off a body from the peer.
    pub(super) fn take(body: &mut Body) -> StageResult<Header> {
        let malformed = |problem: &str| StageError::Input(problem.into());
        let short = || malformed("its header is cut short");
        let [code] = body.take_front().ok_or_else(short)?;
        let sequence = varint::take(body).ok_or_else(short)?;
        let coding = match code {
            0 => Coding::Stored,
            1 => Coding::Compressed { length: varint::take(body).ok_or_else(short)? },
            2 => Coding::Piece { is_last: false },
            3 => Coding::Piece { is_last: true },
            4 => Coding::Begin,
            5 => Coding::Tiled { length: varint::take(body).ok_or_else(short)? },
            _ => return Err(malformed("its coding is unknown")),
        };
        Ok(Header { coding, sequence })
    }
}

/// A control message from the sink half to the source half.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Control {
    /// A message arrived, this many microseconds after the one before.
    Arrived { sequence: u64, gap_us: u64 },
    /// Messages with these numbers, from the first to below the second, did not arrive.
    Missing { from: u64, below: u64 },
    /// The sink half knows nothing of the screen.
    Refresh,
    /// A picture of the film cannot be decoded: a key picture is needed.
    KeyNeeded,
    /// This build has no decoder.
    NoDecoder,
}

impl Control {
    /// The message as bytes.
    pub(super) fn emit(self) -> Vec<u8> {
        match self {
            Control::Arrived { sequence, gap_us } => control::emit(0, &[sequence, gap_us]),
            Control::Missing { from, below } => control::emit(1, &[from, below]),
            Control::Refresh => control::emit(2, &[]),
            Control::KeyNeeded => control::emit(3, &[]),
            Control::NoDecoder => control::emit(4, &[]),
        }
    }

    /// Parses a message from the peer.
    #[cfg(feature = "media")]
    pub(super) fn parse(bytes: &[u8]) -> StageResult<Control> {
        control::parse(bytes, |kind, numbers| match kind {
            0 => Some(Control::Arrived { sequence: numbers.take()?, gap_us: numbers.take()? }),
            1 => Some(Control::Missing { from: numbers.take()?, below: numbers.take()? }),
            2 => Some(Control::Refresh),
            3 => Some(Control::KeyNeeded),
            4 => Some(Control::NoDecoder),
            _ => None,
        })
    }
}
