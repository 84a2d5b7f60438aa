//! Sound: messages from the network, memory of a compromised worker.
#![no_main]

use devices::audio::fuzz;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    fuzz::message(bytes);
    fuzz::memory(bytes);
});
