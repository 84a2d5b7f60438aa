//! The half that sends pictures as they are while the link carries them, and encodes them while it does not.
//!
//! ```text
//! state     event                                                   effect
//! coded     a picture as it is takes the link at most LOSSLESS_AT   → lossless, unless it was left a short time ago
//!           a picture                                               encoded at RATE_SHARE of the link's rate
//! lossless  the link takes longer than LOSSLESS_TO for pictures,    → coded, for twice as long as the last time
//!           or longer than LOSSLESS_ONCE for the last one
//!           a picture                                               stored
//! any       the other half has no decoder                           → lossless, for good
//!           a message that is no picture in pixels                  stored
//! ```
//!
//! While more than a picture waits for the link, the rate is lower. While too much is on its way, the half has no room: a camera then drops pictures, and a file waits.

use super::decoding::Encoding;
use super::header::{Coding, Control, Header};
use super::link::Link;
use crate::picture::{Picture, VideoMessage};
use contract::{Body, Choice, Message, Outbox, Port, Report, Stage, StageError, StageResult, Time, Value};
use std::collections::VecDeque;
use std::time::Duration;
use wire::formats::video::PixelFormat;

/// Share of the link's rate that pictures use. The rest carries headers, retransmissions and pictures of more than the mean size.
const RATE_SHARE: f64 = 0.8;
/// Rate until the link is measured, thousands of bits a second.
const RATE_FIRST_KBIT: u32 = 1000;
/// Lowest rate.
const RATE_MIN_KBIT: u32 = 64;
/// Most bits for a pixel of each picture, on average. More would show no difference.
const PIXEL_BITS_MAX: f64 = 1.0;
/// A change of the rate by less than this share is left to the next one.
const RATE_STEP: f64 = 0.04;
/// Shares of the time between two pictures within which the link must carry one as it is, to begin and to go on with that.
const LOSSLESS_AT: f64 = 0.5;
const LOSSLESS_TO: f64 = 0.8;
/// Such a share for a single picture, whose lost parts were perhaps sent again.
const LOSSLESS_ONCE: f64 = 1.5;
/// Time for which pictures are coded after the link could not carry them as they are, and its bound.
const CODED_FOR: Duration = Duration::from_secs(2);
const CODED_FOR_MAX: Duration = Duration::from_secs(300);
/// Time between two pictures before it is known, and its bounds.
const INTERVAL_FIRST: Duration = Duration::from_nanos(33_333_333);
const INTERVAL: [Duration; 2] = [Duration::from_millis(2), Duration::from_secs(1)];
/// A gap of so many times the mean time between two pictures is a pause.
const PAUSE: u32 = 4;
/// Messages kept to be sent again, and their bytes. One of more than a quarter of these is not kept.
const KEPT_MAX: usize = 64;
const KEPT_BYTES_MAX: usize = 4 << 20;
/// How often a message is sent again, at most.
const REPEATS_MAX: u8 = 3;

/// How pictures are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Coded, at least until then.
    Coded { until: Time },
    /// As they are.
    Lossless,
    /// As they are, because the other half cannot decode.
    Undecodable,
}

/// A message that may be sent again.
struct Kept {
    sequence: u64,
    message: Message,
    repeats: u8,
}

pub(super) struct Source {
    encoding: Encoding,
    /// Pictures are coded on every link.
    is_always_coded: bool,
    mode: Mode,
    /// The next time in the state coded.
    coded_for: Duration,
    link: Link,
    rate_kbit: u32,
    /// Creation time of the last picture, and the mean time between two.
    created: Option<Time>,
    interval: Duration,
    /// The last gap, if it was too long for the mean.
    pause: Option<Duration>,
    /// Bytes of the last picture as it is.
    picture_bytes: usize,
    /// Number of the next message.
    sequence: u64,
    /// Numbers of the last coded picture and of the last key picture.
    coded: Option<u64>,
    key: Option<u64>,
    needs_key: bool,
    /// A message was made at this time; the next timeout tells when it left.
    made_at: Option<Time>,
    kept: VecDeque<Kept>,
    kept_bytes: usize,
    work: Duration,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Counts {
    coded: u64,
    lossless: u64,
    others: u64,
    keys: u64,
    keys_requested: u64,
    repeated: u64,
    bytes_before: u64,
    bytes_after: u64,
}

impl Source {
    pub(super) fn new(is_always_coded: bool) -> Source {
        Source {
            encoding: Encoding::default(),
            is_always_coded,
            mode: Mode::Coded { until: Time::ZERO },
            coded_for: CODED_FOR,
            link: Link::default(),
            rate_kbit: RATE_FIRST_KBIT,
            created: None,
            interval: INTERVAL_FIRST,
            pause: None,
            picture_bytes: 0,
            sequence: 0,
            coded: None,
            key: None,
            needs_key: false,
            made_at: None,
            kept: VecDeque::new(),
            kept_bytes: 0,
            work: Duration::ZERO,
            counts: Counts::default(),
        }
    }

    fn share(&self, share: f64) -> Duration {
        self.interval.mul_f64(share)
    }

    fn measure_interval(&mut self, created: Time) {
        if let Some(last) = self.created.replace(created) {
            let gap = created.since(last).clamp(INTERVAL[0], INTERVAL[1]);
            if gap < self.interval * PAUSE {
                self.interval = (self.interval * 7 + gap) / 8;
                self.pause = None;
            } else if self.pause.replace(gap).is_some_and(|prev| gap < prev * 2 && prev < gap * 2) {
                // A pause is no rate, but two alike are.
                self.interval = gap;
            }
        }
    }

    fn choose_mode(&mut self, now: Time) {
        let carries = |share| self.link.carries(self.picture_bytes, self.share(share));
        let carried = self.link.carried(self.picture_bytes, self.share(LOSSLESS_ONCE));
        self.mode = match self.mode {
            Mode::Coded { until } if !self.is_always_coded && now >= until && carries(LOSSLESS_AT) => {
                Mode::Lossless
            }
            Mode::Lossless if !carries(LOSSLESS_TO) || !carried => {
                let until = now.after(self.coded_for);
                self.coded_for = (self.coded_for * 2).min(CODED_FOR_MAX);
                Mode::Coded { until }
            }
            other => other,
        };
    }

    /// Adapts the encoder's rate to the link.
    fn choose_rate(&mut self, pixels: u64) {
        let Some(carried) = self.link.rate_bits() else { return };
        let most = PIXEL_BITS_MAX * pixels as f64 / self.interval.as_secs_f64();
        let rate = (carried * RATE_SHARE).min(most) * self.link.drain_share(self.interval) / 1000.0;
        let rate_kbit = (rate as u32).max(RATE_MIN_KBIT);
        if rate_kbit.abs_diff(self.rate_kbit) as f64 > RATE_STEP * f64::from(self.rate_kbit) {
            self.rate_kbit = rate_kbit;
        }
    }

    /// Numbers a message and sends it behind its marker.
    fn send(&mut self, coding: Coding, mut message: Message, now: Time, out: &mut Outbox) {
        let (sequence, wait_ms) = (self.sequence, self.link.wait().as_millis() as u64);
        let mut marker = Message { body: Body::new(), ..message.clone() };
        Header { coding: Coding::Marker, sequence, wait_ms, padding: 0 }.put(&mut marker.body);
        out.send(Port::MAIN, marker);
        let padding = match coding {
            Coding::Stored | Coding::Marker | Coding::Gone => 0,
            Coding::Key | Coding::Difference { .. } => {
                self.link.padded(message.body.len(), now) - message.body.len()
            }
        };
        if padding > 0 {
            message.body.push(vec![0; padding].into());
        }
        Header { coding, sequence, wait_ms, padding }.put(&mut message.body);
        let bytes = message.body.len();
        self.sequence += 1;
        self.counts.bytes_after += bytes as u64;
        self.link.sent(sequence, bytes, now);
        self.made_at = Some(now);
        if bytes <= KEPT_BYTES_MAX / 4 {
            self.kept_bytes += bytes;
            self.kept.push_back(Kept { sequence, message: message.clone(), repeats: 0 });
        }
        while self.kept.len() > KEPT_MAX || self.kept_bytes > KEPT_BYTES_MAX {
            self.kept_bytes -= self.kept.pop_front().map_or(0, |kept| kept.message.body.len());
        }
        out.send(Port::MAIN, message);
    }

    fn encode(
        &mut self,
        picture: &Picture,
        mut message: Message,
        now: Time,
        out: &mut Outbox,
    ) -> StageResult {
        let geometry = picture.geometry;
        self.choose_rate(u64::from(geometry.width()) * u64::from(geometry.height()));
        let times = (message.created, self.interval);
        let (body, is_key) = self.encoding.encode(picture, times, self.rate_kbit, self.needs_key)?;
        message.body = body;
        let coding = match self.coded.filter(|_| !is_key) {
            Some(coded) => Coding::Difference { back: self.sequence - coded },
            None => Coding::Key,
        };
        if is_key {
            self.needs_key = false;
            self.key = Some(self.sequence);
            self.counts.keys += 1;
        }
        self.coded = Some(self.sequence);
        self.counts.coded += 1;
        self.send(coding, message, now, out);
        Ok(())
    }

    /// Returns the error for a message that names another one that was not sent yet.
    fn check_sent(&self, sequence: u64) -> StageResult {
        match sequence < self.sequence {
            true => Ok(()),
            false => Err(StageError::Control("it names a message not yet sent".into())),
        }
    }
}

/// Returns the picture in a message if it can be coded.
fn codable(body: &Body) -> Option<Picture> {
    match VideoMessage::parse(body)? {
        VideoMessage::Frame(picture) => {
            let geometry = picture.geometry;
            let is_codable = geometry.pixels() != PixelFormat::Mjpeg
                && video::can_code(geometry.width(), geometry.height());
            is_codable.then_some(picture)
        }
        VideoMessage::Partial(_) | VideoMessage::Cursor(_) => None,
    }
}

impl Stage for Source {
    fn handle(&mut self, _port: Port, message: Message, now: Time, out: &mut Outbox) -> StageResult {
        self.counts.bytes_before += message.body.len() as u64;
        let Some(picture) = codable(&message.body) else {
            self.counts.others += 1;
            self.send(Coding::Stored, message, now, out);
            return Ok(());
        };
        self.picture_bytes = message.body.len();
        self.measure_interval(message.created);
        self.choose_mode(now);
        match self.mode {
            Mode::Coded { .. } => self.encode(&picture, message, now, out),
            Mode::Lossless | Mode::Undecodable => {
                self.counts.lossless += 1;
                self.send(Coding::Stored, message, now, out);
                Ok(())
            }
        }
    }

    fn handle_control(&mut self, control: &[u8], now: Time, out: &mut Outbox) -> StageResult {
        match Control::parse(control)? {
            Control::Arrived { sequence, spread_us } => {
                self.check_sent(sequence)?;
                let spread = (spread_us > 0).then(|| Duration::from_micros(spread_us));
                self.link.arrived(sequence, spread, now);
            }
            Control::Missing { sequence } => {
                self.check_sent(sequence)?;
                let kept = self.kept.iter_mut().find(|kept| kept.sequence == sequence);
                if let Some(kept) = kept.filter(|kept| kept.repeats < REPEATS_MAX) {
                    kept.repeats += 1;
                    self.counts.repeated += 1;
                    out.send(Port::MAIN, kept.message.clone());
                } else {
                    // The sink half holds all later pictures until it knows.
                    let mut answer = Message::new(now, Body::new());
                    Header { coding: Coding::Gone, sequence, wait_ms: 0, padding: 0 }.put(&mut answer.body);
                    out.send(Port::MAIN, answer);
                }
            }
            Control::KeyNeeded { sequence } => {
                self.check_sent(sequence)?;
                // A picture before the last key picture needs no other.
                if self.key.is_none_or(|key| sequence >= key) {
                    self.counts.keys_requested += 1;
                    self.needs_key = true;
                }
            }
            Control::NoDecoder => self.mode = Mode::Undecodable,
        }
        Ok(())
    }

    /// Due at once after a message was made, because encoding is then over and the message has left; and while there is no
    /// room, when a message counts as lost.
    fn poll_timeout(&self) -> Option<Time> {
        self.made_at.or_else(|| self.link.loss_deadline().filter(|_| !self.has_room()))
    }

    fn handle_timeout(&mut self, now: Time, _out: &mut Outbox) -> StageResult {
        if let Some(made_at) = self.made_at.take() {
            self.link.left(now);
            self.work = (self.work * 7 + now.since(made_at)) / 8;
        }
        self.link.forget_lost(now);
        Ok(())
    }

    fn has_room(&self) -> bool {
        !self.link.is_behind(self.interval)
    }

    fn report(&self) -> Vec<Report> {
        let counts = &self.counts;
        vec![
            ("coded", counts.coded as f64),
            ("lossless", counts.lossless as f64),
            ("others", counts.others as f64),
            ("keys", counts.keys as f64),
            ("keys_requested", counts.keys_requested as f64),
            ("repeated", counts.repeated as f64),
            ("rate_kbit", f64::from(self.rate_kbit)),
            ("link_kbit", self.link.rate_bits().unwrap_or_default() / 1000.0),
            ("round_trip_ms", self.link.round_trip().unwrap_or_default().as_secs_f64() * 1e3),
            ("work_ms", self.work.as_secs_f64() * 1e3),
            ("ratio", counts.bytes_before as f64 / counts.bytes_after.max(1) as f64),
        ]
    }

    fn choices(&self) -> Vec<Choice> {
        if self.is_always_coded {
            return Vec::new();
        }
        let needed = 8e-6 * self.picture_bytes as f64 / self.interval.as_secs_f64();
        let measured = match self.link.rate_bits() {
            None => "the link is not measured yet".into(),
            Some(rate) => {
                format!(
                    "the link carries {:.1} Mbit/s, and pictures as they are need {needed:.1}",
                    rate / 1e6
                )
            }
        };
        let (value, why) = match self.mode {
            Mode::Coded { .. } => ("vp8", format!("{measured}: encoded at {} kbit/s", self.rate_kbit)),
            Mode::Lossless => ("stored", measured),
            Mode::Undecodable => ("stored", "the other host's Outboard cannot decode VP8".into()),
        };
        vec![Choice { option: "codec", value: Value::Text(value.into()), why }]
    }
}
