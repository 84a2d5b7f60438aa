//! The first bytes on every connection: magic, version, and the purpose of the connection.

use crate::{PROTOCOL_VERSION, Reader, WireError, Writer};

const MAGIC: [u8; 4] = *b"OUTB";
const KIND_CONTROL: u8 = 1;
const KIND_DATA: u8 = 2;
const KIND_SECURE_CONTROL: u8 = 3;
const KIND_SECURE_DATA: u8 = 4;
const KIND_PAIRING: u8 = 5;
const KIND_WAY: u8 = 6;
const KIND_SECURE_WAY: u8 = 7;

/// Identifies a session. Its holder may resume the session, so it is never logged.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SessionToken(pub [u8; 16]);

impl std::fmt::Debug for SessionToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SessionToken(..)")
    }
}

/// The purpose of a connection. On `udp` the preamble is the first datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preamble {
    /// The control channel of a session without authentication and encryption. Its `Hello` tells if it resumes
    /// one.
    Control,
    /// The unencrypted records of one driver.
    Data {
        /// The session.
        session: SessionToken,
        /// The driver's number from its `Open`.
        driver: u32,
    },
    /// As `Control`, but over TLS, which starts after the preamble.
    SecureControl,
    /// The encrypted records of one driver: the start of an [`Introduction`].
    SecureData {
        /// Identifies the control channel; from its TLS exporter.
        channel: [u8; 16],
        /// The driver's number from its `Open`.
        driver: u32,
    },
    /// As `Data`: another connection of the driver's link, for a transport with several (`striped`).
    Way {
        /// The session.
        session: SessionToken,
        /// The driver's number from its `Open`.
        driver: u32,
    },
    /// As `SecureData`: another connection of the driver's link.
    SecureWay {
        /// Identifies the control channel; from its TLS exporter.
        channel: [u8; 16],
        /// The driver's number from its `Open`.
        driver: u32,
    },
    /// Two hosts pair, over TLS, which starts after the preamble.
    Pairing,
}

/// The start of an encrypted data connection: a preamble, and a proof that the sender owns the control channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Introduction {
    /// Identifies the control channel; from its TLS exporter.
    pub channel: [u8; 16],
    /// The driver.
    pub driver: u32,
    /// The connection is another one of the driver's link.
    pub is_way: bool,
    /// Rises with each connection of the channel; none is accepted twice.
    pub number: u32,
    /// HMAC-SHA-256 of all bytes before it, with a key from the channel's TLS exporter.
    pub proof: [u8; 32],
}

impl Introduction {
    /// The length of an introduction in bytes.
    pub const BYTES: usize = Preamble::BYTES + 4 + 32;

    /// The bytes that the proof covers: all before it.
    pub fn proven(&self) -> [u8; Preamble::BYTES + 4] {
        let mut bytes = [0; Preamble::BYTES + 4];
        let (channel, driver) = (self.channel, self.driver);
        let preamble = match self.is_way {
            true => Preamble::SecureWay { channel, driver },
            false => Preamble::SecureData { channel, driver },
        };
        bytes[..Preamble::BYTES].copy_from_slice(&preamble.emit());
        bytes[Preamble::BYTES..].copy_from_slice(&self.number.to_le_bytes());
        bytes
    }

    /// Returns the introduction as bytes.
    pub fn emit(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..Preamble::BYTES + 4].copy_from_slice(&self.proven());
        bytes[Preamble::BYTES + 4..].copy_from_slice(&self.proof);
        bytes
    }

    /// Parses an introduction. The caller, who has the key, must check its proof.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let (channel, driver, is_way) = match Preamble::parse(bytes)? {
            Preamble::SecureData { channel, driver } => (channel, driver, false),
            Preamble::SecureWay { channel, driver } => (channel, driver, true),
            _ => return Err(WireError::Value { what: "kind of an introduction", value: bytes[6].into() }),
        };
        let mut reader = Reader::new(&bytes[Preamble::BYTES..]);
        let number = reader.u32("introduction number")?;
        let proof = reader.array("introduction proof")?;
        reader.end("introduction")?;
        Ok(Introduction { channel, driver, is_way, number, proof })
    }
}

impl Preamble {
    /// The length of a preamble in bytes, of any kind.
    pub const BYTES: usize = 4 + 2 + 1 + 1 + 16 + 4;

    /// Returns the preamble as bytes.
    pub fn emit(&self) -> [u8; Self::BYTES] {
        let (kind, session, driver) = match self {
            Preamble::Control => (KIND_CONTROL, [0; 16], 0),
            Preamble::Data { session, driver } => (KIND_DATA, session.0, *driver),
            Preamble::SecureControl => (KIND_SECURE_CONTROL, [0; 16], 0),
            Preamble::SecureData { channel, driver } => (KIND_SECURE_DATA, *channel, *driver),
            Preamble::Pairing => (KIND_PAIRING, [0; 16], 0),
            Preamble::Way { session, driver } => (KIND_WAY, session.0, *driver),
            Preamble::SecureWay { channel, driver } => (KIND_SECURE_WAY, *channel, *driver),
        };
        let mut writer = Writer::new();
        writer.raw(&MAGIC).u16(PROTOCOL_VERSION).u8(kind).u8(0).raw(&session).u32(driver);
        let mut bytes = [0; Self::BYTES];
        bytes.copy_from_slice(&writer.finish());
        bytes
    }

    /// Parses a preamble. Checks the version before any field that depends on it.
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
            KIND_WAY => Ok(Preamble::Way { session: SessionToken(session), driver }),
            KIND_SECURE_WAY => Ok(Preamble::SecureWay { channel: session, driver }),
            other => Err(WireError::Value { what: "preamble kind", value: other.into() }),
        }
    }
}
