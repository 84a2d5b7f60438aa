//! The format `controls`: settings of a device. `docs/reference/formats-controls.md` has the layout and
//! vectors.

use crate::{Reader, WireError, Writer};

/// Most settings in one message.
pub const SETTINGS_MAX: usize = 256;

const SETTINGS: u8 = 0;
const WANTED: u8 = 1;

/// One control and its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setting {
    /// The number of the control in the device's description.
    pub id: u32,
    /// The new value.
    pub value: i64,
}

/// One message of the format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Update {
    /// New values; all other controls keep theirs.
    Settings(Vec<Setting>),
    /// True if anybody uses the device's output.
    Wanted(bool),
}

impl Update {
    /// Parses a message from the network.
    pub fn parse(bytes: &[u8]) -> Result<Update, WireError> {
        let mut reader = Reader::new(bytes);
        let update = match reader.u8("kind")? {
            SETTINGS => {
                let count = reader.count("settings", SETTINGS_MAX)?;
                let mut settings = Vec::with_capacity(count);
                for _ in 0..count {
                    let (id, value) = (reader.u32("control")?, reader.u64("value")?.cast_signed());
                    settings.push(Setting { id, value });
                }
                Update::Settings(settings)
            }
            WANTED => match reader.u8("wanted")? {
                wanted @ (0 | 1) => Update::Wanted(wanted == 1),
                other => return Err(WireError::Value { what: "wanted", value: other.into() }),
            },
            other => return Err(WireError::Value { what: "kind", value: other.into() }),
        };
        reader.end("controls")?;
        Ok(update)
    }

    /// Returns the message as bytes; settings after the first [`SETTINGS_MAX`] are left out.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        match self {
            Update::Settings(settings) => {
                let settings = &settings[..settings.len().min(SETTINGS_MAX)];
                writer.u8(SETTINGS).u16(settings.len() as u16);
                for Setting { id, value } in settings {
                    writer.u32(*id).u64(value.cast_unsigned());
                }
            }
            Update::Wanted(wanted) => _ = writer.u8(WANTED).u8((*wanted).into()),
        }
        writer.finish()
    }
}
