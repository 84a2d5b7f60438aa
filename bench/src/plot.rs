//! Charts as SVG.

use std::fmt::Write as _;

const WIDTH: f64 = 800.0;
const HEIGHT: f64 = 400.0;
/// Margins for titles and numbers (left, top, right, bottom), height of a row of names, width of a letter.
const MARGINS: [f64; 4] = [66.0, 28.0, 20.0, 50.0];
const NAME_HEIGHT: f64 = 16.0;
const LETTER_WIDTH: f64 = 6.6;
/// Colours for everyone, on white and on black (Okabe and Ito, and three more).
const COLOURS: [&str; 9] =
    ["#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c564b", "#7f7f7f", "#bcbd22"];
/// Approximate number of grid lines of an axis.
const TICKS: f64 = 6.0;
/// Half the width of a deviation's bar.
const BAR_HALF_WIDTH: f64 = 3.0;

/// The stroke of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stroke {
    Solid,
    DashDotted,
    Dashed,
    Dotted,
}

impl Stroke {
    /// Returns the name for a caption.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Stroke::Solid => "solid",
            Stroke::DashDotted => "dash-dotted",
            Stroke::Dashed => "dashed",
            Stroke::Dotted => "dotted",
        }
    }

    fn attribute(self) -> &'static str {
        match self {
            Stroke::Solid => "",
            Stroke::DashDotted => " stroke-dasharray=\"8 3 2 3\"",
            Stroke::Dashed => " stroke-dasharray=\"7 4\"",
            Stroke::Dotted => " stroke-dasharray=\"2 4\"",
        }
    }
}

/// The scale of an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scale {
    /// Linear from 0.
    Linear,
    /// Powers of ten. Values that are not above 0 are omitted.
    Logarithmic,
}

/// A line of a chart.
#[derive(Debug, Clone)]
pub(crate) struct Line {
    /// Lines of one group share a colour and a name.
    pub(crate) group: String,
    pub(crate) stroke: Stroke,
    pub(crate) points: Vec<[f64; 2]>,
    /// Half the height of the bar at each point; empty without bars.
    pub(crate) deviations: Vec<f64>,
}

impl Line {
    /// Returns a solid line without bars.
    pub(crate) fn solid(group: impl Into<String>, points: Vec<[f64; 2]>) -> Line {
        Line { group: group.into(), stroke: Stroke::Solid, points, deviations: Vec::new() }
    }
}

/// A chart: lines over one pair of axes.
pub(crate) struct Chart<'a> {
    pub(crate) title: &'a str,
    /// Titles of the axes with their units.
    pub(crate) axes: [&'a str; 2],
    pub(crate) scales: [Scale; 2],
    pub(crate) lines: Vec<Line>,
}

/// Maps the values of an axis to positions on the picture.
struct Axis {
    scale: Scale,
    /// The values at both ends.
    ends: [f64; 2],
    step: f64,
    /// The positions of both ends.
    places: [f64; 2],
}

impl Axis {
    fn new(scale: Scale, values: impl Iterator<Item = f64> + Clone, places: [f64; 2]) -> Axis {
        let largest = values.clone().fold(f64::MIN_POSITIVE, f64::max);
        match scale {
            Scale::Linear => {
                let step = round_step(largest / TICKS);
                Axis { scale, ends: [0.0, (largest / step).ceil() * step], step, places }
            }
            Scale::Logarithmic => {
                let smallest = values.filter(|value| *value > 0.0).fold(largest, f64::min);
                // The axis ends at the largest value. Only powers of ten have numbers.
                let [from, to] = [smallest.log10().floor(), largest.log10()];
                let to = if to < from + 1.0 { from + 1.0 } else { to };
                Axis { scale, ends: [from, to], step: 1.0, places }
            }
        }
    }

    fn at(&self, value: f64) -> f64 {
        let value = match self.scale {
            Scale::Linear => value,
            Scale::Logarithmic => value.max(f64::MIN_POSITIVE).log10().max(self.ends[0]),
        };
        let share = (value - self.ends[0]) / (self.ends[1] - self.ends[0]);
        self.places[0] + share * (self.places[1] - self.places[0])
    }

    /// Returns the values with a number and, on the vertical axis, a grid line.
    fn ticks(&self) -> impl Iterator<Item = f64> {
        let count = ((self.ends[1] - self.ends[0]) / self.step + 1e-9).floor() as u32;
        (0..=count).map(move |number| {
            let value = self.ends[0] + f64::from(number) * self.step;
            if self.scale == Scale::Linear { value } else { 10f64.powf(value) }
        })
    }
}

impl Chart<'_> {
    /// Returns the names of the groups in order.
    fn groups(&self) -> Vec<&str> {
        let mut groups: Vec<&str> = Vec::new();
        for line in &self.lines {
            if !groups.contains(&line.group.as_str()) {
                groups.push(&line.group);
            }
        }
        groups
    }

    /// Draws the chart.
    pub(crate) fn svg(&self) -> String {
        let [left, above, right, bottom] = MARGINS;
        let groups = self.groups();
        let longest = groups.iter().map(|name| name.chars().count()).max().unwrap_or(0) as f64;
        let name_width = (longest + 3.0) * LETTER_WIDTH;
        let columns = (((WIDTH - left - right) / name_width) as usize).clamp(1, groups.len().max(1));
        let top = above + NAME_HEIGHT * groups.len().div_ceil(columns) as f64;
        let values = |axis: usize| {
            self.lines.iter().flat_map(move |line| line.points.iter().map(move |point| point[axis]))
        };
        let x = Axis::new(self.scales[0], values(0), [left, WIDTH - right]);
        let y = Axis::new(self.scales[1], values(1), [HEIGHT - bottom, top]);
        let mut put = Picture::new(HEIGHT, self.title);
        put.text([WIDTH / 2.0, HEIGHT - 10.0], "middle", "", self.axes[0]);
        let turned = format!(" transform=\"rotate(-90 14 {:.0})\"", HEIGHT / 2.0);
        put.text([14.0, HEIGHT / 2.0], "middle", &turned, self.axes[1]);
        for tick in x.ticks() {
            put.text([x.at(tick), HEIGHT - bottom + 16.0], "middle", "", &number(tick));
        }
        for tick in y.ticks() {
            let ([from, to], at) = (x.places, y.at(tick));
            put.text([left - 6.0, at + 4.0], "end", "", &number(tick));
            put.element(format!(
                "<path d=\"M{from:.1} {at:.1}H{to:.1}\" stroke=\"#777\" stroke-opacity=\"0.3\"/>"
            ));
        }
        for (index, name) in groups.iter().enumerate() {
            let fill = format!(" fill=\"{}\"", COLOURS[index % COLOURS.len()]);
            let (column, row) = (index % columns, index / columns);
            let (x, y) = (left + column as f64 * name_width, above + NAME_HEIGHT * (row as f64 + 0.5));
            put.text([x, y], "start", &fill, name);
        }
        for line in &self.lines {
            let group = groups.iter().position(|name| *name == line.group).unwrap_or(0);
            self.draw(line, COLOURS[group % COLOURS.len()], [&x, &y], &mut put);
        }
        put.finish()
    }

    /// Draws one line with its bars.
    fn draw(&self, line: &Line, colour: &str, [x, y]: [&Axis; 2], put: &mut Picture) {
        let dashes = line.stroke.attribute();
        let is_there =
            |point: &&[f64; 2]| (0..2).all(|axis| self.scales[axis] == Scale::Linear || point[axis] > 0.0);
        let path: Vec<String> = line
            .points
            .iter()
            .filter(is_there)
            .map(|[across, up]| format!("{:.1} {:.1}", x.at(*across), y.at(*up)))
            .collect();
        match &path[..] {
            [] => {}
            [_] => line.points.iter().filter(is_there).for_each(|[across, up]| {
                let (cx, cy) = (x.at(*across), y.at(*up));
                put.element(format!("<circle cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"2.5\" fill=\"{colour}\"/>"));
            }),
            path => put.element(format!(
                "<path d=\"M{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"{dashes}/>",
                path.join("L")
            )),
        }
        for ([across, up], deviation) in line.points.iter().zip(&line.deviations) {
            let (at, low, high) = (x.at(*across), y.at((up - deviation).max(0.0)), y.at(up + deviation));
            let [from, to] = [at - BAR_HALF_WIDTH, at + BAR_HALF_WIDTH];
            put.element(format!(
                "<path d=\"M{from:.1} {low:.1}H{to:.1}M{at:.1} {low:.1}V{high:.1}M{from:.1} {high:.1}H{to:.1}\" \
                 fill=\"none\" stroke=\"{colour}\"/>"
            ));
        }
    }
}

/// Horizontal bars of the same parts.
pub(crate) struct Stack<'a> {
    pub(crate) title: &'a str,
    /// Title of the axis with its unit.
    pub(crate) axis: &'a str,
    pub(crate) parts: &'a [&'a str],
    /// Name of each bar and the lengths of its parts.
    pub(crate) bars: Vec<(String, Vec<f64>)>,
}

/// Height of a bar with the gap to the next.
const BAR_HEIGHT: f64 = 28.0;
const BAR_GAP: f64 = 6.0;
/// Width of the bars' names.
const BAR_NAMES_WIDTH: f64 = 170.0;

impl Stack<'_> {
    /// Draws the bars.
    pub(crate) fn svg(&self) -> String {
        let [_, above, right, bottom] = MARGINS;
        let top = above + NAME_HEIGHT;
        let height = top + BAR_HEIGHT * self.bars.len() as f64 + bottom;
        let lengths = self.bars.iter().map(|(_, parts)| parts.iter().sum::<f64>());
        let x = Axis::new(Scale::Linear, lengths, [BAR_NAMES_WIDTH, WIDTH - right]);
        let mut put = Picture::new(height, self.title);
        for (index, part) in self.parts.iter().enumerate() {
            let fill = format!(" fill=\"{}\"", COLOURS[index % COLOURS.len()]);
            put.text(
                [BAR_NAMES_WIDTH + 150.0 * index as f64, above + NAME_HEIGHT / 2.0],
                "start",
                &fill,
                part,
            );
        }
        for (row, (name, parts)) in self.bars.iter().enumerate() {
            let y = top + BAR_HEIGHT * row as f64;
            put.text([BAR_NAMES_WIDTH - 6.0, y + BAR_HEIGHT * 0.6], "end", "", name);
            let mut from = 0.0;
            for (index, part) in parts.iter().enumerate() {
                let (left, end) = (x.at(from), x.at(from + part));
                let (width, thick, fill) = (end - left, BAR_HEIGHT - BAR_GAP, COLOURS[index % COLOURS.len()]);
                put.element(format!(
                    "<rect x=\"{left:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{thick}\" fill=\"{fill}\"/>"
                ));
                from += part;
            }
        }
        for tick in x.ticks() {
            put.text([x.at(tick), height - bottom + 16.0], "middle", "", &number(tick));
        }
        put.text([WIDTH / 2.0, height - 10.0], "middle", "", self.axis);
        put.finish()
    }
}

/// An unfinished picture.
struct Picture {
    svg: String,
}

impl Picture {
    fn new(height: f64, title: &str) -> Picture {
        let svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
             font-family=\"sans-serif\" font-size=\"12\" fill=\"#777\">\n"
        );
        let mut picture = Picture { svg };
        picture.text([WIDTH / 2.0, 16.0], "middle", " font-size=\"14\"", title);
        picture
    }

    fn element(&mut self, line: String) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.svg, "{line}");
    }

    fn text(&mut self, [x, y]: [f64; 2], anchor: &str, more: &str, text: &str) {
        let text = escape(text);
        self.element(format!("<text x=\"{x:.0}\" y=\"{y:.0}\" text-anchor=\"{anchor}\"{more}>{text}</text>"));
    }

    fn finish(mut self) -> String {
        self.svg.push_str("</svg>\n");
        self.svg
    }
}

/// Formats the number of a tick.
fn number(value: f64) -> String {
    match value {
        value if value >= 1e6 => format!("{}M", value / 1e6),
        value if value >= 1e4 => format!("{}k", value / 1e3),
        value if value < 0.001 && value > 0.0 => format!("{value:e}"),
        // Powers of ten come from a logarithm and are not exact.
        value => ((value * 1e6).round() / 1e6).to_string(),
    }
}

/// Returns 1, 2 or 5 times a power of ten, at least `least`.
fn round_step(least: f64) -> f64 {
    let power = 10f64.powf(least.log10().floor());
    let factor = [1.0, 2.0, 5.0].into_iter().find(|factor| factor * power >= least);
    factor.unwrap_or(10.0) * power
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
        let lines = vec![
            Line::solid("first & last", vec![[0.0, 0.0], [10.0, 30.0]]),
            Line { deviations: vec![2.0], ..Line::solid("second", vec![[0.0, 5.0]]) },
        ];
        let svg = Chart { title: "title", axes: ["s", "ms"], scales: [Scale::Linear; 2], lines }.svg();
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        for part in [
            ">first &amp; last<",
            ">second<",
            ">title<",
            ">ms<",
            "M66.0 350.0L780.0 44.0",
            "<circle cx=\"66.0\"",
        ] {
            assert!(svg.contains(part), "{part} in {svg}");
        }
    }

    #[test]
    fn powers_of_ten_are_evenly_spaced_and_zero_is_omitted() {
        let points = vec![[100.0, 0.0], [1000.0, 3.0], [100_000.0, 300.0]];
        let line = Line { stroke: Stroke::Dotted, ..Line::solid("one", points) };
        let svg =
            Chart { title: "", axes: ["", ""], scales: [Scale::Logarithmic; 2], lines: vec![line] }.svg();
        for part in ["M304.0 ", "L780.0 ", "stroke-dasharray=\"2 4\"", ">100k<", ">1000<", ">1<"] {
            assert!(svg.contains(part), "{part} in {svg}");
        }
    }
}
