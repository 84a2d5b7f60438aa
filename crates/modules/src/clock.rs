//! The local clock, in the time base of messages.

use contract::Time;

/// Returns the current time. CLOCK_BOOTTIME continues while the system is suspended.
#[inline]
pub fn now() -> Time {
    Time(sys::clock::boot_ns())
}
