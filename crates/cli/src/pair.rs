//! `outboard pair` and `outboard peers`: pairs two hosts, and lists and edits the paired hosts.

mod key_lines;

use crate::arguments::{Pair, Peers, PeersAction};
use crate::output::{Events, Failure, print, print_json, printable};
use crate::services::stop_on_signals;
use broker::{DEFAULT_PORT, with_port};
use console::{PATIENCE, PeerStatus, Status, survey};
use contract::ServiceError;
use hosts::place::{WRONG_PORT, has_wrong_port, listen_address};
use qrcode::render::unicode::Dense1x2;
use qrcode::{EcLevel, QrCode};
use serde::Serialize;
use std::io::{self, BufRead, IsTerminal, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use sys::address::host_name;
use sys::stop::Stop;
use trust::{
    CODE_LIFETIME, Code, Offer, PairError, Paired, PairingIncident, Peer, PeerKey, Trust, check_new_name,
    join,
};

impl From<PairError> for Failure {
    fn from(error: PairError) -> Self {
        match error {
            PairError::Code(_) => Failure::Usage(error.to_string()),
            PairError::Trust(error) => error.into(),
            _ => Failure::Failed(error.to_string()),
        }
    }
}

/// Longest line that is read as a code.
const CODE_BYTES_MAX: u64 = 100;

/// Output of `pair --json`, one object a line.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
enum PairEvent<'a> {
    /// This host shows a code.
    Code { code: &'a str, address: SocketAddr, command: &'a str },
    /// A host sent a wrong code.
    WrongGuess { guesses_left: usize },
    /// An address opens many connections without a code: its oldest ones are closed.
    Crowded { address: IpAddr },
    /// The pairing is complete.
    Paired {
        name: &'a str,
        key: &'a PeerKey,
        /// The name that the host calls itself, if that one is taken.
        #[serde(skip_serializing_if = "Option::is_none")]
        claimed: Option<&'a str>,
    },
}

/// `outboard pair [[CODE@]HOST]`.
pub(crate) fn pair(words: Pair) -> Result<(), Failure> {
    let events = Events::new(words.json.json, false, false);
    let trust = Trust::open()?;
    if let Some(name) = &words.name {
        check_new_name(name)?;
    }
    let Paired { name, claimed, key } = match &words.with {
        None => show(trust, &words, &events)?,
        Some(with) => complete(&trust, with, words.name.as_deref())?,
    };
    let mut text = format!(
        "paired with {name} (key {}): each host can open the other's shared devices. `outboard peers` restricts, renames \
         and removes hosts",
        key.short()
    );
    if let Some(claimed) = &claimed {
        text.push_str(&format!(
            "\nit calls itself {claimed}, but that name belongs to another host: its name is {name}"
        ));
    }
    let claimed = claimed.as_deref();
    events.emit_result(&PairEvent::Paired { name: &name, key: &key, claimed }, &text);
    Ok(())
}

/// Shows a code and waits for the other host.
fn show(trust: Trust, words: &Pair, events: &Events) -> Result<Paired, Failure> {
    let name = words.name.as_deref();
    let offer = match &words.listen {
        Some(listen) => Offer::new(trust, listen_address(listen)?, name)?,
        // A running `share` may have the default port, and another pairing the next one.
        None => {
            let offer =
                |port| Offer::new(trust.clone(), SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)), name);
            let is_in_use = |offer: &Result<Offer, PairError>| match offer {
                Err(PairError::Trust(ServiceError::Os { error, .. })) => {
                    error.kind() == io::ErrorKind::AddrInUse
                }
                _ => false,
            };
            let ports = [DEFAULT_PORT, DEFAULT_PORT + 1, 0];
            let mut offers = ports.into_iter().map(offer).skip_while(is_in_use);
            offers.next().unwrap_or_else(|| offer(0))?
        }
    };
    let stop = Stop::new()?;
    stop_on_signals(&stop)?;
    let (code, address) = (offer.code(), offer.address());
    let host = match address.ip() {
        ip if ip.is_unspecified() => own_address().map_or_else(host_name, written),
        ip => written(ip),
    };
    let place = if address.port() == DEFAULT_PORT { host } else { format!("{host}:{}", address.port()) };
    let command = format!("outboard pair {code}@{place}");
    let minutes = CODE_LIFETIME.as_secs() / 60;
    let mut text = format!("Run this on the other host, within {minutes} minutes:\n\n    {command}\n");
    if io::stdout().is_terminal()
        && !words.json.json
        && let Ok(qr) = QrCode::with_error_correction_level(format!("outboard:{code}@{place}"), EcLevel::L)
    {
        text.push('\n');
        text.push_str(&qr.render::<Dense1x2>().build());
        text.push('\n');
    }
    events.emit_result(&PairEvent::Code { code: &code, address, command: &command }, &text);
    let mut tell_user = |incident| match incident {
        PairingIncident::WrongGuess { left } => {
            let text = match left {
                0 => "wrong code received: the pairing ends".into(),
                1 => "wrong code received; one more ends the pairing".into(),
                left => format!("wrong code received; {left} more end the pairing"),
            };
            events.emit_result(&PairEvent::WrongGuess { guesses_left: left }, &text);
        }
        PairingIncident::Crowded { address } => {
            let text = format!(
                "{address} opens many connections without a code: its oldest ones are closed, so that others can pair"
            );
            events.emit_result(&PairEvent::Crowded { address }, &text);
        }
    };
    Ok(offer.wait(CODE_LIFETIME, &stop, &mut tell_user)?)
}

/// `[CODE@]HOST[:PORT]`. Other users of this host see a command line; a code that is typed at the prompt stays secret.
fn complete(trust: &Trust, with: &str, name: Option<&str>) -> Result<Paired, Failure> {
    let (code, place) = match with.rsplit_once('@') {
        Some((code, place)) if !place.is_empty() => (Code::parse(code)?, place),
        None if Code::parse(with).is_err() => (ask_code(with)?, with),
        _ => {
            return Err(Failure::Usage(format!(
                "`{with}` is not CODE@HOST, such as 1234-5678@studio: run `outboard pair` on the other host to get the code"
            )));
        }
    };
    if has_wrong_port(place) {
        return Err(Failure::Usage(format!("`{place}`: {WRONG_PORT}; write CODE@HOST[:PORT]")));
    }
    let address = with_port(place);
    let host = sys::address::host_of(&address);
    let mut last = None;
    for address in resolve(&address)? {
        match join(trust, &code, (host, address), name) {
            Err(error @ PairError::Unreachable(_)) => last = Some(error),
            done => return Ok(done?),
        }
    }
    Err(last.map_or_else(|| Failure::Failed(format!("{place}: the name has no address")), Failure::from))
}

/// Reads the code from standard input.
fn ask_code(place: &str) -> Result<Code, Failure> {
    if io::stdin().is_terminal() {
        eprint!("code that {place} shows: ");
    }
    let mut code = String::new();
    let failed = |error| Failure::Failed(format!("reading the code: {error}"));
    // A code has few characters; a longer line is none.
    io::stdin().lock().take(CODE_BYTES_MAX).read_line(&mut code).map_err(failed)?;
    Ok(Code::parse(code.trim())?)
}

fn resolve(address: &str) -> Result<Vec<SocketAddr>, Failure> {
    sys::address::resolve(address).map_err(|error| {
        let host = sys::address::host_of(address);
        let advice =
            format!("if `{host}` is no name in this network, write that host's address behind the @");
        Failure::Failed(format!("{address}: {error} ({advice})"))
    })
}

/// Returns this host's address for other hosts, if it has one.
fn shown_address() -> Option<String> {
    own_address().map(written)
}

/// Formats the address for use before a port.
fn written(ip: IpAddr) -> String {
    match ip {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("[{ip}]"),
    }
}

/// Returns this host's address on its default route. It sends no packet.
fn own_address() -> Option<IpAddr> {
    // Addresses reserved for documentation (RFC 5737, RFC 3849).
    let towards: [(IpAddr, IpAddr); 2] = [
        (Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::new(192, 0, 2, 1).into()),
        (Ipv6Addr::UNSPECIFIED.into(), Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into()),
    ];
    towards.into_iter().find_map(|(any, place)| {
        let socket = UdpSocket::bind((any, 0)).ok()?;
        socket.connect((place, 9)).ok()?;
        socket.local_addr().ok().map(|address| address.ip()).filter(|ip| !ip.is_unspecified())
    })
}

/// Output of `peers --json`.
#[derive(Serialize)]
struct Listed<'a> {
    key: PeerKey,
    peers: Vec<&'a Peer>,
    sessions: Vec<Running>,
}

/// A session of a process of this user with a peer, and its cost.
#[derive(Serialize)]
struct Running {
    process: i32,
    role: String,
    #[serde(flatten)]
    peer: PeerStatus,
}

/// Returns the current sessions. Skips processes that end meanwhile.
fn running() -> Vec<Running> {
    let told = survey(PATIENCE).unwrap_or_default().statuses.into_iter().map(|(_, status)| status);
    let of = |Status { process, role, peers, .. }: Status| {
        peers.into_iter().map(move |peer| Running { process, role: role.clone(), peer })
    };
    told.flat_map(of).collect()
}

/// `outboard peers`.
pub(crate) fn peers(words: Peers) -> Result<(), Failure> {
    let trust = Trust::open()?;
    match words.action.unwrap_or(PeersAction::List) {
        PeersAction::List => return list(&trust, words.json.json),
        PeersAction::Own => return key_lines::own(&trust, words.json.json),
        PeersAction::Export => return key_lines::export(&trust, words.json.json),
        PeersAction::Add { line, name, replace } => {
            return key_lines::add(&trust, &line.join(" "), name, replace, words.json.json);
        }
        PeersAction::Rename { name, new } => {
            key_lines::warn_if_listed(&trust, &name)?;
            trust.edit(|peers| peers.rename(&name, &new))?;
        }
        PeersAction::Restrict { name, devices, all } => {
            key_lines::warn_if_listed(&trust, &name)?;
            trust.edit(|peers| peers.restrict(&name, (!all).then_some(devices)))?;
        }
        PeersAction::Remove { name } => {
            key_lines::warn_if_listed(&trust, &name)?;
            trust.edit(|peers| peers.remove(&name))?;
        }
    }
    if words.json.json { list(&trust, true) } else { Ok(()) }
}

fn list(trust: &Trust, json: bool) -> Result<(), Failure> {
    let peers = trust.peers()?;
    if json {
        return print_json(&Listed { key: trust.key(), peers: peers.iter().collect(), sessions: running() });
    }
    let mut rows = vec![["NAME", "KEY", "ADDRESS", "MAY OPEN"].map(String::from)];
    for peer in peers.iter() {
        let may = match &peer.may_open {
            None => "all shared devices".into(),
            Some(devices) if devices.is_empty() => "nothing".into(),
            Some(devices) => devices.join(", "),
        };
        let known: Vec<_> = peer.places.iter().chain(&peer.address).map(String::as_str).collect();
        let address = if known.is_empty() { "-".into() } else { known.join(", ") };
        rows.push([peer.name.clone(), peer.key.short(), address, may]);
    }
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths = [width(0), width(1), width(2)];
    let mut text = format!("this host's key begins with {}\n", trust.key().short());
    match rows.len() {
        1 => text.push_str("no host is paired yet: run `outboard pair`\n"),
        _ => {
            for [name, key, address, may] in &rows {
                let [a, b, c] = widths;
                text.push_str(&format!("{name:a$}  {key:b$}  {address:c$}  {may}\n"));
            }
        }
    }
    print(&printable(&text))
}
