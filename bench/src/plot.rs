//! Line charts as SVG, for the figures in `docs`.

use std::fmt::Write as _;

const WIDTH: f64 = 800.0;
const HEIGHT: f64 = 400.0;
/// Room for titles and numbers: left, top, right, bottom; and for the name of each line.
const MARGINS: [f64; 4] = [60.0, 28.0, 20.0, 50.0];
const NAME_HEIGHT: f64 = 16.0;
/// Told apart by anyone, on white and on black (Okabe and Ito).
const COLOURS: [&str; 6] = ["#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];
/// Lines of the grid along each axis, about.
const TICKS: f64 = 6.0;

/// Lines over one pair of axes, both from 0.
pub(crate) struct Chart<'a> {
    /// What it shows.
    pub(crate) title: &'a str,
    /// Names of the axes, with their units.
    pub(crate) axes: [&'a str; 2],
    /// Names and points of the lines.
    pub(crate) lines: Vec<(&'a str, Vec<[f64; 2]>)>,
}

impl Chart<'_> {
    /// The picture.
    pub(crate) fn svg(&self) -> String {
        let [left, above, right, bottom] = MARGINS;
        let top = above + NAME_HEIGHT * self.lines.len() as f64;
        let largest = |axis: usize| {
            let points = self.lines.iter().flat_map(|(_, points)| points);
            points.map(|point| point[axis]).fold(f64::MIN_POSITIVE, f64::max)
        };
        let steps = [0, 1].map(|axis| round_step(largest(axis) / TICKS));
        let ends = [0, 1].map(|axis| (largest(axis) / steps[axis]).ceil() * steps[axis]);
        let x = |value: f64| left + value / ends[0] * (WIDTH - left - right);
        let y = |value: f64| HEIGHT - bottom - value / ends[1] * (HEIGHT - top - bottom);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
             font-family=\"sans-serif\" font-size=\"12\" fill=\"#777\">\n"
        );
        let mut put = |line: String| {
            // Writing to a string cannot fail.
            let _ = writeln!(svg, "{line}");
        };
        let text = |x: f64, y: f64, anchor: &str, more: &str, text: &str| {
            format!("<text x=\"{x:.0}\" y=\"{y:.0}\" text-anchor=\"{anchor}\"{more}>{}</text>", escape(text))
        };
        put(text(WIDTH / 2.0, 16.0, "middle", " font-size=\"14\"", self.title));
        put(text(WIDTH / 2.0, HEIGHT - 10.0, "middle", "", self.axes[0]));
        let turned = format!(" transform=\"rotate(-90 14 {:.0})\"", HEIGHT / 2.0);
        put(text(14.0, HEIGHT / 2.0, "middle", &turned, self.axes[1]));
        for tick in ticks(steps[0], ends[0]) {
            put(text(x(tick), HEIGHT - bottom + 16.0, "middle", "", &tick.to_string()));
        }
        for tick in ticks(steps[1], ends[1]) {
            let (from, to, at) = (x(0.0), x(ends[0]), y(tick));
            put(text(left - 6.0, at + 4.0, "end", "", &tick.to_string()));
            put(format!("<path d=\"M{from:.1} {at:.1}H{to:.1}\" stroke=\"#777\" stroke-opacity=\"0.3\"/>"));
        }
        for (index, (name, points)) in self.lines.iter().enumerate() {
            let colour = COLOURS[index % COLOURS.len()];
            let path: Vec<String> =
                points.iter().map(|[across, up]| format!("{:.1} {:.1}", x(*across), y(*up))).collect();
            let path = path.join("L");
            put(format!("<path d=\"M{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"/>"));
            let fill = format!(" fill=\"{colour}\"");
            put(text(left, above + NAME_HEIGHT * (index as f64 + 0.5), "start", &fill, name));
        }
        svg.push_str("</svg>\n");
        svg
    }
}

/// 1, 2 or 5 times a power of ten, not below `least`.
fn round_step(least: f64) -> f64 {
    let power = 10f64.powf(least.log10().floor());
    let factor = [1.0, 2.0, 5.0].into_iter().find(|factor| factor * power >= least);
    factor.unwrap_or(10.0) * power
}

fn ticks(step: f64, end: f64) -> impl Iterator<Item = f64> {
    (0..=(end / step).round() as u32).map(move |number| f64::from(number) * step)
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_round() {
        for (least, step) in [(0.9, 1.0), (1.1, 2.0), (2.5, 5.0), (6.0, 10.0), (130.0, 200.0), (0.03, 0.05)] {
            assert!((round_step(least) - step).abs() < 1e-9, "{least}: {}", round_step(least));
        }
    }

    #[test]
    fn a_chart_has_its_lines_names_and_ends() {
        let lines = vec![("first & last", vec![[0.0, 0.0], [10.0, 30.0]]), ("second", vec![[0.0, 5.0]])];
        let svg = Chart { title: "title", axes: ["s", "ms"], lines }.svg();
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        for part in [">first &amp; last<", ">second<", ">title<", ">ms<", "M60.0 350.0L780.0 60.0"] {
            assert!(svg.contains(part), "{part} in {svg}");
        }
    }
}
