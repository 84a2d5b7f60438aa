//! What people read: rows as text, and the page `docs/chapter6.md`.

use super::figures::Picture;
use super::paper::{DRIVER_FRAMES, Grid, REMARKS, VNC_FRAMES};
use super::{Row, instruments};
use std::fmt::Write as _;
use std::path::Path;

/// A section of the chapter on the page.
struct Section {
    number: &'static str,
    title: &'static str,
    experiment: &'static str,
    /// Which part of the experiment's rows, by parameter `part`; empty for all.
    part: &'static str,
    text: &'static str,
    /// Tables of the dissertation that stand here without a measurement of ours.
    alone: &'static [&'static Grid],
    table: Table,
}

/// How rows become tables.
enum Table {
    /// A table for each value of the first parameters; one of the others goes down, the other across.
    Grid { apart: &'static [&'static str], down: &'static str, across: &'static str },
    /// One line a row, with these parameters in front.
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
        table: Table::List(&["network", "link", "pairs", "paper_link"]),
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
        table: Table::List(&["jitter_ms", "pair", "statistic", "paper_below_ms"]),
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

/// Three digits that count, or all before the point.
pub(crate) fn figure(value: f64) -> String {
    let decimals = match value.abs() {
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 1.0 => 2,
        _ => 3,
    };
    let text = format!("{value:.decimals$}");
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

/// How many times faster than the dissertation's; of speeds, how many times as fast.
fn gain(row: &Row) -> Option<f64> {
    let paper = row.paper?;
    Some(if row.unit == "MB/s" { row.ours / paper } else { paper / row.ours })
}

fn share_of_limit(row: &Row) -> Option<f64> {
    row.limit.map(|limit| row.ours / limit)
}

/// The rows as text, one a line.
pub(crate) fn plain(rows: &[Row]) -> String {
    let mut lines = vec![
        ["experiment", "ours", "limit", "paper", "unit", "ours/limit", "gain", "p50", "p99", "runs"]
            .map(String::from),
    ];
    for row in rows {
        let params: Vec<String> =
            row.params.iter().map(|(name, _)| format!("{name}={}", row.param(name))).collect();
        lines.push([
            format!("{} {}", row.experiment, params.join(" ")),
            figure(row.ours),
            optional(row.limit),
            optional(row.paper),
            row.unit.into(),
            optional(share_of_limit(row)),
            optional(gain(row)),
            figure(row.p50),
            figure(row.p99),
            row.runs.to_string(),
        ]);
    }
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; 10] = std::array::from_fn(width);
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

/// The values of a parameter, in the order of the rows.
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

/// Ours, the limit, the dissertation's and the two ratios, each a line, for each value that goes down.
fn grid(rows: &[&Row], down: &str, across: &str) -> String {
    let columns = values(rows, across);
    let mut header =
        vec![down.replace("paper_link", "paper's link"), rows.first().map_or("", |row| row.unit).into()];
    header.extend(columns.iter().cloned());
    type Cell = fn(&Row) -> Option<f64>;
    let kinds: [(&str, Cell); 5] = [
        ("ours", |row| Some(row.ours)),
        ("limit", |row| row.limit),
        ("paper", |row| row.paper),
        ("ours / limit", share_of_limit),
        ("paper / ours", gain),
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
    header.extend(
        ["ours", "limit", "paper", "unit", "ours / limit", "against the paper", "p50", "p99", "runs"]
            .map(String::from),
    );
    let lines = rows.iter().map(|row| {
        let mut line: Vec<String> = names.iter().map(|name| row.param(name).replace("null", "-")).collect();
        line.extend([
            figure(row.ours),
            optional(row.limit),
            optional(row.paper),
            row.unit.into(),
            optional(share_of_limit(row)),
            optional(gain(row)),
            figure(row.p50),
            figure(row.p99),
            row.runs.to_string(),
        ]);
        line
    });
    table(&header, lines)
}

/// The dissertation's table, as it is.
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

/// What a pair adds, by what tells tables apart: at the smallest and the largest column, ours and the dissertation's.
fn growth(rows: &[&Row], apart: &[&str], across: &str) -> String {
    let mut keys: Vec<Vec<String>> = Vec::new();
    for row in rows {
        let key = apart.iter().map(|name| row.param(name)).collect();
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    let columns = values(rows, across);
    let (Some(smallest), Some(largest)) = (columns.first(), columns.last()) else { return String::new() };
    let mut header: Vec<String> = apart.iter().map(|name| name.to_string()).collect();
    for column in [smallest, largest] {
        for kind in ["us without", "us a pair", "% a pair", "paper, % a pair"] {
            header.push(format!("{column} {across}: {kind}"));
        }
    }
    let lines = keys.into_iter().map(|key| {
        let own: Vec<&Row> = rows
            .iter()
            .filter(|row| apart.iter().zip(&key).all(|(name, value)| row.param(name) == *value))
            .copied()
            .collect();
        let mut line = key.clone();
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
        let mut text = format!("\n## {} {}\n\n{}", self.number, self.title, self.text);
        for (_, remark) in REMARKS.iter().filter(|(section, _)| *section == self.number) {
            text += &format!("\nReading the dissertation: {remark}\n");
        }
        if own.is_empty() && self.alone.is_empty() {
            return text + "\nNot measured in this run.\n";
        }
        for picture in pictures.iter().filter(|p| p.experiment == self.experiment && p.part == self.part) {
            text += &format!("\n![{}]({directory}/{})\n", picture.title, picture.file);
        }
        for grid in self.alone {
            text += &format!("\n{}", printed(grid));
        }
        if own.is_empty() {
            return text + "\nOurs is not measured in this run.\n";
        }
        match &self.table {
            Table::List(names) => text += &format!("\n{}", list(&own, names)),
            Table::Grid { apart, down, across } => {
                if *down == "pairs" {
                    text += &format!("\n{}", growth(&own, apart, across));
                }
                let mut keys: Vec<Vec<String>> = Vec::new();
                for row in &own {
                    let key: Vec<String> = apart.iter().map(|name| row.param(name)).collect();
                    if !keys.contains(&key) {
                        keys.push(key);
                    }
                }
                for key in keys {
                    let of: Vec<&Row> = own
                        .iter()
                        .filter(|row| apart.iter().zip(&key).all(|(name, value)| row.param(name) == *value))
                        .copied()
                        .collect();
                    let named: Vec<String> = apart
                        .iter()
                        .zip(&key)
                        .map(|(name, value)| format!("{} {value}", name.replace('_', " ")))
                        .collect();
                    let runs = of.iter().map(|row| row.runs);
                    let (least, most) = (runs.clone().min().unwrap_or(0), runs.max().unwrap_or(0));
                    text += &format!(
                        "\n<details><summary>{}; {least} to {most} runs a point</summary>\n\n{}\n</details>\n",
                        named.join(", "),
                        grid(&of, down, across)
                    );
                }
            }
        }
        text
    }
}

/// The page: every section with its text, its pictures and its tables.
pub(crate) fn page(rows: &[Row], pictures: &[Picture], directory: &Path, machine: &str) -> String {
    let directory = directory.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let mut text = format!(
        "# Chapter 6\n\n{machine}\nTCP's congestion control on loopback: {}; in the labs: cubic.\n\n{}",
        instruments::congestion(),
        include_str!("text/head.md")
    );
    for section in SECTIONS {
        text += &section.markdown(rows, pictures, &directory);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chapter6::params;

    #[test]
    fn figures_have_three_digits_and_thousands_apart() {
        for (value, text) in [
            (0.0471, "0.047"),
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
    fn a_grid_has_a_line_for_each_kind_of_figure_that_is_there() {
        let row = |bytes: usize, pairs: usize, limit: Option<f64>| Row {
            experiment: "stages",
            params: params! { "bytes": bytes, "pairs": pairs },
            unit: "us",
            ours: 10.0 * (pairs + 1) as f64,
            limit,
            paper: Some(40.0),
            runs: 3,
            p50: 1.0,
            p99: 2.0,
        };
        let rows = [row(100, 0, None), row(1000, 0, None), row(100, 2, Some(20.0)), row(1000, 2, None)];
        let text = grid(&rows.iter().collect::<Vec<_>>(), "pairs", "bytes");
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
        assert_eq!(lines[6..8], ["| 2 | limit | 20.0 | - |", "| 2 | paper | 40.0 | 40.0 |"]);
        // 100 bytes grow from 10 to 30 us with two pairs.
        assert!(
            growth(&rows.iter().collect::<Vec<_>>(), &[], "bytes").contains("| 10.0 | 10.0 | 100 | 0.000 |")
        );
    }
}
