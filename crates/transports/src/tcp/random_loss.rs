//! Detects a TCP stream that random loss slows down, so that BBR is the better congestion control for it. Sans-IO.
//!
//! Loss-based congestion control takes every loss for a full queue. Loss in a full queue comes with a long round trip:
//! the queue's. A stream that loses segments again and again while its round trip is the shortest one is slowed down for
//! nothing; BBR ignores such losses.
//!
//! BBR is not the choice for every stream: without such losses CUBIC fills the link as well, and shares it better.

use contract::Time;
use std::time::Duration;
use sys::net::StreamState;

/// Periods with loss and without a queue that show random loss. Two may be the end of slow start, or a neighbour's.
const LOSSES_MIN: u32 = 3;
/// Largest queueing delay without a queue: this share of the shortest round trip, within these bounds.
const QUEUE_SHARE: f64 = 0.125;
const QUEUE: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(5)];
/// Fewest segments in the window of a stream that the network limits.
const WINDOW_MIN: u32 = 4;
/// Shortest time between two checks. Losses within a round trip have one cause.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// The losses of one stream.
#[derive(Debug, Default)]
pub(super) struct RandomLossDetector {
    /// Retransmitted segments at the last check.
    retransmissions: u32,
    /// Periods with loss and without a queue.
    losses: u32,
    /// A queue showed at the last check: its losses are reported a round trip later.
    had_queue: bool,
    is_known: bool,
    due: Time,
}

impl RandomLossDetector {
    /// Returns the time of the next check.
    pub(super) fn due(&self) -> Time {
        self.due
    }

    /// Schedules no more checks: the kernel has no better algorithm, or has been told.
    pub(super) fn end(&mut self) {
        self.due = Time(u64::MAX);
    }

    /// Checks a stream whose socket is full. Returns true once random loss is known to slow it down.
    pub(super) fn check(&mut self, stream: &StreamState, now: Time) -> bool {
        self.due = now.after(stream.round_trip.max(CHECK_INTERVAL));
        let lost = stream.resent.saturating_sub(self.retransmissions);
        self.retransmissions = stream.resent;
        let most = stream.round_trip_min.mul_f64(QUEUE_SHARE).clamp(QUEUE[0], QUEUE[1]);
        let has_queue = stream.round_trip.saturating_sub(stream.round_trip_min) > most;
        let had_queue = std::mem::replace(&mut self.had_queue, has_queue);
        let is_first = !std::mem::replace(&mut self.is_known, true);
        if has_queue {
            self.losses = 0;
        }
        if lost > 0 && !is_first && !has_queue && !had_queue && stream.window >= WINDOW_MIN {
            self.losses += 1;
        }
        self.losses >= LOSSES_MIN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIN: Duration = Duration::from_millis(100);

    /// Checks a stream 20 times, with this queueing delay and these losses before each check.
    fn is_random(queue_ms: impl Fn(u32) -> u64, lost: impl Fn(u32) -> u32) -> bool {
        let mut detector = RandomLossDetector::default();
        let mut resent = 0;
        (0..20).any(|step| {
            resent += lost(step);
            let round_trip = MIN + Duration::from_millis(queue_ms(step));
            let stream = StreamState {
                resent,
                round_trip,
                round_trip_min: MIN,
                window: 100,
                ..StreamState::default()
            };
            detector.check(&stream, Time::from_millis(u64::from(step) * 150))
        })
    }

    #[test]
    fn losses_without_a_queue_are_random() {
        assert!(is_random(|_| 1, |_| 1));
        assert!(is_random(|_| 0, |step| u32::from(step % 4 == 0)));
    }

    #[test]
    fn losses_in_a_queue_are_not() {
        assert!(!is_random(|_| 1, |_| 0), "no loss");
        assert!(!is_random(|_| 50, |_| 3), "a long queue");
        assert!(
            !is_random(|step| if step % 5 == 4 { 12 } else { 0 }, |step| u32::from(step % 5 == 0)),
            "a short queue"
        );
    }
}
