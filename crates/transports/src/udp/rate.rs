//! Controls how fast datagrams are sent, so that they fill the network without filling the queue in front of it.
//! Sans-IO.
//!
//! | state | sending is limited by | ends when |
//! |---|---|---|
//! | slow start | the window, which doubles each round trip (RFC 5681, 3.1) | a queue of [`START_QUEUE`] shows → paced; a share of [`START_LOSS`] is lost → trial |
//! | trial ([`Loss`]) | the delivery rate | enough is reported: the loss was random → slow start, if it came from there; else → paced |
//! | paced | the pace; the window only backs it up | unexplained loss → trial; the pace reaches [`RATE_MAX`] → slow start |
//!
//! The queueing delay is the round trip minus the shortest round trip. In the state paced, each measurement interval
//! sets the pace to the delivery rate, a little less if the queueing delay is above [`QUEUE_AIM`] and a little more if
//! it is below. The delivery rate is BBR's, measured with the receiver's clock; the delay target is LEDBAT's
//! (RFC 6817). Random loss does not lower the pace: the sender sends that much more to compensate.

use super::loss::Loss;
use contract::Time;
use std::time::Duration;

/// Initial and smallest window, bytes.
const WINDOW: [usize; 2] = [46 << 10, 12 << 10];
/// Queueing delay that ends slow start.
const START_QUEUE: Duration = Duration::from_millis(10);
/// Loss rate that interrupts slow start for a trial.
const START_LOSS: f64 = 0.2;
/// Target queueing delay.
const QUEUE_AIM: Duration = Duration::from_millis(10);
/// Queueing delay below which the link may have become faster.
const QUEUE_MIN: Duration = Duration::from_millis(4);
/// The target delay is approached within this many round trips, each counted as at least [`ROUND_TRIP_MIN`].
const APPROACH_ROUND_TRIPS: f64 = 3.0;
const ROUND_TRIP_MIN: Duration = Duration::from_millis(20);
/// Largest decrease of the pace in one interval, as a share of it.
const FALL_MAX: f64 = 0.5;
/// Largest increase of the pace in one interval: the first value in long intervals, up to the second in short ones.
const RISE_MAX: [f64; 2] = [0.25, 1.0];
/// After this many intervals without a queue the increase doubles in each interval.
const CLEAR_INTERVALS_MIN: i32 = 3;
const DOUBLINGS_MAX: i32 = 16;
/// Shortest measurement interval, and shortest time by the receiver's clock to measure a rate.
const INTERVAL_MIN: Duration = Duration::from_millis(20);
const SPAN_MIN: Duration = Duration::from_millis(10);
/// An interval with fewer reported bytes is extended, up to this many round trips: the rate of a few datagrams shows
/// mostly when they happened to be sent.
const INTERVAL_BYTES: usize = 16 << 10;
const INTERVAL_ROUND_TRIPS_MAX: u32 = 4;
/// Consecutive intervals without effect after which the longer round trip becomes the base: the path has become
/// longer, or another sender fills the queue. Slowing down further would not help.
const FUTILE_MAX: u32 = 4;
/// Window of a paced connection, as time at the pace: round trips, plus a constant. It only matters when receipts stop.
const WINDOW_TIME: (f64, Duration) = (1.25, Duration::from_millis(50));
/// Data of a paced connection that is sent at once, as time at the pace.
const QUANTUM: Duration = Duration::from_millis(1);
/// Lost sending time that a sender may catch up on after a late wake-up.
const CATCH_UP_MAX: Duration = Duration::from_millis(5);
/// Slowest pace, bytes a second.
const RATE_MIN: f64 = 4096.0;
/// Pace at which pacing ends, bytes a second.
const RATE_MAX: f64 = 1e9;
/// Largest [`RateControl::reorder_delay`].
const REORDER_DELAY_MAX: Duration = Duration::from_millis(25);
/// Retransmission timeout before the first round trip is known.
const TIMEOUT_FIRST: Duration = Duration::from_millis(250);
/// Constant part of the retransmission timeout after that.
const TIMEOUT_MARGIN: Duration = Duration::from_millis(30);

/// Measurements from one receipt.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sample {
    /// Round trip of the newest datagram that arrived, if no earlier receipt reported it.
    pub(super) round_trip: Option<Duration>,
    /// Arrival of that datagram by the receiver's clock.
    pub(super) came: Time,
    /// All bytes that had arrived by then.
    pub(super) received_bytes: u64,
    /// Bytes that this receipt reports as arrived.
    pub(super) acknowledged: usize,
    /// Bytes that this receipt reports as lost.
    pub(super) lost: usize,
    /// Payload that the receiver's kernel can buffer.
    pub(super) room: usize,
    /// The window is in use: at least half of it is in flight.
    pub(super) is_limited: bool,
}

/// One measurement interval.
#[derive(Debug, Clone, Copy)]
struct Interval {
    begun: Time,
    /// Start by the receiver's clock, and the bytes that had arrived by then.
    came: Time,
    received_bytes: u64,
    /// Bytes reported as arrived or lost.
    reported: usize,
    lost: usize,
    round_trip_min: Duration,
    /// The queue was never empty.
    is_busy: bool,
}

impl Interval {
    fn begin(sample: &Sample, now: Time) -> Interval {
        let Sample { came, received_bytes, .. } = *sample;
        let round_trip_min = Duration::MAX;
        Interval { begun: now, came, received_bytes, reported: 0, lost: 0, round_trip_min, is_busy: true }
    }
}

/// The rate control of one connection.
#[derive(Debug)]
pub(super) struct RateControl {
    /// Bytes a second; `None` in slow start.
    pace: Option<f64>,
    window: usize,
    /// Payload that the receiver's kernel can buffer.
    room: usize,
    /// Round trip without a queue.
    base: Option<Duration>,
    /// Smoothed round trip.
    round_trip: Duration,
    deviation: Duration,
    interval: Option<Interval>,
    /// Receipts before this time report data that were sent before the last change of state.
    measure_from: Time,
    /// Highest delivery rate in slow start. Slow start often has nothing in flight, so lower rates mean little.
    best: f64,
    loss: Loss,
    /// Window and loss rate when a trial interrupted slow start.
    interrupted_start: Option<(usize, f64)>,
    /// Consecutive intervals without a queue.
    clear_intervals: i32,
    /// The round trip expected in the next interval if slowing down shortens the queue.
    expected: Option<Duration>,
    /// Consecutive intervals above the expected round trip.
    futile: u32,
    /// Earliest next transmission.
    next: Time,
}

impl RateControl {
    pub(super) fn new() -> Self {
        RateControl {
            pace: None,
            window: WINDOW[0],
            room: usize::MAX,
            base: None,
            round_trip: Duration::ZERO,
            deviation: Duration::ZERO,
            interval: None,
            measure_from: Time::ZERO,
            best: 0.0,
            loss: Loss::default(),
            interrupted_start: None,
            clear_intervals: 0,
            expected: None,
            futile: 0,
            next: Time::ZERO,
        }
    }

    /// Returns the bytes that may be in flight.
    pub(super) fn window(&self) -> usize {
        self.window
    }

    /// Returns the pace in bytes a second; `None` in slow start.
    pub(super) fn pace(&self) -> Option<f64> {
        self.pace
    }

    /// Returns the smoothed round trip; zero before the first.
    pub(super) fn round_trip(&self) -> Duration {
        self.round_trip
    }

    /// Returns the time that a datagram may arrive late without counting as lost: an eighth of a round trip, or twice
    /// the deviation of round trips.
    pub(super) fn reorder_delay(&self) -> Duration {
        (self.round_trip / 8).max(self.deviation * 2).min(REORDER_DELAY_MAX)
    }

    /// Returns the retransmission timeout.
    pub(super) fn timeout(&self) -> Duration {
        match self.base {
            None => TIMEOUT_FIRST,
            Some(_) => self.round_trip.mul_f64(1.5) + TIMEOUT_MARGIN,
        }
    }

    /// Returns the earliest time of the next transmission.
    pub(super) fn next(&self) -> Time {
        self.next
    }

    /// Returns the bytes that may be sent at once.
    pub(super) fn quantum(&self) -> usize {
        self.pace.map_or(usize::MAX, |pace| (pace * QUANTUM.as_secs_f64()) as usize)
    }

    /// Notes sent bytes.
    pub(super) fn sent(&mut self, bytes: usize, now: Time) {
        if let Some(pace) = self.pace {
            let from = self.next.max(now.before(CATCH_UP_MAX));
            self.next = from.after(Duration::from_secs_f64(bytes as f64 / pace));
        }
    }

    /// The queue is empty: the delivery rate of this interval no longer measures the network.
    pub(super) fn on_idle(&mut self) {
        if let Some(interval) = &mut self.interval {
            interval.is_busy = false;
        }
    }

    /// The retransmission timeout has expired, `times` times in a row.
    pub(super) fn on_timeout(&mut self, times: u32) {
        self.interval = None;
        if times > 1 {
            self.window = WINDOW[1];
            self.pace = self.pace.map(|pace| (pace / 2.0).max(RATE_MIN));
        }
    }

    /// Processes the measurements of one receipt.
    pub(super) fn on_receipt(&mut self, sample: &Sample, now: Time) {
        self.room = sample.room.max(WINDOW[1]);
        if let Some(round_trip) = sample.round_trip {
            self.measure_round_trip(round_trip);
        }
        if self.pace.is_none() && sample.is_limited {
            self.window = self.window.saturating_add(sample.acknowledged).min(self.room);
        }
        let reported = sample.acknowledged + sample.lost;
        self.loss.on_receipt(reported, sample.lost, now);
        if now < self.measure_from {
            self.interval = None;
            return;
        }
        let Some(interval) = &mut self.interval else {
            self.interval = Some(Interval::begin(sample, now));
            return;
        };
        interval.reported += reported;
        interval.lost += sample.lost;
        interval.round_trip_min = interval.round_trip_min.min(sample.round_trip.unwrap_or(Duration::MAX));
        let span = sample.came.since(interval.came);
        let (lasted, least) = (now.since(interval.begun), self.round_trip.max(INTERVAL_MIN));
        let is_long_enough = lasted >= least && interval.reported >= INTERVAL_BYTES
            || lasted >= least * INTERVAL_ROUND_TRIPS_MAX
            || self.pace.is_none();
        if span >= SPAN_MIN && is_long_enough && interval.round_trip_min < Duration::MAX {
            let ended = *interval;
            self.interval = Some(Interval::begin(sample, now));
            self.end_interval(&ended, span, sample.received_bytes, now);
        }
    }

    fn measure_round_trip(&mut self, round_trip: Duration) {
        let is_first = self.base.is_none();
        self.base = Some(self.base.map_or(round_trip, |base| base.min(round_trip)));
        match is_first {
            true => self.round_trip = round_trip,
            false => {
                self.deviation = (self.deviation * 3 + self.round_trip.abs_diff(round_trip)) / 4;
                self.round_trip = (self.round_trip * 7 + round_trip) / 8;
            }
        }
    }

    /// Updates state, pace and window after an interval. `span` is its length by the receiver's clock.
    fn end_interval(&mut self, interval: &Interval, span: Duration, received_bytes: u64, now: Time) {
        let queue = interval.round_trip_min.saturating_sub(self.base.unwrap_or(interval.round_trip_min));
        let delivered = received_bytes.saturating_sub(interval.received_bytes) as f64 / span.as_secs_f64();
        let has_trial_ended = self.loss.end_interval(interval.reported, interval.lost, self.pace);
        if has_trial_ended
            && let Some((window, lost)) = self.interrupted_start.take()
            && self.loss.random() > lost / 2.0
        {
            // Mostly random loss interrupted slow start: resume it.
            (self.pace, self.window) = (None, window);
        }
        let is_lossy = self.loss.is_unexplained();
        // Random loss hides a part of the rate that the network accepts.
        let accepted = if is_lossy { delivered } else { delivered / (1.0 - self.loss.smooth()) };
        let is_clear = queue < QUEUE_MIN && !is_lossy;
        let pace = match self.pace {
            None => {
                self.best = self.best.max(accepted);
                let has_loss = self.loss.recent() > START_LOSS.max(self.loss.explained_max());
                if queue <= START_QUEUE && !has_loss {
                    return;
                }
                // Data that arrive within the next round trip were sent by the window, not by the pace.
                self.measure_from = now.after(self.round_trip);
                if queue <= START_QUEUE {
                    self.begin_trial(now);
                    self.interrupted_start = Some((self.window, self.loss.recent()));
                }
                std::mem::take(&mut self.best)
            }
            Some(pace) if interval.is_busy => {
                let correction = self.correction(queue, interval.round_trip_min);
                let is_on_trial = self.loss.is_on_trial();
                if is_lossy || is_on_trial {
                    // The lower pace alone empties the queue: an empty queue does not show a faster link.
                    self.clear_intervals = 0;
                }
                match is_on_trial {
                    // The pace of a trial is the delivery rate, so it stays, unless it still makes a queue.
                    true if queue <= QUEUE_AIM => pace,
                    true => pace.min(accepted) * (1.0 + correction),
                    false if is_lossy => {
                        self.begin_trial(now);
                        accepted * (1.0 + correction.min(0.0))
                    }
                    // Restores the pace from before the trial, except for the loss in a queue.
                    false if has_trial_ended => {
                        pace / (1.0 - self.loss.random()) * (1.0 + correction.min(0.0))
                    }
                    false if is_clear => pace.max(accepted) * (1.0 + correction),
                    false => accepted * (1.0 + correction),
                }
            }
            // An idle sender does not measure what the network accepts.
            Some(pace) if is_clear => pace.max(delivered * (1.0 + RISE_MAX[0])),
            Some(pace) if queue > 2 * QUEUE_AIM => pace * (1.0 - RISE_MAX[0]),
            Some(pace) => pace,
        };
        self.set_pace(pace);
    }

    /// Sets the pace, and the window that belongs to it. Returns to slow start at [`RATE_MAX`].
    fn set_pace(&mut self, pace: f64) {
        self.pace = Some(pace.max(RATE_MIN)).filter(|pace| *pace < RATE_MAX);
        if let Some(pace) = self.pace {
            let (round_trips, margin) = WINDOW_TIME;
            let time = self.round_trip.mul_f64(round_trips) + margin;
            self.window = ((pace * time.as_secs_f64()) as usize).max(WINDOW[1]).min(self.room);
        }
    }

    fn begin_trial(&mut self, now: Time) {
        // Losses are reported later than arrivals, by the reorder delay.
        self.loss.begin_trial(now.after(self.round_trip + self.reorder_delay() + INTERVAL_MIN));
    }

    /// Returns the change of the pace that leads to the target delay, as a share of the accepted rate.
    fn correction(&mut self, queue: Duration, round_trip: Duration) -> f64 {
        let interval = self.round_trip.max(ROUND_TRIP_MIN).as_secs_f64();
        let correction = (QUEUE_AIM.as_secs_f64() - queue.as_secs_f64()) / (APPROACH_ROUND_TRIPS * interval);
        self.clear_intervals = if queue < QUEUE_MIN { self.clear_intervals + 1 } else { 0 };
        if queue <= 2 * QUEUE_AIM {
            (self.expected, self.futile) = (None, 0);
            let rise_max = (INTERVAL_MIN.as_secs_f64() / interval).clamp(RISE_MAX[0], RISE_MAX[1]);
            let doublings = (self.clear_intervals - CLEAR_INTERVALS_MIN).clamp(0, DOUBLINGS_MAX);
            return (correction * 2_f64.powi(doublings)).min(rise_max);
        }
        let correction = correction.max(-FALL_MAX);
        let is_futile = self.expected.is_some_and(|expected| round_trip > expected);
        self.futile = if is_futile { self.futile + 1 } else { 0 };
        // Until the next interval the queue should drain by that share of the time. Half of it counts as an effect.
        let drained = Duration::from_secs_f64(-correction * interval / 2.0);
        self.expected = Some(round_trip.saturating_sub(drained));
        if self.futile >= FUTILE_MAX {
            (self.base, self.expected, self.futile) = (Some(round_trip), None, 0);
        }
        correction
    }
}
