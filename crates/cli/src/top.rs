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

/// The console of a flow's process, its peer, its device and its number. Several hosts may use one device, and one host may use
/// it several times; the numbers repeat in each session.
type FlowId = (PathBuf, String, String, u32);

/// The last reading of each flow.
#[derive(Default)]
struct Watch {
    readings: BTreeMap<FlowId, Reading>,
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
        Ok(self.read(survey(INTERVAL)?))
    }

    fn read(&mut self, Survey { statuses, silent }: Survey) -> View {
        let (mut flows, mut hosts) = (Vec::new(), Vec::new());
        let mut readings = BTreeMap::new();
        let has_services = !statuses.is_empty();
        for (console, status) in statuses {
            let (process, role) = (status.process, &status.role);
            hosts.extend(status.peers.iter().cloned().map(|peer| Host { process, role: role.clone(), peer }));
            for driver in &status.drivers {
                for (outward, stats) in [(true, &driver.stats.outgoing), (false, &driver.stats.incoming)] {
                    let Some(stats) = stats else { continue };
                    let (peer, name) = (driver.peer.clone(), driver.name.clone());
                    let id = (console.clone(), peer, name, stats.flow);
                    let before = self.readings.get(&id).copied().unwrap_or_default();
                    let reading = before.next(driver.at_ns, stats);
                    flows.push(flow(&status, driver, outward, stats, reading.rates));
                    readings.insert(id, reading);
                }
            }
        }
        self.readings = readings;
        View { flows, hosts, silent, has_services }
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

#[cfg(test)]
mod tests {
    use super::*;
    use flow::DriverStats;

    /// Two hosts use one device, one of them twice.
    fn survey_of(at_ns: u64, messages: [u64; 3]) -> Survey {
        let users = [("laptop (192.0.2.1:5)", 0), ("studio (192.0.2.2:5)", 0), ("studio (192.0.2.2:5)", 2)];
        let drivers = users.iter().zip(messages).map(|(&(peer, flow), messages)| DriverStatus {
            name: "sensor".into(),
            peer: peer.into(),
            node: String::new(),
            at_ns,
            stats: DriverStats {
                outgoing: Some(FlowStats { flow, messages, ..FlowStats::default() }),
                ..DriverStats::default()
            },
        });
        let status = Status { role: "share".into(), drivers: drivers.collect(), ..Status::default() };
        Survey { statuses: vec![("console".into(), status)], silent: Vec::new() }
    }

    #[test]
    fn each_user_of_a_device_has_its_own_rates() {
        let mut watch = Watch::default();
        let mut rates = |survey| {
            let view = watch.read(survey);
            view.flows.iter().map(|flow| flow.messages_per_second).collect::<Vec<_>>()
        };
        assert_eq!(rates(survey_of(1_000_000_000, [360_000, 0, 5000])), [None; 3]);
        let next = rates(survey_of(3_000_000_000, [360_200, 100, 5000]));
        assert_eq!(next, [Some(100.0), Some(50.0), Some(0.0)]);
    }
}
