//! How fast datagrams are sent, so that they fill the network without filling the queue in front of it. Sans-IO.
//!
//! At first what is under way is bounded by a window that doubles each round trip (slow start of RFC 5681), until the
//! round trip is [`START_QUEUE`] longer than the shortest there was: that much data stand in a queue by then (or more than [`START_LOSS`] do
//! not come, for the queue is full), and the rate at which the others arrive is the network's. From then on datagrams leave at that rate, a little less while the
//! queue is longer than [`QUEUE_AIM`] and a little more while it is shorter. It is measured anew each round trip that it shows in, by what came and
//! by the receiver's clock (BBR's delivery rate; LEDBAT, RFC 6817, has the delay). Where no queue shows, nothing is paced.
//!
//! What is lost without a queue is none of the sender's doing, as far as [`Loss`] says: so much more is sent.

use super::loss::Loss;
use contract::Time;
use std::time::Duration;

/// The window at first, and the smallest there is.
const WINDOW: [usize; 2] = [46 << 10, 12 << 10];
/// A queue of this is one.
const START_QUEUE: Duration = Duration::from_millis(10);
/// More than this share lost is no chance until a trial says so.
const START_LOSS: f64 = 0.2;
/// How long a queue is aimed at; where it is shorter than the other, the link may have become wider.
const QUEUE_AIM: Duration = Duration::from_millis(10);
const QUEUE_MIN: Duration = Duration::from_millis(4);
/// In so many round trips, of this at least, the aim is approached.
const APPROACH: f64 = 3.0;
const ROUND_TRIP_MIN: Duration = Duration::from_millis(20);
/// Most that a rate falls and rises in one look, as shares of it; it rises faster where a look is short.
const FALL_MAX: f64 = 0.5;
const RISE_MAX: [f64; 2] = [0.25, 1.0];
/// After so many looks in a row without a queue the rise doubles at each.
const CLEAR_MIN: i32 = 3;
const DOUBLINGS_MAX: i32 = 16;
/// Shortest time between two looks, and the shortest time by the receiver's clock that a rate is measured over.
const LOOK: Duration = Duration::from_millis(20);
/// A look that has not seen so much lasts longer, up to so many round trips.
const LOOK_BYTES: usize = 16 << 10;
const LOOK_ROUND_TRIPS_MAX: u32 = 4;
const SPAN: Duration = Duration::from_millis(10);
/// After so many looks in a row at which slowing down had not helped, it is the way that has become longer, or
/// somebody else's queue: more slowness would not help either.
const FUTILE_MAX: u32 = 4;
/// Where it is paced, the window is for the case that nothing is heard any more: so many round trips and this.
const WINDOW_LASTS: (f64, Duration) = (1.25, Duration::from_millis(50));
/// Datagrams that leave at once where they are paced last for this long.
const QUANTUM: Duration = Duration::from_millis(1);
/// Somebody who wakes up late may make good so much.
const LATE: Duration = Duration::from_millis(5);
/// Bytes a second below which nothing is paced, and from which on pacing is no pacing.
const RATE_MIN: f64 = 4096.0;
const RATE_MAX: f64 = 1e9;
/// What is later than this is lost.
const LATENESS_MAX: Duration = Duration::from_millis(25);
/// How long the receiver's word is waited for before it was asked.
const PATIENCE: Duration = Duration::from_millis(250);
const PATIENCE_MIN: Duration = Duration::from_millis(30);

/// What a receipt says of what was sent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sample {
    /// The round trip of the newest that came, if this is the first to tell.
    pub(super) round_trip: Option<Duration>,
    /// When that came, by the receiver's clock, and what had come by then.
    pub(super) came: Time,
    pub(super) received_bytes: u64,
    /// Bytes that it says came, and that it says were lost.
    pub(super) acknowledged: usize,
    pub(super) lost: usize,
    /// Most bytes that the receiver's kernel keeps.
    pub(super) room: usize,
    /// As much was under way as the window lets, about.
    pub(super) is_limited: bool,
}

/// One look at the network, from one measurement of the rate to the next.
#[derive(Debug, Clone, Copy)]
struct Look {
    begun: Time,
    /// By the receiver's clock, and what had come.
    came: Time,
    received_bytes: u64,
    settled: usize,
    lost: usize,
    least: Duration,
    /// There was more to send all the time.
    is_busy: bool,
}

/// The rate of one connection.
#[derive(Debug)]
pub(super) struct Rate {
    /// Bytes a second; `None`: as fast as the window lets.
    pace: Option<f64>,
    window: usize,
    room: usize,
    /// The shortest round trip, and the smoothed one.
    base: Option<Duration>,
    round_trip: Duration,
    deviation: Duration,
    look: Option<Look>,
    look_from: Time,
    /// The highest rate that was seen before it was paced: much of the time nothing was under way.
    best: f64,
    loss: Loss,
    /// The window that a trial interrupted the start at, and the share lost then.
    interrupted: Option<(usize, f64)>,
    /// Looks in a row at which there was no queue.
    clear: i32,
    /// After a look that slowed down: what the round trip should be at the next if that helps.
    hoped: Option<Duration>,
    futile: u32,
    /// When the next datagram may leave.
    next: Time,
}

impl Rate {
    pub(super) fn new() -> Self {
        Rate {
            pace: None,
            window: WINDOW[0],
            room: usize::MAX,
            base: None,
            round_trip: Duration::ZERO,
            deviation: Duration::ZERO,
            look: None,
            look_from: Time::ZERO,
            best: 0.0,
            loss: Loss::default(),
            interrupted: None,
            clear: 0,
            hoped: None,
            futile: 0,
            next: Time::ZERO,
        }
    }

    /// Bytes that may be under way.
    pub(super) fn window(&self) -> usize {
        self.window
    }

    /// Bytes a second, if it is paced.
    pub(super) fn pace(&self) -> Option<f64> {
        self.pace
    }

    /// The smoothed round trip; zero before there was one.
    pub(super) fn round_trip(&self) -> Duration {
        self.round_trip
    }

    /// How much later than others what is not lost may come: an eighth of a round trip, or what round trips differ by.
    pub(super) fn lateness(&self) -> Duration {
        (self.round_trip / 8).max(self.deviation * 2).min(LATENESS_MAX)
    }

    /// How long to wait for word of what was sent.
    pub(super) fn patience(&self) -> Duration {
        match self.base {
            None => PATIENCE,
            Some(_) => self.round_trip.mul_f64(1.5) + PATIENCE_MIN,
        }
    }

    /// When the next datagram may leave.
    pub(super) fn next(&self) -> Time {
        self.next
    }

    /// How many bytes may leave at once.
    pub(super) fn quantum(&self) -> usize {
        self.pace.map_or(usize::MAX, |pace| (pace * QUANTUM.as_secs_f64()) as usize)
    }

    /// So many bytes have left.
    pub(super) fn sent(&mut self, bytes: usize, now: Time) {
        if let Some(pace) = self.pace {
            self.next = self.next.max(now.before(LATE)).after(Duration::from_secs_f64(bytes as f64 / pace));
        }
    }

    /// Everything has left: how much the network takes is not known any more.
    pub(super) fn rest(&mut self) {
        if let Some(look) = &mut self.look {
            look.is_busy = false;
        }
    }

    /// Nothing was heard for so long, for the `times`th time.
    pub(super) fn starve(&mut self, times: u32) {
        self.look = None;
        if times > 1 {
            self.window = WINDOW[1];
            self.pace = self.pace.map(|pace| (pace / 2.0).max(RATE_MIN));
        }
    }

    /// The receiver's word.
    pub(super) fn hear(&mut self, sample: &Sample, now: Time) {
        self.room = sample.room.max(WINDOW[1]);
        if let Some(round_trip) = sample.round_trip {
            let is_first = self.base.is_none();
            self.base = Some(self.base.map_or(round_trip, |base| base.min(round_trip)));
            let off = self.round_trip.abs_diff(round_trip);
            match is_first {
                true => self.round_trip = round_trip,
                false => {
                    self.deviation = (self.deviation * 3 + off) / 4;
                    self.round_trip = (self.round_trip * 7 + round_trip) / 8;
                }
            }
        }
        if self.pace.is_none() && sample.is_limited {
            self.window = self.window.saturating_add(sample.acknowledged).min(self.room);
        }
        let settled = sample.acknowledged + sample.lost;
        self.loss.tell(settled, sample.lost, now);
        let least = sample.round_trip.unwrap_or(Duration::MAX);
        if now < self.look_from {
            self.look = None;
            return;
        }
        let Some(look) = &mut self.look else {
            self.look = Some(Look::begin(sample, now, Duration::MAX));
            return;
        };
        look.settled += settled;
        look.lost += sample.lost;
        look.least = look.least.min(least);
        let span = sample.came.since(look.came);
        // What a few datagrams say of a rate is mostly when they happened to leave.
        let (lasted, least) = (now.since(look.begun), self.round_trip.max(LOOK));
        let is_over = lasted >= least && look.settled >= LOOK_BYTES || lasted >= least * LOOK_ROUND_TRIPS_MAX;
        let is_over = is_over || self.pace.is_none();
        if span >= SPAN && is_over && look.least < Duration::MAX {
            let looked = *look;
            self.look = Some(Look::begin(sample, now, Duration::MAX));
            self.judge(&looked, span, sample.received_bytes, now);
        }
    }

    fn judge(&mut self, look: &Look, span: Duration, received_bytes: u64, now: Time) {
        let queue = look.least.saturating_sub(self.base.unwrap_or(look.least));
        let arrived = received_bytes.saturating_sub(look.received_bytes) as f64 / span.as_secs_f64();
        let is_told = self.loss.look(look.settled, look.lost, self.pace);
        if is_told
            && let Some((window, lost)) = self.interrupted.take()
            && self.loss.chance() > lost / 2.0
        {
            // It was not the window that was lost by.
            (self.pace, self.window) = (None, window);
        }
        let is_lossy = self.loss.is_too_much();
        let network = if is_lossy { arrived } else { arrived / (1.0 - self.loss.share()) };
        let is_clear = queue < QUEUE_MIN && !is_lossy;
        if self.pace.is_none() {
            self.best = self.best.max(network);
        }
        let pace = match self.pace {
            None if queue > START_QUEUE || self.loss.lately() > START_LOSS.max(self.loss.most()) => {
                // What arrives until then left as the window had it.
                self.look_from = now.after(self.round_trip);
                if queue <= START_QUEUE {
                    self.begin_trial(now);
                    self.interrupted = Some((self.window, self.loss.lately()));
                }
                std::mem::take(&mut self.best)
            }
            None => return,
            // What the network takes shows only where it is asked for more.
            Some(pace) if look.is_busy => {
                let more = self.more(queue, look.least);
                let is_on_trial = self.loss.is_on_trial();
                if is_lossy || is_on_trial {
                    // What is asked of the network is less for a while: no queue shows for that alone.
                    self.clear = 0;
                }
                match is_on_trial {
                    // Of what the trial sends, what arrives says nothing new; but what stands in a queue is too much.
                    true if queue <= QUEUE_AIM => pace,
                    true => pace.min(network) * (1.0 + more),
                    false if is_lossy => {
                        self.begin_trial(now);
                        network * (1.0 + more.min(0.0))
                    }
                    // As much as before the trial, less what a queue lost.
                    false if is_told => pace / (1.0 - self.loss.chance()) * (1.0 + more.min(0.0)),
                    false => {
                        let from = if is_clear { pace.max(network) } else { network };
                        from * (1.0 + more)
                    }
                }
            }
            Some(pace) if is_clear => pace.max(arrived * (1.0 + RISE_MAX[0])),
            Some(pace) if queue > 2 * QUEUE_AIM => pace * (1.0 - RISE_MAX[0]),
            Some(pace) => pace,
        };
        self.pace = Some(pace.max(RATE_MIN)).filter(|pace| *pace < RATE_MAX);
        if let Some(pace) = self.pace {
            let (round_trips, more) = WINDOW_LASTS;
            let lasts = self.round_trip.mul_f64(round_trips) + more;
            self.window = ((pace * lasts.as_secs_f64()) as usize).max(WINDOW[1]).min(self.room);
        }
    }

    fn begin_trial(&mut self, now: Time) {
        // A loss is told of a little later than what comes.
        self.loss.begin_trial(now.after(self.round_trip + self.lateness() + LOOK));
    }

    /// How much more to send than the network has taken, as a share.
    fn more(&mut self, queue: Duration, round_trip: Duration) -> f64 {
        let look = self.round_trip.max(ROUND_TRIP_MIN).as_secs_f64();
        let more = (QUEUE_AIM.as_secs_f64() - queue.as_secs_f64()) / (APPROACH * look);
        self.clear = if queue < QUEUE_MIN { self.clear + 1 } else { 0 };
        if queue <= 2 * QUEUE_AIM {
            (self.hoped, self.futile) = (None, 0);
            let rise_max = (LOOK.as_secs_f64() / look).clamp(RISE_MAX[0], RISE_MAX[1]);
            let doublings = (self.clear - CLEAR_MIN).clamp(0, DOUBLINGS_MAX);
            return (more * 2_f64.powi(doublings)).min(rise_max);
        }
        let more = more.max(-FALL_MAX);
        let is_futile = self.hoped.is_some_and(|hoped| round_trip > hoped);
        self.futile = if is_futile { self.futile + 1 } else { 0 };
        // Until the next look the queue should be shorter by that share of the time; half of it will do.
        self.hoped = Some(round_trip.saturating_sub(Duration::from_secs_f64(-more * look / 2.0)));
        if self.futile >= FUTILE_MAX {
            (self.base, self.hoped, self.futile) = (Some(round_trip), None, 0);
        }
        more
    }
}

impl Look {
    fn begin(sample: &Sample, now: Time, least: Duration) -> Look {
        let Sample { came, received_bytes, .. } = *sample;
        Look { begun: now, came, received_bytes, settled: 0, lost: 0, least, is_busy: true }
    }
}
