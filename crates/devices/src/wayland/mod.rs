//! `wayland:DISPLAY`: an output of a Wayland desktop, with its keyboard and pointer.
//!
//! There are two ways to a desktop (`way`): the protocols of wlroots (`wlroots`), and the portal (`portal`), which GNOME and KDE
//! have. `device` combines a way with the `screen`, which keeps the `picture` and makes messages of its changes.
//!
//! By the protocols of wlroots, the partner is a Wayland client without libwayland. `client` sends requests and receives events
//! of the interfaces in `protocol`; `desktop` finds the globals and the outputs; `capture` requests frames, and `input` types
//! with the `keymap`. The broker connects and asks for the offers of the compositor; the worker gets a connection of its own.
//! By the portal, threads of the broker talk to the bus and to PipeWire.

mod capture;
mod client;
mod connect;
mod desktop;
mod device;
pub mod fuzz;
mod input;
mod keymap;
mod picture;
#[cfg_attr(not(feature = "media"), allow(dead_code))]
mod portal;
mod protocol;
mod screen;
#[cfg(test)]
mod tests;
mod way;
mod wlroots;

use crate::helper_thread;
use crate::plain::{self, os};
use contract::{
    Description, DeviceClass, DeviceError, DeviceSpec, FlowDirection, FlowOffer, Kind, Listing, ModuleEntry,
    Opened, OptionKind, OptionSpec, Partner, Role, local,
};
use desktop::{Desktop, SETUP_TIMEOUT};
use device::DevicePartner;
use portal::Portal;
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};
use wire::{Reader, WireError, Writer};
use wlroots::Wlroots;

/// The screen of a Wayland desktop.
#[derive(Debug)]
pub struct Wayland;

/// The most bytes of the name of an output.
const NAME_BYTES_MAX: usize = 256;

/// The way to a desktop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Means {
    /// The protocols of wlroots.
    Wlroots,
    /// The desktop's portal.
    Portal,
}

static OPTIONS: [OptionSpec; 7] = [
    local(
        "by",
        OptionKind::Choice(&["auto", "wlroots", "portal"]),
        "auto",
        "the way to the desktop: the protocols of wlroots, or its portal, which asks its user; auto: the first one that it has",
    ),
    local(
        "output",
        OptionKind::Text { max: NAME_BYTES_MAX },
        "",
        "the name of the output to share, such as `HDMI-A-1`; empty: the first one; by the portal its user chooses",
    ),
    local(
        "rate",
        OptionKind::Number { min: 0.0, max: 1000.0 },
        "60",
        "most pictures per second; 0: as many as the path takes",
    ),
    local(
        "damage",
        OptionKind::Choice(&["true", "whole"]),
        "true",
        "true: changed parts; whole: whole pictures, when something changed",
    ),
    local(
        "portion",
        OptionKind::Duration { min: Duration::ZERO, max: Duration::from_secs(10) },
        "4ms",
        "a message has as many pixels as the path takes in this time, the rest follows; 0: no limit",
    ),
    local("cursor", OptionKind::Flag, "false", "draw the pointer of this desktop into the pictures"),
    plain::VIEW,
];

/// The time limit for asking a desktop that is listed.
const LIST_TIMEOUT: Duration = Duration::from_millis(300);

/// Compositors with the protocols of wlroots, for texts of advice.
const WITH_PROTOCOLS: &str = "sway, labwc, river, Wayfire and Hyprland can";

/// Connects to a desktop and asks for its offers.
fn query(display: &str, timeout: Duration) -> Result<Desktop, DeviceError> {
    let socket = connect::connect(display)?;
    Desktop::query(socket, Instant::now() + timeout)
        .map_err(|error| os(format!("communicating with the compositor at {display}"), error, None))
}

/// Returns the interface that the protocols of wlroots would need and this compositor lacks.
fn lacks(desktop: &Desktop, is_view_only: bool) -> Option<&'static str> {
    desktop.missing_for_pictures().or_else(|| desktop.missing_for_input().filter(|_| !is_view_only))
}

/// Returns the reason why a desktop cannot be shared, and the way out.
fn problem(missing: &str, of_portal: &str) -> String {
    format!(
        "the compositor lacks {missing} ({WITH_PROTOCOLS}), and the portal cannot help: {of_portal}. Or run a VNC server of this \
         desktop (krfb on KDE; gnome-remote-desktop on GNOME, after `gsettings set org.gnome.desktop.remote-desktop.vnc \
         encryption \"['none']\"`), and share it as `rfb:localhost:5900`"
    )
}

/// Returns the way to the desktop: the option's, or the first one that the desktop has. The second is its compositor, if that
/// was asked.
fn means(spec: &DeviceSpec) -> Result<(Means, Option<Desktop>), DeviceError> {
    let is_view_only = plain::is_view_only(spec);
    let by = spec.options.text("by");
    if by == "portal" {
        return Ok((Means::Portal, None));
    }
    let desktop = query(&spec.target, SETUP_TIMEOUT)?;
    let Some(missing) = lacks(&desktop, is_view_only) else { return Ok((Means::Wlroots, Some(desktop))) };
    if by == "wlroots" {
        return Err(invalid(
            spec,
            format!("the compositor lacks {missing}; {WITH_PROTOCOLS}; `by=portal` needs none"),
        ));
    }
    match portal::problem(is_view_only) {
        Some(of_portal) => Err(invalid(spec, problem(missing, &of_portal))),
        None => Ok((Means::Portal, Some(desktop))),
    }
}

/// Returns the spec with the name of the display.
fn with_name(spec: &DeviceSpec) -> DeviceSpec {
    DeviceSpec { target: connect::display_name(spec), ..spec.clone() }
}

fn invalid(spec: &DeviceSpec, problem: impl Into<String>) -> DeviceError {
    DeviceError::Spec { what: format!("`wayland:{}`", spec.target), problem: problem.into() }
}

/// The description's own facts.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Facts {
    /// The name of the output.
    Output(String),
    /// The size before the first picture, in pixels.
    Monitor(u32, u32),
}

impl Facts {
    fn emit(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        match self {
            Facts::Output(name) => writer.u8(0).text(name),
            Facts::Monitor(width, height) => writer.u8(1).u32(*width).u32(*height),
        };
        writer.finish()
    }

    /// Parses the properties of a description that [`open`] made.
    fn parse(properties: &[u8]) -> Result<Facts, DeviceError> {
        let mut reader = Reader::new(properties);
        let mut parse = || -> Result<Facts, WireError> {
            let facts = match reader.u8("way")? {
                0 => Facts::Output(reader.text("output", NAME_BYTES_MAX)?.into()),
                1 => Facts::Monitor(reader.u32("width")?, reader.u32("height")?),
                other => return Err(WireError::Value { what: "way", value: other.into() }),
            };
            reader.end("description")?;
            Ok(facts)
        };
        parse().map_err(|error| DeviceError::Spec {
            what: "the description of the Wayland screen".into(),
            problem: error.to_string(),
        })
    }
}

fn description(spec: &DeviceSpec, name: &str, (width, height): (u32, u32), facts: &Facts) -> Description {
    let is_view_only = plain::is_view_only(spec);
    let note = plain::view_note(is_view_only);
    let size = if width > 0 { format!(" of {width}x{height}") } else { String::new() };
    Description {
        class: spec.class.clone(),
        summary: format!("Wayland screen {}{size}{note}", name.escape_debug()),
        flows: plain::screen_flows(is_view_only),
        application: Wayland.application(),
        properties: facts.emit(),
    }
}

/// Opens the output with this name by the protocols of wlroots; the first one for an empty name.
fn open_output(spec: DeviceSpec, role: Role, name: &str, desktop: &Desktop) -> Result<Opened, DeviceError> {
    let Some(output) = desktop.output(name).filter(|output| output.name.len() <= NAME_BYTES_MAX) else {
        let names: Vec<&str> = desktop.outputs.iter().map(|output| output.name.as_str()).collect();
        let problem = match names[..] {
            [] => "the desktop has no output: turn a monitor on".into(),
            _ => format!("the desktop has no output `{name}`; its outputs are: {}", names.join(", ")),
        };
        return Err(invalid(&spec, problem));
    };
    let facts = Facts::Output(output.name.clone());
    let description = description(&spec, &output.name, output.upright_size(), &facts);
    let descriptors = vec![connect::connect(&spec.target)?];
    Ok(Opened { spec, role, description, descriptors })
}

/// The part of an [`Opened`] that the portal gives.
fn open_share(spec: DeviceSpec, role: Role, share: portal::OpenedShare) -> Opened {
    let portal::OpenedShare { size, descriptors } = share;
    let description = description(&spec, "by the portal", size, &Facts::Monitor(size.0, size.1));
    Opened { spec, role, description, descriptors }
}

/// Lists the outputs of a desktop; nothing for the socket of a compositor that has ended.
fn listings(display: &str) -> Vec<Listing> {
    let listing = |spec: String, summary: String, problem: Option<String>| Listing {
        spec,
        summary,
        problem,
        ours: false,
    };
    match query(display, LIST_TIMEOUT) {
        Ok(desktop) => {
            let missing = lacks(&desktop, false);
            let of_portal = missing.and_then(|_| portal::problem(false));
            if missing.is_some() && of_portal.is_none() {
                let summary = "the desktop, by its portal, which asks its user for the monitor";
                return vec![listing(format!("wayland:{display}"), summary.into(), None)];
            }
            let problem = missing.zip(of_portal).map(|(missing, of_portal)| problem(missing, &of_portal));
            let of = |output: &desktop::Output| {
                let (name, (width, height)) = (output.name.escape_debug(), output.upright_size());
                let spec = format!("wayland:{display},output={name}");
                let by = if problem.is_none() { ", by the protocols of wlroots" } else { "" };
                listing(spec, format!("the output {name} of {width}x{height}{by}"), problem.clone())
            };
            desktop.outputs.iter().map(of).collect()
        }
        Err(DeviceError::Os { error, .. })
            if matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::NotFound) =>
        {
            Vec::new()
        }
        Err(error) => vec![listing(
            format!("wayland:{display}"),
            format!("the desktop {display}"),
            Some(error.to_string()),
        )],
    }
}

impl DeviceClass for Wayland {
    fn entry(&self) -> ModuleEntry {
        ModuleEntry {
            name: "wayland",
            summary: "the screen, keyboard and mouse of a Wayland desktop",
            doc: include_str!("doc.md"),
            options: &OPTIONS,
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
        connect::local_displays().iter().flat_map(|display| listings(display)).collect()
    }

    fn flows(&self, spec: &DeviceSpec) -> Result<Vec<FlowOffer>, DeviceError> {
        Ok(plain::screen_flows(plain::is_view_only(spec)))
    }

    fn question(&self, spec: &DeviceSpec) -> Option<String> {
        let spec = with_name(spec);
        match means(&spec) {
            Ok((Means::Portal, _)) => portal::question(&spec),
            _ => None,
        }
    }

    fn withdraw(&self, spec: &DeviceSpec) {
        portal::withdraw(&with_name(spec));
    }

    fn open(&self, spec: &DeviceSpec, role: Role, _: Option<&Description>) -> Result<Opened, DeviceError> {
        let spec = with_name(spec);
        let output = spec.options.text("output").to_string();
        match means(&spec)? {
            (Means::Wlroots, Some(desktop)) => open_output(spec, role, &output, &desktop),
            _ if output.is_empty() => {
                let share = portal::open(&spec)?;
                Ok(open_share(spec, role, share))
            }
            _ => Err(invalid(&spec, "its user chooses the monitor in the portal's dialog: omit `output`")),
        }
    }

    fn reopen(&self, spec: &DeviceSpec, role: Role, known: &Description) -> Result<Opened, DeviceError> {
        let spec = with_name(spec);
        match Facts::parse(&known.properties)? {
            Facts::Output(name) => {
                let desktop = query(&spec.target, SETUP_TIMEOUT)?;
                match lacks(&desktop, plain::is_view_only(&spec)) {
                    Some(missing) => {
                        Err(invalid(&spec, format!("the compositor lacks {missing}; {WITH_PROTOCOLS}")))
                    }
                    None => open_output(spec, role, &name, &desktop),
                }
            }
            Facts::Monitor(..) => {
                let share = portal::reopen(&spec)?;
                Ok(open_share(spec, role, share))
            }
        }
    }

    /// The objects of a connection are known to the exited worker alone. A share of the portal is known to the broker.
    fn renew(&self, opened: &mut Opened) -> Result<(), DeviceError> {
        if let Facts::Output(_) = Facts::parse(&opened.description.properties)? {
            opened.descriptors = vec![connect::connect(&opened.spec.target)?];
        }
        Ok(())
    }

    /// Threads of this process have the share of a portal.
    fn can_hand_over(&self, opened: &Opened) -> bool {
        matches!(Facts::parse(&opened.description.properties), Ok(Facts::Output(_)))
    }

    fn release(&self, opened: &Opened) {
        if let (Ok(Facts::Monitor(..)), Some(control)) =
            (Facts::parse(&opened.description.properties), opened.descriptors.first())
        {
            helper_thread::release(control.as_fd());
        }
    }

    fn revoke(&self, opened: &Opened) {
        self.release(opened);
    }

    fn partner(&self, opened: Opened) -> Result<Box<dyn Partner>, DeviceError> {
        let spec = opened.spec.clone();
        match Facts::parse(&opened.description.properties)? {
            Facts::Output(output) => {
                let [socket] = plain::descriptors(opened)?;
                let way = Wlroots::new(&spec, &output, socket).map_err(|error| {
                    os(format!("communicating with the compositor at {}", spec.target), error, None)
                })?;
                Ok(Box::new(DevicePartner::new(&spec, way)))
            }
            Facts::Monitor(width, height) => {
                let way = Portal::new(plain::descriptors(opened)?, (width, height))
                    .map_err(|error| os("mapping the memory of a desktop".into(), error, None))?;
                Ok(Box::new(DevicePartner::new(&spec, way)))
            }
        }
    }
}
