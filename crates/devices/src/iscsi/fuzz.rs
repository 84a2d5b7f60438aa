//! Entry point for the fuzzer: bytes of a target.

use super::session::{IscsiSession, Unit};
use crate::sessions::fuzz::replies;

/// Reads the target's side of a session: its login, its answers about the unit, and replies to three requests. With a first byte
/// that is even, the session is open already.
pub fn bytes(bytes: &[u8]) {
    let Some((first, bytes)) = bytes.split_first() else { return };
    let unit = Unit { initiator: "iqn.a".into(), target: "iqn.b".into(), lun: 0 };
    let session = IscsiSession::new(unit, [0; 6], None);
    let session = if first % 2 == 0 { session.opened() } else { session };
    replies(Box::new(session), bytes);
}
