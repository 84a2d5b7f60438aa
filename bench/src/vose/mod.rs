//! The value of faster parts beside the truth: "Improving TCP Throughput for Cloud Applications" (2014), chapter 3.
//!
//! `encrypt` has two real implementations on one machine: AES with the extensions of the processor, and without them
//! (`program.rs`). `outboard whatif` of the program without them predicts the throughput with AES as fast as the extensions make
//! it; the program with them is the truth. Both take turns.
//!
//! | study | figures of the thesis | file |
//! |---|---|---|
//! | software, virtual and hardware at several clocks | 3.5 to 3.10 | `truth.rs` |
//! | functions that run in the virtual case and with hardware | tables 3.1 and 3.2 | `profile.rs` |
//! | speedups that are enough, and three works together | 3.11 and 3.12 | `curves.rs` |

mod ask;
mod clock;
mod curves;
mod profile;
mod program;
mod truth;

pub(crate) use ask::{PairTimesSetting, print_pair_times};

use crate::plot::Chart;
use crate::programs::progress;
use crate::provenance::Provenance;
use crate::setting::Failure;
use ask::write_sample;
use clap::Args;
use clock::Clock;
use program::Programs;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// The settings of `vose`.
#[derive(Args, Debug, Clone)]
pub(crate) struct VoseSetting {
    /// Turns of each measurement
    #[arg(long, default_value_t = 10)]
    rounds: usize,
    /// Seconds of each run
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Bytes of a message
    #[arg(long, default_value_t = 64 << 10)]
    size: usize,
    /// Clocks, as shares of the full one (others than 1 need root)
    #[arg(long = "clock", value_delimiter = ',', default_values_t = [0.25, 0.5, 0.75, 1.0])]
    clocks: Vec<f64>,
    /// Speedups
    #[arg(long, value_delimiter = ',', default_values_t = [1.5, 2.0, 3.0, 4.0, 6.0, 10.0, 20.0, f64::INFINITY])]
    by: Vec<f64>,
    /// Seed of the message and of the intervals
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Draw the pictures into this directory (SVG)
    #[arg(long)]
    svg: Option<PathBuf>,
    /// Write the page to this file
    #[arg(long)]
    page: Option<PathBuf>,
}

/// Both programs with the message, and the setting of the run.
struct Bench<'a> {
    setting: &'a VoseSetting,
    hardware: Programs,
    software: Programs,
    sample: PathBuf,
    directory: &'a Path,
}

/// A part of the page: its Markdown, its pictures and its figures.
struct Study {
    title: &'static str,
    text: String,
    /// Names of files without the extension.
    charts: Vec<(&'static str, Chart<'static>)>,
    figures: Value,
    /// A promise that does not hold.
    broken: Option<String>,
}

/// Runs `vose`.
pub(crate) fn run(setting: &VoseSetting) -> Result<Value, Failure> {
    if setting.rounds == 0 || setting.clocks.iter().any(|share| !(*share > 0.0 && *share <= 1.0)) {
        return Err("--rounds is at least 1, and each --clock above 0 and at most 1".into());
    }
    let provenance = Provenance::of_this_run();
    let directory = std::env::temp_dir().join(format!("outboard-vose-{}", std::process::id()));
    std::fs::create_dir(&directory)?;
    let studies = measure(setting, &directory);
    if let Err(error) = std::fs::remove_dir_all(&directory) {
        progress(&format!("cannot remove {}: {error}", directory.display()));
    }
    let studies = studies?;
    let text = page(setting, &provenance, &studies)?;
    println!("{text}");
    if let Some(file) = &setting.page {
        std::fs::write(file, &text).map_err(|error| format!("cannot write {}: {error}", file.display()))?;
    }
    if let Some(broken) = studies.iter().find_map(|study| study.broken.clone()) {
        return Err(broken.into());
    }
    let figures: serde_json::Map<String, Value> =
        studies.into_iter().map(|study| (study.title.to_string(), study.figures)).collect();
    Ok(json!({ "experiment": "vose", "rounds": setting.rounds, "seconds": setting.seconds,
               "message_bytes": setting.size, "seed": setting.seed, "studies": figures }))
}

fn measure(setting: &VoseSetting, directory: &Path) -> Result<Vec<Study>, Failure> {
    let sample = directory.join("sample");
    write_sample(&sample, setting.size, setting.seed)?;
    let hardware = Programs::hardware()?;
    let software = Programs::software(&hardware, directory)?;
    let bench = Bench { setting, hardware, software, sample, directory };
    let clock = Clock::new(&setting.clocks)?;
    progress("vose: the truth");
    let (truth, ratio) = truth::study(&bench, &clock)?;
    drop(clock);
    progress("vose: profiles");
    let profiles = profile::study(&bench, ratio)?;
    progress("vose: the speedups that are enough");
    Ok(vec![truth, profiles, curves::saturation(&bench)?, curves::combinations(&bench)?])
}

/// Formats the page and draws its pictures.
fn page(setting: &VoseSetting, provenance: &Provenance, studies: &[Study]) -> Result<String, Failure> {
    let mut text = include_str!("page.md").replace("{PROVENANCE}", &provenance.to_string());
    text = text.replace("{SIZE}", &setting.size.to_string());
    for Study { title, text: study, charts, .. } in studies {
        text += &format!("\n## {title}\n\n{study}");
        for (name, chart) in charts {
            let Some(directory) = &setting.svg else { continue };
            std::fs::create_dir_all(directory)?;
            let file = directory.join(format!("{name}.svg"));
            std::fs::write(&file, chart.svg())
                .map_err(|error| format!("cannot write {}: {error}", file.display()))?;
            let folder = directory.file_name().unwrap_or_default().display();
            text += &format!("\n![{}]({folder}/{name}.svg)\n", chart.title);
        }
    }
    Ok(text)
}

/// Formats a share as per cent with its sign.
fn percent(share: f64) -> String {
    format!("{:+.1} %", 100.0 * share)
}

/// Formats a speedup: infinity has a name.
fn times(speedup: f64) -> String {
    if speedup.is_finite() { format!("{speedup}") } else { "inf".into() }
}
