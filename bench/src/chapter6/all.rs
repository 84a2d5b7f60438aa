//! `all`: every experiment of the chapter, and the page with their results.

use super::jitter::{self, JitterSetting};
use super::row::Row;
use super::setting::{ChapterSetting, NetworkKind};
use super::{device, end_to_end, figures, machine, page, screen, throughput, video};
use crate::programs::{progress, use_outboard};
use crate::provenance::Provenance;
use crate::setting::Failure;
use clap::Args;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The settings of `all`.
#[derive(Args, Debug, Clone)]
pub(crate) struct AllSetting {
    #[command(flatten)]
    chapter: ChapterSetting,
    /// Take only a few measurements of every experiment, as a test
    #[arg(long)]
    quick: bool,
    /// Write the page to this file, beside the directory of the pictures
    #[arg(long)]
    page: Option<PathBuf>,
}

/// Seconds of a point in a full run.
const SECONDS: f64 = 0.25;
/// Messages of a point with the dissertation's pause.
const PAUSED_REPEATS: usize = 5;
/// Seconds of a point of a quick run.
const QUICK_SECONDS: f64 = 0.02;

type Measure = fn(&ChapterSetting) -> Result<Vec<Row>, Failure>;

/// An experiment of the chapter, with its settings for a quick run.
struct Experiment {
    name: &'static str,
    measure: Measure,
    rounds: usize,
    quick_sizes: &'static [usize],
    quick_repeats: usize,
}

const fn experiment(
    name: &'static str,
    measure: Measure,
    rounds: usize,
    quick_sizes: &'static [usize],
    quick_repeats: usize,
) -> Experiment {
    Experiment { name, measure, rounds, quick_sizes, quick_repeats }
}

static EXPERIMENTS: [Experiment; 12] = [
    experiment("end-to-end", end_to_end::end_to_end, 2, &[1000, 100_000], 20),
    experiment("single-machine", machine::single_machine, 2, &[100, 100_000], 20),
    experiment("single-machine, with the dissertation's pause", paused, 1, &[], 1),
    experiment("throughput", throughput::throughput, 2, &[100_000], 10),
    experiment("device", device::device, 2, &[], 20),
    experiment("screen", screen::screen_of_chapter, 2, &[100], 10),
    experiment("jitter", rhythm, 1, &[], 20),
    experiment("stages, whole system", end_to_end::stages, 2, &[1000, 100_000], 20),
    experiment("stages, single machine", machine::stages, 2, &[100, 100_000], 20),
    experiment("video", video::video, 2, &[100], 20),
    experiment("video-single", video::video_single, 2, &[100], 20),
    experiment("batching", video::batching, 2, &[100], 20),
];

/// Measures both parts of `stages`.
pub(crate) fn stages(setting: &ChapterSetting) -> Result<Vec<Row>, Failure> {
    let mut rows = end_to_end::stages(setting)?;
    rows.extend(machine::stages(setting)?);
    Ok(rows)
}

/// Measures the smallest and the largest message with the dissertation's pause of two seconds before each.
fn paused(setting: &ChapterSetting) -> Result<Vec<Row>, Failure> {
    // Too slow for a quick run.
    if setting.repeats.is_some() {
        return Ok(Vec::new());
    }
    let (sizes, repeats) = (vec![100, 1_024_000], Some(PAUSED_REPEATS));
    let pause = Duration::from_secs(2);
    let seconds = PAUSED_REPEATS as f64 * 2.0 * pause.as_secs_f64();
    machine::single_machine(&ChapterSetting { sizes, repeats, pause, seconds, rounds: 1, ..setting.clone() })
}

/// Section 6.7.
fn rhythm(setting: &ChapterSetting) -> Result<Vec<Row>, Failure> {
    if !rustix::process::geteuid().is_root() {
        progress("SKIPPED jitter: it needs root, for network namespaces");
        return Ok(Vec::new());
    }
    let mut own = JitterSetting::default();
    own.netlab.clone_from(&setting.netlab);
    if let Some(updates) = setting.repeats {
        (own.updates, own.jitter_ms) = (updates, vec![5]);
    }
    jitter::rows(&own, &mut |line| progress(line.trim_end()))
}

/// Returns the setting of a quick run.
fn quick(setting: &ChapterSetting, experiment: &Experiment) -> ChapterSetting {
    ChapterSetting {
        networks: vec![NetworkKind::Loopback],
        pairs: vec![0, 2],
        sizes: experiment.quick_sizes.to_vec(),
        repeats: Some(experiment.quick_repeats),
        seconds: QUICK_SECONDS,
        pause: Duration::ZERO,
        rounds: 1,
        ..setting.clone()
    }
}

/// Runs all experiments. A failed experiment does not stop the others.
pub(crate) fn run(setting: &AllSetting) -> Result<Value, Failure> {
    use_outboard()?;
    let provenance = Provenance::of_this_run().to_string();
    let begun = Instant::now();
    let (mut rows, mut failed) = (Vec::new(), Vec::new());
    for experiment in &EXPERIMENTS {
        let own = match setting.quick {
            true => quick(&setting.chapter, experiment),
            false => ChapterSetting {
                seconds: setting.chapter.seconds.min(SECONDS),
                rounds: experiment.rounds,
                ..setting.chapter.clone()
            },
        };
        progress(&format!("{} at {:.0} s", experiment.name, begun.elapsed().as_secs_f64()));
        match (experiment.measure)(&own) {
            Ok(measured) => rows.extend(measured),
            Err(error) => {
                progress(&format!("FAILED: {}: {error}", experiment.name));
                failed.push(experiment.name);
            }
        }
    }
    progress(&format!("done after {:.0} s", begun.elapsed().as_secs_f64()));
    print!("{}", page::plain(&rows));
    let directory = setting.chapter.svg.clone();
    let pictures = match &directory {
        Some(directory) => figures::write(&rows, directory)?,
        None => Vec::new(),
    };
    if let Some(file) = &setting.page {
        let directory = directory.as_deref().unwrap_or(Path::new(""));
        std::fs::write(file, page::page(&rows, &pictures, directory, &provenance))
            .map_err(|error| format!("cannot write {}: {error}", file.display()))?;
    }
    match failed.is_empty() {
        true => Ok(serde_json::to_value(&rows)?),
        false => Err(format!("these experiments failed: {}", failed.join(", ")).into()),
    }
}
