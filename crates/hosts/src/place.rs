//! Hosts on the command line and in run files: `[TRANSPORT://][PEER@]HOST[:PORT]`, and the defaults.

use crate::discovery;
use contract::{ServiceError, nearest};
use modules::registry;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::ControlFlow;
use std::time::Duration;
use sys::address::{host_of, is_bare_v6, place_of, with_port_of};
use trust::{Known, Peer, PeerKey, Peers, Target, Trust};

/// Default port.
pub const DEFAULT_PORT: u16 = 7845;
/// Default address of `share`: all addresses, IPv6 and IPv4.
pub const DEFAULT_LISTEN: &str = "[::]:7845";
/// Default transport of the records.
pub const DEFAULT_TRANSPORT: &str = "quic";
/// Fallback if the default transport does not connect.
pub const FALLBACK_TRANSPORT: &str = "tcp";
/// The most places of a peer that are tried.
const PLACES_TRIED: usize = 2;
/// The most hosts that are tried which announce themselves by the name of a peer: anybody can announce any name.
const ANNOUNCED_TRIED: usize = 4;
/// The most addresses of such a host.
const ADDRESSES_TRIED: usize = 4;
/// Timeout of the search for a peer on the local network. Hosts answer within a fraction of a second; a lost question is
/// repeated after one second.
const DISCOVERY: Duration = Duration::from_secs(2);

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

/// The problem of a host for which [`has_wrong_port`] is true.
pub const WRONG_PORT: &str = "a port is a number below 65536";

/// Returns true if `host` ends with a number that is no port.
pub fn has_wrong_port(host: &str) -> bool {
    let end = host.rsplit_once(':').filter(|_| !is_bare_v6(host)).map(|(_, end)| end);
    end.is_some_and(|end| is_number(end) && end.parse::<u16>().is_err())
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Parses `[PEER@]HOST[:PORT]`. `None` if the peer or the host is missing, or the host has another form.
pub fn parse_target(text: &str) -> Option<Target> {
    let (peer, host) = text.rsplit_once('@').map_or((None, text), |(peer, host)| (Some(peer), host));
    let is_complete = !host.is_empty() && peer != Some("") && !host.contains('/');
    let target = Target { peer: peer.map(String::from), address: with_port(host) };
    // A colon that is left belongs to a port that is no number.
    let is_whole = is_bare_v6(target.host()) || !target.host().contains(':');
    (is_complete && is_whole).then_some(target)
}

/// Checks that the peer that the target names, if any, is paired: in `known`, or else in the stored list.
pub fn check_peer(target: &Target, trust: Option<&Trust>, known: Option<&Peers>) -> Result<(), ServiceError> {
    match (&target.peer, trust) {
        (None, _) => Ok(()),
        (Some(peer), Some(trust)) => {
            match known.map_or_else(|| trust.peers(), |known| Ok(known.clone()))?.required(peer) {
                Ok(_) => Ok(()),
                Err(error) => Err(ServiceError::Usage(format!(
                    "{error}; a peer stands before the `@`, not a user: `{}` alone is enough",
                    target.host()
                ))),
            }
        }
        (Some(peer), None) => Err(ServiceError::Usage(format!(
            "`{peer}@` names a peer, but `insecure` does not authenticate peers: use one of the two"
        ))),
    }
}

/// Asks the user about a peer at an address that is not on record: the address, the peer's name and its fingerprint.
pub type Confirm<'a> = dyn FnMut(&str, &str, &str) -> bool + 'a;

/// The source of the address at which a host answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// The target, or a record of the peer.
    Known,
    /// An announcement on the local network.
    Announced,
}

/// Records the place at which a peer answered that the user has named, unless the name leads there anyway.
pub fn record_place(
    known: &mut Known,
    target: &Target,
    route: Route,
    (key, address): (&PeerKey, SocketAddr),
) -> Result<(), ServiceError> {
    match (&target.peer, route) {
        (Some(_), _) => known.record(key, &target.address),
        (None, Route::Announced) => known.record(key, &place_of(address)),
        (None, Route::Known) => Ok(()),
    }
}

/// Passes the addresses of the target to `connect`.
///
/// A peer's name is a host. Its addresses are those of the name, then the places at which this host met the peer. If the
/// peer answers at none of them, the ones that it announces on the local network follow. `connect` checks the key.
pub fn reach<T>(
    target: &Target,
    peers: Option<&Peers>,
    connect: &mut dyn FnMut(&[SocketAddr]) -> Result<T, ServiceError>,
) -> Result<(T, Route), ServiceError> {
    let mut by = |route, addresses: &[SocketAddr]| Ok((connect(addresses)?, route));
    let resolved = sys::address::resolve(&target.address);
    let Some((peers, peer)) = peers.and_then(|peers| Some((peers, target.named(peers)?))) else {
        return by(Route::Known, &resolved.map_err(|error| unknown_host(target, peers, &error))?);
    };
    let known = addresses_of(target, peer, resolved.unwrap_or_default());
    let problem = match known.is_empty() {
        true => format!("no address of the peer `{}` is known", peer.name),
        false => match by(Route::Known, &known) {
            Err(ServiceError::Unreachable(problem)) => problem,
            done => return done,
        },
    };
    let (mut reached, mut tried) = (None, 0);
    let names: Vec<_> = peers.names_of(peer).collect();
    // Without multicast DNS, nothing is announced.
    let _ = discovery::find_named(&names, DISCOVERY, &mut |addresses| {
        let fresh =
            addresses.iter().filter(|address| !known.contains(address) && has_port(target, **address));
        let fresh: Vec<_> = fresh.copied().take(ADDRESSES_TRIED).collect();
        if fresh.is_empty() {
            return ControlFlow::Continue(());
        }
        tried += 1;
        match by(Route::Announced, &fresh) {
            Err(ServiceError::Unreachable(_)) => {}
            done => reached = Some(done),
        }
        match reached.is_some() || tried == ANNOUNCED_TRIED {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    });
    let advice = format!(
        "; `{}` was not found on the local network: run `outboard share --announce` there, or write {}@ADDRESS",
        peer.name, peer.name
    );
    reached.unwrap_or_else(|| Err(ServiceError::Unreachable(problem + &advice)))
}

/// Returns the addresses at which a peer may answer: those of its name, and those at which this host met it.
fn addresses_of(target: &Target, peer: &Peer, resolved: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let mut found = resolved;
    let mut add = |place: &str| {
        for address in sys::address::resolve(place).unwrap_or_default() {
            if has_port(target, address) && !found.contains(&address) {
                found.push(address);
            }
        }
    };
    for place in peer.places.iter().take(PLACES_TRIED) {
        add(&with_port_of(host_of(place), target.port()));
        add(place);
    }
    if let Some(host) = &peer.address {
        add(&with_port_of(host, target.port()));
    }
    found
}

/// Returns whether the target permits the port of this address. The default port stands for any.
fn has_port(target: &Target, address: SocketAddr) -> bool {
    let port = target.port().parse();
    port == Ok(DEFAULT_PORT) || port == Ok(address.port())
}

fn unknown_host(target: &Target, peers: Option<&Peers>, error: &io::Error) -> ServiceError {
    let host = target.host();
    // The resolver has failed; other errors name a wrong port or interface.
    if error.raw_os_error().is_some() || error.kind() == io::ErrorKind::InvalidInput {
        return ServiceError::Unreachable(format!("{}: {error}", target.address));
    }
    let peers = peers.filter(|_| target.peer.is_none());
    let names: Vec<_> = peers.iter().flat_map(|peers| peers.iter()).map(|peer| peer.name.as_str()).collect();
    let advice = match (nearest(host, names.iter().copied()), names.is_empty()) {
        (Some(near), _) => format!("did you mean `{near}`?"),
        (None, false) => format!("paired hosts: {}", names.join(", ")),
        (None, true) => "write an address, or pair the hosts with `outboard pair`".into(),
    };
    ServiceError::Unreachable(format!("`{host}` is no name of a paired host and has no address; {advice}"))
}

/// Parses the address that a device host listens on. A port alone is that port of all addresses. A name stands for one address
/// ([`listen_remark`]); without one it is a system error, because the resolver may not be up yet.
pub fn listen_address(text: &str) -> Result<SocketAddr, ServiceError> {
    listen_choice(text).map(|(address, _)| address)
}

/// Returns a remark if fewer hosts reach the address of [`listen_address`] than the name suggests.
pub fn listen_remark(text: &str) -> Option<String> {
    listen_choice(text).ok()?.1
}

fn listen_choice(text: &str) -> Result<(SocketAddr, Option<String>), ServiceError> {
    let (_, host) = split_transport(text)?;
    let wrong = |why: &str| {
        ServiceError::Usage(format!(
            "cannot listen on `{text}`: {why}; write [TRANSPORT://]ADDRESS[:PORT] or a port"
        ))
    };
    let port = host.strip_prefix(':').unwrap_or(host);
    // The resolver would take a number for an IPv4 address (inet_aton(3)).
    if is_number(port) {
        let port: u16 = port.parse().map_err(|_| wrong(WRONG_PORT))?;
        return Ok((SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)), None));
    }
    if has_wrong_port(host) {
        return Err(wrong(WRONG_PORT));
    }
    let place = with_port(host);
    let name = host_of(&place);
    let is_odd = |c: char| c.is_ascii() && !c.is_ascii_alphanumeric() && !"-._".contains(c);
    if name.is_empty() || (!is_bare_v6(name) && name.contains(is_odd)) {
        return Err(wrong("it is neither an address nor a name"));
    }
    let failed = |error| ServiceError::os(format!("listening on `{text}`"), error);
    Ok(choose(name, sys::address::resolve(&place).map_err(failed)?))
}

/// Chooses one address of a name, at least one: not of loopback if there is another, and of IPv4 if there is one. The order does not
/// count, because resolvers change it.
fn choose(name: &str, mut found: Vec<SocketAddr>) -> (SocketAddr, Option<String>) {
    found.sort_by_key(|address| (address.ip().is_loopback(), address.is_ipv6(), *address));
    found.dedup();
    let chosen = found[0];
    let is_address = is_bare_v6(name) || name.parse::<Ipv4Addr>().is_ok();
    if is_address || name.ends_with("localhost") {
        return (chosen, None);
    }
    let words = "write an address, or a port alone for all addresses";
    if chosen.ip().is_loopback() {
        let problem = format!("`{name}` is {}, which no other host reaches: {words}", chosen.ip());
        return (chosen, Some(problem));
    }
    let others = found[1..].iter().filter(|address| !address.ip().is_loopback());
    let others: Vec<_> = others.map(|address| address.ip().to_string()).collect();
    let remark = format!(
        "`{name}` has several addresses, and this host listens on {} only, not on {}: {words}",
        chosen.ip(),
        others.join(", ")
    );
    (chosen, (!others.is_empty()).then_some(remark))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_may_exist_later_is_no_wrong_usage() {
        for (text, is_wrong) in [
            ("[fe80::1%no-such-link]:7845", false),
            ("a b", true),
            ("host:x", true),
            ("78460", true),
            ("", true),
        ] {
            let error = listen_address(text).unwrap_err();
            assert_eq!(matches!(error, ServiceError::Usage(_)), is_wrong, "{text}: {error}");
        }
        assert_eq!(listen_address("tcp://[::1]").unwrap(), "[::1]:7845".parse().unwrap());
    }

    #[test]
    fn the_place_of_an_announced_peer_has_the_name_of_the_interface() {
        let directory = std::env::temp_dir().join(format!("outboard-place-{}", std::process::id()));
        let trust = Trust::at(&directory).unwrap();
        let there = Trust::at(&directory.join("there")).unwrap();
        let line = there.key_line("desk", None);
        trust.edit(|peers| peers.add_line(&line, &trust.key(), false)).unwrap();
        let mut known = Known::new(trust).unwrap();
        let (target, address) = (parse_target("desk").unwrap(), "[fe80::1%1]:7845".parse().unwrap());
        record_place(&mut known, &target, Route::Announced, (&there.key(), address)).unwrap();
        assert_eq!(known.peers().named("desk").unwrap().places, ["[fe80::1%lo]:7845"]);
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_name_stands_for_the_address_that_most_hosts_reach() {
        for (name, found, chosen, says) in [
            ("localhost", &["::1", "127.0.0.1"][..], "127.0.0.1", None),
            ("ip6-localhost", &["::1"], "::1", None),
            ("127.0.0.1", &["127.0.0.1"], "127.0.0.1", None),
            ("::1", &["::1"], "::1", None),
            ("studio", &["10.0.0.5"], "10.0.0.5", None),
            ("studio", &["10.0.0.5", "127.0.1.1", "10.0.0.5"], "10.0.0.5", None),
            (
                "studio",
                &["127.0.1.1"],
                "127.0.1.1",
                Some("`studio` is 127.0.1.1, which no other host reaches"),
            ),
            (
                "studio",
                &["fd00::5", "10.0.0.6", "10.0.0.5"],
                "10.0.0.5",
                Some("not on 10.0.0.6, fd00::5: write"),
            ),
        ] {
            let at = |ip: &&str| SocketAddr::new(ip.parse().unwrap(), 7845);
            let mut found: Vec<_> = found.iter().map(at).collect();
            let (address, remark) = choose(name, found.clone());
            found.reverse();
            assert_eq!(choose(name, found), (address, remark.clone()), "{name}: another order");
            assert_eq!(address, at(&chosen), "{name}");
            assert_eq!(remark.is_some(), says.is_some(), "{remark:?}");
            assert!(remark.unwrap_or_default().contains(says.unwrap_or_default()), "{name}");
        }
    }
}
