//! Helpers of the simple classes: flows, descriptions, errors.

use crate::clipboard;
use contract::{
    Description, DeviceError, DeviceSpec, FlowClass, FlowDirection, FlowOffer, Format, NodeName, Opened,
    OptionKind, OptionSpec, local,
};
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;

fn flow(direction: FlowDirection) -> FlowOffer {
    FlowOffer { direction, format: Format::Bytes, class: FlowClass::Reliable }
}

/// Returns the single flow of a class that is only read or only written.
pub(crate) fn forward_flow() -> Vec<FlowOffer> {
    vec![flow(FlowDirection::DeviceToApplication)]
}

/// Returns the single flow of a video class.
pub(crate) fn video_flow() -> Vec<FlowOffer> {
    forward_flow().into_iter().map(|flow| FlowOffer { format: Format::Video, ..flow }).collect()
}

/// The option of a screen to take no input.
pub(crate) const VIEW: OptionSpec = local(
    "view",
    OptionKind::Choice(&["full", "only"]),
    "full",
    "as a device: `only` shares pictures, and refuses the viewer's keyboard, pointer and clipboard",
);

/// Returns true if the screen shares pictures only ([`VIEW`]).
pub(crate) fn is_view_only(spec: &DeviceSpec) -> bool {
    spec.options.text(VIEW.name) == "only"
}

/// Returns true if the texts on the screen's clipboard are shared.
pub(crate) fn has_clipboard(spec: &DeviceSpec) -> bool {
    spec.options.flag(clipboard::OPTION.name) && !is_view_only(spec)
}

/// Returns the flows of a screen: pictures to the application, and the viewer's input to the device unless it is only
/// viewed. Both have class state: after an interruption a whole picture and the release of all keys restore the state.
pub(crate) fn screen_flows(is_view_only: bool) -> Vec<FlowOffer> {
    let flow = |direction, format| FlowOffer { direction, format, class: FlowClass::State };
    let pictures = flow(FlowDirection::DeviceToApplication, Format::Video);
    let input = flow(FlowDirection::ApplicationToDevice, Format::Viewer);
    std::iter::once(pictures).chain((!is_view_only).then_some(input)).collect()
}

/// Returns the text behind the summary of a screen that is only viewed.
pub(crate) fn view_note(is_view_only: bool) -> &'static str {
    if is_view_only { " (view only)" } else { "" }
}

/// The default pipeline for the pictures of a screen: exact where it stands still, VP8 where it moves while the network is too
/// slow.
#[cfg(feature = "media")]
const SCREEN_PIPELINE: &str = "screen";

/// The same without the codec, for a screen that accumulates its changes itself: pictures are compressed while that pays, and
/// none is captured before the network has room for it.
#[cfg(not(feature = "media"))]
const SCREEN_PIPELINE: &str = "compress(level=auto) | latest(held_max=0)";

/// Returns the default pipeline for a screen.
pub(crate) fn screen_pipeline(direction: FlowDirection) -> &'static str {
    match direction {
        FlowDirection::DeviceToApplication => SCREEN_PIPELINE,
        FlowDirection::ApplicationToDevice => "",
    }
}

/// Returns the flows of a class that is both read and written.
pub(crate) fn both_flows() -> Vec<FlowOffer> {
    vec![flow(FlowDirection::DeviceToApplication), flow(FlowDirection::ApplicationToDevice)]
}

/// Returns a description with these flows and without properties.
pub(crate) fn description(
    spec: &DeviceSpec,
    flows: Vec<FlowOffer>,
    application: &'static str,
) -> Description {
    let separator = if spec.target.is_empty() { "" } else { " " };
    let summary = format!("{}{separator}{}", spec.class, spec.target);
    Description { class: spec.class.clone(), summary, flows, application, properties: Vec::new() }
}

/// Returns the name of a file that is written. Several processes can use a terminal or `/dev/null` at the same time, and so can
/// those that write to a connection.
pub(crate) fn file_nodes(path: &str) -> Vec<NodeName> {
    let is_device = std::fs::metadata(path).is_ok_and(|found| found.file_type().is_char_device());
    (!path.is_empty() && !is_device).then(|| NodeName::File(path.into())).into_iter().collect()
}

/// Returns an error of the system with the failed operation.
pub(crate) fn os(operation: String, error: impl Into<std::io::Error>, advice: Option<&str>) -> DeviceError {
    DeviceError::Os { operation, error: error.into(), advice: advice.map(String::from) }
}

/// Advice for `EPERM` of a device, which the cgroup of a service or container causes. systemd looks up the drivers at the start.
pub(crate) const DENIED_BY_UNIT: &str = "the unit of the service, or the container, does not allow this device: write `DeviceAllow=` in `systemctl edit \
     outboard`; for a driver that was loaded after the start, `systemctl restart outboard` is enough";

/// Advice for a node with which devices are made, such as `/dev/uinput`, if the user may not open it.
pub(crate) const DENIED_NODE: &str = "`outboard doctor` names the commands that permit it";

/// Returns true if this error of a connection means that it is lost, and that another one may be made.
pub(crate) fn is_lost(error: ErrorKind) -> bool {
    use ErrorKind as Kind;
    matches!(
        error,
        Kind::ConnectionReset
            | Kind::ConnectionAborted
            | Kind::BrokenPipe
            | Kind::TimedOut
            | Kind::HostUnreachable
            | Kind::NetworkUnreachable
            | Kind::NetworkDown
    )
}

/// Describes the failure of a connection to a server. The advice fits a connection that was tried, not a wrong address.
pub(crate) fn unreached(operation: String, error: std::io::Error, advice: &str) -> DeviceError {
    let was_tried = error.raw_os_error().is_some() || error.kind() == std::io::ErrorKind::TimedOut;
    os(operation, error, was_tried.then_some(advice))
}

/// Returns the descriptors of an opened device. Their number depends on the class.
pub(crate) fn descriptors<const N: usize>(opened: Opened) -> Result<[OwnedFd; N], DeviceError> {
    let class = opened.spec.class;
    <[OwnedFd; N]>::try_from(opened.descriptors).map_err(|descriptors| DeviceError::Spec {
        what: class,
        problem: format!("the broker passed {} descriptors instead of {N}", descriptors.len()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    #[test]
    fn a_lost_connection_may_be_made_again() {
        let lost = |error: Errno| is_lost(std::io::Error::from(error).kind());
        for error in [
            Errno::CONNRESET,
            Errno::CONNABORTED,
            Errno::PIPE,
            Errno::TIMEDOUT,
            Errno::HOSTUNREACH,
            Errno::NETUNREACH,
            Errno::NETDOWN,
        ] {
            assert!(lost(error), "{error}");
        }
        for error in [Errno::IO, Errno::NOSPC, Errno::BADF, Errno::AGAIN, Errno::INVAL] {
            assert!(!lost(error), "{error}");
        }
    }
}
