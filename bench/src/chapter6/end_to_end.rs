//! Sections 6.1 and 6.8.1: a message from its source on one host to its sink on another.
//!
//! As in the dissertation the way is doubled, so that one clock will do: what arrives at the far host is sent back
//! through as many pairs, and the time is halved. The limit is a bare socket's ping-pong between the same processes.

use super::instruments::{Pacer, Probe, ping};
use super::machine::join;
use super::network::Network;
use super::{Block, ChapterSetting, LinkKind, Row, paper, params, progress};
use crate::Failure;
use crate::measure::Times;
use serde_json::Map;
use std::sync::mpsc::channel;

/// The dissertation's measurements of a point.
const REPEATS: usize = 450;

/// Ours, block by block.
fn ours(network: &Network, setting: &ChapterSetting, blocks: &[Block]) -> Result<Vec<Times>, Failure> {
    let (results, times) = channel();
    let probe = Probe { pacer: Pacer::new(blocks, setting.pause), results };
    network.attach("echo", Box::new(probe), &times)
}

/// The bare socket, block by block.
fn limits(network: &Network, setting: &ChapterSetting, blocks: &[Block]) -> Result<Vec<Times>, Failure> {
    blocks
        .iter()
        .map(|block| {
            let socket = network.connect()?;
            network.here(|| ping(socket, block, setting.pause))
        })
        .collect()
}

/// The blocks of a setting: the dissertation's sizes, or those asked for.
fn blocks(setting: &ChapterSetting) -> Vec<Block> {
    let papers = paper::END_TO_END.columns.iter().map(|bytes| *bytes as usize);
    let sizes = ChapterSetting::or(&setting.sizes, papers);
    sizes.iter().map(|bytes| setting.block(*bytes, REPEATS)).collect()
}

fn row(
    experiment: &'static str,
    mut params: Map<String, serde_json::Value>,
    setting: &ChapterSetting,
    [ours, limit]: [&Times; 2],
    paper: Option<f64>,
) -> Row {
    params.extend(params! { "pause_ms": setting.pause.as_secs_f64() * 1e3 });
    Row::of_times(experiment, params, ours, Some(limit), paper)
}

/// Section 6.1: no pairs. The dissertation's modules are processes all the same; ours is a call.
pub(crate) fn end_to_end(setting: &ChapterSetting) -> Result<Vec<Row>, Failure> {
    let blocks = blocks(setting);
    let mut rows = Vec::new();
    Network::each(setting, &[], |network| {
        progress(&format!("end-to-end, {}", network.kind));
        let (mut all, mut limit) = (Vec::new(), Vec::new());
        for _ in 0..setting.rounds.max(1) {
            join(&mut limit, limits(network, setting, &blocks)?);
            join(&mut all, ours(network, setting, &blocks)?);
        }
        for (link, _) in paper::END_TO_END.rows {
            for (at, block) in blocks.iter().enumerate() {
                let params = params! {
                    "network": network.kind.name(), "bytes": block.bytes, "link": "direct", "paper_link": link,
                };
                let paper = paper::END_TO_END.at(link, block.bytes as u64);
                rows.push(row("end-to-end", params, setting, [&all[at], &limit[at]], paper));
            }
        }
        Ok(())
    })?;
    Ok(rows)
}

/// Section 6.8.1: 0 to 6 pairs.
pub(crate) fn stages(setting: &ChapterSetting) -> Result<Vec<Row>, Failure> {
    let blocks = blocks(setting);
    let pairs = ChapterSetting::or(&setting.pairs, 0..=6);
    let mut rows = Vec::new();
    Network::each(setting, &[], |network| {
        for link in setting.links() {
            progress(&format!("stages of the whole system, {}, {}", network.kind, link.name()));
            let (mut all, mut limit) = (vec![Vec::new(); pairs.len()], Vec::new());
            for _ in 0..setting.rounds.max(1) {
                join(&mut limit, limits(network, setting, &blocks)?);
                for (pairs, all) in pairs.iter().zip(&mut all) {
                    network.set_pipeline(&link.pipeline(*pairs))?;
                    join(all, ours(network, setting, &blocks)?);
                }
            }
            for (pairs, all) in pairs.iter().zip(&all) {
                for (at, block) in blocks.iter().enumerate() {
                    let params = params! {
                        "part": "system", "network": network.kind.name(), "bytes": block.bytes,
                        "link": link.name(), "pairs": pairs,
                    };
                    let paper = papers(link).and_then(|grid| grid.at(&pairs.to_string(), block.bytes as u64));
                    rows.push(row("stages", params, setting, [&all[at], &limit[at]], paper));
                }
            }
        }
        Ok(())
    })?;
    Ok(rows)
}

/// The dissertation has no calls.
fn papers(link: LinkKind) -> Option<&'static paper::Grid> {
    match link {
        LinkKind::Direct => None,
        LinkKind::Pipe => Some(&paper::SYSTEM_PIPE),
        LinkKind::Shm => Some(&paper::SYSTEM_SHARED),
    }
}
