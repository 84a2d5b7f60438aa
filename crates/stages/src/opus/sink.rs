//! The half that decodes.
//!
//! ```text
//! position of a packet         effect
//! the next one                 decode it
//! after missing frames         conceal them; the last of them is restored from this packet, if it repeats it; decode it
//! before the next one          drop it as late; its frames were concealed
//! far before the next one      the source began anew: begin with this packet
//! ```

use super::codec_error;
use super::header::{BYTES, Header, PLAIN, channels, rate};
use crate::sound::{Sound, duration, frames_in};
use contract::{Message, Outbox, Port, Report, Stage, StageError, StageResult, Time};
use opusic_c::Decoder;
use std::time::Duration;
use wire::formats::audio::SampleSpec;

/// Missing sound that is concealed in front of a packet. The codec has faded to silence by then.
const CONCEALED_MAX: Duration = Duration::from_millis(80);
/// A packet this far before the next one is the first of a source that began anew.
const RESTART: Duration = Duration::from_secs(10);
/// The longest packet (RFC 6716, 2.1.4).
const PACKET_MAX: Duration = Duration::from_millis(120);
/// The largest packet: three frames of the largest size, with their lengths.
const PACKET_BYTES_MAX: usize = 4000;
/// The codec conceals multiples of this.
const GRAIN: Duration = Duration::from_micros(2500);

const LATE: &str = "late: it was concealed";

#[derive(Default)]
pub(super) struct Sink {
    decoding: Option<Decoding>,
    packets: u64,
    restored: u64,
    concealed: u64,
}

struct Decoding {
    spec: SampleSpec,
    decoder: Decoder,
    /// The position of the next packet.
    next: u64,
}

impl Decoding {
    fn new(header: &Header) -> StageResult<Decoding> {
        let (Some(channels), Some(rate)) = (channels(header.spec.channels), rate(header.spec.rate_hz)) else {
            return Err(StageError::Input("its header names no sound of the codec".into()));
        };
        let decoder = Decoder::new(channels, rate).map_err(|error| codec_error("decoder", error))?;
        Ok(Decoding { spec: header.spec, decoder, next: header.position.into() })
    }

    /// Decodes `frames` frames at `position`: of a packet, of the repetition in it, or of none, to conceal them.
    fn decode(&mut self, packet: &[u8], frames: usize, repeats: bool, position: u64) -> StageResult<Sound> {
        let width = usize::from(self.spec.channels);
        let mut samples = vec![0.0; frames * width];
        let decoded = self.decoder.decode_float_to_slice(packet, &mut samples, repeats);
        let decoded =
            decoded.map_err(|error| StageError::Input(format!("no packet of Opus: {}", error.message())))?;
        samples.truncate(decoded * width);
        Ok(Sound { spec: self.spec, position, samples })
    }
}

impl Sink {
    /// Conceals or restores the `missing` frames before a packet of `frames` frames.
    fn conceal(&mut self, packet: &[u8], frames: usize, missing: u64) -> StageResult<Vec<Sound>> {
        let Some(decoding) = &mut self.decoding else { return Ok(Vec::new()) };
        let spec = decoding.spec;
        let (start, grain) = (decoding.next, frames_in(&spec, GRAIN).max(1));
        let limit = frames_in(&spec, CONCEALED_MAX).max(frames);
        let repeated = if missing >= frames as u64 { frames } else { 0 };
        let before = (missing - repeated as u64).min((limit - repeated) as u64) as usize / grain * grain;
        let mut sounds = Vec::new();
        let mut made = 0;
        while made < before {
            let part = frames.min(before - made) / grain * grain;
            if part == 0 {
                break;
            }
            sounds.push(decoding.decode(&[], part, false, start.wrapping_add(made as u64))?);
            (made, self.concealed) = (made + part, self.concealed + 1);
        }
        if repeated > 0 {
            let position = start.wrapping_add(missing - repeated as u64);
            sounds.push(decoding.decode(packet, repeated, true, position)?);
            self.restored += 1;
        }
        Ok(sounds)
    }
}

impl Stage for Sink {
    fn handle(&mut self, port: Port, mut message: Message, _now: Time, out: &mut Outbox) -> StageResult {
        if message.body.peek_front() == Some([PLAIN]) {
            message.body.skip_front(1);
            out.send(port, message);
            return Ok(());
        }
        let cut_short = || StageError::Input("its header is cut short".into());
        let header = message.body.take_front::<BYTES>().ok_or_else(cut_short)?;
        let unknown =
            || StageError::Input(format!("its header begins with {:02x} {:02x}", header[0], header[1]));
        let header =
            Header::parse(header).filter(|_| header[0] == super::header::PACKET).ok_or_else(unknown)?;
        let bytes = message.body.len();
        if bytes > PACKET_BYTES_MAX {
            return Err(StageError::TooLarge { what: "a packet of Opus", bytes, limit: PACKET_BYTES_MAX });
        }
        let packet = message.body.into_bytes();
        let rate = rate(header.spec.rate_hz).ok_or_else(unknown)?;
        let invalid =
            |error: opusic_c::ErrorCode| StageError::Input(format!("no packet of Opus: {}", error.message()));
        let frames = opusic_c::utils::get_nb_samples(&packet, rate).map_err(invalid)?;
        if frames == 0 || frames > frames_in(&header.spec, PACKET_MAX) {
            return Err(StageError::Input(format!("a packet of Opus with {frames} frames")));
        }
        let restart = i64::try_from(frames_in(&header.spec, RESTART)).unwrap_or(i64::MAX);
        let known = self.decoding.as_ref().filter(|known| known.spec == header.spec);
        let ahead =
            known.map(|known| i64::from(header.position.wrapping_sub(known.next as u32).cast_signed()));
        let missing = match ahead {
            Some(ahead) if ahead >= 0 => ahead.unsigned_abs(),
            Some(ahead) if ahead > -restart => {
                out.drop_counted(LATE, 1);
                return Ok(());
            }
            _ => {
                self.decoding = Some(Decoding::new(&header)?);
                0
            }
        };
        let mut sounds = if missing > 0 { self.conceal(&packet, frames, missing)? } else { Vec::new() };
        let Some(decoding) = &mut self.decoding else { return Ok(()) };
        let position = decoding.next.wrapping_add(missing);
        sounds.push(decoding.decode(&packet, frames, false, position)?);
        decoding.next = position.wrapping_add(frames as u64);
        self.packets += 1;
        for sound in sounds {
            let before = position.wrapping_sub(sound.position) as usize;
            let created = message.created.before(duration(&header.spec, before));
            let mut decoded = sound.into_message(created);
            decoded.attributes = message.attributes;
            out.send(port, decoded);
        }
        Ok(())
    }

    fn report(&self) -> Vec<Report> {
        vec![
            ("packets", self.packets as f64),
            ("restored", self.restored as f64),
            ("concealed", self.concealed as f64),
        ]
    }
}
