//! Frames that a worker can send to its broker: valid ones, as the worker encodes them (`crates/worker/src/report.rs`), and changed
//! ones.

use bytes::BytesMut;
use flow::stats::{DriverStats, FlowStats};
use netsim::Rng;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};
use wire::{Control, FlowControl, Writer};
use worker::next_report;

/// Kinds of reports.
const NOTICE: u8 = 0;
pub(super) const SAID: u8 = 1;
pub(super) const STATS: u8 = 2;
pub(super) const TRACED: u8 = 3;
pub(super) const ALIVE: u8 = 4;
pub(super) const WARNING: u8 = 5;
const REFUSED: u8 = 6;
const HOLDS: u8 = 7;
/// Kinds of notices.
pub(super) const SEND: u8 = 0;
pub(super) const PARTNER_GONE: u8 = 1;
pub(super) const LINK_FAILED: u8 = 2;
pub(super) const CHANGED: u8 = 3;
pub(super) const FLOW_ENDED: u8 = 4;
pub(super) const INCIDENT: u8 = 5;
pub(super) const STORE_FULL: u8 = 6;
pub(super) const FAILED: u8 = 7;
pub(super) const LINK_HELD_BACK: u8 = 8;
pub(super) const PARTNER_RETURNED: u8 = 9;
pub(super) const MISSED: u8 = 10;
pub(super) const LOST: u8 = 11;
pub(super) const WAYS_WANTED: u8 = 12;

/// Drivers that a session of one device can have.
pub(super) const DRIVERS: std::ops::Range<u32> = 0..4;
/// Most frames in one run of the parser.
const FRAMES_MAX: u64 = 3;
/// Most changes to one run.
const CHANGES_MAX: u64 = 4;
/// Values at the limits of lengths and counts.
const LIMITS: [u32; 8] = [0, 1, 0xffff, 0x1_0000, 0x1_0001, 16 << 20, (16 << 20) + 1, u32::MAX];

/// Returns the frame of a report.
pub(super) fn frame(report: &[u8]) -> Vec<u8> {
    let mut w = Writer::new();
    w.u32(report.len() as u32).u16(0).raw(report);
    w.finish()
}

/// Returns a report of one kind.
pub(super) fn report(kind: u8, fill: impl FnOnce(&mut Writer) -> &mut Writer) -> Vec<u8> {
    let mut w = Writer::new();
    fill(w.u8(kind));
    frame(&w.finish())
}

/// Returns a notice of a driver.
pub(super) fn notice(driver: u32, kind: u8, fill: impl FnOnce(&mut Writer) -> &mut Writer) -> Vec<u8> {
    report(NOTICE, |w| fill(w.u32(driver).u8(kind)))
}

/// Returns a notice of every driver.
pub(super) fn notices(kind: u8, fill: impl Fn(&mut Writer) -> &mut Writer) -> Vec<u8> {
    DRIVERS.flat_map(|driver| notice(driver, kind, &fill)).collect()
}

/// Returns a notice with a message for the peer.
pub(super) fn message(driver: u32, message: &Control) -> Vec<u8> {
    notice(driver, SEND, |w| w.blob(&message.emit()))
}

/// Returns the statistics of a driver with one flow.
pub(super) fn stats(driver: u32, flow: u32, pipeline: &str) -> Vec<u8> {
    let flow = FlowStats { flow, epoch: 1, pipeline: pipeline.into(), ..FlowStats::default() };
    let stats = DriverStats { linked: true, present: true, outgoing: Some(flow), ..DriverStats::default() };
    let stats = serde_json::to_vec(&stats).expect("numbers and texts are JSON");
    report(STATS, |w| w.u32(driver).blob(&stats))
}

/// Returns a message of each kind that the broker accepts.
fn valid() -> Vec<Vec<u8>> {
    let text = |kind| notice(1, kind, |w| w.text("a reason"));
    let flow = |message| self::message(1, &Control::Flow { flow: 2, message });
    vec![
        flow(FlowControl::Acknowledge { epoch: 1, next: 7 }),
        flow(FlowControl::Pair { epoch: 1, pair: 1, body: vec![1, 2, 3] }),
        text(PARTNER_GONE),
        notice(1, PARTNER_RETURNED, |w| w),
        text(LINK_FAILED),
        notice(1, LINK_HELD_BACK, |w| w),
        notice(1, WAYS_WANTED, |w| w.u32(128)),
        notice(1, CHANGED, |w| w.u8(0).u8(1).text("bundle(count=10) | compress(zstd, level=3)")),
        notice(1, FLOW_ENDED, |w| w.u8(1)),
        text(INCIDENT),
        notice(1, STORE_FULL, |w| w.text("block")),
        text(FAILED),
        report(SAID, |w| w.u64(1).u8(1).text("an answer")),
        notice(1, MISSED, |w| w.u8(0).u64(7)),
        notice(1, LOST, |w| w.u64(7).text("a reason")),
        stats(1, 2, "null"),
        report(TRACED, |w| w.u32(1).blob(b"[]")),
        report(ALIVE, |w| w.u64(1)),
        report(WARNING, |w| w.text("a warning")),
        report(REFUSED, |w| w.text("openat")),
        report(HOLDS, |w| w.u8(1)),
    ]
}

/// The result of many changed frames.
pub(super) struct Fuzzed {
    pub(super) frames: u64,
    pub(super) seed: u64,
    /// Reports that the parser accepted, and runs that it refused.
    pub(super) accepted: u64,
    pub(super) refused: u64,
    pub(super) slowest: Duration,
    /// The first input that makes the parser panic.
    pub(super) finding: Option<Vec<u8>>,
}

impl fmt::Display for Fuzzed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fuzzed { frames, seed, accepted, refused, slowest, finding } = self;
        write!(
            f,
            "Frames: {frames}, seed {seed}. Accepted reports: {accepted}. Inputs refused: {refused}. Longest time for one input: {} µs. ",
            slowest.as_micros()
        )?;
        match finding {
            None => writeln!(f, "Found: nothing."),
            Some(bytes) => writeln!(f, "**Found**: the parser panics at {bytes:02x?}."),
        }
    }
}

/// Parses `frames` frames as a broker does.
pub(super) fn fuzz(frames: u64, seed: u64) -> Fuzzed {
    let valid = valid();
    let mut rng = Rng::new(seed, 0);
    let mut fuzzed =
        Fuzzed { frames: 0, seed, accepted: 0, refused: 0, slowest: Duration::ZERO, finding: None };
    while fuzzed.frames < frames && fuzzed.finding.is_none() {
        let mut bytes = Vec::new();
        let count = 1 + rng.up_to(FRAMES_MAX - 1);
        for _ in 0..count {
            bytes.extend(&valid[rng.up_to(valid.len() as u64 - 1) as usize]);
        }
        for _ in 0..rng.up_to(CHANGES_MAX) {
            change(&mut bytes, &mut rng);
        }
        fuzzed.frames += count;
        let mut received = BytesMut::from(&bytes[..]);
        let begun = Instant::now();
        let parsed = catch_unwind(AssertUnwindSafe(|| {
            let mut accepted = 0;
            loop {
                match next_report(&mut received) {
                    Ok(Some(_)) => accepted += 1,
                    Ok(None) => return (accepted, 0),
                    Err(_) => return (accepted, 1),
                }
            }
        }));
        fuzzed.slowest = fuzzed.slowest.max(begun.elapsed());
        match parsed {
            Ok((accepted, refused)) => {
                fuzzed.accepted += accepted;
                fuzzed.refused += refused;
            }
            Err(_) => fuzzed.finding = Some(bytes),
        }
    }
    fuzzed
}

/// Changes bytes at a random place.
fn change(bytes: &mut Vec<u8>, rng: &mut Rng) {
    if bytes.is_empty() {
        return;
    }
    let at = rng.up_to(bytes.len() as u64 - 1) as usize;
    let end = (at + 1 + rng.up_to(15) as usize).min(bytes.len());
    match rng.up_to(6) {
        0 => bytes[at] ^= 1 << rng.up_to(7),
        1 => bytes[at] = rng.draw() as u8,
        2 => bytes.truncate(at),
        3 => drop(bytes.drain(at..end)),
        4 => {
            let part = bytes[at..end].to_vec();
            bytes.splice(at..at, part);
        }
        5 => bytes.insert(at, rng.draw() as u8),
        _ => {
            let value = LIMITS[rng.up_to(LIMITS.len() as u64 - 1) as usize].to_le_bytes();
            let end = (at + value.len()).min(bytes.len());
            bytes[at..end].copy_from_slice(&value[..end - at]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_accepts_each_valid_frame() {
        for (number, frame) in valid().iter().enumerate() {
            let parsed = next_report(&mut BytesMut::from(&frame[..]));
            assert!(matches!(parsed, Ok(Some(_))), "frame {number}: {}", parsed.err().unwrap_or_default());
        }
    }
}
