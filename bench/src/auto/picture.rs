//! The sweep as a picture: the cost of every fixed setting and of `auto` on every network, for each pair.

use super::networks::NETWORKS;
use super::{Row, Sweep};
use std::fmt::Write as _;

const WIDTH: f64 = 760.0;
const PANEL: f64 = 300.0;
const LEFT: f64 = 56.0;
/// Width of the networks' names.
const RIGHT: f64 = 170.0;
const TOP: f64 = 36.0;
const BOTTOM: f64 = 44.0;
/// Top of the scale, relative to the best fixed setting.
const RATIO_MAX: f64 = 32.0;
const COLOURS: [&str; 6] = ["#1b6ca8", "#d1495b", "#edae49", "#00798c", "#7d5ba6", "#555555"];

/// Draws the picture (SVG).
pub(super) fn draw(sweeps: &[Sweep]) -> String {
    let height = PANEL * sweeps.len() as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" \
         font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for (index, sweep) in sweeps.iter().enumerate() {
        panel(&mut svg, sweep, index as f64 * PANEL);
    }
    svg.push_str("</svg>\n");
    svg
}

fn panel(svg: &mut String, sweep: &Sweep, top: f64) {
    let columns = sweep.fixed.len() + 1;
    let x = |column: usize| LEFT + (WIDTH - LEFT - RIGHT) * column as f64 / (columns - 1).max(1) as f64;
    let floor = top + PANEL - BOTTOM;
    let y = |ratio: f64| floor - (PANEL - TOP - BOTTOM) * ratio.clamp(1.0, RATIO_MAX).ln() / RATIO_MAX.ln();
    let title =
        format!("{}({}): cost relative to the best fixed setting", sweep.subject.pair, sweep.subject.option);
    text(svg, LEFT, top + 18.0, "start", &title);
    for ratio in [1.0, 1.1, 2.0, 4.0, 8.0, 16.0, 32.0] {
        text(svg, LEFT - 6.0, y(ratio) + 4.0, "end", &format!("{ratio}"));
    }
    for (column, row) in sweep.fixed.iter().chain([&sweep.auto]).enumerate() {
        let shown = column % columns.div_ceil(13) == 0 || column + 1 == columns;
        text(svg, x(column), floor + 16.0, "middle", if shown { row.value } else { "" });
    }
    for (network, (known, colour)) in NETWORKS.iter().zip(COLOURS).enumerate() {
        text(svg, WIDTH - RIGHT + 24.0, top + TOP + 16.0 * network as f64, "start", known.name);
        let key = top + TOP + 16.0 * network as f64 - 4.0;
        let ratio = |row: &Row| sweep.ratios(row)[network];
        let points: Vec<String> = sweep
            .fixed
            .iter()
            .enumerate()
            .map(|(column, row)| format!("{:.1},{:.1}", x(column), y(ratio(row))))
            .collect();
        lines(svg, &points.join(" "), colour, (x(columns - 1), y(ratio(&sweep.auto))), key);
    }
    let _ = writeln!(
        svg,
        "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{:.1}\" y2=\"{:.1}\" stroke=\"#999\" stroke-dasharray=\"3\"/>",
        WIDTH - RIGHT,
        y(1.1),
        y(1.1)
    );
}

fn lines(svg: &mut String, points: &str, colour: &str, auto: (f64, f64), key: f64) {
    let _ = writeln!(
        svg,
        "<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"/>"
    );
    let _ = writeln!(svg, "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"4\" fill=\"{colour}\"/>", auto.0, auto.1);
    let _ = writeln!(
        svg,
        "<circle cx=\"{:.1}\" cy=\"{key:.1}\" r=\"4\" fill=\"{colour}\"/>",
        WIDTH - RIGHT + 14.0
    );
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, label: &str) {
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{label}</text>");
}
