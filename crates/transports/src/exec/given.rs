//! The records that a connection was given. The session sends a record again when no acknowledgement arrives for three
//! round trips of the control channel. A slow connection takes longer to carry it, and copies would fill it.
//!
//! | state | event | next state | action |
//! |---|---|---|---|
//! | – | the session sends a record | `Waiting` | queue it |
//! | `Waiting` | the session sends a copy | `Waiting` | ignore it |
//! | `Waiting` | the program has taken all of the record | `Written` | |
//! | `Written` | a copy before the end of the wait | `Written` | ignore it |
//! | `Written` | a later copy | `Waiting` | queue it, double the wait |
//!
//! [`first_wait`] depends on the program. A new connection is given all records again.

use crate::udp::fragment::RecordId;
use contract::Time;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Records that are remembered: more than a session has in flight by default.
const RECORDS_MAX: usize = 8192;
const WAIT_MIN: Duration = Duration::from_millis(100);
/// A reliable program carries what it has taken. A copy is needed only if the other host had no room for the record.
const RELIABLE_WAIT: Duration = Duration::from_secs(15);
const RELIABLE_WAIT_MAX: Duration = Duration::from_secs(60);
/// Longest wait for a program that may lose messages, unless the first is longer: the session repeats as often.
const LOSSY_WAIT_MAX: Duration = Duration::from_secs(2);
const DOUBLINGS_MAX: u32 = 16;
/// The wait for a program that may lose messages, in times that an answer takes.
const ANSWERS: u32 = 4;

/// Returns the time in which a written record should be acknowledged, if the other host answers within `answer`.
pub(super) fn first_wait(is_reliable: bool, answer: Duration) -> Duration {
    match is_reliable {
        true => RELIABLE_WAIT,
        false => answer.saturating_mul(ANSWERS).clamp(WAIT_MIN, RELIABLE_WAIT),
    }
}

#[derive(Debug, Default)]
struct Record {
    /// `None` in the state `Waiting`.
    written: Option<Time>,
    /// Copies that were queued.
    copies: u32,
}

/// The records of one connection.
#[derive(Debug, Default)]
pub(super) struct Given {
    records: BTreeMap<RecordId, Record>,
    /// In the order in which they were given first.
    order: VecDeque<RecordId>,
}

impl Given {
    /// Returns whether a copy of this record is to be ignored now.
    pub(super) fn is_under_way(&self, id: &RecordId, first_wait: Duration, now: Time) -> bool {
        let Some(record) = self.records.get(id) else { return false };
        let wait_max =
            if first_wait >= RELIABLE_WAIT { RELIABLE_WAIT_MAX } else { first_wait.max(LOSSY_WAIT_MAX) };
        let wait = first_wait.saturating_mul(1 << record.copies.min(DOUBLINGS_MAX)).min(wait_max);
        record.written.is_none_or(|written| now < written.after(wait))
    }

    /// Handles that a record, or a copy of it, was queued.
    pub(super) fn handle_queued(&mut self, id: RecordId) {
        if let Some(record) = self.records.get_mut(&id) {
            (record.written, record.copies) = (None, record.copies.saturating_add(1));
            return;
        }
        if self.order.len() == RECORDS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.records.remove(&oldest);
        }
        self.order.push_back(id);
        self.records.insert(id, Record::default());
    }

    /// Handles that the program has taken all of a record.
    pub(super) fn handle_written(&mut self, id: &RecordId, now: Time) {
        if let Some(record) = self.records.get_mut(id) {
            record.written = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::udp::fragment::record_id;

    /// Gives the session's copies of one record, one every 50 ms for so long. Returns the times of those that are carried,
    /// in milliseconds.
    fn carried(is_reliable: bool, answer_ms: u64, end_ms: u64) -> Vec<u64> {
        let (mut given, id) = (Given::default(), record_id(1, 1, 7));
        let wait = first_wait(is_reliable, Duration::from_millis(answer_ms));
        let mut carried = Vec::new();
        for ms in (0..end_ms).step_by(50) {
            if !given.is_under_way(&id, wait, Time::from_millis(ms)) {
                carried.push(ms);
                given.handle_queued(id);
                assert!(given.is_under_way(&id, wait, Time::from_millis(ms + 100_000)), "it waits here");
                given.handle_written(&id, Time::from_millis(ms));
            }
        }
        carried
    }

    #[test]
    fn copies_become_rare() {
        assert_eq!(carried(true, 1, 10_000), [0]);
        assert_eq!(carried(true, 1, 50_000), [0, 15_000, 45_000]);
        assert_eq!(carried(false, 1, 2000), [0, 100, 300, 700, 1500]);
        assert_eq!(carried(false, 200, 7000), [0, 800, 2400, 4400, 6400]);
    }

    #[test]
    fn other_records_are_carried_at_once() {
        let mut given = Given::default();
        for sequence in 0..2 * RECORDS_MAX as u64 {
            assert!(!given.is_under_way(&record_id(1, 1, sequence), WAIT_MIN, Time::ZERO));
            given.handle_queued(record_id(1, 1, sequence));
        }
        assert_eq!((given.records.len(), given.order.len()), (RECORDS_MAX, RECORDS_MAX));
    }
}
