//! Events of a 3D mouse, from the network.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::formats::motion::Update;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(update) = Update::parse(bytes) {
        assert_eq!(update.to_bytes(), bytes);
    }
});
