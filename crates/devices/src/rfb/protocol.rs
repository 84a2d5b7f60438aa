//! The numbers and small messages of RFB (RFC 6143), with the extensions of the community's `rfbproto` specification.

use std::fmt;
use wire::formats::video::Rectangle;

/// The version that server and client announce.
pub(super) const VERSION: &[u8; 12] = b"RFB 003.008\n";

/// The most encodings that a viewer may list. More than this many have never been assigned.
pub(super) const ENCODINGS_MAX: usize = 256;

/// The most bytes of a fence's payload.
pub(super) const FENCE_BYTES_MAX: usize = 64;

/// The largest side of a cursor, in pixels.
pub(super) const CURSOR_SIDE_MAX: u32 = 256;

/// Security types (7.1.2).
pub(super) mod security {
    pub(in super::super) const NONE: u8 = 1;
    pub(in super::super) const PASSWORD: u8 = 2;
    /// Anonymous TLS, the only type of GNOME's server unless its user chooses another one. It is not supported.
    pub(in super::super) const TLS: u8 = 18;
}

/// Message types from viewer to server (7.5).
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

/// Message types from server to viewer (7.6).
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
    /// Compression level 0; levels 1 to 9 have the following numbers.
    pub(in super::super) const COMPRESS_LEVEL_0: i32 = -256;
    /// Only browser viewers list it. They do not support the gradient filter of Tight.
    pub(in super::super) const TIGHT_PNG: i32 = -260;
    pub(in super::super) const DESKTOP_NAME: i32 = -307;
    pub(in super::super) const EXTENDED_DESKTOP_SIZE: i32 = -308;
    pub(in super::super) const FENCE: i32 = -312;
    pub(in super::super) const CONTINUOUS_UPDATES: i32 = -313;
    pub(in super::super) const CURSOR_WITH_ALPHA: i32 = -314;
    pub(in super::super) const EXTENDED_CLIPBOARD: i32 = 0xc0a1_e5ce_u32 as i32;
}

/// The flags of a fence.
pub(super) mod fence {
    /// The peer must process all earlier messages before it replies.
    pub(in super::super) const BLOCK_BEFORE: u32 = 1;
    /// The peer must reply before it processes later messages.
    pub(in super::super) const BLOCK_AFTER: u32 = 2;
    /// The fence is a request: the peer must reply.
    pub(in super::super) const REQUEST: u32 = 1 << 31;
}

/// A violation of the protocol, or a request that is not supported. It ends the connection.
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
        Fault(format!("a message is truncated: {error}"))
    }
}

/// Returns the minor version to use with a peer that announces `version`: 3, 7 or 8.
pub(super) fn parse_version(version: &[u8; VERSION.len()]) -> Result<u8, Fault> {
    let number = |digits: &[u8]| std::str::from_utf8(digits).ok()?.parse::<u16>().ok();
    match (&version[..4], number(&version[4..7]), version[7], number(&version[8..11]), version[11]) {
        (b"RFB ", Some(major), b'.', Some(minor), b'\n') => Ok(match (major, minor) {
            (..3, _) => return Err(Fault(format!("it speaks version {major}.{minor} of RFB, not 3"))),
            (3, ..7) => 3,
            (3, 7) => 7,
            _ => 8,
        }),
        _ => Err(Fault::new("it does not speak RFB")),
    }
}

/// Appends the header of a rectangle in an update (7.6.1).
pub(super) fn emit_rectangle(out: &mut Vec<u8>, rectangle: &Rectangle, encoding: i32) {
    for side in [rectangle.x, rectangle.y, rectangle.width, rectangle.height] {
        out.extend((side as u16).to_be_bytes());
    }
    out.extend(encoding.to_be_bytes());
}

/// Appends a fence. It has the same layout in both directions.
pub(super) fn emit_fence(out: &mut Vec<u8>, flags: u32, payload: &[u8]) {
    let payload = &payload[..payload.len().min(FENCE_BYTES_MAX)];
    out.extend([to_viewer::FENCE, 0, 0, 0]);
    out.extend(flags.to_be_bytes());
    out.push(payload.len() as u8);
    out.extend(payload);
}
