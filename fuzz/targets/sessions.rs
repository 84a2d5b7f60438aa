//! Replies of an NBD server to the requests of a disk with sessions.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| devices::nbd::fuzz::replies(bytes));
