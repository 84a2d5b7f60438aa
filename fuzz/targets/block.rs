//! Messages of a disk in both directions, and its description, from the network.
#![no_main]

use devices::block::fuzz;
use libfuzzer_sys::fuzz_target;
use wire::formats::block::{FromDisk, REQUEST_BYTES, ToDisk};

fuzz_target!(|bytes: &[u8]| {
    let front = |length: usize| &bytes[..bytes.len().min(length)];
    if let Ok(message) = ToDisk::parse(front(REQUEST_BYTES), bytes.len()) {
        assert!(bytes.starts_with(&message.to_bytes()));
    }
    if let Ok(message) = FromDisk::parse(front(FromDisk::HEADER_BYTES_MAX), bytes.len()) {
        assert!(bytes.starts_with(&message.to_bytes()));
    }
    fuzz::description(bytes);
});
