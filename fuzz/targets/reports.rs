//! Frames of a worker's reports, as its broker reads them.
#![no_main]

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use worker::next_report;

/// Bytes of a frame's length and its number of descriptors.
const HEADER_BYTES: usize = 6;

fuzz_target!(|bytes: &[u8]| {
    let mut received = BytesMut::from(bytes);
    while let Ok(Some(_)) = next_report(&mut received) {}
    // The same bytes as one report, so that the fuzzer need not guess the length.
    let mut whole = BytesMut::with_capacity(HEADER_BYTES + bytes.len());
    whole.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    whole.extend_from_slice(&[0, 0]);
    whole.extend_from_slice(bytes);
    assert!(!matches!(next_report(&mut whole), Ok(None)), "a whole frame is read or refused");
});
