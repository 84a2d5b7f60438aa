//! Messages of two hosts that pair.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::pairing::Pairing;

fuzz_target!(|bytes: &[u8]| {
    let Some((length, frame)) = bytes.split_first_chunk() else { return };
    let _ = Pairing::frame_bytes(*length);
    if let Ok(message) = Pairing::parse(frame) {
        assert_eq!(message.emit()[2..], *frame);
    }
});
