//! `serial:PATH` and `pty:PATH`: a serial port here, a terminal there that unmodified programs take for it.

mod application;
mod device;
mod line;
mod message;
#[cfg(test)]
pub(crate) mod tests;

pub use message::{FlowControl, Parity, SerialMessage, Settings, Speed};

use crate::plain::{self, os};
use crate::stream::Channel;
use application::{PathLink, Terminal};
use contract::{
    Description, DeviceClass, DeviceError, DeviceSpec, FlowClass, FlowDirection, FlowOffer, Format, Listing,
    Opened, OptionKind, OptionSpec, Partner, Role, Scope,
};
use device::Port;
use rustix::fs::{Access, Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, ptsname, unlockpt};
use rustix::termios::{ControlModes, OptionalActions, tcgetattr, tcsetattr};
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use wire::{Reader, Writer};

/// A serial port: the device's side.
#[derive(Debug)]
pub struct Serial;

/// A pseudo-terminal: the application's side.
#[derive(Debug)]
pub struct Pty;

/// What an option says that leaves a setting as the port has it.
const KEEP: &str = "keep";

/// Longest name by which a port is found again.
const IDENTITY_BYTES_MAX: usize = 4096;

const fn option(
    name: &'static str,
    kind: OptionKind,
    default: &'static str,
    doc: &'static str,
) -> OptionSpec {
    OptionSpec { name, kind, default, scope: Scope::Local, doc }
}

const OPTIONS: &[OptionSpec] = &[
    option(
        "baud",
        OptionKind::Integer { min: 0, max: u32::MAX as i64 },
        "0",
        "bits a second to begin with; 0: as the port has it",
    ),
    option("data", OptionKind::Choice(&[KEEP, "5", "6", "7", "8"]), KEEP, "data bits"),
    option("parity", OptionKind::Choice(&[KEEP, "none", "odd", "even", "mark", "space"]), KEEP, "parity bit"),
    option("stop", OptionKind::Choice(&[KEEP, "1", "2"]), KEEP, "stop bits"),
    option(
        "flow",
        OptionKind::Choice(&[KEEP, "none", "xonxoff", "rtscts"]),
        KEEP,
        "flow control to begin with",
    ),
];

fn flows() -> Vec<FlowOffer> {
    let flow = |direction| FlowOffer { direction, format: Format::Serial, class: FlowClass::Reliable };
    vec![flow(FlowDirection::DeviceToApplication), flow(FlowDirection::ApplicationToDevice)]
}

/// What the user sets before anything flows.
fn first_settings(spec: &DeviceSpec) -> Settings {
    let options = &spec.options;
    let baud = u32::try_from(options.integer("baud")).unwrap_or(0);
    let flow = |xon, rts_cts| Some(FlowControl { xon_output: xon, xoff_input: xon, rts_cts });
    Settings {
        speed: (baud > 0).then_some(Speed { input_baud: baud, output_baud: baud }),
        data_bits: options.text("data").parse().ok(),
        parity: match options.text("parity") {
            "none" => Some(Parity::None),
            "odd" => Some(Parity::Odd),
            "even" => Some(Parity::Even),
            "mark" => Some(Parity::Mark),
            "space" => Some(Parity::Space),
            _ => None,
        },
        stop_bits: options.text("stop").parse().ok(),
        flow: match options.text("flow") {
            "none" => flow(false, false),
            "xonxoff" => flow(true, false),
            "rtscts" => flow(false, true),
            _ => None,
        },
    }
}

/// What a serial port's description says beyond its flows: how it is set, and by what name it is found again.
fn emit_properties(settings: &Settings, identity: &str) -> Vec<u8> {
    Writer::new().raw(&settings.emit()).text(identity).finish()
}

fn parse_properties(bytes: &[u8]) -> Result<(Settings, String), DeviceError> {
    let mut reader = Reader::new(bytes);
    let parsed = Settings::parse(&mut reader).and_then(|settings| {
        let identity = reader.text("serial identity", IDENTITY_BYTES_MAX)?;
        reader.end("serial properties")?;
        Ok((settings, identity.to_string()))
    });
    parsed.map_err(|error| DeviceError::Spec {
        what: "the description of the serial port".into(),
        problem: error.to_string(),
    })
}

/// The name that a port keeps wherever it is plugged in, as udev gives it; empty if it gives none.
fn identity(path: &Path) -> String {
    let Ok(port) = fs::canonicalize(path) else { return String::new() };
    let names = fs::read_dir("/dev/serial/by-id").into_iter().flatten().flatten();
    let name = names.map(|entry| entry.path()).find(|name| fs::canonicalize(name).is_ok_and(|to| to == port));
    name.and_then(|name| name.to_str().map(String::from)).unwrap_or_default()
}

fn open_port(spec: &DeviceSpec, path: &str) -> Result<Opened, DeviceError> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let port = rustix::fs::open(path, flags, Mode::empty()).map_err(|error| {
        let advice = match error {
            rustix::io::Errno::ACCESS => "join the group that owns it, usually `dialout`",
            rustix::io::Errno::BUSY => "another program has it open for itself alone",
            _ => "`outboard devices` lists the ports there are",
        };
        os(format!("opening {path}"), error, Some(advice))
    })?;
    let asked = |error| os(format!("setting {path}"), error, Some("is it a serial port?"));
    let mut termios = tcgetattr(&port).map_err(asked)?;
    termios.make_raw();
    // Without CREAD nothing is received; without CLOCAL a port with no carrier hangs up.
    termios.control_modes.insert(ControlModes::CREAD | ControlModes::CLOCAL);
    first_settings(spec).apply(&mut termios).map_err(asked)?;
    tcsetattr(&port, OptionalActions::Now, &termios).map_err(asked)?;
    rustix::termios::ioctl_tiocexcl(&port).map_err(asked)?;
    let settings = Settings::of(&tcgetattr(&port).map_err(asked)?);
    let baud = settings.speed.unwrap_or_default().output_baud;
    let description = Description {
        class: Serial.name().into(),
        summary: format!("serial port {path}, {baud} baud"),
        flows: flows(),
        application: Serial.application(),
        properties: emit_properties(&settings, &identity(Path::new(path))),
    };
    Ok(Opened { spec: spec.clone(), role: Role::Device, description, descriptors: vec![port] })
}

impl DeviceClass for Serial {
    fn name(&self) -> &'static str {
        "serial"
    }

    fn summary(&self) -> &'static str {
        "a serial port, with its settings; its application side is `pty`"
    }

    fn doc(&self) -> &'static str {
        include_str!("doc.md")
    }

    fn target(&self) -> &'static str {
        "PATH"
    }

    fn has_role(&self, role: Role) -> bool {
        role == Role::Device
    }

    fn application(&self) -> &'static str {
        "pty"
    }

    fn options(&self) -> &'static [OptionSpec] {
        OPTIONS
    }

    fn subsystem(&self) -> Option<&'static str> {
        Some("tty")
    }

    fn list(&self) -> Vec<Listing> {
        let ports = fs::read_dir("/sys/class/tty").into_iter().flatten().flatten();
        let mut listings: Vec<_> = ports.filter_map(|port| listing(&port.path())).collect();
        listings.sort_by(|a, b| a.spec.cmp(&b.spec));
        listings
    }

    fn open(&self, spec: &DeviceSpec, role: Role, _: Option<&Description>) -> Result<Opened, DeviceError> {
        match role {
            Role::Device => open_port(spec, &spec.target),
            Role::Application => Err(DeviceError::Role { class: self.name(), role }),
        }
    }

    fn reopen(&self, spec: &DeviceSpec, role: Role, known: &Description) -> Result<Opened, DeviceError> {
        let (_, identity) = parse_properties(&known.properties)?;
        match role {
            Role::Device if Path::new(&identity).exists() => open_port(spec, &identity),
            _ => self.open(spec, role, Some(known)),
        }
    }

    fn partner(&self, opened: Opened) -> Result<Box<dyn Partner>, DeviceError> {
        let name = opened.spec.target.clone();
        let [port] = plain::descriptors(opened)?;
        let channel = Channel::own(port).map_err(|error| os(format!("preparing {name}"), error, None))?;
        Ok(Box::new(Port::new(name, channel)))
    }
}

/// A port of `/sys/class/tty` that has hardware behind it.
fn listing(port: &Path) -> Option<Listing> {
    let name = port.file_name()?.to_str()?;
    let driver = fs::read_link(port.join("device/driver")).ok()?;
    // A port of a PC that is not fitted has a device, too, and the type 0 (PORT_UNKNOWN).
    if fs::read_to_string(port.join("type")).is_ok_and(|kind| kind.trim() == "0") {
        return None;
    }
    let path = format!("/dev/{name}");
    let usable = rustix::fs::access(&path, Access::READ_OK | Access::WRITE_OK);
    let identity = identity(Path::new(&path));
    let known_as = if identity.is_empty() { String::new() } else { format!(", {identity}") };
    Some(Listing {
        spec: format!("serial:{path}"),
        summary: format!("serial port ({}{known_as})", driver.file_name()?.to_string_lossy()),
        problem: usable.err().map(|error| format!("{error}: join the group that owns it, usually `dialout`")),
        ours: false,
    })
}

impl DeviceClass for Pty {
    fn name(&self) -> &'static str {
        "pty"
    }

    fn summary(&self) -> &'static str {
        "a pseudo-terminal that programs open like the serial port elsewhere"
    }

    fn doc(&self) -> &'static str {
        include_str!("doc.md")
    }

    fn target(&self) -> &'static str {
        "[PATH]"
    }

    fn has_role(&self, role: Role) -> bool {
        role == Role::Application
    }

    fn options(&self) -> &'static [OptionSpec] {
        &[]
    }

    fn open(&self, spec: &DeviceSpec, role: Role, like: Option<&Description>) -> Result<Opened, DeviceError> {
        if role != Role::Application {
            return Err(DeviceError::Role { class: self.name(), role });
        }
        let settings = match like.filter(|like| like.class == Serial.name()) {
            Some(like) => parse_properties(&like.properties)?.0,
            None => Settings::default(),
        };
        let (master, slave, pts) = open_pair(&settings)
            .map_err(|error| os("making a pseudo-terminal".into(), error, Some("is /dev/pts mounted?")))?;
        // Asked before anyone can find the terminal: a difference from this is an application's doing.
        let begun_with = Settings::of_pty(&tcgetattr(&slave).map_err(prepared)?);
        let mut summary = pts.display().to_string();
        if !spec.target.is_empty() {
            link(Path::new(&spec.target), &pts)?;
            summary = format!("{} ({summary})", spec.target);
        }
        let description = Description {
            class: self.name().into(),
            summary: format!("serial terminal {summary}"),
            flows: flows(),
            application: self.name(),
            properties: emit_properties(&begun_with, ""),
        };
        Ok(Opened { spec: spec.clone(), role, description, descriptors: vec![master, slave] })
    }

    fn release(&self, opened: &Opened) {
        if let Some(Ok(pts)) = opened.descriptors.first().map(pts_path) {
            drop(path_link(&opened.spec, &pts));
        }
    }

    fn partner(&self, opened: Opened) -> Result<Box<dyn Partner>, DeviceError> {
        let spec = opened.spec.clone();
        let (begun_with, _) = parse_properties(&opened.description.properties)?;
        let [master, slave] = plain::descriptors(opened)?;
        let pts = pts_path(&master).map_err(prepared)?;
        let link = path_link(&spec, &pts);
        let channel = Channel::own(master).map_err(prepared)?;
        Ok(Box::new(Terminal::new(pts.display().to_string(), channel, slave, link, begun_with)))
    }
}

/// A pseudo-terminal that could not be prepared.
fn prepared(error: rustix::io::Errno) -> DeviceError {
    os("preparing a pseudo-terminal".into(), error, None)
}

/// The name that applications find a terminal by, if it has one; it goes with this.
fn path_link(spec: &DeviceSpec, pts: &Path) -> Option<PathLink> {
    let path = Some(&spec.target).filter(|target| !target.is_empty());
    path.map(|path| PathLink { path: path.into(), target: pts.to_path_buf() })
}

fn open_pair(settings: &Settings) -> rustix::io::Result<(OwnedFd, OwnedFd, PathBuf)> {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&master)?;
    unlockpt(&master)?;
    let slave = ioctl_tiocgptpeer(&master, OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    application::prepare(&slave, settings)?;
    // Only now, so that the application's side does not take these settings for an application's.
    sys::tty::set_packet_mode(&master, true)
        .map_err(|error| rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO))?;
    let pts = pts_path(&master)?;
    Ok((master, slave, pts))
}

fn pts_path(master: &OwnedFd) -> rustix::io::Result<PathBuf> {
    Ok(PathBuf::from(std::ffi::OsString::from_vec(ptsname(master, Vec::new())?.into_bytes())))
}

/// Makes `path` a link to the pseudo-terminal. Only a link that an earlier one left is replaced.
fn link(path: &Path, pts: &Path) -> Result<(), DeviceError> {
    let refused = |error| os(format!("linking {} to {}", path.display(), pts.display()), error, None);
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(refused(error)),
        Ok(_) if fs::read_link(path).is_ok_and(|old| old.starts_with("/dev/pts")) => {
            fs::remove_file(path).map_err(refused)?;
        }
        Ok(_) => {
            return Err(DeviceError::Spec {
                what: format!("`pty:{}`", path.display()),
                problem: "it exists and is no link to a pseudo-terminal; remove it or choose another path"
                    .into(),
            });
        }
    }
    std::os::unix::fs::symlink(pts, path).map_err(refused)
}
