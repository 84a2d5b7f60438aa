//! Sections 6.9.1 and 6.9.2: square frames of three bytes a pixel, as fast as they go.
//!
//! Over the whole system it is the time from one painted frame to the next; on a single machine the time of a frame
//! from its making until right before it is written to the network, which is always busy. The limit paints frames
//! that a bare socket sends; on a single machine it is a frame through as many bare programs (`machine`).

use super::far::{Service, ask, camera};
use super::instruments::{Gauge, Painter, Passing, Watch, lock, paint};
use super::machine::{Sending, join, limits, send};
use super::network::Network;
use super::{Block, ChapterSetting, LinkKind, Row, paper, params, progress};
use crate::Failure;
use crate::measure::Times;
use contract::{Format, Partner, Role};
use runtime::registry;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use wire::formats::video::Header;

/// The dissertation's frames of a point.
const FRAMES: usize = 5000;
const PIXEL_BYTES: usize = 3;
/// Slots of shared memory in table 6.13.
const SLOTS: &str = "slots=3";
/// The latency that `slots=auto` keeps to by itself.
const LATENCY: &str = "50us";

/// Sides of the frames: the dissertation's, or those asked for.
fn sides(setting: &ChapterSetting) -> Vec<usize> {
    ChapterSetting::or(&setting.sizes, paper::FRAMES_PIPE.columns.iter().map(|side| *side as usize))
}

fn block(setting: &ChapterSetting, side: usize) -> Block {
    setting.block(side * side * PIXEL_BYTES, FRAMES)
}

/// The time between painted frames of the far host's camera.
fn painted(network: &Network, side: usize, block: &Block) -> Result<Times, Failure> {
    let (results, times) = channel();
    let painter = Painter::new(block, results)?.into_partner();
    network.attach(&format!("camera-{side}"), painter, &times)
}

/// The same of bare sockets, size by size.
fn bare(network: &Network, blocks: &[Block]) -> Result<Vec<Times>, Failure> {
    let paint = |block: &Block| {
        let socket = network.connect()?;
        network.here(|| paint(socket, block))
    };
    blocks.iter().map(paint).collect()
}

/// Section 6.9.1: 0 to 8 pairs.
pub(crate) fn video(setting: &ChapterSetting) -> Result<Vec<Row>, Failure> {
    let (sides, pairs) = (sides(setting), ChapterSetting::or(&setting.pairs, 0..=8));
    let blocks: Vec<Block> = sides.iter().map(|side| block(setting, *side)).collect();
    let mut rows = Vec::new();
    Network::each(setting, &sides, |network| {
        for link in setting.links() {
            progress(&format!("video, {}, {}", network.kind, link.name()));
            let (mut ours, mut limit) = (vec![vec![Times::default(); sides.len()]; pairs.len()], Vec::new());
            for _ in 0..setting.rounds.max(1) {
                join(&mut limit, bare(network, &blocks)?);
                for (pairs, ours) in pairs.iter().zip(&mut ours) {
                    network.set_pipeline(&link.pipeline(*pairs))?;
                    for ((side, block), ours) in sides.iter().zip(&blocks).zip(ours) {
                        ours.append(&painted(network, *side, block)?);
                    }
                }
            }
            for (pairs, ours) in pairs.iter().zip(&ours) {
                for ((side, ours), limit) in sides.iter().zip(ours).zip(&limit) {
                    let params = params! {
                        "network": network.kind.name(), "side": side, "link": link.name(), "pairs": pairs,
                    };
                    let grid = match link {
                        LinkKind::Direct => None,
                        LinkKind::Pipe => Some(&paper::FRAMES_PIPE),
                        LinkKind::Shm => Some(&paper::FRAMES_SHARED),
                    };
                    let paper = grid.and_then(|grid| grid.at(&pairs.to_string(), *side as u64));
                    rows.push(Row::of_times("video", params, ours, Some(limit), paper));
                }
            }
        }
        Ok(())
    })?;
    Ok(rows)
}

/// The camera's partner, as a device.
fn device(side: usize) -> Result<Box<dyn Partner>, Failure> {
    let spec = registry::device_spec(&camera(side), Role::Device)?;
    let class = registry::device_class(&spec.class).ok_or("there is no such device")?;
    Ok(class.partner(class.open(&spec, Role::Device, None)?)?)
}

/// How old frames are when they go to the network.
fn ages(network: &Network, side: usize, block: &Block, pipeline: &str) -> Result<Times, Failure> {
    let (results, times) = channel();
    let state = Mutex::new((Times::with_capacity(block.count), 0, None));
    let block = *block;
    let watch: Watch = Arc::new(move |passing, at, created| {
        if passing != Passing::Out {
            return;
        }
        let mut state = lock(&state);
        let (times, sent, begun) = &mut *state;
        let begun: u64 = *begun.get_or_insert(at);
        *sent += 1;
        if *sent > Block::WARM_UP {
            times.add(at.saturating_sub(created));
        }
        if block.is_done(*sent, at - begun) {
            // Who wanted them has them already, if nobody listens.
            let _ = results.send(std::mem::take(times));
        }
    });
    let mut socket = network.connect()?;
    network.here(move || {
        ask(&mut socket, Service::Drain, 0)?;
        let (device, options) = (device(side)?, Gauge::unqueued()?);
        send(Sending { device, format: Format::Video, pipeline, options, watch }, socket, &times)
    })
}

/// One point of a frame's time on a single machine, ours and the limit. Where frames are handed on by calls there is no
/// limit to speak of: what they wait for is the network.
fn point(
    setting: &ChapterSetting,
    network: &Network,
    side: usize,
    link: LinkKind,
    pairs: usize,
    pipeline: &str,
) -> Result<(Times, Option<Times>), Failure> {
    let block = block(setting, side);
    let bare = Block { bytes: block.bytes + Header::BYTES, ..block };
    let (mut ours, mut limit) = (Times::default(), Vec::new());
    for _ in 0..setting.rounds.max(1) {
        if link != LinkKind::Direct && pairs > 0 {
            join(&mut limit, network.here(|| limits(&[bare], Duration::ZERO, link, pairs))?);
        }
        ours.append(&ages(network, side, &block, pipeline)?);
    }
    Ok((ours, limit.pop()))
}

/// Section 6.9.2, tables 6.12 and 6.13: 0 to 8 pairs, one processor, three slots of shared memory.
pub(crate) fn video_single(setting: &ChapterSetting) -> Result<Vec<Row>, Failure> {
    let (sides, pairs) = (sides(setting), ChapterSetting::or(&setting.pairs, 0..=8));
    let mut rows = Vec::new();
    Network::each(setting, &[], |network| {
        for link in setting.links() {
            progress(&format!("video-single, {}, {}", network.kind, link.name()));
            for side in &sides {
                for pairs in &pairs {
                    let pipeline = match link {
                        LinkKind::Shm => link.pipeline_with(*pairs, SLOTS),
                        _ => link.pipeline(*pairs),
                    };
                    let (ours, limit) = point(setting, network, *side, link, *pairs, &pipeline)?;
                    let params = params! {
                        "network": network.kind.name(), "side": side, "link": link.name(), "pairs": pairs, "cores": 1,
                    };
                    let grid = match link {
                        LinkKind::Direct => None,
                        LinkKind::Pipe => Some(&paper::FRAME_MACHINE_PIPE),
                        LinkKind::Shm => Some(&paper::FRAME_MACHINE_SHARED),
                    };
                    let paper = grid.and_then(|grid| grid.at(&pairs.to_string(), *side as u64));
                    rows.push(Row::of_times("video-single", params, &ours, limit.as_ref(), paper));
                }
            }
        }
        Ok(())
    })?;
    Ok(rows)
}

/// Section 6.9.2, table 6.14: one pair in shared memory, 1 to 10 slots, one processor. Once all slots are used, as the
/// dissertation's were, and once as many of those that are free as keep to the latency; `auto` sets both.
pub(crate) fn batching(setting: &ChapterSetting) -> Result<Vec<Row>, Failure> {
    let sides = sides(setting);
    let slots = || paper::SLOTS.rows.iter().map(|(slots, _)| *slots);
    let within = slots().map(|slots| (slots, "within-50us", format!("slots={slots},latency={LATENCY}")));
    let auto = [("auto", "within-50us", "slots=auto".to_string())];
    let all = slots().map(|slots| (slots, "all", format!("slots={slots}")));
    let settings: Vec<_> = all.chain(within).chain(auto).collect();
    let mut rows = Vec::new();
    Network::each(setting, &[], |network| {
        progress(&format!("batching, {}", network.kind));
        for side in &sides {
            for (slots, used, options) in &settings {
                let pipeline = LinkKind::Shm.pipeline_with(1, options);
                let (ours, limit) = point(setting, network, *side, LinkKind::Shm, 1, &pipeline)?;
                let params = params! {
                    "network": network.kind.name(), "side": side, "link": "shm", "pairs": 1, "slots": slots,
                    "used": used, "cores": 1,
                };
                let paper = paper::SLOTS.at(slots, *side as u64);
                rows.push(Row::of_times("batching", params, &ours, limit.as_ref(), paper));
            }
        }
        Ok(())
    })?;
    Ok(rows)
}
