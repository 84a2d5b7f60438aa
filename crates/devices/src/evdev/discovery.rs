//! Finds event nodes: all of them, the one that a specification names, and a known one after it was plugged in again.

use super::PHYS_PREFIX;
use super::properties::Properties;
use crate::hid;
use contract::{DeviceError, Kind, Listing};
use rustix::fs::{Mode, OFlags, fstat, major, minor};
use rustix::io::Errno;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use sys::input::uinput;

const NODES: &str = "/dev/input";

/// Returns the numbers of all event nodes, ascending.
fn numbers() -> Vec<u32> {
    let Ok(entries) = fs::read_dir(NODES) else {
        return Vec::new();
    };
    let mut numbers: Vec<u32> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.strip_prefix("event")?.parse().ok())
        .collect();
    numbers.sort_unstable();
    numbers
}

fn node(number: u32) -> PathBuf {
    Path::new(NODES).join(format!("event{number}"))
}

/// Reads an attribute of a device from sysfs, which needs no permission: `name`, `phys` or `uniq`.
fn attribute(number: u32, attribute: &str) -> String {
    let text = fs::read_to_string(format!("/sys/class/input/event{number}/device/{attribute}"));
    text.map(|text| text.trim_end_matches('\n').into()).unwrap_or_default()
}

/// Lists all event nodes.
pub(super) fn list() -> Vec<Listing> {
    let listing = |number| {
        let path = node(number);
        let opened = open(&path);
        let kind = opened.as_ref().map_or(Kind::Input, |(_, properties)| properties.kind());
        let ours = attribute(number, "phys").starts_with(PHYS_PREFIX);
        let is_part =
            || hid::discovery::is_offered_for(Path::new(&format!("/sys/class/input/event{number}/device")));
        let owner = match ours {
            true => ", a node of Outboard",
            false if is_part() => ", a part of it; whole as `hid`",
            false => "",
        };
        Listing {
            spec: format!("evdev:{}", path.display()),
            summary: format!("{} ({kind}{owner})", attribute(number, "name")),
            problem: opened.err().map(|error| error.to_string()),
            ours,
        }
    };
    numbers().into_iter().map(listing).collect()
}

/// Opens an event node and reads its properties.
pub(super) fn open(path: &Path) -> Result<(OwnedFd, Properties), DeviceError> {
    let refused = |error: io::Error| DeviceError::Os {
        operation: format!("opening {}", path.display()),
        advice: advice(&error),
        error,
    };
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let node = rustix::fs::open(path, flags, Mode::empty()).map_err(|error| refused(error.into()))?;
    let mut properties = Properties::read(node.as_fd()).map_err(refused)?;
    properties.phys = with_interface(&properties.phys, usb_interface(node.as_fd()).as_deref());
    Ok((node, properties))
}

/// Returns the number of the USB interface whose driver has made a node, in hexadecimal.
fn usb_interface(node: BorrowedFd<'_>) -> Option<String> {
    let device = fstat(node).ok()?.st_rdev;
    let directory = format!("/sys/dev/char/{}:{}/device/device", major(device), minor(device));
    fs::read_to_string(format!("{directory}/bInterfaceNumber")).ok()
}

/// Returns the physical location of a node of this USB interface. `xpad` names the first interface in each: the four gamepads of a
/// wireless receiver would have one location, and one that is switched off would be found again in another.
pub(super) fn with_interface(phys: &str, interface: Option<&str>) -> String {
    let number = interface.and_then(|text| u8::from_str_radix(text.trim_end(), 16).ok());
    match (phys.strip_suffix("/input0"), number) {
        (Some(device), Some(number)) => format!("{device}/input{number}"),
        _ => phys.into(),
    }
}

fn advice(error: &io::Error) -> Option<String> {
    let advice = match Errno::from_io_error(error)? {
        Errno::ACCESS | Errno::PERM => {
            "add yourself to the group `input`: sudo usermod -aG input $USER, then log in again"
        }
        Errno::NOTTY | Errno::INVAL | Errno::ISDIR => {
            "it is not an event node; `outboard devices` lists the event nodes"
        }
        Errno::NOENT | Errno::NODEV | Errno::NXIO => {
            "it is not plugged in; `outboard devices` lists the devices that are"
        }
        _ => return None,
    };
    Some(advice.into())
}

/// Returns the path of a target, which is a path or the name of a device.
pub(super) fn resolve(target: &str) -> Result<PathBuf, DeviceError> {
    let wrong = |problem| DeviceError::Spec { what: format!("`evdev:{target}`"), problem };
    let Some(name) = target.strip_prefix("name=") else {
        return match target.starts_with('/') {
            true => Ok(PathBuf::from(target)),
            false => Err(wrong("write an absolute path, or name=NAME".into())),
        };
    };
    let mut found = numbers().into_iter().filter(|number| attribute(*number, "name") == name);
    match (found.next(), found.next()) {
        (Some(number), None) => Ok(node(number)),
        (None, _) => Err(wrong("no device has this name; `outboard devices` lists the devices".into())),
        (Some(first), Some(second)) => {
            let (first, second) = (node(first), node(second));
            let both = format!("{} and {}", first.display(), second.display());
            Err(wrong(format!("several devices have this name ({both}): use a path")))
        }
    }
}

/// Finds a known device again (see [`is_same`]). Tries its former node first.
pub(super) fn find_again(target: &str, known: &Properties) -> Result<(OwnedFd, Properties), DeviceError> {
    let named = PathBuf::from(target);
    let others = numbers().into_iter().filter(|number| attribute(*number, "name") == known.name).map(node);
    let candidates = target.starts_with('/').then_some(named).into_iter().chain(others);
    let mut failure = None;
    for path in candidates {
        match open(&path) {
            Ok((node, properties)) if is_same(known, &properties) => return Ok((node, properties)),
            Ok(_) => {}
            Err(error) => failure = Some(error),
        }
    }
    Err(failure.unwrap_or_else(|| DeviceError::Os {
        operation: format!("looking for {}", known.name),
        error: io::Error::from(io::ErrorKind::NotFound),
        advice: Some("plug it in again".into()),
    }))
}

/// Returns true if two descriptions belong to one device: same name, IDs and capabilities, and same serial number or,
/// without one, same physical location.
pub(super) fn is_same(known: &Properties, found: &Properties) -> bool {
    let is_ours = found.phys.starts_with(PHYS_PREFIX) && found.phys != known.phys;
    let same_serial = !known.uniq.is_empty() && known.uniq == found.uniq;
    let same_location = known.uniq == found.uniq && known.phys == found.phys;
    known.name == found.name
        && known.ids == found.ids
        && known.has_same_capabilities(found)
        && (same_serial || same_location)
        && !is_ours
}

/// Returns the event node of a device made with `uinput`.
pub(super) fn node_of(device: BorrowedFd<'_>) -> Option<String> {
    let name = uinput::system_name(device).ok()?;
    let entries = fs::read_dir(format!("/sys/devices/virtual/input/{name}")).ok()?;
    let event = entries.flatten().find_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        name.starts_with("event").then_some(name)
    })?;
    Some(format!("{NODES}/{event}"))
}
