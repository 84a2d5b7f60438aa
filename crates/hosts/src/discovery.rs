//! Discovery of hosts on the local network: DNS-SD (RFC 6763) over multicast DNS (RFC 6762). Off unless the user
//! asks for it.
//!
//! An announcement contains the name of the host and its port, and no device, peer or key. A discovered host is
//! unauthenticated: `find` shows it, and `attach` and `devices` verify the key of the peer that they look for.

use contract::ServiceError;
use mdns_sd::{IfKind, ResolvedService, ServiceDaemon, ServiceEvent, ServiceInfo};
use serde::Serialize;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};
use sys::address::with_port_of;

/// The service type (RFC 6763, section 7).
const SERVICE: &str = "_outboard._tcp.local.";
/// Most hosts in a result.
const HOSTS_MAX: usize = 256;
/// Most bytes of a host name: one DNS label (RFC 1035).
const NAME_BYTES_MAX: usize = 63;
/// Timeout for the goodbye packet that withdraws the announcement.
const FAREWELL: Duration = Duration::from_millis(300);

/// The announcement of a device host; withdrawn on drop.
pub struct Announcement {
    daemon: ServiceDaemon,
    fullname: String,
}

impl Announcement {
    /// Announces a device host on the networks that reach `listen`.
    pub fn start(host: &str, listen: SocketAddr) -> Result<Announcement, ServiceError> {
        let daemon = daemon(Some(listen))?;
        let label = label(host);
        let every = listen.ip().is_unspecified();
        let addresses = if every { String::new() } else { listen.ip().to_string() };
        let (target, nothing) = (format!("{label}.local."), [("v", "1")]);
        let info =
            ServiceInfo::new(SERVICE, &label, &target, addresses.as_str(), listen.port(), &nothing[..]);
        let mut info = info.map_err(failed)?;
        if every {
            info = info.enable_addr_auto();
        }
        let fullname = info.get_fullname().to_string();
        daemon.register(info).map_err(failed)?;
        Ok(Announcement { daemon, fullname })
    }
}

impl Drop for Announcement {
    fn drop(&mut self) {
        // A host that misses the goodbye drops the record when it expires.
        if let Ok(done) = self.daemon.unregister(&self.fullname) {
            let _ = done.recv_timeout(FAREWELL);
        }
        let _ = self.daemon.shutdown();
    }
}

/// A device host that was discovered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Found {
    /// The host's name, as it announces it.
    pub name: String,
    /// Its addresses as `ADDRESS:PORT`, for `attach` and `devices`.
    pub addresses: Vec<String>,
}

/// Collects announcements from the local network for this time.
pub fn find(time: Duration) -> Result<Vec<Found>, ServiceError> {
    let mut found = BTreeMap::new();
    listen(time, &mut |event| {
        match event {
            ServiceEvent::ServiceResolved(service) if found.len() < HOSTS_MAX => {
                let host = read(&service);
                found.insert(service.fullname.clone(), host);
            }
            ServiceEvent::ServiceRemoved(_, fullname) => drop(found.remove(&fullname)),
            _ => {}
        }
        ControlFlow::Continue(())
    })?;
    Ok(found.into_values().collect())
}

/// Passes the addresses of each host that announces itself by one of these names to `take`, for this time or until it
/// breaks.
pub fn find_named(
    names: &[&str],
    time: Duration,
    take: &mut dyn FnMut(&[SocketAddr]) -> ControlFlow<()>,
) -> Result<(), ServiceError> {
    let labels: Vec<_> = names.iter().map(|name| label(name)).collect();
    listen(time, &mut |event| {
        let ServiceEvent::ServiceResolved(service) = event else { return ControlFlow::Continue(()) };
        let host = read(&service);
        // Hosts of one name get a number (RFC 6762, section 9): `studio (2)`.
        let name = host.name.split(" (").next().unwrap_or_default();
        if !labels.iter().any(|label| label.eq_ignore_ascii_case(name)) {
            return ControlFlow::Continue(());
        }
        let resolved = host.addresses.iter().filter_map(|address| sys::address::resolve(address).ok());
        take(&resolved.flatten().collect::<Vec<_>>())
    })
}

/// Passes announcements to `take` for this time, or until it breaks.
fn listen(time: Duration, take: &mut dyn FnMut(ServiceEvent) -> ControlFlow<()>) -> Result<(), ServiceError> {
    let daemon = daemon(None)?;
    let events = daemon.browse(SERVICE).map_err(failed)?;
    let until = Instant::now() + time;
    while let Ok(event) = events.recv_timeout(until.saturating_duration_since(Instant::now())) {
        if take(event).is_break() {
            break;
        }
    }
    let _ = daemon.shutdown();
    Ok(())
}

fn read(service: &ResolvedService) -> Found {
    let name = service.fullname.strip_suffix(SERVICE).unwrap_or(&service.fullname).trim_end_matches('.');
    let mut addresses: Vec<_> = service.addresses.iter().collect();
    // Globally reachable addresses first, loopback last.
    addresses.sort_by_key(|address| {
        let ip = address.to_ip_addr();
        (ip.is_loopback(), ip.is_ipv6(), ip)
    });
    let port = service.port.to_string();
    // A link-local address includes its interface.
    let addresses = addresses.iter().map(|address| with_port_of(&address.to_string(), &port)).collect();
    Found { name: name.replace('\\', ""), addresses }
}

/// Starts a daemon on all networks, or only on the one with the address `listen`.
fn daemon(listen: Option<SocketAddr>) -> Result<ServiceDaemon, ServiceError> {
    let daemon = ServiceDaemon::new().map_err(failed)?;
    if let Some(listen) = listen.filter(|listen| !listen.ip().is_unspecified()) {
        daemon.disable_interface(IfKind::All).map_err(failed)?;
        daemon.enable_interface(IfKind::Addr(listen.ip())).map_err(failed)?;
    }
    Ok(daemon)
}

/// Converts a host's name to one DNS label.
fn label(host: &str) -> String {
    let first = host.split('.').next().unwrap_or_default();
    let word = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '-' };
    match first.chars().map(word).take(NAME_BYTES_MAX).collect::<String>() {
        name if name.is_empty() => "outboard".into(),
        name => name,
    }
}

fn failed(error: mdns_sd::Error) -> ServiceError {
    ServiceError::os("multicast DNS", std::io::Error::other(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_label() {
        assert_eq!(label("studio.example.org"), "studio");
        assert_eq!(label("a host \u{1f600}"), "a-host--");
        assert_eq!(label(""), "outboard");
        assert_eq!(label(&"a".repeat(100)).len(), NAME_BYTES_MAX);
    }
}
