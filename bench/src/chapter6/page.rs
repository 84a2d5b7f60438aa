//! Rows as text, and as a page of Markdown.
//!
//! The page's fixed text describes the method alone. Everything about the result is computed from the rows.

use super::figures::Picture;
use super::paper::{DRIVER_FRAMES, Grid, REMARKS, VNC_FRAMES};
use super::row::Row;
use crate::measure::median;
use std::fmt::Write as _;
use std::path::Path;

/// A section of the chapter.
struct Section {
    number: &'static str,
    title: &'static str,
    experiment: &'static str,
    /// The part of the experiment's rows by parameter `part`; empty for all.
    part: &'static str,
    text: &'static str,
    /// Tables of the dissertation without a measurement by Outboard.
    alone: &'static [&'static Grid],
    table: Table,
}

/// The arrangement of rows in tables.
enum Table {
    /// A table for each combination of `apart`.
    Grid { apart: &'static [&'static str], down: &'static str, across: &'static str },
    /// One line a row that starts with these parameters.
    List(&'static [&'static str]),
}

static SECTIONS: &[Section] = &[
    Section {
        number: "6.1",
        title: "Base end-to-end time",
        experiment: "end-to-end",
        part: "",
        text: include_str!("text/end-to-end.md"),
        alone: &[],
        table: Table::Grid { apart: &["network"], down: "paper_link", across: "bytes" },
    },
    Section {
        number: "6.2",
        title: "End-to-end time across a single machine",
        experiment: "single-machine",
        part: "",
        text: include_str!("text/single-machine.md"),
        alone: &[],
        table: Table::Grid { apart: &["cores", "pause_ms"], down: "paper_link", across: "bytes" },
    },
    Section {
        number: "6.3",
        title: "Base throughput",
        experiment: "throughput",
        part: "",
        text: include_str!("text/throughput.md"),
        alone: &[],
        table: Table::List(&["network", "congestion", "link", "pairs", "paper_link"]),
    },
    Section {
        number: "6.4",
        title: "Update speed of a device",
        experiment: "device",
        part: "",
        text: include_str!("text/device.md"),
        alone: &[],
        table: Table::List(&["network", "part"]),
    },
    Section {
        number: "6.5, 6.6",
        title: "Compared to VNC, and adding a compression pair",
        experiment: "screen",
        part: "",
        text: include_str!("text/screen.md"),
        alone: &[&VNC_FRAMES, &DRIVER_FRAMES],
        table: Table::Grid { apart: &["network", "content", "quantity"], down: "program", across: "pixels" },
    },
    Section {
        number: "6.7",
        title: "Performance of pairs: buffering and bundling",
        experiment: "jitter",
        part: "",
        text: include_str!("text/jitter.md"),
        alone: &[],
        table: Table::List(&["jitter_ms", "pair", "pipeline", "statistic", "paper_below_ms"]),
    },
    Section {
        number: "6.8.1",
        title: "Pairs and the time of the whole system",
        experiment: "stages",
        part: "system",
        text: include_str!("text/stages-system.md"),
        alone: &[],
        table: Table::Grid { apart: &["network", "link"], down: "pairs", across: "bytes" },
    },
    Section {
        number: "6.8.2",
        title: "Pairs and the time of a single machine",
        experiment: "stages",
        part: "machine",
        text: include_str!("text/stages-machine.md"),
        alone: &[],
        table: Table::Grid { apart: &["cores", "link"], down: "pairs", across: "bytes" },
    },
    Section {
        number: "6.9.1",
        title: "Video: time between frames across the system",
        experiment: "video",
        part: "",
        text: include_str!("text/video.md"),
        alone: &[],
        table: Table::Grid { apart: &["network", "link"], down: "pairs", across: "side" },
    },
    Section {
        number: "6.9.2",
        title: "Video: a frame on a single machine",
        experiment: "video-single",
        part: "",
        text: include_str!("text/video-single.md"),
        alone: &[],
        table: Table::Grid { apart: &["network", "link"], down: "pairs", across: "side" },
    },
    Section {
        number: "6.9.2",
        title: "Video: slots of shared memory",
        experiment: "batching",
        part: "",
        text: include_str!("text/batching.md"),
        alone: &[],
        table: Table::Grid { apart: &["network", "used"], down: "slots", across: "side" },
    },
];

/// Formats a figure with three significant digits, or with all digits before the point.
pub(super) fn figure(value: f64) -> String {
    let decimals = match value.abs() {
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 1.0 => 2,
        _ => 3,
    };
    let text = format!("{value:.decimals$}");
    // A rounded zero has no sign.
    let text =
        text.strip_prefix('-').filter(|size| size.parse() == Ok(0.0)).map_or(text.clone(), String::from);
    let (whole, rest) =
        text.split_once('.').map_or((text.as_str(), String::new()), |(w, r)| (w, format!(".{r}")));
    let mut grouped = String::new();
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && digit.is_ascii_digit() && (whole.len() - at).is_multiple_of(3) && !grouped.ends_with('-')
        {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped + &rest
}

fn optional(value: Option<f64>) -> String {
    value.map_or("-".into(), figure)
}

/// Formats the rows as text, one a line.
pub(super) fn plain(rows: &[Row]) -> String {
    let header = [
        "experiment",
        "ours",
        "sealed",
        "bare",
        "paper",
        "unit",
        "ours/bare",
        "gain",
        "p50",
        "p99",
        "runs",
        "turns",
    ];
    let mut lines = vec![header.map(String::from)];
    for row in rows {
        let params: Vec<String> =
            row.params.iter().map(|(name, _)| format!("{name}={}", row.param(name))).collect();
        lines.push([
            format!("{} {}", row.experiment, params.join(" ")),
            figure(row.ours),
            optional(row.sealed),
            optional(row.bare),
            optional(row.paper),
            row.unit.into(),
            optional(row.to_bare()),
            optional(row.gain()),
            figure(row.p50),
            figure(row.p99),
            row.runs.to_string(),
            row.turns.to_string(),
        ]);
    }
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; 12] = std::array::from_fn(width);
    let mut text = String::new();
    for line in &lines {
        let cells = line.iter().zip(widths).enumerate().map(|(column, (cell, width))| match column {
            0 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
    text
}

fn table(header: &[String], lines: impl Iterator<Item = Vec<String>>) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let mut text = line(header);
    text += &line(&vec!["---".into(); header.len()]);
    lines.for_each(|cells| text += &line(&cells));
    text
}

/// Returns the values of a parameter in the order of the rows.
fn values(rows: &[&Row], name: &str) -> Vec<String> {
    let mut values = Vec::new();
    for row in rows {
        let value = row.param(name);
        if !values.contains(&value) {
            values.push(value);
        }
    }
    values
}

/// Groups rows by the values of parameters, in the order of the rows.
fn groups<'a>(rows: &[&'a Row], names: &[&str]) -> Vec<(Vec<String>, Vec<&'a Row>)> {
    let mut groups: Vec<(Vec<String>, Vec<&Row>)> = Vec::new();
    for row in rows {
        let key: Vec<String> = names.iter().map(|name| row.param(name)).collect();
        match groups.iter_mut().find(|(known, _)| *known == key) {
            Some((_, group)) => group.push(row),
            None => groups.push((key, vec![row])),
        }
    }
    groups
}

/// Formats a table with a line for each value of `down` and each series.
fn grid(rows: &[&Row], down: &str, across: &str) -> String {
    let columns = values(rows, across);
    let mut header =
        vec![down.replace("paper_link", "paper's link"), rows.first().map_or("", |row| row.unit).into()];
    header.extend(columns.iter().cloned());
    type Cell = fn(&Row) -> Option<f64>;
    let kinds: [(&str, Cell); 6] = [
        ("ours", |row| Some(row.ours)),
        ("sealed", |row| row.sealed),
        ("bare", |row| row.bare),
        ("paper", |row| row.paper),
        ("ours / bare", Row::to_bare),
        ("paper / ours", Row::gain),
    ];
    let labels = values(rows, down);
    let lines = labels.iter().flat_map(|label| {
        let of = |column: &String| {
            rows.iter().find(|row| row.param(down) == *label && row.param(across) == *column).copied()
        };
        let found: Vec<Option<&Row>> = columns.iter().map(of).collect();
        kinds.iter().filter_map(move |(kind, cell)| {
            let cells: Vec<Option<f64>> = found.iter().map(|row| row.and_then(cell)).collect();
            cells.iter().any(Option::is_some).then(|| {
                let mut line = vec![label.clone(), kind.to_string()];
                line.extend(cells.into_iter().map(optional));
                line
            })
        })
    });
    table(&header, lines)
}

fn list(rows: &[&Row], names: &[&str]) -> String {
    let mut header: Vec<String> = names.iter().map(|name| name.replace('_', " ")).collect();
    let columns = [
        "ours",
        "sealed",
        "bare",
        "paper",
        "unit",
        "ours / bare",
        "against the paper",
        "p50",
        "p99",
        "runs",
        "turns",
    ];
    header.extend(columns.map(String::from));
    let lines = rows.iter().map(|row| {
        let mut line: Vec<String> =
            names.iter().map(|name| row.param(name).replace("null", "-").replace('|', "\\|")).collect();
        line.extend([
            figure(row.ours),
            optional(row.sealed),
            optional(row.bare),
            optional(row.paper),
            row.unit.into(),
            optional(row.to_bare()),
            optional(row.gain()),
            figure(row.p50),
            figure(row.p99),
            row.runs.to_string(),
            row.turns.to_string(),
        ]);
        line
    });
    table(&header, lines)
}

/// Formats a table as the dissertation prints it.
fn printed(grid: &Grid) -> String {
    let mut header = vec![grid.axes[0].to_string()];
    header.extend(grid.columns.iter().map(|column| format!("{column} {}", grid.axes[1])));
    let lines = grid.rows.iter().map(|(label, figures)| {
        let mut line = vec![label.to_string()];
        line.extend(figures.iter().map(|us| figure(*us as f64)));
        line
    });
    format!("Table {}: {}, {}.\n\n{}", grid.table, grid.title, grid.unit, table(&header, lines))
}

/// The ratios of each group: least, median, most.
fn ratios(rows: &[&Row], apart: &[&str]) -> String {
    type Ratio = fn(&Row) -> Option<f64>;
    let kinds: [(&str, Ratio); 3] = [
        ("ours / bare", Row::to_bare),
        ("sealed / ours", |row| row.sealed.map(|sealed| sealed / row.ours)),
        ("paper / ours", Row::gain),
    ];
    let kinds: Vec<_> =
        kinds.into_iter().filter(|(_, of)| rows.iter().any(|row| of(row).is_some())).collect();
    let mut header: Vec<String> = apart.iter().map(|name| name.replace('_', " ")).collect();
    header.push("points".into());
    for (name, _) in &kinds {
        header.extend(["least", "median", "most"].map(|kind| format!("{name}: {kind}")));
    }
    let lines = groups(rows, apart).into_iter().map(|(mut line, group)| {
        line.push(group.len().to_string());
        for (_, of) in &kinds {
            let ratios: Vec<f64> = group.iter().filter_map(|row| of(row)).collect();
            let [least, most] = [f64::min as fn(f64, f64) -> f64, f64::max]
                .map(|choose| ratios.iter().copied().reduce(choose));
            line.extend([least, (!ratios.is_empty()).then(|| median(&ratios)), most].map(optional));
        }
        line
    });
    table(&header, lines)
}

/// The most points that [`below_bare`] names.
const NAMED_MAX: usize = 12;

/// Names the points at which Outboard's median is below the bare program's.
fn below_bare(rows: &[&Row], names: &[&str]) -> String {
    let of: Vec<f64> = rows.iter().filter_map(|row| row.to_bare()).collect();
    let below: Vec<&&Row> =
        rows.iter().filter(|row| row.to_bare().is_some_and(|ratio| ratio < 1.0)).collect();
    if below.is_empty() {
        return String::new();
    }
    let point = |row: &&&Row| {
        let values: Vec<String> =
            names.iter().map(|name| format!("{} {}", name.replace('_', " "), row.param(name))).collect();
        format!("{} ({})", values.join(", "), optional(row.to_bare()))
    };
    let mut named: Vec<String> = below.iter().take(NAMED_MAX).map(point).collect();
    if below.len() > NAMED_MAX {
        named.push(format!("and {} more", below.len() - NAMED_MAX));
    }
    format!(
        "\nOutboard's median is below the bare program's at {} of {} points: {}.\n",
        below.len(),
        of.len(),
        named.join("; ")
    )
}

/// The times at the smallest size and the growth to the largest, by group.
fn slopes(rows: &[&Row], apart: &[&str], across: &str) -> String {
    let columns = values(rows, across);
    let (Some(smallest), Some(largest)) = (columns.first(), columns.last()) else { return String::new() };
    type Cell = fn(&Row) -> Option<f64>;
    let kinds: [(&str, Cell); 4] = [
        ("ours", |row| Some(row.ours)),
        ("sealed", |row| row.sealed),
        ("bare", |row| row.bare),
        ("paper", |row| row.paper),
    ];
    let mut header: Vec<String> = apart.iter().map(|name| name.replace('_', " ")).collect();
    for (name, _) in kinds {
        header.extend([format!("{name}: us at {smallest} {across}"), format!("{name}: ns a further byte")]);
    }
    let lines = groups(rows, apart).into_iter().map(|(mut line, group)| {
        let at = |column: &str| group.iter().find(|row| row.param(across) == column);
        for (_, of) in kinds {
            let [first, last] = [smallest, largest].map(|column| at(column).and_then(|row| of(row)));
            let bytes = at(largest).zip(at(smallest)).map(|(b, a)| b.number(across) - a.number(across));
            let slope = first.zip(last).zip(bytes).filter(|(_, bytes)| *bytes > 0.0);
            line.extend(
                [first, slope.map(|((first, last), bytes)| (last - first) / bytes * 1e3)].map(optional),
            );
        }
        line
    });
    table(&header, lines)
}

/// The cost of a pair by group at the smallest and at the largest column.
fn growth(rows: &[&Row], apart: &[&str], across: &str) -> String {
    let columns = values(rows, across);
    let (Some(smallest), Some(largest)) = (columns.first(), columns.last()) else { return String::new() };
    let mut header: Vec<String> = apart.iter().map(|name| name.to_string()).collect();
    for column in [smallest, largest] {
        for kind in ["us without pairs", "us a pair", "% a pair", "paper, % a pair"] {
            header.push(format!("{column} {across}: {kind}"));
        }
    }
    let lines = groups(rows, apart).into_iter().map(|(mut line, own)| {
        for column in [smallest, largest] {
            let of: Vec<&&Row> = own.iter().filter(|row| row.param(across) == *column).collect();
            let (Some(first), Some(last)) = (of.first(), of.last()) else { continue };
            let pairs = (last.number("pairs") - first.number("pairs")).max(1.0);
            let per_cent = |first: f64, last: f64| 100.0 * (last / first - 1.0) / pairs;
            let papers = first.paper.zip(last.paper).map(|(first, last)| per_cent(first, last));
            line.extend([
                figure(first.ours),
                figure((last.ours - first.ours) / pairs),
                figure(per_cent(first.ours, last.ours)),
                optional(papers),
            ]);
        }
        line
    });
    table(&header, lines)
}

impl Section {
    fn markdown(&self, rows: &[Row], pictures: &[Picture], directory: &str) -> String {
        let own: Vec<&Row> = rows
            .iter()
            .filter(|row| row.experiment == self.experiment && row.section() == self.part)
            .collect();
        if own.is_empty() {
            return String::new();
        }
        let mut text = format!("\n## {} {}\n\n{}", self.number, self.title, self.text);
        for (_, remark) in REMARKS.iter().filter(|(section, _)| *section == self.number) {
            text += &format!("\nOn the dissertation: {remark}\n");
        }
        for picture in pictures.iter().filter(|p| p.experiment == self.experiment && p.part == self.part) {
            text += &format!("\n![{}]({directory}/{})\n", picture.title, picture.file);
        }
        for grid in self.alone {
            text += &format!("\n{}", printed(grid));
        }
        text + &match &self.table {
            Table::List(names) => format!("\n{}", list(&own, names)),
            Table::Grid { apart, down, across } => self.grids(&own, apart, down, across),
        }
    }

    /// The computed summary and the folded tables of a section.
    fn grids(&self, own: &[&Row], apart: &[&str], down: &str, across: &str) -> String {
        let mut text = String::new();
        if down == "pairs" {
            text += &format!("\n{}", growth(own, apart, across));
        }
        if down == "paper_link" {
            text += &format!("\n{}", slopes(own, &[apart, &[down]].concat(), across));
        }
        // The screen's rows compare programs; their ratios are rows of their own.
        if self.experiment != "screen" {
            text += &format!("\n{}", ratios(own, apart));
            text += &below_bare(own, &[apart, &[down, across]].concat());
        }
        for (key, of) in groups(own, apart) {
            let named: Vec<String> = apart
                .iter()
                .zip(&key)
                .map(|(name, value)| format!("{} {value}", name.replace('_', " ")))
                .collect();
            text += &format!(
                "\n<details><summary>{}; {} runs a point in {} turns</summary>\n\n{}\n</details>\n",
                named.join(", "),
                span(of.iter().map(|row| row.runs)),
                span(of.iter().map(|row| row.turns)),
                grid(&of, down, across)
            );
        }
        text
    }
}

/// Formats the smallest and the largest number.
fn span(numbers: impl Iterator<Item = usize> + Clone) -> String {
    let (least, most) = (numbers.clone().min().unwrap_or(0), numbers.max().unwrap_or(0));
    if least == most { least.to_string() } else { format!("{least} to {most}") }
}

/// Formats the page: every measured section with its text, pictures and tables.
pub(super) fn page(rows: &[Row], pictures: &[Picture], directory: &Path, provenance: &str) -> String {
    let directory = directory.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let mut text = format!("# Chapter 6\n\n{provenance}\n\n{}", include_str!("text/head.md"));
    for section in SECTIONS {
        text += &section.markdown(rows, pictures, &directory);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chapter6::row::params;

    fn row(bytes: usize, pairs: usize, bare: Option<f64>) -> Row {
        Row {
            experiment: "stages",
            params: params! { "bytes": bytes, "pairs": pairs },
            unit: "us",
            ours: 10.0 * (pairs + 1) as f64,
            sealed: None,
            bare,
            paper: Some(40.0),
            runs: 3,
            turns: 2,
            p50: 10.0,
            p99: 20.0,
            bare_p50: bare,
        }
    }

    #[test]
    fn figures_have_three_digits_and_thousands_apart() {
        for (value, text) in [
            (0.0471, "0.047"),
            (-0.0001, "0.000"),
            (-0.0471, "-0.047"),
            (3.456, "3.46"),
            (45.67, "45.7"),
            (123.4, "123"),
            (91_988.2, "91,988"),
            (1e6, "1,000,000"),
        ] {
            assert_eq!(figure(value), text);
        }
    }

    #[test]
    fn a_grid_has_a_line_for_each_measured_series() {
        let rows = [row(100, 0, None), row(1000, 0, None), row(100, 2, Some(20.0)), row(1000, 2, None)];
        let rows: Vec<&Row> = rows.iter().collect();
        let text = grid(&rows, "pairs", "bytes");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "| pairs | us | 100 | 1000 |");
        assert_eq!(
            lines[2..5],
            [
                "| 0 | ours | 10.0 | 10.0 |",
                "| 0 | paper | 40.0 | 40.0 |",
                "| 0 | paper / ours | 4.00 | 4.00 |"
            ]
        );
        assert_eq!(lines[6..8], ["| 2 | bare | 20.0 | - |", "| 2 | paper | 40.0 | 40.0 |"]);
        // 100 bytes grow from 10 to 30 us with two pairs.
        assert!(growth(&rows, &[], "bytes").contains("| 10.0 | 10.0 | 100 | 0.000 |"));
    }

    #[test]
    fn points_below_the_bare_program_are_named() {
        let rows = [row(100, 0, Some(20.0)), row(1000, 0, Some(5.0))];
        let rows: Vec<&Row> = rows.iter().collect();
        assert_eq!(
            below_bare(&rows, &["bytes"]),
            "\nOutboard's median is below the bare program's at 1 of 2 points: bytes 100 (0.500).\n"
        );
        assert!(
            ratios(&rows, &["pairs"]).contains("| 0 | 2 | 0.500 | 2.00 | 2.00 |"),
            "{}",
            ratios(&rows, &["pairs"])
        );
    }
}
