//! What a thread that must be punctual asks of the kernel.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CpuSet, Pid, sched_setaffinity};
use std::io;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

/// Lets the thread's sleeps end on time: a timer slack of 1 ns instead of 50 us (`prctl(2)`,
/// PR_SET_TIMERSLACK). Harmless where it fails.
pub fn be_punctual() {
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
}

/// The turns of a thread that is prompt ([`be_prompt`]).
pub const PROMPT_TURN: Duration = Duration::from_micros(300);

/// Has the calling thread, when it wakes, run before others of its priority that are at something longer: it takes turns
/// of [`PROMPT_TURN`], the shortest first. It gets no more of the processor by that. Says whether the kernel was asked;
/// harmless where it fails, and where the kernel knows no turns.
pub fn be_prompt() -> bool {
    set_turn(0, &[libc::SCHED_OTHER], libc::SCHED_OTHER, PROMPT_TURN)
}

/// Has the first thread of another process take turns of so long: whose are longer makes way, when others wake, for those
/// whose are shorter, and gets no less of the processor by that. Whose are longer than [`PROMPT_TURN`] does not interrupt,
/// when it wakes, who runs (`SCHED_BATCH`): that may be somebody prompt, who is soon done. Says whether the kernel was asked,
/// as [`be_prompt`].
pub fn set_turn_of(process: u32, turn: Duration) -> bool {
    let to = if turn > PROMPT_TURN { libc::SCHED_BATCH } else { libc::SCHED_OTHER };
    let from = [libc::SCHED_OTHER, libc::SCHED_BATCH];
    libc::pid_t::try_from(process).is_ok_and(|pid| pid != 0 && set_turn(pid, &from, to, turn))
}

/// `sched_setattr(2)`, `sched_runtime` (Linux 6.12) and policy of a thread that has one of these. 0 is the calling thread.
fn set_turn(thread: libc::pid_t, from: &[libc::c_int], to: libc::c_int, turn: Duration) -> bool {
    let size = size_of::<libc::sched_attr>() as libc::c_uint;
    // SAFETY: all fields are numbers, for which 0 is a value.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes no more than `size` bytes.
    let got = unsafe { libc::syscall(libc::SYS_sched_getattr, thread, &raw mut attributes, size, 0) };
    if got != 0 || !from.iter().any(|policy| attributes.sched_policy == *policy as u32) {
        return false;
    }
    attributes.sched_policy = to as u32;
    attributes.sched_runtime = turn.as_nanos() as u64;
    // SAFETY: the attributes live through the call, and tell their size.
    unsafe { libc::syscall(libc::SYS_sched_setattr, thread, &raw const attributes, 0) == 0 }
}

/// Asks for real-time priority (SCHED_RR 1), which needs a privilege; says whether it was given.
pub fn be_urgent() -> bool {
    let parameters = libc::sched_param { sched_priority: 1 };
    // SAFETY: 0 is the calling thread, and the parameters live through the call.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_RR, &parameters) == 0 }
}

/// The one thread that has real-time priority by [`be_realtime`]; 0 is none.
static REALTIME: AtomicI32 = AtomicI32::new(0);

/// Has the calling thread run before all that is of ordinary priority (SCHED_RR 1), until it computes for `longest` without
/// a pause: from then on it is of ordinary priority, and has said so on standard error. What it starts is, too. One
/// thread of a process may be so. An error is the kernel's: it needs a privilege (`sched(7)`: RLIMIT_RTPRIO, RLIMIT_RTTIME).
pub fn be_realtime(longest: Duration) -> io::Result<()> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Rttime);
    let longest_us = u64::try_from(longest.as_micros()).unwrap_or(u64::MAX);
    setrlimit(Resource::Rttime, Rlimit { current: Some(longest_us), maximum })?;
    // SAFETY: it asks for a number.
    REALTIME.store(unsafe { libc::gettid() }, Ordering::Relaxed);
    crate::signal::take_over(libc::SIGXCPU, be_ordinary)?;
    match set_policy(libc::SCHED_RR | libc::SCHED_RESET_ON_FORK, 1) {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

extern "C" fn be_ordinary(_: libc::c_int) {
    const SAID: &[u8] = b"it computed for long without a pause: it goes on at ordinary priority\n";
    // SAFETY: both calls may be made in a handler (`signal-safety(7)`; the first is a mere system call), the bytes are
    // constant, and what was interrupted finds its own errno again.
    unsafe {
        let errno = *libc::__errno_location();
        set_policy(libc::SCHED_OTHER, 0);
        libc::write(libc::STDERR_FILENO, SAID.as_ptr().cast(), SAID.len());
        *libc::__errno_location() = errno;
    }
}

/// `sched_setscheduler(2)` of [`REALTIME`].
fn set_policy(policy: libc::c_int, priority: libc::c_int) -> libc::c_int {
    let parameters = libc::sched_param { sched_priority: priority };
    // SAFETY: the parameters live through the call.
    unsafe { libc::sched_setscheduler(REALTIME.load(Ordering::Relaxed), policy, &parameters) }
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

/// The longest turns that the kernel gives.
pub const LONGEST_TURN: Duration = Duration::from_millis(100);

/// From here on the calling thread, and those that it starts, run when nothing else wants the processor (SCHED_IDLE); says
/// whether the kernel agreed. Its turns are long, too: what it is idle beside is only what is in its own group of tasks
/// (`sched(7)`, autogroup), and who is in another is before it by that.
pub fn be_idle() -> bool {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: 0 is the calling thread, and the parameters live through the call.
    let is_idle = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &parameters) == 0 };
    set_turn(0, &[libc::SCHED_IDLE], libc::SCHED_IDLE, LONGEST_TURN);
    is_idle
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    fn policy() -> libc::c_int {
        // SAFETY: 0 is the calling thread.
        unsafe { libc::sched_getscheduler(0) }
    }

    #[test]
    fn who_has_realtime_priority_and_computes_without_a_pause_has_it_no_more() {
        let run = || {
            if let Err(error) = be_realtime(Duration::from_millis(50)) {
                println!("SKIPPED: no real-time priority: {error}");
                return None;
            }
            let begun = policy();
            let until = Instant::now() + Duration::from_secs(30);
            while policy() != libc::SCHED_OTHER && Instant::now() < until {}
            Some((begun & !libc::SCHED_RESET_ON_FORK, policy()))
        };
        let seen = std::thread::spawn(run).join().unwrap();
        assert!(seen.is_none_or(|seen| seen == (libc::SCHED_RR, libc::SCHED_OTHER)), "{seen:?}");
    }

    #[test]
    fn who_is_prompt_or_idle_stays_it() {
        // On threads of their own: what they ask for is theirs.
        let prompt = std::thread::spawn(move || (be_prompt(), policy())).join().unwrap();
        assert_eq!(prompt, (true, libc::SCHED_OTHER));
        let idle = std::thread::spawn(move || (be_idle(), policy(), be_prompt())).join().unwrap();
        assert_eq!(idle, (true, libc::SCHED_IDLE, false));
    }

    #[test]
    fn who_takes_long_turns_interrupts_nobody() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let policy = |turn| {
            let was_set = set_turn_of(child.id(), turn);
            // SAFETY: the process is this one's child, and not waited for yet.
            (was_set, unsafe { libc::sched_getscheduler(child.id() as libc::pid_t) })
        };
        let policies = [LONGEST_TURN, PROMPT_TURN].map(policy);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(policies, [(true, libc::SCHED_BATCH), (true, libc::SCHED_OTHER)]);
    }
}
