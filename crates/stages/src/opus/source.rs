//! The half that encodes.
//!
//! ```text
//! quantum ──► converter (only for rates that the codec does not know) ──► pending frames ──► encoder, one packet a frame
//! ```
//!
//! A packet is the shortest frame of the codec that is not shorter than a quantum. While the sink's host reports losses, it is 10 ms
//! at least, because the codec repeats parts of a packet in the next one (in-band FEC) only then.
//!
//! With `when=needed`, sound passes as it is while the network carries it ([`need`](super::need)). Coded sound after plain sound is
//! made later by the time that a packet takes more than a quantum ([`Later`]), so that a buffer behind it need not learn it at once.
//! This time shrinks slowly, until a picture of the same time is in step with the sound.

use super::header::{Header, channels, rate};
use super::need::{History, Need};
use super::probe::{self, Control};
use super::{PLAIN, codec_error};
use crate::sound::{RateConverter, Sound, cross_fade, duration, frames_in};
use contract::{
    Body, Choice, Feedback, Message, Options, Outbox, Port, Report, Stage, StageError, StageResult, Time,
    Value,
};
use opusic_c::{Application, Bitrate, Encoder, InbandFec};
use std::time::Duration;
use wire::formats::audio::SampleSpec;

/// The frames of the codec, up to the longest that is used here.
const FRAMES: [Duration; 4] = [
    Duration::from_micros(2500),
    Duration::from_millis(5),
    Duration::from_millis(10),
    Duration::from_millis(20),
];
/// The shortest frame with in-band FEC.
const FRAME_WITH_FEC: Duration = FRAMES[2];
/// The share of lost packets from which on FEC is worth its bits.
const LOSS_MIN: f64 = 0.005;
/// The weight of a new measurement of the loss.
const LOSS_WEIGHT: f64 = 0.2;
/// The rate for other rates than those of the codec.
const RATE_HZ: u32 = 48_000;
/// The largest packet of one frame (RFC 6716, 3.2.1), and some room.
const PACKET_BYTES: usize = 1500;
/// Bits of each channel of speech and of music, and the fewest that `auto` takes, in kilobits a second.
const KBITS: [[u32; 2]; 2] = [[32, 12], [96, 32]];
/// Sound that waits for the network, beyond which `auto` takes fewer bits.
const WAITING_MAX: Duration = Duration::from_millis(200);
/// The sound in front of the first packet that the codec hears, beyond its own delay.
const STRIDE: Duration = Duration::from_millis(20);
/// Times that are later than their sound return by one part in this many of the elapsed time.
const SLEW: u32 = 1000;

/// A time by which creation times are later than their sound, and which shrinks.
#[derive(Debug, Clone, Copy)]
struct Later {
    by: Duration,
    since: Time,
}

impl Later {
    const NONE: Later = Later { by: Duration::ZERO, since: Time::ZERO };

    fn at(&self, now: Time) -> Duration {
        self.by.saturating_sub(now.since(self.since) / SLEW)
    }

    fn add(&mut self, more: Duration, now: Time) {
        *self = Later { by: self.at(now) + more, since: now };
    }
}

pub(super) struct Source {
    /// Kilobits a second, if they are given.
    kbits: Option<u32>,
    /// `when=needed`.
    need: Option<Need>,
    history: History,
    /// Of plain sound, after the last change to it.
    later: Later,
    coder: Option<Coder>,
    loss: f64,
    /// The share of the default rate that the network carries.
    share: f64,
    /// Bytes a second of sound as it is.
    plain_rate: f64,
    packets: u64,
    plain: u64,
}

struct Coder {
    from: SampleSpec,
    coded: SampleSpec,
    encoder: Encoder,
    converter: Option<RateConverter>,
    /// Frames at the coded rate that make no packet yet, interleaved.
    pending: Vec<f32>,
    /// The creation time of the first of them, and the position that it has when it is decoded.
    created: Time,
    position: u64,
    /// The position of the next quantum.
    next: u64,
    /// The time by which the codec delays sound.
    delay: Duration,
    /// The longest time so far that a packet takes more than a quantum.
    extra: Duration,
    later: Later,
    /// Attributes of the newest quantum.
    attributes: contract::Attributes,
    applied: Option<(u32, u8)>,
}

impl Coder {
    /// Makes a coder for such sound, or `None` if the codec cannot have it.
    fn new(sound: &Sound) -> StageResult<Option<Coder>> {
        let from = sound.spec;
        let Some(channels) = channels(from.channels) else { return Ok(None) };
        let (converter, rate_hz) = match rate(from.rate_hz) {
            Some(_) => (None, from.rate_hz),
            None => (Some(RateConverter::new(&from, RATE_HZ)), RATE_HZ),
        };
        let Some(rate) = rate(rate_hz) else { return Ok(None) };
        let coded = SampleSpec { rate_hz, ..from };
        let application = if from.channels == 1 { Application::Voip } else { Application::Audio };
        let encoder = Encoder::new(channels, rate, application);
        let mut encoder = encoder.map_err(|error| codec_error("encoder", error))?;
        let delay = encoder.get_look_ahead().map_err(|error| codec_error("delay", error))? as usize;
        let delay = duration(&coded, delay + converter.as_ref().map_or(0, RateConverter::delay_frames));
        let position = (u128::from(sound.position) * u128::from(rate_hz) / u128::from(from.rate_hz)) as u64;
        Ok(Some(Coder {
            from,
            coded,
            encoder,
            converter,
            pending: Vec::new(),
            created: Time::ZERO,
            position,
            next: sound.position,
            delay,
            extra: Duration::ZERO,
            later: Later::NONE,
            attributes: contract::Attributes::default(),
            applied: None,
        }))
    }

    /// Sets bit rate and expected loss, if they have changed.
    fn apply(&mut self, kbits: u32, loss: f64) -> StageResult {
        let percent = (loss * 100.0).ceil().clamp(0.0, 100.0) as u8;
        let percent = if loss < LOSS_MIN { 0 } else { percent };
        if self.applied == Some((kbits, percent)) {
            return Ok(());
        }
        // Speech changes to the mode that has FEC; music only if it sounds no worse.
        let fec = match (percent, self.from.channels) {
            (0, _) => InbandFec::Off,
            (_, 1) => InbandFec::Mode1,
            _ => InbandFec::Mode2,
        };
        let encoder = &mut self.encoder;
        encoder.set_bitrate(Bitrate::Value(kbits * 1000)).map_err(|error| codec_error("bit rate", error))?;
        encoder.set_packet_loss(percent).map_err(|error| codec_error("loss", error))?;
        encoder.set_inband_fec(fec).map_err(|error| codec_error("FEC", error))?;
        self.applied = Some((kbits, percent));
        Ok(())
    }

    /// Adds a quantum to the pending frames.
    fn add(&mut self, sound: &Sound, created: Time) -> StageResult {
        let missing = sound.position.wrapping_sub(self.next);
        if missing != 0 {
            // Fewer frames than a packet are lost beside those that the device has lost.
            let frames = (self.pending.len() / usize::from(self.coded.channels)) as u64;
            let scaled = u128::from(missing) * u128::from(self.coded.rate_hz) / u128::from(self.from.rate_hz);
            self.position = self.position.wrapping_add(frames).wrapping_add(scaled as u64);
            self.pending.clear();
        }
        self.next = sound.position.wrapping_add(sound.frames() as u64);
        if self.pending.is_empty() {
            self.created = created;
        }
        match &mut self.converter {
            None => self.pending.extend_from_slice(&sound.samples),
            Some(converter) => self.pending.extend_from_slice(converter.convert(&sound.samples, 0.0)?),
        }
        Ok(())
    }

    /// Encodes one packet of `frames` frames, if they are pending.
    fn packet(&mut self, frames: usize, now: Time) -> StageResult<Option<Message>> {
        let samples = frames * usize::from(self.coded.channels);
        let Some(input) = self.pending.get(..samples) else { return Ok(None) };
        let mut packet = vec![0; PACKET_BYTES];
        let bytes = self.encoder.encode_float_to_slice(input, &mut packet);
        packet.truncate(bytes.map_err(|error| codec_error("encode", error))?);
        let mut body = Body::from(packet);
        body.push_front(&Header { spec: self.coded, position: self.position as u32 }.emit());
        let created = self.created.before(self.delay).after(self.later.at(now));
        let message = Message { created, attributes: self.attributes, body };
        self.pending.drain(..samples);
        self.position = self.position.wrapping_add(frames as u64);
        self.created = self.created.after(duration(&self.coded, frames));
        Ok(Some(message))
    }
}

impl Source {
    pub(super) fn new(options: &Options) -> Source {
        let is_auto = options.is_auto("kbits");
        let kbits = (!is_auto).then(|| u32::try_from(options.integer("kbits")).unwrap_or(0));
        Source {
            kbits,
            need: (options.text("when") == "needed").then(Need::new),
            history: History::default(),
            later: Later::NONE,
            coder: None,
            loss: 0.0,
            share: 1.0,
            plain_rate: 0.0,
            packets: 0,
            plain: 0,
        }
    }

    /// Kilobits a second for this number of channels.
    fn kbits(&self, channels: u8) -> u32 {
        let [default, least] = KBITS[usize::from(channels > 1)];
        self.kbits.unwrap_or(((f64::from(default) * self.share) as u32).max(least))
    }

    fn plain(&mut self, port: Port, mut message: Message, out: &mut Outbox) {
        self.plain += 1;
        message.body.push_front(&[PLAIN]);
        out.send(port, message);
    }

    /// Sends sound as it is, after the sound that the codec still holds.
    fn uncoded(&mut self, port: Port, mut message: Message, sound: &Sound, now: Time, out: &mut Outbox) {
        if let Some(coder) = self.coder.take() {
            self.later = coder.later;
            let held = sound.position.wrapping_sub(coder.position) as usize;
            let held = Some(held).filter(|_| coder.coded == sound.spec);
            if let Some(held) = held.and_then(|held| self.history.before(sound, held)) {
                let frames = held.frames();
                let created = message.created.before(duration(&sound.spec, frames)).after(self.later.at(now));
                let attributes = message.attributes;
                self.plain(port, Message { attributes, ..held.into_message(created) }, out);
            }
        }
        message.created = message.created.after(self.later.at(now));
        self.plain(port, message, out);
    }

    /// Makes the coder for `sound`; with `when=needed`, one that has heard the sound before it. Returns the sound to code: without
    /// any before it, it is faded in, because the codec begins with silence.
    fn start_coder(&mut self, sound: &Sound, created: Time) -> StageResult<Sound> {
        self.coder = Coder::new(sound)?;
        let Some(look_ahead) = self.coder.as_ref().map(|coder| coder.delay) else { return Ok(sound.clone()) };
        if self.need.is_none() {
            return Ok(sound.clone());
        }
        let heard = self.history.before(sound, frames_in(&sound.spec, look_ahead + STRIDE));
        if let Some(heard) = &heard {
            self.coder = Coder::new(heard)?;
        }
        let Some(coder) = &mut self.coder else { return Ok(sound.clone()) };
        // Decoded sound has the position that it had.
        coder.position = coder.position.wrapping_sub(frames_in(&coder.coded, coder.delay) as u64);
        let mut sound = sound.clone();
        match heard {
            Some(heard) => coder.add(&heard, created.before(duration(&sound.spec, heard.frames())))?,
            None => {
                let silence = vec![0.0; sound.samples.len()];
                cross_fade(&silence, &mut sound.samples, sound.spec.channels.into());
            }
        }
        Ok(sound)
    }

    /// Encodes sound.
    fn code(
        &mut self,
        port: Port,
        message: Message,
        sound: &Sound,
        now: Time,
        out: &mut Outbox,
    ) -> StageResult {
        let begins = self.coder.as_ref().is_none_or(|coder| coder.from != sound.spec);
        let first = begins.then(|| self.start_coder(sound, message.created)).transpose()?;
        let sound = first.as_ref().unwrap_or(sound);
        let kbits = self.kbits(sound.spec.channels);
        let loss = self.loss;
        let Some(coder) = &mut self.coder else {
            self.plain(port, message, out);
            return Ok(());
        };
        coder.apply(kbits, loss)?;
        coder.attributes = message.attributes;
        coder.add(sound, message.created)?;
        let quantum = duration(&sound.spec, sound.frames());
        let has_fec = loss >= LOSS_MIN || self.need.is_some();
        let least = if has_fec { quantum.max(FRAME_WITH_FEC) } else { quantum };
        let frame = FRAMES.into_iter().find(|frame| *frame >= least).unwrap_or(FRAMES[3]);
        let extra = coder.extra.max(coder.delay + frame.saturating_sub(quantum));
        if self.plain > 0 {
            coder.later.add(extra - coder.extra, now);
        }
        coder.extra = extra;
        let frames = frames_in(&coder.coded, frame);
        while let Some(message) = coder.packet(frames, now)? {
            self.packets += 1;
            out.send(port, message);
        }
        Ok(())
    }
}

impl Stage for Source {
    fn handle(&mut self, port: Port, message: Message, now: Time, out: &mut Outbox) -> StageResult {
        let Some(sound) = Sound::parse(&message.body) else {
            self.plain(port, message, out);
            return Ok(());
        };
        if self.need.as_ref().is_none_or(Need::is_coded) {
            self.code(port, message, &sound, now, out)?;
        } else {
            self.uncoded(port, message, &sound, now, out);
        }
        if self.need.is_some() {
            self.history.add(&sound);
            self.plain_rate = f64::from(sound.spec.rate_hz) * sound.spec.frame_bytes() as f64;
        }
        if self.need.as_mut().is_some_and(|need| need.probes(now)) {
            probe::messages(now).into_iter().for_each(|message| out.send(port, message));
        }
        Ok(())
    }

    /// The sink's host has no decoder, or has received a probe.
    fn handle_control(&mut self, control: &[u8], now: Time, _out: &mut Outbox) -> StageResult {
        let Some(need) = &mut self.need else {
            return Err(StageError::Control(format!(
                "a message of {} bytes, and none is known",
                control.len()
            )));
        };
        match Control::parse(control)? {
            Control::NoDecoder => need.refuse(),
            Control::Spread(spread) => need.found(probe::bytes_a_second(spread), self.plain_rate, now),
        }
        Ok(())
    }

    /// The rest is filled with silence.
    fn handle_end(&mut self, port: Port, now: Time, out: &mut Outbox) -> StageResult {
        let Some(coder) = self.coder.as_mut().filter(|coder| !coder.pending.is_empty()) else {
            return Ok(());
        };
        let pending = coder.pending.len() / usize::from(coder.coded.channels);
        let frames = FRAMES.into_iter().map(|frame| frames_in(&coder.coded, frame));
        let frames = frames.into_iter().find(|frames| *frames >= pending).unwrap_or(pending);
        coder.pending.resize(frames * usize::from(coder.coded.channels), 0.0);
        if let Some(message) = coder.packet(frames, now)? {
            self.packets += 1;
            out.send(port, message);
        }
        Ok(())
    }

    fn handle_feedback(&mut self, feedback: &Feedback, now: Time, _out: &mut Outbox) -> StageResult {
        let records = feedback.received + feedback.lost;
        if records > 0 {
            self.loss += (feedback.lost as f64 / records as f64 - self.loss) * LOSS_WEIGHT;
        }
        let channels = self.coder.as_ref().map_or(1, |coder| coder.from.channels);
        let bytes_a_second = f64::from(self.kbits(channels)) * 125.0;
        let waits = feedback.waiting_bytes as f64 > bytes_a_second * WAITING_MAX.as_secs_f64();
        if let Some(need) = &mut self.need {
            let rate = if self.coder.is_some() { bytes_a_second } else { self.plain_rate };
            need.update(feedback, rate, now);
        }
        self.share = if waits { (self.share * 0.7).max(0.1) } else { (self.share * 1.05).min(1.0) };
        Ok(())
    }

    fn report(&self) -> Vec<Report> {
        vec![
            ("packets", self.packets as f64),
            ("plain", self.plain as f64),
            ("loss_percent", self.loss * 100.0),
        ]
    }

    fn choices(&self) -> Vec<Choice> {
        let channels = self.coder.as_ref().map_or(1, |coder| coder.from.channels);
        let why = || match self.share < 1.0 {
            true => "sound waits for the network at the rate for this many channels".into(),
            false => format!("the rate for {channels} channels: no sound waits for the network"),
        };
        let choice =
            || Choice { option: "kbits", value: Value::Integer(self.kbits(channels).into()), why: why() };
        self.kbits.is_none().then(choice).into_iter().collect()
    }
}
