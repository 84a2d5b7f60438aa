//! Messages by which two hosts get to know each other by a one-time code (SPAKE2), inside TLS.
//!
//! Each is a frame: `length: u16` (of what follows), `kind: u8`, fields in the order of the struct below.

use crate::control::{NAME_BYTES_MAX, REASON_BYTES_MAX, cut};
use crate::{Reader, WireError, Writer};

/// Bytes of the longest frame, its length field not counted.
pub const PAIRING_BYTES_MAX: usize = 8 << 10;
/// Bytes of an element of SPAKE2's group, and the side it is of.
pub const SHARE_BYTES: usize = 33;

/// One message of a pairing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pairing {
    /// From the host where the code is typed, first.
    Begin {
        /// Its message of SPAKE2.
        share: [u8; SHARE_BYTES],
    },
    /// The answer of the host that shows the code.
    Share {
        /// Its message of SPAKE2.
        share: [u8; SHARE_BYTES],
    },
    /// From the host where the code is typed: this is a try.
    Confirm {
        /// That it has the code.
        proof: [u8; 32],
        /// Its name, for people.
        host: String,
    },
    /// The code was right, and the host that shows it knows the other from now on.
    Confirmed {
        /// That it has the code too.
        proof: [u8; 32],
        /// Its name, for people.
        host: String,
    },
    /// It was not, or there is none any more.
    Refused {
        /// For people.
        reason: String,
    },
}

const BEGIN: u8 = 1;
const SHARE: u8 = 2;
const CONFIRM: u8 = 3;
const CONFIRMED: u8 = 4;
const REFUSED: u8 = 5;

impl Pairing {
    /// The message as a frame, its length in front. Texts that are too long are cut.
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

    /// Bytes of the frame behind its length field, of which these are the two bytes.
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

    /// Reads a frame, its length field taken off.
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
