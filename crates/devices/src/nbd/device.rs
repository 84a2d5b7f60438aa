//! The device side: the disk of an NBD server that nobody modifies, over several sessions.

use super::client::{NbdSession, negotiate};
use crate::block::describe;
use crate::block::properties::Properties;
use crate::plain::os;
use crate::sessions::partner::{Disk, DiskPartner};
use crate::sessions::server::{Protocol, TIMEOUT, decoded, outlast};
use crate::sessions::{CHUNK_BYTES, Session, SessionCount, difference};
use contract::{Body, Description, DeviceError, DeviceSpec, Opened, Partner, Role};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard, PoisonError};
use wire::formats::block::{Abilities, Geometry, UNKNOWN_INSTANCE};

/// The protocol, with its port (IANA).
const PROTOCOL: Protocol = Protocol { port: 10809, name: "NBD", unsupported: "TLS" };

/// The connections of [`open`], by target. Each becomes the first session: `qemu-nbd` exits when its last client leaves, so a server
/// that is asked for its facts and left is gone.
static PROBED: Mutex<BTreeMap<String, (OwnedFd, Geometry)>> = Mutex::new(BTreeMap::new());

fn probed() -> MutexGuard<'static, BTreeMap<String, (OwnedFd, Geometry)>> {
    PROBED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns whether the server still has a connection without requests: it sends nothing on one.
fn is_alive(socket: &OwnedFd) -> bool {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    matches!(recv(socket, &mut [0; 1][..], flags), Err(Errno::AGAIN))
}

/// Ends a connection without requests in order.
fn end(socket: &OwnedFd) {
    let mut output = Body::new();
    NbdSession::default().end(&mut output);
    // It fails if the server has closed the connection.
    let _ = send(socket, &output.into_bytes(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

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
        let (place, export) = PROTOCOL.place(rest);
        if place.is_empty() {
            return Err(wrong("the host is missing"));
        }
        let export =
            decoded(export).ok_or_else(|| wrong("a percent sign in the export is no code of a byte"))?;
        Ok(Address::Tcp { place, export })
    }
}

/// Connects to the server and agrees with it.
fn connected(spec: &DeviceSpec) -> Result<(OwnedFd, Geometry), DeviceError> {
    let timeout = spec.options.duration(TIMEOUT.name);
    let refused = |error| PROTOCOL.refused(spec, error);
    let (socket, agreed): (OwnedFd, _) = match Address::parse(spec)? {
        Address::Tcp { place, export } => {
            let mut stream = PROTOCOL.connect(spec, &place)?;
            let agreed = negotiate(&mut stream, &export, timeout).map_err(refused)?;
            if !agreed.0.abilities.many_connections {
                outlast(&stream);
            }
            (stream.into(), agreed)
        }
        Address::Unix(path) => {
            let mut stream = UnixStream::connect(path).map_err(|error| PROTOCOL.absent(spec, error))?;
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

/// Returns the connection of the last [`open`] if it was not used, else another one. A server may accept one client only.
fn unused_or_connected(spec: &DeviceSpec) -> Result<(OwnedFd, Geometry), DeviceError> {
    let unused = probed().remove(&spec.target).filter(|(socket, _)| is_alive(socket));
    unused.map_or_else(|| connected(spec), Ok)
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

/// Opens the disk: asks the server for its facts. The partner's sessions come later, each when it is wanted; this connection is the first.
pub(super) fn open(spec: &DeviceSpec) -> Result<Opened, DeviceError> {
    let (socket, geometry) = unused_or_connected(spec)?;
    if let Err(error) = count(spec, geometry.abilities) {
        end(&socket);
        return Err(error);
    }
    probed().insert(spec.target.clone(), (socket, geometry));
    let (name, identity) = (spec.target.trim_start_matches('/').into(), spec.target.clone());
    let properties = Properties { geometry, instance: UNKNOWN_INSTANCE, name, identity };
    let description = describe(&spec.class, &properties);
    Ok(Opened { spec: spec.clone(), role: Role::Device, description, descriptors: Vec::new() })
}

/// Makes another session with the same disk.
pub(super) fn connect(spec: &DeviceSpec, known: &Description) -> Result<OwnedFd, DeviceError> {
    let known = Properties::of(known)?.geometry;
    let (socket, geometry) = unused_or_connected(spec)?;
    if geometry == known {
        return Ok(socket);
    }
    end(&socket);
    Err(DeviceError::Spec {
        what: format!("`nbd:{}`", spec.target),
        problem: format!("the disk is another one than before: {}", difference(&known, &geometry)),
    })
}

/// Closes a disk that no worker has used.
pub(super) fn release(spec: &DeviceSpec) {
    let unused = probed().remove(&spec.target);
    unused.iter().for_each(|(socket, _)| end(socket));
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
        is_alone: !geometry.abilities.many_connections,
        timeout: opened.spec.options.duration(TIMEOUT.name),
        session: Box::new(|_| Box::new(NbdSession::default())),
    };
    let partner = DiskPartner::new(disk, opened.descriptors).map_err(|error| {
        os(format!("preparing the sessions with nbd:{}", opened.spec.target), error, None)
    })?;
    Ok(Box::new(partner))
}
