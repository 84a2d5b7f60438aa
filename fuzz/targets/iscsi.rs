//! The login, the greeting and the replies of an iSCSI target.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| devices::iscsi::fuzz::bytes(bytes));
