//! Time: nanoseconds of the local boot clock (CLOCK_BOOTTIME), so that it means the same in every
//! process of a host and goes on through a suspend.

use std::time::Duration;

/// A moment on the local boot clock, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(pub u64);

/// What is added to a peer's [`Time`] to get ours, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Offset(pub i64);

impl Time {
    /// The start of the clock.
    pub const ZERO: Time = Time(0);

    /// `milliseconds` after the start of the clock.
    pub const fn from_millis(milliseconds: u64) -> Time {
        Time(milliseconds * 1_000_000)
    }

    /// The moment `later` after this one; stays at the end of the clock.
    #[inline]
    pub fn after(self, later: Duration) -> Time {
        Time(self.0.saturating_add(u64::try_from(later.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// The moment `earlier` before this one; stays at the start of the clock.
    #[inline]
    pub fn before(self, earlier: Duration) -> Time {
        Time(self.0.saturating_sub(u64::try_from(earlier.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// How long after `earlier` this is; zero if it is not.
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

    /// A peer's time in ours.
    #[inline]
    pub fn shifted(self, offset: Offset) -> Time {
        Time(self.0.saturating_add_signed(offset.0))
    }
}
