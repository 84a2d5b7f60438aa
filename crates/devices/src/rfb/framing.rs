//! Finds the ends of a viewer's messages (RFC 6143, 7.5).

use super::clipboard;
use super::protocol::{ENCODINGS_MAX, FENCE_BYTES_MAX, Fault, to_server};
use crate::clipboard::TEXT_BYTES_MAX;
use bytes::Buf;

/// Returns the length of the message at the front of `input`; `None` if its header is incomplete. The length of a text
/// that is too long does not include the text, which the caller skips.
pub(super) fn message_length(input: &[u8]) -> Result<Option<usize>, Fault> {
    let Some(&kind) = input.first() else { return Ok(None) };
    let at = |at: usize, bytes: usize| input.get(at..at + bytes);
    Ok(Some(match kind {
        to_server::SET_PIXEL_FORMAT => 20,
        to_server::SET_ENCODINGS => {
            let Some(count) = at(2, 2) else { return Ok(None) };
            let count = usize::from(u16::from_be_bytes([count[0], count[1]]));
            if count > ENCODINGS_MAX {
                return Err(Fault(format!("it lists {count} encodings, over {ENCODINGS_MAX}")));
            }
            4 + 4 * count
        }
        to_server::UPDATE_REQUEST | to_server::CONTINUOUS_UPDATES => 10,
        to_server::KEY => 8,
        to_server::POINTER => 6,
        to_server::CUT_TEXT => {
            let Some(mut length) = at(4, 4) else { return Ok(None) };
            let length = length.try_get_i32()?;
            // Latin-1 may double its length in UTF-8. A negative length marks a message of Extended Clipboard.
            let bytes_max = if length < 0 { clipboard::MESSAGE_BYTES_MAX } else { TEXT_BYTES_MAX / 2 };
            let bytes = length.unsigned_abs() as usize;
            8 + if bytes <= bytes_max { bytes } else { 0 }
        }
        to_server::FENCE => {
            let Some(&[length]) = at(8, 1) else { return Ok(None) };
            if usize::from(length) > FENCE_BYTES_MAX {
                return Err(Fault(format!("it sends a fence of {length} bytes, over {FENCE_BYTES_MAX}")));
            }
            9 + usize::from(length)
        }
        to_server::SET_DESKTOP_SIZE => {
            let Some(&[screens]) = at(6, 1) else { return Ok(None) };
            8 + 16 * usize::from(screens)
        }
        kind => return Err(Fault(format!("it sends a message of unknown type {kind}"))),
    }))
}
