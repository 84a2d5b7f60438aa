//! Percentiles, processor time and peak memory.

use crate::setting::Failure;
use netsim::Rng;
use std::fs;
use std::time::Duration;

/// A series of times in nanoseconds.
#[derive(Debug, Default, Clone)]
pub(crate) struct Times {
    nanoseconds: Vec<u64>,
}

impl Times {
    /// Reserves memory, so that measuring does not allocate.
    pub(crate) fn with_capacity(count: usize) -> Self {
        Times { nanoseconds: Vec::with_capacity(count) }
    }

    pub(crate) fn add(&mut self, nanoseconds: u64) {
        self.nanoseconds.push(nanoseconds);
    }

    pub(crate) fn append(&mut self, other: &Times) {
        self.nanoseconds.extend_from_slice(&other.nanoseconds);
    }

    pub(crate) fn count(&self) -> usize {
        self.nanoseconds.len()
    }

    /// Returns the mean in microseconds, 0 without times.
    pub(crate) fn mean_us(&self) -> f64 {
        self.nanoseconds.iter().sum::<u64>() as f64 / 1e3 / self.nanoseconds.len().max(1) as f64
    }

    /// Returns a percentile in microseconds, 0 without times.
    pub(crate) fn percentile_us(&self, share: f64) -> f64 {
        let mut sorted = self.nanoseconds.clone();
        sorted.sort_unstable();
        let at = (share * sorted.len() as f64) as usize;
        sorted.get(at.min(sorted.len().saturating_sub(1))).map_or(0.0, |time| *time as f64 / 1e3)
    }
}

/// Returns the median, 0 without figures.
pub(crate) fn median(figures: &[f64]) -> f64 {
    percentile(figures, 0.5)
}

/// Returns a percentile, 0 without figures.
pub(crate) fn percentile(figures: &[f64], share: f64) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = (share * sorted.len() as f64) as usize;
    sorted.get(at.min(sorted.len().saturating_sub(1))).copied().unwrap_or(0.0)
}

/// Samples of the bootstrap.
const SAMPLES: usize = 2000;

/// Returns the ratio of the medians of `ours` and `theirs`, with one figure a round each, and its 95 % confidence interval (the
/// percentile bootstrap; Efron, Tibshirani 1993: "An Introduction to the Bootstrap", chapter 13). The two figures of a round
/// are drawn together, so that a drift of the machine affects both.
pub(crate) fn ratio(ours: &[f64], theirs: &[f64], seed: u64) -> [f64; 3] {
    bootstrap(ours.len().min(theirs.len()), seed, |chosen| {
        let middle = |turns: &[f64]| median(&chosen.iter().map(|round| turns[*round]).collect::<Vec<_>>());
        middle(ours) / middle(theirs)
    })
}

/// Returns the median of the rounds' ratios of `ours` to `theirs` with its confidence interval, for rounds that differ more from
/// each other than their two figures. Of two middle ratios it takes the geometric mean, which is independent of the order of
/// division.
pub(crate) fn paired_ratio(ours: &[f64], theirs: &[f64], seed: u64) -> [f64; 3] {
    let ratios: Vec<f64> = ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect();
    bootstrap(ratios.len(), seed, |chosen| {
        let mut drawn: Vec<f64> = chosen.iter().map(|round| ratios[*round]).collect();
        drawn.sort_by(f64::total_cmp);
        let (low, high) = (drawn.len().saturating_sub(1) / 2, drawn.len() / 2);
        drawn.get(low).zip(drawn.get(high)).map_or(f64::NAN, |(low, high)| (low * high).sqrt())
    })
}

/// Returns `of` all rounds and the interval of 95 % of its values for drawn rounds.
fn bootstrap(rounds: usize, seed: u64, of: impl Fn(&[usize]) -> f64) -> [f64; 3] {
    let mut rng = Rng::new(seed, rounds as u64);
    let mut sample =
        || -> Vec<usize> { (0..rounds).map(|_| rng.up_to((rounds - 1) as u64) as usize).collect() };
    let samples: Vec<f64> = (0..SAMPLES).map(|_| of(&sample())).collect();
    let all: Vec<usize> = (0..rounds).collect();
    [of(&all), percentile(&samples, 0.025), percentile(&samples, 0.975)]
}

/// Returns median, 99th percentile and maximum in milliseconds.
pub(crate) fn percentiles_ms(durations: impl Iterator<Item = Duration>) -> [f64; 3] {
    let mut durations: Vec<Duration> = durations.collect();
    durations.sort_unstable();
    let last = durations.len().saturating_sub(1);
    [last / 2, last * 99 / 100, last]
        .map(|index| durations.get(index).map_or(f64::NAN, |duration| duration.as_secs_f64() * 1e3))
}

/// The resources of one turn.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Used {
    pub(crate) cpu_ns: u64,
    /// Peak of resident memory above that before the turn, KiB.
    pub(crate) memory_kib: u64,
}

/// Runs one turn and measures its resources.
pub(crate) fn used<T>(turn: impl FnOnce() -> Result<T, Failure>) -> Result<(T, Used), Failure> {
    // "5" resets the peak (proc_pid_clear_refs(5)); without the right to, the peak is that of the whole run.
    let _ = fs::write("/proc/self/clear_refs", "5");
    let memory_before = status_kib("VmRSS:");
    let cpu_before = sys::clock::process_cpu_ns();
    let result = turn()?;
    let used = Used {
        cpu_ns: sys::clock::process_cpu_ns() - cpu_before,
        memory_kib: status_kib("VmHWM:").saturating_sub(memory_before),
    };
    Ok((result, used))
}

fn status_kib(field: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}
