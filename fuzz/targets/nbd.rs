//! The NBD protocol: bytes of a client and of a server.
#![no_main]

use devices::nbd::fuzz;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| fuzz::bytes(bytes));
