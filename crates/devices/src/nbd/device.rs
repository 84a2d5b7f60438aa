//! The device side: the disk of an NBD server that nobody modifies, over several sessions.

use super::client::{NbdSession, negotiate};
use crate::block::describe;
use crate::block::properties::Properties;
use crate::plain::os;
use crate::sessions::partner::{Disk, DiskPartner};
use crate::sessions::{CHUNK_BYTES, SessionCount};
use contract::{Description, DeviceError, DeviceSpec, Opened, OptionKind, OptionSpec, Partner, Role, local};
use rustix::net::sockopt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;
use wire::formats::block::{Abilities, Geometry};

/// The port of NBD servers (IANA).
const PORT: u16 = 10809;
/// Silence of the server until the kernel asks whether it is there, the interval and the number of these questions.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(5), Duration::from_secs(2), 3);
/// Time without an acknowledgement until the kernel ends a connection: the sessions go on with another one.
const UNACKNOWLEDGED: Duration = Duration::from_secs(10);

/// The option `sessions`.
pub(super) const SESSIONS: OptionSpec = local(
    "sessions",
    OptionKind::OrAuto(&OptionKind::Integer { min: 1, max: session::WAYS_MAX as i64 }),
    "auto",
    "as a device: number of connections to the server; auto finds it",
);
/// The option `timeout`.
pub(super) const TIMEOUT: OptionSpec = local(
    "timeout",
    OptionKind::Duration { min: Duration::from_millis(1), max: Duration::from_secs(3600) },
    "10s",
    "as a device: time limit for connecting to the server and agreeing with it",
);

/// The address of a disk.
#[derive(Debug, PartialEq, Eq)]
enum Address {
    /// `//HOST[:PORT][/EXPORT]`.
    Tcp { place: String, export: String },
    /// The path of a Unix socket; its export has the empty name.
    Unix(String),
}

impl Address {
    fn parse(spec: &DeviceSpec) -> Result<Address, DeviceError> {
        let wrong = |problem: &str| DeviceError::Spec {
            what: format!("`nbd:{}`", spec.target),
            problem: format!("{problem}: write `nbd://HOST:PORT/EXPORT`, or `nbd:PATH` for a Unix socket"),
        };
        let Some(rest) = spec.target.strip_prefix("//") else {
            let is_place = spec.target.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
            return match is_place {
                true => Err(wrong("the slashes are missing")),
                false => Ok(Address::Unix(spec.target.clone())),
            };
        };
        let (place, export) = rest.split_once('/').unwrap_or((rest, ""));
        if place.is_empty() {
            return Err(wrong("the host is missing"));
        }
        let export =
            decoded(export).ok_or_else(|| wrong("a percent sign in the export is no code of a byte"))?;
        let has_port =
            place.rsplit_once(':').is_some_and(|(host, _)| !host.contains(':') || host.ends_with(']'));
        let place =
            if has_port { place.into() } else { sys::address::with_port_of(place, &PORT.to_string()) };
        Ok(Address::Tcp { place, export })
    }
}

/// Decodes `%20` in the path of a URI (RFC 3986, 2.1).
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        rest = behind;
        match first {
            b'%' => {
                let (code, behind) = rest.split_at_checked(2)?;
                let code =
                    str::from_utf8(code).ok().filter(|code| code.bytes().all(|b| b.is_ascii_hexdigit()))?;
                bytes.push(u8::from_str_radix(code, 16).ok()?);
                rest = behind;
            }
            byte => bytes.push(*byte),
        }
    }
    String::from_utf8(bytes).ok()
}

/// Connects to the server and agrees with it.
fn connected(spec: &DeviceSpec) -> Result<(OwnedFd, Geometry), DeviceError> {
    let timeout = spec.options.duration("timeout");
    let operation = || format!("connecting to the NBD server nbd:{}", spec.target);
    let absent = |error: io::Error| os(operation(), error, Some("is it listening there?"));
    let refused = |error: io::Error| match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            let silent = io::Error::other(format!("it does not answer for {timeout:?}"));
            os(
                operation(),
                silent,
                Some("is it an NBD server? If it has a limit of clients, use a smaller `sessions`"),
            )
        }
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
            let closed = io::Error::other("it closes the connection during the negotiation");
            os(operation(), closed, Some("is it an NBD server, and does it accept this host without TLS?"))
        }
        _ => os(operation(), error, None),
    };
    let (socket, agreed): (OwnedFd, _) = match Address::parse(spec)? {
        Address::Tcp { place, export } => {
            let addresses = sys::address::resolve(&place).map_err(absent)?;
            let mut stream = sys::address::connect(&addresses, timeout).map_err(absent)?;
            let agreed = negotiate(&mut stream, &export, timeout).map_err(refused)?;
            // Without these, a dead network is found much later.
            let _ = tune(&stream);
            (stream.into(), agreed)
        }
        Address::Unix(path) => {
            let mut stream = UnixStream::connect(path).map_err(absent)?;
            let agreed = negotiate(&mut stream, "", timeout).map_err(refused)?;
            (stream.into(), agreed)
        }
    };
    let (geometry, order_bytes_max) = agreed;
    match order_bytes_max {
        CHUNK_BYTES.. => Ok((socket, geometry)),
        most => Err(DeviceError::Spec {
            what: format!("`nbd:{}`", spec.target),
            problem: format!("the server takes {most} bytes at a time, and this client sends {CHUNK_BYTES}"),
        }),
    }
}

fn tune(socket: impl AsFd) -> rustix::io::Result<()> {
    let (idle, interval, count) = KEEPALIVE;
    sockopt::set_socket_keepalive(&socket, true)?;
    sockopt::set_tcp_keepidle(&socket, idle)?;
    sockopt::set_tcp_keepintvl(&socket, interval)?;
    sockopt::set_tcp_keepcnt(&socket, count)?;
    sockopt::set_tcp_user_timeout(&socket, UNACKNOWLEDGED.as_millis() as u32)
}

/// Returns the number of sessions that the spec demands of a disk with these abilities.
fn count(spec: &DeviceSpec, abilities: Abilities) -> Result<SessionCount, DeviceError> {
    if spec.options.is_auto("sessions") {
        // Without that promise, a flush covers only the writes of its own session.
        return Ok(if abilities.many_connections { SessionCount::Found } else { SessionCount::Fixed(1) });
    }
    match spec.options.count("sessions") as u32 {
        sessions @ 2.. if !abilities.many_connections => Err(DeviceError::Spec {
            what: format!("`nbd:{}` with `sessions={sessions}`", spec.target),
            problem:
                "the server does not promise that a flush on one connection covers the writes of the others \
                      (multi-conn): use `sessions=auto`, which is one then, or let the server promise it"
                    .into(),
        }),
        sessions => Ok(SessionCount::Fixed(sessions)),
    }
}

/// Opens the disk: asks the server for its facts. The partner's sessions come later, each when it is wanted.
pub(super) fn open(spec: &DeviceSpec) -> Result<Opened, DeviceError> {
    let (socket, geometry) = connected(spec)?;
    drop(socket);
    count(spec, geometry.abilities)?;
    let name = spec.target.trim_start_matches('/').into();
    let description = describe(&spec.class, &Properties { geometry, name, identity: String::new() });
    Ok(Opened { spec: spec.clone(), role: Role::Device, description, descriptors: Vec::new() })
}

/// Makes another session with the same disk.
pub(super) fn connect(spec: &DeviceSpec, known: &Description) -> Result<OwnedFd, DeviceError> {
    let known = Properties::of(known)?.geometry;
    let (socket, geometry) = connected(spec)?;
    match geometry == known {
        true => Ok(socket),
        false => Err(DeviceError::Spec {
            what: format!("`nbd:{}`", spec.target),
            problem: format!(
                "the disk is another one than before: it had {} bytes, and has {}, or other abilities",
                known.size_bytes, geometry.size_bytes
            ),
        }),
    }
}

/// Makes the partner. The descriptors are the sessions of a worker before this one.
pub(super) fn partner(opened: Opened) -> Result<Box<dyn Partner>, DeviceError> {
    let geometry = Properties::of(&opened.description)?.geometry;
    let count = count(&opened.spec, geometry.abilities)?;
    // All writes go through these sessions, so a flush covers those of all connections of the application.
    let abilities = Abilities { many_connections: true, ..geometry.abilities };
    let disk = Disk {
        name: format!("nbd:{}", opened.spec.target),
        geometry: Geometry { abilities, ..geometry },
        count,
        session: || Box::new(NbdSession::default()),
    };
    let partner = DiskPartner::new(disk, opened.descriptors).map_err(|error| {
        os(format!("preparing the sessions with nbd:{}", opened.spec.target), error, None)
    })?;
    Ok(Box::new(partner))
}
