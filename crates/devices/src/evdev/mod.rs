//! Keyboards, mice, touchpads, gamepads: an event node on the device host (`evdev`), and a copy of it on the application
//! host (`uinput`).
//!
//! | module | purpose |
//! |---|---|
//! | `device`, `frames` | reads the event node; frames, snapshots, feedback to the device |
//! | `application`, `node`, `effects` | drives the copy; feedback from applications |
//! | `state` | state of a device, snapshots, and the events from one state to another |
//! | `properties`, `discovery` | description of a device; finding it, also after it was unplugged |
//! | `kind` | kind of a device, and the keys that it may have |
//! | `fuzz`, `kernel` | inverse of the kernel's smoothing; conversions |

mod application;
mod device;
mod discovery;
mod effects;
mod frames;
mod fuzz;
mod kernel;
mod kind;
mod node;
mod properties;
mod state;
#[cfg(test)]
mod tests;

pub(crate) use kind::momentary;
pub use properties::Properties;

use crate::plain::DENIED_NODE;
use crate::side::wrong_side;
use application::NodePartner;
use contract::{
    Description, DeviceClass, DeviceError, DeviceSpec, FlowClass, FlowDirection, FlowOffer, Format,
    FurtherUse, Kind, Listing, ModuleEntry, Opened, OptionKind, OptionSpec, Partner, Role, local,
};
use device::DevicePartner;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use sys::input::code::*;
use sys::input::{Axis, Event, uinput, write_events};

/// Prefix of the physical location (`phys`) of nodes made by Outboard. It prevents that the search for a device finds
/// the device's own copy on the same host.
pub(crate) const PHYS_PREFIX: &str = "outboard/";

/// The class `evdev`, the device side.
#[derive(Debug)]
pub struct Evdev;

/// The class `uinput`, the application side.
#[derive(Debug)]
pub struct Uinput;

static EVDEV_OPTIONS: [OptionSpec; 3] = [
    local(
        "grab",
        OptionKind::Choice(&["auto", "on", "off"]),
        "auto",
        "hide the device's events from this host. auto: while an application is attached; on: from the start",
    ),
    local(
        "merge_after",
        OptionKind::Integer { min: 0, max: 65536 },
        "64",
        "queued frames above which motion is merged",
    ),
    local(
        "queue",
        OptionKind::Integer { min: 1, max: 65536 },
        "1024",
        "capacity of the queue, frames; when it is full, a snapshot replaces them",
    ),
];

static UINPUT_OPTIONS: [OptionSpec; 0] = [];

impl DeviceClass for Evdev {
    fn entry(&self) -> ModuleEntry {
        ModuleEntry {
            name: "evdev",
            summary: "a keyboard, mouse, touchpad or gamepad of this host",
            doc: include_str!("device.md"),
            options: &EVDEV_OPTIONS,
        }
    }

    fn ioctls(&self) -> &'static [u32] {
        &sys::input::evdev::IOCTLS
    }

    fn target(&self) -> &'static str {
        "PATH|name=NAME"
    }

    fn has_role(&self, role: Role) -> bool {
        role == Role::Device
    }

    fn application(&self) -> &'static str {
        "uinput"
    }

    fn kind(&self, described: &Description) -> Result<Kind, DeviceError> {
        parse_properties(described).map(|properties| properties.kind())
    }

    fn subsystem(&self) -> Option<&'static str> {
        Some("input")
    }

    fn further_use(&self) -> FurtherUse {
        FurtherUse::Reopened
    }

    fn list(&self) -> Vec<Listing> {
        discovery::list()
    }

    fn flows(&self, _spec: &DeviceSpec) -> Result<Vec<FlowOffer>, DeviceError> {
        // Only the device tells whether it takes feedback.
        Ok(vec![offer(FlowDirection::DeviceToApplication)])
    }

    fn open(
        &self,
        spec: &DeviceSpec,
        role: Role,
        _like: Option<&Description>,
    ) -> Result<Opened, DeviceError> {
        self.check(role)?;
        let path = discovery::resolve(&spec.target)?;
        let (node, properties) = discovery::open(&path)?;
        self.opened(spec, node, &properties)
    }

    fn revoke(&self, opened: &Opened) {
        for node in &opened.descriptors {
            // It fails if the device was unplugged, which ends the access too.
            let _ = sys::input::evdev::revoke(node.as_fd());
        }
    }

    fn reopen(&self, spec: &DeviceSpec, role: Role, known: &Description) -> Result<Opened, DeviceError> {
        self.check(role)?;
        let (node, properties) = discovery::find_again(&spec.target, &parse_properties(known)?)?;
        self.opened(spec, node, &properties)
    }

    fn partner(&self, opened: Opened) -> Result<Box<dyn Partner>, DeviceError> {
        let options = opened.spec.options.clone();
        let (node, properties) = unpack(opened)?;
        Ok(Box::new(DevicePartner::new(node, properties, &options)))
    }
}

impl Evdev {
    fn check(&self, role: Role) -> Result<(), DeviceError> {
        match role {
            Role::Device => Ok(()),
            Role::Application => Err(wrong_side(self.name(), role)),
        }
    }

    fn opened(
        &self,
        spec: &DeviceSpec,
        node: OwnedFd,
        properties: &Properties,
    ) -> Result<Opened, DeviceError> {
        let failed = |operation: &str, error, advice: Option<&str>| DeviceError::Os {
            operation: format!("{operation} {}", properties.name),
            error,
            advice: advice.map(Into::into),
        };
        sys::input::evdev::use_boot_clock(node.as_fd())
            .map_err(|error| failed("setting the clock of", error, None))?;
        if spec.options.text("grab") == "on" {
            let advice = "another program has grabbed it: stop that, or share the device that it makes";
            sys::input::evdev::grab(node.as_fd(), true)
                .map_err(|error| failed("grabbing", error, Some(advice)))?;
        }
        let description = describe(properties);
        Ok(Opened { spec: spec.clone(), role: Role::Device, description, descriptors: vec![node] })
    }
}

impl DeviceClass for Uinput {
    fn entry(&self) -> ModuleEntry {
        ModuleEntry {
            name: "uinput",
            summary: "an input device on this host that copies an `evdev` of the device host",
            doc: include_str!("application.md"),
            options: &UINPUT_OPTIONS,
        }
    }

    fn ioctls(&self) -> &'static [u32] {
        &sys::input::uinput::IOCTLS
    }

    fn target(&self) -> &'static str {
        "[NAME]"
    }

    fn has_role(&self, role: Role) -> bool {
        role == Role::Application
    }

    fn copies(&self) -> Option<&'static str> {
        Some("evdev")
    }

    fn open(&self, spec: &DeviceSpec, role: Role, like: Option<&Description>) -> Result<Opened, DeviceError> {
        if role != Role::Application {
            return Err(wrong_side(self.name(), role));
        }
        let like = like.ok_or_else(|| DeviceError::Spec {
            what: "uinput".into(),
            problem: "a node copies a device: attach a device of class `evdev`".into(),
        })?;
        let mut properties = parse_properties(like)?;
        let omitted = match kind::remove_foreign_keys(&mut properties) {
            0 => String::new(),
            count => format!(" ({count} keys omitted: a {} may not have them)", properties.kind()),
        };
        if !spec.target.is_empty() {
            properties.name = spec.target.clone();
        }
        let node = open_uinput()?;
        create(node.as_fd(), &properties).map_err(|error| DeviceError::Os {
            operation: format!("creating a copy of {}", properties.name),
            error,
            advice: None,
        })?;
        let path = discovery::node_of(node.as_fd());
        let summary = format!("{}{omitted} at {}", properties.name, path.as_deref().unwrap_or("/dev/input"));
        let description = Description { summary, properties: properties.to_bytes(), ..like.clone() };
        Ok(Opened { spec: spec.clone(), role, description, descriptors: vec![node] })
    }

    fn partner(&self, opened: Opened) -> Result<Box<dyn Partner>, DeviceError> {
        let (node, properties) = unpack(opened)?;
        let operation = format!("driving the node of {}", properties.name);
        match NodePartner::new(node, properties) {
            Ok(partner) => Ok(Box::new(partner)),
            Err(error) => Err(DeviceError::Os { operation, error, advice: None }),
        }
    }
}

fn offer(direction: FlowDirection) -> FlowOffer {
    FlowOffer { direction, format: Format::Evdev, class: FlowClass::State }
}

fn describe(properties: &Properties) -> Description {
    let mut flows = vec![offer(FlowDirection::DeviceToApplication)];
    if properties.has_feedback() {
        flows.push(offer(FlowDirection::ApplicationToDevice));
    }
    Description {
        class: "evdev".into(),
        summary: format!("{} ({})", properties.name, properties.kind()),
        flows,
        application: Evdev.application(),
        properties: properties.to_bytes(),
    }
}

fn parse_properties(description: &Description) -> Result<Properties, DeviceError> {
    let wrong = |problem| DeviceError::Spec { what: "the description of an input device".into(), problem };
    if description.class != "evdev" {
        return Err(wrong(format!("its class is `{}`, not `evdev`", description.class)));
    }
    Properties::parse(&description.properties).map_err(|error| wrong(error.to_string()))
}

fn unpack(opened: Opened) -> Result<(OwnedFd, Properties), DeviceError> {
    let properties = parse_properties(&opened.description)?;
    let node = opened.descriptors.into_iter().next().ok_or_else(|| DeviceError::Spec {
        what: properties.name.clone(),
        problem: "the broker passed no descriptor".into(),
    })?;
    Ok((node, properties))
}

fn open_uinput() -> Result<OwnedFd, DeviceError> {
    use rustix::fs::{Mode, OFlags, open};
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    open("/dev/uinput", flags, Mode::empty()).map_err(|error| DeviceError::Os {
        operation: "opening /dev/uinput".into(),
        error: error.into(),
        advice: Some(match error {
            rustix::io::Errno::ACCESS | rustix::io::Errno::PERM => DENIED_NODE.into(),
            _ => "load the kernel module: modprobe uinput".into(),
        }),
    })
}

/// Creates a node with a device's properties.
fn create(node: BorrowedFd<'_>, properties: &Properties) -> io::Result<()> {
    let has_effects = properties.effects_max > 0 && properties.kinds.contains(EV_FF);
    let effects_max = if has_effects { properties.effects_max } else { 0 };
    let name = if properties.name.is_empty() { "Outboard input device" } else { &properties.name };
    uinput::set_up(node, name, properties.ids, effects_max)?;
    if let Ok(phys) = CString::new(format!("{PHYS_PREFIX}{}", properties.phys)) {
        uinput::set_physical_location(node, &phys)?;
    }
    properties.props.iter().try_for_each(|property| uinput::enable_property(node, property))?;
    for kind in properties.kinds.iter().filter(|kind| *kind != EV_FF || has_effects) {
        uinput::enable_kind(node, kind)?;
        for code in properties.codes(kind).iter() {
            uinput::enable_code(node, kind, code)?;
        }
    }
    if properties.kinds.contains(EV_ABS) {
        for (code, axis) in &properties.axes {
            // The kernel refuses a flat wider than the range, though some drivers have it.
            let range = i64::from(axis.maximum) - i64::from(axis.minimum);
            let flat = i32::try_from(range).map_or(axis.flat, |range| axis.flat.min(range));
            uinput::enable_code(node, EV_ABS, *code)?;
            uinput::set_axis(node, *code, Axis { flat, ..*axis })?;
        }
    }
    uinput::create(node)?;
    match properties.repeat_ms {
        Some([delay, period]) if properties.kinds.contains(EV_REP) => write_events(
            node,
            &[
                Event::new(EV_REP, REP_DELAY, delay.cast_signed()),
                Event::new(EV_REP, REP_PERIOD, period.cast_signed()),
                Event::REPORT,
            ],
        ),
        _ => Ok(()),
    }
}
