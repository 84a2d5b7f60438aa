//! The tables of `top`. The narrowest one has 80 columns, with delay, loss and drops of each flow; wider ones add the
//! columns for which there is room.

use super::{Flow, Host, View};
use crate::network_path::NetworkPath;
use crate::output::one_line;
use flow::StageStats;

/// Columns of the narrowest table. A narrower screen shows its left part.
const COLUMNS_MIN: usize = 80;
/// Columns of output that is no terminal: all of the table's columns.
const COLUMNS_OF_TEXT: usize = 160;
/// Columns of a host's name.
const HOST_COLUMNS: usize = 20;
/// Columns of a flow's figures: its way, two rates, two delays, lost and dropped messages.
const FIGURE_COLUMNS: usize = 4 + 8 + 9 + 10 + 10 + 7 + 8;

const BOLD: &str = "\x1b[1m";
const RED: &str = "\x1b[31m";
const YELLOW: &str = "\x1b[33m";
const PLAIN: &str = "\x1b[0m";

/// The form of the tables.
#[derive(Clone, Copy)]
pub(super) struct Screen {
    columns: usize,
    has_colour: bool,
    /// Lines end at the last column.
    is_cut: bool,
}

/// The columns that a table of flows has beside the narrowest ones, by its width.
struct Layout {
    /// Columns of the ends of a flow.
    flow: usize,
    has_host: bool,
    has_store: bool,
    has_process: bool,
}

impl Layout {
    fn of(columns: usize) -> Layout {
        let [has_host, has_store, has_process] = [104, 124, 140].map(|least| columns >= least);
        let more = [(has_host, 1 + HOST_COLUMNS), (has_store, 8 + 9), (has_process, 8 + 9)];
        let taken: usize = more.iter().filter(|(has, _)| *has).map(|(_, taken)| taken).sum();
        Layout { flow: columns.max(COLUMNS_MIN) - FIGURE_COLUMNS - taken, has_host, has_store, has_process }
    }
}

impl Screen {
    /// The form for a terminal. `NO_COLOR` switches colours off.
    pub(super) fn of_terminal(columns: usize) -> Screen {
        let has_colour = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Screen { columns, has_colour, is_cut: true }
    }

    /// The form for a file or a program.
    pub(super) fn of_text() -> Screen {
        Screen { columns: COLUMNS_OF_TEXT, has_colour: false, is_cut: false }
    }

    /// Formats both tables. No line is longer than a terminal is wide.
    pub(super) fn draw(self, view: &View) -> Vec<String> {
        let layout = Layout::of(self.columns);
        let mut lines = vec![self.heading(&layout)];
        if view.flows.is_empty() && view.silent.is_empty() {
            let text = match view.has_services {
                true => "no device is in use; `outboard health` tells what the services wait for",
                false => "this user runs no service here",
            };
            lines.push(self.line(text, ""));
        }
        view.flows.iter().for_each(|flow| self.draw_flow(flow, &layout, &mut lines));
        if !view.hosts.is_empty() {
            let heading = format!(
                "{:<HOST_COLUMNS$} {:>7} {:>8} {:>7} {:>7} {:>8}  STATE",
                "HOST", "DEVICES", "MESSAGES", "BYTES", "UNACKED", "BUSY"
            );
            lines.extend([String::new(), self.line(&heading, BOLD)]);
        }
        lines.extend(view.hosts.iter().map(|host| self.host_row(host)));
        lines.extend(
            view.silent.iter().map(|process| self.line(&format!("process {process} does not answer"), RED)),
        );
        lines
    }

    fn heading(self, layout: &Layout) -> String {
        let mut text = format!("{:<1$}", "FLOW", layout.flow);
        if layout.has_host {
            text.push_str(&format!(" {:<HOST_COLUMNS$}", "HOST"));
        }
        text.push_str(&format!(
            " {:<3}{:>8}{:>9}{:>10}{:>10}{:>7}{:>8}",
            "DIR", "MSGS/S", "BYTES/S", "P50", "P99", "LOST", "DROPPED"
        ));
        if layout.has_store {
            text.push_str(&format!("{:>8}{:>9}", "RESENT", "UNACKED"));
        }
        if layout.has_process {
            text.push_str(&format!("{:>8}{:>9}", "ROLE", "PROCESS"));
        }
        self.line(&text, BOLD)
    }

    fn draw_flow(self, flow: &Flow, layout: &Layout, lines: &mut Vec<String>) {
        lines.push(self.row(flow, layout));
        let state =
            [(!flow.linked, "no link", RED), (!flow.present, "no device", RED), (flow.traced, "traced", "")];
        let notes = state.iter().filter(|(applies, ..)| *applies);
        lines.extend(notes.map(|(_, note, colour)| self.line(&format!("    {note}"), colour)));
        if flow.restarts > 0 {
            lines.push(self.line(&format!("    worker restarts: {}", flow.restarts), YELLOW));
        }
        if let Some(store) = flow.store.as_ref().filter(|store| store.full || store.discarded > 0) {
            let state = if store.full { "store full" } else { "store" };
            let (messages, discarded) = (store.messages, store.discarded);
            let text = format!("    {state}: {messages} messages unacknowledged, {discarded} discarded");
            lines.push(self.line(&text, YELLOW));
        }
        let path = flow.path.iter().flat_map(NetworkPath::describe);
        lines.extend(path.map(|text| self.line(&format!("    {text}"), "")));
        let drops = flow.drops.iter();
        lines.extend(
            drops.map(|(reason, count)| self.line(&format!("    {count} dropped: {reason}"), YELLOW)),
        );
        flow.stages.iter().for_each(|stage| self.draw_stage(lines, stage));
    }

    fn row(self, flow: &Flow, layout: &Layout) -> String {
        // The application's node may be on the other host.
        let host = flow.peer.rsplit_once(" (").map_or(&*flow.peer, |(name, _)| name);
        let far = if host.is_empty() { "application" } else { host };
        let application = if flow.node.is_empty() { far } else { &flow.node };
        let (device, application) = (one_line(&flow.device), one_line(application));
        let name = match flow.direction.starts_with("device") {
            true => arrow(&device, &application, layout.flow),
            false => arrow(&application, &device, layout.flow),
        };
        let rate = |rate: Option<f64>| rate.map_or("-".into(), scaled);
        let delay = |ms: Option<f64>| ms.map_or("-".into(), milliseconds);
        let way = if flow.is_outgoing { "out" } else { "in" };
        let dropped: u64 = flow.drops.values().sum();
        let mut text = format!("{name:<0$}", layout.flow);
        if layout.has_host {
            text.push_str(&format!(" {:<HOST_COLUMNS$}", cut(&one_line(&flow.peer), HOST_COLUMNS)));
        }
        text.push_str(&format!(
            " {way:<3}{:>8}{:>9}{:>10}{:>10}",
            rate(flow.messages_per_second),
            rate(flow.bytes_per_second),
            delay(flow.delay_p50_ms),
            delay(flow.delay_p99_ms),
        ));
        text.push_str(&self.count(flow.lost, 7));
        text.push_str(&self.count(dropped, 8));
        if layout.has_store {
            let unacknowledged = flow.store.as_ref().map_or(0, |store| store.messages);
            text.push_str(&format!("{:>8}{:>9}", scaled(flow.resent as f64), scaled(unacknowledged as f64)));
        }
        if layout.has_process {
            text.push_str(&format!("{:>8}{:>9}", flow.role, flow.process));
        }
        text
    }

    /// Formats a number of lost messages; any above 0 has a colour.
    fn count(self, count: u64, columns: usize) -> String {
        let text = format!("{:>columns$}", scaled(count as f64));
        if count > 0 { self.painted(&text, RED) } else { text }
    }

    fn host_row(self, host: &Host) -> String {
        let peer = &host.peer;
        let (state, colour) = match peer.silent_seconds {
            Some(seconds) => (format!("silent for {seconds:.0} s"), RED),
            None => ("connected".into(), ""),
        };
        let text = format!(
            "{:<HOST_COLUMNS$} {:>7} {:>8} {:>7} {:>7} {:>6} s  {state}",
            cut(&one_line(&peer.name), HOST_COLUMNS),
            peer.drivers,
            scaled(peer.messages as f64),
            scaled(peer.bytes as f64),
            scaled(peer.store_bytes as f64),
            scaled(peer.busy_seconds),
        );
        self.line(&text, colour)
    }

    fn draw_stage(self, lines: &mut Vec<String>, stage: &StageStats) {
        let figures = stage.figures.iter().map(|(name, value)| format!("{name} {}", scaled(*value)));
        let figures: Vec<_> = figures.collect();
        lines.push(self.line(format!("    {}  {}", stage.name, figures.join(", ")).trim_end(), ""));
        for choice in &stage.choices {
            let text = format!("        {} = {} (auto): {}", choice.option, choice.value, choice.reason);
            lines.push(self.line(&text, ""));
        }
    }

    /// Returns the text as one line of the screen.
    fn line(self, text: &str, colour: &str) -> String {
        let text = one_line(text);
        let text = if self.is_cut { cut(&text, self.columns) } else { text };
        self.painted(&text, colour)
    }

    fn painted(self, text: &str, colour: &str) -> String {
        if self.has_colour && !colour.is_empty() { format!("{colour}{text}{PLAIN}") } else { text.into() }
    }
}

/// Formats the ends of a flow in at most `columns` characters. Both stay recognizable.
fn arrow(from: &str, to: &str, columns: usize) -> String {
    const ARROW: &str = " -> ";
    let room = columns.saturating_sub(ARROW.len());
    let lengths = [from, to].map(|text| text.chars().count());
    let from_room = lengths[0].min(room - lengths[1].min(room / 2));
    let to_room = lengths[1].min(room - from_room);
    format!("{}{ARROW}{}", cut(from, from_room), cut(to, to_room))
}

/// Formats a delay in at most nine characters.
fn milliseconds(ms: f64) -> String {
    if ms < 1e4 { format!("{ms:.2} ms") } else { format!("{:.1} s", ms / 1e3) }
}

/// Formats a figure in at most seven characters.
fn scaled(value: f64) -> String {
    match value.abs() {
        v if v < 1e5 && value.fract() == 0.0 => format!("{value:.0}"),
        v if v < 10.0 => format!("{value:.2}"),
        v if v < 1e3 => format!("{value:.1}"),
        v if v < 1e6 => format!("{:.1}k", value / 1e3),
        v if v < 1e9 => format!("{:.1}M", value / 1e6),
        _ => format!("{:.1}G", value / 1e9),
    }
}

/// Shortens the text to `columns` characters.
fn cut(text: &str, columns: usize) -> String {
    match text.chars().count() <= columns {
        true => text.into(),
        false => text.chars().take(columns.saturating_sub(1)).chain(['…']).collect(),
    }
}
