//! Places at which sound resembles itself: a period of a voice or of an instrument. Sound is joined there without a click.

use super::cross_fade;
use std::ops::Range;
use std::time::Duration;
use wire::formats::audio::SampleSpec;

/// A lag is searched at about this rate, and then near the best one at the rate of the sound.
const SEARCHED_HZ: u32 = 16_000;
/// The shortest and the usual length of the fade at a splice.
pub(crate) const SPLICE_FADES: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(4)];

/// The likeness of two pieces: 1 if they are equal, up to their loudness.
fn likeness(one: &[f32], other: &[f32]) -> f32 {
    let (mut product, mut energy, mut other_energy) = (0.0, 1e-9f32, 1e-9f32);
    let mut at = 0;
    while at < one.len().min(other.len()) {
        let (one, other) = (one[at], other[at]);
        product += one * other;
        energy += one * one;
        other_energy += other * other;
        at += 1;
    }
    product / (energy * other_energy).sqrt()
}

/// Two pieces of sound: the first is fixed, and the place of the second depends on the lag.
#[derive(Clone, Copy)]
struct Pieces {
    first: usize,
    frames: usize,
    /// Returns the place of the second piece from that of the first and the lag.
    second: fn(usize, usize) -> Option<usize>,
}

impl Pieces {
    /// Returns the lag at which the pieces are most alike, among those for which `samples` has both.
    fn most_alike(self, samples: &[f32], channels: usize, lags: Range<usize>) -> Option<usize> {
        let piece = |first: usize| samples.get(first * channels..(first + self.frames) * channels);
        let first = piece(self.first)?;
        let mut best: Option<(usize, f32)> = None;
        let mut lag = lags.start.max(1);
        while lag < lags.end {
            if let Some(second) = (self.second)(self.first, lag).and_then(piece) {
                let score = likeness(first, second);
                best = best.filter(|(_, known)| score <= *known).or(Some((lag, score)));
            }
            lag += 1;
        }
        best.map(|(lag, _)| lag)
    }

    /// The same, with a search of fewer and shorter frames first.
    fn search(self, samples: &[f32], spec: &SampleSpec, lags: Range<usize>) -> Option<usize> {
        let channels = usize::from(spec.channels);
        let stride = (spec.rate_hz / SEARCHED_HZ).max(1) as usize;
        let thin: Vec<f32> =
            samples.chunks_exact(channels * stride).map(|frames| frames.iter().sum()).collect();
        let thinned = Pieces { first: self.first / stride, frames: self.frames / stride, ..self };
        let thin_lags = lags.start / stride..lags.end.saturating_sub(1) / stride + 1;
        let near = thinned.most_alike(&thin, 1, thin_lags).map(|lag| lag * stride);
        let near = near.map_or(lags.clone(), |lag| {
            lags.start.max(lag.saturating_sub(stride))..lags.end.min(lag + stride + 1)
        });
        self.most_alike(samples, channels, near)
    }
}

/// Returns the distance in `lags` at which the last `window` frames of `samples` most resemble earlier ones. `None` if there
/// are too few samples.
pub(super) fn period(samples: &[f32], spec: &SampleSpec, window: usize, lags: Range<usize>) -> Option<usize> {
    let frames = samples.len() / usize::from(spec.channels);
    let first = frames.checked_sub(window)?;
    Pieces { first, frames: window, second: usize::checked_sub }.search(samples, spec, lags)
}

/// Shortens sound by a number of frames in `lags`, at the place where it resembles itself most: the method WSOLA ("An overlap-add
/// technique based on waveform similarity (WSOLA) for high quality time-scale modification of speech" (1993), 3), for a single
/// place, with a fade of `fade` frames. Returns the number of frames removed, or `None` if `samples` are too short.
pub(crate) fn splice(
    samples: &mut Vec<f32>,
    spec: &SampleSpec,
    lags: Range<usize>,
    fade: usize,
) -> Option<usize> {
    let channels = usize::from(spec.channels);
    let lag = Pieces { first: 0, frames: fade, second: usize::checked_add }.search(samples, spec, lags)?;
    let start = samples[..fade * channels].to_vec();
    samples.drain(..lag * channels);
    cross_fade(&start, &mut samples[..fade * channels], channels);
    Some(lag)
}
