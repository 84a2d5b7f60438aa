//! `outboard top`: what every `share`, `attach` and `run` of this user does, asked through their consoles.

use crate::output::{Failure, print, printable};
use crate::terminal::Terminal;
use runtime::console::{DriverStatus, PeerStatus, Status, Survey, survey};
use runtime::{FlowStats, StageStats, StoreStats};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// Time between two looks.
const INTERVAL: Duration = Duration::from_secs(1);
/// Columns of a flow's name and of the other host's.
const NAME_COLUMNS: usize = 36;
const HOST_COLUMNS: usize = 24;

/// One flow, as it is shown and as `--json` tells it.
#[derive(Serialize)]
struct Flow {
    process: i32,
    role: String,
    device: String,
    /// `device -> application`, or the other way.
    way: &'static str,
    /// What the application sees; empty at the device's host.
    node: String,
    peer: String,
    linked: bool,
    present: bool,
    /// Whether `outboard trace` looks at it.
    traced: bool,
    /// How often its worker was killed, or died, and another went on.
    restarts: u64,
    locked: bool,
    /// `None` until there are two readings.
    messages_per_second: Option<f64>,
    bytes_per_second: Option<f64>,
    /// From creation to hand-over; only where the flow ends.
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

/// One host's sessions with one process here, and what they have cost.
#[derive(Serialize)]
struct Host {
    process: i32,
    role: String,
    #[serde(flatten)]
    peer: PeerStatus,
}

/// One look.
#[derive(Serialize)]
struct View {
    flows: Vec<Flow>,
    hosts: Vec<Host>,
    /// Processes that said nothing for [`INTERVAL`].
    silent: Vec<i32>,
}

/// A flow's counters when its figures were last taken, and its rates then.
#[derive(Clone, Copy, Default)]
struct Reading {
    at_ns: u64,
    messages: u64,
    bytes: u64,
    rates: Option<(f64, f64)>,
}

/// The readings of all flows: console, driver's name and which flow.
#[derive(Default)]
struct Watch {
    readings: BTreeMap<(PathBuf, String, bool), Reading>,
}

/// `outboard top`.
pub(crate) fn top(once: bool, json: bool) -> Result<(), Failure> {
    let mut watch = Watch::default();
    if once {
        // Rates need two readings.
        watch.look()?;
        std::thread::sleep(INTERVAL);
        return tell(&watch.look()?, json);
    }
    let terminal = if json { None } else { Terminal::take()? };
    loop {
        let view = watch.look()?;
        match &terminal {
            Some(terminal) => {
                let mut lines = draw(&view);
                let keys = if terminal.has_keys() { "q ends it" } else { "Ctrl-C ends it" };
                lines.extend([String::new(), keys.into()]);
                let columns = terminal.columns();
                let cut = |line: String| line.chars().take(columns).collect();
                terminal.show(&lines.into_iter().map(cut).collect::<Vec<String>>())?;
                if terminal.key(INTERVAL) == Some('q') {
                    return Ok(());
                }
            }
            None => {
                tell(&view, json)?;
                std::thread::sleep(INTERVAL);
            }
        }
    }
}

fn tell(view: &View, json: bool) -> Result<(), Failure> {
    match json {
        true => {
            let text = serde_json::to_string(view).map_err(|error| Failure::Failed(error.to_string()))?;
            print(&format!("{text}\n"))
        }
        false => print(&format!("{}\n\n", draw(view).join("\n"))),
    }
}

impl Watch {
    /// Asks every console. One that ends meanwhile is left out.
    fn look(&mut self) -> Result<View, Failure> {
        let (mut flows, mut hosts) = (Vec::new(), Vec::new());
        let mut readings = BTreeMap::new();
        let Survey { told, silent } = survey(INTERVAL)?;
        for (console, status) in told {
            let (process, role) = (status.process, &status.role);
            hosts.extend(status.peers.iter().cloned().map(|peer| Host { process, role: role.clone(), peer }));
            for driver in &status.drivers {
                for (outward, stats) in [(true, &driver.stats.outgoing), (false, &driver.stats.incoming)] {
                    let Some(stats) = stats else { continue };
                    let key = (console.clone(), driver.name.clone(), outward);
                    let before = self.readings.get(&key).copied().unwrap_or_default();
                    let reading = before.go_on(driver.at_ns, stats);
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
    fn go_on(self, at_ns: u64, stats: &FlowStats) -> Reading {
        let FlowStats { messages, bytes, .. } = *stats;
        if at_ns == self.at_ns {
            return self;
        }
        let seconds = at_ns.saturating_sub(self.at_ns) as f64 / 1e9;
        let goes_on = self.at_ns > 0 && seconds > 0.0 && messages >= self.messages && bytes >= self.bytes;
        let rates = goes_on
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
        way: if to_application { "device -> application" } else { "application -> device" },
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
        lines.push("nothing of this user's runs here".into());
    }
    for flow in &view.flows {
        lines.push(row(flow));
        let state = [(!flow.linked, "no link"), (!flow.present, "no device"), (flow.traced, "traced")];
        lines.extend(state.iter().filter(|(is, _)| *is).map(|(_, what)| format!("    {what}")));
        if flow.restarts > 0 {
            lines.push(format!("    its worker was started again: {}", flow.restarts));
        }
        if let Some(store) = flow.store.as_ref().filter(|store| store.full || store.given_up > 0) {
            let state = if store.full { "store full" } else { "store" };
            lines.push(format!("    {state}: {} messages kept, {} given up", store.messages, store.given_up));
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
            "HOST", "DEVICES", "MESSAGES", "BYTES", "KEPT BYTES", "BUSY"
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
        None => "heard".into(),
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
    let name = match flow.way.starts_with("device") {
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
        lines.push(format!("        {} = {} (auto): {}", choice.option, choice.value, choice.why));
    }
}

/// A figure in at most seven characters.
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

/// The text in at most so many characters, the end left out.
fn cut(text: &str, columns: usize) -> String {
    match text.chars().count() <= columns {
        true => text.into(),
        false => text.chars().take(columns.saturating_sub(1)).chain(['…']).collect(),
    }
}
