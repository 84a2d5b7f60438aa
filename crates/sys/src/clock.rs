//! The boot clock, which is monotonic and runs during suspend; and clocks of processor time.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds since this host booted (CLOCK_BOOTTIME, `clock_gettime(2)`).
#[inline]
pub fn boot_ns() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Nanoseconds of the monotonic clock, which stops during suspend (`CLOCK_MONOTONIC`). Drivers use it for the
/// timestamps of frames.
pub fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// When two clocks are compared: the longest accepted time between readings, in nanoseconds, and the number of
/// attempts.
const COMPARE_NS_MAX: u64 = 1000;
const COMPARE_TRIES: usize = 4;

/// Converts a time of the system clock (`CLOCK_REALTIME`), which the kernel uses for network timestamps, to the
/// boot clock. It is correct if the system clock was not set in between.
pub fn real_to_boot_ns(real_ns: u64) -> u64 {
    let compare = || {
        let before = boot_ns();
        let real = clock_gettime(ClockId::Realtime);
        let since = (real.tv_sec as u64 * 1_000_000_000 + real.tv_nsec as u64).wrapping_sub(real_ns);
        (boot_ns() - before, before.wrapping_sub(since))
    };
    // A thread that is preempted between readings gets a bad comparison, so the best one counts.
    let mut best = compare();
    for _ in 1..COMPARE_TRIES {
        if best.0 <= COMPARE_NS_MAX {
            break;
        }
        best = best.min(compare());
    }
    best.1
}

/// Nanoseconds of processor time used by the calling thread (`CLOCK_THREAD_CPUTIME_ID`).
pub fn thread_cpu_ns() -> u64 {
    let used = clock_gettime(ClockId::ThreadCPUTime);
    used.tv_sec as u64 * 1_000_000_000 + used.tv_nsec as u64
}

/// Nanoseconds of processor time used by another process (`clock_getcpuclockid(3)`); `None` if there is no such
/// process.
pub fn cpu_ns_of(process: u32) -> Option<u64> {
    let mut clock: libc::clockid_t = 0;
    let mut used = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: both pointers are to live variables of the right type.
    let failed = unsafe {
        libc::clock_getcpuclockid(libc::pid_t::try_from(process).ok()?, &raw mut clock) != 0
            || libc::clock_gettime(clock, &raw mut used) != 0
    };
    (!failed).then_some(used.tv_sec as u64 * 1_000_000_000 + used.tv_nsec as u64)
}

/// Nanoseconds of processor time used by this process (`CLOCK_PROCESS_CPUTIME_ID`).
pub fn process_cpu_ns() -> u64 {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    used.tv_sec as u64 * 1_000_000_000 + used.tv_nsec as u64
}
