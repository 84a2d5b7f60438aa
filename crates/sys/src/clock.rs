//! The boot clock: monotonic, and it goes on through a suspend.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds since this host booted (CLOCK_BOOTTIME, `clock_gettime(2)`).
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

/// Nanoseconds of processor time this process has used (CLOCK_PROCESS_CPUTIME_ID).
pub fn process_cpu_ns() -> u64 {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    used.tv_sec as u64 * 1_000_000_000 + used.tv_nsec as u64
}
