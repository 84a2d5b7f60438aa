//! Scheduling of threads: timer slack, time slices and priorities.

use std::num::NonZeroU64;
use std::time::Duration;

/// Sets the timer slack of the thread to 1 ns instead of 50 us, so that its sleeps end on time (`prctl(2)`,
/// `PR_SET_TIMERSLACK`). Failure is harmless.
pub fn be_punctual() {
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
}

/// The time slice of a thread after [`be_prompt`].
pub const PROMPT_TURN: Duration = Duration::from_micros(300);

/// Gives the calling thread the shortest time slice, [`PROMPT_TURN`]: when it wakes, it runs before threads of
/// equal priority with longer slices. It gets no larger share of the processor. Returns true if the kernel was
/// asked; failure is harmless, as is a kernel without time slices.
pub fn be_prompt() -> bool {
    set_turn(0, &[libc::SCHED_OTHER], libc::SCHED_OTHER, PROMPT_TURN)
}

/// Sets the time slice of another process's first thread. A thread with a longer slice yields to waking threads
/// with shorter ones; its share of the processor stays the same. With a slice longer than [`PROMPT_TURN`] the
/// thread, when it wakes, does not preempt the running thread (`SCHED_BATCH`), which may be a prompt one that
/// finishes soon. Returns as [`be_prompt`].
pub fn set_turn_of(process: u32, turn: Duration) -> bool {
    let to = if turn > PROMPT_TURN { libc::SCHED_BATCH } else { libc::SCHED_OTHER };
    let from = [libc::SCHED_OTHER, libc::SCHED_BATCH];
    libc::pid_t::try_from(process).is_ok_and(|pid| pid != 0 && set_turn(pid, &from, to, turn))
}

/// Sets the time slice (`sched_setattr(2)`, `sched_runtime`, Linux 6.12) and the policy of a thread that has
/// one of the policies `from`. 0 is the calling thread.
fn set_turn(thread: libc::pid_t, from: &[libc::c_int], to: libc::c_int, turn: Duration) -> bool {
    let size = size_of::<libc::sched_attr>() as libc::c_uint;
    // SAFETY: all fields are numbers, for which 0 is valid.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes at most `size` bytes.
    let got = unsafe { libc::syscall(libc::SYS_sched_getattr, thread, &raw mut attributes, size, 0) };
    if got != 0 || !from.iter().any(|policy| attributes.sched_policy == *policy as u32) {
        return false;
    }
    attributes.sched_policy = to as u32;
    attributes.sched_runtime = turn.as_nanos() as u64;
    // SAFETY: the attributes live through the call and hold their size.
    unsafe { libc::syscall(libc::SYS_sched_setattr, thread, &raw const attributes, 0) == 0 }
}

/// Requests real-time priority (`SCHED_RR` 1), which needs a privilege. Returns true if it was granted.
pub fn be_urgent() -> bool {
    set_policy(libc::SCHED_RR, 1)
}

/// Sets the policy of the calling thread. The function of the C library does nothing in musl.
fn set_policy(policy: libc::c_int, priority: libc::c_int) -> bool {
    // SAFETY: 0 is the calling thread. The kernel reads a `struct sched_param`, whose only field is the priority, which
    // lives through the call.
    unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, policy, &raw const priority) == 0 }
}

/// The longest time slice of the kernel.
pub const LONGEST_TURN: Duration = Duration::from_millis(100);

/// Makes the calling thread, and threads that it starts, run only when nothing else needs the processor
/// (`SCHED_IDLE`). Returns true on success. It also takes long time slices, because idle priority counts only
/// within one group of tasks (`sched(7)`, autogroup); threads of other groups preempt it by their shorter
/// slices.
pub fn be_idle() -> bool {
    let is_idle = set_policy(libc::SCHED_IDLE, 0);
    set_turn(0, &[libc::SCHED_IDLE], libc::SCHED_IDLE, LONGEST_TURN);
    is_idle
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> libc::c_int {
        // SAFETY: 0 is the calling thread.
        unsafe { libc::sched_getscheduler(0) }
    }

    #[test]
    fn prompt_and_idle_threads_keep_their_policy() {
        // On separate threads, because the settings stay with a thread.
        let prompt = std::thread::spawn(move || (be_prompt(), policy())).join().unwrap();
        assert_eq!(prompt, (true, libc::SCHED_OTHER));
        let idle = std::thread::spawn(move || (be_idle(), policy(), be_prompt())).join().unwrap();
        assert_eq!(idle, (true, libc::SCHED_IDLE, false));
    }

    #[test]
    fn a_process_with_long_turns_is_a_batch_process() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let policy = |turn| {
            let was_set = set_turn_of(child.id(), turn);
            // SAFETY: the process is a child of this one and was not waited for.
            (was_set, unsafe { libc::sched_getscheduler(child.id() as libc::pid_t) })
        };
        let policies = [LONGEST_TURN, PROMPT_TURN].map(policy);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(policies, [(true, libc::SCHED_BATCH), (true, libc::SCHED_OTHER)]);
    }
}
