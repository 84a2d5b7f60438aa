//! The first bytes on every connection: who speaks, which version, and what the connection is for.

use crate::{PROTOCOL_VERSION, Reader, WireError, Writer};

const MAGIC: [u8; 4] = *b"OUTB";
const KIND_CONTROL: u8 = 1;
const KIND_DATA: u8 = 2;
const KIND_SECURE_CONTROL: u8 = 3;
const KIND_SECURE_DATA: u8 = 4;
const KIND_PAIRING: u8 = 5;

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
    /// The control channel of a session, new or resumed (its `Hello` says which), between hosts that nobody knows.
    Control,
    /// The records of one driver of a session, bare.
    Data {
        /// The session.
        session: SessionToken,
        /// The driver, as its `Open` numbered it.
        driver: u32,
    },
    /// The same over TLS, which begins behind it.
    SecureControl,
    /// The sealed records of one driver: the beginning of an [`Introduction`].
    SecureData {
        /// Names the control channel, from its exporter.
        channel: [u8; 16],
        /// The driver, as its `Open` numbered it.
        driver: u32,
    },
    /// Two hosts get to know each other, over TLS, which begins behind it.
    Pairing,
}

/// What begins a sealed data connection: a preamble, and a proof that whoever says it has the control channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Introduction {
    /// Names the control channel, from its exporter.
    pub channel: [u8; 16],
    /// The driver.
    pub driver: u32,
    /// Rises with each connection of the channel; none serves twice.
    pub number: u32,
    /// HMAC-SHA-256 of what stands before it, by a key from the channel's exporter.
    pub proof: [u8; 32],
}

impl Introduction {
    /// Bytes of an introduction.
    pub const BYTES: usize = Preamble::BYTES + 4 + 32;

    /// What the proof is about: all that stands before it.
    pub fn proven(&self) -> [u8; Preamble::BYTES + 4] {
        let mut bytes = [0; Preamble::BYTES + 4];
        let preamble = Preamble::SecureData { channel: self.channel, driver: self.driver };
        bytes[..Preamble::BYTES].copy_from_slice(&preamble.emit());
        bytes[Preamble::BYTES..].copy_from_slice(&self.number.to_le_bytes());
        bytes
    }

    /// The introduction as bytes.
    pub fn emit(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..Preamble::BYTES + 4].copy_from_slice(&self.proven());
        bytes[Preamble::BYTES + 4..].copy_from_slice(&self.proof);
        bytes
    }

    /// Reads an introduction. Whether its proof holds is for who has the key.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let Preamble::SecureData { channel, driver } = Preamble::parse(bytes)? else {
            return Err(WireError::Value { what: "kind of an introduction", value: bytes[6].into() });
        };
        let mut reader = Reader::new(&bytes[Preamble::BYTES..]);
        let number = reader.u32("introduction number")?;
        let proof = reader.array("introduction proof")?;
        reader.end("introduction")?;
        Ok(Introduction { channel, driver, number, proof })
    }
}

impl Preamble {
    /// Bytes of a preamble, whichever kind.
    pub const BYTES: usize = 4 + 2 + 1 + 1 + 16 + 4;

    /// The preamble as bytes.
    pub fn emit(&self) -> [u8; Self::BYTES] {
        let (kind, session, driver) = match self {
            Preamble::Control => (KIND_CONTROL, [0; 16], 0),
            Preamble::Data { session, driver } => (KIND_DATA, session.0, *driver),
            Preamble::SecureControl => (KIND_SECURE_CONTROL, [0; 16], 0),
            Preamble::SecureData { channel, driver } => (KIND_SECURE_DATA, *channel, *driver),
            Preamble::Pairing => (KIND_PAIRING, [0; 16], 0),
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
        let session: [u8; 16] = reader.array("preamble session")?;
        let driver = reader.u32("preamble driver")?;
        let plain = |preamble: Preamble| match session == [0; 16] && driver == 0 {
            true => Ok(preamble),
            false => Err(WireError::Value {
                what: "session or driver of a preamble that has none",
                value: driver.into(),
            }),
        };
        match kind {
            KIND_CONTROL => plain(Preamble::Control),
            KIND_DATA => Ok(Preamble::Data { session: SessionToken(session), driver }),
            KIND_SECURE_CONTROL => plain(Preamble::SecureControl),
            KIND_SECURE_DATA => Ok(Preamble::SecureData { channel: session, driver }),
            KIND_PAIRING => plain(Preamble::Pairing),
            other => Err(WireError::Value { what: "preamble kind", value: other.into() }),
        }
    }
}
