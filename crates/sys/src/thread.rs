//! What a thread that must be punctual asks of the kernel.

use rustix::thread::{CpuSet, Pid, sched_setaffinity};
use std::num::NonZeroU64;

/// Lets the thread's sleeps end on time: a timer slack of 1 ns instead of 50 us (`prctl(2)`,
/// PR_SET_TIMERSLACK). Harmless where it fails.
pub fn be_punctual() {
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
}

/// Asks for real-time priority (SCHED_RR 1), which needs a privilege; says whether it was given.
pub fn be_urgent() -> bool {
    let parameters = libc::sched_param { sched_priority: 1 };
    // SAFETY: 0 is the calling thread, and the parameters live through the call.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_RR, &parameters) == 0 }
}

/// Keeps the calling thread on one processor; says whether the kernel agreed.
pub fn pin_to_cpu(cpu: usize) -> bool {
    pin(None, cpu)
}

/// Keeps the first thread of another process on one processor; says whether the kernel agreed.
pub fn pin_process_to_cpu(process: u32, cpu: usize) -> bool {
    i32::try_from(process).ok().and_then(Pid::from_raw).is_some_and(|pid| pin(Some(pid), cpu))
}

fn pin(pid: Option<Pid>, cpu: usize) -> bool {
    let mut set = CpuSet::new();
    if cpu >= CpuSet::MAX_CPU {
        return false;
    }
    set.set(cpu);
    sched_setaffinity(pid, &set).is_ok()
}
