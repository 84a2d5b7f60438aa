//! Concealment of missing sound: the last period is repeated and fades to silence, as in ITU-T G.711 appendix I (1999), 2. Sound
//! that returns is faded in over the repetition.
//!
//! ```text
//! state      sound comes                          sound is missing
//! heard      remember it                          repeat its last period ──► repeating
//! repeating  fade over to it ──► heard            repeat on, quieter; after FADE_END ──► silent
//! silent     fade it in ──► heard                 silence
//! ```
//!
//! A flow begins in `silent`.

use super::similar::period;
use super::{Sound, cross_fade, frames_in};
use std::time::Duration;
use wire::formats::audio::SampleSpec;

/// Periods of 70 to 400 Hz: those of voices.
const PERIODS: [Duration; 2] = [Duration::from_micros(2500), Duration::from_micros(14_300)];
/// The length of sound that is compared to find a period.
const WINDOW: Duration = Duration::from_millis(8);
/// The sound that is remembered.
const HISTORY: Duration = Duration::from_millis(30);
/// The repetition has its full loudness until then.
const FADE_BEGIN: Duration = Duration::from_millis(15);
/// The repetition is silent from then on.
const FADE_END: Duration = Duration::from_millis(60);
/// The length of the fade to sound that returns.
const RETURN: Duration = Duration::from_millis(5);
/// The repetition begins with the value at which sound ended, and approaches its own over this time.
const JOIN: Duration = Duration::from_micros(2500);

/// Conceals gaps of one flow. See the table in the module comment.
#[derive(Debug, Default)]
pub(crate) struct Concealer {
    spec: Option<SampleSpec>,
    /// The last interleaved samples.
    history: Vec<f32>,
    gap: Gap,
}

#[derive(Debug, Default)]
enum Gap {
    #[default]
    Silent,
    Heard,
    Repeating(Repetition),
}

#[derive(Debug)]
struct Repetition {
    /// One period, interleaved.
    period: Vec<f32>,
    /// The end of the sound less the end of the period before it, for each channel.
    step: Vec<f32>,
    /// Frames made.
    made: usize,
}

impl Concealer {
    /// True if the next concealment would be silence.
    pub(crate) fn is_silent(&self) -> bool {
        matches!(self.gap, Gap::Silent)
    }

    /// Handles sound that comes in time. After a gap its start is changed: it is faded in. Returns whether it was changed.
    pub(crate) fn hear(&mut self, sound: &mut Sound) -> bool {
        if self.spec != Some(sound.spec) {
            *self = Concealer { spec: Some(sound.spec), ..Concealer::default() };
        }
        let channels = usize::from(sound.spec.channels);
        let is_changed = !matches!(self.gap, Gap::Heard);
        if is_changed {
            let frames = frames_in(&sound.spec, RETURN).min(sound.frames());
            let continuation = self.continuation(&sound.spec, frames);
            cross_fade(&continuation, &mut sound.samples[..frames * channels], channels);
            self.gap = Gap::Heard;
        }
        self.remember(&sound.spec, &sound.samples);
        is_changed
    }

    /// Returns `frames` frames for a gap, interleaved.
    pub(crate) fn conceal(&mut self, spec: &SampleSpec, frames: usize) -> Vec<f32> {
        let samples = self.continuation(spec, frames);
        self.remember(spec, &samples);
        samples
    }

    /// Remembers what was played, concealment too: so the history has no jump.
    fn remember(&mut self, spec: &SampleSpec, samples: &[f32]) {
        self.history.extend_from_slice(samples);
        let kept = frames_in(spec, HISTORY) * usize::from(spec.channels);
        let excess = self.history.len().saturating_sub(kept);
        self.history.drain(..excess);
    }

    /// The next frames of a gap.
    fn continuation(&mut self, spec: &SampleSpec, frames: usize) -> Vec<f32> {
        let channels = usize::from(spec.channels);
        if matches!(self.gap, Gap::Heard) {
            self.gap = self.repetition(spec).map_or(Gap::Silent, Gap::Repeating);
        }
        let Gap::Repeating(repetition) = &mut self.gap else { return vec![0.0; frames * channels] };
        let [begin, end, join] = [FADE_BEGIN, FADE_END, JOIN].map(|time| frames_in(spec, time).max(1) as f32);
        let period_frames = repetition.period.len() / channels;
        let mut samples = Vec::with_capacity(frames * channels);
        for made in repetition.made..repetition.made + frames {
            let loudness = ((end - made as f32) / (end - begin)).clamp(0.0, 1.0);
            let joining = (1.0 - made as f32 / join).max(0.0);
            let at = made % period_frames * channels;
            let values = repetition.period[at..at + channels].iter().zip(&repetition.step);
            samples.extend(values.map(|(value, step)| (value + step * joining) * loudness));
        }
        repetition.made += frames;
        if repetition.made as f32 >= end {
            self.gap = Gap::Silent;
        }
        samples
    }

    /// The last period of the history, made to follow itself without a step.
    fn repetition(&self, spec: &SampleSpec) -> Option<Repetition> {
        let channels = usize::from(spec.channels);
        let [shortest, longest, window] =
            [PERIODS[0], PERIODS[1], WINDOW].map(|time| frames_in(spec, time).max(1));
        let lag = period(&self.history, spec, window, shortest..longest + 1)?;
        let frames = self.history.len() / channels;
        let mut period = self.history[(frames - lag) * channels..].to_vec();
        let join = (lag / 4).min(frames - lag).max(1);
        let before = &self.history[(frames - lag - join) * channels..(frames - lag) * channels];
        let end = &mut period[(lag - join) * channels..];
        let mut faded = before.to_vec();
        cross_fade(end, &mut faded, channels);
        end.copy_from_slice(&faded);
        let last = &self.history[(frames - 1) * channels..];
        let previous = &self.history[(frames - lag - 1) * channels..][..channels];
        let step = last.iter().zip(previous).map(|(last, previous)| last - previous).collect();
        Some(Repetition { period, step, made: 0 })
    }
}
