//! MIDI: messages from the network, bytes of a cable, events of the sequencer.
#![no_main]

use devices::midi::fuzz;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    fuzz::message(bytes);
    fuzz::cable(bytes);
    fuzz::events(bytes);
});
