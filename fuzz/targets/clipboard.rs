//! Messages of Extended Clipboard, of a VNC viewer and of a VNC server.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| devices::rfb::fuzz::clipboard(bytes));
