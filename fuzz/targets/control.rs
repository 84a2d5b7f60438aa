//! Frames of the control channel. Each message has one encoding.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::Control;

fuzz_target!(|bytes: &[u8]| {
    let mut left = bytes;
    while let Ok(Some((message, length))) = Control::parse_frame(left) {
        assert_eq!(message.emit(), left[..length]);
        left = &left[length..];
    }
    // Parse the message alone, so that the fuzzer need not guess its length.
    if let Ok(message) = Control::parse(bytes) {
        assert_eq!(message.emit()[4..], *bytes);
    }
});
