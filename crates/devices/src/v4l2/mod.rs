//! Cameras (`v4l2:/dev/video0`): a camera here, a node of v4l2loopback there, which any program takes for one.

mod camera;
mod discovery;
mod negotiate;
mod node;
mod properties;
#[cfg(test)]
mod tests;
mod watch;

pub use properties::Properties;

use crate::plain::os;
use camera::Camera;
use contract::{
    Description, DeviceClass, DeviceError, DeviceSpec, FlowClass, FlowDirection, FlowOffer, Format, Listing,
    Opened, OptionKind, OptionSpec, Partner, Role, Scope,
};
use discovery::Node;
use negotiate::Wanted;
use node::{NodePartner, Parts};
use std::os::fd::{AsFd, OwnedFd};
use watch::Watch;
use wire::formats::controls::Setting;
use wire::formats::video::Geometry;

/// The class.
#[derive(Debug)]
pub struct V4l2;

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
        "size",
        OptionKind::OrAuto(&OptionKind::Text { max: 11 }),
        "auto",
        "WIDTHxHEIGHT; auto: as the camera is set",
    ),
    option(
        "rate",
        OptionKind::OrAuto(&OptionKind::Number { min: 0.001, max: 10_000.0 }),
        "auto",
        "frames a second; auto: as the camera is set",
    ),
    option(
        "pixels",
        OptionKind::OrAuto(&OptionKind::Choice(&["YUYV", "YU12", "422P", "RGB3", "XR24", "GREY", "MJPG"])),
        "auto",
        "what a pixel is; auto: as the camera is set, or the first of these that it has",
    ),
    option(
        "buffers",
        OptionKind::Integer { min: 3, max: 32 },
        "6",
        "as a device: frames that the driver can hold",
    ),
    option(
        "set",
        OptionKind::Text { max: 4096 },
        "",
        "as an application: what the camera is set to at first: brightness=128, or (brightness=128, hue=0)",
    ),
    option(
        "start",
        OptionKind::Choice(&["demand", "always"]),
        "demand",
        "as an application: the camera is on while a program has the node open, or all the time",
    ),
];

impl DeviceClass for V4l2 {
    fn name(&self) -> &'static str {
        "v4l2"
    }

    fn summary(&self) -> &'static str {
        "a camera; as an application a node (v4l2loopback) that programs take for one"
    }

    fn doc(&self) -> &'static str {
        include_str!("doc.md")
    }

    fn target(&self) -> &'static str {
        "[PATH|name=NAME]"
    }

    fn has_role(&self, _role: Role) -> bool {
        true
    }

    fn application(&self) -> &'static str {
        "v4l2"
    }

    fn options(&self) -> &'static [OptionSpec] {
        OPTIONS
    }

    fn subsystem(&self) -> Option<&'static str> {
        Some("video4linux")
    }

    fn list(&self) -> Vec<Listing> {
        discovery::list()
    }

    fn open(&self, spec: &DeviceSpec, role: Role, like: Option<&Description>) -> Result<Opened, DeviceError> {
        let wanted = wanted(spec)?;
        match role {
            Role::Device => open_camera(spec, discovery::camera(&spec.target)?, &wanted),
            Role::Application => open_node(spec, like, &wanted),
        }
    }

    fn reopen(&self, spec: &DeviceSpec, role: Role, known: &Description) -> Result<Opened, DeviceError> {
        match role {
            Role::Application => self.open(spec, role, Some(known)),
            Role::Device => {
                let properties = parse_properties(known)?.ok_or_else(|| DeviceError::Spec {
                    what: known.summary.clone(),
                    problem: "it was no camera".into(),
                })?;
                open_camera(spec, discovery::camera_again(&spec.target, &properties)?, &wanted(spec)?)
            }
        }
    }

    fn partner(&self, opened: Opened) -> Result<Box<dyn Partner>, DeviceError> {
        let Opened { spec, role, description, descriptors } = opened;
        let (wanted, properties) = (wanted(&spec)?, parse_properties(&description)?);
        let mut descriptors = descriptors.into_iter();
        let lacking = |what: &str| DeviceError::Spec {
            what: description.summary.clone(),
            problem: format!("it came without {what}"),
        };
        let node = descriptors.next().ok_or_else(|| lacking("an open descriptor"))?;
        match role {
            Role::Device => {
                let properties = properties.ok_or_else(|| lacking("properties"))?;
                let capability = sys::v4l2::capability(node.as_fd())
                    .map_err(|error| os(format!("asking {}", description.summary), error, None))?;
                // Who writes into a loopback's buffers is another program.
                let is_private = capability.driver != discovery::LOOPBACK;
                let buffers = spec.options.integer("buffers") as u32;
                let name = capability.card;
                Ok(Box::new(Camera::new(name, node, properties, wanted, buffers, is_private)))
            }
            Role::Application => {
                let pictures = properties.as_ref().map(|properties| properties.geometry);
                let knobs = properties.map(|properties| properties.knobs).unwrap_or_default();
                let settings = first_settings(&spec, &knobs)?;
                let name = description.summary;
                let watch = descriptors.next().map(Watch::new).transpose();
                let watch = watch.map_err(|error| os(format!("asking who reads {name}"), error, None))?;
                Ok(Box::new(NodePartner::new(Parts { name, node, pictures, wanted, knobs, settings, watch })))
            }
        }
    }
}

fn wanted(spec: &DeviceSpec) -> Result<Wanted, DeviceError> {
    Wanted::of(&spec.options).map_err(|problem| wrong(spec, problem))
}

fn wrong(spec: &DeviceSpec, problem: String) -> DeviceError {
    DeviceError::Spec { what: format!("`v4l2:{}`", spec.target), problem }
}

fn first_settings(spec: &DeviceSpec, knobs: &[properties::Knob]) -> Result<Vec<Setting>, DeviceError> {
    properties::settings(knobs, spec.options.text("set"))
        .map_err(|problem| wrong(spec, format!("option `set`: {problem}")))
}

fn open_camera(spec: &DeviceSpec, node: Node, wanted: &Wanted) -> Result<Opened, DeviceError> {
    let capability = &node.capability;
    let geometry = negotiate::camera(node.descriptor.as_fd(), &capability.card, wanted)?;
    let properties = Properties::of(node.descriptor.as_fd(), &capability.card, &capability.bus, geometry)
        .map_err(|error| os(format!("asking {} what it is", capability.card), error, None))?;
    let offer = |direction, format, class| FlowOffer { direction, format, class };
    let mut flows = vec![offer(FlowDirection::DeviceToApplication, Format::Video, FlowClass::Timely)];
    // Without controls there is still to be told whether anybody looks.
    flows.push(offer(FlowDirection::ApplicationToDevice, Format::Controls, FlowClass::State));
    let description = Description {
        class: "v4l2".into(),
        summary: format!("{} ({})", properties.card, describe(&geometry)),
        flows,
        application: "v4l2",
        properties: properties.to_bytes(),
    };
    Ok(Opened { spec: spec.clone(), role: Role::Device, description, descriptors: vec![node.descriptor] })
}

fn open_node(spec: &DeviceSpec, like: Option<&Description>, wanted: &Wanted) -> Result<Opened, DeviceError> {
    let properties = like.map(parse_properties).transpose()?.flatten();
    let knobs = properties.as_ref().map_or(&[][..], |properties| &properties.knobs);
    first_settings(spec, knobs)?;
    let node = discovery::sink(&spec.target)?;
    let mut shown = String::new();
    if let Some(properties) = &properties {
        let taken = negotiate::sink(node.descriptor.as_fd(), &properties.geometry, wanted)
            .map_err(|problem| wrong(spec, problem))?;
        shown = format!(" ({})", describe(&taken));
    }
    let is_loopback = node.is_loopback();
    let mut descriptors: Vec<OwnedFd> = vec![node.descriptor];
    let takes_words = like.is_some_and(|like| {
        like.flows.iter().any(|flow| flow.direction == FlowDirection::ApplicationToDevice)
    });
    if takes_words && spec.options.text("start") == "demand" && is_loopback {
        let watch = watch::start(&node.path, descriptors[0].as_fd())
            .map_err(|error| os(format!("watching {}", node.path.display()), error, None))?;
        descriptors.push(watch);
    }
    let summary = format!("{} at {}{shown}", node.capability.card, node.path.display());
    let description = Description {
        summary,
        ..like.cloned().unwrap_or_else(|| crate::plain::description(spec, crate::plain::video_flow(), "v4l2"))
    };
    Ok(Opened { spec: spec.clone(), role: Role::Application, description, descriptors })
}

/// The properties of a camera; none of another device.
fn parse_properties(description: &Description) -> Result<Option<Properties>, DeviceError> {
    if description.class != "v4l2" || description.properties.is_empty() {
        return Ok(None);
    }
    let wrong = |error: wire::WireError| DeviceError::Spec {
        what: "the description of a camera".into(),
        problem: error.to_string(),
    };
    Properties::parse(&description.properties).map(Some).map_err(wrong)
}

fn describe(geometry: &Geometry) -> String {
    let fourcc = geometry.pixels().fourcc();
    let (numerator, denominator) = geometry.rate();
    let rate = match numerator {
        0 => String::new(),
        _ => format!(" at {} Hz", (f64::from(numerator) / f64::from(denominator) * 1000.0).round() / 1000.0),
    };
    format!("{} {}x{}{rate}", String::from_utf8_lossy(&fourcc), geometry.width(), geometry.height())
}
