//! Limits the data of the writes that one session has in progress, by the time that they take. Sans-IO.
//!
//! An iSCSI target asks for the data of each write, and may close the session when they do not come: the target of the Linux kernel does
//! so 3 s after it has asked. On a slow line the data of many writes wait for each other, and all sessions share the line. Each session
//! finds its part of the line by itself, as a congestion control does:
//!
//! A write takes two round trips: the command and the target's question, the data and the reply. The target waits from its question to the
//! data, which is one round trip less. So the time of a write is compared without one round trip of the idle line.
//!
//! | a write has taken, without a round trip | the limit |
//! |---|---|
//! | less than [`SHORT`] | grows by the length of the write if it was in use, so it doubles in the time of one write |
//! | more, up to [`LONG`] | stays |
//! | more than [`LONG`] | is halved, unless the write began before that happened last |

use super::CHUNK_BYTES;
use contract::Time;
use std::collections::BTreeMap;
use std::time::Duration;

/// The limit grows after a write that took less.
const SHORT: Duration = Duration::from_secs(1);
/// The limit falls after a write that took more.
const LONG: Duration = Duration::from_secs(2);
/// The longest round trip of an idle line: by satellite, and a bit. More is a queue.
const ROUND_TRIP_MAX: Duration = Duration::from_millis(750);
/// The lowest limit: one write.
const BYTES_MIN: u64 = CHUNK_BYTES as u64;

/// The limit of one session.
#[derive(Debug)]
pub(super) struct WriteLimit {
    bytes_max: u64,
    /// Data of the writes in progress.
    bytes: u64,
    /// Start and length of these writes, by tag.
    running: BTreeMap<u64, (Time, u64)>,
    /// The last write began at the limit.
    is_used: bool,
    halved_at: Time,
    /// Of the idle line.
    round_trip: Duration,
}

impl Default for WriteLimit {
    fn default() -> WriteLimit {
        let (running, halved_at, round_trip) = (BTreeMap::new(), Time::ZERO, Duration::ZERO);
        WriteLimit { bytes_max: BYTES_MIN, bytes: 0, running, is_used: false, halved_at, round_trip }
    }
}

impl WriteLimit {
    /// Returns the bytes from which on the next write waits for the reply to another one.
    pub(super) fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// A write begins.
    pub(super) fn begin(&mut self, tag: u64, length: u32, now: Time) {
        self.bytes += u64::from(length);
        self.is_used = self.bytes >= self.bytes_max;
        self.running.insert(tag, (now, length.into()));
    }

    /// The idle line to the target has this round trip.
    pub(super) fn use_round_trip(&mut self, round_trip: Duration) {
        self.round_trip = round_trip.min(ROUND_TRIP_MAX);
    }

    /// An order has its reply.
    pub(super) fn end(&mut self, tag: u64, now: Time) {
        let Some((begun, length)) = self.running.remove(&tag) else { return };
        self.bytes -= length;
        match now.since(begun).saturating_sub(self.round_trip) {
            taken if taken < SHORT => self.bytes_max += if self.is_used { length } else { 0 },
            taken if taken > LONG && begun >= self.halved_at => {
                self.bytes_max = (self.bytes_max / 2).max(BYTES_MIN);
                self.halved_at = now;
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cmp::Reverse;
    use std::collections::BinaryHeap;

    const SECOND: u64 = 1_000_000_000;

    /// Writes for a minute over a line of this rate, in bytes per second. The sessions take the chunks in turn. Returns the longest
    /// time in which the target waited for data, and the part of the line that was used.
    fn minute(rate: u64, sessions: usize, round_trip: Duration) -> (Duration, f64) {
        let mut limits: Vec<WriteLimit> = (0..sessions).map(|_| WriteLimit::default()).collect();
        limits.iter_mut().for_each(|limit| limit.use_round_trip(round_trip));
        let mut left = 60 * rate / BYTES_MIN;
        let bytes = left * BYTES_MIN;
        let (mut now, mut is_free_at, mut longest) = (Time(SECOND), Time::ZERO, Duration::ZERO);
        let mut replies = BinaryHeap::new();
        loop {
            let is_full = |limit: &WriteLimit| limit.bytes >= limit.bytes_max();
            while left > 0
                && let Some(index) =
                    (0..sessions).min_by_key(|index| (is_full(&limits[*index]), limits[*index].bytes))
                && !is_full(&limits[index])
            {
                limits[index].begin(left, CHUNK_BYTES, now);
                let asked = now.after(round_trip);
                is_free_at = is_free_at.max(asked).after(Duration::from_nanos(BYTES_MIN * SECOND / rate));
                longest = longest.max(is_free_at.since(asked) + round_trip);
                replies.push(Reverse((is_free_at.after(round_trip), index, left)));
                left -= 1;
            }
            let Some(Reverse((at, index, tag))) = replies.pop() else { break };
            now = at;
            limits[index].end(tag, now);
        }
        (longest, bytes as f64 / rate as f64 / now.since(Time(SECOND)).as_secs_f64())
    }

    #[test]
    fn no_data_wait_for_three_seconds_and_the_line_is_used() {
        for (milliseconds, least) in [(25, 0.95), (300, 0.9), (600, 0.8)] {
            let round_trip = Duration::from_millis(milliseconds);
            // One session does not fill the slowest line over a satellite: a write takes longer than the limit grows.
            for (megabits, sessions) in
                [(2, 4), (4, 1), (4, 4), (20, 1), (20, 4), (100, 1), (100, 4), (1000, 1)]
            {
                let (longest, used) = minute(megabits * 125_000, sessions, round_trip);
                assert!(
                    longest < Duration::from_secs(3) && used > least,
                    "{megabits} Mbit/s, {sessions} sessions, {round_trip:?}: data wait for {longest:?}, {used} of the line is used"
                );
            }
        }
    }

    #[test]
    fn a_limit_that_is_not_in_use_does_not_grow() {
        let mut limit = WriteLimit::default();
        for tag in 0..100 {
            limit.begin(tag, CHUNK_BYTES, Time(tag));
            limit.end(tag, Time(tag));
        }
        assert_eq!(limit.bytes_max(), 2 * BYTES_MIN);
    }

    #[test]
    fn one_stall_halves_the_limit_once() {
        let mut limit = WriteLimit { bytes_max: 64 * BYTES_MIN, ..WriteLimit::default() };
        (0..64).for_each(|tag| limit.begin(tag, CHUNK_BYTES, Time(tag)));
        (0..64).for_each(|tag| limit.end(tag, Time(10 * SECOND + tag)));
        assert_eq!(limit.bytes_max(), 32 * BYTES_MIN);
    }
}
