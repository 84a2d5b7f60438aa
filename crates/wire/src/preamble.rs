//! The first bytes on every connection: who speaks, which version, and what the connection is for.

use crate::{PROTOCOL_VERSION, Reader, WireError, Writer};

const MAGIC: [u8; 4] = *b"OUTB";
const KIND_CONTROL: u8 = 1;
const KIND_DATA: u8 = 2;

/// Names a session. Whoever holds it may resume the session, so it is never logged.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SessionToken(pub [u8; 16]);

impl std::fmt::Debug for SessionToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SessionToken(..)")
    }
}

/// What a connection is for. On `udp` the preamble is the first datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preamble {
    /// The control channel of a session, new or resumed (its `Hello` says which).
    Control,
    /// The records of one driver of a session.
    Data {
        /// The session.
        session: SessionToken,
        /// The driver, as its `Open` numbered it.
        driver: u32,
    },
}

impl Preamble {
    /// Bytes of a preamble, whichever kind.
    pub const BYTES: usize = 4 + 2 + 1 + 1 + 16 + 4;

    /// The preamble as bytes.
    pub fn emit(&self) -> [u8; Self::BYTES] {
        let (kind, session, driver) = match self {
            Preamble::Control => (KIND_CONTROL, [0; 16], 0),
            Preamble::Data { session, driver } => (KIND_DATA, session.0, *driver),
        };
        let mut writer = Writer::new();
        writer.raw(&MAGIC).u16(PROTOCOL_VERSION).u8(kind).u8(0).raw(&session).u32(driver);
        let mut bytes = [0; Self::BYTES];
        bytes.copy_from_slice(&writer.finish());
        bytes
    }

    /// Reads a preamble; the version is checked before anything that depends on it.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(bytes);
        let began = reader.array::<4>("preamble magic")?;
        if began != MAGIC {
            return Err(WireError::Magic { began });
        }
        let theirs = reader.u16("preamble version")?;
        if theirs != PROTOCOL_VERSION {
            return Err(WireError::Version { theirs, ours: PROTOCOL_VERSION });
        }
        let kind = reader.u8("preamble kind")?;
        let reserved = reader.u8("preamble reserved byte")?;
        if reserved != 0 {
            return Err(WireError::Value { what: "preamble reserved byte", value: reserved.into() });
        }
        let session = SessionToken(reader.array("preamble session")?);
        let driver = reader.u32("preamble driver")?;
        match kind {
            KIND_CONTROL if session.0 == [0; 16] && driver == 0 => Ok(Preamble::Control),
            KIND_CONTROL => Err(WireError::Value {
                what: "session or driver of a control preamble",
                value: driver.into(),
            }),
            KIND_DATA => Ok(Preamble::Data { session, driver }),
            other => Err(WireError::Value { what: "preamble kind", value: other.into() }),
        }
    }
}
