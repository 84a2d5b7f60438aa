//! The first bytes of a connection.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::Preamble;
use wire::preamble::Introduction;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(preamble) = Preamble::parse(bytes) {
        assert_eq!(preamble.emit(), bytes[..Preamble::BYTES]);
    }
    if let Ok(introduction) = Introduction::parse(bytes) {
        assert_eq!(introduction.emit(), bytes);
    }
});
