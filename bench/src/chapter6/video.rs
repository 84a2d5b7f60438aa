//! Sections 6.9.1 and 6.9.2: square frames of three bytes a pixel, as fast as the path carries them.
//!
//! Over the whole system a time is that from one painted frame to the next. On a single machine it is the age of a frame
//! right before the write to the network, which is always busy. The bare program paints frames from a plain socket; on a
//! single machine the bare mechanism is a frame through as many bare programs (`machine`).

use super::far::camera;
use super::instruments::{Gauge, Painter, Passing, Watch, lock};
use super::machine::{Sending, bare as bare_machine, join, send};
use super::network::Network;
use super::paper;
use super::row::{Row, Series, params};
use super::services::{Service, ask, paint};
use super::setting::{Block, Carrier, ChapterSetting, LinkKind, Turn, turns};
use crate::measure::Times;
use crate::programs::progress;
use crate::setting::Failure;
use contract::{Format, Partner, Role};
use modules::registry;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use wire::formats::video::Header;

/// The dissertation's frames of a point.
const FRAMES: usize = 5000;
const PIXEL_BYTES: usize = 3;
/// Slots of shared memory in table 6.13.
const SLOTS: &str = "slots=3";
/// The latency that `slots=auto` keeps.
const LATENCY: &str = "50us";

/// Sides of the frames: those that the user wants, or the dissertation's.
fn sides(setting: &ChapterSetting) -> Vec<usize> {
    ChapterSetting::or(&setting.sizes, paper::FRAMES_PIPE.columns.iter().map(|side| *side as usize))
}

fn block(setting: &ChapterSetting, side: usize) -> Block {
    setting.block(side * side * PIXEL_BYTES, FRAMES)
}

/// Returns the times between painted frames of the far host's camera.
fn painted(network: &Network, carrier: Carrier, side: usize, block: &Block) -> Result<Times, Failure> {
    let (results, times) = channel();
    let painter = Painter::new(block)?.into_partner(results);
    network.attach(carrier, &format!("camera-{side}"), painter, &times)
}

/// Returns the times between painted frames from a plain socket, size by size.
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
            let none = vec![vec![Times::default(); sides.len()]; pairs.len()];
            let (mut tcp, mut sealed, mut plain) = (none.clone(), none, Vec::new());
            for turn in turns(setting.rounds) {
                let (carrier, all) = match turn {
                    Turn::Bare => {
                        join(&mut plain, bare(network, &blocks)?);
                        continue;
                    }
                    Turn::Ours(carrier @ Carrier::Tcp) => (carrier, &mut tcp),
                    Turn::Ours(carrier) => (carrier, &mut sealed),
                };
                for (pairs, all) in pairs.iter().zip(all) {
                    network.set_pipeline(&link.pipeline(*pairs))?;
                    for ((side, block), all) in sides.iter().zip(&blocks).zip(all) {
                        all.append(&painted(network, carrier, *side, block)?);
                    }
                }
            }
            for (at_pairs, pairs) in pairs.iter().enumerate() {
                for (at, side) in sides.iter().enumerate() {
                    let params = params! {
                        "network": network.kind.name(), "side": side, "link": link.name(), "pairs": pairs,
                    };
                    let paper = link.paper([&paper::FRAMES_PIPE, &paper::FRAMES_SHARED], *pairs, *side);
                    let [ours, sealed] = [&tcp, &sealed].map(|all| all[at_pairs].get(at));
                    let series = Series { ours, sealed, bare: plain.get(at) };
                    rows.push(Row::of_times("video", params, series, paper, setting.turns()));
                }
            }
        }
        Ok(())
    })?;
    Ok(rows)
}

/// Returns the partner of a camera.
fn device(side: usize) -> Result<Box<dyn Partner>, Failure> {
    let spec = registry::device_spec(&camera(side), Role::Device)?;
    let class = registry::device_class(&spec.class).ok_or("there is no such device")?;
    Ok(class.partner(class.open(&spec, Role::Device, None)?)?)
}

/// Returns the ages of frames when the transport takes them.
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
            // The receiver takes the first result only.
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

/// Measures one point on a single machine: Outboard's ages and the bare mechanism's times. Calls have no bare mechanism:
/// their frames wait for the network alone.
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
    let (mut ours, mut plain) = (Times::default(), Vec::new());
    let has_bare = link != LinkKind::Direct && pairs > 0;
    for round in 0..setting.turns() {
        // Every other round runs in reverse order.
        for turn in [round, round + 1] {
            match turn.is_multiple_of(2) {
                true if has_bare => {
                    join(&mut plain, network.here(|| bare_machine(&[bare], Duration::ZERO, link, pairs))?);
                }
                true => {}
                false => ours.append(&ages(network, side, &block, pipeline)?),
            }
        }
    }
    Ok((ours, plain.pop()))
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
                    let (ours, bare) = point(setting, network, *side, link, *pairs, &pipeline)?;
                    let params = params! {
                        "network": network.kind.name(), "side": side, "link": link.name(), "pairs": pairs, "cores": 1,
                    };
                    let grids = [&paper::FRAME_MACHINE_PIPE, &paper::FRAME_MACHINE_SHARED];
                    let paper = link.paper(grids, *pairs, *side);
                    let series = Series { ours: Some(&ours), sealed: None, bare: bare.as_ref() };
                    rows.push(Row::of_times("video-single", params, series, paper, setting.turns()));
                }
            }
        }
        Ok(())
    })?;
    Ok(rows)
}

/// Section 6.9.2, table 6.14: one pair in shared memory, 1 to 10 slots, one processor. One series uses all slots, as the
/// dissertation's did. The other uses as many as keep the latency; `auto` sets both.
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
                let (ours, bare) = point(setting, network, *side, LinkKind::Shm, 1, &pipeline)?;
                let params = params! {
                    "network": network.kind.name(), "side": side, "link": "shm", "pairs": 1, "slots": slots,
                    "used": used, "cores": 1,
                };
                let paper = paper::SLOTS.at(slots, *side as u64);
                let series = Series { ours: Some(&ours), sealed: None, bare: bare.as_ref() };
                rows.push(Row::of_times("batching", params, series, paper, setting.turns()));
            }
        }
        Ok(())
    })?;
    Ok(rows)
}
