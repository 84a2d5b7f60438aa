//! Looking a moment longer before sleeping, where that pays for itself.
//!
//! A wake-up across processors costs some 4 us; what comes sooner than that is better waited for awake. But a
//! processor that looks is one that nobody else has. So it is done only where every process of the run may have a
//! processor of its own, only after messages have come soon several times in a row, for at most [`LOOK_MAX`], and it
//! stops at once when it was in vain, or when somebody else took the processor away meanwhile.

use super::block::Geometry;
use contract::Time;
use std::time::Duration;

/// The longest look.
const LOOK_MAX: Duration = Duration::from_micros(50);
/// So many messages in a row came soon before it looks.
const SOON_MIN: u32 = 8;
/// After somebody took the processor away.
const PENANCE: Duration = Duration::from_secs(1);
/// Looks between two looks at the clock.
const LOOKS: usize = 32;

/// How long one process looks.
#[derive(Debug, Default)]
pub struct Spin {
    may: bool,
    soon: u32,
    slept_at: Option<Time>,
    not_before: Time,
}

impl Spin {
    /// For one of the processes of a run, which may all want a processor at once.
    pub fn among(run: Geometry) -> Spin {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Spin { may: run.spins && run.stages < processors, ..Spin::default() }
    }

    /// Looks until there is something, or it does not pay any more; whether there is.
    pub fn look(&mut self, now: impl Fn() -> Time, mut is_there: impl FnMut() -> bool) -> bool {
        if is_there() {
            return true;
        }
        if !self.may {
            return false;
        }
        let begun = now();
        if self.soon < SOON_MIN || begun < self.not_before {
            self.slept_at = Some(begun);
            return false;
        }
        let mut before = begun;
        loop {
            for _ in 0..LOOKS {
                if is_there() {
                    return true;
                }
                std::hint::spin_loop();
            }
            let at = now();
            if at.since(before) > LOOK_MAX {
                // That was no look of this process: it had not the processor.
                (self.soon, self.not_before) = (0, at.after(PENANCE));
            }
            if at.since(begun) > LOOK_MAX {
                self.soon = 0;
                self.slept_at = Some(at);
                return false;
            }
            before = at;
        }
    }

    /// After sleeping: what came soon speaks for looking the next time.
    pub fn woke(&mut self, now: Time) {
        if let Some(at) = self.slept_at.take() {
            self.soon = if now.since(at) < LOOK_MAX { self.soon + 1 } else { 0 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn it_looks_only_after_messages_came_soon_and_stops_when_they_do_not() {
        let clock = Cell::new(0);
        let now = || {
            clock.set(clock.get() + 1000);
            Time(clock.get())
        };
        let mut spin = Spin { may: true, ..Spin::default() };
        for _ in 0..SOON_MIN {
            let looks = Cell::new(0);
            assert!(!spin.look(now, || looks.replace(looks.get() + 1) > 5), "it slept at once");
            spin.woke(now());
        }
        let looks = Cell::new(0);
        assert!(spin.look(now, || looks.replace(looks.get() + 1) > 5));
        assert!(!spin.look(now, || false), "in vain");
        assert!(clock.get() < 100_000, "and not for long");
        let looks = Cell::new(0);
        assert!(!spin.look(now, || looks.replace(looks.get() + 1) > 5), "so the next one sleeps");
    }

    #[test]
    fn who_loses_the_processor_sleeps_for_a_while() {
        let clock = Cell::new(0);
        let now = || {
            clock.set(clock.get() + 10_000_000);
            Time(clock.get())
        };
        let mut spin = Spin { may: true, soon: SOON_MIN, ..Spin::default() };
        assert!(!spin.look(now, || false));
        assert!(spin.not_before > Time(900_000_000));
        let run = Geometry { stages: usize::MAX, slots: 1, slot_bytes: 1, ring: 1, keeps: 1, spins: true };
        assert!(!Spin::among(run).may, "with fewer processors than processes");
    }
}
