//! The bytes between the halves. `doc.md` has the layout.

use crate::{control, varint};
use contract::{Body, StageError, StageResult};
#[cfg(feature = "media")]
use smallvec::SmallVec;

/// The content of a message behind its header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Coding {
    /// A message as it entered the source half.
    Stored,
    /// A picture that depends on no other.
    Key,
    /// A picture that depends on the coded picture this many messages before it.
    Difference {
        /// At least 1.
        back: u64,
    },
    /// Nothing: the message with this number follows at once.
    Marker,
    /// Nothing: the source half was asked for the message with this number, and does not keep it. A sink half of an older build
    /// takes it for a marker.
    Gone,
}

/// The header of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) coding: Coding,
    /// Number of the message.
    pub(super) sequence: u64,
    /// Time in milliseconds for which the sink half waits for a missing message before it asks for it; 0 only in [`Coding::Gone`].
    pub(super) wait_ms: u64,
    /// Bytes at the end of a picture without content, which make it long enough to measure the link.
    pub(super) padding: usize,
}

impl Header {
    /// Puts the header in front of a body.
    #[cfg(feature = "media")]
    pub(super) fn put(&self, body: &mut Body) {
        let mut bytes = SmallVec::<[u8; 32]>::new();
        let code = match self.coding {
            Coding::Stored => 0,
            Coding::Key => 1,
            Coding::Difference { .. } => 2,
            Coding::Marker | Coding::Gone => 3,
        };
        bytes.push(code);
        varint::put(&mut bytes, self.sequence);
        varint::put(&mut bytes, self.wait_ms);
        if matches!(self.coding, Coding::Key | Coding::Difference { .. }) {
            varint::put(&mut bytes, self.padding as u64);
        }
        if let Coding::Difference { back } = self.coding {
            varint::put(&mut bytes, back);
        }
        body.push_front(&bytes);
    }

    /// Takes the header off a body from the peer.
    pub(super) fn take(body: &mut Body) -> StageResult<Header> {
        let malformed = |problem: &str| StageError::Input(problem.into());
        let short = || malformed("its header is cut short");
        let [code] = body.take_front().ok_or_else(short)?;
        let sequence = varint::take(body).ok_or_else(short)?;
        let wait_ms = varint::take(body).ok_or_else(short)?;
        let padding = if matches!(code, 1 | 2) { varint::take(body).ok_or_else(short)? } else { 0 };
        let coding = match code {
            0 => Coding::Stored,
            1 => Coding::Key,
            2 => match varint::take(body).ok_or_else(short)? {
                back if (1..=sequence).contains(&back) => Coding::Difference { back },
                _ => return Err(malformed("it depends on a picture before the first, or on itself")),
            },
            3 if body.is_empty() && wait_ms == 0 => Coding::Gone,
            3 if body.is_empty() => Coding::Marker,
            3 => return Err(malformed("its marker has a body")),
            _ => return Err(malformed("its coding is unknown")),
        };
        let padding = usize::try_from(padding).ok().filter(|padding| *padding <= body.len());
        let padding = padding.ok_or_else(|| malformed("it has less bytes than padding"))?;
        Ok(Header { coding, sequence, wait_ms, padding })
    }
}

/// A control message from the sink half to the source half.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Control {
    /// A message arrived, this many microseconds after its marker; 0 if the marker did not arrive before it.
    Arrived { sequence: u64, spread_us: u64 },
    /// A message did not arrive.
    Missing { sequence: u64 },
    /// A picture cannot be decoded: a key picture is needed.
    KeyNeeded { sequence: u64 },
    /// This build has no decoder.
    NoDecoder,
}

impl Control {
    /// The message as bytes.
    pub(super) fn emit(self) -> Vec<u8> {
        match self {
            Control::Arrived { sequence, spread_us } => control::emit(0, &[sequence, spread_us]),
            Control::Missing { sequence } => control::emit(1, &[sequence]),
            Control::KeyNeeded { sequence } => control::emit(2, &[sequence]),
            Control::NoDecoder => control::emit(3, &[]),
        }
    }

    /// Parses a message from the peer.
    #[cfg(feature = "media")]
    pub(super) fn parse(bytes: &[u8]) -> StageResult<Control> {
        control::parse(bytes, |kind, numbers| match kind {
            0 => Some(Control::Arrived { sequence: numbers.take()?, spread_us: numbers.take()? }),
            1 => Some(Control::Missing { sequence: numbers.take()? }),
            2 => Some(Control::KeyNeeded { sequence: numbers.take()? }),
            3 => Some(Control::NoDecoder),
            _ => None,
        })
    }
}
