//! Controllers of the Switch: by USB their report descriptor tells parts that their reports do not have, by Bluetooth none
//! (`drivers/hid/hid-nintendo.c`).
//!
//! | bytes of the reports 0x21, 0x30 and 0x31 | meaning |
//! |---|---|
//! | 1, 2 | time, battery |
//! | 3 to 5 | buttons; the highest bit of byte 4: in a charging grip |
//! | 6 to 8, 9 to 11 | left and right stick, each with two axes of 12 bits; zeros if it has no such stick |
//! | 13, 14 of 0x21 | the subcommand that this report answers |
//! | 13 to 48 of the others | three samples: acceleration, then gyroscope, 6 bytes each |

use std::ops::Range;

const BUTTONS: Range<usize> = 3..6;
const CHARGING_GRIP: [u8; 3] = [0, 0x80, 0];
const STICKS: [Range<usize>; 2] = [6..9, 9..12];
const STATE_BYTES: usize = 12;
const REPLY: u8 = 0x21;
const SUBCOMMAND: Range<usize> = 13..15;
const GYROSCOPE: [Range<usize>; 3] = [19..25, 31..37, 43..49];
/// A stick with both axes in the middle.
const CENTRED: [u8; 3] = [0x00, 0x08, 0x80];
/// A stick within this distance of its rest is at rest.
const STICK_PLAY: u16 = 0x200;

/// Returns true for a report with buttons and sticks.
fn has_state(report: &[u8]) -> bool {
    matches!(report.first(), Some(0x21 | 0x30 | 0x31)) && report.len() >= STATE_BYTES
}

fn axes(stick: &[u8]) -> [u16; 2] {
    let [low, middle, high] = [0, 1, 2].map(|at| u16::from(stick[at]));
    [low | (middle & 0xf) << 8, middle >> 4 | high << 4]
}

fn is_near(one: &[u8], other: &[u8]) -> bool {
    axes(one).into_iter().zip(axes(other)).all(|(one, other)| one.abs_diff(other) <= STICK_PLAY)
}

/// Returns the rest of a stick: its first value, which differs between sticks, unless it was held then.
fn rest<'a>(first: &'a [u8], stick: &Range<usize>) -> &'a [u8] {
    let first = first.get(stick.clone()).filter(|first| is_near(first, &CENTRED));
    first.unwrap_or(&CENTRED)
}

/// Makes an input report neutral. Acceleration, time and battery keep their values. Returns false for one without a state.
pub(super) fn release(report: &mut [u8], first: &[u8]) -> bool {
    if !has_state(report) {
        return false;
    }
    report[BUTTONS].iter_mut().zip(CHARGING_GRIP).for_each(|(byte, kept)| *byte &= kept);
    for stick in STICKS {
        if report[stick.clone()] != [0; 3] {
            report[stick.clone()].copy_from_slice(rest(first, &stick));
        }
    }
    if report[0] == REPLY {
        // No driver may take it for the answer to a later subcommand.
        if let Some(subcommand) = report.get_mut(SUBCOMMAND) {
            subcommand.fill(0);
        }
        return true;
    }
    for sample in GYROSCOPE {
        if let Some(sample) = report.get_mut(sample) {
            sample.fill(0);
        }
    }
    true
}

/// Returns true if an input report is neutral. `None` for one without a state.
pub(super) fn is_neutral(report: &[u8], first: &[u8]) -> Option<bool> {
    let is_up = |(byte, kept): (&u8, u8)| byte & !kept == 0;
    let is_at_rest = |stick: &Range<usize>| {
        let now = &report[stick.clone()];
        now == [0; 3] || is_near(now, rest(first, stick))
    };
    has_state(report)
        .then(|| report[BUTTONS].iter().zip(CHARGING_GRIP).all(is_up) && STICKS.iter().all(is_at_rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sticks_rest_where_they_were_first() {
        let first = [0x30, 1, 0x91, 0, 0x80, 0, 0xf9, 0xe7, 0x7b, 0, 0, 0];
        let mut held = [0x30, 2, 0x91, 8, 0x81, 0x40, 0x00, 0x00, 0x80, 0, 0, 0];
        assert_eq!(is_neutral(&held, &first), Some(false));
        assert!(release(&mut held, &first));
        assert_eq!(held, [0x30, 2, 0x91, 0, 0x80, 0, 0xf9, 0xe7, 0x7b, 0, 0, 0], "no right stick");
        assert_eq!(is_neutral(&held, &first), Some(true));
        // It was held when it was shared.
        let mut held = [0x30, 2, 0x91, 0, 0, 0, 0xff, 0xef, 0x7b, 1, 0x18, 0x80];
        let first = held;
        assert_eq!(is_neutral(&held, &first), Some(false));
        assert!(release(&mut held, &first));
        assert_eq!(held[6..], [0x00, 0x08, 0x80, 1, 0x18, 0x80]);
    }

    #[test]
    fn a_released_answer_answers_nothing() {
        let mut reply = [0x21, 2, 0x91, 8, 0, 0, 0, 8, 0x80, 0, 8, 0x80, 9, 0x90, 0x10, 7];
        let first = reply;
        assert!(release(&mut reply, &first));
        assert_eq!(reply, [0x21, 2, 0x91, 0, 0, 0, 0, 8, 0x80, 0, 8, 0x80, 9, 0, 0, 7]);
    }

    #[test]
    fn turns_end_and_gravity_stays() {
        let mut report = [9; 49];
        report[0] = 0x30;
        assert!(release(&mut report, &[]));
        let samples: Vec<&[u8]> = report[13..].chunks(6).collect();
        assert_eq!(samples, [[9; 6], [0; 6], [9; 6], [0; 6], [9; 6], [0; 6]]);
        assert_eq!(report[6..9], CENTRED);
    }

    #[test]
    fn other_reports_are_left_to_the_descriptor() {
        for mut report in [vec![0x3f; 12], vec![0x81; 64], vec![0x30; 11], Vec::new()] {
            assert!(!release(&mut report, &[]));
            assert_eq!(is_neutral(&report, &[]), None);
        }
    }
}
