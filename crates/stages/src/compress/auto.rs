//! `level=auto`: chooses the rung of the [`LADDER`] with the lowest cost.
//!
//! The cost is the mean time from the arrival of a message to the end of its decompression:
//! compression, network, decompression, and the queue in front of each. It is computed from:
//!
//! - **Content.** The compressed share of the messages at the current rung is known. Its neighbours
//!   are tried on samples of bodies, for at most one part in [`TRIAL_SHARE`] of the cost of the
//!   messages.
//! - **Network.** The time for a byte is the median delay, less half a round trip and our own work,
//!   divided by the median length. It is bounded by the rate that came through, and equal to that
//!   while bytes pile up at the source.
//! - **Host.** The compression time is the constant of the rung times the slowdown of this host.
//!   The slowdown shows while messages wait in front of this half: then the time between two of
//!   them is at least the time that the first took.
//! - **Queues.** Waiting times are those of messages of one size (Pollaczek-Khinchine formula,
//!   constant service time).

use super::codec::{Encoder, Method, is_worth};
use super::effort::{Effort, FIRST, LADDER};
use contract::{Choice, Feedback, StageResult, Time};

/// Trials take at most one part in this many of the cost of the messages.
const TRIAL_SHARE: f64 = 32.0;
/// Most time saved up for trials.
const CREDIT_NS_MAX: f64 = 20e6;
/// Largest sample of a body.
const SAMPLE_BYTES: usize = 32 << 10;
/// Weight of a message relative to the next one, and of a trial relative to the next of the same
/// rungs.
const MESSAGE_DECAY: f64 = 1.0 - 1.0 / 256.0;
const TRIAL_DECAY: f64 = 1.0 - 1.0 / 32.0;
/// Smallest relative gain that is worth a change of rung.
const MIN_GAIN: f64 = 0.04;
/// Weight of a new value in an exponential mean of logarithms.
const SMOOTHING: f64 = 0.25;
/// Messages in the median length.
const RECENT: usize = 64;
/// Least spare capacity assumed of a queue, which bounds the waiting time.
const SPARE_MIN: f64 = 0.02;
/// A backlog of more than this many seconds means that the network is the bottleneck.
const BACKLOG_S: f64 = 0.25;
/// Least time for a byte on any network.
const BYTE_NS_MIN: f64 = 0.1;
/// Shorter work cannot be measured by the time between two messages.
const MEASURABLE_NS_MIN: f64 = 100e3;
/// Most that a host may be slower, or faster, than the constants.
const SLOWDOWN_MAX: f64 = 8.0;

/// Figures of a sent message.
#[derive(Debug, Clone, Copy, Default)]
struct SentMessage {
    wire_bytes: usize,
    /// Time to compress and decompress it.
    work_ns: f64,
}

/// Nanoseconds that a message takes in each part of its path, queueing included.
#[derive(Debug, Clone, Copy)]
struct Cost {
    compress: f64,
    network: f64,
    decompress: f64,
}

impl Cost {
    fn total(self) -> f64 {
        self.compress + self.network + self.decompress
    }
}

/// Chooses the rung. See the module comment.
pub(super) struct AutoLevel {
    lz4: Encoder,
    zstd: Encoder,
    rung: usize,
    content: Content,
    /// For each pair of neighbouring rungs: sums of the compressed sample bytes at the lower and
    /// the upper one.
    trial_bytes: [[f64; 2]; LADDER.len() - 1],
    trials: usize,
    credit_ns: f64,
    recent: [SentMessage; RECENT],
    sorted: Vec<SentMessage>,
    /// Nanoseconds that the network takes for a byte.
    byte_ns: Option<f64>,
    is_network_bottleneck: bool,
    host: Host,
}

/// The content of the messages. Older messages weigh less.
#[derive(Debug, Default)]
struct Content {
    messages: f64,
    bytes: f64,
    wire_bytes: f64,
    kinds: [f64; 3],
    /// Mean time between two messages.
    period_ns: f64,
    created: Option<Time>,
    /// Messages so far.
    count: usize,
}

/// The speed of this host relative to the constants.
#[derive(Debug)]
struct Host {
    slowdown: f64,
    now: Time,
    /// Work since `now`, by the constants.
    work_ns: f64,
}

impl AutoLevel {
    pub(super) fn new() -> StageResult<Self> {
        // Before the first trial, all content counts as text.
        let prior = |rung: usize| [LADDER[rung].text_share, LADDER[rung + 1].text_share];
        Ok(AutoLevel {
            lz4: Encoder::new(Method::Lz4, 0)?,
            zstd: Encoder::new(Method::Zstd, LADDER[FIRST].level)?,
            rung: FIRST,
            content: Content::default(),
            trial_bytes: std::array::from_fn(prior),
            trials: 0,
            credit_ns: 0.0,
            recent: [SentMessage::default(); RECENT],
            sorted: Vec::new(),
            byte_ns: None,
            is_network_bottleneck: false,
            host: Host { slowdown: 1.0, now: Time::ZERO, work_ns: 0.0 },
        })
    }

    /// The current rung.
    pub(super) fn effort(&self) -> &'static Effort {
        &LADDER[self.rung]
    }

    /// Size that `into` must have.
    pub(super) fn room(&self, length: usize) -> usize {
        self.lz4.room(length)
    }

    /// A message created at `created` is about to be compressed.
    pub(super) fn handle_message(&mut self, created: Time, now: Time) {
        let content = &mut self.content;
        if let Some(previous) = content.created.replace(created) {
            let gap = created.signed_since(previous).max(0) as f64;
            let weight = if content.period_ns == 0.0 { 1.0 } else { 1.0 / 64.0 };
            content.period_ns += (gap - content.period_ns) * weight;
        }
        self.host.handle_message(created, now, self.is_network_bottleneck);
    }

    /// Compresses `body` into the front of `into`. Returns method and number of bytes, or `None` if
    /// the body is to be stored.
    pub(super) fn encode(&mut self, body: &[u8], into: &mut [u8]) -> Option<(Method, usize)> {
        let compressed = self.encode_at(self.rung, body, into);
        let effort = &LADDER[self.rung];
        let wire_bytes = compressed.map_or(body.len(), |(_, bytes)| bytes);
        let share = wire_bytes as f64 / body.len().max(1) as f64;
        let (content, bytes) = (&mut self.content, body.len() as f64);
        content.messages = content.messages * MESSAGE_DECAY + 1.0;
        content.bytes = content.bytes * MESSAGE_DECAY + bytes;
        content.wire_bytes = content.wire_bytes * MESSAGE_DECAY + wire_bytes as f64;
        let mut work_ns = 0.0;
        if effort.method.is_some() {
            let kinds = effort.kinds(share);
            content.add(kinds, bytes);
            self.host.work_ns += effort.compress_ns(kinds) * bytes;
            work_ns = (effort.compress_ns(kinds) + effort.decompress_ns(kinds)) * bytes * self.host.slowdown;
        }
        self.recent[content.count % RECENT] = SentMessage { wire_bytes, work_ns };
        content.count += 1;
        compressed
    }

    /// Tries a neighbour of the current rung on a sample of `body`, if there is credit for it.
    /// Returns the time that this took by the constants, in nanoseconds. `into` has room for all of
    /// `body`.
    pub(super) fn try_neighbour(&mut self, body: &[u8], into: &mut [u8]) -> f64 {
        if body.is_empty() || self.byte_ns.is_none() {
            return 0.0;
        }
        self.credit_ns = (self.credit_ns + self.cost(self.rung).total() / TRIAL_SHARE).min(CREDIT_NS_MAX);
        // Alternately the pair of rungs below and the pair above.
        let step = (self.rung + self.trials % 2).saturating_sub(1).min(self.trial_bytes.len() - 1);
        let length = body.len().min(SAMPLE_BYTES);
        let spread = (body.len() - length).max(1);
        let from = self.trials.wrapping_mul(40_503) % spread;
        let sample = &body[from..from + length];
        let kinds = self.content.shares();
        let work_ns: f64 =
            [step, step + 1].map(|rung| LADDER[rung].compress_ns(kinds)).iter().sum::<f64>() * length as f64;
        if work_ns * self.host.slowdown > self.credit_ns {
            return 0.0;
        }
        self.credit_ns -= work_ns * self.host.slowdown;
        self.host.work_ns += work_ns;
        self.trials += 1;
        let weight = body.len() as f64 / length as f64;
        for (side, rung) in [step, step + 1].into_iter().enumerate() {
            let compressed = self.encode_at(rung, sample, into).map_or(length, |(_, bytes)| bytes);
            let sum = &mut self.trial_bytes[step][side];
            *sum = *sum * TRIAL_DECAY + compressed as f64 * weight;
            if self.rung == 0 && side == 1 {
                let kinds = LADDER[rung].kinds(compressed as f64 / length as f64);
                self.content.add(kinds, body.len() as f64);
            }
        }
        self.choose_rung();
        work_ns
    }

    /// Measures the network.
    pub(super) fn handle_feedback(&mut self, feedback: &Feedback) {
        let Some(median_message) =
            self.median_message().filter(|message| feedback.received > 0 && message.wire_bytes > 0)
        else {
            return;
        };
        let rate = feedback.rate_bytes as f64;
        self.is_network_bottleneck = rate > 0.0 && feedback.waiting_bytes as f64 > rate * BACKLOG_S;
        let delay_ns = |duration: std::time::Duration| duration.as_nanos() as f64;
        let transit = delay_ns(feedback.delay) - delay_ns(feedback.round_trip) / 2.0 - median_message.work_ns;
        let by_rate = if rate > 0.0 { 1e9 / rate } else { f64::INFINITY };
        let measured = match self.is_network_bottleneck {
            true => by_rate,
            false => (transit / median_message.wire_bytes as f64).max(BYTE_NS_MIN).min(by_rate),
        };
        let byte_ns = self.byte_ns.map_or(measured, |byte_ns| byte_ns * (measured / byte_ns).powf(SMOOTHING));
        self.byte_ns = Some(byte_ns);
        self.choose_rung();
    }

    /// The current level and its reason.
    pub(super) fn choice(&self) -> Choice {
        let why = match self.byte_ns {
            None => "no feedback from the network yet".into(),
            Some(byte_ns) => {
                let cost = self.cost(self.rung);
                let ms = |ns: f64| ns / 1e6;
                let neighbours = [self.rung.checked_sub(1), Some(self.rung + 1)];
                let neighbours = neighbours.into_iter().flatten().filter(|rung| *rung < LADDER.len());
                let neighbours = neighbours
                    .map(|rung| format!("{}: {:.3} ms", LADDER[rung].value(), ms(self.cost(rung).total())));
                format!(
                    "the network takes {byte_ns:.1} ns per byte and messages shrink to {:.0} %: a message of {:.0} \
                     bytes takes {:.3} ms (compression {:.3}, network {:.3}, decompression {:.3}); {}",
                    100.0 * self.share(self.rung),
                    self.content.bytes / self.content.messages.max(1.0),
                    ms(cost.total()),
                    ms(cost.compress),
                    ms(cost.network),
                    ms(cost.decompress),
                    neighbours.collect::<Vec<_>>().join(", ")
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

    /// The message of median length among the last ones.
    fn median_message(&mut self) -> Option<SentMessage> {
        self.sorted.clear();
        self.sorted.extend(&self.recent[..self.content.count.min(RECENT)]);
        self.sorted.sort_unstable_by_key(|message| message.wire_bytes);
        self.sorted.get(self.sorted.len() / 2).copied()
    }

    /// The share of bytes left after compression at a rung.
    fn share(&self, rung: usize) -> f64 {
        let mut share = self.content.wire_bytes / self.content.bytes.max(1.0);
        for [larger, smaller] in &self.trial_bytes[self.rung.min(rung)..rung.max(self.rung)] {
            share *= if rung > self.rung { smaller / larger } else { larger / smaller };
        }
        if rung == 0 { 1.0 } else { share.min(1.0) }
    }

    fn cost(&self, rung: usize) -> Cost {
        let (effort, kinds) = (&LADDER[rung], self.content.shares());
        let bytes = self.content.bytes / self.content.messages.max(1.0);
        let period = self.content.period_ns;
        let slowdown = self.host.slowdown;
        Cost {
            compress: queued(bytes * effort.compress_ns(kinds) * slowdown, period),
            network: queued(bytes * self.share(rung) * self.byte_ns.unwrap_or(0.0), period),
            decompress: queued(bytes * effort.decompress_ns(kinds) * slowdown, period),
        }
    }

    fn choose_rung(&mut self) {
        let costs: [f64; LADDER.len()] = std::array::from_fn(|rung| self.cost(rung).total());
        let best = (0..costs.len()).min_by(|a, b| costs[*a].total_cmp(&costs[*b])).unwrap_or(self.rung);
        if costs[best] < costs[self.rung] * (1.0 - MIN_GAIN) {
            self.content.wire_bytes = self.content.bytes * self.share(best);
            self.rung = best;
        }
    }
}

impl Content {
    fn add(&mut self, kinds: [f64; 3], bytes: f64) {
        for (sum, kind) in self.kinds.iter_mut().zip(kinds) {
            *sum = *sum * MESSAGE_DECAY + kind * bytes;
        }
    }

    /// Shares of flat, text and noise content.
    fn shares(&self) -> [f64; 3] {
        let all: f64 = self.kinds.iter().sum();
        if all > 0.0 { self.kinds.map(|kind| kind / all) } else { [0.0, 1.0, 0.0] }
    }
}

impl Host {
    /// A message created at `created` is handled at `now`.
    fn handle_message(&mut self, created: Time, now: Time, is_network_bottleneck: bool) {
        if now <= self.now {
            return;
        }
        let waited = created <= self.now && self.work_ns >= MEASURABLE_NS_MIN;
        if waited {
            let measured = now.since(self.now).as_nanos() as f64 / self.work_ns;
            // It may have waited for the network instead: then it says nothing about a slow host.
            if measured < self.slowdown || !is_network_bottleneck {
                let slowdown = self.slowdown * (measured / self.slowdown).powf(SMOOTHING);
                self.slowdown = slowdown.clamp(1.0 / SLOWDOWN_MAX, SLOWDOWN_MAX);
            }
        }
        (self.now, self.work_ns) = (now, 0.0);
    }
}

/// Mean time for a job of `service` nanoseconds that comes every `period`, waiting included.
fn queued(service: f64, period: f64) -> f64 {
    if period <= 0.0 {
        return service;
    }
    let load = service / period;
    service * (1.0 + load / 2.0 / (1.0 - load).max(SPARE_MIN))
}
