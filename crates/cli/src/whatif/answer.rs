//! The answer of `outboard whatif`: a table with a picture, or JSON.

use serde::{Serialize, Serializer};
use std::fmt::Write as _;

/// A speedup is enough if it brings this share of the gain without any work.
const ENOUGH_SHARE: f64 = 0.95;
/// Gains below this are none: repeated runs differ by as much.
const NOISE: f64 = 0.03;
/// The widest bar of the picture, in columns.
const BAR_COLUMNS: f64 = 30.0;

/// All measurements.
#[derive(Debug, Serialize)]
pub(super) struct Answer {
    /// The pipeline.
    pub(super) pipeline: String,
    /// The other host, or this one.
    pub(super) host: String,
    pub(super) transport: String,
    pub(super) message_bytes: usize,
    /// Throughput with all work done.
    pub(super) bytes_per_second: f64,
    pub(super) processors: Processors,
    /// Throughput with all work left out for its own time, divided by the one above, minus 1.
    pub(super) method_error: f64,
    pub(super) rows: Vec<Row>,
}

/// The processor time of the threads that run both halves, in seconds a second.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Processors {
    /// The half at the device; `None` on another host.
    pub(super) sender: Option<f64>,
    pub(super) receiver: f64,
}

/// The pairs that become faster together.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    pub(super) faster: Vec<String>,
    pub(super) points: Vec<Point>,
    /// The least of the speedups that is enough; `None` if even the largest gains nothing.
    #[serde(serialize_with = "speedup_or_null")]
    pub(super) enough: Option<f64>,
}

/// A speedup, and its effect.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Point {
    #[serde(serialize_with = "speedup")]
    pub(super) speedup: f64,
    pub(super) bytes_per_second: f64,
    /// Divided by the throughput with all work done.
    pub(super) gain: f64,
    pub(super) processors: Processors,
}

/// JSON has no infinity: `"inf"`.
fn speedup<S: Serializer>(speedup: &f64, to: S) -> Result<S::Ok, S::Error> {
    match speedup.is_finite() {
        true => to.serialize_f64(*speedup),
        false => to.serialize_str("inf"),
    }
}

fn speedup_or_null<S: Serializer>(value: &Option<f64>, to: S) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) => speedup(value, to),
        None => to.serialize_none(),
    }
}

impl Row {
    /// Creates a row; the points are in rising order of speedup.
    pub(super) fn new(faster: Vec<String>, points: Vec<Point>) -> Row {
        let most = points.iter().map(|point| point.gain - 1.0).fold(0.0, f64::max);
        let enough = points.iter().find(|point| most > NOISE && point.gain - 1.0 >= ENOUGH_SHARE * most);
        let enough = enough.map(|point| point.speedup);
        Row { faster, points, enough }
    }

    fn verdict(&self) -> String {
        match self.enough {
            None => "no gain".into(),
            Some(speedup) if speedup.is_finite() => format!("{speedup} times as fast is enough"),
            Some(_) => "the faster the better".into(),
        }
    }
}

/// Returns a throughput with its unit.
fn rate(bytes_per_second: f64) -> String {
    match bytes_per_second {
        rate if rate >= 1e9 => format!("{:.2} GB/s", rate / 1e9),
        rate if rate >= 1e6 => format!("{:.1} MB/s", rate / 1e6),
        rate => format!("{:.1} kB/s", rate / 1e3),
    }
}

impl Answer {
    /// Returns the table with the picture.
    pub(super) fn text(&self) -> String {
        let Answer { pipeline, host, transport, message_bytes, .. } = self;
        let mut text = format!(
            "{pipeline}\nmessages of {message_bytes} bytes from {host} over {transport}: {}\n\n",
            rate(self.bytes_per_second)
        );
        let names: Vec<String> = self.rows.iter().map(|row| row.faster.join(" + ")).collect();
        let width = names.iter().map(String::len).max().unwrap_or(0).max("faster".len());
        let most = self.rows.iter().flat_map(|row| &row.points).map(|point| point.gain).fold(1.0, f64::max);
        // Writing to a string cannot fail.
        let _ = write!(text, "{:width$}", "faster");
        for point in self.rows.first().map_or(&[][..], |row| &row.points) {
            let _ = write!(text, " {:>6}", format!("{}x", point.speedup));
        }
        text.push('\n');
        for (row, name) in self.rows.iter().zip(&names) {
            let _ = write!(text, "{name:width$}");
            for point in &row.points {
                let _ = write!(text, " {:>6.2}", point.gain);
            }
            let _ = writeln!(text, "  {}", row.verdict());
        }
        text.push('\n');
        let bar = |gain: f64| "█".repeat((BAR_COLUMNS * gain / most).round() as usize);
        let _ = writeln!(text, "{:width$} {} {}", "as it is", bar(1.0), rate(self.bytes_per_second));
        for (row, name) in self.rows.iter().zip(&names) {
            if let Some(last) = row.points.last() {
                let _ = writeln!(text, "{name:width$} {} {}", bar(last.gain), rate(last.bytes_per_second));
            }
        }
        let _ = writeln!(
            text,
            "\nA gain is the throughput divided by that of the pipeline as it is. Work left out for exactly its own time\n\
             gives {:+.1} %: the error of this method here, with that of the machine.",
            100.0 * self.method_error
        );
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUSY: Processors = Processors { sender: Some(0.75), receiver: 1.0 };

    fn row(gains: [f64; 3]) -> Row {
        let points = [2.0, 4.0, f64::INFINITY].into_iter().zip(gains);
        let point = |(speedup, gain)| Point { speedup, bytes_per_second: gain * 1e8, gain, processors: BUSY };
        Row::new(vec!["encrypt".into()], points.map(point).collect())
    }

    #[test]
    fn the_least_speedup_that_is_enough_is_named() {
        assert_eq!(row([1.5, 1.98, 2.0]).enough, Some(4.0));
        assert_eq!(row([1.2, 1.4, 2.0]).enough, Some(f64::INFINITY));
        assert_eq!(row([1.01, 0.99, 1.02]).enough, None);
    }

    #[test]
    fn the_table_and_the_json_have_all_figures() {
        let answer = Answer {
            pipeline: "encrypt".into(),
            host: "this host".into(),
            transport: "tcp".into(),
            message_bytes: 1000,
            bytes_per_second: 1e8,
            processors: BUSY,
            method_error: -0.012,
            rows: vec![row([1.5, 1.98, 2.0])],
        };
        let text = answer.text();
        for part in ["100.0 MB/s", "infx", "1.98", "4 times as fast is enough", "200.0 MB/s", "-1.2 %"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let json = serde_json::to_value(&answer).unwrap();
        assert_eq!(json["rows"][0]["points"][2]["speedup"], "inf");
        assert_eq!(json["rows"][0]["enough"], 4.0);
        assert_eq!(json["rows"][0]["points"][0]["processors"]["sender"], 0.75);
    }
}
