//! `outboard top`: shows the flows of every `share`, `attach` and `run` of this user, from their consoles.

use crate::output::{Failure, print, printable};
use crate::terminal::Terminal;
use broker::console::{DriverStatus, PeerStatus, Status, Survey, survey};
use flow::{FlowStats, StageStats, StoreStats};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// Time between two updates.
const INTERVAL: Duration = Duration::from_secs(1);
/// Columns of the flow's name and of the other host's name.
const NAME_COLUMNS: usize = 36;
const HOST_COLUMNS: usize = 24;

/// One flow, in the table and in `--json`.
#[derive(Serialize)]
struct Flow {
    process: i32,
    role: String,
    device: String,
    /// `device -> application` or `application -> device`.
    direction: &'static str,
    /// Node that the application opens; empty on the device host.
    node: String,
    peer: String,
    linked: bool,
    present: bool,
    /// True while a trace is active.
    traced: bool,
    /// Number of worker crashes after which a new worker resumed the flow.
    restarts: u64,
    /// True if the flow runs in a sandboxed worker process.
    locked: bool,
    /// `None` before the second reading.
    messages_per_second: Option<f64>,
    bytes_per_second: Option<f64>,
    /// Delay from creation to delivery; only at the sink.
    delay_p50_ms: Option<f64>,
    delay_p99_ms: Option<f64>,
    lost: u64,
    resent: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    store: Option<StoreStats>,
    drops: BTreeMap<String, u64>,
    pipeline: String,
    stages: Vec<StageStats>,
}

/// A session of a local process with another host, and its cost.
#[derive(Serialize)]
struct Host {
    process: i32,
    role: String,
    #[serde(flatten)]
    peer: PeerStatus,
}

/// One update.
#[derive(Serialize)]
struct View {
    flows: Vec<Flow>,
    hosts: Vec<Host>,
    /// Processes that did not answer within [`INTERVAL`].
    silent: Vec<i32>,
}

/// Counters of a flow at one time, and the rates since the reading before.
#[derive(Clone, Copy, Default)]
struct Reading {
    at_ns: u64,
    messages: u64,
    bytes: u64,
    rates: Option<(f64, f64)>,
}

/// The last reading of each flow, by console, driver and direction (`true`: outgoing).
#[derive(Default)]
struct Watch {
    readings: BTreeMap<(PathBuf, String, bool), Reading>,
}

/// `outboard top`.
pub(crate) fn top(once: bool, json: bool) -> Result<(), Failure> {
    let mut watch = Watch::default();
    if once {
        // Rates need two readings.
        watch.update()?;
        std::thread::sleep(INTERVAL);
        return write(&watch.update()?, json);
    }
    let terminal = if json { None } else { Terminal::take()? };
    loop {
        let view = watch.update()?;
        match &terminal {
            Some(terminal) => {
                let mut lines = draw(&view);
                let keys = if terminal.has_keys() { "q quits" } else { "Ctrl-C quits" };
                lines.extend([String::new(), keys.into()]);
                let columns = terminal.columns();
                let cut = |line: String| line.chars().take(columns).collect();
                terminal.show(&lines.into_iter().map(cut).collect::<Vec<String>>())?;
                if terminal.key(INTERVAL) == Some('q') {
                    return Ok(());
                }
            }
            None => {
                write(&view, json)?;
                std::thread::sleep(INTERVAL);
            }
        }
    }
}

fn write(view: &View, json: bool) -> Result<(), Failure> {
    match json {
        true => {
            let text = serde_json::to_string(view).map_err(|error| Failure::Failed(error.to_string()))?;
            print(&format!("{text}\n"))
        }
        false => print(&format!("{}\n\n", draw(view).join("\n"))),
    }
}

impl Watch {
    /// Requests the status of every console. Skips processes that end meanwhile.
    fn update(&mut self) -> Result<View, Failure> {
        let (mut flows, mut hosts) = (Vec::new(), Vec::new());
        let mut readings = BTreeMap::new();
        let Survey { statuses, silent } = survey(INTERVAL)?;
        for (console, status) in statuses {
            let (process, role) = (status.process, &status.role);
            hosts.extend(status.peers.iter().cloned().map(|peer| Host { process, role: role.clone(), peer }));
            for driver in &status.drivers {
                for (outward, stats) in [(true, &driver.stats.outgoing), (false, &driver.stats.incoming)] {
                    let Some(stats) = stats else { continue };
                    let key = (console.clone(), driver.name.clone(), outward);
                    let before = self.readings.get(&key).copied().unwrap_or_default();
                    let reading = before.next(driver.at_ns, stats);
                    flows.push(flow(&status, driver, outward, stats, reading.rates));
                    readings.insert(key, reading);
                }
            }
        }
        self.readings = readings;
        Ok(View { flows, hosts, silent })
    }
}

impl Reading {
    fn next(self, at_ns: u64, stats: &FlowStats) -> Reading {
        let FlowStats { messages, bytes, .. } = *stats;
        if at_ns == self.at_ns {
            return self;
        }
        let seconds = at_ns.saturating_sub(self.at_ns) as f64 / 1e9;
        let continues = self.at_ns > 0 && seconds > 0.0 && messages >= self.messages && bytes >= self.bytes;
        let rates = continues
            .then(|| ((messages - self.messages) as f64 / seconds, (bytes - self.bytes) as f64 / seconds));
        Reading { at_ns, messages, bytes, rates }
    }
}

fn flow(
    status: &Status,
    driver: &DriverStatus,
    outward: bool,
    stats: &FlowStats,
    rates: Option<(f64, f64)>,
) -> Flow {
    let to_application = outward == (status.role == "share");
    let delay_ms = |which: usize| stats.delay_us.map(|delays| delays[which] / 1e3);
    Flow {
        process: status.process,
        role: status.role.clone(),
        device: driver.name.clone(),
        direction: if to_application { "device -> application" } else { "application -> device" },
        node: driver.node.clone(),
        peer: driver.peer.clone(),
        linked: driver.stats.linked,
        present: driver.stats.present,
        traced: driver.stats.traced,
        restarts: driver.stats.restarts,
        locked: driver.stats.locked,
        messages_per_second: rates.map(|rates| rates.0),
        bytes_per_second: rates.map(|rates| rates.1),
        delay_p50_ms: delay_ms(1),
        delay_p99_ms: delay_ms(2),
        lost: stats.lost,
        resent: stats.resent,
        store: stats.store.clone(),
        drops: stats.drops.clone(),
        pipeline: stats.pipeline.clone(),
        stages: stats.stages.clone(),
    }
}

fn draw(view: &View) -> Vec<String> {
    let mut lines = vec![format!(
        "{:<NAME_COLUMNS$} {:<HOST_COLUMNS$} {:>10} {:>10} {:>9} {:>9} {:>7} {:>7}",
        "FLOW", "HOST", "MESSAGES/S", "BYTES/S", "P50", "P99", "LOST", "DROPPED"
    )];
    if view.flows.is_empty() && view.silent.is_empty() {
        lines.push("this user runs no service here".into());
    }
    for flow in &view.flows {
        lines.push(row(flow));
        let state = [(!flow.linked, "no link"), (!flow.present, "no device"), (flow.traced, "traced")];
        lines.extend(state.iter().filter(|(applies, _)| *applies).map(|(_, note)| format!("    {note}")));
        if flow.restarts > 0 {
            lines.push(format!("    worker restarts: {}", flow.restarts));
        }
        if let Some(store) = flow.store.as_ref().filter(|store| store.full || store.discarded > 0) {
            let state = if store.full { "store full" } else { "store" };
            lines.push(format!(
                "    {state}: {} messages unacknowledged, {} discarded",
                store.messages, store.discarded
            ));
        }
        lines.extend(flow.drops.iter().map(|(reason, count)| format!("    {count} dropped: {reason}")));
        for stage in &flow.stages {
            draw_stage(&mut lines, stage);
        }
    }
    if !view.hosts.is_empty() {
        lines.push(String::new());
        lines.push(format!(
            "{:<HOST_COLUMNS$} {:>7} {:>10} {:>10} {:>10} {:>9}  STATE",
            "HOST", "DEVICES", "MESSAGES", "BYTES", "UNACKED", "BUSY"
        ));
    }
    lines.extend(view.hosts.iter().map(host_row));
    lines.extend(view.silent.iter().map(|process| format!("process {process} does not answer")));
    lines.iter().map(|line| printable(line)).collect()
}

fn host_row(host: &Host) -> String {
    let peer = &host.peer;
    let state = match peer.silent_seconds {
        Some(seconds) => format!("silent for {seconds:.0} s"),
        None => "connected".into(),
    };
    format!(
        "{:<HOST_COLUMNS$} {:>7} {:>10} {:>10} {:>10} {:>7.2} s  {state}",
        cut(&peer.name, HOST_COLUMNS),
        peer.drivers,
        scaled(peer.messages as f64),
        scaled(peer.bytes as f64),
        scaled(peer.store_bytes as f64),
        peer.busy_seconds,
    )
}

fn row(flow: &Flow) -> String {
    let node = if flow.node.is_empty() { "application" } else { &flow.node };
    let name = match flow.direction.starts_with("device") {
        true => format!("{} -> {node}", flow.device),
        false => format!("{node} -> {}", flow.device),
    };
    let rate = |rate: Option<f64>| rate.map_or("-".into(), scaled);
    let delay = |ms: Option<f64>| ms.map_or("-".into(), |ms| format!("{ms:.2} ms"));
    format!(
        "{:<NAME_COLUMNS$} {:<HOST_COLUMNS$} {:>10} {:>10} {:>9} {:>9} {:>7} {:>7}",
        cut(&name, NAME_COLUMNS),
        cut(&flow.peer, HOST_COLUMNS),
        rate(flow.messages_per_second),
        rate(flow.bytes_per_second),
        delay(flow.delay_p50_ms),
        delay(flow.delay_p99_ms),
        flow.lost,
        flow.drops.values().sum::<u64>()
    )
}

fn draw_stage(lines: &mut Vec<String>, stage: &StageStats) {
    let figures: Vec<_> =
        stage.figures.iter().map(|(name, value)| format!("{name} {}", scaled(*value))).collect();
    lines.push(format!("    {}  {}", stage.name, figures.join(", ")).trim_end().into());
    for choice in &stage.choices {
        lines.push(format!("        {} = {} (auto): {}", choice.option, choice.value, choice.reason));
    }
}

/// Formats a figure in at most seven characters.
fn scaled(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
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
