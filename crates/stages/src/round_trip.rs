//! The shortest round trip of a path that may change.

use contract::Time;
use std::time::Duration;

/// The shortest round trip of the last and of the current period of `PERIOD_S` seconds.
#[derive(Debug, Default)]
pub(crate) struct ShortestRoundTrip<const PERIOD_S: u64> {
    last: Option<Duration>,
    current: Option<Duration>,
    /// The end of the current period.
    end: Option<Time>,
}

impl<const PERIOD_S: u64> ShortestRoundTrip<PERIOD_S> {
    /// A round trip ended at `now`.
    pub(crate) fn add(&mut self, round_trip: Duration, now: Time) {
        let next_end = now.after(Duration::from_secs(PERIOD_S));
        if now > *self.end.get_or_insert(next_end) {
            self.last = self.current.take();
            self.end = Some(next_end);
        }
        self.current = Some(self.current.map_or(round_trip, |shortest| shortest.min(round_trip)));
    }

    /// Returns the shortest round trip; `None` before the first.
    pub(crate) fn get(&self) -> Option<Duration> {
        [self.last, self.current].into_iter().flatten().min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_and_the_current_period_count() {
        let ms = Duration::from_millis;
        let mut shortest = ShortestRoundTrip::<5>::default();
        assert_eq!(shortest.get(), None);
        for (second, round_trip, expected) in
            [(0, 30, 30), (1, 20, 20), (4, 50, 20), (6, 40, 20), (8, 60, 20), (12, 70, 40), (30, 80, 70)]
        {
            shortest.add(ms(round_trip), Time::from_millis(1000 * second));
            assert_eq!(shortest.get(), Some(ms(expected)), "after {second} s");
        }
    }
}
