//! The screen of the demo: formats figures as lines of text, without a terminal.

use super::application::Figures;
use super::mouse::{AXES, AXIS_MAX, PERIOD};

/// Rows of the plot, of four dots each.
const PLOT_ROWS: usize = 6;
/// The top of the plot, milliseconds: three times the right spacing.
const PLOT_MAX_MS: f64 = 48.0;
/// Columns in front of a plot.
const MARGIN: usize = 5;

/// One of the two flows.
pub(super) struct Panel {
    pub(super) title: String,
    pub(super) messages: u64,
    pub(super) axes: Option<[i16; 6]>,
    pub(super) figures: Figures,
    pub(super) spacings_ms: Vec<f64>,
    /// True if the link is considered lost.
    pub(super) silent: bool,
}

/// Everything on the screen.
pub(super) struct View {
    pub(super) link: String,
    pub(super) transport: String,
    pub(super) cut: bool,
    pub(super) panels: [Panel; 2],
}

/// Escape sequences of the colours; empty without colours.
#[derive(Debug, Clone, Copy)]
pub(super) struct Palette {
    bold: &'static str,
    dim: &'static str,
    flows: [&'static str; 2],
    alarm: &'static str,
    plain: &'static str,
}

impl Palette {
    pub(super) const NONE: Palette = Palette { bold: "", dim: "", flows: ["", ""], alarm: "", plain: "" };
    pub(super) const COLOURS: Palette = Palette {
        bold: "\x1b[1m",
        dim: "\x1b[2m",
        flows: ["\x1b[33m", "\x1b[32m"],
        alarm: "\x1b[1;31m",
        plain: "\x1b[0m",
    };
}

/// Returns the number of messages in a plot on a screen of this width.
pub(super) fn plot_messages(columns: usize) -> usize {
    2 * (panel_width(columns) - MARGIN - 1)
}

fn panel_width(columns: usize) -> usize {
    (columns.saturating_sub(4) / 2).clamp(30, 64)
}

/// Returns the lines of the screen for a terminal with `columns` columns.
pub(super) fn draw(view: &View, columns: usize, palette: &Palette) -> Vec<String> {
    let Palette { bold, dim, flows, alarm, plain } = palette;
    let width = panel_width(columns);
    let mut lines = vec![
        format!(" {bold}Outboard{plain}: a 3D mouse at A, an application at B, a bad network between them"),
        match view.cut {
            false => format!(" A {dim}──{plain} {} over {} {dim}──>{plain} B", view.link, view.transport),
            true => format!(" A {alarm}── the link is cut ─╳{plain}   B"),
        },
        String::new(),
    ];
    let halves: Vec<_> =
        view.panels.iter().zip(flows).map(|(panel, colour)| rows(panel, width, colour, palette)).collect();
    let [left, right] = halves.as_slice() else { unreachable!("there are two panels") };
    lines.extend(left.iter().zip(right).map(|(left, right)| format!(" {left} {right}")));
    lines
}

/// Formats the help line for the keys.
pub(super) fn keys(keys: &str, palette: &Palette) -> String {
    let Palette { dim, plain, .. } = palette;
    format!(" {dim}{keys}{plain}")
}

/// Returns the lines of one panel, each `width` columns wide.
fn rows(panel: &Panel, width: usize, colour: &str, palette: &Palette) -> Vec<String> {
    let Palette { bold, dim, alarm, plain, .. } = palette;
    let paint = |colour: &str, text: String| format!("{colour}{}{plain}", fit(&text, width));
    let mut rows = vec![paint(&format!("{bold}{colour}"), panel.title.clone())];
    for (index, name) in AXES.iter().enumerate() {
        let bar = match panel.axes {
            Some(axes) => bar(f64::from(axes[index]) / AXIS_MAX, width - MARGIN - 1),
            None => String::new(),
        };
        rows.push(format!("{dim}{name:>3}{plain} {colour}{}{plain}", fit(&bar, width - 4)));
    }
    let Figures { delay_ms, spacing_error_ms } = panel.figures;
    let figure = |name: &str, mean: f64, p99: f64| format!("{name:<15}{mean:>6.2} ms  99 %{p99:>8.2}");
    rows.push(paint("", figure("delay", delay_ms.mean, delay_ms.p99)));
    rows.push(paint(bold, figure("spacing error", spacing_error_ms.mean, spacing_error_ms.p99)));
    rows.push(match panel.silent {
        true => paint(alarm, "the application sees a mouse at rest".into()),
        false => paint(dim, format!("{} messages", panel.messages)),
    });
    rows.push(paint(dim, format!("ms between messages ({} is correct)", PERIOD.as_millis())));
    let plot = plot(&panel.spacings_ms, width - MARGIN - 1);
    for (index, row) in plot.iter().enumerate() {
        let label = plot_label(index);
        rows.push(format!("{dim}{label:>4}│{plain}{colour}{}{plain}", fit(row, width - MARGIN)));
    }
    rows
}

/// Draws a bar from the middle, for -1 to 1.
fn bar(value: f64, width: usize) -> String {
    let half = width / 2;
    let length = ((value.abs() * half as f64).round() as usize).min(half);
    let side = |reached: bool, mirrored: bool| {
        let filled = "━".repeat(if reached { length } else { 0 });
        let rest = "·".repeat(half - if reached { length } else { 0 });
        if mirrored { format!("{rest}{filled}") } else { format!("{filled}{rest}") }
    };
    format!("{}┃{}", side(value < 0.0, true), side(value > 0.0, false))
}

/// Plots the last values as braille dots: two values and four steps of height in each character.
pub(super) fn plot(values: &[f64], width: usize) -> Vec<String> {
    /// Bits of the dots of a braille character by column, from the top down (Unicode 2800 to 28FF).
    const DOTS: [[u32; 4]; 2] = [[0x01, 0x02, 0x04, 0x40], [0x08, 0x10, 0x20, 0x80]];
    let mut cells = vec![vec![0u32; width]; PLOT_ROWS];
    let shown = &values[values.len().saturating_sub(2 * width)..];
    let steps = PLOT_ROWS * 4;
    for (index, value) in shown.iter().enumerate() {
        let height = (value / PLOT_MAX_MS * steps as f64).round() as usize;
        let from_top = steps - 1 - height.min(steps - 1);
        cells[from_top / 4][index / 2] |= DOTS[index % 2][from_top % 4];
    }
    let character = |dots: &u32| if *dots == 0 { ' ' } else { char::from_u32(0x2800 + dots).unwrap_or(' ') };
    cells.iter().map(|row| row.iter().map(character).collect()).collect()
}

/// Returns the label of a row of a plot: the value at its lower edge, milliseconds.
pub(super) fn plot_label(row: usize) -> String {
    format!("{:.0}", PLOT_MAX_MS / PLOT_ROWS as f64 * (PLOT_ROWS - 1 - row) as f64)
}

/// Cuts or fills the text to `width` columns.
pub(crate) fn fit(text: &str, width: usize) -> String {
    let cut: String = text.chars().take(width).collect();
    format!("{cut:width$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn panel(spacings_ms: Vec<f64>) -> Panel {
        let axes = Some([350, -350, 0, 100, -100, 17]);
        let figures = Figures::default();
        Panel { title: "buffer".into(), messages: 9, axes, figures, spacings_ms, silent: false }
    }

    fn view() -> View {
        View {
            link: "delay=20ms".into(),
            transport: "tcp".into(),
            cut: false,
            panels: [panel(vec![16.0; 500]), panel(vec![0.0, 1e9, 16.0])],
        }
    }

    #[test]
    fn lines_fit_every_terminal_width() {
        for columns in [0, 20, 80, 100, 300] {
            let lines = draw(&view(), columns, &Palette::NONE);
            let widest = lines.iter().skip(2).map(|line| line.chars().count()).max().unwrap();
            assert!(widest <= columns.max(64), "{widest} in {columns}");
            assert_eq!(lines.len(), draw(&view(), 80, &Palette::NONE).len());
        }
    }

    #[test]
    fn without_colours_there_are_no_escapes() {
        assert!(!draw(&view(), 80, &Palette::NONE).concat().contains('\x1b'));
        assert!(draw(&view(), 80, &Palette::COLOURS).concat().contains('\x1b'));
    }

    #[test]
    fn equal_spacing_is_a_straight_line() {
        let drawn = plot(&vec![16.0; 80], 40);
        let used: Vec<_> = drawn.iter().filter(|row| !row.trim().is_empty()).collect();
        assert_eq!(used.len(), 1);
        let first = used[0].chars().next().unwrap();
        assert!(used[0].chars().all(|dot| dot == first));
    }

    #[test]
    fn bars_start_in_the_middle() {
        assert_eq!(bar(1.0, 8), "····┃━━━━");
        assert_eq!(bar(-0.5, 8), "··━━┃····");
        assert_eq!(bar(7.0, 8), "····┃━━━━");
    }
}
