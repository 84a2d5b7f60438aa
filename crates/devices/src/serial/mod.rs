//! `serial:PATH` and `pty:PATH`: a serial port on the device host, and a pseudo-terminal on the application host that
//! unmodified programs use like the port.

mod application;
mod device;
mod identity;
mod line;
mod marks;
mod message;
pub(crate) mod path_link;
mod spacing;
#[cfg(test)]
pub(crate) mod tests;

pub use message::{Fault, FlowControl, Inputs, OutputLines, Outputs, Parity, SerialMessage, Settings, Speed};

use crate::plain::{self, os};
use crate::side::wrong_side;
use crate::stream::Channel;
use application::Terminal;
use contract::{
    Description, DeviceClass, DeviceError, DeviceSpec, FlowClass, FlowDirection, FlowOffer, Format,
    FurtherUse, Listing, ModuleEntry, NodeName, Opened, OptionKind, OptionSpec, Partner, Role, local,
};
use device::Port;
use identity::Ports;
use path_link::PathLink;
use rustix::fs::{Access, Mode, OFlags};
use rustix::io::Errno;
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, ptsname, unlockpt};
use rustix::termios::{ControlModes, InputModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use wire::{Reader, Writer};

/// The class `serial`, the device side.
#[derive(Debug)]
pub struct Serial;

/// The class `pty`, the application side.
#[derive(Debug)]
pub struct Pty;

/// Value of an option that leaves the port's setting.
const KEEP: &str = "keep";

/// Longest identity of a port.
const IDENTITY_BYTES_MAX: usize = 4096;

const OPTIONS: &[OptionSpec] = &[
    local(
        "baud",
        OptionKind::Integer { min: 0, max: u32::MAX as i64 },
        "0",
        "initial speed, bits a second; 0 keeps that of the port",
    ),
    local("data", OptionKind::Choice(&[KEEP, "5", "6", "7", "8"]), KEEP, "data bits"),
    local("parity", OptionKind::Choice(&[KEEP, "none", "odd", "even", "mark", "space"]), KEEP, "parity bit"),
    local("stop", OptionKind::Choice(&[KEEP, "1", "2"]), KEEP, "stop bits"),
    local("flow", OptionKind::Choice(&[KEEP, "none", "xonxoff", "rtscts"]), KEEP, "initial flow control"),
];

pub(crate) fn flows() -> Vec<FlowOffer> {
    let flow = |direction| FlowOffer { direction, format: Format::Serial, class: FlowClass::Reliable };
    vec![flow(FlowDirection::DeviceToApplication), flow(FlowDirection::ApplicationToDevice)]
}

/// Returns the settings of the options.
fn initial_settings(spec: &DeviceSpec) -> Settings {
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

/// Encodes the properties of a description: settings, and the identity by which the port is
/// found again.
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

/// The ports of this host.
fn ports() -> Ports<'static> {
    Ports { root: Path::new("/") }
}

/// Makes a port raw, and applies the initial settings. The port keeps those that are not given.
fn prepare_port(termios: &mut Termios, initial: &Settings) -> rustix::io::Result<()> {
    let kept = Settings::from_port(termios);
    termios.make_raw();
    // CREAD enables the receiver; CLOCAL ignores a missing carrier.
    termios.control_modes.insert(ControlModes::CREAD | ControlModes::CLOCAL);
    // Breaks and bytes with a wrong parity bit are marked (`marks.rs`).
    termios.input_modes.insert(InputModes::PARMRK | InputModes::INPCK);
    // XON alone is the kernel's default for every terminal. It removes two bytes from binary data.
    let flow = kept.flow.filter(|flow| flow.xoff_input);
    let Settings { data_bits, parity, .. } = kept;
    Settings { data_bits, parity, flow, ..Settings::default() }.apply(termios)?;
    initial.apply(termios)
}

/// Returns the advice for a port that cannot be opened.
fn advice(error: Errno) -> &'static str {
    match error {
        Errno::ACCESS => "join the group that owns it, usually `dialout` or `uucp`",
        Errno::PERM => plain::DENIED_BY_UNIT,
        Errno::BUSY => "a program has opened it exclusively: `fuser` with this path names it",
        _ => "`outboard devices` lists the ports",
    }
}

fn open_port(spec: &DeviceSpec, path: &str) -> Result<Opened, DeviceError> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let port = rustix::fs::open(path, flags, Mode::empty())
        .map_err(|error| os(format!("opening {path}"), error, Some(advice(error))))?;
    let failed = |error| os(format!("setting {path}"), error, Some("is it a serial port?"));
    let mut termios = tcgetattr(&port).map_err(failed)?;
    prepare_port(&mut termios, &initial_settings(spec)).map_err(failed)?;
    tcsetattr(&port, OptionalActions::Now, &termios).map_err(failed)?;
    rustix::termios::ioctl_tiocexcl(&port).map_err(failed)?;
    let settings = Settings::from_port(&tcgetattr(&port).map_err(failed)?);
    let baud = settings.speed.unwrap_or_default().output_baud;
    let description = Description {
        class: Serial.name().into(),
        summary: format!("serial port {path}, {baud} baud"),
        flows: flows(),
        application: Serial.application(),
        properties: emit_properties(&settings, &ports().identity(Path::new(path))),
    };
    Ok(Opened { spec: spec.clone(), role: Role::Device, description, descriptors: vec![port] })
}

impl DeviceClass for Serial {
    fn entry(&self) -> ModuleEntry {
        ModuleEntry {
            name: "serial",
            summary: "a serial port, with its settings; its application side is `pty` or `tty`",
            doc: include_str!("doc.md"),
            options: OPTIONS,
        }
    }

    fn ioctls(&self) -> &'static [u32] {
        &sys::tty::IOCTLS
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

    fn subsystem(&self) -> Option<&'static str> {
        Some("tty")
    }

    fn further_use(&self) -> FurtherUse {
        FurtherUse::KeptOpen
    }

    fn list(&self) -> Vec<Listing> {
        let ports = fs::read_dir("/sys/class/tty").into_iter().flatten().flatten();
        let mut listings: Vec<_> = ports.filter_map(|port| listing(&port.path())).collect();
        listings.sort_by(|a, b| a.spec.cmp(&b.spec));
        listings
    }

    fn flows(&self, _spec: &DeviceSpec) -> Result<Vec<FlowOffer>, DeviceError> {
        Ok(flows())
    }

    fn open(&self, spec: &DeviceSpec, role: Role, _: Option<&Description>) -> Result<Opened, DeviceError> {
        match role {
            Role::Device => open_port(spec, &spec.target),
            Role::Application => Err(wrong_side(self.name(), role)),
        }
    }

    fn reopen(&self, spec: &DeviceSpec, role: Role, known: &Description) -> Result<Opened, DeviceError> {
        let (_, identity) = parse_properties(&known.properties)?;
        match role {
            Role::Device if !identity.is_empty() => {
                let advice = "plug it in again; an adapter without a serial number of its own returns only in its socket";
                let found = ports().find(&identity);
                let path =
                    found.map_err(|error| os(format!("looking for {identity}"), error, Some(advice)))?;
                open_port(spec, &path.to_string_lossy())
            }
            _ => self.open(spec, role, Some(known)),
        }
    }

    /// Ends the exclusive use. The kernel keeps it while any process has the port open, such as the other end of a
    /// pseudo-terminal.
    fn release(&self, opened: &Opened) {
        if let Some(port) = opened.descriptors.first() {
            let _ = rustix::termios::ioctl_tiocnxcl(port);
        }
    }

    fn partner(&self, opened: Opened) -> Result<Box<dyn Partner>, DeviceError> {
        let name = opened.spec.target.clone();
        let [port] = plain::descriptors(opened)?;
        let channel = Channel::own(port).map_err(|error| os(format!("preparing {name}"), error, None))?;
        Ok(Box::new(Port::new(name, channel)))
    }
}

/// Returns the listing of an entry in `/sys/class/tty`, or `None` if it has no hardware.
fn listing(port: &Path) -> Option<Listing> {
    let name = port.file_name()?.to_str()?;
    let driver = fs::read_link(port.join("device/driver")).ok()?;
    // A PC's missing ports have a device, too, with the type 0 (PORT_UNKNOWN).
    if fs::read_to_string(port.join("type")).is_ok_and(|kind| kind.trim() == "0") {
        return None;
    }
    let path = format!("/dev/{name}");
    let usable = rustix::fs::access(&path, Access::READ_OK | Access::WRITE_OK);
    let ours = crate::tty::own_serial_number(Path::new(&path)).is_some();
    let link = ports().link(Path::new(&path));
    let known_as = link.map(|link| format!(", {}", link.display())).unwrap_or_default();
    Some(Listing {
        spec: format!("serial:{path}"),
        summary: format!("serial port ({}{known_as})", driver.file_name()?.to_string_lossy()),
        problem: usable.err().map(|error| match error {
            Errno::ACCESS => format!("{error}: {}", advice(error)),
            Errno::NOENT => {
                format!("{path} is missing: the kernel has the port, and udev made no node for it")
            }
            error => error.to_string(),
        }),
        ours,
    })
}

impl DeviceClass for Pty {
    fn entry(&self) -> ModuleEntry {
        ModuleEntry {
            name: "pty",
            summary: "a pseudo-terminal that programs open like the serial port of the device host",
            doc: include_str!("doc.md"),
            options: &[],
        }
    }

    fn ioctls(&self) -> &'static [u32] {
        &sys::tty::IOCTLS
    }

    fn target(&self) -> &'static str {
        "[PATH]"
    }

    fn has_role(&self, role: Role) -> bool {
        role == Role::Application
    }

    fn nodes(&self, spec: &DeviceSpec) -> Vec<NodeName> {
        let path = Some(&spec.target).filter(|path| !path.is_empty());
        path.map(|path| NodeName::Link(path.into())).into_iter().collect()
    }

    fn open(&self, spec: &DeviceSpec, role: Role, like: Option<&Description>) -> Result<Opened, DeviceError> {
        if role != Role::Application {
            return Err(wrong_side(self.name(), role));
        }
        let settings = match like.filter(|like| like.class == Serial.name()) {
            Some(like) => parse_properties(&like.properties)?.0,
            None => Settings::default(),
        };
        let (master, slave, pts) = open_pair(&settings)
            .map_err(|error| os("creating a pseudo-terminal".into(), error, Some("is /dev/pts mounted?")))?;
        // Read before an application can find the terminal, so that later differences are changes of applications.
        let initial = Settings::from_pty(&tcgetattr(&slave).map_err(failed_to_prepare)?);
        let mut summary = pts.display().to_string();
        if !spec.target.is_empty() {
            path_link::create(Path::new(&spec.target), &pts, "pty", "/dev/pts/", is_live)?;
            summary = format!("{} ({summary})", spec.target);
        }
        let description = Description {
            class: self.name().into(),
            summary: format!("serial terminal {summary}"),
            flows: flows(),
            application: self.name(),
            properties: emit_properties(&initial, ""),
        };
        // Here, because a worker may not watch files.
        let closes = sys::watch::watch_closes(&pts).ok();
        let descriptors = [master, slave].into_iter().chain(closes).collect();
        Ok(Opened { spec: spec.clone(), role, description, descriptors })
    }

    fn release(&self, opened: &Opened) {
        if let Some(Ok(pts)) = opened.descriptors.first().map(pts_path) {
            drop(path_link(&opened.spec, &pts));
        }
    }

    fn partner(&self, mut opened: Opened) -> Result<Box<dyn Partner>, DeviceError> {
        let spec = opened.spec.clone();
        let (initial, _) = parse_properties(&opened.description.properties)?;
        // Master and slave come first.
        let closes = (opened.descriptors.len() > 2).then(|| opened.descriptors.pop()).flatten();
        let [master, slave] = plain::descriptors(opened)?;
        let pts = pts_path(&master).map_err(failed_to_prepare)?;
        let link = path_link(&spec, &pts);
        let channel = Channel::own(master).map_err(failed_to_prepare)?;
        Ok(Box::new(Terminal::new(pts.display().to_string(), channel, slave, closes, link, initial)))
    }
}

fn failed_to_prepare(error: Errno) -> DeviceError {
    os("preparing a pseudo-terminal".into(), error, None)
}

/// Returns the link to the terminal if the specification has a path. Dropping the result removes the link.
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
    // After the preparation, so that the kernel does not report it as a change of an application.
    sys::tty::set_packet_mode(&master, true)
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    let pts = pts_path(&master)?;
    Ok((master, slave, pts))
}

fn pts_path(master: &OwnedFd) -> rustix::io::Result<PathBuf> {
    Ok(PathBuf::from(std::ffi::OsString::from_vec(ptsname(master, Vec::new())?.into_bytes())))
}

/// Returns whether a link leads to the pseudo-terminal that it was made for. The number of a terminal that has ended may
/// belong to another one, which is younger than the link.
fn is_live(link: &fs::Metadata, path: &Path) -> bool {
    let made = |found: &fs::Metadata| (found.ctime(), found.ctime_nsec());
    fs::metadata(path).is_ok_and(|terminal| made(&terminal) <= made(link))
}
