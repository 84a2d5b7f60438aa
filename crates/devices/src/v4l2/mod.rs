//! Cameras (`v4l2:/dev/video0`). The device side is a camera; the application side is a node of v4l2loopback, which
//! programs use like a camera.

mod camera;
mod discovery;
mod negotiate;
mod node;
mod properties;
mod recent;
mod refusals;
#[cfg(test)]
mod tests;
mod user;
mod watcher;

pub(crate) use negotiate::{PictureOptions, interval_of};
pub use properties::Properties;
pub(crate) use user::CameraUser;

use crate::pipewire::{self, server};
use crate::plain::os;
use camera::Camera;
use contract::{
    Description, DeviceClass, DeviceError, DeviceSpec, FlowClass, FlowDirection, FlowOffer, Format,
    FurtherUse, Listing, ModuleEntry, NodeName, Opened, OptionKind, OptionSpec, Partner, Role, local,
};
use discovery::Node;
use node::{NodePartner, Parts};
use std::os::fd::{AsFd, OwnedFd};
use watcher::WatcherClient;
use wire::formats::controls::Setting;
use wire::formats::video::Geometry;

/// The device class `v4l2`.
#[derive(Debug)]
pub struct V4l2;

const OPTIONS: &[OptionSpec] = &[
    local(
        "size",
        OptionKind::OrAuto(&OptionKind::Text { max: 11 }),
        "auto",
        "WIDTHxHEIGHT; auto: as the camera is set",
    ),
    local(
        "rate",
        OptionKind::OrAuto(&OptionKind::Number { min: 0.001, max: 10_000.0 }),
        "auto",
        "frames per second; auto: as the camera is set",
    ),
    local(
        "pixels",
        OptionKind::OrAuto(&OptionKind::Choice(&["YUYV", "YU12", "422P", "RGB3", "XR24", "GREY", "MJPG"])),
        "auto",
        "pixel format; auto: as the camera is set, but raw pictures instead of MJPG where they are as fast",
    ),
    local(
        "set",
        OptionKind::Text { max: 4096 },
        "",
        "as an application: initial settings of the camera: brightness=128, or (brightness=128, hue=0)",
    ),
    local(
        "start",
        OptionKind::Choice(&["demand", "always"]),
        "demand",
        "as an application: the camera is on while a program has the node open (demand), or always",
    ),
];

impl DeviceClass for V4l2 {
    fn entry(&self) -> ModuleEntry {
        ModuleEntry {
            name: "v4l2",
            summary: "a camera; as an application a v4l2loopback node that programs use like a camera",
            doc: include_str!("doc.md"),
            options: OPTIONS,
        }
    }

    fn ioctls(&self) -> &'static [u32] {
        &sys::v4l2::IOCTLS
    }

    fn target(&self) -> &'static str {
        "[PATH|name=NAME]"
    }

    fn application(&self) -> &'static str {
        "v4l2"
    }

    /// Without a node of v4l2loopback that is free, programs find the camera through PipeWire.
    fn application_here(&self) -> &'static str {
        match discovery::sinks("").is_empty() && server::is_running() {
            true => pipewire::CLASS,
            false => self.application(),
        }
    }

    fn takes(&self) -> Option<Format> {
        Some(Format::Video)
    }

    /// Pictures as they are fit few networks. A build without the codec has no other way.
    #[cfg(feature = "media")]
    fn pipeline(&self, direction: FlowDirection) -> &'static str {
        match direction {
            FlowDirection::DeviceToApplication => "encode",
            FlowDirection::ApplicationToDevice => "",
        }
    }

    fn subsystem(&self) -> Option<&'static str> {
        Some("video4linux")
    }

    fn further_use(&self) -> FurtherUse {
        FurtherUse::Reopened
    }

    fn list(&self) -> Vec<Listing> {
        discovery::list()
    }

    fn flows(&self, spec: &DeviceSpec) -> Result<Vec<FlowOffer>, DeviceError> {
        picture_options(spec)?;
        Ok(camera_flows())
    }

    fn nodes(&self, spec: &DeviceSpec) -> Vec<NodeName> {
        let paths = match spec.target.starts_with('/') {
            // A node with a writer may not report that it takes pictures.
            true => vec![spec.target.clone().into()],
            false => discovery::sinks(&spec.target),
        };
        paths.into_iter().map(NodeName::File).collect()
    }

    fn open(&self, spec: &DeviceSpec, role: Role, like: Option<&Description>) -> Result<Opened, DeviceError> {
        let options = picture_options(spec)?;
        match role {
            Role::Device => open_camera(spec, discovery::camera(&spec.target)?, &options),
            Role::Application => open_node(spec, like, &options),
        }
    }

    fn reopen(&self, spec: &DeviceSpec, role: Role, known: &Description) -> Result<Opened, DeviceError> {
        match role {
            Role::Application => self.open(spec, role, Some(known)),
            Role::Device => {
                let properties = parse_properties(known)?.ok_or_else(|| DeviceError::Spec {
                    what: known.summary.clone(),
                    problem: "its description has no camera properties".into(),
                })?;
                let camera = discovery::camera_again(&spec.target, &properties)?;
                // The camera gets the known format when it is turned on: now, another program may be using it.
                let (description, descriptors) = (known.clone(), vec![camera.descriptor]);
                Ok(Opened { spec: spec.clone(), role, description, descriptors })
            }
        }
    }

    /// A thread of this process watches the readers of a node.
    fn can_hand_over(&self, opened: &Opened) -> bool {
        opened.role == Role::Device
    }

    fn partner(&self, opened: Opened) -> Result<Box<dyn Partner>, DeviceError> {
        let Opened { spec, role, description, descriptors } = opened;
        let (options, properties) = (picture_options(&spec)?, parse_properties(&description)?);
        let mut descriptors = descriptors.into_iter();
        let missing = |part: &str| DeviceError::Spec {
            what: description.summary.clone(),
            problem: format!("the broker passed no {part}"),
        };
        let node = descriptors.next().ok_or_else(|| missing("descriptor"))?;
        match role {
            Role::Device => {
                let properties = properties.ok_or_else(|| missing("properties"))?;
                let capability = sys::v4l2::capability(node.as_fd())
                    .map_err(|error| os(format!("querying {}", description.summary), error, None))?;
                // Another program writes to the buffers of a loopback node.
                let is_private = capability.driver != discovery::LOOPBACK;
                let name = capability.card;
                Ok(Box::new(Camera::new(name, node, properties, options, is_private)))
            }
            Role::Application => {
                let pictures = properties.as_ref().map(|properties| properties.geometry);
                let controls = properties.map(|properties| properties.controls).unwrap_or_default();
                let settings = initial_settings(&spec, &controls)?;
                let name = description.summary;
                let watcher = descriptors.next().map(WatcherClient::new).transpose();
                let watcher =
                    watcher.map_err(|error| os(format!("querying the readers of {name}"), error, None))?;
                let parts = Parts { name, node, pictures, options, controls, settings, watcher };
                Ok(Box::new(NodePartner::new(parts)))
            }
        }
    }
}

pub(crate) fn picture_options(spec: &DeviceSpec) -> Result<PictureOptions, DeviceError> {
    PictureOptions::parse(&spec.options).map_err(|problem| wrong(spec, problem))
}

fn wrong(spec: &DeviceSpec, problem: String) -> DeviceError {
    DeviceError::Spec { what: format!("`{}:{}`", spec.class, spec.target), problem }
}

pub(crate) fn initial_settings(
    spec: &DeviceSpec,
    controls: &[properties::CameraControl],
) -> Result<Vec<Setting>, DeviceError> {
    properties::settings(controls, spec.options.text("set"))
        .map_err(|problem| wrong(spec, format!("option `set`: {problem}")))
}

/// The flows of a camera. Also one without controls has both: the second turns it on and off.
fn camera_flows() -> Vec<FlowOffer> {
    let offer = |direction, format, class| FlowOffer { direction, format, class };
    vec![
        offer(FlowDirection::DeviceToApplication, Format::Video, FlowClass::Timely),
        offer(FlowDirection::ApplicationToDevice, Format::Controls, FlowClass::State),
    ]
}

fn open_camera(spec: &DeviceSpec, node: Node, options: &PictureOptions) -> Result<Opened, DeviceError> {
    let capability = &node.capability;
    let geometry = negotiate::camera(node.descriptor.as_fd(), &capability.card, options)?;
    // The pictures are set again when they are wanted. An error means that another program uses the camera.
    let _ = sys::v4l2::queue::release(node.descriptor.as_fd());
    let properties = Properties::query(node.descriptor.as_fd(), &capability.card, &capability.bus, geometry)
        .map_err(|error| os(format!("querying the controls of {}", capability.card), error, None))?;
    let description = Description {
        class: "v4l2".into(),
        summary: format!("{} ({})", properties.card, describe(&geometry)),
        flows: camera_flows(),
        application: "v4l2",
        properties: properties.to_bytes(),
    };
    Ok(Opened { spec: spec.clone(), role: Role::Device, description, descriptors: vec![node.descriptor] })
}

fn open_node(
    spec: &DeviceSpec,
    like: Option<&Description>,
    options: &PictureOptions,
) -> Result<Opened, DeviceError> {
    let properties = like.map(parse_properties).transpose()?.flatten();
    let controls = properties.as_ref().map_or(&[][..], |properties| &properties.controls);
    initial_settings(spec, controls)?;
    let node = discovery::sink(&spec.target)?;
    let mut format = String::new();
    if let Some(properties) = &properties {
        let accepted = negotiate::sink(node.descriptor.as_fd(), &properties.geometry, options)
            .map_err(|problem| wrong(spec, problem))?;
        format = format!(" ({})", describe(&accepted));
    }
    let is_loopback = node.is_loopback();
    let mut descriptors: Vec<OwnedFd> = vec![node.descriptor];
    let has_control_flow = like.is_some_and(|like| {
        like.flows.iter().any(|flow| flow.direction == FlowDirection::ApplicationToDevice)
    });
    if has_control_flow && spec.options.text("start") == "demand" && is_loopback {
        let watcher = watcher::start(&node.path, descriptors[0].as_fd())
            .map_err(|error| os(format!("watching {}", node.path.display()), error, None))?;
        descriptors.push(watcher);
    }
    let summary = format!("{} at {}{format}", node.capability.card, node.path.display());
    let description = Description {
        summary,
        ..like.cloned().unwrap_or_else(|| crate::plain::description(spec, crate::plain::video_flow(), "v4l2"))
    };
    Ok(Opened { spec: spec.clone(), role: Role::Application, description, descriptors })
}

/// Parses the properties of a camera. Returns `None` for another device.
pub(crate) fn parse_properties(description: &Description) -> Result<Option<Properties>, DeviceError> {
    if description.class != "v4l2" || description.properties.is_empty() {
        return Ok(None);
    }
    let wrong = |error: wire::WireError| DeviceError::Spec {
        what: "the description of a camera".into(),
        problem: error.to_string(),
    };
    Properties::parse(&description.properties).map(Some).map_err(wrong)
}

pub(crate) fn describe(geometry: &Geometry) -> String {
    let fourcc = geometry.pixels().fourcc();
    let (numerator, denominator) = geometry.rate();
    let rate = match numerator {
        0 => String::new(),
        _ => format!(" at {} Hz", (f64::from(numerator) / f64::from(denominator) * 1000.0).round() / 1000.0),
    };
    format!("{} {}x{}{rate}", String::from_utf8_lossy(&fourcc), geometry.width(), geometry.height())
}
