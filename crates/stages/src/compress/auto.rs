//! `level=auto`: which rung of the [`LADDER`] costs least.
//!
//! The cost, declared before anything was measured, is the mean time from a message's being handed in to its being
//! decompressed: compressing + bytes on the way by the way's rate + waiting for both + decompressing.
//!
//! What it is computed from:
//! - what is left of bodies at the rung that is in use, and at its neighbours, which are tried on samples of bodies.
//!   Trials take at most one part in [`TRIAL_SHARE`] of the time that messages take;
//! - what a byte takes on its way: the median delay less half a round trip and our own work, by the median length. It
//!   is never more than the rate that came through tells, and exactly that while bytes pile up at the source;
//! - what compressing takes by the constants of each rung, times what this host is slower by. That shows while
//!   messages wait in front of this half: the time between two of them is what the first took, or more.
//!
//! Waiting is that of messages of one size in a queue (Pollaczek-Khinchine, constant service).

use super::codec::{Encoder, Method, is_worth};
use super::effort::{Effort, FIRST, LADDER};
use contract::{Choice, Feedback, StageError, Time};

/// Trials take at most one part in so many of the time that messages take.
const TRIAL_SHARE: f64 = 32.0;
/// Time saved up for trials, at most.
const CREDIT_NS_MAX: f64 = 20e6;
/// Bytes of a body that are tried, at most.
const SAMPLE_BYTES: usize = 32 << 10;
/// A message weighs so much less than the one after it; a trial, than the next of the same rungs.
const FORGET_MESSAGE: f64 = 1.0 - 1.0 / 256.0;
const FORGET_TRIAL: f64 = 1.0 - 1.0 / 32.0;
/// What costs less by this share only is not worth a change.
const WORTH: f64 = 0.04;
/// Of a logarithm that is followed, the part that each new value moves it by.
const FOLLOW: f64 = 0.25;
/// Messages whose lengths the median is of.
const RECENT: usize = 64;
/// A queue this close to full is treated as one that is full.
const SPARE_MIN: f64 = 0.02;
/// Bytes that pile up for longer than this say that the way is what limits.
const PILED_UP_S: f64 = 0.25;
/// The least that a byte takes on any way.
const WAY_NS_MIN: f64 = 0.1;
/// Work that is too short is not seen in the time between two messages.
const SEEN_NS_MIN: f64 = 100e3;
/// A host is at most so much slower, or faster, than the constants say.
const SLOWER_MAX: f64 = 8.0;

/// A message that left.
#[derive(Debug, Clone, Copy, Default)]
struct Left {
    wire_bytes: usize,
    /// What compressing and decompressing it takes.
    work_ns: f64,
}

/// What a message takes, nanoseconds, waiting included.
#[derive(Debug, Clone, Copy)]
struct Cost {
    compress: f64,
    cross: f64,
    decompress: f64,
}

impl Cost {
    fn total(self) -> f64 {
        self.compress + self.cross + self.decompress
    }
}

pub(super) struct Auto {
    lz4: Encoder,
    zstd: Encoder,
    rung: usize,
    content: Content,
    /// What came out of samples at each rung but the last, and at the one above.
    steps: [[f64; 2]; LADDER.len() - 1],
    trials: usize,
    credit_ns: f64,
    recent: [Left; RECENT],
    sorted: Vec<Left>,
    /// What a byte takes on its way, nanoseconds.
    way_ns: Option<f64>,
    way_limits: bool,
    host: Host,
}

/// What is compressed; older messages weigh less.
#[derive(Debug, Default)]
struct Content {
    messages: f64,
    bytes: f64,
    wire_bytes: f64,
    kinds: [f64; 3],
    /// Mean time between two messages.
    period_ns: f64,
    created: Option<Time>,
    /// Messages ever.
    count: usize,
}

/// How fast this host is.
#[derive(Debug)]
struct Host {
    slower: f64,
    now: Time,
    /// Work by the constants since `now`.
    work_ns: f64,
}

impl Auto {
    pub(super) fn new() -> Result<Self, StageError> {
        // Until something was tried, everything is taken for text.
        let prior = |rung: usize| [LADDER[rung].text_share, LADDER[rung + 1].text_share];
        Ok(Auto {
            lz4: Encoder::new(Method::Lz4, 0)?,
            zstd: Encoder::new(Method::Zstd, LADDER[FIRST].level)?,
            rung: FIRST,
            content: Content::default(),
            steps: std::array::from_fn(prior),
            trials: 0,
            credit_ns: 0.0,
            recent: [Left::default(); RECENT],
            sorted: Vec::new(),
            way_ns: None,
            way_limits: false,
            host: Host { slower: 1.0, now: Time::ZERO, work_ns: 0.0 },
        })
    }

    /// The rung that is in use.
    pub(super) fn effort(&self) -> &'static Effort {
        &LADDER[self.rung]
    }

    /// How large `into` has to be.
    pub(super) fn room(&self, length: usize) -> usize {
        self.lz4.room(length)
    }

    /// A message of these bytes stands in front.
    pub(super) fn handle_message(&mut self, created: Time, now: Time) {
        let content = &mut self.content;
        if let Some(before) = content.created.replace(created) {
            let gap = created.signed_since(before).max(0) as f64;
            let weight = if content.period_ns == 0.0 { 1.0 } else { 1.0 / 64.0 };
            content.period_ns += (gap - content.period_ns) * weight;
        }
        self.host.handle_message(created, now, self.way_limits);
    }

    /// Compresses `body` into the front of `into`: how, and how many bytes; or `None` if it is to be stored.
    pub(super) fn encode(&mut self, body: &[u8], into: &mut [u8]) -> Option<(Method, usize)> {
        let made = self.encode_at(self.rung, body, into);
        let effort = &LADDER[self.rung];
        let wire_bytes = made.map_or(body.len(), |(_, bytes)| bytes);
        let share = wire_bytes as f64 / body.len().max(1) as f64;
        let (content, bytes) = (&mut self.content, body.len() as f64);
        content.messages = content.messages * FORGET_MESSAGE + 1.0;
        content.bytes = content.bytes * FORGET_MESSAGE + bytes;
        content.wire_bytes = content.wire_bytes * FORGET_MESSAGE + wire_bytes as f64;
        let mut work_ns = 0.0;
        if effort.method.is_some() {
            let kinds = effort.kinds(share);
            content.weigh(kinds, bytes);
            self.host.work_ns += effort.compress_ns(kinds) * bytes;
            work_ns = (effort.compress_ns(kinds) + effort.decompress_ns(kinds)) * bytes * self.host.slower;
        }
        self.recent[content.count % RECENT] = Left { wire_bytes, work_ns };
        content.count += 1;
        made
    }

    /// Tries a neighbour of the rung that is in use on a part of `body`, if there is time for it: the time by the
    /// constants that this took, nanoseconds. `into` has room for all of `body`.
    pub(super) fn try_neighbour(&mut self, body: &[u8], into: &mut [u8]) -> f64 {
        if body.is_empty() || self.way_ns.is_none() {
            return 0.0;
        }
        self.credit_ns = (self.credit_ns + self.cost(self.rung).total() / TRIAL_SHARE).min(CREDIT_NS_MAX);
        // By turns the step below and the one above.
        let step = (self.rung + self.trials % 2).saturating_sub(1).min(self.steps.len() - 1);
        let length = body.len().min(SAMPLE_BYTES);
        let spread = (body.len() - length).max(1);
        let from = self.trials.wrapping_mul(40_503) % spread;
        let sample = &body[from..from + length];
        let kinds = self.content.shares();
        let work_ns: f64 =
            [step, step + 1].map(|rung| LADDER[rung].compress_ns(kinds)).iter().sum::<f64>() * length as f64;
        if work_ns * self.host.slower > self.credit_ns {
            return 0.0;
        }
        self.credit_ns -= work_ns * self.host.slower;
        self.host.work_ns += work_ns;
        self.trials += 1;
        let weight = body.len() as f64 / length as f64;
        for (which, rung) in [step, step + 1].into_iter().enumerate() {
            let made = self.encode_at(rung, sample, into).map_or(length, |(_, bytes)| bytes);
            let left = &mut self.steps[step][which];
            *left = *left * FORGET_TRIAL + made as f64 * weight;
            if self.rung == 0 && which == 1 {
                let kinds = LADDER[rung].kinds(made as f64 / length as f64);
                self.content.weigh(kinds, body.len() as f64);
            }
        }
        self.decide();
        work_ns
    }

    /// What is known of the way.
    pub(super) fn handle_feedback(&mut self, feedback: &Feedback) {
        let Some(typical) = self.typical().filter(|left| feedback.received > 0 && left.wire_bytes > 0) else {
            return;
        };
        let rate = feedback.rate_bytes as f64;
        self.way_limits = rate > 0.0 && feedback.waiting_bytes as f64 > rate * PILED_UP_S;
        let delay_ns = |duration: std::time::Duration| duration.as_nanos() as f64;
        let crossing = delay_ns(feedback.delay) - delay_ns(feedback.round_trip) / 2.0 - typical.work_ns;
        let by_rate = if rate > 0.0 { 1e9 / rate } else { f64::INFINITY };
        let seen = match self.way_limits {
            true => by_rate,
            false => (crossing / typical.wire_bytes as f64).max(WAY_NS_MIN).min(by_rate),
        };
        let way = self.way_ns.map_or(seen, |way| way * (seen / way).powf(FOLLOW));
        self.way_ns = Some(way);
        self.decide();
    }

    /// What `auto` stands at, and why.
    pub(super) fn choice(&self) -> Choice {
        let why = match self.way_ns {
            None => "nothing is known of the way yet".into(),
            Some(way) => {
                let cost = self.cost(self.rung);
                let ms = |ns: f64| ns / 1e6;
                let others = [self.rung.checked_sub(1), Some(self.rung + 1)];
                let others = others.into_iter().flatten().filter(|rung| *rung < LADDER.len());
                let others = others
                    .map(|rung| format!("{}: {:.3} ms", LADDER[rung].value(), ms(self.cost(rung).total())));
                format!(
                    "a byte takes {way:.1} ns on its way and {:.0} % of them are left: a message of {:.0} bytes takes \
                     {:.3} ms (compressing {:.3}, crossing {:.3}, decompressing {:.3}); {}",
                    100.0 * self.share(self.rung),
                    self.content.bytes / self.content.messages.max(1.0),
                    ms(cost.total()),
                    ms(cost.compress),
                    ms(cost.cross),
                    ms(cost.decompress),
                    others.collect::<Vec<_>>().join(", ")
                )
            }
        };
        Choice { option: "level", value: LADDER[self.rung].value(), why }
    }

    fn encode_at(&mut self, rung: usize, body: &[u8], into: &mut [u8]) -> Option<(Method, usize)> {
        let effort = &LADDER[rung];
        let method = effort.method?;
        let encoder = match method {
            Method::Lz4 => &mut self.lz4,
            _ => &mut self.zstd,
        };
        encoder.set_level(effort.level);
        let room = encoder.room(body.len());
        let bytes = encoder.encode(body, &mut into[..room]).filter(|bytes| is_worth(*bytes, body.len()))?;
        Some((method, bytes))
    }

    /// Of the last messages, the one of median length.
    fn typical(&mut self) -> Option<Left> {
        self.sorted.clear();
        self.sorted.extend(&self.recent[..self.content.count.min(RECENT)]);
        self.sorted.sort_unstable_by_key(|left| left.wire_bytes);
        self.sorted.get(self.sorted.len() / 2).copied()
    }

    /// Which share of bytes would be left at a rung.
    fn share(&self, rung: usize) -> f64 {
        let mut share = self.content.wire_bytes / self.content.bytes.max(1.0);
        for [larger, smaller] in &self.steps[self.rung.min(rung)..rung.max(self.rung)] {
            share *= if rung > self.rung { smaller / larger } else { larger / smaller };
        }
        if rung == 0 { 1.0 } else { share.min(1.0) }
    }

    fn cost(&self, rung: usize) -> Cost {
        let (effort, kinds) = (&LADDER[rung], self.content.shares());
        let bytes = self.content.bytes / self.content.messages.max(1.0);
        let period = self.content.period_ns;
        let slower = self.host.slower;
        Cost {
            compress: queued(bytes * effort.compress_ns(kinds) * slower, period),
            cross: queued(bytes * self.share(rung) * self.way_ns.unwrap_or(0.0), period),
            decompress: queued(bytes * effort.decompress_ns(kinds) * slower, period),
        }
    }

    fn decide(&mut self) {
        let costs: [f64; LADDER.len()] = std::array::from_fn(|rung| self.cost(rung).total());
        let best = (0..costs.len()).min_by(|a, b| costs[*a].total_cmp(&costs[*b])).unwrap_or(self.rung);
        if costs[best] < costs[self.rung] * (1.0 - WORTH) {
            self.content.wire_bytes = self.content.bytes * self.share(best);
            self.rung = best;
        }
    }
}

impl Content {
    fn weigh(&mut self, kinds: [f64; 3], bytes: f64) {
        for (sum, kind) in self.kinds.iter_mut().zip(kinds) {
            *sum = *sum * FORGET_MESSAGE + kind * bytes;
        }
    }

    /// How much of it is flat, text, and noise.
    fn shares(&self) -> [f64; 3] {
        let all: f64 = self.kinds.iter().sum();
        if all > 0.0 { self.kinds.map(|kind| kind / all) } else { [0.0, 1.0, 0.0] }
    }
}

impl Host {
    /// A message is handled at `now`, and existed since `created`.
    fn handle_message(&mut self, created: Time, now: Time, way_limits: bool) {
        if now <= self.now {
            return;
        }
        let waited = created <= self.now && self.work_ns >= SEEN_NS_MIN;
        if waited {
            let seen = now.since(self.now).as_nanos() as f64 / self.work_ns;
            // It may have waited for the way too: then it tells nothing of a slow host.
            if seen < self.slower || !way_limits {
                let slower = self.slower * (seen / self.slower).powf(FOLLOW);
                self.slower = slower.clamp(1.0 / SLOWER_MAX, SLOWER_MAX);
            }
        }
        (self.now, self.work_ns) = (now, 0.0);
    }
}

/// What something takes that takes `service`, once every `period`, with its waiting for those before.
fn queued(service: f64, period: f64) -> f64 {
    if period <= 0.0 {
        return service;
    }
    let load = service / period;
    service * (1.0 + load / 2.0 / (1.0 - load).max(SPARE_MIN))
}
