//! The first bytes of a connection.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::Preamble;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(preamble) = Preamble::parse(bytes) {
        assert_eq!(preamble.emit(), bytes[..Preamble::BYTES]);
    }
});
