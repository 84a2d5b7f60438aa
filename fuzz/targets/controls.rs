//! Descriptions and settings of a camera, from the network.
#![no_main]

use devices::v4l2::Properties;
use libfuzzer_sys::fuzz_target;
use wire::formats::controls::Update;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(update) = Update::parse(bytes) {
        assert_eq!(update.to_bytes(), bytes);
    }
    if let Ok(properties) = Properties::parse(bytes) {
        assert_eq!(properties.to_bytes(), bytes);
    }
});
