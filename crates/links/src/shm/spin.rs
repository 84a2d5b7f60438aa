//! Polling (spinning) for a moment before sleeping, where that pays off.
//!
//! A wake-up across processors costs about 4 us; a message that comes sooner is better waited for awake. But a
//! process that polls occupies a processor. So a process polls only after several waits in a row were short, for at
//! most [`SPIN_MAX`]. It stops at once if the poll was in vain, if it lost its processor meanwhile, or if more
//! threads are runnable than there are processors ([`CpuLoad`]).
//!
//! | state | next poll | leaves the state when |
//! |---|---|---|
//! | sleeping (`soon` < [`SOON_MIN`]) | a trial after `trial_in` sleeps | [`SOON_MIN`] sleeps in a row were short, or a trial saved time: spinning |
//! | spinning (`soon` >= [`SOON_MIN`]) | before every sleep | a poll found nothing: sleeping, twice as long until the next trial |
//! | backing off (`not_before` in the future) | none | [`BACK_OFF`] has passed: sleeping |
//!
//! The trials are needed because a wait may be long only as long as the process sleeps.
//!
//! Two kinds of processes may poll. A *stage* may where every process of its run can have a processor of its own.
//! The *host* may where there are at least two: while it polls, the stages run on the other one, and a wake-up
//! within one processor costs a third of one across. To make that so, whatever the scheduler prefers, the host pins
//! the stages there for that time (`process::cpu_pinning`).

use contract::Time;
use std::cell::RefCell;
use std::time::Duration;
use sys::load::Load;

/// Longest poll.
const SPIN_MAX: Duration = Duration::from_micros(100);
/// A longer sleep cannot be shortened by polling.
const SLEEP_MAX: Duration = Duration::from_millis(1);
/// Short waits in a row before a process polls.
const SOON_MIN: u32 = 8;
/// Sleeps between two trials: least, most.
const TRIAL_EVERY: [u32; 2] = [16, 1024];
/// Pause after the process lost its processor, or kept others from theirs.
const BACK_OFF: Duration = Duration::from_secs(1);
/// Polls between two readings of the clock.
const POLLS: usize = 32;
/// Interval between samples of the system load: while polling, and otherwise.
const SAMPLE_EVERY: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(20)];
/// Consecutive overloaded samples that count. Two processes of a run may both be runnable for a moment when one
/// hands over to the next.
const OVERLOAD_SAMPLES: u32 = 16;

/// Decides whether the host and the stages of a run may poll at all.
pub fn may_spin(is_wanted: bool, stages: usize) -> [bool; 2] {
    let processors = processors();
    [is_wanted && processors > 1, is_wanted && processors > stages]
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Decides how long one process polls before it sleeps.
#[derive(Debug, Default)]
pub(super) struct Spin {
    is_allowed: bool,
    soon: u32,
    /// Sleeps until the next trial, and from that one to the one after it.
    trial_in: u32,
    trial_every: u32,
    slept_at: Option<Time>,
    /// Mean duration of short sleeps.
    slept_ns: u64,
    not_before: Time,
}

impl Spin {
    /// For a process that may poll, or may not.
    pub(super) fn new(is_allowed: bool) -> Spin {
        Spin { is_allowed, trial_in: TRIAL_EVERY[0], trial_every: TRIAL_EVERY[0], ..Spin::default() }
    }

    /// Polls for a moment without reading the clock, in the spinning state only. Returns true if there is input.
    pub(super) fn spin_briefly(&self, mut has_input: impl FnMut() -> bool) -> bool {
        if !self.is_allowed || self.soon < SOON_MIN || self.not_before != Time::ZERO {
            return false;
        }
        for _ in 0..POLLS {
            if has_input() {
                return true;
            }
            std::hint::spin_loop();
        }
        false
    }

    /// Polls until there is input or polling no longer pays off. Returns true if there is input. `has_spare_cpu`
    /// samples the system load.
    pub(super) fn spin(
        &mut self,
        now: impl Fn() -> Time,
        has_spare_cpu: impl Fn(Time) -> bool,
        mut has_input: impl FnMut() -> bool,
    ) -> bool {
        if has_input() {
            return true;
        }
        if !self.is_allowed {
            return false;
        }
        let started = now();
        if started >= self.not_before {
            self.not_before = Time::ZERO;
        }
        let is_trial = self.soon < SOON_MIN;
        if started < self.not_before || is_trial && !self.is_trial_due() {
            self.slept_at = Some(started);
            return false;
        }
        let mut before = started;
        loop {
            for _ in 0..POLLS {
                if has_input() {
                    // A trial succeeds if it saves a quarter of the time.
                    let polled_ns = if is_trial { now().since(started).as_nanos() as u64 } else { 0 };
                    match polled_ns <= self.slept_ns / 4 * 3 {
                        true => (self.soon, self.trial_every) = (SOON_MIN, TRIAL_EVERY[0]),
                        false => self.back_off(),
                    }
                    return true;
                }
                std::hint::spin_loop();
            }
            let at = now();
            // A long gap between two readings means that the process had lost its processor.
            let has_cpu = at.since(before) <= SPIN_MAX && has_spare_cpu(at);
            if !has_cpu {
                self.not_before = at.after(BACK_OFF);
            }
            if !has_cpu || at.since(started) > SPIN_MAX {
                self.back_off();
                self.slept_at = Some(at);
                return false;
            }
            before = at;
        }
    }

    /// Returns true if the next call of [`Spin::spin`] would poll.
    pub(super) fn would_spin(&self, now: impl Fn() -> Time) -> bool {
        self.is_allowed && (self.soon >= SOON_MIN || self.trial_in <= 1) && now() >= self.not_before
    }

    /// Returns true in the spinning state.
    pub(super) fn pays(&self) -> bool {
        self.soon >= SOON_MIN
    }

    fn is_trial_due(&mut self) -> bool {
        self.trial_in = self.trial_in.saturating_sub(1);
        self.trial_in == 0
    }

    fn back_off(&mut self) {
        self.soon = 0;
        self.trial_every = (2 * self.trial_every).min(TRIAL_EVERY[1]);
        self.trial_in = self.trial_every;
    }

    /// Call this after sleeping: a short sleep counts towards the spinning state.
    pub(super) fn woke(&mut self, now: impl Fn() -> Time) {
        if let Some(at) = self.slept_at.take() {
            let slept = now().since(at);
            self.soon = if slept < SPIN_MAX { self.soon + 1 } else { 0 };
            if slept < SLEEP_MAX {
                let slept_ns = slept.as_nanos() as u64;
                self.slept_ns =
                    if self.slept_ns == 0 { slept_ns } else { (7 * self.slept_ns + slept_ns) / 8 };
            }
        }
    }
}

/// Samples whether more threads are runnable than there are processors.
#[derive(Debug)]
pub(super) struct CpuLoad {
    /// `None`: the kernel does not report it, and nobody polls.
    load: Option<Load>,
    processors: usize,
    samples: RefCell<Samples>,
}

#[derive(Debug, Default)]
struct Samples {
    sampled_at: Time,
    overloaded: u32,
}

impl CpuLoad {
    pub(super) fn new() -> CpuLoad {
        CpuLoad { load: Load::open().ok(), processors: processors(), samples: RefCell::default() }
    }

    /// Returns true if every runnable thread has a processor. Samples the load at the interval for a process that
    /// polls, or does not.
    pub(super) fn has_spare_cpu(&self, now: Time, is_polling: bool) -> bool {
        let Some(load) = &self.load else { return false };
        let mut samples = self.samples.borrow_mut();
        if now.since(samples.sampled_at) >= SAMPLE_EVERY[usize::from(!is_polling)] {
            let is_overloaded = load.runnable().is_none_or(|count| count > self.processors);
            samples.sampled_at = now;
            samples.overloaded = if is_overloaded { samples.overloaded + 1 } else { 0 };
        }
        samples.overloaded < OVERLOAD_SAMPLES
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn a_process_polls_after_short_waits_and_stops_after_a_poll_in_vain() {
        let clock = Cell::new(0);
        let now = || {
            clock.set(clock.get() + 1000);
            Time(clock.get())
        };
        let mut spin = Spin::new(true);
        for _ in 0..SOON_MIN {
            let polls = Cell::new(0);
            assert!(!spin.spin(now, |_| true, || polls.replace(polls.get() + 1) > 5), "it slept at once");
            spin.woke(now);
        }
        let polls = Cell::new(0);
        assert!(spin.spin(now, |_| true, || polls.replace(polls.get() + 1) > 5));
        assert!(!spin.spin(now, |_| true, || false), "in vain");
        assert!(clock.get() < 300_000, "and not for long");
        let polls = Cell::new(0);
        assert!(!spin.spin(now, |_| true, || polls.replace(polls.get() + 1) > 5), "so the next one sleeps");
    }

    #[test]
    fn a_process_backs_off_when_it_loses_its_processor_or_the_system_is_overloaded() {
        for (tick_ns, has_spare_cpu) in [(10_000_000, true), (1000, false)] {
            let clock = Cell::new(0);
            let now = || {
                clock.set(clock.get() + tick_ns);
                Time(clock.get())
            };
            let mut spin = Spin { soon: SOON_MIN, ..Spin::new(true) };
            assert!(!spin.spin(now, |_| has_spare_cpu, || false));
            assert!(spin.not_before > Time(900_000_000));
            assert!(clock.get() < 50_000_000, "at once");
        }
        assert!(!may_spin(true, usize::MAX)[1], "with fewer processors than processes");
        assert_eq!(may_spin(false, 0), [false, false]);
    }

    #[test]
    fn long_waits_are_polled_in_trials_with_increasing_intervals() {
        let clock = Cell::new(0);
        let now = || {
            clock.set(clock.get() + 1000);
            Time(clock.get())
        };
        let trials = |spin: &mut Spin, comes_after: u32| -> Vec<u32> {
            let turns = 0..10_000;
            let looked = turns.filter(|_| {
                let polls = Cell::new(0);
                let started = clock.get();
                let found = spin.spin(now, |_| true, || polls.replace(polls.get() + 1) > comes_after);
                clock.set(clock.get() + 500_000);
                spin.woke(now);
                found || clock.get() - started > 550_000
            });
            looked.collect()
        };
        let in_vain = trials(&mut Spin::new(true), u32::MAX);
        assert_eq!(in_vain[..3], [15, 47, 111]);
        assert!(in_vain.len() < 20, "{in_vain:?}");
        let found = trials(&mut Spin::new(true), 100);
        assert_eq!((found[0], found.len()), (15, 10_000 - 15), "and continues");
        let mut spin = Spin { slept_ns: 4000, trial_in: 1, ..Spin::new(true) };
        let polls = Cell::new(0);
        assert!(spin.spin(now, |_| true, || polls.replace(polls.get() + 1) > 200));
        assert_eq!((spin.soon, spin.trial_in), (0, 32), "it saved nothing");
    }

    #[test]
    fn overload_counts_after_several_samples() {
        let cpu_load = |processors| CpuLoad { processors, ..CpuLoad::new() };
        // The sampling thread itself is runnable.
        let (empty, full) = (cpu_load(usize::MAX), cpu_load(0));
        let at = |answer: u64| Time(1_000_000_000 + answer * 2_000_000);
        assert!((0..50).all(|answer| empty.has_spare_cpu(at(answer), true)));
        assert!((0..15).all(|answer| full.has_spare_cpu(at(answer), true)));
        assert!(full.has_spare_cpu(at(15), false), "not sampled");
        assert!(!full.has_spare_cpu(at(15), true));
    }
}
