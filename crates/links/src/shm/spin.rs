//! Looking a moment longer before sleeping, where that pays for itself.
//!
//! A wake-up across processors costs some 4 us; what comes sooner than that is better waited for awake. But a
//! processor that looks is one that nobody else has. So it is done only after messages have come soon several times
//! in a row, for at most [`LOOK_MAX`], and it stops at once when it was in vain, when somebody else took the
//! processor away meanwhile, or when more want a processor than there are ([`Crowd`]). What takes long because it is
//! slept for may come soon if it is looked for: that is tried now and then, the more rarely the longer it is in vain.
//!
//! Two kinds of processes may look. A *stage* does where every process of its run may have a processor of its own. The
//! *host* does wherever there are two: while it looks, the stages hand on among themselves on the other one, and a
//! wake-up on one processor costs a third of one across. So that they do, whatever the system's scheduler thinks of an
//! idle processor, they are kept together there for as long (`process::together`).

use contract::Time;
use std::cell::RefCell;
use std::time::Duration;
use sys::load::Load;

/// The longest look.
const LOOK_MAX: Duration = Duration::from_micros(100);
/// A sleep of more than this is not for want of a look.
const SLEEP_MAX: Duration = Duration::from_millis(1);
/// So many messages in a row came soon before it looks.
const SOON_MIN: u32 = 8;
/// Sleeps between two trials, at least and at most.
const TRIAL_EVERY: [u32; 2] = [16, 1024];
/// After somebody took the processor away, or wanted it.
const PENANCE: Duration = Duration::from_secs(1);
/// Looks between two looks at the clock.
const LOOKS: usize = 32;
/// The kernel is asked so often how many want a processor; and not before, if nobody looks for so long.
const ASK: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(20)];
/// So many answers in a row that they are too many: of a run, one that has handed on and the next may both run.
const ANSWERS: u32 = 16;

/// Which processes of a run may look at all, as its host finds when it begins the run.
pub(crate) fn may_look(wanted: bool, stages: usize) -> [bool; 2] {
    let processors = processors();
    [wanted && processors > 1, wanted && processors > stages]
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// How long one process looks.
#[derive(Debug, Default)]
pub(super) struct Spin {
    may: bool,
    soon: u32,
    /// Sleeps to the next trial, and from that to the one after.
    trial_in: u32,
    trial_every: u32,
    slept_at: Option<Time>,
    /// Mean of short sleeps.
    slept_ns: u64,
    not_before: Time,
}

impl Spin {
    /// For a process that may.
    pub(super) fn new(may: bool) -> Spin {
        Spin { may, trial_in: TRIAL_EVERY[0], trial_every: TRIAL_EVERY[0], ..Spin::default() }
    }

    /// Looks for a moment, where that has paid before and nobody wanted the processor; whether there is something.
    pub(super) fn look_shortly(&self, mut is_there: impl FnMut() -> bool) -> bool {
        if !self.may || self.soon < SOON_MIN || self.not_before != Time::ZERO {
            return false;
        }
        for _ in 0..LOOKS {
            if is_there() {
                return true;
            }
            std::hint::spin_loop();
        }
        false
    }

    /// Looks until there is something, or it does not pay any more; whether there is. `is_calm` says whether there
    /// is a processor for everybody.
    pub(super) fn look(
        &mut self,
        now: impl Fn() -> Time,
        is_calm: impl Fn(Time) -> bool,
        mut is_there: impl FnMut() -> bool,
    ) -> bool {
        if is_there() {
            return true;
        }
        if !self.may {
            return false;
        }
        let begun = now();
        if begun >= self.not_before {
            self.not_before = Time::ZERO;
        }
        let is_trial = self.soon < SOON_MIN;
        if begun < self.not_before || is_trial && !self.is_due() {
            self.slept_at = Some(begun);
            return false;
        }
        let mut before = begun;
        loop {
            for _ in 0..LOOKS {
                if is_there() {
                    // A trial is to save a quarter of the time.
                    let looked_ns = if is_trial { now().since(begun).as_nanos() as u64 } else { 0 };
                    match looked_ns <= self.slept_ns / 4 * 3 {
                        true => (self.soon, self.trial_every) = (SOON_MIN, TRIAL_EVERY[0]),
                        false => self.put_off(),
                    }
                    return true;
                }
                std::hint::spin_loop();
            }
            let at = now();
            // The first was no look of this process: it had not the processor.
            let is_alone = at.since(before) <= LOOK_MAX && is_calm(at);
            if !is_alone {
                self.not_before = at.after(PENANCE);
            }
            if !is_alone || at.since(begun) > LOOK_MAX {
                self.put_off();
                self.slept_at = Some(at);
                return false;
            }
            before = at;
        }
    }

    /// Whether the next look would be one.
    pub(super) fn is_about_to(&self, now: impl Fn() -> Time) -> bool {
        self.may && (self.soon >= SOON_MIN || self.trial_in <= 1) && now() >= self.not_before
    }

    /// Whether looking pays at present.
    pub(super) fn pays(&self) -> bool {
        self.soon >= SOON_MIN
    }

    fn is_due(&mut self) -> bool {
        self.trial_in = self.trial_in.saturating_sub(1);
        self.trial_in == 0
    }

    fn put_off(&mut self) {
        self.soon = 0;
        self.trial_every = (2 * self.trial_every).min(TRIAL_EVERY[1]);
        self.trial_in = self.trial_every;
    }

    /// After sleeping: what came soon speaks for looking the next time.
    pub(super) fn woke(&mut self, now: impl Fn() -> Time) {
        if let Some(at) = self.slept_at.take() {
            let slept = now().since(at);
            self.soon = if slept < LOOK_MAX { self.soon + 1 } else { 0 };
            if slept < SLEEP_MAX {
                let slept_ns = slept.as_nanos() as u64;
                self.slept_ns =
                    if self.slept_ns == 0 { slept_ns } else { (7 * self.slept_ns + slept_ns) / 8 };
            }
        }
    }
}

/// Whether more want a processor than there are, as far as the kernel was asked.
#[derive(Debug)]
pub(super) struct Crowd {
    /// `None`: the kernel does not say, and nobody looks.
    load: Option<Load>,
    processors: usize,
    found: RefCell<Found>,
}

#[derive(Debug, Default)]
struct Found {
    asked_at: Time,
    crowded: u32,
}

impl Crowd {
    pub(super) fn new() -> Crowd {
        Crowd { load: Load::open().ok(), processors: processors(), found: RefCell::default() }
    }

    /// Whether there is a processor for everybody; asked while one looks, or when one has not for long.
    pub(super) fn is_calm(&self, now: Time, looks: bool) -> bool {
        let Some(load) = &self.load else { return false };
        let mut found = self.found.borrow_mut();
        if now.since(found.asked_at) >= ASK[usize::from(!looks)] {
            let is_crowded = load.runnable().is_none_or(|count| count > self.processors);
            found.asked_at = now;
            found.crowded = if is_crowded { found.crowded + 1 } else { 0 };
        }
        found.crowded < ANSWERS
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
        let mut spin = Spin::new(true);
        for _ in 0..SOON_MIN {
            let looks = Cell::new(0);
            assert!(!spin.look(now, |_| true, || looks.replace(looks.get() + 1) > 5), "it slept at once");
            spin.woke(now);
        }
        let looks = Cell::new(0);
        assert!(spin.look(now, |_| true, || looks.replace(looks.get() + 1) > 5));
        assert!(!spin.look(now, |_| true, || false), "in vain");
        assert!(clock.get() < 300_000, "and not for long");
        let looks = Cell::new(0);
        assert!(!spin.look(now, |_| true, || looks.replace(looks.get() + 1) > 5), "so the next one sleeps");
    }

    #[test]
    fn who_loses_the_processor_or_keeps_others_from_theirs_sleeps_for_a_while() {
        for (tick_ns, is_calm) in [(10_000_000, true), (1000, false)] {
            let clock = Cell::new(0);
            let now = || {
                clock.set(clock.get() + tick_ns);
                Time(clock.get())
            };
            let mut spin = Spin { soon: SOON_MIN, ..Spin::new(true) };
            assert!(!spin.look(now, |_| is_calm, || false));
            assert!(spin.not_before > Time(900_000_000));
            assert!(clock.get() < 50_000_000, "at once");
        }
        assert!(!may_look(true, usize::MAX)[1], "with fewer processors than processes");
        assert_eq!(may_look(false, 0), [false, false]);
    }

    #[test]
    fn what_takes_long_while_one_sleeps_is_looked_for_now_and_then() {
        let clock = Cell::new(0);
        let now = || {
            clock.set(clock.get() + 1000);
            Time(clock.get())
        };
        let trials = |spin: &mut Spin, comes_after: u32| -> Vec<u32> {
            let turns = 0..10_000;
            let looked = turns.filter(|_| {
                let looks = Cell::new(0);
                let begun = clock.get();
                let found = spin.look(now, |_| true, || looks.replace(looks.get() + 1) > comes_after);
                clock.set(clock.get() + 500_000);
                spin.woke(now);
                found || clock.get() - begun > 550_000
            });
            looked.collect()
        };
        let in_vain = trials(&mut Spin::new(true), u32::MAX);
        assert_eq!(in_vain[..3], [15, 47, 111]);
        assert!(in_vain.len() < 20, "{in_vain:?}");
        let found = trials(&mut Spin::new(true), 100);
        assert_eq!((found[0], found.len()), (15, 10_000 - 15), "and goes on");
        let mut spin = Spin { slept_ns: 4000, trial_in: 1, ..Spin::new(true) };
        let looks = Cell::new(0);
        assert!(spin.look(now, |_| true, || looks.replace(looks.get() + 1) > 200));
        assert_eq!((spin.soon, spin.trial_in), (0, 32), "it saved nothing");
    }

    #[test]
    fn a_crowd_is_one_only_after_several_answers() {
        let crowd = |processors| Crowd { processors, ..Crowd::new() };
        // Whoever asks runs.
        let (empty, full) = (crowd(usize::MAX), crowd(0));
        let at = |answer: u64| Time(1_000_000_000 + answer * 2_000_000);
        assert!((0..50).all(|answer| empty.is_calm(at(answer), true)));
        assert!((0..15).all(|answer| full.is_calm(at(answer), true)));
        assert!(full.is_calm(at(15), false), "not asked");
        assert!(!full.is_calm(at(15), true));
    }
}
