//! The header of a record.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::{BODY_BYTES_MAX, RecordHeader, WireError};

fuzz_target!(|bytes: &[u8]| match RecordHeader::parse(bytes, BODY_BYTES_MAX) {
    Ok(header) => {
        assert!(header.container.length as usize <= BODY_BYTES_MAX);
        assert_eq!(header.emit(), bytes[..RecordHeader::BYTES]);
    }
    Err(WireError::TooLong { length, .. }) => assert!(length as usize > BODY_BYTES_MAX),
    Err(error) => assert!(bytes.len() < RecordHeader::BYTES, "{error}"),
});
