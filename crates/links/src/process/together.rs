//! Keeping a run's processes together on one processor while its host waits awake on another.
//!
//! A message that goes from process to process alone is in one place at a time: on one processor its wake-ups cost a
//! third of what they cost across. The system's scheduler spreads those who wake over the processors that are idle at
//! the moment, and the next hop waits for one to come back from its rest. So the host keeps them together for as long as
//! messages go one by one and its look finds them in time ([`crate::shm`]); with more on their way, or where that does
//! not pay, they run wherever the system wants them.

use super::member::Member;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu};

/// Where the processes of a run are kept.
#[derive(Debug)]
pub(super) struct Together {
    /// Where they may run otherwise: wherever the host may.
    anywhere: Option<CpuSet>,
    is_kept: bool,
}

impl Together {
    pub(super) fn new() -> Together {
        Together { anywhere: sched_getaffinity(None).ok(), is_kept: false }
    }

    /// Whether [`Together::keep`] would change anything.
    pub(super) fn would(&self, together: bool, members: &[Member]) -> bool {
        // One process wakes nobody but its host.
        together != self.is_kept && members.len() > 1
    }

    /// Has them on one processor, which is not the caller's, or lets them run anywhere again.
    pub(super) fn keep(&mut self, together: bool, members: &[Member]) {
        if !self.would(together, members) {
            return;
        }
        let Some(anywhere) = &self.anywhere else { return };
        let own = sched_getcpu();
        let mut others = (own + 1..CpuSet::MAX_CPU).chain(0..own);
        let place =
            others.find(|cpu| together && anywhere.is_set(*cpu)).and_then(|cpu| u16::try_from(cpu).ok());
        if together && place.is_none() {
            return;
        }
        members.iter().for_each(|member| member.process.run_on(place, anywhere));
        self.is_kept = together;
    }
}

#[cfg(test)]
mod tests {
    use super::super::member::Start;
    use super::*;
    use rustix::process::Pid;
    use std::sync::Arc;
    use sys::poller::PollSet;

    #[test]
    fn they_are_kept_on_one_processor_and_let_go_again() {
        let Ok(before) = sched_getaffinity(None) else { return };
        if before.count() < 2 {
            println!("SKIPPED: there is one processor");
            return;
        }
        let set = Arc::new(PollSet::new().unwrap());
        let words = ["sleep", "600"].map(Into::into);
        let member = |index| {
            let start =
                Start { words: &words, environment: None, input: None, output: None, given: Vec::new() };
            Member::start(start, index, &set).unwrap()
        };
        let processes = [member(0), member(1)];
        let places = || -> Vec<CpuSet> {
            let pid = |member: &Member| Pid::from_raw(member.process.id().cast_signed());
            let place = |member: &Member| sched_getaffinity(pid(member)).unwrap();
            processes.iter().map(place).collect()
        };
        let mut together = Together::new();
        together.keep(true, &processes);
        let kept = places();
        assert_eq!((kept[0].count(), kept[0]), (1, kept[1]));
        together.keep(false, &processes);
        assert_eq!(places(), [before; 2]);
    }
}
