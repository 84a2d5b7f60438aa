//! The bounds of the pace where the queue does not tell the rate: beside other senders, and in front of a queue that is too
//! short to show. Sans-IO.

use contract::Time;
use std::time::Duration;

/// Share of the peak at which a connection stops yielding to a queue.
const FIRST_SHARE: f64 = 0.5;
/// A connection that had less than this share of its peak when the queue overflowed has a neighbour.
const ALONE_SHARE: f64 = 0.93;
/// The share of its rate that a connection then keeps, and the queueing delays in which it does, as multiples of the target.
const KEPT_SHARE: f64 = 0.97;
const NEAR_TARGET: [f64; 2] = [0.5, 2.0];
/// CUBIC's constants (RFC 9438, section 5): share that remains after a loss, and growth in segments a cubic second.
const AFTER_LOSS: f64 = 0.7;
const CUBIC: f64 = 0.4;
const SEGMENT_BYTES: f64 = 1448.0;
/// Growth in segments a round trip with which CUBIC equals Reno (section 4.3).
const RENO: f64 = 3.0 * (1.0 - AFTER_LOSS) / (1.0 + AFTER_LOSS);
/// The floor is forgotten after this time without a queue, the cap when it has grown by this factor since the loss.
const CALM: Duration = Duration::from_secs(10);
const GROWN: f64 = 1.3;
/// A link is contended after this many intervals with a queueing delay above this multiple of the target, if the
/// excess does not fall to this share from each to the next: alone, a lower pace would drain the queue.
const CONTENDED: (u32, f64, f64) = (8, 1.2, 0.8);
/// So it is after so many intervals that took this time: where a round trip is long, the longer one would become the base before.
const CONTENDED_LONG: (u32, Duration) = (5, Duration::from_secs(1));
/// With jitter, single delays rise and fall. A link is also contended after so many intervals in which a connection that has
/// yielded sees the network accept this share of its pace, while the average queue is long and has not fallen to this share.
const YIELDED: (u32, f64, f64) = (16, 0.9, 0.6);

/// A measurement interval at the queue.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    /// Queueing delay and its target.
    pub(super) queue: Duration,
    pub(super) aim: Duration,
    /// The queue overflowed.
    pub(super) is_from_queue: bool,
    /// The pace, the rate that the network accepted, and the highest so far, bytes a second.
    pub(super) pace: f64,
    pub(super) accepted: f64,
    pub(super) peak: f64,
    pub(super) round_trip: Duration,
}

/// Bounds of the pace beside other senders.
#[derive(Debug, Default)]
pub(super) struct Contention {
    held: Option<Held>,
    /// The rate at which a connection stops yielding slowly, bytes a second.
    kept: Option<f64>,
    /// Excess of the queueing delay over its target in the last interval.
    excess: Duration,
    /// Consecutive intervals in which it did not fall, and the beginning of the first.
    persistent: u32,
    persistent_since: Time,
    /// There were enough of them.
    is_persistent: bool,
    /// Smoothed queueing delay, the intervals in which it was long although this connection had yielded less the others, and
    /// the longest smoothed delay since the first of them.
    queue: Duration,
    yielded: u32,
    yielded_from: Duration,
}

#[derive(Debug, Clone, Copy)]
struct Held {
    /// Window at the last loss, segments.
    before_loss: f64,
    /// Time of the last loss, or of the first queue.
    since: Time,
    /// End of the last contended interval.
    contended: Time,
    /// Earliest next reduction.
    next_loss: Time,
    /// The queue overflowed while the connection had a neighbour: the window is also the cap.
    is_capped: bool,
}

impl Held {
    /// Returns CUBIC's window (RFC 9438, sections 4.2 and 4.3).
    fn segments(&self, round_trip_s: f64, now: Time) -> f64 {
        let elapsed_s = now.since(self.since).as_secs_f64();
        let returns_s = (self.before_loss * (1.0 - AFTER_LOSS) / CUBIC).cbrt();
        let reno = self.before_loss * AFTER_LOSS + RENO * elapsed_s / round_trip_s;
        f64::max(CUBIC * (elapsed_s - returns_s).powi(3) + self.before_loss, reno)
    }
}

impl Contention {
    /// Returns true if another sender fills the queue.
    pub(super) fn is_held(&self) -> bool {
        self.is_persistent || self.held.is_some_and(|held| held.is_capped)
    }

    fn is_contended(&mut self, seen: &Seen, now: Time) -> bool {
        let (intervals, multiple, falling) = CONTENDED;
        let has_queue = seen.queue > seen.aim.mul_f64(multiple);
        let excess = seen.queue.saturating_sub(seen.aim);
        let is_falling = excess < self.excess.mul_f64(falling);
        if self.persistent == 0 {
            self.persistent_since = now;
        }
        self.persistent = if has_queue && !is_falling { self.persistent + 1 } else { 0 };
        self.excess = excess;
        let yields_in_vain = self.yields_in_vain(seen);
        let (long, lasts) = CONTENDED_LONG;
        self.is_persistent = self.persistent >= intervals
            || self.persistent >= long && now.since(self.persistent_since) >= lasts
            || yields_in_vain;
        self.is_persistent || self.held.is_some() && has_queue
    }

    /// Returns true if this connection has yielded half of its rate, the network accepts all of the rest, and the queue stays long.
    fn yields_in_vain(&mut self, seen: &Seen) -> bool {
        let (intervals, all_accepted, fallen) = YIELDED;
        // It follows a queue that drains faster than one that grows.
        let weight = if seen.queue > self.queue { 8 } else { 4 };
        self.queue = (self.queue * (weight - 1) + seen.queue) / weight;
        let has_yielded = seen.accepted < FIRST_SHARE * seen.peak && seen.accepted > all_accepted * seen.pace;
        let is_in_vain = has_yielded && self.queue > seen.aim.mul_f64(CONTENDED.1);
        self.yielded = if is_in_vain { self.yielded + 1 } else { self.yielded.saturating_sub(1) };
        if self.yielded == 0 || self.queue < self.yielded_from.mul_f64(fallen) {
            (self.yielded, self.yielded_from) = (0, Duration::ZERO);
        }
        self.yielded_from = self.yielded_from.max(self.queue);
        self.yielded >= intervals
    }

    /// Returns the rate to keep while the queue is near its target. A sender that slowly takes the link leaves the queue there,
    /// because this one yields; so does a link that has become slower.
    fn kept(&mut self, seen: &Seen) -> f64 {
        let [from, to] = NEAR_TARGET.map(|share| seen.aim.mul_f64(share));
        match (from..to).contains(&seen.queue) {
            true if self.kept.is_none() && seen.accepted < FIRST_SHARE * seen.peak => {
                self.kept = Some(KEPT_SHARE * seen.accepted);
            }
            true => {}
            false => self.kept = None,
        }
        self.kept.unwrap_or_default()
    }

    /// Updates the bounds after an interval. Returns them in bytes a second: `0..infinity` without contention.
    pub(super) fn update(&mut self, seen: &Seen, now: Time) -> (f64, f64) {
        let is_contended = self.is_contended(seen, now);
        let round_trip_s = seen.round_trip.as_secs_f64().max(1e-3);
        let segments = |rate: f64| rate * round_trip_s / SEGMENT_BYTES;
        let rate = |segments: f64| segments * SEGMENT_BYTES / round_trip_s;
        if is_contended && self.held.is_none() {
            let before_loss = segments(FIRST_SHARE * seen.peak) / AFTER_LOSS;
            let held = Held { before_loss, since: now, contended: now, next_loss: now, is_capped: false };
            self.held = Some(held);
        }
        let kept = self.kept(seen);
        let Some(held) = &mut self.held else { return (kept, f64::INFINITY) };
        if is_contended {
            held.contended = now;
        }
        if seen.is_from_queue && now >= held.next_loss {
            held.contended = now;
            let has_neighbour = seen.accepted < ALONE_SHARE * seen.peak;
            held.is_capped |= has_neighbour;
            let own = if held.is_capped { segments(seen.accepted) } else { held.segments(round_trip_s, now) };
            (held.before_loss, held.since) = (own.min(segments(seen.peak)), now);
            // Later losses of this round trip have the same cause.
            held.next_loss = now.after(seen.round_trip);
        }
        let window = held.segments(round_trip_s, now);
        let is_over = match held.is_capped {
            true => window > GROWN * held.before_loss,
            false => now.since(held.contended) > CALM,
        };
        let bounds = match (is_contended, held.is_capped) {
            (true, true) => (rate(window), rate(window)),
            (false, true) => (0.0, rate(window)),
            // A window alone would fall behind while a neighbour that grows slowly makes the queue, and the round trip, longer.
            (true, false) => {
                let floor = rate(window).max(FIRST_SHARE * seen.peak);
                (floor.min(AFTER_LOSS * seen.peak), f64::INFINITY)
            }
            (false, false) => (kept, f64::INFINITY),
        };
        if is_over {
            self.held = None;
        }
        bounds
    }
}

/// The rate that overflowed a queue too short to show.
#[derive(Debug, Default)]
pub(super) struct Ceiling {
    lowered: Option<(f64, Time)>,
}

/// Right after a loss the pace stays below this share of the ceiling. It reaches the ceiling after [`RETURN_S`]; then it
/// rises faster and faster: the part above the ceiling doubles in [`DOUBLES_S`].
const BELOW_CEILING: f64 = 0.95;
const RETURN_S: f64 = 5.0;
const DOUBLES_S: f64 = 1.25;

impl Ceiling {
    /// A trial has found that a queue loses at a higher rate.
    pub(super) fn lower(&mut self, rate: f64, now: Time) {
        self.lowered = Some((rate, now));
    }

    /// Bounds a rate.
    pub(super) fn bound(&mut self, rate: f64, now: Time) -> f64 {
        let Some((ceiling, at)) = self.lowered else { return rate };
        let (elapsed_s, step) = (now.since(at).as_secs_f64(), 1.0 - BELOW_CEILING);
        let share = match elapsed_s < RETURN_S {
            true => BELOW_CEILING + step * (elapsed_s / RETURN_S).powi(2),
            false => 1.0 + step * (((elapsed_s - RETURN_S) / DOUBLES_S).exp2() - 1.0),
        };
        if share > 2.0 {
            self.lowered = None;
        }
        rate.min(share * ceiling)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Intervals of one round trip each, with these queueing delays, on a link with a shortest round trip of `base_ms` where this
    /// connection had 5 MB/s. Returns the floor after each.
    fn floors(base_ms: u64, queues_ms: impl Iterator<Item = u64>) -> Vec<f64> {
        let (mut contention, mut now) = (Contention::default(), Time::from_millis(1000));
        let floor = |queue_ms| {
            let [queue, round_trip, aim] = [queue_ms, base_ms + queue_ms, 8].map(Duration::from_millis);
            now = now.after(round_trip);
            let accepted = 3e6;
            let seen =
                Seen { queue, aim, is_from_queue: false, pace: accepted, accepted, peak: 5e6, round_trip };
            contention.update(&seen, now).0
        };
        queues_ms.map(floor).collect()
    }

    #[test]
    fn a_neighbour_that_grows_slowly_leaves_half_of_the_rate() {
        // As the queue grows, so does the round trip: a window would become a lower rate.
        let floors = floors(20, (1..100).map(|interval| 70 + 3 * interval));
        let contended = floors.iter().position(|floor| *floor > 0.0);
        assert_eq!(contended, Some(7), "{floors:?}");
        assert!(floors[7..].iter().all(|floor| (2.5e6..3.51e6).contains(floor)), "{floors:?}");
    }

    #[test]
    fn a_neighbour_on_a_long_path_shows_within_a_second_or_two() {
        let floors = floors(100, [120, 150, 150, 140, 130, 130].into_iter());
        assert_eq!(floors.iter().position(|floor| *floor > 0.0), Some(5), "{floors:?}");
        assert_eq!(
            self::floors(100, [160, 110, 70, 45, 30, 20, 14].into_iter()),
            [0.0; 7],
            "a queue that drains"
        );
    }
}
