//! Tracks the updates in flight to one viewer: limits their number, and learns whether compressed or plain pixels
//! arrive sooner.
//!
//! A fence follows each tracked update, and the viewer replies to it after it has processed the update. The time from
//! the start of the update to the reply, less the round trip, is the cost of its pixels. On a fast network plain pixels
//! cost less. The choice that costs more is tried again from time to time, with few pixels and at growing intervals.

use contract::Time;
use std::collections::VecDeque;
use std::time::Duration;

/// Smaller updates are not measured, since overhead dominates their time. They are always compressed.
pub(super) const MEASURED_MIN: u64 = 1 << 15;

/// The pixels of a trial.
pub(super) const TRIAL_PIXELS: u64 = 1 << 15;

/// The most unacknowledged updates.
const IN_FLIGHT_MAX: usize = 16;

/// The time that an update may wait in queues of the network, in addition to the round trip.
const QUEUE_WAIT: Duration = Duration::from_millis(50);

/// The number of large updates between two trials: initial and largest.
const TRIAL_INTERVALS: [u32; 2] = [8, 1024];

/// The form of an update's pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Compression {
    Compressed,
    Plain,
}

/// An unacknowledged update and the fence after it.
#[derive(Debug, Clone, Copy)]
struct Update {
    fence: u8,
    sent_at: Time,
    /// The number of pixels, if it is large enough to measure, and their form.
    measured: Option<(u64, Compression)>,
}

/// The updates in flight to one viewer.
#[derive(Debug)]
pub(super) struct UpdateTracker {
    /// Unacknowledged updates, the oldest first.
    updates: VecDeque<Update>,
    next_fence: u8,
    last_reply: Time,
    /// The shortest time from an update to its reply.
    round_trip: Option<Duration>,
    /// The mean cost of compressed and of plain pixels, in nanoseconds for each.
    costs: [Option<f64>; 2],
    /// The number of large updates until the next trial.
    trial_in: u32,
    /// The interval after the next trial.
    trial_interval: u32,
}

impl UpdateTracker {
    /// Makes a tracker without measurements.
    pub(super) fn new() -> UpdateTracker {
        UpdateTracker {
            updates: VecDeque::new(),
            next_fence: 0,
            last_reply: Time::ZERO,
            round_trip: None,
            costs: [None; 2],
            trial_in: TRIAL_INTERVALS[0],
            trial_interval: TRIAL_INTERVALS[0],
        }
    }

    /// Returns whether another update may be sent. Updates must not fill the queues of the network.
    pub(super) fn has_room(&self, now: Time) -> bool {
        let Some(oldest) = self.updates.front() else { return true };
        let wait_max = self.round_trip.map_or(Duration::ZERO, |round_trip| round_trip + QUEUE_WAIT);
        self.updates.len() < IN_FLIGHT_MAX && now.since(oldest.sent_at) < wait_max
    }

    /// Chooses the form of this many pixels. Returns also whether it is a trial, for which the caller sends only
    /// [`TRIAL_PIXELS`].
    pub(super) fn choose(&mut self, pixels: u64) -> (Compression, bool) {
        if pixels < MEASURED_MIN {
            return (Compression::Compressed, false);
        }
        let (best, other) = match self.costs {
            [Some(compressed), Some(plain)] if plain < compressed => {
                (Compression::Plain, Compression::Compressed)
            }
            _ => (Compression::Compressed, Compression::Plain),
        };
        self.trial_in -= 1;
        if self.trial_in > 0 {
            return (best, false);
        }
        self.trial_in = self.trial_interval;
        self.trial_interval = (self.trial_interval * 2).min(TRIAL_INTERVALS[1]);
        (other, true)
    }

    /// Registers an update that is sent at `sent_at`. Returns the number of the fence to send after it.
    pub(super) fn handle_sent(&mut self, pixels: u64, compression: Compression, sent_at: Time) -> u8 {
        self.next_fence = self.next_fence.wrapping_add(1);
        let measured = (pixels >= MEASURED_MIN).then_some((pixels, compression));
        self.updates.push_back(Update { fence: self.next_fence, sent_at, measured });
        self.next_fence
    }

    /// The viewer has replied to a fence: it has processed all updates before it.
    pub(super) fn handle_reply(&mut self, fence: u8, now: Time) {
        let Some(at) = self.updates.iter().position(|update| update.fence == fence) else { return };
        let Update { sent_at, measured, .. } = self.updates[at];
        self.updates.drain(..=at);
        let elapsed = now.since(sent_at);
        let round_trip = self.round_trip.map_or(elapsed, |least| least.min(elapsed));
        self.round_trip = Some(round_trip);
        // If the previous update was still in progress, this one's own time starts at its reply. Otherwise subtract the
        // round trip, which does not depend on the pixels.
        let own_time = match self.last_reply > sent_at {
            true => now.since(self.last_reply),
            false => elapsed.saturating_sub(round_trip),
        };
        self.last_reply = now;
        if let Some((pixels, compression)) = measured {
            let cost = own_time.as_nanos() as f64 / pixels as f64;
            let mean = &mut self.costs[compression as usize];
            *mean = Some(mean.map_or(cost, |mean| mean + (cost - mean) / 4.0));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIXELS: u64 = 500_000;

    /// Sends pictures one at a time over a network of `bytes_a_ms`. Compression shrinks pixels to a quarter, and the
    /// viewer needs `decode_ns` for each compressed pixel. Returns the fraction of pixels that were sent plain.
    fn plain_share(bytes_a_ms: u64, decode_ns: u64, pictures: u64) -> f64 {
        let (mut tracker, mut now, mut plain) = (UpdateTracker::new(), Time::from_millis(1), 0);
        let small = tracker.handle_sent(1, Compression::Compressed, now);
        tracker.handle_reply(small, now.after(Duration::from_micros(100)));
        for _ in 0..pictures {
            let (compression, is_trial) = tracker.choose(PIXELS);
            let pixels = if is_trial { TRIAL_PIXELS } else { PIXELS };
            let (bytes, work_ns) = match compression {
                Compression::Plain => (pixels * 4, pixels),
                Compression::Compressed => (pixels, pixels * decode_ns),
            };
            plain += if compression == Compression::Plain { pixels } else { 0 };
            let fence = tracker.handle_sent(pixels, compression, now);
            now = now.after(Duration::from_nanos(100_000 + bytes * 1_000_000 / bytes_a_ms + work_ns));
            tracker.handle_reply(fence, now);
        }
        plain as f64 / (pictures * PIXELS) as f64
    }

    #[test]
    fn a_fast_network_gets_plain_pixels_and_a_slow_one_compressed_pixels() {
        let fast = plain_share(2_000_000, 20, 1000);
        assert!(fast > 0.9, "{fast} plain at 2 GB/s");
        let slow = plain_share(1250, 20, 1000);
        assert!((0.0..0.002).contains(&slow) && slow > 0.0, "{slow} plain at 10 Mbit/s");
        let free = plain_share(2_000_000, 0, 1000);
        assert!(free < 0.01, "{free} plain although decoding costs nothing");
    }

    #[test]
    fn small_updates_are_compressed() {
        let mut tracker = UpdateTracker::new();
        assert!((0..100).all(|_| tracker.choose(MEASURED_MIN - 1) == (Compression::Compressed, false)));
    }
}
