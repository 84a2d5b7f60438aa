//! The DualShock 4: by Bluetooth its report descriptor tells nothing of its reports (`drivers/hid/hid-playstation.c`).
//!
//! | report | by USB | by Bluetooth |
//! |---|---|---|
//! | input | number 0x01, 64 bytes, state from byte 1 | number 0x11, 78 bytes, state from byte 3, CRC-32 at the end |
//! | output | number 0x05, 32 bytes, flags from byte 1 | number 0x11, 78 bytes, flags from byte 3, CRC-32 at the end |
//!
//! By Bluetooth, it sends input report 0x01 with 10 bytes until its driver has read its calibration. The descriptor tells that report.

use super::dualsense::{HAT_CENTRE, INPUT_SEED, NO_FINGER, OUTPUT_SEED, STICK_CENTRE, STICK_PLAY, seal};
use std::ops::Range;

/// Offsets into the state of an input report.
const STICKS: Range<usize> = 0..4;
/// Hat and buttons; the upper six bits of the last byte are a counter.
const BUTTONS: Range<usize> = 4..7;
const COUNTER: u8 = 0xfc;
const TRIGGERS: Range<usize> = 7..9;
const GYROSCOPE: Range<usize> = 12..18;
/// The number of touches that follow: one for each sample of the touchpad since the last report, the latest last.
const TOUCHES: usize = 32;
/// The two fingers of the first touch.
const FINGERS: [usize; 2] = [34, 38];
const TOUCH_BYTES: usize = 9;

/// Offsets into an output report, from its flags on.
const MOTORS: Range<usize> = 3..5;
const MOTORS_VALID: u8 = 1;
/// Outputs that a report sets if their flag is set: motors, colour, blinking.
const OUTPUTS: [(u8, Range<usize>); 3] = [(MOTORS_VALID, MOTORS), (0x02, 5..8), (0x04, 8..10)];
/// Bytes of the flags, of the motors and of the light.
const OUTPUT_BYTES: usize = 10;

/// Returns the state in an input report, if it has one.
fn state(report: &[u8]) -> Option<usize> {
    match (report.first()?, report.len()) {
        (0x01, 64) => Some(1),
        (0x11, 78) => Some(3),
        _ => None,
    }
}

/// Makes an input report neutral. Acceleration, time and battery keep their values. Returns false for one without a state.
pub(super) fn release(report: &mut [u8]) -> bool {
    let Some(at) = state(report) else { return false };
    let state = &mut report[at..];
    state[STICKS].fill(STICK_CENTRE);
    state[TRIGGERS].fill(0);
    let counter = state[BUTTONS.end - 1] & COUNTER;
    state[BUTTONS].copy_from_slice(&[HAT_CENTRE, 0, counter]);
    state[GYROSCOPE].fill(0);
    // A report without touches would leave the fingers where they are.
    state[TOUCHES] = 1;
    FINGERS.into_iter().for_each(|finger| state[finger] |= NO_FINGER);
    seal(report, INPUT_SEED);
    true
}

/// Returns true if an input report is neutral. `None` for one without a state.
pub(super) fn is_neutral(report: &[u8]) -> Option<bool> {
    let state = &report[state(report)?..];
    let [hat, buttons, last] = [0, 1, 2].map(|at| state[BUTTONS.start + at]);
    let touches = usize::from(state[TOUCHES]);
    let is_lifted = |finger: usize| {
        let latest = state.get(finger + TOUCH_BYTES * touches.saturating_sub(1));
        touches == 0 || latest.is_none_or(|finger| finger & NO_FINGER != 0)
    };
    Some(
        state[STICKS].iter().all(|stick| stick.abs_diff(STICK_CENTRE) <= STICK_PLAY)
            && state[TRIGGERS] == [0; 2]
            && [hat, buttons, last & !COUNTER] == [HAT_CENTRE, 0, 0]
            && FINGERS.into_iter().all(is_lifted),
    )
}

/// Returns the flags in an output report, if it has any.
fn flags(report: &[u8]) -> Option<usize> {
    match (report.first()?, report.len()) {
        (0x05, length) if length > OUTPUT_BYTES => Some(1),
        (0x11, 78) => Some(3),
        _ => None,
    }
}

/// Returns the output report that sets all that the last ones and this one set.
pub(super) fn merged(last: &[u8], report: &[u8]) -> Vec<u8> {
    let mut merged = report.to_vec();
    let Some(at) = flags(report).filter(|_| last.len() == report.len()) else { return merged };
    let (last, new) = (&last[at..at + OUTPUT_BYTES], &mut merged[at..at + OUTPUT_BYTES]);
    for (flag, values) in OUTPUTS {
        if new[0] & flag == 0 && last[0] & flag != 0 {
            new[0] |= flag;
            new[values.clone()].copy_from_slice(&last[values]);
        }
    }
    seal(&mut merged, OUTPUT_SEED);
    merged
}

/// Returns the output report that stops the motors after this one. `None` if none runs. It sets the light too: gamepads that imitate
/// this one take a report without a light for its end.
pub(super) fn without_rumble(report: &[u8]) -> Option<Vec<u8>> {
    let at = flags(report)?;
    let mut stop = report.to_vec();
    let output = &mut stop[at..at + OUTPUT_BYTES];
    if output[0] & MOTORS_VALID == 0 || output[MOTORS] == [0; 2] {
        return None;
    }
    output[MOTORS].fill(0);
    seal(&mut stop, OUTPUT_SEED);
    Some(stop)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A button, both triggers and one finger are down, and a stick is at its end.
    fn held(number: u8, bytes: usize, at: usize) -> Vec<u8> {
        let mut report = vec![0; bytes];
        report[0] = number;
        report[at..at + 9].copy_from_slice(&[0x80, 0x7e, 0xff, 0x80, 0x28, 0x0c, 0x54, 200, 7]);
        report[at + 12..at + 24].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
        report[at + TOUCHES] = 2;
        for finger in FINGERS {
            report[at + finger] = 0x83;
            report[at + finger + TOUCH_BYTES] = 0x83;
        }
        report[at + FINGERS[1] + TOUCH_BYTES] = 3;
        report
    }

    #[test]
    fn a_released_report_has_nothing_held() {
        for (number, bytes, at) in [(0x01, 64, 1), (0x11, 78, 3)] {
            let mut report = held(number, bytes, at);
            assert_eq!(is_neutral(&report), Some(false));
            assert!(release(&mut report));
            assert_eq!(is_neutral(&report), Some(true));
            let state = &report[at..];
            assert_eq!(state[..9], [0x80, 0x80, 0x80, 0x80, 8, 0, 0x54, 0, 0], "the counter keeps its value");
            assert_eq!(state[12..24], [0, 0, 0, 0, 0, 0, 7, 8, 9, 10, 11, 12], "turns end, gravity stays");
            assert_eq!((state[TOUCHES], state[34] & state[38] & NO_FINGER), (1, NO_FINGER));
        }
    }

    #[test]
    fn a_finger_alone_is_held() {
        let mut report = held(0x01, 64, 1);
        assert!(release(&mut report));
        report[1 + TOUCHES] = 2;
        assert_eq!(is_neutral(&report), Some(false), "the latest touch counts");
        report[1 + TOUCHES] = 255;
        assert_eq!(is_neutral(&report), Some(true), "it has no such touch");
    }

    #[test]
    fn the_short_report_is_left_to_the_descriptor() {
        let mut report = [1, 0x80, 0x80, 0x80, 0x80, 0x28, 0, 0, 0, 0];
        assert_eq!(is_neutral(&report), None);
        assert!(!release(&mut report));
    }

    #[test]
    fn motors_stop_and_the_light_stays() {
        for (number, bytes, at) in [(0x05, 32, 1), (0x11, 78, 3)] {
            let report = |values: &[u8]| {
                let mut report = vec![0; bytes];
                report[0] = number;
                report[at..at + values.len()].copy_from_slice(values);
                report
            };
            let rumble = report(&[0x01, 0, 0, 0x40, 0x80]);
            let light = report(&[0x02, 0, 0, 0, 0, 1, 2, 3]);
            assert_eq!(without_rumble(&light), None);
            let both = merged(&rumble, &light);
            assert_eq!(both[at..at + 8], [0x03, 0, 0, 0x40, 0x80, 1, 2, 3]);
            let stop = without_rumble(&both).unwrap();
            assert_eq!(stop[at..at + 8], [0x03, 0, 0, 0, 0, 1, 2, 3]);
            assert_eq!(without_rumble(&merged(&both, &stop)), None);
        }
    }
}
