//! The boot clock: monotonic, and it goes on through a suspend. And those of processor time.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds since this host booted (CLOCK_BOOTTIME, `clock_gettime(2)`).
#[inline]
pub fn boot_ns() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Nanoseconds of the monotonic clock, which stands still during a suspend (CLOCK_MONOTONIC): what drivers stamp
/// frames with.
pub fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Longest time, nanoseconds, between two readings of clocks that are compared, and how often they are read.
const COMPARE_NS_MAX: u64 = 1000;
const COMPARE_TRIES: usize = 4;

/// A moment of the system's clock (CLOCK_REALTIME), on which the kernel's network times are, on the boot clock:
/// right as long as nobody has set the system's clock in between.
pub fn real_to_boot_ns(real_ns: u64) -> u64 {
    let compare = || {
        let before = boot_ns();
        let real = clock_gettime(ClockId::Realtime);
        let since = (real.tv_sec as u64 * 1_000_000_000 + real.tv_nsec as u64).wrapping_sub(real_ns);
        (boot_ns() - before, before.wrapping_sub(since))
    };
    // Whoever loses the processor in between compares badly.
    let mut best = compare();
    for _ in 1..COMPARE_TRIES {
        if best.0 <= COMPARE_NS_MAX {
            break;
        }
        best = best.min(compare());
    }
    best.1
}

/// Nanoseconds of processor time the calling thread has used (CLOCK_THREAD_CPUTIME_ID).
pub fn thread_cpu_ns() -> u64 {
    let used = clock_gettime(ClockId::ThreadCPUTime);
    used.tv_sec as u64 * 1_000_000_000 + used.tv_nsec as u64
}

/// Nanoseconds of processor time another process has used (`clock_getcpuclockid(3)`); `None` if there is none such.
pub fn cpu_ns_of(process: u32) -> Option<u64> {
    let mut clock: libc::clockid_t = 0;
    let mut used = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: both are written to no further than they are long, and live through the calls.
    let failed = unsafe {
        libc::clock_getcpuclockid(libc::pid_t::try_from(process).ok()?, &raw mut clock) != 0
            || libc::clock_gettime(clock, &raw mut used) != 0
    };
    (!failed).then_some(used.tv_sec as u64 * 1_000_000_000 + used.tv_nsec as u64)
}

/// Nanoseconds of processor time this process has used (CLOCK_PROCESS_CPUTIME_ID).
pub fn process_cpu_ns() -> u64 {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    used.tv_sec as u64 * 1_000_000_000 + used.tv_nsec as u64
}
