//! `outboard top`: shows the flows of every `share`, `attach` and `run` of this user, from their consoles.

mod table;

use crate::network_path::NetworkPath;
use crate::output::{Failure, print, print_json};
use crate::services::stop_on_signals;
use crate::terminal::{self, Terminal, pause};
use console::{DriverStatus, PeerStatus, Status, Survey, survey};
use flow::{FlowStats, StageStats, StoreStats};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;
use sys::stop::Stop;
use table::Screen;

/// Time between two updates.
const INTERVAL: Duration = Duration::from_secs(1);

/// One flow, in the table and in `--json`.
#[derive(Serialize)]
struct Flow {
    process: i32,
    role: String,
    device: String,
    /// `device -> application` or `application -> device`.
    direction: &'static str,
    /// True if the source is on this host.
    #[serde(skip)]
    is_outgoing: bool,
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
    /// Network path of a flow whose source is on this host.
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<NetworkPath>,
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
    /// A process has answered, perhaps without a flow.
    #[serde(skip)]
    has_services: bool,
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
    let stop = Stop::new()?;
    stop_on_signals(&stop)?;
    let mut terminal = if json { None } else { Terminal::take(&stop)? };
    while !stop.is_requested() {
        let view = watch.update()?;
        match &mut terminal {
            Some(terminal) => {
                let lines = Screen::of_terminal(terminal.columns()).draw(&view);
                if terminal.show(&lines, "q quits", INTERVAL)? == Some('q') {
                    break;
                }
            }
            None => {
                write(&view, json)?;
                pause(INTERVAL, &stop);
            }
        }
    }
    Ok(())
}

fn write(view: &View, json: bool) -> Result<(), Failure> {
    match json {
        true => print_json(view),
        false => {
            let screen = terminal::stdout_columns().map_or_else(Screen::of_text, Screen::of_terminal);
            print(&format!("{}\n\n", screen.draw(view).join("\n")))
        }
    }
}

impl Watch {
    /// Requests the status of every console. Skips processes that end meanwhile.
    fn update(&mut self) -> Result<View, Failure> {
        let (mut flows, mut hosts) = (Vec::new(), Vec::new());
        let mut readings = BTreeMap::new();
        let Survey { statuses, silent } = survey(INTERVAL)?;
        let has_services = !statuses.is_empty();
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
        Ok(View { flows, hosts, silent, has_services })
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
        is_outgoing: outward,
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
        path: NetworkPath::from_figures(&driver.stats.transport).filter(|_| outward && driver.stats.linked),
        drops: stats.drops.clone(),
        pipeline: stats.pipeline.clone(),
        stages: stats.stages.clone(),
    }
}
