//! The link as the source half sees it: the time that it takes for a byte, and the messages that it has not delivered.
//!
//! A marker, a few bytes, leaves right before each message ([`dispersion`]). A retransmitted packet lengthens the time between their
//! arrivals, so the median of several messages counts; two in a row that are many times slower are a slower link.
//!
//! A message that has not arrived is in flight until it counts as lost. Then it leaves its room to others. If it still arrives,
//! it waited in a queue, and so does every later message that counts as lost: these are in flight again.
//!
//! ```text
//! the first message in flight        counts as lost
//! a later one has arrived            LOST_AFTER after it left
//! no later one has arrived           LOST_AFTER after the last arrival or loss: a slow link takes so long, a dead one gets
//!                                    a message each time
//! ```

use crate::dispersion;
use crate::round_trip::ShortestRoundTrip;
use contract::Time;
use std::collections::VecDeque;
use std::time::Duration;

/// Samples of the time for a byte, whose median counts.
const SAMPLES: usize = 9;
/// The last samples that count if all of them are so many times the median.
const SLOWER_SAMPLES: usize = 2;
const SLOWER: f64 = 8.0;
/// Samples from which on the median is trusted with a picture as it is.
const SAMPLES_TRUSTED: usize = 8;
/// Time after which the link is measured again with padding, if all messages are small.
const SAMPLE_EVERY: Duration = Duration::from_secs(1);
/// Length of a padded message: as many bytes as the link takes in this time, within these bounds. On a fast link, a short
/// message shows the speed of processes only.
const PADDED_TIME_NS: f64 = 5e6;
const PADDED_BYTES: [f64; 2] = [3000.0, 65_536.0];
/// Time after which a message that did not arrive counts as lost. A longer round trip is mostly time in a queue.
const LOST_AFTER: Duration = Duration::from_secs(2);
/// Most messages without an acknowledgement that are remembered.
const SENT_MAX: usize = 1024;
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
    /// Messages without an acknowledgement.
    sent: VecDeque<Sent>,
    /// The first so many of them count as lost; the others are in flight.
    lost: usize,
    in_flight_bytes: usize,
    /// Number behind that of the newest message that arrived.
    arrived_to: u64,
    /// Time of the last arrival, or of the last loss that no later arrival shows.
    progress_at: Time,
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
        if self.sent.len() >= SENT_MAX {
            if self.lost == 0 {
                self.lose_first();
            }
            self.sent.pop_front();
            self.lost -= 1;
        }
        self.sent.push_back(Sent { sequence, at: now, bytes });
        self.in_flight_bytes += bytes;
    }

    /// Counts the first message in flight as lost.
    fn lose_first(&mut self) {
        self.in_flight_bytes -= self.sent[self.lost].bytes;
        self.lost += 1;
    }

    /// The time at which the first message in flight counts as lost.
    pub(super) fn loss_deadline(&self) -> Option<Time> {
        let first = self.sent.get(self.lost)?;
        let is_overtaken = first.sequence < self.arrived_to;
        let since = if is_overtaken { first.at } else { first.at.max(self.progress_at) };
        Some(since.after(LOST_AFTER))
    }

    /// Gives the room of lost messages to others.
    pub(super) fn forget_lost(&mut self, now: Time) {
        while self.loss_deadline().is_some_and(|at| at <= now) {
            if self.sent[self.lost].sequence >= self.arrived_to {
                self.progress_at = now;
            }
            self.lose_first();
        }
    }

    /// The last message was handed to the transport at `now`, after it was made.
    pub(super) fn left(&mut self, now: Time) {
        if let Some(last) = self.sent.back_mut() {
            last.at = now;
        }
    }

    /// A message arrived, `spread` after its marker. Messages that are not remembered are ignored.
    pub(super) fn arrived(&mut self, sequence: u64, spread: Option<Duration>, now: Time) {
        let Ok(at) = self.sent.binary_search_by_key(&sequence, |sent| sent.sequence) else { return };
        if at < self.lost {
            self.in_flight_bytes += self.sent.range(at..self.lost).map(|sent| sent.bytes).sum::<usize>();
            self.lost = at;
        }
        let Some(sent) = self.sent.remove(at) else { return };
        self.in_flight_bytes -= sent.bytes;
        self.arrived_to = self.arrived_to.max(sequence + 1);
        self.progress_at = now;
        if let Some(byte_ns) = spread.and_then(|spread| dispersion::byte_ns(sent.bytes, spread)) {
            self.samples[self.count % SAMPLES] = byte_ns;
            self.count += 1;
            self.sampled_at = now;
        }
        let round_trip = now.since(sent.at);
        if round_trip <= LOST_AFTER || self.round_trip().is_none() {
            self.round_trips.add(round_trip, now);
        }
    }

    /// Time for a byte, in nanoseconds: the median, or the shortest of the last samples if these are many times slower; `None` before
    /// the first sample.
    pub(super) fn byte_ns(&self) -> Option<f64> {
        let mut sorted = self.samples;
        let sorted = &mut sorted[..self.count.min(SAMPLES)];
        sorted.sort_unstable_by(f64::total_cmp);
        let median = sorted.get(sorted.len() / 2).copied()?;
        let last =
            (self.count.saturating_sub(SLOWER_SAMPLES)..self.count).map(|at| self.samples[at % SAMPLES]);
        let slower = last.fold(f64::INFINITY, f64::min);
        Some(if slower > median * SLOWER { slower } else { median })
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
            None => self.sent.len() - self.lost >= UNKNOWN_IN_FLIGHT_MAX,
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
    fn two_messages_in_a_row_show_a_link_that_became_thin() {
        let mut link = measured(80, std::iter::repeat_n(10_000, 9));
        let rates = [8e9 / 80.0, 1e6, 1e6, 8e9 / 80.0].map(|rate: f64| rate.round());
        for (sequence, byte_ns, rate) in
            [(9, 8000, rates[0]), (10, 8000, rates[1]), (11, 8000, rates[2]), (12, 80, rates[3])]
        {
            link.sent(sequence, 10_000, Time::from_millis(5000));
            link.arrived(sequence, Some(Duration::from_nanos(byte_ns * 8800)), Time::from_millis(5080));
            assert_eq!(link.rate_bits().map(|rate| rate.round()), Some(rate), "message {sequence}");
        }
    }

    /// A link that needs 160 ms for what is in flight, of which the round trip explains 40.
    fn with_a_queue(interval: Duration, now: Time) -> Link {
        let mut link = measured(2000, std::iter::repeat_n(10_000, 9));
        assert!(!link.is_behind(interval));
        (20..28).for_each(|sequence| link.sent(sequence, 10_000, now));
        assert!(link.is_behind(interval));
        assert_eq!(link.loss_deadline(), Some(now.after(LOST_AFTER)));
        link
    }

    #[test]
    fn a_queue_shows_and_lost_messages_give_their_room_back() {
        let interval = Duration::from_millis(33);
        let now = Time::from_millis(9000);
        let mut link = with_a_queue(interval, now);
        link.forget_lost(now.after(LOST_AFTER));
        assert_eq!(link.in_flight_bytes, 70_000, "one at a time while nothing arrives");
        assert_eq!(link.loss_deadline(), Some(now.after(LOST_AFTER * 2)));
        link.forget_lost(now.after(LOST_AFTER * 2));
        assert!(!link.is_behind(interval));
        link.sent(28, 10_000, now.after(LOST_AFTER * 2));
        link.arrived(28, None, now.after(LOST_AFTER * 2));
        link.forget_lost(now.after(LOST_AFTER * 2));
        assert_eq!(
            (link.in_flight_bytes, link.loss_deadline()),
            (0, None),
            "all that a later one has overtaken"
        );
    }

    #[test]
    fn a_message_that_was_not_lost_is_a_sample_and_those_behind_it_are_in_flight_again() {
        let interval = Duration::from_millis(33);
        let now = Time::from_millis(9000);
        let mut link = with_a_queue(interval, now);
        (1..6).for_each(|times| link.forget_lost(now.after(LOST_AFTER * times)));
        assert_eq!(link.in_flight_bytes, 30_000);
        let (samples, round_trip) = (link.count, link.round_trip());
        let now = now.after(LOST_AFTER * 6);
        link.arrived(21, Some(Duration::from_secs(2)), now);
        assert_eq!(
            (link.count, link.round_trip()),
            (samples + 1, round_trip),
            "the way is as short as before"
        );
        assert_eq!(link.in_flight_bytes, 60_000, "only the first one is still lost");
        assert_eq!(link.loss_deadline(), Some(now.after(LOST_AFTER)), "the link is slow");
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
        assert_eq!((link.sent.len(), link.in_flight_bytes), (SENT_MAX, SENT_MAX));
    }
}
