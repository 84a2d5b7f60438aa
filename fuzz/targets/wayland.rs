//! The events of a Wayland compositor, and the orders of a worker to the threads of the portal.
#![no_main]

use devices::wayland::fuzz;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    fuzz::compositor(bytes);
    fuzz::events(bytes);
    fuzz::order(bytes);
});
