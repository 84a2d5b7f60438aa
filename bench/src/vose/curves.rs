//! The speedup that is enough: figures 3.11 and 3.12 of the thesis.

use super::ask::{Answer, PairTimes, Question, pair_times};
use super::clock::Clock;
use super::{Bench, Programs, Study, times};
use crate::measure::median;
use crate::plot::{Chart, Line, Scale};
use crate::setting::Failure;
use serde_json::{Value, json};
use std::fmt::Write as _;

/// A light work, near to the speed of the memory, as a checksum is.
const CHECKSUM: &str = "encrypt";
/// Three works for those of IPsec. Nothing shrinks the message, so each handles all its bytes.
const THREE: &str = "compress(level=1) | encrypt(chacha20-poly1305) | encrypt";
const THREE_LABELS: [&str; 3] = ["compress", "encrypt:1", "encrypt:2"];
const THREE_NAMES: [&str; 3] = ["`compress(level=1)`", "`encrypt(chacha20-poly1305)`", "`encrypt`"];
/// The works of IPsec from the heaviest to the lightest, by figure 3.12.
const IPSEC: [&str; 3] = ["SHA1", "AES", "CBC"];
/// The five devices of figure 3.12, as places in [`IPSEC`].
const DEVICES: [(&str, &[usize]); 5] = [
    ("AES-only", &[1]),
    ("AES-CBC", &[1, 2]),
    ("SHA1-only", &[0]),
    ("SHA1-AES", &[0, 1]),
    ("SHA1-AES-CBC", &[0, 1, 2]),
];
/// The speedups from which the thesis sees no further gain: of the checksum (3.5.4) and of SHA-1 alone (3.6.2).
const THESIS_CHECKSUM: f64 = 3.0;
const THESIS_SHA1: f64 = 10.0;
/// A speedup is enough if it brings this share of the largest gain, and a gain below the noise is none: as in `whatif`.
const ENOUGH_SHARE: f64 = 0.95;
const NOISE: f64 = 0.03;
/// The place of infinity on the logarithmic axis of speedups.
const INFINITY_AT: f64 = 100.0;

/// The gains of one combination.
struct Curve {
    name: String,
    /// For each speedup, the median.
    points: Vec<(f64, f64)>,
    bytes_per_second: Vec<f64>,
}

impl Curve {
    /// Returns the smallest speedup that is enough.
    fn enough(&self) -> Option<f64> {
        let most = self.points.iter().map(|(_, gain)| gain - 1.0).fold(0.0, f64::max);
        let is_enough = |gain: f64| most > NOISE && gain - 1.0 >= ENOUGH_SHARE * most;
        self.points.iter().find(|(_, gain)| is_enough(*gain)).map(|(speedup, _)| *speedup)
    }

    fn enough_text(&self) -> String {
        self.enough().map_or("no gain".into(), times)
    }

    fn json(&self) -> Value {
        let point = |((speedup, gain), rate): (&(f64, f64), &f64)| json!({ "speedup": times(*speedup), "gain": gain, "bytes_per_second": rate });
        let points: Vec<Value> = self.points.iter().zip(&self.bytes_per_second).map(point).collect();
        json!({ "faster": self.name, "points": points, "enough": self.enough().map(times) })
    }
}

/// The curves of several combinations in one pipeline, and the median of its throughput.
fn curves(
    bench: &Bench<'_>,
    programs: &Programs,
    via: &str,
    combinations: &[(String, String)],
) -> Result<(f64, Vec<Curve>), Failure> {
    let setting = bench.setting;
    let mut by = setting.by.clone();
    by.sort_by(f64::total_cmp);
    let faster: Vec<String> = combinations.iter().map(|(_, faster)| faster.clone()).collect();
    let question =
        Question { via, faster: &faster, by: &by, sample: &bench.sample, seconds: setting.seconds };
    let answers = (0..setting.rounds)
        .map(|_| question.ask(programs, &Clock::Full))
        .collect::<Result<Vec<Answer>, Failure>>()?;
    let middle = |of: &dyn Fn(&Answer) -> f64| median(&answers.iter().map(of).collect::<Vec<_>>());
    let curve = |(row, (name, _)): (usize, &(String, String))| Curve {
        name: name.clone(),
        points: (0..by.len())
            .map(|at| (by[at], middle(&|answer| answer.rows[row].points[at].gain)))
            .collect(),
        bytes_per_second: (0..by.len())
            .map(|at| middle(&|answer| answer.rows[row].points[at].bytes_per_second))
            .collect(),
    };
    Ok((middle(&|answer| answer.bytes_per_second), combinations.iter().enumerate().map(curve).collect()))
}

/// A title, and the text of a curve's cell below it.
type Column<'a> = (&'a str, &'a dyn Fn(&Curve) -> String);

fn table(curves: &[Curve], last: &[Column<'_>]) -> String {
    let speedups: Vec<String> =
        curves.iter().take(1).flat_map(|curve| &curve.points).map(|(by, _)| times(*by)).collect();
    let more: Vec<&str> = last.iter().map(|(title, _)| *title).collect();
    let titles =
        [vec!["faster".to_string()], speedups, more.iter().map(|title| title.to_string()).collect()].concat();
    let mut text = format!("| {} |\n|{}\n", titles.join(" | "), "---|".repeat(titles.len()));
    for curve in curves {
        let gains: Vec<String> = curve.points.iter().map(|(_, gain)| format!("{gain:.2}")).collect();
        let more: Vec<String> = last.iter().map(|(_, cell)| cell(curve)).collect();
        // Writing to a string cannot fail.
        let _ = writeln!(text, "| {} | {} | {} |", curve.name, gains.join(" | "), more.join(" | "));
    }
    text
}

fn chart(title: &'static str, curves: &[Curve]) -> Chart<'static> {
    let line = |curve: &Curve| {
        let place = |speedup: f64| if speedup.is_finite() { speedup } else { INFINITY_AT };
        let points = curve.points.iter().map(|(speedup, gain)| [place(*speedup), *gain]);
        // As it is, nothing is faster.
        Line::solid(curve.name.clone(), [[1.0, 1.0]].into_iter().chain(points).collect())
    };
    Chart {
        title,
        axes: ["speedup (100: inf)", "gain"],
        scales: [Scale::Logarithmic, Scale::Linear],
        lines: curves.iter().map(line).collect(),
    }
}

/// One light work: figure 3.11.
pub(super) fn saturation(bench: &Bench<'_>) -> Result<Study, Failure> {
    let combinations = [("`encrypt` with extensions".to_string(), CHECKSUM.to_string())];
    let (rate, curves) = curves(bench, &bench.hardware, CHECKSUM, &combinations)?;
    let thesis = |_: &Curve| times(THESIS_CHECKSUM);
    let text = format!(
        "Figure 3.11 is of the TCP checksum, a work that reads each byte once. Outboard has no pair for a checksum alone. `encrypt` with the \
         extensions of the processor stands for it: its tag is a checksum of the whole message, and its work is the lightest of all pairs. \
         As it is: {:.1} MB/s; the gain by speedup:\n\n{}",
        rate / 1e6,
        table(&curves, &[("enough", &Curve::enough_text), ("enough in the thesis", &thesis)])
    );
    Ok(Study {
        title: "A light work: the checksum of figure 3.11",
        text,
        charts: vec![("saturation", chart("Gain of a faster light work (figure 3.11)", &curves))],
        figures: json!({ "bytes_per_second": rate, "curves": curves.iter().map(Curve::json).collect::<Vec<_>>() }),
        broken: None,
    })
}

/// Returns the places of the pairs of [`THREE`] from the heaviest to the lightest.
fn by_weight(times: &[PairTimes]) -> Vec<usize> {
    let mut places: Vec<usize> = (0..times.len()).collect();
    places.sort_by(|a, b| times[*b].sum().total_cmp(&times[*a].sum()));
    places
}

/// Three works together: figure 3.12.
pub(super) fn combinations(bench: &Bench<'_>) -> Result<Study, Failure> {
    let times = pair_times(&bench.software, THREE, &bench.sample, bench.setting.seconds)?;
    if times.len() != THREE_LABELS.len() {
        return Err(format!("pair-times has {} pairs of `{THREE}`", times.len()).into());
    }
    let places = by_weight(&times);
    let combinations = DEVICES.map(|(name, works)| {
        let faster: Vec<&str> = works.iter().map(|work| THREE_LABELS[places[*work]]).collect();
        (name.to_string(), faster.join("+"))
    });
    let (rate, curves) = curves(bench, &bench.software, THREE, &combinations)?;
    let mut text = format!(
        "Figure 3.12 is of IPsec in software, with five devices that take some of its three works. Here the pipeline is \
         `{THREE}` in software, with these works by their measured weight:\n\n\
         | work of IPsec | stands for it | source half, us | sink half, us |\n|---|---|---|---|\n"
    );
    for (work, place) in IPSEC.iter().zip(&places) {
        let PairTimes { source_us, sink_us } = times[*place];
        // Writing to a string cannot fail.
        let _ = writeln!(text, "| {work} | {} | {source_us:.1} | {sink_us:.1} |", THREE_NAMES[*place]);
    }
    let pairs = |curve: &Curve| {
        let found = combinations.iter().find(|(name, _)| *name == curve.name);
        found.map_or(String::new(), |(_, faster)| format!("`{faster}`"))
    };
    let thesis = |curve: &Curve| match curve.name.as_str() {
        "SHA1-only" => super::times(THESIS_SHA1),
        "SHA1-AES-CBC" => "inf".into(),
        _ => String::new(),
    };
    let _ = write!(
        text,
        "\nAs it is: {:.1} MB/s; the gain by speedup:\n\n{}",
        rate / 1e6,
        table(
            &curves,
            &[("pairs", &pairs), ("enough", &Curve::enough_text), ("enough in the thesis", &thesis)]
        )
    );
    Ok(Study {
        title: "Three works: the five devices of figure 3.12",
        text,
        charts: vec![("combinations", chart("Gain of five devices (figure 3.12)", &curves))],
        figures: json!({ "bytes_per_second": rate, "curves": curves.iter().map(Curve::json).collect::<Vec<_>>() }),
        broken: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_heaviest_work_stands_for_the_heaviest_one() {
        let times = [1.0, 9.0, 4.0].map(|us| PairTimes { source_us: us, sink_us: us });
        assert_eq!(by_weight(&times), [1, 2, 0]);
    }

    #[test]
    fn the_smallest_speedup_that_is_enough_is_found() {
        let curve = |gains: [f64; 3]| Curve {
            name: "work".into(),
            points: [2.0, 4.0, f64::INFINITY].into_iter().zip(gains).collect(),
            bytes_per_second: vec![1.0; 3],
        };
        assert_eq!(curve([1.5, 1.98, 2.0]).enough(), Some(4.0));
        assert_eq!(curve([1.01, 0.99, 1.02]).enough(), None);
    }
}
