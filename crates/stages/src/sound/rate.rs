//! Conversion between two rates, whose ratio may vary a little: interpolation with a windowed sinc (the crate `rubato`).

use contract::{StageError, StageResult};
use rubato::{
    Adjustable, Async, FixedAsync, Indexing, Resampler, Resizable, SincInterpolationParameters,
    WindowFunction, audioadapter_buffers::direct::InterleavedSlice,
};
use wire::formats::audio::{FRAMES_MAX, SampleSpec};

/// The ratio varies by at most this share.
pub(crate) const STEER_MAX: f64 = 0.002;
/// Points of the sinc. Half of them are the delay: 0.7 ms at 48 kHz.
const SINC_POINTS: usize = 64;

/// Converts frames from one rate to another.
pub(crate) struct RateConverter {
    resampler: Async<f32>,
    channels: usize,
    output: Vec<f32>,
}

impl RateConverter {
    /// Makes a converter from the rate of `spec` to `to_hz`.
    pub(crate) fn new(spec: &SampleSpec, to_hz: u32) -> StageResult<RateConverter> {
        let ratio = f64::from(to_hz) / f64::from(spec.rate_hz);
        let parameters = SincInterpolationParameters::new(SINC_POINTS, WindowFunction::BlackmanHarris2);
        let channels = usize::from(spec.channels);
        let (steer, fixed) = (1.0 + STEER_MAX * 1.01, FixedAsync::Input);
        let resampler = Async::new_sinc(ratio, steer, &parameters, FRAMES_MAX, channels, fixed);
        let resampler = resampler.map_err(|error| StageError::Own(error.to_string()))?;
        let output = vec![0.0; resampler.output_frames_max() * channels];
        Ok(RateConverter { resampler, channels, output })
    }

    /// Converts 1 to [`FRAMES_MAX`] frames. `steer` is the share by which the result is longer than the nominal ratio makes
    /// it, at most [`STEER_MAX`]; it is reached smoothly.
    pub(crate) fn convert(&mut self, samples: &[f32], steer: f64) -> StageResult<&[f32]> {
        let own = |error: &dyn std::fmt::Display| StageError::Own(format!("resampling: {error}"));
        let frames = samples.len() / self.channels;
        let steer = steer.clamp(-STEER_MAX, STEER_MAX);
        self.resampler.set_chunk_size(frames).map_err(|error| own(&error))?;
        self.resampler.set_resample_ratio_relative(1.0 + steer, true).map_err(|error| own(&error))?;
        let room = self.output.len() / self.channels;
        let input = InterleavedSlice::new(samples, self.channels, frames).map_err(|error| own(&error))?;
        let mut output =
            InterleavedSlice::new_mut(&mut self.output, self.channels, room).map_err(|error| own(&error))?;
        let done = self.resampler.process_into_buffer(&input, &mut output, None::<&Indexing>);
        let (_, made) = done.map_err(|error| own(&error))?;
        Ok(&self.output[..made * self.channels])
    }

    /// The delay, in frames of the output.
    pub(crate) fn delay_frames(&self) -> usize {
        self.resampler.output_delay()
    }
}
