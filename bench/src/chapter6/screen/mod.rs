//! Sections 6.5 and 6.6: the screen of the far host, painted, captured, sent, and painted again here, as pictures a second,
//! bytes and processor time a picture; beside TigerVNC, x11vnc and GStreamer, and a bare program that does the same.
//!
//! The far host has an X server, a program that paints into it, and one that serves what it shows; this host has a
//! receiver. What is painted has a number in it: a picture counts when its number is seen here, whole. The next is painted
//! when one is seen, two ahead, so that no program is drowned in painting that nobody sees; a film goes its own pace.

mod page;
mod receive;
mod servers;

use super::network::Network;
use super::{ChapterSetting, Row, params, progress};
use crate::Failure;
use crate::display::{Content, is_installed};
use crate::measure::Times;
use clap::{Args, ValueEnum};
use receive::Seen;
use servers::{Program, programs};
use std::path::PathBuf;

/// The dissertation's updates of a point.
const UPDATES: usize = 2000;
/// The side of the pictures that change whole, as in the goals.
const SIDE: usize = 700;
/// Sides of the squares that give the mean number of pixels: the dissertation's frames of section 6.9.
const SIDES: [usize; 7] = [100, 200, 300, 400, 500, 600, 700];

/// What to measure.
#[derive(Args, Debug, Clone)]
pub(crate) struct ScreenSetting {
    #[command(flatten)]
    pub(crate) chapter: ChapterSetting,
    /// What is painted [default: all]
    #[arg(long = "content", value_delimiter = ',')]
    contents: Vec<Content>,
    /// Programs whose names begin so [default: all]
    #[arg(long = "program", value_delimiter = ',')]
    programs: Vec<String>,
    /// The pipeline of Outboard's compressed row
    #[arg(long, default_value = servers::COMPRESSED)]
    compressed: String,
    /// Write a page to this file, Markdown
    #[arg(long)]
    page: Option<PathBuf>,
    /// Show on it also what `--json` of an earlier run wrote to this file
    #[arg(long = "with")]
    earlier: Vec<PathBuf>,
}

impl ScreenSetting {
    /// All of it, or a little of it where a few measurements are asked for.
    pub(crate) fn of_chapter(chapter: &ChapterSetting) -> ScreenSetting {
        let contents = if chapter.repeats.is_some() { vec![Content::Flat] } else { Vec::new() };
        let compressed = servers::COMPRESSED.into();
        let (programs, page, earlier) = (Vec::new(), None, Vec::new());
        ScreenSetting { chapter: chapter.clone(), contents, programs, compressed, page, earlier }
    }

    /// Sides of the squares that are painted.
    fn sides(&self, content: Content) -> Vec<usize> {
        ChapterSetting::or(&self.chapter.sizes, if content.is_varied() { SIDES.to_vec() } else { vec![SIDE] })
    }

    fn is_asked_for(&self, program: &Program) -> bool {
        self.programs.is_empty() || self.programs.iter().any(|begin| program.name.starts_with(begin))
    }
}

/// One point: what each of the turns brought together.
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

/// The rows of one content and size, and how many times as fast as others ours is.
fn rows(network: &Network, content: Content, side: usize, points: &[(&Program, Point)]) -> Vec<Row> {
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
                limit: bare.map(|bare| bare.quantities()[at].2),
                paper: None,
                runs: point.times.count(),
                p50: percentile(0.5),
                p99: percentile(0.99),
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
                limit: None,
                paper: None,
                runs: ours.times.count(),
                p50: value,
                p99: value,
            });
        }
    };
    compare("outboard", "bare", "outboard against the bare program");
    compare("outboard", "gstreamer", "outboard against GStreamer");
    compare("outboard", "tigervnc", "outboard against TigerVNC at its best");
    compare("outboard", "x11vnc", "outboard against x11vnc at its best");
    compare("outboard compressed", "tigervnc tight", "outboard compressed against Tight");
    rows
}

/// Sections 6.5 and 6.6 with everything there is.
pub(crate) fn screen_of_chapter(setting: &ChapterSetting) -> Result<Vec<Row>, Failure> {
    screen(&ScreenSetting::of_chapter(setting))
}

/// Sections 6.5 and 6.6.
pub(crate) fn screen(setting: &ScreenSetting) -> Result<Vec<Row>, Failure> {
    let mut there = Vec::new();
    for program in programs(&setting.compressed) {
        if !setting.is_asked_for(&program) {
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
                for _ in 0..setting.chapter.rounds.max(1) {
                    for (program, point) in &mut points {
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
                all.extend(rows(network, *content, side, &points));
            }
        }
        Ok(())
    })?;
    if let Some(file) = &setting.page {
        let mut rows = page::read(&setting.earlier)?;
        rows.extend(all.iter().map(serde_json::to_value).collect::<Result<Vec<_>, _>>()?);
        page::write(file, &rows)?;
    }
    Ok(all)
}
