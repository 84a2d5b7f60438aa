//! The format `viewer`: input events of a screen, sent to the computer that the screen shows.
//! `docs/reference/formats-viewer.md` has the layout and vectors.

use super::video::SIDE_MAX;
use crate::{Reader, WireError, Writer};

/// The longest text in bytes.
pub const TEXT_BYTES_MAX: usize = 1 << 20;

/// The number of pointer buttons, including the four directions of a wheel.
pub const BUTTONS: u32 = 9;

const KEY: u8 = 0;
const POINTER: u8 = 1;
const TEXT: u8 = 2;
const REFRESH: u8 = 3;
const SIZE: u8 = 4;
const FETCH: u8 = 5;

/// The bits of [`Event::Pointer`]'s `buttons`.
pub mod button {
    /// Left.
    pub const LEFT: u16 = 1 << 0;
    /// Middle.
    pub const MIDDLE: u16 = 1 << 1;
    /// Right.
    pub const RIGHT: u16 = 1 << 2;
    /// The wheel, a step up.
    pub const WHEEL_UP: u16 = 1 << 3;
    /// The wheel, a step down.
    pub const WHEEL_DOWN: u16 = 1 << 4;
    /// The wheel, a step to the left.
    pub const WHEEL_LEFT: u16 = 1 << 5;
    /// The wheel, a step to the right.
    pub const WHEEL_RIGHT: u16 = 1 << 6;
    /// Back.
    pub const BACK: u16 = 1 << 7;
    /// Forward.
    pub const FORWARD: u16 = 1 << 8;
}

/// One message of the format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A key was pressed or released.
    Key {
        /// The key symbol, as X11 numbers it (`X11/keysymdef.h`).
        keysym: u32,
        /// True if it is down.
        pressed: bool,
    },
    /// The position of the pointer, and its pressed buttons.
    Pointer {
        /// Pixels from the left edge of the picture, below [`SIDE_MAX`].
        x: u32,
        /// Pixels from its upper edge, below [`SIDE_MAX`].
        y: u32,
        /// The pressed buttons, as in [`button`].
        buttons: u16,
    },
    /// A text was copied to the clipboard: at most [`TEXT_BYTES_MAX`].
    Text(String),
    /// Requests that the next picture is a whole one.
    Refresh,
    /// The size at which the picture is shown.
    Size {
        /// The width in pixels, 1 to [`SIDE_MAX`].
        width: u32,
        /// The height in pixels, 1 to [`SIDE_MAX`].
        height: u32,
    },
    /// Requests the new text on the device's clipboard. A viewer sends it while it has the focus.
    Fetch,
}

impl Event {
    /// Parses a message from the network.
    pub fn parse(body: &[u8]) -> Result<Event, WireError> {
        let mut reader = Reader::new(body);
        let event = match reader.u8("kind")? {
            KEY => {
                let keysym = reader.u32("keysym")?;
                let pressed = match reader.u8("pressed")? {
                    0 => false,
                    1 => true,
                    value => return Err(WireError::Value { what: "pressed", value: value.into() }),
                };
                Event::Key { keysym, pressed }
            }
            POINTER => {
                let x = parse_bounded(&mut reader, "pointer", 0..=SIDE_MAX - 1)?;
                let y = parse_bounded(&mut reader, "pointer", 0..=SIDE_MAX - 1)?;
                match reader.u16("buttons")? {
                    buttons if buttons >> BUTTONS == 0 => Event::Pointer { x, y, buttons },
                    value => return Err(WireError::Value { what: "buttons", value: value.into() }),
                }
            }
            TEXT => Event::Text(parse_text(&mut reader)?.into()),
            REFRESH => Event::Refresh,
            SIZE => Event::Size {
                width: parse_bounded(&mut reader, "width", 1..=SIDE_MAX)?,
                height: parse_bounded(&mut reader, "height", 1..=SIDE_MAX)?,
            },
            FETCH => Event::Fetch,
            kind => return Err(WireError::Value { what: "kind", value: kind.into() }),
        };
        reader.end("viewer message")?;
        Ok(event)
    }

    /// Returns the bytes that [`Event::parse`] reads.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        match self {
            Event::Key { keysym, pressed } => writer.u8(KEY).u32(*keysym).u8((*pressed).into()),
            Event::Pointer { x, y, buttons } => writer.u8(POINTER).u32(*x).u32(*y).u16(*buttons),
            Event::Text(text) => writer.u8(TEXT).raw(text.as_bytes()),
            Event::Refresh => writer.u8(REFRESH),
            Event::Size { width, height } => writer.u8(SIZE).u32(*width).u32(*height),
            Event::Fetch => writer.u8(FETCH),
        };
        writer.finish()
    }
}

/// Parses a text that goes on to the end of the message.
pub(super) fn parse_text<'a>(reader: &mut Reader<'a>) -> Result<&'a str, WireError> {
    let (bytes, limit) = (reader.rest(), TEXT_BYTES_MAX as u64);
    if bytes.len() > TEXT_BYTES_MAX {
        return Err(WireError::TooLong { what: "text", length: bytes.len() as u64, limit });
    }
    std::str::from_utf8(bytes).map_err(|_| WireError::Text { what: "text" })
}

fn parse_bounded(
    reader: &mut Reader<'_>,
    what: &'static str,
    range: std::ops::RangeInclusive<u32>,
) -> Result<u32, WireError> {
    match reader.u32(what)? {
        value if range.contains(&value) => Ok(value),
        value => Err(WireError::Value { what, value: value.into() }),
    }
}
