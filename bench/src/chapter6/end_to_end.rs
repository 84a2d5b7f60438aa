//! Sections 6.1 and 6.8.1: a message from its source on one host to its sink on another.
//!
//! As in the dissertation the path is doubled, so that one clock is enough: the far host sends each message back through
//! the same number of pairs, and the time is halved. The bare program is a ping-pong over a plain socket between the
//! same processes.

use super::instruments::{Pacer, Probe};
use super::machine::join;
use super::network::Network;
use super::paper;
use super::row::{Row, Series, params};
use super::services::ping;
use super::setting::{Block, Carrier, ChapterSetting, Turn, turns};
use crate::measure::Times;
use crate::programs::progress;
use crate::setting::Failure;
use std::sync::mpsc::channel;

/// The dissertation's measurements of a point.
const REPEATS: usize = 450;

/// Outboard's times, block by block.
fn ours(
    network: &Network,
    carrier: Carrier,
    setting: &ChapterSetting,
    blocks: &[Block],
) -> Result<Vec<Times>, Failure> {
    let (results, times) = channel();
    let probe = Probe { pacer: Pacer::new(blocks, setting.pause), results };
    network.attach(carrier, "echo", Box::new(probe), &times)
}

/// The bare socket's times, block by block.
fn bare(network: &Network, setting: &ChapterSetting, blocks: &[Block]) -> Result<Vec<Times>, Failure> {
    let ping = |block| {
        let socket = network.connect()?;
        network.here(|| ping(socket, block, setting.pause))
    };
    blocks.iter().map(ping).collect()
}

/// The blocks of a setting: the sizes that the user wants, or the dissertation's.
fn blocks(setting: &ChapterSetting) -> Vec<Block> {
    let papers = paper::END_TO_END.columns.iter().map(|bytes| *bytes as usize);
    let sizes = ChapterSetting::or(&setting.sizes, papers);
    sizes.iter().map(|bytes| setting.block(*bytes, REPEATS)).collect()
}

/// The times of all rounds, block by block.
#[derive(Default, Clone)]
struct Rounds {
    ours: Vec<Times>,
    sealed: Vec<Times>,
}

impl Rounds {
    fn add(&mut self, carrier: Carrier, times: Vec<Times>) {
        match carrier {
            Carrier::Tcp => join(&mut self.ours, times),
            Carrier::Sealed => join(&mut self.sealed, times),
        }
    }

    fn series<'a>(&'a self, bare: &'a [Times], at: usize) -> Series<'a> {
        Series { ours: self.ours.get(at), sealed: self.sealed.get(at), bare: bare.get(at) }
    }
}

/// Section 6.1: no pairs. The dissertation's modules are processes even so; Outboard's is a call.
pub(crate) fn end_to_end(setting: &ChapterSetting) -> Result<Vec<Row>, Failure> {
    let blocks = blocks(setting);
    let mut rows = Vec::new();
    Network::each(setting, &[], |network| {
        progress(&format!("end-to-end, {}", network.kind));
        let (mut all, mut plain) = (Rounds::default(), Vec::new());
        for turn in turns(setting.rounds) {
            match turn {
                Turn::Bare => join(&mut plain, bare(network, setting, &blocks)?),
                Turn::Ours(carrier) => all.add(carrier, ours(network, carrier, setting, &blocks)?),
            }
        }
        for (link, _) in paper::END_TO_END.rows {
            for (at, block) in blocks.iter().enumerate() {
                let params = params! {
                    "network": network.kind.name(), "bytes": block.bytes, "link": "direct", "paper_link": link,
                    "pause_ms": setting.pause.as_secs_f64() * 1e3,
                };
                let paper = paper::END_TO_END.at(link, block.bytes as u64);
                let series = all.series(&plain, at);
                rows.push(Row::of_times("end-to-end", params, series, paper, setting.turns()));
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
            let (mut all, mut plain) = (vec![Rounds::default(); pairs.len()], Vec::new());
            for turn in turns(setting.rounds) {
                let Turn::Ours(carrier) = turn else {
                    join(&mut plain, bare(network, setting, &blocks)?);
                    continue;
                };
                for (pairs, all) in pairs.iter().zip(&mut all) {
                    network.set_pipeline(&link.pipeline(*pairs))?;
                    all.add(carrier, ours(network, carrier, setting, &blocks)?);
                }
            }
            for (pairs, all) in pairs.iter().zip(&all) {
                for (at, block) in blocks.iter().enumerate() {
                    let params = params! {
                        "part": "system", "network": network.kind.name(), "bytes": block.bytes,
                        "link": link.name(), "pairs": pairs, "pause_ms": setting.pause.as_secs_f64() * 1e3,
                    };
                    let grids = [&paper::SYSTEM_PIPE, &paper::SYSTEM_SHARED];
                    let paper = link.paper(grids, *pairs, block.bytes);
                    rows.push(Row::of_times(
                        "stages",
                        params,
                        all.series(&plain, at),
                        paper,
                        setting.turns(),
                    ));
                }
            }
        }
        Ok(())
    })?;
    Ok(rows)
}
