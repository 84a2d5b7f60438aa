//! The link as the source half sees it: the time that it takes for a byte, and the messages that it has not delivered.
//!
//! A marker, a few bytes, leaves right before each message ([`dispersion`]). A retransmitted packet lengthens the time between their
//! arrivals, so the median of several messages counts.

use crate::dispersion;
use crate::round_trip::ShortestRoundTrip;
use contract::Time;
use std::collections::VecDeque;
use std::time::Duration;

/// Samples of the time for a byte, whose median counts.
const SAMPLES: usize = 9;
/// Samples from which on the median is trusted with a picture as it is.
const SAMPLES_TRUSTED: usize = 8;
/// Time after which the link is measured again with padding, if all messages are small.
const SAMPLE_EVERY: Duration = Duration::from_secs(1);
/// Length of a padded message: as many bytes as the link takes in this time, within these bounds. On a fast link, a short
/// message shows the speed of processes only.
const PADDED_TIME_NS: f64 = 5e6;
const PADDED_BYTES: [f64; 2] = [3000.0, 65_536.0];
/// A message that did not arrive for this time is lost.
const LOST_AFTER: Duration = Duration::from_secs(2);
/// Most messages in flight that are remembered.
const IN_FLIGHT_MAX: usize = 1024;
/// Length of the periods whose shortest round trip counts, in seconds.
const PERIOD_S: u64 = 5;
/// Messages in flight at which a link of unknown rate counts as busy.
const UNKNOWN_IN_FLIGHT_MAX: usize = 16;
/// Pictures that may be on their way beyond those that the distance explains.
const BEHIND_PICTURES: u32 = 3;
/// The time that the sink half waits for a missing message: the round trip in which the transport sends it again, half of it
/// more, and this. Before the first measurement, it is the second value; it is at most the third.
const WAIT_MARGIN: Duration = Duration::from_millis(10);
const WAIT_FIRST: Duration = Duration::from_millis(100);
const WAIT_MAX: Duration = Duration::from_millis(500);

#[derive(Debug, Clone, Copy)]
struct Sent {
    sequence: u64,
    at: Time,
    bytes: usize,
}

/// Measures the link.
#[derive(Debug, Default)]
pub(super) struct Link {
    in_flight: VecDeque<Sent>,
    in_flight_bytes: usize,
    /// Time for a byte of the last messages, in nanoseconds.
    samples: [f64; SAMPLES],
    count: usize,
    /// Time of the last sample.
    sampled_at: Time,
    round_trips: ShortestRoundTrip<PERIOD_S>,
}

impl Link {
    /// A message of `bytes` bytes leaves.
    pub(super) fn sent(&mut self, sequence: u64, bytes: usize, now: Time) {
        if self.in_flight.len() >= IN_FLIGHT_MAX {
            self.in_flight_bytes -= self.in_flight.pop_front().map_or(0, |sent| sent.bytes);
        }
        self.in_flight.push_back(Sent { sequence, at: now, bytes });
        self.in_flight_bytes += bytes;
    }

    /// The time at which the oldest message in flight counts as lost.
    pub(super) fn loss_deadline(&self) -> Option<Time> {
        self.in_flight.front().map(|sent| sent.at.after(LOST_AFTER))
    }

    /// Forgets lost messages.
    pub(super) fn forget_lost(&mut self, now: Time) {
        while self.loss_deadline().is_some_and(|at| at <= now) {
            self.in_flight_bytes -= self.in_flight.pop_front().map_or(0, |sent| sent.bytes);
        }
    }

    /// The last message was handed to the transport at `now`, after it was made.
    pub(super) fn left(&mut self, now: Time) {
        if let Some(last) = self.in_flight.back_mut() {
            last.at = now;
        }
    }

    /// A message arrived, `spread` after its marker. Messages that are not in flight are ignored.
    pub(super) fn arrived(&mut self, sequence: u64, spread: Option<Duration>, now: Time) {
        let Ok(at) = self.in_flight.binary_search_by_key(&sequence, |sent| sent.sequence) else { return };
        let Some(sent) = self.in_flight.remove(at) else { return };
        self.in_flight_bytes -= sent.bytes;
        if let Some(byte_ns) = spread.and_then(|spread| dispersion::byte_ns(sent.bytes, spread)) {
            self.samples[self.count % SAMPLES] = byte_ns;
            self.count += 1;
            self.sampled_at = now;
        }
        let round_trip = now.since(sent.at);
        self.round_trips.add(round_trip, now);
    }

    /// Median time for a byte, in nanoseconds; `None` before the first sample.
    pub(super) fn byte_ns(&self) -> Option<f64> {
        let mut sorted = self.samples;
        let sorted = &mut sorted[..self.count.min(SAMPLES)];
        sorted.sort_unstable_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied()
    }

    /// Returns the length to which a message of `bytes` bytes is to be padded, so that it is a sample.
    pub(super) fn padded(&self, bytes: usize, now: Time) -> usize {
        let is_due = self.count < SAMPLES_TRUSTED || now >= self.sampled_at.after(SAMPLE_EVERY);
        let wanted = self.byte_ns().map_or(PADDED_BYTES[0], |byte_ns| PADDED_TIME_NS / byte_ns.max(1e-3));
        if is_due { bytes.max(wanted.clamp(PADDED_BYTES[0], PADDED_BYTES[1]) as usize) } else { bytes }
    }

    /// Bits a second that the link carries; `None` before the first sample.
    pub(super) fn rate_bits(&self) -> Option<f64> {
        // A transfer without a measurable duration counts as a nanosecond a kilobyte.
        self.byte_ns().map(|byte_ns| 8e9 / byte_ns.max(1e-3))
    }

    /// The shortest time from a message to its acknowledgement; `None` before the first.
    pub(super) fn round_trip(&self) -> Option<Duration> {
        self.round_trips.get()
    }

    /// Returns true if the link surely takes at most `limit` for a message of this size.
    pub(super) fn carries(&self, bytes: usize, limit: Duration) -> bool {
        let byte_ns = self.byte_ns().filter(|_| self.count >= SAMPLES_TRUSTED);
        byte_ns.is_some_and(|byte_ns| byte_ns * bytes as f64 <= limit.as_nanos() as f64)
    }

    /// Returns true if the link took at most `limit` for the last message, were it of this size.
    pub(super) fn carried(&self, bytes: usize, limit: Duration) -> bool {
        let last = self.count.checked_sub(1).map(|last| self.samples[last % SAMPLES]);
        last.is_none_or(|byte_ns| byte_ns * bytes as f64 <= limit.as_nanos() as f64)
    }

    /// The time that the link needs for everything on its way, beyond the round trip; `None` before the first measurement.
    fn queue(&self) -> Option<Duration> {
        let (byte_ns, round_trip) = self.byte_ns().zip(self.round_trip())?;
        Some(Duration::from_nanos((byte_ns * self.in_flight_bytes as f64) as u64).saturating_sub(round_trip))
    }

    /// Returns true if so much is on its way that another picture would only queue. `interval` is the time between two
    /// pictures.
    pub(super) fn is_behind(&self, interval: Duration) -> bool {
        match self.queue() {
            Some(queue) => queue > interval * BEHIND_PICTURES,
            None => self.in_flight.len() >= UNKNOWN_IN_FLIGHT_MAX,
        }
    }

    /// Share of the usual rate with which a queue of more than a picture becomes shorter.
    pub(super) fn drain_share(&self, interval: Duration) -> f64 {
        let queue = self.queue().unwrap_or_default().max(interval);
        interval.as_secs_f64() / queue.as_secs_f64()
    }

    /// The time that the sink half waits for a missing message before it asks for it.
    pub(super) fn wait(&self) -> Duration {
        let waited = self.round_trip().map(|round_trip| round_trip.mul_f64(1.5) + WAIT_MARGIN);
        waited.unwrap_or(WAIT_FIRST).min(WAIT_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends messages over a link with a distance of 20 ms there and back that takes `byte_ns` for a byte.
    fn measured(byte_ns: u64, sizes: impl Iterator<Item = usize>) -> Link {
        let mut link = Link::default();
        for (sequence, bytes) in (0..).zip(sizes) {
            let at = Time::from_millis(1000 + sequence * 33);
            link.sent(sequence, bytes, at);
            let spread = Duration::from_nanos(byte_ns * bytes.saturating_sub(1200) as u64);
            let transmission = Duration::from_nanos(byte_ns * bytes as u64);
            link.arrived(sequence, Some(spread), at.after(transmission + Duration::from_millis(20)));
        }
        link
    }

    #[test]
    fn the_rate_of_a_link_is_found_whatever_its_distance() {
        let link = measured(2000, [9000, 14_000, 11_000, 500].into_iter().cycle().take(40));
        assert_eq!(link.rate_bits().map(|rate| rate.round()), Some(4e6));
        assert_eq!(link.round_trip(), Some(Duration::from_millis(21)), "that of the shortest message");
        assert_eq!(link.wait(), Duration::from_micros(41_500));
        assert!(link.carries(10_000, Duration::from_millis(20)));
        assert!(!link.carries(10_001, Duration::from_millis(20)));
    }

    #[test]
    fn a_few_retransmissions_leave_the_rate() {
        let mut link = measured(2000, std::iter::repeat_n(10_000, 9));
        for sequence in 100..104 {
            link.sent(sequence, 10_000, Time::from_millis(5000));
            link.arrived(sequence, Some(Duration::from_millis(70)), Time::from_millis(5080));
        }
        assert_eq!(link.rate_bits().map(|rate| rate.round()), Some(4e6));
    }

    #[test]
    fn a_queue_shows_and_a_lost_message_is_forgotten() {
        let interval = Duration::from_millis(33);
        let mut link = measured(2000, std::iter::repeat_n(10_000, 9));
        assert!(!link.is_behind(interval));
        let now = Time::from_millis(9000);
        (20..28).for_each(|sequence| link.sent(sequence, 10_000, now));
        assert!(link.is_behind(interval), "they need 160 ms; the round trip explains 40");
        assert_eq!(link.loss_deadline(), Some(now.after(LOST_AFTER)));
        link.forget_lost(now.after(LOST_AFTER));
        assert!(!link.is_behind(interval));
    }

    #[test]
    fn an_unknown_link_takes_a_few_messages() {
        let mut link = Link::default();
        (0..16).for_each(|sequence| link.sent(sequence, 1, Time::from_millis(1)));
        assert!(link.is_behind(Duration::from_millis(33)));
        assert!(!link.carries(1, Duration::from_secs(1)));
        for sequence in 16..5000 {
            link.sent(sequence, 1, Time::from_millis(1));
        }
        assert_eq!(link.in_flight.len(), IN_FLIGHT_MAX);
    }
}
