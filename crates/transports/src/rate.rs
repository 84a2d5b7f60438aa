//! Controls how fast a connection sends, so that it fills the network without filling the queue in front of it: the
//! rule of `udp` and of `quic`. Sans-IO.
//!
//! | state | sending is limited by | ends when |
//! |---|---|---|
//! | slow start | the window, which doubles each round trip (RFC 5681, 3.1) | a queue shows → paced; a share of [`START_LOSS`] is lost → trial |
//! | trial ([`Loss`]) | the delivery rate | enough is reported: the loss was random → slow start, if it came from there; else → paced |
//! | paced | the pace; the window only backs it up | unexplained loss → trial; the pace reaches [`RATE_MAX`] → slow start |
//! | each | | two retransmission timeouts in a row, or a silent peer is back → slow start, without memory |
//!
//! The queueing delay is the round trip minus the shortest round trip. In the state paced, each measurement interval
//! sets the pace to the delivery rate, a little less if the queueing delay is above its aim and a little more if it is
//! below. The delivery rate is BBR's; the delay target is LEDBAT's (RFC 6817). Random loss does not lower the pace: the
//! sender sends that much more to compensate.
//!
//! A sender that keeps the queue short yields to every sender that fills it. Therefore the pace has a floor while the
//! queue stays long ([`Contention`]): first half of the rate that the connection had, then a value that follows the queue's
//! losses as CUBIC's window does (RFC 9438). A flow of another program keeps its share, and this one keeps one too.
//!
//! A queue that is too short to show loses what the pace adds. After such a loss the pace returns to its value slowly
//! ([`Ceiling`]).

mod contention;
#[cfg(test)]
mod link_tests;
mod loss;

use contention::{Ceiling, Contention, Seen};
use contract::Time;
use loss::Loss;
use std::time::Duration;

/// Initial and smallest window, bytes.
const WINDOW: [usize; 2] = [46 << 10, 12 << 10];
/// Loss rate that interrupts slow start for a trial.
const START_LOSS: f64 = 0.2;
/// Target queueing delay: this share of the shortest round trip, or the range of round trips in an interval, within these
/// bounds, and at least the time of a few datagrams. A flow that random loss limits loses rate in proportion to the round trip that the queue adds.
const QUEUE_AIM_SHARE: f64 = 0.125;
const QUEUE_AIM: [Duration; 2] = [Duration::from_millis(3), Duration::from_millis(5)];
const QUEUE_AIM_BYTES: f64 = 6000.0;
/// Queueing delay below which the link may have become faster: this share of the range of round trips in an interval, within
/// these shares of the target. With jitter, the shortest round trip of an interval is seldom the shortest of all.
const QUEUE_MIN_OF_RANGE: f64 = 0.5;
const QUEUE_MIN_SHARE: [f64; 2] = [0.4, 0.75];
/// The target delay is approached within this many round trips, each counted as at least [`ROUND_TRIP_MIN`].
const APPROACH_ROUND_TRIPS: f64 = 3.0;
const ROUND_TRIP_MIN: Duration = Duration::from_millis(20);
/// Time over which the sender counts as busy or idle.
const BUSY_TIME: Duration = Duration::from_secs(1);
/// Largest decrease of the pace in one interval, as a share of it.
const FALL_MAX: f64 = 0.5;
/// Largest increase of the pace in one interval: the first value in long intervals, up to the second in short ones.
const RISE_MAX: [f64; 2] = [0.25, 1.0];
/// After this many intervals without a queue the increase doubles in each interval: the first value below
/// [`NEAR_PEAK`] of the peak, the second near it, where a queue may build up within a round trip.
const CLEAR_INTERVALS_MIN: [i32; 2] = [2, 10];
const NEAR_PEAK: f64 = 0.85;
const DOUBLINGS_MAX: i32 = 16;
/// The pace stays below this multiple of the peak: a processor may limit the rate instead of the network.
const PEAK_FACTOR: f64 = 1.5;
/// Smallest share of the peak that remains after a loss in a queue too short to show.
const PEAK_FALL: f64 = 0.9;
/// The peak halves in this time if the rate does not reach it again.
const PEAK_HALVES_S: f64 = 60.0;
/// Shortest measurement interval, and shortest time by the receiver's clock to measure a rate.
const INTERVAL_MIN: Duration = Duration::from_millis(20);
const SPAN_MIN: Duration = Duration::from_millis(10);
/// An interval with fewer reported bytes is extended, up to this many round trips: the rate of a few datagrams shows
/// mostly when they happened to be sent.
const INTERVAL_BYTES: usize = 16 << 10;
const INTERVAL_ROUND_TRIPS_MAX: u32 = 4;
/// Consecutive intervals without effect, and their time, after which the longer round trip becomes the base: the path
/// has become longer, or another sender fills the queue. Slowing down further would not help.
const FUTILE_MIN: (u32, Duration) = (4, Duration::from_secs(1));
/// A pace at most this multiple of the rate that was sent does not rise.
const STEADY_SHARE: f64 = 1.03;
/// Longest validity of the base without a round trip near it. Then the sender sends less for [`DRAIN_ROUND_TRIPS`], and the
/// shortest round trip meanwhile becomes the base: a longer path is not a queue.
const BASE_VALID: Duration = Duration::from_secs(10);
const DRAIN_ROUND_TRIPS: u32 = 2;
const DRAIN_SHARE: f64 = 0.75;
/// Intervals after a drain in which an empty queue does not show a faster link.
const DRAINED_INTERVALS: i32 = 6;
/// Window of a paced connection, as time at the pace: round trips, plus a constant. It only matters when receipts stop.
const WINDOW_TIME: (f64, Duration) = (1.25, Duration::from_millis(50));
/// Growth of the window in slow start beyond the receiver's buffer, as a multiple of the data on the path.
const START_FACTOR: f64 = 1.6;
/// Rate of sending in slow start, as windows a round trip.
const START_PACE: f64 = 2.0;
const START_ROUND_TRIP_MIN: Duration = Duration::from_micros(1);
/// Data of a paced connection that is sent at once, as time at the pace.
const QUANTUM: Duration = Duration::from_millis(1);
/// Lost sending time that a sender may catch up on after a late wake-up.
const CATCH_UP_MAX: Duration = Duration::from_millis(5);
/// A sender that reaches less than this share of its pace is limited by a processor.
const BELOW_PACE: f64 = 0.8;
/// A sender that reaches this share of its pace makes the queue or the loss that it sees, also if its own queue is empty at times.
const OVERLOAD_SHARE: f64 = 0.5;
/// Shortest time without a receipt after which data that were sent before it measure a stopped process, not the path; also
/// as a multiple of the round trip.
const STALL_MIN: (Duration, u32) = (Duration::from_millis(300), 4);
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
pub(crate) struct Sample {
    /// Round trip of the newest datagram that arrived, if no earlier receipt reported it.
    pub(crate) round_trip: Option<Duration>,
    /// Arrival of that datagram by the receiver's clock.
    pub(crate) came: Time,
    /// All bytes that had arrived by then.
    pub(crate) received_bytes: u64,
    /// Bytes that this receipt reports as arrived.
    pub(crate) acknowledged: usize,
    /// Bytes that this receipt reports as lost.
    pub(crate) lost: usize,
    /// Payload that the receiver's kernel can buffer; `usize::MAX` if unknown.
    pub(crate) room: usize,
    /// The window is in use: at least half of it is in flight.
    pub(crate) is_limited: bool,
    /// The sender has nothing to send.
    pub(crate) is_idle: bool,
}

/// The path as the sender sees it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PathView {
    /// Bytes a second; `None` in slow start.
    pub(crate) pace: Option<f64>,
    /// Round trip without a queue.
    pub(crate) round_trip_min: Duration,
    /// Shares of the bytes sent.
    pub(crate) loss: f64,
    pub(crate) random_loss: f64,
    /// The sender has nothing to send now, or had nothing at some time in most of the last intervals.
    pub(crate) is_idle: bool,
    /// The network accepted less than the pace without a queue: a processor is slower.
    pub(crate) is_below_pace: bool,
    /// Another sender fills the queue.
    pub(crate) is_contended: bool,
}

impl PathView {
    /// Returns the figures of a transport's report.
    pub(crate) fn figures(&self) -> [(&'static str, f64); 7] {
        [
            ("pace_bytes_per_s", self.pace.unwrap_or_default()),
            ("round_trip_min_us", self.round_trip_min.as_secs_f64() * 1e6),
            ("loss_ppm", self.loss * 1e6),
            ("random_loss_ppm", self.random_loss * 1e6),
            ("sender_idle", f64::from(u8::from(self.is_idle))),
            ("below_pace", f64::from(u8::from(self.is_below_pace))),
            ("contended", f64::from(u8::from(self.is_contended))),
        ]
    }
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
    round_trip_max: Duration,
    /// Longest time between two receipts, the first one included.
    gap_max: Duration,
    /// The sender's queue was never empty.
    is_busy: bool,
}

impl Interval {
    fn begin(sample: &Sample, gap: Duration, now: Time) -> Interval {
        let Sample { came, received_bytes, .. } = *sample;
        Interval {
            begun: now,
            came,
            received_bytes,
            reported: 0,
            lost: 0,
            round_trip_min: Duration::MAX,
            round_trip_max: Duration::ZERO,
            gap_max: gap,
            is_busy: !sample.is_idle,
        }
    }
}

impl Interval {
    fn range(&self) -> Duration {
        self.round_trip_max.saturating_sub(self.round_trip_min)
    }
}

/// The rate control of one connection.
#[derive(Debug)]
pub(crate) struct RateControl {
    /// Bytes a second; `None` in slow start.
    pace: Option<f64>,
    window: usize,
    /// Payload that the receiver's kernel can buffer.
    room: usize,
    contention: Contention,
    ceiling: Ceiling,
    /// Highest rate that the network accepted, halved every [`PEAK_HALVES_S`].
    peak: f64,
    /// Rate that the network accepted in the last interval.
    accepted: f64,
    /// Round trip without a queue.
    base: Option<Duration>,
    /// Last round trip near the base.
    base_seen: Time,
    /// End of the drain, and the shortest round trip in it.
    drain: Option<(Time, Duration)>,
    /// Smoothed round trip.
    round_trip: Duration,
    deviation: Duration,
    /// Smoothed range of the round trips in an interval.
    range: Duration,
    interval: Option<Interval>,
    /// Share of the time in which the sender's queue was never empty in an interval, over [`BUSY_TIME`].
    busy: f64,
    /// The last receipt, and the end of the last stall while data from before it are in flight.
    received: Time,
    resumed: Option<Time>,
    /// Receipts before this time report data that were sent before the last change of state.
    measure_from: Time,
    /// Highest delivery rate in slow start. Slow start often has nothing in flight, so lower rates mean little.
    best: f64,
    loss: Loss,
    /// Loss rate when the last trial began.
    suspected: f64,
    /// Window and loss rate when a trial interrupted slow start.
    interrupted_start: Option<(usize, f64)>,
    /// Consecutive intervals without a queue.
    clear_intervals: i32,
    /// The round trip expected in the next interval if slowing down shortens the queue.
    expected: Option<Duration>,
    /// Consecutive intervals above the expected round trip, and the end of the first.
    futile: u32,
    futile_since: Time,
    /// Earliest next transmission.
    next: Time,
}

impl RateControl {
    pub(crate) fn new() -> Self {
        RateControl {
            pace: None,
            window: WINDOW[0],
            room: usize::MAX,
            contention: Contention::default(),
            ceiling: Ceiling::default(),
            peak: 0.0,
            accepted: 0.0,
            base: None,
            base_seen: Time::ZERO,
            drain: None,
            round_trip: Duration::ZERO,
            deviation: Duration::ZERO,
            range: Duration::ZERO,
            interval: None,
            busy: 0.0,
            received: Time::ZERO,
            resumed: None,
            measure_from: Time::ZERO,
            best: 0.0,
            loss: Loss::default(),
            suspected: 0.0,
            interrupted_start: None,
            clear_intervals: 0,
            expected: None,
            futile: 0,
            futile_since: Time::ZERO,
            next: Time::ZERO,
        }
    }

    /// Returns the bytes that may be in flight.
    pub(crate) fn window(&self) -> usize {
        self.window
    }

    /// Returns the pace in bytes a second; `None` in slow start.
    pub(crate) fn pace(&self) -> Option<f64> {
        self.pace
    }

    /// Sets the pace, bytes a second, and the window that belongs to it.
    #[cfg(test)]
    pub(crate) fn pace_at(&mut self, pace: f64, now: Time) {
        self.set_pace(pace, now);
    }

    /// Returns the smoothed round trip; zero before the first.
    pub(crate) fn round_trip(&self) -> Duration {
        self.round_trip
    }

    /// Returns the time that a datagram may arrive late without counting as lost: an eighth of a round trip, or twice
    /// the deviation of round trips.
    pub(crate) fn reorder_delay(&self) -> Duration {
        (self.round_trip / 8).max(self.deviation * 2).min(REORDER_DELAY_MAX)
    }

    /// Returns the retransmission timeout.
    pub(crate) fn timeout(&self) -> Duration {
        match self.base {
            // After a restart, the round trip of before.
            None => TIMEOUT_FIRST.max(self.round_trip.mul_f64(1.5) + TIMEOUT_MARGIN),
            Some(_) => self.round_trip.mul_f64(1.5) + TIMEOUT_MARGIN,
        }
    }

    /// Returns the earliest time of the next transmission.
    pub(crate) fn next(&self) -> Time {
        self.next
    }

    /// Returns the bytes that may be sent now, or the time at which some may be. Data of less than [`QUANTUM`] never wait.
    pub(crate) fn permission(&self, now: Time) -> Result<usize, Time> {
        let Some(rate) = self.sending_rate() else { return Ok(usize::MAX) };
        let left = now.after(QUANTUM).since(self.next.max(now.before(CATCH_UP_MAX)));
        if left.is_zero() { Err(self.next) } else { Ok((rate * left.as_secs_f64()) as usize) }
    }

    /// Describes the path.
    pub(crate) fn view(&self) -> PathView {
        PathView {
            pace: self.pace,
            round_trip_min: self.base.unwrap_or_default(),
            loss: self.loss.smooth(),
            random_loss: self.loss.random().min(self.loss.smooth()),
            is_idle: self.busy < 0.5 || self.interval.is_none_or(|interval| !interval.is_busy),
            is_below_pace: self.clear_intervals > 0
                && self.pace.is_some_and(|pace| self.accepted < BELOW_PACE * pace),
            is_contended: self.contention.is_held(),
        }
    }

    /// Returns the bytes that may be sent at once.
    pub(crate) fn quantum(&self) -> usize {
        self.sending_rate().map_or(usize::MAX, |rate| (rate * QUANTUM.as_secs_f64()) as usize)
    }

    /// Returns the rate of sending, bytes a second; `None` before the first round trip. In slow start it sends the window
    /// within half a round trip: at once, it would overflow a short queue long before the network is full.
    fn sending_rate(&self) -> Option<f64> {
        let start = self
            .base
            .map(|base| START_PACE * self.window as f64 / base.max(START_ROUND_TRIP_MIN).as_secs_f64());
        self.pace.or(start)
    }

    /// Notes sent bytes.
    pub(crate) fn sent(&mut self, bytes: usize, now: Time) {
        if let Some(pace) = self.sending_rate() {
            let from = self.next.max(now.before(CATCH_UP_MAX));
            self.next = from.after(Duration::from_secs_f64(bytes as f64 / pace));
        }
    }

    /// The queue is empty: the delivery rate of this interval no longer measures the network.
    pub(crate) fn on_idle(&mut self) {
        if let Some(interval) = &mut self.interval {
            interval.is_busy = false;
        }
    }

    /// The retransmission timeout has expired, `times` times in a row.
    pub(crate) fn on_timeout(&mut self, times: u32) {
        self.interval = None;
        if times > 1 {
            self.restart();
        }
    }

    /// The path was away: nothing that was measured on it describes the one that returns. Begins again with slow start (RFC 5681,
    /// 3.1). In particular, no queue lost the data in flight.
    pub(crate) fn restart(&mut self) {
        let RateControl { room, round_trip, deviation, received, .. } = *self;
        let window = WINDOW[1];
        *self = RateControl { window, room, round_trip, deviation, received, ..RateControl::new() };
    }

    /// Processes the measurements of one receipt.
    pub(crate) fn on_receipt(&mut self, sample: &Sample, now: Time) {
        self.room = sample.room.max(WINDOW[1]);
        if sample.is_idle {
            self.on_idle();
        }
        let gap = now.since(std::mem::replace(&mut self.received, now));
        if self.is_stalled(sample, gap, now) {
            self.interval = None;
            return;
        }
        if let Some(round_trip) = sample.round_trip {
            self.measure_round_trip(round_trip);
        }
        if self.pace.is_none() && sample.is_limited {
            let on_path = self.best * self.base.unwrap_or_default().as_secs_f64();
            let most = self.room.saturating_add(on_path as usize).max((START_FACTOR * on_path) as usize);
            self.window = self.window.saturating_add(sample.acknowledged).min(most.max(self.window));
        }
        let reported = sample.acknowledged + sample.lost;
        self.loss.on_receipt(reported, sample.lost, now);
        if now < self.measure_from {
            self.interval = None;
            return;
        }
        let Some(interval) = &mut self.interval else {
            self.interval = Some(Interval::begin(sample, gap, now));
            return;
        };
        interval.gap_max = interval.gap_max.max(gap);
        interval.reported += reported;
        interval.lost += sample.lost;
        interval.round_trip_min = interval.round_trip_min.min(sample.round_trip.unwrap_or(Duration::MAX));
        interval.round_trip_max = interval.round_trip_max.max(sample.round_trip.unwrap_or_default());
        let span = sample.came.since(interval.came);
        let (lasted, least) = (now.since(interval.begun), self.round_trip.max(INTERVAL_MIN));
        let is_long_enough = lasted >= least && interval.reported >= INTERVAL_BYTES
            || lasted >= least * INTERVAL_ROUND_TRIPS_MAX
            || self.pace.is_none();
        if span >= SPAN_MIN && is_long_enough && interval.round_trip_min < Duration::MAX {
            let ended = *interval;
            self.interval = Some(Interval::begin(sample, gap, now));
            self.end_interval(&ended, span, sample.received_bytes, now);
        }
    }

    /// Returns true if the sample reports data from before a stall: one of the two processes did not run.
    fn is_stalled(&mut self, sample: &Sample, gap: Duration, now: Time) -> bool {
        let (least, round_trips) = STALL_MIN;
        let least = least.max(self.round_trip * round_trips);
        // Data that were sent during the stall, too: an idle sender's next data have an ordinary round trip.
        let is_long = |round_trip: Duration| round_trip.min(gap) > least;
        if self.base.is_some() && sample.round_trip.is_some_and(is_long) {
            self.resumed = Some(now);
        }
        let Some(resumed) = self.resumed else { return false };
        if sample.round_trip.is_some_and(|round_trip| round_trip < now.since(resumed)) {
            self.resumed = None;
        }
        self.resumed.is_some()
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

    /// Returns the target queueing delay.
    fn queue_aim(&self) -> Duration {
        let share = self.base.unwrap_or_default().mul_f64(QUEUE_AIM_SHARE).max(self.range);
        let share = share.clamp(QUEUE_AIM[0], QUEUE_AIM[1]);
        let datagrams = self.pace.map_or(0.0, |pace| QUEUE_AIM_BYTES / pace);
        share.max(Duration::from_secs_f64(datagrams.min(1.0)))
    }

    /// Returns the queueing delay below which an interval shows no queue.
    fn queue_min(interval: &Interval, aim: Duration) -> Duration {
        let [least, most] = QUEUE_MIN_SHARE.map(|share| aim.mul_f64(share));
        interval.range().mul_f64(QUEUE_MIN_OF_RANGE).clamp(least, most)
    }

    fn queue_of(&self, round_trip: Duration) -> Duration {
        round_trip.saturating_sub(self.base.unwrap_or(round_trip))
    }

    /// Updates state, pace and window after an interval. `span` is its length by the receiver's clock.
    fn end_interval(&mut self, interval: &Interval, span: Duration, received_bytes: u64, now: Time) {
        let weight = (now.since(interval.begun).as_secs_f64() / BUSY_TIME.as_secs_f64()).min(1.0);
        self.busy += (f64::from(u8::from(interval.is_busy)) - self.busy) * weight;
        let queue = self.queue_of(interval.round_trip_min);
        self.range = (self.range * 7 + interval.range()) / 8;
        let delivered = received_bytes.saturating_sub(interval.received_bytes) as f64 / span.as_secs_f64();
        let aim = self.queue_aim();
        self.learn_loss(interval, queue, delivered, aim);
        let has_trial_ended = self.loss.end_interval(interval.reported, interval.lost, self.pace);
        let interrupted_start = self.interrupted_start.take_if(|_| has_trial_ended);
        if let Some((window, lost)) = interrupted_start
            && self.loss.random() > lost / 2.0
        {
            // Mostly random loss interrupted slow start: resume it.
            (self.pace, self.window) = (None, window);
        }
        let is_lossy = self.loss.is_unexplained();
        // Random loss hides a part of the rate that the network accepts.
        let accepted = if is_lossy { delivered } else { delivered / (1.0 - self.loss.smooth()) };
        // A process that paused has little to show for one interval.
        let accepted = accepted.max(self.accepted * (1.0 - FALL_MAX));
        let is_empty = queue < RateControl::queue_min(interval, aim);
        let is_clear = is_empty && !is_lossy;
        let Some(pace) = self.pace else {
            self.leave_start(interval, queue, accepted, now);
            return;
        };
        // A sender that its receiver limits has nothing to send at times, and may overflow a queue all the same.
        let sent = interval.reported as f64 / now.since(interval.begun).as_secs_f64();
        let is_overload = sent > OVERLOAD_SHARE * pace && (is_lossy || queue > 2 * aim);
        if !interval.is_busy && !is_overload {
            // An idle sender does not measure what the network accepts.
            let pace = match () {
                () if is_clear => pace.max(delivered * (1.0 + RISE_MAX[0])),
                () if queue > 2 * aim => (pace * (1.0 - RISE_MAX[0])).max(pace.min(2.0 * delivered)),
                () => pace,
            };
            self.set_pace(pace, now);
            return;
        }
        if let Some(pace) = self.drain(interval, queue, aim, now) {
            self.set_pace(pace, now);
            return;
        }
        let lasted = now.since(interval.begun);
        // A stall of the receiver or of this host moves arrivals to the next interval: only two high ones are a peak.
        let high = accepted.min(self.accepted);
        self.peak = (self.peak * (-lasted.as_secs_f64() / PEAK_HALVES_S).exp2()).max(high);
        let correction = self.correction((queue, is_empty), interval.round_trip_min, aim, now);
        let is_on_trial = self.loss.is_on_trial();
        if is_lossy || is_on_trial {
            // The lower pace alone empties the queue: an empty queue does not show a faster link.
            self.clear_intervals = 0;
        }
        // A stalled receiver or sender lowers the rate of one interval, not that of the network.
        let steady = if queue <= aim { accepted.max(self.accepted) } else { accepted };
        self.accepted = accepted;
        let next = match is_on_trial {
            // The pace of a trial is the delivery rate, so it stays, unless it still makes a queue.
            true if queue <= aim => pace,
            true => pace.min(accepted) * (1.0 + correction),
            false if is_lossy => {
                self.begin_trial(now);
                if queue > aim {
                    // The loss came from this queue, and the target delay alone prevents the next one.
                    self.suspected = 0.0;
                }
                accepted * (1.0 + correction.min(0.0))
            }
            // Restores the pace from before the trial, except for the loss in a queue.
            false if has_trial_ended => {
                let restored = pace / (1.0 - self.loss.random()) * (1.0 + correction.min(0.0));
                // A burst of slow start may overflow a queue long before its rate does.
                if interrupted_start.is_none() && self.loss.random() < self.suspected / 3.0 {
                    // A trial may find less than the link carries: the peak falls step by step.
                    self.peak = restored.max(PEAK_FALL * self.peak);
                    self.ceiling.lower(self.peak, now);
                }
                restored
            }
            // Near the peak, steps add up to a queue before the first one shows.
            false if is_clear && !self.is_near_peak() && self.clear_intervals > 0 => {
                pace.max(steady) * (1.0 + correction)
            }
            false => steady.min(pace * PEAK_FACTOR) * (1.0 + correction),
        };
        let longest = self.queue_of(interval.round_trip_max);
        let is_from_queue = longest > aim && self.loss.is_from_queue(interval.reported, interval.lost);
        let (peak, round_trip) = (self.peak, self.round_trip);
        let accepted = accepted.min(pace);
        let seen = Seen { queue, aim, is_from_queue, pace, accepted, peak, round_trip };
        let (floor, cap) = self.contention.update(&seen, now);
        let bounded = self.ceiling.bound(next, now).min(PEAK_FACTOR * peak);
        if bounded < next {
            // Below the ceiling, an empty queue does not show a faster link.
            self.clear_intervals = 0;
        }
        self.set_pace(bounded.max(floor.min(pace * PEAK_FACTOR)).min(cap), now);
    }

    fn is_near_peak(&self) -> bool {
        self.pace.is_some_and(|pace| pace > NEAR_PEAK * self.peak)
    }

    /// Checks the base once it is old. Returns the pace during and after the drain.
    fn drain(&mut self, interval: &Interval, queue: Duration, aim: Duration, now: Time) -> Option<f64> {
        if queue < aim.mul_f64(QUEUE_MIN_SHARE[0]) {
            self.base_seen = now;
            let has_drained = self.drain.take().is_some();
            if has_drained {
                self.clear_intervals = -DRAINED_INTERVALS;
            }
            return has_drained.then_some(self.accepted);
        }
        match &mut self.drain {
            None if now.since(self.base_seen) < BASE_VALID || self.loss.is_on_trial() => None,
            None => {
                self.drain = Some((now.after(self.round_trip * DRAIN_ROUND_TRIPS), Duration::MAX));
                Some(self.accepted * DRAIN_SHARE)
            }
            Some((until, shortest)) => {
                *shortest = interval.round_trip_min.min(*shortest);
                if now < *until {
                    return self.pace;
                }
                (self.base, self.base_seen, self.drain) = (Some(*shortest), now, None);
                self.clear_intervals = -DRAINED_INTERVALS;
                Some(self.accepted)
            }
        }
    }

    /// Learns the rate of random loss from an interval in which the pace neither rose nor made a queue.
    fn learn_loss(&mut self, interval: &Interval, queue: Duration, delivered: f64, aim: Duration) {
        let sent = delivered / (1.0 - interval.lost as f64 / interval.reported.max(1) as f64).max(0.1);
        let is_steady = self.pace.is_some_and(|pace| pace <= sent * STEADY_SHARE);
        let is_queue_short = self.queue_of(interval.round_trip_max) < 2 * aim && queue <= aim.mul_f64(1.5);
        if is_steady && is_queue_short && interval.is_busy && !self.loss.is_on_trial() {
            self.loss.on_calm_interval(interval.reported, interval.lost);
        }
    }

    /// Ends slow start if a queue or a large loss shows.
    fn leave_start(&mut self, interval: &Interval, queue: Duration, accepted: f64, now: Time) {
        // A few records of an idle sender do not show the rate of the network.
        if !interval.is_busy {
            return;
        }
        self.best = self.best.max(accepted);
        // A process that paused delays receipts as a queue does, but none arrives meanwhile.
        let has_queue = queue.saturating_sub(interval.gap_max) > self.queue_aim();
        let has_loss = self.loss.recent() > START_LOSS.max(self.loss.explained_max());
        if !has_queue && !has_loss {
            return;
        }
        // Data that arrive within the next round trip were sent by the window, not by the pace.
        self.measure_from = now.after(self.round_trip);
        if !has_queue {
            self.begin_trial(now);
            self.interrupted_start = Some((self.window, self.loss.recent()));
        }
        let pace = std::mem::take(&mut self.best);
        (self.peak, self.accepted) = (pace, pace);
        self.set_pace(pace, now);
    }

    /// Sets the pace, and the window that belongs to it. Returns to slow start at [`RATE_MAX`].
    fn set_pace(&mut self, pace: f64, now: Time) {
        let wait = self.next.since(now);
        if let Some(earlier) = self.pace.filter(|earlier| *earlier < pace && !wait.is_zero()) {
            // The data that were sent last keep the next ones waiting at the new pace only.
            self.next = now.after(wait.mul_f64(earlier / pace));
        }
        self.pace = Some(pace.max(RATE_MIN)).filter(|pace| *pace < RATE_MAX);
        if let Some(pace) = self.pace {
            let (round_trips, margin) = WINDOW_TIME;
            let time = self.round_trip.mul_f64(round_trips) + margin;
            self.window = ((pace * time.as_secs_f64()) as usize).max(WINDOW[1]);
        }
    }

    fn begin_trial(&mut self, now: Time) {
        // Losses are reported later than arrivals, by the reorder delay.
        self.suspected = self.loss.recent();
        self.loss.begin_trial(now.after(self.round_trip + self.reorder_delay() + INTERVAL_MIN));
    }

    /// Returns the change of the pace that leads to the target delay, as a share of the accepted rate.
    fn correction(
        &mut self,
        (queue, is_empty): (Duration, bool),
        round_trip: Duration,
        aim: Duration,
        now: Time,
    ) -> f64 {
        let interval = self.round_trip.max(ROUND_TRIP_MIN).as_secs_f64();
        let correction = (aim.as_secs_f64() - queue.as_secs_f64()) / (APPROACH_ROUND_TRIPS * interval);
        self.clear_intervals = if is_empty { self.clear_intervals + 1 } else { 0 };
        if queue <= 2 * aim {
            (self.expected, self.futile) = (None, 0);
            let rise_max = (INTERVAL_MIN.as_secs_f64() / interval).clamp(RISE_MAX[0], RISE_MAX[1]);
            let doublings = self.clear_intervals - CLEAR_INTERVALS_MIN[usize::from(self.is_near_peak())];
            return (correction * 2_f64.powi(doublings.clamp(0, DOUBLINGS_MAX))).min(rise_max);
        }
        let correction = correction.max(-FALL_MAX);
        let is_futile = self.expected.is_some_and(|expected| round_trip > expected);
        if self.futile == 0 {
            self.futile_since = now;
        }
        self.futile = if is_futile { self.futile + 1 } else { 0 };
        // Until the next interval the queue should drain by that share of the time. Half of it counts as an effect.
        let drained = Duration::from_secs_f64(-correction * interval / 2.0);
        self.expected = Some(round_trip.saturating_sub(drained));
        let (futile, lasts) = FUTILE_MIN;
        if self.futile >= futile && now.since(self.futile_since) >= lasts {
            (self.base, self.expected, self.futile) = (Some(round_trip), None, 0);
        }
        correction
    }
}
