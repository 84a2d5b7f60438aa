//! Finding event nodes: all of them, the one a user means, and the same one again after it went away.

use super::OURS;
use super::properties::Properties;
use contract::{DeviceError, Listing};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use sys::input::uinput;

const NODES: &str = "/dev/input";

/// The numbers of the event nodes there are, smallest first.
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

/// What the kernel lets everybody read of a device: `name`, `phys` or `uniq`.
fn attribute(number: u32, attribute: &str) -> String {
    let text = fs::read_to_string(format!("/sys/class/input/event{number}/device/{attribute}"));
    text.map(|text| text.trim_end_matches('\n').into()).unwrap_or_default()
}

/// Every event node.
pub(super) fn list() -> Vec<Listing> {
    let listing = |number| {
        let path = node(number);
        let opened = open(&path);
        let kind = opened.as_ref().map_or("input device", |(_, properties)| properties.kind());
        let ours = attribute(number, "phys").starts_with(OURS);
        let whose = if ours { ", a node of Outboard" } else { "" };
        Listing {
            spec: format!("evdev:{}", path.display()),
            summary: format!("{} ({kind}{whose})", attribute(number, "name")),
            problem: opened.err().map(|error| error.to_string()),
            ours,
        }
    };
    numbers().into_iter().map(listing).collect()
}

/// Opens an event node and asks what it is.
pub(super) fn open(path: &Path) -> Result<(OwnedFd, Properties), DeviceError> {
    let refused = |error: io::Error| DeviceError::Os {
        operation: format!("opening {}", path.display()),
        advice: advice(&error),
        error,
    };
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let node = rustix::fs::open(path, flags, Mode::empty()).map_err(|error| refused(error.into()))?;
    let properties = Properties::of(node.as_fd()).map_err(refused)?;
    Ok((node, properties))
}

fn advice(error: &io::Error) -> Option<String> {
    let advice = match Errno::from_io_error(error)? {
        Errno::ACCESS | Errno::PERM => {
            "add yourself to the group `input`: sudo usermod -aG input $USER, then log in again"
        }
        Errno::NOTTY | Errno::INVAL | Errno::ISDIR => {
            "it is no event node; `outboard devices` lists those there are"
        }
        Errno::NOENT | Errno::NODEV | Errno::NXIO => "it is not plugged in; `outboard devices` lists what is",
        _ => return None,
    };
    Some(advice.into())
}

/// The path that a target stands for: a path, or the one device of a name.
pub(super) fn resolve(target: &str) -> Result<PathBuf, DeviceError> {
    let wrong = |problem| DeviceError::Spec { what: format!("`evdev:{target}`"), problem };
    let Some(name) = target.strip_prefix("name=") else {
        return match target.starts_with('/') {
            true => Ok(PathBuf::from(target)),
            false => Err(wrong("write a path that begins with /, or name=NAME".into())),
        };
    };
    let mut found = numbers().into_iter().filter(|number| attribute(*number, "name") == name);
    match (found.next(), found.next()) {
        (Some(number), None) => Ok(node(number)),
        (None, _) => Err(wrong("no device has this name; `outboard devices` lists those there are".into())),
        (Some(first), Some(second)) => {
            let (first, second) = (node(first), node(second));
            let both = format!("{} and {}", first.display(), second.display());
            Err(wrong(format!("several devices have this name ({both}): name one by its path")))
        }
    }
}

/// Finds a device again by what it is: its name, ids and capabilities, and its serial number or else the
/// place it was plugged into. The node it had is looked at first.
pub(super) fn find_again(target: &str, known: &Properties) -> Result<(OwnedFd, Properties), DeviceError> {
    let named = PathBuf::from(target);
    let others = numbers().into_iter().filter(|number| attribute(*number, "name") == known.name).map(node);
    let candidates = target.starts_with('/').then_some(named).into_iter().chain(others);
    let mut refused = None;
    for path in candidates {
        match open(&path) {
            Ok((node, properties)) if is_same(known, &properties) => return Ok((node, properties)),
            Ok(_) => {}
            Err(error) => refused = Some(error),
        }
    }
    Err(refused.unwrap_or_else(|| DeviceError::Os {
        operation: format!("looking for {}", known.name),
        error: io::Error::from(io::ErrorKind::NotFound),
        advice: Some("plug it in again".into()),
    }))
}

/// Whether two descriptions are of one device. Two of the same make, without serial numbers, are told apart
/// by where they are plugged in.
pub(super) fn is_same(known: &Properties, found: &Properties) -> bool {
    let is_ours = found.phys.starts_with(OURS) && found.phys != known.phys;
    let has_number = !known.uniq.is_empty() && known.uniq == found.uniq;
    let is_there = known.uniq == found.uniq && known.phys == found.phys;
    known.name == found.name
        && known.ids == found.ids
        && known.is_capable_as(found)
        && (has_number || is_there)
        && !is_ours
}

/// The event node of a device made with `uinput`.
pub(super) fn node_of(device: BorrowedFd<'_>) -> Option<String> {
    let name = uinput::system_name(device).ok()?;
    let entries = fs::read_dir(format!("/sys/devices/virtual/input/{name}")).ok()?;
    let event = entries.flatten().find_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        name.starts_with("event").then_some(name)
    })?;
    Some(format!("{NODES}/{event}"))
}
