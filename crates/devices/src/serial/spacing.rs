//! Spacing of line changes at the port.
//!
//! A program resets a board with changes of DTR and RTS that are 50 or 100 ms apart. On the network each change is late by a
//! different time. So the first change of a burst is held for a while, and each further one is due as long after the change before
//! it as the program made it:
//!
//! ```text
//! program        a ──100 ms── b ─50 ms─ c
//! arrival            a ────120 ms──── b 30 c        late by 100, 120, 100 ms
//! port                  a ──100 ms── b ─50 ms─ c    HOLD_MIN after the arrival of a
//! ```
//!
//! A change that arrives after it is due is made at once and counted. Spacing begins at the time at which the change before was
//! really made, so changes are never closer together at the port than at the program, however slow the network, this process or the
//! port is. The bursts after a late change are held longer by the time that it missed; each burst after that, a little less again.

use super::message::Outputs;
use contract::Time;
use std::time::Duration;

/// The time for which the first change of a burst is held: the largest difference between the delays of its changes.
pub(crate) const HOLD_MIN: Duration = Duration::from_millis(60);
/// The longest hold, on a network that is worse.
const HOLD_MAX: Duration = Duration::from_millis(500);
/// A burst shortens a longer hold by this part of it.
const HOLD_DECAY: u32 = 64;

/// Changes that are farther apart do not belong to one burst.
const BURST_GAP: Duration = Duration::from_secs(1);

/// Finds the time at which each change is made.
#[derive(Debug)]
pub(crate) struct Spacing {
    hold: Duration,
    /// The time at which the last change was made.
    last: Option<Time>,
    /// The time at which the next change is due, once it has arrived.
    next: Option<Time>,
    late: u64,
}

impl Default for Spacing {
    fn default() -> Spacing {
        Spacing { hold: HOLD_MIN, last: None, next: None, late: 0 }
    }
}

impl Spacing {
    /// Returns whether a change that has arrived is due. The caller repeats the call for the same change until it is.
    pub(crate) fn is_due(&mut self, change: &Outputs, now: Time) -> bool {
        let due = match self.next {
            Some(due) => due,
            None => self.due(Duration::from_micros(change.since_us.into()), now),
        };
        self.next = Some(due).filter(|_| now < due);
        self.next.is_none()
    }

    /// Handles that the port has made the change that was due.
    pub(crate) fn handle_made(&mut self, now: Time) {
        self.last = Some(now);
    }

    /// Returns the time at which a change is due that arrives now.
    fn due(&mut self, since: Duration, now: Time) -> Time {
        let Some(last) = self.last.filter(|_| since <= BURST_GAP) else {
            let due = now.after(self.hold);
            self.hold = (self.hold - self.hold / HOLD_DECAY).max(HOLD_MIN);
            return due;
        };
        let due = last.after(since);
        if due < now {
            self.late += 1;
            self.hold = (self.hold + now.since(due)).min(HOLD_MAX);
        }
        due.max(now)
    }

    /// Returns the time at which the change that waits is due.
    pub(crate) fn due_at(&self) -> Option<Time> {
        self.next
    }

    /// Forgets the change that waits: another message has taken its place.
    pub(crate) fn forget(&mut self) {
        self.next = None;
    }

    /// Returns the number of changes that arrived after they were due.
    pub(crate) fn late(&self) -> u64 {
        self.late
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serial::OutputLines;
    use proptest::prelude::*;

    /// Times at which changes are made that arrive at these times; a path pushes the next one once the last is taken.
    fn made(changes: &[(u64, u64)]) -> (Vec<u64>, u64) {
        let (mut spacing, mut made, mut now_ms, mut prev_ms) = (Spacing::default(), Vec::new(), 0, 0);
        for (created_ms, arrived_ms) in changes {
            let since_us = u32::try_from((created_ms - prev_ms) * 1000).unwrap();
            let change = Outputs { lines: OutputLines::default(), since_us };
            now_ms = now_ms.max(*arrived_ms);
            while !spacing.is_due(&change, Time(now_ms * 1_000_000)) {
                now_ms = spacing.due_at().unwrap().0 / 1_000_000;
            }
            spacing.handle_made(Time(now_ms * 1_000_000));
            made.push(now_ms);
            prev_ms = *created_ms;
        }
        (made, spacing.late())
    }

    const START_MS: u64 = 10_000;

    #[test]
    fn a_burst_is_made_as_the_program_made_it() {
        let (made, late) = made(&[
            (START_MS, START_MS + 100),
            (START_MS + 100, START_MS + 220),
            (START_MS + 150, START_MS + 230),
        ]);
        let first = START_MS + 100 + HOLD_MIN.as_millis() as u64;
        assert_eq!((made, late), (vec![first, first + 100, first + 150], 0));
    }

    #[test]
    fn a_late_change_is_made_at_once_and_moves_those_behind_it() {
        let (made, late) =
            made(&[(START_MS, START_MS), (START_MS + 10, START_MS + 300), (START_MS + 40, START_MS + 310)]);
        assert_eq!((made, late), (vec![START_MS + 60, START_MS + 300, START_MS + 330], 1));
    }

    #[test]
    fn a_slow_port_moves_the_changes_behind_it() {
        let ms = |ms: u64| Time(ms * 1_000_000);
        let change = Outputs { lines: OutputLines::default(), since_us: 50_000 };
        let mut spacing = Spacing::default();
        spacing.handle_made(ms(START_MS));
        assert!(!spacing.is_due(&change, ms(START_MS + 1)));
        assert_eq!(spacing.due_at(), Some(ms(START_MS + 50)));
        assert!(spacing.is_due(&change, ms(START_MS + 90)));
        spacing.handle_made(ms(START_MS + 200));
        assert!(!spacing.is_due(&change, ms(START_MS + 201)));
        assert_eq!(spacing.due_at(), Some(ms(START_MS + 250)));
    }

    #[test]
    fn the_next_burst_is_held_for_what_the_last_one_missed() {
        // The second change of each burst is late by 200 ms.
        let burst = |start: u64| [(start, start), (start + 100, start + 300)];
        let (made, late) = made(&[burst(START_MS), burst(START_MS + 5000)].concat());
        let hold = made[2] - (START_MS + 5000);
        assert!((195..=200).contains(&hold), "{hold}");
        assert_eq!((late, made[1] - made[0], made[3] - made[2]), (1, 240, 100));
    }

    #[test]
    fn long_pauses_are_not_made_again() {
        // All arrive together, after the link was away.
        let (made, _) = made(&[(START_MS, 90_000), (START_MS + 5000, 90_000), (START_MS + 20_000, 90_000)]);
        assert_eq!(made, [90_060, 90_120, 90_180]);
    }

    proptest! {
        #[test]
        fn jitter_within_the_hold_never_shows(delays_ms in prop::collection::vec(0u64..=60, 1..20)) {
            let changes: Vec<_> = (START_MS..).step_by(37).zip(delays_ms)
                .scan(0, |arrived, (created, delay)| {
                    // A reliable flow keeps the order.
                    *arrived = (*arrived).max(created + delay);
                    Some((created, *arrived))
                })
                .collect();
            let (made, late) = made(&changes);
            prop_assert_eq!(late, 0);
            prop_assert!(made.windows(2).all(|pair| pair[1] - pair[0] == 37), "{:?}", made);
        }
    }
}
