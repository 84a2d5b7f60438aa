//! Finds HID devices: all of them, the one that a specification names, and a known one after it was plugged in again.
//!
//! Their facts come from sysfs, which needs no permission: `uevent` and `report_descriptor` of the device behind a `hidraw` node.

use super::descriptor::Descriptor;
use super::dualsense;
use super::pads::Pad;
use super::properties::{Ids, NAME_BYTES_MAX, PLACE_BYTES_MAX, Properties};
use crate::evdev::PHYS_PREFIX;
use contract::{DeviceError, Kind, Listing};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use sys::hidraw::{Request, request};

const CLASS: &str = "/sys/class/hidraw";
/// Version 1.11 of HID, which nearly all devices by USB have. Only an event node tells another.
const USUAL_VERSION: u32 = 0x111;
/// Drivers set this bit in the version of devices whose keys and axes they have arranged. The far driver sets it again.
const DRIVER_BIT: u32 = 0x8000;

/// Returns the names of all nodes, by number.
fn names() -> Vec<String> {
    let Ok(entries) = fs::read_dir(CLASS) else { return Vec::new() };
    let number = |name: &String| name.strip_prefix("hidraw").and_then(|number| number.parse::<u32>().ok());
    let mut names: Vec<String> =
        entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort_by_key(number);
    names
}

fn device(name: &str) -> PathBuf {
    Path::new(CLASS).join(name).join("device")
}

/// Reads the properties of a node, without feature reports.
fn read(name: &str) -> io::Result<Properties> {
    let device = device(name);
    let uevent = fs::read_to_string(device.join("uevent"))?;
    let value = |key: &str| {
        let lines = uevent.lines().filter_map(|line| line.split_once('='));
        lines.into_iter().find(|(name, _)| *name == key).map_or("", |(_, value)| value)
    };
    let text = |key, limit| {
        let text = value(key);
        text[..text.floor_char_boundary(limit)].to_string()
    };
    // BUS:VENDOR:PRODUCT in hexadecimal.
    let mut numbers = value("HID_ID").split(':').map(|number| u32::from_str_radix(number, 16).unwrap_or(0));
    let mut number = || numbers.next().unwrap_or(0);
    let ids = Ids {
        bus: number() as u16,
        vendor: number(),
        product: number(),
        version: version(&device).unwrap_or(USUAL_VERSION),
    };
    Ok(Properties {
        name: text("HID_NAME", NAME_BYTES_MAX),
        phys: text("HID_PHYS", PLACE_BYTES_MAX),
        uniq: text("HID_UNIQ", PLACE_BYTES_MAX),
        ids,
        descriptor: fs::read(device.join("report_descriptor"))?,
        features: Vec::new(),
    })
}

fn entries(directory: PathBuf) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path())
}

/// Drivers that take a device by USB only (`hid_is_usb`), and leave its copy to no other driver: Logitech's older wheels and
/// gamepads, those of BigBen, and keys by U2F Zero and Nitrokey.
const USB_ONLY: [&str; 3] = ["logitech", "bigben", "hid-u2fzero"];

/// Returns true if the driver of a device here would refuse the copy of the device there. `device` is its directory in sysfs.
pub(super) fn refuses_copies(device: &Path) -> bool {
    let driver = fs::read_link(device.join("driver")).unwrap_or_default();
    driver.file_name().is_some_and(|driver| USB_ONLY.iter().any(|name| driver == *name))
}

/// Returns the directories of a device's inputs.
fn inputs(device: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    entries(device.join("input"))
}

fn version(device: &Path) -> Option<u32> {
    let version = inputs(device).find_map(|input| fs::read_to_string(input.join("id/version")).ok())?;
    Some(u32::from_str_radix(version.trim(), 16).ok()? & !DRIVER_BIT)
}

/// Returns the event nodes of a `hidraw` node.
fn event_nodes(name: &str) -> Vec<PathBuf> {
    let names = inputs(&device(name))
        .flat_map(entries)
        .filter_map(|path| path.file_name()?.to_str().map(String::from));
    let mut nodes: Vec<PathBuf> = names
        .filter(|name| name.starts_with("event"))
        .map(|name| Path::new("/dev/input").join(name))
        .collect();
    nodes.sort();
    nodes
}

/// Returns the reason to share a device as a whole: its event nodes carry less than its reports.
fn advantage(descriptor: &Descriptor, name: &str) -> Option<&'static str> {
    let has_nodes = !event_nodes(name).is_empty();
    let refuses_copies = refuses_copies(&device(name));
    match descriptor.kind() {
        Kind::SecurityKey if refuses_copies => Some("its driver takes it by USB only, and no copy of it"),
        Kind::SecurityKey => Some("it has no event node"),
        _ if !has_nodes => Some("no event node carries it"),
        Kind::Gamepad if descriptor.has_vendor_parts() && !refuses_copies => {
            Some("whole: with sensors, lights and all else for its own driver")
        }
        _ => None,
    }
}

/// Returns true if the driver of a device here plays forces or moves motors, also by vendor-defined reports. `device` is its directory
/// in sysfs.
pub(super) fn plays_forces(device: &Path) -> bool {
    let mut effects =
        inputs(device).filter_map(|input| fs::read_to_string(input.join("capabilities/ff")).ok());
    effects.any(|bits| bits.chars().any(|digit| !matches!(digit, '0' | ' ' | '\n')))
}

/// Returns a warning for a gamepad with reports that only its own driver understands, and for a device with force feedback, by its
/// descriptor or by its driver here (`plays_forces`). The motors of a known gamepad are stopped.
pub(super) fn limit(properties: &Properties, descriptor: &Descriptor, plays_forces: bool) -> String {
    let is_known = Pad::of(&properties.ids).is_some();
    let is_opaque = descriptor.kind() == Kind::Gamepad && descriptor.has_opaque_inputs();
    let buttons = match is_opaque && !is_known {
        true => "; its vendor-defined reports keep their values after a cut: buttons in them stay down",
        false => "",
    };
    let forces = match descriptor.has_forces() || plays_forces && !is_known {
        true => "; its forces go on after a cut",
        false => "",
    };
    format!("{buttons}{forces}")
}

/// Returns true if the device of an event node is offered as a whole. `input` is its directory in sysfs.
pub(crate) fn is_offered_for(input: &Path) -> bool {
    let names =
        entries(input.join("device/hidraw")).filter_map(|path| path.file_name()?.to_str().map(String::from));
    names.into_iter().any(|name| {
        let descriptor = fs::read(device(&name).join("report_descriptor"));
        descriptor
            .ok()
            .and_then(|descriptor| Descriptor::parse(&descriptor).ok())
            .is_some_and(|descriptor| advantage(&descriptor, &name).is_some())
    })
}

/// Lists the devices for which this class carries more than `evdev`.
pub(super) fn list() -> Vec<Listing> {
    let listing = |name: String| {
        let properties = read(&name).ok()?;
        let descriptor = Descriptor::parse(&properties.descriptor).ok()?;
        let ours = properties.phys.starts_with(PHYS_PREFIX);
        let advantage = match ours {
            true => "a node of Outboard",
            false => advantage(&descriptor, &name)?,
        };
        let path = node(&name);
        let limit = limit(&properties, &descriptor, plays_forces(&device(&name)));
        Some(Listing {
            spec: format!("hid:{}", path.display()),
            summary: format!("{} ({}, {advantage}{limit})", properties.name, descriptor.kind()),
            problem: open_node(&path).err().map(|error| error.to_string()),
            ours,
        })
    };
    names().into_iter().filter_map(listing).collect()
}

fn node(name: &str) -> PathBuf {
    Path::new("/dev").join(name)
}

fn open_node(path: &Path) -> Result<OwnedFd, DeviceError> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).map_err(|error| DeviceError::Os {
        operation: format!("opening {}", path.display()),
        advice: advice(error),
        error: error.into(),
    })
}

fn advice(error: Errno) -> Option<String> {
    let advice = match error {
        Errno::ACCESS | Errno::PERM => {
            "give yourself access: a udev rule SUBSYSTEM==\"hidraw\", TAG+=\"uaccess\" in /etc/udev/rules.d/70-hidraw.rules, then \
             plug the device in again"
        }
        Errno::NOENT | Errno::NODEV | Errno::NXIO => {
            "it is not plugged in; `outboard devices` lists the devices that are"
        }
        _ => return None,
    };
    Some(advice.into())
}

/// An opened device.
pub(super) struct Found {
    pub(super) properties: Properties,
    pub(super) descriptor: Descriptor,
    /// The `hidraw` node, then the event nodes.
    pub(super) nodes: Vec<OwnedFd>,
}

/// Opens a node, and with `grab` its event nodes.
fn open(name: &str, grab: bool) -> Result<Found, DeviceError> {
    let unreadable = |error: io::Error| DeviceError::Os {
        operation: format!("reading the description of {}", node(name).display()),
        advice: Errno::from_io_error(&error).and_then(advice),
        error,
    };
    let mut properties = read(name).map_err(unreadable)?;
    let descriptor = Descriptor::parse(&properties.descriptor).map_err(|error| DeviceError::Spec {
        what: format!("the report descriptor of {}", node(name).display()),
        problem: error.to_string(),
    })?;
    let mut nodes = vec![open_node(&node(name))?];
    properties.features = start_features(&properties, &descriptor, &nodes[0]);
    for path in event_nodes(name).into_iter().filter(|_| grab) {
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        match rustix::fs::open(&path, flags, Mode::empty()) {
            Ok(node) => nodes.push(node),
            // Plugged out at this moment, or no node is made for it.
            Err(Errno::NOENT | Errno::NODEV | Errno::NXIO) => {}
            Err(error) => {
                return Err(DeviceError::Os {
                    operation: format!("opening {}, which this host must not see meanwhile,", path.display()),
                    error: error.into(),
                    advice: Some(
                        "add yourself to the group `input`, or use grab=off: then the device acts on this host too".into(),
                    ),
                });
            }
        }
    }
    Ok(Found { properties, descriptor, nodes })
}

/// Reads the feature reports that the far driver reads before anything else. A report that the device refuses is left out.
fn start_features(properties: &Properties, descriptor: &Descriptor, node: &OwnedFd) -> Vec<Vec<u8>> {
    if Pad::of(&properties.ids) != Some(Pad::DualSense) {
        return Vec::new();
    }
    let read = |number: u8| {
        let bytes = descriptor.bytes_of(wire::formats::hid::ReportKind::Feature, number)?;
        let mut report = vec![0; bytes];
        report[0] = number;
        let length = request(node.as_fd(), Request::GetFeature, &mut report).ok()?;
        report.truncate(length);
        (report.first() == Some(&number)).then_some(report)
    };
    dualsense::START_FEATURES.into_iter().filter_map(read).collect()
}

/// A target, as the user writes it.
enum Target<'a> {
    Path(&'a str),
    Name(&'a str),
    /// Vendor and product.
    Ids(u32, u32),
}

impl<'a> Target<'a> {
    fn parse(target: &'a str) -> Result<Target<'a>, DeviceError> {
        if target.starts_with('/') {
            return Ok(Target::Path(target));
        }
        if let Some(name) = target.strip_prefix("name=") {
            return Ok(Target::Name(name));
        }
        let number = |text: &str| (text.len() == 4).then(|| u32::from_str_radix(text, 16).ok()).flatten();
        let ids =
            target.split_once(':').and_then(|(vendor, product)| Some((number(vendor)?, number(product)?)));
        let (vendor, product) = ids.ok_or_else(|| {
            wrong(target, "write an absolute path, VENDOR:PRODUCT as in `lsusb`, or name=NAME".into())
        })?;
        Ok(Target::Ids(vendor, product))
    }
}

fn wrong(target: &str, problem: String) -> DeviceError {
    DeviceError::Spec { what: format!("`hid:{target}`"), problem }
}

/// Opens the device that a target names.
pub(super) fn open_target(target: &str, grab: bool) -> Result<Found, DeviceError> {
    let is_meant = |properties: &Properties, target: &Target<'_>| match *target {
        Target::Path(_) => false,
        Target::Name(name) => properties.name == name,
        Target::Ids(vendor, product) => (properties.ids.vendor, properties.ids.product) == (vendor, product),
    };
    let parsed = Target::parse(target)?;
    if let Target::Path(path) = parsed {
        return open(&name_of(target, path)?, grab);
    }
    let mut found = names().into_iter().filter(|name| {
        read(name).is_ok_and(|properties| {
            is_meant(&properties, &parsed) && !properties.phys.starts_with(PHYS_PREFIX)
        })
    });
    match (found.next(), found.next()) {
        (Some(name), None) => open(&name, grab),
        (None, _) => Err(wrong(target, "no device is so; `outboard devices` lists the devices".into())),
        (Some(first), Some(second)) => {
            Err(wrong(target, format!("several devices are so (/dev/{first} and /dev/{second}): use a path")))
        }
    }
}

/// Returns the name of the node behind a path, which may be a link.
fn name_of(target: &str, path: &str) -> Result<String, DeviceError> {
    let real = fs::canonicalize(path).map_err(|error| DeviceError::Os {
        operation: format!("opening {path}"),
        advice: Errno::from_io_error(&error).and_then(advice),
        error,
    })?;
    let name = real.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    match real.parent() == Some(Path::new("/dev")) && name.starts_with("hidraw") {
        true => Ok(name.into()),
        false => Err(wrong(target, "it is no `/dev/hidraw…`; `outboard devices` lists the devices".into())),
    }
}

/// Finds a known device again: same name, ids and report descriptor, and same serial number or, without one, same place.
pub(super) fn find_again(known: &Properties, grab: bool) -> Result<Found, DeviceError> {
    let mut failure = None;
    for name in names() {
        if read(&name).is_ok_and(|found| is_same(known, &found)) {
            match open(&name, grab) {
                Ok(found) => return Ok(found),
                Err(error) => failure = Some(error),
            }
        }
    }
    Err(failure.unwrap_or_else(|| DeviceError::Os {
        operation: format!("looking for {}", known.name),
        error: io::Error::from(io::ErrorKind::NotFound),
        advice: Some("plug it in again".into()),
    }))
}

/// Returns true if two descriptions belong to one device. The version and the serial number may be those of a driver.
pub(super) fn is_same(known: &Properties, found: &Properties) -> bool {
    let without_version = |ids: Ids| Ids { version: 0, ..ids };
    let is_ours = found.phys.starts_with(PHYS_PREFIX) && found.phys != known.phys;
    let same_serial = !known.uniq.is_empty() && known.uniq == found.uniq;
    known.name == found.name
        && without_version(known.ids) == without_version(found.ids)
        && known.descriptor == found.descriptor
        && (same_serial || known.phys == found.phys)
        && !is_ours
}
