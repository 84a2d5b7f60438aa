//! The format `midi`: one MIDI message in each message, with its status byte. `docs/reference/formats-midi.md` has the layout
//! and vectors.

use crate::WireError;

/// The longest system exclusive message, with its first and its last byte.
pub const SYSEX_BYTES_MAX: usize = 64 << 10;

/// The first byte of a system exclusive message.
pub const SYSEX: u8 = 0xf0;
/// The last byte of a system exclusive message.
pub const SYSEX_END: u8 = 0xf7;
/// The first of the real-time messages: one byte, allowed inside of other messages.
pub const REAL_TIME: u8 = 0xf8;

/// A complete MIDI message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MidiMessage(Vec<u8>);

impl MidiMessage {
    /// Parses a message from the network. Its bytes are those of a MIDI cable.
    pub fn parse(body: &[u8]) -> Result<MidiMessage, WireError> {
        let [status, data @ ..] = body else {
            return Err(WireError::Short { what: "status", needed: 1, left: 0 });
        };
        let short = |needed| WireError::Short { what: "data", needed, left: data.len() };
        let data = match (data_bytes(*status), data) {
            (Some(length), data) if data.len() == length => data,
            (Some(length), data) if data.len() < length => return Err(short(length)),
            (Some(length), data) => {
                return Err(WireError::Trailing { what: "midi message", left: data.len() - length });
            }
            (None, _) if body.len() > SYSEX_BYTES_MAX => {
                let (length, limit) = (body.len() as u64, SYSEX_BYTES_MAX as u64);
                return Err(WireError::TooLong { what: "system exclusive", length, limit });
            }
            (None, [data @ .., SYSEX_END]) if *status == SYSEX => data,
            (None, _) if *status == SYSEX => return Err(short(data.len() + 1)),
            (None, _) => return Err(WireError::Value { what: "status", value: (*status).into() }),
        };
        match data.iter().find(|byte| **byte > 0x7f) {
            None => Ok(MidiMessage(body.to_vec())),
            Some(byte) => Err(WireError::Value { what: "data", value: (*byte).into() }),
        }
    }

    /// Returns the bytes that [`MidiMessage::parse`] reads.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the bytes, without a copy.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

/// Returns the number of bytes behind a status byte. `None` if it begins a system exclusive message, or no message at all.
pub fn data_bytes(status: u8) -> Option<usize> {
    match status {
        0x80..=0xbf | 0xe0..=0xef | 0xf2 => Some(2),
        0xc0..=0xdf | 0xf1 | 0xf3 => Some(1),
        0xf6 | 0xf8 | 0xfa..=0xfc | 0xfe | 0xff => Some(0),
        _ => None,
    }
}
