//! X11: the screen of a display as a device (`x11`), a window on one as the application's side (`window`).

mod application;
mod capture;
mod client;
mod clipboard;
mod device;
mod dial;
mod display;
mod keyboard;
mod layout;
mod pointer;
mod portion;
mod slots;
#[cfg(test)]
mod tests;
mod window;

use crate::plain::{self, os};
use application::WindowPartner;
use contract::{
    Description, DeviceClass, DeviceError, DeviceSpec, FlowClass, FlowDirection, FlowOffer, Format, Listing,
    Opened, OptionKind, OptionSpec, Partner, PartnerError, Role, Scope,
};
use device::DevicePartner;
use display::{PATIENCE, Segment};
use std::io;
use std::time::Duration;

/// The screen of a display.
#[derive(Debug)]
pub struct X11;

/// A window on a display.
#[derive(Debug)]
pub struct Window;

static X11_OPTIONS: [OptionSpec; 5] = [
    OptionSpec {
        name: "rate",
        kind: OptionKind::Number { min: 0.0, max: 1000.0 },
        default: "60",
        scope: Scope::Local,
        doc: "pictures a second, at most; 0: as many as are taken",
    },
    OptionSpec {
        name: "damage",
        kind: OptionKind::Choice(&["true", "whole", "false"]),
        default: "true",
        scope: Scope::Local,
        doc: "true: what changed; whole: all of it, when something changed; false: all of it, at the rate",
    },
    OptionSpec {
        name: "delay",
        kind: OptionKind::Duration { min: Duration::ZERO, max: Duration::from_secs(1) },
        default: "2ms",
        scope: Scope::Local,
        doc: "time from the first change to the picture, so that what is drawn together is seen together",
    },
    OptionSpec {
        name: "portion",
        kind: OptionKind::Duration { min: Duration::ZERO, max: Duration::from_secs(10) },
        default: "4ms",
        scope: Scope::Local,
        doc: "of what changed, a message tells what is taken in this time, the rest follows; 0: all of it at once",
    },
    OptionSpec {
        name: "cursor",
        kind: OptionKind::Flag,
        default: "true",
        scope: Scope::Local,
        doc: "tell the pointer's shape, to be drawn at the viewer's side",
    },
];

/// How long a display may take to be listed.
const LIST_PATIENCE: Duration = Duration::from_millis(300);

/// Most characters of a window's title.
const TITLE_MAX: usize = 80;

/// The flows of a screen: pictures to the application, and back what somebody does there. Both say where
/// things stand, so that what is late is made up for by a whole picture, and by keys that are let go.
fn flows() -> Vec<FlowOffer> {
    let flow = |direction, format| FlowOffer { direction, format, class: FlowClass::State };
    vec![
        flow(FlowDirection::DeviceToApplication, Format::Video),
        flow(FlowDirection::ApplicationToDevice, Format::Viewer),
    ]
}

/// What happened to the connection with the server of display `name`.
fn failed(name: &str, error: io::Error) -> PartnerError {
    use io::ErrorKind as Kind;
    match error.kind() {
        Kind::UnexpectedEof | Kind::ConnectionReset | Kind::BrokenPipe => {
            PartnerError::Gone(format!("the X server at {name}"))
        }
        Kind::InvalidData => PartnerError::Peer(error.to_string()),
        _ => PartnerError::os(format!("speaking with the X server at {name}"), error),
    }
}

/// The same, before there is a partner.
fn io_error(name: &str) -> impl Fn(io::Error) -> DeviceError + use<> {
    let operation = format!("speaking with the X server at {name}");
    move |error| os(operation.clone(), error, None)
}

/// Connects to the display that a spec names; its real name becomes the target.
fn open(spec: &DeviceSpec, role: Role, summary: Option<String>) -> Result<Opened, DeviceError> {
    let target = dial::name(&spec.target)?;
    let spec = DeviceSpec { target, ..spec.clone() };
    let socket = dial::dial(&spec.target, PATIENCE)?;
    let memory = Segment::memory().map_err(|error| os("making shared memory".into(), error, None))?;
    let mut description = plain::description(&spec, flows(), "window");
    description.summary = summary.unwrap_or(description.summary);
    Ok(Opened { spec, role, description, descriptors: vec![socket, memory] })
}

/// A display of this host, and whether we may use it.
fn listing(display: String) -> Listing {
    let problem = dial::dial(&display, LIST_PATIENCE).err().map(|error| error.to_string());
    Listing {
        spec: format!("x11:{display}"),
        summary: format!("the screen of display {display}"),
        problem,
        ours: false,
    }
}

impl DeviceClass for X11 {
    fn name(&self) -> &'static str {
        "x11"
    }

    fn summary(&self) -> &'static str {
        "the screen of an X11 display, its keyboard and mouse"
    }

    fn doc(&self) -> &'static str {
        include_str!("x11.md")
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

    fn options(&self) -> &'static [OptionSpec] {
        &X11_OPTIONS
    }

    fn pipeline(&self, direction: FlowDirection) -> &'static str {
        plain::screen_pipeline(direction)
    }

    fn list(&self) -> Vec<Listing> {
        dial::local_displays().into_iter().map(listing).collect()
    }

    fn open(&self, spec: &DeviceSpec, role: Role, _: Option<&Description>) -> Result<Opened, DeviceError> {
        open(spec, role, None)
    }

    fn partner(&self, opened: Opened) -> Result<Box<dyn Partner>, DeviceError> {
        let (name, options) = (opened.spec.target.clone(), opened.spec.options.clone());
        let screen = dial::screen(&name)?;
        Ok(Box::new(DevicePartner::new(name, screen, plain::descriptors(opened)?, &options)?))
    }
}

impl DeviceClass for Window {
    fn name(&self) -> &'static str {
        "window"
    }

    fn summary(&self) -> &'static str {
        "a window on an X11 display that shows pictures and takes keys and the mouse"
    }

    fn doc(&self) -> &'static str {
        include_str!("window.md")
    }

    fn target(&self) -> &'static str {
        "[DISPLAY]"
    }

    fn has_role(&self, role: Role) -> bool {
        role == Role::Application
    }

    fn options(&self) -> &'static [OptionSpec] {
        &[]
    }

    fn open(&self, spec: &DeviceSpec, role: Role, like: Option<&Description>) -> Result<Opened, DeviceError> {
        // A stranger's words, on our screen: no more than a line of plain letters.
        let title = like.map_or("Outboard".into(), |like| {
            like.summary.chars().filter(|letter| matches!(letter, ' '..='~')).take(TITLE_MAX).collect()
        });
        open(spec, role, Some(title))
    }

    fn partner(&self, opened: Opened) -> Result<Box<dyn Partner>, DeviceError> {
        let (name, title) = (opened.spec.target.clone(), opened.description.summary.clone());
        let screen = dial::screen(&name)?;
        Ok(Box::new(WindowPartner::new(name, title, screen, plain::descriptors(opened)?)?))
    }
}
