//! Keeping a run's processes together on one processor while its host waits awake on another.
//!
//! A message that goes from process to process alone is in one place at a time: on one processor its wake-ups cost a
//! third of what they cost across. The system's scheduler spreads those who wake over the processors that are idle at
//! the moment, and the next hop waits for one to come back from its rest. So the host keeps them together for as long as
//! messages go one by one and its look finds them in time ([`crate::shm`]); with more on their way, or where that does
//! not pay, they run wherever the system wants them.

use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_getcpu, sched_setaffinity};

/// The processes of a run.
#[derive(Debug)]
pub(super) struct Together {
    processes: Vec<Pid>,
    /// Where they may run otherwise: wherever the host may.
    anywhere: Option<CpuSet>,
    is_kept: bool,
}

impl Together {
    pub(super) fn new(processes: impl Iterator<Item = u32>) -> Together {
        let pid = |id: u32| Pid::from_raw(i32::try_from(id).ok()?);
        let processes: Vec<Pid> = processes.filter_map(pid).collect();
        Together { processes, anywhere: sched_getaffinity(None).ok(), is_kept: false }
    }

    /// Whether [`Together::keep`] would change anything.
    pub(super) fn would(&self, together: bool) -> bool {
        // One process wakes nobody but its host.
        together != self.is_kept && self.processes.len() > 1
    }

    /// Has them on one processor, which is not the caller's, or lets them run anywhere again.
    pub(super) fn keep(&mut self, together: bool) {
        if !self.would(together) {
            return;
        }
        let Some(anywhere) = &self.anywhere else { return };
        let set = match together {
            true => {
                let own = sched_getcpu();
                let next = (own + 1..CpuSet::MAX_CPU).chain(0..own).find(|cpu| anywhere.is_set(*cpu));
                let Some(next) = next else { return };
                let mut one = CpuSet::new();
                one.set(next);
                one
            }
            false => *anywhere,
        };
        for process in &self.processes {
            // One that has gone needs no place, and who may not move others leaves them where they are.
            let _ = sched_setaffinity(Some(*process), &set);
        }
        self.is_kept = together;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command, Stdio};

    #[test]
    fn they_are_kept_on_one_processor_and_let_go_again() {
        let Ok(before) = sched_getaffinity(None) else { return };
        if before.count() < 2 {
            println!("SKIPPED: there is one processor");
            return;
        }
        let start = || Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let mut processes: Vec<Child> = (0..2).map(|_| start()).collect();
        let places = || -> Vec<CpuSet> {
            let place = |child: &Child| sched_getaffinity(Some(Pid::from_child(child))).unwrap();
            processes.iter().map(place).collect()
        };
        let mut together = Together::new(processes.iter().map(Child::id));
        together.keep(true);
        let kept = places();
        assert_eq!((kept[0].count(), kept[0]), (1, kept[1]));
        together.keep(false);
        assert_eq!(places(), [before; 2]);
        for process in &mut processes {
            drop(process.stdin.take());
            process.wait().unwrap();
        }
    }
}
