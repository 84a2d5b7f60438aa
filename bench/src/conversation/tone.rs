//! The sound of the conversation, and its analysis in a recording: a tone without an end, with a beep of another pitch once in 3 s.
//!
//! A recording is compared with a recording at the microphone. The tone shows gaps and clicks, the beeps show the delay. Three pitches
//! take turns, so that a delay of up to 9 s has one meaning.

use std::f64::consts::TAU;

pub(super) const RATE_HZ: usize = 48_000;
/// The time between two beeps.
pub(super) const PERIOD_S: usize = 3;
const TONE_HZ: f64 = 440.0;
const BEEPS_HZ: [f64; 3] = [1500.0, 2000.0, 2500.0];
/// The peak of the tone, and that of a beep.
const PEAK: f64 = 0.25;
/// The length of a beep, in samples.
const BEEP: usize = RATE_HZ / 20;
/// The step in which pitches are measured, and the length of sound for it.
const STEP: usize = RATE_HZ / 1000;
const WINDOW: usize = RATE_HZ / 100;
/// A piece of sound that is silent or not.
const PIECE: usize = RATE_HZ / 400;
/// Quieter than this share of the tone is silence.
const SILENT: f64 = 0.1;
/// A silence of this length is a gap: 10 ms.
const GAP_PIECES: usize = 4;
/// A sample that is this share of the tone's peak away from its place is a click.
const CLICK: f64 = 0.15;
/// Clicks within this time are one.
const ONE_CLICK: usize = RATE_HZ / 100;

/// Returns sound of this length, in seconds, with the first beep after half a period.
pub(super) fn sound(seconds: usize) -> Vec<f32> {
    let period = PERIOD_S * RATE_HZ;
    let sample = |at: usize| {
        let time = at as f64 / RATE_HZ as f64;
        let tone = (TAU * TONE_HZ * time).sin();
        let (turn, place) = ((at + period / 2) / period, (at + period / 2) % period);
        let beep = match turn > 0 && place < BEEP {
            true => {
                (TAU * BEEPS_HZ[turn % BEEPS_HZ.len()] * time).sin()
                    * (1.0 - (TAU * place as f64 / BEEP as f64).cos())
                    / 2.0
            }
            false => 0.0,
        };
        (PEAK * (tone + beep)) as f32
    };
    (0..seconds * RATE_HZ).map(sample).collect()
}

/// A beep in a recording.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Beep {
    /// The place of its middle, in samples.
    pub(super) at: usize,
    /// The number of its pitch.
    pub(super) pitch: usize,
}

/// The findings in a recording.
#[derive(Debug, Default)]
pub(super) struct Heard {
    pub(super) beeps: Vec<Beep>,
    /// The silences above 10 ms: their places and lengths, in samples.
    pub(super) gaps: Vec<(usize, usize)>,
    /// The places of clicks outside of beeps and gaps.
    pub(super) clicks: Vec<usize>,
}

/// Reads a recording. The silence before the first sound is no gap, nor is that after the last.
pub(super) fn read(samples: &[i16]) -> Heard {
    let beeps = beeps(samples);
    let gaps = gaps(samples);
    let clicks = clicks(samples, &beeps, &gaps);
    Heard { beeps, gaps, clicks }
}

/// The power of a pitch in some sound (Goertzel's algorithm), as a share of that of a full beep.
fn power(samples: &[i16], pitch_hz: f64) -> f64 {
    let factor = 2.0 * (TAU * pitch_hz / RATE_HZ as f64).cos();
    let (mut before, mut last) = (0.0, 0.0);
    for sample in samples {
        let next = f64::from(*sample) / 32768.0 + factor * last - before;
        (before, last) = (last, next);
    }
    let power = last * last + before * before - factor * last * before;
    let full = PEAK * samples.len() as f64 / 2.0;
    power / (full * full)
}

fn beeps(samples: &[i16]) -> Vec<Beep> {
    let mut found: Vec<Beep> = Vec::new();
    for (pitch, pitch_hz) in BEEPS_HZ.into_iter().enumerate() {
        // The beep that is being read: its middle, weighted by power, and the sum of weights.
        let mut current: Option<(f64, f64)> = None;
        for start in (0..samples.len().saturating_sub(WINDOW)).step_by(STEP) {
            let power = power(&samples[start..start + WINDOW], pitch_hz);
            let middle = (start + WINDOW / 2) as f64;
            match (&mut current, power > 0.2) {
                (Some((sum, weight)), true) => (*sum, *weight) = (*sum + middle * power, *weight + power),
                (None, true) => current = Some((middle * power, power)),
                (Some((sum, weight)), false) => {
                    // A shorter one is the edge of a gap.
                    if *weight > 3.0 {
                        found.push(Beep { at: (*sum / *weight) as usize, pitch });
                    }
                    current = None;
                }
                (None, false) => {}
            }
        }
    }
    found.sort_by_key(|beep| beep.at);
    // Concealment repeats sound: the first is the beep.
    found.dedup_by(|later, first| later.pitch == first.pitch && later.at - first.at < RATE_HZ);
    found
}

fn gaps(samples: &[i16]) -> Vec<(usize, usize)> {
    let least = PEAK * 32768.0 / 2f64.sqrt() * SILENT;
    let is_silent = |piece: &[i16]| {
        let energy: f64 = piece.iter().map(|sample| f64::from(*sample).powi(2)).sum();
        (energy / piece.len() as f64).sqrt() < least
    };
    let silent: Vec<bool> = samples.chunks_exact(PIECE).map(is_silent).collect();
    let (Some(first), Some(last)) =
        (silent.iter().position(|silent| !silent), silent.iter().rposition(|silent| !silent))
    else {
        return Vec::new();
    };
    let (mut gaps, mut begun) = (Vec::new(), None);
    for (piece, is_silent) in silent.iter().enumerate().take(last + 1).skip(first) {
        match (begun, is_silent) {
            (None, true) => begun = Some(piece),
            (Some(from), false) => {
                if piece - from >= GAP_PIECES {
                    gaps.push((from * PIECE, (piece - from) * PIECE));
                }
                begun = None;
            }
            _ => {}
        }
    }
    gaps
}

/// Each sample of a tone follows from the two before it: `x[n] = 2 cos(w) x[n-1] - x[n-2]`.
fn clicks(samples: &[i16], beeps: &[Beep], gaps: &[(usize, usize)]) -> Vec<usize> {
    let factor = 2.0 * (TAU * TONE_HZ / RATE_HZ as f64).cos();
    let most = CLICK * PEAK * 32768.0;
    let is_beep = |at: usize| {
        let next = beeps.partition_point(|beep| beep.at < at);
        let near = |beep: &Beep| beep.at.abs_diff(at) < BEEP;
        beeps.get(next).is_some_and(near) || next.checked_sub(1).is_some_and(|before| near(&beeps[before]))
    };
    // A gap is counted as one; its edges are no clicks besides.
    let is_gap = |at: usize| {
        let next = gaps.partition_point(|(from, _)| *from <= at + ONE_CLICK);
        next.checked_sub(1).is_some_and(|index| at < gaps[index].0 + gaps[index].1 + ONE_CLICK)
    };
    let mut clicks: Vec<usize> = Vec::new();
    for (index, three) in samples.windows(3).enumerate() {
        let [before, last, next] = [0, 1, 2].map(|one| f64::from(three[one]));
        let is_new = clicks.last().is_none_or(|click| index - click > ONE_CLICK);
        if is_new && (next - (factor * last - before)).abs() > most && !is_beep(index) && !is_gap(index) {
            clicks.push(index);
        }
    }
    clicks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recording(seconds: usize) -> Vec<i16> {
        sound(seconds).into_iter().map(|sample| (sample * 32767.0) as i16).collect()
    }

    #[test]
    fn whole_sound_has_its_beeps_and_neither_gap_nor_click() {
        let heard = read(&recording(10));
        let expected = [1, 2, 0].map(|pitch| pitch);
        assert_eq!(heard.beeps.iter().map(|beep| beep.pitch).collect::<Vec<_>>(), expected);
        for (turn, beep) in heard.beeps.iter().enumerate() {
            let middle = RATE_HZ * PERIOD_S * (2 * turn + 1) / 2 + BEEP / 2;
            assert!(beep.at.abs_diff(middle) < STEP, "{beep:?} for {middle}");
        }
        assert_eq!((heard.gaps.len(), heard.clicks.len()), (0, 0), "{heard:?}");
    }

    #[test]
    fn a_gap_and_a_jump_are_found_at_their_places() {
        let mut samples = recording(6);
        samples[30_000..30_960].fill(0);
        samples.drain(200_000..200_050);
        let heard = read(&samples);
        assert!(
            matches!(heard.gaps[..], [(at, length)] if at.abs_diff(30_000) <= PIECE && length.abs_diff(960) <= 2 * PIECE),
            "{:?}",
            heard.gaps
        );
        assert!(matches!(heard.clicks[..], [at] if at.abs_diff(200_000) < 3), "{:?}", heard.clicks);
        // 5 ms are no gap.
        samples[60_000..60_240].fill(0);
        assert_eq!(read(&samples).gaps.len(), 1);
    }
}
