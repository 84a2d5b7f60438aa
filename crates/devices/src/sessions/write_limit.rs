//! Limits the data of the writes that one session has in progress, by the time that they take. Sans-IO.
//!
//! An iSCSI target asks for the data of each write, and may close the session when they do not come: the target of the Linux kernel does
//! so 3 s after it has asked. On a slow line the data of many writes wait for each other, and all sessions share the line. Each session
//! finds its part of the line by itself, as a congestion control does:
//!
//! | a write has taken | the limit |
//! |---|---|
//! | less than [`SHORT`] | grows by the length of the write if it was in use, so it doubles in the time of one write |
//! | more, up to [`LONG`] | stays |
//! | more than [`LONG`] | is halved, unless the write began before that happened last |

use super::CHUNK_BYTES;
use contract::Time;
use std::collections::BTreeMap;
use std::time::Duration;

/// The limit grows after a write that took less. Two round trips by satellite take as much.
const SHORT: Duration = Duration::from_secs(1);
/// The limit falls after a write that took more.
const LONG: Duration = Duration::from_secs(2);
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
}

impl Default for WriteLimit {
    fn default() -> WriteLimit {
        let (running, halved_at) = (BTreeMap::new(), Time::ZERO);
        WriteLimit { bytes_max: BYTES_MIN, bytes: 0, running, is_used: false, halved_at }
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

    /// An order has its reply.
    pub(super) fn end(&mut self, tag: u64, now: Time) {
        let Some((begun, length)) = self.running.remove(&tag) else { return };
        self.bytes -= length;
        match now.since(begun) {
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

    const ROUND_TRIP: Duration = Duration::from_millis(50);
    const SECOND: u64 = 1_000_000_000;

    /// Writes for a minute over a line of this rate, in bytes per second. The sessions take the chunks in turn. Returns the longest
    /// time in which data waited for the line, and the part of the line that was used.
    fn minute(rate: u64, sessions: usize) -> (Duration, f64) {
        let mut limits: Vec<WriteLimit> = (0..sessions).map(|_| WriteLimit::default()).collect();
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
                is_free_at = is_free_at.max(now).after(Duration::from_nanos(BYTES_MIN * SECOND / rate));
                longest = longest.max(is_free_at.since(now));
                replies.push(Reverse((is_free_at.after(ROUND_TRIP), index, left)));
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
        for megabits in [2, 4, 20, 100, 1000] {
            for sessions in [1, 4] {
                let (longest, used) = minute(megabits * 125_000, sessions);
                assert!(
                    longest < Duration::from_secs(3) && used > 0.95,
                    "{megabits} Mbit/s, {sessions} sessions: data wait for {longest:?}, {used} of the line is used"
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
