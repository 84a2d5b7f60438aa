//! The device side. The broker makes the connections; the worker logs in on them, because the sessions' names are its own.

use super::INITIATOR;
use super::session::{IscsiSession, Unit};
use crate::block::describe;
use crate::block::properties::Properties;
use crate::plain::os;
use crate::sessions::partner::{Disk, DiskPartner};
use crate::sessions::server::{Protocol, SESSIONS, TIMEOUT, decoded};
use crate::sessions::{BUSY_PAUSE, Expected, Session, SessionCount};
use buffers::Body;
use contract::{DeviceError, DeviceSpec, Opened, Partner, Role};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use wire::formats::block::{Geometry, UNKNOWN_INSTANCE};
use wire::iscsi::{self, NAME_BYTES_MAX};

const PROTOCOL: Protocol = Protocol { port: iscsi::PORT, name: "iSCSI", unsupported: "a password" };
/// The begin of an initiator's name. Nobody owns the domain `invalid` (RFC 2606).
const INITIATOR_FRONT: &str = "iqn.2026-11.invalid.outboard:";
/// The first byte of a session's name that is a random number and a slot (RFC 7143, 11.12.5).
const ISID_RANDOM: u8 = 0x80;

/// The address of a unit: `//HOST[:PORT]/TARGET/LUN`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) place: String,
    pub(super) unit: Unit,
}

impl Address {
    pub(super) fn parse(spec: &DeviceSpec) -> Result<Address, DeviceError> {
        let wrong = |problem: &str| DeviceError::Spec {
            what: format!("`iscsi:{}`", spec.target),
            problem: format!(
                "{problem}: write `iscsi://HOST:PORT/TARGET/LUN`, as in `iscsi://store/iqn.2001-04.com.example:disk/0`"
            ),
        };
        let rest = spec.target.strip_prefix("//").ok_or_else(|| wrong("the slashes are missing"))?;
        let (place, path) = PROTOCOL.place(rest);
        if place.is_empty() {
            return Err(wrong("the host is missing"));
        }
        let (target, number) =
            path.rsplit_once('/').ok_or_else(|| wrong("the target or the number of its unit is missing"))?;
        let target =
            decoded(target).ok_or_else(|| wrong("a percent sign in the target is no code of a byte"))?;
        if target.is_empty() || target.len() > NAME_BYTES_MAX || target.contains(['\0', '/']) {
            return Err(wrong("the target has no valid name"));
        }
        let lun = number.parse().ok().and_then(iscsi::lun_field);
        let lun = lun.ok_or_else(|| wrong("the last part is no number of a unit"))?;
        let initiator = match spec.options.is_auto(INITIATOR.name) {
            true => automatic_name(&rustix::system::uname().nodename().to_string_lossy()),
            false => spec.options.text(INITIATOR.name).to_lowercase(),
        };
        if !initiator.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || ".-:".contains(c)) {
            return Err(wrong(
                "the initiator's name has other characters than letters, digits, `.`, `-` and `:`",
            ));
        }
        Ok(Address { place, unit: Unit { initiator, target, lun } })
    }
}

/// Returns the name of the host with this name. A name has letters, digits, dots and hyphens.
fn automatic_name(host: &str) -> String {
    let is_plain = |c: &char| c.is_ascii_lowercase() || c.is_ascii_digit() || ".-".contains(*c);
    let host: String = host.to_lowercase().chars().filter(is_plain).collect();
    let room = NAME_BYTES_MAX - INITIATOR_FRONT.len();
    format!("{INITIATOR_FRONT}{}", &host[..host.len().min(room)])
}

/// Logs in and asks for the facts, within `timeout`; then ends the session.
fn ask(stream: &mut TcpStream, mut session: IscsiSession, timeout: Duration) -> io::Result<Geometry> {
    let end = Instant::now() + timeout;
    let mut output = Body::new();
    session.begin(&mut output);
    let mut input = Vec::new();
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        stream.set_write_timeout(Some(left))?;
        stream.write_all(&std::mem::take(&mut output).into_bytes())?;
        if let Some(geometry) = session.geometry() {
            session.end(&mut output);
            stream.write_all(&output.into_bytes())?;
            return Ok(geometry);
        }
        if session.is_paused() {
            std::thread::sleep(BUSY_PAUSE.min(left));
            session.resume(&mut output);
            continue;
        }
        let Expected::Header(length) = session.expected() else {
            return Err(io::Error::other("the target sends data that nobody has asked for"));
        };
        input.resize(length, 0);
        stream.read_exact(&mut input)?;
        session.handle_header(&input, &mut output).map_err(|ended| io::Error::other(ended.reason))?;
    }
}

/// Makes the random part of the names of sessions.
fn random(spec: &DeviceSpec) -> Result<[u8; 3], DeviceError> {
    sys::random::bytes()
        .map_err(|error| os(format!("naming the sessions with iscsi:{}", spec.target), error, None))
}

fn isid(random: [u8; 3], slot: u32) -> [u8; 6] {
    let [a, b, c] = random;
    let [.., high, low] = slot.to_be_bytes();
    [ISID_RANDOM, a, b, c, high, low]
}

fn count(spec: &DeviceSpec) -> SessionCount {
    match spec.options.is_auto(SESSIONS.name) {
        true => SessionCount::Found,
        false => SessionCount::Fixed(spec.options.count(SESSIONS.name) as u32),
    }
}

/// Opens the disk: asks the target for its facts. The partner's sessions come later, each when it is wanted.
pub(super) fn open(spec: &DeviceSpec) -> Result<Opened, DeviceError> {
    let Address { place, unit } = Address::parse(spec)?;
    let mut stream = PROTOCOL.connect(spec, &place)?;
    let session = IscsiSession::new(unit, isid(random(spec)?, 0), None);
    let geometry = ask(&mut stream, session, spec.options.duration(TIMEOUT.name))
        .map_err(|error| PROTOCOL.refused(spec, error))?;
    let (name, identity) = (spec.target.trim_start_matches('/').into(), spec.target.clone());
    let properties = Properties { geometry, instance: UNKNOWN_INSTANCE, name, identity };
    let description = describe(&spec.class, &properties);
    Ok(Opened { spec: spec.clone(), role: Role::Device, description, descriptors: Vec::new() })
}

/// Connects to the target. The worker logs in.
pub(super) fn connect(spec: &DeviceSpec) -> Result<OwnedFd, DeviceError> {
    let place = Address::parse(spec)?.place;
    PROTOCOL.connect(spec, &place).map(OwnedFd::from)
}

/// Makes the partner. The descriptors are the sessions of a worker before this one.
pub(super) fn partner(opened: Opened) -> Result<Box<dyn Partner>, DeviceError> {
    let Opened { spec, description, descriptors, .. } = opened;
    let geometry = Properties::of(&description)?.geometry;
    let (unit, random) = (Address::parse(&spec)?.unit, random(&spec)?);
    let disk = Disk {
        name: format!("iscsi:{}", spec.target),
        geometry,
        count: count(&spec),
        // A login with the name of a session ends that one.
        is_alone: false,
        timeout: spec.options.duration(TIMEOUT.name),
        session: Box::new(move |slot| {
            Box::new(IscsiSession::new(unit.clone(), isid(random, slot), Some(geometry)))
        }),
    };
    let partner = DiskPartner::new(disk, descriptors)
        .map_err(|error| os(format!("preparing the sessions with iscsi:{}", spec.target), error, None))?;
    Ok(Box::new(partner))
}
