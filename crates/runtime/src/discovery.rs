//! Finding hosts on the local network (DNS-SD, RFC 6763, over multicast DNS, RFC 6762): off unless somebody asks for it.
//!
//! What is announced is that there is Outboard, the host's name and the port: no device, no peer, no key. What is found
//! is a stranger's word, good for being shown: who answers there shows its key when it is attached to.

use crate::config::with_port_of;
use crate::error::RuntimeError;
use mdns_sd::{IfKind, ResolvedService, ServiceDaemon, ServiceEvent, ServiceInfo};
use serde::Serialize;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// What it is called there (RFC 6763, section 7).
const SERVICE: &str = "_outboard._tcp.local.";
/// Hosts that are shown at most.
const HOSTS_MAX: usize = 256;
/// Bytes of the longest name of a host (RFC 1035: of a label).
const NAME_BYTES_MAX: usize = 63;
/// How long others are told at the end that it is over.
const FAREWELL: Duration = Duration::from_millis(300);

/// Announces a sharer until it is dropped.
pub struct Announcement {
    daemon: ServiceDaemon,
    fullname: String,
}

impl Announcement {
    /// Says on the networks that `listen` is reached by that a sharer is there.
    pub fn start(host: &str, listen: SocketAddr) -> Result<Announcement, RuntimeError> {
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
        // Whoever does not hear it forgets it in time.
        if let Ok(told) = self.daemon.unregister(&self.fullname) {
            let _ = told.recv_timeout(FAREWELL);
        }
        let _ = self.daemon.shutdown();
    }
}

/// A host that says that it shares.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Found {
    /// As it calls itself.
    pub name: String,
    /// `ADDRESS:PORT` each, for `attach` and `devices`.
    pub addresses: Vec<String>,
}

/// Asks the local network for so long who shares.
pub fn find(time: Duration) -> Result<Vec<Found>, RuntimeError> {
    let daemon = daemon(None)?;
    let events = daemon.browse(SERVICE).map_err(failed)?;
    let (until, mut found) = (Instant::now() + time, BTreeMap::new());
    while let Ok(event) = events.recv_timeout(until.saturating_duration_since(Instant::now())) {
        match event {
            ServiceEvent::ServiceResolved(service) if found.len() < HOSTS_MAX => {
                let host = read(&service);
                found.insert(service.fullname.clone(), host);
            }
            ServiceEvent::ServiceRemoved(_, fullname) => drop(found.remove(&fullname)),
            _ => {}
        }
    }
    let _ = daemon.shutdown();
    Ok(found.into_values().collect())
}

fn read(service: &ResolvedService) -> Found {
    let name = service.fullname.strip_suffix(SERVICE).unwrap_or(&service.fullname).trim_end_matches('.');
    let mut addresses: Vec<_> = service.addresses.iter().collect();
    // What is reached from everywhere first, what is this host alone last.
    addresses.sort_by_key(|address| {
        let ip = address.to_ip_addr();
        (ip.is_loopback(), ip.is_ipv6(), ip)
    });
    let port = service.port.to_string();
    // One that holds on one link only says which.
    let addresses = addresses.iter().map(|address| with_port_of(&address.to_string(), &port)).collect();
    Found { name: name.replace('\\', ""), addresses }
}

/// On all networks, or on the one that an address belongs to.
fn daemon(listen: Option<SocketAddr>) -> Result<ServiceDaemon, RuntimeError> {
    let daemon = ServiceDaemon::new().map_err(failed)?;
    if let Some(listen) = listen.filter(|listen| !listen.ip().is_unspecified()) {
        daemon.disable_interface(IfKind::All).map_err(failed)?;
        daemon.enable_interface(IfKind::Addr(listen.ip())).map_err(failed)?;
    }
    Ok(daemon)
}

/// A host's name as one label.
fn label(host: &str) -> String {
    let first = host.split('.').next().unwrap_or_default();
    let word = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '-' };
    match first.chars().map(word).take(NAME_BYTES_MAX).collect::<String>() {
        name if name.is_empty() => "outboard".into(),
        name => name,
    }
}

fn failed(error: mdns_sd::Error) -> RuntimeError {
    RuntimeError::os("multicast DNS", std::io::Error::other(error.to_string()))
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
