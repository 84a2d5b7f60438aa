//! Events of a viewer, from the network.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::formats::viewer::Event;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(event) = Event::parse(bytes) {
        assert_eq!(event.to_bytes(), bytes);
    }
});
