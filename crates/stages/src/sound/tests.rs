use super::*;
use proptest::prelude::*;
use wire::formats::audio::SampleFormat;

/// The tone of the tests.
pub(crate) const TONE_HZ: f64 = 440.0;

const MONO: SampleSpec = SampleSpec { format: SampleFormat::F32, channels: 1, rate_hz: 48_000 };

/// Frames of a tone of half the full scale, the same in all channels.
pub(crate) fn tone(spec: &SampleSpec, position: u64, frames: usize) -> Vec<f32> {
    let value = |frame: u64| {
        let phase = (frame as f64 * TONE_HZ / f64::from(spec.rate_hz)).fract();
        (0.5 * (std::f64::consts::TAU * phase).sin()) as f32
    };
    let frames = position..position + frames as u64;
    frames.flat_map(|frame| std::iter::repeat_n(value(frame), spec.channels.into())).collect()
}

/// Sound like that of a voice: a tone of changing height with overtones, in syllables.
pub(crate) fn voice(spec: &SampleSpec, seconds: f64) -> Vec<f32> {
    let rate = f64::from(spec.rate_hz);
    let mut phase = 0.0;
    let frames = (seconds * rate) as usize;
    let frame = |frame: usize| {
        let at = frame as f64 / rate;
        phase += std::f64::consts::TAU * (130.0 + 30.0 * (at * 3.1).sin() + 10.0 * (at * 11.0).sin()) / rate;
        let syllable = (0.5 - 0.5 * (std::f64::consts::TAU * at * 3.3).cos()).powf(0.7);
        let formants = (1..24).map(|overtone| {
            let hz = f64::from(overtone) * 130.0;
            let near = |formant: f64, width: f64| (-((hz - formant) / width).powi(2)).exp();
            let gain = near(600.0 + 200.0 * (at * 5.0).sin(), 250.0)
                + 0.5 * near(1500.0, 300.0)
                + 0.2 * near(2600.0, 400.0);
            gain * (phase * f64::from(overtone)).sin()
        });
        (0.12 * syllable * formants.sum::<f64>()) as f32
    };
    let mono: Vec<f32> = (0..frames).map(frame).collect();
    mono.into_iter().flat_map(|value| std::iter::repeat_n(value, spec.channels.into())).collect()
}

/// The largest difference between two samples of a channel that follow each other.
pub(crate) fn steepest_step(samples: &[f32], channels: usize) -> f32 {
    let steps = samples.iter().zip(samples.iter().skip(channels));
    steps.map(|(one, next)| (next - one).abs()).fold(0.0, f32::max)
}

/// The energy of a tone near [`TONE_HZ`], beside all the rest, in decibels. The tone may be slightly higher or lower.
pub(crate) fn snr_db(mono: &[f32], rate_hz: u32) -> f64 {
    snr_of_db(mono, rate_hz, TONE_HZ)
}

/// The same for a tone near `tone_hz`.
fn snr_of_db(mono: &[f32], rate_hz: u32, tone_hz: f64) -> f64 {
    let fit = |hz: f64| {
        // Least squares with sine and cosine.
        let angle = |index: usize| std::f64::consts::TAU * hz * index as f64 / f64::from(rate_hz);
        let mut sums = [0.0; 5];
        for (index, sample) in mono.iter().enumerate() {
            let (sin, cos) = angle(index).sin_cos();
            let value = f64::from(*sample);
            for (sum, term) in
                sums.iter_mut().zip([sin * sin, cos * cos, sin * cos, sin * value, cos * value])
            {
                *sum += term;
            }
        }
        let [ss, cc, sc, sv, cv] = sums;
        let determinant = ss * cc - sc * sc;
        let (a, b) = ((sv * cc - cv * sc) / determinant, (cv * ss - sv * sc) / determinant);
        let rest = mono.iter().enumerate().map(|(index, sample)| {
            let (sin, cos) = angle(index).sin_cos();
            (f64::from(*sample) - a * sin - b * cos).powi(2)
        });
        (rest.sum::<f64>(), (a * a + b * b) / 2.0 * mono.len() as f64)
    };
    // The height of the tone, by a search for the smallest rest.
    let (mut low, mut high) = (tone_hz * 0.997, tone_hz * 1.003);
    for _ in 0..40 {
        let (one, other) = (low + (high - low) / 3.0, high - (high - low) / 3.0);
        if fit(one).0 < fit(other).0 { high = other } else { low = one }
    }
    let (rest, energy) = fit((low + high) / 2.0);
    10.0 * (energy / rest.max(1e-12)).log10()
}

/// The mean over segments of 20 ms of the signal-to-noise ratio of `heard`, in decibels, each from -10 to 35 ("Objective measures of
/// speech quality" (1988), 2.2). Segments of silence do not count.
pub(crate) fn segmental_snr_db(sent: &[f32], heard: &[f32], rate_hz: u32) -> f64 {
    let segment = rate_hz as usize / 50;
    let energy = |samples: &[f32]| samples.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>();
    let segments = sent.chunks_exact(segment).zip(heard.chunks_exact(segment));
    let ratios: Vec<f64> = segments
        .filter(|(sent, _)| energy(sent) > 1e-4 * segment as f64 * 0.01)
        .map(|(sent, heard)| {
            let difference: Vec<f32> = sent.iter().zip(heard).map(|(sent, heard)| sent - heard).collect();
            (10.0 * (energy(sent) / energy(&difference).max(1e-12)).log10()).clamp(-10.0, 35.0)
        })
        .collect();
    ratios.iter().sum::<f64>() / ratios.len().max(1) as f64
}

#[test]
fn a_gap_is_concealed_without_a_click_and_ends_in_silence() {
    for channels in [1, 2] {
        let spec = SampleSpec { channels, ..MONO };
        let width = usize::from(channels);
        let mut concealer = Concealer::default();
        let mut heard = Vec::new();
        let hear = |concealer: &mut Concealer, position: u64| {
            let mut sound = Sound { spec, position, samples: tone(&spec, position, 240) };
            let changed = concealer.hear(&mut sound);
            (changed, sound.samples)
        };
        assert!(concealer.is_silent());
        for quantum in 0..20 {
            let (changed, samples) = hear(&mut concealer, quantum * 240);
            assert_eq!(changed, quantum == 0, "the flow is faded in, and then unchanged");
            heard.extend(samples);
        }
        for _ in 0..2 {
            heard.extend(concealer.conceal(&spec, 240));
        }
        assert!(!concealer.is_silent());
        let concealed = &heard[20 * 240 * width..];
        let snr = snr_db(&concealed.iter().step_by(width).copied().collect::<Vec<_>>(), 48_000);
        assert!(snr > 15.0, "the tone goes on for 10 ms: {snr} dB");
        heard.extend(hear(&mut concealer, 22 * 240).1);
        (0..14).for_each(|_| heard.extend(concealer.conceal(&spec, 240)));
        assert!(
            concealer.is_silent() && heard[heard.len() - 480 * width..].iter().all(|value| *value == 0.0)
        );
        heard.extend(hear(&mut concealer, 40 * 240).1);
        let slope = std::f32::consts::TAU * TONE_HZ as f32 / 48_000.0 * 0.5;
        let steepest = steepest_step(&heard, width);
        assert!(steepest < slope * 1.5, "{channels} channels: {steepest} above {slope}");
    }
}

/// High tones keep their volume, and get no images that are heard: at equal rates up to 20 kHz, at others up to 0.84 of the
/// highest tone that both rates have.
#[test]
fn converted_tones_are_pure() {
    for (from_hz, to_hz, tone_hz) in [
        (48_000, 48_000, 1_000.0),
        (48_000, 48_000, 20_000.0),
        (44_100, 44_100, 17_000.0),
        (16_000, 16_000, 6_700.0),
        (16_000, 48_000, 6_700.0),
        (48_000, 16_000, 6_700.0),
        (44_100, 48_000, 18_500.0),
        (48_000, 44_100, 18_500.0),
        (192_000, 8_000, 3_300.0),
    ] {
        let spec = SampleSpec { rate_hz: from_hz, ..MONO };
        let mut converter = RateConverter::new(&spec, to_hz);
        let mut converted = Vec::new();
        for quantum in 0..from_hz / 500 {
            let frames = quantum * 250..(quantum + 1) * 250;
            let phase = |frame: u32| {
                std::f64::consts::TAU * (f64::from(frame) * tone_hz / f64::from(from_hz)).fract()
            };
            let samples: Vec<f32> = frames.map(|frame| (0.5 * phase(frame).sin()) as f32).collect();
            converted.extend_from_slice(converter.convert(&samples, 100e-6).unwrap());
        }
        let settled = &converted[converted.len() / 4..][..converted.len() / 2];
        let power =
            settled.iter().map(|sample| f64::from(*sample).powi(2)).sum::<f64>() / settled.len() as f64;
        let (gain_db, snr_db) = (10.0 * (power / 0.125).log10(), snr_of_db(settled, to_hz, tone_hz));
        println!("{from_hz} to {to_hz} Hz, {tone_hz} Hz: {gain_db:.3} dB, {snr_db:.1} dB beside the tone");
        assert!(gain_db.abs() < 0.05 && snr_db > 75.0, "{from_hz} to {to_hz} Hz: {gain_db} dB, {snr_db} dB");
    }
}

#[test]
fn a_tone_above_the_lower_rate_is_removed() {
    for (from_hz, to_hz, tone_hz) in [(48_000, 44_100, 22_800.0), (48_000, 16_000, 8_300.0)] {
        let spec = SampleSpec { rate_hz: from_hz, ..MONO };
        let phase =
            |frame: u32| std::f64::consts::TAU * (f64::from(frame) * tone_hz / f64::from(from_hz)).fract();
        let samples: Vec<f32> = (0..8000).map(|frame| (0.5 * phase(frame).sin()) as f32).collect();
        let converted = RateConverter::new(&spec, to_hz).convert(&samples, 0.0).unwrap().to_vec();
        let loudest = converted[1000..].iter().fold(0.0f32, |loudest, sample| loudest.max(sample.abs()));
        assert!(loudest < 0.5e-3, "{from_hz} to {to_hz} Hz: {tone_hz} Hz is heard as {loudest}");
    }
}

#[test]
fn a_splice_shortens_a_tone_by_whole_periods() {
    for channels in [1, 2] {
        let spec = SampleSpec { channels, ..MONO };
        let mut samples = tone(&spec, 77, 960);
        let removed = splice(&mut samples, &spec, 96..480, 192).unwrap();
        assert_eq!(samples.len(), (960 - removed) * usize::from(channels));
        let periods = removed as f64 * TONE_HZ / 48_000.0;
        assert!((periods - periods.round()).abs() < 0.02, "{removed} frames are {periods} periods");
        let mono: Vec<f32> = samples.iter().step_by(channels.into()).copied().collect();
        let snr = snr_db(&mono, 48_000);
        assert!(snr > 25.0, "{snr} dB");
        assert_eq!(splice(&mut samples[..100].to_vec(), &spec, 96..480, 192), None);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Whatever sound is heard: concealment and splices keep to the number of frames, and invent no value louder than it.
    #[test]
    fn any_sound_is_concealed_and_spliced(
        values in prop::collection::vec(-1.0f32..1.0, 16..4000),
        channels in 1u8..=8,
        rate_hz in 8000u32..=192_000,
        gaps in prop::collection::vec(1usize..3000, 1..5),
    ) {
        let spec = SampleSpec { format: SampleFormat::F32, channels, rate_hz };
        let width = usize::from(channels);
        let frames = values.len() / width;
        let mut concealer = Concealer::default();
        for gap in gaps {
            let samples = values[..frames * width].to_vec();
            let mut sound = Sound { spec, position: 0, samples };
            concealer.hear(&mut sound);
            prop_assert_eq!(sound.frames(), frames);
            let concealed = concealer.conceal(&spec, gap);
            prop_assert_eq!(concealed.len(), gap * width);
            prop_assert!(concealed.iter().all(|value| value.abs() <= 3.0));
        }
        let mut samples = values[..frames * width].to_vec();
        let removed = splice(&mut samples, &spec, 1..500, 192);
        prop_assert_eq!(samples.len(), (frames - removed.unwrap_or(0)) * width);
    }
}
