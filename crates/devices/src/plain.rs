//! What the classes of plain bytes share: their flows, their description, their errors.

use contract::{Description, DeviceError, DeviceSpec, FlowClass, FlowDirection, FlowOffer, Format, Opened};
use std::os::fd::OwnedFd;

fn flow(direction: FlowDirection) -> FlowOffer {
    FlowOffer { direction, format: Format::Bytes, class: FlowClass::Reliable }
}

/// The one flow of what is only read or only written.
pub(crate) fn forward_flow() -> Vec<FlowOffer> {
    vec![flow(FlowDirection::DeviceToApplication)]
}

/// The one flow of pictures that are only read or only written.
pub(crate) fn video_flow() -> Vec<FlowOffer> {
    forward_flow().into_iter().map(|flow| FlowOffer { format: Format::Video, ..flow }).collect()
}

/// What is good for the pictures of a screen that adds up by itself what changes: they are compressed as far as that
/// pays, and none is taken that the network has no room for.
pub(crate) fn screen_pipeline(direction: FlowDirection) -> &'static str {
    match direction {
        FlowDirection::DeviceToApplication => "compress(level=auto) | latest(held_max=0)",
        FlowDirection::ApplicationToDevice => "",
    }
}

/// The flows of what is read and written.
pub(crate) fn both_flows() -> Vec<FlowOffer> {
    vec![flow(FlowDirection::DeviceToApplication), flow(FlowDirection::ApplicationToDevice)]
}

/// What `flows` there are, and no properties.
pub(crate) fn description(
    spec: &DeviceSpec,
    flows: Vec<FlowOffer>,
    application: &'static str,
) -> Description {
    let separator = if spec.target.is_empty() { "" } else { " " };
    let summary = format!("{}{separator}{}", spec.class, spec.target);
    Description { class: spec.class.clone(), summary, flows, application, properties: Vec::new() }
}

/// An error of the system, with what was tried.
pub(crate) fn os(operation: String, error: impl Into<std::io::Error>, advice: Option<&str>) -> DeviceError {
    DeviceError::Os { operation, error: error.into(), advice: advice.map(String::from) }
}

/// The descriptors of what was opened, as many as the class hands over.
pub(crate) fn descriptors<const N: usize>(opened: Opened) -> Result<[OwnedFd; N], DeviceError> {
    let what = opened.spec.class;
    <[OwnedFd; N]>::try_from(opened.descriptors).map_err(|descriptors| DeviceError::Spec {
        what,
        problem: format!("the broker handed over {} descriptors instead of {N}", descriptors.len()),
    })
}
