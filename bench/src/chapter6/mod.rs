//! Chapter 6 of "Networked Device Driver Architecture (2012)" on this machine: every table and figure with Outboard's
//! figures, the dissertation's, and those of a bare program in the same run.
//!
//! Each experiment is a file. `network` has the hosts, `paper` the dissertation's figures, `page` and `figures` turn rows
//! into Markdown and pictures. Figures are means, as the dissertation's are; ratios to the bare program are ratios of
//! medians.

mod all;
mod device;
mod end_to_end;
mod far;
mod figures;
mod instruments;
mod jitter;
mod machine;
mod network;
mod page;
mod paper;
mod relay;
mod row;
mod screen;
mod services;
mod setting;
mod throughput;
mod video;

use crate::programs::use_outboard;
use crate::setting::Failure;
use row::Row;
use serde_json::Value;

pub(crate) use all::{AllSetting, run as run_all, stages};
pub(crate) use device::device;
pub(crate) use end_to_end::end_to_end;
pub(crate) use far::{FarSetting, run as run_far};
pub(crate) use jitter::{
    HostSetting as JitterHostSetting, JitterSetting, run as run_jitter, sink as jitter_sink,
    source as jitter_source,
};
pub(crate) use machine::single_machine;
pub(crate) use relay::run as run_relay;
pub(crate) use screen::{ScreenSetting, screen};
pub(crate) use setting::ChapterSetting;
pub(crate) use throughput::throughput;
pub(crate) use video::{batching, video, video_single};

/// Runs one experiment, prints its rows and draws its pictures.
pub(crate) fn run(
    setting: &ChapterSetting,
    experiment: impl FnOnce(&ChapterSetting) -> Result<Vec<Row>, Failure>,
) -> Result<Value, Failure> {
    use_outboard()?;
    let rows = experiment(setting)?;
    print!("{}", page::plain(&rows));
    if let Some(directory) = &setting.svg {
        figures::write(&rows, directory)?;
    }
    Ok(serde_json::to_value(&rows)?)
}
