//! Frames of module processes: header, then body. Each has one encoding.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::module::{MODULE_FRAME_BYTES_MAX, MODULE_HEADER_BYTES};
use wire::{ModuleFrame, ModuleHeader, WireError};

fuzz_target!(|bytes: &[u8]| match ModuleHeader::parse(bytes) {
    Ok(header) => {
        assert!(header.length as usize <= MODULE_FRAME_BYTES_MAX);
        // Ignore the length in the header, so that the fuzzer need not guess it.
        let body = &bytes[MODULE_HEADER_BYTES..];
        match ModuleFrame::parse(header.kind, body) {
            Ok(ModuleFrame::Unknown(kind)) => assert_eq!(kind, header.kind),
            Ok(frame) => {
                let emitted = frame.emit(header.at);
                assert_eq!(emitted[4..], bytes[4..]);
                assert_eq!(ModuleHeader::parse(&emitted).map(|h| h.length as usize), Ok(body.len()));
            }
            Err(_) => {}
        }
    }
    Err(WireError::TooLong { length, .. }) => assert!(length as usize > MODULE_FRAME_BYTES_MAX),
    Err(error) => assert!(bytes.len() < MODULE_HEADER_BYTES, "{error}"),
});
