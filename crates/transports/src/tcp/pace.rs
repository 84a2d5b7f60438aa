//! How fast a stream is handed to the network, so that it fills a thin link without filling the queue in front of
//! it. Sans-IO.
//!
//! A congestion control that goes by loss fills whatever queue there is, and everything else on the link then waits
//! behind the data: the control channel of the same session first of all. So while there is more to send than the
//! network takes, the round trip is compared with the shortest there was: what it is longer is how long data stand
//! in the queue. Once that is more than [`QUEUE_MAX`], the kernel is told to pace the stream at the rate that is delivered,
//! a little less while the queue is longer than [`QUEUE_AIM`] and a little more while it is shorter, so that the link
//! is never idle. (LEDBAT, RFC 6817, has the delay; the rate that is delivered is BBR's.) Where no such queue is,
//! nothing is done.

use contract::Time;
use std::time::Duration;
use sys::net::StreamState;

/// From a longer queue on a stream is paced; where a paced one has a shorter queue, the link may have become wider.
const QUEUE_MAX: Duration = Duration::from_millis(60);
const QUEUE_MIN: Duration = Duration::from_millis(10);
/// Where losses leave a stream no more segments than it may begin with (RFC 6928), it makes no queue, whatever the round
/// trip: that is the wait for what was lost.
const WINDOW_FEW: u32 = 10;
/// How much faster than what is delivered it goes then.
const RAISE: f64 = 1.25;
/// How long a queue is aimed at, and about how long it takes to get there.
const QUEUE_AIM: Duration = Duration::from_millis(40);
const DRAIN: Duration = Duration::from_millis(500);
/// Shortest time between two looks.
const LOOK: Duration = Duration::from_millis(50);
/// After so many looks in a row at which slowing down had not helped, it is the way that has become longer, or
/// somebody else's queue: more slowness would not help either.
const FUTILE_MAX: u32 = 4;
/// Bytes a second below which nothing is paced, and from which on pacing is no pacing.
const RATE_MIN: f64 = 4096.0;
const RATE_MAX: f64 = 1e9;

/// The pace of one stream.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Bytes a second; `None`: as fast as the kernel likes.
    rate: Option<f64>,
    /// The last look, and what was acknowledged then, if there was more to send ever since.
    before: Option<(Time, u64)>,
    due: Time,
    /// The round trip without a queue, where that has become longer than the kernel knows.
    base: Duration,
    /// After a look that slowed the stream down: what the round trip should be at the next if that helps.
    hoped: Option<Duration>,
    futile: u32,
}

impl Pace {
    /// Whether the stream is paced.
    pub(super) fn is_on(&self) -> bool {
        self.rate.is_some()
    }

    /// When it is time for another look.
    pub(super) fn due(&self) -> Time {
        self.due
    }

    /// Whether it is.
    pub(super) fn is_due(&self, now: Time) -> bool {
        now >= self.due
    }

    /// There is nothing to look at: later there may be.
    pub(super) fn put_off(&mut self, now: Time) {
        self.due = now.after(LOOK);
    }

    /// The network has taken everything: how much it takes is not known any more.
    pub(super) fn rest(&mut self) {
        self.before = None;
    }

    /// A look at the stream; `is_busy`: there is more to send than was taken. If the pace changes, the new one: bytes
    /// a second, or none.
    pub(super) fn look(&mut self, stream: &StreamState, now: Time, is_busy: bool) -> Option<Option<u64>> {
        self.due = now.after(stream.round_trip.max(LOOK));
        let before = std::mem::replace(&mut self.before, is_busy.then_some((now, stream.acknowledged_bytes)));
        let delivered = before.filter(|_| is_busy).and_then(|(at, acknowledged)| {
            let seconds = now.since(at).as_secs_f64();
            let bytes = stream.acknowledged_bytes.saturating_sub(acknowledged);
            (seconds > 0.0 && bytes > 0).then(|| bytes as f64 / seconds)
        });
        if (1..=WINDOW_FEW).contains(&stream.window) {
            self.hoped = None;
            return self.rate.take().map(|_| None);
        }
        self.base = self.base.min(stream.round_trip);
        let queue = stream.round_trip.saturating_sub(self.base.max(stream.round_trip_min));
        let rate = match (self.rate, delivered) {
            (known, Some(delivered)) if known.is_some() || queue > QUEUE_MAX => {
                let excess = (queue.as_secs_f64() - QUEUE_AIM.as_secs_f64()) / DRAIN.as_secs_f64();
                let more = if queue < QUEUE_MIN { RAISE } else { 1.0 - excess.min(0.5) };
                match queue > QUEUE_MAX {
                    true => self.slow_down(stream.round_trip, 1.0 - more),
                    false => self.hoped = None,
                }
                Some((delivered * more).max(RATE_MIN))
            }
            (Some(rate), None) if !is_busy && queue < QUEUE_MIN => Some(2.0 * rate),
            (rate, _) => rate,
        };
        let rate = rate.filter(|rate| *rate < RATE_MAX);
        let has_changed = rate != self.rate;
        self.rate = rate;
        has_changed.then(|| rate.map(|rate| rate as u64))
    }

    /// The stream is slowed down by this share of its rate.
    fn slow_down(&mut self, round_trip: Duration, less: f64) {
        let is_futile = self.hoped.is_some_and(|hoped| round_trip > hoped);
        self.futile = if is_futile { self.futile + 1 } else { 0 };
        // Until the next look the queue should be shorter by that share of the time; half of it will do.
        self.hoped = Some(round_trip - round_trip.max(LOOK).mul_f64(less / 2.0).min(round_trip));
        if self.futile >= FUTILE_MAX {
            (self.base, self.hoped, self.futile) = (round_trip, None, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const STEP: Duration = Duration::from_millis(5);
    /// What the queue in front of the link holds.
    const QUEUE_S: f64 = 1.0;

    /// A link with a deep queue, and a kernel that fills it as far as it is let.
    struct Model {
        pace: Pace,
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
            Model { pace: Pace::default(), rate, base, base_min: base, queued: 0.0, acknowledged: 0.0, now }
        }

        fn queue_s(&self) -> f64 {
            self.queued / self.rate
        }

        /// Runs for so long; the longest queue in seconds, and the share of the link that was used.
        fn run(&mut self, seconds: u64) -> (f64, f64) {
            let (mut longest, begun) = (0.0_f64, self.acknowledged);
            for _ in 0..seconds * 1000 / STEP.as_millis() as u64 {
                let step = STEP.as_secs_f64();
                let room = QUEUE_S * self.rate - self.queued;
                let sent = self.pace.rate.map_or(f64::INFINITY, |rate| rate * step);
                self.queued += sent.min(room).max(0.0);
                let left = (self.rate * step).min(self.queued);
                (self.queued, self.acknowledged) = (self.queued - left, self.acknowledged + left);
                longest = longest.max(self.queue_s());
                self.now = self.now.after(STEP);
                if self.pace.is_due(self.now) {
                    let stream = StreamState {
                        acknowledged_bytes: self.acknowledged as u64,
                        round_trip: self.base + Duration::from_secs_f64(self.queue_s()),
                        round_trip_min: self.base_min,
                        ..StreamState::default()
                    };
                    self.pace.look(&stream, self.now, true);
                }
            }
            (longest, (self.acknowledged - begun) / (self.rate * seconds as f64))
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(50) })]

        /// On any thin link, also when it becomes thinner or wider, the queue stays short and the link in use.
        #[test]
        fn a_thin_link_is_full_and_its_queue_is_not(rate in 1e5..4e6, base_ms in 1u64..100, factor in 0.3..3.0) {
            let mut model = Model::new(rate, base_ms);
            model.run(60);
            for _ in 0..2 {
                let (longest, used) = model.run(20);
                prop_assert!(longest < 0.15 && used > 0.95, "a queue of {longest} s, {used} of the link");
                model.rate *= factor;
                model.run(30);
            }
        }

        /// A way that has become longer is not taken for a queue for ever.
        #[test]
        fn a_longer_way_is_not_a_queue(rate in 1e5..2e6, base_ms in 1u64..100) {
            let mut model = Model::new(rate, base_ms);
            model.run(60);
            model.base += Duration::from_millis(200);
            model.run(60);
            let (longest, used) = model.run(20);
            prop_assert!(longest < 0.2 && used > 0.9, "a queue of {longest} s, {used} of the link");
        }
    }

    #[test]
    fn where_no_queue_is_nothing_is_paced() {
        let mut pace = Pace::default();
        for second in 1..100 {
            let round_trip_min = Duration::from_millis(10);
            let round_trip = round_trip_min + QUEUE_MIN / 2;
            let stream = StreamState {
                acknowledged_bytes: second << 30,
                round_trip,
                round_trip_min,
                ..StreamState::default()
            };
            assert_eq!(pace.look(&stream, Time::from_millis(1000 * second), true), None);
        }
    }

    #[test]
    fn a_stream_that_losses_hold_back_is_not_held_back_twice() {
        let mut model = Model::new(50e3, 10);
        model.run(5);
        assert!(model.pace.is_on());
        let lossy = StreamState {
            acknowledged_bytes: model.acknowledged as u64 + 1448,
            round_trip: Duration::from_millis(300),
            round_trip_min: Duration::from_millis(10),
            window: 2,
            ..StreamState::default()
        };
        assert_eq!(model.pace.look(&lossy, model.now.after(LOOK), true), Some(None));
        assert_eq!(model.pace.look(&lossy, model.now.after(2 * LOOK), true), None);
    }
}
