//! Sections 6.5 and 6.6: the screen of the far host, painted, captured, sent, and painted again here: pictures a second,
//! bytes and processor time a picture, beside TigerVNC, x11vnc, GStreamer and a bare program.
//!
//! The far host has an X server, a painter and a server of the screen; this host has a receiver. Each picture contains
//! its number twice, and counts when both arrive. The painter stays two pictures ahead of the newest that arrived, so that
//! painting does not take the processor from the server. A film keeps its own rate.

mod page;
mod receive;
mod servers;

use super::network::Network;
use super::row::{Row, params};
use super::setting::ChapterSetting;
use crate::display::{Content, is_installed};
use crate::measure::Times;
use crate::programs::progress;
use crate::provenance::Provenance;
use crate::setting::Failure;
use clap::{Args, ValueEnum};
use receive::Seen;
use servers::{Program, programs};
use std::path::PathBuf;

/// The dissertation's updates of a point.
const UPDATES: usize = 2000;
/// Side of the pictures that every program shows.
const SIDE: usize = 700;
/// Sides of pictures of varied sizes, the dissertation's of section 6.9.
const SIDES: [usize; 7] = [100, 200, 300, 400, 500, 600, 700];

/// The settings of `screen`.
#[derive(Args, Debug, Clone)]
pub(crate) struct ScreenSetting {
    #[command(flatten)]
    pub(crate) chapter: ChapterSetting,
    /// Contents of the pictures [default: all]
    #[arg(long = "content", value_delimiter = ',')]
    contents: Vec<Content>,
    /// Programs, by the start of their names [default: all]
    #[arg(long = "program", value_delimiter = ',')]
    programs: Vec<String>,
    /// The pipeline of Outboard's compressed row
    #[arg(long, default_value = servers::COMPRESSED)]
    compressed: String,
    /// Write the page to this file
    #[arg(long)]
    page: Option<PathBuf>,
    /// Add this run's section to the page instead
    #[arg(long, requires = "page")]
    add: bool,
}

impl ScreenSetting {
    /// The settings as part of the chapter. A quick run has one content.
    pub(crate) fn of_chapter(chapter: &ChapterSetting) -> ScreenSetting {
        let contents = if chapter.repeats.is_some() { vec![Content::Flat] } else { Vec::new() };
        let compressed = servers::COMPRESSED.into();
        let (programs, page, add) = (Vec::new(), None, false);
        ScreenSetting { chapter: chapter.clone(), contents, programs, compressed, page, add }
    }

    /// Returns the sides of the pictures.
    fn sides(&self, content: Content) -> Vec<usize> {
        ChapterSetting::or(&self.chapter.sizes, if content.is_varied() { SIDES.to_vec() } else { vec![SIDE] })
    }

    fn wants(&self, program: &Program) -> bool {
        self.programs.is_empty() || self.programs.iter().any(|begin| program.name.starts_with(begin))
    }
}

/// One point with the results of all turns.
#[derive(Default)]
struct Point {
    times: Times,
    bytes: Vec<f64>,
    cpu_us: Vec<f64>,
}

impl Point {
    fn add(&mut self, seen: Seen) {
        self.times.append(&seen.times);
        self.bytes.push(seen.bytes);
        self.cpu_us.push(seen.cpu_us);
    }

    fn quantities(&self) -> [(&'static str, &'static str, f64); 3] {
        let mean = |figures: &[f64]| figures.iter().sum::<f64>() / figures.len().max(1) as f64;
        [
            ("time between pictures", "us", self.times.mean_us()),
            ("bytes a picture", "bytes", mean(&self.bytes)),
            ("processor time a picture", "us", mean(&self.cpu_us)),
        ]
    }
}

/// Returns the rows of one content and size, with Outboard's ratios to the other programs.
fn rows(
    network: &Network,
    content: Content,
    side: usize,
    points: &[(&Program, Point)],
    turns: usize,
) -> Vec<Row> {
    let mut rows = Vec::new();
    let find = |name: &str| points.iter().find(|(program, _)| program.name == name).map(|(_, point)| point);
    let params = |program: &str, quantity: &str| {
        params! {
            "network": network.kind.name(), "content": content.name(), "quantity": quantity, "program": program,
            "pixels": side * side, "varied": content.is_varied(),
        }
    };
    for (program, point) in points {
        for (at, (quantity, unit, value)) in point.quantities().into_iter().enumerate() {
            let bare = find("bare").filter(|_| program.name.starts_with("outboard"));
            let is_time = at == 0;
            let percentile = |share| if is_time { point.times.percentile_us(share) } else { value };
            rows.push(Row {
                experiment: "screen",
                params: params(program.name, quantity),
                unit,
                ours: value,
                sealed: None,
                bare: bare.map(|bare| bare.quantities()[at].2),
                paper: None,
                runs: point.times.count(),
                turns,
                p50: percentile(0.5),
                p99: percentile(0.99),
                bare_p50: bare.map(|bare| match is_time {
                    true => bare.times.percentile_us(0.5),
                    false => bare.quantities()[at].2,
                }),
            });
        }
    }
    if content == Content::Film {
        return rows;
    }
    let mut compare = |ours: &str, with: &str, label: &str| {
        let (Some(ours), Some(fastest)) = (
            find(ours),
            points
                .iter()
                .filter(|(program, _)| program.name.starts_with(with))
                .min_by(|(_, a), (_, b)| a.times.mean_us().total_cmp(&b.times.mean_us())),
        ) else {
            return;
        };
        let [(_, _, our_us), (_, _, our_bytes), _] = ours.quantities();
        let [(_, _, their_us), (_, _, their_bytes), _] = fastest.1.quantities();
        for (quantity, value) in
            [("times as fast", their_us / our_us), ("times the bytes", our_bytes / their_bytes)]
        {
            rows.push(Row {
                experiment: "screen",
                params: params(&format!("{label} ({})", fastest.0.name), quantity),
                unit: "times",
                ours: value,
                sealed: None,
                bare: None,
                paper: None,
                runs: ours.times.count(),
                turns,
                p50: value,
                p99: value,
                bare_p50: None,
            });
        }
    };
    compare("outboard", "bare", "outboard against the bare program");
    compare("outboard", "gstreamer", "outboard against GStreamer");
    compare("outboard", "tigervnc", "outboard against the fastest TigerVNC");
    compare("outboard", "x11vnc", "outboard against the fastest x11vnc");
    compare("outboard compressed", "tigervnc tight", "outboard compressed against Tight");
    rows
}

/// Measures sections 6.5 and 6.6 as part of the chapter.
pub(crate) fn screen_of_chapter(setting: &ChapterSetting) -> Result<Vec<Row>, Failure> {
    screen(&ScreenSetting::of_chapter(setting))
}

/// Measures sections 6.5 and 6.6.
pub(crate) fn screen(setting: &ScreenSetting) -> Result<Vec<Row>, Failure> {
    let provenance = Provenance::of_this_run();
    let mut there = Vec::new();
    for program in programs(&setting.compressed) {
        if !setting.wants(&program) {
            continue;
        }
        match program.needs().iter().find(|needed| !is_installed(needed.0)) {
            Some((command, package)) => progress(&format!(
                "SKIPPED screen, {}: there is no {command}: scripts/setup {command}:{package}",
                program.name
            )),
            None => there.push(program),
        }
    }
    let contents = ChapterSetting::or(&setting.contents, Content::value_variants().iter().copied());
    let mut all = Vec::new();
    Network::each(&setting.chapter, &[], |network| {
        for content in &contents {
            for side in setting.sides(*content) {
                let film = content.film(side);
                let is_for_all = side == SIDE || !setting.chapter.sizes.is_empty();
                let shown = there.iter().filter(|program| is_for_all || program.shows_every_size);
                let mut points: Vec<(&Program, Point)> =
                    shown.map(|program| (program, Point::default())).collect();
                for round in 0..setting.chapter.turns() {
                    // Every other round runs in reverse order.
                    let mut order: Vec<_> = points.iter_mut().collect();
                    if !round.is_multiple_of(2) {
                        order.reverse();
                    }
                    for (program, point) in order {
                        progress(&format!(
                            "screen, {}, {} {side}, {}",
                            network.kind,
                            content.name(),
                            program.name
                        ));
                        let block = setting.chapter.block(0, UPDATES);
                        match program.run(network, &film, side, &block) {
                            Ok(seen) => point.add(seen),
                            Err(error) => {
                                progress(&format!("FAILED screen, {}: {error}", program.name));
                            }
                        }
                    }
                }
                points.retain(|(_, point)| point.times.count() > 0);
                all.extend(rows(network, *content, side, &points, setting.chapter.turns()));
            }
        }
        Ok(())
    })?;
    if let Some(file) = &setting.page {
        page::write(file, &all, &provenance, SIDE * SIDE, setting.add)?;
    }
    Ok(all)
}
