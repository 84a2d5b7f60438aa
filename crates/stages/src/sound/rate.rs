//! Conversion between two rates, whose ratio may vary a little: interpolation with a windowed sinc.
//!
//! Each frame of the output is a weighted sum of the frames of the input around its time. The weights are those of a sinc under a
//! Kaiser window; [`Table`] holds them for [`PHASES`] places between two frames of the input, and those between two of these places
//! are interpolated. All channels share the weights of a frame. The error of both is below -80 dB ("Digital Audio Resampling Home
//! Page" (2002), by Smith, with the same table).
//!
//! | rates | frames before and behind | cutoff | why |
//! |---|---|---|---|
//! | equal, at least 44,100 Hz | [`SHORT`] | the highest tone | images of tones below 20 kHz are above 24 kHz, and nobody hears the others |
//! | all others | [`LONG`] | [`CUTOFF`] of it | images would be heard |

use contract::{StageError, StageResult};
use wire::formats::audio::{FRAMES_MAX, SampleSpec};

/// The ratio varies by at most this share.
pub(crate) const STEER_MAX: f64 = 0.002;
/// Frames of the input before a frame of the output, and behind it. The latter are the delay.
const SHORT: usize = 16;
const LONG: usize = 32;
/// The cutoff of [`LONG`], as a share of the highest tone of the lower rate: its stopband begins at that tone.
const CUTOFF: f64 = 0.93;
/// Equal rates from here on have tones that nobody hears.
const HIGH_HZ: u32 = 44_100;
/// The places between two frames for which the weights are known, at equal rates.
const PHASES: usize = 256;
/// The shape of the Kaiser window: 80 dB.
const BETA: f64 = 8.0;
/// Weights are summed in this many independent sums, so that a processor can do several at once.
const LANES: usize = 4;

/// The weights.
struct Table {
    /// Frames before, and behind.
    half: usize,
    phases: usize,
    /// For each phase, the weights of `2 * half` frames.
    weights: Vec<f32>,
    /// The weights of the next phase less these.
    slopes: Vec<f32>,
}

/// The modified Bessel function of the first kind and order zero.
fn bessel(x: f64) -> f64 {
    let (mut sum, mut term) = (1.0, 1.0);
    for index in 1..40 {
        term *= (x / 2.0 / f64::from(index)).powi(2);
        sum += term;
    }
    sum
}

impl Table {
    fn new(from_hz: u32, to_hz: u32) -> Table {
        let (zeros, cutoff) = match from_hz == to_hz && from_hz >= HIGH_HZ {
            true => (SHORT, 1.0),
            false => (LONG, CUTOFF),
        };
        // To a lower rate, the sinc is wider, and as smooth with fewer phases.
        let scale = (f64::from(to_hz) / f64::from(from_hz)).min(1.0);
        let half = ((zeros as f64 / scale).ceil() as usize).next_multiple_of(LANES / 2);
        let phases = ((PHASES as f64 * scale).ceil() as usize).max(1);
        let window = bessel(BETA);
        let weight = |time: f64| {
            let x = std::f64::consts::PI * time * scale * cutoff;
            let sinc = if x.abs() < 1e-9 { 1.0 } else { x.sin() / x };
            let place = time / half as f64;
            sinc * scale * cutoff * bessel(BETA * (1.0 - place * place).max(0.0).sqrt()) / window
        };
        let row = |phase: usize| {
            let after = phase as f64 / phases as f64;
            let row: Vec<f64> =
                (0..2 * half).map(|frame| weight(frame as f64 + 1.0 - half as f64 - after)).collect();
            // The window does not change the volume.
            let sum: f64 = row.iter().sum();
            row.into_iter().map(move |weight| (weight / sum) as f32)
        };
        let rows: Vec<f32> = (0..=phases).flat_map(row).collect();
        let slopes = rows.iter().zip(&rows[2 * half..]).map(|(one, next)| next - one).collect();
        Table { half, phases, weights: rows, slopes }
    }

    /// Sets `weights` to those at a share of the way from one frame to the next.
    fn interpolate(&self, share: f64, weights: &mut [f32]) {
        let place = share * self.phases as f64;
        let phase = (place as usize).min(self.phases - 1);
        let rest = (place - phase as f64) as f32;
        let row = phase * weights.len()..(phase + 1) * weights.len();
        let (known, slopes) = (&self.weights[row.clone()], &self.slopes[row]);
        let mut frame = 0;
        while frame < weights.len() {
            weights[frame] = known[frame] + rest * slopes[frame];
            frame += 1;
        }
    }
}

/// The sum of samples with weights. Both have a multiple of [`LANES`] values. A build that is little optimised, as that of the tests is,
/// calls a function for each step of an iterator; so the two inner loops count.
fn weighted(samples: &[f32], weights: &[f32]) -> f32 {
    let mut sums = [0.0; LANES];
    let (samples, weights) = (samples.as_chunks::<LANES>().0, weights.as_chunks::<LANES>().0);
    let mut part = 0;
    while part < samples.len() {
        let (one, by) = (&samples[part], &weights[part]);
        sums = [
            sums[0] + one[0] * by[0],
            sums[1] + one[1] * by[1],
            sums[2] + one[2] * by[2],
            sums[3] + one[3] * by[3],
        ];
        part += 1;
    }
    sums.iter().sum()
}

/// Converts frames from one rate to another.
pub(crate) struct RateConverter {
    table: Table,
    ratio: f64,
    /// The frames of the input that are still needed, for each channel.
    input: Vec<Vec<f32>>,
    /// The time of the next frame of the output, in frames of `input`.
    at: f64,
    /// The frames of the input from one frame of the output to the next.
    step: f64,
    weights: Vec<f32>,
    output: Vec<f32>,
}

impl RateConverter {
    /// Makes a converter from the rate of `spec` to `to_hz`.
    pub(crate) fn new(spec: &SampleSpec, to_hz: u32) -> RateConverter {
        let table = Table::new(spec.rate_hz, to_hz);
        let half = table.half;
        RateConverter {
            ratio: f64::from(to_hz) / f64::from(spec.rate_hz),
            input: vec![vec![0.0; 2 * half - 1]; usize::from(spec.channels)],
            at: (half - 1) as f64,
            step: f64::from(spec.rate_hz) / f64::from(to_hz),
            weights: vec![0.0; 2 * half],
            output: Vec::new(),
            table,
        }
    }

    /// Converts 1 to [`FRAMES_MAX`] frames. `steer` is the share by which the result is longer than the nominal ratio makes
    /// it, at most [`STEER_MAX`]; it is reached smoothly.
    pub(crate) fn convert(&mut self, samples: &[f32], steer: f64) -> StageResult<&[f32]> {
        let channels = self.input.len();
        let frames = samples.len() / channels;
        if !(1..=FRAMES_MAX).contains(&frames) || !steer.is_finite() {
            return Err(StageError::Own(format!("resampling of {frames} frames, longer by {steer}")));
        }
        for (channel, input) in self.input.iter_mut().enumerate() {
            input.extend(samples.iter().skip(channel).step_by(channels));
        }
        let step = 1.0 / (self.ratio * (1.0 + steer.clamp(-STEER_MAX, STEER_MAX)));
        let change = (step - self.step) / (frames as f64 * self.ratio).max(1.0);
        let half = self.table.half;
        let last = self.input[0].len() - half;
        self.output.clear();
        while (self.at as usize) < last {
            let before = self.at as usize;
            self.table.interpolate(self.at - before as f64, &mut self.weights);
            let frames = before + 1 - half..before + 1 + half;
            let weights = &self.weights;
            self.output.extend(self.input.iter().map(|input| weighted(&input[frames.clone()], weights)));
            // Steps towards the new one do not pass it.
            let left = step - self.step;
            self.step = if left.abs() <= change.abs() { step } else { self.step + change };
            self.at += self.step;
        }
        let used = self.at as usize + 1 - half;
        self.input.iter_mut().for_each(|input| drop(input.drain(..used)));
        self.at -= used as f64;
        self.step = step;
        Ok(&self.output)
    }

    /// The delay, in frames of the output.
    pub(crate) fn delay_frames(&self) -> usize {
        (self.table.half as f64 * self.ratio).round() as usize
    }
}
