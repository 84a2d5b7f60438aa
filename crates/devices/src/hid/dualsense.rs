//! The DualSense: its reports are vendor-defined for the most part, so the report descriptor does not tell their neutral values
//! (`drivers/hid/hid-playstation.c`).
//!
//! | report | by USB | by Bluetooth |
//! |---|---|---|
//! | input | number 0x01, 64 bytes, state from byte 1 | number 0x31, 78 bytes, state from byte 2, CRC-32 at the end |
//! | output | number 0x02, flags from byte 1 | number 0x31, 78 bytes, flags from byte 3, CRC-32 at the end |

use std::ops::Range;

/// Feature reports that the driver reads while it takes a device, each until it has an answer: pairing (the address), firmware,
/// calibration. They do not change.
pub(super) const START_FEATURES: [u8; 3] = [0x09, 0x20, 0x05];

/// Offsets into the state of an input report.
const STICKS: Range<usize> = 0..4;
const TRIGGERS: Range<usize> = 4..6;
/// Hat and buttons; the rest of the last byte is reserved.
const BUTTONS: Range<usize> = 7..10;
const GYROSCOPE: Range<usize> = 15..21;
const FINGERS: [usize; 2] = [32, 36];
const STATE_BYTES: usize = 40;
pub(super) const STICK_CENTRE: u8 = 0x80;
pub(super) const HAT_CENTRE: u8 = 8;
pub(super) const NO_FINGER: u8 = 0x80;
/// A stick within this distance of its centre is at rest.
pub(super) const STICK_PLAY: u8 = 32;

/// Offsets into an output report, from its flags on.
const MOTORS: Range<usize> = 2..4;
/// Flags of the first byte: both motors are valid.
const MOTORS_VALID: u8 = 3;
/// Bytes of the flags, of the motors and of the lights.
const OUTPUT_BYTES: usize = 47;
/// Outputs that a report sets if one of their flags is set: the byte of the flags, the flags, and the values.
const OUTPUTS: [(usize, u8, Range<usize>); 13] = [
    (0, MOTORS_VALID, MOTORS),
    // Both triggers.
    (0, 0x04, 10..21),
    (0, 0x08, 21..32),
    // Volume of headphones, of the speaker and of the microphone, and their routing.
    (0, 0x10, 4..5),
    (0, 0x20, 5..6),
    (0, 0x40, 6..7),
    (0, 0x80, 7..8),
    // The light of the microphone, and muting.
    (1, 0x01, 8..9),
    (1, 0x02, 9..10),
    // The light bar, the player's lights, their brightness, and the end of the light bar's animation.
    (1, 0x04, 44..47),
    (1, 0x10, 43..44),
    (38, 0x01, 42..43),
    (38, 0x02, 41..42),
];
/// The other way to tell that the motors are valid (`COMPATIBLE_VIBRATION2`).
const MOTORS_VALID_2: (usize, u8) = (38, 0x04);

/// Seeds of the checksum by Bluetooth.
pub(super) const INPUT_SEED: u8 = 0xa1;
pub(super) const OUTPUT_SEED: u8 = 0xa2;
const BLUETOOTH_REPORT: u8 = 0x31;
const BLUETOOTH_BYTES: usize = 78;

/// Returns the state in an input report, if it has one.
fn state(report: &[u8]) -> Option<usize> {
    match (report.first()?, report.len()) {
        (0x01, 64) => Some(1),
        (&BLUETOOTH_REPORT, BLUETOOTH_BYTES) => Some(2),
        _ => None,
    }
}

/// Makes an input report neutral. Acceleration, time and battery keep their values. Returns false for one without a state.
pub(super) fn release(report: &mut [u8]) -> bool {
    let Some(at) = state(report) else { return false };
    let state = &mut report[at..at + STATE_BYTES];
    state[STICKS].fill(STICK_CENTRE);
    state[TRIGGERS].fill(0);
    state[BUTTONS].fill(0);
    state[BUTTONS.start] = HAT_CENTRE;
    state[GYROSCOPE].fill(0);
    FINGERS.into_iter().for_each(|finger| state[finger] |= NO_FINGER);
    seal(report, INPUT_SEED);
    true
}

/// Returns true if an input report is neutral. `None` for one without a state.
pub(super) fn is_neutral(report: &[u8]) -> Option<bool> {
    let at = state(report)?;
    let state = &report[at..at + STATE_BYTES];
    Some(
        state[STICKS].iter().all(|stick| stick.abs_diff(STICK_CENTRE) <= STICK_PLAY)
            && state[TRIGGERS] == [0; 2]
            && state[BUTTONS] == [HAT_CENTRE, 0, 0]
            && FINGERS.into_iter().all(|finger| state[finger] & NO_FINGER != 0),
    )
}

/// Returns the flags in an output report, if it has any.
fn flags(report: &[u8]) -> Option<usize> {
    match (report.first()?, report.len()) {
        (0x02, length) if length > OUTPUT_BYTES => Some(1),
        (&BLUETOOTH_REPORT, BLUETOOTH_BYTES) => Some(3),
        _ => None,
    }
}

/// Returns true if an output report makes a motor run.
pub(super) fn is_rumbling(report: &[u8]) -> bool {
    flags(report).is_some_and(|at| {
        let output = &report[at..at + OUTPUT_BYTES];
        output[0] & MOTORS_VALID != 0 && output[MOTORS] != [0; 2]
    })
}

/// Returns the output report that sets all that the last ones and this one set.
pub(super) fn merged(last: &[u8], report: &[u8]) -> Vec<u8> {
    let mut merged = report.to_vec();
    let Some(at) = flags(report).filter(|_| last.len() == report.len()) else { return merged };
    let (last, new) = (&last[at..at + OUTPUT_BYTES], &mut merged[at..at + OUTPUT_BYTES]);
    let (byte, flag) = MOTORS_VALID_2;
    if new[0] & MOTORS_VALID == 0 {
        new[byte] |= last[byte] & flag;
    }
    for (byte, flags, values) in OUTPUTS {
        if new[byte] & flags == 0 && last[byte] & flags != 0 {
            new[byte] |= last[byte] & flags;
            new[values.clone()].copy_from_slice(&last[values]);
        }
    }
    seal(&mut merged, OUTPUT_SEED);
    merged
}

/// Returns the output report that stops the motors after this one, and leaves the lights as they are.
pub(super) fn without_rumble(report: &[u8]) -> Vec<u8> {
    let mut report = report.to_vec();
    if let Some(at) = flags(&report) {
        report[at..at + OUTPUT_BYTES].fill(0);
        report[at] = MOTORS_VALID;
        if report[0] == BLUETOOTH_REPORT {
            // The upper half is a counter.
            report[1] = report[1].wrapping_add(0x10);
        }
        seal(&mut report, OUTPUT_SEED);
    }
    report
}

/// Corrects the checksum of a report by Bluetooth, which its length tells.
pub(super) fn seal(report: &mut [u8], seed: u8) {
    if report.len() == BLUETOOTH_BYTES
        && let Some((data, checksum)) = report.split_last_chunk_mut::<4>()
    {
        *checksum = crc32(seed, data).to_le_bytes();
    }
}

/// CRC-32 (IEEE 802.3) of a seed and of data.
fn crc32(seed: u8, data: &[u8]) -> u32 {
    let bytes = std::iter::once(&seed).chain(data);
    !bytes.fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| crc >> 1 ^ if crc & 1 == 1 { 0xedb8_8320 } else { 0 })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_the_standard() {
        assert_eq!(crc32(b'1', b"23456789"), 0xcbf4_3926);
    }

    #[test]
    fn a_released_report_by_bluetooth_has_its_checksum() {
        let mut report = vec![0xff; BLUETOOTH_BYTES];
        report[0] = BLUETOOTH_REPORT;
        assert_eq!(is_neutral(&report), Some(false));
        assert!(release(&mut report));
        assert_eq!(is_neutral(&report), Some(true));
        let (data, checksum) = report.split_last_chunk::<4>().unwrap();
        assert_eq!(u32::from_le_bytes(*checksum), crc32(INPUT_SEED, data));
        assert_eq!(report[2 + GYROSCOPE.end], 0xff, "the acceleration keeps its value");
    }

    #[test]
    fn motors_stop_and_lights_stay() {
        let mut report = vec![0; 63];
        report[..5].copy_from_slice(&[2, MOTORS_VALID, 0x04, 0x40, 0x80]);
        assert!(is_rumbling(&report));
        let stopped = without_rumble(&report);
        assert!(!is_rumbling(&stopped));
        assert_eq!(stopped[..5], [2, MOTORS_VALID, 0, 0, 0], "no light is valid");
    }

    #[test]
    fn a_merged_report_sets_what_both_set() {
        let (mut motors, mut light) = (vec![0; BLUETOOTH_BYTES], vec![0; BLUETOOTH_BYTES]);
        motors[..8].copy_from_slice(&[BLUETOOTH_REPORT, 0x10, 0x10, 0x02, 0x00, 0x40, 0x80, 9]);
        motors[3 + 38] = 0x04;
        light[..5].copy_from_slice(&[BLUETOOTH_REPORT, 0x20, 0x10, 0x00, 0x04]);
        light[3 + 44..3 + 47].copy_from_slice(&[1, 2, 3]);
        let both = merged(&motors, &light);
        assert_eq!(both[..8], [BLUETOOTH_REPORT, 0x20, 0x10, 0x02, 0x04, 0x40, 0x80, 0]);
        assert_eq!((both[3 + 38], &both[3 + 44..3 + 47]), (0x04, &[1, 2, 3][..]));
        let (data, checksum) = both.split_last_chunk::<4>().unwrap();
        assert_eq!(u32::from_le_bytes(*checksum), crc32(OUTPUT_SEED, data));
        let stopped = merged(&both, &without_rumble(&both));
        assert!(!is_rumbling(&stopped));
        assert_eq!(stopped[3 + 44..3 + 47], [1, 2, 3]);
    }
}
