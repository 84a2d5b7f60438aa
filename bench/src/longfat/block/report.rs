//! The tables and pictures of `block`.

use super::copy::Copied;
use super::protocol::Protocol;
use super::{BlockSetting, Figures, Row};
use crate::plot::{Chart, Line, Scale, Stroke};
use crate::setting::Failure;
use std::fmt::Write as _;
use std::path::Path;

/// Returns the place of a row on an axis.
type Place<'a> = &'a dyn Fn(&Row) -> u32;
/// Returns one of the figures.
type Figure<'a> = &'a dyn Fn(&Figures) -> f64;

/// The figures of a row for each fixed number, and for the one that is found.
fn all(row: &Row) -> impl Iterator<Item = Figures> {
    row.fixed.iter().map(|(_, figures, _)| *figures).chain([row.found])
}

fn head(setting: &BlockSetting, before: &[&str], after: &[&str]) -> String {
    let fixed = setting.sessions.iter().map(u32::to_string);
    let titles: Vec<String> = (before.iter().map(|title| title.to_string()))
        .chain(fixed)
        .chain(after.iter().map(|title| title.to_string()))
        .collect();
    format!("| {} |\n|{}\n", titles.join(" | "), "---|".repeat(titles.len()))
}

fn path(row: &Row) -> String {
    let network = row.network;
    format!("{} | {} | {}", network.rate_mbit, network.round_trip_ms, network.loss_percent)
}

fn cells(figures: impl Iterator<Item = String>) -> String {
    figures.collect::<Vec<_>>().join(" | ")
}

/// Returns all tables.
pub(super) fn text(setting: &BlockSetting, protocol: &Protocol, rows: &[Row], requests: &str) -> String {
    const PATH: [&str; 3] = ["Mbit/s", "round trip, ms", "loss, %"];
    let mut text = format!(
        "The application reads 10 MB at a time and {} MB ahead from a disk server ({}). Both hosts use {} and TCP buffers of at most {} KiB, the \
         link has a queue of {} packets: table 2.1 of *Improving TCP Throughput for Cloud Applications* (2014). Goodput in Mbit/s by number of \
         sessions (figures 2.10 and 2.11):\n\n{}",
        setting.read_ahead_mb,
        protocol.name,
        setting.congestion,
        setting.socket_bytes >> 10,
        setting.queue,
        head(setting, &PATH, &["found", "sessions found", "of the best", "1 with bbr and large buffers"])
    );
    // Writing to a string cannot fail.
    for row in rows {
        let (_, best) = row.best();
        let _ = writeln!(
            text,
            "| {} | {} | {} | {:.2} | {:.0} |",
            path(row),
            cells(all(row).map(|figures| format!("{:.0}", figures.mbit))),
            row.found.sessions,
            row.found.mbit / best.max(f64::MIN_POSITIVE),
            row.modern.mbit
        );
    }
    if let Some((words, _)) = protocol.copy {
        let head = head(setting, &PATH, &[]);
        text += &format!(
            "\n{} with as many connections and threads, 128 MiB for each, Mbit/s:\n\n{head}",
            words[0]
        );
        for row in rows {
            let copied = |copy: Option<Copied>| copy.map_or(String::new(), |copied| copied.to_string());
            let copies = row.fixed.iter().map(|(_, _, copy)| copied(*copy));
            let _ = writeln!(text, "| {} | {} |", path(row), cells(copies));
        }
    }
    let ends: [(&str, Figure<'_>); 2] =
        [("client", &|figures| figures.client_ns), ("server", &|figures| figures.server_ns)];
    text += &format!(
        "\nProcessor time, ns a bit and share of one processor (figures 2.12 to 2.15). It is that of the processes, with their system calls; \
         the thesis counts whole machines:\n\n{}",
        head(setting, &[&PATH[..], &["end"]].concat(), &["found"])
    );
    for row in rows {
        for (end, ns) in ends {
            let cell =
                |figures: Figures| format!("{:.2} ({:.2})", ns(&figures), ns(&figures) * figures.mbit / 1e3);
            let _ = writeln!(text, "| {} | {end} | {} |", path(row), cells(all(row).map(cell)));
        }
    }
    let has_rival = rows.iter().any(|row| row.mixed_direct.is_some());
    let columns: &[&str] = if has_rival { &["found", "fio alone, 1 connection"] } else { &["found"] };
    text += &format!(
        "\nReads and as many writes of 1 MiB, 16 at a time, by fio, Mbit/s in both directions together:\n\n| {} |\n{}\n",
        cells(PATH.iter().chain(columns).map(ToString::to_string)),
        "|---".repeat(PATH.len() + columns.len()) + "|"
    );
    for row in rows {
        let done = [Some(row.mixed), row.mixed_direct].into_iter().flatten();
        let _ = writeln!(text, "| {} | {} |", path(row), cells(done.map(|done| format!("{:.0}", done.mbit))));
    }
    if !requests.is_empty() {
        let _ = write!(text, "\nRequests on one host, without a link, to a disk in memory:\n\n{requests}");
    }
    if let Some(directory) = &setting.svg {
        let folder = directory.file_name().unwrap_or_default().display();
        for (name, chart) in charts(setting, rows) {
            let _ = write!(text, "\n![{}]({folder}/{name}.svg)\n", chart.title);
        }
    }
    text
}

/// Draws all pictures into a directory.
pub(super) fn draw(setting: &BlockSetting, rows: &[Row], directory: &Path) -> Result<(), Failure> {
    std::fs::create_dir_all(directory)?;
    for (name, chart) in charts(setting, rows) {
        let file = directory.join(format!("{name}.svg"));
        std::fs::write(&file, chart.svg())
            .map_err(|error| format!("cannot write {}: {error}", file.display()))?;
    }
    Ok(())
}

/// Returns lines of a figure over an axis: one for each fixed number, one for the number that is found.
fn lines(
    setting: &BlockSetting,
    rows: &[&Row],
    stroke: Stroke,
    (x, y): (Place<'_>, Figure<'_>),
) -> Vec<Line> {
    let names = setting.sessions.iter().map(u32::to_string).chain(["found".to_string()]);
    let line = |(at, name)| {
        let point = |row: &&Row| all(row).nth(at).map(|figures| [f64::from(x(row)), y(&figures)]);
        Line { stroke, ..Line::solid(name, rows.iter().filter_map(point).collect()) }
    };
    names.enumerate().map(line).collect()
}

fn charts(setting: &BlockSetting, rows: &[Row]) -> Vec<(&'static str, Chart<'static>)> {
    let first = setting.losses_percent.first().copied().unwrap_or_default();
    let at_first = || rows.iter().filter(|row| row.network.loss_percent == first);
    let by_rate: Vec<&Row> =
        at_first().filter(|row| row.network.round_trip_ms == setting.round_trip_ms).collect();
    let is_long = |row: &&Row| row.network.rate_mbit == setting.long_rate_mbit;
    let by_round_trip: Vec<&Row> = at_first().filter(is_long).collect();
    let rate = |row: &Row| row.network.rate_mbit;
    let round_trip = |row: &Row| row.network.round_trip_ms;
    let chart = |title, axes, lines| Chart { title, axes, scales: [Scale::Linear; 2], lines };
    let goodput = |figures: &Figures| figures.mbit;
    let both = |of: [Figure<'_>; 2]| {
        let strokes = [Stroke::Solid, Stroke::Dashed];
        let line = |(stroke, of)| lines(setting, &by_round_trip, stroke, (&round_trip, of));
        strokes.into_iter().zip(of).flat_map(line).collect::<Vec<Line>>()
    };
    let load = both([&|figures| figures.client_ns * figures.mbit / 1e3, &|figures| {
        figures.server_ns * figures.mbit / 1e3
    }]);
    let cost = both([&|figures| figures.client_ns, &|figures| figures.server_ns]);
    let evolution = |at: usize| {
        let line = |row: &&Row| {
            let points = row.evolution.iter().map(|point| [point[0], point[at]]).collect();
            Line::solid(format!("{} ms", row.network.round_trip_ms), points)
        };
        by_round_trip.iter().map(line).collect::<Vec<Line>>()
    };
    vec![
        ("evolution", chart("Goodput during the search (figure 2.8)", ["time, s", "Mbit/s"], evolution(1))),
        ("sessions", chart("Sessions during the search (figure 2.9)", ["time, s", "sessions"], evolution(2))),
        (
            "rate",
            chart(
                "Goodput by rate of the link and number of sessions (figure 2.10)",
                ["Mbit/s of the link", "Mbit/s"],
                lines(setting, &by_rate, Stroke::Solid, (&rate, &goodput)),
            ),
        ),
        (
            "round-trip",
            chart(
                "Goodput by round trip and number of sessions (figure 2.11)",
                ["round trip, ms", "Mbit/s"],
                lines(setting, &by_round_trip, Stroke::Solid, (&round_trip, &goodput)),
            ),
        ),
        (
            "load",
            chart(
                "Processor time (figures 2.12 and 2.13; solid: client, dashed: server)",
                ["round trip, ms", "share of one processor"],
                load,
            ),
        ),
        (
            "cost",
            chart(
                "Processor time of a bit (figures 2.14 and 2.15; solid: client, dashed: server)",
                ["round trip, ms", "ns a bit"],
                cost,
            ),
        ),
    ]
}
