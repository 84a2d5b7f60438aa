//! Frames of the control channel: each has one way to be written.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::Control;

fuzz_target!(|bytes: &[u8]| {
    let mut left = bytes;
    while let Ok(Some((message, length))) = Control::parse_frame(left) {
        assert_eq!(message.emit(), left[..length]);
        left = &left[length..];
    }
    // The message alone, so that a length need not be guessed.
    if let Ok(message) = Control::parse(bytes) {
        assert_eq!(message.emit()[4..], *bytes);
    }
});
