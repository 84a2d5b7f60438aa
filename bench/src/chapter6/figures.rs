//! The chapter's figures, drawn from rows on the dissertation's axes. [`SERIES`] has the lines of each figure.

use super::paper::DEVICE_US;
use super::row::Row;
use crate::plot::{Chart, Line, Scale, Stack, Stroke};
use crate::setting::Failure;
use std::path::Path;

/// A series of a figure: stroke, name, and value in a row.
type Series = (Stroke, &'static str, fn(&Row) -> Option<f64>);

/// The series of the figures.
const SERIES: [Series; 4] = [
    (Stroke::Solid, "ours over TCP", |row| Some(row.ours)),
    (Stroke::DashDotted, "ours over sealed QUIC", |row| row.sealed),
    (Stroke::Dashed, "bare program", |row| row.bare),
    (Stroke::Dotted, "paper", |row| row.paper),
];

/// A figure of the dissertation and the rows that it shows.
struct Figure {
    number: &'static str,
    title: &'static str,
    experiment: &'static str,
    /// Parameters and their required values.
    only: &'static [(&'static str, &'static str)],
    /// Parameters with a separate picture for each value.
    apart: &'static [&'static str],
    /// The parameter along the horizontal axis and the axis's title.
    across: (&'static str, &'static str),
    /// The parameter with a separate colour for each value.
    group: &'static str,
    up: &'static str,
    scales: [Scale; 2],
    /// True for frames a second instead of microseconds a frame.
    is_rate: bool,
}

const LINEAR: [Scale; 2] = [Scale::Linear; 2];
const LOGARITHMIC: [Scale; 2] = [Scale::Logarithmic; 2];
const BYTES: (&str, &str) = ("bytes", "message, bytes");
const SIDE: (&str, &str) = ("side", "side of the square frame, pixels");

const fn by_bytes(
    number: &'static str,
    title: &'static str,
    experiment: &'static str,
    only: &'static [(&'static str, &'static str)],
    apart: &'static [&'static str],
    group: &'static str,
) -> Figure {
    let (up, scales) = ("time, us", LOGARITHMIC);
    Figure { number, title, experiment, only, apart, across: BYTES, group, up, scales, is_rate: false }
}

const fn by_side(
    number: &'static str,
    title: &'static str,
    experiment: &'static str,
    only: &'static [(&'static str, &'static str)],
    up: &'static str,
    is_rate: bool,
) -> Figure {
    let (apart, group): (&'static [&'static str], _) = (&["network"], "pairs");
    let scales = [Scale::Linear, Scale::Logarithmic];
    Figure { number, title, experiment, only, apart, across: SIDE, group, up, scales, is_rate }
}

static FIGURES: &[Figure] = &[
    by_bytes("6.2", "End to end, no pairs", "end-to-end", &[], &["network"], "paper_link"),
    by_bytes(
        "6.4",
        "A single machine, no pairs",
        "single-machine",
        &[("pause_ms", "0.0")],
        &["cores"],
        "paper_link",
    ),
    Figure {
        number: "6.9",
        title: "Frames a second by pixels",
        experiment: "screen",
        only: &[("quantity", "time between pictures"), ("varied", "true")],
        apart: &["network", "content"],
        across: ("pixels", "pixels a frame"),
        group: "program",
        up: "frames/s",
        scales: LOGARITHMIC,
        is_rate: true,
    },
    Figure {
        number: "6.12",
        title: "Rhythm after a network with jitter",
        experiment: "jitter",
        only: &[("statistic", "mean")],
        apart: &[],
        across: ("jitter_ms", "jitter, ms"),
        group: "pair",
        up: "difference of inter-message times, ms",
        scales: LINEAR,
        is_rate: false,
    },
    by_bytes(
        "6.16",
        "End to end by pairs, pipes",
        "stages",
        &[("part", "system"), ("link", "pipe")],
        &["network"],
        "pairs",
    ),
    by_bytes(
        "6.17",
        "End to end by pairs, shared memory",
        "stages",
        &[("part", "system"), ("link", "shm")],
        &["network"],
        "pairs",
    ),
    by_bytes(
        "6.16-direct",
        "End to end by pairs, calls",
        "stages",
        &[("part", "system"), ("link", "direct")],
        &["network"],
        "pairs",
    ),
    by_bytes(
        "6.19",
        "A single machine by pairs, pipes",
        "stages",
        &[("part", "machine"), ("link", "pipe")],
        &["cores"],
        "pairs",
    ),
    by_bytes(
        "6.20",
        "A single machine by pairs, shared memory",
        "stages",
        &[("part", "machine"), ("link", "shm")],
        &["cores"],
        "pairs",
    ),
    by_bytes(
        "6.19-direct",
        "A single machine by pairs, calls",
        "stages",
        &[("part", "machine"), ("link", "direct")],
        &["cores"],
        "pairs",
    ),
    by_side("6.22", "Frames a second, pipes", "video", &[("link", "pipe")], "frames/s", true),
    by_side("6.23", "Frames a second, shared memory", "video", &[("link", "shm")], "frames/s", true),
    by_side("6.24", "Time between frames, pipes", "video", &[("link", "pipe")], "time, us", false),
    by_side("6.25", "Time between frames, shared memory", "video", &[("link", "shm")], "time, us", false),
    Figure {
        number: "6.26",
        title: "Time between frames of 700 pixels, by link",
        experiment: "video",
        only: &[("side", "700")],
        apart: &["network"],
        across: ("pairs", "pairs"),
        group: "link",
        up: "time, us",
        scales: LINEAR,
        is_rate: false,
    },
    by_side(
        "6.28-pipe",
        "A frame on one machine, pipes",
        "video-single",
        &[("link", "pipe")],
        "time, us",
        false,
    ),
    by_side(
        "6.28-shm",
        "A frame on one machine, shared memory",
        "video-single",
        &[("link", "shm")],
        "time, us",
        false,
    ),
    Figure {
        number: "6.29",
        title: "A frame on one machine, by slots of shared memory",
        experiment: "batching",
        only: &[],
        apart: &["network", "used"],
        across: ("slots", "slots"),
        group: "side",
        up: "time, us",
        scales: [Scale::Linear, Scale::Logarithmic],
        is_rate: false,
    },
];

impl Figure {
    fn shows(&self, row: &Row) -> bool {
        row.experiment == self.experiment && self.only.iter().all(|(name, value)| row.param(name) == *value)
    }

    /// Returns the part of a file name that distinguishes the figure's pictures.
    fn variant(&self, row: &Row) -> String {
        self.apart.iter().map(|name| format!("-{}", row.param(name))).collect()
    }

    fn value(&self, us: f64) -> f64 {
        if self.is_rate { 1e6 / us } else { us }
    }

    /// Returns the lines of one group, one for each series with values.
    fn lines(&self, group: &str, rows: &[&Row]) -> Vec<Line> {
        let of = |stroke, figure: &dyn Fn(&Row) -> Option<f64>| {
            let point = |row: &&Row| Some([row.number(self.across.0), self.value(figure(row)?)]);
            let points: Vec<_> = rows.iter().filter_map(point).collect();
            Line { group: group.into(), stroke, points, deviations: Vec::new() }
        };
        let lines = SERIES.iter().map(|(stroke, _, figure)| of(*stroke, figure));
        lines.filter(|line| !line.points.is_empty()).collect()
    }

    /// Returns the lines of a picture. Standard deviations are bars.
    fn chart(&self, all: &[Row], rows: &[&Row]) -> Vec<Line> {
        let mut groups: Vec<String> = Vec::new();
        for row in rows {
            let group = row.param(self.group);
            if !groups.contains(&group) {
                groups.push(group);
            }
        }
        let mut lines = Vec::new();
        for group in &groups {
            let own: Vec<&Row> = rows.iter().filter(|row| row.param(self.group) == *group).copied().collect();
            let mut drawn = self.lines(&format!("{} {group}", self.group_name()), &own);
            if let (Some(line), "jitter") = (drawn.first_mut(), self.experiment) {
                line.deviations = deviations(all, &own);
            }
            lines.extend(drawn);
        }
        lines
    }

    fn group_name(&self) -> &'static str {
        match self.group {
            "paper_link" => "paper:",
            "pair" | "program" => "",
            other => other,
        }
    }
}

/// Returns the standard deviations of `rows`.
fn deviations(all: &[Row], rows: &[&Row]) -> Vec<f64> {
    let same = |row: &Row, other: &Row| {
        ["jitter_ms", "pair"].iter().all(|name| row.param(name) == other.param(name))
            && other.param("statistic") == "standard deviation"
    };
    rows.iter().map(|row| all.iter().find(|other| same(row, other)).map_or(0.0, |other| other.ours)).collect()
}

/// A written picture: its file and its title.
pub(crate) struct Picture {
    pub(crate) file: String,
    pub(crate) title: String,
    pub(crate) experiment: &'static str,
    /// The part of the experiment, if it has parts.
    pub(crate) part: String,
}

fn save(directory: &Path, file: &str, svg: String) -> Result<(), Failure> {
    let path = directory.join(file);
    std::fs::write(&path, svg).map_err(|error| format!("cannot write {}: {error}", path.display()).into())
}

/// Draws figure 6.6: the parts of an update's path on each network, with the dissertation's.
fn parts_of_an_update(rows: &[Row], directory: &Path) -> Result<Option<Picture>, Failure> {
    let own: Vec<&Row> = rows.iter().filter(|row| row.experiment == "device").collect();
    let parts = DEVICE_US.map(|(part, _)| part);
    let bar = |of: &dyn Fn(&Row) -> Option<f64>, network: &str| -> Vec<f64> {
        let part = |part: &&str| {
            own.iter().find(|row| row.param("part") == **part && row.param("network") == network)
        };
        parts.iter().map(|name| part(name).and_then(|row| of(row)).unwrap_or(0.0)).collect()
    };
    let mut bars = Vec::new();
    for row in own.iter().filter(|row| row.param("part") == parts[0]) {
        let network = row.param("network");
        for (_, name, figure) in SERIES.iter().filter(|(_, name, _)| *name != "paper") {
            bars.push((format!("{name}, {network}"), bar(figure, &network)));
        }
    }
    if bars.is_empty() {
        return Ok(None);
    }
    bars.push(("paper".into(), DEVICE_US.map(|(_, us)| us).to_vec()));
    let title = "Figure 6.6: path of a 3D mouse's update";
    let file = "figure-6.6.svg";
    save(directory, file, Stack { title, axis: "time, us", parts: &parts, bars }.svg())?;
    Ok(Some(Picture { file: file.into(), title: title.into(), experiment: "device", part: String::new() }))
}

/// Names the strokes of a picture. Lines of `screen` are programs, and the network is only in some experiments.
fn strokes(lines: &[Line], experiment: &str) -> String {
    let is_drawn = |stroke| lines.iter().any(|line| line.stroke == stroke);
    let name = |stroke, name: &'static str| match stroke {
        Stroke::Solid if experiment == "screen" => "measured",
        Stroke::Solid if !is_drawn(Stroke::DashDotted) => "ours",
        _ => name,
    };
    let drawn = SERIES.iter().filter(|(stroke, ..)| is_drawn(*stroke));
    drawn
        .map(|(stroke, series, _)| format!("{}: {}", stroke.name(), name(*stroke, series)))
        .collect::<Vec<_>>()
        .join("; ")
}

/// Draws the rows' figures into `directory`. Returns the pictures.
pub(crate) fn write(rows: &[Row], directory: &Path) -> Result<Vec<Picture>, Failure> {
    std::fs::create_dir_all(directory)
        .map_err(|error| format!("cannot make {}: {error}", directory.display()))?;
    let mut pictures = parts_of_an_update(rows, directory)?.into_iter().collect::<Vec<_>>();
    for figure in FIGURES {
        let shown: Vec<&Row> = rows.iter().filter(|row| figure.shows(row)).collect();
        let mut variants: Vec<String> = Vec::new();
        for row in &shown {
            let variant = figure.variant(row);
            if !variants.contains(&variant) {
                variants.push(variant);
            }
        }
        for variant in variants {
            let own: Vec<&Row> = shown.iter().filter(|row| figure.variant(row) == variant).copied().collect();
            let first = own.first().copied();
            let names = figure.apart.iter().filter_map(|name| Some(format!("{name} {}", first?.param(name))));
            let names = names.collect::<Vec<_>>().join(", ");
            let suffix = if names.is_empty() { String::new() } else { format!(" ({names})") };
            let lines = figure.chart(rows, &own);
            let title = format!(
                "Figure {}: {}{suffix}. {}",
                figure.number.split('-').next().unwrap_or_default(),
                figure.title,
                strokes(&lines, figure.experiment)
            );
            let chart =
                Chart { title: &title, axes: [figure.across.1, figure.up], scales: figure.scales, lines };
            let file = format!("figure-{}{variant}.svg", figure.number);
            save(directory, &file, chart.svg())?;
            let part = first.map(Row::section).unwrap_or_default();
            pictures.push(Picture { file, title, experiment: figure.experiment, part });
        }
    }
    Ok(pictures)
}
