//! Descriptions and events of an input device, from the network.
#![no_main]

use devices::evdev::Properties;
use libfuzzer_sys::fuzz_target;
use wire::formats::evdev::Update;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(properties) = Properties::parse(bytes) {
        let written = properties.to_bytes();
        let again = Properties::parse(&written).expect("a written text parses");
        assert_eq!(again.to_bytes(), written);
    }
    if let Ok(update) = Update::parse(bytes) {
        assert_eq!(Update::parse(&update.to_bytes()), Ok(update));
    }
});
