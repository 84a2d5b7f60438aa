//! Time: nanoseconds of the local boot clock (`CLOCK_BOOTTIME`). This clock is the same in every process of a
//! host, and it runs during suspend.

use std::time::Duration;

/// A moment on the local boot clock, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(pub u64);

/// The difference that converts a peer's [`Time`] to local time, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Offset(pub i64);

impl Time {
    /// The start of the clock.
    pub const ZERO: Time = Time(0);

    /// `milliseconds` after the start of the clock.
    pub const fn from_millis(milliseconds: u64) -> Time {
        Time(milliseconds * 1_000_000)
    }

    /// The time `later` after this one; saturates at the end of the clock.
    #[inline]
    pub fn after(self, later: Duration) -> Time {
        Time(self.0.saturating_add(u64::try_from(later.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// The time `earlier` before this one; saturates at the start of the clock.
    #[inline]
    pub fn before(self, earlier: Duration) -> Time {
        Time(self.0.saturating_sub(u64::try_from(earlier.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// The time elapsed since `earlier`; zero if `earlier` is later.
    #[inline]
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Nanoseconds from `other` to this, negative if this is earlier.
    pub fn signed_since(self, other: Time) -> i64 {
        i64::try_from(i128::from(self.0) - i128::from(other.0)).unwrap_or(if self > other {
            i64::MAX
        } else {
            i64::MIN
        })
    }

    /// Converts a peer's time to local time.
    #[inline]
    pub fn shifted(self, offset: Offset) -> Time {
        Time(self.0.saturating_add_signed(offset.0))
    }
}
