//! Both ends of spacenavd's protocol: requests of a local program, events of a local daemon.
#![no_main]

use devices::spnav::fuzz;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    fuzz::program(bytes);
    fuzz::daemon(bytes);
});
