//! The header of a container.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::{BODY_BYTES_MAX, Container, WireError};

fuzz_target!(|bytes: &[u8]| match Container::parse(bytes, BODY_BYTES_MAX) {
    Ok(container) => {
        assert!(container.length as usize <= BODY_BYTES_MAX);
        assert_eq!(container.emit(), bytes[..Container::BYTES]);
    }
    Err(WireError::TooLong { length, .. }) => assert!(length as usize > BODY_BYTES_MAX),
    Err(error) => assert!(bytes.len() < Container::BYTES, "{error}"),
});
