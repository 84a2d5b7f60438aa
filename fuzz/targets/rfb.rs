//! Messages of a VNC viewer to the server, and of a VNC server to the client.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((side, bytes)) = bytes.split_first() else { return };
    match side & 1 {
        0 => devices::rfb::fuzz::viewer(bytes),
        _ => devices::rfb::fuzz::server(bytes),
    }
});
