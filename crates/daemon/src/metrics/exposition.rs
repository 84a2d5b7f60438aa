//! Prometheus' text format, version 0.0.4. Names begin with `outboard_` and contain the unit, a base unit.

use console::{DriverStatus, Status};
use flow::stats::FlowStats;
use std::collections::BTreeMap;
use std::fmt::Write;

/// A metric: its name, its type and its help text.
type Kind = (&'static str, &'static str, &'static str);

const BUILD: Kind = ("outboard_build_info", "gauge", "The program's version.");
const PROBLEMS: Kind = ("outboard_problems", "gauge", "Entries of the run file that should run and do not.");
const SESSIONS: Kind = ("outboard_sessions", "gauge", "Sessions with other hosts.");
const LINK: Kind = ("outboard_link_up", "gauge", "1 if the other host answers, 0 if it is silent.");
const ROUND_TRIP: Kind =
    ("outboard_round_trip_seconds", "gauge", "Shortest recent round trip to the other host.");
const BUSY: Kind =
    ("outboard_peer_busy_seconds_total", "counter", "Time that the worker spent on the flows of a peer.");
const REFUSED: Kind = ("outboard_refused_total", "counter", "Refused connections, by reason.");
const OFFERED: Kind = ("outboard_device_present", "gauge", "1 if a shared device is plugged in.");
const USERS: Kind = ("outboard_device_users", "gauge", "Peers that use a shared device.");
const HUB_MESSAGES: Kind =
    ("outboard_hub_messages_total", "counter", "Messages of a device that several peers use.");
const HUB_DELIVERED: Kind =
    ("outboard_hub_delivered_total", "counter", "Messages delivered to each of these peers.");
const HUB_DROPPED: Kind =
    ("outboard_hub_dropped_total", "counter", "Messages that the device's hub dropped, by reason.");
const LINKED: Kind = ("outboard_flow_linked", "gauge", "1 if the flow's data connection exists.");
const MESSAGES: Kind = ("outboard_flow_messages_total", "counter", "Records sent or received.");
const BYTES: Kind = ("outboard_flow_bytes_total", "counter", "Bytes of their bodies.");
const RESENT: Kind = ("outboard_flow_resent_total", "counter", "Retransmitted records.");
const REPEATED: Kind = ("outboard_flow_repeated_total", "counter", "Records received more than once.");
const LOST: Kind = ("outboard_flow_lost_total", "counter", "Lost records.");
const DROPPED: Kind = ("outboard_flow_dropped_total", "counter", "Dropped messages, by reason.");
const STORE: Kind =
    ("outboard_flow_store_bytes", "gauge", "Bytes of unacknowledged records in the replay store.");
const FULL: Kind = ("outboard_flow_store_full", "gauge", "1 if the replay store is full.");
const DELAY: Kind = (
    "outboard_flow_delay_seconds",
    "gauge",
    "Delay from creation to delivery of recent messages, at the sink.",
);
const CPU: Kind = ("process_cpu_seconds_total", "counter", "Processor time of the process.");
const MEMORY: Kind = ("process_resident_memory_bytes", "gauge", "Resident memory of the process.");
const DESCRIPTORS: Kind = ("process_open_fds", "gauge", "Open descriptors of the process.");

/// The metric families, each with its samples by labels. Samples with equal labels are added up.
#[derive(Default)]
struct Families(BTreeMap<Kind, BTreeMap<String, f64>>);

impl Families {
    fn add(&mut self, kind: Kind, labels: &[(&str, &str)], value: f64) {
        *self.0.entry(kind).or_default().entry(joined(labels)).or_default() += value;
    }

    /// Adds a sample that is not summed up: the largest counts.
    fn most(&mut self, kind: Kind, labels: &[(&str, &str)], value: f64) {
        let sample = self.0.entry(kind).or_default().entry(joined(labels)).or_insert(value);
        *sample = sample.max(value);
    }
}

fn joined(labels: &[(&str, &str)]) -> String {
    let one = |(name, value): &(&str, &str)| {
        let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        format!("{name}=\"{value}\"")
    };
    labels.iter().map(one).collect::<Vec<_>>().join(",")
}

/// Formats all metrics.
pub(super) fn emit(statuses: &[Status]) -> String {
    let mut families = Families::default();
    families.add(BUILD, &[("version", env!("CARGO_PKG_VERSION"))], 1.0);
    families.add(SESSIONS, &[], 0.0);
    families.add(PROBLEMS, &[], 0.0);
    for status in statuses {
        add_status(&mut families, status);
    }
    families.add(CPU, &[], sys::clock::process_cpu_ns() as f64 / 1e9);
    if let Some(bytes) = resident_bytes() {
        families.add(MEMORY, &[], bytes);
    }
    if let Ok(descriptors) = std::fs::read_dir("/proc/self/fd") {
        families.add(DESCRIPTORS, &[], descriptors.count() as f64);
    }
    let mut text = String::new();
    for ((name, kind, help), samples) in families.0 {
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (labels, value) in samples {
            let _ = match labels.is_empty() {
                true => writeln!(text, "{name} {value}"),
                false => writeln!(text, "{name}{{{labels}}} {value}"),
            };
        }
    }
    text
}

/// Returns the resident memory of this process (`proc_pid_statm(5)`).
fn resident_bytes() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = text.split_ascii_whitespace().nth(1)?.parse().ok()?;
    Some((pages * rustix::param::page_size() as u64) as f64)
}

fn add_status(families: &mut Families, status: &Status) {
    let role = ("role", status.role.as_str());
    families.add(PROBLEMS, &[], status.problems.len() as f64);
    families.add(SESSIONS, &[], status.peers.len() as f64);
    for peer in &status.peers {
        let labels = [("peer", peer.name.as_str()), role];
        families.most(LINK, &labels, f64::from(peer.silent_seconds.is_none()));
        families.add(BUSY, &labels, peer.busy_seconds);
        if let Some(seconds) = peer.round_trip_seconds {
            families.most(ROUND_TRIP, &labels, seconds);
        }
    }
    for (reason, count) in &status.refused {
        families.add(REFUSED, &[("reason", reason)], *count as f64);
    }
    for offer in &status.offers {
        let labels = [("device", offer.name.as_str())];
        families.add(OFFERED, &labels, f64::from(offer.present));
        families.add(USERS, &labels, offer.users as f64);
        let Some(hub) = &offer.hub else { continue };
        families.add(HUB_MESSAGES, &labels, hub.messages as f64);
        for (client, count) in &hub.clients {
            families.add(HUB_DELIVERED, &[labels[0], ("client", &client.to_string())], *count as f64);
        }
        for (reason, count) in &hub.drops {
            families.add(HUB_DROPPED, &[labels[0], ("reason", reason)], *count as f64);
        }
    }
    for driver in &status.drivers {
        // An `attach` has one peer; a `share` names the peer of each driver.
        let of_attach =
            status.peers.first().filter(|_| status.role == "attach").map(|peer| peer.name.as_str());
        let peer =
            of_attach.unwrap_or_else(|| driver.peer.rsplit_once(" (").map_or(&*driver.peer, |at| at.0));
        let flows = [(true, &driver.stats.outgoing), (false, &driver.stats.incoming)];
        for (outward, stats) in flows {
            if let Some(stats) = stats {
                add_flow(families, (status.role.as_str(), outward), (driver, peer), stats);
            }
        }
    }
}

fn add_flow(
    families: &mut Families,
    (role, outward): (&str, bool),
    (driver, peer): (&DriverStatus, &str),
    stats: &FlowStats,
) {
    let direction = if outward == (role == "share") { "to_application" } else { "to_device" };
    let labels = [("device", driver.name.as_str()), ("peer", peer), ("role", role), ("direction", direction)];
    let with = |label: (&'static str, &str)| {
        let mut all: Vec<_> = labels.to_vec();
        all.push((label.0, label.1));
        joined(&all)
    };
    families.most(LINKED, &labels, f64::from(driver.stats.linked));
    for (kind, count) in [
        (MESSAGES, stats.messages),
        (BYTES, stats.bytes),
        (RESENT, stats.resent),
        (REPEATED, stats.repeated),
        (LOST, stats.lost),
    ] {
        families.add(kind, &labels, count as f64);
    }
    for (reason, count) in &stats.drops {
        *families.0.entry(DROPPED).or_default().entry(with(("reason", reason))).or_default() += *count as f64;
    }
    if let Some(store) = &stats.store {
        families.add(STORE, &labels, store.bytes as f64);
        families.most(FULL, &labels, f64::from(store.full));
    }
    for (quantile, us) in ["0.01", "0.5", "0.99"].iter().zip(stats.delay_us.iter().flatten()) {
        let sample = families.0.entry(DELAY).or_default().entry(with(("quantile", quantile))).or_insert(0.0);
        *sample = sample.max(us / 1e6);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use console::OfferStatus;
    use flow::stats::DriverStats;
    use hub::hub::HubStats;

    #[test]
    fn hub_statistics_become_metrics() {
        let hub = HubStats {
            messages: 7,
            clients: [(0, 7), (3, 5)].into(),
            owner: Some(0),
            drops: [("too slow".to_string(), 2)].into(),
        };
        let offer = OfferStatus { name: "mouse".into(), present: true, users: 2, hub: Some(hub) };
        let text = emit(&[Status { offers: vec![offer], ..Status::default() }]);
        for line in [
            "outboard_hub_messages_total{device=\"mouse\"} 7\n",
            "outboard_hub_delivered_total{device=\"mouse\",client=\"3\"} 5\n",
            "outboard_hub_dropped_total{device=\"mouse\",reason=\"too slow\"} 2\n",
        ] {
            assert!(text.contains(line), "{line} is not in:\n{text}");
        }
    }

    #[test]
    fn flows_with_equal_labels_are_added_up_and_labels_are_quoted() {
        let flow = FlowStats { messages: 2, delay_us: Some([1.0, 2.0, 3000.0]), ..FlowStats::default() };
        let stats = DriverStats { linked: true, outgoing: Some(flow), ..DriverStats::default() };
        let (name, peer) = ("a \"b\"\n".to_string(), "studio (10.0.0.1:5)".to_string());
        let driver = DriverStatus { name, peer, node: String::new(), at_ns: 1, stats };
        let status =
            Status { role: "share".into(), drivers: vec![driver.clone(), driver], ..Status::default() };
        let text = emit(&[status]);
        let labels = r#"device="a \"b\"\n",peer="studio",role="share",direction="to_application""#;
        for line in [
            format!("outboard_flow_messages_total{{{labels}}} 4\n"),
            format!("outboard_flow_linked{{{labels}}} 1\n"),
            format!("outboard_flow_delay_seconds{{{labels},quantile=\"0.99\"}} 0.003\n"),
            "# TYPE outboard_flow_messages_total counter\n".into(),
        ] {
            assert!(text.contains(&line), "{line} is not in:\n{text}");
        }
    }
}
