//! Shared part of the sound pairs (`resample`, `opus`, and `buffer` for sound): parses a quantum, and works on its samples.
//!
//! A message that is no valid quantum passes unchanged: its final receiver reports the error.

mod conceal;
#[cfg(test)]
mod play_tests;
mod rate;
mod similar;
#[cfg(test)]
pub(crate) mod tests;

pub(crate) use conceal::Concealer;
pub(crate) use rate::{RateConverter, STEER_MAX};
pub(crate) use similar::{SPLICE_FADES, splice};

use contract::{Body, Message, Time};
use std::time::Duration;
use wire::formats::audio::{Frames, SampleSpec, decode, encode};

/// Samples of a flow that follow each other.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Sound {
    pub(crate) spec: SampleSpec,
    /// The number of the first frame since the source began.
    pub(crate) position: u64,
    /// Interleaved samples, -1 to 1 at full scale.
    pub(crate) samples: Vec<f32>,
}

impl Sound {
    /// Parses a body; `None` if it is no valid quantum.
    pub(crate) fn parse(body: &Body) -> Option<Sound> {
        let bytes = body.clone().into_bytes();
        let frames = Frames::parse(&bytes).ok()?;
        let samples = decode(frames.spec.format, frames.samples);
        Some(Sound { spec: frames.spec, position: frames.position, samples })
    }

    /// Returns the message whose first frame was created at `created`.
    pub(crate) fn into_message(self, created: Time) -> Message {
        let samples = encode(self.spec.format, &self.samples);
        let frames = Frames { spec: self.spec, position: self.position, samples: &samples };
        Message::new(created, frames.emit())
    }

    /// The number of frames.
    pub(crate) fn frames(&self) -> usize {
        self.samples.len() / usize::from(self.spec.channels)
    }
}

/// The time that `frames` take.
pub(crate) fn duration(spec: &SampleSpec, frames: usize) -> Duration {
    Duration::from_nanos(spec.duration_ns(frames as u64))
}

/// The number of frames in `time`, rounded.
pub(crate) fn frames_in(spec: &SampleSpec, time: Duration) -> usize {
    (time.as_secs_f64() * f64::from(spec.rate_hz)).round() as usize
}

/// Fades from `from` to `to` over all frames of both, which have the same length. The result is in `to`.
pub(crate) fn cross_fade(from: &[f32], to: &mut [f32], channels: usize) {
    let frames = to.len() / channels;
    for (frame, (to, from)) in to.chunks_exact_mut(channels).zip(from.chunks_exact(channels)).enumerate() {
        let share = (frame as f32 + 0.5) / frames as f32;
        to.iter_mut().zip(from).for_each(|(to, from)| *to = *to * share + from * (1.0 - share));
    }
}
