//! The limit on messages in flight: fixed, or `auto`.
//!
//! `auto` measures the round trip from sending a message to its acknowledgement. Round trips longer
//! than the shortest mean that the network queues. As in FAST TCP (Wei, Jin, Low and Hegde, 2006),
//! the window tends to the messages that the network holds plus [`QUEUED`]: `window * shortest /
//! round trip + QUEUED`.
//!
//! This rule assumes messages of one size, and needs some round trips to converge. For large
//! messages, `auto` also measures the time that the network takes for a byte. Then the bytes in
//! flight are limited to those that the network carries within the shortest round trip: many small
//! messages or few large ones, without a queue.
//!
//! A queue that our own messages cause must not be taken for distance. So a shortest round trip
//! that no other has come near for [`SHORTEST_VALID_FOR`] is measured again over an empty network,
//! with one message in flight (as BBR does).

use super::IN_FLIGHT_MAX;
use contract::{Options, Time, Value};
use std::time::Duration;

/// Messages that may queue in the network, so that it is never idle.
const QUEUED: f64 = 1.0;
/// Initial window of `auto`.
const FIRST: usize = 4;
/// A round trip longer than the shortest by this share does not mean a queue.
const SLACK: f64 = 0.125;
/// Nor does one that is longer by this time.
const SLACK_MIN: Duration = Duration::from_millis(2);
/// Smaller messages are no sample of the time for a byte.
const SAMPLE_BYTES_MIN: usize = 1 << 11;
/// Samples of the time for a byte; their median counts. It ignores a message that waited for other
/// traffic.
const BYTE_SAMPLES: usize = 9;
/// After the first congestion, the window grows by one part in this many at a time.
const GROW_SHARE: usize = 8;
/// Factor by which the number of small messages may exceed the window, if their bytes allow it.
const SMALL_MESSAGES_FACTOR: usize = 4;
/// Time after which the shortest round trip is measured again if none came near it.
const SHORTEST_VALID_FOR: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct Window {
    size: usize,
    auto: Option<Auto>,
}

#[derive(Debug, Default)]
struct Auto {
    /// The shortest round trip, and the time at which a round trip near it was last seen.
    shortest: Option<(Duration, Time)>,
    /// The shortest round trip since the last update of the window.
    recent_shortest: Option<Duration>,
    /// The acknowledgement of this message updates the window again.
    update_at: u64,
    /// Messages had to wait since the last update.
    was_full: bool,
    /// Congestion was seen: growth is slow from then on.
    was_congested: bool,
    /// The window to return to after the shortest round trip was measured again.
    saved_size: Option<usize>,
    /// Time for a byte in the last messages, in nanoseconds, and the number of samples so far.
    bytes_ns: [f64; BYTE_SAMPLES],
    samples: usize,
    /// Time of the last acknowledgement.
    last_ack: Time,
}

/// True if a round trip is as short as the shortest, within the slack.
fn is_near(round_trip: Duration, shortest: Duration) -> bool {
    round_trip <= shortest.mul_f64(1.0 + SLACK).max(shortest + SLACK_MIN)
}

impl Auto {
    /// Median time for a byte, in nanoseconds.
    fn byte_ns(&self) -> Option<f64> {
        let mut sorted = self.bytes_ns;
        let sorted = &mut sorted[..self.samples.min(BYTE_SAMPLES)];
        sorted.sort_unstable_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied()
    }

    /// Samples the time for a byte from a message sent at `sent_at`; `previous_ack` is the time of the
    /// acknowledgement before its own.
    fn sample_byte_time(&mut self, bytes: usize, sent_at: Time, previous_ack: Time, now: Time) {
        let Some((shortest, _)) = self.shortest.filter(|_| bytes >= SAMPLE_BYTES_MIN) else { return };
        // Its transmission began when the message before it was through, but no sooner than the
        // distance allows.
        let transmission = now.since(previous_ack.max(sent_at.after(shortest)));
        self.bytes_ns[self.samples % BYTE_SAMPLES] = transmission.as_nanos() as f64 / bytes as f64;
        self.samples += 1;
    }

    /// Updates the shortest round trip with that of a message of `bytes` bytes.
    fn update_shortest(&mut self, bytes: usize, round_trip: Duration, now: Time) {
        let transmission = self.byte_ns().map_or(0.0, |byte_ns| byte_ns * bytes as f64);
        match &mut self.shortest {
            Some((shortest, _)) if round_trip < *shortest => {
                if !is_near(*shortest, round_trip) {
                    // The samples assumed the wrong distance: start again.
                    self.samples = 0;
                }
                self.shortest = Some((round_trip, now));
            }
            Some((shortest, seen)) => {
                if is_near(round_trip.saturating_sub(Duration::from_nanos(transmission as u64)), *shortest) {
                    *seen = now;
                }
            }
            None => self.shortest = Some((round_trip, now)),
        }
    }
}

impl Window {
    pub(super) fn new(options: &Options) -> Window {
        match options.is_auto("in_flight") {
            true => Window { size: FIRST, auto: Some(Auto::default()) },
            false => Window { size: options.count("in_flight"), auto: None },
        }
    }

    /// Most messages in flight.
    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// Returns true if another message finds no queue besides those in flight, judged by their
    /// bytes; `None` if the time for a byte is unknown and only their number counts.
    pub(super) fn has_room(&self, messages: usize, bytes: u64) -> Option<bool> {
        let auto = self.auto.as_ref()?;
        let (byte_ns, (shortest, _)) = (auto.byte_ns()?, auto.shortest?);
        let is_carried = bytes as f64 * byte_ns < shortest.max(SLACK_MIN).as_nanos() as f64;
        let most = self.size.saturating_mul(SMALL_MESSAGES_FACTOR).min(IN_FLIGHT_MAX);
        Some(messages == 0 || is_carried && messages < most)
    }

    /// Notes that a message has to wait.
    pub(super) fn set_full(&mut self) {
        if let Some(auto) = &mut self.auto {
            auto.was_full = true;
        }
    }

    /// Message `number` of `bytes` bytes, sent at `sent_at`, was acknowledged; `next` is the number
    /// of the next message to send. Once per window, the size is updated:
    ///
    /// ```text
    /// shortest round trip too old    1, until it is measured again
    /// it was measured again          the size before that
    /// round trips near the shortest  if messages waited: doubled, or an eighth more after the first congestion
    /// longer round trips             window * shortest / round trip + QUEUED
    /// ```
    pub(super) fn handle_ack(&mut self, number: u64, next: u64, (sent_at, bytes): (Time, usize), now: Time) {
        let Some(auto) = &mut self.auto else { return };
        let previous_ack = std::mem::replace(&mut auto.last_ack, now);
        // While the shortest is measured again, messages sent earlier still show our own queue.
        if auto.shortest.is_none() && number < auto.update_at {
            return;
        }
        let round_trip = now.since(sent_at);
        auto.sample_byte_time(bytes, sent_at, previous_ack, now);
        auto.update_shortest(bytes, round_trip, now);
        let recent_shortest =
            auto.recent_shortest.map_or(round_trip, |recent_shortest| recent_shortest.min(round_trip));
        auto.recent_shortest = Some(recent_shortest);
        let Some((shortest, seen)) = auto.shortest.filter(|_| number >= auto.update_at) else { return };
        if now.since(seen) > SHORTEST_VALID_FOR {
            (auto.shortest, auto.samples) = (None, 0);
            auto.saved_size = Some(std::mem::replace(&mut self.size, 1));
        } else if let Some(size) = auto.saved_size.take() {
            self.size = size;
        } else if is_near(recent_shortest, shortest) {
            if auto.was_full {
                let more = if auto.was_congested { (self.size / GROW_SHARE).max(1) } else { self.size };
                self.size = (self.size + more).min(IN_FLIGHT_MAX);
            }
        } else {
            auto.was_congested = true;
            let holds = self.size as f64 * shortest.as_secs_f64() / recent_shortest.as_secs_f64();
            self.size = ((holds + QUEUED).round() as usize).clamp(1, IN_FLIGHT_MAX);
        }
        (auto.recent_shortest, auto.update_at, auto.was_full) = (None, next, false);
    }

    /// The current choice of `auto` and its reason.
    pub(super) fn choice(&self) -> Option<contract::Choice> {
        let auto = self.auto.as_ref()?;
        let why = match auto.shortest {
            None => "the round trip is being measured".into(),
            Some((shortest, _)) => format!(
                "round trips take at least {:.1} ms: this many messages keep the network busy, and more would only queue",
                shortest.as_secs_f64() * 1e3
            ),
        };
        let size = i64::try_from(self.size).unwrap_or(i64::MAX);
        Some(contract::Choice { option: "in_flight", value: Value::Integer(size), why })
    }
}
