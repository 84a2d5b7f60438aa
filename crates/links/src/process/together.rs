//! Keeping a run's processes together on one processor.
//!
//! A message that goes from process to process alone is in one place at a time: on one processor its wake-ups cost a
//! third of what they cost across. The system's scheduler spreads those who wake over the processors that are idle at
//! the moment, and the next hop waits for one to come back from its rest. So the host keeps them together for as long as
//! messages go one by one; with more on their way they run wherever the system wants them.
//!
//! While the host waits awake, they are on another processor than it is, and only for as long as its look finds messages in
//! time ([`crate::shm`]). Processes of real-time priority are on the host's own, wherever that is: whom it wakes runs at once in
//! its place, and the message is back before it goes to sleep, so that nobody is woken across at all.

use super::member::Member;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu};

/// Where the processes of a run are kept.
#[derive(Debug)]
pub(super) struct Together {
    /// Where they may run otherwise: wherever the host may.
    anywhere: Option<CpuSet>,
    /// On the host's processor, or on another.
    with_host: bool,
    kept_on: Option<usize>,
}

impl Together {
    pub(super) fn new(is_realtime: bool) -> Together {
        Together { anywhere: sched_getaffinity(None).ok(), with_host: is_realtime, kept_on: None }
    }

    /// Whether it pays although the host sleeps while it waits.
    pub(super) fn always_pays(&self) -> bool {
        self.with_host
    }

    /// Whether [`Together::keep`] would change anything.
    pub(super) fn would(&self, together: bool, members: &[Member]) -> bool {
        let is_elsewhere = || self.with_host && self.kept_on.is_some_and(|kept| kept != sched_getcpu());
        // One process wakes nobody but its host.
        (together != self.kept_on.is_some() || together && is_elsewhere()) && members.len() > 1
    }

    /// Has them on one processor, or lets them run anywhere again.
    pub(super) fn keep(&mut self, together: bool, members: &[Member]) {
        if !self.would(together, members) {
            return;
        }
        let Some(anywhere) = &self.anywhere else { return };
        let own = sched_getcpu();
        let mut others = (own + 1..CpuSet::MAX_CPU).chain(0..own);
        let place = match (together, self.with_host) {
            (false, _) => None,
            (true, true) => Some(own),
            (true, false) => others.find(|cpu| anywhere.is_set(*cpu)),
        };
        let number = place.and_then(|cpu| u16::try_from(cpu).ok());
        if together && number.is_none() {
            return;
        }
        members.iter().for_each(|member| member.process.run_on(number, anywhere));
        self.kept_on = place;
    }
}

#[cfg(test)]
mod tests {
    use super::super::member::Start;
    use super::*;
    use rustix::process::Pid;
    use std::sync::Arc;
    use sys::poller::PollSet;

    fn sleepers() -> [Member; 2] {
        let set = Arc::new(PollSet::new().unwrap());
        let words = ["sleep", "600"].map(Into::into);
        [0, 1].map(|index| {
            let start =
                Start { words: &words, environment: None, input: None, output: None, given: Vec::new() };
            Member::start(start, index, &set).unwrap()
        })
    }

    fn places(processes: &[Member]) -> Vec<CpuSet> {
        let pid = |member: &Member| Pid::from_raw(member.process.id().cast_signed());
        processes.iter().map(|member| sched_getaffinity(pid(member)).unwrap()).collect()
    }

    #[test]
    fn they_are_kept_on_one_processor_and_let_go_again() {
        let Ok(before) = sched_getaffinity(None) else { return };
        if before.count() < 2 {
            println!("SKIPPED: there is one processor");
            return;
        }
        let processes = sleepers();
        let places = || places(&processes);
        for with_host in [false, true] {
            let mut together = Together::new(with_host);
            together.keep(true, &processes);
            let kept = places();
            assert_eq!((kept[0].count(), kept[0]), (1, kept[1]));
            together.keep(false, &processes);
            assert_eq!(places(), [before; 2]);
        }
    }

    #[test]
    fn they_go_where_their_host_goes_if_they_are_to_be_with_it() {
        let processors: Vec<usize> = (0..CpuSet::MAX_CPU)
            .filter(|cpu| sched_getaffinity(None).is_ok_and(|all| all.is_set(*cpu)))
            .collect();
        let processes = sleepers();
        // A thread of its own: where it runs is its own.
        let places = std::thread::spawn(move || {
            let mut together = Together::new(true);
            let mut follow = |cpu: &usize| {
                assert!(sys::thread::pin_to_cpu(*cpu));
                together.keep(true, &processes);
                let place = places(&processes)[1];
                (place.count(), place.is_set(*cpu))
            };
            processors.iter().map(&mut follow).collect::<Vec<_>>()
        });
        assert!(places.join().unwrap().into_iter().all(|place| place == (1, true)));
    }
}
