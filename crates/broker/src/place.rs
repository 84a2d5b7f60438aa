//! Hosts on the command line and in run files: `[TRANSPORT://][PEER@]HOST[:PORT]`, and the defaults.

use contract::ServiceError;
use modules::registry;
use std::net::SocketAddr;
use sys::address::{is_bare_v6, with_port_of};
use trust::{Peer, Peers, Target};

/// Default port.
pub const DEFAULT_PORT: u16 = 7845;
/// Default address of `share`: all addresses, IPv6 and IPv4.
pub const DEFAULT_LISTEN: &str = "[::]:7845";
/// Default transport of the records.
pub const DEFAULT_TRANSPORT: &str = "quic";
/// Fallback if the default transport does not connect.
pub const FALLBACK_TRANSPORT: &str = "tcp";

/// Splits `[TRANSPORT://]REST` into the transport's name and the rest.
pub fn split_transport(text: &str) -> Result<(&str, &str), ServiceError> {
    let Some((transport, rest)) = text.split_once("://") else { return Ok((DEFAULT_TRANSPORT, text)) };
    if registry::transport(transport).is_some() {
        return Ok((transport, rest));
    }
    let known: Vec<_> = registry::transports().iter().map(|class| class.name()).collect();
    Err(ServiceError::Usage(format!(
        "`{text}`: there is no transport `{transport}`; there is: {}",
        known.join(", ")
    )))
}

/// Adds the default port if `host` has none; an IPv6 address gets brackets.
pub fn with_port(host: &str) -> String {
    match host.rsplit_once(':') {
        Some((_, port)) if !is_bare_v6(host) && port.parse::<u16>().is_ok() => host.into(),
        _ => with_port_of(host, &DEFAULT_PORT.to_string()),
    }
}

/// Parses `[PEER@]HOST[:PORT]`. `None` if the peer or the host is missing.
pub fn parse_target(text: &str) -> Option<Target> {
    let (peer, host) = text.rsplit_once('@').map_or((None, text), |(peer, host)| (Some(peer), host));
    let is_complete = !host.is_empty() && peer != Some("");
    is_complete.then(|| Target { peer: peer.map(String::from), address: with_port(host) })
}

/// Asks the user about a peer at an address that is not on record: the address, the peer's name and its fingerprint.
pub type Confirm<'a> = dyn FnMut(&str, &str, &str) -> bool + 'a;

/// Returns the addresses of the target, at least one. A peer's name that does not resolve leads to the places at which
/// this host last met the peer.
pub fn resolve(target: &Target, peers: Option<&Peers>) -> Result<Vec<SocketAddr>, ServiceError> {
    let unreachable = |error| ServiceError::Unreachable(format!("{}: {error}", target.address));
    let resolved = sys::address::resolve(&target.address).map_err(unreachable);
    let named = peers.filter(|_| target.peer.is_none()).and_then(|peers| peers.named(target.host()));
    let (Err(_), Some(Peer { places, address, .. })) = (&resolved, named) else { return resolved };
    let port = target.address.rsplit_once(':').map_or("", |(_, port)| port);
    let latest = places.first().map(|place| sys::address::host_of(place));
    let mut found: Vec<SocketAddr> = Vec::new();
    for host in latest.into_iter().chain(address.as_deref()) {
        let met = sys::address::resolve(&with_port_of(host, port)).unwrap_or_default();
        found.extend(met.iter().filter(|known| !found.contains(known)).collect::<Vec<_>>());
    }
    if found.is_empty() { resolved } else { Ok(found) }
}

/// Parses the address that a device host listens on.
pub fn listen_address(text: &str) -> Result<SocketAddr, ServiceError> {
    let (_, host) = split_transport(text)?;
    let wrong = |why: String| {
        ServiceError::Usage(format!("cannot listen on `{text}`: {why}; write [TRANSPORT://]ADDRESS[:PORT]"))
    };
    Ok(sys::address::resolve(&with_port(host)).map_err(|error| wrong(error.to_string()))?[0])
}
