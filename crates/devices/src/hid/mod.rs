//! Whole HID devices: a `hidraw` node on the device host, and a device made with `/dev/uhid` on the application host, which the kernel's
//! own driver takes there.
//!
//! | module | purpose |
//! |---|---|
//! | `descriptor` | report descriptors: reports, kind, neutral values |
//! | `reports` | the last input reports, snapshots, neutral reports |
//! | `outputs` | the last output reports, and those that stop the motors |
//! | `pads` | gamepads whose reports are known beyond their descriptors |
//! | `dualsense`, `dualshock`, `switch` | the states in the reports of these gamepads |
//! | `properties`, `discovery` | description of a device; finding it, also after it was unplugged |
//! | `device` | the `hidraw` node as a partner |
//! | `uhid`, `application` | events of `/dev/uhid`; the made device as a partner |

mod application;
mod descriptor;
mod device;
pub(crate) mod discovery;
mod dualsense;
mod dualshock;
pub mod fuzz;
mod outputs;
mod pads;
mod properties;
mod reports;
mod switch;
#[cfg(test)]
mod tests;
mod uhid;

use crate::evdev::PHYS_PREFIX;
use crate::plain::DENIED_NODE;
use application::NodePartner;
use contract::{
    Description, DeviceClass, DeviceError, DeviceSpec, FlowClass, FlowDirection, FlowOffer, Format, Kind,
    Listing, ModuleEntry, Opened, OptionKind, OptionSpec, Partner, Role, local,
};
use descriptor::Descriptor;
use device::DevicePartner;
use discovery::Found;
use properties::Properties;
use reports::Inputs;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The class `hid`.
#[derive(Debug)]
pub struct Hid;

/// The devices that programs have made.
const MADE: &str = "/sys/devices/virtual/misc/uhid";
/// Time in which the kernel makes the `hidraw` node of a new device. A driver that asks first is not waited for.
const NODE_TIMEOUT: Duration = Duration::from_millis(300);
const NODE_INTERVAL: Duration = Duration::from_millis(5);
/// The place to look for the reason of a copy without a driver.
const NO_DRIVER: &str = "`dmesg` tells why; some take a device by USB only";

static OPTIONS: [OptionSpec; 1] = [local(
    "grab",
    OptionKind::Choice(&["auto", "off"]),
    "auto",
    "hide the device's events from this host. auto: while an application is attached",
)];

/// Requests of an open device and of its event nodes.
static IOCTLS: [u32; sys::hidraw::IOCTLS.len() + sys::input::evdev::IOCTLS.len()] = {
    let (own, events) = (sys::hidraw::IOCTLS, sys::input::evdev::IOCTLS);
    let mut codes = [0; sys::hidraw::IOCTLS.len() + sys::input::evdev::IOCTLS.len()];
    let mut at = 0;
    while at < codes.len() {
        codes[at] = if at < own.len() { own[at] } else { events[at - own.len()] };
        at += 1;
    }
    codes
};

fn describe(properties: &Properties, descriptor: &Descriptor) -> Description {
    let class = if descriptor.has_state() { FlowClass::State } else { FlowClass::Reliable };
    let offer = |direction| FlowOffer { direction, format: Format::Hid, class };
    Description {
        class: Hid.name().into(),
        summary: format!("{} ({})", properties.name, descriptor.kind()),
        flows: vec![offer(FlowDirection::DeviceToApplication), offer(FlowDirection::ApplicationToDevice)],
        application: Hid.application(),
        properties: properties.to_bytes(),
    }
}

fn parse_properties(description: &Description) -> Result<(Properties, Descriptor), DeviceError> {
    let wrong = |problem| DeviceError::Spec { what: "the description of a HID device".into(), problem };
    if description.class != Hid.name() {
        return Err(wrong(format!("its class is `{}`, not `hid`", description.class)));
    }
    Properties::parse(&description.properties).map_err(|error| wrong(error.to_string()))
}

fn opened(spec: &DeviceSpec, found: Found) -> Opened {
    let description = describe(&found.properties, &found.descriptor);
    Opened { spec: spec.clone(), role: Role::Device, description, descriptors: found.nodes }
}

fn has_grab(spec: &DeviceSpec) -> bool {
    spec.options.text("grab") == "auto"
}

/// The directories of the devices that programs have made.
fn made_devices() -> BTreeSet<PathBuf> {
    fs::read_dir(MADE).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

/// Makes a device with these properties, of this kind. Returns words for its summary: where its `hidraw` node is, if the kernel has
/// made that at once.
fn make(properties: &Properties, kind: Kind) -> Result<(OwnedFd, String), DeviceError> {
    use rustix::fs::{Mode, OFlags, open};
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let node = open("/dev/uhid", flags, Mode::empty()).map_err(|error| DeviceError::Os {
        operation: "opening /dev/uhid".into(),
        error: error.into(),
        advice: Some(match error {
            rustix::io::Errno::ACCESS | rustix::io::Errno::PERM => DENIED_NODE.into(),
            _ => "load the kernel module: modprobe uhid".into(),
        }),
    })?;
    let before = made_devices();
    let phys = format!("{PHYS_PREFIX}{}", properties.phys);
    let failed = |error: io::Error| DeviceError::Os {
        operation: format!("making a copy of {}", properties.name),
        error,
        advice: None,
    };
    rustix::io::write(&node, &uhid::create(properties, &phys)).map_err(|error| failed(error.into()))?;
    let deadline = Instant::now() + NODE_TIMEOUT;
    loop {
        std::thread::sleep(NODE_INTERVAL);
        let fresh: Vec<PathBuf> = made_devices().difference(&before).cloned().collect();
        if let Some(path) = fresh.iter().find_map(|device| hidraw_of(device)) {
            return Ok((node, format!(" at {path}")));
        }
        if Instant::now() >= deadline {
            return Ok((node, without_node(&fresh, kind)));
        }
    }
}

/// Returns words for the summary of a new device without a `hidraw` node. A driver that asks first has taken it already. One that
/// insists on USB refuses it, and the kernel offers it to no other, so nothing but its own log tells.
fn without_node(fresh: &[PathBuf], kind: Kind) -> String {
    match fresh.iter().any(|device| !device.join("driver").exists()) {
        true => format!(
            ", without a node: no driver of this host has taken it so far ({NO_DRIVER}){}",
            instead_of_copy(kind)
        ),
        false => String::new(),
    }
}

/// Returns advice for a device of this kind whose copy has no driver.
fn instead_of_copy(kind: Kind) -> &'static str {
    match kind {
        Kind::SecurityKey => "; use it at its own host",
        // One of no kind may have no event node.
        Kind::Hid => "",
        _ => "; share its event node (`evdev`) instead",
    }
}

/// Returns the `hidraw` node of a device in sysfs.
fn hidraw_of(device: &Path) -> Option<String> {
    let mut entries = fs::read_dir(device.join("hidraw")).ok()?.flatten();
    entries.find_map(|entry| Some(format!("/dev/{}", entry.file_name().to_str()?)))
}

impl DeviceClass for Hid {
    fn entry(&self) -> ModuleEntry {
        ModuleEntry {
            name: "hid",
            summary: "a whole HID device: a gamepad with its sensors and lights, a FIDO key",
            doc: include_str!("doc.md"),
            options: &OPTIONS,
        }
    }

    fn ioctls(&self) -> &'static [u32] {
        &IOCTLS
    }

    fn target(&self) -> &'static str {
        "[PATH|VENDOR:PRODUCT|name=NAME]"
    }

    fn application(&self) -> &'static str {
        "hid"
    }

    fn copies(&self) -> Option<&'static str> {
        Some("hid")
    }

    fn kind(&self, described: &Description) -> Result<Kind, DeviceError> {
        parse_properties(described).map(|(_, descriptor)| descriptor.kind())
    }

    fn subsystem(&self) -> Option<&'static str> {
        Some("hidraw")
    }

    fn list(&self) -> Vec<Listing> {
        discovery::list()
    }

    fn open(&self, spec: &DeviceSpec, role: Role, like: Option<&Description>) -> Result<Opened, DeviceError> {
        if role == Role::Device {
            return discovery::open_target(&spec.target, has_grab(spec)).map(|found| opened(spec, found));
        }
        let like = like.ok_or_else(|| DeviceError::Spec {
            what: "hid".into(),
            problem: "a node copies a device: attach a device of class `hid`".into(),
        })?;
        let (mut properties, descriptor) = parse_properties(like)?;
        if !spec.target.is_empty() {
            properties.name =
                spec.target[..spec.target.floor_char_boundary(properties::NAME_BYTES_MAX)].into();
        }
        let (node, place) = make(&properties, descriptor.kind())?;
        let summary = format!("{} ({}){place}", properties.name, descriptor.kind());
        let description = Description { summary, properties: properties.to_bytes(), ..like.clone() };
        Ok(Opened { spec: spec.clone(), role, description, descriptors: vec![node] })
    }

    fn reopen(&self, spec: &DeviceSpec, role: Role, known: &Description) -> Result<Opened, DeviceError> {
        match role {
            Role::Device => {
                let (properties, _) = parse_properties(known)?;
                discovery::find_again(&properties, has_grab(spec)).map(|found| opened(spec, found))
            }
            Role::Application => self.open(spec, role, Some(known)),
        }
    }

    fn revoke(&self, opened: &Opened) {
        if let (Role::Device, Some((node, events))) = (opened.role, opened.descriptors.split_first()) {
            // They fail if the device was unplugged, which ends the access too, or the kernel is older than 6.12.
            let _ = sys::hidraw::revoke(node.as_fd());
            events.iter().for_each(|node| _ = sys::input::evdev::revoke(node.as_fd()));
        }
    }

    fn partner(&self, opened: Opened) -> Result<Box<dyn Partner>, DeviceError> {
        let (properties, descriptor) = parse_properties(&opened.description)?;
        let inputs = Inputs::new(&properties, descriptor);
        let mut descriptors = opened.descriptors.into_iter();
        let node = descriptors.next().ok_or_else(|| DeviceError::Spec {
            what: properties.name.clone(),
            problem: "the broker passed no descriptor".into(),
        })?;
        let operation = format!("driving {}", properties.name);
        let partner = match opened.role {
            Role::Device => DevicePartner::new(&properties, inputs, node, descriptors.collect())
                .map(|partner| Box::new(partner) as Box<dyn Partner>),
            Role::Application => NodePartner::new(node, properties, inputs)
                .map(|partner| Box::new(partner) as Box<dyn Partner>),
        };
        partner.map_err(|error| DeviceError::Os { operation, error, advice: None })
    }
}
