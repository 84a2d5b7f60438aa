//! 3D mice through spacenavd's protocol: a connection to the daemon on the device host, and the daemon's socket on the
//! application host.
//!
//! | module | purpose |
//! |---|---|
//! | `protocol` | packets, events and requests, without I/O |
//! | `device` | the connection to the daemon as a partner |
//! | `application` | the socket for programs as a partner |

mod application;
mod device;
pub mod fuzz;
mod protocol;
#[cfg(test)]
mod tests;

use crate::local_socket;
use crate::plain::{self, os};
use application::SocketPartner;
use contract::{
    Description, DeviceClass, DeviceError, DeviceSpec, FlowClass, FlowDirection, FlowOffer, Format, Kind,
    Listing, ModuleEntry, NodeName, Opened, Partner, Role,
};
use device::DaemonPartner;
use protocol::{Facts, NAME_BYTES_MAX, OWN_PATH, PACKET_BYTES, Packet, request, version_in, version_request};
use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;
use wire::formats::motion::BUTTONS_MAX;
use wire::{Reader, WireError, Writer};

/// The class `spnav`.
#[derive(Debug)]
pub struct Spnav;

/// The daemon's socket, where libspnav looks for it.
const SOCKET: &str = "/run/spnav.sock";
/// The variable in which libspnav finds another path.
const SOCKET_VARIABLE: &str = "SPNAV_SOCKET";
/// Time limit for each answer of the daemon. One of version 0 does not answer at all.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(400);
/// Packets that are read for one answer, at most: events come between.
const ANSWER_PACKETS_MAX: usize = 256;

/// Returns the path of the socket.
fn path(target: &str, role: Role) -> PathBuf {
    let named =
        |variable: &str| std::env::var_os(variable).filter(|path| !path.is_empty()).map(PathBuf::from);
    match role {
        _ if !target.is_empty() => target.into(),
        Role::Device => named(SOCKET_VARIABLE).unwrap_or_else(|| SOCKET.into()),
        Role::Application if rustix::process::geteuid().is_root() => SOCKET.into(),
        Role::Application => {
            named("XDG_RUNTIME_DIR").map_or_else(|| SOCKET.into(), |directory| directory.join("spnav.sock"))
        }
    }
}

fn flow() -> Vec<FlowOffer> {
    vec![FlowOffer {
        direction: FlowDirection::DeviceToApplication,
        format: Format::Motion,
        class: FlowClass::State,
    }]
}

/// The connection to a daemon while it is opened.
struct Daemon {
    socket: UnixStream,
    version: u32,
}

impl Daemon {
    fn connect(path: &Path) -> io::Result<Daemon> {
        let mut socket = UnixStream::connect(path)?;
        socket.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        socket.set_write_timeout(Some(ANSWER_TIMEOUT))?;
        socket.write_all(&version_request())?;
        let mut word = [0; 4];
        let version = match socket.read_exact(&mut word) {
            Ok(()) => version_in(word).ok_or_else(|| io::Error::other("it is no daemon of a 3D mouse"))?,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                // It took the request for a sensitivity.
                socket.write_all(&1.0_f32.to_ne_bytes())?;
                0
            }
            Err(error) => return Err(error),
        };
        Ok(Daemon { socket, version })
    }

    fn read(&mut self) -> io::Result<Packet> {
        let mut bytes = [0; PACKET_BYTES];
        self.socket.read_exact(&mut bytes)?;
        Ok(Packet::from_bytes(&bytes))
    }

    /// Returns the answer to a request. Events before it are dropped: a snapshot follows.
    fn ask(&mut self, kind: u32) -> io::Result<Packet> {
        self.socket.write_all(&Packet::request(kind).to_bytes())?;
        for _ in 0..ANSWER_PACKETS_MAX {
            let packet = self.read()?;
            if packet.answers(kind) {
                return Ok(packet);
            }
        }
        Err(io::Error::other("it does not answer a request"))
    }

    fn text(&mut self, kind: u32) -> io::Result<String> {
        let (mut text, mut packet) = (Vec::new(), self.ask(kind)?);
        while let Some((here, left)) = packet.text() {
            text.extend(here);
            if left == 0 || text.len() >= NAME_BYTES_MAX {
                break;
            }
            packet = self.read()?;
        }
        let text = String::from_utf8_lossy(&text).into_owned();
        Ok(text[..text.floor_char_boundary(NAME_BYTES_MAX)].into())
    }

    /// Returns the facts of the daemon's device; those that it does not tell are empty.
    fn facts(&mut self) -> io::Result<Facts> {
        if self.version == 0 {
            return Ok(Facts::default());
        }
        let name = self.text(request::DEVICE_NAME)?;
        let number = |value: i32| u16::try_from(value).unwrap_or(0);
        let mut numbers = |kind| {
            let data = self.ask(kind)?.data().map_or([0; 2], |data| [number(data[0]), number(data[1])]);
            Ok::<_, io::Error>(data)
        };
        let ([buttons, _], ids, [model, _]) =
            (numbers(request::BUTTON_COUNT)?, numbers(request::IDS)?, numbers(request::TYPE)?);
        Ok(Facts { name, ids, buttons: buttons.min(BUTTONS_MAX), model })
    }
}

fn emit(facts: &Facts) -> Writer {
    let mut properties = Writer::new();
    let Facts { name, ids: [vendor, product], buttons, model } = facts;
    properties.text(name).u16(*vendor).u16(*product).u16(*buttons).u16(*model);
    properties
}

fn parse(reader: &mut Reader<'_>) -> Result<Facts, WireError> {
    let name = reader.text("name", NAME_BYTES_MAX)?.to_string();
    let ids = [reader.u16("vendor")?, reader.u16("product")?];
    let buttons = match reader.u16("buttons")? {
        buttons if buttons <= BUTTONS_MAX => buttons,
        buttons => return Err(WireError::Value { what: "buttons", value: buttons.into() }),
    };
    Ok(Facts { name, ids, buttons, model: reader.u16("model")? })
}

/// Returns the facts in a description of this class.
fn facts_of(described: &Description) -> Result<Facts, DeviceError> {
    let mut reader = Reader::new(&described.properties);
    let parsed = parse(&mut reader).and_then(|facts| reader.end("description").map(|()| facts));
    parsed.map_err(invalid_description)
}

fn invalid_description(error: WireError) -> DeviceError {
    DeviceError::Spec { what: "the description of a 3D mouse".into(), problem: error.to_string() }
}

fn connect(spec: &DeviceSpec) -> Result<Opened, DeviceError> {
    let path = path(&spec.target, Role::Device);
    let opened = Daemon::connect(&path).and_then(|mut daemon| {
        let facts = daemon.facts()?;
        daemon.socket.set_nonblocking(true).map(|()| (daemon.socket, facts))
    });
    let (socket, facts) = opened.map_err(|error| {
        let advice = match error.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
                "spacenavd does not run: start it, or share the event node (`outboard devices` lists it)"
            }
            _ => "is it the socket of spacenavd?",
        };
        os(format!("connecting to {}", path.display()), error, Some(advice))
    })?;
    let name = if facts.name.is_empty() { "3D mouse" } else { facts.name.as_str() };
    let description = Description {
        class: Spnav.name().into(),
        summary: format!("{name} ({})", Kind::Mouse3d),
        flows: flow(),
        application: Spnav.application(),
        properties: emit(&facts).finish(),
    };
    Ok(Opened { spec: spec.clone(), role: Role::Device, description, descriptors: vec![socket.into()] })
}

fn listen(spec: &DeviceSpec, like: Option<&Description>) -> Result<Opened, DeviceError> {
    let facts = match like {
        Some(like) if like.class == Spnav.name() => facts_of(like)?,
        _ => Facts { name: "3D mouse".into(), buttons: 2, ..Facts::default() },
    };
    let path = path(&spec.target, Role::Application);
    // As spacenavd does: the programs of every user may connect. At its own place the directory decides: a user's runtime
    // directory is private, that of the service is not.
    let is_for_all = rustix::process::geteuid().is_root() || spec.target.is_empty();
    let mode = if is_for_all { 0o666 } else { 0o600 };
    let (listener, inode) = local_socket::bind(&path, mode)
        .map_err(|error| os(format!("listening at {}", path.display()), error, Some(ADVICE)))?;
    let mut properties = emit(&facts);
    properties.u64(inode);
    let hint = match path == Path::new(SOCKET) {
        true => String::new(),
        false => format!("; programs find it with {SOCKET_VARIABLE}={}", path.display()),
    };
    let description = Description {
        class: Spnav.name().into(),
        summary: format!("3D mouse at {}{hint}", path.display()),
        flows: flow(),
        application: Spnav.application(),
        properties: properties.finish(),
    };
    Ok(Opened {
        spec: spec.clone(),
        role: Role::Application,
        description,
        descriptors: vec![listener.into()],
    })
}

const ADVICE: &str = "give another path, as in `--as spnav:PATH`; if spacenavd runs on this host, stop it, or share the \
                      event node and attach it as `uinput`";

impl DeviceClass for Spnav {
    fn entry(&self) -> ModuleEntry {
        ModuleEntry {
            name: "spnav",
            summary: "a 3D mouse of spacenavd, and its socket for programs with libspnav",
            doc: include_str!("doc.md"),
            options: &[],
        }
    }

    fn target(&self) -> &'static str {
        "[PATH]"
    }

    fn application(&self) -> &'static str {
        "spnav"
    }

    fn takes(&self) -> Option<Format> {
        Some(Format::Motion)
    }

    fn kind(&self, described: &Description) -> Result<Kind, DeviceError> {
        facts_of(described).map(|_| Kind::Mouse3d)
    }

    fn list(&self) -> Vec<Listing> {
        let path = path("", Role::Device);
        if !fs::metadata(&path).is_ok_and(|found| found.file_type().is_socket()) {
            return Vec::new();
        }
        let asked = Daemon::connect(&path).and_then(|mut daemon| {
            let ours = daemon.version > 0 && daemon.text(request::DEVICE_PATH)? == OWN_PATH;
            daemon.facts().map(|facts| (facts, ours))
        });
        let (name, ours, problem) = match asked {
            Ok((facts, ours)) => (facts.name, ours, None),
            Err(error) => (String::new(), false, Some(format!("connecting to {}: {error}", path.display()))),
        };
        let name = if name.is_empty() { "3D mouse" } else { name.as_str() };
        let owner = if ours { ", a node of Outboard" } else { ", through spacenavd" };
        let summary = format!("{name} ({}{owner})", Kind::Mouse3d);
        vec![Listing { spec: self.name().into(), summary, problem, ours }]
    }

    fn flows(&self, _spec: &DeviceSpec) -> Result<Vec<FlowOffer>, DeviceError> {
        Ok(flow())
    }

    fn nodes(&self, spec: &DeviceSpec) -> Vec<NodeName> {
        vec![NodeName::File(path(&spec.target, Role::Application))]
    }

    fn open(&self, spec: &DeviceSpec, role: Role, like: Option<&Description>) -> Result<Opened, DeviceError> {
        match role {
            Role::Application => listen(spec, like),
            Role::Device => connect(spec),
        }
    }

    fn reopen(&self, spec: &DeviceSpec, role: Role, _: &Description) -> Result<Opened, DeviceError> {
        self.open(spec, role, None)
    }

    fn release(&self, opened: &Opened) {
        let path = path(&opened.spec.target, opened.role);
        let inode = opened.description.properties.last_chunk::<8>().map(|bytes| u64::from_le_bytes(*bytes));
        if let (Role::Application, Some(inode)) = (opened.role, inode) {
            local_socket::remove(&path, inode);
        }
    }

    fn partner(&self, opened: Opened) -> Result<Box<dyn Partner>, DeviceError> {
        let (role, name) = (opened.role, path(&opened.spec.target, opened.role).display().to_string());
        let mut reader = Reader::new(&opened.description.properties);
        let facts = parse(&mut reader).map_err(invalid_description)?;
        let [socket]: [OwnedFd; 1] = plain::descriptors(opened)?;
        match role {
            Role::Device => Ok(Box::new(DaemonPartner::new(name, socket))),
            Role::Application => SocketPartner::new(socket, facts)
                .map(|partner| Box::new(partner) as Box<dyn Partner>)
                .map_err(|error| os(format!("serving {name}"), error, None)),
        }
    }
}
