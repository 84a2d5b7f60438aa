//! Numbers and small messages of RFB (RFC 6143, and the community's `rfbproto` for what viewers use beyond it).

use std::fmt;
use wire::formats::video::Rectangle;

/// The version that both our sides speak.
pub(super) const VERSION: &[u8; 12] = b"RFB 003.008\n";

/// Most bytes of a text from a peer: a clipboard, a name, a reason.
pub(super) const TEXT_BYTES_MAX: usize = 1 << 20;

/// Most encodings that a viewer may list: more than all that were ever given a number.
pub(super) const ENCODINGS_MAX: usize = 256;

/// Most bytes that a fence carries.
pub(super) const FENCE_BYTES_MAX: usize = 64;

/// Largest side of a cursor, in pixels.
pub(super) const CURSOR_SIDE_MAX: u32 = 256;

/// Security types (7.1.2).
pub(super) mod security {
    pub(in super::super) const NONE: u8 = 1;
    pub(in super::super) const PASSWORD: u8 = 2;
}

/// Messages of a viewer (7.5).
pub(super) mod to_server {
    pub(in super::super) const SET_PIXEL_FORMAT: u8 = 0;
    pub(in super::super) const SET_ENCODINGS: u8 = 2;
    pub(in super::super) const UPDATE_REQUEST: u8 = 3;
    pub(in super::super) const KEY: u8 = 4;
    pub(in super::super) const POINTER: u8 = 5;
    pub(in super::super) const CUT_TEXT: u8 = 6;
    pub(in super::super) const CONTINUOUS_UPDATES: u8 = 150;
    pub(in super::super) const FENCE: u8 = 248;
    pub(in super::super) const SET_DESKTOP_SIZE: u8 = 251;
}

/// Messages of a server (7.6).
pub(super) mod to_viewer {
    pub(in super::super) const UPDATE: u8 = 0;
    pub(in super::super) const COLOUR_MAP: u8 = 1;
    pub(in super::super) const BELL: u8 = 2;
    pub(in super::super) const CUT_TEXT: u8 = 3;
    pub(in super::super) const END_OF_CONTINUOUS_UPDATES: u8 = 150;
    pub(in super::super) const FENCE: u8 = 248;
}

/// Encodings and pseudo-encodings (7.7, 7.8).
pub(super) mod encoding {
    pub(in super::super) const RAW: i32 = 0;
    pub(in super::super) const COPY_RECT: i32 = 1;
    pub(in super::super) const TIGHT: i32 = 7;
    pub(in super::super) const ZRLE: i32 = 16;
    pub(in super::super) const DESKTOP_SIZE: i32 = -223;
    pub(in super::super) const LAST_RECT: i32 = -224;
    pub(in super::super) const CURSOR: i32 = -239;
    /// Of 0 to 9 for the highest ratio; this is 0.
    pub(in super::super) const COMPRESS_LEVEL_0: i32 = -256;
    /// Only viewers in a browser name it, and they read no gradients of Tight.
    pub(in super::super) const TIGHT_PNG: i32 = -260;
    pub(in super::super) const DESKTOP_NAME: i32 = -307;
    pub(in super::super) const EXTENDED_DESKTOP_SIZE: i32 = -308;
    pub(in super::super) const FENCE: i32 = -312;
    pub(in super::super) const CONTINUOUS_UPDATES: i32 = -313;
    pub(in super::super) const CURSOR_WITH_ALPHA: i32 = -314;
    pub(in super::super) const EXTENDED_CLIPBOARD: i32 = 0xc0a1_e5ce_u32 as i32;
}

/// Flags of a fence.
pub(super) mod fence {
    /// Everything before it is done before it is answered.
    pub(in super::super) const BLOCK_BEFORE: u32 = 1;
    /// Nothing behind it is begun before it is answered.
    pub(in super::super) const BLOCK_AFTER: u32 = 2;
    /// It wants an answer.
    pub(in super::super) const REQUEST: u32 = 1 << 31;
}

/// A peer broke the protocol, or asks for what there is not: why its connection ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fault(pub(super) String);

impl Fault {
    pub(super) fn new(problem: impl Into<String>) -> Fault {
        Fault(problem.into())
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<bytes::TryGetError> for Fault {
    fn from(error: bytes::TryGetError) -> Fault {
        Fault(format!("a message is cut short: {error}"))
    }
}

/// A rectangle's header in an update (7.6.1).
pub(super) fn emit_rectangle(out: &mut Vec<u8>, rectangle: &Rectangle, encoding: i32) {
    for side in [rectangle.x, rectangle.y, rectangle.width, rectangle.height] {
        out.extend((side as u16).to_be_bytes());
    }
    out.extend(encoding.to_be_bytes());
}

/// A fence, which looks alike both ways.
pub(super) fn emit_fence(out: &mut Vec<u8>, flags: u32, payload: &[u8]) {
    let payload = &payload[..payload.len().min(FENCE_BYTES_MAX)];
    out.extend([to_viewer::FENCE, 0, 0, 0]);
    out.extend(flags.to_be_bytes());
    out.push(payload.len() as u8);
    out.extend(payload);
}

/// UTF-8 as Latin-1, the text of RFB's old clipboard; what has no place there becomes a question mark.
pub(super) fn to_latin_1(text: &str) -> Vec<u8> {
    text.chars().map(|letter| u8::try_from(u32::from(letter)).unwrap_or(b'?')).collect()
}

/// The other way round.
pub(super) fn from_latin_1(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| char::from(*byte)).collect()
}
