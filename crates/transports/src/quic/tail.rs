//! Finds the loss of the end of a burst early, on a path that loses packets.
//!
//! A loss shows when a later packet is acknowledged (RFC 9002, section 6.1). Behind the last packet of a burst there is none: its loss
//! shows with the next burst, or by the probe timeout, which includes the delay of the peer's acknowledgements. A PING is
//! such a later packet (compare the tail loss probe of RFC 8985, section 7).
//!
//! | state | event | next state | action |
//! |---|---|---|---|
//! | `ping_at` none | data are sent less than [`LOSSY`] after a loss | set | |
//! | set | more data are sent | set anew | |
//! | set | its time has come | none | send a PING |

use std::time::{Duration, Instant};

/// A path loses packets for so long after a loss was noticed.
const LOSSY: Duration = Duration::from_secs(60);
/// Shortest time between data and the PING. Devices that report more often are their own probe.
const DELAY_MIN: Duration = Duration::from_millis(10);
/// The same in round trips: with it, the PING's acknowledgement comes when the data count as lost.
const DELAY_DIVISOR: u32 = 4;

/// Figures of a connection since it began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Sent {
    /// Frames with data.
    pub(super) frames: u64,
    pub(super) lost_packets: u64,
}

#[derive(Debug, Default)]
pub(super) struct Tail {
    sent: Sent,
    lost: Option<Instant>,
    ping_at: Option<Instant>,
}

impl Tail {
    /// Handles the figures after a transmission.
    pub(super) fn handle_sent(&mut self, sent: Sent, round_trip: Duration, now: Instant) {
        let before = std::mem::replace(&mut self.sent, sent);
        if sent.lost_packets > before.lost_packets {
            self.lost = Some(now);
        }
        let is_lossy = self.lost.is_some_and(|at| now < at + LOSSY);
        if sent.frames != before.frames && is_lossy {
            self.ping_at = Some(now + DELAY_MIN.max(round_trip / DELAY_DIVISOR));
        }
    }

    /// Returns whether a PING is due now. The caller sends it.
    pub(super) fn take_ping(&mut self, now: Instant) -> bool {
        self.ping_at.take_if(|at| *at <= now).is_some()
    }

    pub(super) fn ping_at(&self) -> Option<Instant> {
        self.ping_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUND_TRIP: Duration = Duration::from_millis(100);

    #[test]
    fn a_burst_on_a_path_that_loses_packets_has_one_ping() {
        let (mut tail, start) = (Tail::default(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        let mut sent = Sent { frames: 3, lost_packets: 0 };
        tail.handle_sent(sent, ROUND_TRIP, start);
        assert_eq!(tail.ping_at(), None, "nothing was lost yet");
        sent = Sent { frames: 4, lost_packets: 1 };
        tail.handle_sent(sent, ROUND_TRIP, start);
        sent.frames += 1;
        tail.handle_sent(sent, ROUND_TRIP, at(7));
        assert_eq!(tail.ping_at(), Some(at(32)));
        assert!(!tail.take_ping(at(31)) && tail.take_ping(at(32)));
        // The PING itself carries no data.
        tail.handle_sent(sent, ROUND_TRIP, at(32));
        assert_eq!(tail.ping_at(), None);
        sent.frames += 1;
        tail.handle_sent(sent, ROUND_TRIP, start + LOSSY);
        assert_eq!(tail.ping_at(), None, "the loss was long ago");
    }

    #[test]
    fn a_short_round_trip_leaves_time_for_the_next_report() {
        let (mut tail, start) = (Tail::default(), Instant::now());
        tail.handle_sent(Sent { frames: 1, lost_packets: 1 }, Duration::from_millis(2), start);
        assert_eq!(tail.ping_at(), Some(start + DELAY_MIN));
    }
}
