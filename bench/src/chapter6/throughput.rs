//! Section 6.3: throughput of the whole system, timed by one acknowledgement of the application.
//!
//! The bare program writes as much to a plain socket and waits for one byte.

use super::instruments::{Flood, congestion, noise};
use super::network::Network;
use super::paper;
use super::row::{Row, params};
use super::services::{Service, ask};
use super::setting::{Block, Carrier, ChapterSetting, LinkKind, Turn, turns};
use crate::measure::{median, percentile};
use crate::programs::progress;
use crate::setting::{Failure, be_like_a_worker};
use std::io::{Read, Write};
use std::sync::mpsc::channel;

/// Bytes of a message.
const BYTES: usize = 1_000_000;
/// Messages of the first run, which only finds the number of messages of the next ones.
const TRIAL: usize = 8;
/// Most messages of a run.
const MESSAGES_MAX: usize = 4000;
/// Timed runs of a turn.
const RUNS: usize = 3;

/// Returns MB/s.
fn speed(bytes: usize, messages: usize, ns: u64) -> f64 {
    (bytes * messages) as f64 * 1e3 / ns.max(1) as f64
}

fn ours(network: &Network, carrier: Carrier, bytes: usize, messages: usize) -> Result<f64, Failure> {
    let (results, elapsed) = channel();
    let flood = Flood::new(bytes, messages, results);
    let ns = network.attach(carrier, "acknowledge", Box::new(flood), &elapsed)?;
    Ok(speed(bytes, messages, ns))
}

fn bare(network: &Network, bytes: usize, messages: usize) -> Result<f64, Failure> {
    let mut socket = network.connect()?;
    network.here(|| {
        be_like_a_worker();
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

fn mean(speeds: &[f64]) -> f64 {
    speeds.iter().sum::<f64>() / speeds.len().max(1) as f64
}

/// Section 6.3: no pairs, and one behind each other link, which is nearest to the dissertation's processes.
pub(crate) fn throughput(setting: &ChapterSetting) -> Result<Vec<Row>, Failure> {
    let bytes = setting.sizes.first().copied().unwrap_or(BYTES);
    let mut rows = Vec::new();
    Network::each(setting, &[], |network| {
        progress(&format!("throughput, {}", network.kind));
        let congestion = network.here(|| Ok(congestion()))?;
        let trial = bare(network, bytes, TRIAL)?;
        let block: Block = setting.block(bytes, MESSAGES_MAX);
        let affordable = trial * 1e6 * block.budget.as_secs_f64() / RUNS as f64 / bytes as f64;
        let messages = (affordable as usize).clamp(TRIAL, MESSAGES_MAX);
        for link in setting.links() {
            let pairs = usize::from(link != LinkKind::Direct);
            network.set_pipeline(&link.pipeline(pairs))?;
            let (mut tcp, mut sealed, mut plain) = (Vec::new(), Vec::new(), Vec::new());
            for turn in turns(setting.rounds) {
                for _ in 0..RUNS {
                    match turn {
                        Turn::Bare => plain.push(bare(network, bytes, messages)?),
                        Turn::Ours(carrier @ Carrier::Tcp) => {
                            tcp.push(ours(network, carrier, bytes, messages)?)
                        }
                        Turn::Ours(carrier) => sealed.push(ours(network, carrier, bytes, messages)?),
                    }
                }
            }
            // Without pairs pipes and shared memory join the dissertation's modules, and neither joins Outboard's.
            let papers =
                paper::THROUGHPUT_MB_PER_S.iter().filter(|(name, _)| pairs == 0 || *name == link.name());
            rows.extend(papers.map(|(paper_link, paper)| Row {
                experiment: "throughput",
                params: params! {
                    "network": network.kind.name(), "congestion": congestion, "bytes": bytes, "messages": messages,
                    "link": link.name(),
                    "pairs": pairs, "paper_link": paper_link,
                },
                unit: "MB/s",
                ours: mean(&tcp),
                sealed: Some(mean(&sealed)),
                bare: Some(mean(&plain)),
                paper: Some(*paper),
                runs: tcp.len(),
                turns: setting.turns(),
                p50: median(&tcp),
                // The slowest speeds are the tail.
                p99: percentile(&tcp, 0.01),
                bare_p50: Some(median(&plain)),
            }));
        }
        Ok(())
    })?;
    Ok(rows)
}
