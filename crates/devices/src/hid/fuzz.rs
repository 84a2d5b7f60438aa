//! Entry point for the fuzzer: the description of a device, which another host sends.

use super::properties::Properties;
use super::reports::Inputs;
use wire::formats::hid::{SNAPSHOT_REPORTS_MAX, Update};

/// Parses a description, and applies the rest of the bytes as reports of that device.
pub fn device(bytes: &[u8]) {
    let Some((length, bytes)) = bytes.split_first_chunk::<2>() else { return };
    let (description, reports) = bytes.split_at(usize::from(u16::from_le_bytes(*length)).min(bytes.len()));
    let Ok((properties, descriptor)) = Properties::parse(description) else { return };
    assert!(properties.to_bytes() == description, "another encoding of the same description");
    let mut inputs = Inputs::new(&properties, descriptor);
    for report in reports.chunks(64) {
        if inputs.observe(report) {
            assert!(inputs.snapshot().iter().all(|report| !report.is_empty()));
        }
    }
    if let Ok(Update::Snapshot(snapshot)) = Update::parse(reports) {
        inputs.move_to(snapshot);
    }
    assert!(inputs.release(&[]).len() <= SNAPSHOT_REPORTS_MAX);
    assert!(inputs.is_neutral(), "a released device is neutral");
}
