//! X11: the screen of a display as a device (`x11`), and a window on a display as the application side (`window`).
//!
//! Both partners are X11 clients without Xlib. `client` sends requests and receives packets; `display` prepares
//! extensions and shared memory. `device` combines `capture` (pictures) and the keyboard of `crate::keys` (input); `application` combines
//! `window` (pictures, `sizes`) and `layout` (input, `levels`). Both have a `clipboard`, which reads texts with `selection`.

mod application;
mod bindings;
mod capture;
mod client;
mod clipboard;
#[cfg(test)]
mod clipboard_tests;
mod connect;
mod cursor;
mod device;
mod display;
mod errors;
mod exchange;
mod image;
#[cfg(test)]
mod keys_tests;
mod layout;
mod levels;
mod locks;
mod placement;
mod pointer;
mod scaler;
mod selection;
mod sizes;
mod slots;
#[cfg(test)]
pub(crate) mod tests;
mod window;
#[cfg(test)]
mod window_tests;
mod xwayland;

use crate::clipboard as shared;
use crate::plain::{self, os};
use application::WindowPartner;
use contract::{
    Description, DeviceClass, DeviceError, DeviceSpec, FlowDirection, FlowOffer, Format, Kind, Listing,
    ModuleEntry, Opened, OptionKind, OptionSpec, Partner, Role, local,
};
use device::DevicePartner;
use display::{SETUP_TIMEOUT, Segment};
use errors::device_error;
use std::io::ErrorKind;
use std::time::{Duration, Instant};
use xwayland::{ScreenKind, screen_kind};

/// The screen of a display.
#[derive(Debug)]
pub struct X11;

/// A window on a display.
#[derive(Debug)]
pub struct Window;

static X11_OPTIONS: [OptionSpec; 7] = [
    local(
        "rate",
        OptionKind::Number { min: 0.0, max: 1000.0 },
        "60",
        "most pictures per second; 0: as many as the path takes",
    ),
    local(
        "damage",
        OptionKind::Choice(&["true", "whole", "false"]),
        "true",
        "true: damaged parts; whole: whole pictures, when something changed; false: whole pictures, at the rate",
    ),
    local(
        "delay",
        OptionKind::Duration { min: Duration::ZERO, max: Duration::from_secs(1) },
        "2ms",
        "time from the first change to its picture; later changes in this time are in the same picture",
    ),
    local(
        "portion",
        OptionKind::Duration { min: Duration::ZERO, max: Duration::from_secs(10) },
        "4ms",
        "a message has as many pixels as the path takes in this time, the rest follows; 0: no limit",
    ),
    local("cursor", OptionKind::Flag, "true", "send the pointer shape, for the viewer to draw"),
    shared::OPTION,
    plain::VIEW,
];

static WINDOW_OPTIONS: [OptionSpec; 1] = [shared::OPTION];

/// The time limit for connecting to a display that is listed.
const LIST_TIMEOUT: Duration = Duration::from_millis(300);

/// The reason why the screen of a rootless Xwayland is refused, and the way out.
const ROOTLESS: &str =
    "this is Xwayland, which has the windows of X11 programs and no desktop: share the desktop as `wayland`";

/// The text behind the summary of an Xwayland that may be rootless.
const MAYBE_ROOTLESS: &str = " (Xwayland; if it stays black, share `wayland`)";

/// The most characters of a window's title.
const TITLE_MAX: usize = 80;

/// Connects to the display in a spec. An empty target is replaced by the name in the environment.
fn open(spec: &DeviceSpec, role: Role, summary: Option<String>) -> Result<Opened, DeviceError> {
    let target = connect::display_name(spec)?;
    let spec = DeviceSpec { target, ..spec.clone() };
    let socket = connect::connect(&spec.target, SETUP_TIMEOUT)?;
    let memory = Segment::memory().map_err(|error| os("making shared memory".into(), error, None))?;
    let is_view_only = role == Role::Device && plain::is_view_only(&spec);
    let mut description = plain::description(&spec, plain::screen_flows(is_view_only), "window");
    description.summary = summary.unwrap_or(description.summary) + plain::view_note(is_view_only);
    Ok(Opened { spec, role, description, descriptors: vec![socket, memory] })
}

/// Connects again: a server counts the requests of a connection, and only the exited worker knew the count.
fn renew(opened: &mut Opened) -> Result<(), DeviceError> {
    opened.descriptors = open(&opened.spec, opened.role, None)?.descriptors;
    Ok(())
}

/// Lists a display of this host; `None` for the socket of a server that has ended. The problem says why a connection
/// fails, or why the screen is black.
fn listing(display: String) -> Option<Listing> {
    let connected = connect::connect(&display, LIST_TIMEOUT);
    let is_dead = |error: &DeviceError| matches!(error, DeviceError::Os { error, .. } if matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::NotFound));
    if connected.as_ref().is_err_and(is_dead) {
        return None;
    }
    // A server that is slow to tell may have a desktop.
    let kind = connected
        .map(|socket| screen_kind(&socket, Instant::now() + LIST_TIMEOUT).unwrap_or(ScreenKind::Desktop));
    let note = if matches!(kind, Ok(ScreenKind::Unknown)) { MAYBE_ROOTLESS } else { "" };
    let problem = match kind {
        Ok(ScreenKind::Rootless) => Some(ROOTLESS.into()),
        Ok(_) => None,
        Err(error) => Some(error.to_string()),
    };
    Some(Listing {
        spec: format!("x11:{display}"),
        summary: format!("the screen of display {display}{note}"),
        problem,
        ours: false,
    })
}

impl DeviceClass for X11 {
    fn entry(&self) -> ModuleEntry {
        ModuleEntry {
            name: "x11",
            summary: "the screen, keyboard and mouse of an X11 display",
            doc: include_str!("x11.md"),
            options: &X11_OPTIONS,
        }
    }

    fn target(&self) -> &'static str {
        "[DISPLAY]"
    }

    fn has_role(&self, role: Role) -> bool {
        role == Role::Device
    }

    fn application(&self) -> &'static str {
        "window"
    }

    fn kind(&self, _described: &Description) -> Result<Kind, DeviceError> {
        Ok(Kind::Screen)
    }

    fn pipeline(&self, direction: FlowDirection) -> &'static str {
        plain::screen_pipeline(direction)
    }

    fn list(&self) -> Vec<Listing> {
        connect::local_displays().into_iter().filter_map(listing).collect()
    }

    fn flows(&self, spec: &DeviceSpec) -> Result<Vec<FlowOffer>, DeviceError> {
        Ok(plain::screen_flows(plain::is_view_only(spec)))
    }

    fn open(&self, spec: &DeviceSpec, role: Role, _: Option<&Description>) -> Result<Opened, DeviceError> {
        let display = connect::display_name(spec)?;
        // The worker reads its own connection from the start. This one stays until then: many a server resets when its last
        // client leaves.
        let socket = connect::connect(&display, SETUP_TIMEOUT)?;
        let kind = screen_kind(&socket, Instant::now() + SETUP_TIMEOUT).map_err(device_error(&display))?;
        match kind {
            ScreenKind::Desktop => open(spec, role, None),
            ScreenKind::Unknown => open(spec, role, Some(format!("x11 {display}{MAYBE_ROOTLESS}"))),
            ScreenKind::Rootless => {
                Err(DeviceError::Spec { what: format!("`x11:{display}`"), problem: ROOTLESS.into() })
            }
        }
    }

    fn renew(&self, opened: &mut Opened) -> Result<(), DeviceError> {
        renew(opened)
    }

    fn partner(&self, opened: Opened) -> Result<Box<dyn Partner>, DeviceError> {
        let spec = opened.spec.clone();
        let screen = connect::screen_number(&spec.target)?;
        Ok(Box::new(DevicePartner::new(&spec, screen, plain::descriptors(opened)?)?))
    }
}

impl DeviceClass for Window {
    fn entry(&self) -> ModuleEntry {
        ModuleEntry {
            name: "window",
            summary: "a window on an X11 display for pictures, keyboard and mouse",
            doc: include_str!("window.md"),
            options: &WINDOW_OPTIONS,
        }
    }

    fn target(&self) -> &'static str {
        "[DISPLAY]"
    }

    fn has_role(&self, role: Role) -> bool {
        role == Role::Application
    }

    fn takes(&self) -> Option<Format> {
        Some(Format::Video)
    }

    fn open(&self, spec: &DeviceSpec, role: Role, like: Option<&Description>) -> Result<Opened, DeviceError> {
        // The peer is not trusted with this screen: the title is one short line of printable ASCII.
        let title = like.map_or("Outboard".into(), |like| {
            like.summary.chars().filter(|letter| matches!(letter, ' '..='~')).take(TITLE_MAX).collect()
        });
        open(spec, role, Some(title))
    }

    fn renew(&self, opened: &mut Opened) -> Result<(), DeviceError> {
        renew(opened)
    }

    fn partner(&self, opened: Opened) -> Result<Box<dyn Partner>, DeviceError> {
        let (spec, title) = (opened.spec.clone(), opened.description.summary.clone());
        let screen = connect::screen_number(&spec.target)?;
        Ok(Box::new(WindowPartner::new(&spec, title, screen, plain::descriptors(opened)?)?))
    }
}
