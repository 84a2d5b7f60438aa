//! Detects a connection over which nothing reaches the peer any more: the session retransmits one record again and again, and
//! no datagram arrives. An address translator may have forgotten the connection, for example, while the control channel
//! lives. Sans-IO.
//!
//! | event | no record | record `r` |
//! |---|---|---|
//! | `r` is retransmitted | watch `r` | count |
//! | another record is retransmitted | watch it | watch it if it is older, or if `r` was last retransmitted long ago; else ignore it |
//! | a datagram arrives | – | no record |
//! | [`Unanswered::is_reported`], many retransmissions | – | report, no record |
//!
//! The session retransmits its oldest unacknowledged record first, so this record counts.

use contract::Time;
use std::time::Duration;

/// Retransmissions of one record, and the time since the first one, at which nothing reaches the peer.
const RETRANSMISSIONS_MIN: u32 = 3;
const SILENCE_MIN: Duration = Duration::from_millis(400);
/// A record that was not retransmitted for this long is acknowledged.
const FORGET: Duration = Duration::from_secs(1);

/// The epoch and the sequence of a record.
type Order = (u32, u64);

/// The retransmissions of one record without an arrival.
#[derive(Debug, Default)]
pub(super) struct Unanswered {
    watched: Option<Watched>,
}

#[derive(Debug, Clone, Copy)]
struct Watched {
    record: Order,
    retransmissions: u32,
    first: Time,
    last: Time,
}

impl Unanswered {
    /// The session retransmits a record.
    pub(super) fn on_retransmission(&mut self, record: Order, now: Time) {
        match &mut self.watched {
            Some(watched) if watched.record == record => {
                watched.retransmissions += 1;
                watched.last = now;
            }
            Some(watched) if watched.record < record && now.since(watched.last) < FORGET => {}
            watched => *watched = Some(Watched { record, retransmissions: 1, first: now, last: now }),
        }
    }

    /// A datagram arrived from the peer.
    pub(super) fn on_arrival(&mut self) {
        self.watched = None;
    }

    /// Returns true once if nothing reaches the peer.
    pub(super) fn is_reported(&mut self, now: Time) -> bool {
        let is_unanswered = |watched: &mut Watched| {
            watched.retransmissions >= RETRANSMISSIONS_MIN && now.since(watched.first) >= SILENCE_MIN
        };
        self.watched.take_if(is_unanswered).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time::from_millis(ms)
    }

    #[test]
    fn a_record_that_is_retransmitted_in_vain_is_reported_once() {
        let mut unanswered = Unanswered::default();
        let mut reports = Vec::new();
        for ms in (50..800).step_by(50) {
            // The session retransmits younger records behind the oldest one.
            for sequence in [7, 8, 9] {
                unanswered.on_retransmission((3, sequence), at(ms));
            }
            reports.extend(unanswered.is_reported(at(ms)).then_some(ms));
        }
        assert_eq!(reports, [450], "the next report would follow 400 ms later");
    }

    #[test]
    fn a_few_retransmissions_on_a_long_path_are_not_reported() {
        let mut unanswered = Unanswered::default();
        for ms in [900, 1800] {
            unanswered.on_retransmission((3, 7), at(ms));
            assert!(!unanswered.is_reported(at(ms)));
        }
        unanswered.on_retransmission((3, 7), at(2700));
        assert!(unanswered.is_reported(at(2700)));
    }

    #[test]
    fn arrivals_and_records_that_are_lost_now_and_then_are_not_reported() {
        let mut unanswered = Unanswered::default();
        for step in 0..100 {
            unanswered.on_retransmission((3, 7), at(step * 50));
            if step % 5 == 4 {
                unanswered.on_arrival();
            }
            assert!(!unanswered.is_reported(at(step * 50)));
        }
        for step in 0..100 {
            unanswered.on_retransmission((3, 100 + step), at(10_000 + step * 1000));
            assert!(!unanswered.is_reported(at(10_000 + step * 1000)));
        }
    }
}
