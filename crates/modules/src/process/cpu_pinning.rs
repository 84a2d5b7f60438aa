//! Pins the processes of a run to one processor.
//!
//! While only one message is in flight, only one process runs at a time. On one processor a wake-up costs a third
//! of one across processors. The scheduler spreads woken processes over idle processors, and each hop then waits
//! for a processor to leave its idle state. So the host pins the processes to one processor while messages go one
//! by one; with more in flight they run anywhere.
//!
//! While the host polls, the processes are pinned to another processor than the host's, for as long as polling pays off
//! ([`links::shm`]).

use super::member::Member;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu};

/// Affinity of the processes of a run.
#[derive(Debug)]
pub(super) struct CpuPinning {
    /// Affinity while they are not pinned: that of the host.
    anywhere: Option<CpuSet>,
    pinned_to: Option<usize>,
}

impl CpuPinning {
    pub(super) fn new() -> CpuPinning {
        CpuPinning { anywhere: sched_getaffinity(None).ok(), pinned_to: None }
    }

    /// Returns true if [`CpuPinning::set`] would change anything.
    pub(super) fn would_change(&self, is_pinned: bool, members: &[Member]) -> bool {
        // A single process wakes only its host.
        is_pinned != self.pinned_to.is_some() && members.len() > 1
    }

    /// Pins the processes to one processor, or unpins them.
    pub(super) fn set(&mut self, is_pinned: bool, members: &[Member]) {
        if !self.would_change(is_pinned, members) {
            return;
        }
        let Some(anywhere) = &self.anywhere else { return };
        let own = sched_getcpu();
        let mut others = (own + 1..CpuSet::MAX_CPU).chain(0..own);
        let target = if is_pinned { others.find(|cpu| anywhere.is_set(*cpu)) } else { None };
        let number = target.and_then(|cpu| u16::try_from(cpu).ok());
        if is_pinned && number.is_none() {
            return;
        }
        members.iter().for_each(|member| member.process.run_on(number, anywhere));
        self.pinned_to = target;
    }
}

#[cfg(test)]
mod tests {
    use super::super::member::Start;
    use super::*;
    use rustix::process::Pid;
    use std::sync::Arc;
    use sys::poller::PollSet;

    fn sleeping_processes() -> [Member; 2] {
        let set = Arc::new(PollSet::new().unwrap());
        let words = ["sleep", "600"].map(Into::into);
        [0, 1].map(|index| {
            let start = Start {
                words: &words,
                environment: None,
                input: None,
                output: None,
                descriptors: Vec::new(),
            };
            Member::start(start, index, &set).unwrap()
        })
    }

    fn affinities(processes: &[Member]) -> Vec<CpuSet> {
        let pid = |member: &Member| Pid::from_raw(member.process.id().cast_signed());
        processes.iter().map(|member| sched_getaffinity(pid(member)).unwrap()).collect()
    }

    #[test]
    fn processes_are_pinned_to_one_processor_and_unpinned() {
        let Ok(before) = sched_getaffinity(None) else { return };
        if before.count() < 2 {
            println!("SKIPPED: there is one processor");
            return;
        }
        let processes = sleeping_processes();
        let affinities = || affinities(&processes);
        let mut pinning = CpuPinning::new();
        pinning.set(true, &processes);
        let pinned = affinities();
        assert_eq!((pinned[0].count(), pinned[0]), (1, pinned[1]));
        pinning.set(false, &processes);
        assert_eq!(affinities(), [before; 2]);
    }
}
