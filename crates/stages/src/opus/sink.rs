//! The half that decodes.
//!
//! ```text
//! position of a packet         effect
//! the next one                 decode it
//! after missing frames         conceal them; the last of them is restored from this packet, if it repeats it; decode it
//! after RESTART or more         a pause of the source: decode it; the codec continues no sound from before the pause
//! before the next one          drop it as late; its frames were concealed
//! far before the next one      the source began anew: begin with this packet
//! ```
//!
//! With `when=needed`, sound is not always coded:
//!
//! ```text
//! message                      effect
//! plain, no packets before     pass it on unchanged, in any order
//! plain, late from before      pass it on unchanged
//! first packet after it        begin with this packet; its sound that was delivered already is left out
//! plain, after packets         its sound that was delivered already is left out; the decoder ends
//! ```

use super::header::{BYTES, Header, channels, rate};
use super::probe::{BURST, Control, MARKER};
use super::{PLAIN, codec_error};
use crate::sound::{Sound, duration, frames_in};
use contract::{Message, Outbox, Port, Report, Stage, StageError, StageResult, Time};
use opusic_c::Decoder;
use std::time::Duration;
use wire::formats::audio::SampleSpec;

/// Missing sound that is concealed in front of a packet. The codec has faded to silence by then.
const CONCEALED_MAX: Duration = Duration::from_millis(80);
/// A packet this far before the next one is the first of a source that began anew; one this far after it ends a pause. Concealment
/// of a pause would be as old as the pause, and a buffer behind it would take that for a delay of the network.
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
    /// The last plain sound: its properties, and the furthest position behind it.
    plain: Option<(SampleSpec, u64)>,
    marker: Option<Time>,
    packets: u64,
    restored: u64,
    concealed: u64,
}

struct Decoding {
    spec: SampleSpec,
    decoder: Decoder,
    /// The position of the next packet.
    next: u64,
    /// The first position that was delivered, and the next.
    delivered: [u64; 2],
}

impl Decoding {
    /// A decoder that begins with a packet, after `plain` sound.
    fn new(header: &Header, plain: Option<(SampleSpec, u64)>) -> StageResult<Decoding> {
        let (Some(channels), Some(rate)) = (channels(header.spec.channels), rate(header.spec.rate_hz)) else {
            return Err(StageError::Input("its header names no sound of the codec".into()));
        };
        let decoder = Decoder::new(channels, rate).map_err(|error| codec_error("decoder", error))?;
        let first = u64::from(header.position);
        // The header has the low bits.
        let near = |end: u64| end.wrapping_add_signed(low_distance(first, end));
        let end = plain.filter(|(spec, _)| *spec == header.spec).map(|(_, end)| end);
        let end = end.filter(|end| low_distance(first, *end).unsigned_abs() < restart_frames(&header.spec));
        let next = end.map_or(first, near);
        Ok(Decoding { spec: header.spec, decoder, next, delivered: [end.unwrap_or(next); 2] })
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

/// Frames from `to` to `position`, of which only the low bits are compared.
fn low_distance(position: u64, to: u64) -> i64 {
    i64::from((position as u32).wrapping_sub(to as u32).cast_signed())
}

/// A packet this many frames before the next one is the first of a source that began anew.
fn restart_frames(spec: &SampleSpec) -> u64 {
    frames_in(spec, RESTART) as u64
}

/// Leaves out the sound before `from`; `None` if nothing is left.
fn from_position(mut sound: Sound, from: u64) -> Option<(Sound, usize)> {
    let before = usize::try_from(low_distance(from, sound.position)).unwrap_or(0);
    let left_out = (before * usize::from(sound.spec.channels)).min(sound.samples.len());
    sound.samples.drain(..left_out);
    sound.position = sound.position.wrapping_add(before as u64);
    (!sound.samples.is_empty()).then_some((sound, before))
}

impl Sink {
    /// Passes plain sound on, without the part that was decoded. See the module comment.
    fn plain(&mut self, port: Port, mut message: Message, out: &mut Outbox) {
        message.body.skip_front(1);
        let Some(sound) = Sound::parse(&message.body) else { return out.send(port, message) };
        let (spec, end) = (sound.spec, sound.position.wrapping_add(sound.frames() as u64));
        let is_near = |to: u64| low_distance(end, to).unsigned_abs() < restart_frames(&spec);
        let known = self.decoding.as_ref().filter(|known| known.spec == spec);
        let delivered = known.map(|known| known.delivered).filter(|[_, next]| is_near(*next));
        match delivered {
            // It was sent before the packets.
            Some([first, _]) if low_distance(end, first) <= 0 => return out.send(port, message),
            Some([_, next]) if low_distance(end, next) <= 0 => return out.drop_counted(LATE, 1),
            Some([_, next]) if low_distance(sound.position, next) < 0 => {
                if let Some((sound, left_out)) = from_position(sound, next) {
                    let created = message.created.after(duration(&spec, left_out));
                    let attributes = message.attributes;
                    out.send(port, Message { attributes, ..sound.into_message(created) });
                }
            }
            _ => out.send(port, message),
        }
        self.decoding = None;
        let known = self.plain.filter(|(known, last)| *known == spec && is_near(*last));
        self.plain = known.filter(|(_, last)| low_distance(end, *last) < 0).or(Some((spec, end)));
    }

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
    fn handle(&mut self, port: Port, mut message: Message, now: Time, out: &mut Outbox) -> StageResult {
        match message.body.peek_front() {
            Some([PLAIN]) => {
                self.plain(port, message, out);
                return Ok(());
            }
            Some([MARKER]) => {
                self.marker = Some(now);
                return Ok(());
            }
            Some([BURST]) => {
                let spread = self.marker.take().map(|marked| now.since(marked));
                spread.into_iter().for_each(|spread| out.control(Control::Spread(spread).emit()));
                return Ok(());
            }
            _ => {}
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
        let restart = i64::try_from(restart_frames(&header.spec)).unwrap_or(i64::MAX);
        let known = self.decoding.as_ref().filter(|known| known.spec == header.spec);
        let ahead = known.map(|known| low_distance(header.position.into(), known.next));
        let missing = match ahead {
            Some(ahead) if ahead >= 0 => ahead.unsigned_abs(),
            Some(ahead) if ahead > -restart => {
                out.drop_counted(LATE, 1);
                return Ok(());
            }
            _ => {
                self.decoding = Some(Decoding::new(&header, self.plain.take())?);
                0
            }
        };
        let has_gap = ahead.is_some_and(|ahead| (1..restart).contains(&ahead));
        let mut sounds = if has_gap { self.conceal(&packet, frames, missing)? } else { Vec::new() };
        let Some(decoding) = &mut self.decoding else { return Ok(()) };
        let position = decoding.next.wrapping_add(missing);
        sounds.push(decoding.decode(&packet, frames, false, position)?);
        decoding.next = position.wrapping_add(frames as u64);
        self.packets += 1;
        let [_, next] = decoding.delivered;
        decoding.delivered[1] = if low_distance(decoding.next, next) > 0 { decoding.next } else { next };
        for sound in sounds {
            let Some((sound, _)) = from_position(sound, next) else { continue };
            let offset = sound.position.wrapping_sub(position).cast_signed();
            let created = match usize::try_from(offset) {
                Ok(after) => message.created.after(duration(&header.spec, after)),
                Err(_) => message.created.before(duration(&header.spec, offset.unsigned_abs() as usize)),
            };
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
