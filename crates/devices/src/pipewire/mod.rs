//! `pipewire:NAME`: a camera of another host as a video source of PipeWire, which programs choose like a camera of this host. It needs
//! neither root nor a kernel module.
//!
//! | module | purpose |
//! |---|---|
//! | `engine` | the picture thread in the broker, and its connection to the worker |
//! | `node` | the thread's streams of PipeWire; behind the feature `media` |
//! | `memory` | the pictures that thread and worker share |
//! | `partner` | the worker's side |
//! | `server` | whether PipeWire runs |

mod engine;
mod memory;
#[cfg(feature = "media")]
mod node;
mod partner;
pub(crate) mod server;
#[cfg(test)]
mod tests;

use crate::helper_thread;
use crate::plain::{self, os};
use crate::side::wrong_side;
use crate::v4l2::{self, CameraUser, PictureOptions, interval_of};
use contract::{
    Description, DeviceClass, DeviceError, DeviceSpec, FlowDirection, Format, ModuleEntry, Opened,
    OptionKind, OptionSpec, Partner, Role, local,
};
use engine::ThreadEnd;
use memory::Pictures;
use partner::{CameraPartner, Parts};
use std::os::fd::{AsFd, OwnedFd};
use wire::formats::video::{Geometry, PixelFormat};

/// The class `pipewire`, an application side of a camera.
#[derive(Debug)]
pub struct PipeWire;

/// Name of the class.
pub(crate) const CLASS: &str = "pipewire";
/// The longest name of a node, in bytes.
const NAME_BYTES_MAX: usize = 128;

const OPTIONS: &[OptionSpec] = &[
    local(
        "size",
        OptionKind::OrAuto(&OptionKind::Text { max: 11 }),
        "auto",
        "WIDTHxHEIGHT for programs; auto: as the pictures are",
    ),
    local(
        "rate",
        OptionKind::OrAuto(&OptionKind::Number { min: 0.001, max: 10_000.0 }),
        "auto",
        "frames per second that programs are told; auto: as the camera says",
    ),
    local(
        "pixels",
        OptionKind::OrAuto(&OptionKind::Choice(&["YUYV", "YU12", "422P", "RGB3", "XR24", "GREY", "MJPG"])),
        "auto",
        "pixel format for programs; auto: as the pictures are",
    ),
    local(
        "set",
        OptionKind::Text { max: 4096 },
        "",
        "initial settings of the camera: brightness=128, or (brightness=128, hue=0)",
    ),
    local(
        "start",
        OptionKind::Choice(&["demand", "always"]),
        "demand",
        "the camera is on while a program takes its pictures (demand), or always",
    ),
];

/// The node that a picture thread makes.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Plan {
    /// Its name for programs.
    name: String,
}

/// Returns the format of the node for these pictures.
fn target(pictures: &Geometry, options: &PictureOptions) -> Result<Geometry, String> {
    let pixels = options.pixels.unwrap_or(match pictures.pixels() {
        // Few programs take it.
        PixelFormat::I444 => PixelFormat::Yuyv,
        pixels => pixels,
    });
    if pixels != pictures.pixels() && [pixels, pictures.pixels()].contains(&PixelFormat::Mjpeg) {
        return Err("`MJPG` pictures are neither made nor converted here: omit `pixels`, or set it as the camera's option".into());
    }
    let (width, height) = options.size.unwrap_or((pictures.width(), pictures.height()));
    if pixels == PixelFormat::Mjpeg && (width, height) != (pictures.width(), pictures.height()) {
        return Err(
            "`MJPG` pictures are not resized here: omit `size`, or set it as the camera's option".into()
        );
    }
    // Most programs support only even sides for pixels that share Cb and Cr.
    let (across, down) = match pixels {
        PixelFormat::Yuyv | PixelFormat::I422 => (2, 1),
        PixelFormat::I420 => (2, 2),
        _ => (1, 1),
    };
    let (width, height) = (width.next_multiple_of(across), height.next_multiple_of(down));
    let (numerator, denominator) = match options.rate_hz.map(interval_of) {
        Some((numerator, denominator)) => (denominator, numerator),
        None => pictures.rate(),
    };
    let geometry = Geometry::new(pixels, width, height).map_err(|error| error.to_string())?;
    Ok(geometry.with_rate(numerator, denominator))
}

/// Returns the name of the node for programs.
fn name(spec: &DeviceSpec, card: Option<&str>) -> Result<String, DeviceError> {
    let name = match spec.target.as_str() {
        "" => card.unwrap_or_default(),
        target => target,
    };
    let name: String = name.chars().filter(|one| !one.is_control()).collect();
    match name.len() {
        0 => Ok("Outboard".into()),
        1..=NAME_BYTES_MAX => Ok(name),
        _ => Err(wrong(spec, format!("a name has at most {NAME_BYTES_MAX} bytes"))),
    }
}

fn wrong(spec: &DeviceSpec, problem: String) -> DeviceError {
    DeviceError::Spec { what: format!("`{CLASS}:{}`", spec.target), problem }
}

/// Starts the picture thread of a plan.
#[cfg(feature = "media")]
fn start(plan: Plan, end: ThreadEnd) -> Result<(), DeviceError> {
    let advice = "is PipeWire running? `pw-cli info 0`";
    helper_thread::start("camera", advice, move |started| node::run(&plan, &end, started))
}

/// Refuses: this program has no library for PipeWire.
#[cfg(not(feature = "media"))]
fn start(_: Plan, _: ThreadEnd) -> Result<(), DeviceError> {
    Err(DeviceError::Spec {
        what: CLASS.into(),
        problem: "this program was built without PipeWire, which needs a library of the system: install the package for \
                  Debian or Ubuntu, or build with `cargo build --features media`"
            .into(),
    })
}

fn has_controls(description: &Description) -> bool {
    description.flows.iter().any(|flow| flow.direction == FlowDirection::ApplicationToDevice)
}

impl DeviceClass for PipeWire {
    fn entry(&self) -> ModuleEntry {
        ModuleEntry {
            name: CLASS,
            summary: "as an application, a camera that programs find through PipeWire; without root and kernel module",
            doc: include_str!("doc.md"),
            options: OPTIONS,
        }
    }

    fn target(&self) -> &'static str {
        "[NAME]"
    }

    fn has_role(&self, role: Role) -> bool {
        role == Role::Application
    }

    fn application(&self) -> &'static str {
        CLASS
    }

    fn takes(&self) -> Option<Format> {
        Some(Format::Video)
    }

    fn open(&self, spec: &DeviceSpec, role: Role, like: Option<&Description>) -> Result<Opened, DeviceError> {
        if role == Role::Device {
            return Err(wrong_side(CLASS, role));
        }
        let options = v4l2::picture_options(spec)?;
        let properties = like.map(v4l2::parse_properties).transpose()?.flatten();
        let controls = properties.as_ref().map_or(&[][..], |properties| &properties.controls);
        v4l2::initial_settings(spec, controls)?;
        let name = name(spec, properties.as_ref().map(|properties| properties.card.as_str()))?;
        let failed = |error| os("making the memory of a video source".into(), error, None);
        let (end, descriptors) = engine::ends().map_err(failed)?;
        let mut format = String::new();
        if let Some(properties) = &properties {
            let geometry = target(&properties.geometry, &options).map_err(|problem| wrong(spec, problem))?;
            end.memory.set_geometry(geometry);
            format = format!(" ({})", v4l2::describe(&geometry));
        }
        let summary = format!("{name}, a video source of PipeWire{format}");
        start(Plan { name }, end)?;
        let description = Description {
            summary,
            ..like.cloned().unwrap_or_else(|| plain::description(spec, plain::video_flow(), CLASS))
        };
        Ok(Opened { spec: spec.clone(), role, description, descriptors })
    }

    /// A thread of this process has the node.
    fn can_hand_over(&self, _: &Opened) -> bool {
        false
    }

    fn release(&self, opened: &Opened) {
        if let Some(control) = opened.descriptors.first() {
            helper_thread::release(control.as_fd());
        }
    }

    fn revoke(&self, opened: &Opened) {
        self.release(opened);
    }

    fn partner(&self, opened: Opened) -> Result<Box<dyn Partner>, DeviceError> {
        let (spec, description) = (opened.spec.clone(), opened.description.clone());
        let [control, memory]: [OwnedFd; 2] = plain::descriptors(opened)?;
        let controls = v4l2::parse_properties(&description)?.map(|properties| properties.controls);
        let controls = controls.unwrap_or_default();
        let settings = v4l2::initial_settings(&spec, &controls)?;
        let memory = Pictures::map(memory)
            .map_err(|error| os("mapping the memory of a video source".into(), error, None))?;
        let has_controls = has_controls(&description);
        let is_on_demand = has_controls && spec.options.text("start") == "demand";
        Ok(Box::new(CameraPartner::new(Parts {
            name: description.summary,
            control,
            memory,
            options: v4l2::picture_options(&spec)?,
            user: CameraUser::new(controls, &settings),
            has_controls,
            is_on_demand,
        })))
    }
}
