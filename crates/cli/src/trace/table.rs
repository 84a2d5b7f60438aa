//! The table: the duration of each step, by the size of the messages.

use super::passage::{Part, Passage, Path};
use crate::output::printable;
use pipeline::Stamps;
use serde::Serialize;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Largest message of each size class, bytes.
const CLASSES: [u32; 5] = [100, 1000, 10_000, 100_000, u32::MAX];
/// Number of recent times that the percentiles cover.
const TIMES_MAX: usize = 1 << 14;
const PART_COLUMNS: usize = 34;

/// Times of one step, nanoseconds.
#[derive(Debug, Default)]
struct Times {
    last: Vec<u64>,
    next: usize,
    count: u64,
    max: u64,
}

impl Times {
    fn add(&mut self, ns: u64) {
        if self.last.len() < TIMES_MAX {
            self.last.push(ns)
        } else {
            self.last[self.next] = ns
        }
        self.next = (self.next + 1) % TIMES_MAX;
        self.count += 1;
        self.max = self.max.max(ns);
    }

    /// Returns percentiles, microseconds.
    fn percentiles_us<const N: usize>(&self, shares: [f64; N]) -> [f64; N] {
        let mut sorted = self.last.clone();
        sorted.sort_unstable();
        let last = sorted.len().saturating_sub(1);
        shares.map(|share| {
            sorted.get((share * last as f64).round() as usize).map_or(0.0, |ns| *ns as f64 / 1e3)
        })
    }
}

/// Sort key of a row.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    class: usize,
    /// 0: steps, 1: sums, 2: steps outside of this program.
    block: u8,
    part: Part,
}

#[derive(Debug, Default)]
struct Rows {
    times: BTreeMap<Place, Times>,
    passed: u64,
    sampled: u64,
    overwritten: u64,
    unfinished: u64,
}

/// All traced messages.
#[derive(Debug, Default)]
pub(super) struct Table {
    paths: BTreeMap<Rc<Path>, Rows>,
}

/// One flow on one host, for `--json`.
#[derive(Serialize)]
struct Flow<'a> {
    process: i32,
    role: &'a str,
    device: &'a str,
    peer: &'a str,
    direction: &'static str,
    pipeline: String,
    /// Number of messages: all, the sampled ones, and the sampled ones that did not finish.
    passed: u64,
    sampled: u64,
    unfinished: u64,
    /// Stamps that were lost because their buffer was full.
    overwritten: u64,
    rows: Vec<Row<'a>>,
}

#[derive(Serialize)]
struct Row<'a> {
    /// Largest message of the size class; `None` for the last class.
    bytes_max: Option<u32>,
    part: &'a str,
    kind: &'static str,
    count: u64,
    p50_us: f64,
    p90_us: f64,
    p99_us: f64,
    max_us: f64,
}

/// The whole table, for `--json`.
#[derive(Serialize)]
pub(super) struct View<'a> {
    flows: Vec<Flow<'a>>,
}

impl Table {
    /// Adds the counts of one collection of a flow.
    pub(super) fn count(&mut self, path: &Rc<Path>, stamps: &Stamps) {
        let rows = self.paths.entry(Rc::clone(path)).or_default();
        rows.passed += stamps.passed;
        rows.sampled += stamps.sampled;
        rows.overwritten += stamps.overwritten;
    }

    /// Sets the number of unfinished messages of each path.
    pub(super) fn set_unfinished(&mut self, unfinished: &BTreeMap<Rc<Path>, u64>) {
        for (path, count) in unfinished {
            self.paths.entry(Rc::clone(path)).or_default().unfinished = *count;
        }
    }

    /// Adds one message.
    pub(super) fn add(&mut self, passage: &Passage) {
        let class = CLASSES.iter().position(|max| passage.bytes <= *max).unwrap_or(CLASSES.len() - 1);
        let rows = self.paths.entry(Rc::clone(&passage.path)).or_default();
        // Repeated steps of one message add up to one time.
        let mut all: BTreeMap<Place, u64> = BTreeMap::new();
        let blocks: [Vec<_>; 3] = [
            passage.parts().collect(),
            passage.sums().collect(),
            passage.elsewhere().into_iter().chain(passage.kernel.iter().cloned()).collect(),
        ];
        for (block, parts) in (0..).zip(blocks) {
            for (part, from, to) in parts {
                *all.entry(Place { class, block, part }).or_default() += to - from;
            }
        }
        for (place, ns) in all {
            rows.times.entry(place).or_default().add(ns);
        }
    }

    /// Returns the whole table.
    pub(super) fn view(&self) -> View<'_> {
        View { flows: self.paths.iter().map(|(path, rows)| Flow::new(path, rows)).collect() }
    }
}

impl<'a> Flow<'a> {
    fn new(path: &'a Path, rows: &'a Rows) -> Flow<'a> {
        Flow {
            process: path.process,
            role: &path.role,
            device: &path.device,
            peer: &path.peer,
            direction: path.direction(),
            pipeline: path.pairs.join(" | "),
            passed: rows.passed,
            sampled: rows.sampled,
            unfinished: rows.unfinished,
            overwritten: rows.overwritten,
            rows: rows.times.iter().map(|(place, times)| Row::new(place, times)).collect(),
        }
    }
}

impl<'a> Row<'a> {
    fn new(place: &'a Place, times: &Times) -> Row<'a> {
        let [p50_us, p90_us, p99_us] = times.percentiles_us([0.5, 0.9, 0.99]);
        Row {
            bytes_max: Some(CLASSES[place.class]).filter(|max| *max < u32::MAX),
            part: &place.part.name,
            kind: place.part.kind,
            count: times.count,
            p50_us,
            p90_us,
            p99_us,
            max_us: times.max as f64 / 1e3,
        }
    }
}

impl View<'_> {
    /// Formats the table as text.
    pub(super) fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if self.flows.is_empty() {
            lines.push("nothing traced: this user runs no flow here, or the flows carry no messages".into());
        }
        for flow in &self.flows {
            if !lines.is_empty() {
                lines.push(String::new());
            }
            let Flow { role, process, device, direction, peer, pipeline, .. } = flow;
            lines.push(format!("{device}: {direction}, {role} process {process}, other host {peer}"));
            let via = if pipeline.is_empty() { "no pairs" } else { pipeline };
            lines.push(format!(
                "    {via}; {} of {} messages sampled, {} unfinished, {} stamps lost",
                flow.sampled, flow.passed, flow.unfinished, flow.overwritten
            ));
            let mut class = None;
            for row in &flow.rows {
                if class.replace(row.bytes_max) != Some(row.bytes_max) {
                    let size = row.bytes_max.map_or("larger".into(), |max| format!("up to {max} B"));
                    lines.push(format!(
                        "    {size:<PART_COLUMNS$} {:<9} {:>8} {:>10} {:>10} {:>10} {:>10}",
                        "", "COUNT", "P50 us", "P90 us", "P99 us", "MAX us"
                    ));
                }
                lines.push(format!(
                    "      {:<part$} {:<9} {:>8} {:>10} {:>10} {:>10} {:>10}",
                    row.part,
                    row.kind,
                    row.count,
                    time(row.p50_us),
                    time(row.p90_us),
                    time(row.p99_us),
                    time(row.max_us),
                    part = PART_COLUMNS - 2,
                ));
            }
        }
        lines.iter().map(|line| printable(line)).collect()
    }
}

/// Formats microseconds with two decimals below 1000.
fn time(us: f64) -> String {
    if us < 1000.0 { format!("{us:.2}") } else { format!("{us:.0}") }
}
