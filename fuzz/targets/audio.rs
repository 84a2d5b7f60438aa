//! Sound: messages from the network.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::formats::audio::{Frames, encode};

fuzz_target!(|bytes: &[u8]| {
    let Ok(frames) = Frames::parse(bytes) else { return };
    assert_eq!(frames.emit(), bytes);
    let values = frames.to_f32();
    assert_eq!(values.len(), frames.count() * usize::from(frames.spec.channels));
    let again = encode(frames.spec.format, &values);
    assert_eq!(again.len(), frames.samples.len());
});
