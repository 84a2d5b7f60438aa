//! Finds the number of ways with the highest goodput: Automatic Parallelism Tuning (Improving TCP Throughput for Cloud
//! Applications (2014), 2.4.4). Sans-IO.
//!
//! A *way* is one of several TCP connections that carry the same data: of a link, or to the server of a disk. For data that
//! this host receives, the *sender* below is the peer, and the *acknowledged* bytes are those that have arrived.
//!
//! A *step* measures the goodput with one number of ways: it waits until the ways are open, lets them settle, and counts
//! the acknowledged bytes of an interval. A *search* is a sequence of steps.
//!
//! | plan | number of ways | event | next plan |
//! |---|---|---|---|
//! | `Unknown` | 1 | the sender waits for the network | `First` |
//! | `First` | 4, or the number found before | the network limits the sender | `Up` |
//! | | | the sender has nothing to send for half of the interval | `Down` |
//! | `Up` | twice the best | the goodput rises | `Up`; `Golden` at the limit |
//! | | | it does not | `Golden` between the last three numbers; `Down` if the first number was the best |
//! | `Down` | half of the best | the goodput stays | `Down`; `Hold` at 1 |
//! | | | it falls | `Golden` |
//! | `Golden` | divides the larger side of the bracket by the golden ratio | the bracket is as narrow as the noise | `Hold` |
//! | `Hold` | the number found | the goodput changes more than by noise; the time of a check has come | the plan behind `First` |
//! | | | the sender has nothing to send, twice | `Down`, then `Unknown` if one way is enough |
//!
//! Two rules differ from the thesis. Fewer ways win where more are not better by [`GAIN`], so a path that one connection
//! fills gets one. And a search never ends for ever: background traffic that comes or goes changes the goodput, and the
//! search begins again at the number in use (the thesis names this as future work, 2.7).

use contract::Time;
use std::time::Duration;

/// The most ways of one link.
pub const WAYS_MAX: u32 = 128;
/// The number of ways of the first step.
const WAYS_FIRST: u32 = 4;
/// The factor of `Up` and `Down`.
const FACTOR: u32 = 2;
/// (3 - sqrt 5) / 2.
const GOLDEN: f64 = 0.381_966_011_250_105;
/// More ways must raise the goodput by this share; fewer may lower it by this share.
const GAIN: f64 = 0.03;
/// The bracket is narrow enough if each side has at most this share of the middle.
const RESOLUTION: u32 = 8;
/// Longest wait for ways to open. A step measures those that are open then.
const OPEN_WAIT: Duration = Duration::from_secs(5);
/// Time after a change of the number before the goodput counts, in round trips, and its bounds.
const SETTLE_ROUND_TRIPS: u32 = 20;
const SETTLE: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(4)];
/// The same for new ways: their slow start shows a goodput that they do not keep.
const SETTLE_NEW: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(8)];
/// Time in which the goodput counts, in round trips, and its bounds.
const MEASURE_ROUND_TRIPS: u32 = 50;
const MEASURE: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(10)];
/// The network limits a sender that waits for it in at least this share of an interval.
const LIMITED_SHARE: f64 = 0.5;
/// A goodput is unusual beyond this share of its mean, and beyond this many mean deviations.
const CHANGE: f64 = 0.15;
const CHANGE_DEVIATIONS: f64 = 4.0;
/// Mean deviation before one is measured, as a share of the goodput.
const DEVIATION: f64 = 0.05;
/// Weight of a new interval in the mean goodput and in its deviation.
const WEIGHT: f64 = 0.125;
/// Consecutive unusual intervals that begin a search.
const UNUSUAL_MAX: u32 = 2;
/// Time until a search checks the number without a reason. It doubles while the number stays.
const CHECK_AFTER: [Duration; 2] = [Duration::from_secs(60), Duration::from_secs(960)];

/// The state of the sender at one moment.
#[derive(Debug, Clone, Copy, Default)]
pub struct Observation {
    /// Bytes that have reached the other end since the link began.
    pub acknowledged_bytes: u64,
    /// Time that the sender has waited for the network since the link began.
    pub limited: Duration,
    /// Ways that can carry records.
    pub ways_open: u32,
    /// The smoothed round trip of one of the ways.
    pub round_trip: Duration,
}

/// The goodput with one number of ways.
#[derive(Debug, Clone, Copy)]
struct Point {
    ways: u32,
    bytes_per_second: f64,
    is_limited: bool,
}

#[derive(Debug, Clone, Copy)]
enum Plan {
    Unknown,
    First,
    Up {
        /// The number before, which was worse.
        low: Option<u32>,
        middle: Point,
    },
    Down {
        middle: Point,
        /// The number before, which was not better.
        high: u32,
    },
    Golden {
        low: u32,
        middle: Point,
        high: u32,
    },
    Hold(Hold),
}

/// The usual goodput.
#[derive(Debug, Clone, Copy)]
struct Hold {
    /// Mean and mean deviation in bytes a second.
    usual: (f64, f64),
    unusual: u32,
    /// Consecutive intervals without enough to send.
    idle: u32,
    check_at: Time,
}

/// The part of a step.
#[derive(Debug, Clone, Copy)]
enum Phase {
    /// Nothing is measured until the sender waits for the network.
    Rest,
    Opening {
        until: Time,
    },
    Settling {
        until: Time,
    },
    Measuring {
        begin: Observation,
        since: Time,
        until: Time,
    },
}

/// The last search.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Searched {
    /// Searches so far.
    pub searches: u64,
    /// Steps of the last complete one.
    pub steps: u32,
    /// Its duration.
    pub lasted: Duration,
}

/// The search for the number of ways of one sender.
#[derive(Debug)]
pub struct Search {
    plan: Plan,
    phase: Phase,
    /// The ways in use.
    ways: u32,
    /// The number that the present step tries. Fewer are in use if the others are refused or do not open.
    tried: u32,
    /// The most ways that the present search has used.
    ways_used: u32,
    /// The most ways that the peer grants in this search.
    ways_most: u32,
    /// The number that was found last while the network limited the sender.
    found: u32,
    /// The highest goodput of the present search, bytes a second.
    best: f64,
    begun: Time,
    steps: u32,
    check_after: Duration,
    searched: Searched,
}

impl Default for Search {
    fn default() -> Search {
        Search::new()
    }
}

impl Search {
    /// Creates a search that uses one way until the network limits the sender.
    pub fn new() -> Search {
        Search {
            plan: Plan::Unknown,
            phase: Phase::Rest,
            ways: 1,
            tried: 1,
            ways_used: 1,
            ways_most: WAYS_MAX,
            found: WAYS_FIRST,
            best: 0.0,
            begun: Time::ZERO,
            steps: 0,
            check_after: CHECK_AFTER[0],
            searched: Searched::default(),
        }
    }

    /// Returns the number of ways to send on.
    pub fn ways(&self) -> u32 {
        self.ways
    }

    /// Returns the number of ways to keep open: a search returns to numbers that it has left.
    pub fn ways_kept(&self) -> u32 {
        self.ways_used.max(self.ways)
    }

    /// Returns the last search.
    pub fn searched(&self) -> Searched {
        self.searched
    }

    /// Returns the time of the next [`Search::on_due`].
    pub fn due(&self) -> Option<Time> {
        match self.phase {
            Phase::Rest => None,
            Phase::Opening { until } | Phase::Settling { until } | Phase::Measuring { until, .. } => {
                Some(until)
            }
        }
    }

    /// The sender has begun to wait for the network.
    pub fn on_limited(&mut self, now: Time, observation: &Observation) {
        match (self.phase, self.plan) {
            (Phase::Rest, Plan::Unknown) => {
                self.begin(now);
                self.plan = Plan::First;
                self.try_ways(self.found.clamp(WAYS_FIRST, WAYS_MAX), observation, now);
            }
            (Phase::Rest, _) => self.measure(observation, now),
            _ => {}
        }
    }

    /// The peer grants no more than `ways`.
    pub fn on_refused(&mut self, ways: u32) {
        self.ways_most = ways.clamp(1, self.ways_most);
        self.ways = self.ways.min(self.ways_most);
        self.ways_used = self.ways_used.min(self.ways_most);
    }

    /// Ways have opened.
    pub fn on_opened(&mut self, observation: &Observation, now: Time) {
        if matches!(self.phase, Phase::Opening { .. }) && observation.ways_open >= self.ways {
            self.settle(observation, now, SETTLE_NEW);
        }
    }

    /// Advances the step whose part is over at `now`.
    pub fn on_due(&mut self, observation: &Observation, now: Time) {
        match self.phase {
            Phase::Opening { until } if now >= until => {
                self.ways = self.ways.min(observation.ways_open.max(1));
                self.settle(observation, now, SETTLE_NEW);
            }
            Phase::Settling { until } if now >= until => self.measure(observation, now),
            Phase::Measuring { begin, since, until } if now >= until => {
                let seconds = now.since(since).as_secs_f64().max(f64::MIN_POSITIVE);
                let bytes = observation.acknowledged_bytes.saturating_sub(begin.acknowledged_bytes);
                let limited = observation.limited.saturating_sub(begin.limited).as_secs_f64();
                let point = Point {
                    ways: self.ways,
                    bytes_per_second: bytes as f64 / seconds,
                    is_limited: limited >= LIMITED_SHARE * seconds,
                };
                self.decide(point, observation, now);
            }
            _ => {}
        }
    }

    fn begin(&mut self, now: Time) {
        (self.begun, self.steps, self.best, self.ways_used) = (now, 0, 0.0, self.ways);
        self.ways_most = WAYS_MAX;
    }

    /// Starts a step with this number of ways.
    fn try_ways(&mut self, ways: u32, observation: &Observation, now: Time) {
        let is_same = ways == self.ways;
        self.tried = ways;
        self.ways = ways.clamp(1, self.ways_most);
        self.ways_used = self.ways_used.max(self.ways);
        match observation.ways_open >= self.ways {
            true if is_same => self.measure(observation, now),
            true => self.settle(observation, now, SETTLE),
            false => self.phase = Phase::Opening { until: now.after(OPEN_WAIT) },
        }
    }

    fn settle(&mut self, observation: &Observation, now: Time, [least, most]: [Duration; 2]) {
        let lasts = (observation.round_trip * SETTLE_ROUND_TRIPS).clamp(least, most);
        self.phase = Phase::Settling { until: now.after(lasts) };
    }

    fn measure(&mut self, observation: &Observation, now: Time) {
        let lasts = (observation.round_trip * MEASURE_ROUND_TRIPS).clamp(MEASURE[0], MEASURE[1]);
        self.phase = Phase::Measuring { begin: *observation, since: now, until: now.after(lasts) };
    }

    /// Handles the result of a step.
    fn decide(&mut self, point: Point, observation: &Observation, now: Time) {
        if let Plan::Hold(hold) = self.plan {
            match self.watch(hold, point, now) {
                Watched::Usual(hold) => {
                    self.plan = Plan::Hold(hold);
                    return self.measure(observation, now);
                }
                Watched::Rest(plan) => {
                    (self.plan, self.phase) = (plan, Phase::Rest);
                    self.ways_used = self.ways;
                    return;
                }
                Watched::Search => {
                    self.begin(now);
                    self.plan = Plan::First;
                }
            }
        }
        self.steps += 1;
        self.best = self.best.max(point.bytes_per_second);
        self.plan = self.next(point);
        match self.candidate() {
            Ok(ways) => self.try_ways(ways, observation, now),
            Err(found) => self.finish(found, observation, now),
        }
    }

    /// Returns the plan after a step of a search.
    fn next(&self, point: Point) -> Plan {
        let is_enough = |point: Point| point.bytes_per_second >= self.best * (1.0 - GAIN);
        let is_more =
            |point: Point, than: Point| point.bytes_per_second > than.bytes_per_second * (1.0 + GAIN);
        match self.plan {
            Plan::Unknown | Plan::Hold(_) | Plan::First => {
                match point.is_limited && point.ways < self.ways_most {
                    true => Plan::Up { low: None, middle: point },
                    false => Plan::Down { middle: point, high: point.ways.saturating_mul(FACTOR) },
                }
            }
            Plan::Up { middle, .. } if is_more(point, middle) => {
                match point.is_limited && point.ways < self.ways_most {
                    true => Plan::Up { low: Some(middle.ways), middle: point },
                    false => Plan::Golden { low: middle.ways, middle: point, high: point.ways },
                }
            }
            Plan::Up { low: Some(low), middle } => Plan::Golden { low, middle, high: point.ways },
            Plan::Up { low: None, middle } => Plan::Down { middle, high: point.ways },
            Plan::Down { middle, .. } if is_enough(point) => Plan::Down { middle: point, high: middle.ways },
            Plan::Down { middle, high } => Plan::Golden { low: point.ways, middle, high },
            Plan::Golden { low, middle, high } => match point.ways > middle.ways {
                true if is_more(point, middle) => Plan::Golden { low: middle.ways, middle: point, high },
                true => Plan::Golden { low, middle, high: point.ways },
                false if is_enough(point) => Plan::Golden { low, middle: point, high: middle.ways },
                false => Plan::Golden { low: point.ways, middle, high },
            },
        }
    }

    /// Returns the number of ways of the next step, or the best point if the search is over.
    fn candidate(&self) -> Result<u32, Point> {
        match self.plan {
            Plan::Unknown | Plan::Hold(_) | Plan::First => Ok(self.ways),
            Plan::Up { middle, .. } => Ok(middle.ways.saturating_mul(FACTOR).min(self.ways_most)),
            Plan::Down { middle, .. } if middle.ways > 1 => Ok(middle.ways / FACTOR),
            Plan::Down { middle, .. } => Err(middle),
            Plan::Golden { low, middle, high } => {
                let ways = divide(low, middle.ways, high.min(self.ways_most));
                // The same number again means that its ways did not open: they would not in the next step either.
                ways.filter(|ways| *ways != self.tried).ok_or(middle)
            }
        }
    }

    fn finish(&mut self, found: Point, observation: &Observation, now: Time) {
        self.searched.searches += 1;
        (self.searched.steps, self.searched.lasted) = (self.steps, now.since(self.begun));
        if found.ways == 1 && !found.is_limited {
            // The capacity of the path is still unknown.
            self.plan = Plan::Unknown;
            (self.phase, self.ways, self.ways_used) = (Phase::Rest, 1, 1);
            return;
        }
        let is_same = found.ways.abs_diff(self.found) <= (found.ways / RESOLUTION).max(1);
        self.check_after = if is_same { (self.check_after * 2).min(CHECK_AFTER[1]) } else { CHECK_AFTER[0] };
        self.found = found.ways;
        let check_at = now.after(self.check_after);
        // A goodput that the slow start of new ways has raised does not last, which begins the next search.
        let usual = (found.bytes_per_second, found.bytes_per_second * DEVIATION);
        self.plan = Plan::Hold(Hold { usual, unusual: 0, idle: 0, check_at });
        self.try_ways(found.ways, observation, now);
        self.ways_used = self.ways;
    }

    /// Compares the goodput of an interval with the usual one.
    fn watch(&self, hold: Hold, point: Point, now: Time) -> Watched {
        if !point.is_limited {
            return match hold.idle + 1 {
                _ if self.ways == 1 => Watched::Rest(Plan::Hold(Hold { unusual: 0, ..hold })),
                idle if idle < UNUSUAL_MAX => Watched::Usual(Hold { idle, unusual: 0, ..hold }),
                _ => Watched::Search,
            };
        }
        let rate = point.bytes_per_second;
        let (mean, deviation) = hold.usual;
        let off = (rate - mean).abs();
        let is_unusual = off > (mean * CHANGE).max(deviation * CHANGE_DEVIATIONS);
        match hold.unusual + 1 {
            unusual if is_unusual && unusual < UNUSUAL_MAX => {
                Watched::Usual(Hold { unusual, idle: 0, ..hold })
            }
            _ if is_unusual || now >= hold.check_at => Watched::Search,
            _ => {
                let usual = (mean + (rate - mean) * WEIGHT, deviation + (off - deviation) * WEIGHT);
                Watched::Usual(Hold { usual, unusual: 0, idle: 0, ..hold })
            }
        }
    }
}

/// The result of an interval of `Hold`.
enum Watched {
    Usual(Hold),
    Rest(Plan),
    Search,
}

/// Returns the number that divides the larger side of the bracket (equation 2.1), or the other side if the larger one is
/// narrow enough; `None` if both are.
fn divide(low: u32, middle: u32, high: u32) -> Option<u32> {
    let (left, right) = (middle - low.min(middle), high.max(middle) - middle);
    let narrow = (middle / RESOLUTION).max(1);
    let within = |from: u32, side: u32| from + (f64::from(side) * GOLDEN).round() as u32;
    match (left > narrow, right > narrow) {
        (false, false) => None,
        (true, is_right_wide) if left > right || !is_right_wide => Some(within(low, left)),
        _ => Some(within(middle, right)),
    }
}

#[cfg(test)]
mod tests;
