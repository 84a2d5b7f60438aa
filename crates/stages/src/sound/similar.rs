//! Places at which sound resembles itself: a period of a voice or of an instrument. Sound is joined there without a click.

use super::cross_fade;
use std::ops::Range;
use std::time::Duration;
use wire::formats::audio::SampleSpec;

/// Samples are compared at about this rate, which is enough to find a period.
const COMPARED_HZ: u32 = 16_000;
/// The shortest and the usual length of the fade at a splice.
pub(crate) const SPLICE_FADES: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(4)];

/// The likeness of frames from `first` and from `second` on, `frames` of each: 1 if they are equal, up to their loudness.
fn likeness(samples: &[f32], spec: &SampleSpec, [first, second]: [usize; 2], frames: usize) -> f32 {
    let channels = usize::from(spec.channels);
    let stride = (spec.rate_hz / COMPARED_HZ).max(1) as usize;
    let (mut product, mut energies) = (0.0, [1e-9f32; 2]);
    for frame in (0..frames).step_by(stride) {
        for channel in 0..channels {
            let [one, other] = [first, second].map(|start| samples[(start + frame) * channels + channel]);
            product += one * other;
            energies = [energies[0] + one * one, energies[1] + other * other];
        }
    }
    product / (energies[0] * energies[1]).sqrt()
}

/// Returns the distance in `lags` at which the last `window` frames of `samples` most resemble earlier ones. `None` if there
/// are too few samples.
pub(super) fn period(samples: &[f32], spec: &SampleSpec, window: usize, lags: Range<usize>) -> Option<usize> {
    let frames = samples.len() / usize::from(spec.channels);
    let last = frames.checked_sub(window)?;
    let scores = lags
        .filter(|lag| *lag > 0 && *lag <= last)
        .map(|lag| (lag, likeness(samples, spec, [last, last - lag], window)));
    scores.max_by(|one, other| one.1.total_cmp(&other.1)).map(|(lag, _)| lag)
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
    let frames = samples.len() / channels;
    let scores = lags
        .filter(|lag| *lag > 0 && lag + fade <= frames)
        .map(|lag| (lag, likeness(samples, spec, [0, lag], fade)));
    let (lag, _) = scores.max_by(|one, other| one.1.total_cmp(&other.1))?;
    let start = samples[..fade * channels].to_vec();
    samples.drain(..lag * channels);
    cross_fade(&start, &mut samples[..fade * channels], channels);
    Some(lag)
}
