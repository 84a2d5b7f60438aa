//! Messages of a HID device, and its description, from the network.
#![no_main]

use devices::hid::fuzz;
use libfuzzer_sys::fuzz_target;
use wire::formats::hid::Update;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(update) = Update::parse(bytes) {
        assert_eq!(update.to_bytes(), bytes);
    }
    fuzz::device(bytes);
});
