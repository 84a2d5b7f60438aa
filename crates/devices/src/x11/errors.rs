//! Converts I/O errors of the connection with an X server.

use crate::plain::{is_lost, os};
use contract::{DeviceError, PartnerError};
use std::io;

/// Returns the partner's error for a failed connection with the server of display `name`.
pub(super) fn partner_error(name: &str, error: io::Error) -> PartnerError {
    use io::ErrorKind as Kind;
    match error.kind() {
        kind if kind == Kind::UnexpectedEof || is_lost(kind) => {
            PartnerError::Gone(format!("the X server at {name}"))
        }
        Kind::InvalidData => PartnerError::Peer(error.to_string()),
        _ => PartnerError::os(format!("communicating with the X server at {name}"), error),
    }
}

/// Returns a converter of errors that occur while the partner is made.
pub(super) fn device_error(name: &str) -> impl Fn(io::Error) -> DeviceError + use<> {
    let operation = format!("communicating with the X server at {name}");
    move |error| os(operation.clone(), error, None)
}
