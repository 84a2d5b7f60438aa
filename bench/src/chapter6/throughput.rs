//! Section 6.3: how much a second crosses the whole system, timed by one acknowledgement of the application's.
//!
//! The limit is a bare socket that writes as much and waits for one byte.

use super::far::{Service, ask};
use super::instruments::{Flood, noise};
use super::network::Network;
use super::{Block, ChapterSetting, LinkKind, Row, paper, params, progress};
use crate::Failure;
use crate::measure::{median, percentile};
use std::io::{Read, Write};
use std::sync::mpsc::channel;

/// Size of the messages.
const BYTES: usize = 1_000_000;
/// Messages of the first run, which only tells how many the next are to be.
const TRIAL: usize = 8;
/// Messages of a run, at most.
const MESSAGES_MAX: usize = 4000;
/// Timed runs of a point in a round.
const RUNS: usize = 3;

/// Megabytes a second.
fn speed(bytes: usize, messages: usize, ns: u64) -> f64 {
    (bytes * messages) as f64 * 1e3 / ns.max(1) as f64
}

fn ours(network: &Network, bytes: usize, messages: usize) -> Result<f64, Failure> {
    let (results, elapsed) = channel();
    let flood = Flood::new(bytes, messages, results);
    let ns = network.attach("acknowledge", Box::new(flood), &elapsed)?;
    Ok(speed(bytes, messages, ns))
}

fn limit(network: &Network, bytes: usize, messages: usize) -> Result<f64, Failure> {
    let mut socket = network.connect()?;
    network.here(|| {
        ask(&mut socket, Service::Acknowledge, (bytes * messages) as u64)?;
        let message = noise(bytes);
        let begun = sys::clock::boot_ns();
        for _ in 0..messages {
            socket.write_all(&message)?;
        }
        socket.read_exact(&mut [0])?;
        Ok(speed(bytes, messages, sys::clock::boot_ns() - begun))
    })
}

/// Section 6.3: no pairs, and one behind each other link, which is the nearest to the dissertation's processes.
pub(crate) fn throughput(setting: &ChapterSetting) -> Result<Vec<Row>, Failure> {
    let bytes = setting.sizes.first().copied().unwrap_or(BYTES);
    let mut rows = Vec::new();
    Network::each(setting, &[], |network| {
        progress(&format!("throughput, {}", network.kind));
        let trial = limit(network, bytes, TRIAL)?;
        let block: Block = setting.block(bytes, MESSAGES_MAX);
        let affordable = trial * 1e6 * block.budget.as_secs_f64() / RUNS as f64 / bytes as f64;
        let messages = (affordable as usize).clamp(TRIAL, MESSAGES_MAX);
        for link in setting.links() {
            let pairs = usize::from(link != LinkKind::Direct);
            network.set_pipeline(&link.pipeline(pairs))?;
            let (mut speeds, mut limits) = (Vec::new(), Vec::new());
            for _ in 0..setting.rounds.max(1) * RUNS {
                limits.push(limit(network, bytes, messages)?);
                speeds.push(ours(network, bytes, messages)?);
            }
            let mean = |speeds: &[f64]| speeds.iter().sum::<f64>() / speeds.len().max(1) as f64;
            // Without pairs the dissertation's modules are joined by one or the other; ours by neither.
            let papers =
                paper::THROUGHPUT_MB_PER_S.iter().filter(|(name, _)| pairs == 0 || *name == link.name());
            rows.extend(papers.map(|(paper_link, paper)| Row {
                experiment: "throughput",
                params: params! {
                    "network": network.kind.name(), "bytes": bytes, "messages": messages, "link": link.name(),
                    "pairs": pairs, "paper_link": paper_link,
                },
                unit: "MB/s",
                ours: mean(&speeds),
                limit: Some(mean(&limits)),
                paper: Some(*paper),
                runs: speeds.len(),
                p50: median(&speeds),
                // Of speeds, the slowest are the tail.
                p99: percentile(&speeds, 0.01),
            }));
        }
        Ok(())
    })?;
    Ok(rows)
}
