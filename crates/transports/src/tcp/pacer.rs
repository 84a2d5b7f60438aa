//! Paces a TCP stream so that it fills a slow link without filling the queue in front of it. Sans-IO.
//!
//! Loss-based congestion control fills the bottleneck queue, and all other traffic on the link waits behind it: first
//! of all the control channel of the same session. The pacer keeps that queue short:
//!
//! ```text
//! queueing delay = smoothed round trip - base round trip
//!
//!             delay > QUEUE_MAX              delay > QUEUE_AIM: rate = delivery rate, a little less
//!  unpaced ───────────────────────► paced    delay < QUEUE_AIM: a little more
//!     ▲                               │      delay < QUEUE_MIN: RAISE times as much
//!     └───────────────────────────────┘
//!       rate ≥ RATE_MAX, or a window of ≤ WINDOW_SMALL_MAX segments (losses limit the rate)
//! ```
//!
//! The delay target is LEDBAT's (RFC 6817), the delivery rate is BBR's. A stream without a queue is never paced.

use contract::Time;
use std::time::Duration;
use sys::net::StreamState;

/// Queueing delay above which a stream is paced.
const QUEUE_MAX: Duration = Duration::from_millis(60);
/// Queueing delay of a paced stream below which the link may have become faster.
const QUEUE_MIN: Duration = Duration::from_millis(10);
/// A window no larger than the initial window (RFC 6928) makes no queue. A long round trip then comes from
/// retransmissions, not from queueing.
const WINDOW_SMALL_MAX: u32 = 10;
/// Factor on the delivery rate to probe for a faster link.
const RAISE: f64 = 1.25;
/// Target queueing delay, and about the time to reach it.
const QUEUE_AIM: Duration = Duration::from_millis(40);
const DRAIN: Duration = Duration::from_millis(500);
/// Shortest time between two updates.
const UPDATE_INTERVAL: Duration = Duration::from_millis(50);
/// Consecutive updates without effect after which the longer round trip becomes the base: the path has become longer,
/// or another sender fills the queue. Slowing down further would not help.
const FUTILE_MAX: u32 = 4;
/// Slowest pace, bytes a second.
const RATE_MIN: f64 = 4096.0;
/// Pace at which pacing ends, bytes a second.
const RATE_MAX: f64 = 1e9;

/// The pace of one stream.
#[derive(Debug, Default)]
pub(super) struct Pacer {
    /// Bytes a second; `None` while the stream is not paced.
    rate: Option<f64>,
    /// Time and acknowledged bytes of the last update, if the socket has been full since.
    previous: Option<(Time, u64)>,
    due: Time,
    /// Round trip without a queue, if it is longer than the kernel's minimum (see [`FUTILE_MAX`]).
    base: Duration,
    /// The round trip expected at the next update if slowing down shortens the queue.
    expected: Option<Duration>,
    /// Consecutive updates above the expected round trip.
    futile: u32,
}

impl Pacer {
    /// Returns true if the stream is paced.
    pub(super) fn is_on(&self) -> bool {
        self.rate.is_some()
    }

    /// Returns the time of the next update.
    pub(super) fn due(&self) -> Time {
        self.due
    }

    pub(super) fn is_due(&self, now: Time) -> bool {
        now >= self.due
    }

    /// Schedules the next update without performing one.
    pub(super) fn postpone(&mut self, now: Time) {
        self.due = now.after(UPDATE_INTERVAL);
    }

    /// The socket has accepted the whole queue: the delivery rate no longer measures the link.
    pub(super) fn on_idle(&mut self) {
        self.previous = None;
    }

    /// Updates the pace from the stream's state. `is_busy`: the socket is full. Returns the new pace in bytes a second
    /// if it changes, `Some(None)` if pacing ends.
    pub(super) fn update(&mut self, stream: &StreamState, now: Time, is_busy: bool) -> Option<Option<u64>> {
        self.due = now.after(stream.round_trip.max(UPDATE_INTERVAL));
        let previous =
            std::mem::replace(&mut self.previous, is_busy.then_some((now, stream.acknowledged_bytes)));
        let delivered = previous.filter(|_| is_busy).and_then(|(at, acknowledged)| {
            let seconds = now.since(at).as_secs_f64();
            let bytes = stream.acknowledged_bytes.saturating_sub(acknowledged);
            (seconds > 0.0 && bytes > 0).then(|| bytes as f64 / seconds)
        });
        if (1..=WINDOW_SMALL_MAX).contains(&stream.window) {
            self.expected = None;
            return self.rate.take().map(|_| None);
        }
        self.base = self.base.min(stream.round_trip);
        let queue = stream.round_trip.saturating_sub(self.base.max(stream.round_trip_min));
        let rate = match (self.rate, delivered) {
            (known, Some(delivered)) if known.is_some() || queue > QUEUE_MAX => {
                let excess = (queue.as_secs_f64() - QUEUE_AIM.as_secs_f64()) / DRAIN.as_secs_f64();
                let factor = if queue < QUEUE_MIN { RAISE } else { 1.0 - excess.min(0.5) };
                match queue > QUEUE_MAX {
                    true => self.slow_down(stream.round_trip, 1.0 - factor),
                    false => self.expected = None,
                }
                Some((delivered * factor).max(RATE_MIN))
            }
            // The pace, not the link, limits an idle stream with an empty queue.
            (Some(rate), None) if !is_busy && queue < QUEUE_MIN => Some(2.0 * rate),
            (rate, _) => rate,
        };
        let rate = rate.filter(|rate| *rate < RATE_MAX);
        let has_changed = rate != self.rate;
        self.rate = rate;
        has_changed.then(|| rate.map(|rate| rate as u64))
    }

    /// Notes that the rate drops by `share`, and checks the effect of the last drop.
    fn slow_down(&mut self, round_trip: Duration, share: f64) {
        let is_futile = self.expected.is_some_and(|expected| round_trip > expected);
        self.futile = if is_futile { self.futile + 1 } else { 0 };
        // Until the next update the queue should drain by `share` of that time. Half of it counts as an effect.
        self.expected =
            Some(round_trip - round_trip.max(UPDATE_INTERVAL).mul_f64(share / 2.0).min(round_trip));
        if self.futile >= FUTILE_MAX {
            (self.base, self.expected, self.futile) = (round_trip, None, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const STEP: Duration = Duration::from_millis(5);
    /// Capacity of the queue in front of the link, seconds.
    const QUEUE_S: f64 = 1.0;

    /// A link with a deep queue, and a kernel that fills it as fast as the pacer allows.
    struct Model {
        pacer: Pacer,
        rate: f64,
        base: Duration,
        base_min: Duration,
        queued: f64,
        acknowledged: f64,
        now: Time,
    }

    impl Model {
        fn new(rate: f64, base_ms: u64) -> Model {
            let base = Duration::from_millis(base_ms);
            let now = Time::from_millis(1);
            Model { pacer: Pacer::default(), rate, base, base_min: base, queued: 0.0, acknowledged: 0.0, now }
        }

        fn queue_s(&self) -> f64 {
            self.queued / self.rate
        }

        /// Runs the model. Returns the longest queue in seconds and the utilization of the link.
        fn run(&mut self, seconds: u64) -> (f64, f64) {
            let (mut longest, begun) = (0.0_f64, self.acknowledged);
            for _ in 0..seconds * 1000 / STEP.as_millis() as u64 {
                let step = STEP.as_secs_f64();
                let room = QUEUE_S * self.rate - self.queued;
                let sent = self.pacer.rate.map_or(f64::INFINITY, |rate| rate * step);
                self.queued += sent.min(room).max(0.0);
                let left = (self.rate * step).min(self.queued);
                (self.queued, self.acknowledged) = (self.queued - left, self.acknowledged + left);
                longest = longest.max(self.queue_s());
                self.now = self.now.after(STEP);
                if self.pacer.is_due(self.now) {
                    let stream = StreamState {
                        acknowledged_bytes: self.acknowledged as u64,
                        round_trip: self.base + Duration::from_secs_f64(self.queue_s()),
                        round_trip_min: self.base_min,
                        ..StreamState::default()
                    };
                    self.pacer.update(&stream, self.now, true);
                }
            }
            (longest, (self.acknowledged - begun) / (self.rate * seconds as f64))
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(50) })]

        /// On any slow link, also after its rate changes, the queue stays short and the link busy.
        #[test]
        fn a_slow_link_is_busy_and_its_queue_short(rate in 1e5..4e6, base_ms in 1u64..100, factor in 0.3..3.0) {
            let mut model = Model::new(rate, base_ms);
            model.run(60);
            for _ in 0..2 {
                let (longest, used) = model.run(20);
                prop_assert!(longest < 0.15 && used > 0.95, "a queue of {longest} s, {used} of the link");
                model.rate *= factor;
                model.run(30);
            }
        }

        /// The pacer learns a longer path instead of slowing down for ever.
        #[test]
        fn a_longer_path_is_not_a_queue(rate in 1e5..2e6, base_ms in 1u64..100) {
            let mut model = Model::new(rate, base_ms);
            model.run(60);
            model.base += Duration::from_millis(200);
            model.run(60);
            let (longest, used) = model.run(20);
            prop_assert!(longest < 0.2 && used > 0.9, "a queue of {longest} s, {used} of the link");
        }
    }

    #[test]
    fn a_stream_without_a_queue_is_not_paced() {
        let mut pacer = Pacer::default();
        for second in 1..100 {
            let round_trip_min = Duration::from_millis(10);
            let round_trip = round_trip_min + QUEUE_MIN / 2;
            let stream = StreamState {
                acknowledged_bytes: second << 30,
                round_trip,
                round_trip_min,
                ..StreamState::default()
            };
            assert_eq!(pacer.update(&stream, Time::from_millis(1000 * second), true), None);
        }
    }

    #[test]
    fn losses_that_limit_the_rate_end_pacing() {
        let mut model = Model::new(50e3, 10);
        model.run(5);
        assert!(model.pacer.is_on());
        let lossy = StreamState {
            acknowledged_bytes: model.acknowledged as u64 + 1448,
            round_trip: Duration::from_millis(300),
            round_trip_min: Duration::from_millis(10),
            window: 2,
            ..StreamState::default()
        };
        assert_eq!(model.pacer.update(&lossy, model.now.after(UPDATE_INTERVAL), true), Some(None));
        assert_eq!(model.pacer.update(&lossy, model.now.after(2 * UPDATE_INTERVAL), true), None);
    }
}
