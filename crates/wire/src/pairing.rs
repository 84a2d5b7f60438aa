//! Messages that pair two hosts by a one-time code (SPAKE2), inside TLS.
//!
//! Each is a frame: `length: u16` (of the rest), `kind: u8`, fields in the order of the struct below.

use crate::control::{NAME_BYTES_MAX, REASON_BYTES_MAX, cut};
use crate::{Reader, WireError, Writer};

/// The longest frame in bytes, without its length field.
pub const PAIRING_BYTES_MAX: usize = 8 << 10;
/// The length of an element of SPAKE2's group, with its side, in bytes.
pub const SHARE_BYTES: usize = 33;

/// One message of a pairing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pairing {
    /// From the host where the user types the code, first.
    Begin {
        /// Its SPAKE2 message.
        share: [u8; SHARE_BYTES],
    },
    /// The reply of the host that shows the code.
    Share {
        /// Its SPAKE2 message.
        share: [u8; SHARE_BYTES],
    },
    /// From the host where the user types the code: an attempt.
    Confirm {
        /// Proof that it knows the code.
        proof: [u8; 32],
        /// Its name, for users.
        host: String,
    },
    /// The code was right. The host that shows it now trusts the other.
    Confirmed {
        /// Proof that it knows the code too.
        proof: [u8; 32],
        /// Its name, for users.
        host: String,
    },
    /// The code was wrong or has expired.
    Refused {
        /// The reason, for users.
        reason: String,
    },
}

const BEGIN: u8 = 1;
const SHARE: u8 = 2;
const CONFIRM: u8 = 3;
const CONFIRMED: u8 = 4;
const REFUSED: u8 = 5;

impl Pairing {
    /// Returns the message as a frame, with its length. Long texts are truncated.
    pub fn emit(&self) -> Vec<u8> {
        let mut w = Writer::new();
        w.u16(0);
        match self {
            Pairing::Begin { share } => w.u8(BEGIN).raw(share),
            Pairing::Share { share } => w.u8(SHARE).raw(share),
            Pairing::Confirm { proof, host } => w.u8(CONFIRM).raw(proof).text(cut(host, NAME_BYTES_MAX)),
            Pairing::Confirmed { proof, host } => w.u8(CONFIRMED).raw(proof).text(cut(host, NAME_BYTES_MAX)),
            Pairing::Refused { reason } => w.u8(REFUSED).text(cut(reason, REASON_BYTES_MAX)),
        };
        let mut bytes = w.finish();
        let length = (bytes.len() - 2) as u16;
        bytes[..2].copy_from_slice(&length.to_le_bytes());
        bytes
    }

    /// Decodes the length field of a frame and checks its limit.
    pub fn frame_bytes(length: [u8; 2]) -> Result<usize, WireError> {
        let length = usize::from(u16::from_le_bytes(length));
        match length > PAIRING_BYTES_MAX {
            true => Err(WireError::TooLong {
                what: "pairing frame",
                length: length as u64,
                limit: PAIRING_BYTES_MAX as u64,
            }),
            false => Ok(length),
        }
    }

    /// Parses a frame without its length field.
    pub fn parse(frame: &[u8]) -> Result<Pairing, WireError> {
        let mut r = Reader::new(frame);
        let host = |r: &mut Reader<'_>| Ok(r.text("pairing host", NAME_BYTES_MAX)?.into());
        let message = match r.u8("pairing kind")? {
            BEGIN => Pairing::Begin { share: r.array("pairing share")? },
            SHARE => Pairing::Share { share: r.array("pairing share")? },
            CONFIRM => Pairing::Confirm { proof: r.array("pairing proof")?, host: host(&mut r)? },
            CONFIRMED => Pairing::Confirmed { proof: r.array("pairing proof")?, host: host(&mut r)? },
            REFUSED => Pairing::Refused { reason: r.text("pairing reason", REASON_BYTES_MAX)?.into() },
            other => return Err(WireError::Value { what: "pairing kind", value: other.into() }),
        };
        r.end("pairing message")?;
        Ok(message)
    }
}
